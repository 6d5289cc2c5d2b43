"""Graphs by name, ``ring:64`` or ``er:200:1.5:seed=3``, and networks as arguments of functions."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeAlias, TypeVar

import numpy as np

from sottovoce._validate import did_you_mean
from sottovoce.errors import GraphError, InvalidInput
from sottovoce.graphs import families, files, random
from sottovoce.graphs.network import Network, network_of
from sottovoce.graphs.weights import WEIGHTS

if TYPE_CHECKING:
    import networkx

NetworkLike: TypeAlias = "Network | str | networkx.Graph"
P = ParamSpec("P")
R = TypeVar("R")


class _Family(NamedTuple):
    build: Callable[..., Network]
    arguments: tuple[type, ...]
    example: str
    drawn: bool = False


_FAMILIES = {
    "path": _Family(families.path, (int,), "path:8"),
    "ring": _Family(families.ring, (int,), "ring:64"),
    "grid": _Family(families.grid, (int, int), "grid:4:6"),
    "torus": _Family(families.torus, (int, int), "torus:4:6"),
    "complete": _Family(families.complete, (int,), "complete:32"),
    "star": _Family(families.star, (int,), "star:10"),
    "hypercube": _Family(families.hypercube, (int,), "hypercube:10"),
    "exponential": _Family(families.exponential, (int,), "exponential:64"),
    "florentine": _Family(families.florentine, (), "florentine"),
    "karate": _Family(families.karate, (), "karate"),
    "regular": _Family(random.regular, (int, int), "regular:1000:8:seed=1", drawn=True),
    "er": _Family(random.erdos_renyi, (int, float), "er:200:1.5:seed=3", drawn=True),
    "geometric": _Family(random.geometric, (int, float), "geometric:50:0.2:seed=1", drawn=True),
    "random": _Family(random.random_connected, (int, float), "random:10:0.39:seed=1", drawn=True),
}
_ALIASES = {"erdos_renyi": "er", "random_connected": "random", "cycle": "ring", "line": "path"}

# one spelling of every graph that `parse` knows
EXAMPLES = (*(family.example for family in _FAMILIES.values()), "edges:0-1,1-2", "file:edges.txt")


def parse(text: str) -> Network:
    """The network a string names: family, numbers, then options, separated by colons.

    Options: ``seed=3`` (of random families), ``weights=lazy`` (any rule),
    and for files ``largest_component=yes``.

    Examples
    --------
    >>> from sottovoce import graphs
    >>> graphs.parse("hypercube:10")
    Network('hypercube:10', n=1024, edges=5120)
    >>> graphs.parse("er:200:1.5:seed=3").n
    200
    """
    text = str(text).strip()
    words = text.split(":")
    kind = _family_name(words[0])
    if kind not in ("file", "edges") and kind not in _FAMILIES:
        near = did_you_mean(kind, [*_FAMILIES, *_ALIASES, "edges", "file"])
        raise GraphError(f"Unknown graph {text!r}{near}. Known: {', '.join(_FAMILIES)}, edges, file.")
    options: dict[str, str] = {}
    while len(words) > 1 and "=" in words[-1]:
        key, _, value = (part.strip() for part in words[-1].partition("="))
        if kind == "file" and key not in ("weights", "largest_component"):
            break  # an equals sign in the file's name
        options[key] = value
        words.pop()
    weights = options.pop("weights", "metropolis")
    if kind == "file":
        return _file(text, ":".join(words[1:]), options.pop("largest_component", "no"), weights)
    family = _FAMILIES.get(kind)
    drawn = family is not None and family.drawn
    seed = options.pop("seed", "") if drawn else None
    if options:
        allowed = ("seed, weights" if drawn else "weights") + f" (of {', '.join(WEIGHTS)})"
        raise GraphError(f"Unknown option {next(iter(options))!r} in {text!r}; {kind} takes {allowed}.")
    if family is None:
        return _edges(text, ":".join(words[1:]), weights)
    numbers = _numbers(text, words[1:], family)
    if seed is None:
        return family.build(*numbers, weights=weights).renamed(text)
    if not seed.isdecimal():
        raise GraphError(
            f"A random graph needs a seed that is a whole number, got {text!r}; for example {family.example}."
        )
    return family.build(*numbers, np.random.default_rng(int(seed)), weights=weights).renamed(text)


def family_of(name: str) -> tuple[str, tuple[float, ...]]:
    """Return the family in a network's name and its numbers, ``("", ())`` if it names no family."""
    word, *words = name.split(":")
    kind = _family_name(word)
    family = _FAMILIES.get(kind)
    if family is None:
        return "", ()
    try:
        return kind, tuple(_numbers(name, [word for word in words if "=" not in word], family))
    except GraphError:
        return "", ()


def _numbers(text: str, words: list[str], family: _Family) -> list[int | float]:
    try:
        return [kind(word) for word, kind in zip(words, family.arguments, strict=True)]
    except ValueError:
        raise GraphError(f"Expected numbers as in {family.example}, got {text!r}.") from None


def _edges(text: str, pairs: str, weights: str) -> Network:
    """A graph whose edges stand in its name, as an agreement has it: no further file is needed."""
    try:
        edges = np.array([[int(end) for end in pair.split("-", 1)] for pair in pairs.split(",")])
    except ValueError:
        edges = np.empty(0)
    if edges.ndim != 2 or edges.shape[1] != 2:
        raise GraphError(f"Expected pairs of nodes such as edges:0-1,1-2, got {text[:80]!r}.")
    n = int(edges.max()) + 1
    return network_of(edges[edges[:, 0] != edges[:, 1]], n, text, weights)


def _file(text: str, path: str, largest_component: str, weights: str) -> Network:
    if not path:
        raise GraphError(f"Expected a path in {text!r}; for example file:edges.txt.")
    if largest_component not in ("yes", "no"):
        raise GraphError(f"Expected largest_component=yes or no in {text!r}, got {largest_component!r}.")
    return files.from_edges(path, largest_component=largest_component == "yes", weights=weights)


def _family_name(word: str) -> str:
    kind = word.strip().lower().replace("-", "_")
    return _ALIASES.get(kind, kind)


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

    return families.from_networkx(value) if isinstance(value, networkx.Graph) else value
