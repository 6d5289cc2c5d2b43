"""What experiments share: the mean of trials, result files that hold their trials, where they were made."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce._io import atomic_write
from sottovoce.runners.base import Result, provenance_now
from sottovoce.runners.sweep import Trial, write_trial
from sottovoce_papers import drawing

MACHINE = ("processor", "instructions", "threads", "torch")  # what `made_here` says of the computer
SIMULATED = "simulation: reproducible, not protective"  # the noise, in the provenance of results and trials


# How an experiment has its trials run: the function of one trial and the trials in, their values out.
Spread = Callable[[Callable[..., Any], Sequence[Trial]], list[Any]]


def in_turn(function: Callable[..., Any], trials: Sequence[Trial]) -> list[Any]:
    """Run the trials of an experiment one after the other in this process, and write no files."""
    return [function(**trial.options) for trial in trials]


def run_cells(
    spread: Spread, function: Callable[..., Any], cells: Sequence[Sequence[Trial]]
) -> list[list[Any]]:
    """Run the trials of all cells of a table as one list, and return their values cell by cell."""
    values = iter(spread(function, [trial for cell in cells for trial in cell]))
    return [[next(values) for _ in cell] for cell in cells]


def accuracy_of(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mean and standard deviation of the accuracy, and how many trials they are of."""
    values = np.array([record["accuracy"] for record in records])
    spread = round(float(values.std(ddof=1)), 2) if len(values) > 1 else None
    return {"accuracy": round(float(values.mean()), 2), "std": spread, "trials": len(values)}


def result(
    name: str, config: Any, *, metrics: Mapping[str, Any] | None = None,
    history: Sequence[Mapping[str, Any]] = (), outputs: Mapping[str, Any] | None = None, **provenance: Any,
) -> Result:  # fmt: skip
    """Return the result of an experiment; ``config`` may be its dataclass. `registry` adds its seconds."""
    options = asdict(config) if is_dataclass(config) and not isinstance(config, type) else dict(config)
    came = made_here(**provenance)
    return Result(name, options, outputs or {}, metrics or {}, history, provenance=came)


def made_here(started: float | None = None, **more: Any) -> dict[str, Any]:
    """Return the provenance of a record: versions, seconds since ``started``, processor and threads.

    The last bit of a sum depends on the processor and the threads; where steps follow the sign of a gradient,
    so does the accuracy.
    """
    from threadpoolctl import threadpool_info

    threads = max((pool["num_threads"] for pool in threadpool_info()), default=1)
    machine: dict[str, Any] = {"processor": _processor(), "threads": threads}
    if torch := sys.modules.get("torch"):
        instructions = torch.backends.cpu.get_cpu_capability()
        machine |= {"torch": str(torch.__version__), "instructions": instructions}
    return provenance_now(time.perf_counter() if started is None else started, **machine, **more)


@cache
def _processor() -> str:
    """Return the processor's name as the operating system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def trial_costs(cells: Iterable[Iterable[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return how many trials the cells have, and their seconds, for the provenance of a result."""
    seconds = [trial["provenance"]["seconds"] for trials in cells for trial in trials]
    return {"trials": len(seconds), "trial_seconds": round(sum(seconds), 1)}


def fitted_power(n: Sequence[float], errors: Sequence[float]) -> float:
    """Return the power of ``n`` with which errors fall, by least squares of logarithms."""
    return float(np.polyfit(np.log(n), np.log(errors), 1)[0])


def curve_of(runs: Any) -> dict[str, np.ndarray]:
    """Return the median, the least and the most of several runs at every place along them."""
    along = np.asarray(runs)
    return {"median": np.median(along, axis=0), "least": along.min(axis=0), "most": along.max(axis=0)}


def draw_curve(
    panel: Any, x: Any, curve: Mapping[str, Any], k: int, label: str, *, scale: float = 1.0,
    floor: float = -np.inf, middle: str = "median",
) -> None:  # fmt: skip
    """Draw a curve of `curve_of` with bars from the least to the most; values below ``floor`` lie on it."""
    y, least, most = (np.maximum(scale * np.array(curve[key]), floor) for key in (middle, "least", "most"))
    drawing.error_bars(panel, x, y, [np.maximum(y - least, 0), np.maximum(most - y, 0)], k, label)


def commit() -> str | None:
    """Return the commit of the checkout that this package runs from; None for an installed package."""
    import subprocess

    here = Path(__file__).parent
    if not (here.parents[1] / ".git").exists():
        return None
    answer = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True)
    return answer.stdout.strip() or None


def write_result(path: Path, result: Mapping[str, Any], trials: Iterable[Mapping[str, Any]] = ()) -> Path:
    """Write a result with its trials, one line each."""
    rows = ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in trials)
    text = json.dumps({key: value for key, value in result.items() if key != "trials"}, indent=1)
    return atomic_write(path, f'{text[:-2]},\n "trials": [\n{rows}\n ]\n}}\n' if rows else f"{text}\n")


def unpack(results: Path, folder: Path) -> list[Path]:
    """Write every trial of the stored results as a file of its own, where experiments look for it.

    A file that is there already is left alone.
    """
    written = []
    for path in sorted(results.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        for row in result.get("trials", ()) if isinstance(result, dict) else ():
            trial = dict(row)
            target = folder / f"{trial.pop('key')}.json"
            if not target.exists():
                folder.mkdir(parents=True, exist_ok=True)
                write_trial(target, trial)
                written.append(target)
    return written


def differences(ours: Any, theirs: Any, place: str = "") -> list[str]:
    """Return the places where two results differ by more than rounding; times are not compared."""
    if any(word in place.rpartition(".")[2] for word in ("seconds", "hours")):
        return []
    if isinstance(ours, dict) and isinstance(theirs, dict) and set(ours) == set(theirs):
        pairs: Iterable[tuple[Any, Any, Any]] = ((key, ours[key], theirs[key]) for key in ours)
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = ((k, *pair) for k, pair in enumerate(zip(ours, theirs, strict=True)))
    elif isinstance(ours, float) and isinstance(theirs, (int, float)):
        return [] if np.isclose(ours, theirs, rtol=1e-9, atol=0) else [place]
    else:
        return [] if ours == theirs else [place]
    return [
        name for key, mine, other in pairs for name in differences(mine, other, f"{place}.{key}".lstrip("."))
    ]
