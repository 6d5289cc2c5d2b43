"""Plans on a cluster: what each kind of plan hands to a rank, and the one result that rank 0 makes of it.

The texts are those that run in one process; a rank asks the plan for the text of its own agents. Averaging,
gradient methods on generalised linear models and all algorithms for networks but the walk can be split.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sottovoce.algorithms.decentralized import LearningPlan
from sottovoce.algorithms.muffliato import Muffliato, _shaped, averaging
from sottovoce.algorithms.plan import Plan, clipped_rows
from sottovoce.data import Shards
from sottovoce.errors import InvalidInput
from sottovoce.privacy.noise import as_noise
from sottovoce.protocols import Protocol, Walk
from sottovoce.runners import Algorithm, Cluster, Result, run_cluster
from sottovoce.runners.base import provenance_now
from sottovoce.runners.cluster import Hosted

__all__ = ["run_on_ranks"]


class _Parts(NamedTuple):
    """A plan taken apart for a rank."""

    make: Callable[[np.ndarray], Algorithm]
    protocol: Protocol | Callable[[int], Protocol]
    steps: int
    noise: Any
    metrics: Callable[[np.ndarray], dict[str, Any]]
    public: Mapping[str, Any] = {}


def run_on_ranks(
    cluster: Cluster,
    plan: Plan,
    data: Any,
    rng: Any,
    *,
    checkpoint: str | Path | None = None,
    every: int = 0,
    evaluate_every: int = 0,
    owner: np.ndarray | None = None,
    on_step: Callable[[int, Mapping[str, Any]], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Result | None:
    """Run a plan on all ranks and return its result on rank 0, None elsewhere.

    Parameters
    ----------
    cluster : this rank's membership.
    plan, data : the same on every rank; a rank reads the records of its own agents only.
    rng : a generator or noise source seeded alike on every rank, or a protective source.
    checkpoint, every : folder that all ranks see, and after how many steps it is written; the same call goes
        on from there, with any number of ranks.
    evaluate_every : gather the rows and evaluate every so many steps; 0: only at the end.
    owner : (n,) rank of every agent; even slices by default.
    on_step : called on rank 0 with (step, what was recorded).
    progress : called on rank 0 with the number of steps done.

    Guarantees
    ----------
    The statement is the plan's own: what travels between ranks stays with one owner and is no release.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> plan = sv.Muffliato(sv.protocols.Exchange(4), noise_std=1.0, radius=0.5)
    >>> with Cluster.alone() as cluster:
    ...     result = run_on_ranks(cluster, plan, np.zeros((4, 2)), np.random.default_rng(0))
    >>> result.outputs["rows"].shape, result.provenance["ranks"]
    ((4, 2), 1)
    """
    started = time.perf_counter()
    # Everybody must begin at the same point, also when no seed is given: rank 0 draws one.
    shared = cluster.meet([int(s) >> 2 for s in np.random.SeedSequence().generate_state(3, np.uint64)])[0]
    parts = cluster.agree("the plan", lambda: _taken_apart(plan, data, rng, shared))
    history: list[dict[str, Any]] = []

    def after(k: int, hosted: Hosted) -> None:
        if progress is not None and cluster.rank == 0:
            progress(k + 1)
        if evaluate_every and (k + 1) % evaluate_every == 0 and k + 1 < parts.steps:
            record(k + 1, cluster.gather(hosted))

    def record(step: int, rows: np.ndarray | None) -> None:
        if rows is not None:
            history.append({"step": step, **parts.metrics(rows)})
            if on_step is not None:
                on_step(step, history[-1])

    hosted = run_cluster(
        cluster, parts.make, parts.protocol, parts.steps, noise=parts.noise, owner=owner,
        checkpoint=checkpoint, every=every, plan={**plan.describe(), **parts.public},
        after_step=after if evaluate_every or progress else None,
    )  # fmt: skip
    rows = cluster.gather(hosted)
    sent = cluster.meet(cluster.traffic.record())
    if rows is None:
        return None
    record(parts.steps, rows)
    said = "protective" if parts.noise.protective else "simulation: reproducible, not protective"
    small = not isinstance(plan, Muffliato) or plan.n <= 256
    return Result(
        name=plan.name,
        config=dict(plan.describe()),
        outputs={"rows": rows, "coef": rows.mean(axis=0)},
        metrics=parts.metrics(rows),
        history=history,
        guarantees=[g.to_dict() for g in (plan.guarantees() if small else [plan.privacy("local")])],
        provenance=provenance_now(started, noise=said, ranks=cluster.size, traffic=sent),
    )


def _taken_apart(plan: Any, data: Any, rng: Any, shared: list[int]) -> _Parts:
    if isinstance(plan, Muffliato):
        return _averaging(plan, data, rng)
    if isinstance(plan, LearningPlan):
        return _learning(plan, data, rng)
    if hasattr(plan, "hosted"):
        return _network(plan, data, rng, shared)
    raise InvalidInput(f"{plan.name} runs in one process: it has nothing that ranks could share.")


def _averaging(plan: Muffliato, data: Any, rng: Any) -> _Parts:
    noise, rows = as_noise(rng), _shaped(data, plan.n)

    def make(agents: np.ndarray) -> Algorithm:
        return averaging(
            rows[agents], agents, noise, noise_std=plan.noise_std, radius=plan.radius, centre=plan.centre,
            noise_later=isinstance(plan.protocol, Walk),
        )  # fmt: skip

    def metrics(out: np.ndarray) -> dict[str, Any]:
        found: dict[str, Any] = {"dim": rows.shape[1]}
        if not noise.protective:
            truth = clipped_rows(rows, np.asarray(plan.centre), plan.radius).mean(axis=0)
            found["mean_squared_error"] = float(np.mean((out - truth) ** 2))
            found["disagreement"] = _disagreement(out)
        return found

    return _Parts(make, plan.protocol, 1, noise, metrics, {"centre": plan.centre})


def _learning(plan: LearningPlan, data: Shards, rng: Any) -> _Parts:
    if data.n != plan.n:
        raise InvalidInput(f"The plan is for {plan.n} nodes, the data have {data.n} users.")
    noise = as_noise(rng)
    X, y = plan.objective.check(data.X, data.y)
    shards = Shards(X, y, data.offsets)
    plan.check_sizes(shards, range(plan.n))  # a rank sees its own agents only
    return _Parts(
        lambda agents: plan.algorithm(shards.take(agents.tolist()), agents.tolist(), noise),
        plan.protocol if isinstance(plan.protocol, Protocol) else plan.schedule,
        plan.steps,
        noise,
        lambda rows: {"disagreement": _disagreement(rows)},
        {"sizes": shards.sizes},
    )


def _network(plan: Any, data: Any, rng: Any, shared: list[int]) -> _Parts:
    from sottovoce.algorithms.deep import _seeds
    from sottovoce.algorithms.deep_walk import DeepWalk

    if isinstance(plan, DeepWalk):
        raise InvalidInput(
            "A walk has one holder at a time, so ranks would only wait for each other; run it in one process."
        )
    if data.sizes.tolist() != list(plan.sizes):
        raise InvalidInput(
            f"The plan was made for agents with {list(plan.sizes)} records, the data have "
            f"{data.sizes.tolist()}; make the plan for these data."
        )
    drawn, noise = _seeds(rng)
    seeds = shared if noise.protective else drawn
    theta = plan._start(seeds[0], None)
    used = noise if any(plan.noise_multiplier) else None
    return _Parts(
        lambda agents: plan.hosted(data, used, seeds[1], theta[agents], agents.tolist()),
        plan.schedule(),
        plan.steps,
        noise,
        lambda rows: plan.evaluate(rows, data),
        {} if noise.protective else {"seeds": seeds},
    )


def _disagreement(rows: np.ndarray) -> float:
    return float(np.mean((rows - rows.mean(axis=0)) ** 2))
