"""The mechanism of averaging."""

import numpy as np
import pytest
from tests.mechanisms.toys import Recorder

from sottovoce.accounting.release import Release
from sottovoce.errors import InvalidInput, ReleaseMismatch
from sottovoce.mechanisms.value import ValueMechanism
from sottovoce.noise.run_randomness import RunRandomness


def test_values_are_clipped_and_noised_around_the_center():
    noise = Recorder(slack=0.25)
    rows = np.array([[10.0], [4.125], [np.nan]])
    planned = [[Release(a, 0, 1.0, 3.0)] for a in (5, 7, 9)]

    def mechanism_of():
        return ValueMechanism(
            rows=rows,
            agents=[5, 7, 9],
            random=RunRandomness(noise, batches=0, start_seed=0),
            radius=0.5,
            noise_std=3.0,
            center=4.0,
            announced_releases=planned,
        )

    mechanism = mechanism_of()
    assert mechanism.rows.ravel().tolist() == [4.25, 4.125, 4.0]
    assert noise.sizes == [(1, 3.0)]
    assert mechanism.noisy_rows(0).ravel().tolist() == [104.25, 104.125, 104.0]
    assert mechanism.drain() == ()
    mechanism.release_check.once = True
    mechanism.check(range(3), 0)
    with pytest.raises(ReleaseMismatch, match="a second time"):
        mechanism.noisy_rows(0)
    recording = mechanism_of().recording()
    recording.noisy_rows(0)
    assert recording.drain() == tuple(r for (r,) in planned)
    assert recording.drain() == ()
    assert noise.calls == [([5, 7, 9], 0, [3.0] * 3, 0)] * 2
    with pytest.raises(ReleaseMismatch, match="does not list"):
        recording.noisy_rows(1)


def test_rounding_above_the_radius_is_refused_and_noise_later_draws_none():
    noise = Recorder(slack=1.0)
    random = RunRandomness(noise, batches=0, start_seed=0)
    with pytest.raises(InvalidInput, match="rounding slack"):
        ValueMechanism(rows=np.zeros((1, 1)), agents=[0], random=random, radius=1.0, noise_std=3.0)
    common = {"agents": [0], "random": RunRandomness(Recorder(), batches=0, start_seed=0), "noise_std": 3.0}
    later = ValueMechanism(rows=np.ones((1, 1)), radius=2.0, noise_later=True, **common)
    assert later.noisy_rows(0).tolist() == [[1.0]]
    far = ValueMechanism(rows=np.full((1, 1), 5.0), radius=2.0, **common)
    assert far.noisy_rows(0).tolist() == [[102.0]]  # about zero, with noise, by default
