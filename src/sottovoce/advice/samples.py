"""Public or synthetic records for simulations: a score says where it comes from."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.algorithms.gradient_plan import GradientPlan
from sottovoce.algorithms.plan import Plan
from sottovoce.data import load
from sottovoce.data.base import AgentRecords, Dataset, Shards, offsets_of, unit_rows
from sottovoce.data.files import read_columns, read_numbers
from sottovoce.errors import DataError, InvalidInput
from sottovoce.objectives import GLM
from sottovoce.objectives.base import Objective

LOGIT = 3.0  # standard deviation of the log odds of synthetic records: about 84 of 100 can be predicted
TWO_CLASSES = ("logistic", "hinge")  # losses of labels -1 and 1
TEST_SHARE = 0.3
TEST_RECORDS = 2000  # of synthetic test sets
_SLOPE = 0.25  # synthetic targets have deviation 0.35 within [-1, 1], half of its variance predictable

Judge = Callable[[np.ndarray], float]


@dataclass(frozen=True)
class Sample:
    """Records that may be looked at: the user's own, or drawn from a model that says nothing of anyone.

    Parameters
    ----------
    loss : of the linear model, or ``"net"`` for a neural network, which has no synthetic records.
    features : number of columns.
    X, y : public records; None for synthetic ones, drawn anew at every call.
    unit : what one unit of the target is in the user's (regression).
    """

    loss: str
    features: int
    X: np.ndarray | None = field(default=None, repr=False)
    y: np.ndarray | None = field(default=None, repr=False)
    unit: float = 1.0
    source: str = "synthetic records"

    @classmethod
    def public(
        cls, loss: str, X: ArrayLike, y: ArrayLike, *, unit: float = 1.0, middle: float = 0.0
    ) -> Sample:
        """Return public records; rows of linear models are scaled to length one, targets to [-1, 1]."""
        features, labels = np.asarray(X), np.asarray(y)
        n = len(labels)
        if features.ndim < 2 or (features.ndim > 2 and loss != "net") or len(features) != n or n < 10:
            raise DataError(
                "a sample is features (n, p) and n labels, ten or more, got shapes "
                f"{features.shape} and {labels.shape}."
            )
        source = f"{n:,} public records"
        if loss == "net":
            return cls(loss, features.shape[1], _finite(features), labels, source=source)
        if loss in TWO_CLASSES:
            classes = np.unique(labels)
            if len(classes) != 2:
                raise DataError(
                    f"a sample for a {loss} model has two classes, got {len(classes)} "
                    f"({', '.join(map(str, classes[:5]))}); map them to two, or take compute = net."
                )
            labels = np.where(labels == classes[1], 1.0, -1.0)
        else:
            labels = (_finite(labels) - middle) / unit
        return cls(loss, features.shape[1], unit_rows(_finite(features)), labels, unit, source)

    @classmethod
    def from_argument(
        cls, sample: SampleArgument, loss: str, features: int, unit: float = 1.0, middle: float = 0.0
    ) -> Sample:
        """Return the sample of a user's argument: ``"synthetic"``, a pair (X, y), a Dataset or a `Sample`."""
        if isinstance(sample, Sample):
            return sample
        if isinstance(sample, Dataset):
            sample = (sample.X, sample.y)
        if isinstance(sample, tuple) and len(sample) == 2:
            return cls.public(loss, *sample, unit=unit, middle=middle)
        if sample != "synthetic":
            raise InvalidInput(f'sample must be "synthetic", (X, y) or a Dataset, got {sample!r}.')
        if loss == "net":
            raise InvalidInput("a network has no synthetic records; give public ones as sample=(X, y).")
        return cls(loss, features, unit=unit)

    @classmethod
    def for_plan(cls, sample: SampleArgument, plan: Plan) -> Sample:
        """Return the sample of a user's argument, for the model of a plan."""
        objective = vars(plan).get("objective")
        if isinstance(plan, GradientPlan) and not isinstance(objective, GLM):
            return cls.from_argument(sample, "net", 0)
        if not isinstance(objective, GLM):
            raise InvalidInput("linear models and networks are simulated and no others; leave sample out.")
        if sample == "synthetic" and objective.dim is None:
            raise InvalidInput("synthetic records need the number of features: GLM(..., dim=...).")
        return cls.from_argument(sample, objective.loss, objective.dim or 0)

    @property
    def metric(self) -> str:
        """What is reported: accuracy, or the root mean squared error in the unit of the target."""
        return "accuracy" if self.loss in (*TWO_CLASSES, "net") else "error"

    @property
    def chance(self) -> float:
        """The score of an answer that learned nothing: the larger class, or always the mean."""
        if self.metric == "error":
            spread = math.sqrt(2 * _SLOPE**2) if self.y is None else float(np.std(self.y))
            return spread * self.unit
        if self.y is None:
            return 0.5
        _, counts = np.unique(self.y, return_counts=True)
        return float(counts.max() / counts.sum())

    def uncertainty(self, score: float) -> float:
        """Return the standard error of a mean score that comes from the sample being finite."""
        if self.y is None:
            return 0.0
        if self.metric == "accuracy":
            return math.sqrt(max(score * (1 - score), 0.0) / len(self.y))
        return score / math.sqrt(2 * len(self.y))

    def draw(
        self, sizes: Sequence[int], rng: np.random.Generator, objective: Objective | None = None
    ) -> tuple[AgentRecords, Judge]:
        """Return records for agents of these sizes and a judge of final rows on held-out records.

        ``objective`` is that of a neural network, whose rows it judges.
        """
        total = int(sum(sizes))
        if self.X is None or self.y is None:
            X, y = self._synthetic_records(total + TEST_RECORDS, rng)
            train, test = np.arange(total), np.arange(total, total + TEST_RECORDS)
        else:
            X, y = self.X, self.y
            test, pool = np.split(rng.permutation(len(y)), [round(TEST_SHARE * len(y))])
            train = rng.permutation(pool)[:total] if total <= len(pool) else rng.choice(pool, size=total)
        if objective is None or self.loss != "net":
            return Shards(X[train], y[train], offsets_of(sizes)), lambda rows: self._judge(
                rows, X[test], y[test]
            )
        from sottovoce.data.agent_tensors import AgentData  # needs torch

        names, labels = np.unique(y, return_inverse=True)
        parts = [np.arange(a, b) for a, b in itertools.pairwise(offsets_of(sizes))]
        x = X.astype(np.float32)
        data = AgentData(x[train], labels[train], parts, test=(x[test], labels[test]), classes=len(names))
        return data, lambda rows: float(objective.metrics(rows, data)["accuracy"])

    def _judge(self, rows: np.ndarray, X: np.ndarray, y: np.ndarray) -> float:
        """Return the score on these records of the mean of the final rows of a linear model."""
        predicted = X @ np.asarray(rows).mean(axis=0)
        if self.loss in TWO_CLASSES:
            return float(np.mean(np.where(predicted >= 0, 1.0, -1.0) == y))
        return float(np.sqrt(np.mean((predicted - y) ** 2))) * self.unit

    def _synthetic_records(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        X = rng.normal(size=(count, self.features))
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        w = rng.normal(size=self.features)
        w /= np.linalg.norm(w)
        scores = X @ w * math.sqrt(self.features)  # standard deviation about 1
        if self.loss in TWO_CLASSES:
            odds = 1 / (1 + np.exp(-LOGIT * scores))
            return X, np.where(rng.random(count) < odds, 1.0, -1.0)
        return X, _SLOPE * (scores + rng.normal(size=count))


SampleArgument = Sample | Dataset | str | tuple[ArrayLike, ArrayLike]


def _finite(values: np.ndarray) -> np.ndarray:
    try:
        numbers = values.astype(float)
    except (TypeError, ValueError):
        numbers = np.array([np.nan])
    if not np.isfinite(numbers).all():
        raise DataError("a sample holds finite numbers only; leave out records with missing values or words.")
    return numbers


def read_sample(name: str | None) -> Dataset | tuple[np.ndarray, np.ndarray] | str | None:
    """Return a public data set by name, or a table whose last column is the label; others stay."""
    if name is None or name == "synthetic":
        return name
    suffix = Path(name).suffix
    if suffix == ".csv":
        *features, labels = read_columns(name).values()
        try:
            X, y = np.array(features, dtype=float).T, np.array(labels)
        except ValueError:
            raise DataError(f"{name} must hold numbers, and labels in its last column.") from None
        with contextlib.suppress(ValueError):
            y = y.astype(float)
        return X, y
    if suffix == ".npz":
        numbers = read_numbers(name)
        return numbers[:, :-1], numbers[:, -1]
    if suffix and Path(name).exists():
        raise InvalidInput(f"a sample is a .csv or .npz file, got {name}; save it as one of them.")
    return load(name)
