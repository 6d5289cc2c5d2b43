"""The ``[data]`` section of a plan file: which records, how they are prepared, and who holds them.

Preparation that looks at more than one record of private data at a time is named in `Records.uncharged`: a
statement is valid only where the file accepts each of these by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sottovoce.errors import ConfigError, DataError, Refused

if TYPE_CHECKING:
    import numpy as np

    from sottovoce.cli.config import DataSection
    from sottovoce.data import Dataset

__all__ = ["Records", "accepted", "linear_records", "network_records"]

IMAGE_SETS = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100")
IMAGE_KEYS = ("folder", "side", "mean", "std")
TABLE_KEYS = (
    "file", "label", "group", "classes", "missing", "bounds", "standardise", "unit_rows", "intercept",
    "test_share", "test_file",
)  # fmt: skip
# what a file can do instead of accepting that something is read and not charged
INSTEAD = {
    "standardise": "[data] bounds = [low, high] scales by public bounds instead",
    "held-out score": "[data] test_file names public records for a score instead",
    "class names": "[data] classes = [...] states them publicly instead",
    "tuning": "settings tuned on public records need nothing",
}
Score = Callable[["np.ndarray"], dict[str, float]]


class Records(NamedTuple):
    """What a plan runs on, and what a plan must know of it beforehand.

    ``score`` takes the final coefficients; networks are scored by their own plan, on public records.
    """

    data: Any
    sizes: tuple[int, ...]
    dim: int | None
    uncharged: tuple[str, ...]
    score: Score

    @property
    def total(self) -> int:
        """Number of records, all agents together."""
        return sum(self.sizes)


def accepted(accept: tuple[str, ...], uncharged: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Return what a file accepts as read and not charged; refuse what is read and not accepted.

    Examples
    --------
    >>> accepted(("standardise",), ("standardise",), "plan.toml")
    ('standardise',)
    >>> accepted((), ("standardise",), "plan.toml")
    Traceback (most recent call last):
    sottovoce.errors.Refused: plan.toml reads the mean and deviation of every feature of the private \
records, which no budget is charged for, so no statement about it would hold; write accept = \
["standardise"] at the top of the file to accept that, or: [data] bounds = [low, high] scales by public \
bounds instead.
    """
    from sottovoce.privacy.words import UNCHARGED

    for name in accept:
        if name not in UNCHARGED:
            raise ConfigError(f"{where}, accept knows {', '.join(UNCHARGED)}, got {name!r}.")
        if name not in uncharged and name != "tuning":  # only the user knows how settings were chosen
            raise ConfigError(f"{where} accepts {name!r}, but nothing of the kind is read; leave it out.")
    for name in uncharged:
        if name not in accept:
            listed = ", ".join(f'"{word}"' for word in dict.fromkeys((*accept, *uncharged)))
            raise Refused(
                f"{where} reads {UNCHARGED[name]}, which no budget is charged for, so no statement about it "
                f"would hold; write accept = [{listed}] at the top of the file to accept that, or: "
                f"{INSTEAD[name]}."
            )
    return tuple(dict.fromkeys(accept))


# ---- linear models ------------------------------------------------------------------------------------


def linear_records(section: DataSection, folder: Path, agents: int | None, loss: str) -> Records:
    """Return the records of a linear model: one holder's, one part per agent, or per user (None)."""
    for key in IMAGE_KEYS:
        if getattr(section, key) is not None:
            raise ConfigError(f"[data] {key} is for images, which need a network: a [model] section.")
    table = _table(section, folder)
    score = _linear_score(table, loss)
    if agents == 1:
        return Records(table, (table.n,), table.dim, table.uncharged, score)
    shards = table.shards(_parts(section, table, agents or section.users or table.n, "equal"))
    return Records(shards, tuple(shards.sizes.tolist()), table.dim, table.uncharged, score)


def _linear_score(table: Dataset, loss: str) -> Score:
    def score(coef: np.ndarray) -> dict[str, float]:
        import numpy as np

        from sottovoce.data import signed_labels

        if table.X_test is None or table.y_test is None:
            return {}
        predicted = np.asarray(table.X_test @ coef)
        if loss == "logistic":
            right = np.sign(predicted) == signed_labels(table.y_test)
            return {"test_accuracy": float(np.mean(right))}
        return {"test_mean_squared_error": float(np.mean((predicted - table.y_test) ** 2))}

    return score


# ---- networks -----------------------------------------------------------------------------------------


def network_records(section: DataSection, folder: Path, agents: int | None) -> Records:
    """Return the records of a network: official images, or a table whose labels are classes."""
    from sottovoce.data.agents import AgentData

    if section.file is None and (section.name or "digits") in IMAGE_SETS:
        return _image_records(section, folder, agents)
    for key in IMAGE_KEYS:
        if getattr(section, key) is not None:
            raise ConfigError(f"[data] {key} is for sets of images: {', '.join(IMAGE_SETS)}.")
    table = _table(section, folder)
    import numpy as np

    if section.classes is None or table.uncharged.count("class names"):
        names, uncharged = np.unique(table.y), tuple(dict.fromkeys((*table.uncharged, "class names")))
    else:  # two names have become -1 and 1 in their public order
        names, uncharged = np.array([-1.0, 1.0]), table.uncharged
    x, y = np.asarray(table.X, np.float32), np.searchsorted(names, table.y)
    test = None
    if table.X_test is not None and table.y_test is not None:
        known = np.isin(table.y_test, names)
        if not known.all():
            raise DataError(f"[data] a test record has the label {table.y_test[~known][0]}, no other has.")
        test = (np.asarray(table.X_test, np.float32), np.searchsorted(names, table.y_test))
    parts = _parts(section, table, agents or section.users or table.n, "equal")
    data = AgentData(x, y, parts, test=test, classes=len(names))
    return Records(data, tuple(data.sizes.tolist()), None, uncharged, lambda coef: {})


def _image_records(section: DataSection, folder: Path, agents: int | None) -> Records:
    import numpy as np

    from sottovoce.data.agents import AgentData
    from sottovoce.data.images import load_images
    from sottovoce.data.partition import by_label, dirichlet, equal

    for key in TABLE_KEYS:
        if getattr(section, key):
            raise ConfigError(f"[data] {key} is for tables, not for sets of images; leave it out.")
    images = load_images(section.name or "digits", section.folder and folder / section.folder)
    x, x_test = (
        images.floats(part, section.mean or 0.0, section.std or 1.0, section.side)
        for part in (images.x, images.x_test)
    )
    users, rng = agents or section.users or len(images.y), np.random.default_rng(section.seed)
    if section.partition == "column":
        raise ConfigError('[data] partition = "column" needs a table with sites.')
    if section.partition == "dirichlet":
        parts = dirichlet(images.y, users, section.concentration, rng)
    elif section.partition == "equal":
        parts = equal(len(images.y), users, rng)
    else:
        parts = by_label(images.y, users, section.skew, rng)
    data = AgentData(x, images.y, parts, test=(x_test, images.y_test), classes=images.classes)
    return Records(data, tuple(data.sizes.tolist()), None, (), lambda coef: {})


# ---- tables -------------------------------------------------------------------------------------------


def _table(section: DataSection, folder: Path) -> Dataset:
    """Return the prepared table."""
    import numpy as np

    from sottovoce.data import load, read_file

    if (section.name is None) == (section.file is None):
        raise ConfigError('[data] needs either name or file; for example name = "breast_cancer".')
    keys = ("label", "group", "missing", "classes")
    given = {key: getattr(section, key) for key in keys if getattr(section, key) is not None}
    if section.name is not None:
        if given:
            raise ConfigError(f"[data] {next(iter(given))} is for a file of one's own; leave it out.")
        table = load(section.name)
    else:
        assert section.file is not None
        table = _read(read_file, folder / section.file, given)
    if section.test_file is not None:
        table = _with_test(table, _read(read_file, folder / section.test_file, given), section)
    if section.test_share > 0:
        table = table.split(section.test_share, np.random.default_rng(section.seed))
    if section.bounds is not None:
        if section.standardise:
            raise ConfigError("[data] takes bounds or standardise, got both; bounds cost nothing.")
        table = table.bounded(*_bounds(section.bounds, table))
    if section.standardise:
        table = table.standardised()
    if section.unit_rows:
        table = table.unit_rows()
    return table.with_intercept() if section.intercept else table


def _read(reader: Callable[..., Dataset], path: Path, given: Mapping[str, Any]) -> Dataset:
    try:
        return reader(path, **given)
    except TypeError:  # such a file has no columns by name
        raise ConfigError(
            f"[data] {', '.join(given) or 'label'} does not fit the file {path.name}."
        ) from None


def _with_test(table: Dataset, public: Dataset, section: DataSection) -> Dataset:
    from dataclasses import replace

    if section.test_share > 0:
        raise ConfigError("[data] takes test_share or test_file, got both; leave one out.")
    if public.feature_names != table.feature_names or public.dim != table.dim:
        raise DataError(f"[data] test_file {section.test_file} has other columns than the records.")
    return replace(table, X_test=public.X, y_test=public.y)


def _bounds(given: Any, table: Dataset) -> tuple[Any, Any]:
    """Return the lowest and highest value of every feature from [low, high], pairs, or pairs by name."""
    if isinstance(given, dict):
        lacking = [name for name in table.feature_names if name not in given]
        unknown = [name for name in given if name not in table.feature_names]
        if lacking or unknown:
            said = f"lacks {lacking[0]!r}" if lacking else f"names {unknown[0]!r}, which is no feature"
            raise ConfigError(
                f"[data] bounds {said}; it needs one pair for each of the {table.dim} features."
            )
        pairs: Any = [given[name] for name in table.feature_names]
    elif all(isinstance(value, (int, float)) for value in given):
        if len(given) != 2:
            raise ConfigError(f"[data] bounds must be [low, high], got {len(given)} numbers.")
        return given[0], given[1]
    else:
        pairs = list(given)
    if len(pairs) != table.dim or any(not isinstance(p, (list, tuple)) or len(p) != 2 for p in pairs):
        raise ConfigError(f"[data] bounds must be [low, high], or one such pair per feature ({table.dim}).")
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _parts(section: DataSection, table: Dataset, users: int, default: str) -> list[np.ndarray]:
    """Return the row numbers of every user."""
    import numpy as np

    from sottovoce.data import by_column, by_label, dirichlet, equal

    kind, rng = section.partition or default, np.random.default_rng([section.seed, 1])
    if kind == "column":
        if table.groups is None:
            raise ConfigError('[data] partition = "column" needs data with sites; name the column as group.')
        return by_column(table.groups)
    if kind == "label":
        return by_label(table.y, users, section.skew, rng)
    if kind == "dirichlet":
        return dirichlet(table.y, users, section.concentration, rng)
    return equal(table.n, users, rng)
