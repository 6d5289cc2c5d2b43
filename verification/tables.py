"""How good are the defaults of `sv.fit` on tables?

    python -m verification.tables [--out docs/results/verification.json] [--seeds 5]

A synthetic patient table (20,000 rows, 16 columns of mixed types, entries missing, 8 sites, 10 % positives)
is fitted as a user would, from a CSV file with public facts and no other option; so are four public data
sets, whose bounds are read off here only because nobody published any. Each default fit is compared with
scikit-learn without privacy and with the best of 30 settings of learning rate, clip norm and steps, at the
same budget, chosen by the scores themselves.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import roc_auc_score

import sottovoce as sv
from verification import store

EPSILON, DELTA = 2.0, 1e-6
SITES = 8
BOUNDS = {
    "age": (0, 110), "bmi": (10, 70), "systolic": (50, 260), "pulse": (20, 220), "temperature": (30, 45),
    "creatinine": (0, 15), "glucose": (20, 700), "hemoglobin": (2, 22), "admissions": (0, 30),
}  # fmt: skip
CATEGORIES = {
    "sex": ["f", "m"], "ward": ["medicine", "surgery", "heart", "oncology", "intensive"],
    "arrival": ["planned", "emergency", "transfer"], "smoker": ["no", "yes"],
}  # fmt: skip
SEARCH = [
    {"learning_rate": rate, "clip_norm": clip, "steps": steps}
    for rate, clip, steps in product((0.1, 0.5, 2.0, 8.0, 32.0), (0.3, 1.0, 3.0), (30, 150))
]


def patients(path: Path, n: int = 20_000, seed: int = 0) -> Path:
    """Write the synthetic table: 16 columns, of which ``ill`` and ``stay`` can be predicted."""
    rng = np.random.default_rng(seed)
    numbers = {
        "age": rng.normal(58, 16, n).clip(18, 100),
        "bmi": rng.normal(27, 5, n).clip(12, 60),
        "systolic": rng.normal(132, 20, n).clip(70, 240),
        "pulse": rng.normal(80, 15, n).clip(30, 200),
        "temperature": rng.normal(37, 0.6, n).clip(34, 42),
        "creatinine": np.exp(rng.normal(0, 0.4, n)).clip(0.2, 10),
        "glucose": np.exp(rng.normal(4.65, 0.25, n)).clip(40, 600),
        "hemoglobin": rng.normal(13.5, 1.8, n).clip(5, 20),
        "admissions": rng.poisson(1.2, n).clip(0, 20).astype(float),
    }
    shares = {"sex": (0.5, 0.5), "ward": (0.4, 0.25, 0.2, 0.1, 0.05), "arrival": (0.6, 0.3, 0.1),
              "smoker": (0.78, 0.22)}  # fmt: skip
    chosen = {name: rng.choice(len(share), n, p=share) for name, share in shares.items()}
    score = (
        0.05 * (numbers["age"] - 58) + 0.05 * (numbers["bmi"] - 27) + 0.015 * (numbers["systolic"] - 132)
        + 0.02 * (numbers["pulse"] - 80) + 0.5 * (numbers["temperature"] - 37)
        + 0.8 * np.log(numbers["creatinine"]) + 0.3 * numbers["admissions"] + 0.3 * chosen["sex"]
        + 0.6 * chosen["smoker"] + np.array([0, 0.3, -0.2, 0.6, 1.0])[chosen["ward"]]
        + np.array([0, 0.5, 1.0])[chosen["arrival"]]
    )  # fmt: skip
    level = brentq(lambda b: expit(score - b).mean() - 0.1, -50, 50)
    ill = np.where(rng.random(n) < expit(score - level), "yes", "no")
    stay = 5 + 0.08 * (numbers["age"] - 58) + 1.2 * numbers["admissions"]
    stay += 2 * np.log(numbers["creatinine"]) + np.array([0, 1, -0.5, 2, 4])[chosen["ward"]]
    stay = (stay + rng.normal(0, 2, n)).clip(0, 40)
    columns: dict[str, Any] = {}
    for name, values in numbers.items():
        words = np.array([f"{value:.4g}" for value in values], dtype=object)
        words[rng.random(n) < 0.03] = ""
        columns[name] = words
    columns |= {name: np.array(CATEGORIES[name], dtype=object)[index] for name, index in chosen.items()}
    columns["site"] = rng.choice([f"site{k}" for k in range(SITES)], n)
    columns |= {"ill": ill, "stay": [f"{value:.2f}" for value in stay]}
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def reading(path: Path, label: str, wide: float = 1.0) -> sv.data.TableData:
    """Return how the synthetic table is read: by public facts alone, with bounds so many times as wide."""
    middles = {name: ((low + high) / 2, wide * (high - low) / 2) for name, (low, high) in BOUNDS.items()}
    bounds = {name: (middle - half, middle + half) for name, (middle, half) in middles.items()}
    bounds |= {"stay": (0, 40)} if label == "stay" else {}
    drop = ["stay"] if label == "ill" else ["ill"]
    return sv.data.TableData(
        path, label, "site", drop=drop, bounds=bounds, categories=CATEGORIES, missing="middle"
    )


def csv_figures(folder: Path, n: int = 20_000, seed: int = 0) -> dict[str, float]:
    """Return the scores of default fits of the synthetic table, and of scikit-learn without privacy."""
    train, test = patients(folder / "train.csv", n, seed), patients(folder / "test.csv", n, seed + 1000)
    figures: dict[str, float] = {}
    budgets = {"private": EPSILON, "unlimited": np.inf}
    for label, model in (("ill", "logistic"), ("stay", "squared")):
        training = sv.TrainingOptions(classes=["no", "yes"] if label == "ill" else None)
        for kind, epsilon in budgets.items():
            fitted = sv.fit(
                model, reading(train, label), network="complete", budget=sv.Budget(epsilon, DELTA),
                training=training, rng=np.random.default_rng(seed),
            )  # fmt: skip
            assert fitted.columns is not None
            X, y = _prepared(fitted, train, label), _prepared(fitted, test, label)
            if label == "ill":
                figures[f"auc_{kind}"] = float(roc_auc_score(y[1] == "yes", fitted.scores(test)))
            else:
                figures[f"rmse_{kind}"] = _rmse(fitted.predict(test), y[1])
        if label == "ill":
            fitted = sv.fit(
                model, reading(train, label, wide=10.0), network="complete",
                budget=sv.Budget(EPSILON, DELTA), training=training, rng=np.random.default_rng(seed),
            )  # fmt: skip
            figures["auc_bounds_ten_times_as_wide"] = float(roc_auc_score(y[1] == "yes", fitted.scores(test)))
            plain = LogisticRegression(C=1e6, max_iter=2000).fit(*X)
            figures["auc_scikit_learn"] = float(roc_auc_score(y[1] == "yes", plain.decision_function(y[0])))
        else:
            figures["rmse_scikit_learn"] = _rmse(LinearRegression().fit(*X).predict(y[0]), y[1])
    return figures


def _prepared(fitted: sv.Fitted, path: Path, label: str) -> tuple[np.ndarray, np.ndarray]:
    """Return features as the model takes them, and labels."""
    from sottovoce.data.files import read_table

    table = read_table(path)
    words = table[label].astype(str)
    return fitted.columns(table), words if label == "ill" else words.astype(float)


def _rmse(predicted: np.ndarray, truth: np.ndarray) -> float:
    return float(np.sqrt(np.mean((predicted - truth) ** 2)))


def data_set_figures(name: str, seeds: int, search: bool = True) -> dict[str, Any]:
    """Return the scores on a quarter held out: defaults, the best of the search, scikit-learn."""
    data = sv.data.load(name)
    X, y = np.asarray(data.X), (np.asarray(data.y) > 0).astype(int)
    low, high = X.min(axis=0), X.max(axis=0)
    X = (X - (low + high) / 2) / (0.6 * (high - low))  # bounds a fifth wider than the records
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[: 3 * len(y) // 4], order[3 * len(y) // 4 :]
    groups = None if data.groups is None else data.groups[train]
    network = f"complete:{SITES}" if groups is None else "complete"

    def score(training: sv.TrainingOptions, epsilon: float = EPSILON) -> float:
        scores = []
        for seed in range(seeds):
            fitted = sv.fit(
                "logistic", (X[train], y[train]), network=network, group=groups,
                budget=sv.Budget(epsilon, DELTA), training=training, rng=np.random.default_rng(seed),
            )  # fmt: skip
            scores.append(roc_auc_score(y[test], fitted.scores(X[test])))
        return float(np.mean(scores))

    plain = LogisticRegression(C=1e6, max_iter=5000).fit(X[train], y[train])
    figures: dict[str, Any] = {
        "records": len(train),
        "auc_defaults": score(sv.TrainingOptions()),
        "auc_unlimited": score(sv.TrainingOptions(), np.inf),
        "auc_scikit_learn": float(roc_auc_score(y[test], plain.decision_function(X[test]))),
    }
    if search:
        tried = {json.dumps(setting): score(sv.TrainingOptions(**setting)) for setting in SEARCH}
        best = max(tried, key=lambda setting: tried[setting])
        figures |= {"auc_best_of_search": tried[best], "best_setting": json.loads(best)}
    return figures


def main() -> int:
    """Measure everything and write the record."""
    parser = argparse.ArgumentParser(
        prog="python -m verification.tables", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument("--out", type=Path, default=Path("docs/results/verification.json"))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        runs = [csv_figures(Path(folder), seed=seed) for seed in range(options.seeds)]
    metrics: dict[str, Any] = {"patients": {key: float(np.mean([r[key] for r in runs])) for key in runs[0]}}
    for name in ("electricity", "houses", "heart_disease", "breast_cancer"):
        metrics[name] = data_set_figures(name, options.seeds)
        print(name, metrics[name], file=sys.stderr, flush=True)
    config = {
        "epsilon": EPSILON,
        "delta": DELTA,
        "sites": SITES,
        "seeds": options.seeds,
        "search": len(SEARCH),
    }
    rounded = json.loads(json.dumps(metrics), parse_float=lambda word: round(float(word), 4))
    seconds = round(time.perf_counter() - started, 1)
    record = {"name": "tables", "config": config, "metrics": rounded, "version": sv.__version__}
    store(options.out, "tables", record | {"seconds": seconds})
    print(json.dumps(rounded["patients"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
