"""Graph families against networkx and against the closed forms of their spectra."""

import networkx
import numpy as np
import pytest

from sottovoce import graphs
from sottovoce.errors import InvalidInput
from sottovoce.graphs import spectra


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
]


@pytest.mark.parametrize(("network", "twin"), TWINS, ids=[network.name for network, _ in TWINS])
def test_same_edges_as_networkx(network, twin):
    assert {tuple(sorted(edge)) for edge in twin.edges()} == set(map(tuple, network.edges.tolist()))
    assert network.n == len(twin)


@pytest.mark.parametrize(
    ("network", "twin"),
    [
        (graphs.grid(3, 5), networkx.grid_2d_graph(3, 5)),
        (graphs.grid(1, 4), networkx.grid_2d_graph(1, 4)),
        (graphs.torus(3, 5), networkx.grid_2d_graph(3, 5, periodic=True)),
        (graphs.hypercube(4), networkx.hypercube_graph(4)),
    ],
    ids=["grid", "line", "torus", "hypercube"],
)
def test_row_major_numbering(network, twin):
    number = {node: k for k, node in enumerate(sorted(twin))}
    expected = {tuple(sorted((number[u], number[v]))) for u, v in twin.edges()}
    assert expected == set(map(tuple, network.edges.tolist()))


def test_florentine_keeps_networkx_order_and_names():
    G = networkx.florentine_families_graph()
    network = graphs.florentine()
    assert list(network.labels) == list(G)
    named = {frozenset((network.label(u), network.label(v))) for u, v in network.edges.tolist()}
    assert named == {frozenset(edge) for edge in G.edges()}


def test_gaps_computed_by_the_authors_of_muffliato():
    assert graphs.ring(64).spectral_gap == pytest.approx(0.00321018222, abs=1e-11)
    assert graphs.complete(32).spectral_gap == pytest.approx(1, abs=1e-12)
    assert graphs.florentine().spectral_gap == pytest.approx(0.0574413008, abs=1e-10)


@pytest.mark.parametrize("n", [3, 4, 5, 12, 64])
def test_ring_spectrum(n):
    values = (1 + 2 * np.cos(2 * np.pi * np.arange(n) / n)) / 3
    ring = graphs.ring(n)
    np.testing.assert_allclose(np.linalg.eigvalsh(ring.W.toarray()), np.sort(values), atol=1e-14)
    assert ring.spectral_gap == pytest.approx(1 - np.sort(np.abs(values))[-2], abs=1e-13)


def test_ring_of_four_by_hand():
    ring = graphs.ring(4)
    np.testing.assert_allclose(np.linalg.eigvalsh(ring.W.toarray()), [-1 / 3, 1 / 3, 1 / 3, 1], atol=1e-15)
    assert ring.spectral_gap == pytest.approx(2 / 3, abs=1e-14)


@pytest.mark.parametrize("d", [1, 2, 5, 10])
def test_hypercube_spectrum(d):
    values = (1 + d - 2 * np.arange(d + 1)) / (d + 1)
    cube = graphs.hypercube(d)
    found = np.linalg.eigvalsh(cube.W.toarray()) if d < 10 else None
    if found is not None:
        assert {round(x, 10) for x in found} == {round(x, 10) + 0 for x in values}
    assert cube.spectral_gap == pytest.approx(1 - np.sort(np.abs(values))[-2], abs=1e-12)


def test_the_gap_looks_at_both_ends():
    # a star with most weight on its edges: the lower end is the one that matters
    n = 4
    W = np.zeros((n, n))
    W[0, 1:] = W[1:, 0] = 1 / 3
    np.fill_diagonal(W, [0.0] + [2 / 3] * 3)
    pair = graphs.from_matrix([[0.1, 0.9], [0.9, 0.1]])
    assert pair.second_eigenvalue == pytest.approx(-0.8)
    assert pair.spectral_gap == pytest.approx(0.2)
    star = graphs.from_matrix(W)
    values = np.linalg.eigvalsh(W)
    assert star.second_eigenvalue == pytest.approx(values[-2])
    assert star.spectral_gap == pytest.approx(1 - max(abs(values[0]), abs(values[-2])))


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
    assert network.diameter == int(network.distances_from(network.n // 2).max())


@pytest.mark.parametrize("network", [graphs.path(5), graphs.star(5), graphs.grid(2, 3)], ids=repr)
def test_families_with_a_rim_have_no_translations(network):
    assert network.symmetry is None


@pytest.mark.parametrize("network", [*TRANSITIVE, graphs.karate(), graphs.grid(5, 9)], ids=repr)
def test_fourier_and_lanczos_agree_with_the_dense_spectrum(network, monkeypatch):
    dense = network.spectral_gap, network.second_eigenvalue, network.fiedler_normalized
    monkeypatch.setattr(spectra, "DENSE", 0)
    fresh = network.reweighted(network.W)  # no symmetry: Lanczos
    assert fresh.spectral_gap == pytest.approx(dense[0], abs=1e-9)
    assert fresh.second_eigenvalue == pytest.approx(dense[1], abs=1e-9)
    assert fresh.fiedler_normalized == pytest.approx(dense[2], abs=1e-9)
    if network.symmetry is not None:
        again = graphs.Network(network.edges, network.W, symmetry=network.symmetry)
        assert again.spectral_gap == pytest.approx(dense[0], abs=1e-13)
        assert again.second_eigenvalue == pytest.approx(dense[1], abs=1e-13)
        assert again.fiedler_normalized == pytest.approx(dense[2], abs=1e-12)


def test_lanczos_looks_at_the_lower_end_where_it_matters(monkeypatch):
    monkeypatch.setattr(spectra, "DENSE", 0)
    ring = graphs.ring(8)
    restless = ring.reweighted(0.08 * np.eye(8) + 0.46 * ring.adjacency.toarray())
    assert restless.second_eigenvalue == pytest.approx(0.08 + 0.92 * np.sqrt(0.5), abs=1e-9)
    assert restless.spectral_gap == pytest.approx(0.16, abs=1e-9)


@pytest.mark.parametrize(
    ("network", "gap"),
    [
        (graphs.path(5000), 2 / 3 * (1 - np.cos(np.pi / 5000))),
        (graphs.ring(5000), 2 / 3 * (1 - np.cos(2 * np.pi / 5000))),
        (graphs.hypercube(12), 2 / 13),
    ],
    ids=["shift-invert", "fourier", "fourier-cube"],
)
def test_large_graphs_against_closed_forms(network, gap):
    assert network.spectral_gap == pytest.approx(gap, rel=1e-6)


def test_normalized_fiedler_values():
    assert graphs.complete(10).fiedler_normalized == pytest.approx(1)
    assert graphs.star(10).fiedler_normalized == pytest.approx(0.1)
    assert graphs.path(10).fiedler_normalized == pytest.approx((2 - 2 * np.cos(np.pi / 10)) / 10)
    # weights do not enter
    assert graphs.path(10, weights="lazy").fiedler_normalized == graphs.path(10).fiedler_normalized


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


def test_from_networkx_takes_any_graph_and_says_what_it_dropped():
    G = networkx.MultiDiGraph([("b", "a"), ("a", "b"), ("a", "a"), ("c", "a")])
    network = graphs.from_networkx(G)
    assert network.labels == ("b", "a", "c")
    assert network.edges.tolist() == [[0, 1], [1, 2]]
    G.add_edge("x", "y")
    with pytest.raises(InvalidInput, match="largest_component=True"):
        graphs.from_networkx(G)
    assert graphs.from_networkx(G, largest_component=True).labels == ("b", "a", "c")
