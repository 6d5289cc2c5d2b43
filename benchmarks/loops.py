"""Training loops written for Opacus against the same loops moved to Sottovoce; processor time, JSON.

    python -m benchmarks.loops [--quick]

Both run in turns in one process on the same data and budget: the quick start (a small network, one site) and
a transformer text classifier that takes dicts. A whole call counts calibration (Opacus: PRV), checks and
steps; the steps alone are the middle of all passes but the first of each call.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from tests.estimators import opacus_loops as loops


def compared(ours: Callable, theirs: Callable, repeats: int, epochs: int = 6) -> dict:
    """Least seconds of whole calls and middle milliseconds of a pass, after calls that fill caches."""
    calls: dict[str, list[float]] = {"sottovoce": [], "opacus": []}
    passes: dict[str, list[float]] = {"sottovoce": [], "opacus": []}
    for turn in range(repeats + 1):
        for name, work in (("sottovoce", ours), ("opacus", theirs)):
            begin = time.process_time()
            work(epochs)
            if turn:
                calls[name].append(time.process_time() - begin)
                passes[name] += loops.SECONDS[1:]
    whole = {name: min(seconds) for name, seconds in calls.items()}
    steps = {name: 1000 * statistics.median(seconds) for name, seconds in passes.items()}
    return {
        "seconds_of_a_call": {name: round(s, 2) for name, s in whole.items()},
        "milliseconds_of_a_pass": {name: round(s, 1) for name, s in steps.items()},
        "sottovoce_over_opacus": round(whole["sottovoce"] / whole["opacus"], 2),
        "steps_alone_over_opacus": round(steps["sottovoce"] / steps["opacus"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    warnings.filterwarnings("ignore")
    repeats = 1 if quick else 5
    points, texts = (loops.blobs(3000, 0), loops.blobs(500, 1)), (loops.texts(2000, 0), loops.texts(200, 1))
    record = {
        "threads": torch.get_num_threads(),
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "quick_start": compared(
            lambda n: loops.with_sottovoce(*points, n), lambda n: loops.with_opacus(*points, n), repeats
        ),
        "text_classifier": compared(
            lambda n: loops.texts_with_sottovoce(*texts, n, 0),
            lambda n: loops.texts_with_opacus(*texts, n, 0),
            repeats,
        ),
    }
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
