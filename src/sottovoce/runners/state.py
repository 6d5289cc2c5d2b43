"""An algorithm's state as arrays or as bytes, and back: numbers and nesting only, no code and no type names.

A state is nested tuples, lists and dictionaries of arrays and numbers. Classes of tuples come from a
template, the state that `Algorithm.init` makes, never from what was stored.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sottovoce.errors import ConfigError, DataError

_TREE = json.JSONEncoder(separators=(",", ":"))


def mapped(state: object, change: Callable[[Any], Any]) -> Any:
    """Return the state with ``change`` applied to every array and number, in order; nesting and None stay."""
    if state is None:
        return None
    if isinstance(state, Mapping):
        return {key: mapped(item, change) for key, item in state.items()}
    if isinstance(state, (tuple, list)):
        return _same_kind(state, [mapped(item, change) for item in state])
    return change(state)


def leaves(state: object) -> list[np.ndarray]:
    """Return the arrays of an algorithm's state in order; tuples, lists and mappings may be nested."""
    arrays: list[np.ndarray] = []
    mapped(state, lambda leaf: arrays.append(np.asarray(leaf)))
    return arrays


def rebuilt(like: object, arrays: Sequence[np.ndarray]) -> Any:
    """Return a state shaped like ``like`` that holds ``arrays``, the inverse of `leaves`."""
    size = len(leaves(like))
    if len(arrays) != size:
        raise ConfigError(f"The checkpoint holds {len(arrays)} arrays, this algorithm's state has {size}.")
    left = iter(arrays)
    return mapped(like, lambda leaf: _same_number(leaf, next(left)))


def pack(state: object) -> bytes:
    """Return ``state`` as bytes."""
    buffers: list[np.ndarray] = []
    tree = _TREE.encode(_describe(state, buffers)).encode()
    return b"".join([struct.pack("<Q", len(tree)), tree, *(b.data for b in buffers)])


def unpack(raw: bytes, template: object = None) -> Any:
    """Return the state; classes of tuples are taken from ``template`` where it has them."""
    try:
        (size,) = struct.unpack_from("<Q", raw)
        tree = json.loads(raw[8 : 8 + size])
        value, end = _rebuild(tree, raw, 8 + size, template)
    except (struct.error, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise DataError("The saved state cannot be read; restore the state folder.") from None
    if end != len(raw):
        raise DataError("The saved state has bytes left over; restore the state folder.")
    return value


def _same_number(like: object, array: np.ndarray) -> Any:
    """Return an array as an array or a number, whichever ``like`` is."""
    if isinstance(like, np.generic):
        return array[()]
    return array if isinstance(like, np.ndarray) else array.item()


def _same_kind(like: Any, items: list[Any]) -> Any:
    """Return the items as a tuple, a list or a named tuple, whichever ``like`` is."""
    return type(like)._make(items) if hasattr(like, "_make") else type(like)(items)


def _describe(value: object, buffers: list[np.ndarray]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"v": value}
    if isinstance(value, np.generic):
        return {"v": value.item()}
    if isinstance(value, (tuple, list)):
        return {"t" if isinstance(value, tuple) else "l": [_describe(item, buffers) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, (str, int)) for key in value):
        return {"d": [[key, _describe(item, buffers)] for key, item in value.items()]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        array = np.ascontiguousarray(value)
        buffers.append(array)
        return {"a": [array.dtype.str, list(value.shape)]}
    raise TypeError(f"a state may hold arrays and numbers, got {type(value).__name__}")


def _rebuild(tree: Any, raw: bytes, at: int, template: object) -> tuple[Any, int]:
    ((kind, body),) = tree.items()
    if kind == "v":
        return body, at
    if kind == "a":
        return _array(body, raw, at)
    if kind == "d":
        known = template if isinstance(template, dict) else {}
        entries = {}
        for key, item in body:
            entries[key], at = _rebuild(item, raw, at, known.get(key))
        return entries, at
    fits = isinstance(template, (tuple, list)) and len(template) == len(body)
    pieces: Any = template if fits else [None] * len(body)
    items = []
    for item, piece in zip(body, pieces, strict=True):
        value, at = _rebuild(item, raw, at, piece)
        items.append(value)
    if kind == "l":
        return items, at
    return _same_kind(template if fits and isinstance(template, tuple) else (), items), at


def _array(body: Any, raw: bytes, at: int) -> tuple[np.ndarray, int]:
    dtype, shape = np.dtype(str(body[0])), tuple(int(size) for size in body[1])
    if dtype.kind not in "fiub":
        raise ValueError(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    end = at + count * dtype.itemsize
    if count < 0:  # numpy would read all that is left; fewer bytes than wanted it refuses itself
        raise ValueError(count)
    return np.frombuffer(raw, dtype, count, at).reshape(shape).copy(), end
