"""Graphs by name: ``ring:64``, ``er:200:1.5:seed=3``, ``file:edges.txt``."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sottovoce._validate import did_you_mean
from sottovoce.errors import GraphError
from sottovoce.graphs import families, files, random
from sottovoce.graphs.network import Network, network_of
from sottovoce.graphs.weights import WEIGHTS


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
    "small_world": _Family(random.small_world, (int, int, float), "small_world:100:6:0.1:seed=1", drawn=True),
    "random": _Family(random.random_connected, (int, float), "random:10:0.39:seed=1", drawn=True),
}
_ALIASES = {"erdos_renyi": "er", "random_connected": "random", "cycle": "ring", "line": "path"}

# one spelling of every graph that `parse` knows
EXAMPLES = (*(family.example for family in _FAMILIES.values()), "edges:0-1,1-2", "file:edges.txt")


def parse(text: str, rng: np.random.Generator | None = None) -> Network:
    """The network a string names: family, numbers, then options, separated by colons.

    Options: ``seed=3`` (needed by random families unless ``rng`` is given), ``weights=lazy`` (any rule),
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
    if kind == "edges":
        return _edges(text, ":".join(words[1:]), options, weights)
    family = _FAMILIES[kind]
    drawn = (_generator(text, options.pop("seed", None), rng, family),) if family.drawn else ()
    if options:
        allowed = ("seed, weights" if family.drawn else "weights") + f" (of {', '.join(WEIGHTS)})"
        raise GraphError(f"Unknown option {next(iter(options))!r} in {text!r}; {kind} takes {allowed}.")
    numbers = _numbers(text, words[1:], family)
    return family.build(*numbers, *drawn, weights=weights).renamed(text)


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
    wanted = len(family.arguments)
    if len(words) != wanted:
        takes = f"{wanted} number{'s' * (wanted != 1)}" if wanted else "no number"
        raise GraphError(f"Expected {takes} in {text!r}, got {len(words)}; for example {family.example}.")
    numbers = []
    for word, kind in zip(words, family.arguments, strict=True):
        try:
            numbers.append(kind(word))
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise GraphError(
                f"Expected {what} in {text!r}, got {word!r}; for example {family.example}."
            ) from None
    return numbers


def _generator(
    text: str, seed: str | None, rng: np.random.Generator | None, family: _Family
) -> np.random.Generator:
    if seed is None:
        if rng is None:
            raise GraphError(
                f"A random graph needs a seed, and {text!r} has none; for example {family.example}."
            )
        return rng
    if not seed.isdecimal():
        raise GraphError(
            f"Expected a whole number as seed in {text!r}, got {seed!r}; for example {family.example}."
        )
    return np.random.default_rng(int(seed))


def _edges(text: str, pairs: str, options: dict[str, str], weights: str) -> Network:
    """A graph whose edges stand in its name, as an agreement has it: no further file is needed."""
    if options:
        raise GraphError(f"Unknown option {next(iter(options))!r} in {text!r}; edges takes weights.")
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
    answer = largest_component.lower()
    if answer not in ("yes", "no", "true", "false"):
        raise GraphError(f"Expected largest_component=yes or no in {text!r}, got {answer!r}.")
    return files.from_edges(path, largest_component=answer in ("yes", "true"), weights=weights)


def _family_name(word: str) -> str:
    kind = word.strip().lower().replace("-", "_")
    return _ALIASES.get(kind, kind)
