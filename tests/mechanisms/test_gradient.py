"""The mechanism of gradient sums."""

import math

import numpy as np
import pytest
from tests.mechanisms.toys import RECORDS, THETA, Recorder, Sums, gradient_mechanism

from sottovoce.accounting.release import Release
from sottovoce.algorithms import DPSGD, ConsensusSGD
from sottovoce.data import Shards
from sottovoce.errors import InvalidInput, ReleaseMismatch
from sottovoce.mechanisms import gradient
from sottovoce.mechanisms.gradient import GradientMechanism
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import ProtectiveNoise, SimulatedNoise
from sottovoce.objectives import GLM


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_row_is_a_clipped_sum_with_noise_over_the_divisor(adjacency):
    mechanism, noise = gradient_mechanism(adjacency)
    sums = np.array([[1.2, 1.6 + 1.0], [1.2, 1.6], [0.5, 0.5]])
    np.testing.assert_allclose(mechanism(THETA, 6), (sums + 100) / [[2], [4], [8]], rtol=1e-12)
    assert noise.calls == [([5, 7, 9], 6, [2.0, 4.0, 6.0], 0)]
    moves = 1 if adjacency == "add-remove" else 2
    assert mechanism.sensitivities.tolist() == [moves * 1.0, moves * 0.5, moves * 0.25]
    assert mechanism.noise_stds.tolist() == [1.0, 1.0, 0.75]
    assert mechanism.dim == 2


def test_at_user_level_the_mean_is_clipped_and_the_noise_is_not_divided():
    mechanism, noise = gradient_mechanism("user", divisors=[1.0, 5.0, 2.0])
    rows = np.array([[3.0, 5.0], [1.2, 1.6], [0.25, 0.25]])  # sums over their divisors
    rows[0] *= 2 / math.hypot(3, 5)
    np.testing.assert_allclose(mechanism(THETA, 0, stream=4), rows + 100, rtol=1e-12)
    assert noise.calls == [([5, 7, 9], 0, [2.0, 4.0, 6.0], 4)]
    assert mechanism.sensitivities.tolist() == [4.0] * 3
    assert mechanism.noise_stds.tolist() == [2.0, 4.0, 6.0]


def test_l2_term_is_inside_the_clip_of_an_agent_and_outside_that_of_a_record():
    record, _ = gradient_mechanism(decay=0.5, z=(0.0,) * 3)
    plain, _ = gradient_mechanism(z=(0.0,) * 3)
    np.testing.assert_allclose(record(THETA, 0), plain(THETA, 0))
    np.testing.assert_allclose(record.gradient_with_l2(THETA, 0), plain(THETA, 0) + 0.5 * THETA)
    np.testing.assert_allclose(plain.gradient_with_l2(THETA, 0), plain(THETA, 0))
    loud, noise = gradient_mechanism()
    loud.gradient_with_l2(THETA, 1)
    loud.gradient_with_l2(THETA, 1, 2)
    assert [stream for *_, stream in noise.calls] == [0, 2]
    user, _ = gradient_mechanism("user", decay=0.5, z=(0.0,) * 3, clip_norm=1e9)
    sums = np.array([[3.0, 5.0], [6.0, 8.0], [0.5, 0.5]]) / [[2], [4], [8]]
    np.testing.assert_allclose(user(THETA, 0), sums + 0.5 * THETA)
    assert user.decay == 0.0  # already in the release
    tight, _ = gradient_mechanism("user", decay=0.5, z=(0.0,) * 3, clip_norm=0.1)
    np.testing.assert_allclose(np.linalg.norm(tight(THETA, 0), axis=1), 0.1)


def test_rows_of_some_hosted_agents():
    mechanism, noise = gradient_mechanism(noise_ids=(50, 70, 90))
    np.testing.assert_allclose(mechanism.rows(THETA[[2, 0]], 1, 0, [2, 0])[:, 0], [100.5 / 8, 101.2 / 2])
    assert noise.calls == [([90, 50], 1, [6.0, 2.0], 0)]  # keyed by number, with each one's own noise


def test_without_noise_nothing_is_drawn_and_one_noise_is_enough_to_draw():
    quiet, noise = gradient_mechanism(z=(0.0,) * 3, clip_norm=math.inf)
    assert quiet(THETA, 0)[1].tolist() == [1.5, 2.0]
    assert noise.calls == noise.sizes == []
    assert quiet.stds.tolist() == [0.0] * 3
    one, noise = gradient_mechanism(z=(0.0, 0.0, 1.0))
    one(THETA, 0)
    assert len(noise.calls) == 1
    with pytest.raises(InvalidInput, match="finite clip"):
        gradient_mechanism(z=(0.0, 0.0, 1.0), clip_norm=math.inf)


@pytest.mark.parametrize(("adjacency", "paid"), [("add-remove", 0.5), ("replace-one", 0.5), ("user", 0.25)])
def test_rounding_slack_lowers_the_clip(adjacency, paid):
    """Two releases are rounded: twice the slack beside C, or beside 2C."""
    noise = Recorder(slack=0.25)
    mechanism, _ = gradient_mechanism(adjacency, noise=noise)
    assert mechanism.inner_clip == 2.0 - paid
    assert noise.sizes == [(2, 6.0)]  # for the widest noise, 3 clips
    longest = np.linalg.norm(mechanism(THETA, 0)[1] * (1 if adjacency == "user" else 4) - 100)
    assert longest == pytest.approx(2.0 - paid)
    assert mechanism.sensitivities.max() == {"add-remove": 1.0, "replace-one": 2.0, "user": 4.0}[adjacency]


@pytest.mark.parametrize(("adjacency", "too_much"), [("add-remove", 1.0), ("user", 2.0)])
def test_rounding_slack_above_the_clip_is_refused(adjacency, too_much):
    with pytest.raises(InvalidInput, match="rounding slack"):
        gradient_mechanism(adjacency, noise=Recorder(slack=too_much))
    mechanism, _ = gradient_mechanism(adjacency, noise=Recorder(slack=0.99 * too_much))
    assert 0 < mechanism.inner_clip < 0.05


def test_local_update_is_the_whole_move_clipped_once():
    mechanism, noise = gradient_mechanism("user", clip_norm=1e9, decay=0.5, z=(1e-9,) * 3)
    moved = mechanism.local_update(THETA, 2, steps=2, rate=0.1)
    mean = np.array([[3.0, 5.0], [6.0, 8.0], [0.5, 0.5]]) / [[2], [4], [8]]
    local = THETA
    for _ in range(2):
        local = local - 0.1 * (mean + 0.5 * local)
    np.testing.assert_allclose(moved - 100, THETA - local, rtol=1e-9)
    assert noise.calls == [([5, 7, 9], 2, [1.0] * 3, 0)]
    tight, _ = gradient_mechanism("user", clip_norm=0.25)
    lengths = np.linalg.norm(tight.local_update(THETA, 0, steps=3, rate=1.0) - 100, axis=1)
    np.testing.assert_allclose(lengths, 0.25)
    with pytest.raises(InvalidInput, match="user"):
        gradient_mechanism()[0].local_update(THETA, 0, steps=1, rate=1.0)


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("averaging", [False, True])
def test_descend_draws_and_records_like_single_steps(noisy, averaging, monkeypatch):
    monkeypatch.setattr(gradient, "_AHEAD", 40)  # two steps at a time
    rng = np.random.default_rng(4)
    data = Shards(rng.normal(size=(40, 3)) * 3, rng.normal(size=40), np.array([0, 40]))
    planned = [[Release(6, 0, 0.7 / 20, (1.5 if noisy else 0.0) * 0.7 / 20, "add-remove", 0.5, steps=9)]]

    def fresh():
        return GradientMechanism(
            query=GLM("squared").query(data),
            agents=[6],
            random=RunRandomness(SimulatedNoise(3), batches=5, start_seed=0, noise_ids=(8,)),
            clip_norm=0.7,
            noise_multipliers=[1.5 if noisy else 0.0],
            adjacency="add-remove",
            sample_rates=[0.5],
            divisors=[20.0],
            announced_releases=planned,
        ).recording()

    one, many, rates = fresh(), fresh(), np.linspace(0.9, 0.1, 7)
    assert many.descends
    theta, total = np.ones((1, 3)), np.zeros((1, 3)) if averaging else np.zeros((0,))
    w, sums = theta, np.zeros((1, 3))
    for k, rate in enumerate(rates, 2):
        w = w - rate * one(w, k)
        sums = sums + w
    actual, added = many.descend(theta, total, 2, rates)
    np.testing.assert_allclose(actual, w, rtol=1e-12)
    assert (theta == 1).all()
    assert not total.any()
    if averaging:
        np.testing.assert_allclose(added, sums, rtol=1e-12)
    else:
        assert added.shape == (0,)
    assert one.drain() == many.drain()
    with pytest.raises(ReleaseMismatch):
        many.descend(theta, total, 3, rates)  # one step too far


def test_only_one_agent_at_record_level_descends():
    data = Shards(np.ones((4, 1)), np.ones(4), np.array([0, 2, 4]))
    common = {"clip_norm": 1.0, "random": RunRandomness(Recorder(), batches=0, start_seed=0)}

    def descends(query, agents, adjacency):
        n = len(agents)
        return GradientMechanism(
            query=query, agents=agents, noise_multipliers=[1.0] * n, adjacency=adjacency,
            sample_rates=[1.0] * n, divisors=[1.0] * n, **common,
        ).descends  # fmt: skip

    alone, both = GLM("squared").query(data.subset([0])), GLM("squared").query(data)
    assert descends(alone, [0], "add-remove")
    assert not descends(alone, [0], "user")
    assert not descends(both, [0, 1], "add-remove")
    assert not descends(Sums(RECORDS[:1]), [0], "add-remove")


def test_noise_meets_the_sum_before_it_is_rounded_to_the_rows_type():
    """Rounding a float64 sum first would let one record move what leaves by an ulp more."""

    class Wide:
        dim, dtype, sizes, decay = 300, np.float32, np.array([1]), 0.0

        def reseed(self, seeds):
            pass

        def sums(self, theta, batches, places, clip_norm):
            return np.full((1, 300), 2.0**24 + 1)  # no float32

    def released(noise):
        random = RunRandomness.from_rng(noise)
        options = {"adjacency": "add-remove", "divisors": [4.0], "noise_multipliers": [0.6]}
        mechanism = GradientMechanism(
            query=Wide(), agents=[0], random=random, clip_norm=1.0, sample_rates=[1.0], **options
        )
        return mechanism(np.zeros((1, 300), np.float32), 3)

    drawn = SimulatedNoise(5).perturb(np.zeros((1, 300), np.float32), agents=[0], step=3, std=0.6)
    actual = released(SimulatedNoise(5))
    assert actual.dtype == np.float32
    assert (actual == ((2.0**24 + 1 + drawn.astype(float)) / 4).astype(np.float32)).all()
    assert (actual != ((2.0**24 + drawn.astype(float)) / 4).astype(np.float32)).any()
    assert released(ProtectiveNoise()).dtype == np.float32


@pytest.mark.parametrize("extra", [0, 1, 7])
def test_the_divisor_stays_when_a_batch_holds_more_records(extra):
    """Records without a gradient enlarge the batch and leave the row as it was, to the last bit."""
    plan = ConsensusSGD(
        GLM("squared", dim=1), network="complete:2", clip_norm=2.0, batch_size=20.0, sample_rate=1.0
    )
    X, y = np.ones((24 + extra, 1)), np.r_[np.full(24, -1.0), np.zeros(extra)]  # gradients 1, and 0
    parts = [np.arange(12), np.arange(12, 24 + extra)]
    mechanism = plan.mechanism(
        Shards.from_parts(X, y, parts), [0, 1], RunRandomness.from_rng(SimulatedNoise(0))
    )
    assert [len(batch) for batch in mechanism.batches.draw([0, 1], 0)] == [12, 12 + extra]
    assert mechanism(np.zeros((2, 1)), 0).tolist() == [[12 / 20], [12 / 20]]


def test_poisson_batches_are_divided_by_their_expected_size():
    """With gradients of 1 a step is the realized size over 20; over that size itself it would be 1."""
    plan = DPSGD(
        GLM("squared", dim=1), records=200, batch_size=20.0, clip_norm=2.0, steps=1, learning_rate=1.0
    )
    data, sizes = (np.ones((200, 1)), -np.ones(200)), set()
    for seed in range(8):
        mechanism = plan.mechanism(plan.prepared(data), [0], RunRandomness.from_rng(SimulatedNoise(seed)))
        size = len(mechanism.batches.draw([0], 0)[0])
        assert mechanism(np.zeros((1, 1)), 0).item() == size / 20
        assert plan.run(data, SimulatedNoise(seed)).coef.item() == -size / 20  # the compiled loop
        sizes.add(size)
    assert len(sizes) > 3
