"""Random weighted gossip against exact rational arithmetic: is a loss ever understated, or overstated?

Draws random connected graphs with random weights, half of the cases with at least one weight below 2^-12
(down to 2^-20), up to ten nodes and twelve rounds, with a fixed matrix, changing ones, or dropout; observers
alone or in pairs, with and without their own noise. Each view's leakage is compared with the projection
computed in whole numbers by elimination without division, which shares nothing with the code under test but
the matrices and how they are read: a stored 0.1 is a tenth where all weights of a matrix are so simple, and
its binary value elsewhere.

    python -m verification.exact_spans --cases 2000 --seed 1 --out docs/results/verification.json
"""

from __future__ import annotations

import argparse
import json
import time
from fractions import Fraction
from math import lcm
from pathlib import Path
from typing import Any

import numpy as np

import sottovoce as sv
from sottovoce.protocols import Dropout, Gossip, LinearProtocol, TimeVarying
from verification import store

ROUNDING = 1e-9  # what a double may differ from the fraction by
CLOSE = 0.01


# ---- the reference: whole numbers -----------------------------------------------------------------------


def meant(matrix: Any) -> list[list[Fraction]]:
    """Return the weights as fractions: a tenth for 0.1 where all are so simple, else as they are stored."""
    dense = matrix.toarray()
    n = len(dense)
    exact = [[Fraction(float(x)) for x in row] for row in dense]
    simple = [[x.limit_denominator(100_000) for x in row] for row in exact]
    pairs = [(exact[u][v], simple[u][v]) for u in range(n) for v in range(n) if u != v]
    if any(abs(x - y) > abs(x) * Fraction(3, 2**53) for x, y in pairs):
        return exact
    for u in range(n):
        if abs(sum(exact[u]) - 1) <= 1e-12:  # rows of a tree are sums, not means
            simple[u][u] = 1 - sum(simple[u][v] for v in range(n) if v != u)
    return simple


def whole(matrix: Any) -> list[list[int]]:
    """Return a matrix as whole numbers, over a common denominator: that changes no span."""
    exact = meant(matrix)
    common = lcm(*(x.denominator for row in exact for x in row))
    return [[int(x * common) for x in row] for row in exact]


def rational_leakage(protocol: LinearProtocol, observers: tuple[int, ...], own_noise: bool) -> list[Fraction]:
    """Return h of every user: rows multiplied forwards, then projected by elimination without division.

    Every row is whole numbers times a factor, which changes no span.
    """
    n = protocol.n
    state = [[int(i == k) for i in range(n)] for k in range(n)]
    seen: list[list[int]] = []
    for t in range(protocol.rounds):
        M = whole(protocol.matrix(t))
        heard = sorted({w for v in observers for w in range(n) if w != v and M[v][w]})
        seen += [state[w] for w in heard]
        state = [
            [sum(M[i][k] * state[k][j] for k in range(n) if M[i][k]) for j in range(n)] for i in range(n)
        ]
    if own_noise:
        seen = [[0 if j in observers else x for j, x in enumerate(row)] for row in seen]
    return projected(seen, n)


def projected(rows: list[list[int]], n: int) -> list[Fraction]:
    """Return the squared length of every unit vector projected on the span of whole-number rows.

    With K the independent rows and G = K K^T it is k_u^T G^-1 k_u, a quotient of two determinants.
    """
    K = independent(rows)
    if not K:
        return [Fraction(0)] * n
    gram = [[sum(a * b for a, b in zip(x, y, strict=True)) for y in K] for x in K]
    whole_part = determinant(gram)
    result = []
    for u in range(n):
        column = [row[u] for row in K]
        bordered = [[*row, column[i]] for i, row in enumerate(gram)] + [[*column, 0]]
        result.append(Fraction(-determinant(bordered), whole_part))
    return result


def independent(rows: list[list[int]]) -> list[list[int]]:
    """Return the rows that are not combinations of the ones before, each without its power of two."""
    basis: list[list[int]] = []
    echelon: list[tuple[int, list[int]]] = []
    for row in rows:
        power = min(((x & -x).bit_length() - 1 for x in row if x), default=0)
        row = [x >> power for x in row]
        left = row
        for pivot, reduced in echelon:
            if left[pivot]:
                a, b = reduced[pivot], left[pivot]
                left = [a * x - b * y for x, y in zip(left, reduced, strict=True)]
        if any(left):
            basis.append(row)
            power = min((x & -x).bit_length() - 1 for x in left if x)
            echelon.append((next(j for j, x in enumerate(left) if x), [x >> power for x in left]))
    return basis


def determinant(matrix: list[list[int]]) -> int:
    """Bareiss: elimination in which every division is without remainder."""
    A = [list(row) for row in matrix]
    sign, previous = 1, 1
    for k in range(len(A) - 1):
        if not A[k][k]:
            swap = next((i for i in range(k + 1, len(A)) if A[i][k]), None)
            if swap is None:
                return 0
            A[k], A[swap], sign = A[swap], A[k], -sign
        for i in range(k + 1, len(A)):
            for j in range(k + 1, len(A)):
                A[i][j] = (A[i][j] * A[k][k] - A[i][k] * A[k][j]) // previous
        previous = A[k][k]
    return sign * A[-1][-1]


# ---- random cases -----------------------------------------------------------------------------------------


def weighted(rng: np.random.Generator, n: int, faint: bool) -> np.ndarray:
    """Return a symmetric stochastic matrix on a random connected graph with random weights."""
    order = rng.permutation(n)
    edges = {tuple(sorted((int(order[k]), int(order[rng.integers(k)])))) for k in range(1, n)}
    for _ in range(int(rng.integers(0, n))):
        u, v = sorted(int(x) for x in rng.choice(n, 2, replace=False))
        edges.add((u, v))
    pairs = sorted(edges)
    room = 1 / (1 + max(sum(u in e for e in pairs) for u in range(n)))  # rows stay below one
    style = rng.integers(3)
    if style == 0:  # powers of two: many coincidences
        weights = 2.0 ** -rng.integers(int(np.ceil(-np.log2(room))), 12, size=len(pairs))
    elif style == 1:  # few distinct values
        weights = rng.choice(np.array([1.0, 0.5, 0.25, 1 / 3]) * room, size=len(pairs))
    else:
        weights = room * 2.0 ** -rng.uniform(0, 11, size=len(pairs))
    if faint:
        some = rng.random(len(pairs)) < rng.choice([0.15, 0.5, 1.0])
        some[rng.integers(len(pairs))] = True
        weights[some] = 2.0 ** -rng.uniform(12.01, 20, size=int(some.sum()))
        if rng.random() < 0.5:
            weights[some] = 2.0 ** -rng.integers(13, 21, size=int(some.sum()))
    W = np.zeros((n, n))
    for (u, v), weight in zip(pairs, weights, strict=True):
        W[u, v] = W[v, u] = weight
    W[np.arange(n), np.arange(n)] = 1 - W.sum(axis=1)
    return W


def case(seed: int, number: int) -> tuple[LinearProtocol, tuple[int, ...], bool, str]:
    """Return protocol, observers, whether their noise is known, and the kind of one case."""
    rng = np.random.default_rng([seed, number])
    faint = number % 2 == 0
    n, rounds = int(rng.integers(3, 11)), int(rng.integers(2, 13))
    kind = ("fixed", "varying", "alternating", "dropout")[(number // 2) % 4]
    protocol: LinearProtocol
    if kind == "fixed":
        protocol = Gossip(sv.graphs.from_matrix(weighted(rng, n, faint)), rounds)
    elif kind == "varying":
        protocol = TimeVarying([weighted(rng, n, faint) for _ in range(rounds)])
    elif kind == "alternating":
        pair = [weighted(rng, n, faint), weighted(rng, n, False)]
        protocol = TimeVarying([pair[t % 2] for t in range(rounds)])
    else:
        network = sv.graphs.from_matrix(weighted(rng, n, faint))
        protocol = Dropout.random(network, rounds, rng, node_rate=0.1, edge_rate=0.1)
    size = 1 if rng.random() < 0.7 or n < 4 else 2
    observers = tuple(sorted(int(v) for v in rng.choice(n, size, replace=False)))
    return protocol, observers, bool(rng.random() < 0.7), kind


def compare(protocol: LinearProtocol, observers: tuple[int, ...], own_noise: bool) -> dict[str, Any]:
    """Return by how much the leakage is low, and high, at worst over the users."""
    truth = np.array([float(x) for x in rational_leakage(protocol, observers, own_noise)])
    view = protocol.view(observers, own_noise)
    losses = view.leakage()
    return {
        "low": float((truth - losses).max()),
        "close": bool((losses <= truth * (1 + CLOSE) + ROUNDING).all()),
        "rounded_up": view.rounded_up,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    begin = time.perf_counter()
    results, kinds, faint = [], [], 0
    for number in range(options.cases):
        protocol, observers, own_noise, kind = case(options.seed, number)
        results.append(compare(protocol, observers, own_noise))
        kinds.append(kind)
        weights = [np.abs(protocol.matrix(t).data) for t in range(protocol.rounds)]
        faint += min(float(w[w > 0].min()) for w in weights) < 2.0**-12
    low = [number for number, r in enumerate(results) if r["low"] > ROUNDING]
    record = {
        "what": "leakage of random weighted gossip against exact rational arithmetic",
        "command": f"python -m verification.exact_spans --cases {options.cases} --seed {options.seed}",
        "version": sv.__version__,
        "cases": options.cases,
        "seed": options.seed,
        "with_a_weight_below_2^-12": faint,
        "by_kind": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "understated": len(low),
        "understated_cases": low[:20],
        "lowest": max(r["low"] for r in results),
        "within_one_percent": sum(r["close"] for r in results) / options.cases,
        "rounded_up": sum(r["rounded_up"] for r in results),
        "seconds": round(time.perf_counter() - begin, 1),
    }
    print(json.dumps(record, indent=2))
    if options.out:
        store(options.out, "exact-spans", record)
    return int(bool(low) or record["within_one_percent"] < 0.95)


if __name__ == "__main__":
    raise SystemExit(main())
