"""The randomness of a run: what its parts depend on."""

import numpy as np
import pytest

from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import ProtectiveNoise, SimulatedNoise


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
