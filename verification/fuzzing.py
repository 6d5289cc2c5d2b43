"""Throw mutated frames at a running core, or mutated messages at a running peer, for as long as asked.

    python -m verification.fuzzing --frames 100000000      mutations of real frames, one process per core
    python -m verification.fuzzing --seconds 3600 --out docs/results/verification.json     one hour
    python -m verification.fuzzing --atheris 600           coverage-guided (package atheris), seconds
    python -m verification.fuzzing --connection --seconds 3600     by a member over TLS, at a real process

Every refused frame must leave the state's hash as it was; anything but a refusal or a taken frame is a bug.
With --out the record is written after every chunk, so that a run that is ended leaves what it has seen; a
chunk that finds a bug ends the run with its seed in the sentence.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import multiprocessing
import os
import random
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from sottovoce.errors import FrameError, PeerError
from sottovoce.peers.wire_format import (
    HEADER,
    NOTHING,
    SIGNED,
    TRAILER,
    UNSIGNED,
    FrameCodec,
    LedgerHead,
    OpenSigner,
    Position,
    Receipt,
    Receipts,
)
from verification import store
from verification.simulator import Faults, World

CHUNK = 500_000
SHORT = 50_000  # with --seconds the clock is read between chunks


def sealed(body):
    """Return the frame with its digest, signed where its kind is, as the sender would."""
    digest, signature = hashlib.sha256(body).digest(), UNSIGNED
    if len(body) >= HEADER.size and body[5] in SIGNED:
        sender, number = struct.unpack_from("<IQ", body, 8)
        signed_bytes = (
            b"sottovoce frame\n" + body[36:68] + struct.pack("<BIQ", body[5], sender, number) + digest
        )
        signature = OpenSigner(sender).sign(signed_bytes)
    return body + digest + signature


def running_core():
    """A core in the middle of a run, and frames its neighbors would send."""
    world = World(1, Faults.none())
    world.run(most_events=100)
    slot, core = next((s, c) for s, c in world.cores.items() if c is not None and not c.finished)
    frames = [raw for raw in world.on_wire.values() if raw[8] != slot]
    contact = core.program.contacts[0]
    frames.append(core.codec.position(Position(0, -1, NOTHING, UNSIGNED, True), sender=contact))
    codec = core.codec
    theirs = codec.head(LedgerHead(1, 1, NOTHING, 1, 0, b"h" * 32, NOTHING), sender=contact)
    receipts = Receipts(1, 1, NOTHING, (Receipt(),) * codec.members, theirs)
    frames += codec.news([theirs], sender=contact)
    frames += codec.news([codec.receipts(receipts, sender=contact), theirs], sender=contact)
    frames.append(codec.summary({}, sender=contact, answer=True))
    return core, contact, frames


def mutate(rng, raw):
    """Flip, cut, stretch, or plant an extreme integer; half the time the digest is made right again.

    With a right digest a changed number is a valid frame of an authenticated neighbor, so then mostly the
    header is changed: what is under test is what must be refused.
    """
    draw = rng.random

    def pick(n):
        return int(draw() * n)

    resealed = rng.random() < 0.5
    body, tail = bytearray(raw), b""
    if resealed and rng.random() < 0.998:
        body, tail = body[:72], bytes(body[72:])
    for _ in range(1 + pick(3)):
        kind = pick(6)
        if kind == 0 and body:
            body[pick(len(body))] ^= 1 << pick(8)
        elif kind == 1:
            del body[pick(len(body) + 1) :]
        elif kind == 2:
            body += rng.randbytes(pick(40))
        elif kind == 3 and len(body) > 16:
            at = pick(len(body) - 8)
            extreme = (0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, 10**9)[pick(7)]
            body[at : at + 8] = struct.pack("<Q", extreme)
        elif kind == 4 and len(body) > 8:
            at = pick(len(body) - 4)
            body[at : at + 4] = rng.randbytes(4)
        elif body:
            at = pick(len(body))
            body[at] = (0, 255, 127, 128)[pick(4)]
    out = bytes(body) + tail
    return sealed(out[:-TRAILER]) if resealed and len(out) > TRAILER else out


def fuzz(count, seed):
    """Feed mutated frames to a running core; return (refused, taken). Anything but a refusal is checked."""
    rng = random.Random(seed)
    core, contact, frames = running_core()
    before, refused, taken = core.digest(), 0, 0
    for i in range(count):
        raw = mutate(rng, frames[rng.randrange(len(frames))])
        try:
            core.receive(1.0, contact, raw)
            taken += 1
        except FrameError:
            refused += 1
            if i % 97 == 0:
                assert core.digest() == before, "a refused frame changed the state"
            continue
        except PeerError:
            taken += 1  # a well-formed frame that says: you were rolled back
        if core.failed is not None or core.digest() != before:
            core, contact, frames = running_core()
    assert core.digest() == before
    return refused, taken


def chunk(task: tuple[int, int]) -> tuple[int, int]:
    """Throw ``count`` frames of one seed; return how many were refused and how many taken."""
    seed, count = task
    try:
        refused, taken = fuzz(count, seed)
    except Exception as error:
        raise RuntimeError(f"seed {seed} with {count} frames found a bug: {error!r}") from error
    return refused, taken


def tasks(arguments: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """Yield seeds until the frames are thrown or the time is over."""
    if not arguments.seconds:
        for seed in range(arguments.seed, arguments.seed + -(-arguments.frames // CHUNK)):
            yield seed, CHUNK
        return
    seed, until = arguments.seed, time.monotonic() + arguments.seconds
    while time.monotonic() < until:
        yield seed, SHORT
        seed += 1


def thrown(arguments: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """Yield the outcome of every chunk as it is done."""
    if arguments.processes == 1:
        yield from map(chunk, tasks(arguments))
        return
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        if arguments.seconds:  # a pool would take all tasks at once, so the clock is asked round by round
            wanted = tasks(arguments)
            while some := list(itertools.islice(wanted, arguments.processes)):
                yield from pool.imap_unordered(chunk, some)
        else:
            yield from pool.imap_unordered(chunk, tasks(arguments))


def guided(seconds: int) -> None:
    import atheris

    atheris.instrument_func(FrameCodec.decode)
    core, contact, _ = running_core()
    before = core.digest()

    def one(raw: bytes) -> None:
        nonlocal core, before
        for data in (raw, sealed(raw)):
            try:
                core.receive(1.0, contact, data)
            except FrameError:
                continue
            except PeerError:
                core = running_core()[0]
                before = core.digest()
        if core.digest() != before:
            core = running_core()[0]
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
    parser.add_argument("--connection", action="store_true", help="over TLS, at a process")
    parser.add_argument("--rate", type=float, default=1000.0, help="messages a second over TLS")
    parser.add_argument("--target", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.connection or arguments.target:
        from verification import hostile_member

        if arguments.target:
            hostile_member.target(arguments.target)
            return 0
        record = hostile_member.attack(arguments.seconds or 60.0, arguments.rate, arguments.seed)
        command = f"python -m verification.fuzzing {' '.join(sys.argv[1:])}"
        if arguments.out:
            store(arguments.out, "fuzzing_connection", {"command": command, **record})
        print(json.dumps(record))
        return 0
    if arguments.atheris:
        guided(arguments.atheris)
        return 0
    started, worked, record = time.monotonic(), time.process_time(), {}
    chunks = refused = taken = 0
    for r, t in thrown(arguments):
        chunks, refused, taken = chunks + 1, refused + r, taken + t
        record = {
            "command": f"python -m verification.fuzzing {' '.join(sys.argv[1:])}",
            "frames": refused + taken,
            "refused": refused,
            "taken": taken,
            "bugs": 0,
            "seconds": round(time.monotonic() - started, 1),
            "seeds": [arguments.seed, arguments.seed + chunks - 1],
        }
        if arguments.processes == 1:
            record["processor_seconds"] = round(time.process_time() - worked, 1)
        if arguments.out:
            store(arguments.out, "fuzzing", record)
        print(f"{refused + taken:,} frames", file=sys.stderr, flush=True)
    print(json.dumps(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
