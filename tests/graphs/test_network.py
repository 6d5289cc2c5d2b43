"""A network is checked once, at construction, and cannot be changed afterwards."""

import pickle

import networkx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce import graphs
from sottovoce.errors import GraphError, InvalidInput

PATH3 = np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3
EDGES3 = [(0, 1), (1, 2)]


@st.composite
def connected_graphs(draw, largest=9):
    """A random spanning tree and some more edges, as (n, edges)."""
    n = draw(st.integers(2, largest))
    tree = [(draw(st.integers(0, v - 1)), v) for v in range(1, n)]
    pair = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda p: p[0] != p[1])
    return n, tree + draw(st.lists(pair, max_size=12))


def changed(entries):
    W = PATH3.copy()
    for place, value in entries.items():
        W[place] = value
    return W


@pytest.mark.parametrize(
    ("W", "sentence"),
    [
        (changed({(2, 2): 2 / 3 - 0.06}), "Row 2 of the gossip matrix sums to 0.94, expected 1; metropolis("),
        (changed({(0, 0): np.nan}), "W[0, 0] is nan, expected a finite number"),
        (changed({(1, 1): np.inf}), "W[1, 1] is inf, expected a finite"),
        (changed({(0, 2): 1e-9, (2, 0): 1e-9}), "W[0, 2] is 1e-09, expected a finite number that is 0 or"),
        (changed({(0, 0): 1.1, (0, 1): -0.1}), "W[0, 1] is -0.1, expected a finite number that is 0 or at"),
        (changed({(0, 0): 0.5, (0, 1): 0.5}), "not symmetric: W[0, 1] is 0.5 and W[1, 0] is 0.333"),
        (
            changed({(0, 0): 0.5, (0, 2): 1 / 6, (2, 2): 0.5, (2, 0): 1 / 6}),
            "0 and 2 are not joined by an edge",
        ),
        (np.eye(3), "falls into 3 parts (no path from node 0 to node 1)"),
        (changed({(0, 0): 1, (0, 1): 0, (1, 0): 0, (1, 1): 2 / 3}), "falls into 2 parts"),
        (PATH3[:2], "must be square"),
        (np.empty((0, 0)), "at least one row"),
        ("W", "must be a square array of numbers"),
    ],
)
def test_bad_matrices_are_refused_with_row_and_value(W, sentence):
    with pytest.raises(GraphError) as caught:
        graphs.Network(EDGES3, W)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("edges", "sentence"),
    [
        ([(0, 1), (1, 3)], "Edge 1 is (1, 3), expected two different nodes of 0 to 2"),
        ([(0, 1), (-1, 2)], "Edge 1 is (-1, 2), expected two different nodes"),
        ([(0, 1), (2, 2)], "Edge 1 is (2, 2), expected two different nodes"),
        ([(0.0, 1.0)], "array of node numbers"),
        ([0, 1, 2], "array of node numbers"),
    ],
)
def test_bad_edges_are_refused(edges, sentence):
    with pytest.raises(GraphError) as caught:
        graphs.Network(edges, PATH3)
    assert sentence in str(caught.value)


def test_symmetry_is_checked_to_1e_12():
    graphs.Network(EDGES3, changed({(0, 1): 1 / 3 + 4e-13}))
    with pytest.raises(GraphError, match="not symmetric"):
        graphs.Network(EDGES3, changed({(0, 0): 2 / 3 - 4e-12, (0, 1): 1 / 3 + 4e-12}))


def test_a_matrix_that_swaps_for_ever_is_refused():
    swap = [[0.0, 1.0], [1.0, 0.0]]
    with pytest.raises(GraphError, match=r"eigenvalue -1.*lazy"):
        graphs.Network([(0, 1)], swap)
    # an odd cycle without a diagonal does converge
    triangle = graphs.from_matrix((np.ones((3, 3)) - np.eye(3)) / 2)
    assert triangle.spectral_gap == pytest.approx(0.5)


def test_arrays_are_immutable_and_the_input_is_not_shared():
    W = PATH3.copy()
    network = graphs.Network(EDGES3, W)
    W[0, 0] = 7
    assert network.W[0, 0] == 2 / 3
    for array in (network.edges, network.W.data, network.W.indices, network.W.indptr, network.degrees,
                  network.adjacency.data):  # fmt: skip
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(AttributeError):
        network.name = "other"
    with pytest.raises(ValueError, match="read-only"):
        network.W[0, 0] = 1.0


def test_a_pickled_copy_is_frozen_too():
    network = graphs.hypercube(3)
    copy = pickle.loads(pickle.dumps(network))
    assert (copy.W != network.W).nnz == 0
    assert copy.symmetry == network.symmetry
    with pytest.raises(ValueError, match="read-only"):
        copy.W.data[0] = 1


def test_edges_are_sorted_once_each_smaller_first():
    network = graphs.Network([(2, 1), (1, 0), (0, 1)], PATH3)
    assert network.edges.tolist() == [[0, 1], [1, 2]]


def test_one_node_is_a_network():
    lonely = graphs.complete(1)
    assert (lonely.n, lonely.spectral_gap, lonely.fiedler_normalized) == (1, 1.0, 1.0)
    assert lonely.neighbors(0).tolist() == []


@given(connected_graphs(), st.sampled_from(["metropolis", "max_degree", "lazy"]))
@settings(max_examples=150)
def test_any_connected_graph_gets_valid_weights(graph, weights):
    n, edges = graph
    network = graphs.network_of(np.array(edges), n, "any", weights)
    W = network.W.toarray()
    assert (W == W.T).all()
    assert (W >= 0).all()
    np.testing.assert_allclose(W.sum(axis=1), 1, atol=1e-15)
    assert network.W.has_sorted_indices
    assert 0 < network.spectral_gap <= 1
    eigenvalues = np.sort(np.abs(np.linalg.eigvalsh(W)))
    assert network.spectral_gap == pytest.approx(1 - eigenvalues[-2], abs=1e-12)


@given(connected_graphs(), st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_renumbering_the_nodes_renumbers_everything(graph, random):
    n, edges = graph
    p = np.array(random.sample(range(n), n))
    one = graphs.network_of(np.array(edges), n, "one")
    two = graphs.network_of(p[np.array(edges)], n, "two")
    np.testing.assert_allclose(two.W.toarray()[np.ix_(p, p)], one.W.toarray(), atol=1e-15)
    assert two.degrees[p].tolist() == one.degrees.tolist()
    assert two.spectral_gap == pytest.approx(one.spectral_gap, abs=1e-12)
    assert two.fiedler_normalized == pytest.approx(one.fiedler_normalized, abs=1e-12)


@given(connected_graphs(largest=14))
@settings(max_examples=100)
def test_distances_and_fiedler_value_agree_with_networkx(graph):
    n, edges = graph
    network = graphs.network_of(np.array(edges), n, "any")
    G = networkx.Graph(edges)
    lengths = dict(networkx.all_pairs_shortest_path_length(G))
    for v in range(n):
        assert network.distances_from(v).tolist() == [lengths[v][u] for u in range(n)]
        assert network.neighbors(v).tolist() == sorted(G[v])
    L = networkx.laplacian_matrix(G, nodelist=range(n)).toarray()
    assert network.fiedler_normalized == pytest.approx(np.sort(np.linalg.eigvalsh(L))[1] / n, abs=1e-12)


def test_nodes_outside_are_refused():
    ring = graphs.ring(5)
    for bad in (5, -1, 1.5):
        with pytest.raises(InvalidInput):
            ring.neighbors(bad)
        with pytest.raises(InvalidInput):
            ring.distances_from(bad)


def test_labels_are_distinct_and_found_again():
    with pytest.raises(GraphError, match="3 distinct names of nodes, got 2"):
        graphs.Network(EDGES3, PATH3, node_names=("a", "b", "a"))
    florentine = graphs.florentine()
    assert [florentine.node(name) for name in florentine.node_names] == list(range(15))
    with pytest.raises(GraphError, match=r"No node of florentine is called 'Medicci' .did you mean 'Medici'"):
        florentine.node("Medicci")


def test_a_false_symmetry_is_not_believed():
    path = graphs.path(4000)
    lying = graphs.Network(path.edges, path.W, symmetry=graphs.Translations((4000,)))
    assert lying.spectral_gap == pytest.approx(path.spectral_gap, abs=1e-10)


def test_reweighted_keeps_the_graph_and_its_symmetry():
    torus = graphs.torus(3, 5)
    lazy = torus.reweighted("lazy")
    assert (lazy.edges == torus.edges).all()
    assert lazy.symmetry == torus.symmetry
    own = torus.reweighted(torus.reweighted("max_degree").W)
    assert own.symmetry is None
    with pytest.raises(GraphError, match="Unknown weights 'metropols'"):
        torus.reweighted("metropols")
    with pytest.raises(GraphError, match="not joined by an edge"):
        torus.reweighted(graphs.complete(15).W)


def test_sparse_formats_and_explicit_zeros_are_the_same_matrix():
    rows, columns = np.indices((3, 3)).reshape(2, -1)
    spelled = sp.coo_array((PATH3.ravel(), (rows, columns)))  # zeros written out
    network = graphs.Network(EDGES3, spelled)
    assert network.W.nnz == 7
    assert (network.W.toarray() == PATH3).all()
