"""How many threads a process takes that shares its machine with others.

OpenMP, BLAS and numba each keep a pool of as many threads as there are cores, unless told otherwise. Two
processes that both do so spend their time waiting for each other: numba's pool alone made two ranks three
times slower. torchrun limits OpenMP only; here the other pools follow.
"""

from __future__ import annotations

import os
import sys

from sottovoce._validate import count

__all__ = ["limit_threads", "parse_threads", "thread_variables"]

_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def thread_variables(threads: int) -> dict[str, str]:
    """Return the environment variables with which a new process keeps to ``threads`` threads.

    Examples
    --------
    >>> thread_variables(1)["NUMBA_NUM_THREADS"]
    '1'
    """
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
