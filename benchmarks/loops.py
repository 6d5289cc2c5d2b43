"""Training loops written for Opacus against the same loops moved to Sottovoce; processor time, JSON.

    python -m benchmarks.loops [--quick]

Both run in turns in one process on the same data and budget: the quick start (a small network, one site) and
a transformer text classifier that takes dicts. A whole call counts calibration (Opacus: PRV), checks and
steps; the steps alone are the difference between calls with many and with few passes.
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


def compared(ours: Callable, theirs: Callable, repeats: int, passes: tuple[int, int] = (2, 6)) -> dict:
    """Least seconds of whole calls with few and with many passes, after calls that fill caches."""
    seconds: dict[tuple[str, int], float] = {}
    for turn in range(repeats + 1):
        for name, work in (("sottovoce", ours), ("opacus", theirs)):
            for epochs in passes:
                begin = time.process_time()
                work(epochs)
                took = time.process_time() - begin
                seconds[name, epochs] = took if turn < 2 else min(took, seconds[name, epochs])
    few, many = passes
    steps = {name: seconds[name, many] - seconds[name, few] for name in ("sottovoce", "opacus")}
    return {
        "seconds": {f"{name}, {epochs} passes": round(s, 2) for (name, epochs), s in seconds.items()},
        "sottovoce_over_opacus": round(seconds["sottovoce", many] / seconds["opacus", many], 2),
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
