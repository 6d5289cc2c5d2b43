"""A plan knows its own price: the object that runs is the object that is accounted.

A plan is six facts and a width: `steps`; ``schedule(k)``, the protocol of step k, a pure function of a public
seed; ``algorithm(source, start)``, the text for the agents hosted here; ``source(data, agents, random)``,
the gate before their records; ``releases(agent)``, every noisy value an agent will publish;
`observation`, the model of what an adversary observes of them; and `width`, the numbers in a row. Everything
else reads these: the runners, the ranks of a cluster, a peer, the accountant, the ledger, the command line.

Three classes stand here, and together: `Plan` (what follows from the facts), `CentralPlan` (one holder of all
records) and `GradientPlan` (agents, sizes, lots and clips: the options of every gradient plan). The last two
are the first with its facts filled in, and DP-SGD is both; apart they would be one module in three files.
"""

from __future__ import annotations

import contextlib
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np

from sottovoce import _validate, protocols
from sottovoce._hooks import NotebookDisplay
from sottovoce.accounting.accountant import View, account
from sottovoce.accounting.calibration import calibrate
from sottovoce.accounting.guarantee import EMPTY_PLACE, Guarantee, Label
from sottovoce.accounting.observation import Curator, LocalOnly, ObservationModel
from sottovoce.accounting.release import MOVES, Release, compose
from sottovoce.algorithms.optimizers import Optimizer, Rate
from sottovoce.data.base import Shards, as_agent_records, is_sparse
from sottovoce.errors import DataError, InvalidInput, SottovoceError
from sottovoce.graphs import Network, as_network
from sottovoce.noise.grid import GridNoise, MaskGrid, SummedNoise, mask_grid
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import grid_of
from sottovoce.protocols import HypercubeExchange, NamedProtocol, Protocol
from sottovoce.runners import Algorithm, Result
from sottovoce.runners.run import run

__all__ = [
    "Adjacency",
    "CentralPlan",
    "GradientPlan",
    "Plan",
    "Schedule",
    "View",
    "as_network",
    "as_network_argument",
    "check_adjacency",
    "check_noise",
    "check_protocol",
]  # fmt: skip

Adjacency = Literal["add-remove", "replace-one", "user"]
Schedule = Protocol | Sequence[Protocol] | Callable[[int], Protocol]
UNSPENT = 1e-3  # share of a budget that a search for noise may leave: a price may be a long composition


class Plan(NotebookDisplay, ABC):
    """An algorithm with its protocol, noise and steps fixed, ready to be priced and run.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> plan = sv.PrivateAveraging(sv.graphs.hypercube(4), noise_std=2.0, radius=0.5)
    >>> plan.privacy("local").label, plan.cost()["messages"]
    ('ldp', 320)
    """

    # ---- declared capabilities, checked once and read by files, agreements and the registry --------------

    name: ClassVar[str]
    protocols: ClassVar[tuple[str, ...]] = ()  # names of the protocols it runs over; () takes none
    adjacencies: ClassVar[tuple[str, ...]] = ("add-remove", "replace-one", "user")
    query: ClassVar[str] = "gradient"  # what it asks of records
    maskable: ClassVar[bool] = False  # whether its message is a release, untouched
    network_optional: ClassVar[bool] = False  # whether it runs over a server where no network is named
    sequential: ClassVar[bool] = False  # whether one agent works at a time, so that ranks would only wait
    noise_field: ClassVar[str] = "noise_multiplier"

    steps: int
    adjacency: Adjacency
    accounting: str = "pld"
    sizes: tuple[int, ...] | None = None  # public numbers of records, where a plan was made for some
    center: Any = 0.0  # the public middle of the rows that travel

    def __init_subclass__(cls, **options: Any) -> None:
        """Have the kind of every option looked at before a plan's own `__post_init__`, once for all plans."""
        super().__init_subclass__(**options)
        own = cls.__dict__.get("__post_init__")
        if own is None:
            return

        @functools.wraps(own)
        def checked(self: Any) -> None:
            check_option_types(self)
            own(self)

        cls.__post_init__ = checked  # type: ignore[attr-defined]

    # ---- the six facts ----------------------------------------

    @property
    @abstractmethod
    def n(self) -> int:
        """Number of agents."""

    @property
    @abstractmethod
    def observation(self) -> ObservationModel:
        """Which mathematics says what an observer learns."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Numbers in one row that travels."""

    @abstractmethod
    def schedule(self, k: int) -> Protocol:
        """Return the protocol of step ``k``; asked twice it is the same."""

    def schedule_in_order(self) -> Callable[[int], Protocol]:
        """Return `schedule` for a run, which asks for its steps in order and does not come back."""
        return self.schedule

    @property
    def is_stationary(self) -> bool:
        """Whether every step has the rounds and the partners of the first, so that one look tells all."""
        return bool(self.steps == 1)

    @abstractmethod
    def algorithm(self, source: Any, start: np.ndarray) -> Algorithm:
        """Return the text for the agents that ``source`` hosts, from the rows ``start``."""

    @abstractmethod
    def source(self, data: Any, agents: Sequence[int], random: RunRandomness) -> Any:
        """Return the gate before the records ``data`` of the hosted ``agents``, in their order."""

    @abstractmethod
    def releases(self, agent: int) -> Sequence[Release]:
        """Return every noisy value this agent will publish, run-length coded, in order."""

    # ---- what runners ask besides ----------------------------------------

    def prepared(self, data: Any) -> Any:
        """Return the data of all agents checked against the plan, or raise one sentence."""
        return data

    def starting(self, data: Any, random: RunRandomness, agents: Sequence[int]) -> np.ndarray:
        """Return the public starting rows of the hosted agents."""
        raise AssertionError("plans that need a start say so")

    def metrics(self, rows: np.ndarray, data: Any, random: RunRandomness) -> dict[str, Any]:
        """Return numbers about the final rows that may be published."""
        return {}

    def outputs(self, rows: np.ndarray, state: Any) -> dict[str, np.ndarray]:
        """Return the arrays of a result besides the rows."""
        return {"coef": rows.mean(axis=0)}

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What every statement of this plan rests on."""
        return ()

    @property
    def estimand(self) -> str | None:
        """What sites of different sizes learn together, in words; None where a plan does not say."""
        return None

    def noise_in_result(self) -> float | None:
        """Return the noise in the worst agent's result, where a plan knows it without running."""
        return None

    @property
    def grid(self) -> MaskGrid | None:
        """The common integer grid of a masked plan with noise, the same at every member; None without one.

        A plan that no grid fits raises one sentence.
        """
        return None

    def on_grid(self, random: RunRandomness, agents: Sequence[int], units: Sequence[float]) -> RunRandomness:
        """Return ``random`` with its protective noise drawn on the plan's common grid, if it has one.

        ``units`` are the public divisors that the hosted agents' gates apply after the noise.
        """
        if isinstance(random.noise, SummedNoise):
            self._demand_one_sum(len(units), units)
        if not random.protective and not grid_of(random.noise, 1.0):  # rounded with the rows, later
            return random
        grid = self.grid
        if grid is None:
            return random
        places = zip(agents, units, strict=True)
        hosted = dict(zip(random.keys_for(agents), ((int(a), float(u)) for a, u in places), strict=True))
        return replace(random, noise=GridNoise(random.noise, grid, hosted))

    def _demand_one_sum(self, hosted: int, units: Sequence[float]) -> None:
        """Refuse noise of the sum where single rows are seen, or where rows are weighted."""
        if not self.schedule(0).masked or hosted != self.n or len(set(units)) > 1:
            raise InvalidInput(
                f"noise of the sum alone is for masked sums of all {self.n} rows with one divisor; give a "
                'generator, or protocol="masked" in one process with weighting="records".'
            )

    # ---- what it costs ----------------------------------------

    def privacy(
        self,
        view: View | None = None,
        *,
        observer: int | None = None,
        user: int | None = None,
        colluders: int | Iterable[int] = (),
        label: Label | None = None,
    ) -> Guarantee:
        """Return the guarantee against one kind of adversary, before anything runs.

        Parameters
        ----------
        view : ``"local"`` (own noise only, whatever all others do), ``"outsider"`` (taps every link, holds no
            key), ``"network"`` (the worst member, or ``observer``), ``"pairwise"`` (``observer`` about
            ``user``), ``"colluders"`` (named members, or any so many) or ``"central"`` (the released result
            only). None: the default of the plan, ``"network"``, or ``"central"`` with a trusted curator.
        observer, user, colluders : node numbers.
        label : ask for a ``"conditional"`` or ``"published"`` number by name; such a number is no guarantee.
        """
        return account(self, view, observer=observer, user=user, colluders=colluders, label=label)

    def guarantees(self) -> list[Guarantee]:
        """Return the statements worth printing by default."""
        return [self.privacy("local")]

    def require(self, epsilon: float, delta: float, view: View | None = None, **who: Any) -> Guarantee:
        """Return the guarantee if it meets the budget, else raise with a sentence."""
        guarantee = self.privacy(view, **who)
        guarantee.require(epsilon, delta)
        return guarantee

    def epsilon(self, delta: float, view: View | None = None, **who: Any) -> float:
        """Return epsilon at ``delta`` against the default adversary, or the one named."""
        return self.privacy(view, **who).epsilon(delta)

    def cost(self) -> Mapping[str, Any]:
        """Return what travels over the whole run: rounds, messages (rows sent), and bytes where known."""
        rounds = messages = 0
        last: Protocol | None = None
        for k in range(self.steps):
            protocol = self.schedule(k)
            if last is not None and protocol is last and k == 1:  # one protocol for all steps
                rounds, messages = rounds * self.steps, messages * self.steps
                break
            rounds, messages, last = rounds + protocol.rounds, messages + protocol.messages, protocol
        found: dict[str, Any] = {
            "rounds": rounds,
            "messages": messages,
            "messages_per_node": messages / self.n,
        }
        try:
            width = self.width
        except InvalidInput:  # a linear model that learns its number of features from the data
            return found
        return found | {"bytes": messages * width * self.bytes_per_number}

    @property
    def bytes_per_number(self) -> int:
        """Bytes of one number on the wire."""
        return 8

    def describe(self) -> Mapping[str, Any]:
        """Return the plan as plain values, for records, tables and the identity of checkpoints."""
        plain: dict[str, Any] = {"algorithm": self.name, "n": self.n}
        for item in fields(self):  # type: ignore[arg-type]
            plain[item.name] = _described(getattr(self, item.name))
        return plain

    @classmethod
    def for_budget(
        cls,
        *args: Any,
        epsilon: float,
        delta: float,
        view: View | None = None,
        observer: int | None = None,
        user: int | None = None,
        colluders: int | Iterable[int] = (),
        **options: Any,
    ) -> Self:
        """Return the plan with the least noise whose own ``privacy(view, ...)`` meets (epsilon, delta).

        An infinite epsilon asks for no privacy and gets no noise: a yardstick for the others.

        Guarantees
        ----------
        The answer has been asked itself: its epsilon is at most the target, and at least 99.9 % of it.
        """
        trial = cls(*args, **{cls.noise_field: 1.0}, **options)
        return trial.calibrated_to(epsilon, delta, view, observer=observer, user=user, colluders=colluders)

    def calibrated_to(self, epsilon: float, delta: float, view: View | None = None, **who: Any) -> Self:
        """Return this plan with the least noise that meets a budget; none for an infinite epsilon."""
        if epsilon == math.inf:
            return self.with_noise(0.0)
        noise = calibrate(
            lambda z: self.with_noise(z).privacy(view, **who), epsilon, delta, tolerance=UNSPENT
        )
        return self.with_noise(noise)

    def with_noise(self, noise: Any) -> Self:
        """Return this plan with another amount of noise."""
        return replace(self, **{self.noise_field: noise})  # type: ignore[type-var]

    @property
    def has_noise(self) -> bool:
        """Whether any noise is added: without it the run has no privacy."""
        return bool(np.any(np.asarray(getattr(self, self.noise_field)) != 0))

    # ---- how it runs ----------------------------------------

    def run(self, data: Any, rng: Any, **options: Any) -> Result:
        """Execute the plan in this process; see `sottovoce.runners.run` for the options.

        ``rng`` is a numpy Generator (a simulation) or a noise source.
        """
        return run(self, data, rng, **options)

    def __repr__(self) -> str:
        inside = ", ".join(f"{key}={value!r}" for key, value in self.describe().items())
        return f"{type(self).__name__}({inside})"


def _described(value: Any) -> Any:
    if isinstance(value, Network):
        edges = value.edges.tolist() if value.n <= 64 else len(value.edges)
        return {"name": value.name, "n": value.n, "edges": edges}
    if isinstance(value, Protocol):
        return {"name": value.name, "n": value.n, "rounds": value.rounds}
    if isinstance(value, (NamedProtocol, CachedSchedule)):
        return str(value)
    if hasattr(value, "describe"):
        return value.describe()
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: _described(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Sequence) and any(isinstance(item, Protocol) for item in value):
        return [_described(item) for item in value]
    return value


class CachedSchedule:
    """A schedule given as a function, asked once per step: what is priced is what runs.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> schedule = CachedSchedule(lambda k: rng.random())
    >>> schedule(3) == schedule(3)
    True
    """

    def __init__(self, function: Callable[[int], Protocol]) -> None:
        self.function = function
        self._seen: dict[int, Protocol] = {}

    def __call__(self, k: int) -> Protocol:
        if k not in self._seen:
            self._seen[k] = self.function(k)
        return self._seen[k]

    def __str__(self) -> str:
        return "a function of the step"


def check_option_types(plan: Any) -> None:
    """Refuse options of another kind than their fields: no word for a flag, no number for a list.

    What a value of the right kind may be is for the plan itself to say.
    """
    for item in fields(plan):
        name, value, kind = item.name, getattr(plan, item.name), str(item.type)
        if value is None and item.default is None:
            continue
        if item.type in ("bool", bool):
            _validate.flag(value, name)
        elif kind.startswith(("Literal", "Adjacency")) or (isinstance(item.default, str) and name != "path"):
            _validate.word(value, name)
        elif name == "seed":
            _validate.count(value, name, minimum=0)
        elif name in _LISTED and not (name == "path" and isinstance(value, str)):
            if not (kind.endswith("| float") and isinstance(value, (int, float))):  # one for all
                _validate.several(value, name)
        elif kind.startswith(("Callable", "Operator")) and not callable(value):
            raise InvalidInput(f"{name} must be a function, got {_validate.shown(value)}.")


_LISTED = ("sizes", "smoothness", "bounds", "path")


def check_adjacency(adjacency: str, allowed: Sequence[str], name: str) -> None:
    """Refuse an adjacency that an algorithm is not accounted under, in the same words everywhere."""
    if adjacency not in allowed:
        raise InvalidInput(f"adjacency of {name} must be {' or '.join(allowed)}, got {adjacency!r}.")


def check_protocol(protocol: NamedProtocol, network: Network | None, plan: Plan) -> None:
    """Refuse a protocol that an algorithm does not run over, or a name without a network to build it on."""
    built_in = protocol.name in protocols.registry.BUILT_IN  # a plan checks what an installed one builds
    if plan.protocols and built_in and protocol.name not in plan.protocols:
        raise InvalidInput(f"{plan.name} runs over {' or '.join(plan.protocols)}, not over {protocol.name}.")
    if network is None:
        raise InvalidInput(f"{plan.name} needs a network for its protocol {protocol}.")


def as_network_argument(protocol: Any) -> Any:
    """Return the network that a text names where a protocol is wanted and the text names none.

    >>> as_network_argument("tree"), as_network_argument("ring:8")
    ('tree', Network('ring:8', n=8, edges=8))
    """
    word = protocol.split(":")[0] if isinstance(protocol, str) else "tree"
    # listing what is installed takes a while: only for words that are not built in
    if word not in protocols.registry.BUILT_IN and word not in protocols.registry.names():
        with contextlib.suppress(SottovoceError):  # then it is a protocol misspelt, and is refused as one
            return as_network(protocol)
    return protocol


def check_noise(plan: Any) -> None:
    """Refuse a noise, a floor or a number of colluders that no plan over trees has."""
    if plan.noise not in ("equal", "optimal"):
        raise InvalidInput(f'noise must be "equal" or "optimal", got {plan.noise!r}.')
    _validate.probability(plan.floor, "floor", zero=False)
    _validate.count(plan.tolerate, "tolerate")


def _public_sizes(adjacency: str) -> tuple[str, ...]:
    """Lots and divisors follow the public numbers of records."""
    if adjacency == "user":
        return ()
    return (EMPTY_PLACE if adjacency == "add-remove" else "the number of records is public",)


class CentralPlan(Plan):
    """A plan of one trusted holder of all records: one agent, no messages, one view.

    Subclasses say what they release, and `records`, the public number of records. Data may be given as a
    Dataset, a pair (X, y), or the shards of one user.

    Examples
    --------
    >>> from sottovoce.algorithms import DPCD
    >>> from sottovoce.objectives import GLM
    >>> plan = DPCD(GLM(), records=10, steps=4, clip_norm=1.0, noise_multiplier=4.0, smoothness=(0.25,))
    >>> print(plan.privacy().adversary)
    anyone who sees the released output
    >>> plan.cost()["messages"]
    0
    """

    adjacencies: ClassVar[tuple[str, ...]] = ("add-remove", "replace-one")
    _alone: ClassVar[Protocol] = HypercubeExchange(1)

    @property
    def n(self) -> int:
        """One: the holder."""
        return 1

    @property
    def observation(self) -> ObservationModel:
        """A trusted curator: what it releases is all that is seen."""
        return Curator()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Divisors and lots follow the public number of records."""
        return _public_sizes(self.adjacency)

    def schedule(self, k: int) -> Protocol:
        """Return the protocol that sends nothing."""
        return self._alone

    def guarantees(self) -> list[Guarantee]:
        """Return the one statement there is."""
        return [self.privacy()]

    def prepared(self, data: Any) -> Any:
        """Return the holder's records as one part."""
        if hasattr(data, "sizes"):
            return super().prepared(data)
        try:
            X, y = (data.X, data.y) if hasattr(data, "X") else data
            X, y = X if is_sparse(X) else np.asarray(X), np.asarray(y)
        except (TypeError, ValueError):
            raise DataError(
                f"{self.name} takes a Dataset, a pair (X, y) or the shards of one user, got "
                f"{type(data).__name__}."
            ) from None
        if X.ndim != 2 or y.ndim != 1 or X.shape[0] != len(y) or len(y) == 0:
            raise DataError(
                f"Expected features (n, p) and n >= 1 labels, got shapes {X.shape} and {y.shape}."
            )
        return super().prepared(Shards(X, y, np.array([0, len(y)])))

    def starting(self, data: Any, random: RunRandomness, agents: Sequence[int]) -> np.ndarray:
        """Return the public starting row: zeros."""
        return np.zeros((1, data.dim))

    def outputs(self, rows: np.ndarray, state: Any) -> dict[str, np.ndarray]:
        """Return the coefficients."""
        return {"coef": rows[0]}


@dataclass(frozen=True, repr=False)
class GradientPlan(Plan):
    """Gradient methods of several agents: what their plans share.

    Parameters
    ----------
    objective : what is minimized: a `GLM`, or a `NetObjective` (any torch module).
    protocol : the averaging of every step: a protocol, one per step, a function of the step, a name such as
        ``"tree:kind=uniform"``, or a network, for the algorithm's own protocol on it.
    steps : T.
    learning_rate : a number, (first, last) falling geometrically, or a `Rate`.
    clip : C, the l2 bound of one record's contribution (record level) or one agent's (user level); by default
        that of the objective.
    noise_multiplier : z, noise standard deviation over the clip, one for all agents or one each: z C on a
        clipped sum of records (record level) or on a clipped mean gradient (user level).
    adjacency : ``"add-remove"`` or ``"replace-one"`` of one record, or ``"user"``, all records of an agent.
    sizes : public number of records of each agent; needed at record level unless both lot and rate are given.
    lot : expected lot size, the public divisor; None takes all records.
    sample_rate : Poisson rate of the lots; by default lot over size.
    optimizer : applied to the noisy gradients, where the algorithm allows.
    network, seed : graph for protocols given by name, and the public seed of their draws.
    accounting : ``"pld"`` (tight) or ``"rdp"`` (as Bayrooti et al. 2023).

    Examples
    --------
    >>> import sottovoce as sv
    >>> issubclass(sv.algorithms.MuffliatoSGD, GradientPlan)
    True
    """

    objective: Any
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
    needs_exact: ClassVar[bool] = False
    draws_per_step: ClassVar[int] = 1
    proximal: ClassVar[bool] = False  # whether it applies the regularizer's proximal map

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        put("steps", _validate.count(self.steps, "steps"))
        if not callable(getattr(self.objective, "query", None)):
            raise InvalidInput(
                "objective must be a model, as GLM(...) or NetObjective(...), got "
                f"{_validate.shown(self.objective)}."
            )
        put("learning_rate", self._checked_rate())
        check_adjacency(self.adjacency, self.adjacencies, self.name)
        if self.accounting not in ("pld", "rdp"):
            raise InvalidInput(f'accounting must be "pld" or "rdp", got {self.accounting!r}.')
        if isinstance(self.optimizer, (str, dict)):
            put("optimizer", Optimizer.of(self.optimizer))
        if not isinstance(self.optimizer, Optimizer):
            raise InvalidInput(
                f"optimizer must be an Optimizer, its name or a table, got {_validate.shown(self.optimizer)}."
            )
        if not self.uses_optimizer and not self.optimizer.plain:
            raise InvalidInput(f"{self.name} is stated for plain steps; leave optimizer at sgd.")
        put("clip_norm", self._checked_clip())
        self._settle_protocol(put)
        self._settle_sizes(put)
        put("noise_multiplier", self._checked_noise())
        regularizer = self.objective.regularizer
        if any((regularizer.l1, regularizer.box, regularizer.ball)) and not self.proximal:
            raise InvalidInput(f"{self.name} takes l2 only; use ADMM for l1, box or ball.")

    def _checked_rate(self) -> Rate:
        try:
            return Rate.of(self.learning_rate)
        except TypeError:
            raise InvalidInput(
                "learning_rate must be a number, a pair (first, last) or a Rate, got "
                f"{_validate.shown(self.learning_rate)}."
            ) from None

    def _checked_clip(self) -> float:
        clip_norm = self.objective.clip_norm if self.clip_norm is None else self.clip_norm
        if clip_norm is None:
            raise InvalidInput(f"{self.name} needs clip_norm=..., the l2 bound of one contribution.")
        return _validate.clip(clip_norm)

    def _checked_noise(self) -> float | tuple[float, ...]:
        given: Any = self.noise_multiplier
        if isinstance(given, (Sequence, np.ndarray)) and not isinstance(given, (str, bytes)):
            each = tuple(_validate.non_negative(z, "noise_multiplier") for z in given)
            if len(each) == 1:
                each = each * self.n
            if len(each) != self.n:
                raise InvalidInput(f"expected one noise multiplier per agent ({self.n}), got {len(each)}.")
            if any(each) and not all(each):
                raise InvalidInput(
                    f"agent {each.index(0.0)} has no noise while others do; give every agent some."
                )
        else:
            each = (_validate.non_negative(given, "noise_multiplier"),)
        _validate.clip(self._checked_clip(), noisy=any(each))
        return each[0] if len(set(each)) == 1 else each

    def _settle_protocol(self, put: Callable[[str, Any], None]) -> None:
        protocol, network = as_network_argument(self.protocol), self.network
        if isinstance(protocol, Network) or hasattr(protocol, "nodes"):
            protocol, network = None, protocol
        if network is not None:
            network = as_network(network)
        if protocol is None:
            protocol = protocols.parse(self.default_protocol)
        elif isinstance(protocol, str):
            protocol = protocols.parse(protocol)
        elif callable(protocol) and not isinstance(protocol, (Protocol, CachedSchedule)):
            protocol = CachedSchedule(protocol)
        elif not isinstance(protocol, (Protocol, NamedProtocol, CachedSchedule, Sequence)):
            raise InvalidInput(
                f"protocol must be a protocol, a network or a name, got {_validate.shown(protocol)}."
            )
        elif isinstance(protocol, Sequence) and len(protocol) != self.steps:
            raise InvalidInput(f"The schedule holds {len(protocol)} protocols for {self.steps} steps.")
        if isinstance(protocol, NamedProtocol):
            check_protocol(protocol, network, self)
        put("protocol", protocol)
        put("network", network)
        first = self._demand(self._agreed(0))
        if network is not None and first.n != network.n:
            raise InvalidInput(f"the protocol is for {first.n} nodes, the network has {network.n}.")

    def _demand(self, protocol: Protocol) -> Protocol:
        """Refuse a step whose protocol the algorithm cannot use; exactness is a property of the class."""
        if not isinstance(protocol, Protocol):
            raise InvalidInput(
                f"protocol must be a protocol, a network or a name, got {type(protocol).__name__}."
            )
        if self.needs_exact and not protocol.exact:
            raise InvalidInput(f"Exact consensus needs a Tree or an Exchange, got {protocol.name}.")
        return protocol

    def _settle_sizes(self, put: Callable[[str, Any], None]) -> None:
        if self.sizes is not None:
            sizes = tuple(_validate.count(size, "an agent's number of records") for size in self.sizes)
            nodes = self._agreed(0).n
            if len(sizes) != nodes:
                raise InvalidInput(
                    f"the network has {nodes} nodes, but sizes are given for {len(sizes)} agents."
                )
            put("sizes", sizes)
        if self.sample_rate is not None:
            put("sample_rate", _validate.probability(self.sample_rate, "sample_rate", zero=False))
        if self.batch_size is not None:
            put("batch_size", _validate.positive(self.batch_size, "batch_size"))
            short = [] if self.sizes is None else [i for i, s in enumerate(self.sizes) if s < self.batch_size]
            if short and self.sample_rate is None:
                assert self.sizes is not None
                raise DataError(
                    f"agent {short[0]} holds {self.sizes[short[0]]} records, fewer than batch_size "
                    f"{self.batch_size:g}; take at most {min(self.sizes)}, or None for all records."
                )
        if self.adjacency == "user":
            return
        if self.sizes is None and (self.batch_size is None or self.sample_rate is None):
            raise InvalidInput(
                "at record level the divisor is public: give sizes=... (records of each agent), or both lot "
                "and sample_rate."
            )

    # ---- the facts ----------------------------------------

    @property
    def n(self) -> int:
        """Number of agents."""
        return len(self.sizes) if self.sizes is not None else self._agreed(0).n

    @property
    def observation(self) -> ObservationModel:
        """Only local privacy is claimed unless an algorithm says more."""
        return LocalOnly()

    @property
    def width(self) -> int:
        """Numbers in one row that travels: the parameters."""
        return self.n_params

    @property
    def n_params(self) -> int:
        """Number of parameters, where the objective knows it without data."""
        found = self.objective.n_params
        if found is None:
            raise InvalidInput(
                "the number of parameters is not known without data; GLM(..., dim=...) states it."
            )
        return int(found)

    @property
    def bytes_per_number(self) -> int:
        """Networks send float32, linear models float64."""
        return int(self.objective.bytes_per_number)

    def schedule(self, k: int) -> Protocol:
        """Return the protocol of step ``k``: a pure function of the public seed and the step."""
        protocol = self._agreed(k)
        if not protocol.masked or self._grid_step is None:
            return protocol
        if id(protocol) not in self._gridded:  # the first is kept, so that its number stays its own
            self._gridded[id(protocol)] = (protocol, protocol.on_grid(self._grid_step))
        return self._gridded[id(protocol)][1]

    def schedule_in_order(self) -> Callable[[int], Protocol]:
        """Return `schedule` for a run: what it draws for a step is dropped when the next one is asked for.

        Kept, a small tree for every step would lie between the rows that come and go, and the memory of those
        could not be used again: 6 GB for 2,000 steps of a network with 38,424 parameters.
        """
        before, last = set(self._drawn), -1

        def schedule(k: int) -> Protocol:
            nonlocal last
            protocol = self.schedule(k)
            if last not in before and last != k and not self.is_stationary:
                self._gridded.pop(id(self._drawn.pop(last, None)), None)
            last = k
            return protocol

        return schedule

    @property
    def is_stationary(self) -> bool:
        """Whether the protocol is one for all steps; a tree drawn anew for each is not."""
        given = self.protocol
        named = isinstance(given, NamedProtocol) and not given.drawn
        return self.steps == 1 or named or isinstance(given, Protocol)

    def _agreed(self, k: int) -> Protocol:
        """Return the protocol of step ``k`` as it was given, masked ones without the plan's grid."""
        protocol = self.protocol
        if isinstance(protocol, Protocol):
            return protocol
        if isinstance(protocol, CachedSchedule):
            return self._demand(protocol(k))
        if isinstance(protocol, NamedProtocol):
            key = k if protocol.drawn else 0
            if key not in self._drawn:
                while len(self._drawn) >= 8192:
                    self._gridded.pop(id(self._drawn.pop(next(iter(self._drawn)))), None)
                self._drawn[key] = protocol.at(self.network, seed=self.seed, step=key)
            return self._drawn[key]
        return self._demand(protocol[k])

    @cached_property
    def _gridded(self) -> dict[int, tuple[Protocol, Protocol]]:
        return {}

    @cached_property
    def _grid_step(self) -> float | None:
        try:
            grid = self.grid
        except InvalidInput:  # a simulation needs none, and what protects asks for the grid itself
            return None
        return None if grid is None else grid.step

    @property
    def grid(self) -> MaskGrid | None:
        """The common integer grid of a masked plan with noise; None without masks or without noise."""
        masked = self._agreed(0).masked
        return self._grid if masked and any(self.multipliers) else None

    @cached_property
    def _grid(self) -> MaskGrid:
        listed = [self.releases(agent)[0] for agent in range(self.n)]
        return mask_grid(
            bound=self._largest_row(),
            sensitivity=min(release.sensitivity for release in listed),
            noise_std=[release.noise_std for release in listed],
            dim=self.width,
            steps=self.steps,
        )

    def _largest_row(self) -> float:
        """Return the public bound of a clean coordinate: the clip, or that of as many records as a lot holds.

        A lot larger than this is clamped, which costs accuracy and no privacy.
        """
        clip_norm = float(self.clip_norm or 1.0)
        if self.adjacency == "user":
            return clip_norm
        most = []
        for agent, (rate, divisor) in enumerate(zip(self.sample_rates, self._public_divisors, strict=True)):
            if self.sizes is None:
                most.append(16 * divisor)
            else:
                size = self.sizes[agent]
                most.append(size if rate == 1 else min(size, 4 * rate * size + 16))
        return clip_norm * max(m / d for m, d in zip(most, self._public_divisors, strict=True))

    @cached_property
    def _drawn(self) -> dict[int, Protocol]:
        return {}

    @property
    def multipliers(self) -> tuple[float, ...]:
        """z of every agent."""
        given = self.noise_multiplier
        return given if isinstance(given, tuple) else (given,) * self.n

    @property
    def sample_rates(self) -> tuple[float, ...]:
        """Probability with which a record of each agent enters a lot."""
        if self.sample_rate is not None:
            return (self.sample_rate,) * self.n
        if self.batch_size is None or self.sizes is None:
            return (1.0,) * self.n
        return tuple(self.batch_size / size for size in self.sizes)

    def divisors(self, sizes: Sequence[int]) -> list[float]:
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
        return tuple(self.divisors(self.sizes if self.sizes is not None else [1] * self.n))

    def releases(self, agent: int) -> Sequence[Release]:
        """Return the noisy gradients of one agent, in the unit of the row that leaves: one stretch."""
        clip_norm = self.clip_norm if self.clip_norm is not None and math.isfinite(self.clip_norm) else 1.0
        divisor = self._public_divisors[agent]
        return (
            Release(
                sender=agent,
                step=0,
                sensitivity=MOVES[self.adjacency] * clip_norm / divisor,
                noise_std=self.multipliers[agent] * clip_norm / divisor,
                adjacency=self.adjacency,
                sample_rate=1.0 if self.adjacency == "user" else self.sample_rates[agent],
                steps=self.steps,
                count=self.draws_per_step,
            ),
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Lots and divisors follow the public numbers of records."""
        return _public_sizes(self.adjacency)

    def source(self, data: Any, agents: Sequence[int], random: RunRandomness) -> Any:
        """Return the gate before the hosted agents' records; ``data`` may be a query of its own (audits)."""
        from sottovoce.mechanisms.gradient import GradientMechanism

        query = data if hasattr(data, "sums") else self.objective.query(data)
        hosted = [int(a) for a in agents]
        if self.adjacency == "user":  # inside the clip: the divisor may follow the records
            whole = self.batch_size is None and self.sample_rate is None
            sizes = data.sizes.tolist()
            divisors = [float(size) for size in sizes] if whole else self.divisors(sizes)
        else:
            divisors = [self._public_divisors[a] for a in hosted]
        return GradientMechanism(
            query,
            hosted,
            self.on_grid(random, hosted, [self._public_divisors[a] for a in hosted]),
            clip_norm=self.clip_norm or math.inf,
            noise_multipliers=[self.multipliers[a] for a in hosted],
            adjacency=self.adjacency,
            rates=[self.sample_rates[a] for a in hosted],
            divisors=divisors,
            releases=[self.releases(a) for a in hosted]
            if math.isfinite(self.clip_norm or math.inf)
            else None,
        )

    def prepared(self, data: Any) -> Any:
        """Return the agents' records checked: as many agents and records as the plan was made for."""
        data = as_agent_records(data)
        if data.n != self.n:
            raise InvalidInput(f"The plan is for {self.n} nodes, the data have {data.n} users.")
        if self.sizes is not None and data.sizes.tolist() != list(self.sizes):
            raise DataError(
                f"the plan was made for agents with {list(self.sizes)} records, the data have "
                f"{data.sizes.tolist()}; make the plan for these data."
            )
        return self.objective.prepared(data)

    def starting(self, data: Any, random: RunRandomness, agents: Sequence[int]) -> np.ndarray:
        """Return the public starting rows, alike for everybody: a network's own, or the objective's draw."""
        rng = np.random.default_rng(random.start)
        dim = self.objective.query(data).width
        return np.asarray(self.objective.initial_rows(rng, len(list(agents)), dim))

    def metrics(self, rows: np.ndarray, data: Any, random: RunRandomness) -> dict[str, Any]:
        """Return the disagreement of the rows, and what the objective says of them on public records."""
        spread = {"disagreement": float(np.mean(np.square(rows - rows.mean(axis=0))))}
        return spread | self.objective.metrics(rows, data)

    def rate(self, k: int) -> float:
        """Return the learning rate of step ``k``."""
        return float(self.learning_rate(k, self.steps))

    def calibrated_to(self, epsilon: float, delta: float, view: View | None = None, **who: Any) -> Self:
        """Return this plan with the least noise that meets a budget.

        Under the local view every agent gets the least noise that meets the budget for it: agents with more
        records and the same lot need less.
        """
        if view != "local" or who.get("user") is not None:
            return super().calibrated_to(epsilon, delta, view, **who)
        found: dict[tuple[float, int], float] = {}
        keys = []
        for agent in range(self.n):
            (one, *more) = self.releases(agent) or (None,)
            draws = 0 if one is None else sum(r.draws for r in (one, *more))
            keys.append((self.sample_rates[agent], draws))
            if draws and keys[-1] not in found:
                found[keys[-1]] = calibrate(
                    lambda z, agent=agent: compose(  # type: ignore[misc]
                        self.with_noise(z).releases(agent), method=self.accounting
                    ),
                    epsilon,
                    delta,
                    tolerance=UNSPENT,
                )
        each = [found.get(key, 0.0) for key in keys]
        largest = max(each)  # who releases nothing needs no noise, but a plan has one kind of agents
        return self.with_noise(tuple(z or largest for z in each))

    def describe(self) -> Mapping[str, Any]:
        """Return the plan as plain values."""
        plain = dict(super().describe())
        plain["learning_rate"] = vars(self.learning_rate)
        return plain
