"""A token that walks, is handed over or is spread."""

import math
from functools import partial

import numpy as np
import pytest
from tests.protocols.cases import CountingNoise

import sottovoce as sv
from sottovoce.errors import ConfigError
from sottovoce.protocols import Broadcast, TokenPass, Walk, parse


@pytest.mark.parametrize("final_public", [False, True])
def test_rows_and_observations_are_those_of_a_token_moved_by_hand(final_public):
    rng, noise = np.random.default_rng(3), CountingNoise()
    walk = Walk(sv.graphs.ring(5), 23, rng, std=0.4, final_public=final_public)
    values, observers, seen = rng.normal(size=(5, 2)), (1, 2), []
    token, rows, hops = np.zeros(2), np.zeros((5, 2)), 0
    for t, (holder, following) in enumerate(zip(walk.path, [*walk.path[1:], -1], strict=True)):
        token = token + noise.perturb(values[[holder]], agents=[holder], step=6, std=0.4, stream=1 + t)[0]
        rows[holder] = token / (t + 1)
        hops += following not in (holder, -1)
        reaches = following in observers or (final_public and following == -1)
        if reaches and holder not in observers:
            seen.append(token)
    np.testing.assert_array_equal(walk.apply(values, noise, 6), [token / 23] * 5 if final_public else rows)
    np.testing.assert_array_equal(walk.observe(values, observers, noise=noise, step=6), seen)
    assert walk.message_count == hops + 4 * final_public
    assert (walk.observe(values, observers, noise=noise, step=5) != seen).all()


def test_privacy_cost_of_an_average_by_a_walk():
    """Every visit is a release of the visited node."""
    network = sv.graphs.complete(6)
    average = partial(sv.PrivateAveraging, network=network, noise_std=1.0, radius=0.5, seed=4)
    plan = average("walk:60")
    walk = plan.schedule(0)
    most = max(walk.contributions(v) for v in range(6))
    assert sum(walk.contributions(v) for v in range(6)) == 60
    assert plan.privacy("local").mu == pytest.approx(math.sqrt(most))
    rows = plan.run(np.linspace(-0.5, 0.5, 6), np.random.default_rng(0)).outputs["rows"]
    assert (rows == rows[0]).all()
    assert average("walk:60:final=kept").privacy("network").mu <= plan.privacy("network").mu
    with pytest.raises(ConfigError, match="public"):
        parse("walk:60:final=never").at(network)


def test_a_token_and_a_broadcast_copy_the_row_of_their_source():
    rows = np.arange(1.0, 6.0)[:, None]
    assert TokenPass(5, source=0, to=[2, 4]).apply(rows).ravel().tolist() == [1.0, 2.0, 1.0, 4.0, 1.0]
    spread = Broadcast(sv.graphs.ring(5), source=3)
    assert (spread.rounds, spread.message_count) == (2, 4)
    assert spread.apply(rows).ravel().tolist() == [4.0] * 5
