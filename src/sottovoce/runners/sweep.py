"""Many independent trials: spread over workers, one result each, resumable, every seed derived from its name.

Workers come from joblib: ``loky`` (processes of this machine), ``ray`` or ``dask`` (a cluster that is already
running, or a local one). A result is written under its final name when its trial ends and not before, so an
interrupted sweep goes on where it stopped and repeats nothing that was finished.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sottovoce._io import atomic_write, digest, to_jsonable
from sottovoce._validate import count
from sottovoce.errors import ClusterError, ConfigError, InvalidInput, MissingDependency, SottovoceError
from sottovoce.runners.base import Result
from sottovoce.runners.launch import limit_threads


@dataclass(frozen=True)
class Trial:
    """One independent job: a name that is unique in its sweep, and the options of the function."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


def read_trial(path: Path | None, **made_with: object) -> dict[str, Any] | None:
    """Return the result of a trial at ``path``, None if there is none; refuse one with other settings."""
    if path is None or not path.is_file():
        return None
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:
        result = None
    if not isinstance(result, dict):
        raise ConfigError(f"{path} is not a result; remove it to run the trial again.")
    other = next((key for key, value in made_with.items() if result.get(key) != to_jsonable(value)), None)
    if other is not None:
        raise ConfigError(
            f"{path.name} was made with a different value of {other}; remove it or name another folder."
        )
    return result


def write_trial(path: Path | None, result: Mapping[str, Any]) -> None:
    """Write the result of a finished trial, whole or not at all; do nothing without a path."""
    if path is not None:
        atomic_write(path, json.dumps(to_jsonable(result), indent=1) + "\n")


def seed_of(seed: int, name: str) -> int:
    """Return the seed of the trial called ``name`` in a sweep seeded with ``seed``.

    It depends on the two and nothing else: adding, leaving out or reordering trials changes no other trial.
    """
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1


def grid(**choices: Sequence[Any]) -> list[Trial]:
    """Return one trial per combination, named after it.

    Examples
    --------
    >>> [trial.name for trial in grid(n=[8, 16], repeat=range(2))]
    ['n=8 repeat=0', 'n=8 repeat=1', 'n=16 repeat=0', 'n=16 repeat=1']
    """
    chosen = itertools.product(*choices.values())
    combinations = (dict(zip(choices, values, strict=True)) for values in chosen)
    return [Trial(" ".join(f"{k}={v}" for k, v in options.items()), options) for options in combinations]


def repeated(trials: Sequence[Trial], times: int, fixed: Mapping[str, Any] | None = None) -> list[Trial]:
    """Return every trial ``times`` times under different names, with the options ``fixed`` added."""
    count(times, "repeats")
    return [
        Trial(f"{trial.name} repeat={k}".strip(), {**(fixed or {}), **trial.options})
        for trial in trials
        for k in range(times)
    ]


def sweep(
    function: Callable[..., Any],
    trials: Iterable[Trial],
    folder: str | Path,
    *,
    seed: int | None = 0,
    jobs: int = 1,
    backend: str = "loky",
    progress: Callable[[int], None] | None = None,
) -> list[dict[str, Any]]:
    """Run ``function(seed=..., **options)`` for every trial and return the results, in the trials' order.

    The function gives a `Result` or plain values, and is importable, so that workers find it. The folder has
    one JSON file per finished trial; those already there are read, not run. Every trial gets
    ``seed_of(seed, its name)``; None gives no seed to trials that bring their own randomness. ``ray`` joins
    the cluster that RAY_ADDRESS names, ``dask`` the scheduler that DASK_SCHEDULER_ADDRESS names; without them
    both start workers on this machine. ``progress`` is called with the number of finished trials.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> results = sweep(lambda *, seed, n: {"square": n**2}, grid(n=[2, 3]), folder)
    >>> [result["value"]["square"] for result in results], len(list(Path(folder).glob("*.json")))
    ([4, 9], 2)
    """
    count(jobs, "jobs")
    if backend not in ("loky", "ray", "dask"):
        raise InvalidInput(f"backend must be loky, ray or dask, got {backend!r}.")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    work: dict[str, _Job] = {}
    for trial in trials:
        name = trial.name
        if name in work:
            raise InvalidInput(f"Two trials are called {name!r}; their seeds and results would be the same.")
        if seed is not None and "seed" in trial.options:
            raise InvalidInput(f"Trial {name!r} sets a seed; seeds are derived, use repeat=... instead.")
        own = None if seed is None else seed_of(seed, name)
        # absolute: workers that were started before may stand in another folder
        work[name] = _Job(function, name, dict(trial.options), own, str(place.absolute()))
    left = [job for job in work.values() if job.finished() is None]
    done = len(work) - len(left)
    report = progress or (lambda number: None)
    report(done)
    failed = []
    for name, error in _outcomes(left, jobs, backend, place):
        if error is None:
            done += 1
            report(done)
        else:
            failed.append(f"{name}: {error}")
    if failed:
        raise ClusterError(
            f"{len(failed)} of {len(work)} trials failed, first {failed[0]} (finished ones are in {place})"
        )
    return [job.finished() or {} for job in work.values()]


_Outcome = tuple[str, str | None, dict[str, Any] | None]  # name, error sentence, result


@dataclass(frozen=True)
class _Job:
    """A trial with everything a worker needs."""

    function: Callable[..., Any]
    name: str
    options: dict[str, Any]
    seed: int | None
    folder: str

    @property
    def path(self) -> Path:
        function = [self.function.__module__, self.function.__qualname__]
        description = [*function, self.name, to_jsonable(self.options), self.seed]
        readable = "".join(c if c.isalnum() or c in "=.-" else "_" for c in self.name)[:80]
        return Path(self.folder) / f"{readable}-{digest(description)[:12]}.json"

    def finished(self) -> dict[str, Any] | None:
        return read_trial(self.path)

    def __call__(self) -> _Outcome:
        """Run, write the result, and return (name, error sentence, result)."""
        started = time.perf_counter()
        try:
            seeded = {} if self.seed is None else {"seed": self.seed}
            value = self.function(**seeded, **self.options)
        except Exception as error:
            line = " ".join(str(error).split())
            kind = "" if isinstance(error, (SottovoceError, OSError)) else f"{type(error).__name__}: "
            return self.name, kind + line, None
        from sottovoce import __version__

        result = {
            "trial": self.name,
            "version": __version__,
            "options": to_jsonable(self.options),
            "seed": self.seed,
            "value": value.to_dict() if isinstance(value, Result) else to_jsonable(value),
            "seconds": round(time.perf_counter() - started, 3),
        }
        write_trial(self.path, result)
        return self.name, None, result


def _outcomes(
    jobs: Sequence[_Job], workers: int, backend: str, place: Path
) -> Iterator[tuple[str, str | None]]:
    """Run the jobs and yield (name, error) as they end."""
    paths = {job.name: job.path for job in jobs}
    try:
        for name, error, result in _results(jobs, workers, backend):
            if result is not None and not paths[name].exists():  # of a worker that does not see the folder
                write_trial(paths[name], result)
            yield name, error
    except SottovoceError:
        raise
    except Exception as error:
        finished = sum(job.finished() is not None for job in jobs)
        raise ClusterError(
            f"A {backend} worker died, or none was reached ({type(error).__name__}); {finished} of "
            f"{len(jobs)} trials ended before and are kept in {place}: start the same command again to run "
            "the rest."
        ) from None


def _results(jobs: Sequence[_Job], workers: int, backend: str) -> Iterator[_Outcome]:
    if not jobs or (workers == 1 and backend == "loky"):
        yield from (job() for job in jobs)
        return
    import joblib

    with _backend(backend, workers) as return_as:
        parallel = joblib.Parallel(return_as=return_as, batch_size=1, pre_dispatch="2*n_jobs")
        yield from parallel(joblib.delayed(_run)(job) for job in jobs)


def _run(job: _Job) -> _Outcome:
    """Run a job in a worker; there are as many workers as cores, so each keeps to one thread."""
    limit_threads(1)
    outcome = job()
    if not gc.get_freeze_count():  # workers collect garbage every second: not among the imported modules
        gc.freeze()
    return outcome


@contextlib.contextmanager
def _backend(backend: str, workers: int) -> Iterator[str]:
    """Choose where joblib's workers come from; yields how its results can be read."""
    import joblib

    if backend == "loky":
        with joblib.parallel_config(backend="loky", n_jobs=workers, inner_max_num_threads=1):
            yield "generator_unordered"
    elif backend == "dask":
        distributed = _module("distributed", "dask")
        address = os.environ.get("DASK_SCHEDULER_ADDRESS")
        local = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
        with (
            distributed.Client(address, **({} if address else local)) as client,
            joblib.parallel_config(backend="dask", n_jobs=workers, client=client),
        ):
            yield "generator_unordered"
    else:
        ray, helper = _module("ray", "ray"), _module("ray.util.joblib", "ray")
        if not ray.is_initialized():
            # what Ray will do by itself: leave the list of graphics cards as it is, and not warn of it
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
            where = os.environ.get("RAY_ADDRESS")
            cores = {} if where else {"num_cpus": workers}
            ray.init(
                address=where, include_dashboard=False, log_to_driver=False, logging_level="error", **cores
            )
        helper.register_ray()
        try:
            with joblib.parallel_config(backend="ray", n_jobs=workers):
                yield "list"
        finally:
            ray.shutdown()


def _module(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingDependency(
            f"The {extra} backend needs {extra}; install it with `pip install 'sottovoce[{extra}]'`."
        ) from None
