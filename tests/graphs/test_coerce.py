"""A name or a networkx graph in place of a network."""

import networkx as nx
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.observation.correlated import decor_variances
from sottovoce.accounting.observation.random_walk import first_passage
from sottovoce.accounting.published.formulas import published_mean_loss
from sottovoce.errors import InvalidInput

CALLS = {
    "gossip": lambda g: sv.protocols.Gossip(g, 3).view(0).leakage(),
    "chebyshev": lambda g: sv.protocols.Chebyshev(g, 3).view(0).leakage(),
    "fresh-noise": lambda g: sv.protocols.FreshNoiseGossip(g, 2, fresh_noise_std=0.1).n,
    "tree": lambda g: sv.protocols.Tree(g).parents,
    "masked": lambda g: sv.protocols.Masked(g, tolerate=1).n,
    "randomized": lambda g: sv.protocols.Randomized(g, 5, np.random.default_rng(0)).n,
    "walk": lambda g: sv.protocols.Walk(g, 4, np.random.default_rng(0)).n,
    "dropout": lambda g: sv.protocols.Dropout(g, 2).n,
    "spanning": lambda g: sv.protocols.spanning_tree(g),
    "few leaves": lambda g: sv.protocols.few_leaf_tree(g, np.random.default_rng(0)),
    "rounds": lambda g: sv.protocols.rounds_for(g),
    "exact": lambda g: sv.privacy.exact_loss(g, rounds=2, observer=0),
    "published": lambda g: sv.privacy.published_loss(g, rounds=2),
    "published mean": lambda g: published_mean_loss(g, 2),
    "first passage": lambda g: first_passage(g, 5, 0, 1),
    "decor": lambda g: decor_variances(g, 1.0, 2.0),
    "reconstruct": lambda g: sorted(sv.attacks.reconstruct_gossip(g, 0, 2)),
    "averaging": lambda g: sv.PrivateAveraging(g, noise_std=1.0, radius=0.5).epsilon(1e-5),
    "advice": lambda g: sv.advise(g, epsilon=8.0, delta=1e-5, records=20).rows[0].loss,
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_name_and_a_networkx_graph_stand_for_a_network(name):
    call = CALLS[name]
    wanted = call(sv.graphs.ring(5))
    for spelled in ("ring:5", nx.cycle_graph(5)):
        result = call(spelled)
        if isinstance(wanted, (np.ndarray, float, int, list)):
            np.testing.assert_array_equal(np.asarray(result), np.asarray(wanted))
        else:
            assert repr(result) == repr(wanted)


def test_other_values_are_refused():
    with pytest.raises(InvalidInput, match="a Network, a name or a networkx graph, got int"):
        sv.graphs.as_network(5)
    with pytest.raises(InvalidInput, match="rng:5"):
        sv.protocols.Gossip("rng:5", 2)
