"""A data set, and the same records dealt out to users.

Standardizing reads all records, so it is not private, and `Dataset.uncharged` says so. Steps that treat every
record alone (unit length, an intercept column) are private.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, runtime_checkable

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from sottovoce._validate import probability
from sottovoce.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

Features: TypeAlias = "np.ndarray | sp.csr_array"  # (records, features)


@runtime_checkable
class AgentRecords(Protocol):
    """Records of several agents: `Shards` for linear models, `AgentData` for networks."""

    @property
    def sizes(self) -> np.ndarray:
        """Number of records of each agent."""

    @property
    def n(self) -> int:
        """Number of agents."""

    def subset(self, agents: Sequence[int], /) -> AgentRecords:
        """Return the records of some agents, in the order of ``agents``."""


def is_sparse(X: object) -> TypeGuard[sp.csr_array]:
    """Return whether ``X`` is a scipy sparse array."""
    return bool(sp.issparse(X))


def is_tensor(value: object) -> TypeGuard[Tensor]:
    """Return whether ``value`` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def signed_labels(y: ArrayLike) -> np.ndarray:
    """Return labels {0, 1}, {-1, 1} or booleans as -1.0 and 1.0; other labels are refused."""
    array = np.asarray(y)
    try:
        labels = array.astype(np.float64)
    except (TypeError, ValueError):
        labels = np.full(1, np.nan)
    if np.isin(labels, (-1, 1)).all():
        return labels
    if np.isin(labels, (0, 1)).all():
        return labels * 2 - 1
    shown = ", ".join(sorted({str(value) for value in array.tolist()})[:5])
    raise DataError(f"Labels must be 0/1 or -1/1, got the values {shown}; map them to two classes first.")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Records with labels, optionally the site each came from, and a held-out part.

    ``X`` is an (n, p) float array or scipy CSR, ``y`` the labels or targets, ``groups`` the site of each
    record, ``X_test`` and ``y_test`` are records kept apart for evaluation. ``uncharged`` is what was read
    from all records at once, by name (`sottovoce.accounting.wording.UNCHARGED`): the guarantee of a model of
    these data leaves it out, so its user must accept it.

    Examples
    --------
    >>> data = Dataset("two", np.array([[3.0, 4.0], [0.0, 2.0]]), np.array([1, -1]))
    >>> data.unit_rows().X.tolist()
    [[0.6, 0.8], [0.0, 1.0]]
    """

    name: str
    X: Any = field(repr=False)
    y: np.ndarray = field(repr=False)
    feature_names: tuple[str, ...] = ()
    groups: np.ndarray | None = field(default=None, repr=False)
    X_test: Any = field(default=None, repr=False)
    y_test: np.ndarray | None = field(default=None, repr=False)
    uncharged: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.X.ndim != 2 or self.X.shape[0] != len(self.y):
            raise DataError(
                f"{self.name}: expected one label per row, got {self.X.shape} and {len(self.y)} labels."
            )
        if self.groups is not None and len(self.groups) != len(self.y):
            raise DataError(
                f"{self.name}: expected {len(self.y)} sites, one per row, got {len(self.groups)}."
            )

    @property
    def n(self) -> int:
        """Number of training records."""
        return int(self.X.shape[0])

    @property
    def dim(self) -> int:
        """Number of features."""
        return int(self.X.shape[1])

    def standardized(self) -> Dataset:
        """Return features with mean 0 and standard deviation 1 over the training records.

        Guarantees
        ----------
        None: mean and deviation are read from the private records, and `uncharged` says so.
        With public figures, compute ``(X - mean) / std`` yourself.
        """
        if is_sparse(self.X):
            raise DataError(
                f"{self.name} is sparse; standardizing would make it dense, use unit_rows instead."
            )
        mean, std = self.X.mean(axis=0), self.X.std(axis=0)
        std = np.where(std > 0, std, 1.0)
        scaled = self._mapped(lambda X: (X - mean) / std)
        return replace(scaled, uncharged=(*self.uncharged, "standardize"))

    def _mapped(self, change: Callable[[Features], Features]) -> Dataset:
        test = None if self.X_test is None else change(self.X_test)
        return replace(self, X=change(self.X), X_test=test)

    def bounded(self, low: ArrayLike, high: ArrayLike) -> Dataset:
        """Return features clipped to public bounds and scaled to [-1, 1], record by record: it costs nothing.

        ``low`` and ``high`` are numbers, or one per feature, known without looking at the records.
        """
        if is_sparse(self.X):
            raise DataError(f"{self.name} is sparse; bounds would make it dense, use unit_rows instead.")
        try:
            a, b = (np.broadcast_to(np.asarray(bound, np.float64), (self.dim,)) for bound in (low, high))
            if not (np.isfinite(a).all() and np.isfinite(b).all() and (a < b).all()):
                raise ValueError
        except ValueError:
            raise DataError(
                f"Bounds must be one number or one per feature ({self.dim}), finite with low < high."
            ) from None
        return self._mapped(lambda X: np.asarray(2 * (np.clip(X, a, b) - a) / (b - a) - 1))

    def unit_rows(self) -> Dataset:
        """Return every record scaled to unit Euclidean length (record by record, so it costs nothing)."""
        return self._mapped(unit_rows)

    def with_intercept(self) -> Dataset:
        """Return the data with a last column of ones."""
        names = (*self.feature_names, "intercept") if self.feature_names else ()
        return replace(self._mapped(with_ones), feature_names=names)

    def split(self, test_share: float, rng: np.random.Generator) -> Dataset:
        """Return the data with a random share of the records held out."""
        probability(test_share, "test_share", zero=False, one=False)
        test, train = held_out_rows(self.n, test_share, rng)
        return replace(
            self,
            X=self.X[train],
            y=self.y[train],
            groups=None if self.groups is None else self.groups[train],
            X_test=self.X[test],
            y_test=self.y[test],
            uncharged=(*self.uncharged, "held-out score"),
        )

    def shards(self, parts: Sequence[np.ndarray]) -> Shards:
        """Deal the training records out: user ``i`` gets the rows ``parts[i]``."""
        if is_sparse(self.X):
            raise DataError(f"{self.name} is sparse; sharding among users needs a dense array.")
        return Shards.from_parts(self.X, self.y, parts)


@dataclass(frozen=True, eq=False)
class Shards:
    """The records of several users, one after another: user ``i`` holds rows offsets[i] to offsets[i+1]."""

    X: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    offsets: np.ndarray = field(repr=False)

    def __post_init__(self) -> None:
        runs = len(self.offsets) > 1 and self.offsets[0] == 0 and self.offsets[-1] == len(self.y)
        if not runs or (self.sizes < 0).any():
            raise DataError("Offsets must run from 0 to the number of records and must not fall.")
        require_records(self.sizes)

    @classmethod
    def from_parts(cls, X: ArrayLike, y: ArrayLike, parts: Sequence[np.ndarray]) -> Shards:
        """Return the records dealt out by row numbers; a row may belong to one user only."""
        rows, offsets = deal(parts)
        X = np.ascontiguousarray(np.asarray(X)[rows], dtype=np.float64)
        return cls(X, np.ascontiguousarray(np.asarray(y)[rows], dtype=np.float64), offsets)

    @property
    def n(self) -> int:
        """Number of users."""
        return len(self.offsets) - 1

    @property
    def dim(self) -> int:
        """Number of features."""
        return int(self.X.shape[1])

    @property
    def sizes(self) -> np.ndarray:
        """Records per user."""
        return np.diff(self.offsets)

    def user(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Return features and labels of one user."""
        rows = slice(self.offsets[i], self.offsets[i + 1])
        return self.X[rows], self.y[rows]

    def subset(self, users: Sequence[int]) -> Shards:
        """Return the shards of some users, in the order given."""
        parts = [np.arange(self.offsets[i], self.offsets[i + 1]) for i in users]
        return Shards.from_parts(self.X, self.y, parts)


def as_agent_records(data: object) -> AgentRecords:
    """Return records with their agents; a list of pairs (X, y), one per agent, becomes `Shards`."""
    if isinstance(data, AgentRecords):
        return data
    pairs: Sequence[Any] = data if isinstance(data, (list, tuple)) else [None]
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
        raise DataError(
            f"records of several agents must be shards, or a list of pairs (X, y), one per agent, got "
            f"{type(data).__name__}; dataset.shards(parts) deals records out."
        )
    parts = []
    for i, pair in enumerate(pairs):
        try:
            X, y = (np.asarray(values, dtype=np.float64) for values in pair)
        except (TypeError, ValueError):
            raise DataError(f"the pair (X, y) of agent {i} must hold numbers.") from None
        parts.append((X, y))
        if X.ndim != 2 or y.ndim != 1 or len(X) != len(y) or X.shape[1] != parts[0][0].shape[1]:
            raise DataError(
                f"agent {i} must have features (n, p) and n labels, with the same p as agent 0, got shapes "
                f"{X.shape} and {y.shape}."
            )
    sizes = [len(y) for _, y in parts]
    require_records(sizes)
    X, y = (np.concatenate(values) for values in zip(*parts, strict=True))
    return Shards(X, y, offsets_of(sizes))


def deal(parts: Sequence[ArrayLike]) -> tuple[np.ndarray, np.ndarray]:
    """Return the row numbers of all agents, one agent after the other, and where those of each begin."""
    rows = [np.asarray(part, dtype=np.int64) for part in parts]
    sizes = [len(part) for part in rows]
    require_records(sizes)
    order = np.concatenate(rows)
    if len(np.unique(order)) != len(order):
        raise DataError("A record is given to two agents; the parts must be disjoint.")
    return order, offsets_of(sizes)


def require_records(sizes: Sequence[int] | np.ndarray) -> None:
    """Raise unless there are agents and each of them has a record."""
    if len(sizes) == 0:
        raise DataError("There are no agents; give the records of at least one.")
    if not np.all(sizes):
        agent = np.argmin(sizes)
        raise DataError(f"Agent {agent} has no records; give it at least one, or leave the agent out.")


def offsets_of(sizes: ArrayLike) -> np.ndarray:
    """Return where the records of each agent begin, and where the last ones end."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def held_out_rows(n: int, share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return a random share of ``n`` row numbers, to be held out, and the others."""
    held_out, others = np.split(rng.permutation(n), [round(share * n)])
    return held_out, others


def with_ones(X: Features) -> Features:
    """Return features with a last column of ones."""
    ones = np.ones((X.shape[0], 1))
    return sp.csr_array(sp.hstack([X, sp.csr_array(ones)])) if is_sparse(X) else np.hstack([X, ones])


def unit_rows(X: Features) -> Features:
    """Return rows of unit Euclidean length; a row of zeros stays."""
    if is_sparse(X):
        norms = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
        return sp.csr_array(sp.diags_array(1 / np.where(norms > 0, norms, 1.0)) @ X)
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    return X / np.where(norms > 0, norms, 1.0)
