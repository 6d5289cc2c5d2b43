"""`sottovoce average` and `sottovoce plan`: private averages, priced before they run, then run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.account import (
    Draw,
    Fresh,
    Graph,
    Matrix,
    ProtocolOption,
    Rounds,
    TreeOption,
    Weights,
    notes_on,
)
from sottovoce.cli.config import (
    AveragingFile,
    BudgetSection,
    NoiseSection,
    checked,
    read_numbers,
    read_plan,
    read_toml,
)
from sottovoce.cli.output import Json, console, emit, number, plain, safe, table
from sottovoce.errors import BudgetExceeded, BudgetInfeasible, ConfigError, InvalidInput

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from sottovoce.algorithms import Muffliato, Plan
    from sottovoce.graphs import Network
    from sottovoce.protocols import Protocol

__all__ = ["KINDS", "average", "plan", "price"]

EVERY_NODE = 512  # nodes up to which the worst observer is looked for without being asked
# What a plan file is about, by the section it has: a function (file, tables) that returns its price.
KINDS: dict[str, str] = {
    "model": "sottovoce.cli.train_deep:price_file",
    "train": "sottovoce.cli.train:price_file",
    "average": "sottovoce.cli.average:price_file",
}
ACCURACY_NODES = 2048  # nodes up to which the protocol is applied to the identity


# ---- sottovoce plan ------------------------------------------------------------------------------------


def plan(
    file: Annotated[Path, typer.Argument(help="A plan file; docs/plan-files.md explains every key.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the record here.")] = None,
    json: Json = False,
) -> None:
    """Price a plan file: privacy, communication and feasibility, before it runs.

    Prints one row per adversary with epsilon, delta, adjacency and label, then
    what travels, then whether the \\[budget] is met. No data are read. The exit
    code is 1 when the budget is not met.

    \b
    Example (save as plan.toml, then run: sottovoce plan plan.toml):
      \\[network]
      graph = "hypercube:4"
      \\[protocol]
      name = "exchange"
      \\[average]
      radius = 0.5
      \\[budget]
      epsilon = 1.0
      delta = 1e-5
      view = "network"
    """
    tables = read_toml(file)
    kind = next((section for section in KINDS if section in tables), "average")
    module, _, name = KINDS[kind].partition(":")
    found = getattr(importlib.import_module(module), name)(file, tables)
    if out is not None:
        from sottovoce.report.records import write_record

        write_record(out, plan_record(found))
    emit(found, json, lambda screen: show_price(screen, found))
    if found.get("feasible") is False:
        if not json:
            print(f"sottovoce: {found['verdict']}", file=sys.stderr)
        raise typer.Exit(1)


def price_file(file: Path, tables: dict[str, Any]) -> dict[str, Any]:
    """Return the price of an averaging plan file, as `price` gives it."""
    settings = read_plan(file, AveragingFile, tables)
    network, made = averaging_plan(settings, file.parent)
    found = price(made, settings.budget, dim=settings.average.dim, title=settings.title)
    return found | ({"notes": notes} if (notes := notes_on(network, made.protocol)) else {})


def averaging_plan(settings: AveragingFile, folder: Path | None = None) -> tuple[Network, Muffliato]:
    """Return the network and the plan that an averaging file describes."""
    network = settings.network.build(folder)
    protocol = settings.protocol.build(network)
    average = settings.average
    made = with_noise(protocol, settings.noise, settings.budget, radius=average.radius, centre=average.centre)
    return network, made


def with_noise(
    protocol: Protocol, noise: NoiseSection, budget: BudgetSection | None, *, radius: float, centre: Any = 0.0
) -> Muffliato:
    """Return the averaging plan with the noise given, or the least noise that meets the budget."""
    from sottovoce.algorithms import Muffliato

    if noise.std is not None and noise.multiplier is not None:
        raise ConfigError("[noise] takes multiplier or std, got both; leave one out.")
    if noise.std is not None or noise.multiplier is not None:
        std = noise.std if noise.std is not None else 2 * radius * (noise.multiplier or 0.0)
        return Muffliato(protocol, noise_std=std, radius=radius, centre=centre)
    if budget is None:
        raise ConfigError(
            "Neither [noise] nor [budget] is given; one of them decides how much noise is added."
        )
    made = Muffliato.for_budget(
        protocol, epsilon=budget.epsilon, delta=budget.delta, radius=radius, centre=centre, view=budget.view,
        **budget.who,
    )  # fmt: skip
    worst = noise_in_result(made)
    if budget.max_noise is not None and worst is not None and worst > budget.max_noise:
        raise BudgetInfeasible(
            f"No noise meets epsilon {budget.epsilon:g} at delta {budget.delta:g} with at most "
            f"{budget.max_noise:g} of noise in the result: it would be {worst:.3g}; "
            "allow a larger epsilon or more noise, or let more nodes take part."
        )
    return made


def noise_in_result(plan: Muffliato) -> float | None:
    """Return the standard deviation of the noise in the worst node's result, per coordinate."""
    import numpy as np

    from sottovoce.protocols import Refreshed

    protocol = plan.protocol
    if protocol.n > ACCURACY_NODES:
        return None
    mixing = _mixing(protocol)
    if mixing is None:
        return None
    variance = plan.noise_std**2 * (mixing**2).sum(axis=1)
    if isinstance(protocol, Refreshed):
        power = np.eye(protocol.n)
        for _ in range(protocol.rounds - 1):  # fresh noise passes through one to rounds - 1 more rounds
            power = protocol.network.W @ power
            variance = variance + protocol.tau**2 * (power**2).sum(axis=1)
    return float(np.sqrt(variance.max()))


def _mixing(protocol: Protocol) -> np.ndarray | None:
    """Return the (n, n) weights with which the values enter the results."""
    import numpy as np

    from sottovoce.protocols import Gossip, Refreshed, Walk

    if isinstance(protocol, Walk):
        return None
    plain_gossip = Gossip(protocol.network, protocol.rounds) if isinstance(protocol, Refreshed) else protocol
    return plain_gossip.apply(np.eye(protocol.n))


def price(plan: Plan, budget: BudgetSection | None, *, dim: int = 1, title: str = "") -> dict[str, Any]:
    """Return what a plan costs: guarantees, communication, accuracy, and whether the budget is met.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = sv.Muffliato(sv.protocols.Exchange(8), noise_std=4.0, radius=0.5)
    >>> found = price(plan, BudgetSection(epsilon=1.0, delta=1e-5, view="network"))
    >>> found["feasible"], found["cost"]["messages"]
    (True, 24)
    """
    delta = 1e-5 if budget is None else budget.delta
    local = plan.privacy("local")
    stated = plan.guarantees() if getattr(plan, "n", 1) <= EVERY_NODE else [local, plan.privacy("central")]
    found: dict[str, Any] = {"title": title, "plan": dict(plan.describe()), "delta": delta}
    if budget is not None:
        chosen = plan.privacy(budget.view, **budget.who)
        stated = [*stated, *([] if chosen in stated else [chosen])]
        found |= {"budget": budget.model_dump(exclude_none=True), **_verdict(chosen, budget)}
    found["guarantees"] = [g.to_dict(delta=delta) | {"against": str(g.adversary)} for g in stated]
    found["cost"] = dict(plan.cost(dim=dim))  # type: ignore[call-arg]
    if hasattr(plan, "noise_std"):
        found["noise_in_result"] = noise_in_result(plan)  # type: ignore[arg-type]
        limit = None if budget is None else budget.max_noise
        if limit is not None and (found["noise_in_result"] or 0.0) > limit:
            found |= {
                "feasible": False,
                "verdict": f"The result would carry {found['noise_in_result']:.3g} of noise, "
                f"more than the {limit:g} allowed.",
            }
    return found


def _verdict(chosen: Any, budget: BudgetSection) -> dict[str, Any]:
    spent = chosen.epsilon(budget.delta)
    where = f"epsilon {spent:.4g} at delta {budget.delta:g} against {chosen.adversary}"
    if not chosen.valid:
        return {
            "feasible": False,
            "verdict": f"The number for this view is {chosen.label}, not a guarantee, and accepts no budget; "
            "take the view local, or a plan over exact consensus.",
        }
    if spent > budget.epsilon:
        return {
            "feasible": False,
            "verdict": f"The plan spends {where}, more than the budget of {budget.epsilon:g}; "
            "more noise or fewer steps lower it.",
        }
    return {"feasible": True, "verdict": f"The plan spends {where}, within the budget of {budget.epsilon:g}."}


def plan_record(found: dict[str, Any]) -> dict[str, Any]:
    """Return the price of a plan as a result record."""
    from sottovoce import __version__

    kept = ("title", "delta", "budget", "feasible", "verdict", "cost", "noise_in_result", "notes")
    return plain(
        {
            "name": "plan",
            "config": found["plan"],
            "metrics": {key: found[key] for key in kept if key in found},
            "history": [],
            "guarantees": found["guarantees"],
            "provenance": {"version": __version__},
        }
    )


def show_price(screen: Console, found: dict[str, Any]) -> None:
    """Print the price of a plan for a person."""
    described = ", ".join(f"{key} {safe(_short(value))}" for key, value in found["plan"].items())
    screen.print(f"[bold]{safe(found['title'] or 'Plan')}[/bold]: {described}")
    for note in found.get("notes", ()):
        screen.print(f"[yellow]note:[/yellow] {safe(note)}")
    rows = [
        [
            g["against"],
            number(g["epsilon"]),
            f"{found['delta']:g}",
            g["adjacency"],
            g["label"],
            _yes(g["valid"]),
        ]
        for g in found["guarantees"]
    ]
    columns = ["against", "epsilon", "delta", "adjacency", "label", "guarantee"]
    screen.print(table(columns, rows, title="What it reveals"))
    for line in dict.fromkeys(a for g in found["guarantees"] for a in g["assumptions"]):
        screen.print(f"  assumes: {line}")
    cost = found["cost"]
    screen.print(
        f"What travels: {cost['rounds']:,} rounds, {cost['messages']:,} messages "
        f"({number(cost['messages_per_node'])} per node), {cost['bytes']:,} bytes"
    )
    if found.get("noise_in_result") is not None:
        screen.print(
            f"Noise in the result of the worst node: {number(found['noise_in_result'])} per coordinate"
        )
    if found.get("feasible"):
        screen.print(f"[green]Feasible.[/green] {found['verdict']}")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# ---- sottovoce average ---------------------------------------------------------------------------------


def average(
    values: Annotated[
        str, typer.Argument(help="A plan file (.toml), a table (.csv, .npz), or numbers: 0.2,0.9,0.4")
    ],
    graph: Graph = None,
    matrix: Matrix = None,
    weights: Weights = None,
    protocol: ProtocolOption = "chebyshev",
    rounds: Rounds = None,
    tree: TreeOption = "bfs",
    fresh: Fresh = 0.1,
    draw: Draw = 0,
    radius: Annotated[float, typer.Option(help="Values are clipped to this radius ...")] = 1.0,
    centre: Annotated[float, typer.Option(help="... around this public centre.")] = 0.0,
    noise: Annotated[float | None, typer.Option(help="Noise multiplier: noise over sensitivity.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Budget; the least noise that meets it is taken.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Delta of the budget.")] = 1e-5,
    view: Annotated[str, typer.Option(help="Against whom: local, network or central.")] = "local",
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
    process: for organisations that do not trust one machine, use peers.

    \b
    Examples:
      sottovoce average 0.1,0.9,0.4,0.6 --graph ring:4 --noise 2
      sottovoce average rows.csv --graph florentine --protocol tree --epsilon 1
      sottovoce average plan.toml --out result.json
    """
    if values.lower().endswith(".toml"):
        file = Path(values)
        settings = read_plan(file, AveragingFile)
        rows = given_values(settings.average.values, file.parent)
    else:
        typed: dict[str, Any] = {
            "network": {"graph": graph, "matrix": matrix, "weights": weights},
            "protocol": {"name": protocol, "rounds": rounds, "tree": tree, "fresh": fresh, "seed": draw},
            "average": {"radius": radius, "centre": centre},
            "noise": {"multiplier": noise, "seed": seed},
        }
        if epsilon is not None:
            typed["budget"] = {"epsilon": epsilon, "delta": delta, "view": view}
        settings, file = checked(AveragingFile, typed, "The options"), Path("options")
        rows = given_values(values, Path())
    if out is not None and out.suffix.lower() not in (".json", ".csv", ".npz"):
        raise InvalidInput(f"--out must end in .json, .csv or .npz, got {out.name!r}.")
    network, made = averaging_plan(settings, file.parent)
    found = price(made, settings.budget, dim=rows.shape[1], title=settings.title)
    if found.get("feasible") is False:
        raise BudgetExceeded(found["verdict"])
    result = made.run(rows, _noise(settings.noise.seed))
    ended = result.outputs["rows"]
    record = plain(result.record() | {"metrics": {**result.metrics, "cost": found["cost"]}})
    record["guarantees"] = plain(found["guarantees"])
    if out is not None:
        write_result(out, record, ended)
    payload = record | {"rows": plain(ended)}
    emit(payload, json, lambda screen: _show_average(screen, network, found, record, ended))
    if out is not None and not json:
        console().print(f"Written to {out}.")


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
        array = read_numbers(folder / values)
        return array[:, None] if array.ndim == 1 else array
    return np.array(values, dtype=float)[:, None]


def write_result(path: Path, record: dict[str, Any], rows: np.ndarray) -> None:
    """Write the record (.json), the rows (.csv), or both (.npz), whole or not at all."""
    import io
    import json

    import numpy as np

    from sottovoce.report.records import write_bytes, write_record

    if path.suffix.lower() == ".json":
        write_record(path, record | {"outputs": {"rows": rows.tolist()}})
        return
    buffer = io.BytesIO()
    if path.suffix.lower() == ".csv":
        np.savetxt(buffer, rows, delimiter=",", fmt="%.17g")
    else:
        np.savez(buffer, rows=rows, record=np.array(json.dumps(record)))
    write_bytes(path, buffer.getvalue())


def _noise(seed: int | None) -> Any:
    from sottovoce.privacy.noise import ProtectiveNoise, SimulatedNoise

    return ProtectiveNoise() if seed is None else SimulatedNoise(seed)


def _show_average(
    screen: Console, network: Network, found: dict[str, Any], record: dict[str, Any], rows: np.ndarray
) -> None:
    show_price(screen, found)
    shown = rows[:8, :6]
    columns = ["node", *[f"value {k}" if rows.shape[1] > 1 else "result" for k in range(shown.shape[1])]]
    listed = [[safe(network.label(v)), *[number(float(x)) for x in row]] for v, row in enumerate(shown)]
    screen.print(table(columns, listed, title="The private average, as each node has it"))
    if rows.shape[0] > 8 or rows.shape[1] > 6:
        screen.print(f"  ... {rows.shape[0]} nodes, {rows.shape[1]} numbers each; --out keeps them all")
    screen.print(f"Noise: {record['provenance']['noise']}")
