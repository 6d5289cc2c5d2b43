"""What every plan shares: capabilities, and noise of masked sums."""

import numpy as np
import pytest
from tests.algorithms.toys import SIZES, unequal_shards

import sottovoce as sv
from sottovoce.algorithms import ConsensusSGD
from sottovoce.errors import InvalidInput
from sottovoce.noise.grid import SummedNoise
from sottovoce.objectives import GLM


def test_summed_noise_has_the_variance_of_single_draws():
    plan = sv.PrivateAveraging("masked", noise_std=3.0, radius=1.0, network="ring:50", dim=20_000)
    zeros = np.zeros((50, 20_000))
    once, each = (
        plan.run(zeros, noise).outputs["rows"][0] for noise in (SummedNoise(1), np.random.default_rng(1))
    )
    for mean in (once, each):
        assert np.std(mean) == pytest.approx(3 / np.sqrt(50), rel=0.03)  # six standard errors
        assert abs(np.mean(mean)) < 5 * 3 / np.sqrt(50 * 20_000)
    assert not np.allclose(once, each)


def test_summed_noise_is_refused_without_masks_or_with_unequal_divisors():
    data = unequal_shards()
    common = {"network": "ring:5", "steps": 2, "clip_norm": 1.0, "noise_multiplier": 1.0, "sizes": SIZES}
    masked = ConsensusSGD(GLM(dim=3), "masked", **common)
    assert np.isfinite(masked.run(data, SummedNoise(0)).outputs["coef"]).all()
    for protocol, weighting in (("tree", "records"), ("masked", "sites")):
        plan = ConsensusSGD(GLM(dim=3), protocol, weighting=weighting, **common)
        with pytest.raises(InvalidInput, match="noise of the sum alone"):
            plan.run(data, SummedNoise(0))
