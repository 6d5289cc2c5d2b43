"""Records that are loaded when a batch needs them: a torch Dataset with its transforms. Needs torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sottovoce.data.agent_tensors import AgentData
from sottovoce.errors import DataError


class LazyData(AgentData):
    """The records of every agent, read one by one from ``read`` when a batch holds them.

    Parameters
    ----------
    read : ``read(i) -> (inputs, target)``, tensors of the same shape and type for every record.
    parts : one array of record numbers per agent.
    test : public ``(inputs, targets)`` for evaluation, or None.

    Guarantees
    ----------
    None of its own: clipping bounds the influence of a record if ``read(i)`` depends on record i and on
    random numbers alone.

    Examples
    --------
    >>> data = LazyData(lambda i: (torch.full((2,), float(i)), torch.tensor(i % 2)), [[0, 1, 2], [5]])
    >>> x, y, present = data.gather([np.array([2]), np.array([0])], [0, 1])
    >>> x[:, 0, 0].tolist(), y[:, 0].tolist(), present.sum().item()
    ([2.0, 5.0], [0, 1], 2)
    """

    def __init__(
        self,
        read: Callable[[int], tuple[Tensor, Tensor]],
        parts: Sequence[Any],
        *,
        test: tuple[Any, Any] | None = None,
    ) -> None:
        rows = [np.asarray(part, dtype=np.int64) for part in parts]
        self.sizes = np.array([len(part) for part in rows])
        if len(rows) == 0 or (self.sizes == 0).any():
            raise DataError("every agent needs at least one record; leave the empty ones out.")
        self.order = np.concatenate(rows)
        if len(np.unique(self.order)) != len(self.order):
            raise DataError("a record is given to two agents; the parts must be disjoint.")
        self.read, self.test = read, test
        self.offsets = np.concatenate([[0], np.cumsum(self.sizes)])
        first = read(int(self.order[0]))
        self.like = tuple((tuple(part.shape), part.dtype) for part in first)  # shapes and types are public

    def subset(self, agents: Sequence[int]) -> LazyData:
        """Return the records of some agents, in the order given."""
        part = copy.copy(self)
        part.order = np.concatenate([self.order[self.offsets[a] : self.offsets[a + 1]] for a in agents])
        part.sizes = self.sizes[list(agents)]
        part.offsets = np.concatenate([[0], np.cumsum(part.sizes)])
        return part

    def gather(self, batches: Sequence[np.ndarray], agents: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs, targets (agents, longest batch, ...) and which places hold a record."""
        sizes = np.array([len(batch) for batch in batches])
        longest = -(-int(sizes.max(initial=0)) // 8) * 8
        present = torch.from_numpy(np.arange(longest) < sizes[:, None])
        x, y = (torch.zeros(len(batches), longest, *shape, dtype=dtype) for shape, dtype in self.like)
        for row, (batch, a) in enumerate(zip(batches, agents, strict=True)):
            for place, i in enumerate(batch):
                number = int(self.order[self.offsets[a] + i])
                x[row, place], y[row, place] = self._checked(number)
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
