"""Torch datasets and DataLoaders, as far as private training can use them: items, batch size, collation.

Batches are Poisson samples, because their privacy is accounted as such, so a loader's own order of records is
not used, and a sampler that gives some records more weight is refused. Torch is not imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from sottovoce.data.base import is_tensor
from sottovoce.errors import DataError


@runtime_checkable
class IndexedDataset(Protocol):
    """A dataset of torch: records by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, i: Any, /) -> Any: ...


@runtime_checkable
class BatchLoader(Protocol):
    """A DataLoader of torch."""

    dataset: Any
    batch_size: int | None
    sampler: Any
    collate_fn: Callable[[list[Any]], Any]


@dataclass(frozen=True)
class CollatedItems:
    """A dataset whose items went through a loader's ``collate_fn``, each one alone."""

    dataset: Any
    collate_fn: Callable[[list[Any]], Any]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Any:
        return _first(self.collate_fn([self.dataset[i]]))


def loader_dataset(loader: BatchLoader) -> Any:
    """Return the records of a loader, item by item as it would collate them."""
    if not hasattr(type(loader.dataset), "__len__") or not hasattr(type(loader.dataset), "__getitem__"):
        raise DataError(
            f"the DataLoader's dataset ({type(loader.dataset).__name__}) has no length, so the rate at which "
            "a record is sampled is unknown; give a dataset with __len__ and __getitem__."
        )
    plain = getattr(loader.collate_fn, "__module__", "").startswith("torch.utils.data")
    if plain and not isinstance(loader.dataset, (list, tuple)):  # a list could be taken for (inputs, targets)
        return loader.dataset
    return CollatedItems(loader.dataset, loader.collate_fn)


def items_in_memory(dataset: Any) -> Any:
    """Return all items of a list of a loader, or of a part of a TensorDataset, as one batch; else None.

    Other datasets and collations are read one at a time, in every step anew: they may draw random numbers,
    and a ``collate_fn`` that sees a whole batch could let one record change another's item, by padding to the
    longest or by draws in the order of the batch, so that clipping would not bound a record's influence.
    """
    from torch.utils.data import Subset, TensorDataset, default_collate

    if isinstance(dataset, CollatedItems):
        items = dataset.dataset
        known = type(items) in (list, tuple) and dataset.collate_fn is default_collate
    else:
        source = items = dataset
        while type(source) is Subset:
            source = source.dataset
        known = type(source) is TensorDataset
    return default_collate([items[i] for i in range(len(items))]) if known else None


def loader_batch_size(loader: BatchLoader) -> int:
    """Return the batch size of a loader; refuse a sampler that is not a plain pass over all records."""
    if loader.batch_size is None:
        raise DataError(
            "the DataLoader has no batch_size (a batch_sampler of its own?); private batches are Poisson "
            "samples, so give batch_size=..., their expected size."
        )
    sampler = loader.sampler
    kind = type(sampler).__name__
    plain = type(sampler).__module__.startswith("torch.utils.data") and (
        kind == "SequentialSampler" or (kind == "RandomSampler" and not sampler.replacement)
    )
    if not plain or len(sampler) != len(loader.dataset):
        raise DataError(
            f"the DataLoader's sampler ({kind}) cannot be used: every record must have the same chance to be "
            "sampled; leave it out, and choose records with torch.utils.data.Subset."
        )
    return int(loader.batch_size)


def split_item(item: object, label: str | Sequence[str] | None) -> tuple[Any, Any]:
    """Return inputs and target of one item of a Dataset: a pair, or a mapping with a label.

    Without a name for it the label is ``"labels"`` or ``"label"``, as in Hugging Face's datasets.
    """
    if isinstance(item, Mapping):
        label = next((name for name in ("labels", "label") if name in item), None) if label is None else label
        named = {name: value for name, value in item.items() if name != label}
        return (next(iter(named.values())) if len(named) == 1 else named), item.get(label)
    if isinstance(item, (tuple, list)) and len(item) > 1:
        *inputs, target = item
        return (inputs[0] if len(inputs) == 1 else tuple(inputs)), target
    return item, None


def stack_items(items: Sequence[Any]) -> Any:
    """Return the inputs of several records as one batch; a record may be a mapping or a tuple of tensors."""
    import torch

    def stacked(values: Sequence[object]) -> torch.Tensor:
        return torch.stack([torch.as_tensor(value) for value in values])

    if isinstance(items[0], Mapping):
        return {key: stacked([item[key] for item in items]) for key in items[0]}
    if isinstance(items[0], (tuple, list)):
        return tuple(stacked([item[j] for item in items]) for j in range(len(items[0])))
    return stacked(items)


def all_items(dataset: IndexedDataset, label: str | Sequence[str] | None) -> tuple[Any, np.ndarray]:
    """Return the inputs of all items of a dataset as one batch, and their targets."""
    items = [split_item(dataset[i], label) for i in range(len(dataset))]
    return stack_items([x for x, _ in items]), np.array([np.asarray(y) for _, y in items])


def input_batches(inputs: Any, label: str | Sequence[str] | None, size: int = 256) -> Iterator[Any]:
    """Yield inputs in the form a network takes: whole if they lie in memory, those of a Dataset in batches.

    Targets that come with the items of a Dataset are left aside.
    """
    in_memory = isinstance(inputs, (Mapping, tuple, np.ndarray)) or is_tensor(inputs)
    if isinstance(inputs, list):
        in_memory = not inputs or np.ndim(inputs[0]) > 0 or np.isscalar(inputs[0])
    if in_memory or not isinstance(inputs, IndexedDataset):
        yield inputs
        return
    for first in range(0, len(inputs), size):
        numbers = range(first, min(first + size, len(inputs)))
        yield stack_items([split_item(inputs[i], label)[0] for i in numbers])


def _first(batch: Any) -> Any:
    """Return the only item of a batch of one."""
    if isinstance(batch, Mapping):
        return {name: _first(value) for name, value in batch.items()}
    if isinstance(batch, Sequence) and not all(isinstance(value, str) for value in batch):
        return tuple(_first(value) for value in batch)
    length = len(batch) if hasattr(batch, "__len__") else "no axis"
    if length != 1:
        raise DataError(f"collate_fn must keep records apart, one on the first axis, got {length} for one.")
    return batch[0]
