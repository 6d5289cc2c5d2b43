"""Gossip weights against their closed forms."""

import networkx
import numpy as np
import pytest

from sottovoce import graphs
from sottovoce.errors import GraphError


def dense(matrix):
    return matrix.toarray()


def test_metropolis_entry_by_entry():
    G = networkx.karate_club_graph()
    W = dense(graphs.metropolis(graphs.karate()))
    for u, v in G.edges():
        assert W[u, v] == 1 / (1 + max(G.degree(u), G.degree(v)))
    np.testing.assert_allclose(np.diag(W), 1 - (W.sum(axis=1) - np.diag(W)), atol=1e-15)


def test_max_degree_is_the_identity_less_the_laplacian():
    G = networkx.karate_club_graph()
    L = networkx.laplacian_matrix(G, weight=None).toarray()
    expected = np.eye(34) - L / (1 + max(d for _, d in G.degree()))
    np.testing.assert_allclose(dense(graphs.karate(weights="max_degree").W), expected, atol=1e-15)


def test_lazy_is_halfway_to_the_identity():
    star = graphs.star(6)
    np.testing.assert_allclose(dense(star.reweighted("lazy").W), (dense(star.W) + np.eye(6)) / 2, atol=1e-15)
    assert np.linalg.eigvalsh(dense(graphs.ring(8, weights="lazy").W))[0] >= 0


@pytest.mark.parametrize("network", [graphs.ring(7), graphs.hypercube(3), graphs.complete(5)], ids=repr)
def test_every_rule_agrees_on_regular_graphs(network):
    for weights in ("max_degree", "uniform"):
        np.testing.assert_allclose(dense(network.reweighted(weights).W), dense(network.W), atol=1e-16)


def test_uniform_refuses_irregular_graphs_and_row_stochastic_does_not():
    with pytest.raises(GraphError, match="node 0 has degree 1 and node 1 has degree 2; take metropolis"):
        graphs.path(4, weights="uniform")
    rows = graphs.path(4, weights="row_stochastic")
    assert not rows.averaging
    np.testing.assert_allclose(dense(rows.W).sum(axis=1), 1)
    assert not np.allclose(dense(rows.W), dense(rows.W).T)
    with pytest.raises(GraphError, match="row-stochastic only"):
        rows.spectral_gap
    assert rows.reweighted("metropolis").averaging


def test_a_round_of_a_changing_network_may_be_disconnected():
    adjacency = np.zeros((5, 5))
    adjacency[0, 3] = adjacency[3, 0] = 2.0
    W = dense(graphs.metropolis(adjacency))
    assert W[0, 3] == W[3, 0] == W[0, 0] == 0.5
    assert W[1, 1] == W[2, 2] == W[4, 4] == 1.0


@pytest.mark.parametrize("adjacency", [[[0, 1], [0, 0]], [[0, 1, 1], [1, 0, 1]]])
def test_invalid_adjacency_is_refused(adjacency):
    with pytest.raises(GraphError, match="must be square and symmetric"):
        graphs.metropolis(adjacency)
