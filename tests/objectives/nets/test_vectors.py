"""Vectors in compiled functions against numpy."""

import numpy as np
import pytest
from numba import njit

from sottovoce.objectives.nets import vectors as v


def test_only_the_first_lanes_are_stored():
    def body(x, out):
        v.store(out, 1, v.load(x, 0, 8), 5)

    numbers, out = np.linspace(-40, 40, 32, dtype=np.float32), np.full(18, 7, np.float32)
    njit(body)(numbers, out)
    assert (out[1:6] == numbers[:5]).all()
    assert (np.delete(out, range(1, 6)) == 7).all()


def test_exp_to_two_parts_in_ten_million_within_the_bound():
    def body(x, out):
        for first in range(0, len(x), 16):
            v.store(out, first, v.exp(v.load(x, first, 16), v.spread(np.float32(30), 16)), 16)

    x = np.append(np.linspace(-31, 31, 1598, dtype=np.float32), np.float32([-1e30, 1e30]))
    out = np.empty_like(x)
    njit(body)(x, out)
    np.testing.assert_allclose(out, np.exp(x.clip(-30, 30).astype(float)), rtol=2.5e-7)


def test_strided_arrays_are_refused():
    def body(x, out):
        v.store(out, 0, v.load(x, 0, 16), 16)

    with pytest.raises(Exception, match="contiguous arrays"):
        njit(body)(np.zeros(64, np.float32)[::2], np.zeros(16, np.float32))
