"""The span of what is seen, in exact arithmetic: for weights that floating point cannot decide about.

A message through a faint weight still reveals its sender exactly, but a recursion in double precision may
take its direction for rounding and drop it, and then the loss is understated. Weights are rational numbers,
so whether a direction is there is decided here modulo primes (`modular_linalg`), and the directions are
computed in as many binary digits as the weights need, by the Gram-Schmidt process on whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import isqrt

import numpy as np

from sottovoce.leakage.basis import RankMonitor
from sottovoce.leakage.trace import (
    AddNoise,
    ApplyMatrix,
    AveragePair,
    ExactMatrix,
    ExecutionTrace,
    FillMemory,
    Observe,
)

FAINT = 2.0**-12  # with a weight below it nothing is dropped without exact arithmetic
CHECKED = 4e6  # residue operations (some milliseconds) spent on every drop, and on one with faint weights
CHECKED_FAINT = 1e9
EXACT_WORK = 4e5  # rank * rank * coordinates up to which doubt is settled in exact arithmetic
SPARE = 64  # binary digits that must be left after all that elimination can lose
LONGEST = 1 << 14  # binary digits at which the exact form gives up


def decided(monitor: RankMonitor, trace: ExecutionTrace, rank: int) -> bool:
    """Whether a floating recursion of this rank surely dropped nothing but rounding, and kept no rounding.

    Where weights are not faint and a check would take long, a clear gap between what was kept and what was
    dropped decides.
    """
    if monitor.doubtful or monitor.settled:
        return monitor.settled
    work = trace.work(rank + 1)
    if rank == trace.coordinates - len(trace.known) or (work > CHECKED and not trace.faint):
        return True
    return work <= CHECKED_FAINT and len(independent_rows(trace)) == rank


def exact_span_basis(trace: ExecutionTrace, rank: int) -> np.ndarray | None:
    """Return a basis of the exact span, or None where that would take too long; ``rank`` is a guess."""
    if trace.work(rank + 1) > CHECKED_FAINT:
        return None
    rows = independent_rows(trace)
    if float(len(rows)) ** 2 * trace.coordinates > EXACT_WORK:
        return None
    return exact_basis(trace, rows)


def independent_rows(trace: ExecutionTrace) -> list[int]:
    """Return the numbers of the seen rows that are not combinations of the ones before.

    Two primes decide: modulo a prime a rank can only fall, and it falls for few primes.
    """
    from sottovoce.leakage import modular_linalg

    if not any(trace.observed):
        return []
    decide = _krylov_rows if trace.fixed else _new_rows
    return max((decide(trace, prime) for prime in modular_linalg.PRIMES[:2]), key=len)


def _krylov_rows(trace: ExecutionTrace, prime: int) -> list[int]:
    from sottovoce.leakage import modular_linalg

    space = modular_linalg.RowSpace(trace.coordinates, prime)
    nodes, rounds = trace.observed[0], len(trace.observed)
    most = trace.coordinates - len(trace.known)
    active = np.arange(len(nodes))
    rows = np.eye(trace.coordinates, dtype=np.uint64)[list(nodes)]
    transposed = trace.exact(trace.matrix, transposed=True)
    new: list[int] = []
    for k in range(rounds):
        rows[:, list(trace.known)] = 0  # what is known of a row, and all that comes of it, is seen anyway
        came = space.add(rows)
        new += [k * len(nodes) + int(active[i]) for i in came]
        if k + 1 == rounds or not len(came) or space.rank == most:
            break
        active = active[came]
        newest = np.ascontiguousarray(space.newest(len(came)).T)
        rows = transposed.times(newest, prime).T
    return new


def _new_rows(trace: ExecutionTrace, prime: int) -> list[int]:
    from sottovoce.leakage import modular_linalg

    space = modular_linalg.RowSpace(trace.coordinates, prime)
    state = np.zeros((trace.size, trace.coordinates), dtype=np.uint64)
    known = list(trace.known)
    most = trace.coordinates - len(known)
    new: list[int] = []
    number, p = 0, np.uint64(prime)
    for event in trace.events:
        if isinstance(event, Observe):
            rows = state[list(event.nodes)]
            rows[:, known] = 0
            came = space.add(rows) if len(rows) else ()
            new += [number + int(k) for k in came]
            number += len(event.nodes)
            if space.rank == most:
                break
        elif isinstance(event, ApplyMatrix):
            matrix = event.matrix
            present = state[: matrix.shape[0]]
            mixed = trace.exact(matrix).times(present, prime)
            if event.memory is not None:
                a, b, c, d, e = modular_linalg.residues(
                    [Fraction(x) for part in event.memory for x in part], prime
                )
                before = state[matrix.shape[0] :]
                memory = (mixed * c % p + present * d % p + before * e % p) % p
                mixed = np.concatenate([(mixed * a % p + before * b % p) % p, memory])
            state = mixed
        elif isinstance(event, AveragePair):
            both = (state[event.one] + state[event.other]) % p
            # half of an odd residue is half of it plus the prime
            state[event.one] = state[event.other] = (both + (both & np.uint64(1)) * p) >> np.uint64(1)
        elif isinstance(event, FillMemory):
            (scale,) = modular_linalg.residues([Fraction(event.factor)], prime)
            state[trace.nodes :] = state[: trace.nodes] * scale % p
        else:
            (scale,) = modular_linalg.residues([Fraction(event.std)], prime)
            place = np.arange(event.count)
            state[place, event.offset + place] += scale
            state[place, event.offset + place] %= p
    return new


def exact_basis(trace: ExecutionTrace, rows: Sequence[int] | None = None) -> np.ndarray | None:
    """Return an orthonormal basis (coordinates, rank) of all that is seen, or None where it would take ages.

    The rank is exact; the numbers are right to the last digits of double precision.
    """
    chosen = independent_rows(trace) if rows is None else list(rows)
    bits = 256
    while bits <= LONGEST:
        basis, lost = _orthogonal(trace, chosen, bits)
        if basis is not None and lost + SPARE <= bits:
            shift = bits - 60
            return np.array(
                [[float(int(x) >> shift) for x in q] for q in basis], dtype=np.float64
            ).reshape(len(basis), trace.coordinates).T / 2.0**60  # fmt: skip
        bits = max(2 * bits, lost + 2 * SPARE)
    return None


def _orthogonal(
    trace: ExecutionTrace, chosen: Sequence[int], bits: int
) -> tuple[list[np.ndarray] | None, int]:
    """Run Gram-Schmidt on rows of whole numbers, a unit being ``2**bits``.

    Returns the basis and how many digits it may have lost: the share of a row that is left says by how
    much the error of everything before is enlarged.
    """
    lost = int(np.log2(trace.coordinates + len(trace.events) + 1)) + 4
    basis = np.zeros((len(chosen), trace.coordinates), dtype=object)
    known = list(trace.known)
    for done, row in enumerate(_whole_rows(trace, chosen, bits)):
        left = row.copy()
        left[known] = 0
        for turn in range(3):  # normalize, then take away what is known already, twice
            if turn and done:
                share = _rounded(basis[:done].dot(left), bits)
                left = left - _rounded(share.dot(basis[:done]), bits)
            length = isqrt(int((left * left).sum()))
            if length.bit_length() < SPARE:
                return None, lost + bits
            lost += max(0, bits + 1 - length.bit_length()) if turn < 2 else 0
            left = (left << bits) // length
        basis[done] = left
    return list(basis), lost


def _rounded(values: np.ndarray, bits: int) -> np.ndarray:
    return np.asarray(values >> bits)


def _whole_rows(trace: ExecutionTrace, chosen: Sequence[int], bits: int) -> Iterator[np.ndarray]:
    """Yield the chosen rows, forwards in time, in units of ``2**-bits``."""
    one = 1 << bits
    if trace.fixed:
        yield from _whole_krylov(trace, chosen, one)
        return
    state = np.zeros((trace.size, trace.coordinates), dtype=object)
    wanted = iter(chosen)
    following = next(wanted, None)
    number = 0
    for event in trace.events:
        if isinstance(event, Observe):
            for node in event.nodes:
                if number == following:
                    yield state[node]
                    following = next(wanted, None)
                number += 1
            if following is None:
                return
        elif isinstance(event, AddNoise):
            scale = Fraction(event.std)
            for k in range(event.count):
                state[k, event.offset + k] += one * scale.numerator // scale.denominator
        elif isinstance(event, AveragePair):
            state[event.one] = state[event.other] = (state[event.one] + state[event.other]) >> 1
        elif isinstance(event, FillMemory):
            state[trace.nodes :] = _share(state[: trace.nodes], Fraction(event.factor))
        else:
            matrix, entries = event.matrix, trace.exact(event.matrix).entries
            after = state[: matrix.shape[0]].copy()
            for v in range(matrix.shape[0]):
                low, high = int(matrix.indptr[v]), int(matrix.indptr[v + 1])
                terms = [(int(matrix.indices[e]), entries[e]) for e in range(low, high) if entries[e]]
                if len(terms) == 1 and terms[0][0] == v and terms[0][1] == 1:
                    continue
                total = np.zeros(trace.coordinates, dtype=object)
                for w, weight in terms:
                    total = total + state[w] * weight.numerator // weight.denominator
                after[v] = total
            if event.memory is not None:
                a, b, c, d, e = (Fraction(x) for part in event.memory for x in part)
                present, before = state[: matrix.shape[0]], state[matrix.shape[0] :]
                memory = _share(after, c) + _share(present, d) + _share(before, e)
                after = np.concatenate([_share(after, a) + _share(before, b), memory])
            state = after


def _share(rows: np.ndarray, factor: Fraction) -> np.ndarray:
    return np.asarray(rows * factor.numerator // factor.denominator)


def _whole_krylov(trace: ExecutionTrace, chosen: Sequence[int], one: int) -> Iterator[np.ndarray]:
    """Yield row ``w`` of the k-th power of the matrix for each chosen number ``(k, w)``."""
    if not len(chosen):
        return
    nodes = trace.observed[0]
    rounds = 1 + max(chosen) // len(nodes)
    transposed = trace.exact(trace.matrix, transposed=True)
    last = {number % len(nodes): number // len(nodes) for number in chosen}
    rows = {}
    for i in last:
        rows[i] = np.zeros(trace.coordinates, dtype=object)
        rows[i][nodes[i]] = one
    wanted = set(chosen)
    for k in range(rounds):
        for i in sorted(rows):
            if k * len(nodes) + i in wanted:
                yield rows[i]
        rows = {i: _product(transposed, row) for i, row in rows.items() if last[i] > k}


def _product(matrix: ExactMatrix, row: np.ndarray) -> np.ndarray:
    after = np.zeros(len(row), dtype=object)
    for v in range(len(row)):
        for e in range(int(matrix.indptr[v]), int(matrix.indptr[v + 1])):
            value, weight = row[matrix.indices[e]], matrix.entries[e]
            if value and weight:
                after[v] += value * weight.numerator // weight.denominator
    return after
