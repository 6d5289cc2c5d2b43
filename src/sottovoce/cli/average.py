"""`sottovoce average`: one row per node, averaged privately in this process, after its cost is shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce._format import number
from sottovoce._io import plain
from sottovoce.cli.options import (
    AddNoise,
    Draw,
    Graph,
    Matrix,
    ProtocolOption,
    Rounds,
    TreeOption,
    Weights,
)
from sottovoce.cli.output import Json, console, emit, safe, table
from sottovoce.cli.plan import show_assessment
from sottovoce.errors import ConfigError, InvalidInput

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from sottovoce.graphs import Network

__all__ = ["average"]


def average(
    values: Annotated[
        str, typer.Argument(help="A plan file (.toml), a table (.csv, .npz), or numbers: 0.2,0.9,0.4")
    ],
    graph: Graph = None,
    matrix: Matrix = None,
    weights: Weights = None,
    protocol: ProtocolOption = "chebyshev",
    rounds: Rounds = None,
    tree: TreeOption = None,
    fresh: AddNoise = None,
    draw: Draw = 0,
    radius: Annotated[float, typer.Option(help="Values are clipped to this radius ...")] = 1.0,
    center: Annotated[float, typer.Option(help="... around this public center.")] = 0.0,
    site_weights: Annotated[
        str | None,
        typer.Option(
            help="How much each node counts, public: 9,58,30 or a file; all alike when left out. Noise "
            "follows the weight."
        ),
    ] = None,
    noise: Annotated[float | None, typer.Option(help="Noise multiplier: noise over the radius.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Budget; the least noise that meets it is taken.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Delta of the budget.")] = 1e-5,
    view: Annotated[
        str, typer.Option(help="Against whom: local, outsider, network (any one node) or central.")
    ] = "network",
    seed: Annotated[
        int | None, typer.Option(help="Makes it a simulation: reproducible noise, which protects nobody.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the result here: .json, .csv or .npz.")
    ] = None,
    json: Json = False,
) -> None:
    """Average one row per node privately, in this process.

    Every node's row is clipped to a public ball, noise is added once, and the
    network averages. The noise is protective (from the operating system)
    unless --seed makes the run a simulation. All rows pass through this
    process: for organizations that do not trust one machine, use peers.

    \b
    Examples:
      sottovoce average 0.1,0.9,0.4,0.6 --graph ring:4 --protocol masked --epsilon 12
      sottovoce average rows.csv --graph florentine --protocol masked --epsilon 3
      sottovoce average plan.toml --out result.json
    """
    from sottovoce.advice.assessment import assess, require_budget
    from sottovoce.planfile.read import plan_from_settings, read_plan_file
    from sottovoce.planfile.schema import VERSION, check_plan_file

    if values.lower().endswith(".toml"):
        file = Path(values)
        settings, where = read_plan_file(file), file.name
        if settings.average is None:
            raise ConfigError(f"{where} has no [average]; sottovoce train runs a file with [train].")
        rows = given_values(settings.average.values, file.parent)
    else:
        rows = given_values(values, Path())
        typed: dict[str, Any] = {
            "version": VERSION,
            "network": {"graph": graph, "matrix": matrix, "weights": weights},
            "protocol": {"name": protocol, "rounds": rounds, "tree": tree, "fresh": fresh, "seed": draw},
            "average": {"radius": radius, "center": center, "adjacency": "user"} | _counted(site_weights),
            "noise": {"noise_multiplier": noise, "seed": seed},
        }
        if epsilon is not None:
            typed["budget"] = {"epsilon": epsilon, "delta": delta, "view": view}
        file, where = Path("options"), "The options"
        settings = check_plan_file(typed, where)
    if out is not None and out.suffix.lower() not in (".json", ".csv", ".npz"):
        raise InvalidInput(f"--out must end in .json, .csv or .npz, got {out.name!r}.")
    loaded = plan_from_settings(settings, file.parent, where, dim=rows.shape[1])
    assessment = assess(loaded)
    require_budget(assessment)
    result = loaded.plan.run(rows, settings.noise.source)
    ended = result.outputs["rows"]
    record = plain(result.to_dict() | {"metrics": {**result.metrics, "cost": assessment["cost"]}})
    record["guarantees"] = plain(assessment["guarantees"])
    # rows twice: for those who read --json, and where every record has its arrays
    payload = record | {"rows": plain(ended), "outputs": {"rows": plain(ended)}}
    if out is not None:
        write_result(out, payload, ended)
    emit(payload, json, lambda screen: _show_average(screen, loaded.network, assessment, record, ended))
    if out is not None and not json:
        console().print(f"Written to {out}.")


def _counted(site_weights: str | None) -> dict[str, Any]:
    """Return the weights of the nodes as the plan's option, where they are given."""
    if site_weights is None:
        return {}
    weights = given_values(site_weights, Path())
    if weights.shape[1] != 1:
        raise InvalidInput(f"--site-weights must be one number per node, got rows of {weights.shape[1]}.")
    return {"site_weights": tuple(weights[:, 0].tolist())}


def given_values(values: Any, folder: Path) -> np.ndarray:
    """Return (n, dim) rows from numbers, a comma-separated text or a file.

    Examples
    --------
    >>> given_values("0.5, 1", Path()).tolist(), given_values((1.0, 2.0), Path()).tolist()
    ([[0.5], [1.0]], [[1.0], [2.0]])
    """
    import numpy as np

    if values is None:
        raise ConfigError('[average] has no values; add values = "rows.csv", or a list of numbers.')
    if isinstance(values, str):
        words = values.replace(",", " ").split()
        try:
            return np.array([[float(word)] for word in words])
        except ValueError:
            values = Path(values)
    if isinstance(values, Path):
        from sottovoce.planfile.read import read_numbers

        array = read_numbers(folder / values)
        return array[:, None] if array.ndim == 1 else array
    return np.array(values, dtype=float)[:, None]


def write_result(path: Path, record: dict[str, Any], rows: np.ndarray) -> None:
    """Write the record (.json), the rows (.csv), or both (.npz), whole or not at all."""
    import io
    import json

    import numpy as np

    from sottovoce._io import atomic_write
    from sottovoce.report.result_files import write_result

    if path.suffix.lower() == ".json":
        write_result(path, record)
        return
    buffer = io.BytesIO()
    if path.suffix.lower() == ".csv":
        np.savetxt(buffer, rows, delimiter=",", fmt="%.17g")
    else:
        np.savez(buffer, rows=rows, record=np.array(json.dumps(record)))
    atomic_write(path, buffer.getvalue())


def _show_average(
    screen: Console,
    network: Network | None,
    assessment: dict[str, Any],
    record: dict[str, Any],
    rows: np.ndarray,
) -> None:
    assert network is not None
    show_assessment(screen, assessment)
    shown = rows[:8, :6]
    columns = ["node", *[f"value {k}" if rows.shape[1] > 1 else "result" for k in range(shown.shape[1])]]
    table_rows = [[safe(network.label(v)), *[number(float(x)) for x in row]] for v, row in enumerate(shown)]
    screen.print(table(columns, table_rows, title="The private average, as each node has it"))
    if rows.shape[0] > 8 or rows.shape[1] > 6:
        screen.print(f"  ... {rows.shape[0]} nodes, {rows.shape[1]} numbers each; --out keeps them all")
    screen.print(f"Noise: {record['provenance']['noise']}")
