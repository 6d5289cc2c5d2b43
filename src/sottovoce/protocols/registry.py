"""Protocols by name, in one place: ``"tree:kind=uniform"``, ``"gossip:5"``, ``"fresh-noise:4:fresh=0.2"``.

Plan files, agreements, commands and plans all read protocols here. A name is a public fact: with the public
seed and the number of a step it gives one protocol, the same for everybody. A bare number after the name
is the number of rounds; the rest is ``key=value``. An installed package adds a protocol by an entry point of
the group ``sottovoce.protocols`` whose object is called as ``build(network, rounds, options, rng)``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import entry_points
from typing import Literal

import numpy as np

from sottovoce.errors import ConfigError
from sottovoce.graphs import Network, erdos_renyi
from sottovoce.protocols.base import Protocol
from sottovoce.protocols.chebyshev import Chebyshev
from sottovoce.protocols.exchange import HypercubeExchange
from sottovoce.protocols.gossip import FreshNoiseGossip, Gossip, NeighborSum
from sottovoce.protocols.masked import Masked
from sottovoce.protocols.randomized import AcceleratedRandomized, Randomized
from sottovoce.protocols.rounds import rounds_for
from sottovoce.protocols.spanning_trees import few_leaf_tree
from sottovoce.protocols.time_varying import Dropout, TimeVarying, fresh_erdos_renyi
from sottovoce.protocols.trees import Tree
from sottovoce.protocols.walk import Walk


@dataclass(frozen=True)
class _Arguments:
    """What a built-in protocol is built from: the network, and the rounds and options of its name."""

    network: Network
    rounds: int | None
    options: Mapping[str, str]
    rng: np.random.Generator

    def rounds_or_theory(self, kind: str = "synchronous") -> int:
        """Return the rounds of the name; without them the theoretical number of this kind.

        The kind "synchronous" is accelerated gossip. Plain, fresh-noise and dropout gossip take its number
        too, at which they send as much; they would need more rounds for the same agreement.
        """
        return rounds_for(self.network, kind=kind) if self.rounds is None else self.rounds

    def whole(self, key: str, default: int | None = None) -> int | None:
        text = self.options.get(key)
        if text is not None and not text.isdecimal():
            raise ConfigError(f"{key} of a protocol must be a whole number, got {text!r}.")
        return default if text is None else int(text)

    def number(self, key: str, default: float) -> float:
        try:
            return float(self.options.get(key, default))
        except ValueError:
            raise ConfigError(f"{key} of a protocol must be a number, got {self.options[key]!r}.") from None


def _randomized(kind: type[Randomized], a: _Arguments) -> Protocol:
    ticks = a.rounds_or_theory(kind.name)
    return kind(a.network, ticks, a.rng, intensities=a.options.get("intensities", "weights"))


def _fresh_noise_gossip(a: _Arguments) -> Protocol:
    return FreshNoiseGossip(a.network, a.rounds_or_theory(), a.number("fresh", 0.1))


def _dropout(a: _Arguments) -> Protocol:
    rates = {"node_rate": a.number("nodes", 0.0), "edge_rate": a.number("edges", 0.0)}
    return Dropout.random(a.network, a.rounds_or_theory(), a.rng, **rates)


def _time_varying(a: _Arguments) -> Protocol:
    n, edges = a.network.n, len(a.network.edges)
    if 2 * edges != n * (n - 1):
        raise ConfigError(
            f"time-varying draws fresh graphs over all pairs, and {a.network.name} has {edges} of "
            f"{n * (n - 1) // 2}; take complete:{n}, or dropout on this network."
        )
    c = a.number("c", 1.5)
    # by default as many rounds as one such graph would need
    rounds = rounds_for(erdos_renyi(n, c, a.rng)) if a.rounds is None else a.rounds
    return fresh_erdos_renyi(n, rounds, a.rng, c)


def _walk(a: _Arguments) -> Protocol:
    final = a.options.get("final", "public")
    if final not in ("public", "kept"):
        raise ConfigError(f"final of a walk is public (everybody gets the mean) or kept, got {final!r}.")
    steps = 8 * a.network.n if a.rounds is None else a.rounds  # by default about eight visits per node
    return Walk(a.network, steps, a.rng, final_public=final == "public")


def _tree(a: _Arguments) -> Tree:
    kind = a.options.get("kind", "bfs")
    if kind == "few-leaves" and "root" not in a.options:
        return Tree(a.network, parents=_few_leaves(a.network, a.rng))
    rng = None if kind == "bfs" else a.rng
    return Tree(a.network, root=a.whole("root"), kind=kind, rng=rng)  # type: ignore[arg-type]


# The search for a tree takes a while, and calibration builds the same plan many times.
_few_leaf_trees: dict[tuple[int, bytes, int], np.ndarray] = {}


def _few_leaves(network: Network, rng: np.random.Generator) -> np.ndarray:
    key = (network.n, network.edges.tobytes(), int(rng.bit_generator.state["state"]["state"]))
    if key not in _few_leaf_trees:
        while len(_few_leaf_trees) >= 64:
            _few_leaf_trees.pop(next(iter(_few_leaf_trees)))
        _few_leaf_trees[key] = few_leaf_tree(network, rng)
    return _few_leaf_trees[key]


def _masked(a: _Arguments) -> Protocol:
    tree = _tree(replace(a, options={key: a.options[key] for key in ("kind", "root") if key in a.options}))
    return Masked(tree, partners=a.whole("partners"), tolerate=a.whole("tolerate", 1))


@dataclass(frozen=True)
class _Registered:
    """How a named protocol is built; its capabilities are those of its class."""

    kind: type[Protocol]
    build: Callable[[_Arguments], Protocol]
    options: tuple[str, ...] = ()
    drawn: bool = False  # every step draws its own from the public seed
    takes_rounds: bool = True  # else their number follows from the network


_REGISTERED: dict[str, _Registered] = {
    entry.kind.name: entry
    for entry in (
        _Registered(Gossip, lambda a: Gossip(a.network, a.rounds_or_theory())),
        _Registered(Chebyshev, lambda a: Chebyshev(a.network, a.rounds_or_theory())),
        _Registered(FreshNoiseGossip, _fresh_noise_gossip, ("fresh",)),
        *(
            _Registered(kind, partial(_randomized, kind), ("intensities",), drawn=True)
            for kind in (Randomized, AcceleratedRandomized)
        ),
        _Registered(Dropout, _dropout, ("edges", "nodes"), drawn=True),
        _Registered(TimeVarying, _time_varying, ("c",), drawn=True),
        _Registered(Walk, _walk, ("final",), drawn=True),
        _Registered(Tree, _tree, ("kind", "root"), takes_rounds=False),
        _Registered(HypercubeExchange, lambda a: HypercubeExchange(a.network.n), takes_rounds=False),
        _Registered(Masked, _masked, ("kind", "partners", "root", "tolerate"), takes_rounds=False),
        _Registered(NeighborSum, lambda a: NeighborSum(a.network), takes_rounds=False),
    )
}
BUILT_IN = frozenset(_REGISTERED)


def _installed(name: str, a: _Arguments) -> Protocol:
    (point, *_) = entry_points(group="sottovoce.protocols", name=name)
    protocol: Protocol = point.load()(a.network, a.rounds, a.options, a.rng)
    return protocol


def _entry(name: str) -> _Registered:
    """Return how a protocol is built; the code of an installed one is loaded when it is built."""
    unknown = _Registered(Protocol, partial(_installed, name))  # type: ignore[type-abstract]
    return _REGISTERED.get(name, unknown)


Capability = Literal[
    "averages", "mixes", "reaches_consensus", "linear", "masked", "token", "fresh_noise",
    "gossip_matrix_only", "neighbor_sum", "tolerates_dropout",
]  # fmt: skip


def names_with(*capabilities: Capability, without: Collection[Capability] = ()) -> tuple[str, ...]:
    """Return the built-in names whose protocols declare these capabilities and none of ``without``."""
    wanted = dict.fromkeys(capabilities, True) | dict.fromkeys(without, False)
    return tuple(
        name
        for name, entry in _REGISTERED.items()
        if all(bool(getattr(entry.kind, word)) == there for word, there in wanted.items())
    )


def names() -> tuple[str, ...]:
    """Return the names that `parse` knows, installed ones last."""
    installed = sorted(point.name for point in entry_points(group="sottovoce.protocols"))
    return (*_REGISTERED, *(name for name in installed if name not in _REGISTERED))


@dataclass(frozen=True)
class NamedProtocol:
    """A protocol by name, not yet on a network."""

    name: str
    rounds: int | None = None
    options: tuple[tuple[str, str], ...] = ()

    @property
    def drawn(self) -> bool:
        """Whether every step draws its own from the public seed."""
        return _entry(self.name).drawn or dict(self.options).get("kind", "bfs") not in ("bfs", "few-leaves")

    @property
    def takes_rounds(self) -> bool:
        """Whether the number of rounds is a choice; else it follows from the network."""
        return _entry(self.name).takes_rounds

    @property
    def reaches_consensus(self) -> bool:
        """Whether it ends in exact consensus."""
        return _entry(self.name).kind.reaches_consensus

    def at(self, network: Network, *, seed: int = 0, step: int = 0) -> Protocol:
        """Return the protocol of one step on a network: a pure function of the public seed and the step."""
        if self.rounds is not None and not self.takes_rounds:
            raise ConfigError(f"The rounds of {self.name} follow from the network; leave them out.")
        rng = np.random.default_rng([seed, step])
        return _entry(self.name).build(_Arguments(network, self.rounds, dict(self.options), rng))

    def __str__(self) -> str:
        parts = [self.name, *([] if self.rounds is None else [str(self.rounds)])]
        return ":".join([*parts, *(f"{key}={value}" for key, value in self.options)])


def parse(text: str) -> NamedProtocol:
    """Return the protocol that a name stands for."""
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
        unknown = sorted(set(options) - set(_REGISTERED[name].options))
        if unknown:
            known = ", ".join(_REGISTERED[name].options) or "none"
            raise ConfigError(f"{name} has no option {unknown[0]!r}; it knows {known}.")
    return NamedProtocol(name, rounds, tuple(sorted(options.items())))
