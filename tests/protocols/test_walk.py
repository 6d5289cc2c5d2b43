"""A token that walks, is handed over or is spread."""

import math

import numpy as np
import pytest
from tests.protocols.cases import run_locally

import sottovoce as sv
from sottovoce.errors import ConfigError, InvalidInput
from sottovoce.protocols import Broadcast, TokenPass, Walk, parse


@pytest.mark.parametrize("final_public", [False, True])
def test_walking_peers_give_the_same_bits(final_public):
    rng = np.random.default_rng(3)
    walk = Walk(sv.graphs.ring(5), 23, rng, final_public=final_public)
    values = rng.normal(size=(5, 2))
    local, sent = run_locally(walk, values)
    np.testing.assert_array_equal(walk.apply(values), local)
    assert sent == walk.messages


def test_a_walk_with_fresh_noise_needs_a_source():
    walk = Walk(sv.graphs.ring(4), 3, path=[0, 1, 2], std=1.0)
    for call in (
        lambda: walk.apply(np.zeros(4)),
        lambda: walk.observe(np.zeros(4), 1),
        lambda: walk.local(0).start(np.zeros(1)),
    ):
        with pytest.raises(InvalidInput, match="noise="):
            call()


def test_privacy_cost_of_an_average_by_a_walk():
    """Every visit is a release of the visited node."""
    network = sv.graphs.complete(6)
    plan = sv.PrivateAveraging("walk:60", network=network, noise_std=1.0, radius=0.5, seed=4)
    walk = plan.schedule(0)
    most = max(walk.contributions(v) for v in range(6))
    assert sum(walk.contributions(v) for v in range(6)) == 60
    assert plan.privacy("local").mu == pytest.approx(math.sqrt(most))
    rows = plan.run(np.linspace(-0.5, 0.5, 6), np.random.default_rng(0)).outputs["rows"]
    assert (rows == rows[0]).all()
    unpublished = sv.PrivateAveraging(
        "walk:60:final=kept", network=network, noise_std=1.0, radius=0.5, seed=4
    )
    assert unpublished.privacy("network").mu <= plan.privacy("network").mu
    with pytest.raises(ConfigError, match="public"):
        parse("walk:60:final=never").at(network)


def test_a_token_and_a_broadcast_copy_the_row_of_their_source():
    rows = np.arange(1.0, 6.0)[:, None]
    assert TokenPass(5, source=0, to=[2, 4]).apply(rows).ravel().tolist() == [1.0, 2.0, 1.0, 4.0, 1.0]
    spread = Broadcast(sv.graphs.ring(5), source=3)
    assert (spread.rounds, spread.messages) == (2, 4)
    assert spread.apply(rows).ravel().tolist() == [4.0] * 5


INVALID = [
    (lambda: Walk(sv.graphs.ring(4), 3, path=[0, 2, 1]), "not an edge"),
    (lambda: Walk(sv.graphs.ring(4), 3), "rng"),
]


@pytest.mark.parametrize(("call", "words"), INVALID)
def test_invalid_input_is_refused_in_one_sentence(call, words):
    with pytest.raises(InvalidInput, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
