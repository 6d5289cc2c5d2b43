"""scikit-learn estimators with a privacy guarantee; see `sottovoce.estimators`."""

from sottovoce.estimators.sklearn_estimators import (
    PrivateLasso,
    PrivateLinearSVC,
    PrivateLogisticRegression,
    PrivateRidge,
    SearchSpendsBudget,
)

__all__ = [
    "PrivateLasso",
    "PrivateLinearSVC",
    "PrivateLogisticRegression",
    "PrivateRidge",
    "SearchSpendsBudget",
]
