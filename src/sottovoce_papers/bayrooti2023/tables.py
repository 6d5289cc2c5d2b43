"""The paper's Tables 1, 2, 3 and 4 and Figures 1 and 2: cells run or read, ours beside the paper's.

Every table has two settings, ``printed`` (the paper's own) and ``tuned``; ``both`` runs them side by side.
How the tuned ones were chosen `settings` says; that choice is not charged: rows made with them say ``accept =
["tuning"]``. Exact consensus and masked sums on the paper's network, which the paper has not, stand beside
its methods; an exact sum is the same on every graph, so trials on one graph serve all. How records are dealt
out matters a little even to it: the batches of all agents are as large, however many records each has.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.errors import DataError, InvalidInput
from sottovoce.runners import Result
from sottovoce.runners.base import provenance_now
from sottovoce.runners.sweep import Trial
from sottovoce_papers import drawing
from sottovoce_papers.bayrooti2023.cells import COLORED, DELTA, METHODS, Cell, _images, cell_trial, run_cell
from sottovoce_papers.bayrooti2023.settings import (
    EPSILONS,
    FIEDLERS,
    GRID,
    HOURS,
    INF,
    SKEWS,
    WHICH,
    settings_of,
)
from sottovoce_papers.common import (
    SIMULATED,
    Spread,
    accuracy_of,
    in_turn,
    made_here,
    result,
    run_cells,
    trial_costs,
)
from sottovoce_papers.registry import Experiment, ResultTable

NAMES = {
    "central": "DP-SGD, central",
    "dsgd": "DP-DSGD",
    "dsgt": "DP-DSGT",
    "dinno": "DP-DiNNO",
    "consensus": "exact consensus",
    "masked": "masked sums",
}
BEYOND = ("consensus", "masked")
NUMBER = {"table1": 1, "figure1": 1, "table2": 2, "table4": 4}


def cells_of(name: str, steps: int = 20_000) -> list[Cell]:
    """Return every cell that a table or figure prints."""
    if name in ("table1", "figure1"):
        central = [] if name == "figure1" else [Cell("central", e) for e in EPSILONS]
        budgets = EPSILONS if name == "table1" else EPSILONS[1:]
        own = [Cell(m, e, f) for f in FIEDLERS for m in METHODS[1:4] for e in budgets]
        return central + own
    if name == "table2":
        cells = [Cell(m, e, 0.06, t) for e in (0.5, 10.0) for m in METHODS[1:4] for t in SKEWS]
        return [cell for cell in cells if cell.printed(2) is not None]
    return [
        Cell(m, e, 0.39, t, "cifar100", steps, 250) for e in (10.0, INF) for m in METHODS[:4] for t in SKEWS
    ]


def beyond(cells: Iterable[Cell]) -> list[Cell]:
    """Return the same cells with exact consensus and with masked sums, which the paper has not."""
    return [replace(cell, method=method) for method in BEYOND for cell in cells if cell.method == "dsgd"]


def _wanted(name: str, cells: list[Cell], **filters: Any) -> list[Cell]:
    """Keep the cells the caller asked for; a value that the table has not is refused with those it has."""
    wanted = {key: _several(value) for key, value in filters.items() if value is not None}
    cells = cells + [cell for cell in beyond(cells) if cell.method in wanted.get("method", ())]
    # one cell that the paper does not print may still be named in full
    free = len(wanted.get("method", ())) == len(wanted.get("epsilon", ())) == 1
    for key, values in wanted.items():
        known = list(dict.fromkeys(getattr(cell, key) for cell in cells))
        wrong = [v for v in values if v not in known]
        if wrong and not (free and key == "epsilon" and values[0] > 0):
            has = ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in known)
            more = " (and consensus, masked)" if key == "method" else ""
            raise InvalidInput(f"{name} has no {key} {wrong[0]!r}; it has {has}{more}.")
    if free and wanted["epsilon"][0] not in {cell.epsilon for cell in cells}:
        cells = [replace(cell, epsilon=wanted["epsilon"][0]) for cell in cells]
    selected = [
        cell for cell in _once(cells)
        if all(
            getattr(cell, key) in values or (cell.method == "central" and key in ("fiedler", "skew"))
            for key, values in wanted.items()
        )
    ]  # fmt: skip
    if not selected:
        named = ", ".join(f"{key} {' '.join(map(str, values))}" for key, values in wanted.items())
        raise InvalidInput(f"{name} prints no cell with {named}; leave one of them out.")
    return selected


def tuned_apart(method: str, epsilon: float, fiedler: float) -> bool:
    """Whether tuning chose other settings than the printed ones."""
    tuned, printed = (settings_of(method, epsilon, fiedler, which) for which in ("tuned", "printed"))
    return tuned != printed


def _once(cells: Iterable[Cell]) -> list[Cell]:
    """Return every cell once: the central one has no graph and no skew."""
    by_key: dict[str, Cell] = {}
    for cell in cells:
        by_key.setdefault(cell.key, cell)
    return list(by_key.values())


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _which(settings: str) -> tuple[str, ...]:
    if settings not in (*WHICH, "both"):
        raise InvalidInput(f"settings must be printed, tuned or both, got {settings!r}.")
    return WHICH if settings == "both" else (settings,)


def _run(
    name: str, quick: bool, filters: Mapping[str, Any], settings: str, trials: int, results: str | None,
    spread: Spread, *, steps: int = 20_000, **options: Any,
) -> Result:  # fmt: skip
    """Run the cells of a table that the filters select, and put ours beside the paper's."""
    cells = _wanted(name, cells_of(name, steps), **filters)
    if quick:
        cells, trials = _quick(name, cells), 1
    if results:
        options["results"] = results
    pairs = [(cell, which) for cell in cells for which in _which(settings)]
    jobs = []
    for cell, which in pairs:
        label, chosen = ("printed ", {"which": which}) if which == "printed" else ("", {})
        plain = {"cell": asdict(cell), **options, **chosen}
        jobs.append([Trial(f"{cell.key} {label}trial={k}", {**plain, "trial": k}) for k in range(trials)])
    values = run_cells(spread, cell_trial, jobs)
    rows = [_row(name, *pair, records, quick) for pair, records in zip(pairs, values, strict=True)]
    return _result(name, rows, trials, quick, settings, made_here())


def _quick(name: str, cells: Sequence[Cell]) -> list[Cell]:
    """Return a few cells on scikit-learn's digits, with few steps: they show that everything runs."""
    small: dict[str, Any] = {"data": "digits", "steps": 10, "batch_size": 32, "agents": 5}
    if name == "table1":  # else the first cell of every method, on a graph that five agents can have
        first = [replace(cell, fiedler=0.39) for cell in {c.method: c for c in reversed(cells)}.values()]
        chosen = [c for c in cells if c.epsilon == 10 and c.fiedler == 0.39] or first
    elif name == "table2":
        sparse = [replace(cell, fiedler=0.39) for cell in cells]
        chosen = [cell for cell in sparse if cell.skew in (0, 1)][:2] or sparse[:1]
    elif name == "figure1":
        chosen = [c for c in cells if c.epsilon == 10 and c.fiedler in (0.39, 1.0)][:2] or list(cells[:1])
    else:  # the ResNet-9 of Table 4, one step by DP-DiNNO with its two primal steps
        small = {"data": COLORED, "fiedler": 1.0, "steps": 1, "batch_size": 2, "agents": 2}
        chosen = [next((c for c in cells if c.method == "dinno" and c.epsilon == 10), cells[0])]
    return [replace(cell, **small) for cell in chosen]


def _result(
    name: str, rows: list[Any], trials: int, quick: bool, settings: str, came: Mapping[str, Any]
) -> Result:
    return Result(
        name=name,
        config={"delta": DELTA, "trials": trials, "quick": quick, "settings": settings, "grid": GRID},
        history=rows,
        metrics={
            "cells": len({row["cell"] for row in rows if row["trials"] and row["method"] not in BEYOND}),
            "cells_in_the_paper": len(cells_of(name)),
        },
        provenance={**came, "noise": SIMULATED},
    )


def _row(
    name: str, cell: Cell, which: str, records: Sequence[Mapping[str, Any]], quick: bool = False
) -> dict[str, Any]:
    printed = None if quick else cell.printed(NUMBER[name])
    spent = [r["epsilon_spent"] for r in records if r["epsilon_spent"] != "inf"]
    return {
        "cell": cell.key,
        "method": cell.method,
        "epsilon": cell.epsilon if np.isfinite(cell.epsilon) else "inf",
        "fiedler": None if cell.method == "central" else cell.fiedler,
        "skew": cell.skew,
        "settings": which,
        **(accuracy_of(records) if records else {"accuracy": None, "std": None, "trials": 0}),
        "paper": None if printed is None else printed[0],
        "paper_std": None if printed is None else printed[1],
        "epsilon_spent": max(spent, default="inf"),
        "accept": ["tuning"] if which == "tuned" else [],
    }


def from_trials(name: str, folder: str | Path) -> Result:
    """Return a table from the trials that a folder holds; cells without trials are listed as not run.

    Nothing runs: this is how an unfinished table is looked at, and how the stored one was made.
    """
    started = time.perf_counter()
    by_cell: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for path in sorted(Path(folder).glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(record, dict) and "cell" in record and "trial" in record:
            own = Cell(**{**record["cell"], "epsilon": float(record["cell"]["epsilon"])})
            by_cell.setdefault((own.key, record.get("which", "tuned")), []).append(record)
    cells = cells_of(name)
    rows = []
    for cell in cells + beyond(cells):
        for which in WHICH:
            key = cell.key
            if cell.method in BEYOND:  # an exact sum is the same on every graph
                same = (replace(cell, fiedler=fiedler).key for fiedler in (cell.fiedler, *FIEDLERS))
                key = next((other for other in same if (other, which) in by_cell), key)
            records = by_cell.get((key, which), [])
            waits = which == "tuned" and cell.method not in BEYOND and (cell.key, "printed") not in by_cell
            if records or waits:
                rows.append(_row(name, cell, which, records))
                if key != cell.key:
                    rows[-1]["trials_of"] = key
    if not any(row["trials"] for row in rows):
        raise DataError(f"{folder} holds no trial of {name}; python -m sottovoce_papers.trials makes them.")
    most = max(row["trials"] for row in rows)
    came = provenance_now(started, assembled_from=Path(folder).name, **trial_costs(by_cell.values()))
    return _result(name, rows, most, False, "both", came)


def figure1_of(table1: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of Figure 1, which draws the noisy decentralized cells of Table 1."""
    rows = [row for row in table1["history"] if row["epsilon"] != "inf" and row["method"] != "central"]
    drawn = len({row["cell"] for row in rows if row["trials"] and row["method"] not in BEYOND})
    metrics = {"cells": drawn, "cells_in_the_paper": len(cells_of("figure1"))}
    return {**table1, "name": "figure1", "history": rows, "metrics": metrics, "trials": []}


def table1(
    quick: bool = False, *, method: tuple[str, ...] | None = None, epsilon: tuple[float, ...] | None = None,
    fiedler: tuple[float, ...] | None = None, settings: str = "tuned", trials: int = 5,
    results: str | None = None, spread: Spread = in_turn,
) -> Result:  # fmt: skip
    """Run Table 1: methods, budgets and graphs, one digit per agent."""
    filters = {"method": method, "epsilon": epsilon, "fiedler": fiedler}
    return _run("table1", quick, filters, settings, trials, results, spread)


def table2(
    quick: bool = False, *, method: tuple[str, ...] | None = None, epsilon: tuple[float, ...] | None = None,
    skew: tuple[float, ...] | None = None, settings: str = "tuned", trials: int = 5,
    results: str | None = None, spread: Spread = in_turn,
) -> Result:  # fmt: skip
    """Run Table 2: how skewed data may be, on the sparsest graph."""
    filters = {"method": method, "epsilon": epsilon, "skew": skew}
    return _run("table2", quick, filters, settings, trials, results, spread)


def figure1(
    quick: bool = False, *, method: tuple[str, ...] | None = None, epsilon: tuple[float, ...] | None = None,
    settings: str = "tuned", trials: int = 5, results: str | None = None, spread: Spread = in_turn,
) -> Result:  # fmt: skip
    """Run Figure 1: accuracy against connectivity, per method and budget (the cells of Table 1)."""
    return _run("figure1", quick, {"method": method, "epsilon": epsilon}, settings, trials, results, spread)


def table4(
    quick: bool = False, *, method: tuple[str, ...] | None = None, epsilon: tuple[float, ...] | None = None,
    skew: tuple[float, ...] | None = None, trials: int = 3, steps: int = 20_000, device: str = "cpu",
    results: str | None = None, spread: Spread = in_turn,
) -> Result:  # fmt: skip
    """Run Table 4 and Figure 2: CIFAR-100, private and not; needs the official files.

    The quick form takes one step of the same ResNet-9 on colored digits. ``device`` is torch's name of where
    gradients are computed: cpu, cuda, cuda:1, mps.

    Departures from the paper: one Poisson draw of 250 expected records per noisy step, computed in physical
    batches, where their code sums five draws and accounts for one; DP-DiNNO's two primal steps are two
    releases, where their code accounts for one.
    """
    _demand_device(device)
    if not quick:
        try:
            _images("cifar100")
        except DataError as problem:
            raise DataError(f"Table 4 needs CIFAR-100: {problem}") from None
    filters = {"method": method, "epsilon": epsilon, "skew": skew}
    options = {} if device == "cpu" else {"device": device}
    return _run("table4", quick, filters, "printed", trials, results, spread, steps=steps, **options)


def _demand_device(device: str) -> None:
    """Refuse a place for tensors that torch has not, before anything is read."""
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as problem:
        reason = str(problem).partition("\n")[0].rstrip(".")
        raise InvalidInput(f"--device {device} cannot be used here: {reason}; try cpu.") from None


def table3(quick: bool = False, *, steps: int = 100, trials: int = 1) -> Result:
    """Time ``steps`` steps of every method, private and not, and say what the paper's 2,000 would take.

    What a run costs besides its steps (accounting, the test set) is timed by a run of one step.
    """
    rows = []
    for method in ("central", "dsgd", "dsgt", "dinno", "consensus"):
        for epsilon in (INF, 1.0):
            cell = Cell(method, epsilon, 0.39, steps=1 if quick else steps)
            if quick:
                cell = replace(cell, data="digits", batch_size=32, agents=5)
            seconds = []
            for trial in range(trials):
                if not quick:  # data and kernels are ready after it
                    run_cell(replace(cell, steps=1), trial, which="printed")
                once, many = (_seconds(replace(cell, steps=k), trial) for k in (1, cell.steps + 1))
                seconds.append(once + 1999 * max(many - once, 0.0) / cell.steps)
            hours = float(np.mean(seconds)) / 3600
            paper = HOURS.get(method)
            rows.append({
                "method": method, "private": bool(np.isfinite(epsilon)), "hours": hours, "trials": trials,
                "paper_hours": None if paper is None or quick else paper[int(np.isfinite(epsilon))],
            })  # fmt: skip
    config = {"steps": steps, "trials": trials, "quick": quick}
    metrics = {"methods": len(rows)}
    return result("table3", config, history=rows, metrics=metrics)


def _seconds(cell: Cell, trial: int) -> float:
    began = time.perf_counter()
    run_cell(cell, trial, which="printed")
    return time.perf_counter() - began


def _with_std(accuracy: float | None, std: float | None, trials: int | None = None) -> str:
    if accuracy is None:
        return "not run" if trials == 0 else ""
    return f"{accuracy:.2f}" + ("" if std is None else f" ± {std:.2f}")


def in_setting(record: Mapping[str, Any], which: str | None = None) -> dict[str, Mapping[str, Any]]:
    """Return the rows of a table by cell, all of one setting; by default tuned, unless only printed was run.

    A row is chosen by its setting, never by its accuracy on the test set. Where tuning chose the paper's own
    settings, one run serves both.
    """
    which = which or ("printed" if record["config"]["settings"] == "printed" else "tuned")
    rows: dict[str, Mapping[str, Any]] = {}
    for row in sorted(record["history"], key=lambda row: bool(row["settings"] == which)):  # its own come last
        place = row["method"], float(row["epsilon"]), row["fiedler"] or 1.0
        alike = "cifar100" not in row["cell"] and not tuned_apart(*place)
        if (row["settings"] == which or alike) and (row["trials"] or row["cell"] not in rows):
            rows[row["cell"]] = row
    return {row["cell"]: rows[row["cell"]] for row in record["history"] if row["cell"] in rows}


COLUMNS = ("method", "Fiedler", "t", "epsilon", "paper", "ours as printed", "ours tuned", "trials", "reached")


def cell_table(record: dict[str, Any]) -> ResultTable:
    rows, settings = [], [in_setting(record, which) for which in WHICH]
    judged = in_setting(record)
    for one in {row["cell"]: row for row in record["history"]}.values():
        graph = "–" if one["fiedler"] is None else f"{one['fiedler']:g}"
        epsilon = "none" if one["epsilon"] == "inf" else f"{one['epsilon']:g}"
        ours = [
            rows_of.get(one["cell"], {"accuracy": None, "std": None, "trials": 0}) for rows_of in settings
        ]
        accuracies = (_with_std(row["accuracy"], row["std"], row["trials"]) for row in ours)
        paper = _with_std(one["paper"], one["paper_std"])
        cell = (NAMES[one["method"]], graph, f"{one['skew']:g}", epsilon)
        trials = " / ".join(str(row["trials"]) for row in ours)
        rows.append((*cell, paper, *accuracies, trials, _verdict(judged.get(one["cell"]))))
    count = record["metrics"]
    shared = any("trials_of" in row for row in record["history"])
    note = (
        f"Test accuracy in percent, mean ± std; {count['cells']} of {count.get('cells_in_the_paper', '?')} "
        "cells run. Reached: the tuned setting is at or above the paper's mean minus its std (the printed "
        "one if no other was run). Trials: as printed / tuned; where tuning chose the paper's settings they "
        "are the same."
    )
    more = " Exact sums are the same on every graph: trials on one stand for all." if shared else ""
    return ResultTable(COLUMNS, tuple(rows), note + more)


def _verdict(row: Mapping[str, Any] | None) -> str:
    if row is None or row["accuracy"] is None or row["paper"] is None:
        return ""
    return "yes" if row["accuracy"] >= row["paper"] - (row["paper_std"] or 0.0) else "no"


def _accuracies(record: dict[str, Any]) -> dict[tuple[str, Any, Any, float], float]:
    """Return {(method, epsilon, fiedler, skew): accuracy} of the cells that were run, in one setting."""
    return {
        (row["method"], row["epsilon"], row["fiedler"], row["skew"]): row["accuracy"]
        for row in in_setting(record).values()
        if row["accuracy"] is not None and row["paper"] is not None
    }


def _within(points: float, central: float | None, others: Sequence[float | None]) -> bool | None:
    """Whether no accuracy is more than ``points`` below the central one; None where one was not run."""
    values = [value for value in others if value is not None]
    if central is None or len(values) < len(others):
        return None
    return all(central - value <= points for value in values)


def near_central(record: dict[str, Any]) -> bool | None:
    """Whether DP-DSGT at epsilon 1 is within 3 points of our own central run, on every graph that was run."""
    accuracies = _accuracies(record)
    others = [accuracies.get(("dsgt", 1.0, fiedler, 1.0)) for fiedler in FIEDLERS]
    return _within(3, accuracies.get(("central", 1.0, None, 1.0)), others)


def near_central_cifar(record: dict[str, Any]) -> bool | None:
    """Whether DP-DSGT at epsilon 10 is within 6 points of our own central run at every skew."""
    accuracies = _accuracies(record)
    others = [accuracies.get(("dsgt", 10.0, 0.39, skew)) for skew in SKEWS]
    return _within(6, accuracies.get(("central", 10.0, None, 0.0)), others)


def flat_above(record: dict[str, Any]) -> bool | None:
    """Whether accuracy differs by at most 2 points between the graphs with Fiedler value .39, .7 and 1."""
    accuracies = _accuracies(record)
    lines = [
        [accuracies.get((method, epsilon, fiedler, 1.0)) for fiedler in (0.39, 0.7, 1.0)]
        for method in METHODS[1:4]
        for epsilon in EPSILONS[1:]
    ]
    if any(None in line for line in lines):
        return None
    known = [[value for value in line if value is not None] for line in lines]
    return all(max(line) - min(line) <= 2 for line in known)


def skew_matters(record: dict[str, Any]) -> bool | None:
    """Whether from t = 0 to 1 at epsilon .5 DP-DSGT loses at most 3 points and the others more."""
    accuracies = _accuracies(record)
    ends = {m: [accuracies.get((m, 0.5, 0.06, t)) for t in (0.0, 1.0)] for m in METHODS[1:4]}
    if any(None in pair for pair in ends.values()):
        return None
    lost = {m: pair[0] - pair[1] for m, pair in ends.items()}  # type: ignore[operator]
    return lost["dsgt"] <= 3 < min(lost["dsgd"], lost["dinno"])


def _curves(panel: Any, rows: Sequence[Mapping[str, Any]], x: Any, k: int, label: str) -> None:
    """Draw ours with its spread and the paper's with its own; cells that were not run are left out."""
    for key, std, name in (("accuracy", "std", label), ("paper", "paper_std", f"{label}, paper")):
        known = [row for row in rows if row[key] is not None]
        if known:
            points = [x(row) + 0.0 for row in known], [row[key] for row in known]
            bars = [row[std] or 0.0 for row in known]
            drawing.error_bars(panel, *points, bars, k, name, paper=key == "paper")


def _name(panel: Any, panels: Sequence[Any], xlabel: str, title: str) -> None:
    drawing.names(panel, xlabel, "test accuracy (%)", title, legend=panel is panels[0])


def plot_table1(record: dict[str, Any]) -> Any:
    rows = list(in_setting(record).values())
    graphs: list[float | None] = [f for f in FIEDLERS if any(r["fiedler"] == f for r in rows)]
    graphs = graphs or [None]
    budgets = [e for e in (0.5, 1.0, 10.0, 100.0, "inf") if any(r["epsilon"] == e for r in rows)]
    budgets += [r["epsilon"] for r in rows if r["epsilon"] not in budgets]
    with drawing.figure_of(len(graphs), sharey=True) as (figure, panels):
        for panel, graph in zip(panels, graphs, strict=True):
            for k, method in enumerate(METHODS):
                line = [r for r in rows if r["method"] == method and r["fiedler"] in (graph, None)]
                line.sort(key=lambda r: budgets.index(r["epsilon"]))
                _curves(panel, line, lambda r: budgets.index(r["epsilon"]), k, NAMES[method])
            panel.set_xticks(range(len(budgets)), ["none" if e == "inf" else f"{e:g}" for e in budgets])
            title = "central" if graph is None else f"normalized Fiedler value {graph:g}"
            _name(panel, panels, "privacy budget epsilon (none: not private)", title)
    return figure


def plot_figure1(record: dict[str, Any]) -> Any:
    rows = [row for row in in_setting(record).values() if row["fiedler"] is not None]
    methods = [m for m in METHODS if any(row["method"] == m for row in rows)]
    with drawing.figure_of(max(len(methods), 1), sharey=True) as (figure, panels):
        for panel, method in zip(panels, methods, strict=False):
            for k, epsilon in enumerate(dict.fromkeys(row["epsilon"] for row in rows)):
                line = [r for r in rows if r["method"] == method and r["epsilon"] == epsilon]
                line.sort(key=lambda r: r["fiedler"])
                _curves(panel, line, lambda r: r["fiedler"], k, f"ε = {float(epsilon):g}")
            _name(panel, panels, "normalized Fiedler value (1: complete graph)", NAMES[method])
    return figure


def plot_skew(record: dict[str, Any]) -> Any:
    rows = list(in_setting(record).values())
    budgets = sorted({r["epsilon"] for r in rows}, key=lambda e: -float(e))
    with drawing.figure_of(len(budgets), sharey=False) as (figure, panels):
        for panel, epsilon in zip(panels, budgets, strict=True):
            for k, method in enumerate(METHODS):
                line = [r for r in rows if (r["method"], r["epsilon"]) == (method, epsilon)]
                _curves(panel, sorted(line, key=lambda r: r["skew"]), lambda r: r["skew"], k, NAMES[method])
            title = "not private" if epsilon == "inf" else f"epsilon = {epsilon:g}"
            _name(panel, panels, "data skew t (0: alike, 1: own classes only)", title)
    return figure


def hours_table(record: dict[str, Any]) -> ResultTable:
    rows = tuple(
        (NAMES[r["method"]], "yes" if r["private"] else "no", r["paper_hours"], r["hours"])
        for r in record["history"]
    )
    return ResultTable(
        ("method", "private", "paper: hours, 4 GPUs", "ours: hours, this machine"), rows,
        f"MNIST, ten agents, 2,000 steps of batch size 256, from {record['config']['steps']} steps measured.",
    )  # fmt: skip


def many_times_central(record: dict[str, Any]) -> bool | None:
    """Whether every method takes between half and twice as many times central DP-SGD as in the paper."""
    hours = {r["method"]: (r["hours"], r["paper_hours"]) for r in record["history"] if r["private"]}
    central, printed = hours["central"]
    if printed is None:
        return None
    others = [(ours / central) / (paper / printed) for ours, paper in hours.values() if paper]
    return all(0.5 <= ratio <= 2 for ratio in others)


def plot_hours(record: dict[str, Any]) -> Any:
    rows = record["history"]
    with drawing.figure_of() as (figure, (axes,)):
        x = np.arange(len(rows))
        for k, key, label in ((0, "hours", "ours, this machine"), (1, "paper_hours", "paper, 4 GPUs")):
            heights = [row[key] or 0 for row in rows]
            axes.bar(x + 0.4 * k - 0.2, heights, 0.38, color=drawing.COLORS[k], label=label)
        words = [f"{r['method']}\n{'private' if r['private'] else 'not private'}" for r in rows]
        axes.set_xticks(x, words, fontsize=7)
        drawing.names(axes, "method", "hours for 2,000 steps", "Training time", yscale="log")
    return figure


EXPERIMENTS = {
    "table1": Experiment(table1, plot_table1, cell_table, near_central),
    "table2": Experiment(table2, plot_skew, cell_table, skew_matters),
    "table3": Experiment(table3, plot_hours, hours_table, many_times_central),
    "table4": Experiment(table4, plot_skew, cell_table, near_central_cifar),
    "figure1": Experiment(figure1, plot_figure1, cell_table, flat_above),
}
