"""Run a plan: in this process, or over the ranks of one owner's cluster.

Both do the same in the same order (`_Run`): prepare the data, try everything on the public starting rows,
charge, take the steps, record, and make a `Result`. Here protective noise meets a plan, so here it is charged
to the lifetime ledger of this machine: after everything that can fail without noise, before the first noise
is drawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from sottovoce import _validate
from sottovoce._format import number
from sottovoce._io import digest
from sottovoce.accounting import wording
from sottovoce.errors import InvalidInput, TrainingDiverged
from sottovoce.ledger.charge import ChargedTraining, charge
from sottovoce.ledger.lifetime import find_lifetime_ledger
from sottovoce.mechanisms.base import Mechanism
from sottovoce.noise.run_randomness import RandomSource, RunRandomness
from sottovoce.objectives.trivial import CONSTANTS
from sottovoce.runners.base import Algorithm, Result, State, provenance_now
from sottovoce.runners.checkpoint import Checkpoint
from sottovoce.runners.distributed import Cluster, Hosted, run_cluster
from sottovoce.runners.divergence import DivergenceCheck
from sottovoce.runners.early_stopping import EarlyStopping
from sottovoce.runners.in_process import run_stacked
from sottovoce.runners.plan_interface import RunnablePlan, has_noise
from sottovoce.runners.progress import bar

NO_PRIVACY = "none: no privacy"

Evaluate = Callable[[np.ndarray], Mapping[str, Any]]
OnStep = Callable[[int, np.ndarray], None]
OnEvaluation = Callable[[int, Mapping[str, Any]], None]


class RunOptions(TypedDict, total=False):
    """Options of a run, in one process and on ranks; `InProcessRun` says what they mean."""

    evaluate: Evaluate | None
    every: int | None
    checkpoint: str | Path | None
    on_evaluation: OnEvaluation | None
    purpose: str
    population: str | None
    guarantees: Sequence[Mapping[str, Any]] | None


class InProcessOptions(RunOptions, total=False):
    """Options of `InProcessRun`."""

    start: np.ndarray | None
    on_step: OnStep | None
    early_stopping: EarlyStopping | None


def run(
    plan: RunnablePlan,
    data: object,
    rng: RandomSource,
    *,
    progress: bool = False,
    **options: Unpack[InProcessOptions],
) -> Result:
    """Run a plan in this process and return rows, metrics and guarantees; ``progress`` shows a bar."""
    running = InProcessRun(plan, data, rng, **options)
    running.begin()
    with bar(progress, plan.name, plan.steps, running.done) as show:
        while not running.finished:
            running.advance(plan.steps if running.unwatched and not progress else running.next_stop, show)
    return running.result()


class _Run:
    """What a run does before and after its steps, in one process and on ranks."""

    def __init__(
        self,
        plan: RunnablePlan,
        data: object,
        random: RunRandomness,
        *,
        evaluate: Evaluate | None = None,
        every: int | None = None,
        checkpoint: str | Path | None = None,
        on_evaluation: OnEvaluation | None = None,
        purpose: str = "run",
        population: str | None = None,
        guarantees: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.plan, self.random = plan, random
        self._evaluate, self._on_evaluation, self._checkpoint = evaluate, on_evaluation, checkpoint
        self._purpose, self._population, self._guarantees = purpose, population, guarantees
        self.evaluating = every is not None or evaluate is not None
        self.stretch = every or max(1, plan.steps // 50)
        self._started = time.perf_counter()
        self._history: list[dict[str, Any]] = []
        self._scores: Mapping[str, Any] = {}
        self._divergence = DivergenceCheck()
        self._charged: ChargedTraining | None = None
        self.mechanism: Mechanism | None = None  # what is public of it: the key of the batches, the scale
        self.data: Any = plan.prepared(data)

    def algorithm(self, data: object, agents: Sequence[int], start_rows: np.ndarray) -> Algorithm:
        """Return the update rule of the hosted agents, whose records are ``data``."""
        self.mechanism = self.plan.mechanism(data, agents, self.random)
        return self.plan.algorithm(self.mechanism, start_rows)

    def ends_stretch(self, done: int) -> bool:
        """Return whether the run is evaluated and saved after so many steps."""
        return done % self.stretch == 0 or done == self.plan.steps

    def rehearse(self, done: int, start_rows: np.ndarray) -> Mapping[str, Any]:
        """Return the scores of the starting rows, to compare the run with; what may fail fails uncharged.

        Those rows are public, so that an evaluation of them tells nothing; they do not enter the history.
        """
        scores = self._evaluated(start_rows) if self.evaluating else {}
        self._divergence.begin(scores)
        if not self.random.protective:
            return scores
        if self.evaluating and self._on_evaluation is not None:
            self._on_evaluation(done, {"step": done, **scores})
        if self._evaluate is not None or not self.evaluating:
            self.plan.metrics(start_rows, self.data, self.random)
        return scores

    def charge(self) -> None:
        """Charge a run with protective noise, before it draws any."""
        if not self.random.protective:
            return
        if self._guarantees is None:
            self._guarantees = [guarantee.to_dict() for guarantee in self.plan.guarantees()]
        self._charged = charge(
            find_lifetime_ledger(),
            self.plan,
            f"{self._purpose} of {self.plan.name}",
            population=self._population,
            checkpoint=self._checkpoint,
        )

    def saving(self, step: int) -> None:
        """Tell the lifetime ledger how far checkpoints have come."""
        if self._charged is not None:
            self._charged.saving(step)

    def _evaluated(self, rows: np.ndarray) -> Mapping[str, Any]:
        if self._evaluate is not None:
            return self._evaluate(rows)
        return self.plan.metrics(rows, self.data, self.random)

    def check_rows(self, step: int, rows: np.ndarray) -> None:
        """Stop training whose released rows show that it diverges."""
        if self.plan.steps > 1 and (reason := self._divergence.rows_reason(rows)) is not None:
            raise TrainingDiverged(self._diverged(step, reason))

    def record(self, step: int, rows: np.ndarray | None) -> None:
        """Evaluate the rows of all agents, where they are here; stop training that diverges."""
        if rows is None:
            return
        self.check_rows(step, rows)
        self._scores = self._evaluated(rows)
        reason = self._divergence.scores_reason(self._scores)
        if reason is not None and step < self.plan.steps:  # the last step has no more budget to save
            raise TrainingDiverged(self._diverged(step, reason))
        varying = {name: value for name, value in self._scores.items() if name not in CONSTANTS}
        self._history.append({"step": step, **varying})
        if self._on_evaluation is not None:
            self._on_evaluation(step, self._history[-1])

    def _diverged(self, step: int, reason: str) -> str:
        """Return the sentence about a run that is stopped: why, what to do, what was spent."""
        sentence = f"training diverged; lower the learning rate: after {step:,} of {self.plan.steps:,} steps "
        sentence += f"{reason}."
        if not (self.random.protective and has_noise(self.plan)):
            return sentence
        stated = [g for g in self._guarantees or () if "epsilon" in g]
        spent = stated[0] if stated else self.plan.guarantees()[0].to_dict(1e-5)
        against = wording.stored_adversary(spent["adversary"], noun="node")
        epsilon, delta = number(float(spent["epsilon"]), "epsilon"), number(spent["delta"], "delta")
        sentence += f" Those steps are spent: at most epsilon {epsilon} at delta {delta} against "
        return sentence + against + (", and stay charged." if self._charged is not None else ".")

    def make_result(
        self, rows: np.ndarray, state: State[Any, Any], done: int, **provenance: object
    ) -> Result:
        """Return the result of a run that ended after ``done`` steps."""
        plan, guarantees, metrics = self.plan, self._guarantees, dict(self._scores)
        if self._evaluate is not None or not self._history or self._history[-1]["step"] != done:
            metrics = plan.metrics(rows, self.data, self.random)
        provenance = {"noise": self.random.description if has_noise(plan) else NO_PRIVACY, **provenance}
        if self._charged is not None:
            self._charged.done(plan.steps)
            provenance["lifetime_budget"] = self._charged.summary
        return Result(
            name=plan.name,
            config=dict(plan.describe()),
            outputs={"rows": rows, **plan.outputs(rows, state)},
            metrics=metrics,
            history=self._history,
            guarantees=[g.to_dict() for g in plan.guarantees()] if guarantees is None else guarantees,
            provenance=provenance_now(self._started, **provenance),
        )


class InProcessRun(_Run):
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
    purpose : what the lifetime ledger calls this run, as in "fit of dp-dsgd".
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
        on_step: OnStep | None = None,
        early_stopping: EarlyStopping | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        super().__init__(plan, data, RunRandomness.from_rng(rng), **options)
        self._on_step, self._early_stopping = on_step, early_stopping
        if early_stopping is not None and not self.evaluating:
            raise InvalidInput("early stopping needs evaluations; give every=..., the steps between two.")
        folder = self._checkpoint
        self._folder = None if folder is None else Checkpoint(folder, self._identity(start))
        saved = None if self._folder is None else self._folder.latest()
        if saved is not None and saved.about.get("seeds"):
            self.random = self.random.with_seeds(saved.about["seeds"])
        self.done = 0 if saved is None else saved.step
        agents = range(plan.n)
        if start is None:
            self._start_rows = plan.starting(self.data, self.random, agents)
        else:
            rows = np.repeat(np.asarray(start)[None], plan.n, axis=0) if np.ndim(start) == 1 else start
            self._start_rows = _validate.rows(rows, plan.n, "start", finite=False)
        self._algorithm = self.algorithm(self.data, agents, self._start_rows)
        self._schedule = plan.schedule.in_order()
        self._state: Any = None

    @property
    def finished(self) -> bool:
        """Whether all steps are done, or the run was stopped early."""
        stopping = self._early_stopping
        return self.done >= self.plan.steps or (stopping is not None and stopping.stops(self._history))

    @property
    def unwatched(self) -> bool:
        """Whether nothing happens between two steps, so that all of them may be one stretch."""
        return not self.evaluating and self._folder is None and self._on_step is None

    @property
    def next_stop(self) -> int:
        """The step at which the run is evaluated, saved or shown next."""
        return min(self.done - self.done % self.stretch + self.stretch, self.plan.steps)

    @property
    def rows(self) -> np.ndarray:
        """The output row of every agent after the steps so far."""
        return self._start_rows if self._state is None else np.asarray(self._algorithm.output(self._state))

    def begin(self) -> None:
        """Try everything on the starting rows, charge the run, and make its first state; once."""
        if self._state is not None:
            return
        scores = self.rehearse(self.done, self._start_rows)
        if self._early_stopping is not None:
            self._early_stopping.require(scores)
        if self.random.protective and self._on_step is not None:
            self._on_step(self.done, self._start_rows)
        self.charge()
        self._state = self._algorithm.init()
        if self._folder is not None:
            loaded = self._folder.load(np.arange(self.plan.n), self._state)
            if loaded is not None:
                self.done, self._state, _ = loaded

    def advance(self, steps: int, show: Callable[[int, Mapping[str, Any]], None] | None = None) -> None:
        """Run until ``steps`` steps are done; ``show`` is called with (steps done, last entry)."""
        self.begin()
        if steps > self.plan.steps:
            most = f"{self.plan.steps:,} steps"
            raise InvalidInput(f"the plan has {most}, and the budget is for no more of them.")

        def after(k: int, state: State[Any, Any]) -> None:
            self.done, self._state = k + 1, state
            if self._on_step is not None:
                self._on_step(self.done, self.rows)
            if self.ends_stretch(self.done):
                rows = self.rows
                self.check_rows(self.done, rows)
                if self.evaluating:
                    self.record(self.done, rows)
                if self._folder is not None:
                    self.saving(self.done)
                    about = {"seeds": self.random.seeds}
                    self._folder.save(self.done, np.arange(self.plan.n), state, about=about)
            if show is not None:
                show(self.done, self._history[-1] if self._history else {})

        run_stacked(
            self._algorithm,
            self._schedule,
            steps,
            state=self._state,
            first_step=self.done,
            noise=self.random.noise,
            after_step=after,
            every=1 if self._on_step is not None else max(1, steps if self.unwatched else self.stretch),
        )

    def result(self) -> Result:
        """Return rows, metrics and guarantees of a run that has come to its end."""
        stopped = {"stopped_at": self.done} if self.done < self.plan.steps else {}
        return self.make_result(self.rows, self._state, self.done, **stopped)

    def _identity(self, start: np.ndarray | None) -> str:
        """Name the run: the plan, its records, and what the noise is; another's checkpoint is refused."""
        arrays = [getattr(self.data, name, None) for name in ("X", "y", "inputs", "targets", "offsets")]
        data = arrays if any(array is not None for array in arrays) else self.data
        about = {"plan": self.plan.describe(), "noise": repr(self.random.noise), "start": start, "data": data}
        return digest(about)


def run_on_ranks(
    cluster: Cluster,
    plan: RunnablePlan,
    data: object,
    rng: RandomSource,
    *,
    owner: np.ndarray | None = None,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[RunOptions],
) -> Result | None:
    """Run a plan on all ranks and return its result on rank 0, None elsewhere.

    Parameters
    ----------
    cluster : this rank's membership.
    plan, data : the same on every rank; a rank reads the records of its own agents only.
    rng : a generator or noise source seeded alike on every rank, or a protective source.
    owner : (n,) rank of every agent; even slices by default. Rank 0 must host an agent.
    progress : called on rank 0 with the number of steps done.
    options : as in `InProcessRun`; the checkpoint folder must be seen by all ranks, and any number of ranks
        can go on from it.

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
        return _Run(plan, data, random, **options)

    this_run = cluster.agree("the plan", prepare, identity=lambda prepared: str(prepared.random.seeds))
    all_data, random, evaluating = this_run.data, this_run.random, this_run.evaluating
    checkpoint = options.get("checkpoint")

    def make(agents: np.ndarray) -> Algorithm:
        hosted = agents.tolist()
        part = all_data[agents] if isinstance(all_data, np.ndarray) else all_data.subset(hosted)
        return this_run.algorithm(part, hosted, plan.starting(part, random, hosted))

    def begin(done: int) -> None:
        if cluster.rank == 0:
            this_run.rehearse(done, plan.starting(all_data, random, range(plan.n)))
            this_run.charge()

    def ready(done: int) -> None:
        if evaluating or random.protective:
            cluster.agree("the start", lambda: begin(done))

    def after(k: int, hosted: Hosted) -> None:
        done = k + 1
        if progress is not None and cluster.rank == 0:
            progress(done)
        if not this_run.ends_stretch(done):
            return
        if checkpoint is not None:
            this_run.saving(done)
        if evaluating and done < plan.steps:
            rows = cluster.gather(hosted)
            cluster.agree("the run", lambda: this_run.record(done, rows), failing="stopped")

    sizes = None if isinstance(all_data, np.ndarray) else all_data.sizes
    hosted = run_cluster(
        cluster,
        make,
        plan.schedule.in_order(),
        plan.steps,
        noise=random.noise,
        owner=owner,
        checkpoint=checkpoint,
        every=this_run.stretch,
        plan={**plan.describe(), "sizes": sizes, "seeds": random.seeds},
        before_start=ready,
        after_step=after if evaluating or progress or checkpoint is not None else None,
    )
    rows = cluster.gather(hosted)
    sent = cluster.meet(vars(cluster.traffic))
    if rows is None:
        return None
    if evaluating:
        this_run.record(plan.steps, rows)
    return this_run.make_result(rows, hosted.state, plan.steps, ranks=cluster.size, traffic=sent)
