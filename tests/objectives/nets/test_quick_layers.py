"""Layers that a processor computes faster, against torch's."""

import pytest
import torch
from torch import nn

from sottovoce.objectives.nets.quick_layers import QuickMish, WindowMaxima
from sottovoce.objectives.nets.split_layers import split_layers


def both(ours, theirs, x):
    """Values and gradients of two layers for the same input."""
    results = []
    for layer in (ours, theirs):
        leaf = x.clone().requires_grad_()
        out = layer(leaf)
        weights = torch.linspace(-1, 1, out.numel(), dtype=x.dtype).view(out.shape)
        results.append((out.detach(), torch.autograd.grad((out * weights).sum(), leaf)[0]))
    return results


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("window", [(2, 2), (3, 2), (1, 4)])
@pytest.mark.parametrize("transposed", [False, True])
def test_maxima_are_those_of_torch(dtype, window, transposed):
    x = torch.randn(3, 2, 7, 8, generator=torch.Generator().manual_seed(0), dtype=dtype)
    x[0, 0] = 0  # ties go to the first entry
    x[1, 0, 1, 1], x[1, 1, 0, 0] = float("nan"), float("-inf")
    x = x.mT if transposed else x
    (ours, slope), (theirs, expected) = both(WindowMaxima(*window), nn.MaxPool2d(window), x)
    assert torch.equal(ours.nan_to_num(9), theirs.nan_to_num(9))
    assert torch.equal(slope, expected)


@pytest.mark.parametrize("count", [5, 16, 9000])
def test_mish_is_that_of_torch(count):
    x = torch.linspace(-60, 60, count)
    (ours, slope), (theirs, expected) = both(QuickMish(), nn.Mish(), x)
    assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-7)
    assert torch.allclose(slope, expected, rtol=1e-5, atol=1e-6)
    assert QuickMish()(torch.tensor([1.0, float("nan")])).isnan().tolist() == [False, True]


@pytest.mark.parametrize(
    "layer",
    [
        nn.MaxPool2d(2, 1),
        nn.MaxPool2d(3, padding=1),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, return_indices=True),
        nn.MaxPool2d(17),
    ],
)
def test_other_pooling_stays_as_it_is(layer):
    net = nn.Sequential(layer)
    split_layers(net)
    assert net[0] is layer
