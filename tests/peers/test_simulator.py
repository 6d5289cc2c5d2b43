"""Thousands of worlds under faults: the ledger is never behind, payloads are unique, results are exact."""

import numpy as np
import pytest

from sottovoce.errors import BudgetExceeded
from sottovoce.peers import simulator
from sottovoce.peers.simulator import Faults, SimulatedStore, World, shapes
from sottovoce.privacy.releases import Budget

WORLDS = 2_000
PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
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
    assert power > 200  # the worlds are not calm
    assert rows > 5_000


def test_copied_and_rolled_back_folders_are_noticed():
    """I1c: if two payloads for one (round, sender) were ever held, somebody noticed."""
    copied = equivocated = 0
    for seed in range(10_000, 10_160):
        world = World(seed, Faults(rollback=0.5, clone=1.0))
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
    assert {"gossip", "chebyshev", "refreshed", "exchange", "tree"} <= names


def test_the_budget_ends_a_run_before_anything_more_is_sent():
    """Three releases planned, two affordable: two are charged and sent, the third never is."""
    seed = 1  # gossip on a ring, three steps
    plan = World(seed, Faults.none())
    assert plan.shape.steps == 3
    from sottovoce.privacy.gaussian import gaussian_epsilon

    two = float(gaussian_epsilon(np.sqrt(2) * 2 / simulator.NOISE_MULTIPLIER, 1e-5))
    world = World(seed, Faults.none(), budget=Budget(two * 1.0001, 1e-5))
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


def test_an_incident_survives_a_power_cut():
    """A second payload was seen once and kept in memory only: two power cuts later nobody knew of it."""
    exchange = next(shape for shape in shapes() if shape.protocol.name == "exchange")
    world = World(10_138, Faults(rollback=0.5, clone=1.0), shape=exchange)
    world.run()
    assert world.counts["power"] > 0
    assert world.equivocated
    assert world.noticed
