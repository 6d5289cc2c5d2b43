"""Kill a peer with SIGKILL again and again and compare what it sent with what its ledger holds.

One member of a small consortium runs in a process of its own: the real core, the real ledger on the real
disk, a pipe for a network. It is killed at a random moment, its ledger is opened and checked against every
byte that came out of the pipe, and it is started again, until the run is finished; then a new run begins.
What is left on the disk must not tell how a row that was sent came about.

    python -m verification.kills --kills 300
    python -m verification.kills --kills 10000
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from sottovoce import graphs, protocols
from sottovoce.errors import PeerError
from sottovoce.ledger.run_ledger import STATE_KEY, RunLedger
from sottovoce.noise.samplers import ProtectiveNoise
from sottovoce.peers.core import Core, Timing
from sottovoce.peers.wire_format import ROW, FrameCodec, frame_digest
from verification import store
from verification.simulator import SimulatedDisk, SimulatedStore, descent, member_program
from verification.stolen_folder import saved_states

HEAD = struct.Struct("<BI")
STEPS, DIM = 20, 8
TIMING = Timing(retry_start=0.002, retry_row=0.002, retry_longest=0.02, give_up=1e9)


class Scene:
    """The consortium of one run: a name, a protocol, everybody's values."""

    def __init__(self, number: int) -> None:
        kinds = (
            protocols.HypercubeExchange(4),
            protocols.Tree(graphs.star(4)),
            protocols.Gossip(graphs.ring(4), 2),
        )
        self.protocol = kinds[number % len(kinds)]
        self.session = number.to_bytes(4, "big").rjust(32, b"k")
        self.codec = FrameCodec(self.session, 4, STEPS * self.protocol.rounds, DIM, "float64")
        self.values = np.random.default_rng(number).standard_normal((4, DIM))

    def core(self, v: int, store: object) -> Core:
        plan = descent(self.protocol, STEPS, DIM)
        program = member_program(plan, v, self.values, ProtectiveNoise())
        return Core(program, self.codec, store, timing=TIMING)


def child(scene: Scene, folder: Path, inward: int, outward: int) -> None:
    """The victim: never returns."""
    ledger = RunLedger(folder, session=scene.session, node=0)
    core = scene.core(0, ledger)

    def send(out: list[tuple[int, bytes]]) -> None:
        for to, raw in out:
            os.write(outward, HEAD.pack(to, len(raw)) + raw)

    send(core.start(time.monotonic()))
    pending = b""
    while not core.all_done:
        ready, _, _ = select.select([inward], [], [], 0.002)
        if ready:
            got = os.read(inward, 1 << 16)
            if not got:  # the parent is gone: do not outlive it
                os._exit(4)
            pending += got
        while len(pending) >= HEAD.size:
            sender, size = HEAD.unpack_from(pending)
            if len(pending) < HEAD.size + size:
                break
            raw, pending = pending[HEAD.size : HEAD.size + size], pending[HEAD.size + size :]
            send(core.receive(time.monotonic(), sender, raw))
        send(core.tick(time.monotonic()))
    os._exit(0)


class Run:
    """One run in which member 0 is killed; members 1 to 3 live in this process."""

    def __init__(self, number: int, folder: Path, rng: random.Random) -> None:
        self.scene, self.folder, self.rng = Scene(number), folder, rng
        self.others = {v: self.scene.core(v, SimulatedStore(SimulatedDisk(), lambda: 0)) for v in (1, 2, 3)}
        self.on_wire: dict[int, bytes] = {}
        self.violations: list[str] = []
        self.kills = 0
        self.finished = False
        for v, core in self.others.items():
            self._route(v, core.start(time.monotonic()), None)

    def life(self, longest: float) -> None:
        """Start the victim, let it live for a random while, kill it, compare."""
        inward_read, inward_write = os.pipe()
        outward_read, outward_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(inward_write)
            os.close(outward_read)
            try:
                child(self.scene, self.folder, inward_read, outward_write)
            except PeerError as error:
                print(f"the victim stopped: {error}", file=sys.stderr)
            finally:
                os._exit(3)
        os.close(inward_read)
        os.close(outward_write)
        try:
            self._live(outward_read, inward_write, time.monotonic() + self.rng.random() * longest)
        finally:  # whatever happened: our own child, not reaped yet, so its number is nobody else's
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
        self._drain(outward_read)
        os.close(outward_read)
        os.close(inward_write)
        if os.WIFSIGNALED(status):
            self.kills += 1
        elif os.WEXITSTATUS(status):
            self.violations.append("the victim stopped by itself")
        self._compare()

    def _live(self, outward: int, inward: int, until: float) -> None:
        pending = b""
        while time.monotonic() < until:
            for v, core in self.others.items():
                self._route(v, core.tick(time.monotonic()), inward)
            ready, _, _ = select.select([outward], [], [], 0.001)
            if not ready:
                continue
            got = os.read(outward, 1 << 16)
            if not got:
                return
            pending = self._take(pending + got, inward)
        self._left = pending

    def _drain(self, outward: int) -> None:
        """What is in the pipe was sent, whether or not the victim still lives."""
        got, pending = b"x", getattr(self, "_left", b"")
        while got:
            got = os.read(outward, 1 << 16)
            pending += got
        self._take(pending, None)
        self._left = b""

    def _take(self, pending: bytes, inward: int | None) -> bytes:
        while len(pending) >= HEAD.size:
            to, size = HEAD.unpack_from(pending)
            if len(pending) < HEAD.size + size:
                break
            raw, pending = pending[HEAD.size : HEAD.size + size], pending[HEAD.size + size :]
            self._seen(raw)
            self._route(to, self.others[to].receive(time.monotonic(), 0, raw), inward)
        return pending

    def _route(self, sender: int, out: list[tuple[int, bytes]], inward: int | None) -> None:
        queue = [(sender, to, raw) for to, raw in out]
        while queue:
            sender, to, raw = queue.pop(0)
            if to == 0:
                if inward is not None:
                    try:
                        os.write(inward, HEAD.pack(sender, len(raw)) + raw)
                    except BrokenPipeError:
                        inward = None
                continue
            answers = self.others[to].receive(time.monotonic(), sender, raw)
            queue += [(to, next_to, next_raw) for next_to, next_raw in answers]

    def _seen(self, raw: bytes) -> None:
        if FrameCodec.kind_of(raw) != ROW:
            return
        r = self.scene.codec.decode(raw).round
        if self.on_wire.setdefault(r, raw) != raw:
            self.violations.append(f"two payloads for round {r}")

    def _compare(self) -> None:
        if (self.folder / STATE_KEY).exists():  # before opening, which erases a key that a kill left
            states = saved_states(self.folder, self.scene.session, 0)
            # states of one step hold the same keys: those that replaced the keys of its noise
            steps = {each.round // self.scene.protocol.rounds for each in states if each.plain is not None}
            if len(steps) > 1 and states[-1].round in self.on_wire:
                self.violations.append(f"steps {sorted(steps)} can be computed again")
        ledger = RunLedger(self.folder, session=self.scene.session, node=0)
        saved = ledger.load()
        ledger.close()
        for r, raw in self.on_wire.items():
            if saved.sent.get(r) != frame_digest(raw):
                self.violations.append(f"round {r} was sent and is not in the ledger")
        steps = {r // self.scene.protocol.rounds for r in self.on_wire}
        if len(saved.releases) < len(steps):
            self.violations.append(f"{len(saved.releases)} releases charged, {len(steps)} sent")
        self.finished = saved.at >= self.scene.codec.rounds
        if self.finished and self.scene.protocol.name in ("exchange", "tree"):
            core = self.scene.core(0, SimulatedStore(SimulatedDisk(), lambda: 0))
            core.program.restore(saved.state)
            rows = [core.program.result()] + [c.program.result() for c in self.others.values() if c.finished]
            if any(row.tobytes() != rows[0].tobytes() for row in rows):
                self.violations.append("the members end with different rows")


def loop(kills: int, seed: int = 0, longest: float = 0.03) -> dict[str, object]:
    """Kill until ``kills`` kills are done; return the counts."""
    rng = random.Random(seed)
    base = Path(tempfile.mkdtemp(prefix="sottovoce-kill-"))
    done = runs = rows = 0
    violations: list[str] = []
    started = time.monotonic()
    try:
        while done < kills and not violations:
            run = Run(runs, base / str(runs), rng)
            lives = 0
            while not run.finished and done + run.kills < kills and not run.violations:
                # short lives first, so that kills fall into every phase; longer ones so that the run ends
                run.life(longest * (0.2 + 0.1 * lives))
                lives += 1
            done, runs, rows = done + run.kills, runs + 1, rows + len(run.on_wire)
            violations += run.violations
            shutil.rmtree(base / str(runs - 1))
    except KeyboardInterrupt:
        print("interrupted; counting what was done", file=sys.stderr)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    seconds = round(time.monotonic() - started, 1)
    return {
        "kills": done,
        "runs": runs,
        "rows": rows,
        "undercounts": len(violations),
        "violations": violations[:5],
        "seconds": seconds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the record here")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    counts = loop(options.kills, options.seed)
    if options.out is not None:
        command = f"python -m verification.kills --kills {options.kills}"
        store(options.out, "kills", {"command": command, **counts})
    print(json.dumps(counts))
    return 1 if counts["violations"] or counts["kills"] < options.kills else 0


if __name__ == "__main__":
    sys.exit(main())
