"""The span of what is seen, in exact arithmetic: for weights that floating point cannot decide about.

A message through a faint weight still reveals its sender exactly, but a recursion in double precision may
take its direction for rounding and drop it, and then the loss is understated. Weights are rational numbers,
so whether a direction is there is decided here modulo primes (`modular_linalg`), and the directions are
computed in as many binary digits as the weights need, by the Gram-Schmidt process on whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import isqrt

import numpy as np
from scipy import sparse

from sottovoce.leakage.view import RankMonitor

__all__ = [
    "AddNoise",
    "ApplyMatrix",
    "AveragePair",
    "Event",
    "ExecutionTrace",
    "Observe",
    "Span",
    "decided",
    "exact_basis",
    "exact_span",
    "independent_rows",
]

FAINT = 2.0**-12  # with a weight below it nothing is dropped without exact arithmetic
CHECKED = 4e6  # residue operations (some milliseconds) spent on every drop, and on one with faint weights
CHECKED_FAINT = 1e9
EXACT_WORK = 4e5  # rank * rank * coordinates up to which doubt is settled in exact arithmetic
SPARE = 64  # binary digits that must be left after all that elimination can lose
LONGEST = 1 << 14  # binary digits at which the exact form gives up


@dataclass(frozen=True)
class Observe:
    """The rows of these nodes are seen."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ApplyMatrix:
    """All rows are multiplied by a matrix.

    With ``memory`` ((a, b), (c, d, e)) the second half of the state is what is remembered: the new rows are
    ``a`` times the product plus ``b`` times that, and ``c`` times the product plus ``d`` times the rows plus
    ``e`` times that is remembered next.
    """

    matrix: sparse.csr_array
    memory: tuple[tuple[float, float], tuple[float, float, float]] | None = None


@dataclass(frozen=True)
class AveragePair:
    """Two rows are replaced by their mean."""

    one: int
    other: int


@dataclass(frozen=True)
class AddNoise:
    """Row ``k`` gets ``std`` times the coordinate ``offset + k``, for the first ``count`` rows."""

    offset: int
    count: int
    std: float


Event = Observe | ApplyMatrix | AveragePair | AddNoise


@dataclass(frozen=True, eq=False)
class ExactMatrix:
    """A sparse matrix in exact numbers: its csr pattern, its fractions, and their residues when asked."""

    source: sparse.csr_array
    indptr: np.ndarray
    indices: np.ndarray
    entries: list[Fraction]
    _residues: dict[int, np.ndarray] = field(default_factory=dict)

    def times(self, dense: np.ndarray, prime: int) -> np.ndarray:
        """Return the product with a dense matrix of residues."""
        from sottovoce.leakage import modular_linalg

        if prime not in self._residues:
            self._residues[prime] = modular_linalg.residues(self.entries, prime)
        return modular_linalg.sparse_times(self.indptr, self.indices, self._residues[prime], dense, prime)


def _read(matrix: sparse.csr_array) -> ExactMatrix:
    from sottovoce.leakage.modular_linalg import rational_entries

    return ExactMatrix(matrix, matrix.indptr, matrix.indices, rational_entries(matrix))


@dataclass(frozen=True, eq=False)
class ExecutionTrace:
    """What happens to the rows of all nodes, in order, as functionals of independent coordinates.

    Parameters
    ----------
    size : number of rows of the state; all begin as zero.
    coordinates : number of independent noises.
    events : what happens.
    known : coordinates that the observers know; they are taken out of what is seen.
    readings : matrices already read, to be shared between the courses of one protocol.
    fixed : whether it is units at the start and then one matrix and the same nodes throughout, and all that
        the known nodes hear is seen: then only what is new in a round can bring news in the next.

    Examples
    --------
    Node 0 of a path of three sees its neighbor twice, and so both of the others.

    >>> import sottovoce as sv
    >>> W = sv.graphs.path(3).W
    >>> events = (AddNoise(0, 3, 1.0), Observe((1,)), ApplyMatrix(W), Observe((1,)))
    >>> course = ExecutionTrace(3, 3, events, known=(0,))
    >>> independent_rows(course)
    [0, 1]
    >>> (exact_basis(course) ** 2).sum(axis=1).tolist()
    [0.0, 1.0, 1.0]
    """

    size: int
    coordinates: int
    events: tuple[Event, ...]
    known: tuple[int, ...] = ()
    fixed: bool = False
    readings: dict[tuple[int, bool], ExactMatrix] = field(default_factory=dict, repr=False)

    @property
    def seen(self) -> int:
        """Number of rows seen in all."""
        return sum(len(event.nodes) for event in self.events if isinstance(event, Observe))

    def work(self, rank: int) -> float:
        """Estimate the residue operations that decide about the rank."""
        if self.fixed:  # in each round as many candidates as the last had news
            return float(self.coordinates) * rank * rank
        mixing = sum(event.matrix.nnz if isinstance(event, ApplyMatrix) else 2 for event in self.events)
        return float(self.coordinates) * (mixing + rank * self.seen)

    def entries(self, matrix: sparse.csr_array, transposed: bool = False) -> ExactMatrix:
        """Return a matrix, or its transpose, with its weights as the rational numbers that were meant."""
        key = id(matrix), transposed
        if key not in self.readings or self.readings[key].source is not matrix:
            self.readings[key] = self._transposed(matrix) if transposed else _read(matrix)
        return self.readings[key]

    def _transposed(self, matrix: sparse.csr_array) -> ExactMatrix:
        marks = sparse.csr_array(
            (np.arange(1.0, matrix.nnz + 1), matrix.indices, matrix.indptr), shape=matrix.shape
        ).T.tocsr()
        plain = self.entries(matrix).entries
        return ExactMatrix(matrix, marks.indptr, marks.indices, [plain[int(mark) - 1] for mark in marks.data])

    @property
    def matrix(self) -> sparse.csr_array:
        """The first matrix, which is the only one of a fixed course."""
        return next(event.matrix for event in self.events if isinstance(event, ApplyMatrix))

    def rounds(self) -> tuple[tuple[int, ...], int]:
        """Return the nodes that are seen in every round, and the number of rounds."""
        seen = [event.nodes for event in self.events if isinstance(event, Observe)]
        return seen[0], len(seen)


@dataclass(frozen=True)
class Span:
    """The span of what is seen: a basis (coordinates, rank), and how far the leakage was rounded up."""

    basis: np.ndarray
    slack: float = 0.0
    rounded_up: bool = False


def decided(watch: RankMonitor, course: ExecutionTrace, rank: int, *, faint: bool) -> bool:
    """Whether a floating recursion of this rank surely dropped nothing but rounding, and kept no rounding.

    Where weights are not faint and a check would take long, a clear gap between what was kept and what was
    dropped decides.
    """
    if watch.doubtful or watch.settled:
        return watch.settled
    work = course.work(rank + 1)
    if rank == course.coordinates - len(course.known) or (work > CHECKED and not faint):
        return True
    return work <= CHECKED_FAINT and len(independent_rows(course)) == rank


def exact_span(course: ExecutionTrace, rank: int) -> Span | None:
    """Return the span in exact arithmetic, or None where that would take too long; ``rank`` is a guess."""
    if course.work(rank + 1) > CHECKED_FAINT:
        return None
    rows = independent_rows(course)
    if float(len(rows)) ** 2 * course.coordinates > EXACT_WORK:
        return None
    basis = exact_basis(course, rows)
    return None if basis is None else Span(basis)


def independent_rows(course: ExecutionTrace) -> list[int]:
    """Return the numbers of the seen rows that are not combinations of the ones before.

    Two primes decide: modulo a prime a rank can only fall, and it falls for few primes.
    """
    from sottovoce.leakage.modular_linalg import PRIMES

    if not course.seen:
        return []
    decide = _krylov_rows if course.fixed else _new_rows
    return max((decide(course, prime) for prime in PRIMES[:2]), key=len)


def _krylov_rows(course: ExecutionTrace, prime: int) -> list[int]:
    from sottovoce.leakage import modular_linalg

    space = modular_linalg.RowSpace(course.coordinates, prime)
    nodes, rounds = course.rounds()
    most = course.coordinates - len(course.known)
    active = np.arange(len(nodes))
    rows = np.eye(course.coordinates, dtype=np.uint64)[list(nodes)]
    backwards = course.entries(course.matrix, transposed=True)
    new: list[int] = []
    for k in range(rounds):
        rows[:, list(course.known)] = 0  # what is known of a row, and all that comes of it, is seen anyway
        came = space.add(rows)
        new += [k * len(nodes) + int(active[i]) for i in came]
        if k + 1 == rounds or not len(came) or space.rank == most:
            break
        active = active[came]
        newest = np.ascontiguousarray(space.newest(len(came)).T)
        rows = backwards.times(newest, prime).T
    return new


def _new_rows(course: ExecutionTrace, prime: int) -> list[int]:
    from sottovoce.leakage import modular_linalg

    space = modular_linalg.RowSpace(course.coordinates, prime)
    state = np.zeros((course.size, course.coordinates), dtype=np.uint64)
    known = list(course.known)
    most = course.coordinates - len(known)
    new: list[int] = []
    number, p = 0, np.uint64(prime)
    for event in course.events:
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
            mixed = course.entries(matrix).times(present, prime)
            if event.memory is not None:
                a, b, c, d, e = modular_linalg.residues(
                    [Fraction(x) for part in event.memory for x in part], prime
                )
                before = state[matrix.shape[0] :]
                kept = (mixed * c % p + present * d % p + before * e % p) % p
                mixed = np.concatenate([(mixed * a % p + before * b % p) % p, kept])
            state = mixed
        elif isinstance(event, AveragePair):
            both = (state[event.one] + state[event.other]) % p
            # half of an odd residue is half of it plus the prime
            state[event.one] = state[event.other] = (both + (both & np.uint64(1)) * p) >> np.uint64(1)
        else:
            (scale,) = modular_linalg.residues([Fraction(event.std)], prime)
            place = np.arange(event.count)
            state[place, event.offset + place] += scale
            state[place, event.offset + place] %= p
    return new


def exact_basis(course: ExecutionTrace, rows: Sequence[int] | None = None) -> np.ndarray | None:
    """Return an orthonormal basis (coordinates, rank) of all that is seen, or None where it would take ages.

    The rank is exact; the numbers are right to the last digits of double precision.
    """
    chosen = independent_rows(course) if rows is None else list(rows)
    bits = 256
    while bits <= LONGEST:
        basis, lost = _orthogonal(course, chosen, bits)
        if basis is not None and lost + SPARE <= bits:
            shift = bits - 60
            return np.array(
                [[float(int(x) >> shift) for x in q] for q in basis], dtype=np.float64
            ).reshape(len(basis), course.coordinates).T / 2.0**60  # fmt: skip
        bits = max(2 * bits, lost + 2 * SPARE)
    return None


def _orthogonal(
    course: ExecutionTrace, chosen: Sequence[int], bits: int
) -> tuple[list[np.ndarray] | None, int]:
    """Run Gram-Schmidt on rows of whole numbers, a unit being ``2**bits``.

    Returns the basis and how many digits it may have lost: what is left of a row, beside its length, says
    by how much the error of everything before is enlarged.
    """
    lost = int(np.log2(course.coordinates + len(course.events) + 1)) + 4
    basis = np.zeros((len(chosen), course.coordinates), dtype=object)
    known = list(course.known)
    for done, row in enumerate(_whole_rows(course, chosen, bits)):
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


def _whole_rows(course: ExecutionTrace, chosen: Sequence[int], bits: int) -> Iterator[np.ndarray]:
    """Yield the chosen rows, forwards in time, in units of ``2**-bits``."""
    one = 1 << bits
    if course.fixed:
        yield from _whole_krylov(course, chosen, one)
        return
    state = np.zeros((course.size, course.coordinates), dtype=object)
    wanted = iter(chosen)
    following = next(wanted, None)
    number = 0
    for event in course.events:
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
        else:
            matrix, entries = event.matrix, course.entries(event.matrix).entries
            after = state[: matrix.shape[0]].copy()
            for v in range(matrix.shape[0]):
                low, high = int(matrix.indptr[v]), int(matrix.indptr[v + 1])
                terms = [(int(matrix.indices[e]), entries[e]) for e in range(low, high) if entries[e]]
                if len(terms) == 1 and terms[0][0] == v and terms[0][1] == 1:
                    continue
                total = np.zeros(course.coordinates, dtype=object)
                for w, weight in terms:
                    total = total + state[w] * weight.numerator // weight.denominator
                after[v] = total
            if event.memory is not None:
                a, b, c, d, e = (Fraction(x) for part in event.memory for x in part)
                present, before = state[: matrix.shape[0]], state[matrix.shape[0] :]
                kept = _share(after, c) + _share(present, d) + _share(before, e)
                after = np.concatenate([_share(after, a) + _share(before, b), kept])
            state = after


def _share(rows: np.ndarray, factor: Fraction) -> np.ndarray:
    return np.asarray(rows * factor.numerator // factor.denominator)


def _whole_krylov(course: ExecutionTrace, chosen: Sequence[int], one: int) -> Iterator[np.ndarray]:
    """Yield row ``w`` of the k-th power of the matrix for each chosen number ``(k, w)``."""
    if not len(chosen):
        return
    nodes, _ = course.rounds()
    rounds = 1 + max(chosen) // len(nodes)
    backwards = course.entries(course.matrix, transposed=True)
    last = {number % len(nodes): number // len(nodes) for number in chosen}
    rows = {}
    for i in last:
        rows[i] = np.zeros(course.coordinates, dtype=object)
        rows[i][nodes[i]] = one
    wanted = set(chosen)
    for k in range(rounds):
        for i in sorted(rows):
            if k * len(nodes) + i in wanted:
                yield rows[i]
        rows = {i: _product(backwards, row) for i, row in rows.items() if last[i] > k}


def _product(matrix: ExactMatrix, row: np.ndarray) -> np.ndarray:
    after = np.zeros(len(row), dtype=object)
    for v in range(len(row)):
        for e in range(int(matrix.indptr[v]), int(matrix.indptr[v + 1])):
            value, weight = row[matrix.indices[e]], matrix.entries[e]
            if value and weight:
                after[v] += value * weight.numerator // weight.denominator
    return after
