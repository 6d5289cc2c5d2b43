"""The ``[data]`` section of a plan file: which records, how they are prepared, and who holds them.

Preparation that reads more than one private record at a time is named in `ModelAdapter.uncharged`; a file
must accept each of these by name.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sottovoce.data import Dataset, by_column, by_label, dirichlet, equal, load, read_libsvm, read_npz
from sottovoce.data.base import held_out_rows, is_sparse, with_ones
from sottovoce.data.files import TABLE_FORMATS, read_table, table_format
from sottovoce.data.images import SETS, ImageReading, load_images
from sottovoce.data.ingest import IngestedRecords, ingest
from sottovoce.data.tables import Columns, Scale, TableData, are_dates
from sottovoce.errors import ConfigError, DataError
from sottovoce.models.adapters import (
    LinearAdapter,
    ModelAdapter,
    ModelOptions,
    adapt_model,
    linear_labels,
    linear_target,
)
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

    def linear(self, model: GLM) -> ModelAdapter:
        """Return a linear model with its records."""
        section, regression = self.section, model.loss in REGRESSIONS
        self._refuse(IMAGE_KEYS, "is for images, which need a network: a [model] section.")
        private, names = self._table(regression)
        if section.name is not None and section.classes is None and not regression:
            # the classes of a data set with a name are as public as its name
            classes = tuple(np.unique(private.targets).tolist())
            private = replace(private, table=replace(private.table, classes=classes))
        y = linear_labels(linear_target(model, private), private.targets)
        parts = [np.arange(len(y))] if self.agents == 1 else self._parts(private.groups, y)
        options = ModelOptions(class_weight=section.class_weight, class_shares=section.class_shares)
        adapter = adapt_model(model, private, parts, options, intercept=section.intercept)
        assert isinstance(adapter, LinearAdapter)
        adapter.names = names
        return self._with_stated_sizes(adapter)

    def network(self, model: ModelSection, clip_norm: float) -> ModelAdapter:
        """Return a network with its records: official images, or a table or arrays of one's own."""
        section, reading = self.section, None
        if section.file is None and (section.name or "digits") in SETS:
            private, reading = self._images()
            parts = self._parts(None, private.targets, np.random.default_rng(section.seed), "label")
        else:
            self._refuse(IMAGE_KEYS, f"is for sets of images: {', '.join(SETS)}.")
            private, _ = self._table()
            if section.intercept:
                private = _with_ones(private)
            numbers = np.unique(np.asarray(private.targets), return_inverse=True)[1]
            parts = self._parts(private.groups, numbers)
        shape = np.shape(private.inputs)[1:]
        module, builder = _network(model, self.folder, shape, private.table.classes)
        own = model.weights is not None or model.module is not None
        options = ModelOptions(
            clip_norm=clip_norm,
            loss=model.loss,
            initial=model.initial or ("keep" if own else "reset"),
            class_weight=section.class_weight,
            class_shares=section.class_shares,
            physical_batch=model.physical_batch,
            device=model.device,
        )
        adapter = adapt_model(module, private, parts, options)
        adapter.builder = builder
        if reading is not None:
            adapter.columns = reading
        return self._with_stated_sizes(adapter)

    def _images(self) -> tuple[IngestedRecords, ImageReading]:
        """Return official images as the network sees them, and how they are read."""
        section = self.section
        self._refuse(TABLE_KEYS, "is for tables, not for sets of images; leave it out.")
        if isinstance(section.features, tuple):
            raise ConfigError(
                '[data] features of images is the name of fixed features, such as "handwriting".'
            )
        images = load_images(section.name or "digits", section.folder and self.folder / section.folder)
        reading = ImageReading(section.side, section.mean or 0.0, section.std or 1.0, section.features)
        test = IngestedRecords(reading(images.x_test), images.y_test)
        classes = TableData(None, classes=range(images.classes))
        return IngestedRecords(reading(images.x), images.y, test=test, table=classes), reading

    def _refuse(self, keys: Sequence[str], sentence: str) -> None:
        for key in keys:
            if getattr(self.section, key) != DataSection.model_fields[key].default:
                raise ConfigError(f"[data] {key} {sentence}")

    def _table_data(self, source: object) -> TableData:
        """Return how the file says that a table is read."""
        section = self.section
        return TableData(
            source,
            section.label,
            section.group,
            section.features if isinstance(section.features, tuple) else None,
            section.drop,
            categories=section.categories,
            missing=section.missing or "refuse",
            bounds=section.bounds,
            classes=section.classes,
        )

    # ---- records that are not there yet ------------------------------------------------------------------

    @property
    def _sizes_only(self) -> bool:
        """Whether only the sizes of the records are known: the file states them and is not there yet."""
        file = self.section.file
        return self.section.sizes is not None and file is not None and not self._file(file).exists()

    def _file(self, name: Path) -> Path:
        return self.folder / name

    def _with_stated_sizes(self, adapter: ModelAdapter) -> ModelAdapter:
        """Return the records with the sizes that the file states; refuse sizes that they do not have."""
        sizes, actual, waiting = self.section.sizes, adapter.sizes, self._sizes_only
        if sizes is None:
            return adapter
        stated = (sizes,) * len(actual) if isinstance(sizes, int) else sizes
        if len(stated) != len(actual) or min(stated) < 1 or not (waiting or stated == actual):
            known = "" if waiting else f" ({', '.join(map(str, actual))})"
            raise ConfigError(
                f"[data] sizes must be the number of records of each of the {len(actual)} agents{known}, got "
                f"{sizes}; leave them out otherwise: a privacy cost for other sizes is not this plan's."
            )
        return replace(adapter, data=None, sizes=stated) if waiting else adapter

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
        private = self._from_columns(regression)
        assert private.columns is not None
        return private, private.columns.names

    def _from_columns(self, regression: bool) -> IngestedRecords:
        """Return the records of a table; how its columns are read is saved with the model."""
        section, accept = self.section, self.accept
        source = self._stand_ins() if self._sizes_only else self._file(section.file or Path())
        table = self._table_data(source)
        held_out = None
        if section.test_share > 0:
            rng = np.random.default_rng(section.seed)
            held_out = partial(held_out_rows, share=section.test_share, rng=rng)
        private = ingest(
            table,
            accept=[*accept, "standardize"] if section.standardize else accept,
            label_problem=partial(table.label_problem, regression=regression, accept=accept),
            unit_rows=section.unit_rows,
            held_out=held_out,
        )
        if section.test_file is None:
            return private
        test_table = read_table(self._file(section.test_file))
        with prefix_errors(f"[data] test_file {section.test_file}"):
            public = ingest(TableData(test_table, section.label), columns=private.columns)
        return replace(private, test=public)

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
            scales = list(map(Scale.from_bounds, pairs, names))
        if section.standardize:
            data = data.standardized()
            widths = np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
            scales = [Scale(*map(float, pair)) for pair in zip(X.mean(axis=0), widths, strict=True)]
        if section.unit_rows:
            data = data.unit_rows()
        columns = None
        if not is_sparse(X):
            columns = Columns(
                names,
                dict(zip(names, scales, strict=False)),
                uncharged=data.uncharged,
                unit_rows=section.unit_rows,
            )
        test = None if data.X_test is None else IngestedRecords(data.X_test, data.y_test)
        classes_stated = section.classes is not None or np.asarray(data.y).dtype.kind not in "OUS"
        private = IngestedRecords(
            data.X,
            data.y,
            data.groups,
            columns,
            test=test,
            uncharged=data.uncharged if classes_stated else (*data.uncharged, "class names"),
            table=self._table_data(None),
        )
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


def _with_ones(private: IngestedRecords) -> IngestedRecords:
    """Return records with a last feature that is one, for a network without an intercept of its own."""
    test, columns = private.test, private.columns
    return replace(
        private,
        inputs=with_ones(private.inputs),
        columns=None if columns is None else replace(columns, ones=True),
        test=None if test is None else replace(test, inputs=with_ones(test.inputs)),
    )


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
