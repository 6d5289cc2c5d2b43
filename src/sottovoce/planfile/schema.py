"""Plan files: TOML in, checked sections out. One kind of file serves averaging and every kind of training.

A plan file says who talks (``[network]``), how they average (``[protocol]``), how much noise (``[noise]``),
what may be spent (``[budget]``) and what is done: ``[average]``, or ``[data]`` and ``[train]`` with a linear
model (``[objective]``) or a network (``[model]``). Keys of ``[average]`` and ``[train]`` are the options of
the plan itself, so they are checked by the plan, in the words that Python raises. Whatever is wrong becomes
one sentence that names the file and the section. A file without ``version = 1`` is refused.
"""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from sottovoce.errors import ConfigError, DataError, InvalidInput

if TYPE_CHECKING:
    import numpy as np

    from sottovoce.graphs import Network
    from sottovoce.protocols import NamedProtocol

__all__ = [
    "BudgetSection", "DataSection", "ModelSection", "NetworkSection", "NoiseSection", "ObjectiveSection",
    "PlanFile", "ProtocolSection", "about", "checked", "read_numbers", "read_plan", "read_toml",
]  # fmt: skip

VERSION = 1
ViewName = Literal["local", "outsider", "network", "pairwise", "colluders", "central"]


class Section(BaseModel):
    """A table of a plan file: unknown keys are refused, values are not changed after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class NetworkSection(Section):
    """``[network]``: who can talk to whom.

    Examples
    --------
    >>> NetworkSection(graph="ring:5").build()
    Network('ring:5', n=5, edges=5)
    """

    graph: str | None = Field(None, description="a graph by name, as sottovoce account --graph takes it")
    matrix: Path | None = Field(None, description="gossip weights of one's own, CSV or NPZ")
    weights: str | None = Field(None, description="metropolis, max_degree, lazy or uniform")
    names: tuple[str, ...] | None = Field(None, description="what the nodes are called, in order")

    def build(self, folder: Path | None = None, *, seed: int | None = None) -> Network:
        """Return the network; files are looked for in ``folder``, a random graph is drawn from ``seed``."""
        from dataclasses import replace

        from sottovoce import graphs

        if (self.graph is None) == (self.matrix is None):
            raise ConfigError('[network] needs either graph or matrix; for example graph = "ring:8".')
        if self.matrix is not None:
            path = (folder or Path()) / self.matrix
            network = graphs.from_matrix(read_numbers(path), name=path.name)
        else:
            assert self.graph is not None
            text = self.graph
            if folder is not None and text.startswith("file:"):
                text = f"file:{folder / text.removeprefix('file:')}"
            if seed is not None:
                text = ":".join([part for part in text.split(":") if not part.startswith("seed=")])
                text = f"{text}:seed={seed}"
            network = graphs.parse(text)
        if self.weights is not None:
            network = network.reweighted(self.weights)
        if self.names is not None:
            network = replace(network, labels=self.names)
        return network

    @property
    def random(self) -> bool:
        """Whether the graph is drawn, so that every step can draw its own."""
        return self.graph is not None and self.graph.split(":")[0] in ("er", "geometric")


class ProtocolSection(Section):
    """``[protocol]``: how the nodes average, as `sottovoce.protocols.parse` reads it.

    Examples
    --------
    >>> str(ProtocolSection(name="tree", tree="uniform").named("gossip"))
    'tree:kind=uniform'
    >>> str(ProtocolSection().named("chebyshev"))
    'chebyshev'
    """

    name: str | None = Field(None, description="a protocol by name; the algorithm's own when left out")
    rounds: int | None = Field(None, description="theoretical number when left out")
    tree: str | None = Field(None, description="how a tree is drawn: bfs, capped, uniform")
    root: int | None = Field(None, description="root of a tree")
    fresh: float | None = Field(None, description="refreshed: fresh noise per round, a share of the noise")
    seed: int = Field(0, ge=0, description="draws trees and random edges; public")

    def named(self, default: str, where: str = "[protocol]") -> NamedProtocol:
        """Return the protocol by name, ``default`` where the file names none; ``where`` begins a refusal."""
        from sottovoce.protocols import parse

        given = {"rounds": self.rounds, "kind": self.tree, "root": self.root, "fresh": self.fresh}
        said = [f"{key}={value}" for key, value in given.items() if value is not None]
        if self.name is None and said:
            raise ConfigError(f"{where} {said[0].split('=')[0]} needs a name beside it.")
        if self.rounds is not None and self.rounds < 0:
            raise ConfigError(f"{where} rounds must not be negative, got {self.rounds}.")
        with about(where):
            return parse(":".join([self.name or default, *said]))


def _noise(name: str) -> BeforeValidator:
    """Refuse an amount of noise in the words of the plan, whose option it is."""

    def checked(value: Any) -> float | None:
        from sottovoce import _validate  # numpy comes with it

        return None if value is None else _validate.non_negative(value, name)

    return BeforeValidator(checked)


class NoiseSection(Section):
    """``[noise]``: how much, and from where; left out, the least noise that meets ``[budget]``."""

    multiplier: Annotated[float | None, _noise("noise_multiplier")] = Field(
        None, description="noise over the clip (the radius of an average); 0 is no privacy"
    )
    std: Annotated[float | None, _noise("noise_std")] = Field(
        None, description="absolute standard deviation, per coordinate"
    )
    ratio: Annotated[float | None, _noise("noise_ratio")] = Field(
        None, description="Laplace scale over sensitivity, for dp-gcd"
    )
    seed: int | None = Field(
        None, ge=0, description="makes the run a simulation: reproducible, not protective"
    )

    @property
    def source(self) -> Any:
        """A simulation's generator where the file names a seed, protective noise where it does not."""
        from sottovoce.noise.samplers import ProtectiveNoise, SimulatedNoise

        return ProtectiveNoise() if self.seed is None else SimulatedNoise(self.seed)


class BudgetSection(Section):
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
    def who(self) -> dict[str, Any]:
        """The arguments of `Plan.privacy`, the view among them."""
        named = {"view": self.view, "observer": self.observer, "user": self.user}
        given: dict[str, Any] = {key: value for key, value in named.items() if value is not None}
        return given | ({"colluders": self.colluders} if self.colluders != () else {})


class AverageSection(Section):
    """``[average]``: what is averaged. Its other keys are options of the plan: radius, center, dim."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    adjacency: Any = Field(description="user: the whole row of a node is replaced")
    values: Path | tuple[float, ...] | None = Field(None, description="CSV or NPZ file, or the numbers")


class DataSection(Section):
    """``[data]``: which records, how they are prepared, who holds them."""

    name: str | None = Field(None, description="a data set by name")
    file: Path | None = Field(None, description="a table of one's own: csv, parquet, npz, arff, svm")
    label: str | None = Field(None, description="column to predict, for tables with columns")
    group: str | None = Field(None, description="column that tells sites apart, for tables with columns")
    features: str | tuple[str, ...] | None = Field(
        None, description="columns to use, all when left out; of images, fixed features by name"
    )
    drop: tuple[str, ...] = Field((), description="columns not to use")
    categories: dict[str, tuple[str | int | float, ...]] | None = Field(
        None, description="public values of columns that hold names"
    )
    classes: tuple[str | int | float, ...] | None = Field(
        None, description="public names of the classes, in order"
    )
    missing: Literal["refuse", "drop", "middle"] | None = Field(None, description="refuse when left out")
    bounds: tuple[Any, ...] | dict[str, tuple[float, float]] | None = Field(
        None, description="public bounds: [low, high], one pair per feature, or a table by name"
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
        None, description="records of each agent, public: prices a plan before the file is there"
    )
    width: int | None = Field(None, ge=1, description="number of features, beside sizes; else features")
    skew: float = Field(0.0, ge=0, le=1, description="by label: 0 even, 1 one owner per class")
    concentration: float = Field(1.0, gt=0)
    seed: int = Field(0, ge=0, description="splits and partitions; public")


class ObjectiveSection(Section):
    """``[objective]``: a linear model. Its keys are those of `sottovoce.objectives.GLM`."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)


class ModelSection(Section):
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


class TrainSection(Section):
    """``[train]``: the algorithm; its other keys are options of the plan, checked by the plan."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    algorithm: str
    adjacency: Any = Field(description="add-remove, replace-one (a record) or user (a whole agent)")
    fresh_graph: bool = Field(False, description="draw the graph (er, geometric) afresh for every step")
    every: int | None = Field(None, ge=1, description="score, report and save after so many steps")


class PlanFile(Section):
    """Everything a plan file may hold."""

    version: Literal[1]
    title: str = ""
    accept: tuple[str, ...] = Field((), description="what is read of private records and not charged")
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
def about(where: str, *, options: bool = False) -> Iterator[None]:
    """Put the place in a file before the sentence that a constructor raises; its kind stays.

    With ``options`` the body does nothing but hand a section's options to a constructor, so that a TypeError
    is about one of them; elsewhere it is a mistake of ours and is left alone.

    >>> with about("plan.toml, [train]"):
    ...     raise InvalidInput("steps must be positive, got 0.")
    Traceback (most recent call last):
    sottovoce.errors.InvalidInput: plan.toml, [train]: steps must be positive, got 0.
    """
    try:
        yield
    except InvalidInput as error:
        raise type(error)(f"{where}: {error}") from None
    except (TypeError, OverflowError) as error:
        if not options:
            raise
        raise ConfigError(f"{where} does not hold what is expected here: {error}.") from None


Model = TypeVar("Model", bound=BaseModel)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the tables of a TOML file, or say which line is wrong."""
    source = Path(path)
    try:
        return tomllib.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"There is no plan file {source}; `sottovoce plan --help` shows one.") from None
    except OSError as error:
        raise ConfigError(f"Cannot read {source}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{source} is not text; expected a plan file in TOML.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}.") from None


def read_plan(path: str | Path) -> PlanFile:
    """Read a plan file and check its sections; their options are checked when the plan is built.

    Examples
    --------
    >>> import tempfile
    >>> text = 'version = 1\\n[network]\\ngraph = "ring:4"\\n[noise]\\nmultiplier = -1\\n'
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "plan.toml"
    ...     _ = file.write_text(text)
    ...     read_plan(file)
    Traceback (most recent call last):
    sottovoce.errors.ConfigError: plan.toml, [noise] multiplier: noise_multiplier must be a finite number of at least 0, got -1.
    """  # noqa: E501
    return check_plan_file(read_toml(path), Path(path).name)


def check_plan_file(tables: Mapping[str, Any], where: str) -> PlanFile:
    """Return the tables of a plan file as checked sections."""
    version = tables.get("version")
    if version is None:
        raise ConfigError(f"{where} has no version; write version = {VERSION} at its top.")
    if version != VERSION or isinstance(version, bool):
        raise ConfigError(f"{where} is of version {version!r}; this sottovoce reads version {VERSION}.")
    found = checked(PlanFile, tables, where)
    if (found.average is None) == (found.train is None):
        raise ConfigError(
            f"{where} needs either [average], what is averaged, or [train], what is learned; it has "
            f"{'neither' if found.average is None else 'both'}."
        )
    if found.train is not None and found.data is None:
        raise ConfigError(f"{where}, [data] is missing; it says which records are learned from.")
    if found.train is not None and found.model is not None and found.objective is not None:
        raise ConfigError(f"{where} has [model], a network, and [objective], a linear model; leave one out.")
    if found.average is not None:
        for section in ("data", "objective", "model"):
            if getattr(found, section) is not None:
                raise ConfigError(f"{where}, [{section}] is for training; [average] has values.")
    return found


def checked(model: type[Model], tables: Mapping[str, Any], where: str) -> Model:
    """Return ``tables`` as a model, or raise one sentence about the first thing that is wrong."""
    try:
        return model.model_validate(dict(tables))
    except ValidationError as error:
        raise ConfigError(_sentence(error, model, where)) from None


def _sentence(error: ValidationError, model: type[BaseModel], where: str) -> str:
    problems = error.errors()
    # a misspelt key also shows up as a missing one: name the misspelling
    problem = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    place = [str(part) for part in problem["loc"] if not str(part)[:1].isupper() and "[" not in str(part)]
    named = f"{where}, {_place(place)}"
    if problem["type"] == "extra_forbidden":
        known = _known(model, place[:-1])
        return f"{named} is not known; expected one of {', '.join(known)}."
    if problem["type"] == "missing":
        return f"{named} is missing."
    if problem["type"] == "value_error":  # a sentence of ours
        return f"{named}: {problem['msg'].removeprefix('Value error, ')}"
    said = problem["msg"][:1].lower() + problem["msg"][1:]
    return f"{named}: {said}, got {_shown(problem['input'])}."


def _place(place: Sequence[str]) -> str:
    if not place:
        return "the file"
    if len(place) == 1:
        return place[0] if place[0] in ("title", "accept", "version") else f"[{place[0]}]"
    return f"[{place[0]}] {'.'.join(place[1:])}"


def _known(model: type[BaseModel], place: Sequence[str]) -> list[str]:
    for part in place:
        field = model.model_fields.get(part)
        inner = getattr(field, "annotation", None)
        options = [inner, *getattr(inner, "__args__", ())]
        model = next((t for t in options if isinstance(t, type) and issubclass(t, BaseModel)), model)
    return list(model.model_fields)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_numbers(path: str | Path) -> np.ndarray:
    """Return the one table of numbers in a CSV (no header, or one of words) or NPZ file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "v.csv"
    ...     _ = file.write_text("age,dose\\n40,1.5\\n50,2.5\\n")
    ...     read_numbers(file).tolist()
    [[40.0, 1.5], [50.0, 2.5]]
    """
    import zipfile

    import numpy as np

    source = Path(path)
    try:
        if source.suffix.lower() in (".npz", ".npy"):
            held = np.load(source, allow_pickle=False)
            arrays = {name: held[name] for name in held.files} if hasattr(held, "files") else {"": held}
            if len(arrays) != 1:
                raise DataError(f"{source} must hold one array, it holds {', '.join(arrays) or 'none'}.")
            return np.asarray(next(iter(arrays.values())), dtype=float)
        lines = source.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise DataError(f"There is no file {source}.") from None
    except OSError as error:
        raise DataError(f"Cannot read {source}: {error.strerror or error}.") from None
    except DataError:
        raise
    except (ValueError, EOFError, zipfile.BadZipFile):
        raise DataError(f"{source} does not hold numbers; expected a CSV or NPZ file of numbers.") from None
    return _csv(source, lines)


def _csv(source: Path, lines: list[str]) -> np.ndarray:
    import numpy as np

    rows: list[list[float]] = []
    for line_number, line in enumerate(lines, start=1):
        words = [word.strip() for word in line.replace(";", ",").replace("\t", ",").split(",")]
        if words == [""] or words[0].startswith("#"):
            continue
        try:
            row = [float(word) for word in words]
        except ValueError:
            if rows or line_number > 1:
                bad = next(word for word in words if not _is_number(word))
                raise DataError(f"Line {line_number} of {source} holds {bad!r}, expected numbers.") from None
            continue  # a header
        if rows and len(row) != len(rows[0]):
            raise DataError(
                f"Line {line_number} of {source} holds {len(row)} numbers, expected {len(rows[0])}."
            )
        rows.append(row)
    if not rows:
        raise DataError(f"{source} holds no numbers.")
    return np.array(rows)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
