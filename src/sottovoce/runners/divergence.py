"""Notice that training diverges, from public values alone: released rows, and scores on test records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

_HOPELESS = 1e3  # times the loss of a constant answer and of the start: stop at once
_WORSE = 10.0  # times that loss: stop if it does not fall


class DivergenceCheck:
    """Compares a run with its start and with the best constant answer.

    Guarantees
    ----------
    Only released rows and scores on test records are read, so stopping a run costs no privacy.
    """

    def __init__(self) -> None:
        self.start_loss = 0.0
        self.before = math.inf

    def begin(self, scores: Mapping[str, Any]) -> None:
        """Record the scores of the starting rows: a bad start is no divergence."""
        self.start_loss = _loss(scores) if _comparable(scores) else 0.0

    def rows_reason(self, rows: np.ndarray) -> str | None:
        """Return why rows show divergence: not finite, or so large that a step of one is rounded away."""
        if rows.dtype.kind != "f":
            return None
        if not np.isfinite(rows).all():
            return "the model is not finite"
        largest = float(np.abs(rows).max(initial=0.0))
        return f"it has parameters of {largest:.2g}" if largest > 1 / np.finfo(rows.dtype).eps else None

    def scores_reason(self, scores: Mapping[str, Any]) -> str | None:
        """Return why scores show divergence, compared with a constant answer and with the start.

        The loss (squared error) is 1,000 times theirs, or it is 10 times theirs and does not fall.
        """
        if not _comparable(scores):
            return None
        loss, reference = _loss(scores), max(_loss(scores, "trivial_"), self.start_loss)
        falling, self.before = loss < self.before, loss
        name = "loss" if "trivial_loss" in scores else "squared error"
        above = f"the {name} on the test records is more than {{:,.0f}} times that of a constant answer"
        if loss > _HOPELESS * reference:
            return above.format(_HOPELESS)
        if loss > _WORSE * reference and not falling and not scores["better_than_trivial"]:
            return above.format(_WORSE) + " and does not fall"
        return None


def _comparable(scores: Mapping[str, Any]) -> bool:
    return bool({"trivial_loss", "trivial_rmse"} & set(scores))


def _loss(scores: Mapping[str, Any], prefix: str = "") -> float:
    """Return the loss, in a regression the squared error; infinite if it is not a number."""
    loss = float(scores[f"{prefix}loss"] if "trivial_loss" in scores else scores[f"{prefix}rmse"] ** 2)
    return math.inf if math.isnan(loss) else loss
