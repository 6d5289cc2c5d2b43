"""Records made of several tensors (tokens and a mask, an image and its age), as one row of numbers.

Batches, clipping and checks know one tensor of inputs with the record on its first axis. A record of several
parts is laid out as one row, and the network is wrapped so that it sees its parts again. Whole numbers up to
2^24 survive the row exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sottovoce.errors import DataError

EXACT = 1 << 24  # whole numbers that float32 holds


class InputPart(NamedTuple):
    """One tensor of a record: its name (or place), its shape, and what its numbers are."""

    name: str | int
    shape: tuple[int, ...]
    kind: str  # "number", "whole" or "bool"

    @property
    def size(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Where the parts of a record lie in its row."""

    parts: tuple[InputPart, ...]

    @classmethod
    def of(cls, batch: Mapping[str, Any] | Sequence[Any]) -> Layout:
        """Return the layout of records given as a mapping or sequence of arrays, first axis the record."""
        named = batch.items() if isinstance(batch, Mapping) else enumerate(batch)
        parts = []
        for name, value in named:
            tensor = as_tensor(value, name)
            if not tensor.ndim:
                raise DataError(f"the input {name!r} must have one entry per record, got a single number.")
            whole = "bool" if tensor.dtype == torch.bool else "whole"
            kind = "number" if tensor.is_floating_point() else whole
            parts.append(InputPart(name, tuple(tensor.shape[1:]), kind))
        if not parts:
            raise DataError("a record needs at least one input, got none.")
        return cls(tuple(parts))

    @property
    def whole(self) -> bool:
        """Whether all parts are whole numbers."""
        return all(part.kind != "number" for part in self.parts)

    def pack(self, batch: Mapping[str, Any] | Sequence[Any]) -> Tensor:
        """Return the records as rows, (records, numbers)."""
        tensors: Mapping[Any, Any] = batch if isinstance(batch, Mapping) else dict(enumerate(batch))
        columns = []
        for part in self.parts:
            if part.name not in tensors:
                names = " and ".join(repr(part.name) for part in self.parts)
                raise DataError(f"the records have no input {part.name!r}; give {names}.")
            tensor = as_tensor(tensors[part.name], part.name)
            if tuple(tensor.shape[1:]) != part.shape:
                raise DataError(
                    f"the input {part.name!r} of a record must have shape {part.shape}, got "
                    f"{tuple(tensor.shape[1:])}; pad or crop it."
                )
            if part.kind == "whole" and not self.whole and bool((tensor.abs() >= EXACT).any()):
                raise DataError(f"the whole numbers of input {part.name!r} must be below 2^24.")
            columns.append(tensor.reshape(len(tensor), -1).to(torch.int64 if self.whole else torch.float64))
        lengths = [len(column) for column in columns]
        if len(set(lengths)) > 1:
            raise DataError(f"all inputs need the same number of records, got {lengths}.")
        return torch.cat(columns, dim=1)

    def unpack(self, rows: Tensor) -> dict[str, Tensor] | tuple[Tensor, ...]:
        """Return the parts of records that lie in rows, by name or in their order."""
        types = {"number": rows.dtype, "whole": torch.int64, "bool": torch.bool}
        pieces = torch.split(rows, [part.size for part in self.parts], dim=1)
        values = [
            piece.reshape(rows.shape[0], *part.shape).to(types[part.kind])
            for part, piece in zip(self.parts, pieces, strict=True)
        ]
        names: list[Any] = [part.name for part in self.parts]
        return dict(zip(names, values, strict=True)) if isinstance(names[0], str) else tuple(values)

    def tokens(self) -> Tensor:
        """Return which columns hold whole numbers, (numbers,)."""
        return torch.cat([torch.full((part.size,), part.kind != "number") for part in self.parts])

    def masks(self) -> Tensor:
        """Return which columns belong to a mask, by the name of the input, such as attention_mask."""
        return torch.cat([torch.full((part.size,), str(part.name).endswith("mask")) for part in self.parts])

    def to_dict(self) -> dict[str, Any]:
        """Return values that JSON can hold."""
        return {"parts": [[part.name, list(part.shape), part.kind] for part in self.parts]}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Layout:
        """Read the output of `to_dict`."""
        return cls(tuple(InputPart(name, tuple(shape), kind) for name, shape, kind in record["parts"]))


class Unpacking(nn.Module):
    """A network that takes rows, and hands the parts of each record to the network inside."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        super().__init__()
        self.module, self.layout = module, layout
        self.token_columns, self.mask_columns = layout.tokens(), layout.masks()

    def forward(self, rows: Tensor) -> Any:
        parts = self.layout.unpack(rows)
        return self.module(**parts) if isinstance(parts, dict) else self.module(*parts)


def as_tensor(value: object, name: str | int) -> Tensor:
    """Return an array, a list or a tensor as a tensor, or raise one sentence."""
    try:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"the input {name!r} must be an array of numbers, one entry per record: {error}."
        ) from None
    return tensor.detach()
