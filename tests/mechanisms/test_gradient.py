"""The gradient mechanism by hand: clip, sum, noise, divisor, check and record, number by number."""

import math

import numpy as np
import pytest
import torch

from sottovoce.accounting.release import Release
from sottovoce.data import Shards
from sottovoce.data.poisson_sampling import PoissonSampler
from sottovoce.errors import InvalidInput, ReleaseMismatch
from sottovoce.mechanisms import gradient
from sottovoce.mechanisms.base import AnnouncedReleases
from sottovoce.mechanisms.gradient import GradientMechanism
from sottovoce.mechanisms.value import ValueMechanism
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import ProtectiveNoise, SimulatedNoise
from sottovoce.objectives import GLM
from sottovoce.objectives.clipping import clip_around, clip_in_place, clip_rows, clip_scalar, clip_weights


class Recorder:
    """Adds a hundred to what it noises, and keeps what it was asked."""

    protective = False

    def __init__(self, slack=0.0):
        self.paid, self.asked, self.sizes = slack, [], []

    def perturb(self, values, *, agents, step, std, stream=0):
        stds = np.broadcast_to(std, len(values)).tolist()
        self.asked.append((list(agents), step, stds, stream))
        return np.array(values) + 100

    def slack(self, dim, std=1.0):
        self.sizes.append((dim, std))
        return self.paid


class Sums:
    """A query whose records are vectors, clipped and added."""

    width, dtype, compiled_descent = 2, np.float64, None

    def __init__(self, records, decay=0.0):
        self.records, self.decay = [np.array(r, float) for r in records], decay
        self.sizes = np.array([len(r) for r in self.records])

    def reseed(self, seeds):
        pass

    def sums(self, theta, batches, places, clip_norm):
        chosen = [self.records[p][batch_size] for p, batch_size in zip(places, batches, strict=True)]
        return np.array(
            [(r if clip_norm == math.inf else clip_rows(r, clip_norm)).sum(axis=0) for r in chosen]
        )


RECORDS = [[[3.0, 4.0], [0.0, 1.0]], [[6.0, 8.0]], [[0.0, 0.5], [0.5, 0.0], [0.0, 0.0]]]


def gate(
    adjacency="add-remove",
    *,
    noise=None,
    decay=0.0,
    releases=None,
    z=(1.0, 2.0, 3.0),
    numbers=None,
    **options,
):
    noise = Recorder() if noise is None else noise
    given = {"clip_norm": 2.0, "rates": [1.0] * 3, "divisors": [2.0, 4.0, 8.0], **options}
    source = GradientMechanism(
        query=Sums(RECORDS, decay),
        agents=[5, 7, 9],
        random=RunRandomness(noise, batches=3, start=0, numbers=numbers),
        adjacency=adjacency,
        noise_multipliers=z,
        releases=releases,
        **given,
    )
    return source, noise


THETA = np.array([[1.0, 0.0], [0.0, 2.0], [4.0, 4.0]])


# ---- sums, noise, divisor ------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_a_row_is_a_clipped_sum_with_noise_over_the_divisor(adjacency):
    source, noise = gate(adjacency)
    sums = np.array([[1.2, 1.6 + 1.0], [1.2, 1.6], [0.5, 0.5]])
    np.testing.assert_allclose(source(THETA, 6), (sums + 100) / [[2], [4], [8]], rtol=1e-12)
    assert noise.asked == [([5, 7, 9], 6, [2.0, 4.0, 6.0], 0)]
    moves = 1 if adjacency == "add-remove" else 2
    assert source.sensitivities.tolist() == [moves * 1.0, moves * 0.5, moves * 0.25]
    assert source.noise_stds.tolist() == [1.0, 1.0, 0.75]
    assert source.width == 2


def test_at_user_level_the_mean_is_clipped_and_the_noise_is_not_divided():
    source, noise = gate("user", divisors=[1.0, 5.0, 2.0])
    rows = np.array([[3.0, 5.0], [1.2, 1.6], [0.25, 0.25]])  # sums over their divisors
    rows[0] *= 2 / math.hypot(3, 5)
    np.testing.assert_allclose(source(THETA, 0, stream=4), rows + 100, rtol=1e-12)
    assert noise.asked == [([5, 7, 9], 0, [2.0, 4.0, 6.0], 4)]
    assert source.sensitivities.tolist() == [4.0] * 3
    assert source.noise_stds.tolist() == [2.0, 4.0, 6.0]


def test_the_l2_term_is_inside_the_clip_of_an_agent_and_outside_that_of_a_record():
    record, _ = gate(decay=0.5, z=(0.0,) * 3)
    plain, _ = gate(z=(0.0,) * 3)
    np.testing.assert_allclose(record(THETA, 0), plain(THETA, 0))
    np.testing.assert_allclose(record.gradient_with_l2(THETA, 0), plain(THETA, 0) + 0.5 * THETA)
    np.testing.assert_allclose(plain.gradient_with_l2(THETA, 0), plain(THETA, 0))
    loud, noise = gate()
    loud.gradient_with_l2(THETA, 1)
    loud.gradient_with_l2(THETA, 1, 2)
    assert [stream for *_, stream in noise.asked] == [0, 2]
    user, _ = gate("user", decay=0.5, z=(0.0,) * 3, clip_norm=1e9)
    sums = np.array([[3.0, 5.0], [6.0, 8.0], [0.5, 0.5]]) / [[2], [4], [8]]
    np.testing.assert_allclose(user(THETA, 0), sums + 0.5 * THETA)
    assert user.decay == 0.0  # already in the release
    tight, _ = gate("user", decay=0.5, z=(0.0,) * 3, clip_norm=0.1)
    np.testing.assert_allclose(np.linalg.norm(tight(THETA, 0), axis=1), 0.1)


def test_some_of_the_hosted_agents_only():
    source, noise = gate(numbers=(50, 70, 90))
    np.testing.assert_allclose(source.rows(THETA[[2, 0]], 1, 0, [2, 0])[:, 0], [100.5 / 8, 101.2 / 2])
    assert noise.asked == [([90, 50], 1, [6.0, 2.0], 0)]  # keyed by number, with each one's own noise


def test_without_noise_no_source_is_asked_and_one_noise_is_enough_to_ask():
    quiet, noise = gate(z=(0.0,) * 3, clip_norm=math.inf)
    assert quiet(THETA, 0)[1].tolist() == [1.5, 2.0]
    assert noise.asked == noise.sizes == []
    assert quiet.stds.tolist() == [0.0] * 3
    one, noise = gate(z=(0.0, 0.0, 1.0))
    one(THETA, 0)
    assert len(noise.asked) == 1
    with pytest.raises(InvalidInput, match="finite clip"):
        gate(z=(0.0, 0.0, 1.0), clip_norm=math.inf)


# ---- rounding is paid for ------------------------------------------------------------------------------


@pytest.mark.parametrize(("adjacency", "paid"), [("add-remove", 0.5), ("replace-one", 0.5), ("user", 0.25)])
def test_rounding_is_paid_for_by_a_lower_clip(adjacency, paid):
    """Two releases are rounded: twice the slack beside C, or beside 2C."""
    noise = Recorder(slack=0.25)
    source, _ = gate(adjacency, noise=noise)
    assert source.inner_clip == 2.0 - paid
    assert noise.sizes == [(2, 6.0)]  # asked for the widest noise, 3 clips
    longest = np.linalg.norm(source(THETA, 0)[1] * (1 if adjacency == "user" else 4) - 100)
    assert longest == pytest.approx(2.0 - paid)
    assert source.sensitivities.max() == {"add-remove": 1.0, "replace-one": 2.0, "user": 4.0}[adjacency]


@pytest.mark.parametrize(("adjacency", "too_much"), [("add-remove", 1.0), ("user", 2.0)])
def test_rounding_beyond_the_clip_is_refused(adjacency, too_much):
    with pytest.raises(InvalidInput, match="rounding slack"):
        gate(adjacency, noise=Recorder(slack=too_much))
    source, _ = gate(adjacency, noise=Recorder(slack=0.99 * too_much))
    assert 0 < source.inner_clip < 0.05


# ---- what was announced --------------------------------------------------------------------------------


def announced(**changes):
    return [
        [Release(a, 0, 2.0 / d, z * 2.0 / d, "add-remove", **{"steps": 4, **changes})]
        for a, z, d in ((5, 1.0, 2.0), (7, 2.0, 4.0), (9, 3.0, 8.0))
    ]


def test_what_was_announced_passes_to_its_last_step_and_no_further():
    source, noise = gate(releases=announced(count=2))
    for step, stream in ((0, 0), (3, 0), (3, 1)):
        source(THETA, step, stream)
    for step, stream in ((4, 0), (0, 2)):
        with pytest.raises(ReleaseMismatch, match="does not list"):
            source(THETA, step, stream)
    assert len(noise.asked) == 3  # nothing was drawn for the others


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("field", ["sensitivity", "noise_std"])
def test_every_agents_numbers_are_compared(place, field):
    listed = announced()
    right = listed[place][0]
    listed[place] = [Release(**{**right.to_dict(), field: np.nextafter(getattr(right, field), 9.0)})]
    source, noise = gate(releases=listed)
    with pytest.raises(ReleaseMismatch, match="nothing was released"):
        source(THETA, 0)
    others = [p for p in range(3) if p != place]
    source.rows(THETA[others], 0, 0, others)
    assert len(noise.asked) == 1


def test_a_stretch_of_one_agent_is_not_anothers():
    """Equal numbers and unlike stretches: what one may draw, another may not."""
    at = {"sensitivity": 1.0, "noise_std": 1.0}
    planned = AnnouncedReleases([[Release(0, 0, **at, steps=6)], [Release(1, 0, **at, steps=3)]])
    planned.check([0], 5, 0, **at)
    planned.check([0, 1], 2, 0, **at)
    with pytest.raises(ReleaseMismatch):
        planned.check([1], 5, 0, **at)
    with pytest.raises(ReleaseMismatch):
        planned.check([0, 1], 5, 0, **at)
    for other in ({"step": 1}, {"count": 2}, {"stream": 1}, {"mechanism": "laplace"}):
        planned = AnnouncedReleases(
            [[Release(0, 0, **at, steps=6)], [Release(**{"sender": 1, "step": 0, **at, "steps": 6, **other})]]
        )
        planned.check([0], 0, 0, **at)
        with pytest.raises(ReleaseMismatch):
            planned.check([0], 0, 1, **at)
    with pytest.raises(ReleaseMismatch, match="laplace"):
        planned.check([1], 0, 0, **at)
    planned.check([1], 0, 0, **at, mechanism="laplace")
    alone = AnnouncedReleases([[Release(0, 0, **at, mechanism="laplace")]])
    alone.check([0], 0, 0, **at, mechanism="laplace")
    with pytest.raises(ReleaseMismatch, match="laplace"):
        alone.check([0], 0, 0, **at)


@pytest.mark.parametrize("agents", [1, 2])
def test_draws_in_a_row_lie_within_one_stretch(agents):
    at = {"sensitivity": 1.0, "noise_std": 1.0}
    planned = AnnouncedReleases(
        [
            [Release(a, 2, **at, steps=3), *([Release(a, 5, **at, steps=2)] if a else [])]
            for a in range(agents)
        ]
    )
    planned.check([0], 2, 0, **at, steps=3)
    for step, steps in ((1, 1), (2, 4), (4, 2), (1, 2)):
        with pytest.raises(ReleaseMismatch):
            planned.check([0], step, 0, **at, steps=steps)
    long = AnnouncedReleases([[Release(0, 0, **at, steps=10)]])
    long.check([0], 6, 0, **at, steps=4)
    with pytest.raises(ReleaseMismatch):
        long.check([0], 8, 0, **at, steps=3)
    if agents == 2:
        planned.check([1], 5, 0, **at, steps=2)
        planned.check([1], 4, 0, **at)
        with pytest.raises(ReleaseMismatch):  # two stretches, even equal ones, are not one
            planned.check([1], 4, 0, **at, steps=2)


def test_an_agent_that_announced_nothing_may_draw_nothing():
    at = {"sensitivity": 1.0, "noise_std": 1.0}
    planned = AnnouncedReleases([[], [Release(1, 0, **at)]])
    planned.check([1], 0, 0, **at)
    for nothing in (planned, AnnouncedReleases([[], []])):
        with pytest.raises(ReleaseMismatch, match="does not list"):
            nothing.check([0], 0, 0, **at)


# ---- what is noted -------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", ["add-remove", "user"])
def test_a_meter_notes_every_draw_with_the_gates_own_numbers(adjacency):
    source, _ = gate(adjacency, rates=[1.0, 0.5, 0.25])
    source(THETA, 0)
    assert source.drain() == ()  # not metered yet
    assert source.recording() is source
    source.rows(THETA[[1]], 3, 0, [1])
    source.rows(THETA[[2]], 4, 0, [2])
    record = adjacency == "add-remove"
    expected = [
        Release(7, 3, 0.5 if record else 4.0, 1.0 if record else 4.0, adjacency, 0.5 if record else 1.0),
        Release(9, 4, 0.25 if record else 4.0, 0.75 if record else 6.0, adjacency, 0.25 if record else 1.0),
    ]
    source.recording()  # keeps what was noted
    assert list(source.drain()) == expected
    source.rows(THETA[[1]], 5, 0, [1])  # it goes on noting, and nothing twice
    assert [r.step for r in source.drain()] == [5]
    assert source.drain() == ()
    quiet, _ = gate(adjacency, z=(0.0,) * 3)
    quiet.recording()(THETA, 0)
    assert quiet.drain() == ()


# ---- a whole update ------------------------------------------------------------------------------------


def test_a_local_update_is_the_whole_move_clipped_once():
    source, noise = gate("user", clip_norm=1e9, decay=0.5, z=(1e-9,) * 3)
    moved = source.local_update(THETA, 2, steps=2, rate=0.1)
    mean = np.array([[3.0, 5.0], [6.0, 8.0], [0.5, 0.5]]) / [[2], [4], [8]]
    local = THETA
    for _ in range(2):
        local = local - 0.1 * (mean + 0.5 * local)
    np.testing.assert_allclose(moved - 100, THETA - local, rtol=1e-9)
    assert noise.asked == [([5, 7, 9], 2, [1.0] * 3, 0)]
    tight, _ = gate("user", clip_norm=0.25)
    lengths = np.linalg.norm(tight.local_update(THETA, 0, steps=3, rate=1.0) - 100, axis=1)
    np.testing.assert_allclose(lengths, 0.25)
    with pytest.raises(InvalidInput, match="user"):
        gate()[0].local_update(THETA, 0, steps=1, rate=1.0)


# ---- compiled steps are the same steps -----------------------------------------------------------------


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("averaging", [False, True])
def test_a_block_draws_clips_and_notes_what_single_steps_do(noisy, averaging, monkeypatch):
    monkeypatch.setattr(gradient, "_AHEAD", 40)  # two steps at a time
    rng = np.random.default_rng(4)
    data = Shards(rng.normal(size=(40, 3)) * 3, rng.normal(size=40), np.array([0, 40]))
    listed = [[Release(6, 0, 0.7 / 20, (1.5 if noisy else 0.0) * 0.7 / 20, "add-remove", 0.5, steps=9)]]

    def fresh():
        return GradientMechanism(
            query=GLM("squared").query(data),
            agents=[6],
            random=RunRandomness(SimulatedNoise(3), batches=5, start=0, numbers=(8,)),
            clip_norm=0.7,
            noise_multipliers=[1.5 if noisy else 0.0],
            adjacency="add-remove",
            rates=[0.5],
            divisors=[20.0],
            releases=listed,
        ).recording()

    one, many, rates = fresh(), fresh(), np.linspace(0.9, 0.1, 7)
    assert many.descends
    theta, total = np.ones((1, 3)), np.zeros((1, 3)) if averaging else np.zeros((0,))
    w, sums = theta, np.zeros((1, 3))
    for k, rate in enumerate(rates, 2):
        w = w - rate * one(w, k)
        sums = sums + w
    found, added = many.descend(theta, total, 2, rates)
    np.testing.assert_allclose(found, w, rtol=1e-12)
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
    common = {"clip_norm": 1.0, "random": RunRandomness(Recorder(), batches=0, start=0)}

    def descends(query, agents, adjacency):
        n = len(agents)
        return GradientMechanism(
            query=query, agents=agents, noise_multipliers=[1.0] * n, adjacency=adjacency, rates=[1.0] * n,
            divisors=[1.0] * n, **common,
        ).descends  # fmt: skip

    alone, both = GLM("squared").query(data.subset([0])), GLM("squared").query(data)
    assert descends(alone, [0], "add-remove")
    assert not descends(alone, [0], "user")
    assert not descends(both, [0, 1], "add-remove")
    assert not descends(Sums(RECORDS[:1]), [0], "add-remove")


# ---- averaging -----------------------------------------------------------------------------------------


def test_values_are_pulled_into_the_ball_and_noised_about_the_center():
    noise = Recorder(slack=0.25)
    rows = np.array([[10.0], [4.125], [np.nan]])
    listed = [[Release(a, 0, 1.0, 3.0)] for a in (5, 7, 9)]
    source = ValueMechanism(
        rows=rows,
        agents=[5, 7, 9],
        random=RunRandomness(noise, batches=0, start=0),
        radius=0.5,
        noise_std=3.0,
        center=4.0,
        releases=listed,
    )
    assert source.rows.ravel().tolist() == [4.25, 4.125, 4.0]
    assert noise.sizes == [(1, 3.0)]
    assert source.released(0).ravel().tolist() == [104.25, 104.125, 104.0]
    assert source.drain() == ()
    for _ in range(2):
        source.recording().released(0)
        assert source.recording().drain() == tuple(r for (r,) in listed)
    source.released(0)
    assert len(source.drain()) == 3
    assert source.drain() == ()
    assert noise.asked == [([5, 7, 9], 0, [3.0] * 3, 0)] * 4
    with pytest.raises(ReleaseMismatch):
        source.released(1)


def test_values_without_room_for_rounding_are_refused_and_late_noise_is_left_to_the_protocol():
    noise = Recorder(slack=1.0)
    random = RunRandomness(noise, batches=0, start=0)
    with pytest.raises(InvalidInput, match="rounding slack"):
        ValueMechanism(rows=np.zeros((1, 1)), agents=[0], random=random, radius=1.0, noise_std=3.0)
    common = {"agents": [0], "random": RunRandomness(Recorder(), batches=0, start=0), "noise_std": 3.0}
    later = ValueMechanism(rows=np.ones((1, 1)), radius=2.0, noise_later=True, **common)
    assert later.released(0).tolist() == [[1.0]]
    far = ValueMechanism(rows=np.full((1, 1), 5.0), radius=2.0, **common)
    assert far.released(0).tolist() == [[102.0]]  # about zero, with noise, unless told otherwise


# ---- the clip ------------------------------------------------------------------------------------------


def numba_form(rows, bound):
    out = np.array(rows, float)
    with np.errstate(all="ignore"):  # interpreted (a mutant is), numpy warns where compiled code does not
        for row in out:
            clip_in_place(row, bound)
    return out


@pytest.mark.parametrize("form", [clip_rows, numba_form], ids=["numpy", "numba"])
def test_rows_are_clipped_by_hand(form):
    rows = np.array([
        [3.0, 4.0], [0.6, 0.8], [0.3, 0.4], [0.0, 0.0], [-3.0, 0.0], [np.nan, 1.0], [1.0, -np.inf],
            [3e200, -4e200],
        [1e-200, 0.0], [1e308, 1e308],
    ])  # fmt: skip
    want = np.array([
        [0.6, 0.8], [0.6, 0.8], [0.3, 0.4], [0.0, 0.0], [-1.0, 0.0], [0, 0], [0, 0],
            [0.6, -0.8], [1e-200, 0.0],
        [math.sqrt(0.5), math.sqrt(0.5)],
    ])  # fmt: skip
    np.testing.assert_allclose(form(rows, 1.0), want, rtol=1e-15)
    assert form(np.array([[0.3, 0.4]]), 0.6).tolist() == [[0.3, 0.4]]  # what is inside keeps its bits
    np.testing.assert_allclose(form(np.array([[3e200, 4e200]]), 1e200), [[6e199, 8e199]], rtol=1e-15)
    np.testing.assert_allclose(form(np.array([[3e160, 4e160]]), 1e161), [[3e160, 4e160]], rtol=1e-15)
    np.testing.assert_allclose(
        form(np.array([[0.1, 0.1]]), 0.05), np.full((1, 2), 0.05 * math.sqrt(0.5)), rtol=1e-15
    )


def test_each_row_of_a_stack_is_clipped_by_itself():
    rows = np.random.default_rng(0).normal(size=(2, 3, 3)) * 5
    rows[1, 1, 0] = np.nan
    lengths = np.linalg.norm(rows, axis=2)
    want = rows * np.minimum(1, 2 / lengths)[..., None]
    want[1, 1] = 0
    np.testing.assert_allclose(clip_rows(rows, 2.0), want, rtol=1e-12)
    np.testing.assert_allclose(clip_rows(np.array([[3e-200, 4e-200]]), 1e-200), [[6e-201, 8e-201]])
    assert clip_rows(np.array([[0.6, 0.8]]), 1.0).tolist() == [[0.6, 0.8]]  # on the sphere it keeps its bits


def test_rows_keep_their_type_and_shape_and_an_empty_row_is_itself():
    assert clip_rows(np.ones((2, 3, 2), np.float32), 0.5).dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(clip_rows(np.ones((2, 3, 2)), 0.5), axis=-1), 0.5)
    assert clip_rows(np.zeros((2, 0)), 1.0).shape == (2, 0)


def test_the_ball_has_a_center():
    assert clip_around([[7], [3]], 4.5, 0.25).tolist() == [[4.75], [4.25]]
    assert clip_around(np.array([[np.inf], [5.5]], np.float32), 5.0, 1.0).dtype == np.float32
    assert clip_around(np.array([[np.inf], [5.5]], np.float32), 5.0, 1.0).tolist() == [[5.0], [5.5]]


def test_the_weights_of_tensors_are_the_same_rule():
    squared = torch.tensor([25.0, 4.0, 1.0, 0.0, -1e-9, math.nan, math.inf])
    want = [0.4, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    np.testing.assert_allclose(clip_weights(squared, 2.0).numpy(), want, rtol=1e-6)
    np.testing.assert_allclose(clip_weights(torch.tensor([0.25, 0.04]), 0.25).numpy(), [0.5, 1.0], rtol=1e-6)
    np.testing.assert_allclose(clip_weights(squared, math.inf).numpy(), [1.0] * 5 + [0.0] * 2)


def test_one_coordinate_is_clipped_at_both_ends():
    values = [3.0, 2.0, 1.0, 0.0, -2.0, -3.0, math.inf, -math.inf, math.nan]
    assert [clip_scalar(v, 2.0) for v in values] == [2.0, 2.0, 1.0, 0.0, -2.0, -2.0, 2.0, -2.0, 0.0]


# ---- the lots ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [11, b"k" * 32], ids=["simulated", "protective"])
@pytest.mark.parametrize(("size", "rate"), [(400, 0.3), (9000, 0.19), (9000, 0.3)])
def test_every_record_enters_with_its_rate(key, size, rate):
    """Counts over many lots, by place in the list and between neighbors: five standard errors."""
    batches, times = PoissonSampler([size], [rate], key), 400
    seen = np.zeros((times, size), bool)
    for step in range(times):
        (batch_size,) = batches.draw([0], step)
        assert (np.diff(batch_size) > 0).all()
        seen[step, batch_size] = True
    error = math.sqrt(rate * (1 - rate) / (times * size))
    assert abs(seen.mean() - rate) < 5 * error
    thirds = np.array_split(seen, 3, axis=1)
    assert all(abs(part.mean() - rate) < 5 * error * math.sqrt(3) for part in thirds)
    assert abs(seen[:, 0].mean() - rate) < 5 * math.sqrt(rate * (1 - rate) / times)
    assert abs(seen[:, -1].mean() - rate) < 5 * math.sqrt(rate * (1 - rate) / times)
    both = (seen[:, 1:] & seen[:, :-1]).mean()
    assert abs(both - rate**2) < 5 * rate / math.sqrt(times * size)
    assert abs((seen[1:] & seen[:-1]).mean() - rate**2) < 5 * rate / math.sqrt(times * size)


@pytest.mark.parametrize("key", [11, b"k" * 32], ids=["simulated", "protective"])
def test_a_lot_is_a_function_of_key_number_step_and_stream(key):
    batches = PoissonSampler([300, 300], [0.5, 0.5], key, numbers=[4, 6])
    first = batches.draw([0], 3, 1)[0].tolist()
    assert batches.draw([1, 0], 3, 1)[1].tolist() == first
    assert PoissonSampler([300], [0.5], key, numbers=[4]).draw([0], 3, 1)[0].tolist() == first
    other = [batches.draw([1], 3, 1), batches.draw([0], 4, 1), batches.draw([0], 3, 2), batches.draw([0], 3)]
    other.append(
        PoissonSampler([300, 300], [0.5, 0.5], 12 if key == 11 else b"K" * 32, numbers=[4, 6]).draw([0], 3, 1)
    )
    assert all(drawn[0].tolist() != first for drawn in other)
    assert batches.draw([0], 3)[0].tolist() == batches.draw([0], 3, 0)[0].tolist()


@pytest.mark.parametrize("key", [11, b"k" * 32], ids=["simulated", "protective"])
def test_a_rate_of_one_takes_all_and_a_tiny_one_almost_none(key):
    assert PoissonSampler([5], [1.0], key).draw([0], 0)[0].tolist() == [0, 1, 2, 3, 4]
    assert not len(PoissonSampler([100], [1e-12], key).draw([0], 0)[0])
    nearly = PoissonSampler([10_000], [1 - 1e-9], key).draw([0], 0)[0]
    assert len(nearly) == 10_000


@pytest.mark.parametrize("wrong", [{"rates": [0.0]}, {"rates": [1.5]}, {"sizes": [0]}, {"key": -1}])
def test_lots_refuse_what_they_cannot_draw(wrong):
    with pytest.raises(InvalidInput):
        PoissonSampler(**{"sizes": [3], "rates": [0.5], "key": 1, **wrong})
    PoissonSampler([3], [0.5], 0)


def test_noise_meets_the_sum_before_it_is_rounded_to_the_rows_type():
    """Rounding a float64 sum first would let one record move what leaves by an ulp more."""

    class Wide:
        width, dtype, sizes, decay = 300, np.float32, np.array([1]), 0.0

        def reseed(self, seeds):
            pass

        def sums(self, theta, batches, places, clip_norm):
            return np.full((1, 300), 2.0**24 + 1)  # no float32

    def released(noise):
        random = RunRandomness.from_rng(noise)
        options = {"adjacency": "add-remove", "rates": [1.0], "divisors": [4.0], "agents": [0]}
        gate = GradientMechanism(
            query=Wide(), random=random, clip_norm=1.0, noise_multipliers=[0.6], **options
        )
        return gate(np.zeros((1, 300), np.float32), 3)

    drawn = SimulatedNoise(5).perturb(np.zeros((1, 300), np.float32), agents=[0], step=3, std=0.6)
    found = released(SimulatedNoise(5))
    assert found.dtype == np.float32
    assert (found == ((2.0**24 + 1 + drawn.astype(float)) / 4).astype(np.float32)).all()
    assert (found != ((2.0**24 + drawn.astype(float)) / 4).astype(np.float32)).any()
    assert released(ProtectiveNoise()).dtype == np.float32
