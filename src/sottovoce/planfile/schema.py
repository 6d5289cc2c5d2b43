"""The sections of a plan file, and every problem of a file in one message.

A plan file says who talks (``[network]``), how they average (``[protocol]``), how much noise (``[noise]``),
what may be spent (``[budget]``) and what is done: ``[average]``, or ``[data]`` and ``[train]`` with a linear
model (``[objective]``) or a network (``[model]``). The other keys of ``[average]`` and ``[train]`` are the
options of the algorithm's plan (`sottovoce.algorithms.build`), which checks their values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from sottovoce._validate import did_you_mean
from sottovoce.accounting.guarantee import ViewName
from sottovoce.errors import ConfigError, InvalidInput

if TYPE_CHECKING:
    from sottovoce.accounting.budget import Budget
    from sottovoce.noise.samplers import ProtectiveNoise, SimulatedNoise
    from sottovoce.protocols import NamedProtocol

VERSION = 1
# What a plan file that `sottovoce columns` drafted leaves blank.
_BLANKS = (
    *(("network", "graph"), ("budget", "epsilon"), ("budget", "delta")),
    *(("objective", "loss"), ("data", "label"), ("data", "classes")),
)
NOISE_OPTIONS = ("noise_multiplier", "noise_std", "noise_ratio")
# Options of a plan that have another place than the algorithm's section: in a plan file, and in an agreement.
_PLACES = {
    "objective": ("[objective] or [model]", "[model]"),
    "network": ("[network]", "graph"),
    "protocol": ("[protocol]", ""),
    "seed": ("[protocol] seed", "it is the hash of the agreement"),
    "sizes": ("[data]", "it states no sizes, write batch_size and sample_rate"),
    "records": ("[data]", ""),
    "users": ("[data] users", ""),
    "noise_multiplier": ("[noise] noise_multiplier", ""),
    "noise_std": ("[noise] noise_std", "noise_multiplier, noise over clip_norm"),
    "noise_ratio": ("[noise] noise_ratio", ""),
    "accounting": ("", "peers always account with privacy loss distributions"),
    "dim": ("", "[model] parameters"),
    "radius": ("", "clip_norm"),
    "path": ("", "it follows from the hash of the agreement"),
}
ELSEWHERE = {option: place for option, (place, _) in _PLACES.items() if place}
AGREED_ELSEWHERE = {option: place for option, (_, place) in _PLACES.items() if place}
_TOP_KEYS = ("version", "title", "accept", "graph", "relay", "membership_version", "continues", "start")
SectionType = TypeVar("SectionType", bound=BaseModel)


class PlanSection(BaseModel):
    """A table of a plan file: unknown keys are refused, values are not changed after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class OptionsSection(PlanSection):
    """A table whose other keys are options of a plan or of a model."""

    model_config = ConfigDict(extra="allow")


class NetworkSection(PlanSection):
    """``[network]``: who can talk to whom."""

    graph: str | None = None
    matrix: Path | None = None
    weights: str | None = None
    names: tuple[str, ...] | None = None


class ProtocolSection(PlanSection):
    """``[protocol]``: how the nodes average, as `sottovoce.protocols.parse` reads it."""

    name: str | None = None
    rounds: int | None = None
    kind: str | None = None
    root: int | None = None
    fresh: float | None = None
    seed: int = Field(0, ge=0)

    def named(self, default: str, where: str = "[protocol]") -> NamedProtocol:
        """Return the protocol by name, ``default`` where the file names none; ``where`` begins an error."""
        from sottovoce.protocols import parse

        options = self.model_dump(exclude={"name", "seed"}, exclude_none=True)
        if self.name is None and options:
            raise ConfigError(f"{where} {next(iter(options))} needs a name beside it.")
        if self.rounds is not None and self.rounds < 0:
            raise ConfigError(f"{where} rounds must not be negative, got {self.rounds}.")
        with prefix_errors(where):
            return parse(":".join([self.name or default, *(f"{key}={v}" for key, v in options.items())]))


class NoiseSection(PlanSection):
    """``[noise]``: how much, and from where; without an amount, the least noise that meets ``[budget]``.

    With a ``seed`` the run is a simulation: reproducible, not protective.
    """

    noise_multiplier: float | None = None
    noise_std: float | None = None
    noise_ratio: float | None = None
    seed: int | None = Field(None, ge=0)

    @field_validator(*NOISE_OPTIONS, mode="before")
    @classmethod
    def _check_amount(cls, value: Any, info: ValidationInfo) -> float | None:
        """Check an amount of noise as the plan does, whose option it is."""
        from sottovoce import _validate  # numpy comes with it

        return None if value is None else _validate.non_negative(value, str(info.field_name))

    @property
    def source(self) -> ProtectiveNoise | SimulatedNoise:
        """A simulation's generator where the file names a seed, protective noise where it does not."""
        from sottovoce.noise.samplers import ProtectiveNoise, SimulatedNoise

        return ProtectiveNoise() if self.seed is None else SimulatedNoise(self.seed)


class BudgetSection(PlanSection):
    """``[budget]``: what may be spent, and against whom."""

    epsilon: float = Field(gt=0, allow_inf_nan=True)
    delta: float = Field(gt=0, lt=1)
    view: ViewName | None = None
    observer: int | None = Field(None, ge=0)
    user: int | None = Field(None, ge=0)
    colluders: int | tuple[int, ...] = ()


class AverageSection(OptionsSection):
    """``[average]``: what is averaged. Its other keys are options of the plan: radius, center, dim."""

    adjacency: Any
    values: Path | tuple[float, ...] | None = None


class DataSection(PlanSection):
    """``[data]``: which records, how they are prepared, who holds them."""

    name: str | None = None
    file: Path | None = None
    label: str | None = None
    group: str | None = None
    features: str | tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    categories: dict[str, tuple[str | int | float, ...] | int] | None = None
    classes: tuple[str | int | float, ...] | None = None
    class_weight: Literal["balanced"] | tuple[float, ...] | dict[str, float] | None = None
    class_shares: tuple[float, ...] | dict[str, float] | None = None
    missing: Literal["refuse", "drop", "middle", "indicator"] | None = None
    bounds: Literal["none"] | tuple[Any, ...] | dict[str, tuple[Any, ...]] | None = None
    standardize: bool = False
    unit_rows: bool = False
    intercept: bool = False
    test_share: float = Field(0.0, ge=0, lt=1)
    test_file: Path | None = None
    folder: Path | None = None
    side: int | None = Field(None, ge=1)
    mean: float | None = None
    std: float | None = Field(None, gt=0)
    partition: Literal["equal", "label", "dirichlet", "column"] | None = None
    users: int | None = Field(None, ge=1)
    sizes: int | tuple[int, ...] | None = None
    width: int | None = Field(None, ge=1)
    skew: float = Field(0.0, ge=0, le=1)
    concentration: float = Field(1.0, gt=0)
    seed: int = Field(0, ge=0)

    @field_validator("bounds", mode="before")
    @classmethod
    def _write_dates(cls, bounds: Any) -> Any:
        """Return bounds by column with the dates of TOML written out; the blank of a label has no bounds."""
        if not isinstance(bounds, Mapping):
            return bounds
        return {
            name: [end.isoformat() if isinstance(end, date) else end for end in pair]
            if isinstance(pair, (list, tuple))
            else pair
            for name, pair in bounds.items()
            if pair != []
        }


class ObjectiveSection(OptionsSection):
    """``[objective]``: a linear model. Its keys are those of `sottovoce.objectives.GLM`."""


class ModelSection(PlanSection):
    """``[model]``: a network of the zoo or of one's own, and where it is computed."""

    name: str | None = None
    module: str | None = None
    sha256: str | None = None
    weights: Path | None = None
    weights_sha256: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    loss: str | None = None
    initial: Literal["keep", "reset"] | None = None
    physical_batch: int | None = Field(None, ge=1)
    device: str = "cpu"


class TrainSection(OptionsSection):
    """``[train]``: the algorithm; its other keys are options of the plan, checked by the plan."""

    algorithm: str
    adjacency: Any
    evaluate_every: int | None = Field(None, ge=1)


class PlanFile(PlanSection):
    """Everything a plan file may hold; docs/plan-files.md says what each key means."""

    version: Literal[1]
    title: str = ""
    accept: tuple[str, ...] = ()
    network: NetworkSection | None = None
    protocol: ProtocolSection = ProtocolSection(seed=0)
    noise: NoiseSection = NoiseSection(seed=None)
    budget: BudgetSection | None = None
    average: AverageSection | None = None
    data: DataSection | None = None
    objective: ObjectiveSection | None = None
    model: ModelSection | None = None
    train: TrainSection | None = None

    @property
    def limit(self) -> Budget | None:
        """The budget that calibrates the plan, if the file has one."""
        from sottovoce.accounting.budget import Budget

        return None if self.budget is None else Budget(**self.budget.model_dump())


@contextlib.contextmanager
def prefix_errors(where: str) -> Iterator[None]:
    """Put the place in a file before the message of an error about an option; its class stays."""
    try:
        yield
    except InvalidInput as error:
        raise type(error)(f"{where}: {error}") from None


def check_section(section: type[SectionType], table: Mapping[str, Any], where: str) -> SectionType:
    """Return a table as a section, or raise one message about all that is wrong with it."""
    try:
        return section.model_validate(dict(table))
    except ValidationError as error:
        raise ConfigError(_message(where, _problems(error, section))) from None


def check_plan_file(tables: Mapping[str, Any], where: str) -> PlanFile:
    """Return the tables of a plan file as checked sections, or raise one message about all problems.

    Values of options are checked by the plan when it is built.
    """
    check_version(tables, where)
    blanks, settings = _blanks(tables), None
    problems = list(blanks.values())
    try:
        settings = PlanFile.model_validate(dict(tables))
    except ValidationError as error:
        problems += _problems(error, PlanFile, blanks)
    problems += _misplaced(tables)
    if problems:
        raise ConfigError(_message(where, problems))
    assert settings is not None
    return settings


def _blanks(tables: Mapping[str, Any]) -> dict[str, str]:
    """Return a sentence about every blank that a drafted file still has, by its place."""
    sections = {name: table for name, table in tables.items() if isinstance(table, Mapping)}
    empty = [(name, key) for name, key in _BLANKS if sections.get(name, {}).get(key) in ("", [])]
    sentences = {f"[{name}] {key}": f"[{name}] {key} is blank; fill it in." for name, key in empty}
    data = sections.get("data", {})
    amount = sections.get("objective", {}).get("loss") in ("squared", "huber")
    for key in ("bounds", "categories"):
        facts = data.get(key)
        columns = [name for name, values in facts.items() if values == []] if isinstance(facts, dict) else []
        columns = [name for name in columns if name != data.get("label") or amount]
        if columns:
            names = ", ".join(map(repr, columns))
            sentences[key] = f"[data] {key} is blank for {names}: state what is public, or drop the column."
    return sentences


def check_version(tables: Mapping[str, object], where: str) -> None:
    """Raise unless a file is of the version that this package reads."""
    version = tables.get("version")
    if version is None:
        raise ConfigError(f"{where} has no version; write version = {VERSION} at its top.")
    if version != VERSION or isinstance(version, bool):
        raise ConfigError(f"{where} is of version {version!r}; this sottovoce reads version {VERSION}.")


def _misplaced(tables: Mapping[str, Any]) -> list[str]:
    """Return the problems between sections, and of the names of options."""
    average, train = tables.get("average"), tables.get("train")
    if (average is None) == (train is None):
        amount = "neither" if average is None else "both"
        return [f"needs either [average], what is averaged, or [train], what is learned; it has {amount}."]
    problems = []
    if train is not None and "data" not in tables:
        problems.append("[data] is missing; it says which records are learned from.")
    if train is not None and "model" in tables and "objective" in tables:
        problems.append("[model] is a network and [objective] a linear model; leave one out.")
    if average is not None:
        training = [name for name in ("data", "objective", "model") if name in tables]
        problems += [f"[{name}] is for training; [average] has values." for name in training]
    section, options = ("train", train) if average is None else ("average", average)
    if not isinstance(options, Mapping):
        return problems
    name = options.get("algorithm") if average is None else "averaging"
    if section == "train" and name == "averaging":
        return [*problems, "averaging is written as [average], without [train]."]
    keys = {*(TrainSection if average is None else AverageSection).model_fields} - {"adjacency"}
    try:
        # a name that is no text is a problem of the section itself
        known = isinstance(name, str)
        return problems + (misplaced_options(section, str(name), options, ELSEWHERE, keys) if known else [])
    except InvalidInput as error:
        return [*problems, f"[{section}]: {error}"]


def misplaced_options(
    section: str, name: str, options: Iterable[str], elsewhere: Mapping[str, str], keys: Collection[str] = ()
) -> list[str]:
    """Return a sentence about each option that the algorithm ``name`` does not have, or has ``elsewhere``.

    ``keys`` are those of the section itself.
    """
    from sottovoce.algorithms.build import plan_options

    known = plan_options(name)
    offered = [key for key in known if key not in elsewhere]
    problems = []
    for key in options:
        if key in elsewhere:
            problems.append(f"[{section}] {key} has its own place: {elsewhere[key]}.")
        elif key not in known and key not in keys:
            near = did_you_mean(key, [*offered, *keys])
            known_options = ", ".join(offered)
            problems.append(f"[{section}]: {name} has no option {key!r}{near}; it knows {known_options}.")
    return problems


def _message(where: str, problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return f"{where} {problems[0]}" if problems[0].startswith("needs") else f"{where}, {problems[0]}"
    numbered = " ".join(f"({k}) {problem}" for k, problem in enumerate(problems, 1))
    return f"{where} has {len(problems)} problems: {numbered}"


def _problems(error: ValidationError, section: type[BaseModel], blanks: Collection[str] = ()) -> list[str]:
    """Return one sentence per problem, except at ``blanks``."""
    sentences: dict[str, str] = {}
    for problem in error.errors():
        unknown = problem["type"] == "extra_forbidden"
        # pydantic names the alternatives of a union by their types
        *path, key = map(str, problem["loc"] or [""])
        parts = [part for part in path if not part[:1].isupper() and "[" not in part]
        if unknown or not (key[:1].isupper() or "[" in key):
            parts.append(key)
        place = f"[{parts[0]}] {'.'.join(parts[1:])}".strip() if any(parts) else ""
        if len(parts) == 1 and parts[0] in _TOP_KEYS:
            place = parts[0]
        value = repr(problem["input"])
        shown = value if len(value) <= 60 else value[:57] + "..."
        text = f"{problem['msg'][:1].lower()}{problem['msg'][1:]}, got {shown}."
        sentence = f"{place}: {text}"
        if unknown:
            known = _known_keys(section, parts[:-1])
            near = did_you_mean(parts[-1], known)
            sentence = f"{place} is not known{near}; expected one of {', '.join(known)}."
        elif problem["type"] == "missing":
            sentence = f"{place} is missing."
        elif problem["type"] == "value_error":  # raised by a check of this package
            message = problem["msg"].removeprefix("Value error, ").rstrip(".") + "."
            sentence = f"{place}: {message}" if place else message
        if place not in blanks:
            sentences.setdefault(place, sentence)
    return list(sentences.values())


def _known_keys(section: type[BaseModel], parts: Sequence[str]) -> list[str]:
    for part in parts:
        if part not in section.model_fields:  # the number of a table among several
            continue
        annotation = section.model_fields[part].annotation
        options = [annotation, *getattr(annotation, "__args__", ())]
        section = next((t for t in options if isinstance(t, type) and issubclass(t, BaseModel)), section)
    return list(section.model_fields)
