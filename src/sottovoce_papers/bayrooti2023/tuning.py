"""The choice of settings for the paper's cells, on training records held out, never on the test set.

The last 10,000 of MNIST's training records are kept apart; every setting of a grid fixed beforehand trains on
the other 50,000 and is judged by its accuracy on those kept apart. Seeds are not those of any trial. There
are two grids: one for central runs and for ten agents without noise, one for ten agents with noise. What is
found for the complete graph serves all down to a normalized Fiedler value of .39, except for DP-DSGD, whose
agents drift apart the more the fewer neighbors they have; what is found for .06 serves that one
(`settings`). The choice is not charged: rows made with it say ``accept = ["tuning"]``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.data.partition import by_label
from sottovoce.errors import TrainingDiverged
from sottovoce.runners import Result
from sottovoce.runners.sweep import Trial, read_trial, write_trial
from sottovoce_papers import drawing
from sottovoce_papers.bayrooti2023.cells import DELTA, Cell, _graph, _images, _plan, _tensors
from sottovoce_papers.bayrooti2023.settings import EPSILONS, INF, Settings, settings_of
from sottovoce_papers.common import SIMULATED, Spread, in_turn, made_here, result, run_cells, trial_costs
from sottovoce_papers.registry import Experiment, ResultTable

HELD_OUT = 10_000
STEPS = 2000  # The paper's
TITLES = {"central": "central", "dsgd": "DP-DSGD", "dsgt": "DP-DSGT", "dinno": "DP-DiNNO"}
TICKS = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
DIVERGED = 50.0  # percent; every setting that ends well is above 80
FACTORS = (1.0, 2.5, 6.0)
CLIPS = (1.0, 3.0, 1 / 3)
# All budgets of the central run, DP-DSGD and DP-DSGT without noise, and every method of ten agents with it.
GROUPS = (
    *(Cell("central", epsilon) for epsilon in EPSILONS),
    *(Cell(method, INF, fiedler) for method in ("dsgd", "dsgt") for fiedler in (1.0, 0.06)),
    Cell("dsgd", INF, 0.39),
    *(
        Cell(method, epsilon, fiedler)
        for method in ("dsgd", "dsgt", "dinno")
        for epsilon in (10.0, 1.0, 0.5)
        for fiedler in ((1.0, 0.39, 0.06) if method == "dsgd" else (1.0, 0.06))
    ),
)
# Ten agents with noise: (steps, clip, length of a step over that of the paper's). With noise what counts is
# the way that all steps go together, not their number, so most settings have few steps, which are cheap. The
# last rate is a hundredth of the first: where neighbors are few, what agents differ by at the end grows with
# it.
AGENTS = tuple((500, clip_norm, length) for clip_norm in (3.0, 1.0) for length in (2.0, 5.0))
LONGER, LONG_AT = (2000, 1.0, 2.5), 10.0  # also, where noise is small
# More settings at epsilon 10: longer steps and a last rate of a tenth for DP-DSGT, whose best steps were the
# longest; the paper's own for DP-DiNNO, because no other setting came near its printed accuracy.
AGAIN = ((2000, 1.0, 5.0, 100), (2000, 1.0, 2.5, 10))  # the fourth: the first rate over the last
PLAIN_RHO = 0.1  # DP-DiNNO's penalty with plain gradient steps; the paper's .5 is for Adam
# More rates for DP-DSGD without noise on the middle graphs: the choice for the complete graph does not serve
# them, and the grid has nothing between the paper's rate and 2.5 times it, which diverged.
FINER = (1.0, 1.4, 1.8)
# DP-DSGT without noise on the complete graph: one of three trials diverged at the rate chosen first. That
# rate and a smaller one are tried on three seeds each, and the worst seed of a setting counts.
SEEDS = (1001, 1002, 1003)
# DP-DSGD at epsilon 1 on the middle graphs: all settings on three graphs, because trials stayed two points
# below the accuracy on the one graph tried first.
TWICE = {"dsgt_epsinf_fiedler1_t1": (2, 6), "dsgd_eps1_fiedler0.39_t1": (0, 1, 2, 3)}  # places in the grid


def grid_of(cell: Cell) -> list[Settings]:
    """Return the settings tried for a cell: the paper's own first rate times `FACTORS`, clip times `CLIPS`.

    The last rate keeps the paper's ratio to the first, or is a tenth of it. Without noise nothing is clipped,
    and the clip is not varied. Ten agents with noise have `AGENTS` instead, and DP-DiNNO, whose Adam knows no
    clip, these also with plain steps of DP-DSGD's length. The paper's own settings come first; with noise
    they are not tried again (but see `AGAIN`), they stand beside the tuned ones in every table.
    """
    own = settings_of(cell.method, cell.epsilon, cell.fiedler, "printed")
    if (cell.method, cell.epsilon, cell.fiedler) == ("dsgd", INF, 0.39):
        return [_scaled(own, factor) for factor in FINER]
    if cell.method != "central" and np.isfinite(cell.epsilon):
        return _with_noise(cell, own)
    more = FINER[2:] if cell.key in TWICE else ()
    clips = CLIPS if np.isfinite(cell.epsilon) else CLIPS[:1]
    settings = [
        Settings(own.clip_norm * clip_norm, own.first_rate * factor, last * factor)
        for clip_norm in clips
        for factor in FACTORS
        for last in (own.last_rate, own.first_rate / 10)
    ]
    settings += [_scaled(own, factor) for factor in more]
    return list(dict.fromkeys(settings))


def _scaled(own: Settings, factor: float) -> Settings:
    return Settings(own.clip_norm, round(own.first_rate * factor, 6), round(own.last_rate * factor, 6))


def _with_noise(cell: Cell, own: Settings) -> list[Settings]:
    """Return what is tried with noise; Adam's steps are as long whatever the clip is."""
    long = cell.epsilon == LONG_AT
    tried = (*AGENTS, LONGER) if long else AGENTS
    if cell.method != "dinno":
        settings = [_falling(own, *each) for each in tried]
        return settings + [_falling(own, *each) for each in AGAIN if long and cell.method == "dsgt"]
    plain = settings_of("dsgd", cell.epsilon, cell.fiedler, "printed")
    settings = [_falling(replace(own, clip_norm=clip), steps, clip, length) for steps, clip, length in tried]
    settings += [replace(_falling(plain, *each), optimizer="sgd", rho=PLAIN_RHO) for each in tried]
    return [*settings, own] if long else settings


def _falling(like: Settings, steps: int, clip_norm: float, length: float, fall: float = 100) -> Settings:
    """Return settings whose steps, rate times clip, are ``length`` times as long as those of ``like``."""
    first = like.first_rate * length * like.clip_norm / clip_norm
    return Settings(clip_norm, round(first, 6), round(first / fall, 8), steps)


def _seeds(cell: Cell, place: int, seed: int) -> tuple[int, ...]:
    return (seed, *SEEDS[1:]) if place in TWICE.get(cell.key, ()) else (seed,)


def tuning_trial(
    *,
    cell: Mapping[str, Any],
    settings: Mapping[str, Any],
    place: int,
    seed: int = 1001,
    held_out: int = HELD_OUT,
    results: str | None = None,
) -> dict[str, Any]:
    """Train with one setting on what is not held out, and return its accuracy on what is, 0 if it overflows.

    A record already in ``results`` is read instead.
    """
    from sottovoce.data.agent_tensors import AgentData

    at, tried = Cell(**cell), Settings(**settings)
    again = "" if seed == SEEDS[0] else f"_seed{seed}"
    path = None if results is None else Path(results) / f"{at.key}_setting{place}{again}.json"
    stored = read_trial(path, settings=asdict(tried), seed=seed)
    if stored is not None:
        return stored
    started = time.perf_counter()
    rng = np.random.default_rng([20230602, seed])
    network = _graph(at, rng)
    (x, _), y = _tensors(at.data), _images(at.data).y
    train, apart = slice(None, -held_out), slice(-held_out, None)
    parts = [np.arange(len(y[train]))] if network is None else by_label(y[train], at.agents, at.skew, rng)
    data = AgentData(
        x[train], y[train], parts, test=(x[apart], y[apart]), classes=_images(at.data).classes
    )  # fmt: skip
    try:
        reached = 100 * _plan(at, tried, network, data.sizes).run(data, rng).metrics["accuracy"]
    except TrainingDiverged:
        reached = 0.0
    record = {
        "name": "bayrooti2023-tuning-trial",
        "cell": {**asdict(at), "epsilon": at.epsilon if np.isfinite(at.epsilon) else "inf"},
        "settings": asdict(tried),
        "seed": seed,
        "held_out": held_out,
        "accuracy": round(reached, 2),
        "provenance": made_here(started),
    }
    write_trial(path, record)
    return record


def run_tuning(
    quick: bool = False, *, seed: int = 1001, results: str | None = None, spread: Spread = in_turn
) -> Result:
    """Try every setting of the grid for every group of cells on the held-out records."""
    groups, held_out = GROUPS, HELD_OUT
    if quick:
        groups, held_out, results = (Cell("central", 1.0, data="digits", steps=2, batch_size=16),), 200, None
    shared = {"held_out": held_out, **({"results": results} if results else {})}
    jobs: list[list[Trial]] = []
    for cell in groups:
        jobs.append([])
        for place, tried in enumerate(grid_of(cell)[: 2 if quick else None]):
            options = {"cell": asdict(cell), "settings": asdict(tried), "place": place, **shared}
            for each in _seeds(cell, place, seed):
                label = f"{cell.key} setting={place} seed={each}"
                jobs[-1].append(Trial(label, {**options, "seed": each}))
    ran = run_cells(spread, tuning_trial, jobs)
    rows = [
        {
            "cell": cell.key,
            "method": cell.method,
            "epsilon": cell.epsilon if np.isfinite(cell.epsilon) else "inf",
            "fiedler": None if cell.method == "central" else cell.fiedler,
            "settings": record["settings"],
            "seed": record["seed"],
            "held_out_accuracy": record["accuracy"],
        }
        for cell, records in zip(groups, ran, strict=True)
        for record in records
    ]
    config: dict[str, Any] = {"quick": quick, "delta": DELTA, "held_out": held_out, "seed": seed}
    config |= {"factors": FACTORS, "clips": CLIPS}
    return result("bayrooti2023-tuning", config, history=rows, noise=SIMULATED, **trial_costs(ran))


def chosen(record: Mapping[str, Any]) -> dict[str, Settings]:
    """Return the setting with the highest held-out accuracy of every group, the first of equals.

    A first rate at which any setting of the group diverged (below `DIVERGED` percent) is left out: what one
    seed survives there the next may not. Where some settings were tried on more seeds, these are compared,
    each by its worst seed.
    """
    risky = {
        (row["cell"], row["settings"]["first_rate"])
        for row in record["history"]
        if row["held_out_accuracy"] < DIVERGED
    }
    seen: dict[str, dict[Settings, list[float]]] = {}
    for row in record["history"]:
        if (row["cell"], row["settings"]["first_rate"]) not in risky:
            of_cell = seen.setdefault(row["cell"], {})
            of_cell.setdefault(Settings(**row["settings"]), []).append(row["held_out_accuracy"])
    return {
        name: max(tried, key=lambda settings: (len(tried[settings]), min(tried[settings])))
        for name, tried in seen.items()
    }


def table(record: dict[str, Any]) -> ResultTable:
    best = chosen(record)
    rows = tuple(
        (
            row["cell"], row["settings"]["clip_norm"] if row["epsilon"] != "inf" else None,
            row["settings"]["first_rate"], row["settings"]["last_rate"],
            " ".join((str(row["settings"]["steps"] or STEPS), row["settings"]["optimizer"] or "")).strip(),
            row.get("seed"), row["held_out_accuracy"],
            "chosen" if best.get(row["cell"]) == Settings(**row["settings"]) else "",
        )
        for row in record["history"]
    )  # fmt: skip
    columns = ("cell", "clip_norm", "first rate", "last rate", "steps", "seed", "held-out accuracy", "")
    return ResultTable(columns, rows, "Accuracy in percent on 10,000 training records kept apart.")


def _label(row: Mapping[str, Any], title: str) -> str:
    """Name a group in a panel: budget and graph, and the method where the title does not."""
    label = "no noise" if row["epsilon"] == "inf" else f"ε = {row['epsilon']:g}"
    label += "" if row["fiedler"] is None else f", Fiedler {row['fiedler']:g}"
    named = TITLES[row["method"]]
    return label if named == title else label.replace("no noise", named)


def plot(record: dict[str, Any]) -> Any:
    best, floor = chosen(record), 80.0
    kinds: dict[str, list[Any]] = {}
    for row in record["history"]:
        quiet = row["method"] != "central" and row["epsilon"] == "inf"
        kinds.setdefault("ten agents, without noise" if quiet else TITLES[row["method"]], []).append(row)
    columns = min(len(kinds), 3)
    lines = -(-len(kinds) // columns)
    with drawing.figure_of(columns, lines, sharey=True) as (figure, panels):
        for panel in panels[len(kinds) :]:
            panel.remove()
        for panel, (title, rows) in zip(panels, kinds.items(), strict=False):
            for k, name in enumerate(dict.fromkeys(row["cell"] for row in rows)):
                again, place = divmod(k, len(drawing.COLORS))
                color, marker = drawing.COLORS[place], drawing.MARKERS[place - again]
                for row in (each for each in rows if each["cell"] == name):
                    settings, taken = row["settings"], best.get(name) == Settings(**row["settings"])
                    panel.plot(
                        settings["first_rate"], max(row["held_out_accuracy"], floor), marker, color=color,
                        ms=6, mfc=color if taken else "none", zorder=3 if taken else 2,
                    )  # fmt: skip
                panel.plot([], [], marker, color=color, mfc="none", label=_label(row, title))
            ylabel = f"held-out accuracy (%), at least {floor:g}"
            drawing.names(panel, "first learning rate", ylabel, title, xscale="log")
            rates = [row["settings"]["first_rate"] for row in rows]
            places = [x for x in TICKS if min(rates) / 1.1 < x < 1.1 * max(rates)]
            panel.set_xticks(places, [f"{x:g}" for x in places])
    return figure


def others_are_better(record: dict[str, Any]) -> bool | None:
    """Whether no group keeps the paper's own settings; a quick run cannot say."""
    if record["config"]["quick"]:
        return None
    own = {
        row["cell"]: settings_of(row["method"], float(row["epsilon"]), row["fiedler"] or 1.0, "printed")
        for row in record["history"]
    }
    return all(best != own[name] for name, best in chosen(record).items())


EXPERIMENTS = {
    "bayrooti2023-tuning": Experiment(run_tuning, plot, table, others_are_better),
}
