"""Protocols by name, in one place: ``"tree:kind=uniform"``, ``"gossip:5"``, ``"refreshed:4:fresh=0.2"``.

Plan files, agreements, commands and plans all read protocols here. A name is a public fact: with the public
seed and the number of a step it gives one protocol, the same for everybody. A bare number after the name
is the number of rounds; the rest is ``key=value``. An installed package adds a protocol by an entry point of
the group ``sottovoce.protocols`` whose object is called as ``build(network, rounds, options, rng)``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Literal

import numpy as np

from sottovoce.errors import ConfigError
from sottovoce.graphs import Network, erdos_renyi
from sottovoce.protocols.base import Protocol
from sottovoce.protocols.consensus import HypercubeExchange, Tree
from sottovoce.protocols.gossip import Chebyshev, FreshNoiseGossip, Gossip, NeighborSum, rounds_for
from sottovoce.protocols.masked import Masked
from sottovoce.protocols.spanning_trees import few_leaf_tree
from sottovoce.protocols.time_varying import (
    AcceleratedRandomized,
    Dropout,
    Randomized,
    TimeVarying,
    fresh_erdos_renyi,
)
from sottovoce.protocols.walk import Walk

__all__ = ["NamedProtocol", "names", "names_with", "parse"]

Build = Callable[[Network, int | None, Mapping[str, str], np.random.Generator], Protocol]


def _whole(options: Mapping[str, str], key: str, default: int | None = None) -> int | None:
    if key not in options:
        return default
    try:
        return int(options[key])
    except ValueError:
        raise ConfigError(f"{key} of a protocol must be a whole number, got {options[key]!r}.") from None


def _number(options: Mapping[str, str], key: str, default: float) -> float:
    try:
        return float(options.get(key, default))
    except ValueError:
        raise ConfigError(f"{key} of a protocol must be a number, got {options[key]!r}.") from None


def _exchange(network: Network, rounds: int | None, options: Mapping[str, str], rng: Any) -> Protocol:
    _no_rounds("exchange", rounds)
    return HypercubeExchange(network.n)


def _tree(network: Network, rounds: int | None, options: Mapping[str, str], rng: Any) -> Protocol:
    _no_rounds("tree", rounds)
    kind = options.get("kind", "bfs")
    if kind == "few-leaves" and "root" not in options:
        return Tree(network, parents=_few_leaves(network, rng, _whole(options, "tolerate", 1) or 1))
    if "tolerate" in options:
        raise ConfigError(f"tolerate is an option of trees of few-leaves, not of {kind}; leave it out.")
    drawn: dict[str, Any] = {} if kind == "bfs" else {"rng": rng}
    return Tree(network, root=_whole(options, "root"), kind=kind, **drawn)  # type: ignore[arg-type]


# Searching for a tree takes a while, and plans are made again and again while their noise is looked for.
_FOUND: dict[tuple[int, int, bytes, int], np.ndarray] = {}


def _few_leaves(network: Network, rng: Any, tolerate: int) -> np.ndarray:
    key = (tolerate, network.n, network.edges.tobytes(), int(rng.bit_generator.state["state"]["state"]))
    if key not in _FOUND:
        while len(_FOUND) >= 64:
            _FOUND.pop(next(iter(_FOUND)))
        _FOUND[key] = few_leaf_tree(network, rng, tolerate=tolerate)
    return _FOUND[key]


def _gossip(network: Network, rounds: int | None, options: Mapping[str, str], rng: Any) -> Protocol:
    return Gossip(network, rounds_for(network) if rounds is None else rounds)


def _chebyshev(network: Network, rounds: int | None, options: Mapping[str, str], rng: Any) -> Protocol:
    return Chebyshev(network, rounds_for(network) if rounds is None else rounds)


def _refreshed(network: Network, rounds: int | None, options: Mapping[str, str], rng: Any) -> Protocol:
    rounds = rounds_for(network) if rounds is None else rounds
    return FreshNoiseGossip(network, rounds, tau=_number(options, "fresh", 0.1))


def _randomized(network: Network, rounds: int | None, options: Mapping[str, str], rng: Any) -> Protocol:
    ticks = rounds_for(network, kind="randomized") if rounds is None else rounds
    return Randomized(network, ticks, rng, intensities=options.get("intensities", "weights"))


def _accelerated(network: Network, rounds: int | None, options: Mapping[str, str], rng: Any) -> Protocol:
    ticks = rounds_for(network, kind="accelerated-randomized") if rounds is None else rounds
    return AcceleratedRandomized(network, ticks, rng, intensities=options.get("intensities", "weights"))


def _dropout(network: Network, rounds: int | None, options: Mapping[str, str], rng: Any) -> Protocol:
    rates = {f"{what[:-1]}_rate": _number(options, what, 0.0) for what in ("nodes", "edges")}
    return Dropout.random(network, rounds_for(network) if rounds is None else rounds, rng, **rates)


def _time_varying(network: Network, rounds: int | None, options: Mapping[str, str], rng: Any) -> Protocol:
    if 2 * len(network.edges) != network.n * (network.n - 1):
        raise ConfigError(
            f"time-varying draws fresh graphs over all pairs, and {network.name} has {len(network.edges)} of "
            f"{network.n * (network.n - 1) // 2}; take complete:{network.n}, or dropout on this network."
        )
    c = _number(options, "c", 1.5)
    if rounds is None:  # as many as one such graph would need
        rounds = rounds_for(erdos_renyi(network.n, c, rng))
    return fresh_erdos_renyi(network.n, rounds, rng, c)


def _walk(network: Network, rounds: int | None, options: Mapping[str, str], rng: Any) -> Protocol:
    final = options.get("final", "public")
    if final not in ("public", "kept"):
        raise ConfigError(f"final of a walk is public (everybody gets the mean) or kept, got {final!r}.")
    # by default the token comes by about eight times
    return Walk(network, 8 * network.n if rounds is None else rounds, rng, final_public=final == "public")


def _masked(network: Network, rounds: int | None, options: Mapping[str, str], rng: Any) -> Protocol:
    _no_rounds("masked", rounds)
    tree = _tree(network, None, {key: options[key] for key in ("kind", "root") if key in options}, rng)
    tolerate = _whole(options, "tolerate", 1)
    return Masked(tree, partners=_whole(options, "partners"), tolerate=tolerate)


def _neighbor_sum(network: Network, rounds: int | None, options: Mapping[str, str], rng: Any) -> Protocol:
    _no_rounds("neighbor-sum", rounds)
    return NeighborSum(network)


def _no_rounds(name: str, rounds: int | None) -> None:
    if rounds is not None:
        raise ConfigError(f"The number of rounds of {name} follows from the network; leave it out.")


@dataclass(frozen=True)
class _Registered:
    """How a named protocol is built; its capabilities are those of its class."""

    kind: type[Protocol]
    build: Build
    options: frozenset[str] = frozenset()
    drawn: bool = False  # every step draws its own from the public seed


_REGISTERED: dict[str, _Registered] = {
    "gossip": _Registered(Gossip, _gossip),
    "chebyshev": _Registered(Chebyshev, _chebyshev),
    "refreshed": _Registered(FreshNoiseGossip, _refreshed, frozenset({"fresh"})),
    "randomized": _Registered(Randomized, _randomized, frozenset({"intensities"}), drawn=True),
    "accelerated-randomized": _Registered(
        AcceleratedRandomized, _accelerated, frozenset({"intensities"}), drawn=True
    ),
    "dropout": _Registered(Dropout, _dropout, frozenset({"nodes", "edges"}), drawn=True),
    "time-varying": _Registered(TimeVarying, _time_varying, frozenset({"c"}), drawn=True),
    "walk": _Registered(Walk, _walk, frozenset({"final"}), drawn=True),
    "tree": _Registered(Tree, _tree, frozenset({"kind", "root", "tolerate"})),
    "exchange": _Registered(HypercubeExchange, _exchange),
    "masked": _Registered(Masked, _masked, frozenset({"kind", "root", "tolerate", "partners"})),
    "neighbor-sum": _Registered(NeighborSum, _neighbor_sum),
}
BUILT_IN = frozenset(_REGISTERED)

Capability = Literal[
    "averages", "exact", "linear", "masked", "token", "fresh_noise", "plain_gossip", "neighbor_sum",
    "tolerates_dropout",
]  # fmt: skip


def names_with(*capabilities: Capability, without: Collection[Capability] = ()) -> tuple[str, ...]:
    """Return the built-in names whose protocols declare these capabilities and none of ``without``.

    >>> names_with("exact")
    ('tree', 'exchange', 'masked')
    >>> names_with("linear", "averages", without=("masked", "fresh_noise"))[:3]
    ('gossip', 'chebyshev', 'randomized')
    """
    return tuple(
        name
        for name, entry in _REGISTERED.items()
        if all(getattr(entry.kind, capability) for capability in capabilities)
        and not any(getattr(entry.kind, capability) for capability in without)
    )


def names() -> tuple[str, ...]:
    """Return the names that `parse` knows, installed ones last.

    >>> names()[:2]
    ('gossip', 'chebyshev')
    """
    installed = sorted(point.name for point in entry_points(group="sottovoce.protocols"))
    return (*_REGISTERED, *(name for name in installed if name not in _REGISTERED))


@dataclass(frozen=True)
class NamedProtocol:
    """A protocol by name, not yet on a network.

    Examples
    --------
    >>> import sottovoce as sv
    >>> parse("tree:kind=uniform").drawn, parse("exchange").at(sv.graphs.hypercube(3))
    (True, HypercubeExchange(n=8, rounds=3))
    """

    name: str
    rounds: int | None = None
    options: tuple[tuple[str, str], ...] = ()

    @property
    def drawn(self) -> bool:
        """Whether every step draws its own from the public seed."""
        registered = _REGISTERED.get(self.name)
        if registered is not None and registered.drawn:
            return True
        return dict(self.options).get("kind", "bfs") not in ("bfs", "few-leaves")

    @property
    def exact(self) -> bool:
        """Whether it ends in exact consensus."""
        return self.name in _REGISTERED and _REGISTERED[self.name].kind.exact

    def at(self, network: Network, *, seed: int = 0, step: int = 0) -> Protocol:
        """Return the protocol of one step on a network: a pure function of the public seed and the step."""
        rng = np.random.default_rng([seed, step])
        if self.name in _REGISTERED:
            build: Build = _REGISTERED[self.name].build
        else:
            build = next(p for p in entry_points(group="sottovoce.protocols") if p.name == self.name).load()
        return build(network, self.rounds, dict(self.options), rng)

    def __str__(self) -> str:
        parts = [self.name, *([] if self.rounds is None else [str(self.rounds)])]
        return ":".join([*parts, *(f"{key}={value}" for key, value in self.options)])


def parse(text: str) -> NamedProtocol:
    """Return the protocol that a name stands for.

    Examples
    --------
    >>> str(parse("refreshed:4:fresh=0.2"))
    'refreshed:4:fresh=0.2'
    >>> parse("tre")
    Traceback (most recent call last):
    sottovoce.errors.ConfigError: A protocol is one of gossip, chebyshev, refreshed, randomized, accelerated-randomized, dropout, time-varying, walk, tree, exchange, masked, neighbor-sum, got 'tre'.
    """  # noqa: E501
    name, *parts = str(text).split(":")
    if name not in _REGISTERED and name not in names():  # listing what is installed takes a while
        raise ConfigError(f"A protocol is one of {', '.join(names())}, got {name!r}.")
    rounds: int | None = None
    options: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals and rounds is None and key.isdigit():
            rounds = int(key)
        elif equals and key == "rounds" and value.isdigit():
            rounds = int(value)
        elif equals:
            options[key] = value
        else:
            raise ConfigError(f"{part!r} in protocol {text!r} is neither a number of rounds nor key=value.")
    if name in _REGISTERED:
        unknown = sorted(set(options) - _REGISTERED[name].options)
        if unknown:
            known = ", ".join(sorted(_REGISTERED[name].options)) or "none"
            raise ConfigError(f"{name} has no option {unknown[0]!r}; it knows {known}.")
    return NamedProtocol(name, rounds, tuple(sorted(options.items())))
