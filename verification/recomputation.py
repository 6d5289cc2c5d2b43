"""Plans drawn at random, their prices against an independent slow recomputation: is any below the truth?

Draws a graph (families, or random weights down to 2^-20), a protocol, an algorithm, an adjacency, sizes,
lots, noise (one for all, or one each), colluders and a view; asks the plan for its price; and computes it
again from the drawn options alone. The recomputation uses none of our curves, views, releases or accountants:

- what is seen: every message of the protocol as a vector of fractions over all noises, masks and values,
  those of the observers deleted, masks eliminated, the rest projected in whole numbers without rounding;
- which releases an observer can see of gossip that goes on: breadth first, forwards, from the user;
- what masks and trees leave of a step: every coalition by name, its components by search;
- where a token on a secret path may have been: every path of small cases, with its probability;
- what a Gaussian view costs, alone or drawn in public: its delta at the claimed epsilon, in fifty digits
  (Balle and Wang 2018);
- what sampled, Laplace and selection steps cost: dp-accounting's distributions, rounded downwards.

Of a drawn protocol only public facts are read: the parents of a tree, the edges of ticks, the momentum. What
no statement claims to know better (gossip without consensus over several steps, public walks, outsiders of
unmasked protocols) is held against what the user's own noise protects, which the statement claims. A token
whose steps do not expand is held against linear losses, which show most of it; that, and sampled steps over
fresh trees, have no closed form, so there a price can be right without being close.

    python -m verification.recomputation --gaussian 9500 --sampled 500 --seed 1 --resume --out RECORD.json

Results are appended to a file of lines as they come; --resume goes on where an earlier run was ended. The
exit code is 1 if a price was below the truth by more than the tolerance: a relative 1e-9 of epsilon where all
is Gaussian, 1e-6 where distributions are rounded downwards.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import special

import sottovoce as sv
from sottovoce.algorithms import registry
from sottovoce.algorithms.mafalda import correlation
from sottovoce.errors import SottovoceError
from sottovoce.objectives import GLM
from verification import store

mpmath.mp.dps = 50
logging.getLogger().setLevel(logging.ERROR)  # dp-accounting says at every call how it rounds downwards

GAUSSIAN_SLACK = 1e-9  # relative, of epsilon: float64 against fifty digits
SAMPLED_SLACK = 1e-6
CLOSE = 0.01
COARSE, FINE = 1e-3, 1e-4  # steps of discretized losses; the fine one only where the coarse does not decide

Row = list[Fraction]


# ---- the reference: what is seen, in fractions ----------------------------------------------------------


@dataclass
class World:
    """Symbols of one step: masks, noises with their variances and owners, and the users' values."""

    n: int
    variances: list[Fraction] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    masks: list[tuple[int, int]] = field(default_factory=list)
    heard: list[tuple[int, int, dict[Any, Fraction]]] = field(default_factory=list)
    final: list[dict[Any, Fraction]] = field(default_factory=list)

    def noise(self, owner: int, variance: Fraction) -> tuple[str, int]:
        """Return the symbol of a fresh noise."""
        self.variances.append(variance)
        self.owners.append(owner)
        return ("noise", len(self.owners) - 1)

    def releases(self, variances: Sequence[Fraction]) -> list[dict[Any, Fraction]]:
        """Return everybody's value with its own noise."""
        one = Fraction(1)
        return [{("value", u): one, self.noise(u, variances[u]): one} for u in range(self.n)]

    def tell(self, sender: int, receiver: int, row: dict[Any, Fraction]) -> None:
        """Send a row."""
        self.heard.append((sender, receiver, row))

    def losses(self, observers: Iterable[int], *, tap: bool = False, rows: Any = None) -> list[Any]:
        """Return, per user, mu^2 of a change of one in its value: a fraction, or infinity.

        The observers know their own values, noises and masks, and what they are told; with ``tap`` whatever
        is told to anybody. ``rows`` in place of that are all that is seen.
        """
        known = set(observers)
        if rows is None:
            rows = [row for _, receiver, row in self.heard if tap or receiver in known]
        hidden_masks = [pair for pair in self.masks if not known & set(pair)]
        hidden = [k for k, owner in enumerate(self.owners) if owner not in known]
        columns: dict[Any, int] = {("mask", *pair): i for i, pair in enumerate(hidden_masks)}
        first_noise = len(columns)
        columns |= {("noise", k): first_noise + i for i, k in enumerate(hidden)}
        first_value = len(columns)
        columns |= {("value", u): first_value + u for u in range(self.n)}
        whole = []
        for row in rows:
            terms = {
                columns[s]: c
                for s, c in row.items()
                if s in columns and (s[0] != "value" or s[1] not in known)
            }
            common_part = math.lcm(*(c.denominator for c in terms.values())) if terms else 1
            line = [0] * len(columns)
            for column, c in terms.items():
                line[column] = int(c * common_part)
            whole.append(line)
        reduced = echelon(whole)
        seen = [line for pivot, line in reduced if first_noise <= pivot < first_value]
        bare = [line for pivot, line in reduced if pivot >= first_value]
        scale = math.lcm(*(self.variances[k].denominator for k in hidden)) if hidden else 1
        weights = [int(self.variances[k] * scale) for k in hidden]
        losses: list[Any] = projected(
            [line[first_noise:first_value] for line in seen],
            [line[first_value:] for line in seen],
            weights,
            self.n,
        )
        losses = [x * scale for x in losses]
        for line in bare:  # a combination without any noise in it
            for u in range(self.n):
                if line[first_value + u]:
                    losses[u] = math.inf
        return losses


def echelon(rows: list[list[int]]) -> list[tuple[int, list[int]]]:
    """Return (pivot, row) of independent rows, by elimination in whole numbers, in order of the pivots."""
    reduced: list[tuple[int, list[int]]] = []
    for row in rows:
        left = row
        for pivot, other in reduced:
            if left[pivot]:
                a, b = other[pivot], left[pivot]
                left = [a * x - b * y for x, y in zip(left, other, strict=True)]
                left = _shortened(left)
        if any(left):
            pivot = next(j for j, x in enumerate(left) if x)
            reduced.append((pivot, _shortened(left)))
            reduced.sort(key=lambda item: item[0])
    return reduced


def _shortened(row: list[int]) -> list[int]:
    divisor = math.gcd(*row)
    return [x // divisor for x in row] if divisor > 1 else row


def projected(noises: list[list[int]], values: list[list[int]], weights: list[int], n: int) -> list[Fraction]:
    """Return c_u^T (K V K^T)^-1 c_u for every user, by Bareiss' elimination: every division is exact."""
    if not noises:
        return [Fraction(0)] * n
    table = [
        [sum(a * b * w for a, b, w in zip(x, y, weights, strict=True)) for y in noises] + list(values[i])
        for i, x in enumerate(noises)
    ]
    size, losses, previous = len(noises), [Fraction(0)] * n, 1
    for k in range(size):
        pivot = table[k][k]
        for u in range(n):
            losses[u] += Fraction(table[k][size + u] ** 2, previous * pivot)
        for i in range(k + 1, size):
            table[i] = [
                (x * pivot - table[i][k] * y) // previous for x, y in zip(table[i], table[k], strict=True)
            ]
        previous = pivot
    return losses


def combined(*parts: tuple[Fraction, dict[Any, Fraction]]) -> dict[Any, Fraction]:
    """Return a weighted sum of rows."""
    total: dict[Any, Fraction] = {}
    for weight, row in parts:
        for symbol, c in row.items():
            total[symbol] = total.get(symbol, Fraction(0)) + weight * c
    return {symbol: c for symbol, c in total.items() if c}


def gossip(
    world: World, state: list[dict], matrices: list[list[Row]], momentum: Fraction | None, fresh: Fraction
) -> None:
    """Rounds of weighted means: plain, with momentum, or with fresh noise of the variance ``fresh``."""
    previous = state
    for t, W in enumerate(matrices):
        for v in range(world.n):
            for w in range(world.n):
                if v != w and W[v][w]:
                    world.tell(w, v, state[w])
        mixed = [combined(*((W[v][w], state[w]) for w in range(world.n) if W[v][w])) for v in range(world.n)]
        if momentum is not None and t > 0:
            mixed = [combined((momentum, mixed[v]), (1 - momentum, previous[v])) for v in range(world.n)]
        if fresh and t < len(matrices) - 1:
            mixed = [
                combined((Fraction(1), mixed[v]), (Fraction(1), {world.noise(v, fresh): Fraction(1)}))
                for v in range(world.n)
            ]
        previous, state = state, mixed
    world.final = state


def ticks(world: World, state: list[dict], edges: list[tuple[int, int]]) -> None:
    """In every tick the two ends of an edge swap rows and keep the mean."""
    half = Fraction(1, 2)
    for u, v in edges:
        if u >= 0:
            world.tell(u, v, state[u])
            world.tell(v, u, state[v])
            state = list(state)
            state[u] = state[v] = combined((half, state[u]), (half, state[v]))
    world.final = state


def swaps(world: World, state: list[dict]) -> None:
    """Exchange along the dimensions of a cube."""
    half, level = Fraction(1, 2), 1
    while level < world.n:
        for v in range(world.n):
            world.tell(v, v ^ level, state[v])
        state = [combined((half, state[v]), (half, state[v ^ level])) for v in range(world.n)]
        level *= 2
    world.final = state


def tree(world: World, state: list[dict], parents: list[int], partners: list[tuple[int, int]] | None) -> None:
    """Sums up, the mean down; with partners every row is masked before it leaves."""
    n, one = world.n, Fraction(1)
    if partners is not None:
        world.masks = list(partners)
        for u, w in partners:
            state[u] = combined((one, state[u]), (one, {("mask", u, w): one}))
            state[w] = combined((one, state[w]), (-one, {("mask", u, w): one}))
    depth = [0] * n
    for u in range(n):
        at = u
        while parents[at] >= 0:
            at, depth[u] = parents[at], depth[u] + 1
    order = sorted(range(n), key=lambda u: -depth[u])
    sums = list(state)
    for u in order:
        if parents[u] >= 0:
            world.tell(u, parents[u], sums[u])
            sums[parents[u]] = combined((one, sums[parents[u]]), (one, sums[u]))
    mean = combined((Fraction(1, n), sums[order[-1]]))
    for u in order:
        if parents[u] >= 0:
            world.tell(parents[u], u, mean)
    world.final = [mean] * n


def walk(world: World, path: list[int], variance: Fraction, final_public: bool) -> None:
    """A token gathers a contribution with fresh noise from every holder; each keeps the sum it passed on.

    Who was never reached has a row of zeros, which tells nothing.
    """
    one, total = Fraction(1), {}
    world.final = [{} for _ in range(world.n)]
    for t, holder in enumerate(path):
        if t and path[t - 1] != holder:
            world.tell(path[t - 1], holder, total)
        total = combined((one, total), (one, {("value", holder): one, world.noise(holder, variance): one}))
        world.final[holder] = total
    if final_public:
        for v in range(world.n):
            if v != path[-1]:
                world.tell(path[-1], v, total)
        world.final = [total] * world.n


# ---- the reference: what it costs -----------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """So many equal mechanisms: gaussian (mu^2 of all), sampled, laplace (ratio), pure (epsilon).

    A mixture stands alone: pairs of mu^2 and its probability, drawn without data and then shown.
    """

    kind: str
    size: Any
    count: int = 1
    rate: float = 1.0
    replaced: bool = False


def gaussian_delta(squared: Fraction, epsilon: float) -> Any:
    """Return delta of a Gaussian shift mu at epsilon, in fifty digits."""
    mu = mpmath.sqrt(mpmath.mpf(squared.numerator) / squared.denominator)
    ratio, eps = mpmath.mpf(epsilon) / mu, mpmath.mpf(epsilon)
    return mpmath.ncdf(mu / 2 - ratio) - mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - ratio)


def mixture_delta(mixture: Sequence[tuple[Fraction, Any]], epsilon: float) -> Any:
    """Return delta of a Gaussian shift that is drawn and shown, at epsilon, in fifty digits."""
    return mpmath.fsum(weight * gaussian_delta(squared, epsilon) for squared, weight in mixture if squared)


def mixture_epsilon(mixture: Sequence[tuple[Fraction, Any]], delta: float) -> float:
    """Return epsilon of a Gaussian shift that is drawn and shown, at delta: in float64, for the record."""
    mus = np.sqrt([float(squared) for squared, _ in mixture if squared])
    weights = np.array([float(weight) for squared, weight in mixture if squared])

    def too_small(epsilon: float) -> bool:
        ratio = epsilon / mus
        below = np.exp(epsilon + special.log_ndtr(-mus / 2 - ratio))
        return bool(weights @ (special.ndtr(mus / 2 - ratio) - below) > delta)

    if not len(mus) or not too_small(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while too_small(high):
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if too_small(middle) else (low, middle)
    return low


def below_in_renyi(compositions: list[tuple[Step, ...]], renyi: Callable[[float], float]) -> bool:
    """Return whether a Rényi loss is below that of a shift that is drawn and shown, at some order.

    Epsilon alone hides a loss that is too small behind what the conversion from Rényi losses adds.
    """
    mixtures = [c[0].size for c in compositions if c and c[0].kind == "mixture"]
    for alpha in (1.5, 2.0, 4.0, 16.0):
        claimed = renyi(alpha)
        for mixture in mixtures:
            squares, weights = (np.array([float(x) for x in column]) for column in zip(*mixture, strict=True))
            truth = special.logsumexp(alpha * (alpha - 1) * squares / 2, b=weights) / (alpha - 1)
            if claimed < truth * (1 - GAUSSIAN_SLACK) - 1e-12:
                return True
    return False


def judge_gaussian(squared: Any, claimed: float, delta: float) -> tuple[bool, bool]:
    """Return whether the claim is below the truth, and whether it is within one per cent of it."""
    if squared == math.inf or claimed == math.inf:
        return claimed < squared, claimed == squared
    return judge_mixture([(squared, 1)], claimed, delta)


def judge_mixture(mixture: Sequence[tuple[Fraction, Any]], claimed: float, delta: float) -> tuple[bool, bool]:
    """Return the same for a shift that is drawn and shown."""
    if claimed < 0 or claimed == math.inf or not any(squared for squared, _ in mixture):
        return claimed < 0, claimed <= 1e-5
    low = mixture_delta(mixture, claimed * (1 + GAUSSIAN_SLACK)) > delta * (1 + mpmath.mpf(10) ** -12)
    close = claimed <= 1e-5 or mixture_delta(mixture, claimed / (1 + CLOSE)) >= delta
    return bool(low), bool(close)


@lru_cache(maxsize=64)
def _mechanism(kind: str, size: float, rate: float, replaced: bool, step: float) -> Any:
    if kind == "laplace":
        return pld.from_laplace_mechanism(
            1 / size, pessimistic_estimate=False, value_discretization_interval=step, use_connect_dots=False
        )
    if kind == "pure":  # randomized response, its epsilon moved down to the grid
        place = math.floor(size / step)
        up = 1 / (1 + math.exp(-place * step))
        return pld.PrivacyLossDistribution.create_from_rounded_probability(
            {place: up, -place: 1 - up}, 0.0, step, pessimistic_estimate=False
        )
    relation = pld.NeighborRel.REPLACE_ONE if replaced else pld.NeighborRel.ADD_OR_REMOVE_ONE
    return pld.from_gaussian_mechanism(
        size, sampling_prob=rate, pessimistic_estimate=False, value_discretization_interval=step,
        neighboring_relation=relation, use_connect_dots=False,
    )  # fmt: skip


def lower_epsilon(steps: Sequence[Step], delta: float, width: float) -> float:
    """Return an epsilon that the composition of ``steps`` does not stay below, by dp-accounting."""
    total = None
    for step in steps:
        size = float(step.size)
        if step.kind == "gaussian":
            if size == math.inf:
                return math.inf
            if size == 0:
                continue
            one = _mechanism("gaussian", 1 / math.sqrt(size), 1.0, False, width)
        else:
            one = _mechanism(step.kind, size, step.rate, step.replaced, width)
        many = one.self_compose(step.count) if step.count > 1 and step.kind != "gaussian" else one
        total = many if total is None else total.compose(many)
    return 0.0 if total is None else float(total.get_epsilon_for_delta(delta))


def worst(compositions: Iterable[tuple[Step, ...]]) -> list[tuple[Step, ...]]:
    """Return the compositions that no other one dominates, so that each is computed once."""
    distinct = list(dict.fromkeys(compositions))
    mixed = [c for c in distinct if any(s.kind == "mixture" for s in c)]
    distinct = [c for c in distinct if c not in mixed]
    gaussian = [c for c in distinct if all(s.kind == "gaussian" for s in c)]
    rest = [c for c in distinct if c not in gaussian]
    largest = [max(gaussian, key=lambda c: sum((s.size for s in c), Fraction(0)))] if gaussian else []
    shapes: dict[Any, list[tuple[Step, ...]]] = {}
    for c in rest:
        shapes.setdefault(tuple((s.kind, s.count, s.rate, s.replaced) for s in c), []).append(c)
    for group in shapes.values():
        for c in group:
            # sampled noise hurts when small, everything else when large
            sizes = [(-s.size if s.kind == "sampled" else s.size) for s in c]
            if not any(
                all(b >= a for a, b in zip(sizes, others, strict=True)) and others != sizes
                for other in group
                for others in [[(-s.size if s.kind == "sampled" else s.size) for s in other]]
            ):
                largest.append(c)
    return largest + mixed


def judge(compositions: list[tuple[Step, ...]], claimed: float, delta: float) -> dict[str, Any]:
    """Return whether a claimed epsilon is below that of any composition, and whether it is close."""
    chosen = worst(compositions)
    mixed = [c[0].size for c in chosen if c and c[0].kind == "mixture"]
    if all(s.kind in ("gaussian", "mixture") for c in chosen for s in c):
        plain = [c for c in chosen if not c or c[0].kind == "gaussian"]
        squared = max((sum((s.size for s in c), Fraction(0)) for c in plain), default=Fraction(0))
        verdicts = [judge_gaussian(squared, claimed, delta)] if plain or not mixed else []
        verdicts += [judge_mixture(mixture, claimed, delta) for mixture in mixed]
        low, close = any(low for low, _ in verdicts), any(close for _, close in verdicts)
        if squared == math.inf or (close and not mixed):
            return {"low": low, "close": close, "truth": f"mu={math.sqrt(float(squared)):.9g}"}
        truth = max(mixture_epsilon(mixture, delta) for mixture in [*mixed, ((squared, 1),)])
        return {"low": low, "close": close, "truth": truth}
    truth = 0.0
    for width in (COARSE, FINE):
        truth = max(lower_epsilon(c, delta, width) for c in chosen)
        low = claimed < truth * (1 - SAMPLED_SLACK)
        close = claimed <= truth * (1 + CLOSE) or claimed == truth
        if low or close:
            break
    return {"low": low, "close": close, "truth": truth}


# ---- random plans -----------------------------------------------------------------------------------------


@dataclass
class Case:
    """One plan, one question, and what the answer must not be below of."""

    plan: Any
    question: dict[str, Any]
    delta: float
    compositions: Callable[[], list[tuple[Step, ...]]]
    words: dict[str, Any]


def weighted(rng: np.random.Generator, n: int) -> list[Row]:
    """Return a symmetric stochastic matrix of fractions that float64 holds, on a random connected graph."""
    order = rng.permutation(n).tolist()
    edges = {tuple(sorted((order[k], order[int(rng.integers(k))]))) for k in range(1, n)}
    for _ in range(int(rng.integers(0, n))):
        edges.add(tuple(sorted(rng.choice(n, 2, replace=False).tolist())))
    degree = max(sum(u in e for e in edges) for u in range(n))
    room = max(1, math.ceil(math.log2(degree + 1)))
    style = rng.integers(3)
    W = [[Fraction(0)] * n for _ in range(n)]
    for u, v in sorted(edges):
        if style == 0:  # powers of two: many coincidences
            weight = Fraction(1, 2 ** int(rng.integers(room, 12)))
        elif style == 1:  # anything
            weight = Fraction(int(rng.integers(1, 2**16)), 2 ** (16 + room))
        else:  # faint
            weight = Fraction(1, 2 ** int(rng.integers(room, 21)))
        W[u][v] = W[v][u] = weight
    for u in range(n):
        W[u][u] = 1 - sum(W[u])
    return W


def scattered(rng: np.random.Generator, n: int) -> list[Row]:
    """Return the weights of a random matching or of few edges: most nodes hear nobody."""
    order = rng.permutation(n).tolist()
    W = [[Fraction(int(u == v)) for v in range(n)] for u in range(n)]
    for u, v in itertools.islice(zip(order[::2], order[1::2], strict=False), int(rng.integers(0, n))):
        weight = Fraction(1, 2 ** int(rng.integers(1, 21)))
        W[u][v] = W[v][u] = weight
        W[u][u] = W[v][v] = 1 - weight
    return W


def metropolis(n: int, edges: list[list[int]]) -> list[Row]:
    """Return the weights 1 / (1 + the larger degree), the rest on the diagonal."""
    degree = Counter(u for e in edges for u in e)
    W = [[Fraction(0)] * n for _ in range(n)]
    for u, v in edges:
        W[u][v] = W[v][u] = Fraction(1, 1 + max(degree[u], degree[v]))
    for u in range(n):
        W[u][u] = 1 - sum(W[u])
    return W


def graph(rng: np.random.Generator, most: int = 8) -> tuple[Any, list[Row]]:
    """Return a network, and its weights as fractions."""
    kind = str(rng.choice(["ring", "path", "star", "complete", "grid", "hypercube", "random", "own", "own"]))
    n = int(rng.integers(3, most + 1))
    if kind == "own":
        W = weighted(rng, n)
        return sv.graphs.from_matrix(np.array([[float(x) for x in row] for row in W])), W
    if kind == "grid":
        network = sv.graphs.grid(2, max(2, n // 2))
    elif kind == "hypercube":
        network = sv.graphs.hypercube(2 if most < 8 or n < 6 else 3)
    elif kind == "random":
        network = sv.graphs.erdos_renyi(n, 1.2, rng)
    else:
        network = getattr(sv.graphs, kind)(n)
    return network, metropolis(network.n, network.edges.tolist())


def eighths(rng: np.random.Generator, low: float, high: float) -> float:
    """Return a binary fraction, spread over orders of magnitude, that costs little in fractions."""
    value = math.exp(rng.uniform(math.log(low), math.log(high)))
    return max(1, round(value * 64)) / 64


def whom(
    rng: np.random.Generator, n: int, views: Sequence[str]
) -> tuple[dict[str, Any], list[tuple[int, ...]], list[int] | None]:
    """Return a question, the coalitions it covers, and the users (None: all outside the coalition)."""
    view = str(rng.choice(views))
    if view in ("pairwise", "network", "colluders") and n < 2:
        view = "local"
    user = int(rng.integers(n)) if rng.random() < 0.4 else None
    adversary: dict[str, Any] = {"view": view}
    if view == "pairwise":
        observer, user = rng.choice(n, 2, replace=False).tolist()
        return adversary | {"observer": observer, "user": user}, [(observer,)], [user]
    about = [] if user is None else [user]
    if user is not None:
        adversary["user"] = user
    others = [v for v in range(n) if v != user]
    if view in ("local", "outsider", "central"):
        return adversary, [()], about or None
    if view == "network":
        if rng.random() < 0.5:
            return adversary, [(v,) for v in others], about or None
        observer = int(rng.choice(others))
        return adversary | {"observer": observer}, [(observer,)], about or None
    size = int(rng.integers(1, max(2, min(4, len(others) - (user is None)) + 1)))
    size = min(size, n - 1)
    if rng.random() < 0.4:
        return adversary | {"colluders": size}, list(itertools.combinations(others, size)), about or None
    chosen = tuple(sorted(rng.choice(others, size, replace=False).tolist()))
    return adversary | {"colluders": list(chosen)}, [chosen], about or None


@dataclass
class Drawn:
    """A protocol as the library has it, and as the reference plays it."""

    protocol: Any
    network: Any
    play: Callable[[World, list[dict], Any], None]  # the world, everybody's rows, the library's protocol
    name: str
    exact: bool = False
    masked: bool = False
    fresh: Fraction = Fraction(0)  # variance of fresh noise over that of the first
    path: list[int] | None = None
    final_public: bool = False
    heard: Callable[[Any], Heard] | None = None  # the same for who hears whom


Heard = list[list[tuple[int, int]]]  # per round, who hears whom


def heard(matrices: Sequence[list[Row]]) -> Heard:
    """Return who hears whom in rounds of weighted means."""
    return [[(v, w) for v, row in enumerate(W) for w, x in enumerate(row) if x and v != w] for W in matrices]


def in_reach(user: int, observers: Iterable[int], steps: list[Heard], delay: int) -> int:
    """Return how many of a user's releases, one per step, get to an observer before the end.

    A release is in the user's own row from ``delay`` steps later on; whoever hears a row that holds it has it
    in its own row from the next round on.
    """
    watching, count = set(observers), 0
    for release in range(len(steps)):
        holders = {user}
        for rounds in steps[release + delay :]:
            for pairs in rounds:
                holders |= {v for v, w in pairs if w in holders}
        count += bool(holders & watching)
    return count


def components(n: int, pairs: Iterable[tuple[int, int]], removed: Iterable[int]) -> list[set[int]]:
    """Return the connected components of a graph without some nodes, by search."""
    neighbors: dict[int, set[int]] = {u: set() for u in set(range(n)) - set(removed)}
    for u, w in pairs:
        if u in neighbors and w in neighbors:
            neighbors[u].add(w)
            neighbors[w].add(u)
    parts: list[set[int]] = []
    while neighbors:
        part, waiting = set(), [next(iter(neighbors))]
        while waiting:
            u = waiting.pop()
            if u not in part:
                part.add(u)
                waiting += neighbors.pop(u)
        parts.append(part)
    return parts


def protocol(rng: np.random.Generator, names: Sequence[str], most: int = 8) -> Drawn:
    """Draw a protocol."""
    name = str(rng.choice(names))
    if name in ("fresh-noise",):
        most = min(most, 5)
    network, W = graph(rng, most)
    n = network.n
    rounds = int(rng.integers(1, 4 if name == "fresh-noise" else 8))
    if name == "gossip":
        return Drawn(
            f"gossip:{rounds}", network, lambda w, s, p: gossip(w, s, [W] * rounds, None, Fraction(0)), name,
            heard=lambda p: heard([W] * rounds),
        )  # fmt: skip
    if name == "chebyshev":
        return Drawn(
            f"chebyshev:{rounds}", network,
            lambda w, s, p: gossip(w, s, [W] * rounds, Fraction(p.gamma), Fraction(0)), name,
            heard=lambda p: heard([W] * rounds),
        )  # fmt: skip
    if name == "fresh-noise":
        fresh = int(rng.integers(1, 9)) / 8
        return Drawn(
            f"fresh-noise:{rounds}:fresh={fresh}", network,
            lambda w, s, p: gossip(w, s, [W] * rounds, None, w.variances[0] * Fraction(fresh) ** 2), name,
            fresh=Fraction(fresh) ** 2, heard=lambda p: heard([W] * rounds),
        )  # fmt: skip
    if name == "randomized":
        many = int(rng.integers(1, 4 * n))
        return Drawn(
            f"randomized:{many}",
            network,
            lambda w, s, p: ticks(w, s, [tuple(e) for e in p.edges.tolist()]),
            name,
            heard=lambda p: [[(u, v), (v, u)] for u, v in p.edges.tolist() if u >= 0],
        )
    if name == "time-varying":
        many = [weighted(rng, n) for _ in range(min(rounds, 6))]
        if rng.random() < 0.3:
            many = [many[t % min(2, len(many))] for t in range(len(many))]
        lib = sv.protocols.TimeVarying([np.array([[float(x) for x in row] for row in M]) for M in many])
        return Drawn(
            lib, None, lambda w, s, p: gossip(w, s, many, None, Fraction(0)), name,
            heard=lambda p: heard(many),
        )  # fmt: skip
    if name == "exchange":
        size = 4 if most < 8 or rng.random() < 0.5 else 8
        network = sv.graphs.complete(size)
        return Drawn("exchange", network, lambda w, s, p: swaps(w, s), name, exact=True)
    if name == "walk":
        steps = int(rng.integers(1, 12))
        path = sv.protocols.draw_path(network, steps, rng).tolist()
        public = bool(rng.random() < 0.5)
        lib = sv.protocols.Walk(network, steps, path=path, final_public=public)
        return Drawn(lib, None, lambda w, s, p: None, name, path=path, final_public=public)
    kind = str(rng.choice(["bfs", "uniform", "capped"]))
    if name == "tree":
        return Drawn(
            f"tree:kind={kind}",
            network,
            lambda w, s, p: tree(w, s, p.parents.tolist(), None),
            f"tree-{kind}",
            exact=True,
        )
    if rng.random() < 0.3 and n > 3:  # everybody with everybody, by name
        pairs = list(itertools.combinations(range(n), 2))
        tolerate = int(rng.integers(1, n - 1))
        return Drawn(
            f"masked:kind={kind}:tolerate={tolerate}", network,
            lambda w, s, p: tree(w, s, p.tree.parents.tolist(), pairs), "masked", exact=True, masked=True,
        )  # fmt: skip
    ring = [tuple(sorted((v, (v + 1) % n))) for v in range(n)] if rng.random() < 0.5 else []
    more = [pair for pair in itertools.combinations(range(n), 2) if rng.random() < 0.5]
    pairs = sorted({*ring, *more}) or [(0, 1)]
    tolerate = None if rng.random() < 0.5 else int(rng.integers(0, 3))
    own = sv.protocols.Tree(network, kind=kind, **({} if kind == "bfs" else {"rng": rng}))
    lib = sv.protocols.Masked(own, partners=pairs, tolerate=tolerate)
    return Drawn(
        lib,
        None,
        lambda w, s, p: tree(w, s, p.tree.parents.tolist(), pairs),
        "masked-own",
        exact=True,
        masked=True,
    )


def seen(
    drawn: Drawn,
    lib: Any,
    n: int,
    variances: Sequence[Fraction],
    view: str,
    coalitions: list[tuple[int, ...]],
    observer: int | None,
) -> list[tuple[tuple[int, ...], list[Any]]]:
    """Return, per coalition, everybody's mu^2 of a change of one in the release of one step."""
    world = World(n)
    if drawn.path is not None:
        walk(world, drawn.path, variances[0], drawn.final_public)
    else:
        drawn.play(world, world.releases(variances), lib)
    if view == "central":
        if observer is not None:
            rows = [observer]
        else:
            rows = [drawn.path[-1]] if drawn.path is not None else [0] if drawn.exact else list(range(n))
        return [((), world.losses((), rows=[world.final[row]])) for row in rows]
    tap = drawn.masked or view == "outsider"
    return [(who, world.losses(who, tap=tap)) for who in coalitions]


def averaging(rng: np.random.Generator) -> Case:
    """Averaging once, over any protocol."""
    drawn = protocol(
        rng, ["gossip", "gossip", "chebyshev", "fresh-noise", "randomized", "time-varying", "time-varying",
              "tree", "exchange", "masked", "walk"]
    )  # fmt: skip
    std, radius = eighths(rng, 0.3, 30), eighths(rng, 0.2, 4)
    plan = registry.algorithm("averaging")(
        drawn.protocol, noise_std=std, radius=radius, network=drawn.network, seed=int(rng.integers(1000))
    )
    n = plan.n
    question, coalitions, users = whom(
        rng, n, ["local", "outsider", "network", "pairwise", "colluders", "central"]
    )
    view = question["view"]
    observer = None
    if view == "central" and rng.random() < 0.4:
        observer = question["observer"] = int(rng.integers(n))
    squared = (2 * Fraction(radius)) ** 2

    def compositions() -> list[tuple[Step, ...]]:
        if view == "local" or (view == "outsider" and not drawn.masked):
            visits = Counter(drawn.path) if drawn.path is not None else Counter(range(n))
            return [
                (Step("gaussian", squared * visits[u] / Fraction(std) ** 2),)
                for u in users or range(n)
                if visits[u]
            ]
        lib = plan.schedule(0)
        losses = seen(drawn, lib, n, [Fraction(std) ** 2] * n, view, coalitions, observer)
        return [
            (Step("gaussian", squared * loss[u] if loss[u] != math.inf else math.inf),)
            for who, loss in losses
            for u in (users or [u for u in range(n) if u not in who])
        ]

    return Case(plan, question, 0.0, compositions, {"algorithm": "averaging", "protocol": drawn.name})


@dataclass
class Options:
    """What all gradient plans have: drawn once, read by the library and by the reference."""

    arguments: dict[str, Any]
    n: int
    adjacency: str
    steps: int
    clip_norm: Fraction
    z: list[Fraction]
    divisors: list[Fraction]
    rates: list[float]

    def moved(self, u: int) -> Fraction:
        """How far one change moves the row of an agent."""
        return (1 if self.adjacency == "add-remove" else 2) * self.clip_norm / self.divisors[u]

    def variance(self, u: int) -> Fraction:
        """Variance of the noise in the row of an agent."""
        return (self.z[u] * self.clip_norm / self.divisors[u]) ** 2

    def steps_of(self, u: int, shares: dict[Fraction, int]) -> tuple[Step, ...]:
        """Return what so many releases of an agent cost, each with its mu^2 per change of one."""
        amplified = self.adjacency != "user" and self.rates[u] < 1
        parts, plain = [], Fraction(0)
        for loss, count in sorted(shares.items()):
            if loss == math.inf:
                return (Step("gaussian", math.inf),)
            squared = self.moved(u) ** 2 * loss
            if not squared:
                continue
            if amplified:
                replaced = self.adjacency == "replace-one"
                size = (2 if replaced else 1) / math.sqrt(squared)
                parts.append(Step("sampled", size, count, self.rates[u], replaced))
            else:
                plain += count * squared
        return tuple(parts) if amplified else (Step("gaussian", plain),)


def options(
    rng: np.random.Generator,
    n: int,
    sampled: bool,
    *,
    each: bool = True,
    sites: bool = True,
    steps: int | None = None,
    adjacencies: Sequence[str] = ("add-remove", "replace-one", "user"),
) -> Options:
    """Draw adjacency, sizes, lots, clip and noise for ``n`` agents."""
    adjacency = str(rng.choice([a for a in adjacencies if not (sampled and a == "user")]))
    steps = steps if steps is not None else int(rng.integers(1, 13 if sampled else 40))
    clip_norm = eighths(rng, 0.2, 4)
    low, high = (0.6, 6) if sampled else (1.0, 60)
    unequal = each and n > 1 and rng.random() < 0.5
    z = [eighths(rng, low, high) for _ in range(n)] if unequal else [eighths(rng, low, high)] * n
    arguments: dict[str, Any] = {
        "steps": steps,
        "clip_norm": clip_norm,
        "noise_multiplier": tuple(z) if unequal else z[0],
        "adjacency": adjacency,
    }
    sizes = rng.integers(8, 200, size=n).tolist() if rng.random() < 0.6 else [int(rng.integers(8, 200))] * n
    batch_size = rate = None
    style = rng.integers(3)
    if sampled or (adjacency == "user" and rng.random() < 0.3):
        if style == 0:
            batch_size = float(rng.integers(1, max(2, min(sizes) // 2)))
        elif style == 1:
            rate = float(rng.integers(1, 40)) / 64
        else:
            batch_size, rate = float(rng.integers(1, 20)), float(rng.integers(1, 40)) / 64
    with_sizes = adjacency != "user" or rng.random() < 0.5
    if batch_size is not None and rate is not None and rng.random() < 0.5:
        with_sizes = False
    if adjacency != "user" and not (batch_size is not None and rate is not None):
        with_sizes = True
    if adjacency == "user" and not with_sizes:
        batch_size = rate = None
    if with_sizes:
        arguments["sizes"] = sizes
    if batch_size is not None:
        arguments["batch_size"] = batch_size
    if rate is not None:
        arguments["sample_rate"] = rate
    weighting = "sites" if sites and rng.random() < 0.5 else "records"
    if sites:
        arguments["weighting"] = weighting
    q = Fraction(1) if rate is None else Fraction(rate)
    if adjacency == "user":
        divisors = [Fraction(1)] * n
    elif batch_size is not None:
        divisors = [Fraction(batch_size)] * n
    elif sites and weighting == "records":
        divisors = [q * sum(sizes) / n] * n
    else:
        divisors = [q * size for size in sizes]
    if rate is not None:
        rates = [rate] * n
    elif batch_size is not None:
        rates = [batch_size / size for size in sizes]
    else:
        rates = [1.0] * n
    return Options(
        arguments, n, adjacency, steps, Fraction(clip_norm), [Fraction(x) for x in z], divisors, rates
    )


VIEWS = ["local", "outsider", "network", "pairwise", "colluders", "central"]


def own_noise(
    opts: Options, users: list[int] | None, coalitions: list[tuple[int, ...]], counts: Callable[[int], int]
) -> list[tuple[Step, ...]]:
    """What only the user's own noise protects: everybody outside the coalition, or the one asked about."""
    outside = [u for u in range(opts.n) if any(u not in who for who in coalitions)]
    return [
        opts.steps_of(u, {1 / opts.variance(u) if opts.variance(u) else math.inf: counts(u)})
        for u in (users or outside)
        if counts(u)
    ]


def consensus(rng: np.random.Generator, sampled: bool, name: str = "consensus-sgd") -> Case:
    """Gradient steps over exact consensus, or whole updates of members."""
    drawn = protocol(rng, ["tree", "tree", "exchange", "masked", "masked"], 5 if sampled else 8)
    n = drawn.network.n if drawn.network is not None else drawn.protocol.n
    opts = options(
        rng, n, sampled, steps=int(rng.integers(1, 7 if sampled else 10)),
        adjacencies=registry.algorithm(name).adjacencies,
    )  # fmt: skip
    if name == "consensus-fedavg":
        opts.arguments["local_steps"] = int(rng.integers(1, 9))  # what happens inside an update costs nothing
    plan = registry.algorithm(name)(
        GLM(dim=2), drawn.protocol, network=drawn.network, seed=int(rng.integers(1000)), **opts.arguments
    )
    question, coalitions, users = whom(rng, n, [*VIEWS, "network", "pairwise", "colluders"])
    view = question["view"]

    def compositions() -> list[tuple[Step, ...]]:
        if view == "local" or (view == "outsider" and not drawn.masked):
            return own_noise(opts, users, coalitions, lambda u: opts.steps)
        variances = [opts.variance(u) for u in range(n)]
        tallies: dict[tuple[tuple[int, ...], int], Counter[Any]] = {}
        played: dict[int, Any] = {}
        for k in range(opts.steps):
            lib = plan.schedule(k)
            if id(lib) not in played:
                played[id(lib)] = (lib, seen(drawn, lib, n, variances, view, coalitions, None))
            for who, loss in played[id(lib)][1]:
                for u in users or [u for u in range(n) if u not in who]:
                    tallies.setdefault((who, u), Counter())[loss[u]] += 1
        return [opts.steps_of(u, dict(shares)) for (_, u), shares in tallies.items()]

    return Case(plan, question, 0.0, compositions, {"algorithm": name, "protocol": drawn.name})


def muffliato(rng: np.random.Generator, sampled: bool) -> Case:
    """Gradient steps with gossip: one step is one averaging, several are worth what gets to the observers."""
    drawn = protocol(
        rng, ["gossip", "chebyshev", "fresh-noise", "randomized", "time-varying"], 5 if sampled else 8
    )
    n = drawn.network.n if drawn.network is not None else drawn.protocol.n
    steps = 1 if rng.random() < 0.6 else int(rng.integers(2, 8))
    opts = options(rng, n, sampled, each=drawn.name != "fresh-noise", sites=False, steps=steps)
    if drawn.name == "fresh-noise":  # fresh noise is in proportion to one noise, so let there be one
        if len(set(opts.divisors)) > 1:
            raise SottovoceError("unequal rows")
    plan = registry.algorithm("muffliato-sgd")(
        GLM(dim=2), drawn.protocol, network=drawn.network, seed=int(rng.integers(1000)), **opts.arguments
    )
    question, coalitions, users = whom(rng, n, [*VIEWS, "network", "pairwise", "colluders"])
    view = question["view"]

    def compositions() -> list[tuple[Step, ...]]:
        if steps > 1 or view in ("local", "outsider", "central"):
            assert drawn.heard is not None
            every = [drawn.heard(plan.schedule(k)) for k in range(steps)]
            return own_noise(opts, users, coalitions, lambda u: reached(question, u, every, 0))
        losses = seen(
            drawn, plan.schedule(0), n, [opts.variance(u) for u in range(n)], view, coalitions, None
        )
        return [
            opts.steps_of(u, {loss[u]: 1})
            for who, loss in losses
            for u in (users or [u for u in range(n) if u not in who])
        ]

    return Case(plan, question, 0.0, compositions, {"algorithm": "muffliato-sgd", "protocol": drawn.name})


def reached(question: dict[str, Any], user: int, steps: list[Heard], delay: int) -> int:
    """Return how many releases of a user the adversary can see: all, unless observers are named."""
    named = question.get("colluders", [])
    observers = [question["observer"]] if "observer" in question else named if isinstance(named, list) else []
    return in_reach(user, observers, steps, delay) if observers else len(steps)


def plain_gossip(rng: np.random.Generator, sampled: bool, name: str) -> Case:
    """DP-DSGD, DP-DSGT, DP-DiNNO and MAFALDA: what the own noise protects, of what gets to the observers."""
    network, W = graph(rng)
    n = network.n
    opts = options(rng, n, sampled, sites=False, steps=int(rng.integers(1, 9)) if name == "mafalda" else None)
    arguments, inner = dict(opts.arguments), 1
    if name == "dp-dinno":
        inner = arguments["primal_steps"] = int(rng.integers(1, 4))
    if name == "mafalda":
        arguments["adjacency"] = opts.adjacency = "user"
        opts.divisors = [Fraction(1)] * n
    protocol_name = "neighbor-sum" if name == "dp-dinno" else "gossip:1"
    every = [heard([W])] * opts.steps
    if name in ("dp-dsgd", "dp-dsgt") and rng.random() < 0.6:  # other weights in every step, some apart
        protocol_name = "changing"
        rounds = [[scattered(rng, n) for _ in range(int(rng.integers(1, 3)))] for _ in range(opts.steps)]
        every = [heard(matrices) for matrices in rounds]
        schedule = [
            sv.protocols.TimeVarying([np.array([[float(x) for x in row] for row in M]) for M in matrices])
            for matrices in rounds
        ]
        plan = registry.algorithm(name)(GLM(dim=2), schedule, **arguments)
    else:
        plan = registry.algorithm(name)(GLM(dim=2), protocol_name, network=network, **arguments)
    question, coalitions, users = whom(rng, n, [*VIEWS, "pairwise", "pairwise", "colluders"])

    def compositions() -> list[tuple[Step, ...]]:
        if name == "mafalda":
            # noise C^-1 xi with xi of std z clip sens hides gradients that all move by up to twice the clip
            correlated = correlation(plan)
            C = np.asarray(correlated.C, dtype=float)
            signs = np.array(list(itertools.product((-1.0, 1.0), repeat=len(C))))
            longest = Fraction(float(np.square(signs @ C.T).sum(axis=1).max()))
            scale = Fraction(float(correlated.sens)) ** 2
            outside = [u for u in range(n) if any(u not in who for who in coalitions)]
            return [
                (Step("gaussian", 4 * longest / (opts.z[u] ** 2 * scale) * (1 - Fraction(1, 10**9))),)
                for u in users or outside
            ]
        return own_noise(opts, users, coalitions, lambda u: inner * reached(question, u, every, 1))

    return Case(plan, question, 0.0, compositions, {"algorithm": name, "protocol": protocol_name})


def decor(rng: np.random.Generator) -> Case:
    """Noise shared along edges, known to both ends."""
    network, _ = graph(rng)
    n, steps, clip_norm = network.n, int(rng.integers(1, 20)), eighths(rng, 0.2, 4)
    own, shared = eighths(rng, 1, 30), eighths(rng, 0.5, 60)
    plan = registry.algorithm("decor")(
        GLM(dim=2), "gossip:1", network=network, steps=steps, clip_norm=clip_norm, noise_multiplier=own,
        pair_multiplier=shared, adjacency="user",
    )  # fmt: skip
    question, coalitions, users = whom(rng, n, ["local", "outsider", "network", "pairwise", "colluders"])

    def compositions() -> list[tuple[Step, ...]]:
        losses = []
        for who in coalitions:
            world = World(n)
            rows = world.releases([(Fraction(own) * Fraction(clip_norm)) ** 2] * n)
            for u, v in network.edges.tolist():
                known = question["view"] == "local" or u in who or v in who
                symbol = world.noise(-1, (Fraction(shared) * Fraction(clip_norm)) ** 2)
                if not known:
                    rows[u] = combined((Fraction(1), rows[u]), (Fraction(1), {symbol: Fraction(1)}))
                    rows[v] = combined((Fraction(1), rows[v]), (Fraction(-1), {symbol: Fraction(1)}))
            loss = world.losses(who, rows=rows)
            losses += [
                (Step("gaussian", steps * 4 * Fraction(clip_norm) ** 2 * loss[u]),)
                for u in (users or [u for u in range(n) if u not in who])
            ]
        return losses

    return Case(plan, question, 0.0, compositions, {"algorithm": "decor", "protocol": "gossip:1"})


def random_walk(rng: np.random.Generator, sampled: bool) -> Case:
    """A token on a public path, or on a secret one of which only the local statement is recomputed."""
    network, _ = graph(rng)
    n = network.n
    opts = options(rng, n, sampled, sites=False)
    arguments = dict(opts.arguments)
    secret = opts.adjacency == "user" and rng.random() < 0.3
    if secret:
        for key in ("batch_size", "sample_rate"):
            arguments.pop(key, None)
        arguments["noise_multiplier"] = float(opts.z[0])
        opts.z = [opts.z[0]] * n
        tokens, cap = int(rng.integers(1, 4)), None if rng.random() < 0.4 else int(rng.integers(1, 60))
        arguments |= {"path": "secret", "tokens": tokens, "cap": cap}
        most = opts.steps * tokens
        counts = Counter({u: most if cap is None else min(cap, most) for u in range(n)})
        plan = registry.algorithm("random-walk-sgd")(GLM(dim=2), network, **arguments)
    elif rng.random() < 0.5:
        path = sv.protocols.draw_path(network, opts.steps, rng).tolist()
        counts = Counter(path)
        plan = registry.algorithm("random-walk-sgd")(GLM(dim=2), network, path=path, **arguments)
    else:
        plan = registry.algorithm("random-walk-sgd")(
            GLM(dim=2), network, seed=int(rng.integers(1000)), **arguments
        )
        counts = Counter(plan._holders.tolist())
    # one colluder of a secret walk is told the average over paths, which is not recomputed here
    question, coalitions, users = whom(rng, n, ["local", "outsider"] if secret else VIEWS)
    return Case(
        plan, question, 0.0, lambda: own_noise(opts, users, coalitions, lambda u: counts[u]),
        {"algorithm": "random-walk-sgd", "protocol": "secret" if secret else "public"},
    )  # fmt: skip


def paths(W: list[Row], steps: int) -> Iterable[tuple[list[int], Fraction]]:
    """Yield every path of a walk that starts anywhere, with its probability."""
    n = len(W)
    waiting = [([v], Fraction(1, n)) for v in range(n)]
    while waiting:
        path, probability = waiting.pop()
        if len(path) == steps:
            yield path, probability
        else:
            at = path[-1]
            waiting += [([*path, w], probability * W[at][w]) for w in range(n) if W[at][w]]


def shown_of_path(
    path: list[int], user: int, observer: int, rates: list[Fraction] | None, cap: int | None, public: bool
) -> Fraction:
    """Return mu^2, in units of one contribution, of what an observer who knows the path sees.

    With ``rates`` the losses are linear: the model is the sum of all moves, and between two visits to the
    observer only their sum is seen, within the noise of all. Without, any update may show each contribution
    before the next one hides it.
    """
    shown, contributions = Fraction(0), 0
    signal = noise = Fraction(0)
    several = 0
    for t, holder in enumerate([*path, observer if public else -1]):
        if holder == observer:
            shown += (signal**2 / noise if noise else 0) if rates is not None else several
            signal, noise, several = Fraction(0), Fraction(0), 0
            continue
        if holder < 0:
            break
        rate = rates[t] if rates is not None else Fraction(1)
        noise += rate**2
        if holder == user:
            if cap is None or contributions < cap:
                signal += rate
                several += 1
            contributions += 1
    return shown


def secret_walk(rng: np.random.Generator) -> Case:
    """A token on a secret path of a few steps: all paths, for rates that warm up, fall or stay."""
    apart = bool(rng.random() < 0.5)  # across a ring without rest: two steps at least, and their noise counts
    if apart:
        W = [[Fraction(int((u - v) % 5 in (1, 4)), 2) for v in range(5)] for u in range(5)]
        network = sv.graphs.from_matrix(np.array([[float(x) for x in row] for row in W]))
    else:
        network, W = graph(rng, 4)
    n = network.n
    steps = int(rng.integers(2, 8)) if apart else int(rng.integers(1, 7 if n < 4 else 6))
    tokens = 2 if rng.random() < 0.15 else 1
    cap = None if tokens > 1 or rng.random() < 0.3 else int(rng.integers(1, 2 if apart else steps + 2))
    public = bool(rng.random() < 0.5)
    amplified = bool(rng.random() < 0.6)
    start, z = eighths(rng, 0.1, 1.9), eighths(rng, 0.5, 12)
    shape = str(rng.choice(["constant", "geometric", "linear", "cosine"]))
    rate: dict[str, Any] = {"start": start, "shape": shape}
    if shape != "constant":
        rate["end"] = start * float(rng.choice([1e-6, 0.01, 0.3, 1.0]))
    if rng.random() < 0.5:
        rate["warmup"] = float(rng.choice([0.2, 0.5, 0.9]))
    arguments = {"feature_norm": 1.0, "clip_norm": 1.0} if amplified else {"clip_norm": 2.0}
    plan = registry.algorithm("random-walk-sgd")(
        GLM(dim=2), network, steps=steps, noise_multiplier=z, adjacency="user", path="secret", tokens=tokens,
        cap=cap, final_public=public, learning_rate=rate, **arguments,
    )  # fmt: skip
    rising = round(rate.get("warmup", 0.0) * steps)
    rates = []
    for k in range(steps):
        share = (k - rising) / max(steps - rising - 1, 1)
        first, last = start, rate.get("end", start)
        rates.append(
            first * (k + 1) / rising if k < rising
            else first if shape == "constant"
            else first * (last / first) ** share if shape == "geometric"
            else first + (last - first) * share if shape == "linear"
            else last + (first - last) * (1 + math.cos(math.pi * share)) / 2
        )  # fmt: skip
    question, coalitions, users = whom(rng, n, ["pairwise", "network"])
    if apart:
        question, coalitions, users = {"view": "pairwise", "observer": 2, "user": 0}, [(2,)], [0]
    moved = [Fraction(x) for x in rates] if amplified else None

    def compositions() -> list[tuple[Step, ...]]:
        unit, every = 4 / Fraction(z) ** 2, list(paths(W, steps))
        pairs = {(v, u) for who in coalitions for v in who for u in (users or range(n)) if u != v}
        mixtures = []
        for v, u in sorted(pairs):
            one: dict[Fraction, Fraction] = {}
            for path, probability in every:
                shown = shown_of_path(path, u, v, moved, cap, public) * unit
                one[shown] = one.get(shown, Fraction(0)) + probability
            several = one
            if tokens == 2:
                several = {}
                for (a, p), (b, q) in itertools.product(one.items(), repeat=2):
                    several[a + b] = several.get(a + b, Fraction(0)) + p * q
            weighted = tuple((x, mpmath.mpf(p.numerator) / p.denominator) for x, p in several.items())
            mixtures.append((Step("mixture", weighted),))
        return mixtures

    closed = not amplified and public
    words = {"algorithm": "random-walk-sgd", "protocol": "secret-paths", "closed_form": closed}
    return Case(plan, question, 0.0, compositions, words)


def masked_schedule(rng: np.random.Generator, sampled: bool) -> Case:
    """Masked sums whose partners change from step to step, against coalitions of every size."""
    n = int(rng.integers(3, 9))
    opts = options(rng, n, sampled, steps=int(rng.integers(1, 7)))
    partners, schedule = [], []
    for _ in range(opts.steps):
        if partners and rng.random() < 0.3:
            k = int(rng.integers(len(partners)))
            partners.append(partners[k])
            schedule.append(schedule[k])
            continue
        ring = [tuple(sorted((v, (v + 1) % n))) for v in rng.permutation(n).tolist()]
        # often many keys first and few later, so that the first step says nothing about the others
        density = 1.0 if not partners and rng.random() < 0.6 else rng.choice([0.0, 0.0, 0.2, 0.6])
        more = [pair for pair in itertools.combinations(range(n), 2) if rng.random() < density]
        pairs = sorted({*(ring if rng.random() < 0.8 else ring[1:]), *more})
        tolerate = None if rng.random() < 0.4 else int(rng.integers(0, n - 1))
        partners.append(pairs)
        schedule.append(sv.protocols.Masked(sv.graphs.complete(n), partners=pairs, tolerate=tolerate))
    plan = registry.algorithm("consensus-sgd")(GLM(dim=2), schedule, **opts.arguments)
    question, coalitions, users = whom(rng, n, ["outsider", "network", "pairwise", *["colluders"] * 4])
    if question["view"] == "colluders" and rng.random() < 0.5:  # any so many, up to all but one
        user = question.get("user")
        others = [v for v in range(n) if v != user]
        size = int(rng.integers(1, n)) if rng.random() < 0.5 else int(rng.integers(1, 3))
        question["colluders"], coalitions = size, list(itertools.combinations(others, size))

    def compositions() -> list[tuple[Step, ...]]:
        tallies: dict[tuple[tuple[int, ...], int], Counter[Any]] = {}
        for pairs in partners:
            for who in coalitions:
                for part in components(n, pairs, who):
                    loss = 1 / sum(opts.variance(u) for u in part)
                    for u in part & set(users or part):
                        tallies.setdefault((who, u), Counter())[loss] += 1
        return [opts.steps_of(u, dict(shares)) for (_, u), shares in tallies.items()]

    words = {"algorithm": "consensus-sgd", "protocol": "masked-schedule"}
    return Case(plan, question, 0.0, compositions, words)


def fresh_trees(rng: np.random.Generator, sampled: bool) -> Case:
    """A new tree in every step, against any so many members: all of them by name."""
    n, size = [(16, 6), (16, 7), (17, 5), (18, 5), (20, 5), (24, 4), (30, 4), (40, 3), (19, 13)][
        int(rng.integers(9))
    ]
    network = sv.graphs.complete(n) if rng.random() < 0.5 else sv.graphs.erdos_renyi(n, 1.5, rng)
    opts = options(
        rng, n, sampled, steps=int(rng.integers(2, 6)), each=False, adjacencies=["user", "replace-one"]
    )
    if len(set(opts.divisors)) > 1:
        raise SottovoceError("unequal rows")
    plan = registry.algorithm("consensus-sgd")(
        GLM(dim=2), f"tree:kind={rng.choice(['uniform', 'capped'])}", network=network,
        seed=int(rng.integers(1000)), **opts.arguments,
    )  # fmt: skip
    user = int(rng.integers(n))  # one user's coalitions are many enough
    question = {"view": "colluders", "colluders": size, "user": user}

    def compositions() -> list[tuple[Step, ...]]:
        others = [v for v in range(n) if v != user]
        combos = np.array(list(itertools.combinations(others, size)))
        sizes = np.empty((opts.steps, len(combos)), dtype=np.int64)
        for k in range(opts.steps):
            parents = plan.schedule(k).parents.tolist()
            edges = [(u, w) for u, w in enumerate(parents) if w >= 0]
            left = np.zeros((n, n), dtype=bool)  # per removed member, who stays with the user
            for a in others:
                (part,) = (part for part in components(n, edges, [a]) if user in part)
                left[a, list(part)] = True
            stays = np.ones((len(combos), n), dtype=bool)
            for column in combos.T:
                stays &= left[column]
            sizes[k] = stays.sum(axis=1)
        tallies = {tuple(sorted(column)) for column in sizes.T.tolist()}
        variance = opts.variance(user)
        every = [{1 / (variance * m): k for m, k in Counter(sizes).items()} for sizes in tallies]
        every.sort(key=lambda shares: -sum(loss * k for loss, k in shares.items()))
        return [opts.steps_of(user, shares) for shares in every[: 3 if sampled else 1]]

    words = {"algorithm": "consensus-sgd", "protocol": "fresh-trees", "closed_form": not sampled}
    return Case(plan, question, 0.0, compositions, words)


def dp_sgd(rng: np.random.Generator, sampled: bool) -> Case:
    """One holder; lots, or all records."""
    opts = options(rng, 1, sampled, sites=False, each=False)
    arguments = dict(opts.arguments)
    if "sizes" in arguments:
        arguments["records"] = arguments.pop("sizes")[0]
    plan = registry.algorithm("dp-sgd")(GLM(dim=2), **arguments)
    if sampled and rng.random() < 0.05:
        plan = registry.algorithm("dp-sgd")(GLM(dim=2), **arguments, accounting="rdp")
    return Case(
        plan, {}, 0.0, lambda: own_noise(opts, None, [()], lambda u: opts.steps), {"algorithm": "dp-sgd"}
    )


def dp_cd(rng: np.random.Generator) -> Case:
    """Coordinates with Gaussian noise, smoothness public or paid for."""
    adjacency = str(rng.choice(["add-remove", "replace-one"]))
    steps, z, p = int(rng.integers(1, 200)), eighths(rng, 2, 100), int(rng.integers(1, 6))
    moves = 1 if adjacency == "add-remove" else 2
    squared = steps * Fraction(moves) ** 2 / Fraction(z) ** 2
    arguments: dict[str, Any] = {"smoothness": (0.25,) * p}
    if rng.random() < 0.6:
        arguments = {"bounds": (1.0,) * p}
        if rng.random() < 0.5:
            arguments["smoothness_mu"] = mu = eighths(rng, 0.05, 2)
            squared += Fraction(mu) ** 2
        else:
            arguments["smoothness_share"] = share = int(rng.integers(1, 60)) / 64
            squared /= 1 - Fraction(share)
    plan = registry.algorithm("dp-cd")(
        GLM(dim=2), records=int(rng.integers(5, 500)), steps=steps, clip_norm=eighths(rng, 0.2, 4),
        noise_multiplier=z, adjacency=adjacency, **arguments,
    )  # fmt: skip
    return Case(plan, {}, 0.0, lambda: [(Step("gaussian", squared),)], {"algorithm": "dp-cd"})


def dp_gcd(rng: np.random.Generator) -> Case:
    """Choices and values with Laplace noise: among the sampled plans, since both need distributions."""
    steps, ratio = int(rng.integers(1, 12)), eighths(rng, 2, 40)
    plan = registry.algorithm("dp-gcd")(
        GLM(dim=2), records=int(rng.integers(5, 500)), steps=steps, clip_norm=1.0, noise_ratio=ratio,
        adjacency=str(rng.choice(["add-remove", "replace-one"])),
    )  # fmt: skip
    parts = (Step("laplace", 1 / ratio, steps), Step("pure", 2 / ratio, steps))
    return Case(plan, {}, 0.0, lambda: [parts], {"algorithm": "dp-gcd"})


def admm(rng: np.random.Generator) -> Case:
    """At a curator, noise on the mean or on the increments."""
    records, steps, clip_norm, std = (
        int(rng.integers(2, 300)),
        int(rng.integers(1, 60)),
        eighths(rng, 0.2, 4),
        eighths(rng, 0.05, 4),
    )
    noise_in = str(rng.choice(["mean", "increment"]))
    plan = registry.algorithm("admm")(
        GLM("squared"),
        records=records,
        steps=steps,
        gamma=1.0,
        clip_norm=clip_norm,
        noise_std=std,
        noise_in=noise_in,
    )
    moved = (2 if noise_in == "mean" else 4) * Fraction(clip_norm) / records
    return Case(
        plan,
        {},
        0.0,
        lambda: [(Step("gaussian", steps * moved**2 / Fraction(std) ** 2),)],
        {"algorithm": f"admm-{noise_in}"},
    )


def token_admm(rng: np.random.Generator) -> Case:
    """A token, contributions capped or not; every view is the local one."""
    users, steps, clip_norm, std = (
        int(rng.integers(2, 9)),
        int(rng.integers(1, 60)),
        eighths(rng, 0.2, 4),
        eighths(rng, 1, 100),
    )
    cap = None if rng.random() < 0.4 else int(rng.integers(1, 60))
    plan = registry.algorithm("token-admm")(
        GLM("squared"), users=users, steps=steps, gamma=1.0, clip_norm=clip_norm, noise_std=std, cap=cap
    )
    question, _, _ = whom(rng, users, VIEWS)
    count = steps if cap is None else min(cap, steps)
    squared = count * (4 * Fraction(clip_norm)) ** 2 / Fraction(std) ** 2
    return Case(plan, question, 0.0, lambda: [(Step("gaussian", squared),)], {"algorithm": "token-admm"})


def federated_admm(rng: np.random.Generator, sampled: bool) -> Case:
    """Clients and a server; a secure sum hides who took part and adds up everybody's noise."""
    users, steps = int(rng.integers(3, 9)), int(rng.integers(1, 9 if sampled else 40))
    clip_norm, std = eighths(rng, 0.2, 2), eighths(rng, 1, 30)
    rate = float(rng.choice([1 / 64, 1 / 16, 1 / 4, 1 / 2, 63 / 64]))
    secure = True if sampled else bool(rng.random() < 0.3)
    if secure and not sampled:
        rate = 1.0
    arguments: dict[str, Any] = {}
    pairs = list(itertools.combinations(range(users), 2))
    if secure and rng.random() < 0.5:  # masks in the place of a server's promise
        pairs = sorted({*((v, v + 1) for v in range(users - 1)), *(e for e in pairs if rng.random() < 0.4)})
        masked = sv.protocols.Masked(sv.graphs.complete(users), partners=pairs, tolerate=None)
        arguments["protocol"] = masked
    plan = registry.algorithm("federated-admm")(
        GLM("squared", dim=2), users=users, steps=steps, sample_rate=rate, gamma=1.0, clip_norm=clip_norm,
        noise_std=std, secure_sum=secure, **arguments,
    )  # fmt: skip
    views = ["local", "outsider", "network", "pairwise", "colluders"]
    question, coalitions, about = whom(rng, users, [*views, "central"] if secure else views)
    if question["view"] == "local" and rng.random() < 0.4:
        question["participations"] = int(rng.integers(0, 12))
    unit = (4 * Fraction(clip_norm) / Fraction(std)) ** 2

    def compositions() -> list[tuple[Step, ...]]:
        if "participations" in question:
            return [(Step("gaussian", min(steps, question["participations"]) * unit),)]
        if not secure:
            odds = [mpmath.binomial(steps, k) * rate**k * (1 - rate) ** (steps - k) for k in range(steps + 1)]
            return [(Step("mixture", tuple((k * unit, p) for k, p in enumerate(odds))),)]
        sums = [
            part
            for who in coalitions
            for part in (components(users, pairs, who) if question["view"] != "central" else [range(users)])
            if about is None or about[0] in part
        ]
        least = 1 if question["view"] == "local" else min(map(len, sums))
        if rate == 1:
            return [(Step("gaussian", steps * unit / least),)]
        return [(Step("sampled", 2 / math.sqrt(unit / least), steps, rate, True),)]

    return Case(plan, question, 0.0, compositions, {"algorithm": "federated-admm", "secure_sum": secure})


def fixed_point(rng: np.random.Generator) -> Case:
    """Noisy iterations, some blocks at a time."""
    steps, blocks = int(rng.integers(1, 40)), int(rng.integers(1, 5))
    active, S, std = int(rng.integers(1, blocks + 1)), eighths(rng, 0.1, 4), eighths(rng, 0.5, 40)
    plan = registry.algorithm("fixed-point")(
        lambda u, data: u,
        sensitivity=S,
        noise_std=std,
        steps=steps,
        start=np.zeros((blocks, 2)),
        active_blocks=active,
    )
    squared = steps * active * Fraction(S) ** 2 / Fraction(std) ** 2
    return Case(plan, {}, 0.0, lambda: [(Step("gaussian", squared),)], {"algorithm": "fixed-point"})


GAUSSIAN: list[tuple[float, Callable[[np.random.Generator], Case]]] = [
    (30, averaging),
    (25, lambda rng: consensus(rng, False)),
    (10, lambda rng: muffliato(rng, False)),
    (5, lambda rng: plain_gossip(rng, False, "dp-dsgd")),
    (5, lambda rng: plain_gossip(rng, False, "dp-dsgt")),
    (5, lambda rng: plain_gossip(rng, False, "dp-dinno")),
    (2, lambda rng: plain_gossip(rng, False, "mafalda")),
    (6, decor),
    (4, lambda rng: random_walk(rng, False)),
    (6, secret_walk),
    (8, lambda rng: masked_schedule(rng, False)),
    (2, lambda rng: fresh_trees(rng, False)),
    (2, lambda rng: dp_sgd(rng, False)),
    (3, dp_cd),
    (2, admm),
    (6, lambda rng: federated_admm(rng, False)),
    (2, token_admm),
    (2, fixed_point),
    (3, lambda rng: consensus(rng, False, "consensus-fedavg")),
]
SAMPLED: list[tuple[float, Callable[[np.random.Generator], Case]]] = [
    (40, lambda rng: consensus(rng, True)),
    (12, lambda rng: muffliato(rng, True)),
    (5, lambda rng: plain_gossip(rng, True, "dp-dsgd")),
    (5, lambda rng: plain_gossip(rng, True, "dp-dsgt")),
    (5, lambda rng: plain_gossip(rng, True, "dp-dinno")),
    (6, lambda rng: random_walk(rng, True)),
    (10, lambda rng: masked_schedule(rng, True)),
    (4, lambda rng: fresh_trees(rng, True)),
    (10, lambda rng: dp_sgd(rng, True)),
    (5, dp_gcd),
    (12, lambda rng: federated_admm(rng, True)),
]


def case(seed: int, sampled: bool, number: int) -> Case:
    """Return the plan of one number; what a plan refuses (an uncertified partner graph) is drawn again."""
    makers = SAMPLED if sampled else GAUSSIAN
    weights = np.array([w for w, _ in makers])
    for attempt in range(50):
        rng = np.random.default_rng([seed, int(sampled), number, attempt])
        make = makers[int(rng.choice(len(makers), p=weights / weights.sum()))][1]
        try:
            drawn = make(rng)
        except SottovoceError:
            continue
        exponent = rng.uniform(2, 8 if sampled else 12)
        drawn.delta = float(f"{10**-exponent:.3g}")
        return drawn
    raise AssertionError(f"no plan could be drawn for number {number}")


def check(seed: int, sampled: bool, number: int) -> dict[str, Any]:
    """Draw one plan, ask its price and judge it."""
    drawn = case(seed, sampled, number)
    question = dict(drawn.question)
    begin = time.perf_counter()
    guarantee = drawn.plan.privacy(question.pop("view", None), **question)
    claimed = float(guarantee.epsilon(drawn.delta))
    middle = time.perf_counter()
    compositions = drawn.compositions()
    verdict = judge(compositions, claimed, drawn.delta)
    verdict["low"] |= below_in_renyi(compositions, guarantee.curve.rdp)
    return {
        "kind": "sampled" if sampled else "gaussian", "number": number, **drawn.words, **drawn.question,
        "adjacency": drawn.plan.adjacency, "label": guarantee.label, "delta": drawn.delta, "epsilon": claimed,
        **verdict, "seconds": [round(middle - begin, 3), round(time.perf_counter() - middle, 3)],
    }  # fmt: skip


# ---- the long run -----------------------------------------------------------------------------------------


def score(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how many are below, and how many close where there is a closed form, by algorithm and view."""

    def of(some: list[dict[str, Any]]) -> dict[str, Any]:
        closed = [r for r in some if r.get("closed_form", True)]
        return {
            "plans": len(some),
            "below": sum(r["low"] for r in some),
            "closed_form": len(closed),
            "within_one_percent": round(sum(r["close"] for r in closed) / max(len(closed), 1), 4),
            "largest_excess": max(map(excess, some), default=0.0),
        }

    def excess(result: dict[str, Any]) -> float:
        """How far a price that is not close lies above the truth, relative to it."""
        truth = result["truth"]
        if result["close"] or not isinstance(truth, float) or not truth:
            return 0.0
        return round(result["epsilon"] / truth - 1, 4)

    def by(key: str) -> dict[str, Any]:
        values = sorted({str(r.get(key, "default")) for r in results})
        return {value: of([r for r in results if str(r.get(key, "default")) == value]) for value in values}

    return {
        "all": of(results), "by_kind": by("kind"), "by_algorithm": by("algorithm"), "by_view": by("view"),
        "by_protocol": by("protocol"), "by_adjacency": by("adjacency"),
        "below": [{k: r[k] for k in ("kind", "number", "algorithm")} for r in results if r["low"]][:20],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gaussian", type=int, default=9500, help="plans whose noise is all Gaussian")
    parser.add_argument(
        "--sampled", type=int, default=500, help="plans with lots, sampled clients or choices"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--lines", type=Path, default=Path("build/recomputation.jsonl"), help="results, one line each"
    )
    parser.add_argument("--resume", action="store_true", help="keep the lines there are and go on")
    parser.add_argument("--limit", type=int, help="end after so many plans of this call")
    parser.add_argument("--seconds", type=float, help="end after so many seconds")
    parser.add_argument("--part", default="0/1", help="i/k: only every k-th plan, from the i-th on")
    parser.add_argument("--only", help="one plan, such as gaussian:17, printed in full")
    parser.add_argument("--out", type=Path, help="where the record goes when all plans are done")
    options = parser.parse_args()
    if options.only:
        kind, _, number = options.only.partition(":")
        print(json.dumps(check(options.seed, kind == "sampled", int(number)), indent=2))
        return 0
    options.lines.parent.mkdir(parents=True, exist_ok=True)
    if not options.resume:
        options.lines.unlink(missing_ok=True)
    results = (
        [json.loads(line) for line in options.lines.read_text().splitlines()]
        if options.lines.exists()
        else []
    )
    results = [r for r in results if r["seed"] == options.seed]
    done = {(r["kind"], r["number"]) for r in results}
    wanted = [("gaussian", k) for k in range(options.gaussian)] + [
        ("sampled", k) for k in range(options.sampled)
    ]
    results = [r for r in results if (r["kind"], r["number"]) in set(wanted)]
    part, parts = (int(x) for x in options.part.split("/"))
    waiting = [item for i, item in enumerate(wanted) if i % parts == part and item not in done]
    stop: list[int] = []
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, lambda number, frame: stop.append(number))
    begin = time.perf_counter()
    with options.lines.open("a") as lines:
        for count, (kind, number) in enumerate(waiting[: options.limit], 1):
            result = {"seed": options.seed} | check(options.seed, kind == "sampled", number)
            results.append(result)
            lines.write(json.dumps(result) + "\n")
            lines.flush()
            if result["low"]:
                print(f"\nbelow the truth: {json.dumps(result)}")
            spent = time.perf_counter() - begin
            if count % 10 == 0 or result["low"]:
                below = sum(r["low"] for r in results)
                print(
                    f"\r{len(results)} of {len(wanted)}, {below} below, {spent / count:.2f} s each ",
                    end="",
                    file=sys.stderr,
                )
            if stop or (options.seconds and spent > options.seconds):
                break
    print(file=sys.stderr)
    scored = score(results)
    record = {
        "what": "privacy costs of random plans against an independent recomputation",
        "command": f"python -m verification.recomputation --gaussian {options.gaussian} "
        f"--sampled {options.sampled} --seed {options.seed}",
        "version": sv.__version__,
        "seed": options.seed,
        "tolerance": {"gaussian": GAUSSIAN_SLACK, "sampled": SAMPLED_SLACK},
        "complete": len(results) == len(wanted),
        **scored,
    }
    print(json.dumps(record if options.out else scored["all"] | {"below": scored["below"]}, indent=2))
    if options.out and record["complete"]:
        store(options.out, "recomputation", record)
    return int(scored["all"]["below"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
