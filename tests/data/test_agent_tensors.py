"""Records of agents as tensors, in memory or read when needed."""

import numpy as np
import pytest
import torch
from tests.estimators.cases import BUDGET, circles, fit, mlp, rng
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

from sottovoce.data.agent_tensors import AgentData, LazyData


class Lazily(torch.utils.data.Dataset):
    def __init__(self, X, y, transform=None, as_dict=False):
        self.X, self.y, self.transform, self.as_dict, self.read = X, y, transform, as_dict, []

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        self.read.append(i)
        x = torch.as_tensor(self.X[i], dtype=torch.float32)
        x = x if self.transform is None else self.transform(x)
        return {"image": x, "label": int(self.y[i])} if self.as_dict else (x, int(self.y[i]))


def test_a_dataset_is_read_when_a_batch_needs_it():
    X, y = circles(120)
    X = X.astype(np.float32)
    options = {"network": "ring:3", "steps": 4, "batch_size": 5, **BUDGET}
    arrays = fit(mlp(), (X, y), rng=rng(), **options)
    data = Lazily(X, y)
    lazy = fit(mlp(), data, rng=rng(), **options)
    assert np.array_equal(lazy.rows, arrays.rows)
    assert 20 < len(data.read) < 110  # about 4 steps of 3 batches of 5, not 4 times 120
    by_name = fit(mlp(), Lazily(X, y, as_dict=True), label="label", rng=rng(), **options)
    assert np.array_equal(by_name.rows, arrays.rows)
    whole = torch.utils.data.TensorDataset(torch.as_tensor(X), torch.as_tensor(y))
    assert np.array_equal(fit(mlp(), whole, rng=rng(), **options).rows, arrays.rows)
    assert np.array_equal(lazy.predict(Lazily(X, y)), arrays.predict(X))
    assert any("made from one record" in sentence for sentence in lazy.privacy.assumptions)


def test_random_transforms_follow_the_runs_seed():
    X, y = circles(60)

    def shaken(x):
        return x + 0.1 * torch.randn(2)

    options = {"network": "ring:3", "steps": 3, "noise_multiplier": 0.0}
    torch.manual_seed(1)
    one = fit(mlp(), Lazily(X, y, shaken), rng=rng(4), **options)
    torch.manual_seed(2)
    two = fit(mlp(), Lazily(X, y, shaken), rng=rng(4), **options)
    three = fit(mlp(), Lazily(X, y, shaken), rng=rng(5), **options)
    assert np.array_equal(one.rows, two.rows)
    assert not np.array_equal(one.rows, three.rows)


@pytest.mark.parametrize("random", [False, True])
def test_records_read_ahead_are_read_once_unless_reading_draws_random_numbers(random):
    reads = []

    def read(i):
        reads.append(i)
        return torch.rand(2) if random else torch.tensor([i, 1.0]), torch.tensor(i % 2)

    data = LazyData(read, [[0, 1, 2], [3, 4]])
    batches = [np.array([0, 2]), np.array([1])]
    reads.clear()
    x, y, _ = data.gather_ahead(batches, [0, 1])
    again = data.gather([np.array([0, 2])], [0])  # agent by agent, as seeded sums read
    assert reads == ([0, 2, 4, 0, 2] if random else [0, 2, 4])
    assert torch.equal(again[0][0], x[0]) is not random
    assert torch.equal(again[1][0], y[0])
    data.gather(batches, [0, 1])
    assert reads[3 if not random else 5 :] == ([0, 2, 4] if random else [0, 2])  # what was handed out is gone


def as_lists(X, y):
    return DataLoader([(x, label) for x, label in zip(X, y, strict=True)], 20)


def as_a_part(X, y):
    whole = TensorDataset(torch.cat([X[:5], X]), torch.cat([y[:5], y]))
    return DataLoader(Subset(Subset(whole, range(3, len(whole))), range(2, len(whole) - 3)), 20)


@pytest.mark.parametrize(
    ("loader", "in_memory"),
    [
        (as_lists, True),
        (as_a_part, True),
        (lambda X, y: DataLoader(Lazily(X, y), 20), False),  # may draw random numbers
        (lambda X, y: DataLoader(as_lists(X, y).dataset, 20, collate_fn=lambda b: default_collate(b)), False),
        (lambda X, y: as_lists([*X[:-1], torch.zeros(3)], y), False),  # an odd record that no batch holds
    ],
)
def test_items_in_memory_are_packed_once_and_give_the_same_numbers(loader, in_memory, monkeypatch):
    X, y = (torch.as_tensor(part) for part in circles(120))
    X = X.float()
    options = {"network": "ring:3", "steps": 3, **BUDGET}
    gathered = []
    for kind in (AgentData, LazyData):
        real = kind.gather
        monkeypatch.setattr(kind, "gather", lambda *args, k=kind, g=real: gathered.append(k) or g(*args))
    fitted = fit(mlp(), loader(X, y), rng=rng(), **options)
    assert set(gathered) == {AgentData if in_memory else LazyData}
    assert np.array_equal(
        fitted.rows, fit(mlp(), DataLoader(TensorDataset(X, y), 20), rng=rng(), **options).rows
    )
