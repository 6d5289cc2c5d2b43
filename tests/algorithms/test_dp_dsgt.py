"""DP-DSGT."""

import numpy as np
from tests.algorithms.toys import FOUR, blobs, net

import sottovoce as sv
from sottovoce.algorithms import DPDSGT
from sottovoce.noise.run_randomness import RunRandomness


def test_dsgt_tracks_the_sum_of_the_gradients():
    objective, data = net(), blobs()
    plan = DPDSGT(objective, FOUR, steps=6, sizes=data.sizes, batch_size=20, noise_multiplier=0.7)
    mechanism = plan.mechanism(data, range(4), RunRandomness.from_rng(np.random.default_rng(5)))
    algorithm = plan.algorithm(mechanism, objective.start(4))
    state, gossip = algorithm.init(), sv.protocols.Gossip(FOUR, 1)
    for k in range(6):
        state = algorithm.update(state, gossip.apply(algorithm.message(state, k)), k)
        np.testing.assert_allclose(state.own.y.sum(0), state.own.g.sum(0), atol=1e-4)
