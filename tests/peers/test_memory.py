"""Whole peers in one process over memory: the runtime knows a transport by its five calls only."""

import json
import socket
import subprocess
import sys

import numpy as np

from sottovoce.peers.core import Timing
from sottovoce.peers.status import read_proof, read_status
from sottovoce.peers.transport import TlsTransport, Transport
from sottovoce.peers.wire_format import ROW, FrameCodec, frame_digest

LEARNING = {"name": "consensus-sgd", "protocol": "tree", "steps": 5, "noise_multiplier": 40.0}


def test_three_peers_learn_together_without_a_socket(consortium, memory_links, monkeypatch):
    group = consortium(n=3, graph="path:3", algorithm=LEARNING)

    def refuse(*args):
        raise AssertionError("a socket was used")

    for name in ("bind", "connect", "connect_ex", "listen"):  # asyncio's own pair of sockets needs none
        monkeypatch.setattr(socket.socket, name, refuse)
    connections = memory_links()
    outcomes = group.run(transport=connections)
    assert len({outcome.model.tobytes() for outcome in outcomes}) == 1
    assert np.isfinite(outcomes[0].model).all()
    assert connections.refused == 0
    assert connections.open == {}  # every peer has left
    for i, outcome in enumerate(outcomes):
        assert outcome.statement["finished"]
        assert outcome.statement["guarantee"]["releases"] == 5 == read_status(group.state(i))["releases"]
        # what went over the links is what the ledger says was sent, and nothing else
        proof = read_proof(group.state(i))
        rows = {
            frame_digest(raw).hex()
            for s, _, raw in connections.carried
            if s == i and FrameCodec.kind_of(raw) == ROW
        }
        assert rows == set(proof["sent"].values())


def test_frames_that_are_lost_are_asked_for_again(consortium, memory_links):
    """One row in three is lost on its first way; the models are those of a run without loss all the same."""
    group = consortium(n=3, graph="path:3", algorithm=LEARNING)
    connections, lost = memory_links(), set()

    class Lossy:
        def __init__(self, *given, **options):
            self.connection = connections(*given, **options)

        def __getattr__(self, name):
            return getattr(self.connection, name)

        def send(self, to, raw):
            if FrameCodec.kind_of(raw) == ROW and raw[-32] % 3 == 0 and (to, raw) not in lost:
                lost.add((to, raw))
                return
            self.connection.send(to, raw)

    timing = Timing(ask=0.01, ask_row=0.02, ask_most=0.05)
    outcomes = group.run(transport=Lossy, timing=timing)
    assert len({outcome.model.tobytes() for outcome in outcomes}) == 1
    assert all(outcome.statement["guarantee"]["releases"] == 5 for outcome in outcomes)


def test_both_transports_have_the_calls_of_the_interface(memory_links):
    wanted = {name for name in vars(Transport) if not name.startswith("_")}
    assert wanted == {"start", "send", "expired", "report", "flush", "stop"}
    connection = memory_links()([], 0, None, [], print, largest=1)
    assert all(
        callable(getattr(TlsTransport, name)) and callable(getattr(connection, name)) for name in wanted
    )


LOOK = """
import json, os, sys
before = dict(os.environ)
import sottovoce.peers.runtime, sottovoce.peers.transport
print(json.dumps([before == dict(os.environ), "grpc" in sys.modules]))
"""


def test_importing_changes_nothing_in_the_process():
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [True, False]
