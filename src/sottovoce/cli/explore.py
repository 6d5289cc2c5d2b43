"""`sottovoce explore`: a page on which one clicks on a participant and sees what it learns of everybody."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from sottovoce.cli.options import DeltaOrDefault, Json, Noise, Rounds
from sottovoce.cli.output import console, emit, progress


def explore(
    target: Annotated[
        str, Argument(help="A graph such as ring:16, a plan file, or an agreement.")
    ] = "florentine",
    protocol: Annotated[str | None, Option(help="How it averages: gossip, chebyshev, tree, masked")] = None,
    rounds: Rounds = None,
    noise: Noise = None,
    delta: DeltaOrDefault = None,
    out: Annotated[
        Path | None, Option("--out", "-o", help="Write one offline file instead of serving a page.")
    ] = None,
    port: Annotated[int, Option(help="Port of the page on this machine; 0 takes a free one.")] = 0,
    browser: Annotated[bool, Option(help="Open the page in a browser.")] = True,
    json: Json = False,
) -> None:
    """Open a page that shows what every participant learns about every other.

    The page is served on this machine only (127.0.0.1), under an address with
    a token, and loads nothing from elsewhere. With --out one HTML file is
    written that works offline: all observers, all rounds and, up to 32
    participants, all pairs of colluders.

    \b
    Examples:
      sottovoce explore
      sottovoce explore hypercube:4 --protocol tree --noise 4
      sottovoce explore plan.toml --out page.html
    """
    from sottovoce.report.explorer.model import open_model

    model = open_model(target, protocol=protocol, rounds=rounds, noise=noise, delta=delta)
    _ = model.plan  # an error is raised here, not on the page
    if out is not None:
        from sottovoce._io import atomic_write
        from sottovoce.report.explorer.page import offline_page

        steps = model.most_rounds if model.adjustable else 1
        with progress("every observer", steps, quiet=json) as tick:
            page = offline_page(model, tick)
        written = atomic_write(out, page)
        result = {"page": str(written), "bytes": len(page.encode()), "nodes": model.network.n}
        emit(result, json, [f"Written to {out}: open it in any browser."])
        return
    import webbrowser

    from sottovoce.report.explorer.page import ExplorerServer

    server = ExplorerServer(model, port)
    try:
        if json:
            print(json_module.dumps({"address": server.address}), flush=True)
        else:
            print(f"The explorer is at {server.address}")
            print("For this machine only; Ctrl-C ends it.", flush=True)
        if browser:
            webbrowser.open(server.address)
        server.serve()
    except KeyboardInterrupt:
        if not json:
            console().print("Closed.")
    finally:
        server.close()
