"""Lower bounds on the privacy loss of four algorithms (and exact consensus) by membership inference.

Paper: Bayrooti, Gao, Prorok 2023, Appendix D, Table 5: nominal epsilon 1 at delta 1e-2, three agents, 100
iterations, 5,000 models with and 5,000 without a blank picture; epsilon lower bounds 0.230 (central), 0.173
(DP-DSGD), 0.129 (DP-DSGT), 0.165 (DP-DiNNO). What must come out: every bound below 1.
Departures: the network is `SmallNet` (195 parameters) so that a model takes milliseconds; its gradients
have norms near 2, so records are clipped to 1 instead of 10; lots of 32 (the paper does not say); agents on
a path of three, so that a distant node exists; both sides of the trade-off are used for the bound. Beside the
loss of the trained model, the messages a neighbour, a distant node and two colluders see are tested.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from sottovoce.experiments.registry import Experiment
from sottovoce.runners import Result
from sottovoce.runners.base import provenance_now

__all__ = ["EXPERIMENTS", "PRINTED", "make_plan"]

PRINTED = {"dp-sgd": 0.230, "dp-dsgd": 0.173, "dp-dsgt": 0.129, "dp-dinno": 0.165}
VIEWS = {"neighbour": (1,), "distant node": (2,), "two colluders": (1, 2)}
RATES = {"dp-sgd": 0.05, "dp-dsgd": 0.05, "dp-dsgt": 0.05, "dp-dinno": 0.005, "consensus-sgd": 0.05}


def table5(
    quick: bool = False,
    *,
    models: int = 10_000,
    steps: int = 100,
    lot: int = 32,
    epsilon: float = 1.0,
    delta: float = 1e-2,
    clip: float = 1.0,
    algorithms: tuple[str, ...] = tuple(RATES),
    confidence: float = 0.95,
    seed: int = 0,
    progress: Any = None,
) -> Result:
    """Train ``models`` per algorithm, half of them with the canary, and print what they prove."""
    from sottovoce.attacks.membership import audit_membership, digits_problem
    from sottovoce.attacks.small_net import SmallNet

    started = time.perf_counter()
    if quick:
        models, steps, lot = 400, 5, 10
    rng = np.random.default_rng(seed)
    problem = digits_problem(*_digits(quick), records=20 if quick else 100)
    net = SmallNet()
    start = net.initial(rng)
    history, histograms = [], {}
    for name in algorithms:
        began = time.perf_counter()
        data = problem.merged() if name == "dp-sgd" else problem
        plan = make_plan(
            name, net, start, data.sizes, steps=steps, lot=lot, epsilon=epsilon, delta=delta, clip=clip
        )
        found, (inside, outside) = audit_membership(
            plan, net, data, models=models, start=start, rng=rng, delta=delta, level=1 - confidence,
            views=None if name == "dp-sgd" else VIEWS,
        )  # fmt: skip
        histograms[name] = _histogram(inside.losses, outside.losses)
        for view, audit in found.items():
            entry = {"algorithm": name, "look": view, **audit.to_dict()}
            entry["epsilon_paper"] = PRINTED.get(name) if view == "loss" else None
            entry["noise_multiplier"] = plan.multipliers[0]
            entry["seconds"] = round(time.perf_counter() - began, 1)
            history.append(entry)
        if progress is not None:
            progress(history[-len(found) :])
    return Result(
        "audit-table5",
        config={
            "models": models, "steps": steps, "lot": lot, "epsilon": epsilon, "delta": delta,
            "clip": clip, "confidence": confidence, "network": "SmallNet, 195 parameters",
            "records": sum(problem.sizes), "graph": "path:3",
        },
        metrics={
            "lower_bounds": {h["algorithm"]: h["epsilon_lower"] for h in history if h["look"] == "loss"},
            "printed": PRINTED,
            "exceeds_claim": [f"{h['algorithm']}, {h['look']}" for h in history if h["refuted"]],
            "histograms": histograms,
        },
        history=history,
        provenance=provenance_now(started, seed=seed),
    )  # fmt: skip


def make_plan(
    name: str, net: Any, start: np.ndarray, sizes: list[int], *, steps: int, lot: int, epsilon: float,
    delta: float, clip: float,
) -> Any:  # fmt: skip
    """Return the plan of one algorithm at this budget; every agent has the least noise that meets it."""
    from sottovoce import graphs
    from sottovoce.algorithms.registry import algorithm
    from sottovoce.objectives.nets import NetObjective

    objective = NetObjective(net.module(start), clip=clip)
    where = {} if name == "dp-sgd" else {"network": graphs.path(len(sizes)), "view": "local"}
    return algorithm(name).for_budget(
        objective, sizes=sizes, steps=steps, lot=lot, learning_rate=RATES[name], epsilon=epsilon,
        delta=delta, **where,
    )  # fmt: skip


def _digits(quick: bool) -> tuple[np.ndarray, np.ndarray]:
    from sottovoce.data.images import load_images

    loaded = load_images("digits" if quick else "mnist")
    return loaded.x[:5000, 0] / 255.0, loaded.y[:5000]


def _histogram(inside: np.ndarray, outside: np.ndarray) -> dict[str, Any]:
    """Return both loss histograms on common bins, for the report."""
    together = np.concatenate([inside, outside])
    together = together[np.isfinite(together)]
    low, high = np.quantile(together, [0.001, 0.999])
    edges = np.linspace(low, high, 41)
    return {
        "edges": edges, "with": np.histogram(inside, edges)[0], "without": np.histogram(outside, edges)[0],
    }  # fmt: skip


EXPERIMENTS = {
    "audit-table5": Experiment(
        "Lower bounds by membership inference for five algorithms",
        "Bayrooti, Gao, Prorok 2023, Table 5",
        table5,
    )
}
