"""Beyond Bayrooti et al. 2023: masked sums over a sparse graph reach the accuracy of a trusted curator.

Most tables train a linear model on fixed, data-independent features (`sottovoce_papers.image_features`), with
all records in every step and momentum after the mean. Agents hold one class each. The rows of a table differ
in the adversary who must not learn more than (epsilon, 1e-5) of a record, add/remove: an outsider who taps
every link, any one member, any three members together (masked sums), all other members together (``local``:
own noise), or the public that sees the model of a trusted curator (``central``, DP-SGD).

Steps and learning rates were chosen on a sixth of the training records, which those runs did not train on,
with other seeds and never on the test set. The choice is not charged: ``accept = ["tuning"]``. `GRID` lists
the settings tried, docs/results/secure-sum-tuning.json their accuracies.

``secure-sum-network`` uses model, batches, graphs, split and trials of Bayrooti et al.'s Table 1 with exact
consensus (own noise, over a tree) and masked sums (any one member). Its settings are those chosen for the
central run at the same budget. An exact sum does not depend on the graph, so the trials of Table 1 serve.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce import graphs
from sottovoce._format import Quantity
from sottovoce.algorithms import DPSGD, ConsensusSGD, Optimizer, PrivateAveraging
from sottovoce.algorithms.gradient_plan import noise_multipliers
from sottovoce.errors import InvalidInput
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.privacy import ProtectiveNoise, gaussian_mu
from sottovoce.runners import Result
from sottovoce.runners.sweep import Trial, read_trial, write_trial
from sottovoce_papers import drawing
from sottovoce_papers.bayrooti2023.cells import Cell, cell_trial
from sottovoce_papers.bayrooti2023.settings import Settings, printed, settings_of
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
from sottovoce_papers.feature_rows import Job, accuracies, rows_of
from sottovoce_papers.registry import Experiment, ResultTable, pick

DELTA = 1e-5
AGAINST = ("outsiders", "one", "three", "local", "central")
WORDS = {
    "outsiders": "masked, outsiders",
    "one": "masked, any one member",
    "three": "masked, any three members",
    "tree": "tree, any one member, no masks",
    "local": "own noise, everybody else",
    "central": "trusted curator",
}
ADVERSARIES: dict[str, tuple[str, dict[str, Any]]] = {
    "outsiders": ("masked", {"view": "outsider"}),
    "one": ("masked:tolerate=1", {"view": "colluders", "colluders": 1}),
    "three": ("masked:tolerate=3", {"view": "colluders", "colluders": 3}),
    "tree": ("tree:kind=uniform", {"view": "network"}),
    "local": ("tree:kind=uniform", {"view": "local"}),
    "central": ("", {"view": "central"}),
}
NETWORK_WORDS = {
    "consensus": "exact consensus, own noise: everybody else",
    "masked": "masked sums: any one member",
}
PRINTED_METHODS = {"dsgd": "DP-DSGD", "dsgt": "DP-DSGT", "dinno": "DP-DiNNO", "central": "DP-SGD, central"}
FIEDLER = 0.39
# Central figures at delta 1e-5 from scratch: Table 2 of the DPSUR paper (Fu et al. 2024), DP-RandP (Tang et
# al. 2023: random priors, no public data), and Bayrooti et al.'s own.
ANCHORS: dict[str, dict[float, dict[str, float]]] = {
    "mnist": {
        0.5: {"Bayrooti et al., central": 90.82},
        1.0: {"DPSUR": 97.93, "DPIS": 97.79, "ScatterNet": 97.78, "Bayrooti et al., central": 92.04},
        10.0: {"Bayrooti et al., central": 94.73},
    },
    "fashion_mnist": {
        1.0: {"DPSUR": 88.38, "ScatterNet": 85.54},
        3.0: {"DPSUR": 89.71, "ScatterNet": 89.01},
    },
    "cifar10": {
        1.0: {"DP-RandP": 72.3, "DPSUR": 64.41, "ScatterNet": 63.15},
        3.0: {"DPSUR": 70.83, "ScatterNet": 69.35},
    },
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """Everything that was chosen for a data set, a budget and an amount of noise."""

    features: str
    steps: int
    learning_rate: float
    momentum: float = 0.9
    clip_norm: float = 1.0


# (data, epsilon, whether the noise is one's own): that is sqrt(n) times as much, and wants a smaller rate
SETTINGS: dict[tuple[str, float, bool], Setting] = {
    ("mnist", 0.5, False): Setting("handwriting", 120, 8.0),
    ("mnist", 1.0, False): Setting("handwriting", 80, 32.0),
    ("mnist", 10.0, False): Setting("handwriting-fine", 200, 64.0),
    ("mnist", 0.5, True): Setting("handwriting", 60, 4.0),
    ("mnist", 1.0, True): Setting("handwriting", 80, 8.0),
    ("mnist", 10.0, True): Setting("handwriting-fine", 200, 32.0),
    ("fashion_mnist", 1.0, False): Setting("objects-mirrored", 160, 240.0, clip_norm=0.1),
    ("fashion_mnist", 3.0, False): Setting("objects-mirrored", 200, 640.0, clip_norm=0.1),
    ("cifar10", 1.0, False): Setting("photographs-mirrored", 60, 240.0, clip_norm=0.1),
    ("cifar10", 3.0, False): Setting("photographs-mirrored", 100, 240.0, clip_norm=0.1),
}


def setting_of(data: str, epsilon: float, against: str) -> Setting:
    """Return what was chosen for a cell of the table."""
    key = (data, float(epsilon), against in ("local", "tree"))
    if key not in SETTINGS:
        known = sorted({f"{name} at {eps:g}" for name, eps, own in SETTINGS if own == key[2]})
        raise InvalidInput(
            f"no setting was chosen for {data} at epsilon {epsilon:g} against {against}; there are "
            f"{', '.join(known)}."
        )
    return SETTINGS[key]


def by_class(y: np.ndarray, agents: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Deal each class out evenly to the agents that are its own: agent i holds records of class i mod 10."""
    classes = np.unique(y)
    if agents % len(classes):
        raise InvalidInput(f"{len(classes)} classes are dealt to a multiple of as many agents, got {agents}.")
    parts: list[np.ndarray] = [np.zeros(0, int)] * agents
    for j, label in enumerate(classes):
        rows = rng.permutation(np.flatnonzero(y == label))
        for place, part in enumerate(np.array_split(rows, agents // len(classes))):
            parts[j + place * len(classes)] = part
    return parts


def plan_of(
    against: str, objective: Any, sizes: Sequence[int], network: Any, setting: Setting, epsilon: float,
    seed: int,
) -> Any:  # fmt: skip
    """Return the plan with the least noise that meets the budget against the adversary named."""
    options: dict[str, Any] = {
        **{key: getattr(setting, key) for key in ("steps", "learning_rate", "clip_norm")},
        "optimizer": Optimizer("momentum", beta=setting.momentum),
        "epsilon": epsilon,
        "delta": DELTA,
    }
    if against == "central":
        return DPSGD.for_budget(objective, records=sum(sizes), **options)
    protocol, view = ADVERSARIES[against]
    if against == "local" and len(sizes) > 10:  # own noise needs no other agent, and shallow trees are faster
        protocol = "tree"
    options |= {"network": network, "sizes": sizes, "seed": seed, **view}
    return ConsensusSGD.for_budget(objective, protocol, **options)


def network_of(agents: int, rng: np.random.Generator) -> Any:
    """Return the sparsest graph of Bayrooti et al. for ten agents, a random 4-regular one for more."""
    if agents <= 10:
        return graphs.random_connected(agents, 0.06 if agents == 10 else 0.39, rng)
    return graphs.regular(agents, 4, rng=rng)


def run_trial(
    data: str, epsilon: float, against: str, trial: int, *, agents: int = 10,
    setting: Mapping[str, Any] | None = None, results: str | Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Run one trial and return its record; a record already in ``results`` is read instead."""
    chosen = setting_of(data, epsilon, against) if setting is None else Setting(**setting)
    path = _place(results, data, against, agents, epsilon, trial)
    stored = read_trial(path, setting=asdict(chosen))
    if stored is not None:
        return stored
    from torch import nn

    from sottovoce.data.agent_tensors import AgentData
    from sottovoce.objectives.nets.objective import NetObjective

    started = time.perf_counter()
    rng = np.random.default_rng([20261116, trial])
    network = network_of(agents, rng)
    rows = rows_of(data, chosen.features)
    parts = [np.arange(len(rows.y))] if against == "central" else by_class(rows.y, agents, rng)
    classes = int(rows.y.max()) + 1
    records = AgentData(rows.x, rows.y, parts, test=(rows.x_test, rows.y_test), classes=classes)
    objective = NetObjective(nn.Linear(rows.x.shape[1], classes, bias=False), clip_norm=chosen.clip_norm)
    plan = plan_of(against, objective, records.sizes.tolist(), network, chosen, epsilon, trial)
    result = plan.run(records, rng, start=np.zeros(objective.n_params, np.float32))
    stated = plan.privacy(**ADVERSARIES[against][1])
    record = {
        "data": data,
        "epsilon": epsilon,
        "delta": DELTA,
        "against": against,
        "agents": agents,
        "trial": trial,
        "setting": asdict(chosen),
        "accept": ["tuning"],
        "n_params": objective.n_params,
        "accuracy": round(100 * result.metrics["accuracy"], 2),
        "noise_multiplier": round(float(noise_multipliers(plan)[0]), 4),
        "epsilon_spent": round(stated.epsilon(DELTA), 6),
        "epsilon_local": round(plan.epsilon(DELTA, "central" if against == "central" else "local"), 4),
        "guarantee": stated.statement(DELTA),
        "provenance": made_here(started, noise=SIMULATED),
    }
    write_trial(path, record)
    return record


def _tried(features: str, *pairs: tuple[int, float], clip_norm: float = 1.0) -> tuple[Setting, ...]:
    return tuple(Setting(features, steps, rate, clip_norm=clip_norm) for steps, rate in pairs)


_LARGE = ((120, 64.0), (200, 32.0), (200, 64.0))
_LARGE_OWN = ((120, 16.0), (120, 32.0), (200, 32.0))
GRID: dict[tuple[str, float, bool], tuple[Setting, ...]] = {
    ("mnist", 0.5, False): _tried("handwriting", *product((80, 120), (8.0, 16.0, 24.0))),
    ("mnist", 1.0, False): _tried("handwriting", *product((80, 120, 160), (16.0, 32.0))),
    ("mnist", 10.0, False): _tried("handwriting", *_LARGE) + _tried("handwriting-fine", *_LARGE),
    ("mnist", 0.5, True): _tried("handwriting", *product((40, 60, 80), (4.0, 8.0))),
    ("mnist", 1.0, True): _tried("handwriting", *product((60, 80, 120), (4.0, 8.0, 12.0))),
    ("mnist", 10.0, True): _tried("handwriting", *_LARGE_OWN) + _tried("handwriting-fine", *_LARGE_OWN),
    ("fashion_mnist", 1.0, False): _tried("objects", (60, 32.0), (80, 32.0), (120, 16.0))
    + _tried("objects-mirrored", (80, 480.0), (80, 640.0), (120, 320.0), (160, 240.0), clip_norm=0.1),
    ("fashion_mnist", 3.0, False): _tried("objects", (120, 48.0), (160, 32.0), (160, 48.0))
    + _tried("objects-mirrored", (120, 480.0), (120, 800.0), (160, 640.0), (200, 640.0), clip_norm=0.1),
    ("cifar10", 1.0, False): _tried("photographs", (40, 32.0), (60, 16.0), (60, 24.0))
    + _tried("photographs-mirrored", (60, 240.0), (100, 160.0), clip_norm=0.1),
    ("cifar10", 3.0, False): _tried("photographs-mirrored", (100, 240.0), (150, 160.0), clip_norm=0.1),
}


# records to train on while choosing, where rows are wide; the noise is scaled with them
TRAINED_ON = {"fashion_mnist": 15_000, "cifar10": 10_000}


def sum_noise(epsilon: float, steps: int, agents: int, own: bool) -> float:
    """Return the noise multiplier of the sum of all rows: of any one member's view, or of own noise only."""
    curator = float(np.sqrt(steps)) / gaussian_mu(epsilon, DELTA)
    return curator * float(np.sqrt(agents if own else agents / (agents - 1)))


def tuning_cell(
    *, data: str, epsilon: float, own: bool, seeds: Sequence[int] | None = None, agents: int = 10,
    settings: Sequence[Setting] | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the accuracy of every setting of the grid on the held-out part, mean over ``seeds``.

    The noise is scaled with the number of records left, so that it disturbs their mean as it will that of
    all.
    """
    settings = GRID[data, epsilon, own] if settings is None else settings
    seeds = (1001, 1002) if seeds is None else seeds
    tried: list[dict[str, Any]] = []
    for features in dict.fromkeys(setting.features for setting in settings):
        whole = rows_of(data, features)
        rows = whole.held_out(keep=TRAINED_ON.get(data))
        share = len(rows.y) / len(whole.y)
        chosen = [setting for setting in settings if setting.features == features]
        jobs = [
            Job(s.steps, s.learning_rate, share * s.clip_norm * noise, seed, s.momentum, s.clip_norm)
            for s in chosen
            for noise in [sum_noise(epsilon, s.steps, agents, own)]
            for seed in seeds
        ]
        reached = np.array(accuracies(rows, jobs)).reshape(len(chosen), len(seeds))
        tried += [
            {**asdict(s), "held_out_accuracy": round(float(a.mean()), 3), "seeds": list(seeds)}
            for s, a in zip(chosen, reached, strict=True)
        ]
    return tried


QUICK = Setting("handwriting", 6, 4.0)


def _run_cells(
    name: str, wanted: Sequence[Mapping[str, Any]], quick: bool, trials: int, results: str | None, skip: bool,
    spread: Spread,
) -> Result:  # fmt: skip
    """Run the trials of every cell and return one row per cell; ``skip`` leaves out trials not stored."""
    if quick:
        wanted = [{**cell, "data": "digits", "setting": asdict(QUICK)} for cell in wanted]
        trials, results = 1, None
    shared = {"results": results} if results else {}
    jobs = []
    for cell in wanted:
        label = " ".join(f"{key}={value}" for key, value in cell.items() if key != "setting")
        of_cell = cell["data"], cell["against"], cell.get("agents", 10), cell["epsilon"]
        paths = (_place(results, *of_cell, k) for k in range(trials))
        numbers = [k for k, path in enumerate(paths) if not skip or (path is not None and path.is_file())]
        jobs.append([Trial(f"{label} trial={k}", {**cell, **shared, "trial": k}) for k in numbers])
    rows = []
    for cell, records in zip(wanted, run_cells(spread, run_trial, jobs), strict=True):
        row = {key: value for key, value in cell.items() if key != "setting"}
        if records:
            row |= {
                **accuracy_of(records),
                "each": [record["accuracy"] for record in records],
                "setting": records[0]["setting"],
                "noise_multiplier": records[0]["noise_multiplier"],
                "epsilon_spent": max(record["epsilon_spent"] for record in records),
                "epsilon_local": max(record["epsilon_local"] for record in records),
                "accept": ["tuning"],
            }
        else:
            row |= {"accuracy": None, "std": None, "trials": 0}
        row["anchors"] = ANCHORS.get(cell["data"], {}).get(cell["epsilon"], {})
        rows.append(row)
    return _result(name, rows, quick)


def _place(
    results: str | Path | None, data: str, against: str, agents: int, epsilon: float, trial: int
) -> Path | None:
    """Return where the record of a trial is kept, if any is."""
    key = f"{data}_{against}_n{agents}_eps{epsilon:g}_trial{trial}.json"
    return None if results is None else Path(results) / key


def secure_sum_mnist(
    quick: bool = False,
    *,
    epsilon: tuple[float, ...] = (0.5, 1.0, 10.0),
    against: tuple[str, ...] = AGAINST,
    trials: int = 5,
    results: str | None = None,
    skip: bool = False,
    spread: Spread = in_turn,
) -> Result:
    """Run MNIST with ten agents, one digit each, against every adversary."""
    budgets = (1.0,) if quick else epsilon
    wanted = [{"data": "mnist", "epsilon": float(e), "against": a} for e in budgets for a in against]
    return _run_cells("secure-sum-mnist", wanted, quick, trials, results, skip, spread)


def secure_sum_images(
    quick: bool = False,
    *,
    data: tuple[str, ...] = ("fashion_mnist", "cifar10"),
    epsilon: tuple[float, ...] = (1.0, 3.0),
    trials: int = 5,
    results: str | None = None,
    skip: bool = False,
    spread: Spread = in_turn,
) -> Result:
    """Run Fashion-MNIST and CIFAR-10 with ten agents, one class each, against any one member."""
    pairs = [("digits", 1.0)] if quick else [(d, float(e)) for d in data for e in epsilon]
    # no settings were chosen for other pairs
    wanted = [
        {"data": d, "epsilon": e, "against": "one"} for d, e in pairs if quick or (d, e, False) in SETTINGS
    ]
    return _run_cells("secure-sum-images", wanted, quick, trials, results, skip, spread)


def secure_sum_agents(
    quick: bool = False,
    *,
    agents: tuple[int, ...] = (10, 100, 1000),
    against: tuple[str, ...] = ("one", "tree", "local", "central"),
    epsilon: float = 1.0,
    trials: int = 3,
    results: str | None = None,
    skip: bool = False,
    spread: Spread = in_turn,
) -> Result:
    """Run MNIST with more and more agents on sparse graphs; a central run does not depend on their number."""
    if quick:
        agents, epsilon = (10, 20), 1.0
    cells = [(a, n) for n in agents for a in against if a != "central" or n == agents[0]]
    wanted = [{"data": "mnist", "epsilon": epsilon, "against": a, "agents": n} for a, n in cells]
    return _run_cells("secure-sum-agents", wanted, quick, trials, results, skip, spread)


def secure_sum_network(
    quick: bool = False,
    *,
    method: tuple[str, ...] = ("consensus", "masked"),
    epsilon: tuple[float, ...] = (0.5, 1.0, 10.0, 100.0),
    trials: int = 1,
    results: str | None = None,
    spread: Spread = in_turn,
) -> Result:
    """Run Bayrooti et al.'s network with exact sums, one digit per agent."""
    cells = [(Cell(m, float(e), FIEDLER), settings_of(m, float(e))) for m in method for e in epsilon]
    if quick:
        few = Settings(1.0, 0.5, 0.5, 2)
        cells = [(Cell(m, 1.0, FIEDLER, data="digits", batch_size=16), few) for m in method]
        trials, results = 1, None
    shared = {"results": results} if results else {}
    jobs = []
    for cell, settings in cells:
        options = {"cell": asdict(cell), "settings": asdict(settings), **shared}
        jobs.append([Trial(f"{cell.key} trial={k}", {**options, "trial": k}) for k in range(trials)])
    records_by_cell = run_cells(spread, cell_trial, jobs)
    rows = []
    for (cell, settings), records in zip(cells, records_by_cell, strict=True):
        beside = {name: printed(1, name, cell.epsilon, FIEDLER, 1.0) for name in PRINTED_METHODS}
        rows.append(
            {
                "method": cell.method,
                "epsilon": cell.epsilon,
                **accuracy_of(records),
                "each": [record["accuracy"] for record in records],
                "settings": asdict(settings),
                "noise_multiplier": max(records[0]["noise_multiplier"]),
                "epsilon_spent": max(record["epsilon_spent"] for record in records),
                "accept": ["tuning"],
                "printed": {name: pair[0] for name, pair in beside.items() if pair is not None},
            }
        )
    return _result("secure-sum-network", rows, quick, **trial_costs(records_by_cell))


def secure_sum_tuning(
    quick: bool = False,
    *,
    data: tuple[str, ...] = ("mnist", "fashion_mnist", "cifar10"),
    stored: str | None = None,
) -> Result:
    """Try the settings of the grid on the held-out part of the training records.

    ``stored`` names a file of finished cells, one JSON object per line, to which others are added.
    """
    place = None if stored is None else Path(stored)
    done = []
    if place is not None and place.is_file():
        done = [json.loads(line) for line in place.read_text(encoding="utf-8").splitlines()]
    rows: list[dict[str, Any]] = []
    for name, epsilon, own in GRID:
        if name not in data and not quick:
            continue
        if quick:
            share: dict[str, Any] = {"data": "digits", "epsilon": epsilon, "own": own}
            tried = tuning_cell(**share, seeds=(1001,), settings=(QUICK, Setting("handwriting", 6, 8.0)))
            return _result("secure-sum-tuning", [{**share, **row} for row in tried], quick)
        share = {"data": name, "epsilon": epsilon, "own": own}
        lines_of_cell = [line for line in done if all(line[k] == v for k, v in share.items())]
        finished = [row for line in lines_of_cell for row in line["rows"]]
        known = [Setting(**{k: row[k] for k in asdict(QUICK)}) for row in finished]
        missing = [setting for setting in GRID[name, epsilon, own] if setting not in known]
        if missing:
            tried = tuning_cell(**share, settings=missing)
            finished += tried
            if place is not None:
                with place.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps({**share, "rows": tried}) + "\n")
        rows += [{**share, **row} for row in finished]
    return _result("secure-sum-tuning", rows, quick)


PRINTED_SD = {
    (10, "local"): 1.180, (10, "one"): 0.393, (10, "half"): 0.528, (10, "central"): 0.373,
    (64, "local"): 0.466, (64, "one"): 0.0588, (64, "half"): 0.0824, (64, "central"): 0.0583,
    (1024, "local"): 0.1166, (1024, "one"): 0.0036, (1024, "half"): 0.0052, (1024, "central"): 0.0036,
}  # fmt: skip


def secure_sum_mean(
    quick: bool = False, *, members: tuple[int, ...] = (10, 64, 1024), numbers: int = 8000, runs: int = 10
) -> Result:
    """Average numbers of a unit interval at epsilon 1 and measure the noise in the mean."""
    if quick:
        members, numbers, runs = (10,), 2000, 1
    rows = []
    for n in members:
        for against in ("local", "one", "half", "central"):
            many = n // 2 if against == "half" else 1
            view: dict[str, Any] = {"view": "colluders", "colluders": many}
            if against in ("local", "central"):
                view = {"view": against}
            plan = PrivateAveraging.for_budget(
                f"masked:tolerate={many}", radius=0.5, network=f"ring:{n}", epsilon=1.0, delta=DELTA,
                dim=numbers if n <= 64 else numbers // 4, **view,
            )  # fmt: skip
            wide, often = (numbers, runs) if n <= 64 else (numbers // 4, 3 * runs)  # small enough for a cache
            zeros = np.zeros((n, wide))
            # protective noise of a thousand members takes minutes, and its distribution is the same
            drawn = ProtectiveNoise() if n <= 64 else np.random.default_rng(n)
            total = 0.0
            for _ in range(often):  # `plan.run` would compute the guarantee again in every run
                mechanism = plan.mechanism(zeros, range(n), RunRandomness.from_rng(drawn))
                total += float(np.square(plan.schedule(0).apply(mechanism.noisy_rows(0))[0]).sum())
            share = {"local": 1.0, "central": 1 / n}.get(against, 1 / (n - many))
            formula = float(np.sqrt(share / n)) / gaussian_mu(1.0, DELTA)
            measured = float(np.sqrt(total / (often * wide)))
            rows.append({"members": n, "against": against, "formula": formula, "measured": measured,
                         "ratio": measured / formula, "printed": PRINTED_SD.get((n, against)),
                         "noise": "protective" if n <= 64 else "simulated"})  # fmt: skip
    return _result("secure-sum-mean", rows, quick)


def mean_table(record: dict[str, Any]) -> ResultTable:
    rows = pick(record["history"], "members", "against", "formula", "measured", "ratio")
    columns = ("members", "against", "formula", "measured", "measured / formula")
    return ResultTable(
        columns, rows, "Standard deviation of the mean of numbers in a unit interval, epsilon 1."
    )


def _curves(
    panel: Any, rows: Sequence[Mapping[str, Any]], x: str, group: str, words: Mapping[str, str]
) -> None:
    """Draw the accuracy over ``x``, one curve per value of ``group``."""
    for k, value in enumerate(dict.fromkeys(row[group] for row in rows)):
        line = [row for row in rows if row[group] == value]
        std = [row["std"] or 0.0 for row in line]
        drawing.error_bars(panel, [r[x] for r in line], [r["accuracy"] for r in line], std, k, words[value])


def mean_plot(record: dict[str, Any]) -> Any:
    rows = record["history"]
    with drawing.figure_of() as (figure, (panel,)):
        for k, who in enumerate(dict.fromkeys(row["against"] for row in rows)):
            line = [row for row in rows if row["against"] == who]
            points = [row["members"] for row in line], [row["measured"] for row in line]
            drawing.error_bars(panel, *points, None, k, who)
        drawing.names(panel, "members", "noise in the mean (sd)", "epsilon 1", xscale="log", yscale="log")
    return figure


def within_a_hundredth(record: dict[str, Any]) -> bool | None:
    """Whether every measured deviation is within 1 % of the formula; a quick run cannot say."""
    if record["config"]["quick"]:
        return None
    return all(abs(row["ratio"] - 1) < 0.01 for row in record["history"])


def _result(name: str, rows: list[dict[str, Any]], quick: bool, **costs: Any) -> Result:
    config = {"delta": DELTA, "quick": quick}
    return result(name, config, history=rows, noise=SIMULATED, **costs)


def table(record: dict[str, Any]) -> ResultTable:
    rows = tuple(
        (row["data"], row["epsilon"], WORDS[row["against"]], row["accuracy"], row["std"], row["trials"],
         row.get("epsilon_local"), ", ".join(f"{k} {v}" for k, v in row["anchors"].items()))
        for row in record["history"]
    )  # fmt: skip
    columns = ("data", "epsilon", "who must not learn more", "accuracy", "± std", "trials",
               "epsilon of own noise alone", "central, elsewhere")  # fmt: skip
    note = "Test accuracy in percent at delta 1e-5; settings were chosen on training records."
    held: dict[str, Quantity] = {"epsilon": "epsilon", "epsilon of own noise alone": "epsilon"}
    return ResultTable(columns, rows, note, held)


def agents_table(record: dict[str, Any]) -> ResultTable:
    rows = [{**row, "against": WORDS[row["against"]]} for row in record["history"]]
    columns = ("agents", "who must not learn more", "accuracy", "± std", "trials")
    picked = pick(rows, "agents", "against", "accuracy", "std", "trials")
    return ResultTable(columns, picked, "Test accuracy in percent.")


def tuning_table(record: dict[str, Any]) -> ResultTable:
    rows = [{**row, "noise": "own" if row["own"] else "any one member"} for row in record["history"]]
    keys = ("data", "epsilon", "noise", "features", "steps", "learning_rate", "held_out_accuracy")
    columns = ("data", "epsilon", "noise", "features", "steps", "learning rate", "accuracy, held out")
    note = "Held-out training records, noise of the summed law, seeds outside the trials."
    return ResultTable(columns, pick(rows, *keys), note, {"epsilon": "epsilon"})


def network_table(record: dict[str, Any]) -> ResultTable:
    rows = tuple(
        (NETWORK_WORDS[row["method"]], row["epsilon"], row["accuracy"], row["std"], row["trials"],
         ", ".join(f"{PRINTED_METHODS[name]} {value:.2f}" for name, value in row["printed"].items()))
        for row in record["history"]
    )  # fmt: skip
    columns = ("average", "epsilon", "accuracy", "± std", "trials", "Bayrooti et al., same network and graph")
    note = "Test accuracy in percent at delta 1e-5, batches of 256, ten agents."
    return ResultTable(columns, rows, note, {"epsilon": "epsilon"})


def plot(record: dict[str, Any]) -> Any:
    rows = [row for row in record["history"] if row["accuracy"] is not None]
    sets = list(dict.fromkeys(row["data"] for row in rows)) or ["none"]
    with drawing.figure_of(len(sets)) as (figure, panels):
        for panel, data in zip(panels, sets, strict=True):
            here = [row for row in rows if row["data"] == data]
            _curves(panel, here, "epsilon", "against", WORDS)
            for k, name in enumerate(dict.fromkeys(name for row in here for name in row["anchors"])):
                known = {row["epsilon"]: row["anchors"][name] for row in here if name in row["anchors"]}
                style = {"marker": drawing.MARKERS[-1 - k], "ls": ":", "mfc": "none"}
                label = name if "central" in name else f"{name} (central)"
                panel.plot(list(known), list(known.values()), **style, color=drawing.COLORS[6], label=label)
            drawing.names(panel, "privacy budget epsilon", "test accuracy (%)", data, xscale="log")
    return figure


def agents_plot(record: dict[str, Any]) -> Any:
    rows = [row for row in record["history"] if row["accuracy"] is not None]
    with drawing.figure_of() as (figure, (panel,)):
        _curves(panel, [row for row in rows if row["against"] != "central"], "agents", "against", WORDS)
        for row in rows:
            if row["against"] == "central":
                drawing.level(panel, row["accuracy"], WORDS["central"])
        drawing.names(panel, "agents", "test accuracy (%)", "MNIST, epsilon 1", xscale="log")
    return figure


def network_plot(record: dict[str, Any]) -> Any:
    rows, title = record["history"], "MNIST, Bayrooti et al.'s network"
    with drawing.figure_of() as (figure, (panel,)):
        _curves(panel, rows, "epsilon", "method", NETWORK_WORDS)
        beside = {row["epsilon"]: row["printed"] for row in rows}
        for k, (name, label) in enumerate(PRINTED_METHODS.items(), start=2):
            at = [e for e, values in beside.items() if name in values]
            drawing.error_bars(panel, at, [beside[e][name] for e in at], None, k, label, paper=True)
        drawing.names(panel, "privacy budget epsilon", "test accuracy (%)", title, xscale="log")
    return figure


def tuning_plot(record: dict[str, Any]) -> Any:
    rows = record["history"]
    sets = list(dict.fromkeys(row["data"] for row in rows))
    with drawing.figure_of(len(sets)) as (figure, panels):
        for panel, data in zip(panels, sets, strict=True):
            for k, own in enumerate((False, True)):
                line = [row for row in rows if row["own"] is own and row["data"] == data]
                if line:  # points: one setting each, nothing between them
                    panel.plot(
                        [r["epsilon"] for r in line], [r["held_out_accuracy"] for r in line], ls="none",
                        marker=drawing.MARKERS[k], color=drawing.COLORS[k], mfc="none",
                        label="own noise" if own else "any one member",
                    )  # fmt: skip
            title = f"{data}: settings tried"
            drawing.names(panel, "privacy budget epsilon", "accuracy, held out (%)", title, xscale="log")
    return figure


def above_central(record: dict[str, Any]) -> bool | None:
    """Whether any one member's rows are above the central figures known; None before all have been run."""
    rows = [row for row in record["history"] if row["against"] == "one" and row["anchors"]]
    if not rows or any(row["accuracy"] is None for row in rows):
        return None
    return all(row["accuracy"] > max(row["anchors"].values()) for row in rows)


def above_the_paper(record: dict[str, Any]) -> bool | None:
    """Whether masked sums are above all methods of the paper; a quick run cannot say."""
    rows = [row for row in record["history"] if row["method"] == "masked" and row["printed"]]
    if record["config"]["quick"] or not rows:
        return None
    return all(row["accuracy"] > max(row["printed"].values()) for row in rows)


def as_good_as_ten(record: dict[str, Any]) -> bool | None:
    """Whether masked sums of more agents stay within .3 of ten agents."""
    reached = {
        r["agents"]: r["accuracy"] for r in record["history"] if r["against"] == "one" and r["accuracy"]
    }
    more = [value for agents, value in reached.items() if agents > 10]
    return all(value >= reached[10] - 0.3 for value in more) if more and 10 in reached else None


EXPERIMENTS = {
    "secure-sum-mnist": Experiment(secure_sum_mnist, plot, table, above_central),
    "secure-sum-images": Experiment(secure_sum_images, plot, table, above_central),
    "secure-sum-agents": Experiment(secure_sum_agents, agents_plot, agents_table, as_good_as_ten),
    "secure-sum-mean": Experiment(secure_sum_mean, mean_plot, mean_table, within_a_hundredth),
    "secure-sum-network": Experiment(secure_sum_network, network_plot, network_table, above_the_paper),
    "secure-sum-tuning": Experiment(secure_sum_tuning, tuning_plot, tuning_table),
}
