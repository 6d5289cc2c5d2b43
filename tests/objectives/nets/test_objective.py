"""Clipped sums of networks: padding, chunks, agents, influence of one record."""

import numpy as np
import pytest
import torch
from tests.objectives.nets.networks import close, slow_tanh
from torch import nn

from sottovoce.errors import InvalidInput
from sottovoce.objectives.nets.objective import NetObjective


def small():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Mish(), nn.Flatten(), nn.Linear(32, 3))
    return NetObjective(net, clip_norm=0.7), torch.randn(2, 6, 1, 6, 6), torch.randint(0, 3, (2, 6))


def test_padding_and_chunks_change_nothing():
    objective, x, y = small()
    theta = objective.start(2)
    whole = objective.clipped_sums(theta, x, y)
    present = torch.zeros(2, 9, dtype=torch.bool)
    present[:, :6] = True
    padded = (
        torch.cat([x, torch.randn(2, 3, 1, 6, 6)], 1),
        torch.cat([y, torch.zeros(2, 3, dtype=torch.long)], 1),
    )
    assert close(objective.clipped_sums(theta, *padded, present), whole, 1e-6)


@pytest.mark.parametrize(
    ("most", "pieces"), [(4, [4, 2, 4, 2]), (6, [6, 6]), (11, [6, 6]), (12, [12]), (None, [12])]
)
@pytest.mark.parametrize("limit", ["records", "memory"])
def test_pieces_hold_at_most_the_limit_and_change_nothing(monkeypatch, most, pieces, limit):
    """Whole batches of several agents, or a part of one; by a number of records or by their memory."""
    objective, x, y = small()
    theta = objective.start(2)
    whole = objective.clipped_sums(theta, x, y)
    path, sizes = objective.paths.choose(x, y, 1.0), []
    assert 4 * 2 * 16 * 4 <= path.record_bytes <= 100_000  # at least four maps of the convolution
    if limit == "records":
        objective.physical_batch = most
    elif most is not None:
        monkeypatch.setattr("sottovoce.objectives.nets.objective._PIECE_BYTES", most * path.record_bytes + 1)
    add = objective._add_stacked_sums
    objective._add_stacked_sums = lambda steps, theta, *rest: (
        sizes.append(rest[2].numel()) or add(steps, theta, *rest)
    )
    assert close(objective.clipped_sums(theta, x, y), whole, 1e-6)
    assert sizes == pieces


def test_memory_of_a_record_follows_its_activations():
    """Twice the side is four times the maps; a larger model alone costs a record nothing."""

    def record_bytes(side, hidden=2):
        net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                            nn.Linear(2, hidden), nn.Linear(hidden, 3))  # fmt: skip
        objective = NetObjective(net)
        inputs = (torch.zeros(1, 4, 1, side, side), torch.zeros(1, 4, dtype=torch.long))
        return objective.paths.choose(*inputs, 1.0).record_bytes

    assert 3.5 <= record_bytes(64) / record_bytes(32) <= 4.0
    assert record_bytes(32, hidden=2000) - record_bytes(32) <= 10 * 2000 * 4


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38, -1e30])
@pytest.mark.parametrize("fallback", [False, True])
def test_one_record_moves_the_sum_by_at_most_the_clip(value, fallback):
    """Influence of one record, whatever it holds; the others' contribution does not move."""
    objective, x, y = small()
    if fallback:
        net = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), slow_tanh(), nn.Linear(4, 3))
        objective = NetObjective(net, clip_norm=0.7)
        assert objective.explain(x, y).startswith("one record")
    theta = objective.start(2)
    without = objective.clipped_sums(theta, x[:, 1:], y[:, 1:])
    x[0, 0, 0, 2, 3] = value
    with_it = objective.clipped_sums(theta, x, y)
    assert torch.isfinite(with_it).all()
    assert (with_it - without)[0].norm() <= 0.7 * (1 + 1e-5)
    if not np.isfinite(value):
        assert close(with_it[0], without[0], 1e-6)


def test_empty_batch_gives_zero():
    objective, x, y = small()
    assert not objective.clipped_sums(objective.start(2), x[:, :0], y[:, :0]).any()
    none = torch.zeros(2, 6, dtype=torch.bool)
    assert not objective.clipped_sums(objective.start(2), x, y, none).any()


def test_rows_and_batches_belong_to_equally_many_agents():
    objective, x, y = small()
    with pytest.raises(InvalidInput, match="one row per batch"):
        objective.clipped_sums(objective.start(1), x, y)
