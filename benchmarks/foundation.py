"""Pairwise losses and gossip against plain scipy; JSON ratios with their targets.

    python -m benchmarks.foundation [line ...]

Lines: ``published`` (equation (6), all pairs) and ``exact`` (exact loss, all pairs) against a straightforward
evaluation of equation (6) with scipy's CSR products, on hypercube:11 with 19 rounds (and the same with the
graph's symmetry hidden: ``published_without_symmetry``, ``exact_without_symmetry``); ``observer``, the exact
loss of one observer on a random 8-regular graph with a million nodes and 8 rounds; ``gossip``, 100 rounds of
averaging there against the bare sparse products. Ours and the rival take turns; times are medians.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy

import sottovoce as sv

NODES, ROUNDS = 1_000_000, 8


def csr_equation_6(network: sv.graphs.Network, rounds: int) -> np.ndarray:
    """The rival: equation (6) for all pairs as one writes it down with scipy."""
    W, A = network.W, network.adjacency
    power, loss = np.eye(network.n), np.zeros((network.n, network.n))
    for _ in range(rounds):
        squares = power**2
        loss += A @ (squares / squares.sum(axis=1, keepdims=True))
        power = W @ power
    return loss.T


def medians(forms: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each form, taken in turns after one turn to warm up."""
    times: dict[str, list[float]] = {name: [] for name in forms}
    for turn in range(repeats + 1):
        for name, work in forms.items():
            begin = time.perf_counter()
            work()
            if turn:
                times[name].append(time.perf_counter() - begin)
    return {name: float(np.median(values)) for name, values in times.items()}


def all_pairs(
    ours: Callable[[sv.graphs.Network, int], np.ndarray], symmetry: bool = True
) -> dict[str, float]:
    network, rounds = cube(symmetry), 19
    seconds = medians(
        {"ours": lambda: ours(network, rounds), "scipy_csr": lambda: csr_equation_6(network, rounds)}, 3
    )
    return {name: round(value, 4) for name, value in seconds.items()}


def cube(symmetry: bool) -> sv.graphs.Network:
    """hypercube:11; without its symmetry it is a graph like any other."""
    network = sv.graphs.hypercube(11)
    return network if symmetry else network.reweighted(network.W)


def published(symmetry: bool = True) -> dict[str, object]:
    network = cube(symmetry)
    gap = np.abs(sv.privacy.published_loss(network, rounds=19) - csr_equation_6(network, 19)).max()
    seconds = all_pairs(lambda network, rounds: sv.privacy.published_loss(network, rounds=rounds), symmetry)
    speedup = seconds["scipy_csr"] / seconds["ours"]
    return {
        "what": f"equation (6), all pairs, hypercube:11, 19 rounds{'' if symmetry else ', no symmetry used'}",
        "rival": "scipy CSR products",
        "seconds": seconds,
        "largest_difference": float(gap),
        "times_faster": round(speedup, 2),
        "target": "at least 2",
        "met": bool(speedup >= 2),
    }


def exact() -> dict[str, object]:
    seconds = all_pairs(lambda network, rounds: sv.privacy.exact_loss(network, rounds=rounds))
    ratio = seconds["ours"] / seconds["scipy_csr"]
    return {
        "what": "exact loss, all pairs, hypercube:11, 19 rounds",
        "rival": "equation (6) by scipy CSR products",
        "seconds": seconds,
        "time_over_rival": round(ratio, 3),
        "target": "at most 10",
        "met": bool(ratio <= 10),
    }


def exact_without_symmetry() -> dict[str, object]:
    """The same with the symmetry hidden: sixteen observers one by one, scaled to all."""
    network, few = cube(symmetry=False), 16
    seconds = medians(
        {
            "ours": lambda: [sv.privacy.exact_loss(network, rounds=19, observer=v) for v in range(few)],
            "scipy_csr": lambda: csr_equation_6(network, 19),
        },
        1,
    )
    whole = seconds["ours"] * network.n / few
    return {
        "what": "exact loss, hypercube:11 without its symmetry, 19 rounds, from 16 observers",
        "rival": "equation (6) by scipy CSR products, all pairs",
        "seconds": {
            "ours_all_pairs_extrapolated": round(whole, 2),
            "scipy_csr": round(seconds["scipy_csr"], 3),
        },
        "time_over_rival": round(whole / seconds["scipy_csr"], 1),
        "target": "none",
    }


def observer() -> dict[str, object]:
    """In a process of its own, for its peak memory."""
    command = [sys.executable, "-m", "benchmarks.foundation", "--observer"]
    record = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    met = record["seconds"]["exact_loss"] < 120 and record["peak_gb"] < 6
    return {
        "what": f"exact loss of one observer, random 8-regular graph, {NODES} nodes, {ROUNDS} rounds",
        **record,
        "target": "less than 120 s and 6 GB",
        "met": bool(met),
    }


def observe_once() -> dict[str, object]:
    begin = time.perf_counter()
    network = sv.graphs.regular(NODES, 8, np.random.default_rng(1))
    built = time.perf_counter()
    loss = sv.privacy.exact_loss(network, rounds=ROUNDS, observer=0)
    done = time.perf_counter()
    return {
        "seconds": {"build_and_check_graph": round(built - begin, 2), "exact_loss": round(done - built, 2)},
        "peak_gb": round(high_water() / 1e6, 2),
        "sum_of_losses": round(float(loss.sum()), 6),
        "messages_seen": 8 * ROUNDS,
    }


def high_water() -> int:
    """Peak resident set of this process in kB (`ru_maxrss` would count the parent's as well)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def gossip() -> dict[str, object]:
    network = sv.graphs.regular(NODES, 8, np.random.default_rng(1))
    values = np.random.default_rng(2).standard_normal(NODES)
    protocol = sv.protocols.Gossip(network, 100)

    def bare() -> np.ndarray:
        x = values
        for _ in range(100):
            x = network.W @ x
        return x

    gap = np.abs(np.ravel(protocol.apply(values)) - bare()).max()
    seconds = medians({"ours": lambda: protocol.apply(values), "scipy_csr": bare}, 2)
    ratio = seconds["ours"] / seconds["scipy_csr"]
    return {
        "what": f"100 rounds of gossip, one number a node, random 8-regular graph, {NODES} nodes",
        "rival": "the bare scipy CSR products",
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "largest_difference": float(gap),
        "time_over_rival": round(ratio, 3),
        "target": "at most 1.5",
        "met": bool(ratio <= 1.5),
    }


LINES = {
    "published": published,
    "published_without_symmetry": lambda: published(symmetry=False),
    "exact": exact,
    "exact_without_symmetry": exact_without_symmetry,
    "observer": observer,
    "gossip": gossip,
}


def main() -> int:
    names = sys.argv[1:] or list(LINES)
    if names == ["--observer"]:
        print(json.dumps(observe_once()))
        return 0
    unknown = [name for name in names if name not in LINES]
    if unknown:
        print(f"unknown line {unknown[0]!r}; the lines are {', '.join(LINES)}", file=sys.stderr)
        return 2
    record: dict[str, object] = {
        "command": " ".join(["python -m benchmarks.foundation", *sys.argv[1:]]),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "sottovoce": sv.__version__,
    }
    for name in names:
        print(f"  {name}", file=sys.stderr, flush=True)
        record[name] = LINES[name]()
    print(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
