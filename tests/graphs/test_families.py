"""Graph families against networkx and against the closed forms of their spectra."""

import networkx
import numpy as np
import pytest

import sottovoce as sv
from sottovoce import graphs
from sottovoce.errors import GraphError, InvalidInput


def circulant(n):
    hops = [2**k for k in range((n - 1).bit_length())]
    return networkx.circulant_graph(n, hops)


TWINS = [
    (graphs.path(7), networkx.path_graph(7)),
    (graphs.ring(9), networkx.cycle_graph(9)),
    (graphs.complete(6), networkx.complete_graph(6)),
    (graphs.star(6), networkx.star_graph(5)),
    (graphs.exponential(2), networkx.path_graph(2)),
    (graphs.exponential(11), circulant(11)),
    (graphs.exponential(16), circulant(16)),
    (graphs.karate(), networkx.karate_club_graph()),
    (graphs.grid(3, 5), networkx.grid_2d_graph(3, 5)),
    (graphs.grid(1, 4), networkx.grid_2d_graph(1, 4)),
    (graphs.torus(3, 5), networkx.grid_2d_graph(3, 5, periodic=True)),
    (graphs.hypercube(4), networkx.hypercube_graph(4)),
]


@pytest.mark.parametrize(("network", "twin"), TWINS, ids=[network.name for network, _ in TWINS])
def test_same_edges_as_networkx_in_row_major_numbering(network, twin):
    number = {node: k for k, node in enumerate(sorted(twin))}
    expected = {tuple(sorted((number[u], number[v]))) for u, v in twin.edges()}
    assert expected == set(map(tuple, network.edges.tolist()))
    assert network.n == len(twin)


def test_florentine_keeps_networkx_order_and_names():
    G = networkx.florentine_families_graph()
    network = graphs.florentine()
    assert list(network.node_names) == list(G)
    named = {frozenset((network.node_name(u), network.node_name(v))) for u, v in network.edges.tolist()}
    assert named == {frozenset(edge) for edge in G.edges()}


TRANSITIVE = [
    graphs.ring(7), graphs.torus(3, 4), graphs.hypercube(4), graphs.complete(5), graphs.exponential(12),
    graphs.exponential(13, weights="lazy"),
]  # fmt: skip


@pytest.mark.parametrize("network", TRANSITIVE, ids=repr)
def test_translations_leave_the_network_unchanged(network):
    W = network.W.toarray()
    for v in range(network.n):
        p = network.symmetry(v)
        assert p[0] == v
        assert sorted(p) == list(range(network.n))
        assert (W[np.ix_(p, p)] == W).all()
        assert network.leaves_unchanged(p)


@pytest.mark.parametrize("network", [graphs.path(5), graphs.star(5), graphs.grid(2, 3)], ids=repr)
def test_families_with_a_rim_have_no_translations(network):
    assert network.symmetry is None


@pytest.mark.parametrize(
    ("build", "arguments"),
    [
        (graphs.path, (0,)), (graphs.ring, (2,)), (graphs.grid, (3, 0)), (graphs.torus, (2, 5)),
        (graphs.complete, (-1,)), (graphs.star, (1,)), (graphs.hypercube, (-1,)), (graphs.exponential, (1,)),
        (graphs.ring, (4.5,)), (graphs.ring, ("4",)),
    ],
)  # fmt: skip
def test_sizes_that_make_no_graph_are_refused(build, arguments):
    with pytest.raises(InvalidInput):
        build(*arguments)


def test_directed_graphs_and_edge_weights_are_refused():
    with pytest.raises(GraphError, match="directed"):
        graphs.from_networkx(networkx.DiGraph([(0, 1), (1, 2)]))
    with pytest.raises(GraphError, match="directed"):
        sv.privacy.exact_loss(networkx.DiGraph([(0, 1)]), rounds=1)
    weighted = networkx.Graph()
    weighted.add_weighted_edges_from([(0, 1, 1.0), (1, 2, 3.0)])
    with pytest.raises(GraphError, match="edge weights"):
        graphs.from_networkx(weighted)
    weighted[1][2]["weight"] = 1.0
    assert graphs.from_networkx(weighted).edges.tolist() == [[0, 1], [1, 2]]


def test_from_networkx_takes_parallel_edges_and_self_loops_as_one_edge_and_none():
    G = networkx.MultiGraph([("b", "a"), ("a", "b"), ("a", "a"), ("c", "a")])
    network = graphs.from_networkx(G)
    assert network.node_names == ("b", "a", "c")
    assert network.edges.tolist() == [[0, 1], [1, 2]]
    G.add_edge("x", "y")
    with pytest.raises(InvalidInput, match="largest_component=True"):
        graphs.from_networkx(G)
    assert graphs.from_networkx(G, largest_component=True).node_names == ("b", "a", "c")
