"""Random graphs: shape, law, repeatability."""

import networkx
import numpy as np
import pytest

from sottovoce import graphs
from sottovoce.errors import GraphError, InvalidInput
from sottovoce.graphs.random import _pair_of, gnp_edges


def rng(seed=0):
    return np.random.default_rng(seed)


DRAWS = {
    "er": lambda r: graphs.erdos_renyi(60, 1.5, r),
    "geometric": lambda r: graphs.geometric(60, 0.3, r),
    "regular": lambda r: graphs.regular(60, 5, r),
    "random": lambda r: graphs.random_connected(12, 0.2, r),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_same_seed_same_graph_other_seed_other_graph(draw):
    one, two, other = draw(rng(1)), draw(rng(1)), draw(rng(2))
    assert one.edges.tobytes() == two.edges.tobytes()
    assert one.W.data.tobytes() == two.W.data.tobytes()
    assert one.edges.tobytes() != other.edges.tobytes()


@pytest.mark.parametrize(
    ("n", "d"),
    [(4, 3), (5, 2), (6, 3), (6, 4), (10, 7), (12, 11), (20, 9), (51, 4), (300, 16), (2, 1), (1, 0)],
)
def test_regular_graphs_are_regular(n, d):
    for seed in range(10):
        network = graphs.regular(n, d, rng(seed))
        assert network.degrees.tolist() == [d] * n


@pytest.mark.parametrize(("n", "d"), [(5, 3), (4, 4), (4, 1), (3, 0), (6, -1)])
def test_regular_graphs_that_do_not_exist(n, d):
    with pytest.raises(InvalidInput):
        graphs.regular(n, d, rng())


def test_regular_graphs_come_in_their_right_shares():
    """Of the 70 labeled cubic graphs on six nodes 60 are prisms and 10 are K_{3,3}."""
    r, draws = rng(5), 1000
    drawn = (networkx.Graph(graphs.regular(6, 3, r).edges.tolist()) for _ in range(draws))
    prisms = sum(any(networkx.triangles(graph).values()) for graph in drawn)
    # within four standard deviations of 6/7
    assert prisms / draws == pytest.approx(6 / 7, abs=4 * np.sqrt(6 / 49 / draws))


def test_repaired_regular_graphs_have_as_many_triangles_as_uniform_ones():
    """In the limit the triangles of a d-regular graph are Poisson with mean (d - 1)^3 / 6."""
    r, d, draws = rng(6), 5, 60
    drawn = (graphs.regular(400, d, r).adjacency for _ in range(draws))
    counts = [np.trace((A @ A @ A).toarray()) / 6 for A in drawn]
    mean = (d - 1) ** 3 / 6
    assert np.mean(counts) == pytest.approx(mean, abs=4 * np.sqrt(mean / draws))


def test_erdos_renyi_has_the_right_density():
    n, c = 2000, 2.0
    network = graphs.erdos_renyi(n, c, rng(7))
    q = c * np.log(n) / n
    total = n * (n - 1) / 2
    assert abs(len(network.edges) - q * total) < 4.5 * np.sqrt(q * (1 - q) * total)


@pytest.mark.parametrize("q", [0.0, 0.02, 0.3, 0.7, 1.0])
def test_each_pair_of_gnp_is_an_independent_coin(q):
    r, n, draws = rng(8), 7, 4000
    counts, both = np.zeros((n, n)), 0
    for _ in range(draws):
        A = np.zeros((n, n))
        u, v = gnp_edges(n, q, r).T
        A[u, v] = 1
        counts += A
        both += A[0, 1] * A[0, 2]
    share = counts[np.triu_indices(n, 1)] / draws
    assert np.abs(share - q).max() <= 4.5 * np.sqrt(q * (1 - q) / draws)
    assert abs(both / draws - q * q) <= 4.5 * np.sqrt(q * q * (1 - q * q) / draws)
    assert not np.tril(counts).any()


@pytest.mark.parametrize("n", [2, 3, 10, 57])
def test_pairs_are_numbered_in_order(n):
    total = n * (n - 1) // 2
    assert _pair_of(np.arange(total), n).tolist() == np.column_stack(np.triu_indices(n, 1)).tolist()


@pytest.mark.parametrize("n", [3_000_000, 2_000_000_000])
def test_pairs_are_numbered_rightly_where_floats_round(n):
    total = n * (n - 1) // 2
    side = rng().integers(n - 1, size=2000)
    corners = total - 1 - side * (side + 1) // 2  # the first pair of a row, counted from the end
    index = np.concatenate([corners, np.minimum(corners + 1, total - 1), np.maximum(corners - 1, 0)])
    u, v = _pair_of(index, n).T
    assert ((u >= 0) & (u < v) & (v < n)).all()
    before = u * (2 * n - u - 1) // 2  # pairs whose smaller node comes earlier
    assert (before + v - u - 1 == index).all()


def test_geometric_joins_exactly_the_near_ones():
    network = graphs.geometric(80, 0.3, rng(9))
    points = rng(9).random((80, 2))  # connected at the first draw
    near = np.linalg.norm(points[:, None] - points[None], axis=2) <= 0.3
    np.fill_diagonal(near, False)
    assert (network.adjacency.toarray() == near).all()


@pytest.mark.parametrize("fiedler", [0.70, 0.39, 0.06])
def test_random_connected_hits_the_connectivities_of_the_deep_learning_tables(fiedler):
    for seed in range(20):
        network = graphs.random_connected(10, fiedler, rng(seed))
        L = np.diag(network.degrees) - network.adjacency.toarray()
        assert abs(np.sort(np.linalg.eigvalsh(L))[1] / 10 - fiedler) <= 0.05


def test_random_connected_at_the_ends_and_beyond():
    assert len(graphs.random_connected(10, 1.0, rng(), tolerance=0.01).edges) == 45
    assert graphs.random_connected(10, 0.0098, rng(), tolerance=0.002).fiedler_normalized < 0.012
    with pytest.raises(GraphError, match=r"within 0.05 of the normalized Fiedler value 0.9 \(nearest: "):
        graphs.random_connected(10, 0.9, rng())
    for bad in (0.0, 1.5, -0.1):
        with pytest.raises(InvalidInput):
            graphs.random_connected(10, bad, rng())


def test_a_family_that_is_never_connected_says_so():
    with pytest.raises(GraphError, match="take c above 1"):
        graphs.erdos_renyi(2000, 0.3, rng())
    with pytest.raises(GraphError, match="take a radius above"):
        graphs.geometric(200, 0.01, rng())


@pytest.mark.slow
def test_a_million_nodes():
    network = graphs.regular(1_000_000, 8, rng(1))
    assert (network.degrees == 8).all()
    assert network.W.nnz == 9_000_000
    assert np.isin(network.W.data, 1 / 9).all()
