"""The mechanism of an operator: blocks, rounding, what was announced."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.mechanisms.toys import Spy

from sottovoce.algorithms import FixedPoint
from sottovoce.errors import InvalidInput, ReleaseMismatch
from sottovoce.mechanisms.base import ReleaseCheck
from sottovoce.noise.run_randomness import RunRandomness


def test_more_blocks_than_accounted_are_refused():
    plan = FixedPoint(lambda u, data: u, 1.0, 1.0, 2, active_blocks=1, start=np.zeros((2, 1)))
    with pytest.raises(InvalidInput, match="accounted"):
        plan.run(None, np.random.default_rng(0))


def test_number_of_blocks_is_compared_with_the_plan():
    plan = FixedPoint(lambda u, data: u, 1.0, 1.0, 2, start=np.zeros((3, 1)))
    mechanism = plan.mechanism(None, [0], RunRandomness.from_rng(np.random.default_rng(0)))
    mechanism.release_check = ReleaseCheck([replace(plan, active_blocks=2).releases(0)])
    with pytest.raises(ReleaseMismatch, match="nothing was released"):
        mechanism.noisy_blocks(np.zeros((3, 1)), 0)


def test_rounding_slack_raises_the_noise():
    """An operator cannot clip lower, so the noise grows until rounding is covered."""
    source = Spy(slack=lambda dim, std: 0.01 * math.sqrt(dim) * std, protective=True)
    start = np.zeros((1, 4))
    plan = FixedPoint(lambda u, data: 0.5 * u, sensitivity=1.0, noise_std=2.0, steps=1, start=start)
    plan.run(None, source)
    ((_, _, (std,)),) = source.seen
    assert (1.0 + 2 * source.slack(4, std)) / std == pytest.approx(plan.privacy().mu)
    loud = FixedPoint(lambda u, data: 0.5 * u, sensitivity=1.0, noise_std=100.0, steps=1, start=start)
    with pytest.raises(InvalidInput, match="rounding"):
        loud.run(None, source)
