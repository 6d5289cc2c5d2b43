"""The span of what is seen of a trace: floating point where it can decide, exact arithmetic where it cannot.

A span never misses a direction. Where neither floating point nor exact arithmetic decides in time, a wider
span takes its place, and `Span.rounded_up` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce.leakage.basis import Basis, RankMonitor, krylov_basis, orthonormal
from sottovoce.leakage.trace import ApplyMatrix, AveragePair, ExecutionTrace, FillMemory, Observe

RESOLVED = 1e-9  # rounding errors in the leakage up to this are ignored, up to COARSE they are added to it
COARSE = 0.02
CHECKED_OPERATIONS = 4e6  # residue operations (some milliseconds) spent on every drop
CHECKED_FAINT_OPERATIONS = 1e9  # and on a drop with faint weights


@dataclass(frozen=True)
class Span:
    """The span of what is seen: a basis (coordinates, rank), and how far the leakage was rounded up."""

    basis: np.ndarray
    rounding_error: float = 0.0
    rounded_up: bool = False


def pull_back(
    trace: ExecutionTrace, values: np.ndarray | None = None, disturb: np.random.Generator | None = None
) -> Basis:
    """Return all that is seen as functionals of the noises, by the backward recursion over the rounds.

    Each round adds the rows seen in it, then the basis is made orthonormal again, so that no direction fades
    away. With ``values``, one row for each that is seen, the basis knows its numbers; ``disturb`` changes
    every number by about 1e-14.
    """
    basis = Basis(trace.size, 0 if values is None else values.shape[1])
    end = sum(map(len, trace.observed))
    for event in reversed(trace.events):
        if not isinstance(event, Observe):
            basis.step_back(event)
            continue
        if disturb is not None:
            basis.columns = basis.columns * (1 + 1e-14 * disturb.standard_normal(basis.columns.shape))
        start = end - len(event.nodes)
        basis.add_unit(event.nodes, None if values is None else values[start:end])
        end = start
    return basis


def decode(trace: ExecutionTrace, values: np.ndarray) -> np.ndarray:
    """Return the minimum-norm estimate (n, dim) of all first rows from the values of the rows seen."""
    basis = pull_back(trace, values)
    return np.asarray(basis.columns[: trace.nodes] @ basis.values)


def observed_span(trace: ExecutionTrace) -> Span:
    """Return the span of all that is seen, or a wider one where floating point cannot decide.

    A round that nearly loses a direction passes its rounding error on, enlarged, until it may reach the
    leading digits. So the recursion runs twice, the second time with every number disturbed by 1e-14, which
    is fifty times what rounding does, and ten times the difference is added to the leakage; if that is much,
    a wider span takes its place. If a direction may have been lost, or much precision, and the trace is
    small, exact arithmetic decides.
    """
    n = trace.nodes
    basis = pull_back(trace)
    columns = without_known(basis.columns, trace.known, basis.monitor)
    sure = _rank_is_certain(basis.monitor, trace, columns.shape[1])
    rounding_error = 0.0
    if sure and len(trace.observed) >= 3:
        again = pull_back(trace, disturb=np.random.default_rng(0))
        disturbed = without_known(again.columns, trace.known)
        shares = [np.einsum("ij,ij->i", c[:n], c[:n]) for c in (columns, disturbed)]
        rounding_error = 10 * float(np.abs(shares[0] - shares[1]).max())
    if sure and rounding_error <= RESOLVED:
        return Span(columns)
    exact = _exact_span(trace, columns.shape[1])
    if exact is not None:
        return exact
    if trace.size > n:  # with memory there is no wider recursion
        if sure and rounding_error <= COARSE:
            return Span(columns, rounding_error, rounded_up=True)
        return reachable_span(trace)
    monitor = RankMonitor()
    wider = _wider_basis(trace, monitor)
    if monitor.doubtful or (monitor.dropped and not sure and trace.faint):
        return reachable_span(trace)
    wider = without_known(wider, [k for k in trace.known if k < n], monitor)
    if sure and rounding_error <= COARSE and wider.shape[1] > columns.shape[1]:
        return Span(columns, rounding_error, rounded_up=True)
    # the wider span holds all that is seen; where it is no larger, it is the span itself
    return Span(wider, rounded_up=not sure or wider.shape[1] > columns.shape[1])


def repeated_matrix_span(trace: ExecutionTrace) -> Span:
    """Return the span of a fixed trace, by the block Krylov recursion."""
    if not trace.observed:
        return Span(np.zeros((trace.nodes, 0)))
    monitor = RankMonitor()
    # The message of w in round k is row w of W^k, which is column w of (W^T)^k.
    basis = krylov_basis(trace.matrix.T.tocsr(), trace.observed[0], len(trace.observed), trace.known, monitor)
    return certain_span(trace, basis, monitor) or reachable_span(trace)


def output_span(trace: ExecutionTrace) -> Span:
    """Return the span of the final rows that the last event of the trace observes."""
    basis = pull_back(trace)
    if len(trace.observed[-1]) == 1:  # one row alone keeps its direction
        return Span(basis.columns)
    return certain_span(trace, basis.columns, basis.monitor) or reachable_span(trace)


def certain_span(trace: ExecutionTrace, columns: np.ndarray, monitor: RankMonitor) -> Span | None:
    """Return the span of these columns if it is certain, else the exact one; None if that takes too long."""
    if _rank_is_certain(monitor, trace, columns.shape[1]):
        return Span(columns)
    return _exact_span(trace, columns.shape[1])


def _rank_is_certain(monitor: RankMonitor, trace: ExecutionTrace, rank: int) -> bool:
    """Whether a floating recursion of this rank surely dropped nothing but rounding, and kept no rounding.

    Where weights are not faint and a check would take long, a clear gap between what was kept and what was
    dropped decides.
    """
    if monitor.doubtful or not monitor.dropped:
        return not monitor.doubtful
    work = trace.work(rank + 1)
    if rank == trace.coordinates - len(trace.known) or (work > CHECKED_OPERATIONS and not trace.faint):
        return True
    from sottovoce.leakage.exact_rank import independent_rows  # compiled code: loaded when needed

    return work <= CHECKED_FAINT_OPERATIONS and len(independent_rows(trace)) == rank


def _exact_span(trace: ExecutionTrace, rank: int) -> Span | None:
    """Return the exact span, or None where that would take too long; ``rank`` is a guess."""
    if trace.work(rank + 1) > CHECKED_FAINT_OPERATIONS:
        return None
    from sottovoce.leakage.exact_rank import exact_basis

    basis = exact_basis(trace)
    return None if basis is None else Span(basis)


def reachable_span(trace: ExecutionTrace) -> Span:
    """Return the span of all values that any seen row can hold: the last resort, rounded up.

    A row that a later one is computed from counts in full, whatever the weight.
    """
    held = np.zeros(trace.size, dtype=bool)  # rows of the present that are in something seen later
    for event in reversed(trace.events):
        if isinstance(event, Observe):
            held[list(event.nodes)] = True
        elif isinstance(event, ApplyMatrix):
            held = np.asarray((event.transition != 0).T.astype(np.int64) @ held) > 0
        elif isinstance(event, AveragePair):
            held[[event.one, event.other]] = held[event.one] or held[event.other]
        elif isinstance(event, FillMemory):
            held = held[: trace.nodes] | held[trace.nodes :]
    held[[k for k in trace.known if k < trace.nodes]] = False
    return Span(np.eye(trace.nodes)[:, held], rounded_up=True)


def _wider_basis(trace: ExecutionTrace, monitor: RankMonitor) -> np.ndarray:
    """Return a basis whose span contains all that is seen, without enlarging errors.

    It keeps every functional it ever had besides pulling it back, and gives the observers the fresh
    noise of the rounds. For one matrix used in every round, and no fresh noise, it is the span itself.
    """
    n = trace.nodes
    span = pulled = np.zeros((n, 0))
    for event in reversed(trace.events):
        if isinstance(event, ApplyMatrix):
            pulled = event.matrix.T @ span
        elif isinstance(event, AveragePair):
            pulled = span.copy()
            pulled[[event.one, event.other]] = 0.5 * span[event.one] + 0.5 * span[event.other]
        elif isinstance(event, Observe):
            units = np.zeros((n, len(event.nodes)))
            units[list(event.nodes), np.arange(len(event.nodes))] = 1.0
            block = np.hstack([units, pulled])
            for _ in range(2):
                block -= span @ (span.T @ block)
            fresh = orthonormal(block, monitor)[0]
            fresh -= span @ (span.T @ fresh)
            span = pulled = np.hstack([span, np.linalg.qr(fresh)[0]])
    return span


def without_known(
    columns: np.ndarray, known: Sequence[int], monitor: RankMonitor | None = None
) -> np.ndarray:
    """Return an orthonormal basis of the span with the known coordinates removed."""
    if not len(known):
        return columns
    left = columns.copy()
    left[list(known)] = 0.0
    return orthonormal(left, monitor)[0] if left.shape[1] else left
