"""An algorithm's state as bytes and back: numbers and nesting only, no code and no type names.

A state is nested tuples, lists and dictionaries of arrays and numbers. What is written is the nesting and
the arrays; on the way back the classes (named tuples, tensors) come from a template, the state that
`Algorithm.init` makes, never from the bytes.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from sottovoce.errors import LedgerError

__all__ = ["pack", "unpack"]


def pack(state: Any) -> bytes:
    """Return ``state`` as bytes.

    >>> import numpy as np
    >>> unpack(pack((np.arange(3.0), 2, None)), template=(None, None, None))
    (array([0., 1., 2.]), 2, None)
    """
    buffers: list[np.ndarray] = []
    tree = json.dumps(_describe(state, buffers), separators=(",", ":")).encode()
    return b"".join([struct.pack("<Q", len(tree)), tree, *[b.tobytes() for b in buffers]])


def unpack(raw: bytes, template: Any = None) -> Any:
    """Return the state; classes of tuples and tensors are taken from ``template`` where it has them."""
    try:
        (size,) = struct.unpack_from("<Q", raw)
        tree = json.loads(raw[8 : 8 + size])
        value, end = _rebuild(tree, raw, 8 + size, template)
    except (struct.error, ValueError, KeyError, TypeError, IndexError):
        raise LedgerError("The saved state cannot be read; restore the state folder.") from None
    if end != len(raw):
        raise LedgerError("The saved state has bytes left over; restore the state folder.")
    return value


def _describe(value: Any, buffers: list[np.ndarray]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"v": value}
    if isinstance(value, np.generic):
        return {"v": value.item()}
    if isinstance(value, (tuple, list)):
        return {"t" if isinstance(value, tuple) else "l": [_describe(item, buffers) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, (str, int)) for key in value):
        return {"d": [[key, _describe(item, buffers)] for key, item in value.items()]}
    if hasattr(value, "detach"):  # a torch tensor, without importing torch
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        array = np.ascontiguousarray(value)
        buffers.append(array)
        return {"a": [array.dtype.str, list(value.shape)]}
    raise TypeError(f"a state may hold arrays and numbers, got {type(value).__name__}")


def _rebuild(tree: Any, raw: bytes, at: int, template: Any) -> tuple[Any, int]:
    ((kind, body),) = tree.items()
    if kind == "v":
        return body, at
    if kind == "a":
        return _array(body, raw, at, template)
    if kind == "d":
        known = template if isinstance(template, dict) else {}
        found = {}
        for key, item in body:
            found[key], at = _rebuild(item, raw, at, known.get(key))
        return found, at
    items = []
    pieces = (
        template if isinstance(template, (tuple, list)) and len(template) == len(body) else [None] * len(body)
    )
    for item, piece in zip(body, pieces, strict=True):
        value, at = _rebuild(item, raw, at, piece)
        items.append(value)
    if kind == "l":
        return items, at
    if hasattr(template, "_make") and len(template) == len(items):
        return type(template)._make(items), at
    return tuple(items), at


def _array(body: Any, raw: bytes, at: int, template: Any) -> tuple[Any, int]:
    dtype, shape = np.dtype(str(body[0])), tuple(int(size) for size in body[1])
    if dtype.kind not in "fiub":
        raise ValueError(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    end = at + count * dtype.itemsize
    if end > len(raw):
        raise ValueError("short")
    array = np.frombuffer(raw, dtype, count, at).reshape(shape).copy()
    if hasattr(template, "new_tensor"):
        return template.new_tensor(array), end
    return array, end
