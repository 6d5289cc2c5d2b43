"""`sottovoce explore`: a page on which one clicks on a participant and sees what it learns of everybody."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.output import Json, console, emit, progress

if TYPE_CHECKING:
    from sottovoce.report.explorer.model import ExplorerModel, Opened

__all__ = ["explore", "opened"]


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
    study = _study(target, protocol, rounds, noise, delta)
    _ = study.plan  # whatever is wrong is said here, not on the page
    if out is not None:
        from sottovoce._io import atomic_write
        from sottovoce.report.explorer.page import offline_page

        steps = study.most_rounds if study.adjustable else 1
        with progress("every observer", steps, quiet=json) as tick:
            page = offline_page(study, tick)
        written = atomic_write(out, page)
        found = {"page": str(written), "bytes": len(page.encode()), "nodes": study.network.n}
        emit(found, json, lambda screen: screen.print(f"Written to {out}: open it in any browser."))
        return
    from sottovoce.report.explorer.server import ExplorerServer

    server = ExplorerServer(study, port)
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


def _study(
    target: str, protocol: str | None, rounds: int | None, noise: float | None, delta: float | None
) -> ExplorerModel:
    from sottovoce.report.explorer.model import ExplorerModel, ExplorerSettings

    given: dict[str, Any] = {"protocol": protocol, "rounds": rounds, "noise": noise, "delta": delta}
    given = {key: value for key, value in given.items() if value is not None}
    if target.endswith(".toml"):
        found = opened(Path(target))
        setting = found.setting()
        changed = ExplorerSettings.read({**setting.model_dump(), **given}) if given else setting
        return ExplorerModel(changed, found)
    if target.startswith("file:"):
        from sottovoce import graphs
        from sottovoce.algorithms import PrivateAveraging
        from sottovoce.report.explorer.model import Opened

        network = graphs.parse(target)
        first = PrivateAveraging("gossip", network=network, noise_std=1.0, radius=0.5, center=0.5)
        tables = {"network": {"graph": target}}
        found = Opened(first, network, tables=tables, protocol="gossip")
        return ExplorerModel(ExplorerSettings.read({**found.setting().model_dump(), **given}), found)
    return ExplorerModel(ExplorerSettings.read({"graph": target, **given}))


def opened(path: Path) -> Opened:
    """Return the plan of a plan file, or of an agreement, for the page."""
    from sottovoce.planfile.read import plan_from_settings, read_toml
    from sottovoce.planfile.schema import check_plan_file
    from sottovoce.report.explorer.model import Opened

    tables = read_toml(path)
    if "members" in tables:
        from dataclasses import replace

        from sottovoce.peers.agreement import read_agreement

        agreement = read_agreement(path)
        named = replace(agreement.network, labels=tuple(member.name for member in agreement.members))
        return Opened(
            agreement.plan, named, title=agreement.title, delta=agreement.budget.delta,
            protocol=agreement.algorithm.protocol,
        )  # fmt: skip
    from sottovoce.errors import ConfigError

    settings = check_plan_file(tables, path.name)
    built = plan_from_settings(settings, path.parent, path.name)
    if built.network is None:
        raise ConfigError(
            f"{path.name} runs over no network, so there is nobody to look; try one with [network]."
        )
    named_protocol = None
    if settings.protocol.name is not None:
        named_protocol = str(settings.protocol.named("gossip"))
    elif settings.train is None:
        named_protocol = "chebyshev"
    return Opened(
        built.plan, built.network, title=settings.title, tables=tables, protocol=named_protocol,
        delta=1e-5 if settings.budget is None else settings.budget.delta,
    )  # fmt: skip
