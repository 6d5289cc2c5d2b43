"""Theoretical numbers of rounds."""

import math

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.errors import InvalidInput
from sottovoce.protocols import AcceleratedRandomized, rounds_for


def test_theoretical_rounds():
    assert rounds_for(sv.graphs.hypercube(11)) == 19
    assert rounds_for(sv.graphs.grid(45, 45)) in (243, 244)
    assert rounds_for(sv.graphs.complete(1)) == 0
    assert rounds_for(sv.graphs.ring(8), kind="randomized") > rounds_for(sv.graphs.ring(8))
    with pytest.raises(InvalidInput, match="synchronous"):
        rounds_for(sv.graphs.ring(8), kind="slow")


def test_accelerated_ticks_follow_the_remark():
    """With the rate in place of lambda(p) in Theorem 3; on rings by a factor of about n / 4 fewer."""
    for n in (16, 64):
        ring = sv.graphs.ring(n)
        theta = AcceleratedRandomized(ring, 1, np.random.default_rng(0)).momentum[0]
        assert rounds_for(ring, kind="accelerated-randomized") == math.ceil(math.log(n) / theta)
    ratio = [rounds_for(sv.graphs.ring(n), kind="randomized")
             / rounds_for(sv.graphs.ring(n), kind="accelerated-randomized") for n in (16, 64)]  # fmt: skip
    assert ratio[1] / ratio[0] > 2
