"""`sottovoce average`: one row per node, averaged privately in this process, after its cost is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from sottovoce._format import number
from sottovoce._io import atomic_write, to_jsonable
from sottovoce.cli import options
from sottovoce.cli.output import emit, require_writable
from sottovoce.cli.plan import assessment_text
from sottovoce.errors import InvalidInput


def average(
    values: Annotated[str, Argument(help="A plan file (.toml), a table (.csv, .npz), or numbers: 0.2,0.9")],
    graph: options.Graph = None,
    matrix: options.Matrix = None,
    weights: options.Weights = None,
    protocol: options.ProtocolOption = "chebyshev",
    rounds: options.Rounds = None,
    draw: options.Draw = 0,
    radius: Annotated[float, Option(help="Values are clipped to this radius ...")] = 1.0,
    center: Annotated[float, Option(help="... around this public center.")] = 0.0,
    site_weights: Annotated[
        str | None,
        Option(help="How much each node counts, public: 9,58,30 or a file. Noise follows the weight."),
    ] = None,
    noise: options.Noise = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = 1e-5,
    view: Annotated[str, Option(help="local, outsider, network (any one node) or central.")] = "network",
    seed: Annotated[int | None, Option(help="Simulate: reproducible noise, which protects nobody.")] = None,
    out: Annotated[
        Path | None, Option("--out", "-o", help="Write the result (.json) or the rows (.csv) here.")
    ] = None,
    population: options.Population = None,
    json: options.Json = False,
) -> None:
    """Average one row per node privately, in this process.

    Every node's row is clipped to a public ball, noise is added once, and the
    network averages. The noise is protective (from the operating system)
    unless --seed makes the run a simulation. On a machine with a member
    directory (sottovoce peer init) it is first charged to its lifetime ledger,
    and refused beyond the budget. All rows pass through this process: for
    organizations that do not trust one machine, use peers.

    \b
    Examples:
      sottovoce average 0.1,0.9,0.4,0.6 --graph ring:4 --protocol masked --epsilon 12
      sottovoce average rows.csv --graph florentine --protocol masked --epsilon 3
      sottovoce average plan.toml --out result.json
    """
    from sottovoce.advice.assessment import assess, require_budget
    from sottovoce.planfile.read import average_values, plan_from_settings, read_plan_file
    from sottovoce.planfile.schema import VERSION, check_plan_file
    from sottovoce.report.result_files import write_result

    if values.lower().endswith(".toml"):
        file = Path(values)
        settings, where = read_plan_file(file, "average"), file.name
        assert settings.average is not None
        rows = average_values(settings.average.values, file.parent)
    else:
        file, where = Path("options"), "The options"
        rows = average_values(values, Path())
        tables: dict[str, Any] = {
            "version": VERSION,
            "network": {"graph": graph, "matrix": matrix, "weights": weights},
            "protocol": {"name": protocol, "rounds": rounds, "seed": draw},
            "average": {"radius": radius, "center": center, "adjacency": "user"},
            "noise": {"noise_multiplier": noise, "seed": seed},
        }
        if site_weights is not None:
            tables["average"]["site_weights"] = average_values(site_weights, Path()).ravel().tolist()
        if epsilon is not None:
            tables["budget"] = {"epsilon": epsilon, "delta": delta, "view": view}
        settings = check_plan_file(tables, where)
    if out is not None and out.suffix.lower() not in (".json", ".csv"):
        raise InvalidInput(f"--out must end in .json or .csv, got {out.name!r}.")
    require_writable(out)
    loaded = plan_from_settings(settings, file.parent, where, dim=rows.shape[1])
    assessment = assess(loaded)
    require_budget(assessment)
    result = loaded.plan.run(
        rows,
        settings.noise.source,
        purpose="average",
        population=population,
        guarantees=assessment["guarantees"],
    )
    averages = result.outputs["rows"]
    if settings.limit is not None:
        budget = settings.limit.to_dict(loaded.privacy)
        result = replace(result, provenance={**result.provenance, "budget": budget})
    payload = to_jsonable(result.to_dict() | {"metrics": {**result.metrics, "cost": assessment["cost"]}})
    # rows twice: for those who read --json, and where every result has its arrays
    payload |= to_jsonable({"rows": averages, "outputs": {"rows": averages}})
    if out is not None and out.suffix.lower() == ".json":
        write_result(out, payload)
    elif out is not None:
        atomic_write(out, "\n".join(",".join(f"{x:.17g}" for x in row) for row in averages.tolist()) + "\n")
    network = loaded.network
    assert network is not None

    n, dim = averages.shape
    cells = [[str(network.node_name(v)), *map(number, averages[v, :6].tolist())] for v in range(min(n, 8))]
    columns = ["node", *([f"value {k}" for k in range(min(dim, 6))] if dim > 1 else ["result"])]
    shown = {"n": n, "dim": dim, "columns": columns, "rows": cells, "result": payload, "out": out}
    emit(payload, json, assessment_text(assessment, name="average", **shown))
