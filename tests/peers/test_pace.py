"""An agreed pace: when an answer leaves does not depend on how long it took; and runs end as without it."""

import asyncio
import types
from pathlib import Path

import numpy as np
import pytest

from sottovoce.errors import ConfigError, FrameError
from sottovoce.noise.samplers import SimulatedNoise
from sottovoce.peers import runtime
from sottovoce.peers.signing_summary import UNPACED

ROOT = Path(__file__).parents[2]


class Clock:
    """A clock that only computing and sleeping move."""

    def __init__(self):
        self.now = 1000.0

    def time(self):
        return self.now

    monotonic = time

    def sleep(self, seconds):
        self.now += seconds


class Slow:
    """A core whose computation takes so many seconds of the clock."""

    failed, finished, durable_at, waiting_for, incidents = None, False, 0, (), []

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.took = clock, seconds, []

    def receive(self, now, sender, raw):
        self.took.append(self.clock.now)
        self.clock.now += self.seconds
        if raw == b"bad":
            raise FrameError("no frame")
        return [(sender, b"answer to " + raw)]

    def tick(self, now):
        return []


@pytest.fixture
def paced(consortium, monkeypatch):
    def make(seconds):
        group = consortium(n=2, graph="path:2", timing={"pace": 0.5})
        first, second = group.peers(log=lambda event: None)
        second.ledger.close()
        clock = Clock()

        async def wait(seconds):
            clock.now += seconds

        monkeypatch.setattr(runtime, "time", clock)
        monkeypatch.setattr(runtime, "asyncio", types.SimpleNamespace(sleep=wait))
        first.core = Slow(clock, seconds)
        sent = []
        first._send = lambda out: sent.extend((clock.now, raw) for _, raw in out)
        first._tell = lambda: None
        return first, clock, sent

    return make


@pytest.mark.parametrize("seconds", [0.001, 0.249])
@pytest.mark.parametrize("came", [0.01, 0.49])
def test_the_answer_leaves_in_the_middle_whatever_it_took_and_whenever_it_came(seconds, came, paced):
    """A neighbor chooses when its frame comes, just before a span too; it sees the span, not the work."""
    peer, clock, sent = paced(seconds)
    clock.now = 1000.0 + came
    peer._deliver(1, b"one")
    assert sent == []
    assert peer.core.took == []  # not looked at before the span begins
    asyncio.run(peer._span(0.5))
    assert peer.core.took == [1000.5]
    assert [when for when, _ in sent] == [pytest.approx(1000.75)]
    assert peer.pace_missed == 0
    peer.ledger.close()


@pytest.mark.parametrize(("seconds", "leaves"), [(0.3, 1001.25), (0.8, 1001.75)])
def test_what_takes_too_long_leaves_in_the_middle_of_a_later_span(seconds, leaves, paced):
    peer, _, sent = paced(seconds)
    peer._deliver(1, b"one")
    asyncio.run(peer._span(0.5))
    assert [when for when, _ in sent] == [pytest.approx(leaves)]
    assert peer.pace_missed == 1
    peer.ledger.close()


def test_a_refused_frame_spoils_nothing_and_a_flood_is_bounded(paced):
    peer, _, sent = paced(0.0)
    peer._deliver(1, b"bad")
    peer._deliver(1, b"good")
    asyncio.run(peer._span(0.5))
    assert [raw for _, raw in sent] == [b"answer to good"]
    assert peer.refused["m1"] == 1
    for _ in range(runtime._PER_SPAN):
        peer._deliver(1, b"more")
    with pytest.raises(FrameError, match="one span"):
        peer._deliver(1, b"more")
    peer.ledger.close()


def test_a_paced_run_gives_the_bytes_of_one_without(consortium, memory_links):
    algorithm = {"name": "consensus-sgd", "protocol": "tree", "steps": 3, "noise_multiplier": 60.0}
    models = []
    for timing in ({}, {"pace": 0.02}):
        group = consortium(n=2, graph="path:2", algorithm=algorithm, epsilon=200.0, timing=timing)
        noises = [SimulatedNoise(3) for _ in range(2)]
        outcomes = group.run(noises=noises, transport=memory_links())
        models.append([outcome.model for outcome in outcomes])
        for i in range(2):
            group.state(i).rename(group.folder / f"{'paced' if timing else 'free'}{i}")
    assert np.array_equal(models[0], models[1])


def test_the_sheet_says_what_time_tells(consortium):
    from sottovoce.peers.agreed_run import AgreedRun
    from sottovoce.peers.signing_summary import signing_summary

    free = signing_summary(AgreedRun(consortium(n=2, graph="path:2").agreement))
    paced = signing_summary(AgreedRun(consortium(n=2, graph="path:2", timing={"pace": 1.0}).agreement))
    assert UNPACED in free["assumptions"]
    assert UNPACED not in paced["assumptions"]
    assert paced["timing"]["pace"] == 1.0
    with pytest.raises(ConfigError, match="pace"):
        consortium(n=2, graph="path:2", timing={"pace": 0.0})


def test_an_agreement_opens_alike_for_ten_steps_and_ten_millions(consortium, monkeypatch):
    """F11: however many steps, a schedule whose steps are alike is asked for a few protocols only."""
    from sottovoce.peers.agreed_run import AgreedRun
    from sottovoce.peers.signing_summary import signing_summary

    asked = []
    for steps in (10, 10_000_000):
        algorithm = {
            "name": "consensus-sgd",
            "protocol": "masked",
            "steps": steps,
            "noise_multiplier": 3000.0,
        }
        agreed = consortium(n=3, graph="path:3", algorithm=algorithm, epsilon=500.0).agreement
        kind, count = type(agreed.plan), []
        schedule = kind.schedule
        with monkeypatch.context() as patch:
            patch.setattr(kind, "schedule", lambda self, k, c=count, s=schedule: (c.append(k), s(self, k))[1])
            agreed_run = AgreedRun(agreed)
            signing_summary(agreed_run)
            agreed_run.table()
            agreed_run.spending(0)
        assert agreed_run.rounds == 4 * steps // 2
        asked.append(len(count))
    assert asked[0] == asked[1] < 200
