"""Records of several agents as tensors, for networks. Needs torch, so it is imported where it is used."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from sottovoce.data.base import deal, offsets_of
from sottovoce.errors import DataError

Gathered = tuple[Tensor, Tensor, Tensor]
Test = tuple[Any, Any] | None


class AgentData:
    """The records of every agent, laid end to end, and a public test set.

    ``parts`` holds one array of row numbers per agent; an agent may not share a record with another. ``test``
    are public ``(inputs, targets)``. ``classes`` is the number of classes, where targets are labels; they are
    checked here, once.

    Examples
    --------
    >>> data = AgentData(np.zeros((4, 2), np.float32), [0, 1, 0, 1], [[0, 1, 2], [3]], classes=2)
    >>> data.n, data.sizes.tolist()
    (2, [3, 1])
    """

    def __init__(
        self,
        inputs: Tensor | np.ndarray,
        targets: ArrayLike | Tensor,
        parts: Sequence[ArrayLike],
        *,
        test: Test = None,
        classes: int | None = None,
    ) -> None:
        order, self.offsets = deal(parts)
        labels = np.asarray(targets)
        for where, y in (("record", labels), ("test record", None if test is None else np.asarray(test[1]))):
            if y is not None and classes is not None and ((y < 0) | (y >= classes)).any():
                i = int(np.flatnonzero((y < 0) | (y >= classes))[0])
                raise DataError(f"{where} {i} has label {y[i]}, but the classes are 0 to {classes - 1}.")
        whole = len(order) == len(inputs) and bool((np.diff(order) == 1).all())
        picked = inputs if whole else np.asarray(inputs)[order]
        self.inputs = torch.as_tensor(np.ascontiguousarray(picked))
        self.targets = torch.as_tensor(np.ascontiguousarray(labels[order]))
        self.like = _like(*(part.new_empty(part.shape[1:]) for part in (self.inputs, self.targets)))
        self.test = _as_tensors(test)
        self._whole: Gathered | None = None
        self._next: tuple[Sequence[np.ndarray], Gathered] | None = None

    @property
    def n(self) -> int:
        """Number of agents."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> np.ndarray:
        """Number of records of each agent."""
        return np.diff(self.offsets)

    def subset(self, agents: Sequence[int]) -> AgentData:
        """Return the records of some agents, in the order given; of all in their own order, itself."""
        chosen = [int(a) for a in agents]
        if chosen == list(range(self.n)):
            return self
        part = copy.copy(self)
        part._take(np.concatenate([np.arange(self.offsets[a], self.offsets[a + 1]) for a in chosen]))
        part.offsets = offsets_of(self.sizes[chosen])
        return part

    def _take(self, places: np.ndarray) -> None:
        at = torch.from_numpy(places)
        self.inputs, self.targets = self.inputs.index_select(0, at), self.targets.index_select(0, at)
        self._whole = self._next = None

    def gather_ahead(self, batches: Sequence[np.ndarray], agents: Sequence[int]) -> Gathered:
        """Return what the next `gather` of this list of batches of these agents returns."""
        self._next = (batches, self.gather(batches, agents))
        return self._next[1]

    def gather(self, batches: Sequence[np.ndarray], agents: Sequence[int]) -> Gathered:
        """Return inputs, targets (agents, longest batch, ...) and which places hold a record."""
        ahead, self._next = self._next, None
        if ahead is not None and ahead[0] is batches:
            return ahead[1]
        sizes = np.array([len(batch) for batch in batches])
        full = bool((sizes == self.sizes[list(agents)]).all())
        if full and self._whole is not None and len(batches) == self.n:
            return self._whole
        longest = _padded(sizes)
        index = np.zeros((len(batches), longest), np.int64)
        for row, batch, a in zip(index, batches, agents, strict=True):
            row[: len(batch)] = self.offsets[a] + batch
        present = torch.from_numpy(np.arange(longest) < sizes[:, None])
        at = torch.from_numpy(index.ravel())
        x = self.inputs.index_select(0, at).view(len(batches), longest, *self.inputs.shape[1:])
        y = self.targets.index_select(0, at).view(len(batches), longest, *self.targets.shape[1:])
        if full and len(batches) == self.n:
            self._whole = (x, y, present)  # full batches are the same in every step
        return x, y, present


class LazyData(AgentData):
    """The records of every agent, read one by one when a batch holds them: a torch Dataset.

    ``read(i)`` returns inputs and target, tensors of the same shape and type for every record.

    Guarantees
    ----------
    None of its own: clipping bounds the influence of a record if ``read(i)`` depends on record i and on
    random numbers alone.
    """

    def __init__(
        self,
        read: Callable[[int], tuple[Tensor, Tensor]],
        parts: Sequence[ArrayLike],
        *,
        test: Test = None,
    ) -> None:
        self.order, self.offsets = deal(parts)
        self.read, self.test = read, _as_tensors(test)
        self._ahead: dict[int, tuple[np.ndarray, Tensor, Tensor]] = {}
        self.like = _like(*read(int(self.order[0])))

    def _take(self, places: np.ndarray) -> None:
        self.order, self._ahead = self.order[places], {}

    def gather(self, batches: Sequence[np.ndarray], agents: Sequence[int]) -> Gathered:
        """Return inputs, targets (agents, longest batch, ...) and which places hold a record."""
        sizes = np.array([len(batch) for batch in batches])
        longest = _padded(sizes)
        present = torch.from_numpy(np.arange(longest) < sizes[:, None])
        x, y = (torch.zeros(len(batches), longest, *shape, dtype=dtype) for shape, dtype in self.like)
        for row, (batch, a) in enumerate(zip(batches, agents, strict=True)):
            if a in self._ahead and np.array_equal(self._ahead[a][0], batch):
                x[row, : len(batch)], y[row, : len(batch)] = self._ahead.pop(a)[1:]
            else:
                for place, i in enumerate(batch):
                    x[row, place], y[row, place] = self._checked(int(self.order[self.offsets[a] + i]))
            if len(batch):  # of zeros the gradient may not be finite, and sums with such gradients are slow
                x[row, len(batch) :], y[row, len(batch) :] = x[row, 0], y[row, 0]
        return x, y, present

    def gather_ahead(self, batches: Sequence[np.ndarray], agents: Sequence[int]) -> Gathered:
        """Return what the next `gather` of these batches returns, which reads no record again.

        Records whose reading draws torch's random numbers are read again: a step seeds them.
        """
        before = torch.get_rng_state()
        x, y, present = self.gather(batches, agents)
        if torch.equal(before, torch.get_rng_state()):
            rows = zip(agents, batches, x, y, strict=True)
            self._ahead = {a: (batch, xs[: len(batch)], ys[: len(batch)]) for a, batch, xs, ys in rows}
        return x, y, present

    def _checked(self, number: int) -> tuple[Tensor, Tensor]:
        record = self.read(number)
        for part, (shape, _), what in zip(record, self.like, ("inputs", "a target"), strict=True):
            if tuple(part.shape) != shape:
                raise DataError(
                    f"record {number} has {what} of shape {tuple(part.shape)}, the first one {shape}; let "
                    "the dataset pad or crop to one shape."
                )
        return record


def _like(*record: Tensor) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    """Return shape and type of a record's inputs and target, which are public."""
    return tuple((tuple(part.shape), part.dtype) for part in record)


def _padded(sizes: np.ndarray) -> int:
    """Return the length of the padded batches: a few lengths only, so that buffers are reused."""
    return -(-int(sizes.max(initial=0)) // 8) * 8


def _as_tensors(test: Test) -> tuple[Tensor, Tensor] | None:
    return None if test is None else (torch.as_tensor(test[0]), torch.as_tensor(np.asarray(test[1])))
