"""Edge lists: SNAP files, plain text, gzip."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Hashable, Iterable
from pathlib import Path

import numpy as np

from sottovoce.errors import GraphError
from sottovoce.graphs.families import relabeled
from sottovoce.graphs.network import Network

_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")


def from_edges(
    source: str | os.PathLike[str] | Iterable[tuple[Hashable, Hashable]],
    *,
    largest_component: bool = False,
    name: str = "",
    weights: str = "metropolis",
) -> Network:
    """A network from an edge file, or from pairs of node names.

    A file holds one edge a line: two node names, separated by spaces, tabs or a comma. Lines that start
    with ``#`` or ``%`` and empty lines are skipped; gzip is recognized by its first bytes. An edge may be
    listed several times and in both directions (as SNAP does): it counts once. A line that names the same
    node twice makes the node known and adds no edge, for a node's weight for itself is not an edge.

    Node names that are all whole numbers are sorted; others keep the order in which they appear. They
    are kept in ``node_names``, unless they are 0 to n - 1 already.

    ``largest_component`` keeps only the largest connected part, instead of refusing a disconnected graph.
    """
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        pairs = _read(path)
        name = name or path.name
        where = str(path)
    else:
        pairs = [_pair(pair) for pair in source]
        name = name or "edges"
        where = "the list of edges"
    if not pairs:
        raise GraphError(f"Expected at least one edge in {where}, found none.")
    node_names = list(dict.fromkeys(end for pair in pairs for end in pair))
    numbers = [name for name in node_names if isinstance(name, int)]
    if len(numbers) == len(node_names):
        node_names = [*sorted(numbers)]
    number = {end: k for k, end in enumerate(node_names)}
    ends = np.array([(number[u], number[v]) for u, v in pairs])
    return relabeled(ends[ends[:, 0] != ends[:, 1]], node_names, name, weights, largest_component)


def _read(path: Path) -> list[tuple[Hashable, Hashable]]:
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        text = content.decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "the content is not text"
        raise GraphError(f"Cannot read the edge file {path} (two node names a line): {reason}.") from None
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.replace(",", " ").split()
        if not fields or fields[0][0] in "#%":
            continue
        if len(fields) != 2:
            shown = line.strip() if len(line) < 60 else line.strip()[:57] + "..."
            raise GraphError(f"Line {number} of {path} is {shown!r}, expected two node names.")
        pairs.append((fields[0], fields[1]))
    if all(_WHOLE.fullmatch(end) for pair in pairs for end in pair):
        return [(int(u), int(v)) for u, v in pairs]
    return [*pairs]


def _pair(pair: Iterable[Hashable]) -> tuple[Hashable, Hashable]:
    try:
        u, v = (int(end) if isinstance(end, np.integer) else end for end in pair)
    except (TypeError, ValueError):
        raise GraphError(f"Expected edges as pairs of nodes, got {pair!r}.") from None
    return u, v
