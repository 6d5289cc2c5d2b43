"""Networks as arguments: a `Network`, a name such as ``"ring:8"``, or a networkx graph."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from sottovoce.errors import InvalidInput
from sottovoce.graphs.families import from_networkx
from sottovoce.graphs.network import Network
from sottovoce.graphs.parsing import parse

Called = TypeVar("Called", bound=Callable[..., Any])


def as_network(value: Any) -> Network:
    """Return a network from a network, a name such as ``"ring:8"`` or a networkx graph.

    Examples
    --------
    >>> as_network("ring:8")
    Network('ring:8', n=8, edges=8)
    >>> as_network(8)
    Traceback (most recent call last):
    sottovoce.errors.InvalidInput: network must be a Network, a name or a networkx graph, got int.
    """
    if isinstance(value, Network):
        return value
    if isinstance(value, str):
        return parse(value)
    if hasattr(value, "edges") and hasattr(value, "nodes"):
        return from_networkx(value)
    raise InvalidInput(f"network must be a Network, a name or a networkx graph, got {type(value).__name__}.")


def takes_network(function: Called) -> Called:
    """Let a function's first argument (after ``self`` or ``cls``) be a network's name or a networkx graph.

    Anything else, a protocol for instance, is passed on as it is.
    """
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    place = list(inspect.signature(function).parameters).index(names[0])

    @functools.wraps(function)
    def called(*args: Any, **named: Any) -> Any:
        if names[0] in named:
            named[names[0]] = _network(named[names[0]])
        elif len(args) > place:
            args = (*args[:place], _network(args[place]), *args[place + 1 :])
        return function(*args, **named)

    return called  # type: ignore[return-value]


def _network(value: Any) -> Any:
    named = isinstance(value, str) or (hasattr(value, "nodes") and hasattr(value, "edges"))
    return as_network(value) if named else value
