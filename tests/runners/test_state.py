"""States as arrays and as bytes: what goes in comes back, and nothing that was not a state."""

import json
import struct
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sottovoce.errors import ConfigError, DataError
from sottovoce.runners import State
from sottovoce.runners.state import leaves, pack, rebuilt, unpack


class AveragePair(NamedTuple):
    first: object
    second: object


arrays = hnp.arrays(
    st.sampled_from([np.float64, np.float32, np.int64, np.bool_]), hnp.array_shapes(min_side=0)
)
trees = st.recursive(
    arrays | st.integers(-9, 9) | st.floats(allow_nan=False) | st.none(),
    lambda part: (
        st.lists(part, max_size=3)
        | st.tuples(part, part)
        | st.builds(AveragePair, part, part)
        | st.builds(State, part, part)
        | st.dictionaries(st.text(max_size=3), part, max_size=3)
    ),
    max_leaves=8,
)


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        [same(a[key], b[key]) for key in a]
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        [same(x, y) for x, y in zip(a, b, strict=True)]
    else:
        assert a == b


@given(trees)
def test_there_and_back(tree):
    same(rebuilt(tree, leaves(tree)), tree)
    same(unpack(pack(tree), tree), tree)


def test_classes_come_from_the_template_only():
    raw = pack(AveragePair(np.ones(2), (1, 2)))
    assert type(unpack(raw)) is tuple
    assert type(unpack(raw, AveragePair(None, None))) is AveragePair
    assert b"Pair" not in raw


def test_numbers_keep_their_kind():
    state = (np.float32(0.1), 3, True, 0.5, np.array(2))
    same(rebuilt(state, leaves(state)), state)


def test_too_many_or_too_few_arrays():
    with pytest.raises(ConfigError, match=r"holds 2 arrays, .* has 1"):
        rebuilt((0,), [np.array(1), np.array(2)])
    with pytest.raises(ConfigError, match=r"holds 1 arrays, .* has 2"):
        rebuilt((0, 1), [np.array(1)])


def framed(tree, rest=b""):
    text = json.dumps(tree).encode()
    return struct.pack("<Q", len(text)) + text + rest


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"x" * 8, framed(3), framed({}), framed({"v": 1, "t": []}), framed({"a": ["O", [1]]}, b"x" * 8),
        framed({"a": ["<f8", [2]]}, b"x" * 15), framed({"a": ["<f8", [2]]}, b"x" * 17),
        framed({"a": ["<f8", [-1]]}), framed({"a": ["<c16", [1]]}, b"x" * 16),
        framed({"a": ["<U2", [1]]}, b"x" * 8),
        framed({"t": 4}), framed({"d": [[1]]}), framed({"v": 1}, b"left over"), b"\xff" * 40,
    ],
)  # fmt: skip
def test_other_bytes_are_refused_with_a_sentence(raw):
    with pytest.raises(DataError, match=r"^The saved state .*restore the state folder\.$"):
        unpack(raw)


def test_only_numbers_are_packed():
    with pytest.raises(TypeError, match="arrays and numbers"):
        pack((object(),))
