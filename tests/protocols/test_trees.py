"""Exact consensus on a spanning tree."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.protocols import Tree


@pytest.mark.parametrize("seed", range(20))
def test_senders_are_those_of_the_matrices(seed):
    rng = np.random.default_rng(seed)
    tree = Tree(sv.graphs.complete(int(rng.integers(2, 9))), kind="uniform", rng=rng)
    who = rng.choice(tree.n, int(rng.integers(1, tree.n + 1)), replace=False).tolist()
    for t in range(tree.rounds):
        assert tree.senders(t, who) == sv.protocols.LinearProtocol.senders(tree, t, who)
