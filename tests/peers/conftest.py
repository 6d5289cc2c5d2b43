"""Consortia on the loopback interface, made in a moment."""

import asyncio
import functools
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from sottovoce.errors import PeerError
from sottovoce.peers.agreement import member_entry, read_agreement, sign_agreement, write_agreement
from sottovoce.peers.identity import make_identity
from sottovoce.peers.member_data import Records
from sottovoce.peers.member_directory import MemberDirectory
from sottovoce.peers.runtime import Peer, PeerConfig

AVERAGING = {
    "name": "averaging",
    "protocol": "gossip:4",
    "adjacency": "user",
    "clip_norm": 1.0,
    "noise_multiplier": 2.0,
}


def draft(graph, algorithm, *, dim=2, kind=None, epsilon=60.0, title="a test", model=None, **more):
    """Return the tables of an agreement without its members: an average of a few numbers, if not changed."""
    algorithm = {**AVERAGING, **algorithm}
    kind = kind or ("mean" if algorithm["name"] == "averaging" else "logistic")
    return {
        "version": 1,
        "title": title,
        "graph": graph,
        "algorithm": algorithm,
        "model": {"kind": kind, "parameters": dim, **(model or {})},
        "budget": {"epsilon": epsilon, "delta": 1e-5},
        **more,
    }


@functools.cache
def identity(name):
    """Identities are made once per process; keys cost time, and no test changes them."""
    return make_identity(Path(tempfile.mkdtemp(prefix="sottovoce-test-")) / name, name)


def unused_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class MemoryLinks:
    """A transport for peers of one process: no sockets, no TLS, the order of sending is the order of coming.

    An instance stands where `TlsTransport` stands in the call of `Peer`; every peer gets a link of its own.
    """

    def __init__(self):
        self.open, self.carried, self.refused = {}, [], 0

    def __call__(self, members, node, identity, contacts, deliver, *, largest, revoked=(), config=None):
        return MemoryLink(self, node, tuple(contacts), deliver, largest)


class MemoryLink:
    def __init__(self, connections, node, contacts, deliver, largest):
        self.connections, self.node, self.contacts = connections, node, contacts
        self.deliver, self.largest = deliver, largest

    async def start(self, address=None):
        self.connections.open[self.node] = self

    def send(self, to, *frames):
        assert to in self.contacts
        for raw in frames:
            assert len(raw) <= self.largest
            self.connections.carried.append((self.node, to, raw))
            if to in self.connections.open:  # else lost, and asked for again
                asyncio.get_running_loop().call_soon(self.connections.open[to].take, self.node, raw)

    def take(self, sender, raw):
        try:
            self.deliver(sender, raw)
        except PeerError:
            self.connections.refused += 1

    def refuse(self, sender, why, details=""):
        self.connections.refused += 1

    def expired(self, *members):
        return []

    def push(self, seconds):
        time.sleep(seconds)

    async def flush(self, seconds):
        await asyncio.sleep(0)

    async def stop(self):
        self.connections.open.pop(self.node, None)

    def report(self):
        return {}


class Consortium:
    """Members, a signed agreement, and everybody's records."""

    def __init__(self, folder, n=3, graph=None, algorithm=None, *, dim=3, seed=0, **more):
        self.folder, self.n = Path(folder), n
        self.identities = [identity(f"m{i}") for i in range(n)]
        self.file = self.folder / "agreement.toml"
        ports = unused_ports(n)
        entries = [
            member_entry(i.certificate, f"127.0.0.1:{p}") for i, p in zip(self.identities, ports, strict=True)
        ]
        write_agreement(self.file, draft(graph or f"ring:{n}", algorithm or {}, dim=dim, **more), entries)
        for each in self.identities:
            sign_agreement(self.file, each, secrets=self.folder / f"secrets-{each.name}")
        rng = np.random.default_rng(seed)
        self.records = [
            Records(
                rng.standard_normal((12, dim)).astype(self.agreement.model.number),
                rng.choice([-1.0, 1.0], 12).astype(self.agreement.model.number),
            )
            for _ in range(n)
        ]

    @property
    def agreement(self):
        return read_agreement(self.file)

    def state(self, i):
        return self.folder / f"state{i}"

    def peers(self, **options):
        noises = options.pop("noises", [None] * self.n)
        agreement = self.agreement
        return [
            Peer(
                PeerConfig(
                    agreement,
                    self.identities[i],
                    self.records[i],
                    self.state(i),
                    noise=noises[i],
                    **{"secrets": self.folder / f"secrets-m{i}", **options},
                )
            )
            for i in range(self.n)
        ]

    def identity_folder(self, i):
        """Write the key files of member i and return their folder."""
        folder = self.folder / f"identity{i}"
        if not folder.exists():
            folder.mkdir(mode=0o700)
            own = self.identities[i]
            for name, content in (("key.pem", own.key), ("certificate.pem", own.certificate)):
                (folder / name).touch(mode=0o600)
                (folder / name).write_bytes(content)
        return folder

    @property
    def environment(self):
        source = Path(__file__).parents[2] / "src"
        return {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}

    def command(self, *words, out=subprocess.PIPE):
        """Start `sottovoce peer` as a process of its own."""
        call = [sys.executable, "-m", "sottovoce.cli.main", "peer", *map(str, words)]
        return subprocess.Popen(call, env=self.environment, stdout=out, stderr=subprocess.PIPE, text=True)

    def start(self, i, out=subprocess.PIPE):
        """Start the real command for member i."""
        data = self.folder / f"data{i}.npz"
        if not data.exists():
            np.savez(data, X=self.records[i].X, y=self.records[i].y)
        folders = ("--identity", self.identity_folder(i), "--data", data, "--state", self.state(i))
        return self.command("run", self.file, *folders, "--json", out=out)

    def run(self, **options):
        async def together():
            return await asyncio.gather(*[peer.run() for peer in self.peers(**options)])

        return asyncio.run(together())


class Members:
    """Organizations with member directories, each with its records."""

    def __init__(self, folder, connections, names, budgets, records):
        self.folder, self.connections, self.names = folder, connections, list(names)
        self.directories = {
            name: MemberDirectory.create(
                folder / name, name, population="patients", budgets=budgets, copy=folder / f"{name}-copy"
            )
            for name in names
        }
        self.keys = {name: directory.identity for name, directory in self.directories.items()}
        self.records = {name: records() for name in names}

    def write(self, file, content, addresses):
        """Write an agreement of all members, which everybody trusts and signs."""
        parts = zip(self.names, addresses, strict=True)
        write_agreement(file, content, [member_entry(self.keys[v].certificate, place) for v, place in parts])
        return self.sign(file)

    def sign(self, file):
        agreement = read_agreement(file)
        self.pin(agreement)
        for name in agreement.names:
            sign_agreement(file, self.keys[name], secrets=self.directories[name].identity_folder)
        return read_agreement(file)

    def pin(self, agreement):
        for member in agreement.members:
            (self.folder / "pem").write_text(member.certificate)
            others = [each for name, each in self.directories.items() if name != member.name]
            for directory in others:
                directory.pinned_certificates.trust(self.folder / "pem", "read aloud", instead=True)

    def state(self, name, agreement):
        return self.directories[name].folder / "runs" / agreement.run_id.hex()

    def peer(self, name, agreement, state=None, **options):
        """Start one member's peer, without running it."""
        directory = MemberDirectory(self.directories[name].folder)
        options = {"records": self.records[name], "member_directory": directory, **options}
        return Peer(PeerConfig(agreement, self.keys[name], state=state, **options))

    def run(self, agreement, **options):
        """Run all members in memory; return their outcomes."""

        async def together():
            peers = [self.peer(name, agreement, transport=self.connections, **options) for name in self.names]
            return await asyncio.gather(*[peer.run() for peer in peers])

        return asyncio.run(together())


@pytest.fixture
def consortium(tmp_path):
    return functools.partial(Consortium, tmp_path)


@pytest.fixture
def memory_links():
    return MemoryLinks


@pytest.fixture
def free_ports():
    return unused_ports
