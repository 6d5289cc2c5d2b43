"""Thousands of worlds under faults: the ledger is never behind, payloads are unique, results are exact."""

import numpy as np
import pytest
from verification.simulator import Faults, Shape, SimulatedStore, World, shapes

from sottovoce import graphs, protocols
from sottovoce.accounting.budget import Budget
from sottovoce.errors import BudgetExceeded
from sottovoce.peers.core import Timing
from sottovoce.peers.wire_format import ROW, FrameCodec
from verification import liars, simulator, slow_hops

WORLDS = 2_000
PARTS = 13
# four parts in every run, all of them with `make test-slow`
SHARES = [*range(4), *(pytest.param(part, marks=pytest.mark.slow) for part in range(4, PARTS))]


@pytest.mark.parametrize("part", SHARES)
def test_worlds_keep_every_promise_and_end_in_the_fault_free_model(part):
    """I1, I2, I3, I6 over 2,000 worlds of delay, loss, duplication, reordering, partitions and power cuts."""
    power = rows = 0
    for seed in range(part, WORLDS, PARTS):
        world = World(seed, Faults())
        world.run()
        assert world.violations == [], f"world {seed}"
        assert not world.stopped, f"world {seed}"
        power += world.counts["power"]
        rows += world.counts["rows"]
    assert power > 120  # the worlds are not calm
    assert rows > 3_000


SLOW = {
    "complete:6, pace 0.5": (graphs.complete(6), 130, 0.5, {"pace": 0.5}),
    "complete:6, pace 1.2": (graphs.complete(6), 130, 1.2, {"pace": 1.2}),
    "complete:6, steps of 1.5 s": (graphs.complete(6), 130, 1.5, {"step_seconds": 1.5}),
    "complete:6, hops of 3 s": (graphs.complete(6), 130, 4.5, {"faults": Faults.none()._replace(hop=3.0)}),
    "ring of 50": (graphs.ring(50), 70, 0.13, {}),
}


@pytest.mark.parametrize("name", SLOW)
def test_frames_per_row_are_bounded_however_long_a_hop_takes(name):
    """I27: at most four frames per row and neighbor, and rounds as fast as hop, step or pace."""
    graph, steps, seconds, options = SLOW[name]
    shape, timing = Shape(protocols.Gossip(graph, 1), steps, 1), Timing(witness=32)
    world = World(1, **{"faults": Faults.none(), **options}, shape=shape, timing=timing, horizon=1e5)
    world.run(most_events=500_000)
    assert world.violations == []
    frames, rows = sum(world.frames.values()), len(world.on_wire)
    assert rows == steps * graph.n
    assert frames <= 4 * rows * 2 * graph.edges.shape[0] / graph.n
    assert world.frames[ROW] <= 1.1 * rows * 2 * graph.edges.shape[0] / graph.n
    assert world.now <= 1.15 * steps * seconds


def test_slow_worlds_keep_every_promise_within_the_bound():
    """`make verify-hops` runs 2,000 of them."""
    for seed in range(44):
        world = slow_hops.lived(seed)
        assert world.violations == [], f"world {seed}"
        assert slow_hops.share_of_bound(world) <= 1, f"world {seed}"


def test_copied_and_rolled_back_folders_are_noticed():
    """I1c: if two payloads for one (round, sender) were ever held, somebody noticed."""
    copied = equivocated = 0
    for seed in range(10_000, 10_160):
        # without witnesses neighbors alone remember; with them most copies never get so far
        world = World(seed, Faults(rollback=0.5, clone=1.0), witness=2 * (seed % 2))
        world.run()
        assert world.violations == [], f"world {seed}"
        copied += world._copied >= 0
        equivocated += world.equivocated
        assert world.noticed or not world.equivocated, f"world {seed}"
    assert copied > 60
    assert equivocated > 3


def test_exchanges_are_left_out_at_both_ends_or_at_none():
    """With the rule `drop`: ends always agree, and the result is that of the schedule that really ran."""
    left_out = 0
    for seed in range(150):
        world = World(seed, Faults(partitions=2, random_power=2), drop_after=0.15)
        world.run()
        assert world.violations == [], f"world {seed}"
        assert not world.stopped, f"world {seed}"
        left_out += sum(len(pairs) for pairs in world.left_out().values()) // 2
    assert left_out > 200


def test_a_missing_sync_is_seen(monkeypatch):
    """The simulated disk catches a store that forgets to sync (kill -9 alone never would)."""

    def forgetful(self, entry):
        self.disk.write(entry)
        if self.interrupt():
            raise simulator.PowerLoss

    monkeypatch.setattr(SimulatedStore, "commit", forgetful)
    world = World(3, Faults())
    world.run(most_events=500)
    assert any(violation.startswith("I1") for violation in world.violations)


def test_every_kind_of_protocol_is_among_the_worlds():
    names = {shape.protocol.name for shape in shapes()}
    assert {"gossip", "chebyshev", "fresh-noise", "exchange", "tree"} <= names


def test_the_budget_ends_a_run_before_anything_more_is_sent():
    """Three releases planned, two affordable: two are charged and sent, the third never is."""
    seed = 1  # gossip on a ring, three steps
    plan = World(seed, Faults.none())
    assert plan.shape.steps == 3
    from sottovoce.accounting.gaussian import gaussian_epsilon

    two = float(gaussian_epsilon(np.sqrt(2) * 2 / simulator.NOISE_MULTIPLIER, 1e-5))
    world = World(seed, Faults.none(), budget=Budget(two * 1.0001, 1e-5, adjacency="user"))
    with pytest.raises(BudgetExceeded):
        world.run()
    assert world.violations == []
    assert {r for r, _ in world.on_wire} <= {0, 1}
    for disk in world.disks:
        assert sum(release.draws for entry in disk.durable for release in entry.releases) <= 2


def test_a_world_is_decided_by_its_seed():
    logs = []
    for _ in range(2):
        world = World(77, Faults())
        world.run()
        logs.append(world.log)
    assert logs[0] == logs[1]


@pytest.mark.parametrize("seed", range(14))
def test_non_interference(seed):
    """I12: other private values, same seed: the same frames of the same sizes in the same order, same log."""
    logs = []
    for shift in (0.0, 1e6):
        shape = shapes()[seed % len(shapes())]
        values = np.full((shape.protocol.n, shape.dim), shift)
        world = World(seed, Faults(), values=values)
        world.run()
        logs.append((world.log, world.counts, sorted(world.stopped)))
    assert logs[0] == logs[1]


@pytest.mark.parametrize("part", range(2))
def test_no_row_leaves_twice_while_one_honest_member_remembers(part):
    """I17: with a witness of every row, whoever lies and whatever is kept back."""
    counts = liars.count(range(50 * part, 50 * part + 50), 1)
    assert counts["violations"] == counts["honest_sent_twice"] == 0
    assert counts["honest_set_back"] > 20
    assert counts["honest_noticed"] > 15


def test_with_rarer_heads_whoever_got_the_first_version_notices_the_second():
    counts = liars.count(range(100, 150), 8)
    assert counts["violations"] == counts["honest_sent_twice_unnoticed_by_a_receiver"] == 0
    assert counts["honest_noticed"] > 15


def test_what_the_printed_assumption_excludes():
    """Everybody else was set back too and lies: rows leave twice and nobody is left to know it."""
    counts = liars.count(range(30, 40), 1)
    assert counts["all_lie_set_back"] > 2
    assert counts["all_lie_sent_twice_unnoticed"] > 0


@pytest.mark.parametrize("kind", ["model", "rows"])
def test_a_member_in_the_middle_that_tells_two_stories_is_found(kind):
    """North and east hear different things of south; what each signs of it south must hand on."""
    path = graphs.path(3)
    shape = Shape(protocols.Tree(path, root=1) if kind == "model" else protocols.Gossip(path, 3), 2, 1)
    world = World(5, Faults.none(), shape=shape)
    real = World._send

    def two_stories(self, slot, to, raw):
        if slot == 1 and to == 2 and FrameCodec.kind_of(raw) == ROW:
            frame = self.codec.decode(raw)
            raw = self.codec.row(self.codec.values(frame) + 1.0, sender=1, round=frame.round)
            self.held.clear()
        real(self, slot, to, raw)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "_send", two_stories)
        patch.setattr(World, "_check_row", lambda *what: None)
        world.run()
    errors = [str(error) for error in world.stopped.values()]
    reasons = ("another model", "other rows", "another row")  # whichever signed answer comes first
    assert any(words in error for error in errors for words in reasons), errors
