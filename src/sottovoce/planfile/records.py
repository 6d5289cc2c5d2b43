"""The ``[data]`` section of a plan file: which records, how they are prepared, and who holds them.

Preparation that reads more than one private record at a time is named in `PlanRecords.uncharged`; a file
must accept each of these by name.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sottovoce.data import Dataset, by_column, by_label, dirichlet, equal, load, read_npz
from sottovoce.data.base import Shards, is_sparse
from sottovoce.data.files import TABLE_FORMATS, read_table, table_format
from sottovoce.data.images import SETS, ImageReading, load_images
from sottovoce.data.ingest import IngestedRecords, ingest, label_column, require_label_and_group
from sottovoce.data.tables import LABELS_ARE_NAMES, Columns, Scale, TableData, are_dates
from sottovoce.errors import ConfigError, DataError
from sottovoce.models.adapters import (
    LinearAdapter,
    ModelAdapter,
    ModelOptions,
    adapt_model,
    linear_evaluation,
    linear_labels,
    linear_target,
    several_classes,
)
from sottovoce.models.saved import seen_images
from sottovoce.objectives import GLM
from sottovoce.planfile.schema import DataSection, ModelSection, prefix_errors

if TYPE_CHECKING:
    from torch import nn

IMAGE_KEYS = ("folder", "side", "mean", "std")
COLUMN_KEYS = ("label", "group", "features", "drop", "categories")  # need columns with names
TABLE_KEYS = (
    *("file", "label", "group", "drop", "categories", "classes", "missing", "bounds", "standardize"),
    *("class_weight", "class_shares"),
    *("unit_rows", "intercept", "test_share", "test_file", "sizes", "width"),
)
Names = Sequence[object] | None  # of the nodes
Table = dict[str, np.ndarray]


class PlanRecords(NamedTuple):
    """What a plan runs on, what it must know of it beforehand, and how a row becomes a model.

    ``adapter`` makes the model of a row, ``columns`` say how its inputs are read, ``builder`` names it.
    Records of which only the sizes are stated have no ``data``: the plan is accounted before they are there.
    """

    data: Any
    sizes: tuple[int, ...]
    uncharged: tuple[str, ...]
    adapter: ModelAdapter
    columns: Columns | ImageReading | None
    label: str | None
    builder: Mapping[str, object] | None = None

    def score(self, coef: np.ndarray) -> dict[str, Any]:
        """Return how well final coefficients of a linear model predict the test records."""
        if self.adapter.evaluate is None:
            return {}
        return self.adapter.rescaled(self.adapter.evaluate(coef[None]))


def linear_records(
    section: DataSection,
    folder: Path,
    agents: int | None,
    model: GLM,
    names: Names = None,
    accept: Sequence[str] = (),
) -> PlanRecords:
    """Return the records of a linear model: one holder's, one part per agent, or per user (None).

    ``accept`` names what may be read of private records and is not charged.
    """
    _refuse(section, IMAGE_KEYS, "is for images, which need a network: a [model] section.")
    private, features = _table(section, folder, agents, names, accept)
    X, columns = private.inputs, private.columns
    options, uncharged = _model_options(section, private)
    if section.name is not None and section.classes is None and model.loss == "logistic":
        # the classes of a data set with a name are as public as its name
        options = replace(options, classes=tuple(np.unique(private.targets).tolist()))
    target = linear_target(model, private.targets, options)
    y = linear_labels(target, private.targets)
    data: Dataset | Shards
    if agents == 1:
        data, sizes = Dataset(section.name or "file", X, y), [len(y)]
    elif is_sparse(X):
        raise DataError("the data are sparse; dealing them out among users needs a dense array.")
    else:
        data = Shards.from_parts(X, y, _parts(section, private.groups, y, agents, names))
        sizes = data.sizes.tolist()
    weights = options.weights(target)
    objective = replace(several_classes(model, target, weights), dim=int(X.shape[1]))
    adapter = LinearAdapter(objective, data, target, names=features, intercept=section.intercept)
    # as in `fit`: columns within bounds are rarely near them all at once
    square = (X.shape[1] + section.intercept) / 2 if columns is None else columns.usual_square
    adapter.feature_norm = math.sqrt(square)
    if private.test is not None:
        test = (private.test[0], linear_labels(target, private.test[1]))
        adapter.evaluate = linear_evaluation(objective, target, *test)
    if columns is not None:
        columns = replace(columns, ones=False)  # the linear model adds its intercept itself
    records = PlanRecords(data, tuple(sizes), uncharged, adapter, columns, section.label)
    return _with_stated_sizes(section, folder, records, names)


# ---- networks -----------------------------------------------------------------------------------------


def network_records(
    section: DataSection,
    folder: Path,
    agents: int | None,
    model: ModelSection,
    clip_norm: float,
    names: Names = None,
    accept: Sequence[str] = (),
) -> PlanRecords:
    """Return the records of a network: official images, or a table or arrays of one's own."""
    columns: Columns | ImageReading | None
    if section.file is None and (section.name or "digits") in SETS:
        private, columns, classes = _images(section, folder)
        options, uncharged = ModelOptions(classes=classes), private.uncharged
        rng = np.random.default_rng(section.seed)
        parts = _parts(section, None, private.targets, agents, names, rng, "label")
    else:
        _refuse(section, IMAGE_KEYS, f"is for sets of images: {', '.join(SETS)}.")
        private, _ = _table(section, folder, agents, names, accept)
        columns = private.columns
        options, uncharged = _model_options(section, private)
        numbers = np.unique(np.asarray(private.targets), return_inverse=True)[1]
        parts = _parts(section, private.groups, numbers, agents, names)
    module, builder = _network(model, folder, np.shape(private.inputs)[1:], options.classes)
    initial = model.initial or ("keep" if model.weights is not None or model.module is not None else "reset")
    options = replace(options, physical_batch=model.physical_batch, device=model.device)
    options = replace(options, clip_norm=clip_norm, loss=model.loss, initial=initial)
    public = None if private.test is None else IngestedRecords(*private.test)
    adapter = adapt_model(module, private, public, parts, options)
    sizes = tuple(adapter.data.sizes.tolist())
    records = PlanRecords(adapter.data, sizes, uncharged, adapter, columns, section.label, builder)
    return _with_stated_sizes(section, folder, records, names)


def _network(
    model: ModelSection, folder: Path, shape: tuple[int, ...], classes: Sequence[object] | None
) -> tuple[nn.Module, dict[str, object]]:
    """Return the network that [model] names, with its first weights, and what names it."""
    if (model.name is None) == (model.module is None):
        raise ConfigError('[model] needs either name, a network of the zoo, or module = "mynet:build".')
    from sottovoce.objectives.nets.module_files import build_named, put_weights, read_weights

    builder: dict[str, object]
    with prefix_errors("[model]"):
        if model.module is not None:
            builder = {"module": model.module, "sha256": model.sha256, "options": dict(model.options)}
        else:
            assert model.name is not None
            if model.sha256 is not None:
                raise ConfigError("[model] sha256 is for a module of one's own; leave it out.")
            options = _zoo_options(model.name, shape, classes) | model.options
            builder = {"zoo": model.name, "options": options}
        built = build_named(builder, folder)
        if model.weights is not None:
            weights = read_weights(folder / model.weights, sha256=model.weights_sha256)
            put_weights(built, weights, model.weights.name)
        elif model.weights_sha256 is not None:
            raise ConfigError("[model] weights_sha256 needs weights beside it, the file.")
    return built, builder


def _zoo_options(name: str, shape: tuple[int, ...], classes: Sequence[object] | None) -> dict[str, Any]:
    """Return the options of a network of the zoo that follow from the data."""
    from sottovoce.objectives.nets.zoo import MODELS

    options = {"inputs": math.prod(shape)}
    if classes is not None:
        options["classes"] = len(classes)
    if len(shape) == 3:
        options |= {"channels": shape[0], "side": shape[-1]}
    parameters = inspect.signature(MODELS[name]).parameters if name in MODELS else {}
    return {key: value for key, value in options.items() if key in parameters}


def _images(section: DataSection, folder: Path) -> tuple[IngestedRecords, ImageReading, tuple[int, ...]]:
    """Return official images as the network sees them, how they are read, and their classes."""
    _refuse(section, TABLE_KEYS, "is for tables, not for sets of images; leave it out.")
    if isinstance(section.features, tuple):
        raise ConfigError('[data] features of images is the name of fixed features, such as "handwriting".')
    images = load_images(section.name or "digits", section.folder and folder / section.folder)
    reading = ImageReading(section.side, section.mean or 0.0, section.std or 1.0, section.features)
    test = (seen_images(reading, images.x_test), images.y_test)
    private = IngestedRecords(seen_images(reading, images.x), images.y, test=test)
    return private, reading, tuple(range(images.classes))


# ---- tables -------------------------------------------------------------------------------------------


def _refuse(section: DataSection, keys: Sequence[str], sentence: str) -> None:
    """Refuse keys that do not fit the kind of data."""
    for key in keys:
        if getattr(section, key) != DataSection.model_fields[key].default:
            raise ConfigError(f"[data] {key} {sentence}")


def _model_options(section: DataSection, private: IngestedRecords) -> tuple[ModelOptions, tuple[str, ...]]:
    """Return what the file says about labels, and what is read of private records without being charged."""
    bounds = section.bounds.get(section.label or "") if isinstance(section.bounds, dict) else None
    options = ModelOptions(classes=section.classes, label=section.label, label_bounds=bounds)
    options = replace(options, class_weight=section.class_weight, class_shares=section.class_shares)
    uncharged = private.uncharged
    if section.classes is None and np.asarray(private.targets).dtype.kind in "OUS":
        options = replace(options, accept=("class names",))
        uncharged = (*uncharged, "class names")
    return options, tuple(dict.fromkeys(uncharged))


def _sizes_only(section: DataSection, folder: Path) -> bool:
    """Return whether only the sizes of the records are known: the file states them and is not there yet."""
    return section.sizes is not None and section.file is not None and not (folder / section.file).exists()


def _with_stated_sizes(section: DataSection, folder: Path, records: PlanRecords, names: Names) -> PlanRecords:
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
    if _sizes_only(section, folder):
        return records._replace(data=None, sizes=stated)
    for member, size, actual in zip(names or range(count), stated, records.sizes, strict=True):
        if size != actual:
            raise ConfigError(
                f"[data] sizes states {size:,} records of member {member}, but there are {actual:,}; correct "
                "sizes, or leave them out: a privacy cost for other sizes is not this plan's."
            )
    return records


def _stand_ins(section: DataSection, agents: int | None, names: Names) -> Table:
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
    sites: Sequence[object] = names or range(agents or section.users or count)
    rows = [(str(site), str(label)) for site in sites for label in classes]

    def one(name: str) -> object:
        values, pair = (section.categories or {}).get(name), bounds.get(name)
        if values is not None:
            return "1" if isinstance(values, int) else values[0]
        return pair[0] if pair is not None and are_dates(pair) else "1"

    table = {name: [one(name)] * len(rows) for name in features}
    table[section.label or ""] = [label for _, label in rows]
    if section.group is not None:
        table[section.group] = [site for site, _ in rows]
    return {name: np.array(values, dtype=object) for name, values in table.items()}


def _table(
    section: DataSection, folder: Path, agents: int | None, names: Names, accept: Sequence[str]
) -> tuple[IngestedRecords, tuple[str, ...]]:
    """Return the prepared records, and the names of their features."""
    if (section.name is None) == (section.file is None):
        raise ConfigError('[data] needs either name or file; for example name = "breast_cancer".')
    if isinstance(section.features, str):
        raise ConfigError('[data] features of a table are columns: write features = ["age", "dose"].')
    if section.bounds not in (None, "none") and section.standardize:
        raise ConfigError("[data] takes bounds or standardize, got both; bounds cost nothing.")
    if section.test_share > 0 and section.test_file is not None:
        raise ConfigError("[data] takes test_share or test_file, got both; leave one out.")
    if section.file is None or table_format(section.file) not in TABLE_FORMATS:
        return _from_arrays(section, folder)
    waiting = _sizes_only(section, folder)
    table = _stand_ins(section, agents, names) if waiting else read_table(folder / section.file)
    private = _from_columns(section, folder, table, accept)
    assert private.columns is not None
    return private, private.columns.names


def _from_columns(section: DataSection, folder: Path, table: Table, accept: Sequence[str]) -> IngestedRecords:
    """Return the records of a table; how its columns are read is saved with the model."""
    label, bounds = section.label, section.bounds
    assert not isinstance(section.features, str)
    options = TableData(
        table,
        label,
        section.group,
        section.features,
        section.drop,
        categories=section.categories,
        missing=section.missing or "refuse",
    )
    if isinstance(bounds, tuple) and any(isinstance(pair, (list, tuple)) for pair in bounds):
        chosen = section.features or [
            name for name in table if name not in {*options.excluded, *section.drop}
        ]
        numeric = [name for name in chosen if name not in (section.categories or ())]
        bounds = dict(zip(numeric, _pairs(bounds, numeric), strict=True))
    options = replace(options, bounds=bounds)
    require_label_and_group(table, options)
    assert label is not None
    reads = ("standardize",) if section.standardize or "standardize" in accept else ()
    unnamed = section.classes is None and "class names" not in accept
    names = unnamed and label_column(table[label]).dtype.kind == "U"
    columns = Columns.from_table(table, options, reads, lambda: LABELS_ARE_NAMES if names else None)
    if section.missing == "drop":
        table = columns.complete(table, options.labels)
    test_table = None
    if section.test_share > 0:
        order = np.random.default_rng(section.seed).permutation(len(table[label]))
        test_rows, training_rows = np.split(order, [round(section.test_share * len(order))])
        test_table, table = _rows(table, test_rows), _rows(table, training_rows)
    if columns.uncharged:  # by the training records alone
        columns = Columns.from_table(table, options, reads)
    columns = replace(columns, unit_rows=section.unit_rows, ones=section.intercept)
    private = ingest(TableData(table, label, section.group), columns=columns)
    uncharged = columns.uncharged if test_table is None else ("held-out score", *columns.uncharged)
    if section.test_file is not None:
        test_table = read_table(folder / section.test_file)
    if test_table is None:
        return replace(private, uncharged=uncharged)
    with prefix_errors(f"[data] test_file {section.test_file}"):
        public = ingest(TableData(test_table, label), columns=columns)
    return replace(private, uncharged=uncharged, test=(public.inputs, public.targets))


def _rows(table: Table, rows: np.ndarray) -> Table:
    return {name: values[rows] for name, values in table.items()}


def _from_arrays(section: DataSection, folder: Path) -> tuple[IngestedRecords, tuple[str, ...]]:
    """Return a data set by name, or a file of arrays, and the names of features that have some."""
    instead = "a file of one's own" if section.file is None else "a csv, tsv or parquet file"
    _refuse(section, COLUMN_KEYS, f"is for {instead}; leave it out.")
    if section.missing == "middle":
        raise ConfigError('[data] missing = "middle" is for a csv, tsv or parquet file.')
    if section.file is not None:
        data = _read(folder / section.file, section)
    else:
        if section.missing is not None:
            raise ConfigError("[data] missing is for a file of one's own; leave it out.")
        data = load(str(section.name))
    if section.test_file is not None:
        public = _read(folder / section.test_file, section)
        if public.feature_names != data.feature_names or public.dim != data.dim:
            raise DataError(f"[data] test_file {section.test_file} has other columns than the records.")
        data = replace(data, X_test=public.X, y_test=public.y)
    if section.test_share > 0:
        data = data.split(section.test_share, np.random.default_rng(section.seed))
    names = data.feature_names or tuple(f"x{j}" for j in range(data.dim))
    scales: dict[str, Scale] = {}
    feature_names, X = data.feature_names, data.X
    if section.bounds not in (None, "none"):
        pairs = _pairs(section.bounds, names)
        if not is_sparse(X):
            scales = {n: Scale.from_bounds(pair[0], pair[1], n) for n, pair in zip(names, pairs, strict=True)}
        data = data.bounded([pair[0] for pair in pairs], [pair[1] for pair in pairs])
    if section.standardize:
        data = data.standardized()
        widths = np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
        means = zip(names, X.mean(axis=0), widths, strict=True)
        scales = {name: Scale(float(mean), float(width)) for name, mean, width in means}
    if section.unit_rows:
        data = data.unit_rows()
    if section.intercept:
        data = data.with_intercept()
    columns = None
    if not is_sparse(X):
        columns = Columns(names, scales, uncharged=data.uncharged, unit_rows=section.unit_rows)
        columns = replace(columns, ones=section.intercept)
    test = None if data.X_test is None else (data.X_test, data.y_test)
    private = IngestedRecords(data.X, data.y, data.groups, columns, test=test, uncharged=data.uncharged)
    return private, feature_names


def _read(path: Path, section: DataSection) -> Dataset:
    """Read a file of arrays, whose labels are numbers."""
    if table_format(path) != ".npz":
        known = ", ".join((*TABLE_FORMATS, ".npz"))
        raise DataError(f"Cannot tell the format of {path.name}; expected one of {known}.")
    return read_npz(path, missing="drop" if section.missing == "drop" else "refuse")


def _pairs(bounds: Any, names: Sequence[str]) -> list[Any]:
    """Return the bounds of every feature from [low, high], one pair each, or pairs by name."""
    if isinstance(bounds, dict):
        if set(bounds) != set(names):
            raise ConfigError(
                f"[data] bounds must be of the features {', '.join(names)}, got {', '.join(bounds)}."
            )
        bounds = [bounds[name] for name in names]
    one = len(bounds) == 2 and all(isinstance(value, (int, float)) for value in bounds)
    pairs = [bounds] * len(names) if one else list(bounds)
    if len(pairs) != len(names) or any(not isinstance(p, (list, tuple)) or len(p) != 2 for p in pairs):
        raise ConfigError(f"[data] bounds must be [low, high], or one such pair per feature ({len(names)}).")
    return pairs


def _parts(
    section: DataSection,
    groups: np.ndarray | None,
    y: np.ndarray,
    agents: int | None,
    names: Names,
    rng: np.random.Generator | None = None,
    default: str = "equal",
) -> list[np.ndarray]:
    """Return the row numbers of every user."""
    users = agents or section.users or len(y)
    kind = section.partition or ("column" if section.group is not None and users > 1 else default)
    rng = np.random.default_rng([section.seed, 1]) if rng is None else rng
    if kind == "label":
        return by_label(y, users, section.skew, rng)
    if kind == "dirichlet":
        return dirichlet(y, users, section.concentration, rng)
    if kind == "equal":
        return equal(len(y), users, rng)
    if groups is None:
        raise ConfigError('[data] partition = "column" needs a table with sites; name the column as group.')
    return by_column(groups, names, agents)
