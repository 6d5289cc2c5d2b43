"""Convex learning: compiled kernels against numpy twins, memory passes and scikit-learn; medians, JSON.

    python -m benchmarks.convex [--quick]

Rivals run in the same process, interleaved with ours. CPU seconds are used, so that a busy machine does not
decide the ratios.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

import sottovoce as sv
from sottovoce.algorithms.dp_cd import DPCD
from sottovoce.algorithms.dp_gcd import DPGCD
from sottovoce.algorithms.dp_sgd import DPSGD
from sottovoce.algorithms.muffliato_sgd import MuffliatoSGD
from sottovoce.algorithms.random_walk_sgd import RandomWalkSGD
from sottovoce.data import Shards
from sottovoce.objectives import GLM, clip_rows
from sottovoce.objectives.kernels import _pass_logistic, _pass_squared


def medians(works: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median CPU seconds of each piece of work, taken in turn; one warm-up each."""
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            begin = time.process_time()
            work()
            times[name].append(time.process_time() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def users(n: int, p: int, records: int = 1) -> Shards:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n * records, p))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.sign(X @ rng.normal(size=p) + 0.1 * rng.normal(size=n * records))
    return Shards(X, y, np.arange(n + 1) * records)


def random_walk(quick: bool) -> dict[str, float]:
    """Steps a second at p = 8, one record a user, against the numpy twin."""
    n, p, steps, few = 2000, 8, 100_000 if quick else 1_000_000, 4000
    data, model = users(n, p), GLM("logistic")
    out = {}
    for name, graph in (
        ("complete", sv.graphs.complete(n)),
        ("regular", sv.graphs.regular(n, 8, np.random.default_rng(1))),
    ):
        plan = RandomWalkSGD(
            model,
            graph,
            steps=steps,
            learning_rate=0.1,
            clip_norm=1.0,
            noise_multiplier=1.0,
            adjacency="user",
            path="secret",
        )

        def twin(graph=graph, name=name):
            rng = np.random.default_rng(0)
            W = graph.W
            theta, holder = np.zeros(p), 0
            for _ in range(few):
                X, y = data.user(holder)
                g = clip_rows(model.gradient(theta, X, y)[None], 1.0)[0]
                theta = theta - 0.1 * (g + rng.standard_normal(p))
                row = slice(W.indptr[holder], W.indptr[holder + 1])
                if name == "complete":
                    holder = int(rng.integers(n))
                else:
                    holder = int(rng.choice(W.indices[row], p=W.data[row] / W.data[row].sum()))
            return theta

        seconds = medians(
            {"kernel": lambda plan=plan: plan.run(data, np.random.default_rng(0)), "numpy": twin}, 3
        )
        out[f"{name}_steps_per_second"] = steps / seconds["kernel"]
        out[f"{name}_against_numpy"] = (steps / seconds["kernel"]) / (few / seconds["numpy"])
    return out


def coordinate_step(quick: bool) -> dict[str, float]:
    """One DP-CD step against a pass that reads the column and reads and writes the margins (u += d * x)."""
    out = {}
    for label, n in (("cache", 45_312), ("memory", 400_000 if quick else 4_000_000)):
        rng = np.random.default_rng(0)
        u, x, other = rng.normal(size=n), rng.normal(size=n), rng.normal(size=n)
        buffer = np.empty(n)

        def stream(u=u, x=x, buffer=buffer):
            np.multiply(x, 1e-9, out=buffer)
            np.add(u, buffer, out=u)

        repeats = 40 if n < 1e6 else 9
        seconds = medians(
            {
                "logistic": lambda u=u, x=x, other=other: _pass_logistic(u, 1e-9, other, x, 0.5),
                "squared": lambda u=u, x=x, other=other: _pass_squared(u, 1e-9, other, x, 0.5),
                "read": lambda x=x: x.sum(),
                "stream": stream,
            },
            repeats,
        )
        for loss in ("logistic", "squared"):
            out[f"{label}_{loss}_over_column_sum"] = seconds[loss] / seconds["read"]
            out[f"{label}_{loss}_over_stream_pass"] = seconds[loss] / seconds["stream"]
        out[f"{label}_logistic_ns_per_record"] = 1e9 * seconds["logistic"] / n
    return out


def muffliato(quick: bool) -> dict[str, float]:
    """Muffliato-GD, 100 steps: wall seconds, fresh Erdős-Rényi graphs drawn before."""
    n, steps = (400, 20) if quick else (4000, 100)
    data = users(n, 8, 4)
    graphs = [sv.graphs.erdos_renyi(n, 1.5, np.random.default_rng(k)) for k in range(4)]
    rounds = sv.protocols.rounds_for(graphs[0], variance=1.0)
    gossip = [sv.protocols.Chebyshev(g, rounds, gamma=1.4) for g in graphs]
    plan = MuffliatoSGD(
        GLM("logistic"), lambda k: gossip[k % 4], steps=steps, learning_rate=1.0, clip_norm=1.0,
        noise_multiplier=2.0, adjacency="user",
    )  # fmt: skip
    plan.run(data, np.random.default_rng(0))
    wall, cpu = time.perf_counter(), time.process_time()
    plan.run(data, np.random.default_rng(0))
    return {
        "users": n,
        "steps": steps,
        "rounds_per_step": rounds,
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
    }


def greedy(quick: bool) -> dict[str, float]:
    """DP-GCD on 100,000 sparse features: seconds a step, and memory beside a dense copy."""
    n, p, each = 800, 10_000 if quick else 100_000, 900
    rng = np.random.default_rng(0)
    rows = np.repeat(np.arange(n), each)
    X = sp.csr_array((np.ones(n * each), (rows, rng.integers(p, size=n * each))), shape=(n, p))
    X.sum_duplicates()
    y = np.sign(rng.normal(size=n))
    plan = DPGCD(
        GLM("logistic", l1=0.01), records=n, steps=10, clip_norm=0.5 * math.sqrt(p), noise_ratio=20.0
    )
    plan.run((X, y), np.random.default_rng(0))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = medians({"dp-gcd": lambda: plan.run((X, y), np.random.default_rng(0))}, 3)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {
        "features": p,
        "seconds_per_step": seconds["dp-gcd"] / 10,
        "peak_growth_mb": grown,
        "dense_copy_mb": n * p * 8 / 2**20,
    }


def against_libraries(quick: bool) -> dict[str, float]:
    """Fits of private solvers over scikit-learn's without privacy, same data; diffprivlib when installed."""
    from sklearn.linear_model import LogisticRegression

    n, p = (2000, 8) if quick else (45_312, 8)
    data = users(n, p)
    model = GLM("logistic", l2=1e-3)
    cd = DPCD(model, records=n, steps=160, clip_norm=1.0, noise_multiplier=20.0, smoothness=(0.03,) * p)
    sgd = DPSGD(
        model,
        records=n,
        steps=100,
        batch_size=0.01 * n,
        learning_rate=1.0,
        clip_norm=1.0,
        noise_multiplier=1.0,
    )
    works: dict[str, Callable[[], Any]] = {
        "dp-cd": lambda: cd.run((data.X, data.y), np.random.default_rng(0)),
        "dp-sgd": lambda: sgd.run((data.X, data.y), np.random.default_rng(0)),
        "scikit-learn": lambda: LogisticRegression(C=1 / (1e-3 * n), fit_intercept=False).fit(data.X, data.y),
    }
    try:
        from diffprivlib.models import LogisticRegression as Rival

        works["diffprivlib"] = lambda: Rival(epsilon=1.0, data_norm=1.0, fit_intercept=False).fit(
            data.X, data.y
        )
    except ImportError:
        pass
    seconds = medians(works, 5)
    return {
        f"{name}_over_{rival}": seconds[name] / seconds[rival]
        for name in ("dp-cd", "dp-sgd")
        for rival in ("scikit-learn", "diffprivlib")
        if rival in seconds
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    parts = {
        "random_walk": random_walk,
        "coordinate_step": coordinate_step,
        "muffliato": muffliato,
        "dp_gcd_sparse": greedy,
        "libraries": against_libraries,
    }
    print(json.dumps({name: part(quick) for name, part in parts.items()}, indent=1))


if __name__ == "__main__":
    main()
