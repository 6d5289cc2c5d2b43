"""`sottovoce explore`: a page on which one clicks on a participant and sees what it learns of everybody."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.output import Json, console, emit, progress


def explore(
    target: Annotated[
        str, typer.Argument(help="A graph such as ring:16, a plan file, or an agreement.")
    ] = "florentine",
    protocol: Annotated[
        str | None, typer.Option(help="gossip, chebyshev, tree, exchange, masked ...; of a graph.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of gossip; the theoretical number.")] = None,
    noise: Annotated[float | None, typer.Option(help="Noise multiplier, noise over the clip.")] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of every epsilon; 1e-5.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write one offline file instead of serving a page.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the page on this machine; 0 takes a free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    json: Json = False,
) -> None:
    """Open a page that shows who learns what of whom; click, collude, draw.

    The page is served by this machine to this machine (127.0.0.1) under an
    address with a token, and asks nobody else. With --out one HTML file is
    written that works without anything: all observers, all rounds and, up to
    32 participants, all pairs of colluders.

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
        emit(result, json, lambda screen: screen.print(f"Written to {out}: open it in any browser."))
        return
    from sottovoce.report.explorer.server import ExplorerServer

    server = ExplorerServer(model, port)
    try:
        _announce(server.address, json)
        if browser:
            import webbrowser

            webbrowser.open(server.address)
        server.serve()
    except KeyboardInterrupt:
        if not json:
            console().print("Closed.")
    finally:
        server.close()


def _announce(address: str, json: bool) -> None:
    import sys

    if json:
        import json as json_module

        print(json_module.dumps({"address": address}), flush=True)
        return
    print(f"The explorer is at {address}")
    print("For this machine only; Ctrl-C ends it.")
    sys.stdout.flush()
