"""A linear model by its numbers, and probabilities of classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.errors import DataError


@dataclass(frozen=True)
class LinearModel:
    """A linear model by its numbers: x.coef + intercept, for features as the columns give them.

    With several classes ``coef`` has one row and ``intercept`` one number per class.
    """

    coef: np.ndarray
    intercept: float | np.ndarray = 0.0
    feature_names: tuple[str, ...] = ()
    loss: str = "logistic"

    @classmethod
    def of_row(
        cls, row: np.ndarray, loss: str, names: tuple[str, ...], intercept: bool, classes: int | None
    ) -> LinearModel:
        """Return the model of a row of parameters, the last feature being the intercept's."""
        table = np.array(row if classes is None else np.reshape(row, (classes, -1)))
        if not intercept:
            return cls(table, 0.0 if classes is None else np.zeros(classes), names, loss)
        shift = table[..., -1]
        return cls(table[..., :-1], float(shift) if classes is None else shift, names, loss)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> LinearModel:
        """Read the model from its attributes as JSON holds them."""
        shift, names = stored["intercept"], tuple(stored["feature_names"])
        intercept = np.array(shift) if isinstance(shift, list) else shift
        return cls(np.array(stored["coef"]), intercept, names, stored["loss"])

    def scores(self, X: ArrayLike) -> np.ndarray:
        """Return x.coef + intercept of every record, one number per class where there are several."""
        try:
            array = np.asarray(X, dtype=np.float64)
        except (TypeError, ValueError):
            raise DataError(
                f"the model takes {self.coef.shape[-1]} features of each record, as numbers."
            ) from None
        if array.ndim != 2 or array.shape[1] != self.coef.shape[-1]:
            raise DataError(f"the model takes {self.coef.shape[-1]} features, got shape {array.shape}.")
        return np.asarray(array @ self.coef.T + self.intercept)


def probabilities(scores: np.ndarray, *, several: bool) -> np.ndarray:
    """Return the probability of every class: of several by their scores, or of no and yes by one score."""
    if several:
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=-1, keepdims=True))
    share = np.exp(-np.logaddexp(0, -scores))
    return np.stack([1 - share, share], axis=-1)
