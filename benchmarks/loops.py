"""Training loops written for Opacus against the same loops moved to Sottovoce; processor time, JSON.

    python -m benchmarks.loops [--quick]

Both run in turns in one process on the same data and budget: the quick start (a small network, one site) and
a transformer text classifier that takes dicts. A whole call counts: calibration, checks, every step. Opacus
calibrates by its default accountant (PRV).
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable

import torch
from tests.estimators import opacus_loops as loops


def compared(ours: Callable, theirs: Callable, repeats: int) -> dict[str, object]:
    """Seconds of both, the least of all repetitions after one that fills caches, and their ratio."""
    seconds: dict[str, list[float]] = {"sottovoce": [], "opacus": []}
    for turn in range(repeats + 1):
        for name, work in (("sottovoce", ours), ("opacus", theirs)):
            begin = time.process_time()
            work()
            if turn:
                seconds[name].append(time.process_time() - begin)
    least = {name: min(values) for name, values in seconds.items()}
    return {
        "seconds": {name: round(value, 2) for name, value in least.items()},
        "sottovoce_over_opacus": round(least["sottovoce"] / least["opacus"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    warnings.filterwarnings("ignore")
    repeats = 1 if quick else 5
    points = (loops.blobs(3000, 0), loops.blobs(1000, 1), 5)
    texts = (loops.texts(2000, 0), loops.texts(500, 1), 4, 0)
    record = {
        "threads": torch.get_num_threads(),
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "quick_start": compared(
            lambda: loops.with_sottovoce(*points), lambda: loops.with_opacus(*points), repeats
        ),
        "text_classifier": compared(
            lambda: loops.texts_with_sottovoce(*texts), lambda: loops.texts_with_opacus(*texts), repeats
        ),
    }
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
