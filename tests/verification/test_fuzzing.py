"""A short form of the hour of fuzzing over TLS: three peers of one process, one of them hostile."""

import asyncio
import time
from dataclasses import replace

import numpy as np
from verification.hostile_member import Hostile, Watched, agree, config

from sottovoce.noise.samplers import SimulatedNoise
from sottovoce.peers.runtime import Peer
from sottovoce.peers.transport import LOG_AGAIN


def test_mutated_messages_of_a_member_change_no_model(tmp_path):
    """Every kind of message comes; the models are those of a calm run, and each reason is logged once."""
    agree(tmp_path, rounds=40, dim=20)
    events = []

    def settings(node, state):
        quiet = config(tmp_path, node, events.append if node == 0 else lambda event: None)
        return replace(quiet, state=tmp_path / f"{state}{node}", noise=SimulatedNoise(3))

    def run(peers, attacks=()):
        async def together():
            running = [asyncio.create_task(each) for each in attacks]
            outcomes = await asyncio.gather(*[peer.run() for peer in peers])
            for each in running:
                each.cancel()
            return [outcome.model for outcome in outcomes]

        return asyncio.run(together())

    calm = run([Peer(settings(node, "calm")) for node in range(3)])
    events.clear()
    peers = [Watched(settings(0, "s")), Peer(settings(1, "s")), Hostile(settings(2, "s"), 0, 1000.0, seed=1)]
    begun = time.monotonic()
    attacked = run(peers, (peers[2].attack(begun + 300), peers[2].interrupt(begun + 300, 0.05)))
    seconds = time.monotonic() - begun
    assert all(map(np.array_equal, calm, attacked))
    assert set(peers[2].thrown) == {"replayed", "cut", "random", "another kind", "mutated", "broken off"}
    refusals = peers[0].transport.refusals
    assert refusals.total() > 50
    logged = sum(event["event"] == "refused" for event in events)
    assert 0 < logged <= len(refusals) * (1 + seconds / LOG_AGAIN)
