"""Exact consensus on a spanning tree."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.errors import InvalidInput
from sottovoce.protocols import Tree


@pytest.mark.parametrize("seed", range(20))
def test_senders_are_those_of_the_matrices(seed):
    rng = np.random.default_rng(seed)
    tree = Tree(sv.graphs.complete(int(rng.integers(2, 9))), kind="uniform", rng=rng)
    who = rng.choice(tree.n, int(rng.integers(1, tree.n + 1)), replace=False).tolist()
    for t in range(tree.rounds):
        assert tree.senders(t, who) == sv.protocols.LinearProtocol.senders(tree, t, who)


INVALID = [
    (lambda: Tree(sv.graphs.ring(4), kind="uniform"), "rng"),
    (lambda: Tree(sv.graphs.ring(4), parents=[1, 2, 3, 0]), "one -1"),
    (lambda: Tree(sv.graphs.ring(4), parents=[-1, 2, 1, 0]), "never reaches"),
    (lambda: Tree(sv.graphs.ring(4), parents=[-1, 0, 0, 0]), "not an edge"),
]


@pytest.mark.parametrize(("call", "words"), INVALID)
def test_invalid_input_is_refused_in_one_sentence(call, words):
    with pytest.raises(InvalidInput, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
