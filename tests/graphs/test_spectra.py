"""Spectra of gossip matrices and Laplacians against closed forms."""

import numpy as np
import pytest
from tests.graphs.test_families import TRANSITIVE

from sottovoce import graphs
from sottovoce.graphs import spectra


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


@pytest.mark.parametrize("network", [*TRANSITIVE, graphs.karate(), graphs.grid(5, 9)], ids=repr)
def test_fourier_and_lanczos_agree_with_the_dense_spectrum(network, monkeypatch):
    def figures(network):
        return network.spectral_gap, network.second_eigenvalue, network.fiedler_normalized

    dense = figures(network)
    monkeypatch.setattr(spectra, "DENSE", 0)
    assert figures(network.reweighted(network.W)) == pytest.approx(dense, abs=1e-9)  # no symmetry: Lanczos
    if network.symmetry is not None:
        again = graphs.Network(network.edges, network.W, symmetry=network.symmetry)
        assert figures(again) == pytest.approx(dense, abs=1e-12)


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
