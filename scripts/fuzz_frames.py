"""Throw mutated frames at a running core, for as long as asked.

    python scripts/fuzz_frames.py --frames 100000000      mutations of real frames, one process per core
    python scripts/fuzz_frames.py --atheris 600           coverage-guided (package atheris), seconds

Every refused frame must leave the state's hash as it was; anything but a refusal or a taken frame is a bug.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

CASES = Path(__file__).parents[1] / "tests" / "peers" / "test_frames.py"
CHUNK = 500_000


def cases() -> Any:
    """Return the test module that holds the fuzzer."""
    spec = spec_from_file_location("fuzzed_frames", CASES)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def chunk(seed: int) -> tuple[int, int]:
    refused, taken = cases().fuzz(CHUNK, seed)
    return refused, taken


def guided(seconds: int) -> None:
    import atheris

    module = cases()
    from sottovoce.errors import FrameError, PeerError

    atheris.instrument_func(module.WIRE.decode.__func__)
    core, contact, _ = module.running_core()
    before = core.digest()

    def one(raw: bytes) -> None:
        nonlocal core, before
        for data in (raw, module.sealed(raw)):
            try:
                core.receive(1.0, contact, data)
            except FrameError:
                continue
            except PeerError:
                core = module.running_core()[0]
                before = core.digest()
        if core.digest() != before:
            core = module.running_core()[0]
            before = core.digest()

    atheris.Setup([sys.argv[0], f"-max_total_time={seconds}", "-max_len=4096"], one)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frames", type=int, default=100_000_000)
    parser.add_argument("--atheris", type=int, default=0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=10_000)
    given = parser.parse_args()
    if given.atheris:
        guided(given.atheris)
        return 0
    chunks = -(-given.frames // CHUNK)
    started, refused, taken = time.monotonic(), 0, 0
    with multiprocessing.get_context("spawn").Pool() as pool:
        for r, t in pool.imap_unordered(chunk, range(given.seed, given.seed + chunks)):
            refused, taken = refused + r, taken + t
            print(f"{refused + taken:,} frames", file=sys.stderr, flush=True)
    seconds = round(time.monotonic() - started, 1)
    print(json.dumps({"frames": refused + taken, "refused": refused, "taken": taken, "seconds": seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
