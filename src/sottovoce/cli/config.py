"""Plan files: TOML in, checked sections out; the same sections serve averaging and training.

A plan file says who talks (``[network]``), how they average (``[protocol]``), how much noise
(``[noise]``), what may be spent (``[budget]``) and what is done: ``[average]``, or the sections of a training
plan. `read_plan` reads the file and checks it against a model; a command with sections of its own
subclasses `PlanFile`. Whatever is wrong becomes one `ConfigError` that names the file, section and key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sottovoce.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np

    from sottovoce.graphs import Network
    from sottovoce.protocols import Protocol

__all__ = [
    "AverageSection", "AveragingFile", "BudgetSection", "NetworkSection", "NoiseSection", "PlanFile",
    "ProtocolSection", "read_plan", "read_toml",
]  # fmt: skip

ProtocolName = Literal["gossip", "chebyshev", "tree", "exchange", "refreshed", "randomized"]
ViewName = Literal["local", "network", "pairwise", "colluders", "central"]


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

    def build(self, folder: Path | None = None) -> Network:
        """Return the network; files are looked for in ``folder``."""
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
            network = graphs.parse(text)
        if self.weights is not None:
            network = network.reweighted(self.weights)
        if self.names is not None:
            network = replace(network, labels=self.names)
        return network


class ProtocolSection(Section):
    """``[protocol]``: how the nodes average.

    Examples
    --------
    >>> network = NetworkSection(graph="hypercube:3").build()
    >>> ProtocolSection(name="exchange").build(network)
    Exchange(n=8, rounds=3)
    >>> ProtocolSection().build(network)
    Chebyshev(n=8, rounds=3)
    """

    name: ProtocolName = "chebyshev"
    rounds: int | None = Field(None, ge=0, description="theoretical number when left out")
    tree: Literal["bfs", "capped", "uniform"] = Field("bfs", description="how a tree is drawn")
    root: int | None = Field(None, ge=0, description="root of a tree")
    fresh: float = Field(0.1, ge=0, description="refreshed: fresh noise per round, as a share of the noise")
    seed: int = Field(0, ge=0, description="draws trees and random edges; public")

    def build(self, network: Network) -> Protocol:
        """Return the protocol on a network; the number of rounds is the theoretical one by default."""
        import numpy as np

        from sottovoce import protocols

        rng = np.random.default_rng(self.seed)
        if self.name in ("exchange", "tree") and self.rounds is not None:
            raise ConfigError(f"The number of rounds of {self.name} follows from the network; leave it out.")
        if self.name == "exchange":
            return protocols.Exchange(network.n)
        if self.name == "tree":
            return protocols.Tree(network, root=self.root, kind=self.tree, rng=_needed(rng, self.tree))
        kind = "randomized" if self.name == "randomized" else "synchronous"
        rounds = protocols.rounds_for(network, kind=kind) if self.rounds is None else self.rounds
        if self.name == "randomized":
            return protocols.Randomized(network, rounds, rng)
        if self.name == "refreshed":
            return protocols.Refreshed(network, rounds, tau=self.fresh)
        return (protocols.Gossip if self.name == "gossip" else protocols.Chebyshev)(network, rounds)


def _needed(rng: np.random.Generator, tree: str) -> Any:
    return None if tree == "bfs" else rng


class NoiseSection(Section):
    """``[noise]``: how much, and from where; left out, the least noise that meets ``[budget]``."""

    multiplier: float | None = Field(None, gt=0, description="noise over sensitivity")
    std: float | None = Field(None, gt=0, description="absolute standard deviation, per coordinate")
    seed: int | None = Field(
        None, ge=0, description="makes the run a simulation: reproducible, not protective"
    )


class BudgetSection(Section):
    """``[budget]``: what may be spent, against whom, and how wrong the answer may be."""

    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)
    view: ViewName = "local"
    observer: int | None = Field(None, ge=0)
    user: int | None = Field(None, ge=0)
    colluders: tuple[int, ...] = ()
    max_noise: float | None = Field(
        None, gt=0, description="largest noise std one accepts in a node's result"
    )

    @property
    def who(self) -> dict[str, Any]:
        """The arguments of `Plan.privacy` beside the view."""
        named = {"observer": self.observer, "user": self.user}
        found: dict[str, Any] = {key: value for key, value in named.items() if value is not None}
        return found | ({"colluders": self.colluders} if self.colluders else {})


class AverageSection(Section):
    """``[average]``: what is averaged. Values are clipped to a public ball; nothing else is known of them."""

    radius: float = Field(gt=0, description="radius of the ball")
    centre: float | tuple[float, ...] = 0.0
    dim: int = Field(1, ge=1, description="numbers per node, for the cost")
    values: Path | tuple[float, ...] | None = Field(None, description="CSV or NPZ file, or the numbers")


class PlanFile(Section):
    """What every plan file may hold; training plans add their own sections by subclassing."""

    title: str = ""
    network: NetworkSection
    protocol: ProtocolSection = Field(default_factory=ProtocolSection)  # type: ignore[arg-type]
    noise: NoiseSection = Field(default_factory=NoiseSection)  # type: ignore[arg-type]
    budget: BudgetSection | None = None


class AveragingFile(PlanFile):
    """A plan file with an ``[average]`` section."""

    average: AverageSection


Model = TypeVar("Model", bound=BaseModel)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the tables of a TOML file, or say which line is wrong."""
    source = Path(path)
    try:
        return tomllib.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"There is no plan file {source}; docs/plan-files.md shows one.") from None
    except OSError as error:
        raise ConfigError(f"Cannot read {source}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{source} is not text; expected a plan file in TOML.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}.") from None


def read_plan(path: str | Path, model: type[Model], tables: Mapping[str, Any] | None = None) -> Model:
    """Read a plan file and check it against ``model``.

    Examples
    --------
    >>> import tempfile
    >>> text = '[network]\\ngraph = "ring:4"\\n[average]\\nradius = 0.5\\n[noise]\\nmultiplier = -1\\n'
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "plan.toml"
    ...     _ = file.write_text(text)
    ...     read_plan(file, AveragingFile)
    Traceback (most recent call last):
    sottovoce.errors.ConfigError: plan.toml, [noise] multiplier: input should be greater than 0, got -1.
    """
    found = read_toml(path) if tables is None else tables
    return checked(model, found, Path(path).name)


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
    said = problem["msg"][:1].lower() + problem["msg"][1:]
    return f"{named}: {said}, got {_shown(problem['input'])}."


def _place(place: Sequence[str]) -> str:
    if not place:
        return "the file"
    return f"[{place[0]}]" if len(place) == 1 else f"[{place[0]}] {'.'.join(place[1:])}"


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
