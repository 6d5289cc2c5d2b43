"""Noise: the law on the wire bytes, with power both ways, and where the bits come from."""

import copy
import os

import numpy as np
import pytest
from scipy import stats

from sottovoce.errors import InvalidInput
from sottovoce.noise import samplers as module
from sottovoce.noise.philox import members_below, standard_normals
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import NoiseSource, ProtectiveNoise, RecordedNoise, SimulatedNoise, as_noise

SOURCES = [SimulatedNoise(3), ProtectiveNoise(), RecordedNoise(ProtectiveNoise())]
MILLION = 1_000_000


def draws(source, std=1.0, count=MILLION, dtype=np.float64, **more):
    return source.perturb(np.zeros((1, count), dtype), agents=[0], step=0, std=std, **more)[0]


def accepts(sample, std):
    """Mean and variance within five standard errors, and Kolmogorov-Smirnov on the whole law."""
    n = len(sample)
    z = sample / std
    mean_ok = abs(z.mean()) < 5 / np.sqrt(n)
    variance_ok = abs(z.var() - 1) < 5 * np.sqrt(2 / n)
    return mean_ok and variance_ok and stats.kstest(z, "norm").pvalue > 1e-6


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: type(s).__name__)
def test_law_accepts_the_right_scale_and_rejects_one_percent(source):
    sample = draws(source, std=2.5)
    assert accepts(sample, 2.5)
    assert not accepts(sample, 2.5 * 1.01)
    assert not accepts(sample, 2.5 / 1.01)


def test_short_rows_follow_the_law_too():
    rows = SimulatedNoise(5).perturb(np.zeros((20_000, 50)), agents=np.arange(20_000), step=3, std=1.0)
    assert accepts(rows.ravel(), 1.0)
    assert not accepts(rows.ravel(), 1.01)
    correlation = np.corrcoef(rows, rowvar=False) - np.eye(50)
    assert np.abs(correlation).max() < 5.5 / np.sqrt(20_000)


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: type(s).__name__)
def test_coordinates_steps_and_agents_are_independent_and_have_their_own_scales(source):
    rows = source.perturb(np.zeros((3, 300_000)), agents=[0, 1, 2], step=7, std=1.0)
    later = source.perturb(np.zeros((3, 300_000)), agents=[0, 1, 2], step=8, std=1.0)
    other = source.perturb(np.zeros((3, 300_000)), agents=[0, 1, 2], step=7, std=1.0, stream=1)
    scaled = source.perturb(np.zeros((2, 300_000)), agents=[0, 1], step=9, std=np.array([1.0, 10.0]))
    assert accepts(scaled[0], 1.0)
    assert accepts(scaled[1], 10.0)
    bound = 5 / np.sqrt(300_000)
    for a, b in [(rows[0], rows[1]), (rows[0], later[0]), (rows[1], other[1]), (rows[0, 1:], rows[0, :-1])]:
        assert abs(np.corrcoef(a, b)[0, 1]) < bound
        assert abs(np.corrcoef(a**2, b**2)[0, 1]) < bound


def test_no_float_holes():
    """Precision attack: which low-bit patterns can occur must not depend on the value under the noise.

    With naive floats, outputs near zero have low bits only if the input was zero; that attack is shown to
    work on `SimulatedNoise` first, so the test has teeth.
    """

    def on_lattice(outputs, lattice):
        steps = outputs / lattice
        return np.mean(steps == np.rint(steps))

    def attack(source):
        base = np.zeros((1, 200_000))
        quiet = source.perturb(base, agents=[0], step=0, std=1.0)[0]
        loud = source.perturb(base + 1024.0, agents=[0], step=1, std=1.0)[0] - 1024.0
        # x + 1024 is a multiple of 2^-42, a plain draw mostly is not
        return abs(on_lattice(quiet, 2.0**-42) - on_lattice(loud, 2.0**-42))

    assert attack(SimulatedNoise(1)) > 0.7
    step = module.grid_spacing(1.0)
    for value in (0.0, 1.0, 1024.0, -0.3):
        out = ProtectiveNoise().perturb(np.full((1, 20_000), value), agents=[0], step=0, std=1.0)[0]
        integers = np.rint(out / step)
        assert np.array_equal(integers * step, out)  # the float is a function of the integer alone


def test_every_integer_is_reached_whatever_the_value():
    """Both residues, and every residue modulo 256, occur equally often: the two parts leave no gap."""
    step = module.grid_spacing(1.0)
    for value in (0.0, 1.0):
        out = ProtectiveNoise().perturb(np.full((1, 256_000), value), agents=[0], step=0, std=1.0)[0]
        residues = np.bincount(np.rint(out / step).astype(np.int64) % 256, minlength=256)
        assert stats.chisquare(residues).pvalue > 1e-6


def test_a_users_seed_never_reaches_protective_noise():
    np.random.seed(1)  # noqa: NPY002
    first = draws(ProtectiveNoise(), count=1000)
    np.random.seed(1)  # noqa: NPY002
    second = draws(ProtectiveNoise(), count=1000)
    assert np.mean(first == second) < 0.01
    with pytest.raises(TypeError):
        ProtectiveNoise(1)


def test_copies_and_forks_do_not_repeat_protective_noise():
    source = ProtectiveNoise()
    assert not np.array_equal(draws(source, count=100), draws(copy.deepcopy(source), count=100))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, draws(source, count=100).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    there = np.frombuffer(os.read(read, 800))
    assert not np.array_equal(there, draws(source, count=100))


@pytest.mark.parametrize("dim", [1, 7, 255, 256, 1000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_simulated_noise_depends_on_its_own_coordinates_only(dim, dtype):
    source = SimulatedNoise(11)
    zeros = np.zeros((5, dim), dtype)
    together = source.perturb(zeros, agents=[3, 0, 9, 400, 2], step=6, std=2.0)
    for row, agent in zip(together, [3, 0, 9, 400, 2], strict=True):
        alone = source.perturb(zeros[:1], agents=[agent], step=6, std=2.0)[0]
        assert np.array_equal(row, alone)
        assert row.dtype == dtype
        other = source.perturb(zeros[:1], agents=[agent], step=5, std=2.0)[0]
        assert not np.array_equal(row, other)
    elsewhere = SimulatedNoise(12).perturb(zeros, agents=[3, 0, 9, 400, 2], step=6, std=2)
    assert not np.array_equal(together, elsewhere)
    many = source.perturb(np.zeros((700, dim), dtype), agents=np.arange(700), step=6, std=2.0)
    assert np.array_equal(many[[3, 0, 9, 400, 2]], together)
    assert len(np.unique(many)) > 0.99 * many.size or dtype == np.float32


def test_rounding_stays_within_the_slack():
    """Two clipped rows stay, after rounding, within twice the clip: the slack pays, and is needed."""
    rng = np.random.default_rng(0)
    clip_norm, std, dim = 1.0, 40.0, 4000
    source = RecordedNoise(ProtectiveNoise())
    slack = source.slack(dim, std)
    x = rng.standard_normal(dim)
    x *= (clip_norm - slack) / np.linalg.norm(x)
    far = source.perturb(np.stack([x, -x]), agents=[0, 0], step=0, std=std)
    assert np.linalg.norm(far[0] - far[1]) <= 2 * clip_norm
    # values a hair above half a step all round away from each other: nearly the whole slack is used
    half = module.grid_spacing(std) * 0.5000001
    pair = source.perturb(np.stack([np.full(dim, half), np.full(dim, -half)]), agents=[0, 0], step=0, std=std)
    gained = np.linalg.norm(pair[0] - pair[1]) - 2 * half * np.sqrt(dim)
    assert 0.95 * 2 * slack < gained <= 2 * slack


def test_recorded_noise_replays_bit_for_bit():
    values = np.random.default_rng(1).standard_normal((3, 40))
    for source in (ProtectiveNoise(), SimulatedNoise(2)):
        tape = RecordedNoise(source)
        first = tape.perturb(values, agents=[0, 1, 2], step=4, std=0.5)
        again = RecordedNoise(tape=tape.tape)
        assert again.protective is False
        assert np.array_equal(again.perturb(values[1:2], agents=[1], step=4, std=0.5), first[1:2])
        assert again.slack(10, 1.0) == source.slack(10, 1.0)
        with pytest.raises(InvalidInput, match="step 5"):
            again.perturb(values, agents=[0, 1, 2], step=5, std=0.5)


@pytest.mark.parametrize(
    ("values", "agents", "std", "words"),
    [
        *(([[0.0, bad]], [0], 1.0, "finite values below") for bad in (np.nan, np.inf, 1e38)),
        ([[0.0, 0.0]], [0], 0.0, "positive"),
        ([[0.0, 0.0]], [0, 1], 1.0, "one row per agent"),
    ],
)
def test_protective_noise_refuses_what_it_cannot_protect(values, agents, std, words):
    with pytest.raises(InvalidInput, match=words):
        ProtectiveNoise().perturb(np.array(values), agents=agents, step=0, std=std)


def test_as_noise():
    seeded = as_noise(np.random.default_rng(4))
    assert isinstance(seeded, SimulatedNoise)
    assert repr(as_noise(np.random.default_rng(4))) == repr(seeded)
    assert as_noise(5).perturb(np.zeros((1, 3)), agents=[0], step=0, std=1.0).shape == (1, 3)
    assert all(isinstance(source, NoiseSource) for source in SOURCES)
    with pytest.raises(InvalidInput, match="noise source"):
        as_noise("loud")


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 2**62 - 1, 2**70 + 5])
def test_noise_of_many_steps_at_once_is_that_of_single_steps(seed):
    """The keys are numpy's own, hashed for all steps together; 300 columns take the other sampler."""
    noise = SimulatedNoise(seed)
    for dim, stream in ((1, 0), (8, 1), (300, 0x5A)):
        values = np.arange(40.0 * dim).reshape(40, dim)
        rows = module.perturb_steps(noise, values, agent=3, step=70_000, std=1.5, stream=stream)
        for k in (0, 1, 17, 39):
            alone = noise.perturb(values[k : k + 1], agents=[3], step=70_000 + k, std=1.5, stream=stream)
            assert (rows[k] == alone[0]).all()
    keys = module._step_keys(seed, 5, 3, 2)
    assert (keys[1] == np.random.SeedSequence((seed, 1, 6, 2)).generate_state(2, np.uint64)).all()


def test_noise_of_many_steps_asks_other_sources_step_by_step():
    tape = RecordedNoise(ProtectiveNoise())
    rows = module.perturb_steps(tape, np.zeros((5, 2)), agent=1, step=3, std=1.0)
    assert set(tape.tape) == {(1, step, 0) for step in range(3, 8)}
    assert (rows[2] == tape.perturb(np.zeros((1, 2)), agents=[1], step=5, std=1.0)[0]).all()
    protective = module.perturb_steps(ProtectiveNoise(), np.zeros((4000, 1)), agent=0, step=0, std=2.0)[:, 0]
    assert accepts(protective, 2.0)
    assert len(np.unique(protective)) > 3900
    assert module.perturb_steps(SimulatedNoise(1), np.zeros((0, 3)), agent=0, step=0, std=1.0).shape == (0, 3)


def test_the_grid_is_that_of_the_source():
    assert module.grid_of(SimulatedNoise(1), 2.0) == 0
    assert module.grid_of(ProtectiveNoise(), 2.0) == module.grid_spacing(2.0)
    assert module.grid_of(RecordedNoise(ProtectiveNoise()), 2.0) == module.grid_spacing(2.0)
    assert module.grid_of(RecordedNoise(SimulatedNoise(1)), 2.0) == 0
    assert module.grid_of(ProtectiveNoise(), 0.0) == 0


@pytest.mark.parametrize("source", [lambda: np.random.default_rng(1), lambda: SimulatedNoise(4)])
def test_a_simulation_is_repeated_by_its_seed(source):
    one, same = RunRandomness.from_rng(source()), RunRandomness.from_rng(source())
    assert one.batches == same.batches
    assert not one.protective
    assert one.draws(3, 1).integers(2**60) == same.draws(3, 1).integers(2**60)
    assert one.draws(3, 1).integers(2**60) != one.draws(3, 2).integers(2**60)
    assert RunRandomness.from_rng(one) is one


def test_protective_runs_keep_their_batches_secret():
    random, other = (RunRandomness.from_rng(ProtectiveNoise()) for _ in range(2))
    assert isinstance(random.batches, bytes)
    assert random.batches != other.batches
    assert random.seeds is None
    assert random.draws(0).integers(2**60) == random.draws(0).integers(2**60)
    assert random.draws(0).integers(2**60) != other.draws(0).integers(2**60)


def test_copies_of_an_agent_are_keyed_by_their_own_numbers():
    random = RunRandomness.from_rng(np.random.default_rng(1))
    assert random.noise_ids_of([2, 5]) == [2, 5]
    assert RunRandomness(random.noise, 0, 0, (7, 8)).noise_ids_of([2, 2]) == [7, 8]


def numpy_draws(key, agents, dim, step, stream):
    rows = np.empty((len(agents), dim), np.float32)
    for row, agent in zip(rows, agents, strict=True):
        bits = np.random.Philox(key=key, counter=np.array([0, agent, step, stream], np.uint64))
        np.random.Generator(bits).standard_normal(out=row, dtype=np.float32)
    return rows


@pytest.mark.parametrize("dim", [1, 1023, 200_000])  # the last, in threads, holds hundreds from the tail
def test_draws_are_those_of_numpy_bit_for_bit(dim):
    key = np.random.SeedSequence(11).generate_state(2, np.uint64)
    agents = np.array([0, 3, 4, 2**31 - 1, 17])
    drawn = standard_normals(key, agents, dim, step=2**40, stream=5)
    assert (drawn.view(np.uint32) == numpy_draws(key, agents, dim, 2**40, 5).view(np.uint32)).all()
    assert standard_normals(key, agents[:0], dim, 0, 0).shape == (0, dim)


@pytest.mark.parametrize(
    ("size", "rate"), [(1, 0.5), (7, 0.3), (1024, 1 / 3), (5003, 0.04), (5003, 1 - 2**-53)]
)
def test_members_are_those_of_numpy(size, rate):
    key = np.random.SeedSequence([3, 0x107]).generate_state(2, np.uint64)
    bits = np.random.Philox(key=key, counter=np.array([0, 2**31 - 1, 2**40, 3], np.uint64))
    expected = np.flatnonzero(np.random.Generator(bits).random(size) < rate)
    members = members_below(rate, key, 2**31 - 1, 2**40, 3, size)
    assert members.dtype == expected.dtype
    assert np.array_equal(members, expected)


def test_simulated_noise_of_float32_rows_is_scaled_normals_of_numpy():
    key = np.random.SeedSequence(5).generate_state(2, np.uint64)
    values, std = np.linspace(-1, 1, 600, dtype=np.float32).reshape(2, 300), np.array([0.5, 2.0])
    noisy = SimulatedNoise(5).perturb(values, agents=[7, 8], step=1, std=std, stream=2)
    expected = values + std.astype(np.float32)[:, None] * numpy_draws(key, [7, 8], 300, 1, 2)
    assert noisy.dtype == np.float32
    assert (noisy == expected).all()
