"""Plans: the object that runs is the object that is accounted.

A plan is a frozen description of a run. Its facts are `steps`; ``schedule(k)``, the protocol of step k;
``mechanism(data, agents, random)``, which turns the records of the hosted agents into noisy rows;
``algorithm(mechanism, start)``, the update rule of these agents; ``releases(agent)``, every noisy value an
agent will publish; `observation`, what an adversary observes of them; and `width`, the numbers in a row.
Runners, the accountant, peers, ledgers and the command line read these facts.

`CentralPlan` (one holder of all records) and `GradientPlan` (agents that release gradients) fill in most of
them.
"""

from __future__ import annotations

import math
from abc import ABCMeta, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, ClassVar, Self, TypeVar, Unpack

import numpy as np

from sottovoce import _validate
from sottovoce._hooks import NotebookDisplay
from sottovoce._io import digest
from sottovoce.accounting.accountant import ViewName, account
from sottovoce.accounting.budget import AdversaryOptions, MemberOptions
from sottovoce.accounting.calibration import calibrate, calibrate_gaussian
from sottovoce.accounting.guarantee import PUBLIC_RECORD_COUNT, Adjacency, Guarantee, Label
from sottovoce.accounting.observation import ObservationModel
from sottovoce.accounting.release import Release
from sottovoce.algorithms.options import check_noise_allocation, converted
from sottovoce.algorithms.schedule import CachedSchedule, Schedule
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network
from sottovoce.mechanisms.base import Announced, Mechanism
from sottovoce.noise.grid import GridNoise, MaskGrid
from sottovoce.noise.run_randomness import RandomSource, RunRandomness
from sottovoce.noise.samplers import rounds_values
from sottovoce.protocols import NamedProtocol, Protocol, names_with
from sottovoce.protocols.registry import Capability
from sottovoce.runners import Algorithm, Result, State
from sottovoce.runners.run import RunOptions, run

AnyMechanism = TypeVar("AnyMechanism", bound=Mechanism)
UNSPENT = 1e-3  # share of a budget that a search for noise may leave: accounting may be a long composition


class PlanType(ABCMeta):
    """Brings the options of a plan into one form before the frozen object is built.

    ``SomePlan(...)`` fills in the defaults, checks and converts every option (`options.converted`), lets the
    class replace names by objects (`Plan._resolved`), and builds the class that the options describe
    (`Plan._variant`). So a plan never holds an unchecked option, and `dataclasses.replace` checks again.
    """

    def __call__(cls, *args: Any, **options: Any) -> Any:
        """Return the plan; arguments that no option takes are refused by the generated constructor."""
        declared = fields(cls) if is_dataclass(cls) else ()
        arguments = dict(zip((item.name for item in declared), args, strict=False)) | options
        defaults = {
            item.name: item.default if item.default_factory is MISSING else item.default_factory()
            for item in declared
        }
        complete = {**defaults, **arguments}
        refused = len(arguments) != len(args) + len(options) or complete.keys() != defaults.keys()
        if refused or any(value is MISSING for value in complete.values()):
            return super().__call__(*args, **options)
        resolved = cls._resolved(converted(complete, defaults))  # type: ignore[attr-defined]
        return super(PlanType, cls._variant(resolved)).__call__(**resolved)  # type: ignore[attr-defined]

    @property
    def protocols(cls) -> tuple[str, ...]:
        """Names of the built-in protocols that have the capabilities the algorithm needs."""
        needs = cls.needs  # type: ignore[attr-defined]
        return names_with(*needs, without=cls.excludes) if needs else ()  # type: ignore[attr-defined]


class Plan(NotebookDisplay, metaclass=PlanType):
    """An algorithm with its protocol, noise and steps fixed, ready to be accounted and run.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> plan = sv.PrivateAveraging(sv.graphs.hypercube(4), noise_std=2.0, radius=0.5)
    >>> plan.privacy("local").label, plan.cost()["messages"]
    ('ldp', 320)
    """

    # capabilities, read by plan files, agreements and the registry
    name: ClassVar[str]
    central: ClassVar[bool] = False  # whether one trusted curator holds all records
    needs: ClassVar[tuple[Capability, ...]] = ()  # of its protocols; () takes no protocol
    excludes: ClassVar[tuple[Capability, ...]] = ()
    adjacencies: ClassVar[tuple[str, ...]] = ("add-remove", "replace-one", "user")
    query_kind: ClassVar[str] = "gradient"  # which query its mechanism computes from records
    maskable: ClassVar[bool] = False  # whether it sends its release unchanged, so that it can be masked
    network_optional: ClassVar[bool] = False  # whether it runs over a server where no network is named
    sequential: ClassVar[bool] = False  # whether one agent works at a time, so that ranks would only wait
    noise_field: ClassVar[str] = "noise_multiplier"
    mechanism_class: ClassVar[type[Mechanism]]

    steps: int
    adjacency: Adjacency
    accounting: str = "pld"
    sizes: tuple[int, ...] | None = None  # public numbers of records, where the plan has them
    center: float | tuple[float, ...] = 0.0  # the public center of the rows that travel
    noise_allocation: str = "equal"
    _bytes_per_number: int = 8

    @classmethod
    def _resolved(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Return the checked options with names and defaults replaced by the objects they stand for."""
        adjacency, clip_norm = options["adjacency"], options.get("clip_norm")
        if adjacency not in cls.adjacencies:
            allowed = " or ".join(cls.adjacencies)
            raise InvalidInput(f"adjacency of {cls.name} must be {allowed}, got {adjacency!r}.")
        if clip_norm is None:
            return options
        noisy = bool(np.any(options[cls.noise_field]))
        return {**options, "clip_norm": _validate.clip(clip_norm, noisy=noisy)}

    @classmethod
    def _variant(cls, options: Mapping[str, Any]) -> type[Plan]:
        """Return the class that these options describe."""
        return cls

    # ---- facts ----------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def n(self) -> int:
        """Number of agents."""

    @property
    @abstractmethod
    def observation(self) -> ObservationModel:
        """What an adversary observes of the releases."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Numbers in one row that travels; ``dim`` is that of the model, which may be sent in parts."""

    @property
    @abstractmethod
    def schedule(self) -> Schedule:
        """The protocol of every step."""

    @abstractmethod
    def algorithm(self, mechanism: Any, start: np.ndarray) -> Algorithm:
        """Return the update rule of the agents that ``mechanism`` hosts, from the rows ``start``."""

    def mechanism(self, data: Any, agents: Sequence[int], random: RunRandomness) -> Mechanism:
        """Return the mechanism that reads the records ``data`` of the hosted ``agents``, in their order."""
        return self._mechanism(self.mechanism_class, agents, random, data=data)

    @abstractmethod
    def releases(self, agent: int) -> Sequence[Release]:
        """Return every noisy value this agent will publish, run-length coded, in order."""

    @property
    def is_stationary(self) -> bool:
        """Whether all steps have the same protocol."""
        return self.schedule.is_stationary

    @property
    def grid(self) -> MaskGrid | None:
        """The common integer grid of a masked plan with noise, the same at every member; None without one."""
        return None

    def _read_grid(self) -> MaskGrid | None:
        return self.grid  # a method, because plans are pickled with their schedule

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What every guarantee of this plan rests on: the number of records is public, except user level."""
        if self.adjacency == "user":
            return ()
        return (PUBLIC_RECORD_COUNT if self.adjacency == "add-remove" else "the number of records is public",)

    def _records(self) -> float | None:
        """Return the public number of records in all; None where it is not known."""
        return None if self.sizes is None else float(sum(self.sizes))

    # ---- running --------------------------------------------------------------------------------------

    def _mechanism(
        self, kind: type[AnyMechanism], agents: Sequence[int], random: RunRandomness, **facts: Any
    ) -> AnyMechanism:
        """Return a mechanism with the options it has in common with this plan; ``facts`` are the others."""
        common = {item.name for item in fields(kind)} & {item.name for item in fields(self)}  # type: ignore[arg-type]
        arguments = {name: getattr(self, name) for name in common} | {
            "announced_releases": self._announced(agents)
        }
        return kind(agents=agents, random=random, **(arguments | facts))

    def _announced(self, agents: Sequence[int]) -> Announced | None:
        """Return the releases of the hosted agents; None where nothing is claimed."""
        return [self.releases(int(a)) for a in agents]

    def prepared(self, data: object) -> Any:
        """Return the data of all agents, checked against the plan."""
        return data

    def starting(self, data: Any, random: RunRandomness, agents: Sequence[int]) -> np.ndarray:
        """Return the public starting rows of the hosted agents."""
        return np.zeros((len(agents), data.dim))

    def metrics(self, rows: np.ndarray, data: Any, random: RunRandomness) -> dict[str, Any]:
        """Return numbers about the final rows that may be published."""
        return {}

    def outputs(self, rows: np.ndarray, state: State) -> dict[str, np.ndarray]:
        """Return the arrays of a result besides the rows."""
        return {"coef": rows.mean(axis=0)}

    def guarantees(self) -> list[Guarantee]:
        """Return the guarantees worth printing by default."""
        return [self.privacy(None if self.central else "local")]

    # ---- accounting and cost --------------------------------------------------------------------------

    def privacy(
        self,
        view: ViewName | None = None,
        *,
        observer: int | None = None,
        user: int | None = None,
        colluders: int | Iterable[int] = (),
        label: Label | None = None,
        participations: int | None = None,
    ) -> Guarantee:
        """Return the guarantee against one kind of adversary, before anything runs.

        Parameters
        ----------
        view : ``"local"`` (own noise only, whatever all others do), ``"outsider"`` (taps every link, holds no
            key), ``"network"`` (the worst member, or ``observer``), ``"pairwise"`` (``observer`` about
            ``user``), ``"colluders"`` (named members, or how many) or ``"central"`` (the released result
            only). None takes the plan's own: ``"network"``; ``"colluders"``, as many as masks tolerate, where
            that is more than one; ``"pairwise"`` with ``observer`` and ``user``; ``"local"`` where there is
            one agent; ``"central"`` with a trusted curator.
        observer, user, colluders : node numbers.
        label : ``"conditional"`` or ``"published"`` for such a number, which is no guarantee.
        participations : how often the client of a federation took part (local view).
        """
        who: MemberOptions = {"observer": observer, "user": user, "colluders": colluders, "label": label}
        return account(self, view, **who | {"participations": participations})

    def epsilon(
        self, delta: float, view: ViewName | None = None, **adversary: Unpack[MemberOptions]
    ) -> float:
        """Return epsilon at ``delta`` against the default adversary, or the one named."""
        return self.privacy(view, **adversary).epsilon(delta)

    def cost(self) -> Mapping[str, Any]:
        """Return the communication of the whole run: rounds, messages (rows sent), and bytes where known."""
        rounds, messages = self._traffic()
        totals = {"rounds": rounds, "messages": messages, "messages_per_node": messages / self.n}
        try:
            return totals | {"bytes": messages * self._bytes_per_row()}
        except InvalidInput:  # a linear model that learns its number of features from the data
            return totals

    def _traffic(self) -> tuple[int, int]:
        """Return the rounds and messages of all steps."""
        times, steps = (self.steps, 1) if self.is_stationary else (1, self.steps)
        each = [(protocol.rounds, protocol.message_count) for protocol in map(self.schedule, range(steps))]
        return times * sum(rounds for rounds, _ in each), times * sum(messages for _, messages in each)

    def _bytes_per_row(self) -> int:
        """Return the bytes of the numbers of one row, without the header of a message.

        A masked row is integers of the grid, with its checks.
        """
        grid = self.grid
        if grid is None:
            return self.width * self._bytes_per_number
        return (grid.dim + grid.checks) * grid.bits // 8

    def describe(self) -> Mapping[str, Any]:
        """Return the plan as plain values, for results, tables and the identity of checkpoints."""
        values = {item.name: _described(getattr(self, item.name)) for item in fields(self)}  # type: ignore[arg-type]
        return {"algorithm": self.name, "n": self.n, **values}

    @classmethod
    def for_budget(
        cls,
        *args: Any,
        epsilon: float,
        delta: float,
        view: ViewName | None = None,
        observer: int | None = None,
        user: int | None = None,
        colluders: int | Iterable[int] = (),
        **options: Any,
    ) -> Self:
        """Return the plan with the least noise whose own ``privacy(view, ...)`` meets (epsilon, delta).

        An infinite epsilon asks for no privacy and gets no noise: a baseline for the others.

        Guarantees
        ----------
        The returned plan was accounted itself: its epsilon is at most the target, and at least 99.9 % of
        it unless epsilon jumps there.
        """
        trial: Self = cls(*args, **{cls.noise_field: 1.0}, **options)
        who: AdversaryOptions = {"view": view, "observer": observer, "user": user, "colluders": colluders}
        return trial.calibrated_to(epsilon, delta, **who)

    def calibrated_to(self, epsilon: float, delta: float, **adversary: Unpack[AdversaryOptions]) -> Self:
        """Return this plan with the least noise that meets a budget; none for an infinite epsilon."""
        if epsilon == math.inf:
            return self.with_noise(0.0)
        check_noise_allocation(self.noise_allocation, adversary.get("view"))
        start = self._gaussian_noise

        def cost(noise: float) -> Guarantee:
            return self.with_noise(noise).privacy(**adversary)

        if start is not None:
            return self.with_noise(calibrate_gaussian(cost, epsilon, delta, start=start))
        return self.with_noise(calibrate(cost, epsilon, delta, tolerance=UNSPENT))

    @property
    def _gaussian_noise(self) -> float | None:
        """Any noise, where mu is about one over the noise and calibration nearly a closed form; else None."""
        return None

    def with_noise(self, noise: float | tuple[float, ...]) -> Self:
        """Return this plan with another amount of noise."""
        return replace(self, **{self.noise_field: noise})  # type: ignore[type-var]

    def run(
        self, data: object, rng: RandomSource, *, progress: bool = False, **options: Unpack[RunOptions]
    ) -> Result:
        """Execute the plan in this process; `sottovoce.runners.run.PlanRun` lists the options.

        ``rng`` is a numpy Generator (a simulation) or a noise source.
        """
        return run(self, data, rng, progress=progress, **options)

    def __repr__(self) -> str:
        inside = ", ".join(f"{key}={value!r}" for key, value in self.describe().items())
        return f"{type(self).__name__}({inside})"


def public_units(plan: Plan) -> float | None:
    """Return the public number of nodes (user level) or of records in all; None where it is not known."""
    return float(plan.n) if plan.adjacency == "user" else plan._records()


def noise_on_grid(
    plan: Plan, random: RunRandomness, agents: Sequence[int], units: Sequence[float]
) -> RunRandomness:
    """Return ``random`` with its protective noise drawn on the plan's common grid, if it has one.

    ``units`` are the public divisors that the mechanism of the hosted agents applies after the noise.
    """
    if not rounds_values(random.noise):  # rounded with the rows, later
        return random
    grid = plan.grid
    if grid is None:
        return random
    places = ((int(agent), float(unit)) for agent, unit in zip(agents, units, strict=True))
    hosted = dict(zip(random.noise_ids_of(agents), places, strict=True))
    return replace(random, noise=GridNoise(random.noise, grid, hosted))


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
    if isinstance(value, np.ndarray):
        return digest(value)
    return getattr(value, "__qualname__", None) if callable(value) else value
