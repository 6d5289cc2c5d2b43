"""Figure 3: the loss of trained models on one record, with and without it, for SGD and for DP-SGD.

The setting is that of Table 5 (`audit_table5`), centrally trained. Left: no noise and no clipping, the models
of a side differ in their lots only. Right: DP-SGD at the nominal budget.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from sottovoce.errors import InvalidInput
from sottovoce.runners import Result
from sottovoce.runners.base import provenance_now
from sottovoce_papers import drawing
from sottovoce_papers.bayrooti2023.audit import _digits, _histogram, make_plan
from sottovoce_papers.registry import Experiment, Shown

__all__ = ["EXPERIMENTS"]


def histograms(
    quick: bool = False,
    *,
    models: int = 1000,
    steps: int = 100,
    batch_size: int = 32,
    epsilon: tuple[float, ...] = (math.inf, 1.0),
    delta: float = 1e-2,
    seed: int = 0,
) -> Result:
    """Train ``models`` per budget, half of them with the record, and keep the histograms of their losses."""
    from sottovoce.algorithms.registry import algorithm
    from sottovoce.attacks.membership import digits_problem, train_models
    from sottovoce.attacks.small_net import SmallNet
    from sottovoce.objectives.nets.objective import NetObjective

    started = time.perf_counter()
    if any(not budget > 0 for budget in epsilon):
        raise InvalidInput(f"epsilon must be positive (inf for no privacy), got {min(epsilon):g}.")
    if quick:
        models, steps, batch_size = 60, 5, 10
    rng = np.random.default_rng(seed)
    problem = digits_problem(*_digits(quick), records=20 if quick else 100).merged()
    net = SmallNet()
    start = net.initial(rng)
    rows, found = [], {}
    for budget in epsilon:
        if math.isinf(budget):
            plan: Any = algorithm("dp-sgd")(
                NetObjective(net.module(start), clip_norm=1e6),
                sizes=problem.sizes,
                steps=steps,
                batch_size=batch_size,
                learning_rate=0.05,
                noise_multiplier=0.0,
            )
        else:
            plan = make_plan(
                "dp-sgd",
                net,
                start,
                problem.sizes,
                steps=steps,
                batch_size=batch_size,
                epsilon=budget,
                delta=delta,
                clip_norm=1.0,
            )
        sides = [
            train_models(plan, net, problem, member=member, models=models // 2, start=start, rng=rng).losses
            for member in (True, False)
        ]
        name = "no privacy" if math.isinf(budget) else f"epsilon = {budget:g}"
        found[name] = _histogram(*sides)
        rows.append({
            "budget": name, "with": float(np.mean(sides[0])), "without": float(np.mean(sides[1])),
            "std": float(np.std(np.concatenate([side - side.mean() for side in sides]))),
            "guessed": _guessed(*sides),
        })  # fmt: skip
    return Result(
        "loss-histograms",
        config={"models": models, "steps": steps, "batch_size": batch_size, "delta": delta, "seed": seed},
        history=rows,
        metrics={"histograms": found},
        provenance=provenance_now(started, seed=seed),
    )


def _guessed(inside: np.ndarray, outside: np.ndarray) -> float:
    """Share of models that the best threshold on the loss puts on the right side."""
    cuts = np.concatenate([inside, outside])
    right = [(inside <= c).mean() + (outside > c).mean() for c in cuts]
    return float(max(right)) / 2


def table(record: dict[str, Any]) -> Shown:
    """Return how well the two sides are told apart."""
    rows = tuple((r["budget"], r["with"], r["without"], r["std"], r["guessed"]) for r in record["history"])
    return Shown(
        ("budget", "mean loss with", "mean loss without", "std", "best threshold is right"), rows,
        f"Loss on the record, {record['config']['models']:,} models a budget; .5 is a coin.",
    )  # fmt: skip


def held(record: dict[str, Any]) -> bool | None:
    """Whether losses are told apart without privacy and hardly with it."""
    rows = {r["budget"]: r["guessed"] for r in record["history"]}
    private = [value for name, value in rows.items() if name != "no privacy"]
    if "no privacy" not in rows or not private:
        return None
    return rows["no privacy"] > 0.9 and max(private) < 0.75


def plot(record: dict[str, Any]) -> Any:
    """Draw the two histograms of every budget."""
    found = record["metrics"]["histograms"]
    with drawing.figure_of(len(found)) as (figure, panels):
        for panel, (name, bins) in zip(panels, found.items(), strict=True):
            for k, side, label in ((1, "with", "with the record"), (0, "without", "without it")):
                panel.stairs(
                    bins[side], bins["edges"], fill=True, color=drawing.COLORS[k], alpha=0.5, label=label
                )
            drawing.names(panel, "loss on the record", "models", name)
    return figure


EXPERIMENTS = {
    "loss-histograms": Experiment(
        "Loss on one record with and without it, SGD against DP-SGD",
        "Bayrooti, Gao, Prorok 2023, Figure 3",
        histograms,
        plot,
        table=table,
        held=held,
        claim="Without privacy the losses are told apart; with DP-SGD they are entangled.",
    )
}
