"""The sampler of batches against a second form of itself: the law that is accounted is the law that runs."""

import hashlib
import hmac
import math
import struct

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from sottovoce.data import poisson_sampling
from sottovoce.data.poisson_sampling import PoissonSampler
from sottovoce.errors import InvalidInput


def generator(key, number, step, stream):
    """A generator of its own for one batch, where the sampler turns the counter of one that it keeps."""
    words = np.random.SeedSequence([key, 0x107]).generate_state(2, np.uint64)
    counter = np.array([0, number, step, stream], np.uint64)
    return np.random.Generator(np.random.Philox(key=words, counter=counter))


@pytest.mark.parametrize(("size", "rate"), [(50, 0.05), (8191, 0.01), (9000, 0.2), (9000, 0.7), (1, 0.5)])
def test_one_number_per_record_unless_records_are_many_and_batches_are_small(size, rate):
    drawn = PoissonSampler([3, size], [1.0, rate], key=5, numbers=[9, 4])
    for step, stream in ((0, 0), (7, 0), (7, 2)):
        expected = np.flatnonzero(generator(5, 4, step, stream).random(size) < rate)
        np.testing.assert_array_equal(drawn.draw([1], step, stream)[0], expected)


@pytest.mark.parametrize(("size", "rate"), [(8192, 0.1), (20_000, 0.001)])
def test_gaps_are_geometric_where_records_are_many_and_batches_are_small(size, rate):
    """A walk of geometric gaps from before the first record, with more of them than are ever needed."""
    drawn = PoissonSampler([size], [rate], key=5, numbers=[4])
    for step in range(3):
        walk = np.cumsum(generator(5, 4, step, 0).geometric(rate, size=size)) - 1
        np.testing.assert_array_equal(drawn.draw([0], step)[0], walk[walk < size])


def test_a_protective_batch_takes_what_is_below_the_rate_and_not_what_is_at_it(monkeypatch):
    half = 2**63
    words = np.array([half, half - 1, 0, 2**64 - 1], np.uint64)
    monkeypatch.setattr(PoissonSampler, "_secret", lambda self, *label: words)
    assert PoissonSampler([4], [0.5], key=bytes(32)).draw([0], 0)[0].tolist() == [1, 2]


def test_the_threshold_is_the_rate_in_units_of_two_to_the_minus_64():
    for rate, expected in ((0.5, 2**63), (0.75, 3 * 2**62), (2.0**-64, 1), (1 - 2.0**-53, 2**64 - 2**11)):
        assert int(poisson_sampling._threshold(rate)) == expected
    assert int(poisson_sampling._threshold(1.0)) == 2**64 - 1  # the largest that 64 bits hold


def test_whole_batches_are_every_record_and_one_list_for_the_same_agents():
    batches = PoissonSampler([3, 5, 3], [1.0, 1.0, 1.0], key=1)
    first, again = batches.draw([0, 1, 2], 0), batches.draw(range(3), 7, 2)
    assert [batch.tolist() for batch in first] == [[0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 2]]
    assert again is first
    assert [batch.tolist() for batch in batches.draw([1], 0)] == [[0, 1, 2, 3, 4]]
    assert [len(batch) for batch in batches.draw([2, 1], 0)] == [3, 5]  # other agents, other batches


def test_nobody_can_change_a_shared_batch():
    (batch,) = PoissonSampler([4], [1.0], key=1).draw([0], 0)
    with pytest.raises(ValueError, match="read-only"):
        batch[0] = 3


def test_whole_batches_beside_sampled_ones():
    """One agent that samples leaves the others whole, and its own batches are those it has alone."""
    mixed, alone = PoissonSampler([50, 6], [0.3, 1.0], key=9), PoissonSampler([50], [0.3], key=9)
    for step in range(4):
        sampled, whole = mixed.draw([0, 1], step)
        assert np.array_equal(sampled, alone.draw([0], step)[0])
        assert whole.tolist() == list(range(6))
    assert not np.array_equal(mixed.draw([0], 0)[0], mixed.draw([0], 1)[0])


def test_a_protective_batch_follows_from_its_key_alone():
    key, place = bytes(range(32)), struct.pack("<QQQ", 4, 7, 2)
    once = hmac.new(key, b"lot" + place, hashlib.sha256).digest()
    stream = Cipher(algorithms.AES(once), modes.CTR(bytes(16))).encryptor().update(bytes(8 * 100))
    expected = np.flatnonzero(np.frombuffer(stream, np.uint64) < np.uint64(2**62))
    drawn = PoissonSampler([3, 100], [1.0, 0.25], key=key, numbers=[9, 4]).draw([1], 7, 2)
    np.testing.assert_array_equal(drawn[0], expected)


@pytest.mark.parametrize("key", [11, b"k" * 32], ids=["simulated", "protective"])
def test_a_batch_is_a_function_of_key_number_step_and_stream(key):
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
def test_batches_refuse_what_they_cannot_draw(wrong):
    with pytest.raises(InvalidInput):
        PoissonSampler(**{"sizes": [3], "rates": [0.5], "key": 1, **wrong})
    PoissonSampler([3], [0.5], 0)


@pytest.mark.parametrize("key", [1, bytes(range(32))])
@pytest.mark.parametrize(("size", "rate", "draws"), [(400, 0.1, 500), (10_000, 0.005, 400)])
def test_batches_are_poisson_with_the_rate_that_is_announced(key, size, rate, draws):
    """Inclusion counts by chi-square, sizes by variance: simulated, secret, dense and sparse form."""
    batches = PoissonSampler([size], [rate], key)
    counts, sizes = np.zeros(size), []
    for step in range(draws):
        (batch_size,) = batches.draw([0], step)
        assert (np.diff(batch_size) > 0).all()
        counts[batch_size] += 1
        sizes.append(len(batch_size))
    spread = draws * rate * (1 - rate)
    chi2 = ((counts - draws * rate) ** 2 / spread).sum()
    assert abs(chi2 - size) < 6 * math.sqrt(2 * size) * max(1.0, 1 / math.sqrt(2 * spread))
    assert abs(np.mean(sizes) - size * rate) < 5 * math.sqrt(size * rate / draws)
    assert 0.75 < np.var(sizes) / (size * rate * (1 - rate)) < 1.3  # a fixed-size sampler would give 0
    seen = counts / draws
    assert max(abs(part.mean() - rate) for part in np.array_split(seen, 3)) < 5 * math.sqrt(
        3 * rate * (1 - rate) / (draws * size)
    )
