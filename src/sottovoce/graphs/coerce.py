"""Networks as arguments: a `Network`, a name such as ``"ring:8"``, or a networkx graph."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, TypeVar

from sottovoce.errors import InvalidInput
from sottovoce.graphs.families import from_networkx
from sottovoce.graphs.network import Network
from sottovoce.graphs.parsing import parse

if TYPE_CHECKING:
    import networkx

NetworkLike: TypeAlias = "Network | str | networkx.Graph"
P = ParamSpec("P")
R = TypeVar("R")


def as_network(value: NetworkLike) -> Network:
    """Return a network from a network, a name such as ``"ring:8"`` or a networkx graph."""
    network = network_if_named(value)
    if isinstance(network, Network):
        return network
    raise InvalidInput(f"network must be a Network, a name or a networkx graph, got {type(value).__name__}.")


def takes_network(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function's first argument (after ``self`` or ``cls``) be a network's name or a networkx graph.

    Anything else, a protocol for instance, is passed on as it is.
    """
    signature = inspect.signature(function)
    name = next(name for name in signature.parameters if name not in ("self", "cls"))

    @functools.wraps(function)
    def called(*args: P.args, **named: P.kwargs) -> R:
        bound = signature.bind(*args, **named)
        if name in bound.arguments:
            bound.arguments[name] = network_if_named(bound.arguments[name])
        return function(*bound.args, **bound.kwargs)

    return called


def network_if_named(value: object) -> object:
    """Return the network of a name or of a networkx graph; other values as they are."""
    if isinstance(value, str):
        return parse(value)
    if "networkx" not in sys.modules:  # then nobody can hold one of its graphs
        return value
    import networkx

    return from_networkx(value) if isinstance(value, networkx.Graph) else value
