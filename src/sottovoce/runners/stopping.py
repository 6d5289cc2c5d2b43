"""Reasons to end a run early: no more improvement, or divergence; only what is shown anyway counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sottovoce import _validate
from sottovoce.errors import InvalidInput

_LARGER_IS_BETTER = ("accuracy", "auc", "r2", "better_than")
_HOPELESS = 1e3  # times the loss of a constant answer and of the start: stop at once
_WORSE = 10.0  # times that loss: stop if it does not fall


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when a score has not improved for some evaluations.

    Parameters
    ----------
    monitor : the score, by its name in the history. Accuracies and AUC are to rise, everything else to fall.
    patience : how many evaluations in a row may pass without a new best score.
    min_delta : the least change that counts as an improvement.

    Guarantees
    ----------
    The decision is a function of the history alone: released models scored on public records. It therefore
    costs no privacy. The whole plan is charged before the run begins, so stopping early returns no budget.

    Examples
    --------
    >>> EarlyStopping(patience=2).stops([{"loss": 0.9}, {"loss": 0.5}, {"loss": 0.6}, {"loss": 0.5}])
    True
    """

    monitor: str = "loss"
    patience: int = 3
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        _validate.count(self.patience, "patience")
        _validate.non_negative(self.min_delta, "min_delta")

    def require(self, scores: Mapping[str, Any]) -> None:
        """Raise if the score is not among those that are measured."""
        if self.monitor not in scores:
            measured = ", ".join(scores) or "nothing; give public records for it, test=..."
            raise InvalidInput(f"early stopping watches {self.monitor!r}, but the run measures {measured}.")

    def stops(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether a run with this history ends."""
        sign = -1.0 if any(word in self.monitor for word in _LARGER_IS_BETTER) else 1.0
        best, since = float("inf"), 0
        for entry in history:
            score = sign * float(entry[self.monitor])
            best, since = (score, 0) if score < best - self.min_delta else (best, since + 1)
        return since >= self.patience


class DivergenceCheck:
    """Compares a run with its start and with the best constant answer.

    Guarantees
    ----------
    Only released rows and the scores that a run shows anyway are read, so stopping a run tells nothing more.
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
