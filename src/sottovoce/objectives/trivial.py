"""The trivial model of a test set, one constant answer, and whether a trained model does better.

A model is of use only if it predicts better than the most common class (classification) or the mean
(regression) of the test records. Everything here reads test records alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

# what `with_trivial` adds to scores: constant along a run, so no part of its history
CONSTANTS = ("test_records", "trivial_accuracy", "trivial_loss", "trivial_rmse", "better_than_trivial")


def trivial_scores(task: str, targets: np.ndarray, log_loss: bool = True) -> dict[str, float]:
    """Return the scores of the best constant answer on a test set.

    Classification and yes-or-no ``"labels"``: accuracy of the most common class and, if training minimizes
    the ``log_loss``, the entropy of the classes. Regression: the root of the mean squared error of the mean.
    """
    columns = np.asarray(targets).reshape(len(targets), -1).T
    count = {"test_records": len(targets)}
    if task == "regression":
        return count | {"trivial_rmse": float(np.sqrt(np.mean(np.var(columns.astype(np.float64), axis=1))))}
    shares = [np.unique(column, return_counts=True)[1] / len(targets) for column in columns]
    accuracy = {"trivial_accuracy": float(np.mean([share.max() for share in shares]))}
    entropy = {"trivial_loss": float(np.mean([-share @ np.log(share) for share in shares]))}
    return count | accuracy | (entropy if log_loss else {})


def with_trivial(scores: Mapping[str, float], trivial: Mapping[str, float]) -> dict[str, Any]:
    """Return scores of a model beside those of the trivial one, and whether they are better."""
    better = {}
    if "accuracy" in scores and "trivial_accuracy" in trivial:
        better = {"better_than_trivial": scores["accuracy"] > trivial["trivial_accuracy"]}
    elif "rmse" in scores and "trivial_rmse" in trivial:
        better = {"better_than_trivial": scores["rmse"] < trivial["trivial_rmse"]}
    return {**scores, **trivial, **better}


def comparison(metrics: Mapping[str, Any]) -> str | None:
    """Return in one sentence whether a model is better than a constant; None if that was not measured."""
    if "better_than_trivial" not in metrics:
        return None
    name, answer = ("accuracy", "the most common class") if "accuracy" in metrics else ("rmse", "the mean")
    verdict = "better than a constant" if metrics["better_than_trivial"] else "no better than a constant"
    return (
        f"{name} {metrics[name]:.4g} on {metrics['test_records']:,} test records; always answering {answer} "
        f"gives {metrics[f'trivial_{name}']:.4g}: {verdict}."
    )
