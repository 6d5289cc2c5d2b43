"""Plans of agents that release noisy gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, Unpack

import numpy as np

from sottovoce import _validate
from sottovoce.accounting.budget import AdversaryOptions
from sottovoce.accounting.calibration import calibrate
from sottovoce.accounting.guarantee import Adjacency
from sottovoce.accounting.observation import LocalOnly, ObservationModel
from sottovoce.accounting.release import MOVES, Release, compose
from sottovoce.algorithms.optimizers import Optimizer
from sottovoce.algorithms.options import (
    not_a_protocol,
    require_capabilities,
    require_dense,
    resolved_protocol,
)
from sottovoce.algorithms.plan import UNSPENT, Plan, noise_on_grid
from sottovoce.algorithms.schedule import CachedSchedule, Schedule, ScheduleArgument
from sottovoce.data.base import AgentRecords, as_agent_records
from sottovoce.errors import DataError, InvalidInput
from sottovoce.graphs import Network
from sottovoce.mechanisms.base import Announced, Mechanism
from sottovoce.mechanisms.gradient import GradientMechanism
from sottovoce.noise.grid import MaskGrid, mask_grid
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives.base import GradientQuery, Objective
from sottovoce.protocols import NamedProtocol, Protocol

GradientData = AgentRecords | GradientQuery  # the hosted agents' records, or for audits sums of one's own


@dataclass(frozen=True, repr=False)
class GradientPlan(Plan):
    """Gradient methods of several agents: what their plans share.

    Parameters
    ----------
    objective : the loss to minimize: a `GLM`, or a `NetObjective` (a torch module that treats samples
        separately).
    protocol : the averaging of every step: a protocol, one per step, a function of the step, a name such as
        ``"tree:kind=uniform"``, or a network, for the algorithm's own protocol on it.
    steps : T.
    learning_rate : a number, (first, last) falling geometrically, or a `Rate`.
    clip_norm : C, the l2 bound of one record's contribution (record level) or one agent's (user level); by
        default that of the objective.
    noise_multiplier : z, noise standard deviation over the clip norm, one for all agents or one each: z C on
        a clipped sum of records (record level) or on a clipped mean gradient (user level).
    adjacency : ``"add-remove"`` or ``"replace-one"`` of one record, or ``"user"``, all records of an agent.
    sizes : public number of records of each agent; needed at record level unless both batch size and rate are
        given.
    batch_size : expected batch size, the public divisor; None takes all records.
    sample_rate : Poisson rate of the batches; by default batch size over size.
    optimizer : applied to the noisy gradients, where the algorithm allows.
    network, seed : graph for protocols given by name, and the public seed of their draws.
    accounting : ``"pld"`` (tight) or ``"rdp"`` (as Bayrooti et al. 2023).
    """

    objective: Objective
    protocol: Any = None
    steps: int = 1
    learning_rate: Any = 0.1
    clip_norm: float | None = None
    noise_multiplier: float | tuple[float, ...] = 0.0
    adjacency: Adjacency = "add-remove"
    sizes: tuple[int, ...] | None = None
    batch_size: float | None = None
    sample_rate: float | None = None
    optimizer: Optimizer = field(default_factory=Optimizer)
    network: Any = None
    seed: int = 0
    accounting: Literal["pld", "rdp"] = "pld"

    uses_optimizer: ClassVar[bool] = True
    default_protocol: ClassVar[str] = "gossip:1"
    one_batch_per_step: ClassVar[bool] = False  # whether every agent samples once in every step
    proximal: ClassVar[bool] = False  # whether it applies the regularizer's proximal map

    # ---- options --------------------------------------------------------------------------------------

    @classmethod
    def _resolved(cls, options: dict[str, Any]) -> dict[str, Any]:
        objective = options["objective"]
        if not callable(getattr(objective, "query", None)):
            got = _validate.shown(objective)
            raise InvalidInput(f"objective must be a model, as GLM(...) or NetObjective(...), got {got}.")
        clip_norm = objective.clip_norm if options["clip_norm"] is None else options["clip_norm"]
        if clip_norm is None:
            raise InvalidInput(f"{cls.name} needs clip_norm=..., the l2 bound of one contribution.")
        return cls._with_protocol(super()._resolved({**options, "clip_norm": clip_norm}))

    @classmethod
    def _with_protocol(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options with a protocol and a network in place of their names."""
        value = cls.default_protocol if options["protocol"] is None else options["protocol"]
        protocol, network = resolved_protocol(value, options["network"], cls.name, cls.protocols)
        if isinstance(protocol, Network):  # the algorithm's own protocol on it
            protocol, network = resolved_protocol(cls.default_protocol, protocol, cls.name, cls.protocols)
        if callable(protocol) and not isinstance(protocol, (Protocol, CachedSchedule)):
            protocol = CachedSchedule(protocol)
        elif not isinstance(protocol, (Protocol, NamedProtocol, CachedSchedule, Sequence)):
            raise not_a_protocol(protocol)
        if isinstance(protocol, Sequence) and len(protocol) != options["steps"]:
            raise InvalidInput(f"The schedule holds {len(protocol)} protocols for {options['steps']} steps.")
        return {**options, "protocol": protocol, "network": network}

    def __post_init__(self) -> None:
        if not self.uses_optimizer and not self.optimizer.is_plain_sgd:
            raise InvalidInput(f"{self.name} is stated for plain steps; leave optimizer at sgd.")
        self._check_schedule()
        self._check_sampling()
        z = self.noise_multiplier
        if isinstance(z, tuple) and len(z) != self.n:
            raise InvalidInput(f"expected one noise multiplier per agent ({self.n}), got {len(z)}.")
        r = self.objective.regularizer
        if any((r.l1, r.box, r.ball)) and not self.proximal:
            raise InvalidInput(f"{self.name} takes l2 only; use ADMM for l1, box or ball.")

    def _check_schedule(self) -> None:
        first = self._accepted(self.schedule.ungridded(0))
        if self.network is not None and first.n != self.network.n:
            raise InvalidInput(f"the protocol is for {first.n} nodes, the network has {self.network.n}.")
        self._check_sizes(first.n)

    def _check_sizes(self, n: int) -> None:
        if self.sizes is not None and len(self.sizes) != n:
            agents = len(self.sizes)
            raise InvalidInput(f"the network has {n} nodes, but sizes are given for {agents} agents.")

    def _check_sampling(self) -> None:
        for agent, size in enumerate(self.sizes or ()):
            if self.sample_rate is None and size < (self.batch_size or 0):
                raise DataError(
                    f"agent {agent} holds {size} records, fewer than batch_size {self.batch_size:g}; take at "
                    f"most {min(self.sizes or ())}, or None for all records."
                )
        unknown = self.sizes is None and (self.batch_size is None or self.sample_rate is None)
        if unknown and self.adjacency != "user":
            raise InvalidInput(
                "at record level the divisor is public: give sizes=... (records of each agent), or both "
                "batch_size and sample_rate."
            )

    def _accepted(self, protocol: Protocol) -> Protocol:
        """Refuse a protocol that the algorithm cannot use."""
        return require_capabilities(protocol, self.name, self.needs)

    # ---- facts ----------------------------------------------------------------------------------------

    @property
    def n(self) -> int:
        return len(self.sizes) if self.sizes is not None else self.schedule.ungridded(0).n

    @property
    def observation(self) -> ObservationModel:
        return LocalOnly()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What `Plan.assumptions` says, where numbers of records set divisors and rates; else nothing."""
        return () if self.sizes is None else super().assumptions

    @property
    def width(self) -> int:
        return n_params(self.objective)

    @property
    def _bytes_per_number(self) -> int:  # type: ignore[override]
        return int(self.objective.bytes_per_number)

    @cached_property
    def schedule(self) -> Schedule:
        return self._schedule(self.protocol)

    def _schedule(
        self, protocol: ScheduleArgument, row_noise: Callable[[int], float] | None = None
    ) -> Schedule:
        options = {"network": self.network, "seed": self.seed, "row_noise": row_noise}
        return Schedule(protocol, self.steps, **options, accept=self._accepted, grid=self._read_grid)

    @property
    def grid(self) -> MaskGrid | None:
        return self._grid if self.schedule.ungridded(0).masked and any(self._noise_multipliers) else None

    @cached_property
    def _grid(self) -> MaskGrid:
        releases = [self.releases(agent)[0] for agent in range(self.n)]
        sensitivity, stds = min(r.sensitivity for r in releases), [r.noise_std for r in releases]
        bound, size = self._largest_row(), {"dim": self.width, "steps": self.steps}
        return mask_grid(bound=bound, sensitivity=sensitivity, noise_std=stds, **size)

    def _largest_row(self) -> float:
        """Return the public bound of a clean coordinate: the clip norm times the records of a large batch.

        A batch larger than this is clamped, which costs accuracy and no privacy.
        """
        clip_norm = float(self.clip_norm or 1.0)
        if self.adjacency == "user":
            return clip_norm
        divisors = self._public_divisors
        if self.sizes is None:
            return clip_norm * 16
        rates = zip(self.sizes, self._sample_rates, strict=True)
        most = [size if rate == 1 else min(size, 4 * rate * size + 16) for size, rate in rates]
        return clip_norm * max(m / d for m, d in zip(most, divisors, strict=True))

    @property
    def _noise_multipliers(self) -> tuple[float, ...]:
        """The noise multiplier z of every agent."""
        z = self.noise_multiplier
        return z if isinstance(z, tuple) else (z,) * self.n

    @property
    def _sample_rates(self) -> tuple[float, ...]:
        """Probability with which a record of each agent enters a batch."""
        if self.sample_rate is not None:
            return (self.sample_rate,) * self.n
        if self.batch_size is None or self.sizes is None:
            return (1.0,) * self.n
        return tuple(self.batch_size / size for size in self.sizes)

    def _records(self) -> float | None:
        if self.sizes is None and self.batch_size and self.sample_rate:  # what batches and rate say
            return self.n * self.batch_size / self.sample_rate
        return super()._records()

    def _divisors(self, sizes: Sequence[int]) -> list[float]:
        """Return the divisor of every agent that holds ``sizes`` records: public at record level."""
        if self.batch_size is not None:
            return [float(self.batch_size)] * len(sizes)
        rate = 1.0 if self.sample_rate is None else self.sample_rate
        return [rate * float(size) for size in sizes]

    @cached_property
    def _public_divisors(self) -> tuple[float, ...]:
        """What divides the clipped sum (and its noise) of each agent before it leaves; 1 at user level."""
        if self.adjacency == "user":
            return (1.0,) * self.n
        return tuple(self._divisors(self.sizes if self.sizes is not None else [1] * self.n))

    def _draws_per_step(self) -> int:
        return 1

    def releases(self, agent: int) -> Sequence[Release]:
        """Return the noisy gradients of one agent, in the unit of the row that leaves."""
        C = self.clip_norm if math.isfinite(self.clip_norm or math.inf) else 1.0
        assert C is not None
        divisor, adjacency = self._public_divisors[agent], self.adjacency
        sensitivity = MOVES[adjacency] * C / divisor
        noise_std = self._noise_multipliers[agent] * C / divisor
        rate = 1.0 if adjacency == "user" else self._sample_rates[agent]
        scale = (sensitivity, noise_std, adjacency, rate)
        return (Release(agent, 0, *scale, steps=self.steps, count=self._draws_per_step()),)

    # ---- running and calibration ----------------------------------------------------------------------

    def mechanism(self, data: GradientData, agents: Sequence[int], random: RunRandomness) -> Mechanism:
        """Return the mechanism that reads the hosted agents' records; audits pass a query instead."""
        query = self.objective.query(data) if isinstance(data, AgentRecords) else data
        hosted = [int(a) for a in agents]
        public = [self._public_divisors[a] for a in hosted]
        # at user level the divisor is inside the clip, so it may be the member's own number of records
        divisors = self._divisors(data.sizes.tolist()) if self.adjacency == "user" else public
        return self._mechanism(
            GradientMechanism,
            hosted,
            noise_on_grid(self, random, hosted, public),
            query=query,
            noise_multipliers=[self._noise_multipliers[a] for a in hosted],
            sample_rates=[self._sample_rates[a] for a in hosted],
            divisors=divisors,
        )

    def _announced(self, agents: Sequence[int]) -> Announced | None:
        return super()._announced(agents) if math.isfinite(self.clip_norm or math.inf) else None

    def prepared(self, data: object) -> Any:
        """Return the agents' records, refused unless agents and records are those of the plan."""
        records = as_agent_records(data)
        if records.n != self.n:
            raise InvalidInput(f"The plan is for {self.n} nodes, the data have {records.n} users.")
        if self.sizes is not None and records.sizes.tolist() != list(self.sizes):
            raise DataError(
                f"the plan was made for agents with {list(self.sizes)} records, the data have "
                f"{records.sizes.tolist()}; make the plan for these data."
            )
        require_dense(records, self.name)
        return self.objective.prepared(records)

    def starting(self, data: AgentRecords, random: RunRandomness, agents: Sequence[int]) -> np.ndarray:
        rng = np.random.default_rng(random.start_seed)
        dim = self.objective.query(data).dim
        return np.asarray(self.objective.initial_rows(rng, len(list(agents)), dim))

    def metrics(self, rows: np.ndarray, data: AgentRecords, random: RunRandomness) -> dict[str, Any]:
        spread = {"disagreement": float(np.mean(np.square(rows - rows.mean(axis=0))))}
        return spread | dict(self.objective.metrics(rows, data))

    def rate(self, k: int) -> float:
        """Return the learning rate of step ``k``."""
        return float(self.learning_rate(k, self.steps))

    def calibrated_to(self, epsilon: float, delta: float, **adversary: Unpack[AdversaryOptions]) -> Self:
        """Return this plan with the least noise that meets a budget.

        Under the local view, named as such, every agent gets the least noise that meets the budget for it:
        agents with more records and the same batch size need less. Otherwise all get the same noise.
        """
        each_its_own = adversary.get("view") == "local" and adversary.get("user") is None
        if not each_its_own or epsilon == math.inf or self.noise_allocation != "equal":
            return super().calibrated_to(epsilon, delta, **adversary)
        least: dict[tuple[float, int], float] = {}  # agents of the same rate and draws need the same noise
        keys = []
        for agent in range(self.n):
            draws = sum(release.draws for release in self.releases(agent))
            keys.append((self._sample_rates[agent], draws))
            if draws and keys[-1] not in least:
                least[keys[-1]] = calibrate(self._local_curve(agent), epsilon, delta, tolerance=UNSPENT)
        each = [least.get(key, 0.0) for key in keys]
        largest = max(each)  # an agent without releases needs no noise, but all agents of a plan have some
        return self.with_noise(tuple(z or largest for z in each))

    def _local_curve(self, agent: int) -> Callable[[float], Any]:
        return lambda z: compose(self.with_noise(z).releases(agent), method=self.accounting)


def n_params(objective: Objective) -> int:
    """Return the number of parameters, which some objectives know only from the data."""
    if objective.n_params is None:
        raise InvalidInput("the number of parameters is not known without data; GLM(..., dim=...) states it.")
    return int(objective.n_params)


def noise_multipliers(plan: GradientPlan) -> tuple[float, ...]:
    """Return the noise multiplier of every agent: the plan's own, or as its noise is divided among them."""
    return plan._noise_multipliers
