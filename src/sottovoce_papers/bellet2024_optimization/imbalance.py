"""Why DP-SGD fails on imbalanced features, and DP-CD and DP-SGD as curves over the passes.

``imbalanced`` is the talk's picture: two features of unequal scale, one step size for both, the path of each
method. ``dpcd-curves`` runs electricity at the settings that `dp_cd` found best on its grid (see
`docs/results/dpcd-electricity.json`) and keeps the objective after every pass.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from sottovoce.algorithms.dp_cd import DPCD
from sottovoce.algorithms.dp_sgd import DPSGD
from sottovoce.data import load
from sottovoce.objectives import GLM
from sottovoce.runners.base import Result
from sottovoce_papers import drawing
from sottovoce_papers.bellet2024_optimization import dp_cd
from sottovoce_papers.common import curve_of, result
from sottovoce_papers.registry import Experiment, ResultTable


def imbalanced(
    quick: bool = False,
    *,
    records: int = 2000,
    scale: float = 20.0,
    epsilon: float = 1.0,
    passes: int = 20,
    seed: int = 0,
) -> Result:
    """Return the paths of DP-SGD and DP-CD where the second feature is ``scale`` times larger."""
    started = time.perf_counter()
    if quick:
        records, passes = 200, 4
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(records, 2)) * np.array([1.0, scale])
    y = X @ np.array([1.0, 1.0 / scale]) + 0.05 * rng.standard_normal(records)
    model = GLM("squared")
    best = model.minimize(X, y)
    smooth = tuple(float(m) for m in model.coordinate_smoothness(X))
    budget: dict[str, Any] = {"epsilon": epsilon, "delta": 1 / records**2, "records": records}
    common: dict[str, Any] = {**budget, "objective": model, "clip_norm": scale, "output": "last"}
    rate = 1.0 / sum(smooth)
    plans: dict[str, Any] = {
        "dp-sgd": DPSGD.for_budget(steps=passes, batch_size=records, learning_rate=rate, **common),
        "dp-cd": DPCD.for_budget(steps=2 * passes, smoothness=smooth, adjacency="add-remove", **common),
    }
    paths: dict[str, Any] = {}
    for name, plan in plans.items():
        path: list[list[float]] = [[0.0, 0.0]]

        def look(rows: np.ndarray, path: list[list[float]] = path) -> dict[str, float]:
            path.append([float(rows[0, 0]), float(rows[0, 1])])
            return {"value": model.value(rows[0], X, y)}

        plan.run((X, y), np.random.default_rng([seed, 1]), evaluate=look, every=1 if name == "dp-sgd" else 2)
        paths[name] = {"path": path, "gap": model.value(np.array(path[-1]), X, y) - model.value(best, X, y)}
    config = {"records": records, "scale": scale, "epsilon": epsilon, "passes": passes, "seed": seed}
    metrics = {**paths, "optimum": best, "smoothness": smooth, "value": model.value(best, X, y)}
    return result("imbalanced", started, config, metrics=metrics, seed=seed)


def imbalanced_table(record: dict[str, Any]) -> ResultTable:
    """Return where both methods end."""
    best = record["metrics"]["optimum"]
    ends = {name: record["metrics"][name]["path"][-1] for name in ("dp-sgd", "dp-cd")}
    rows = tuple(
        (name, end[0], best[0], end[1], best[1], record["metrics"][name]["gap"]) for name, end in ends.items()
    )
    columns = ("method", "w1 (small feature)", "w1 best", "w2 (large feature)", "w2 best", "objective gap")
    note = f"Second feature {record['config']['scale']:g} times as large as the first."
    return ResultTable(columns, rows, note)


def imbalanced_held(record: dict[str, Any]) -> bool:
    """Whether DP-CD ends closer to the optimum in the small feature."""
    best = record["metrics"]["optimum"][0]
    off = {name: abs(record["metrics"][name]["path"][-1][0] - best) for name in ("dp-sgd", "dp-cd")}
    return off["dp-cd"] < off["dp-sgd"]


def plot_imbalanced(record: dict[str, Any]) -> Any:
    """Draw the two paths over the level lines of the objective."""
    metrics = record["metrics"]
    best, smooth = np.array(metrics["optimum"]), np.array(metrics["smoothness"])
    with drawing.figure_of() as (figure, (axes,)):
        points = np.array([p for name in ("dp-sgd", "dp-cd") for p in metrics[name]["path"]])
        low, high = np.vstack([points, best]).min(axis=0), np.vstack([points, best]).max(axis=0)
        margin = 0.15 * (high - low) + 1e-6
        a, b = (np.linspace(low[k] - margin[k], high[k] + margin[k], 80) for k in (0, 1))
        height = smooth[0] * (a[None, :] - best[0]) ** 2 / 2 + smooth[1] * (b[:, None] - best[1]) ** 2 / 2
        axes.contour(a, b, height, levels=12, colors=drawing.COLORS[6], linewidths=0.6)
        for k, name in enumerate(("dp-cd", "dp-sgd")):
            path = np.array(metrics[name]["path"])
            axes.plot(*path.T, color=drawing.COLORS[k], marker=drawing.MARKERS[k], ms=3.5, lw=1.2, label=name)
        axes.scatter(*best, marker="*", s=160, color=drawing.COLORS[2], zorder=4, label="optimum")
        labels = "weight of the small feature", "weight of the large feature"
        drawing.names(axes, *labels, "one step size for unequal features")
    return figure


# what the grid of dp_cd chose: clip and step of each method, by form of the data
CHOSEN: dict[str, dict[str, dict[str, Any]]] = {
    "raw": {
        "dp-cd": {"clip_norm": 10.0, "step_scale": 2.0},
        "dp-sgd": {"clip_norm": 3.0, "learning_rate": 0.3737942},
    },
    "standardized": {
        "dp-cd": {"clip_norm": 3.0, "step_scale": 1.0},
        "dp-sgd": {"clip_norm": 10.0, "learning_rate": 0.15},
    },
}


def curves(
    quick: bool = False,
    *,
    epsilon: float = 1.0,
    passes: int = 50,
    share: float = 0.01,
    runs: int = 3,
    seed: int = 0,
) -> Result:
    """Return the relative objective gap after every fifth pass over electricity, raw and standardized."""
    started = time.perf_counter()
    data = load("electricity")
    if quick:
        passes, share, runs = 10, 0.1, 1
        data = replace(data, X=data.X[:2000], y=data.y[:2000])
    by_form: dict[str, Any] = {}
    for form, one in (("raw", data), ("standardized", data.standardized())):
        n, p = one.X.shape
        model = GLM("logistic", l2=1 / n)
        best = model.value(model.minimize(one.X, one.y), one.X, one.y)
        budget: dict[str, Any] = {"epsilon": epsilon, "delta": 1 / n**2, "objective": model, "records": n}
        known: dict[str, Any] = {"bounds": dp_cd.BOUNDS} if form == "raw" else {"smoothness": (0.25,) * p}
        known |= {"steps": passes * p, "adjacency": "add-remove"}
        sampled: dict[str, Any] = {"steps": round(passes / share), "batch_size": share * n}
        plans: dict[str, tuple[Any, int]] = {
            "dp-cd": (DPCD.for_budget(output="last", **known, **CHOSEN[form]["dp-cd"], **budget), 5 * p),
            "dp-sgd": (
                DPSGD.for_budget(output="last", **sampled, **CHOSEN[form]["dp-sgd"], **budget),
                round(5 / share),
            ),
        }

        def evaluate(rows: np.ndarray, m: Any = model, d: Any = one, b: float = best) -> dict[str, float]:
            return {"gap": m.value(rows[0], d.X, d.y) / b - 1}

        by_form[form] = {}
        for name, (plan, every) in plans.items():
            streams = [np.random.default_rng([seed, 1 + r]) for r in range(runs)]
            results = [plan.run((one.X, one.y), rng, every=every, evaluate=evaluate) for rng in streams]
            values = [[row["gap"] for row in result.history] for result in results]
            last = [line[-1] for line in values]
            by_form[form][name] = {
                "gaps": last,
                "median": float(np.median(last)),
                "epsilon": plan.privacy().epsilon(1 / n**2),
                "curve": {"passes": [5 * (k + 1) for k in range(len(values[0]))], **curve_of(values)},
            }
    ratios = {f"{form}_ratio": f["dp-cd"]["median"] / f["dp-sgd"]["median"] for form, f in by_form.items()}
    config = {"epsilon": epsilon, "passes": passes, "share": share, "runs": runs, "seed": seed}
    return result("dpcd-curves", started, config, metrics={**by_form, **ratios}, seed=seed)


EXPERIMENTS = {
    "imbalanced": Experiment(
        "Paths of DP-SGD and DP-CD on features of unequal scale",
        "Bellet 2024 (talk): DP-SGD fails on imbalanced problems", imbalanced, plot_imbalanced,
        table=imbalanced_table, held=imbalanced_held,
        claim="One step size for all leaves the small feature behind; coordinate-wise steps do not.",
    ),
    "dpcd-curves": Experiment(
        "DP-CD and DP-SGD on electricity over the passes", "Bellet 2024 (talk); Mangold et al. 2022",
        curves, dp_cd.plot, table=dp_cd.table, held=dp_cd.held,
        claim="On raw (imbalanced) features DP-CD is far below DP-SGD; on standardized ones still below.",
    ),
}  # fmt: skip
