"""From a plan file to a plan, with the records that it runs on."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sottovoce import graphs
from sottovoce.accounting.budget import AdversaryOptions, accepted_delta
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.algorithms import registry
from sottovoce.algorithms.build import build_plan, lists_to_tuples, missing_options, plan_options
from sottovoce.algorithms.consensus_newton import ConsensusNewton
from sottovoce.algorithms.consensus_sgd import exact_protocol
from sottovoce.algorithms.plan import Plan, public_units
from sottovoce.data.files import read_numbers
from sottovoce.data.images import ImageReading
from sottovoce.data.ingest import check_accepted
from sottovoce.errors import ConfigError, DataError
from sottovoce.graphs import Network
from sottovoce.models.adapters import LinearAdapter, ModelAdapter
from sottovoce.models.prepared import PreparedFit, how_many, with_assumptions
from sottovoce.objectives import GLM
from sottovoce.planfile.records import DataReader
from sottovoce.planfile.schema import (
    NOISE_OPTIONS,
    NetworkSection,
    NoiseSection,
    PlanFile,
    check_plan_file,
    prefix_errors,
)


@dataclass(frozen=True)
class LoadedPlan:
    """A plan, the model and records it trains (None for an average), and the sections of its file."""

    plan: Plan
    adapter: ModelAdapter | None
    network: Network | None
    accepted: tuple[str, ...]
    settings: PlanFile

    @property
    def delta(self) -> float:
        """The delta of the budget; 1e-5 without one."""
        return 1e-5 if self.settings.budget is None else self.settings.budget.delta

    @property
    def adversary(self) -> AdversaryOptions:
        """Against whom the budget holds, as `Plan.privacy` takes it; empty without a budget."""
        return {} if self.settings.limit is None else self.settings.limit.adversary

    @property
    def simulates(self) -> bool:
        """Whether the file names a seed for its noise, which then protects nobody."""
        return self.settings.noise.seed is not None

    @cached_property
    def prepared(self) -> PreparedFit:
        """The training of the plan, as `sottovoce.fit` prepares one; raise if records are only announced."""
        adapter, data, limit = self.adapter, self.settings.data, self.settings.limit
        assert adapter is not None
        assert data is not None
        if adapter.data is None:
            raise DataError(
                f"There is no file {data.file}; its sizes are enough for sottovoce plan, not for training."
            )
        stated = partial(
            with_assumptions,
            accepted=self.accepted,
            public_test=data.test_file is not None or isinstance(adapter.columns, ImageReading),
            simulated=self.simulates,
        )
        guarantees = [stated(guarantee) for guarantee in self.guarantees]
        privacy = guarantees[0] if limit is None else stated(self.privacy)
        return PreparedFit(adapter, self.plan, privacy, guarantees, self.accepted, limit)

    @cached_property
    def privacy(self) -> Guarantee:
        """The guarantee against the budget's adversary; without a budget, against the plan's own."""
        return self.plan.privacy(**self.adversary)

    @cached_property
    def guarantees(self) -> list[Guarantee]:
        """The guarantees worth printing by default."""
        return self.plan.guarantees()


def load_plan(path: str | Path) -> Plan:
    """Return the plan that a plan file describes.

    Records that the file names are read for what a plan must know of them: how many there are, and of how
    many features. Where the file states their numbers (``[data] sizes``) they need not be there yet.

    Examples
    --------
    >>> import tempfile, sottovoce as sv
    >>> plan = sv.PrivateAveraging("masked", network="hypercube:3", noise_std=2.0, radius=0.5)
    >>> sv.load_plan(sv.save_plan(plan, tempfile.mkdtemp() + "/plan.toml")).privacy() == plan.privacy()
    True
    """
    return load_file(path).plan


def load_file(
    path: str | Path, section: Literal["train", "average"] | None = None, **options: Any
) -> LoadedPlan:
    """Return the plan of a file with its records.

    ``section`` is the one that the file must have; ``options`` replace options of the file.
    """
    file = Path(path)
    return plan_from_settings(read_plan_file(file, section), file.parent, file.name, **options)


def read_plan_file(path: str | Path, section: Literal["train", "average"] | None = None) -> PlanFile:
    """Read a plan file and check its sections; values of options are checked when the plan is built."""
    name = Path(path).name
    settings = check_tables(read_toml(path), Path(path).parent, name)
    if section == "train" and settings.train is None:
        raise ConfigError(f"{name} has no [train]; sottovoce average runs a file with [average].")
    if section == "average" and settings.average is None:
        raise ConfigError(f"{name} has no [average]; sottovoce train runs a file with [train].")
    return settings


def check_tables(tables: Mapping[str, Any], folder: Path, name: str) -> PlanFile:
    """Return the tables of a plan file as checked sections; its own algorithm is beside it in ``folder``."""
    with prefix_errors(name):
        _add_own_algorithm(tables.get("train"), folder)
    return check_plan_file(tables, name)


def average_values(values: str | Path | Sequence[float] | None, folder: Path) -> np.ndarray:
    """Return (n, dim) rows from numbers, a comma-separated text or a file."""
    if values is None:
        raise ConfigError('[average] has no values; add values = "rows.csv", or a list of numbers.')
    if isinstance(values, str):
        try:
            return np.array([[float(word)] for word in values.replace(",", " ").split()])
        except ValueError:
            values = Path(values)
    if isinstance(values, Path):
        array = read_numbers(folder / values)
        return array[:, None] if array.ndim == 1 else array
    return np.array(values, dtype=float)[:, None]


def _add_own_algorithm(train: object, folder: Path) -> None:
    """Make ``algorithm = "myfile:MyPlan"`` known: the plan class MyPlan of myfile.py beside the plan file."""
    spec = train.get("algorithm") if isinstance(train, dict) else None
    if not isinstance(spec, str) or ":" not in spec:
        return
    from sottovoce.objectives.nets.module_files import load_code

    file, _, name = spec.partition(":")
    plan_class = getattr(load_code(file, folder), name, None)
    if not (isinstance(plan_class, type) and issubclass(plan_class, Plan)):
        raise ConfigError(f"[train] algorithm = {spec!r} must name a subclass of sv.Plan in {file}.")
    registry.add_from_file(spec, plan_class)


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


def plan_from_settings(settings: PlanFile, folder: Path, where: str, **changed: Any) -> LoadedPlan:
    """Return the plan that a file describes, with the records it runs on.

    The files it names are looked for in ``folder``; ``where`` is the file's name in messages; ``changed`` are
    options of the plan in place of the file's.
    """
    train, average, budget = settings.train, settings.average, settings.budget
    if train is None:
        assert average is not None
        section, name, options = "average", "averaging", average.model_dump(exclude={"values"})
    else:
        section, name = "train", train.algorithm
        options = train.model_dump(exclude={"algorithm", "evaluate_every"})
    options = {key: lists_to_tuples(value) for key, value in {**options, **changed}.items()}
    with prefix_errors(where):
        network = _network(settings, name, folder)
        adapter = None if train is None else _adapter(settings, name, folder, network, options)
        if name == ConsensusNewton.name and "steps" not in options and adapter is not None:
            settings, suited = _suited(settings, adapter, network)
            options = suited | options
        options |= _options_elsewhere(settings, name, network, adapter, options)
    for key in missing_options(name, options):
        raise ConfigError(f"{where}, [{section}] {key} is missing; {name} needs it.")
    with prefix_errors(f"{where}, [{section}]"):
        noise = _noise_options(name, options, settings.noise)
        if not noise and budget is None:
            raise ConfigError(
                "Neither [noise] nor [budget] is given; one of them decides how much noise is added."
            )
        plan = build_plan(name, options | noise, budget=None if noise else settings.limit)
    uncharged = () if adapter is None else adapter.uncharged
    accepted = check_accepted(settings.accept, uncharged, where)
    if budget is not None:
        accepted += accepted_delta(budget.delta, public_units(plan), plan.adjacency, settings.accept, where)
    return LoadedPlan(plan, adapter, network, accepted, settings)


# ---- who, and what -------------------------------------------------------------------------------------


def build_network(section: NetworkSection, folder: Path = Path()) -> Network:
    """Return the network of ``[network]``; its files are in ``folder``."""
    if (section.graph is None) == (section.matrix is None):
        raise ConfigError('[network] needs either graph or matrix; for example graph = "ring:8".')
    if section.matrix is not None:
        path = folder / section.matrix
        network = graphs.from_matrix(read_numbers(path), name=path.name)
    else:
        text = str(section.graph)
        if text.startswith("file:"):
            text = f"file:{folder / text.removeprefix('file:')}"
        network = graphs.parse(text)
    if section.weights is not None:
        network = network.reweighted(section.weights)
    return network if section.names is None else replace(network, node_names=section.names)


def _network(settings: PlanFile, name: str, folder: Path) -> Network | None:
    plan_class = registry.algorithm(name)
    takes = bool(plan_class.protocols) and "network" in plan_options(name)
    if takes and settings.network is None and not plan_class.network_optional:
        raise ConfigError(
            f'[network] is missing; {name} needs to know who talks to whom, for example graph = "ring:8".'
        )
    if not takes and settings.network is not None:
        raise ConfigError(f"{name} runs over no network; leave [network] out.")
    return None if settings.network is None else build_network(settings.network, folder)


def _adapter(
    settings: PlanFile, name: str, folder: Path, network: Network | None, options: Mapping[str, Any]
) -> ModelAdapter:
    assert settings.data is not None
    agents = network.n if network is not None else 1 if "records" in plan_options(name) else None
    if agents is not None and settings.data.users not in (None, agents):
        raise ConfigError(f"[data] users is {settings.data.users}, but the plan is for {agents} agents.")
    names = None if network is None else network.node_names
    reader = DataReader(settings.data, folder, agents, names, settings.accept)
    if settings.model is not None:
        return reader.network(settings.model, options.get("clip_norm", float("inf")))
    return reader.linear(_glm(settings))


def _glm(settings: PlanFile) -> GLM:
    options = {} if settings.objective is None else dict(settings.objective.model_extra or {})
    known = [item.name for item in fields(GLM) if item.name not in ("dim", "class_weight", "intercept")]
    for key in options:
        if key not in known:
            raise ConfigError(f"[objective] {key} is not known; expected one of {', '.join(known)}.")
    with prefix_errors("[objective]"):
        try:
            return GLM(**options)
        except TypeError as error:
            raise ConfigError(f"the model cannot be built from these options: {error}.") from None


def _options_elsewhere(
    settings: PlanFile,
    name: str,
    network: Network | None,
    adapter: ModelAdapter | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the options of a plan that other sections hold, as far as the algorithm has them."""
    elsewhere: dict[str, Any] = {}
    known = plan_options(name)
    if network is not None:
        elsewhere = {"network": network, "seed": settings.protocol.seed}
        if settings.protocol.name is not None or known["protocol"].default is MISSING:
            elsewhere["protocol"] = str(settings.protocol.named("chebyshev"))
    elif settings.protocol.model_dump(exclude_defaults=True):
        raise ConfigError("[protocol] is for plans over a network; leave it out.")
    if adapter is not None:
        objective, smoothness = adapter.objective, options.get("smoothness")
        elsewhere |= {"objective": objective, "sizes": adapter.sizes}
        elsewhere |= {"records": sum(adapter.sizes), "users": len(adapter.sizes)}
        if isinstance(smoothness, (int, float)) and settings.model is None:  # one for all features
            elsewhere["smoothness"] = (float(smoothness),) * objective.dim
    return {key: value for key, value in elsewhere.items() if key in known}


def _suited(
    settings: PlanFile, adapter: ModelAdapter, network: Network | None
) -> tuple[PlanFile, dict[str, Any]]:
    """Return the settings with options of Newton steps that suit the budget, as in `sv.fit`, and these."""
    train = settings.train
    assert train is not None
    budget = settings.limit
    if budget is None or not isinstance(adapter, LinearAdapter):
        return settings, {}
    suited = adapter.newton_options(budget)
    optimizer = {key: value for key, value in asdict(suited["optimizer"]).items() if value}
    stated = {**suited, "optimizer": optimizer, **(train.model_extra or {})}
    update: dict[str, Any] = {"train": train.model_copy(update=stated)}
    if settings.protocol.name is None and network is not None:
        name = exact_protocol(len(adapter.sizes), how_many(budget))
        update["protocol"] = settings.protocol.model_copy(update={"name": name})
    return settings.model_copy(update=update), suited


def _noise_options(name: str, options: Mapping[str, Any], noise: NoiseSection) -> dict[str, float]:
    """Return the noise that a file states as the plan's own option; empty where it states none."""
    amounts = {key: getattr(noise, key) for key in NOISE_OPTIONS if getattr(noise, key) is not None}
    if len(amounts) > 1:
        raise ConfigError(f"[noise] takes {' or '.join(NOISE_OPTIONS)}, got both; leave one out.")
    own: str = registry.algorithm(name).noise_field
    for key, amount in amounts.items():
        if key == own:
            return {own: amount}
        if "noise_ratio" in (key, own):
            raise ConfigError(f"[noise] {key} does not fit {name}; give {own}.")
        clip_norm = options.get("radius", options.get("clip_norm"))
        if not isinstance(clip_norm, (int, float)) or isinstance(clip_norm, bool) or not clip_norm > 0:
            raise ConfigError(
                f"[noise] {key} is measured against the clip norm, which must be positive, got {clip_norm!r}."
            )
        return {own: amount * clip_norm if own == "noise_std" else amount / clip_norm}
    return {}
