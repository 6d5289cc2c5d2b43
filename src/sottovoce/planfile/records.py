"""The ``[data]`` section of a plan file: which records, how they are prepared, and who holds them.

Preparation that reads more than one private record at a time is named in `PlanRecords.uncharged`; a file
must accept each of these by name.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sottovoce.data import Dataset, by_column, by_label, dirichlet, equal, load, read_libsvm, read_npz
from sottovoce.data.base import Shards, is_sparse
from sottovoce.data.files import TABLE_FORMATS, read_table, table_format
from sottovoce.data.images import SETS, ImageReading, load_images
from sottovoce.data.ingest import UserData, ingest
from sottovoce.data.tables import Columns, Scale, TableData
from sottovoce.errors import ConfigError, DataError
from sottovoce.models.adapters import (
    LinearAdapter,
    ModelAdapter,
    ModelOptions,
    adapt_model,
    linear_labels,
    linear_target,
    several_classes,
)
from sottovoce.models.saved import seen_images
from sottovoce.planfile.schema import DataSection, ModelSection, prefix_errors

IMAGE_KEYS = ("folder", "side", "mean", "std")
TABLE_KEYS = (
    "file", "label", "group", "drop", "categories", "classes", "missing", "bounds", "standardize",
    "unit_rows", "intercept", "test_share", "test_file", "sizes", "width",
)  # fmt: skip
COLUMN_KEYS = ("label", "group", "features", "drop", "categories")  # need columns with names
Score = Callable[[np.ndarray], dict[str, float]]


class PlanRecords(NamedTuple):
    """What a plan runs on, what it must know of it beforehand, and how a row becomes a model.

    ``score`` takes the final coefficients; networks are scored by their own plan, on public records.
    ``adapter`` makes the model of a row, ``columns`` say how its inputs are read, ``builder`` names it.
    Records of which only the sizes are stated have no ``data``: the plan is accounted before they are there.
    """

    data: Any
    sizes: tuple[int, ...]
    dim: int | None
    uncharged: tuple[str, ...]
    score: Score
    adapter: ModelAdapter
    columns: Columns | ImageReading | None = None
    label: str | None = None
    builder: Mapping[str, Any] | None = None

    @property
    def objective(self) -> Any:
        """What is minimized."""
        return self.adapter.objective

    @property
    def total(self) -> int:
        """Number of records of all agents together."""
        return sum(self.sizes)


# ---- linear models ------------------------------------------------------------------------------------


def linear_records(
    section: DataSection, folder: Path, agents: int | None, model: Any, names: Sequence[Any] | None = None
) -> PlanRecords:
    """Return the records of a linear model: one holder's, one part per agent, or per user (None)."""
    for key in IMAGE_KEYS:
        if getattr(section, key) is not None:
            raise ConfigError(f"[data] {key} is for images, which need a network: a [model] section.")
    table = _table(section, folder, agents, names)
    model_options, uncharged = _model_options(section, table)
    target = linear_target(model, table.labels, model_options)
    y = linear_labels(target, table.labels)
    dim = int(table.X.shape[1])
    adapter = LinearAdapter(replace(several_classes(model, target), dim=dim), None, target)
    adapter.names, adapter.intercept = table.names, section.intercept
    test = None if table.test is None else (table.test[0], linear_labels(target, table.test[1]))
    score = _linear_score(adapter, test)
    if agents == 1:
        data: Any = Dataset(section.name or "file", table.X, y)
        sizes: tuple[int, ...] = (len(y),)
    else:
        if is_sparse(table.X):
            raise DataError("the data are sparse; dealing them out among users needs a dense array.")
        data = Shards.from_parts(table.X, y, _parts(section, table, y, agents, names))
        sizes = tuple(data.sizes.tolist())
    adapter.data = data
    records = PlanRecords(data, sizes, dim, uncharged, score, adapter, table.columns, section.label)
    return _with_stated_sizes(section, folder, records, names)


def _linear_score(adapter: ModelAdapter, test: tuple[Any, np.ndarray] | None) -> Score:
    def score(coef: np.ndarray) -> dict[str, float]:

        if test is None:
            return {}
        X, y = test
        if adapter.target.task == "regression":
            return {"test_mean_squared_error": float(np.mean((np.asarray(X @ coef) - y) ** 2))}
        if adapter.target.task == "labels":
            return {"test_accuracy": float(np.mean(np.sign(np.asarray(X @ coef)) == y))}
        return {"test_accuracy": float(np.mean(adapter.objective.predict(coef, X) == y))}

    return score


# ---- networks -----------------------------------------------------------------------------------------


def network_records(
    section: DataSection,
    folder: Path,
    agents: int | None,
    model: ModelSection,
    clip_norm: float,
    names: Sequence[Any] | None = None,
) -> PlanRecords:
    """Return the records of a network: official images, or a table or arrays of one's own."""
    public: UserData | None
    if section.file is None and (section.name or "digits") in SETS:
        private, public, classes, columns = _images(section, folder)
        model_options, uncharged = _model_options(section, None, classes=tuple(range(classes)))
        parts = _image_parts(section, private.targets, agents)
    else:
        for key in IMAGE_KEYS:
            if getattr(section, key) is not None:
                raise ConfigError(f"[data] {key} is for sets of images: {', '.join(SETS)}.")
        table = _table(section, folder, agents, names)
        columns = table.columns
        if columns is not None and section.intercept:
            columns = replace(columns, ones=True)
        model_options, uncharged = _model_options(section, table)
        private = UserData(table.X, table.labels, columns=columns)
        public = None if table.test is None else UserData(*table.test)
        parts = _parts(section, table, _numbered(table.labels), agents, names)
    if model.physical_batch is not None or model.device:
        model_options = replace(model_options, physical_batch=model.physical_batch, device=model.device)
    module, builder = _network(model, folder, np.shape(private.inputs)[1:], model_options.classes)
    initial = model.initial or ("keep" if model.weights is not None or model.module is not None else "reset")
    adapter = adapt_model(
        module,
        private,
        public,
        parts,
        replace(model_options, clip_norm=clip_norm, loss=model.loss, initial=initial),
    )
    sizes = tuple(adapter.data.sizes.tolist())
    records = PlanRecords(
        adapter.data, sizes, None, uncharged, lambda coef: {}, adapter, columns, section.label, builder
    )
    return _with_stated_sizes(section, folder, records, names)


def _network(
    model: ModelSection, folder: Path, shape: tuple[int, ...], classes: Sequence[Any] | None
) -> tuple[Any, dict[str, Any]]:
    """Return the network that [model] names, with its first weights, and what names it."""
    if (model.name is None) == (model.module is None):
        raise ConfigError('[model] needs either name, a network of the zoo, or module = "mynet:build".')
    from sottovoce.objectives.nets.module_files import build_module, put_weights, read_weights
    from sottovoce.objectives.nets.zoo import build

    with prefix_errors("[model]"):
        if model.module is not None:
            built = build_module(model.module, folder, sha256=model.sha256, options=model.options)
            builder = {"module": model.module, "sha256": model.sha256, "options": dict(model.options)}
        else:
            assert model.name is not None
            if model.sha256 is not None:
                raise ConfigError("[model] sha256 is for a module of one's own; leave it out.")

            options = _zoo_options(model.name, model.options, shape, classes)
            try:
                built, builder = build(model.name, **options), {"zoo": model.name, "options": options}
            except (TypeError, OverflowError) as error:
                raise ConfigError(f"{model.name} cannot be built from these options: {error}.") from None
        if model.weights is not None:
            weights = read_weights(folder / model.weights, sha256=model.weights_sha256)
            put_weights(built, weights, model.weights.name)
        elif model.weights_sha256 is not None:
            raise ConfigError("[model] weights_sha256 needs weights beside it, the file.")
    return built, builder


def _zoo_options(
    name: str, options: Mapping[str, Any], shape: tuple[int, ...], classes: Sequence[Any] | None
) -> dict[str, Any]:
    """Options of a network of the zoo, with what the data say where the file says nothing."""
    from sottovoce.objectives.nets.zoo import MODELS

    known: dict[str, Any] = {"inputs": math.prod(shape)}
    if classes is not None:
        known["classes"] = len(classes)
    if len(shape) == 3:
        known |= {"channels": shape[0], "side": shape[-1]}
    takes = inspect.signature(MODELS[name]).parameters if name in MODELS else {}
    return {key: value for key, value in known.items() if key in takes} | dict(options)


def _images(section: DataSection, folder: Path) -> tuple[UserData, UserData, int, Any]:
    """Official images as the network sees them, private and public, their classes, and how they are read."""
    for key in TABLE_KEYS:
        if getattr(section, key):
            raise ConfigError(f"[data] {key} is for tables, not for sets of images; leave it out.")
    if isinstance(section.features, tuple):
        raise ConfigError('[data] features of images is the name of fixed features, such as "handwriting".')
    images = load_images(section.name or "digits", section.folder and folder / section.folder)
    mean, std = section.mean or 0.0, section.std or 1.0
    reading = ImageReading(section.side, mean, std, section.features)
    private = UserData(seen_images(reading, images.x), images.y)
    public = UserData(seen_images(reading, images.x_test), images.y_test)
    return private, public, images.classes, reading


def _image_parts(section: DataSection, y: np.ndarray, agents: int | None) -> list[np.ndarray]:

    users, rng = agents or section.users or len(y), np.random.default_rng(section.seed)
    if section.partition == "column":
        raise ConfigError('[data] partition = "column" needs a table with sites.')
    if section.partition == "dirichlet":
        return dirichlet(y, users, section.concentration, rng)
    if section.partition == "equal":
        return equal(len(y), users, rng)
    return by_label(y, users, section.skew, rng)


# ---- tables -------------------------------------------------------------------------------------------


class _Table(NamedTuple):
    """Records as they are prepared: features, raw labels, sites, public records, and how it was done."""

    X: Any
    labels: Any
    groups: Any
    names: tuple[str, ...]
    columns: Any
    uncharged: tuple[str, ...]
    test: tuple[Any, Any] | None


def _model_options(
    section: DataSection, table: _Table | None, classes: tuple[Any, ...] | None = None
) -> tuple[ModelOptions, tuple[str, ...]]:
    """Return what the file says about labels, and what is read of private records without being charged."""
    bounds = section.bounds.get(section.label or "") if isinstance(section.bounds, dict) else None
    declared = section.classes if classes is None else classes
    uncharged = () if table is None else table.uncharged
    has_names = table is not None and np.asarray(table.labels).dtype.kind in "OUS"
    accept: tuple[str, ...] = ()
    if has_names and declared is None:
        accept, uncharged = ("class names",), (*uncharged, "class names")
    options = ModelOptions(classes=declared, accept=accept, label=section.label, label_bounds=bounds)
    return options, tuple(dict.fromkeys(uncharged))


def sizes_only(section: DataSection, folder: Path) -> bool:
    """Return whether only the sizes of the records are known: the file states them and is not there yet."""
    return section.sizes is not None and section.file is not None and not (folder / section.file).exists()


def _with_stated_sizes(
    section: DataSection, folder: Path, records: PlanRecords, names: Sequence[Any] | None
) -> PlanRecords:
    """Return the records with the sizes that the file states; refuse sizes that the records do not have."""
    if section.sizes is None:
        return records
    count = len(records.sizes)
    stated = (section.sizes,) * count if isinstance(section.sizes, int) else section.sizes
    if len(stated) != count or min(stated) < 1:
        raise ConfigError(
            f"[data] sizes must be a number of records, or one per agent ({count}), each at least 1; got "
            f"{section.sizes}."
        )
    if sizes_only(section, folder):
        return records._replace(data=None, sizes=stated)
    for agent, (size, actual) in enumerate(zip(stated, records.sizes, strict=True)):
        if size != actual:
            member = names[agent] if names else agent
            raise ConfigError(
                f"[data] sizes states {size:,} records of member {member}, but there are {actual:,}; correct "
                "sizes, or leave them out: a privacy cost for other sizes is not this plan's."
            )
    return records


def _stand_ins(section: DataSection, agents: int | None, names: Sequence[Any] | None) -> dict[str, Any]:
    """Return columns as announced records will have them: what a plan knows of them hangs on no value."""
    bounds = section.bounds if isinstance(section.bounds, dict) else {}
    features = section.features or tuple(name for name in bounds if name != section.label)
    if not features and section.width is not None:
        features = tuple(f"x{j}" for j in range(section.width))
    if not features or isinstance(features, str):
        raise ConfigError(
            f"There is no file {section.file}; a plan can be accounted before it is there if [data] says "
            "beside sizes how many features its records have: width or features."
        )
    classes = section.classes or (0.0, 1.0)
    count = len(section.sizes) if isinstance(section.sizes, tuple) else 1
    sites: Sequence[Any] = names or range(agents or section.users or count)
    labels = [label for _ in sites for label in classes]
    categories = section.categories or {}
    table = {
        name: np.array([categories.get(name, ("1",))[0]] * len(labels), dtype=object) for name in features
    }
    table[section.label or ""] = np.array([str(label) for label in labels], dtype=object)
    if section.group is not None:
        table[section.group] = np.array([str(site) for site in sites for _ in classes], dtype=object)
    return table


def _table(
    section: DataSection, folder: Path, agents: int | None = None, names: Sequence[Any] | None = None
) -> _Table:
    """Return the prepared table."""
    if (section.name is None) == (section.file is None):
        raise ConfigError('[data] needs either name or file; for example name = "breast_cancer".')
    if isinstance(section.features, str):
        raise ConfigError('[data] features of a table are columns: write features = ["age", "dose"].')
    if section.bounds is not None and section.standardize:
        raise ConfigError("[data] takes bounds or standardize, got both; bounds cost nothing.")
    if section.test_share > 0 and section.test_file is not None:
        raise ConfigError("[data] takes test_share or test_file, got both; leave one out.")
    if section.file is not None and table_format(section.file) in TABLE_FORMATS:
        return _from_columns(section, folder, agents, names)
    return _from_arrays(section, folder)


def _from_columns(
    section: DataSection, folder: Path, agents: int | None, names: Sequence[Any] | None
) -> _Table:
    """A file whose columns have names: how they are read is saved with the model."""
    assert section.file is not None
    if section.label is None:
        raise ConfigError(f"[data] label is missing; it names the column of {section.file} to predict.")
    waiting = sizes_only(section, folder)
    table = _stand_ins(section, agents, names) if waiting else read_table(folder / section.file)
    options = TableData(
        table,
        section.label,
        section.group,
        features=section.features,
        drop=section.drop,
        bounds=section.bounds,
        categories=section.categories,
        missing="middle" if section.missing == "middle" else "refuse",
    )
    for name in options.excluded:
        if name not in table:
            raise DataError(f"{section.file.name} has no column {name!r}; it has {', '.join(table)}.")
    _check_columns(section, table)
    plain = Columns.from_table(table, replace(options, bounds="none", missing="refuse"))
    numeric = [name for name in plain.features if name not in plain.categories]
    if section.missing == "drop":
        keep = plain.complete(table) & np.array([str(word).strip() != "" for word in table[section.label]])
        table = {name: values[keep] for name, values in table.items()}
    test_table: dict[str, Any] | None = None
    if section.test_share > 0:
        order = np.random.default_rng(section.seed).permutation(len(table[section.label]))
        test_rows, training_rows = np.split(order, [round(section.test_share * len(order))])
        test_table = {name: values[test_rows] for name, values in table.items()}
        table = {name: values[training_rows] for name, values in table.items()}
    bounds: Any = None  # by mean and deviation
    if not section.standardize:
        bounds = options.feature_bounds
        bounds = "none" if bounds is None else _column_bounds(bounds, numeric)
    accept = ("standardize",) if section.standardize else ()
    columns = Columns.from_table(table, replace(options, bounds=bounds), accept)
    columns = replace(columns, unit_rows=section.unit_rows)
    private = ingest(TableData(table, section.label, section.group), columns=columns)
    uncharged = ("held-out score",) * (test_table is not None) + columns.uncharged
    if section.test_file is not None:
        test_table = read_table(folder / section.test_file)
    test = None
    if test_table is not None:
        if any(name not in test_table for name in (section.label, *columns.features)):
            raise DataError(f"[data] test_file {section.test_file} has other columns than the records.")
        public = ingest(TableData(test_table, section.label), columns=columns)
        test = (_with_ones(public.inputs, section), public.targets)
    X = _with_ones(private.inputs, section)
    return _Table(X, private.targets, private.groups, columns.names, columns, uncharged, test)


def _check_columns(section: DataSection, table: Mapping[str, Any]) -> None:
    """Refuse names that the file does not have, in the file's words."""
    assert section.file is not None
    for key in ("features", "drop", "categories"):
        for name in getattr(section, key) or ():
            if name not in table:
                raise ConfigError(
                    f"[data] {key} names {name!r}, but {section.file.name} has the columns "
                    f"{', '.join(table)}."
                )


def _with_ones(X: np.ndarray, section: DataSection) -> np.ndarray:

    return np.hstack([X, np.ones((len(X), 1))]) if section.intercept else X


def _from_arrays(section: DataSection, folder: Path) -> _Table:
    """A data set by name, or a file of arrays: features without names of their own may have numbers."""
    for key in COLUMN_KEYS:
        if getattr(section, key):
            instead = "a file of one's own" if section.file is None else "a csv, tsv, arff or parquet file"
            raise ConfigError(f"[data] {key} is for {instead}; leave it out.")
    if section.missing == "middle":
        raise ConfigError('[data] missing = "middle" is for a csv, tsv, arff or parquet file.')
    if section.name is not None:
        if section.missing is not None:
            raise ConfigError("[data] missing is for a file of one's own; leave it out.")
        table = load(section.name)
    else:
        assert section.file is not None
        table = _read(folder / section.file, section)
    if section.test_file is not None:
        table = _with_test(table, _read(folder / section.test_file, section), section)
    if section.test_share > 0:
        table = table.split(section.test_share, np.random.default_rng(section.seed))
    columns = None if is_sparse(table.X) or np.ndim(table.X) != 2 else _numbered_columns(section, table)
    if np.ndim(table.X) != 2:
        for key in ("bounds", "standardize", "unit_rows", "intercept"):
            if getattr(section, key):
                raise ConfigError(f"[data] {key} is for tables; these records have another shape.")
    names = table.feature_names
    if section.bounds is not None:
        table = table.bounded(*_bounds(section.bounds, table))
    if section.standardize:
        table = table.standardized()
    if section.unit_rows:
        table = table.unit_rows()
    if section.intercept:
        table = table.with_intercept()
    test = None if table.X_test is None else (table.X_test, table.y_test)
    return _Table(table.X, table.y, table.groups, names, columns, table.uncharged, test)


def _numbered_columns(section: DataSection, table: Dataset) -> Any:
    """How the features of an array become those of the model: what `Dataset` does, written down."""
    names = table.feature_names or tuple(f"x{j}" for j in range(table.dim))
    scales: dict[str, Scale] = {}
    if section.bounds is not None:
        low, high = (np.broadcast_to(side, (table.dim,)) for side in _bounds(section.bounds, table))
        scales = {n: Scale.from_bounds(a, b, n) for n, a, b in zip(names, low, high, strict=True)}
    elif section.standardize:
        mean, std = table.X.mean(axis=0), table.X.std(axis=0)
        pairs = zip(names, mean, np.where(std > 0, std, 1.0), strict=True)
        scales = {n: Scale(float(m), float(d)) for n, m, d in pairs}
    return Columns(names, scales, uncharged=table.uncharged, unit_rows=section.unit_rows)


def _read(path: Path, section: DataSection) -> Dataset:
    """Read a file of arrays, whose labels are numbers."""
    readers = {".npz": read_npz, ".svm": read_libsvm, ".libsvm": read_libsvm}
    kind = table_format(path)
    if kind not in readers:
        known = ", ".join((*TABLE_FORMATS, *readers))
        raise DataError(f"Cannot tell the format of {path.name}; expected one of {known}.")
    return readers[kind](path, missing="drop" if section.missing == "drop" else "refuse")


def _with_test(table: Dataset, public: Dataset, section: DataSection) -> Dataset:

    if public.feature_names != table.feature_names or public.dim != table.dim:
        raise DataError(f"[data] test_file {section.test_file} has other columns than the records.")
    return replace(table, X_test=public.X, y_test=public.y)


def _column_bounds(bounds: Any, names: Sequence[str]) -> dict[str, Any]:
    """Public bounds by name, for every numeric column of a table."""
    low, high = _pairs(bounds, names)
    return {name: (a, b) for name, a, b in zip(names, low, high, strict=True)}


def _bounds(bounds: Any, table: Dataset) -> tuple[Any, Any]:
    """Return the lowest and highest value of every feature from [low, high], pairs, or pairs by name."""
    names = table.feature_names or tuple(f"x{j}" for j in range(table.dim))
    return _pairs(bounds, names)


def _pairs(bounds: Any, names: Sequence[str]) -> tuple[list[float], list[float]]:
    if isinstance(bounds, dict):
        lacking = [name for name in names if name not in bounds]
        unknown = [name for name in bounds if name not in names]
        if lacking or unknown:
            problem = f"lacks {lacking[0]!r}" if lacking else f"names {unknown[0]!r}, which is no feature"
            raise ConfigError(
                f"[data] bounds {problem}; it needs one pair for each of the {len(names)} features."
            )
        pairs: Any = [bounds[name] for name in names]
    elif all(isinstance(value, (int, float)) for value in bounds):
        if len(bounds) != 2:
            raise ConfigError(f"[data] bounds must be [low, high], got {len(bounds)} numbers.")
        pairs = [bounds] * len(names)
    else:
        pairs = list(bounds)
    if len(pairs) != len(names) or any(not isinstance(p, (list, tuple)) or len(p) != 2 for p in pairs):
        raise ConfigError(f"[data] bounds must be [low, high], or one such pair per feature ({len(names)}).")
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _numbered(labels: Any) -> np.ndarray:
    """Labels as numbers, only to deal records out by them."""
    return np.unique(np.asarray(labels), return_inverse=True)[1]


def _parts(
    section: DataSection,
    table: _Table,
    y: np.ndarray,
    agents: int | None,
    names: Sequence[Any] | None,
) -> list[np.ndarray]:
    """Return the row numbers of every user."""
    users = agents or section.users or len(y)
    default = "column" if section.group is not None and users > 1 else "equal"
    kind, rng = section.partition or default, np.random.default_rng([section.seed, 1])
    if kind == "column":
        if table.groups is None:
            raise ConfigError('[data] partition = "column" needs data with sites; name the column as group.')
        parts = by_column(table.groups, names)
        if agents is not None and len(parts) != agents:
            raise DataError(
                f"the graph has {agents} nodes, but the records come from {len(parts)} sites; they must "
                "match."
            )
        return parts
    if kind == "label":
        return by_label(y, users, section.skew, rng)
    if kind == "dirichlet":
        return dirichlet(y, users, section.concentration, rng)
    return equal(len(y), users, rng)
