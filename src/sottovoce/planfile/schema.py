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
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from sottovoce._validate import did_you_mean
from sottovoce.accounting.guarantee import ViewName
from sottovoce.errors import ConfigError, InvalidInput

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from sottovoce.accounting.budget import Budget
    from sottovoce.noise.samplers import ProtectiveNoise, SimulatedNoise
    from sottovoce.protocols import NamedProtocol

VERSION = 1
# What a plan file that `sottovoce columns` drafted leaves blank, with what belongs there.
_BLANKS = {
    "network": {"graph": 'who talks to whom, for example "complete:8" for eight sites'},
    "budget": {"epsilon": "what may be spent, for example 1.0", "delta": "for example 1e-6"},
    "objective": {"loss": '"logistic" for labels 0 and 1, "squared" for an amount'},
    "data": {"label": "the column to predict", "classes": "the public names of the labels"},
}
NOISE_OPTIONS = ("noise_multiplier", "noise_std", "noise_ratio")
# Options of a plan that have another place than the algorithm's section: in a plan file, and in an agreement.
_PLACES = {
    "objective": ("[objective] or [model]", "[model]"),
    "network": ("[network]", "graph"),
    "protocol": ("[protocol]", ""),
    "seed": ("[protocol] seed", "it is the hash of the agreement"),
    "sizes": ("[data]", "sizes stay private, write batch_size and sample_rate"),
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


class NetworkSection(PlanSection):
    """``[network]``: who can talk to whom."""

    graph: str | None = Field(None, description="a graph by name, as sottovoce account --graph takes it")
    matrix: Path | None = Field(None, description="gossip weights of one's own, CSV or NPZ")
    weights: str | None = Field(None, description="metropolis, max_degree, lazy or uniform")
    names: tuple[str, ...] | None = Field(None, description="what the nodes are called, in order")

    @property
    def random(self) -> bool:
        """Whether the graph is drawn, so that every step can draw its own."""
        return self.graph is not None and self.graph.split(":")[0] in ("er", "geometric")


class ProtocolSection(PlanSection):
    """``[protocol]``: how the nodes average, as `sottovoce.protocols.parse` reads it."""

    name: str | None = Field(None, description="a protocol by name; the algorithm's own when left out")
    rounds: int | None = Field(None, description="theoretical number when left out")
    kind: str | None = Field(None, description="how a tree is drawn: bfs, capped, uniform or few-leaves")
    root: int | None = Field(None, description="root of a tree")
    fresh: float | None = Field(None, description="fresh-noise: fresh noise per round, a share of the noise")
    seed: int = Field(0, ge=0, description="draws trees and random edges; public")

    def named(self, default: str, where: str = "[protocol]") -> NamedProtocol:
        """Return the protocol by name, ``default`` where the file names none; ``where`` begins an error."""
        from sottovoce.protocols import parse

        options = {"rounds": self.rounds, "kind": self.kind, "root": self.root, "fresh": self.fresh}
        words = [f"{key}={value}" for key, value in options.items() if value is not None]
        if self.name is None and words:
            raise ConfigError(f"{where} {words[0].split('=')[0]} needs a name beside it.")
        if self.rounds is not None and self.rounds < 0:
            raise ConfigError(f"{where} rounds must not be negative, got {self.rounds}.")
        with prefix_errors(where):
            return parse(":".join([self.name or default, *words]))


def _dates_as_words(bounds: Any) -> Any:
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


def _amount(name: str) -> BeforeValidator:
    """Check an amount of noise as the plan does, whose option it is."""

    def check(value: Any) -> float | None:
        from sottovoce import _validate  # numpy comes with it

        return None if value is None else _validate.non_negative(value, name)

    return BeforeValidator(check)


class NoiseSection(PlanSection):
    """``[noise]``: how much, and from where; without an amount, the least noise that meets ``[budget]``."""

    noise_multiplier: Annotated[float | None, _amount("noise_multiplier")] = Field(
        None, description="noise over the clip norm (the radius of an average); 0 is no privacy"
    )
    noise_std: Annotated[float | None, _amount("noise_std")] = Field(
        None, description="absolute standard deviation, per coordinate"
    )
    noise_ratio: Annotated[float | None, _amount("noise_ratio")] = Field(
        None, description="Laplace scale over sensitivity, for dp-gcd"
    )
    seed: int | None = Field(
        None, ge=0, description="makes the run a simulation: reproducible, not protective"
    )

    @property
    def source(self) -> ProtectiveNoise | SimulatedNoise:
        """A simulation's generator where the file names a seed, protective noise where it does not."""
        from sottovoce.noise.samplers import ProtectiveNoise, SimulatedNoise

        return ProtectiveNoise() if self.seed is None else SimulatedNoise(self.seed)


class BudgetSection(PlanSection):
    """``[budget]``: what may be spent, against whom, and how wrong the answer may be."""

    epsilon: float = Field(gt=0, allow_inf_nan=True, description="inf asks for no privacy, and no noise")
    delta: float = Field(gt=0, lt=1)
    view: ViewName | None = Field(None, description="network; central where a curator is trusted")
    observer: int | None = Field(None, ge=0)
    user: int | None = Field(None, ge=0)
    colluders: int | tuple[int, ...] = ()
    max_noise: float | None = Field(
        None, gt=0, description="largest noise std one accepts in a node's result"
    )

    @property
    def budget(self) -> Budget:
        """The budget that calibrates a plan."""
        from sottovoce.accounting.budget import Budget

        return Budget(**self.model_dump(exclude={"max_noise"}))


class AverageSection(PlanSection):
    """``[average]``: what is averaged. Its other keys are options of the plan: radius, center, dim."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    adjacency: Any = Field(description="user: the whole row of a node is replaced")
    values: Path | tuple[float, ...] | None = Field(None, description="CSV or NPZ file, or the numbers")


class DataSection(PlanSection):
    """``[data]``: which records, how they are prepared, who holds them."""

    name: str | None = Field(None, description="a data set by name")
    file: Path | None = Field(None, description="a table of one's own: csv, tsv, parquet, npz")
    label: str | None = Field(None, description="column to predict, for tables with columns")
    group: str | None = Field(None, description="column that tells sites apart, for tables with columns")
    features: str | tuple[str, ...] | None = Field(
        None, description="columns to use, all when left out; of images, fixed features by name"
    )
    drop: tuple[str, ...] = Field((), description="columns not to use")
    categories: dict[str, tuple[str | int | float, ...] | int] | None = Field(
        None, description="public values of columns that hold names, or a number of columns to hash them to"
    )
    classes: tuple[str | int | float, ...] | None = Field(
        None, description="public names of the classes, in order"
    )
    class_weight: Literal["balanced"] | tuple[float, ...] | dict[str, float] | None = Field(
        None, description="public weights of the classes in the loss, in order or by name, or balanced"
    )
    class_shares: tuple[float, ...] | dict[str, float] | None = Field(
        None, description="public shares of the classes, for balanced weights"
    )
    missing: Literal["refuse", "drop", "middle", "indicator"] | None = Field(
        None, description="refuse when left out"
    )
    bounds: Annotated[
        Literal["none"] | tuple[Any, ...] | dict[str, tuple[Any, ...]] | None,
        BeforeValidator(_dates_as_words),
    ] = Field(
        None,
        description="public bounds of columns of numbers or dates: [low, high], one pair per feature, a "
        'table by name, or "none" to take numbers as they are',
    )
    standardize: bool = Field(False, description="by the records themselves: not private, must be accepted")
    unit_rows: bool = False
    intercept: bool = False
    test_share: float = Field(0.0, ge=0, lt=1, description="held out for a score, which must be accepted")
    test_file: Path | None = Field(None, description="public records for the score")
    folder: Path | None = Field(None, description="where official image files are; else SOTTOVOCE_DATA")
    side: int | None = Field(None, ge=1, description="resize images to this side")
    mean: float | None = Field(None, description="public constant of images, 0 when left out")
    std: float | None = Field(None, gt=0, description="public constant of images, 1 when left out")
    partition: Literal["equal", "label", "dirichlet", "column"] | None = None
    users: int | None = Field(None, ge=1, description="where there is no network")
    sizes: int | tuple[int, ...] | None = Field(
        None,
        description="records of each agent, public; enough to account for a plan before the file is there",
    )
    width: int | None = Field(None, ge=1, description="number of features, beside sizes; else features")
    skew: float = Field(0.0, ge=0, le=1, description="by label: 0 even, 1 one owner per class")
    concentration: float = Field(1.0, gt=0)
    seed: int = Field(0, ge=0, description="splits and partitions; public")


class ObjectiveSection(PlanSection):
    """``[objective]``: a linear model. Its keys are those of `sottovoce.objectives.GLM`."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)


class ModelSection(PlanSection):
    """``[model]``: a network of the zoo or of one's own, and where it is computed."""

    name: str | None = Field(None, description="a network of the zoo")
    module: str | None = Field(None, description='a function that builds one, "mynet:build" of mynet.py')
    sha256: str | None = Field(None, description="digest that the module's file must have")
    weights: Path | None = Field(None, description="safetensors file with the weights to start from")
    weights_sha256: str | None = Field(None, description="digest that the weights' file must have")
    options: dict[str, Any] = Field(default_factory=dict, description="arguments of whatever builds it")
    loss: str | None = Field(None, description="what fits the labels when left out")
    initial: Literal["keep", "reset"] | None = Field(
        None, description="keep the weights the network comes with, or draw new ones"
    )
    physical_batch: int | None = Field(None, ge=1, description="records in memory at a time")
    device: str = "cpu"


class TrainSection(PlanSection):
    """``[train]``: the algorithm; its other keys are options of the plan, checked by the plan."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    algorithm: str
    adjacency: Any = Field(description="add-remove, replace-one (a record) or user (a whole agent)")
    fresh_graph: bool = Field(False, description="draw the graph (er, geometric) afresh for every step")
    evaluate_every: int | None = Field(None, ge=1, description="score, report and save after so many steps")


class PlanFile(PlanSection):
    """Everything a plan file may hold."""

    version: Literal[1]
    title: str = ""
    accept: tuple[str, ...] = Field((), description="what a guarantee may leave out: see sottovoce plan")
    network: NetworkSection | None = None
    protocol: ProtocolSection = Field(default_factory=ProtocolSection)  # type: ignore[arg-type]
    noise: NoiseSection = Field(default_factory=NoiseSection)  # type: ignore[arg-type]
    budget: BudgetSection | None = None
    average: AverageSection | None = None
    data: DataSection | None = None
    objective: ObjectiveSection | None = None
    model: ModelSection | None = None
    train: TrainSection | None = None


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
    sentences = {}
    for section, hints in _BLANKS.items():
        table = tables.get(section)
        for key, hint in hints.items():
            if isinstance(table, Mapping) and table.get(key) in ("", []):
                sentences[f"[{section}] {key}"] = f"[{section}] {key} is blank: {hint}."
    data, objective = tables.get("data"), tables.get("objective")
    if not isinstance(data, Mapping):
        return sentences
    amount = isinstance(objective, Mapping) and objective.get("loss") in ("squared", "huber")
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
        problems += [
            f"[{name}] is for training; [average] has values."
            for name in ("data", "objective", "model")
            if name in tables
        ]
    section = "average" if train is None else "train"
    options = average if train is None else train
    return problems + (_option_problems(section, options) if isinstance(options, Mapping) else [])


def _option_problems(section: str, options: Mapping[str, Any]) -> list[str]:
    """Return the options in [average] or [train] that the algorithm does not have, or has elsewhere."""
    name = "averaging" if section == "average" else options.get("algorithm")
    if not isinstance(name, str):
        return []  # a problem of the section itself
    if section == "train" and name == "averaging":
        return ["averaging is written as [average], without [train]."]
    keys = (AverageSection if section == "average" else TrainSection).model_fields
    try:
        return misplaced_options(
            section, name, options, ELSEWHERE, [key for key in keys if key != "adjacency"]
        )
    except InvalidInput as error:
        return [f"[{section}]: {error}"]


def misplaced_options(
    section: str,
    name: str,
    options: Iterable[str],
    elsewhere: Mapping[str, str],
    keys: Collection[str] = (),
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
            problems.append(
                f"[{section}]: {name} has no option {key!r}{near}; it knows {', '.join(offered)}."
            )
    return problems


def _message(where: str, problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return f"{where} {problems[0]}" if problems[0].startswith("needs") else f"{where}, {problems[0]}"
    numbered = " ".join(f"({k}) {problem}" for k, problem in enumerate(problems, 1))
    return f"{where} has {len(problems)} problems: {numbered}"


def _problems(error: ValidationError, section: type[BaseModel], blanks: Collection[str] = ()) -> list[str]:
    """Return one sentence per problem, except at ``blanks``.

    A key that only looks missing, since it is misspelled, is left out.
    """
    sentences: dict[str, str] = {}
    meant: set[str] = set()
    problems = error.errors()
    # a list that is too short because its entries are wrong has no problem of its own
    inner = {one["loc"][:end] for one in problems for end in range(len(one["loc"]))}
    whole = [one for one in problems if one["type"] != "too_short" or one["loc"] not in inner]
    for problem in sorted(whole, key=lambda one: one["type"] != "extra_forbidden"):
        *path, key = map(str, problem["loc"] or [""])
        # pydantic names the alternatives of a union by their types
        parts = [part for part in path if not part[:1].isupper() and "[" not in part]
        if problem["type"] == "extra_forbidden" or not (key[:1].isupper() or "[" in key):
            parts.append(key)
        place = _place(parts)
        if problem["type"] == "extra_forbidden":
            known = _known_keys(section, parts[:-1])
            near = did_you_mean(parts[-1], known)
            meant |= {_place([*parts[:-1], key]) for key in known if repr(key) in near}
            sentences[place] = f"{place} is not known{near}; expected one of {', '.join(known)}."
        elif place not in sentences and place not in meant and place not in blanks:
            sentences[place] = _sentence(place, problem)
    return list(sentences.values())


def _sentence(place: str, problem: ErrorDetails) -> str:
    if problem["type"] == "missing":
        return f"{place} is missing."
    if problem["type"] == "value_error":  # raised by a check of this package
        message = problem["msg"].removeprefix("Value error, ").rstrip(".") + "."
        return f"{place}: {message}" if place else message
    value = repr(problem["input"])
    shown = value if len(value) <= 60 else value[:57] + "..."
    return f"{place}: {problem['msg'][:1].lower()}{problem['msg'][1:]}, got {shown}."


def _place(parts: Sequence[str]) -> str:
    if not any(parts):
        return ""
    if len(parts) == 1:
        return parts[0] if parts[0] in _TOP_KEYS else f"[{parts[0]}]"
    return f"[{parts[0]}] {'.'.join(parts[1:])}"


def _known_keys(section: type[BaseModel], parts: Sequence[str]) -> list[str]:
    for part in parts:
        if part not in section.model_fields:  # the number of a table among several
            continue
        annotation = section.model_fields[part].annotation
        options = [annotation, *getattr(annotation, "__args__", ())]
        section = next((t for t in options if isinstance(t, type) and issubclass(t, BaseModel)), section)
    return list(section.model_fields)
