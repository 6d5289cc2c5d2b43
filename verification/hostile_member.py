"""A member that takes part in a run and throws mutated messages at a neighbor, over its own TLS connection.

`python -m verification.fuzzing --connection --seconds 3600` runs it: three members on a triangle, of whom
the first is under test, the second is an ordinary peer, and the third is this one. The run must go on at both
others, with a process that lives, a memory that does not grow, a state that no refused frame changes, and one
line of log for each reason in each interval.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.errors import FrameError, PeerError
from sottovoce.peers import transport
from sottovoce.peers.connection import HEAD, call, client_context, read_message, tls_handshake, write_message
from sottovoce.peers.identity import make_identity, read_identity
from sottovoce.peers.member_data import Records
from sottovoce.peers.runtime import Peer, PeerConfig
from sottovoce.peers.wire_format import KINDS, NEWS, ROW, FrameCodec
from verification import signed_agreement
from verification.fuzzing import mutate

CONTROL_PER_SECOND = 10.0  # of mutated ones: the true ones of this member have to fit beside them
REASONS = 6  # for which the transport refuses what a member sends; each is logged once in an interval
CHECK_EVERY = 200  # frames after which a refusal is compared with the state before


class Watched(Peer):
    """A peer that ends its process when a refused frame has changed its state."""

    frames = 0

    def _deliver(self, sender: int, raw: bytes) -> None:
        self.frames += 1
        before = self.core.digest() if self.frames % CHECK_EVERY == 0 else ""
        try:
            super()._deliver(sender, raw)
        except FrameError:
            if before and self.core.digest() != before:
                print(f"a refused frame changed the state: {bytes(raw[:2000]).hex()}", file=sys.stderr)
                os._exit(99)
            raise


class Hostile(Peer):
    """A member whose frames are followed by others that no honest member sends."""

    def __init__(self, config: PeerConfig, target: int, rate: float, seed: int) -> None:
        super().__init__(config)
        self.target, self.rate, self.rng = target, rate, random.Random(seed)
        self.thrown: Counter[str] = Counter()
        self.true: dict[int, list[bytes]] = {}  # frames of this member by kind
        self._control = transport.RateLimit(CONTROL_PER_SECOND, CONTROL_PER_SECOND)

    def _send(self, out: list[tuple[int, bytes]]) -> None:
        super()._send(out)
        for _, raw in out:
            frames = self.true.setdefault(FrameCodec.kind_of(raw), [])
            frames.append(raw)
            del frames[:-64]

    def message(self) -> tuple[str, bytes]:
        """Return a message, and what is wrong with it."""
        rng, largest = self.rng, self.agreed_run.codec.largest
        frames = self.true[rng.choice(list(self.true))]
        way = rng.randrange(5)
        if way == 0:
            return "replayed", rng.choice(frames)
        if way == 1:
            return "cut", rng.choice(frames)[: rng.randrange(1, 200)]
        if way == 2:
            return "random", rng.randbytes(
                rng.choice((1, 2, 3, 4, 5, 6, 71, 72, 73, 168, largest - 1, largest))
            )
        if way == 3:
            raw = bytearray(rng.choice(frames))
            raw[5] = rng.randrange(256)
            return "another kind", bytes(raw)
        return "mutated", mutate(rng, rng.choice(frames))[:largest] or b"\0"

    async def attack(self, until: float) -> None:
        """Throw messages between the true ones, until a moment or the end of the run."""
        last = time.monotonic()
        while time.monotonic() < until and not self.core.finished and self.core.failed is None:
            await asyncio.sleep(0.01)
            now, contact = time.monotonic(), self.transport._known[self.target]
            for _ in range(int(min(1.0, now - last) * self.rate)):
                if not self.true or not contact.connections or contact.queue:
                    break
                name, raw = self.message()
                kind = FrameCodec.kind_of(raw)
                if kind in KINDS and kind not in (ROW, NEWS) and not self._control.take(now):
                    continue
                contact.queue.append(raw)
                self.transport._pour(self.target)
                self.thrown[name] += 1
            last = now

    async def interrupt(self, until: float, pause: float = 3.0) -> None:
        """Break the framing and TLS itself over connections of their own, now and then."""
        member = self.agreement.members[self.target]
        context = client_context(self.identity, member.certificate)
        while time.monotonic() < until and not self.core.finished:
            await asyncio.sleep(pause)
            with contextlib.suppress(OSError, PeerError, TimeoutError, FrameError):
                async with asyncio.timeout(5.0):
                    await self._break_off(await call(member.address), context)

    async def _break_off(self, sock: socket.socket, context: Any) -> None:
        hello = transport.Hello(self.agreement.run_id, self.agreement.session, time.time(), "hostile")
        way = self.rng.randrange(8)
        self.thrown["broken off"] += 1
        if way == 0:  # no TLS at all
            with sock:
                await asyncio.get_running_loop().sock_sendall(sock, self.rng.randbytes(300))
                return
        tls = await tls_handshake(sock, context, server=False)
        with tls:
            if way == 1:  # a hello that is none
                await write_message(tls, self.rng.randbytes(self.rng.choice((1, 20, transport.HELLO.size))))
                return
            await write_message(tls, hello.to_bytes())
            await read_message(tls, 4096)
            if way == 2:  # bytes below TLS
                os.write(tls.fileno(), self.rng.randbytes(200))
            elif way == 3:  # more frames than one read takes, then half a message
                some = next(iter(self.true.values()))[0]
                await write_message(tls, some)
                tls.send(HEAD.pack(len(some)) + some[:10])
            else:  # lengths: none, too long, the longest there is, and the largest without content
                largest = self.agreed_run.codec.largest
                tls.send(HEAD.pack((0, largest + 1, 2**32 - 1, largest)[way - 4]))
            await asyncio.sleep(0.2)


def agree(folder: Path, rounds: int = 1_000_000, dim: int = 50) -> Path:
    """Write an agreement of three members on a triangle, their keys and records."""
    algorithm = {"name": "dp-dsgd", "protocol": "gossip:1", "steps": rounds, "learning_rate": 0.1,
                 "adjacency": "user", "clip_norm": 1.0, "noise_multiplier": 8000.0}  # fmt: skip
    draft = {"title": "hostile", "graph": "ring:3", "algorithm": algorithm,
             "model": {"kind": "logistic", "parameters": dim}}  # fmt: skip
    np.savez(folder / "data.npz", X=np.ones((2, dim)), y=np.ones(2))
    return signed_agreement(folder, draft, [make_identity(folder / f"m{i}", f"m{i}") for i in range(3)])


def config(folder: Path, node: int, log: Any) -> PeerConfig:
    """Return what one member of the triangle needs."""
    from sottovoce.peers.agreement import read_agreement

    data = np.load(folder / "data.npz")
    member = read_identity(folder / f"m{node}")
    agreement = read_agreement(folder / "agreement.toml")
    return PeerConfig(agreement, member, Records(data["X"], data["y"]), folder / f"s{node}", log=log)


def target(folder: Path) -> None:
    """Run the member under test, and write its log."""
    with (folder / "log0").open("w") as file:

        def log(event: dict[str, Any]) -> None:
            if event["event"] != "round":
                print(json.dumps({"at": time.monotonic(), **event}), file=file, flush=True)

        asyncio.run(Watched(config(folder, 0, log)).run())


def most_lines(log: Path) -> int:
    """Return the most lines of refusals in one interval."""
    events = [json.loads(line) for line in log.read_text().splitlines()]
    moments = [event["at"] for event in events if event["event"] == "refused"]
    return max((sum(0 <= t - at < transport.LOG_AGAIN for t in moments) for at in moments), default=0)


def memory(process: subprocess.Popen[bytes]) -> float:
    """Return the resident megabytes of a process."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def attack(seconds: float, rate: float, seed: int) -> dict[str, Any]:
    """Return what a peer under attack did for so long; an error says what did not hold."""
    folder = Path(tempfile.mkdtemp(prefix="sottovoce-hostile-"))
    agree(folder)
    words = ["--identity", folder / "m1", "--data", folder / "data.npz", "--state", folder / "s1",
             "--log-level", "error"]  # fmt: skip
    commands = [
        ["-m", "verification.fuzzing", "--target", folder],
        ["-m", "sottovoce.cli.main", "peer", "run", folder / "agreement.toml", *words],
    ]
    processes, pause = [], min(30.0, seconds / 4)
    for number, command in enumerate(commands):
        with (folder / f"errors{number}").open("w") as errors:
            processes.append(subprocess.Popen([sys.executable, *map(str, command)], stderr=errors))

    async def run() -> tuple[Hostile, list[tuple[float, int, float]]]:
        peer = Hostile(config(folder, 2, lambda event: None), 0, rate, seed)
        running, seen = asyncio.create_task(peer.run()), []
        while peer.core.durable_at < 30:
            await asyncio.sleep(0.2)
            if running.done():
                await running
        until = time.monotonic() + seconds
        attacks = [asyncio.create_task(each) for each in (peer.attack(until), peer.interrupt(until))]
        while time.monotonic() < until:
            if processes[0].poll() is not None:
                raise SystemExit(f"the peer ended: {(folder / 'errors0').read_text()[-2000:]}")
            seen.append((time.monotonic(), peer.core.durable_at, memory(processes[0])))
            await asyncio.sleep(pause)
            if peer.core.durable_at == seen[-1][1]:
                raise SystemExit(f"no round in {pause:g} s: {peer.report()}")
        for each in attacks:
            await each
        peer.stop()
        await asyncio.gather(running, return_exceptions=True)
        return peer, seen

    try:
        peer, seen = asyncio.run(run())
    finally:
        for process in processes:
            process.terminate()
            process.wait(timeout=60)
    lines = most_lines(folder / "log0")
    if lines > REASONS:
        raise SystemExit(f"{lines} refusals were logged in one interval, for at most {REASONS} reasons.")
    half = len(seen) // 2
    return {
        "seconds": seconds,
        "thrown": dict(peer.thrown),
        "rounds": seen[-1][1] - seen[0][1],
        "incidents": len(peer.core.incidents),
        "megabytes": [round(each[2], 1) for each in (seen[0], seen[half], seen[-1])],
        "log_lines": len((folder / "log0").read_text().splitlines()),
        "refusals_logged_in_one_interval": lines,
        "bugs": 0,
    }
