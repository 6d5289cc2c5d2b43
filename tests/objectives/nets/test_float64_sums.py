"""Sums over a batch in float64."""

import numpy as np
import pytest
import torch
from tests.objectives.nets.networks import slow_tanh
from torch import nn

from sottovoce.objectives.nets.float64_sums import add_weighted_products, add_weighted_rows, token_squares
from sottovoce.objectives.nets.objective import NetObjective

torch.manual_seed(0)
LARGE = {
    "linear": (nn.Linear(4, 1), (4,), 50_000),
    "wide linear": (nn.Sequential(nn.Linear(4, 40), nn.Tanh(), nn.Linear(40, 1)), (4,), 20_000),
    "conv formed": (nn.Sequential(nn.Conv2d(1, 1, 2), nn.Flatten()), (1, 2, 2), 50_000),
    "conv ghost": (nn.Sequential(nn.Conv2d(2, 8, 2), nn.Flatten(), nn.Linear(8, 1)), (2, 2, 2), 50_000),
    "positions formed": (nn.Sequential(nn.Linear(4, 3), nn.Flatten(), nn.Linear(15, 1)), (5, 4), 20_000),
    "positions ghost": (nn.Sequential(nn.Linear(32, 40), nn.Flatten(), nn.Linear(80, 1)), (2, 32), 3_000),
    "encoder": (
        nn.Sequential(
            nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), nn.Flatten(), nn.Linear(40, 1)
        ),
        (5, 8),
        3_000,
    ),
    "scale": (nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 1)), (4,), 50_000),
    "embedding": (nn.Sequential(nn.Embedding(3, 2), nn.Flatten(), nn.Linear(4, 1)), (2,), 50_000),
    "one by one": (nn.Sequential(slow_tanh(), nn.Linear(4, 1)), (4,), 10_000),
}


@pytest.mark.parametrize("name", LARGE)
def test_one_record_of_a_large_batch_moves_the_sum_by_the_clip(name):
    """All gradients point one way, so float32 sums are large and coarse: they moved by .997 to 1.003 C."""
    net, shape, size = LARGE[name]
    torch.manual_seed(0)
    objective = NetObjective(net, "squared_error", clip_norm=1.0)
    x = (
        torch.randint(0, 3, (1, size, *shape))
        if name == "embedding"
        else 1 + 0.2 * torch.randn(1, size, *shape)
    )
    y = torch.full((1, size, 1), -9.0)
    theta = objective.start(1)
    moved = objective.clipped_sums(theta, x, y) - objective.clipped_sums(theta, x[:, 1:], y[:, 1:])
    assert 1 - 1e-5 <= moved.norm() <= 1 + 1e-9
    assert objective.explain(x, y).startswith("one record" if name == "one by one" else "fast")


@pytest.mark.parametrize("width", [3, 40, 520])  # tiles, pieces, and pieces of large sums
def test_weighted_products_and_rows_are_sums(width):
    rng = np.random.default_rng(0)
    weights, g, x = (
        torch.as_tensor(rng.normal(size=(2, 300, *more)), dtype=torch.float32)
        for more in ((), (width,), (520,))
    )
    expected = np.einsum("ar,arp,ard->apd", *(t.double().numpy() for t in (weights, g, x)), optimize=True)
    products = torch.ones(2, width * 520 + 5, dtype=torch.float64)
    for times in (1, 2):
        add_weighted_products(products, 3, weights, g, x)
        assert np.allclose(products[:, 3:-2], 1 + times * expected.reshape(2, -1), rtol=1e-12, atol=1e-11)
    assert (products[:, [0, 1, 2, -2, -1]] == 1).all()
    sums = torch.ones(2, width + 5, dtype=torch.float64)
    add_weighted_rows(sums, 3, weights, g)
    assert np.allclose(sums[:, 3:-2], 1 + np.einsum("ar,arp->ap", weights.double(), g.double()))
    assert (sums[:, :3] == 1).all()
    assert (sums[:, -2:] == 1).all()


def test_gradients_of_repeated_tokens_add_up():
    g = torch.Generator().manual_seed(2)
    tokens, rows = torch.randint(0, 4, (5, 9), generator=g), torch.randn(5, 9, 3, generator=g)
    tables = torch.zeros(5, 4, 3, dtype=torch.float64)
    for sample in range(5):
        tables[sample].index_add_(0, tokens[sample], rows[sample].double())
    assert torch.allclose(token_squares(tokens, rows), tables.square().sum((1, 2)), rtol=1e-14)
