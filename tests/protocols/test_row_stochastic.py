"""Gossip with weights that do not average is accounted from its own messages, not from its transpose."""

import numpy as np
import pytest

import sottovoce as sv


def by_rows(W, v, rounds):
    """h from the rows of explicit powers; few rounds, so that powers are harmless."""
    n = len(W)
    power, seen = np.eye(n), [np.eye(n)[v]]
    for _ in range(rounds):
        seen += [power[w] for w in np.flatnonzero(W[v]) if w != v]
        power = W @ power
    projector = np.linalg.pinv(np.array(seen)) @ np.array(seen)
    h = np.diag(projector).copy()
    h[v] = 0.0
    return h


@pytest.mark.parametrize("name", ["florentine", "karate", "star:6", "grid:3:4"])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_the_view_of_row_stochastic_gossip(name, rounds):
    network = sv.graphs.parse(f"{name}:weights=row_stochastic")
    gossip = sv.protocols.Gossip(network, rounds)
    for v in range(network.n):
        np.testing.assert_allclose(
            gossip.view(v).leakage(), by_rows(network.W.toarray(), v, rounds), atol=1e-8
        )
