"""End a run when scores on public records no longer improve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce import _validate
from sottovoce.errors import InvalidInput

_LARGER_IS_BETTER = ("accuracy", "auc", "r2", "better_than")


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
