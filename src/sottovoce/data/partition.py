"""Who holds which records: every function returns one array of row numbers per user."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from sottovoce._validate import count, positive, probability
from sottovoce.data.files import is_empty
from sottovoce.errors import DataError


def equal(records: int, users: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Deal records out in equal, shuffled parts; a remainder is left out so that sizes are public."""
    require_enough(records, count(users, "users"))
    size = records // users
    return list(rng.permutation(records)[: size * users].reshape(users, size))


def by_size(sizes: Sequence[int], records: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Deal records out, shuffled, in parts of these sizes."""
    ends = np.cumsum([count(size, "a part's size") for size in sizes])
    if ends[-1] > records:
        raise DataError(f"The parts take {ends[-1]} records, but there are {records}.")
    return np.split(rng.permutation(records)[: ends[-1]], ends[:-1])


def skew_matrix(users: int, classes: int, skew: float) -> np.ndarray:
    """Return A(t) of Bayrooti et al. 2023, eq. (8): the share of class ``j`` that user ``i`` holds.

    ``t = 0`` spreads every class evenly; ``t = 1`` gives class ``j`` to user ``j mod users`` alone.
    """
    t = probability(skew, "skew")
    A = np.full((count(users, "users"), count(classes, "classes")), (1 - t) / users)
    A[np.arange(classes) % users, np.arange(classes)] += t
    return A


def by_label(y: ArrayLike, users: int, skew: float, rng: np.random.Generator) -> list[np.ndarray]:
    """Deal records out by class with the skew matrix A(t)."""
    y = np.asarray(y)
    classes = np.unique(y)
    return _deal(y, classes, skew_matrix(users, len(classes), skew), rng)


def dirichlet(y: ArrayLike, users: int, concentration: float, rng: np.random.Generator) -> list[np.ndarray]:
    """Deal each class out with shares drawn from a symmetric Dirichlet distribution.

    A small concentration is very uneven. Users the draw leaves empty receive one record from the largest
    user.
    """
    y = np.asarray(y)
    positive(concentration, "concentration")
    require_enough(len(y), count(users, "users"))
    classes = np.unique(y)
    A = rng.dirichlet(np.full(users, concentration), size=len(classes)).T
    parts = _deal(y, classes, A, rng)
    for i in range(users):
        if len(parts[i]) == 0:
            largest = max(range(users), key=lambda k: len(parts[k]))
            parts[i], parts[largest] = parts[largest][-1:], parts[largest][:-1]
    return parts


def by_column(
    groups: ArrayLike, names: Sequence[object] | None = None, nodes: int | None = None
) -> list[np.ndarray]:
    """Give each value of a column (a site, a bank) its own records, in sorted order of the values.

    Where the values are those of ``names`` (the nodes of a network), they come in that order. Whole numbers
    are sorted as numbers even where a table holds them as text: site 2 comes before site 10. If ``nodes`` is
    the number of nodes, there must be as many values.

    Examples
    --------
    >>> [part.tolist() for part in by_column(["10", "2", "10"])]
    [[1], [0, 2]]
    """
    sites = np.asarray(groups)
    empty = np.isnan(sites) if sites.dtype.kind == "f" else [is_empty(site) for site in sites]
    if np.any(empty):
        raise DataError(f"record {np.argmax(empty)} has no site; mend its group, or leave the record out.")
    values, index = np.unique(sites, return_inverse=True)
    if nodes not in (None, len(values)):
        raise DataError(
            f"the network has {nodes} nodes, but the records come from {len(values)} sites; they must match."
        )
    parts = [np.flatnonzero(index == i) for i in range(len(values))]
    if all(isinstance(value, str) and value.strip().isdecimal() for value in values):
        order = sorted(range(len(values)), key=lambda i: (int(values[i]), values[i]))
        values, parts = values[order], [parts[i] for i in order]
    called = [str(name) for name in names or ()]
    if sorted(called) != sorted(map(str, values)):
        return parts
    at = dict(zip(map(str, values), parts, strict=True))
    return [at[name] for name in called]


def to_nodes(
    records: int,
    nodes: int,
    groups: ArrayLike | None = None,
    names: Sequence[object] | None = None,
    rng: np.random.Generator | None = None,
) -> list[np.ndarray]:
    """Give every node the records of its group or, without groups, an even share, shuffled by ``rng``.

    A single node gets all of them, in their order.
    """
    if nodes == 1:
        return [np.arange(records)]
    if groups is not None:
        return by_column(groups, names, nodes)
    require_enough(records, nodes)
    return np.array_split(np.arange(records) if rng is None else rng.permutation(records), nodes)


def require_enough(records: int, users: int) -> None:
    """Raise unless every user can have a record."""
    if records < users:
        raise DataError(f"{records} records cannot give each of {users} users one; take fewer users.")


def _deal(y: np.ndarray, classes: np.ndarray, A: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Split each class at the rounded cumulative shares of its column of ``A``."""
    parts: list[list[np.ndarray]] = [[] for _ in range(A.shape[0])]
    for j, label in enumerate(classes):
        rows = rng.permutation(np.flatnonzero(y == label))
        cuts = np.round(np.cumsum(A[:, j])[:-1] * len(rows)).astype(int)
        for i, part in enumerate(np.split(rows, cuts)):
            parts[i].append(part)
    return [np.concatenate(part) for part in parts]
