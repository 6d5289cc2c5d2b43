"""Federated averaging over exact consensus."""

import numpy as np
import pytest
from tests.algorithms.toys import unequal_shards

from sottovoce.algorithms import ConsensusFedAvg
from sottovoce.objectives import GLM
from sottovoce.privacy import gaussian_epsilon


def test_consensus_fedavg_over_masked_sums():
    plan = ConsensusFedAvg(
        GLM(dim=3),
        "masked:tolerate=2",
        network="ring:6",
        steps=9,
        clip_norm=1.0,
        noise_multiplier=4.0,
        local_steps=3,
    )
    mu = np.sqrt(9) * 2 / (4 * np.sqrt(4))
    assert plan.epsilon(1e-5) == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-6)
    data = unequal_shards([6] * 6)
    tree = ConsensusFedAvg(
        GLM(dim=3), "tree", network="ring:6", steps=9, clip_norm=1.0, noise_multiplier=4.0, local_steps=3
    )
    rows = [p.run(data, np.random.default_rng(2), start=np.zeros(3)).outputs["rows"] for p in (plan, tree)]
    np.testing.assert_allclose(rows[0], rows[1], atol=9 * 2 * plan.grid.spacing)
