"""Start the ranks of a cluster on this machine, and limit the threads of a process that shares its machine.

The ranks meet on the loopback interface. When one of them ends badly the others get a short time to say why,
then they are stopped too: no rank is left waiting. For several machines, torchrun does the same.

OpenMP, BLAS and numba each keep a pool of as many threads as there are cores, unless told otherwise. Two
processes that both do so spend their time waiting for each other: numba's pool alone made two ranks three
times slower. torchrun limits OpenMP only; here the other pools follow.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from sottovoce._validate import count
from sottovoce.errors import LostRank

_GRACE = 30.0  # seconds in which the others end by themselves after a bad end
_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def launch(
    command: Sequence[str],
    ranks: int,
    *,
    threads: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run ``command`` once per rank and return when all have ended well; else raise `LostRank`.

    A rank has as many threads as OMP_NUM_THREADS says, by default an even share of the cores. After one has
    ended badly the others have half a minute to end by themselves.
    """
    count(ranks, "ranks")
    share = max(1, (os.cpu_count() or 1) // ranks)
    inherited = {}
    if threads is None:
        inherited = {k: v for k, v in os.environ.items() if k.endswith("_NUM_THREADS")}
    common = {
        **os.environ,
        **thread_variables(threads or parse_threads(inherited.get("OMP_NUM_THREADS")) or share),
        **inherited,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", _loopback()),
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),  # sentences, not stacks
        **(environment or {}),
    }
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            own = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            started.append(subprocess.Popen(list(command), env=own, preexec_fn=_die_with_parent))
        _watch(started)
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()


class Ended(LostRank):
    """The ranks ended badly; ``explained`` says whether one of them has already printed why."""

    def __init__(self, sentence: str, explained: bool) -> None:
        super().__init__(sentence)
        self.explained = explained


def _watch(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until all have ended, or for a while after the first bad end."""
    deadline = None
    while any(process.poll() is None for process in started):
        bad = [process for process in started if process.poll() not in (None, 0)]
        if bad and deadline is None:
            deadline = time.monotonic() + _GRACE
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(0.02)
    codes = [process.poll() for process in started]
    killed = [rank for rank, code in enumerate(codes) if code is not None and code < 0]
    if killed:
        name = signal.Signals(-(codes[killed[0]] or 0)).name
        sentence = f"Rank {killed[0]} was killed ({name}); start the same command again to go on "
        raise Ended(sentence + "from the last checkpoint.", explained=1 in codes)
    failed = [rank for rank, code in enumerate(codes) if code != 0]
    if failed:
        sentence = f"Rank {failed[0]} ended with exit code {codes[failed[0]]}; its message is above."
        raise Ended(sentence, explained=1 in codes)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _loopback() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), names[0])


def _die_with_parent() -> None:
    """Ask Linux to end this process when the one that started it ends; elsewhere do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


# ---- threads ------------------------------------------------------------------------------------------


def thread_variables(threads: int) -> dict[str, str]:
    """Return the environment variables with which a new process keeps to ``threads`` threads."""
    count(threads, "threads")
    return dict.fromkeys(_POOLS, str(threads))


def parse_threads(word: str | None) -> int | None:
    """Return the number that a variable such as OMP_NUM_THREADS holds ("2", or "2,1" for nested regions)."""
    first = (word or "").partition(",")[0].strip()
    return int(first) if first.isdigit() and int(first) > 0 else None


def limit_threads(threads: int) -> None:
    """Make this process keep to ``threads`` threads; a pool whose variable is set keeps its own size.

    Pools that are not loaded yet are limited through the environment, loaded ones directly. numba remembers
    the limit per thread: call this in the thread that computes.
    """
    wanted = {k: v for k, v in thread_variables(threads).items() if k not in os.environ}
    loaded = {"OMP_NUM_THREADS": "openmp", "OPENBLAS_NUM_THREADS": "blas", "MKL_NUM_THREADS": "blas"}
    for kind in {loaded[name] for name in wanted if name in loaded}:
        from threadpoolctl import threadpool_limits

        threadpool_limits(threads, user_api=kind)
    if "NUMBA_NUM_THREADS" in wanted and "numba" in sys.modules:
        import numba

        # numba reads its variable again when it compiles, and fails if it has changed under a running pool
        numba.set_num_threads(min(threads, numba.get_num_threads()))
        del wanted["NUMBA_NUM_THREADS"]
    os.environ.update(wanted)
