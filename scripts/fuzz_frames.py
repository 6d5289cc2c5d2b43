"""Throw mutated frames at a running core, for as long as asked.

    python scripts/fuzz_frames.py --frames 100000000      mutations of real frames, one process per core
    python scripts/fuzz_frames.py --seconds 3600 --out docs/results/fuzz.json     one hour, whatever it makes
    python scripts/fuzz_frames.py --atheris 600           coverage-guided (package atheris), seconds

Every refused frame must leave the state's hash as it was; anything but a refusal or a taken frame is a bug.
With --out the record is written after every chunk, so that a run that is ended leaves what it has seen; a
chunk that finds a bug ends the run with its seed in the sentence.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from sottovoce._files import write_whole

CASES = Path(__file__).parents[1] / "tests" / "peers" / "test_frames.py"
CHUNK = 500_000
SHORT = 50_000  # with --seconds the clock is asked between chunks


def cases() -> Any:
    """Return the test module that holds the fuzzer."""
    spec = spec_from_file_location("fuzzed_frames", CASES)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def chunk(task: tuple[int, int]) -> tuple[int, int]:
    """Throw ``count`` frames of one seed; return how many were refused and how many taken."""
    seed, count = task
    try:
        refused, taken = cases().fuzz(count, seed)
    except Exception as error:
        raise RuntimeError(f"seed {seed} with {count} frames found a bug: {error!r}") from error
    return refused, taken


def tasks(given: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """Yield seeds until the frames are thrown or the time is over."""
    if not given.seconds:
        for seed in range(given.seed, given.seed + -(-given.frames // CHUNK)):
            yield seed, CHUNK
        return
    seed, until = given.seed, time.monotonic() + given.seconds
    while time.monotonic() < until:
        yield seed, SHORT
        seed += 1


def thrown(given: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """Yield the outcome of every chunk as it is done."""
    if given.processes == 1:
        yield from map(chunk, tasks(given))
        return
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        if given.seconds:  # a pool would take all tasks at once, so the clock is asked round by round
            wanted = tasks(given)
            while some := list(itertools.islice(wanted, given.processes)):
                yield from pool.imap_unordered(chunk, some)
        else:
            yield from pool.imap_unordered(chunk, tasks(given))


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
    parser.add_argument("--seconds", type=float, default=0.0, help="go on for so long instead")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=10_000)
    parser.add_argument("--out", type=Path, help="write the record here, after every chunk")
    given = parser.parse_args()
    if given.atheris:
        guided(given.atheris)
        return 0
    started, worked, record = time.monotonic(), time.process_time(), {}
    chunks = refused = taken = 0
    for r, t in thrown(given):
        chunks, refused, taken = chunks + 1, refused + r, taken + t
        record = {
            "command": f"python scripts/fuzz_frames.py {' '.join(sys.argv[1:])}",
            "frames": refused + taken,
            "refused": refused,
            "taken": taken,
            "bugs": 0,
            "seconds": round(time.monotonic() - started, 1),
            "seeds": [given.seed, given.seed + chunks - 1],
        }
        if given.processes == 1:
            record["processor_seconds"] = round(time.process_time() - worked, 1)
        if given.out:
            write_whole(given.out, json.dumps(record, indent=1) + "\n")
        print(f"{refused + taken:,} frames", file=sys.stderr, flush=True)
    print(json.dumps(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
