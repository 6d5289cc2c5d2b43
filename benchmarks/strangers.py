"""A run while strangers hold its listener: rounds a second, disturbed against undisturbed, in turns.

    python -m benchmarks.strangers [line ...] [--seconds 4] [--turns 6] [--out FILE]

Lines: ``idle``, 3,000 connections from 250 addresses that say nothing and come back a second after they are
let go; ``one``, 1,000 of them from one address; ``handshakes``, 200 a second begun and left, from 50
addresses; ``flood``, 1,000 frames a second of each of eight kinds with a member's key, from a process of its
own beside that member, whose rows come by its own connection; ``all``, idle connections, handshakes and
frames together; ``return``, how long a neighbor that was killed needs to get back in while 3,000 strangers
are at the listener. Four real processes on a ring, ledgers synced. The windows of one run take turns, so that
what else the machine does meets both. Targets: at least .9, and each flood logged once in an interval.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.peers import free_ports, processor_seconds
from sottovoce.peers.agreement import read_agreement
from sottovoce.peers.identity import make_identity
from sottovoce.peers.transport import LOG_AGAIN
from verification import signed_agreement

MEMBERS, DIM, ROUNDS = 4, 1000, 60_000
STRANGERS = """
import heapq, resource, select, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
port, count, addresses = map(int, sys.argv[1:])
poll, held, due, met = select.epoll(), {}, [(0.0, i) for i in range(count)], set()
began, told = time.monotonic(), False
while True:
    now = time.monotonic()
    for _ in range(50):
        if not due or due[0][0] > now:
            break
        i = heapq.heappop(due)[1]
        sock = socket.socket()
        sock.bind((f"127.1.0.{1 + i % addresses}" if addresses > 1 else "127.0.0.1", 0))
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
        held[sock.fileno()] = (sock, i)
        poll.register(sock.fileno(), select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR)
        met.add(i)
    for handle, _ in poll.poll(0.02):
        poll.unregister(handle)
        sock, i = held.pop(handle)
        sock.close()
        heapq.heappush(due, (time.monotonic() + 1.0, i))
    if not told and (len(met) == count or now - began > 20):
        told = True
        print(len(held), flush=True)
"""
HANDSHAKES = """
import socket, ssl, sys, time
port, rate, addresses = map(int, sys.argv[1:])
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
try:
    context.wrap_bio(coming, going).do_handshake()
except ssl.SSLWantReadError:
    hello = going.read()
begun, open_ones = 0, []
start = time.monotonic()
print(0, flush=True)
while True:
    time.sleep(0.02)
    while begun < (time.monotonic() - start) * rate:
        sock = socket.socket()
        sock.bind((f"127.2.0.{1 + begun % addresses}", 0))
        sock.connect(("127.0.0.1", port))
        sock.sendall(hello)
        open_ones.append(sock)
        begun += 1
    while len(open_ones) > rate:  # the server has answered with key, certificate and signature
        open_ones.pop(0).close()
"""
FLOODER = """
import asyncio, os, socket, sys, time
from dataclasses import replace
import numpy as np
from sottovoce.peers.agreement import read_agreement
from sottovoce.peers.wire_format import NOTHING, UNSIGNED, LedgerHead, OpenSigner, Position, Receipt, Receipts
from sottovoce.peers.identity import CertificateSigner, read_identity
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.connection import HEAD, client_context, read_message, tls_handshake, write_message
from sottovoce.peers.transport import Hello
file, key, flag, rate = *sys.argv[1:4], int(sys.argv[4])
agreed, own = read_agreement(file), read_identity(key)
host, port = agreed.members[0].address.rsplit(":", 1)
codec = AgreedRun(agreed).codec
mine = replace(codec, signer=CertificateSigner(own, [each.certificate.encode() for each in agreed.members]))

def head(codec, number, sender):
    return codec.head(LedgerHead(10**9 + number, 1, NOTHING, 1, 0, NOTHING, NOTHING), sender=sender)

def frames(number):
    own_head = head(mine, number, 1)
    receipts = Receipts(10**9 + number, 1, NOTHING, (Receipt(),) * codec.members, own_head)
    return [
        mine.row(np.zeros(codec.dim), sender=1, round=number),  # over
        mine.row(np.zeros(codec.dim), sender=1, round=codec.rounds - 1 - number),  # far ahead
        codec.position(Position(0, -1, NOTHING, UNSIGNED, True), sender=1),
        codec.drop(0, sender=1, ask=True, agreed=False),
        own_head,
        mine.receipts(receipts, sender=1),
        *codec.news([head(codec, number, 2)], sender=1),  # another member's, with a false signature
        codec.summary({}, sender=1, answer=True),
    ]

async def meet():
    sock = socket.create_connection((host, int(port)))
    sock.setblocking(False)
    tls = await tls_handshake(sock, client_context(own, agreed.members[0].certificate), server=False)
    await write_message(tls, Hello(agreed.run_id, agreed.session, time.time(), "flood").to_bytes())
    await read_message(tls, 4096)
    tls.setblocking(True)
    return tls

tls = asyncio.run(meet())
batch = b"".join(HEAD.pack(len(raw)) + raw for number in range(rate // 50) for raw in frames(number))
print("inside", flush=True)
begun = time.monotonic()
while True:
    time.sleep(max(0.0, begun + 0.02 - time.monotonic()))
    begun = time.monotonic()
    if os.path.exists(flag):
        tls.sendall(batch)
"""


class Window(NamedTuple):
    """What was seen for some seconds: rounds a second, and processor time of all peers for one round."""

    rate: float
    worked: float


class Run:
    """Four peers on a ring that could go on for hours."""

    def __init__(self, flood: int = 0) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sottovoce-strangers-"))
        own = [make_identity(self.folder / f"m{i}", f"m{i}") for i in range(MEMBERS)]
        self.ports = free_ports(MEMBERS)
        draft = {
            "title": "strangers", "graph": f"ring:{MEMBERS}",
            "algorithm": {"name": "dp-dsgd", "protocol": "gossip:1", "steps": ROUNDS, "learning_rate": 0.1,
                          "adjacency": "user", "clip_norm": 1.0, "noise_multiplier": 2000.0},
            "model": {"kind": "logistic", "parameters": DIM},
        }  # fmt: skip
        self.file = signed_agreement(self.folder, draft, own)
        self.port = int(read_agreement(self.file).members[0].address.rsplit(":")[-1])
        np.savez(self.folder / "data.npz", X=np.ones((2, DIM)), y=np.ones(2))
        self.flag, self.flooder = self.folder / "flood", None
        self.processes = [self.start(0)]
        if flood:
            self.flooder = self.flooding(flood)  # first, so that rows go to the member's own connection
        self.processes += [self.start(i) for i in range(1, MEMBERS)]

    def flooding(self, frames: int) -> subprocess.Popen[str]:
        """Start another process with a member's key, which is let in beside that member."""
        words = [self.file, self.folder / "m1", self.flag, frames]
        for _ in range(600):
            begun = subprocess.Popen(
                [sys.executable, "-c", FLOODER, *map(str, words)], stdout=subprocess.PIPE, text=True,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
            assert begun.stdout is not None
            if begun.stdout.readline().strip() == "inside":
                return begun
            begun.wait()
            time.sleep(0.5)  # the listener is not open yet
        raise SystemExit("the flooder did not get in")

    def start(self, i: int) -> subprocess.Popen[bytes]:
        words = ["peer", "run", self.file, "--identity", self.folder / f"m{i}", "--data",
                 self.folder / "data.npz", "--state", self.folder / f"s{i}", "--health",
                 self.ports[i], "--json"]  # fmt: skip
        with (self.folder / f"log{i}").open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "sottovoce.cli.main", *map(str, words)], stdout=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL,
            )  # fmt: skip

    def page(self, i: int, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[i]}{path}", timeout=20) as page:
            return str(page.read().decode())

    def round(self, i: int = 0) -> int:
        return int(json.loads(self.page(i, "/healthz"))["round"])

    def refused(self) -> float:
        lines = [line for line in self.page(0, "/metrics").splitlines() if "refused_total{" in line]
        return sum(float(line.split()[-1]) for line in lines)

    def wait(self, i: int, least: int, seconds: float = 400.0) -> float:
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            try:
                if self.round(i) >= least:
                    return time.perf_counter() - begin
            except OSError:
                pass
            time.sleep(0.05)
        raise SystemExit(f"peer {i} did not come to round {least} within {seconds} s")

    def rate(self, seconds: float) -> Window:
        first, begin, worked = self.round(), time.perf_counter(), processor_seconds(self.processes)
        time.sleep(seconds)
        rounds = self.round() - first
        worked = processor_seconds(self.processes) - worked
        return Window(rounds / (time.perf_counter() - begin), worked / max(1, rounds))

    def end(self) -> None:
        if self.flooder is not None:
            self.flooder.kill()
            self.flooder.communicate()
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(timeout=60)


class Strangers:
    """A process that keeps the listener of the first peer busy."""

    def __init__(self, run: Run, program: str, *numbers: int) -> None:
        words = [sys.executable, "-c", program, str(run.port), *map(str, numbers)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.inside = int(self.process.stdout.readline())

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def disturbed(
    seconds: float, turns: int, programs: list[tuple[str | int, ...]], frames: int = 0
) -> dict[str, Any]:
    """Compare windows with strangers, or frames of a member, with windows without."""
    run = Run(flood=frames)
    run.wait(0, 50)
    calm, busy, inside, refused = [], [], [], []
    for _ in range(turns):
        calm.append(run.rate(seconds))
        strangers = [Strangers(run, str(program), *map(int, numbers)) for program, *numbers in programs]
        before, begin = run.refused(), time.perf_counter()
        if frames:
            run.flag.touch()
        busy.append(run.rate(seconds))
        run.flag.unlink(missing_ok=True)
        refused.append((run.refused() - before) / (time.perf_counter() - begin))
        for each in strangers:
            inside.append(each.inside)
            each.end()
        time.sleep(1.0)
    calm.append(run.rate(seconds))
    run.end()
    lines = [json.loads(line) for line in (run.folder / "log0").read_text().splitlines()]
    logged = Counter(line.get("event", "error") for line in lines)
    return {
        "connected_at_the_start": inside,
        "refused_per_second": statistics.median(refused),
        "logged": dict(logged),
        "logged_by_interval_and_reason": logged["refused"] / (turns * (1 + seconds / LOG_AGAIN)),
        **ratio(calm, busy),
    }


def back_in(count: int = 3000) -> dict[str, Any]:
    """A neighbor of the besieged peer is killed and comes back; the time includes the start of Python."""
    run = Run()
    run.wait(0, 50)
    seconds = {}
    for name in ("undisturbed", "besieged"):
        strangers = Strangers(run, STRANGERS, count, 250) if name == "besieged" else None
        run.processes[3].kill()
        run.processes[3].wait()
        at = run.round()
        run.processes[3] = run.start(3)
        seconds[name] = run.wait(0, at + 5)
        if strangers is not None:
            strangers.end()
    run.end()
    return {**seconds, "unit": "seconds until the ring goes on"}


def ratio(calm: list[Window], disturbed: list[Window]) -> dict[str, Any]:
    """Compare windows that took turns; one more calm one than disturbed, so that each has two neighbors."""
    around = [(a.rate + b.rate) / 2 for a, b in pairwise(calm)]
    pairs = [each.rate / beside for each, beside in zip(disturbed, around, strict=True)]
    calm_work, work = (statistics.median(w.worked for w in windows) for windows in (calm, disturbed))
    return {
        "rounds_per_second": statistics.median(w.rate for w in calm),
        "disturbed": statistics.median(w.rate for w in disturbed),
        "ratio": statistics.median(pairs),
        "ratios": [round(each, 3) for each in pairs],
        # what the peers themselves compute for a round; not changed by what else the machine does
        "processor_seconds_per_round": {"calm": calm_work, "disturbed": work, "ratio": calm_work / work},
        "target": "at least .9",
        "load": os.getloadavg()[0],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("lines", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--out", type=Path, help="write the record here, after every line")
    arguments = parser.parse_args()
    idle, handshakes = (STRANGERS, 3000, 250), (HANDSHAKES, 200, 50)
    floods: dict[str, tuple[list[tuple[str | int, ...]], int]] = {
        "idle": ([idle], 0),
        "one": ([(STRANGERS, 1000, 1)], 0),
        "handshakes": ([handshakes], 0),
        "flood": ([], 1000),
        "all": ([idle, handshakes], 1000),
    }
    words = f"--seconds {arguments.seconds:g} --turns {arguments.turns}"
    record: dict[str, Any] = {"command": f"python -m benchmarks.strangers {words}"}
    for name in arguments.lines or [*floods, "return"]:
        if name == "return":
            record[name] = back_in()
        else:
            record[name] = disturbed(arguments.seconds, arguments.turns, *floods[name])
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))
