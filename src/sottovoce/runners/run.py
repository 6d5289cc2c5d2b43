"""Run a plan: in this process, or over the ranks of one owner's cluster.

`PlanRun` is both, one process being a cluster of one rank: prepare the data, try everything on the public
starting rows, charge, take the steps, record, and make a `Result`. Here protective noise meets a plan, so
here it is charged to the lifetime ledger of this machine: after everything that can fail without noise,
before the first noise is drawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

import numpy as np

from sottovoce import _validate
from sottovoce._format import number
from sottovoce._io import digest
from sottovoce.accounting import wording
from sottovoce.errors import InvalidInput, TrainingDiverged
from sottovoce.ledger.charge import ChargedRun, charge
from sottovoce.ledger.lifetime import find_lifetime_ledger
from sottovoce.mechanisms.base import Mechanism
from sottovoce.noise.run_randomness import RandomSource, RunRandomness
from sottovoce.objectives.trivial import CONSTANTS
from sottovoce.protocols import Protocol, as_linear
from sottovoce.runners.base import Algorithm, Result, State, provenance_now
from sottovoce.runners.checkpoint import Checkpoint
from sottovoce.runners.distributed import Cluster, RankMixing, require_ranks, versions
from sottovoce.runners.in_process import Mix, run_stacked
from sottovoce.runners.matrix_partition import slices
from sottovoce.runners.plan_interface import RunnablePlan, has_noise
from sottovoce.runners.progress import bar
from sottovoce.runners.stopping import DivergenceCheck, EarlyStopping

T = TypeVar("T")
NO_PRIVACY = "none: no privacy"

Evaluate = Callable[[np.ndarray], Mapping[str, Any]]
OnStep = Callable[[int, np.ndarray], None]
OnEvaluation = Callable[[int, Mapping[str, Any]], None]


class RunOptions(TypedDict, total=False):
    """Options of a run; `PlanRun` says what they mean."""

    evaluate: Evaluate | None
    every: int | None
    checkpoint: str | Path | None
    on_evaluation: OnEvaluation | None
    purpose: str
    population: str | None
    guarantees: Sequence[Mapping[str, Any]] | None
    start: np.ndarray | None
    on_step: OnStep | None
    early_stopping: EarlyStopping | None


def run(
    plan: RunnablePlan,
    data: object,
    rng: RandomSource,
    *,
    progress: bool = False,
    **options: Unpack[RunOptions],
) -> Result:
    """Run a plan in this process and return rows, metrics and guarantees; ``progress`` shows a bar."""
    running = PlanRun(plan, data, rng, **options)
    running.begin()
    with bar(progress, plan.name, plan.steps, running.done) as show:
        while not running.finished:
            running.advance(plan.steps if running.unwatched and not progress else running.next_stop, show)
    return running.result()


def run_on_ranks(
    cluster: Cluster,
    plan: RunnablePlan,
    data: object,
    rng: RandomSource,
    *,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[RunOptions],
) -> Result | None:
    """Run a plan on all ranks and return its result on rank 0, None elsewhere.

    Parameters
    ----------
    cluster : this rank's membership; each rank hosts an even slice of the agents.
    plan, data : the same on every rank; a rank reads the records of its own agents only.
    rng : a generator or noise source seeded alike on every rank, or a protective source.
    progress : called on rank 0 with the number of steps done.
    options : as in `PlanRun`, without early stopping; the checkpoint folder must be seen by all ranks, and
        any number of ranks, or one process, can go on from it.

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
    running = PlanRun(plan, data, rng, cluster=cluster, **options)
    show = None if progress is None or cluster.rank else lambda done, entry: progress(done)
    running.advance(plan.steps, show)
    rows = cluster.gather(running.rows, plan.n)
    sent = cluster.meet(vars(cluster.traffic))
    return None if rows is None else running.result(rows, ranks=cluster.size, traffic=sent)


class PlanRun:
    """A plan that runs as far as `advance` is told: all agents here, or those of one rank of a cluster.

    Parameters
    ----------
    plan, data : what runs, and the records (or values) of all its agents.
    rng : a numpy Generator (a simulation, charged to nobody) or a noise source.
    cluster : the ranks that share the run; None for this process alone.
    start : (dim,) or (n, dim) public starting point; by default the plan's own.
    evaluate : ``evaluate(rows)`` fills the history; what it reads from private records is not charged. By
        default the plan's own metrics, on its test records, when ``every`` is given.
    every : evaluate, report and save after so many steps; by default a fiftieth of the run.
    checkpoint : folder; a run that was interrupted goes on from it, a simulation to the same rows. Its
        history and the patience of early stopping begin anew.
    on_step : called with (step, output rows of the agents here) after every step.
    on_evaluation : called with (step, what was recorded) after each evaluation.
    early_stopping : ends the run when the history no longer improves.
    purpose : what the lifetime ledger calls this run, as in "fit of dp-dsgd".
    population : whose records they are, by the name in this machine's lifetime ledger; None for the first.
    guarantees : statements to store, as `Guarantee.to_dict` gives them; by default the plan's own.

    Guarantees
    ----------
    On a machine with a member directory (`sottovoce peer init`) a run with protective noise is charged to its
    lifetime ledger before any noise is drawn, with what `account` says of the plan, and refused beyond a
    lifetime budget. By then the data have been prepared, the checkpoint's index has been read and compared
    with this run, its folder has been written to, and evaluation and callbacks have been tried on the
    starting rows: what fails there costs nothing. The saved rows are read after the charge; a run that goes
    on from its ``checkpoint`` is not charged again. Steps after the last checkpoint are then done again with
    new noise, and what they drew before was shown to nobody: protected rows are saved before callbacks,
    evaluations or the caller get them, which with ``on_step`` means a checkpoint after every step.
    All steps of the plan are charged, also if fewer are taken: early stopping reads the history alone, which
    holds what is shown anyway, so it costs nothing and saves nothing. (Scores on private records that were
    held out are shown where the caller accepted it by name, and no guarantee covers them.)

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
        cluster: Cluster | None = None,
        start: np.ndarray | None = None,
        evaluate: Evaluate | None = None,
        every: int | None = None,
        checkpoint: str | Path | None = None,
        on_step: OnStep | None = None,
        on_evaluation: OnEvaluation | None = None,
        early_stopping: EarlyStopping | None = None,
        purpose: str = "run",
        population: str | None = None,
        guarantees: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.plan, self.cluster = plan, cluster or Cluster.alone()
        self._evaluate, self._on_step, self._on_evaluation = evaluate, on_step, on_evaluation
        self._early_stopping, self._checkpoint = early_stopping, checkpoint
        self._purpose, self._population, self._guarantees = purpose, population, guarantees
        self.evaluating = every is not None or evaluate is not None
        if early_stopping is not None and not self.evaluating:
            raise InvalidInput("early stopping needs evaluations; give every=..., the steps between two.")
        self._stretch = every or max(1, plan.steps // 50)
        self._started = time.perf_counter()
        # if one rank shows every step, all save after every step
        self._shows_steps = any(self.cluster.meet(on_step is not None))
        self._history: list[dict[str, Any]] = []
        self._scores: Mapping[str, Any] = {}
        self._divergence = DivergenceCheck()
        self._charged: ChargedRun | None = None
        self._state: Any = None
        agree = self.cluster.agree
        self.random = RunRandomness.from_rng(rng)
        # everybody begins at the point of rank 0, also where no seed is given
        start_seed = self.cluster.meet(self.random.start_seed)[0]
        if self.random.protective:
            self.random = replace(self.random, start_seed=start_seed)
        agree("the packages", versions, identity=str)
        self.data, self._start_rows, identity = agree(
            "the plan", lambda: self._prepare(data, start), identity=lambda prepared: prepared[2]
        )
        mine = np.flatnonzero(slices(plan.n, self.cluster.size) == self.cluster.rank)
        self._agents = range(int(mine[0]), int(mine[-1]) + 1)
        self.mechanism, self._algorithm = agree("the data", self._hosted_algorithm)
        self._mix: Mix | None = None
        if self.cluster.size > 1:
            self._mix = RankMixing(self.cluster, plan.n, self.random.noise)
            self._algorithm = self._algorithm._replace(block=None)  # it mixes without the other ranks
        self._schedule = plan.schedule.in_order()
        self._folder = None if checkpoint is None else Checkpoint(checkpoint, identity)
        self.done = agree("the checkpoint", self._saved_step, identity="step {}".format)

    def _prepare(self, data: object, start: np.ndarray | None) -> tuple[Any, np.ndarray, str]:
        """Return the data of all agents, their starting rows, and the digest that names the run."""
        plan, random = self.plan, self.random
        if self.cluster.size > 1:
            require_ranks(plan, self.cluster.size)
        ready = plan.prepared(data)
        if start is None:
            rows = plan.starting(ready, random, range(plan.n))
        else:
            rows = np.repeat(np.asarray(start)[None], plan.n, axis=0) if np.ndim(start) == 1 else start
            rows = _validate.rows(rows, plan.n, "start", finite=False)
        if self._checkpoint is None and self.cluster.size == 1:
            return ready, rows, ""
        arrays = [getattr(ready, name, None) for name in ("X", "y", "inputs", "targets", "offsets")]
        facts = {
            "plan": plan.describe(),
            "protocols": [_facts(plan.schedule(k)) for k in sorted({0, plan.steps - 1})],
            "noise": repr(random.noise),
            "seeds": random.seeds,
            "start": start,
            "data": arrays if any(array is not None for array in arrays) else ready,
        }
        return ready, rows, digest(facts)

    def _hosted_algorithm(self) -> tuple[Mechanism, Algorithm]:
        """Return the mechanism and the update rule of the agents hosted here."""
        agents, data, start_rows = self._agents, self.data, self._start_rows
        if len(agents) < self.plan.n:
            data = data[agents] if isinstance(data, np.ndarray) else data.subset(list(agents))
            start_rows = start_rows[agents]
        mechanism = self.plan.mechanism(data, agents, self.random)
        if mechanism.release_check is not None:
            mechanism.release_check.once = True
        return mechanism, self.plan.algorithm(mechanism, start_rows)

    def _saved_step(self) -> int:
        saved = None if self._folder is None else self._folder.latest()
        return 0 if saved is None else saved.step

    @property
    def finished(self) -> bool:
        """Whether all steps are done, or the run was stopped early."""
        stopping = self._early_stopping
        return self.done >= self.plan.steps or (stopping is not None and stopping.stops(self._history))

    @property
    def unwatched(self) -> bool:
        """Whether nothing happens between two steps, so that all of them may be one stretch."""
        return not self.evaluating and self._folder is None and not self._shows_steps

    @property
    def next_stop(self) -> int:
        """The step at which the run is evaluated, saved or shown next."""
        return min(self.done - self.done % self._stretch + self._stretch, self.plan.steps)

    @property
    def rows(self) -> np.ndarray:
        """The output rows of the agents hosted here after the steps so far."""
        if self._state is None:
            return self._start_rows[self._agents.start : self._agents.stop]
        return np.asarray(self._algorithm.output(self._state))

    def begin(self) -> None:
        """Try everything on the starting rows, charge the run, and make its first state; once."""
        if self._state is not None:
            return
        self.cluster.agree("the start", self._rehearse_and_charge)
        self._state = self._algorithm.init()
        if self.done:
            self._state = self.cluster.agree("the checkpoint", self._load)

    def _rehearse_and_charge(self) -> None:
        """Try on rank 0 what may fail, uncharged; then charge protective noise, before any is drawn.

        The starting rows are public, so that an evaluation of them tells nothing; it does not enter the
        history.
        """
        if self.cluster.rank:
            return
        rows = self._start_rows
        scores = self._evaluated(rows) if self.evaluating else {}
        self._divergence.begin(scores)
        if self._early_stopping is not None:
            self._early_stopping.require(scores)
        if not self.random.protective:
            return
        if self.evaluating and self._on_evaluation is not None:
            self._on_evaluation(self.done, {"step": self.done, **scores})
        if self._evaluate is not None or not self.evaluating:
            self.plan.metrics(rows, self.data, self.random)
        if self._on_step is not None:
            self._on_step(self.done, rows)
        if self._guarantees is None:
            self._guarantees = [guarantee.to_dict() for guarantee in self.plan.guarantees()]
        self._charged = charge(
            find_lifetime_ledger(),
            self.plan,
            f"{self._purpose} of {self.plan.name}",
            population=self._population,
            checkpoint=self._checkpoint,
        )

    def advance(self, steps: int, show: Callable[[int, Mapping[str, Any]], None] | None = None) -> None:
        """Run until ``steps`` steps are done; ``show`` is called with (steps done, last entry)."""
        self.begin()
        if steps > self.plan.steps:
            most = f"{self.plan.steps:,} steps"
            raise InvalidInput(f"the plan has {most}, and the budget is for no more of them.")

        def after(k: int, state: State[Any, Any]) -> None:
            self.done, self._state = k + 1, state
            stops = self.done % self._stretch == 0 or self.done == self.plan.steps
            # first saved, then shown: a step that is done again after a crash has been released once
            if stops or (self._shows_steps and self.random.protective):
                self._save()
            if self._on_step is not None:
                self._on_step(self.done, self.rows)
            if stops and (self.evaluating or self.cluster.size == 1):
                rows = self.cluster.gather(self.rows, self.plan.n)
                self.cluster.agree("the run", lambda: self._record(rows), failing="stopped")
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
            every=1 if self._shows_steps else max(1, steps if self.unwatched else self._stretch),
            mix=self._mix,
        )

    def _evaluated(self, rows: np.ndarray) -> Mapping[str, Any]:
        if self._evaluate is not None:
            return self._evaluate(rows)
        return self.plan.metrics(rows, self.data, self.random)

    def _record(self, rows: np.ndarray | None) -> None:
        """Evaluate the rows of all agents, where they are here; stop training that diverges."""
        if rows is None:
            return
        step, last = self.done, self.plan.steps
        if last > 1 and (reason := self._divergence.rows_reason(rows)) is not None:
            raise TrainingDiverged(self._diverged(reason))
        if not self.evaluating:
            return
        self._scores = self._evaluated(rows)
        reason = self._divergence.scores_reason(self._scores)
        if reason is not None and step < last:  # the last step has no more budget to save
            raise TrainingDiverged(self._diverged(reason))
        varying = {name: value for name, value in self._scores.items() if name not in CONSTANTS}
        self._history.append({"step": step, **varying})
        if self._on_evaluation is not None:
            self._on_evaluation(step, self._history[-1])

    def _diverged(self, reason: str) -> str:
        """Return the sentence about a run that is stopped: why, what to do, what was spent."""
        sentence = f"training diverged; lower the learning rate: after {self.done:,} of {self.plan.steps:,} "
        sentence += f"steps {reason}."
        if not (self.random.protective and has_noise(self.plan)):
            return sentence
        stated = [g for g in self._guarantees or () if "epsilon" in g]
        spent = stated[0] if stated else self.plan.guarantees()[0].to_dict(1e-5)
        against = wording.stored_adversary(spent["adversary"], noun="node")
        epsilon, delta = number(float(spent["epsilon"]), "epsilon"), number(spent["delta"], "delta")
        sentence += f" Those steps are spent: at most epsilon {epsilon} at delta {delta} against "
        return sentence + against + (", and stay charged." if self._charged is not None else ".")

    def _load(self) -> Any:
        """Return the state of the hosted agents after the steps that are done."""
        assert self._folder is not None
        loaded = self._folder.load(np.asarray(self._agents), self._state)
        return self._state if loaded is None else loaded[1]

    def _save(self) -> None:
        """Write the state of all ranks; until the last file is renamed the checkpoint before is valid."""
        folder, cluster = self._folder, self.cluster
        if folder is None:
            return
        agents = np.asarray(self._agents)

        def agreed(act: Callable[[], T]) -> T:
            return cluster.agree("the checkpoint", act, failing="could not write the checkpoint")

        names = cluster.meet(agreed(lambda: folder.write(self.done, agents, self._state, cluster.rank)))
        agreed(lambda: folder.commit(self.done, names) if cluster.rank == 0 else None)
        if self._charged is not None:
            self._charged.reached(self.done)

    def result(self, rows: np.ndarray | None = None, **provenance: object) -> Result:
        """Return rows, metrics and guarantees of a run that has come to its end; ``rows`` of all agents."""
        plan, guarantees, metrics = self.plan, self._guarantees, dict(self._scores)
        rows = self.rows if rows is None else rows
        if self._evaluate is not None or not self._history or self._history[-1]["step"] != self.done:
            metrics = plan.metrics(rows, self.data, self.random)
        provenance = {"noise": self.random.description if has_noise(plan) else NO_PRIVACY, **provenance}
        if self.done < plan.steps:
            provenance["stopped_at"] = self.done
        if self._charged is not None:
            self._charged.reached(plan.steps)
            provenance["lifetime_budget"] = self._charged.summary
        return Result(
            name=plan.name,
            config=dict(plan.describe()),
            outputs={"rows": rows, **plan.outputs(rows, self._state)},
            metrics=metrics,
            history=self._history,
            guarantees=[g.to_dict() for g in plan.guarantees()] if guarantees is None else guarantees,
            provenance=provenance_now(self._started, **provenance),
        )


def _facts(protocol: Protocol) -> dict[str, Any]:
    """Return what tells a protocol from others: its description and, where it has any, its first matrix."""
    facts = {"name": protocol.name, "n": protocol.n, "rounds": protocol.rounds, "std": protocol.fresh_std}
    return facts | ({"matrix": as_linear(protocol).matrix(0)} if protocol.linear and protocol.rounds else {})
