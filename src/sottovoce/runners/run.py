"""Run a plan: in this process, or over the ranks of one owner's cluster.

Here protective noise meets a plan, so here it is charged to the lifetime ledger of this machine: after
everything that can fail without noise, before the first noise is drawn.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from sottovoce._io import digest
from sottovoce.accounting import wording
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.observation import ObservationModel
from sottovoce.accounting.release import Release
from sottovoce.errors import InvalidInput, TrainingDiverged
from sottovoce.ledger.charge import ChargedTraining, charge
from sottovoce.ledger.lifetime import find_lifetime_ledger
from sottovoce.mechanisms.base import Mechanism
from sottovoce.noise.run_randomness import RandomSource, RunRandomness
from sottovoce.objectives.trivial import CONSTANTS
from sottovoce.protocols import Protocol as CommunicationProtocol
from sottovoce.runners.base import Algorithm, Result, State, provenance_now
from sottovoce.runners.checkpoint import Checkpoint
from sottovoce.runners.distributed import Cluster, Hosted, run_cluster
from sottovoce.runners.divergence import DivergenceCheck
from sottovoce.runners.early_stopping import EarlyStopping
from sottovoce.runners.in_process import run_stacked
from sottovoce.runners.progress import bar

NO_PRIVACY = "none: no privacy"

Evaluate = Callable[[np.ndarray], Mapping[str, Any]]
OnStep = Callable[[int, np.ndarray], None]
OnEvaluation = Callable[[int, Mapping[str, Any]], None]


class OrderedSchedule(Protocol):
    """The protocol of every step."""

    def __call__(self, k: int, /) -> CommunicationProtocol:
        """Return the protocol of step ``k``."""

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

    @property
    def width(self) -> int:
        """Numbers in one row that travels."""

    @property
    def is_stationary(self) -> bool:
        """Whether every step has the protocol of the first."""

    @property
    def observation(self) -> ObservationModel:
        """What an adversary observes of the releases."""

    @property
    def adjacency(self) -> str:
        """What neighboring data sets differ in."""

    @property
    def accounting(self) -> str:
        """How sampled steps are composed."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of every guarantee about this plan."""

    def prepared(self, data: object) -> Any:
        """Return the data of all agents, checked."""

    def starting(self, data: object, random: RunRandomness, agents: Sequence[int]) -> np.ndarray:
        """Return the public starting rows."""

    def mechanism(self, data: object, agents: Sequence[int], random: RunRandomness) -> Mechanism:
        """Return the mechanism before the agents' records."""

    def algorithm(self, mechanism: Any, start: np.ndarray) -> Algorithm:
        """Return the update rule of the hosted agents."""

    def releases(self, agent: int) -> Sequence[Release]:
        """Return everything that an agent publishes."""

    def metrics(self, rows: np.ndarray, data: object, random: RunRandomness) -> dict[str, Any]:
        """Return numbers about the final rows that may be published."""

    def outputs(self, rows: np.ndarray, state: State[Any, Any]) -> dict[str, np.ndarray]:
        """Return the arrays of a result besides the rows."""

    def guarantees(self) -> Sequence[Guarantee]:
        """Return the guarantees to store with a result."""

    def describe(self) -> Mapping[str, Any]:
        """Return the plan as plain values."""


def run(
    plan: RunnablePlan, data: object, rng: RandomSource, *, progress: bool = False, **options: Any
) -> Result:
    """Run a plan in this process, all agents stacked, and return rows, metrics and guarantees.

    Parameters
    ----------
    plan, data, rng : what runs, the records (or values) of all its agents, and the randomness.
    progress : show a bar on the terminal.
    options : of `InProcessRun`.

    Guarantees
    ----------
    Those of `InProcessRun`.
    """
    running = InProcessRun(plan, data, rng, **options)
    running.begin()
    with bar(progress, plan.name, plan.steps, running.done) as show:
        while not running.finished:
            running.advance(plan.steps if running.unwatched and not progress else running.next_stop, show)
    return running.result()


class InProcessRun:
    """A plan that runs in this process, all agents stacked, as far as `advance` is told.

    Parameters
    ----------
    plan, data : what runs, and the records (or values) of all its agents.
    rng : a numpy Generator (a simulation, charged to nobody) or a noise source.
    start : (dim,) or (n, dim) public starting point; by default the plan's own.
    evaluate : ``evaluate(rows)`` fills the history; what it reads from private records is not charged. By
        default the plan's own metrics, on public records, when ``every`` is given.
    every : evaluate, report and save after so many steps; by default a fiftieth of the run.
    checkpoint : folder; a run that was interrupted goes on from it to the same bytes.
    on_step : called with (step, rows of all agents) after every step.
    on_evaluation : called with (step, what was recorded) after each evaluation.
    early_stopping : ends the run when the history no longer improves.
    use : the word for this run in the lifetime ledger.
    population : whose records they are, by the name in this machine's lifetime ledger; None for the first.
    guarantees : statements to store, as `Guarantee.to_dict` gives them; by default the plan's own.

    Guarantees
    ----------
    On a machine with a member directory (`sottovoce peer init`) a run with protective noise is charged to its
    lifetime ledger before any noise is drawn, with what `account` says of the plan, and refused beyond a
    lifetime budget. Data, checkpoint, evaluation and callbacks have been tried on the starting rows by then:
    a call that fails there costs nothing. A run that goes on from its ``checkpoint`` is not charged again.
    All steps of the plan are charged, also if fewer are taken: early stopping reads the history alone, which
    holds released rows and scores on public records, so it costs nothing and saves nothing.

    Raises
    ------
    TrainingDiverged : released rows, or scores on test records, show that more steps would be wasted.
    """

    def __init__(
        self,
        plan: RunnablePlan,
        data: object,
        rng: RandomSource,
        *,
        start: np.ndarray | None = None,
        evaluate: Evaluate | None = None,
        every: int | None = None,
        checkpoint: str | Path | None = None,
        on_step: OnStep | None = None,
        on_evaluation: OnEvaluation | None = None,
        early_stopping: EarlyStopping | None = None,
        use: str = "run",
        population: str | None = None,
        guarantees: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self._run = this_run = _Run(
            plan,
            data,
            RunRandomness.from_rng(rng),
            evaluate,
            on_evaluation,
            use,
            population,
            checkpoint,
            guarantees,
        )
        self.plan, self._on_step, self._early_stopping = plan, on_step, early_stopping
        self._evaluating = every is not None or evaluate is not None
        if early_stopping is not None and not self._evaluating:
            raise InvalidInput("early stopping needs evaluations; give every=..., the steps between two.")
        self._stretch = every or max(1, plan.steps // 50)
        self._folder = None if checkpoint is None else Checkpoint(checkpoint, this_run.identity(start))
        saved = None if self._folder is None else self._folder.latest()
        if saved is not None and saved.about.get("seeds"):
            this_run.random = this_run.random.with_seeds(saved.about["seeds"])
        self.done = 0 if saved is None else saved.step
        self.stopped = False
        agents = range(plan.n)
        self._first = this_run.starting_rows(this_run.data, agents, start)
        self._algorithm = this_run.algorithm(this_run.data, agents, self._first)
        self._schedule = plan.schedule.in_order()
        self._state: Any = None

    @property
    def finished(self) -> bool:
        """Whether all steps are done, or the run was stopped early."""
        return self.stopped or self.done >= self.plan.steps

    @property
    def data(self) -> Any:
        """The records of all agents, as the plan prepared them."""
        return self._run.data

    @property
    def mechanism(self) -> Mechanism | None:
        """The mechanism before the records, for what is public of it: the key of the batches, the scale."""
        return self._run.mechanism

    @property
    def unwatched(self) -> bool:
        """Whether nothing happens between two steps, so that all of them may be one stretch."""
        return not self._evaluating and self._folder is None and self._on_step is None

    @property
    def next_stop(self) -> int:
        """The step at which the run is evaluated, saved or shown next."""
        return min(self.done - self.done % self._stretch + self._stretch, self.plan.steps)

    @property
    def rows(self) -> np.ndarray:
        """The output row of every agent after the steps so far."""
        return self._first if self._state is None else np.asarray(self._algorithm.output(self._state))

    def begin(self) -> None:
        """Try everything on the starting rows, charge the run, and make its first state; once."""
        if self._state is not None:
            return
        this_run, first = self._run, self._first
        scores = this_run.begin(self.done, first, self._evaluating)
        if self._early_stopping is not None:
            self._early_stopping.require(scores)
        if this_run.random.protective and self._on_step is not None:
            self._on_step(self.done, first)
        this_run.charge()
        self._state = self._algorithm.init()
        if self._folder is not None:
            loaded = self._folder.load(np.arange(self.plan.n), self._state)
            if loaded is not None:
                self.done, self._state, _ = loaded

    def advance(self, steps: int, show: Callable[[int, Mapping[str, Any]], None] | None = None) -> None:
        """Run until ``steps`` steps are done; ``show`` is called with (steps done, last entry)."""
        self.begin()
        this_run, plan = self._run, self.plan
        if steps > plan.steps:
            raise InvalidInput(f"the plan has {plan.steps:,} steps, and the budget is for no more of them.")

        def after(k: int, state: Any) -> None:
            self.done, self._state = k + 1, state
            if self._on_step is not None:
                self._on_step(k + 1, self.rows)
            if (k + 1) % self._stretch == 0 or k + 1 == plan.steps:
                rows = self.rows
                this_run.check_rows(k + 1, rows)
                if self._evaluating:
                    this_run.record(k + 1, rows)
                if self._folder is not None:
                    this_run.saving(k + 1)
                    seeds = {"seeds": this_run.random.seeds}
                    self._folder.save(k + 1, np.arange(plan.n), state, about=seeds)
            if show is not None:
                show(k + 1, this_run.history[-1] if this_run.history else {})

        run_stacked(
            self._algorithm,
            self._schedule,
            steps,
            state=self._state,
            start=self.done,
            noise=this_run.random.noise,
            after_step=after,
            every=1 if self._on_step is not None else max(1, steps if self.unwatched else self._stretch),
        )
        if self._early_stopping is not None and self._early_stopping.stops(this_run.history):
            self.stopped = True

    def result(self) -> Result:
        """Return rows, metrics and guarantees of a run that has come to its end."""
        rows = self.rows
        stopped = {"stopped_at": self.done} if self.done < self.plan.steps else {}
        return self._run.result(rows, self.plan.outputs(rows, self._state), done=self.done, **stopped)


def run_on_ranks(
    cluster: Cluster,
    plan: RunnablePlan,
    data: object,
    rng: RandomSource,
    *,
    evaluate: Evaluate | None = None,
    every: int | None = None,
    checkpoint: str | Path | None = None,
    owner: np.ndarray | None = None,
    on_evaluation: OnEvaluation | None = None,
    use: str = "run",
    population: str | None = None,
    guarantees: Sequence[Mapping[str, Any]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Result | None:
    """Run a plan on all ranks and return its result on rank 0, None elsewhere.

    Parameters
    ----------
    cluster : this rank's membership.
    plan, data : the same on every rank; a rank reads the records of its own agents only.
    rng : a generator or noise source seeded alike on every rank, or a protective source.
    evaluate, every, checkpoint, on_evaluation, use, population, guarantees : as in `InProcessRun`; the folder
        must be seen by all ranks, and any number of ranks can go on from it.
    owner : (n,) rank of every agent; even slices by default. Rank 0 must host an agent.
    progress : called on rank 0 with the number of steps done.

    Guarantees
    ----------
    The statement is the plan's own: what travels between ranks stays with one owner and is no release. Rank 0
    charges as `run` does; if it is refused, every rank raises and none has drawn noise.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> plan = sv.PrivateAveraging(sv.protocols.HypercubeExchange(4), noise_std=1.0, radius=0.5)
    >>> with Cluster.alone() as cluster:
    ...     result = run_on_ranks(cluster, plan, np.zeros((4, 2)), np.random.default_rng(0))
    >>> result.outputs["rows"].shape, result.provenance["ranks"]
    ((4, 2), 1)
    """
    # Everybody must begin at the same point, also when no seed is given: rank 0 draws it.
    drawn = cluster.meet(int(np.random.SeedSequence().generate_state(1, np.uint64)[0]) >> 2)[0]

    def prepare() -> _Run:
        if plan.sequential:
            raise InvalidInput(
                f"{plan.name} has one holder at a time, so ranks would only wait for each other; run it in "
                "one process."
            )
        if owner is not None and 0 not in owner:
            raise InvalidInput("rank 0 returns the result, so owner must give it at least one agent.")
        random = RunRandomness.from_rng(rng)
        if random.protective:
            random = RunRandomness(random.noise, random.batches, drawn)
        return _Run(plan, data, random, evaluate, on_evaluation, use, population, checkpoint, guarantees)

    this_run = cluster.agree("the plan", prepare, identity=lambda prepared: str(prepared.random.seeds))
    all_data, seeds = this_run.data, this_run.random.seeds

    def make(agents: np.ndarray) -> Algorithm:
        hosted = agents.tolist()
        part = all_data[agents] if isinstance(all_data, np.ndarray) else all_data.subset(hosted)
        return this_run.algorithm(part, hosted, this_run.starting_rows(part, hosted))

    def begin(done: int) -> None:
        if cluster.rank == 0:
            this_run.begin(done, this_run.starting_rows(all_data, range(plan.n)), bool(every))
            this_run.charge()

    def ready(done: int) -> None:
        if every or this_run.random.protective:
            cluster.agree("the start", lambda: begin(done))

    def after(k: int, hosted: Hosted) -> None:
        if progress is not None and cluster.rank == 0:
            progress(k + 1)
        if checkpoint is not None and ((k + 1) % stretch == 0 or k + 1 == plan.steps):
            this_run.saving(k + 1)
        if every and (k + 1) % every == 0 and k + 1 < plan.steps:
            rows = cluster.gather(hosted)
            cluster.agree("the run", lambda: this_run.record(k + 1, rows), failing="stopped")

    sizes = None if isinstance(all_data, np.ndarray) else all_data.sizes
    stretch = every or max(1, plan.steps // 50)
    hosted = run_cluster(
        cluster,
        make,
        plan.schedule.in_order(),
        plan.steps,
        noise=this_run.random.noise,
        owner=owner,
        checkpoint=checkpoint,
        every=stretch,
        plan={**plan.describe(), "sizes": sizes, "seeds": seeds},
        before_start=ready,
        after_step=after if every or progress or checkpoint is not None else None,
    )
    rows = cluster.gather(hosted)
    sent = cluster.meet(vars(cluster.traffic))
    if rows is None:
        return None
    if every:
        this_run.record(plan.steps, rows)
    return this_run.result(rows, plan.outputs(rows, hosted.state), ranks=cluster.size, traffic=sent)


def has_noise(plan: RunnablePlan) -> bool:
    """Return whether any noise is added: without it the run has no privacy."""
    return any(release.noise_std for agent in range(plan.n) for release in plan.releases(agent))


@dataclass
class _Run:
    """A plan with its data and randomness, and the history so far."""

    plan: RunnablePlan
    data: Any
    random: RunRandomness
    evaluate: Evaluate | None
    on_evaluation: OnEvaluation | None
    use: str
    population: str | None
    checkpoint: str | Path | None
    guarantees: Sequence[Mapping[str, Any]] | None
    charged: ChargedTraining | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    scores: Mapping[str, Any] = field(default_factory=dict)
    divergence: DivergenceCheck = field(default_factory=DivergenceCheck)
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.data = self.plan.prepared(self.data)
        self.mechanism: Mechanism | None = None

    def starting_rows(
        self, data: object, agents: Sequence[int], start: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the public rows that the hosted agents begin with."""
        if start is None:
            return self.plan.starting(data, self.random, agents)
        return _checked_start(start, self.plan.n)

    def algorithm(self, data: object, agents: Sequence[int], first: np.ndarray) -> Algorithm:
        """Return the update rule of the hosted agents, whose records are ``data``."""
        self.mechanism = self.plan.mechanism(data, agents, self.random)
        return self.plan.algorithm(self.mechanism, first)

    def begin(self, done: int, first: np.ndarray, evaluating: bool) -> Mapping[str, Any]:
        """Return the scores of the starting rows, to compare the run with; what may fail fails uncharged.

        Those rows are public, so that an evaluation of them tells nothing; they do not enter the history.
        """
        scores = self._evaluated(first) if evaluating else {}
        self.divergence.begin(scores)
        if not self.random.protective:
            return scores
        if evaluating and self.on_evaluation is not None:
            self.on_evaluation(done, {"step": done, **scores})
        if self.evaluate is not None or not evaluating:
            self.plan.metrics(first, self.data, self.random)
        return scores

    def charge(self) -> None:
        """Charge a run with protective noise, before it draws any."""
        if not self.random.protective:
            return
        if self.guarantees is None:
            self.guarantees = [guarantee.to_dict() for guarantee in self.plan.guarantees()]
        self.charged = charge(
            find_lifetime_ledger(),
            self.plan,
            self.use,
            population=self.population,
            checkpoint=self.checkpoint,
        )

    def saving(self, step: int) -> None:
        """Tell the lifetime ledger how far checkpoints have come."""
        if self.charged is not None:
            self.charged.saving(step)

    def _evaluated(self, rows: np.ndarray) -> Mapping[str, Any]:
        if self.evaluate is not None:
            return self.evaluate(rows)
        return self.plan.metrics(rows, self.data, self.random)

    def check_rows(self, step: int, rows: np.ndarray) -> None:
        """Stop training whose released rows show that it diverges."""
        if self.plan.steps > 1 and (reason := self.divergence.rows_reason(rows)) is not None:
            raise TrainingDiverged(self._diverged(step, reason))

    def record(self, step: int, rows: np.ndarray | None) -> None:
        """Evaluate the rows of all agents, where they are here; stop training that diverges."""
        if rows is None:
            return
        self.check_rows(step, rows)
        self.scores = self._evaluated(rows)
        reason = self.divergence.scores_reason(self.scores)
        if reason is not None and step < self.plan.steps:  # the last step has no more budget to save
            raise TrainingDiverged(self._diverged(step, reason))
        varying = {name: value for name, value in self.scores.items() if name not in CONSTANTS}
        self.history.append({"step": step, **varying})
        if self.on_evaluation is not None:
            self.on_evaluation(step, self.history[-1])

    def metrics(self, rows: np.ndarray, done: int) -> dict[str, Any]:
        """Return the plan's metrics of the final rows, which the history may hold already."""
        if self.evaluate is None and self.history and self.history[-1]["step"] == done:
            return dict(self.scores)
        return self.plan.metrics(rows, self.data, self.random)

    def _diverged(self, step: int, reason: str) -> str:
        """Return the sentence about a run that is stopped: why, what to do, what was spent."""
        sentence = f"training diverged; lower the learning rate: after {step:,} of {self.plan.steps:,} steps "
        sentence += f"{reason}."
        if not (self.random.protective and has_noise(self.plan)):
            return sentence
        stated = [g for g in self.guarantees or () if "epsilon" in g]
        spent = stated[0] if stated else self.plan.guarantees()[0].to_dict(1e-5)
        epsilon = math.ceil(1000 * float(spent["epsilon"])) / 1000
        against = wording.stored_adversary(spent["adversary"], noun="node")
        sentence += (
            f" Those steps are spent: at most epsilon {epsilon:.3f} at delta {spent['delta']:g} against "
        )
        return sentence + against + (", and stay charged." if self.charged is not None else ".")

    def result(
        self,
        rows: np.ndarray,
        outputs: Mapping[str, np.ndarray],
        done: int | None = None,
        **provenance: object,
    ) -> Result:
        plan, guarantees = self.plan, self.guarantees
        provenance = {"noise": self.random.description if has_noise(plan) else NO_PRIVACY, **provenance}
        if self.charged is not None:
            self.charged.done(plan.steps)
            provenance["lifetime_budget"] = self.charged.summary
        return Result(
            name=plan.name,
            config=dict(plan.describe()),
            outputs={"rows": rows, **outputs},
            metrics=self.metrics(rows, plan.steps if done is None else done),
            history=self.history,
            guarantees=[g.to_dict() for g in plan.guarantees()] if guarantees is None else guarantees,
            provenance=provenance_now(self.started, **provenance),
        )

    def identity(self, start: np.ndarray | None) -> str:
        """Name the run: the plan, its records, and what the noise is; another's checkpoint is refused."""
        arrays = [getattr(self.data, name, None) for name in ("X", "y", "inputs", "targets", "offsets")]
        data = arrays if any(array is not None for array in arrays) else self.data
        about = {"plan": self.plan.describe(), "noise": repr(self.random.noise), "start": start, "data": data}
        return digest(about)


def _checked_start(start: np.ndarray, n: int) -> np.ndarray:
    rows = np.asarray(start)
    if rows.dtype not in (np.float32, np.float64):
        rows = rows.astype(np.float64)
    if rows.ndim == 1:
        rows = np.repeat(rows[None], n, axis=0)
    if rows.ndim != 2 or rows.shape[0] != n:
        raise InvalidInput(f"start must be one row, or one per agent ({n}), got shape {rows.shape}.")
    return rows
