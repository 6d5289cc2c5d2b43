"""What every plan for networks shares: per-agent noise, record-level price, the loop, the checkpoint.

A subclass says how many noisy gradients a step takes, which protocol a step uses, and gives the three
functions of its algorithm. All messages are functions of noisy gradients, other agents' messages and
public constants, so agent ``i`` pays for its noisy gradients and for nothing else (B23, section 5):

.. math:: \\varepsilon_i = \\mathrm{SGM}(q_i, z_i)\\ \\text{composed over its noisy gradients}
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from sottovoce import _validate
from sottovoce.algorithms.checkpoint import Checkpoint, fingerprint
from sottovoce.algorithms.plan import Plan, View, known_view
from sottovoce.algorithms.schedules import Optimiser, Rate
from sottovoce.errors import BudgetInfeasible, ConfigError, DataError, InvalidInput
from sottovoce.graphs import Network
from sottovoce.objectives.lots import AgentData, Lots, NoisyGradients
from sottovoce.objectives.nets import NetObjective
from sottovoce.privacy import Adversary, Curve, Guarantee
from sottovoce.privacy.guarantees import EMPTY_PLACE
from sottovoce.privacy.noise import NoiseSource, as_noise
from sottovoce.protocols import Protocol
from sottovoce.runners import Algorithm, Result, run_stacked
from sottovoce.runners.base import provenance_now

__all__ = ["DeepPlan", "noise_multiplier_for"]

Level = Literal["add-remove", "replace-one", "user"]


@dataclass(frozen=True, repr=False)
class DeepPlan(Plan):
    """Learning one network on the records of several agents; see the subclasses.

    Parameters
    ----------
    objective : network, loss and ``max_grad_norm``.
    sizes : number of records of each agent (public).
    steps : number of steps K.
    lot : expected lot size L, the same for every agent; None takes all records in every step.
    noise_multiplier : z, one for all agents or one each; 0 is the non-private limit.
    learning_rate : a number, (first, last) falling geometrically, or a `Rate`.
    optimiser : applied by each agent to its noisy gradients, where the algorithm allows.
    adjacency : ``"add-remove"`` or ``"replace-one"`` of one record, or ``"user"``: all records of an agent.
    accounting : ``"pld"`` (tight) or ``"rdp"`` (as B23).

    Examples
    --------
    >>> import torch, sottovoce as sv
    >>> objective = NetObjective(torch.nn.Linear(4, 2), max_grad_norm=1.0)
    >>> plan = sv.algorithms.DeepSGD.for_budget(
    ...     objective, sizes=[1000], lot=100, steps=50, epsilon=1.0, delta=1e-5
    ... )
    >>> plan.get_epsilon(1e-5) <= 1.0
    True
    """

    objective: NetObjective
    sizes: tuple[int, ...]
    steps: int
    lot: int | None = None
    noise_multiplier: tuple[float, ...] = (0.0,)
    learning_rate: Rate = field(default_factory=lambda: Rate(0.1))
    optimiser: Optimiser = field(default_factory=Optimiser)
    adjacency: Level = "add-remove"
    accounting: Literal["pld", "rdp"] = "pld"
    name: str = field(default="deep", init=False)

    uses_optimiser: ClassVar[bool] = True

    def __post_init__(self) -> None:
        sizes = tuple(_validate.count(int(size), "an agent's number of records") for size in self.sizes)
        _validate.count(self.steps, "steps")
        if self.adjacency not in ("add-remove", "replace-one", "user"):
            raise InvalidInput(f"adjacency must be add-remove, replace-one or user, got {self.adjacency!r}.")
        if self.lot is not None:
            _validate.count(self.lot, "lot")
            short = next((i for i, size in enumerate(sizes) if size < self.lot), None)
            if short is not None:
                raise DataError(
                    f"agent {short} holds {sizes[short]} records, fewer than the lot of {self.lot}; take a "
                    f"lot of at most {min(sizes)}, or lot=None for all records."
                )
        given: Any = self.noise_multiplier
        z = given if isinstance(given, Sequence) else (given,)
        z = tuple(_validate.non_negative(float(value), "noise_multiplier") for value in z)
        z = z * len(sizes) if len(z) == 1 else z
        if len(z) != len(sizes):
            raise InvalidInput(f"expected one noise multiplier per agent ({len(sizes)}), got {len(z)}.")
        if any(z) and not all(z):
            raise InvalidInput(f"agent {z.index(0.0)} has no noise while others do; give every agent some.")
        if not self.uses_optimiser and self.optimiser.kind != "sgd":
            raise InvalidInput(f"{self.name} is stated for plain steps; leave optimiser at sgd.")
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "noise_multiplier", z)
        object.__setattr__(self, "learning_rate", Rate.of(self.learning_rate))

    # ---- what it costs -----------------------------------------------------------------------------

    @property
    def n(self) -> int:
        """Number of agents."""
        return len(self.sizes)

    @property
    def max_grad_norm(self) -> float:
        """C, the norm every record's gradient is clipped to."""
        return self.objective.max_grad_norm

    @property
    def sample_rates(self) -> tuple[float, ...]:
        """Probability with which a record of each agent enters a lot."""
        return tuple(1.0 if self.lot is None else self.lot / size for size in self.sizes)

    @property
    def gradients_per_step(self) -> int:
        """Noisy gradients an agent takes in one step."""
        return 1

    def releases(self, agent: int, steps: int | None = None) -> int:
        """Return how many noisy gradients this agent takes in the first ``steps`` steps, or in all."""
        return (self.steps if steps is None else steps) * self.gradients_per_step

    def privacy(
        self,
        view: View = "local",
        *,
        observer: int | None = None,
        user: int | None = None,
        colluders: Iterable[int] = (),
    ) -> Guarantee:
        """Return the guarantee of agent ``user`` (by default the agent that loses most)."""
        known_view(view)
        local = self._local(None if user is None else _validate.nodes(user, self.n, "user")[0])
        if view in ("local", "central"):
            return local if view == "local" else local.against(Adversary("central"))
        observers = sorted({*([] if observer is None else [observer]), *colluders})
        return self._seen_by(view, observers, user, local)

    def _seen_by(self, view: View, observers: list[int], user: int | None, local: Guarantee) -> Guarantee:
        """Any observer sees at most all messages; only exact consensus says more."""
        if view == "pairwise" and (not observers or user is None):
            raise InvalidInput("the pairwise view needs observer=... and user=....")
        if view == "colluders" and not observers:
            raise InvalidInput("the colluders view needs colluders=[...], got none.")
        return local.against(Adversary(view, observers, user))

    def _local(self, agent: int | None) -> Guarantee:
        sampled = self.adjacency != "user" and self.lot is not None
        assumptions = self.assumed
        if sampled:
            assumptions += ("Poisson sampling: every record enters every lot independently",)
        return Guarantee(Adversary("local"), self.adjacency, "ldp", self._curve(agent), assumptions)

    @property
    def assumed(self) -> tuple[str, ...]:
        """What every statement of this plan rests on: lots and divisors follow the numbers of records."""
        removed = self.adjacency == "add-remove"
        return (EMPTY_PLACE if removed else "the number of records of each agent is public",)

    def _curve(self, agent: int | None, steps: int | None = None) -> Curve:
        """The loss of one agent, or of whichever agent loses most at the delta asked for."""
        if agent is not None:
            return self.curve(agent, steps=steps)
        return Curve.worst(self.curve(i, steps=steps) for i in range(self.n))

    def curve(self, agent: int, noise_multiplier: float | None = None, steps: int | None = None) -> Curve:
        """Return the loss of one agent after ``steps`` (all of them by default)."""
        z = self.noise_multiplier[agent] if noise_multiplier is None else noise_multiplier
        count = self.releases(agent, steps)
        if z == 0:
            return Curve.gaussian(float("inf")) if count else Curve.none()
        if self.adjacency == "user":
            return Curve.gaussian(2 / z, count)
        return Curve.sampled_gaussian(
            self.sample_rates[agent], z, count, adjacency=self.adjacency, method=self.accounting
        )

    def get_epsilon(self, delta: float, *, agent: int | None = None, steps: int | None = None) -> float:
        """Return epsilon of one agent (the worst by default), after all steps or after some."""
        which = None if agent is None else _validate.nodes(agent, self.n, "agent")[0]
        return self._curve(which, steps).epsilon(delta)

    @classmethod
    def for_budget(
        cls,
        objective: NetObjective,
        *args: Any,
        epsilon: float,
        delta: float,
        **options: Any,
    ) -> Self:
        """Return the plan in which every agent has the least noise that meets (epsilon, delta) for it.

        The noise is found by bisection on the same `curve` that `get_epsilon` reads, and is never below the
        target: epsilon of every agent is at most ``epsilon``.
        """
        options["noise_multiplier"] = (1.0,)
        start = cls(objective, *args, **options)
        _validate.positive(epsilon, "epsilon")
        found: dict[tuple[float, int], float] = {}
        for i in range(start.n):
            key = (start.sample_rates[i], start.releases(i))
            if key not in found and key[1]:
                found[key] = start._least_noise(i, epsilon, delta)
        z = [found.get((start.sample_rates[i], start.releases(i)), 0.0) for i in range(start.n)]
        largest = max(z)  # an agent that releases nothing needs no noise, but a plan has one kind of agents
        return replace(start, noise_multiplier=tuple(value or largest for value in z))

    def _least_noise(self, agent: int, epsilon: float, delta: float) -> float:
        return noise_multiplier_for(lambda z: self.curve(agent, z).epsilon(delta), epsilon, self.steps)

    def cost(self) -> Mapping[str, Any]:
        """Return rounds, rows sent and bytes over the whole run."""
        protocol = self.schedule()
        each = [protocol(k) for k in range(self.steps)] if callable(protocol) else [protocol] * self.steps
        messages = sum(p.messages for p in each)
        row = self.row_length * 4
        return {
            "rounds": sum(p.rounds for p in each),
            "messages": messages,
            "messages_per_node": messages / self.n,
            "bytes": messages * row,
        }

    @property
    def row_length(self) -> int:
        """Numbers in one message."""
        return self.objective.n_params

    def describe(self) -> Mapping[str, Any]:
        """Return the plan as plain values."""
        skip = ("objective", "name", "network", "sizes", "noise_multiplier")
        plain: dict[str, Any] = {"algorithm": self.name, "n": self.n, "sizes": list(self.sizes)}
        plain["noise_multiplier"] = [round(z, 6) for z in self.noise_multiplier]
        plain |= {"n_params": self.objective.n_params, "max_grad_norm": self.max_grad_norm}
        for item in fields(self):
            if item.name not in skip:
                value = getattr(self, item.name)
                plain[item.name] = vars(value) if isinstance(value, (Rate, Optimiser)) else value
        network = getattr(self, "network", None)
        if isinstance(network, Network):
            plain["network"] = network.name
            plain["edges"] = network.edges.tolist() if network.n <= 64 else len(network.edges)
        return plain

    # ---- how it runs -------------------------------------------------------------------------------

    def schedule(self) -> Protocol | Callable[[int], Protocol]:
        """Return the protocol of every step, or a function of the step."""
        raise AssertionError("each plan has its own")

    def algorithm(self, gradients: NoisyGradients, theta: np.ndarray) -> Algorithm:
        """Return the three functions for the agents ``gradients`` hosts, from the rows ``theta``."""
        raise AssertionError("each plan has its own")

    def divisors(self) -> list[float]:
        """Return the public L of every agent."""
        return [float(size if self.lot is None else self.lot) for size in self.sizes]

    def hosted(
        self,
        data: AgentData,
        noise: NoiseSource | None,
        lots_seed: int,
        theta: np.ndarray,
        agents: Sequence[int] | None = None,
    ) -> Algorithm:
        """Return the algorithm for some of the agents, as a cluster rank or a peer hosts it."""
        lots = Lots(self.sizes, self.sample_rates, lots_seed)
        gradients = NoisyGradients(
            self.objective, data, lots, noise, self.noise_multiplier, self.divisors(),
            agents=agents, adjacency=self.adjacency,
        )  # fmt: skip
        return self.algorithm(gradients, theta)

    def run(
        self,
        data: AgentData,
        rng: Any,
        *,
        progress: bool = False,
        start: np.ndarray | None = None,
        evaluate_every: int = 0,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 0,
        resume: bool = False,
        on_step: Callable[[int, Mapping[str, Any]], None] | None = None,
    ) -> Result:
        """Train in this process and return the parameters, the test accuracy and the guarantees.

        Parameters
        ----------
        data : the agents' records; sizes must be those of the plan.
        rng : a numpy Generator (a simulation) or a noise source.
        start : (n_params,) public starting point; by default drawn from ``rng``.
        evaluate_every : evaluate on the public test set every so many steps; 0: only at the end.
        checkpoint, checkpoint_every : file to write, and how often; a checkpoint is whole or absent.
        resume : go on from ``checkpoint`` if it is there; it must be of this plan.
        on_step : called with (step, what was recorded) after each evaluation.
        """
        started = time.perf_counter()
        if data.sizes.tolist() != list(self.sizes):
            raise DataError(
                f"the plan was made for agents with {list(self.sizes)} records, the data have "
                f"{data.sizes.tolist()}; make the plan for these data."
            )
        kept = Checkpoint(checkpoint, fingerprint(self.describe())) if checkpoint else None
        seeds, noise = _seeds(rng)
        done, arrays = 0, None
        if resume and kept is None:
            raise ConfigError("resume needs checkpoint=..., the file to go on from.")
        if resume and kept is not None and kept.exists():
            done, stored, arrays = kept.read()
            if stored and not noise.protective:
                seeds, noise = stored, as_noise(stored[2])
        theta = self._start(seeds[0], start)
        algorithm = self.hosted(data, noise if any(self.noise_multiplier) else None, seeds[1], theta)
        state = algorithm.init() if arrays is None else Checkpoint.fill(algorithm.init(), arrays)
        history: list[dict[str, Any]] = []
        with _bar(progress, self.name, self.steps, done) as tell:

            def after(k: int, current: Any) -> None:
                last = k + 1 == self.steps
                if evaluate_every and ((k + 1) % evaluate_every == 0 or last):
                    entry = {"step": k + 1, **self.evaluate(algorithm.output(current), data)}
                    history.append(entry)
                    if on_step is not None:
                        on_step(k + 1, entry)
                tell(k + 1, history[-1] if history else {})
                if kept is not None and checkpoint_every and ((k + 1) % checkpoint_every == 0 or last):
                    kept.write(k + 1, None if noise.protective else seeds, current)

            state = run_stacked(
                algorithm, self.schedule(), self.steps, state=state, start=done, noise=noise, after_step=after
            )
        rows = algorithm.output(state)
        kind = "protective" if noise.protective else "simulation: reproducible, not protective"
        return Result(
            name=self.name,
            config=dict(self.describe()),
            outputs={"rows": rows},
            metrics=self.evaluate(rows, data),
            history=history,
            guarantees=[g.to_dict() for g in self.guarantees()],
            provenance=provenance_now(started, noise=kind),
        )

    def evaluate(self, rows: np.ndarray, data: AgentData) -> dict[str, Any]:
        """Return mean and spread of the agents' accuracy on the public test set, and their disagreement."""
        record: dict[str, Any] = {"disagreement": float(np.mean(np.square(rows - rows.mean(axis=0))))}
        if data.test is None:
            return record
        same = bool((rows == rows[0]).all())
        accuracy = 100 * self.objective.accuracy(rows[:1] if same else rows, *data.test)
        record |= {"accuracy": float(accuracy.mean()), "accuracy_least": float(accuracy.min())}
        return record

    def _start(self, seed: int, start: np.ndarray | None) -> np.ndarray:
        if start is None:
            return self.objective.initial(np.random.default_rng(seed), self.n)
        row = np.asarray(start, np.float32)
        if row.shape != (self.objective.n_params,):
            raise InvalidInput(f"start must have shape ({self.objective.n_params},), got {row.shape}.")
        return np.repeat(row[None], self.n, axis=0)


def noise_multiplier_for(epsilon_of: Callable[[float], float], target: float, steps: int) -> float:
    """Return a z with ``epsilon_of(z)`` at most ``target`` and at least 99.9 % of it.

    Epsilon is nearly a power of z, so false position on logarithms needs a handful of evaluations, each
    of which may be a numerical composition.

    Examples
    --------
    >>> from sottovoce.privacy import Curve
    >>> z = noise_multiplier_for(lambda z: Curve.gaussian(1 / z, 10).epsilon(1e-5), 1.0, 10)
    >>> 0.999 <= Curve.gaussian(1 / z, 10).epsilon(1e-5) <= 1.0
    True
    """

    def excess(z: float) -> float:
        return math.log(max(epsilon_of(z), 1e-300) / target)

    low, high = 1.0, 1.0
    above = below = excess(1.0)
    while below > 0:
        low, above, high = high, below, 4 * high
        if high > 1e5:
            raise BudgetInfeasible(
                f"no noise multiplier up to 1e5 meets epsilon {target:g} in {steps} steps; allow a larger "
                "epsilon or delta, or take fewer steps."
            )
        below = excess(high)
    while above <= 0 and low > 1e-3:
        high, below, low = low, above, low / 2
        above = excess(low)
    aim = -5e-4  # a little below the target, so that the answer is never above it
    for _ in range(60):
        if -1e-3 <= below <= 0 or above <= 0:
            break
        share = 0.5 if not math.isfinite(above) else min(max((above - aim) / (above - below), 0.05), 0.95)
        middle = low * (high / low) ** share
        found = excess(middle)
        if found <= 0:
            high, below = middle, found
        else:
            low, above = middle, found
    return high


def _seeds(rng: Any) -> tuple[list[int], NoiseSource]:
    """Seeds of start, lots and noise; those of a protective run come from the operating system."""
    if isinstance(rng, np.random.Generator):
        seeds = [int(value) for value in rng.integers(2**62, size=3)]
        return seeds, as_noise(seeds[2])
    noise = as_noise(rng)
    entropy = np.random.SeedSequence().generate_state(3, np.uint64) >> np.uint64(2)
    return [int(value) for value in entropy], noise


class _bar:
    """A progress bar that also shows the last accuracy, or nothing at all."""

    def __init__(self, wanted: bool, name: str, steps: int, done: int) -> None:
        self.wanted, self.name, self.steps, self.done = wanted, name, steps, done

    def __enter__(self) -> Callable[[int, Mapping[str, Any]], None]:
        if not self.wanted:
            return lambda step, entry: None
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[seen]}"),
        )  # fmt: skip
        self.progress.start()
        task = self.progress.add_task(self.name, total=self.steps, completed=self.done, seen="")

        def tell(step: int, entry: Mapping[str, Any]) -> None:
            seen = f"accuracy {entry['accuracy']:.2f}" if "accuracy" in entry else ""
            self.progress.update(task, completed=step, seen=seen)

        return tell

    def __exit__(self, *problem: Any) -> None:
        if self.wanted:
            self.progress.stop()
