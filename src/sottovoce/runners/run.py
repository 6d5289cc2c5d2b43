"""Run a plan: in this process, or over the ranks of one owner's cluster. Neither asks which plan it is.

A plan here is whatever has the facts (see `sottovoce.algorithms.plan`): steps, schedule, algorithm, source,
releases, and the few questions a runner has besides: prepared data, starting rows, metrics, guarantees.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from sottovoce._io import digest
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.release import Release
from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.base import Mechanism
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.protocols import Protocol as CommunicationProtocol
from sottovoce.runners.base import Algorithm, Result, provenance_now
from sottovoce.runners.checkpoint import Checkpoint
from sottovoce.runners.distributed import Cluster, Hosted, run_cluster
from sottovoce.runners.in_process import run_stacked

NO_PRIVACY = "none: no privacy"

__all__ = ["has_noise", "run", "run_on_ranks"]

Evaluate = Callable[[np.ndarray], Mapping[str, Any]]


class OrderedSchedule(Protocol):
    """The protocol of every step."""

    def in_order(self) -> Callable[[int], CommunicationProtocol]:
        """Return the schedule for sequential access."""


class RunnablePlan(Protocol):
    """The properties of a plan that a runner reads (see `sottovoce.algorithms.plan.Plan`)."""

    name: ClassVar[str]
    sequential: ClassVar[bool]

    @property
    def n(self) -> int:
        """Number of agents."""

    @property
    def steps(self) -> int:
        """Number of steps."""

    @property
    def schedule(self) -> OrderedSchedule:
        """The protocol of every step."""

    def prepared(self, data: Any) -> Any:
        """Return the data of all agents, checked."""

    def starting(self, data: Any, random: RunRandomness, agents: Sequence[int]) -> np.ndarray:
        """Return the public starting rows."""

    def source(self, data: Any, agents: Sequence[int], random: RunRandomness) -> Mechanism:
        """Return the mechanism before the agents' records."""

    def algorithm(self, source: Any, start: np.ndarray) -> Algorithm:
        """Return the update rule of the hosted agents."""

    def releases(self, agent: int) -> Sequence[Release]:
        """Return everything that an agent publishes."""

    def metrics(self, rows: np.ndarray, data: Any, random: RunRandomness) -> dict[str, Any]:
        """Return numbers about the final rows that may be published."""

    def outputs(self, rows: np.ndarray, state: Any) -> dict[str, np.ndarray]:
        """Return the arrays of a result besides the rows."""

    def guarantees(self) -> Sequence[Guarantee]:
        """Return the guarantees to store with a result."""

    def describe(self) -> Mapping[str, Any]:
        """Return the plan as plain values."""


def run(
    plan: RunnablePlan,
    data: Any,
    rng: Any,
    *,
    start: np.ndarray | None = None,
    evaluate: Evaluate | None = None,
    every: int | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = False,
    on_step: Callable[[int, Mapping[str, Any]], None] | None = None,
) -> Result:
    """Run a plan in this process, all agents stacked, and return rows, metrics and guarantees.

    Parameters
    ----------
    plan, data : what runs, and the records (or values) of all its agents.
    rng : a numpy Generator (a simulation) or a noise source.
    start : (width,) or (n, width) public starting point; by default the plan's own.
    evaluate : ``evaluate(rows)`` fills the history; what it reads from private records is not charged. By
        default the plan's own metrics, on public records, when ``every`` is given.
    every : evaluate, report and save after so many steps; by default a fiftieth of the run.
    checkpoint : folder; a run that was interrupted goes on from it to the same bytes.
    progress : show a bar on the terminal.
    on_step : called with (step, what was recorded) after each evaluation.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = sv.PrivateAveraging(sv.protocols.HypercubeExchange(2), noise_std=1.0, radius=1.0)
    >>> run(plan, np.zeros((2, 3)), np.random.default_rng(0)).outputs["rows"].shape
    (2, 3)
    """
    from sottovoce.runners.progress import bar

    started = time.perf_counter()
    data, random = plan.prepared(data), RunRandomness.from_rng(rng)
    agents = range(plan.n)
    wanted = every is not None or evaluate is not None
    stretch = every or max(1, plan.steps // 50)
    folder = None if checkpoint is None else Checkpoint(checkpoint, _identity(plan, data, random, start))
    saved = None if folder is None else folder.latest()
    if saved is not None and saved.about.get("seeds"):
        random = random.with_seeds(saved.about["seeds"])
    first = plan.starting(data, random, agents) if start is None else _started(start, plan.n)
    algorithm = plan.algorithm(plan.source(data, agents, random), first)
    state, done = algorithm.init(), 0
    if folder is not None:
        resumed = folder.load(np.arange(plan.n), state)
        if resumed is not None:
            done, state, _ = resumed
    history: list[dict[str, Any]] = []
    judge = evaluate or (lambda rows: plan.metrics(rows, data, random))
    with bar(progress, plan.name, plan.steps, done) as tell:

        def after(k: int, now: Any) -> None:
            if (k + 1) % stretch == 0 or k + 1 == plan.steps:
                if wanted:
                    history.append({"step": k + 1, **judge(np.asarray(algorithm.output(now)))})
                    if on_step is not None:
                        on_step(k + 1, history[-1])
                if folder is not None:
                    folder.save(k + 1, np.arange(plan.n), now, about={"seeds": random.seeds})
            tell(k + 1, history[-1] if history else {})

        state = run_stacked(
            algorithm,
            plan.schedule.in_order(),
            plan.steps,
            state=state,
            start=done,
            noise=random.noise,
            after_step=after,
            every=stretch if wanted or progress or folder is not None else plan.steps,
        )
    rows = np.asarray(algorithm.output(state))
    return _result(plan, data, random, rows, plan.outputs(rows, state), history, started)


def run_on_ranks(
    cluster: Cluster,
    plan: RunnablePlan,
    data: Any,
    rng: Any,
    *,
    evaluate: Evaluate | None = None,
    every: int | None = None,
    checkpoint: str | Path | None = None,
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
    evaluate, every, checkpoint, on_step : as in `run`; the folder must be seen by all ranks, and any number
        of ranks can go on from it.
    owner : (n,) rank of every agent; even slices by default.
    progress : called on rank 0 with the number of steps done.

    Guarantees
    ----------
    The statement is the plan's own: what travels between ranks stays with one owner and is no release.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = sv.PrivateAveraging(sv.protocols.HypercubeExchange(4), noise_std=1.0, radius=0.5)
    >>> with Cluster.alone() as cluster:
    ...     result = run_on_ranks(cluster, plan, np.zeros((4, 2)), np.random.default_rng(0))
    >>> result.outputs["rows"].shape, result.provenance["ranks"]
    ((4, 2), 1)
    """
    started = time.perf_counter()
    # Everybody must begin at the same point, also when no seed is given: rank 0 draws it.
    drawn = cluster.meet(int(np.random.SeedSequence().generate_state(1, np.uint64)[0]) >> 2)[0]

    def prepare() -> tuple[Any, RunRandomness]:
        if plan.sequential:
            raise InvalidInput(
                f"{plan.name} has one holder at a time, so ranks would only wait for each other; run it in "
                "one process."
            )
        random = RunRandomness.from_rng(rng)
        shared = RunRandomness(random.noise, random.batches, drawn) if random.protective else random
        return plan.prepared(data), shared

    ready, random = cluster.agree("the plan", prepare, identity=lambda prepared: str(prepared[1].seeds))
    history: list[dict[str, Any]] = []
    judge = evaluate or (lambda rows: plan.metrics(rows, ready, random))

    def make(agents: np.ndarray) -> Any:
        part = ready[agents] if isinstance(ready, np.ndarray) else ready.subset(agents.tolist())
        first = plan.starting(part, random, agents.tolist())
        return plan.algorithm(plan.source(part, agents.tolist(), random), first)

    def record(step: int, rows: np.ndarray | None) -> None:
        if rows is not None:
            history.append({"step": step, **judge(rows)})
            if on_step is not None:
                on_step(step, history[-1])

    def after(k: int, hosted: Hosted) -> None:
        if progress is not None and cluster.rank == 0:
            progress(k + 1)
        if every and (k + 1) % every == 0 and k + 1 < plan.steps:
            record(k + 1, cluster.gather(hosted))

    hosted = run_cluster(
        cluster, make, plan.schedule.in_order(), plan.steps, noise=random.noise, owner=owner,
        checkpoint=checkpoint,
        every=every or max(1, plan.steps // 50),
        plan={**plan.describe(), "sizes": getattr(ready, "sizes", None), "seeds": random.seeds},
        after_step=after if every or progress else None,
    )  # fmt: skip
    rows = cluster.gather(hosted)
    sent = cluster.meet(cluster.traffic.to_dict())
    if rows is None:
        return None
    if every:
        record(plan.steps, rows)
    mean = {"coef": rows.mean(axis=0)}
    return _result(plan, ready, random, rows, mean, history, started, ranks=cluster.size, traffic=sent)


def _result(
    plan: RunnablePlan,
    data: Any,
    random: RunRandomness,
    rows: np.ndarray,
    outputs: Mapping[str, np.ndarray],
    history: list[dict[str, Any]],
    started: float,
    **provenance: Any,
) -> Result:
    """Return the result of a run that ended with these rows."""
    noise = random.description if has_noise(plan) else NO_PRIVACY
    return Result(
        name=plan.name,
        config=dict(plan.describe()),
        outputs={"rows": rows, **outputs},
        metrics=plan.metrics(rows, data, random),
        history=history,
        guarantees=[g.to_dict() for g in plan.guarantees()],
        provenance=provenance_now(started, noise=noise, **provenance),
    )


def has_noise(plan: RunnablePlan) -> bool:
    """Return whether any noise is added: without it the run has no privacy."""
    return any(release.noise_std for agent in range(plan.n) for release in plan.releases(agent))


def _identity(plan: RunnablePlan, data: Any, random: RunRandomness, start: np.ndarray | None) -> str:
    """Name the run: the plan, its records, and what the noise is; another's checkpoint is not taken up."""
    held = [getattr(data, name, None) for name in ("X", "y", "inputs", "targets", "offsets")]
    about = {"plan": plan.describe(), "noise": repr(random.noise), "start": start, "data": held}
    return digest(about if any(item is not None for item in held) else {**about, "data": data})


def _started(start: np.ndarray, n: int) -> np.ndarray:
    rows = np.asarray(start)
    if rows.dtype not in (np.float32, np.float64):
        rows = rows.astype(np.float64)
    if rows.ndim == 1:
        rows = np.repeat(rows[None], n, axis=0)
    if rows.ndim != 2 or rows.shape[0] != n:
        raise InvalidInput(f"start must be one row, or one per agent ({n}), got shape {rows.shape}.")
    return rows
