"""Checks of arguments: each returns the checked value or raises an error of one sentence."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import TypeVar, cast

import numpy as np

from sottovoce.errors import InvalidInput

T = TypeVar("T")


def positive(value: float, name: str) -> float:
    """Return ``value`` as a finite float greater than zero."""
    number = _number(value, name)
    return _checked(number, 0 < number < math.inf, f"{name} must be a positive finite number", value)


def non_negative(value: float, name: str) -> float:
    """Return ``value`` as a finite float of at least zero."""
    number = _number(value, name)
    return _checked(number, 0 <= number < math.inf, f"{name} must be a finite number of at least 0", value)


def loss(value: float, name: str) -> float:
    """Return a loss as a float of at least zero; infinity is one, where no noise was added."""
    number = _number(value, name)
    return _checked(number, number >= 0, f"{name} must be at least 0 (infinity means no noise)", value)


def clip(value: float, *, noisy: bool = False) -> float:
    """Return the bound of one contribution: positive, and finite where noise is measured against it."""
    number = _number(value, "clip_norm")
    valid = 0 < number <= math.inf and not (noisy and number == math.inf)
    return _checked(number, valid, "clip_norm must be positive, and finite where noise is added", value)


def probability(value: float, name: str, *, zero: bool = True, one: bool = True) -> float:
    """Return ``value`` as a float in [0, 1]; ``zero`` and ``one`` say whether the ends are allowed."""
    number = _number(value, name)
    valid = 0 < number < 1 or (number == 0 and zero) or (number == 1 and one)
    interval = f"{'[' if zero else '('}0, 1{']' if one else ')'}"
    return _checked(number, valid, f"{name} must lie in {interval}", value)


def delta(value: float) -> float:
    """Return a delta, strictly between 0 and 1."""
    number = _number(value, "delta")
    if not 0 < number < 1:
        raise InvalidInput(
            f"delta must lie strictly between 0 and 1, got {shown(value)}; "
            "1e-5, or less than one over the number of records, is usual."
        )
    return number


def count(value: int, name: str, *, minimum: int = 1) -> int:
    """Return ``value`` as an int of at least ``minimum``."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise InvalidInput(f"{name} must be a whole number, got {shown(value)}.")
    if number < minimum:
        raise InvalidInput(f"{name} must be at least {minimum}, got {shown(number)}.")
    return number


def nodes(values: int | Iterable[int], n: int, name: str = "observers") -> tuple[int, ...]:
    """Return distinct node numbers in [0, n), sorted."""
    each = [int(values)] if isinstance(values, (int, np.integer)) else values
    numbers = sorted({count(v, f"a node of {name}", minimum=0) for v in each})
    if not numbers:
        raise InvalidInput(f"{name} must name at least one node, got none.")
    if numbers[-1] >= n:
        raise InvalidInput(f"{name} names node {numbers[-1]}, but the nodes are 0 to {n - 1}.")
    return tuple(numbers)


def node(value: int, n: int) -> int:
    """Return one node number in [0, n)."""
    number = count(value, "a node", minimum=0)
    if number >= n:
        raise InvalidInput(f"There is no node {number}: the nodes are 0 to {n - 1}.")
    return number


def rows(values: object, n: int, name: str = "values", *, finite: bool = True) -> np.ndarray:
    """Return an (n, dim) float array, finite by default; a vector of length n becomes (n, 1)."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise InvalidInput(f"{name} must have one row per node ({n}), all of one length.") from None
    if array.dtype not in (np.float32, np.float64):
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise InvalidInput(f"{name} must be numbers, got an array of {array.dtype}.") from None
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[0] != n:
        raise InvalidInput(f"{name} must have one row per node ({n}), got shape {array.shape}.")
    # squares do not cancel, so a finite sum of them needs no second look; that of finite numbers may overflow
    if finite and not math.isfinite(np.vdot(array, array)) and not np.isfinite(array).all():
        bad = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
        raise InvalidInput(f"{name} must be finite, but row {bad} holds NaN or infinity.")
    return array


def flag(value: bool, name: str) -> bool:
    """Return a truth value; a word or a number in its place is refused, as "no" would count as true."""
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidInput(f"{name} must be true or false, got {shown(value)}.")
    return bool(value)


def word(value: str, name: str) -> str:
    """Return a word, where one of a few is expected."""
    if not isinstance(value, str):
        raise InvalidInput(f"{name} must be a word, got {shown(value)}.")
    return value


def choice(value: T, allowed: Iterable[object], name: str) -> T:
    """Return ``value`` if it is one of ``allowed``."""
    words = [str(one) for one in allowed]
    if value not in words:
        raise InvalidInput(f"{name} must be one of {', '.join(words)}, got {shown(value)}.")
    return value


def several(values: Iterable[T], name: str) -> tuple[T, ...]:
    """Return the values of a list as a tuple; a single value is refused."""
    try:
        if isinstance(values, (str, bytes)):
            raise TypeError
        return tuple(values)
    except TypeError:
        raise InvalidInput(f"{name} must be a list of numbers, got {shown(values)}.") from None


def point(value: float | Iterable[float], name: str, dim: int | None = None) -> float | tuple[float, ...]:
    """Return a public point: one finite number, or one per coordinate (``dim`` of them, where known)."""
    if np.ndim(value) == 0 and not isinstance(value, dict):  # type: ignore[arg-type]
        return _finite(value, name)
    several_of = cast("Iterable[float]", value)
    coordinates = tuple(_finite(v, f"every coordinate of {name}") for v in several(several_of, name))
    if not coordinates or (dim is not None and len(coordinates) not in (1, dim)):
        wanted = "one number, or one per coordinate" + ("" if dim is None else f" ({dim})")
        raise InvalidInput(f"{name} must be {wanted}, got {len(coordinates)}.")
    return coordinates


def shown(value: object) -> str:
    """Return a value as a sentence shows it: not more than a line of it."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."


def _checked(number: float, valid: bool, expected: str, value: object) -> float:
    if not valid:
        raise InvalidInput(f"{expected}, got {shown(value)}.")
    return number


def _finite(value: object, name: str) -> float:
    number = _number(value, name)
    return _checked(number, math.isfinite(number), f"{name} must be a finite number", value)


def _number(value: object, name: str) -> float:
    """Return a float; words and truth values, which Python would turn into numbers, are refused."""
    try:
        if isinstance(value, (str, bytes, bool, np.bool_)):
            raise TypeError
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(f"{name} must be a number, got {shown(value)}.") from None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean 'ring'?)"`` if a known word is near, else an empty string."""
    import difflib

    lowered = {k.lower(): k for k in known}
    near = difflib.get_close_matches(word.lower(), list(lowered), n=1, cutoff=0.5)
    return f" (did you mean {lowered[near[0]]!r}?)" if near else ""
