"""The ``[data]`` section of a plan file: which records, how they are prepared, and who holds them.

Preparation that reads more than one private record at a time is named in `PlanRecords.uncharged`; a file
must accept each of these by name.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sottovoce.data import Dataset, by_column, by_label, dirichlet, equal, load, read_libsvm, read_npz
from sottovoce.data.base import Shards, is_sparse
from sottovoce.data.files import TABLE_FORMATS, read_table, table_format
from sottovoce.data.images import SETS, ImageReading, load_images
from sottovoce.data.ingest import IngestedRecords, ingest, require_label_and_group
from sottovoce.data.tables import Columns, Scale, TableData, are_dates
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
from sottovoce.objectives.glm import REGRESSIONS
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


@dataclass(frozen=True)
class DataReader:
    """Reads the records that ``[data]`` describes, for so many agents, or one part per user (None).

    ``accept`` names what may be read of private records and is not charged.
    """

    section: DataSection
    folder: Path
    agents: int | None
    names: Sequence[object] | None = None
    accept: Sequence[str] = ()

    def linear(self, model: GLM) -> PlanRecords:
        """Return the records of a linear model."""
        section, agents = self.section, self.agents
        self._refuse(IMAGE_KEYS, "is for images, which need a network: a [model] section.")
        private, features = self._table(regression=model.loss in REGRESSIONS)
        X, columns = private.inputs, private.columns
        options, uncharged = self._model_options(private)
        if section.name is not None and section.classes is None and model.loss not in REGRESSIONS:
            # the classes of a data set with a name are as public as its name
            options = replace(options, classes=tuple(np.unique(private.targets).tolist()))
        target = linear_target(model, private.targets, options)
        y = linear_labels(target, private.targets)
        data: Dataset | Shards
        if agents == 1:
            data, sizes = Dataset(section.name or "file", X, y), (len(y),)
        elif is_sparse(X):
            raise DataError("the data are sparse; dealing them out among users needs a dense array.")
        else:
            data = Shards.from_parts(X, y, self._parts(private.groups, y))
            sizes = tuple(data.sizes.tolist())
        model_of_classes = several_classes(model, target, options.weights(target))
        objective = replace(model_of_classes, dim=int(X.shape[1]), intercept=section.intercept)
        adapter = LinearAdapter(objective, data, target, names=features, intercept=section.intercept)
        # as in `fit`: columns within bounds are rarely near them all at once
        square = (X.shape[1] + section.intercept) / 2 if columns is None else columns.usual_square
        adapter.feature_norm = math.sqrt(square)
        if private.test is not None:
            test = (private.test[0], linear_labels(target, private.test[1]))
            adapter.evaluate = linear_evaluation(objective, target, *test)
        if columns is not None:
            columns = replace(columns, ones=False)  # the linear model adds its intercept itself
        records = PlanRecords(data, sizes, uncharged, adapter, columns, section.label)
        return self._with_stated_sizes(records)

    def network(self, model: ModelSection, clip_norm: float) -> PlanRecords:
        """Return the records of a network: official images, or a table or arrays of one's own."""
        section = self.section
        columns: Columns | ImageReading | None
        if section.file is None and (section.name or "digits") in SETS:
            private, columns, classes = self._images()
            options, uncharged = ModelOptions(classes=classes), private.uncharged
            parts = self._parts(None, private.targets, np.random.default_rng(section.seed), "label")
        else:
            self._refuse(IMAGE_KEYS, f"is for sets of images: {', '.join(SETS)}.")
            private, _ = self._table()
            columns = private.columns
            options, uncharged = self._model_options(private)
            numbers = np.unique(np.asarray(private.targets), return_inverse=True)[1]
            parts = self._parts(private.groups, numbers)
        module, builder = _network(model, self.folder, np.shape(private.inputs)[1:], options.classes)
        own = model.weights is not None or model.module is not None
        options = replace(
            options,
            physical_batch=model.physical_batch,
            device=model.device,
            clip_norm=clip_norm,
            loss=model.loss,
            initial=model.initial or ("keep" if own else "reset"),
        )
        public = None if private.test is None else IngestedRecords(*private.test)
        adapter = adapt_model(module, private, public, parts, options)
        sizes = tuple(adapter.data.sizes.tolist())
        records = PlanRecords(adapter.data, sizes, uncharged, adapter, columns, section.label, builder)
        return self._with_stated_sizes(records)

    def _images(self) -> tuple[IngestedRecords, ImageReading, tuple[int, ...]]:
        """Return official images as the network sees them, how they are read, and their classes."""
        section = self.section
        self._refuse(TABLE_KEYS, "is for tables, not for sets of images; leave it out.")
        if isinstance(section.features, tuple):
            raise ConfigError(
                '[data] features of images is the name of fixed features, such as "handwriting".'
            )
        images = load_images(section.name or "digits", section.folder and self.folder / section.folder)
        reading = ImageReading(section.side, section.mean or 0.0, section.std or 1.0, section.features)
        test = (seen_images(reading, images.x_test), images.y_test)
        private = IngestedRecords(seen_images(reading, images.x), images.y, test=test)
        return private, reading, tuple(range(images.classes))

    def _refuse(self, keys: Sequence[str], sentence: str) -> None:
        for key in keys:
            if getattr(self.section, key) != DataSection.model_fields[key].default:
                raise ConfigError(f"[data] {key} {sentence}")

    def _model_options(self, private: IngestedRecords) -> tuple[ModelOptions, tuple[str, ...]]:
        """Return what the file says about labels, and what is read of private records without a charge."""
        section, uncharged = self.section, private.uncharged
        accept: tuple[str, ...] = ()
        table = TableData(None, section.label, bounds=section.bounds)
        if section.classes is None and np.asarray(private.targets).dtype.kind in "OUS":
            accept = ("class names",)
            uncharged = (*uncharged, *accept)
        options = ModelOptions(
            classes=section.classes,
            label=section.label,
            label_bounds=table.label_bounds,
            common_bounds=table.common_bounds,
            class_weight=section.class_weight,
            class_shares=section.class_shares,
            accept=accept,
        )
        return options, tuple(dict.fromkeys(uncharged))

    # ---- records that are not there yet ------------------------------------------------------------------

    @property
    def _sizes_only(self) -> bool:
        """Whether only the sizes of the records are known: the file states them and is not there yet."""
        file = self.section.file
        return self.section.sizes is not None and file is not None and not self._file(file).exists()

    def _file(self, name: Path) -> Path:
        return self.folder / name

    def _with_stated_sizes(self, records: PlanRecords) -> PlanRecords:
        """Return the records with the sizes that the file states; refuse sizes that they do not have."""
        sizes, actual, waiting = self.section.sizes, records.sizes, self._sizes_only
        if sizes is None:
            return records
        stated = (sizes,) * len(actual) if isinstance(sizes, int) else sizes
        if len(stated) != len(actual) or min(stated) < 1 or not (waiting or stated == actual):
            known = "" if waiting else f" ({', '.join(map(str, actual))})"
            raise ConfigError(
                f"[data] sizes must be the number of records of each of the {len(actual)} agents{known}, got "
                f"{sizes}; leave them out otherwise: a privacy cost for other sizes is not this plan's."
            )
        return records._replace(data=None, sizes=stated) if waiting else records

    def _stand_ins(self) -> Table:
        """Return columns as announced records will have them: what a plan knows of them hangs on no value."""
        section = self.section
        bounds = section.bounds if isinstance(section.bounds, dict) else {}
        features = section.features or tuple(name for name in bounds if name != section.label)
        if not features and section.width is not None:
            features = tuple(f"x{j}" for j in range(section.width))
        if not features or isinstance(features, str):
            raise ConfigError(
                f"There is no file {section.file}; a plan can be accounted before it is there if [data] says "
                "beside sizes how many features its records have: width or features."
            )
        count = len(section.sizes) if isinstance(section.sizes, tuple) else 1
        sites: Sequence[object] = self.names or range(self.agents or section.users or count)
        rows = [(str(site), str(label)) for site in sites for label in section.classes or (0.0, 1.0)]

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

    # ---- tables and arrays -------------------------------------------------------------------------------

    def _table(self, regression: bool = False) -> tuple[IngestedRecords, tuple[str, ...]]:
        """Return the prepared records, and the names of their features; ``regression`` is that of a linear
        model, whose label needs bounds."""
        section = self.section
        if (section.name is None) == (section.file is None):
            raise ConfigError('[data] needs either name or file; for example name = "breast_cancer".')
        if isinstance(section.features, str):
            raise ConfigError('[data] features of a table are columns: write features = ["age", "dose"].')
        scaled = section.bounds not in (None, "none")
        if (scaled and section.standardize) or (section.test_share > 0 and section.test_file is not None):
            raise ConfigError("[data] takes bounds or standardize, and test_share or test_file, not both.")
        if section.file is None or table_format(section.file) not in TABLE_FORMATS:
            return self._from_arrays()
        table = self._stand_ins() if self._sizes_only else read_table(self._file(section.file))
        private = self._from_columns(table, regression)
        assert private.columns is not None
        return private, private.columns.names

    def _from_columns(self, table: Table, regression: bool) -> IngestedRecords:
        """Return the records of a table; how its columns are read is saved with the model."""
        section, accept, label = self.section, self.accept, self.section.label
        options = TableData(
            table,
            label,
            section.group,
            section.features,
            section.drop,
            categories=section.categories,
            missing=section.missing or "refuse",
            bounds=section.bounds,
            classes=section.classes,
        )
        require_label_and_group(table, options)
        assert label is not None
        reads = ("standardize",) if section.standardize or "standardize" in accept else ()
        columns = Columns.from_table(
            table, options, reads, lambda: options.label_problem(table[label], regression, accept)
        )
        if section.missing == "drop":
            table = columns.complete(table, options.labels)
        test_table = None
        if section.test_share > 0:
            order = np.random.default_rng(section.seed).permutation(len(table[label]))
            rows = np.split(order, [round(section.test_share * len(order))])
            test_table, table = ({name: values[part] for name, values in table.items()} for part in rows)
        if columns.uncharged:  # by the training records alone
            columns = Columns.from_table(table, options, reads)
        columns = replace(columns, unit_rows=section.unit_rows, ones=section.intercept)
        private = ingest(TableData(table, label, section.group), columns=columns)
        held_out = () if test_table is None else ("held-out score",)
        private = replace(private, uncharged=(*held_out, *columns.uncharged))
        if section.test_file is not None:
            test_table = read_table(self._file(section.test_file))
        if test_table is None:
            return private
        with prefix_errors(f"[data] test_file {section.test_file}"):
            public = ingest(TableData(test_table, label), columns=columns)
        return replace(private, test=(public.inputs, public.targets))

    def _from_arrays(self) -> tuple[IngestedRecords, tuple[str, ...]]:
        """Return a data set by name, or a file of arrays, and the names of features that have some."""
        section = self.section
        instead = "a file of one's own" if section.file is None else "a csv, tsv, arff or parquet file"
        self._refuse(COLUMN_KEYS, f"is for {instead}; leave it out.")
        if section.missing == "middle" or (section.missing is not None and section.file is None):
            raise ConfigError(f"[data] missing = {section.missing!r} is for {instead}; leave it out.")
        data = load(str(section.name)) if section.file is None else self._read_arrays(section.file)
        if section.test_file is not None:
            public = self._read_arrays(section.test_file)
            if public.feature_names != data.feature_names or public.dim != data.dim:
                raise DataError(f"[data] test_file {section.test_file} has other columns than the records.")
            data = replace(data, X_test=public.X, y_test=public.y)
        if section.test_share > 0:
            data = data.split(section.test_share, np.random.default_rng(section.seed))
        X, feature_names = data.X, data.feature_names
        names = feature_names or tuple(f"x{j}" for j in range(data.dim))
        scales: list[Scale] = []
        if section.bounds not in (None, "none"):
            pairs = _pairs(section.bounds, names)
            data = data.bounded([pair[0] for pair in pairs], [pair[1] for pair in pairs])
            scales = [Scale.from_bounds(a, b, name) for name, (a, b) in zip(names, pairs, strict=True)]
        if section.standardize:
            data = data.standardized()
            widths = np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
            scales = [Scale(*map(float, pair)) for pair in zip(X.mean(axis=0), widths, strict=True)]
        if section.unit_rows:
            data = data.unit_rows()
        if section.intercept:
            data = data.with_intercept()
        columns = None
        if not is_sparse(X):
            columns = Columns(
                names,
                dict(zip(names, scales, strict=False)),
                uncharged=data.uncharged,
                unit_rows=section.unit_rows,
                ones=section.intercept,
            )
        test = None if data.X_test is None else (data.X_test, data.y_test)
        private = IngestedRecords(data.X, data.y, data.groups, columns, test=test, uncharged=data.uncharged)
        return private, feature_names

    def _read_arrays(self, name: Path) -> Dataset:
        readers = {".npz": read_npz, ".svm": read_libsvm, ".libsvm": read_libsvm}
        kind = table_format(name)
        if kind not in readers:
            known = ", ".join((*TABLE_FORMATS, *readers))
            raise DataError(f"Cannot tell the format of {name.name}; expected one of {known}.")
        return readers[kind](self._file(name), missing="drop" if self.section.missing == "drop" else "refuse")

    def _parts(
        self,
        groups: np.ndarray | None,
        y: np.ndarray,
        rng: np.random.Generator | None = None,
        default: str = "equal",
    ) -> list[np.ndarray]:
        section = self.section
        users = self.agents or section.users or len(y)
        kind = section.partition or ("column" if section.group is not None and users > 1 else default)
        rng = np.random.default_rng([section.seed, 1]) if rng is None else rng
        if kind == "label":
            return by_label(y, users, section.skew, rng)
        if kind == "dirichlet":
            return dirichlet(y, users, section.concentration, rng)
        if kind == "equal":
            return equal(len(y), users, rng)
        if groups is None:
            raise ConfigError(
                '[data] partition = "column" needs a table with sites; name the column as group.'
            )
        return by_column(groups, self.names, self.agents)


def _network(
    model: ModelSection, folder: Path, shape: tuple[int, ...], classes: Sequence[object] | None
) -> tuple[nn.Module, dict[str, object]]:
    """Return the network that [model] names, with its first weights, and what names it."""
    if (model.name is None) == (model.module is None):
        raise ConfigError('[model] needs either name, a network of the zoo, or module = "mynet:build".')
    if (model.sha256 and not model.module) or (model.weights_sha256 and not model.weights):
        raise ConfigError("[model] sha256 is the digest of module's file, weights_sha256 that of weights.")
    from sottovoce.objectives.nets.module_files import build_named, put_weights, read_weights

    builder: dict[str, object]
    with prefix_errors("[model]"):
        if model.name is not None:
            builder = {"zoo": model.name, "options": _zoo_options(model.name, shape, classes) | model.options}
        else:
            builder = {"module": model.module, "sha256": model.sha256, "options": dict(model.options)}
        built = build_named(builder, folder)
        if model.weights is not None:
            weights = read_weights(folder / model.weights, sha256=model.weights_sha256)
            put_weights(built, weights, model.weights.name)
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


def _pairs(bounds: Any, names: Sequence[str]) -> list[Any]:
    """Return the bounds of every feature of an array, from [low, high] or pairs by name."""
    if isinstance(bounds, dict):
        if set(bounds) != set(names):
            raise ConfigError(
                f"[data] bounds must be of the features {', '.join(names)}, got {', '.join(bounds)}."
            )
        return [bounds[name] for name in names]
    if len(bounds) != 2 or not all(isinstance(value, (int, float)) for value in bounds):
        raise ConfigError("[data] bounds must be [low, high], or one such pair per feature by its name.")
    return [bounds] * len(names)
