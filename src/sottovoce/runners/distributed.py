"""Many machines of one owner: each rank hosts a slice of the agents, and only rows on cut edges travel.

The algorithms are those of the stacked runner. A rank builds the algorithm of its own agents, and for every
round of the protocol sends its border rows point to point (torch.distributed with gloo), multiplies what
needs nobody else meanwhile, and finishes when the rows of the others are there. Start the ranks with
``torchrun`` or `sottovoce.runners.launch`.

A cluster is one owner's: ranks trust each other and rows travel unencrypted. Parties that do not trust each
other run `sottovoce.peers`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike
from scipy import sparse

from sottovoce import _validate
from sottovoce._io import to_jsonable
from sottovoce.errors import ClusterError, InvalidInput, LostRank, MissingDependency, SottovoceError
from sottovoce.noise.samplers import NoiseSource
from sottovoce.protocols import Protocol, as_linear
from sottovoce.runners.launch import limit_threads, parse_threads
from sottovoce.runners.matrix_partition import MatrixPartition, cut_matrix, slices
from sottovoce.runners.plan_interface import RunnablePlan

T = TypeVar("T")
_GRACE = 15.0  # seconds in which the ranks of a failed run still find each other to say why
_CUTS_KEPT = 256


@dataclass
class Traffic:
    """What one rank has sent; a row that several agents of another rank need travels to that rank once."""

    rounds: int = 0
    bytes: int = 0


class _Transfer(NamedTuple):
    """Rows on their way: the tensor must live until they have left or come."""

    rank: int
    work: Any
    tensor: Any


class Cluster:
    """The ranks that work on one run together, seen from one of them.

    Use `join` in a process that torchrun (or `launch`) has started, `alone` for a single process. All ranks
    call the same methods in the same order.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> with Cluster.alone() as cluster:
    ...     cluster.rank, cluster.size, cluster.agree("a plan", lambda: 3)
    (0, 1, 3)
    """

    def __init__(self, rank: int, size: int, store: Any, *, timeout: float) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.traffic = Traffic()
        self.lost: int | None = None
        self._store = store
        self._meetings = 0

    @classmethod
    def alone(cls) -> Cluster:
        """Return a cluster of this process only; torch is not needed."""
        return cls(0, 1, None, timeout=60.0)

    @classmethod
    def join(cls, *, timeout: float = 60.0) -> Cluster:
        """Meet the other ranks, as the environment says (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).

        ``timeout`` is how many seconds any wait may last before the rank waited for counts as lost.
        """
        _validate.positive(timeout, "timeout")
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            raise ClusterError(
                "This process is not a rank: RANK and WORLD_SIZE are not set; start it with torchrun, "
                "or `sottovoce train FILE.toml --ranks 2`."
            )
        try:
            import torch.distributed as dist
        except ImportError:
            raise MissingDependency(
                "A cluster needs torch; install it with `pip install 'sottovoce[deep]'`."
            ) from None
        threads = parse_threads(os.environ.get("OMP_NUM_THREADS"))
        if threads is not None:  # torchrun's share of this machine; it says nothing to the other pools
            limit_threads(threads)
        patience = timedelta(seconds=timeout)
        try:
            store, rank, size = next(iter(dist.rendezvous("env://", timeout=patience)))
            store.set_timeout(patience)
            # torchrun keeps its meeting point over restarts; what an earlier attempt left there is not ours
            store = dist.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
            group = dist.PrefixStore("group", store)
            dist.init_process_group("gloo", store=group, rank=rank, world_size=size, timeout=patience)
        except (RuntimeError, ValueError) as error:
            address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            cause = (str(error).splitlines() or [""])[0]
            raise ClusterError(
                f"Not all {os.environ['WORLD_SIZE']} ranks met at {address} within {timeout:g} s ({cause})."
            ) from None
        return cls(rank, size, dist.PrefixStore("sottovoce", store), timeout=timeout)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        reason = self._announce(error) if isinstance(error, Exception) else error
        self._leave(reason)
        if reason is not None and reason is not error:
            raise reason from error

    # ---- messages of a few bytes, from every rank to all -------------------------------------------------

    def agree(
        self,
        what: str,
        build: Callable[[], T],
        *,
        identity: Callable[[T], str] | None = None,
        failing: str = "cannot begin",
    ) -> T:
        """Return ``build()`` if every rank can build it and has the same ``identity``; else raise everywhere.

        A rank on which it fails (a file is missing there) makes all ranks raise one sentence that names it
        and says what it is ``failing`` to do.
        """
        if self.size == 1:
            return build()
        value: Any = None
        try:
            value = build()
            message = {"same": identity(value) if identity else ""}
        except Exception as error:
            message = {"error": _sentence(error)}
        answers = self.meet(message)
        errors = {rank: answer["error"] for rank, answer in enumerate(answers) if "error" in answer}
        for rank, sentence in errors.items():
            everywhere = list(errors.values()) == [sentence] * self.size
            raise ClusterError(sentence if everywhere else f"Rank {rank} {failing}: {sentence}")
        # digests by their first characters, other words in full
        same = [word if " " in word else word[:12] for word in (answer["same"] for answer in answers)]
        for rank, answer in enumerate(answers):
            if answer["same"] != answers[0]["same"]:
                raise ClusterError(
                    f"The ranks disagree on {what}: rank 0 has {same[0]}, rank {rank} has {same[rank]}; "
                    "start all ranks with the same files and versions."
                )
        return value

    def meet(self, message: object = None) -> list[Any]:
        """Wait for all ranks, and return the message of each of them (plain values)."""
        if self._store is None:
            return [to_jsonable(message)]
        number = self._meetings
        self._meetings += 1
        keys = [f"meeting/{number}/{rank}" for rank in range(self.size)]
        try:
            self._store.set(keys[self.rank], json.dumps(to_jsonable(message)))
            deadline = time.monotonic() + self.timeout
            while not self._store.check(keys):
                if self._store.check(["failed"]):
                    raise self._failure(self.rank, "")
                if time.monotonic() > deadline:
                    late = next(r for r, key in enumerate(keys) if not self._store.check([key]))
                    raise self._failure(late, f"did not come within {self.timeout:g} s")
                time.sleep(0.002)
            messages = [json.loads(self._store.get(key)) for key in keys]
        except RuntimeError:
            raise self._failure(0, "closed the meeting point") from None
        if number > 1:  # everybody has read the meeting before the last one
            with contextlib.suppress(RuntimeError):
                self._store.delete_key(f"meeting/{number - 2}/{self.rank}")
        return messages

    # ---- rows ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def exchange(self, cut: MatrixPartition, state: np.ndarray, where: str = "") -> Iterator[np.ndarray]:
        """Send this round's rows and yield the array that others' rows arrive in, filled at the end."""
        received = np.empty((sum(cut.receives.values()), state.shape[1]), state.dtype)
        transfers, start = [], 0
        for rank, count in cut.receives.items():
            transfers.append(self._begin(received[start : start + count], rank, where, receive=True))
            start += count
        for rank, rows in cut.sends.items():
            transfers.append(self._begin(state[rows], rank, where))
        self.traffic.rounds += 1
        self.traffic.bytes += cut.rows_sent * state.shape[1] * state.itemsize
        yield received
        for transfer in transfers:
            self._finish(transfer, where)

    def gather(self, rows: np.ndarray, n: int) -> np.ndarray | None:
        """Return the rows of all ``n`` agents on rank 0, None elsewhere."""
        if self.size == 1:
            return rows
        if self.rank:
            self._finish(self._begin(np.ascontiguousarray(rows), 0, "the end"), "the end")
            return None
        parts = [rows]
        for rank, count in enumerate(np.bincount(slices(n, self.size))[1:].tolist(), start=1):
            part = np.empty((count, *rows.shape[1:]), rows.dtype)
            self._finish(self._begin(part, rank, "the end", receive=True), "the end")
            parts.append(part)
        return np.concatenate(parts)

    def _begin(self, rows: np.ndarray, rank: int, where: str, *, receive: bool = False) -> _Transfer:
        """Begin to send rows to a rank, or to receive its rows in their place."""
        import torch
        import torch.distributed as dist

        tensor = torch.from_numpy(rows)
        with self._naming(rank, where):
            work = dist.irecv(tensor, rank) if receive else dist.isend(tensor, rank)
        return _Transfer(rank, work, tensor)

    def _finish(self, transfer: _Transfer, where: str) -> None:
        with self._naming(transfer.rank, where):
            transfer.work.wait(timedelta(seconds=self.timeout))

    @contextlib.contextmanager
    def _naming(self, rank: int, where: str) -> Iterator[None]:
        """Say which rank was lost, and where, when what is done with it fails."""
        try:
            yield
        except RuntimeError as error:
            frozen = "imed out" in str(error) or "imeout" in str(error)
            how = f"did not answer within {self.timeout:g} s" if frozen else "closed its connection"
            raise self._failure(rank, f"{how} in {where}" if where else how) from None

    # ---- failures -------------------------------------------------------------------------------------

    @property
    def reports_errors(self) -> bool:
        """Whether this rank prints what went wrong: rank 0, or 1 when 0 is the lost one."""
        return self.rank == (1 if self.lost == 0 else 0)

    def _failure(self, rank: int, how: str) -> LostRank:
        """Return what to raise when ``rank`` seems lost: the first failure anybody noticed, if known in time.

        A rank that noticed a loss leaves, which its own neighbors then notice; the one that was lost first
        is the one to name.
        """
        failure = self._first_failure({"rank": rank, "how": how, "lost": True}, wait=rank != self.rank)
        self.lost = failure["rank"] if failure["lost"] else None
        if failure["lost"]:
            return LostRank(
                f"Rank {failure['rank']} was lost: it {failure['how']}; start the same command again to go "
                "on from the last checkpoint."
            )
        return LostRank(f"Rank {failure['rank']} failed: {failure['how']}")

    def _announce(self, error: Exception) -> Exception:
        """Tell the others why this rank stops, unless it stops because of them."""
        if isinstance(error, ClusterError) or self._store is None:
            return error
        failure = self._first_failure({"rank": self.rank, "how": _sentence(error), "lost": False}, wait=False)
        if failure["rank"] != self.rank:
            return self._failure(failure["rank"], failure["how"])
        return error if self.rank == 0 else LostRank(f"Rank {self.rank} failed: {_sentence(error)}")

    def _first_failure(self, mine: dict[str, Any], wait: bool) -> dict[str, Any]:
        try:
            deadline = time.monotonic() + (min(1.0, self.timeout) if wait else 0.0)
            while time.monotonic() < deadline and not self._store.check(["failed"]):
                time.sleep(0.02)
            return dict(json.loads(self._store.compare_set("failed", "", json.dumps(mine))))
        except RuntimeError:  # the meeting point lives on rank 0
            return {"rank": 0, "how": "closed the meeting point", "lost": True}

    def _leave(self, error: BaseException | None) -> None:
        """Part: rank 0 stays until the others have heard, because the meeting point is with it."""
        if self._store is None:
            return
        import torch.distributed as dist

        # ranks that wait for this one notice at once, while the meeting point still answers; for that the
        # connections must close, which the transfers that the error's frames remember keep open
        if error is not None:
            cause: BaseException | None = error
            while cause is not None:
                traceback.clear_frames(cause.__traceback__)
                cause = cause.__context__
            with contextlib.suppress(RuntimeError, ValueError):
                dist.destroy_process_group()
        with contextlib.suppress(RuntimeError):
            self._store.add("left", 1)
            deadline = time.monotonic() + (_GRACE if error is not None else self.timeout)
            absent = 1 if self.lost is not None else 0
            while self.rank == 0 and self._store.add("left", 0) < self.size - absent:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.01)
        if error is None:
            dist.destroy_process_group()
        self._store = None


class RankMixing:
    """Runs protocols on the hosted rows, remembering the cuts of the matrices it has met."""

    def __init__(self, cluster: Cluster, n: int, noise: NoiseSource) -> None:
        self.cluster, self.noise = cluster, noise
        self.owner = slices(n, cluster.size)
        self.agents = np.flatnonzero(self.owner == cluster.rank)
        self._cuts: OrderedDict[tuple[int, str], tuple[Any, MatrixPartition]] = OrderedDict()

    def __call__(self, protocol: Protocol, rows: ArrayLike, step: int) -> np.ndarray:
        """Return the hosted rows that `Protocol.apply` gives."""
        linear = as_linear(protocol)
        checked = _validate.rows(rows, len(self.agents), "the message of the hosted agents", finite=False)
        if not np.isfinite(checked).all():
            bad = int(self.agents[np.flatnonzero(~np.isfinite(checked).all(axis=1))[0]])
            raise InvalidInput(f"The message of agent {bad} holds NaN or infinity.")
        state = linear.entering(checked)
        previous = linear._remembered(state)
        for t in range(linear.rounds):
            cut = self._cut(linear.matrix(t), state.dtype)
            mixed = np.empty_like(state)
            with self.cluster.exchange(cut, state, f"step {step}, round {t}") as received:
                cut.multiply_inner(state, mixed)
            cut.multiply_border(state, received, mixed)
            after = linear.advance(t, mixed, previous, agents=self.agents, noise=self.noise, step=step)
            previous, state = linear.remember(t, mixed, state, previous), after
        return linear.leaving(state, checked.dtype)

    def _cut(self, matrix: sparse.csr_array, dtype: DTypeLike) -> MatrixPartition:
        key = (id(matrix), np.dtype(dtype).str)
        held, cut = self._cuts.get(key, (None, None))
        if cut is None or held is not matrix:
            cut = cut_matrix(matrix, self.owner, self.cluster.rank, dtype)
            self._cuts[key] = (matrix, cut)
            if len(self._cuts) > _CUTS_KEPT:
                self._cuts.popitem(last=False)
        return cut


def require_ranks(plan: RunnablePlan, ranks: int) -> None:
    """Refuse a plan that cannot be cut between so many ranks."""
    if plan.sequential:
        raise InvalidInput(
            f"{plan.name} passes one token from node to node, so ranks would only wait for each other; run "
            "it in one process."
        )
    if not plan.schedule(0).linear:
        raise InvalidInput(
            f"{plan.name} averages by {plan.schedule(0).name}, which is not given by matrices, so ranks "
            "cannot share it; run it in one process."
        )
    slices(plan.n, ranks)


def versions() -> str:
    """Return the versions on which the rows depend."""
    import scipy

    from sottovoce import __version__

    versions = f"sottovoce {__version__}, numpy {np.__version__}, scipy {scipy.__version__}"
    torch = sys.modules.get("torch")
    return versions if torch is None else f"{versions}, torch {torch.__version__}"


def _sentence(error: Exception) -> str:
    line = " ".join(str(error).split())
    return line if isinstance(error, (SottovoceError, OSError)) else f"{type(error).__name__}: {line}"
