"""Norms and sums of per-sample gradients, layer by layer."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from tests.objectives.nets.networks import APART, CLASSES, CLIP, SINGLE, WIDTH, records, with_head
from torch import nn

from sottovoce.objectives.nets.layers import _matrix_norms
from sottovoce.objectives.nets.objective import NetObjective


def test_a_layer_nobody_calls_has_no_gradient():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, CLASSES))
    net[0].spare = nn.Linear(4, 4)
    objective = NetObjective(net, clip_norm=CLIP)
    x, y = records((WIDTH,))
    sums = objective.clipped_sums(objective.start(1), x, y)
    assert objective.explain(x, y).startswith("fast")
    assert sums[:, : (WIDTH + 1) * CLASSES].any()
    assert not sums[:, (WIDTH + 1) * CLASSES :].any()


def test_every_kind_of_layer_that_opacus_samples_is_right():
    from opacus.grad_sample.grad_sample_module import GradSampleModule

    kinds = {kind for kind in GradSampleModule.GRAD_SAMPLERS if kind.__module__.startswith("torch.nn")}
    tested = set()
    for make, shape in {**APART, **SINGLE}.values():
        tested |= {type(layer) for layer in with_head(make, shape).modules()}
    # its own recurrent and attention layers stand for torch's
    assert len(kinds) >= 12
    assert kinds <= tested, sorted(kind.__name__ for kind in kinds - tested)
    assert {nn.LSTM, nn.GRU, nn.RNN, nn.MultiheadAttention} <= tested


def cancelling(width, length, last_digit, seed):
    """Two positions whose terms nearly cancel: a gradient far shorter than what it is added up from."""
    g = torch.Generator().manual_seed(seed)
    x, shift, out = (torch.nn.functional.normalize(torch.randn(width, generator=g), dim=0) for _ in range(3))
    inputs = torch.stack([x * length, x * length + shift * length * 3e-4 * (1 + seed % 5) / 5])
    if last_digit:  # float64 too loses their ghost norm
        inputs[1] = inputs[0]
        inputs[1, 0] = torch.nextafter(inputs[0, 0], torch.tensor(torch.inf))
    return inputs[None, None], torch.stack([-out, out])[None, None]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("width", [2, 40])  # the gradient itself, and its ghost norm
@pytest.mark.parametrize(("length", "last_digit"), [(1e3, False), (1e5, False), (1e9, False), (1e9, True)])
def test_a_record_that_cancels_itself_is_clipped_all_the_same(width, length, last_digit, bias):
    """In float32 the ghost norm of such a record is noise: taken at its word it let 3000 C through."""
    objective = NetObjective(nn.Linear(width, width, bias=bias), "squared_error", clip_norm=1.0)
    theta = np.zeros((1, objective.n_params), np.float32)
    for seed in range(20):
        inputs, targets = cancelling(width, length, last_digit, seed)
        assert objective.clipped_sums(theta, inputs, targets).norm().item() <= 1 + 1e-5
    assert objective.explain(inputs, targets).startswith("fast")


def test_a_repeated_token_that_cancels_itself_is_clipped_all_the_same():
    objective = NetObjective(nn.Embedding(4, 8), "squared_error", clip_norm=1.0)
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        there = 1e5 * torch.randn(8, generator=g)
        back = 20 * torch.randn(8, generator=g) - there
        sums = objective.clipped_sums(
            np.zeros((1, 32), np.float32), torch.tensor([[[1, 1]]]), torch.stack([there, back])[None, None]
        )
        assert sums.norm().item() <= 1 + 1e-5


def test_a_sum_over_positions_is_clipped_by_what_it_may_truly_be():
    """Positions that nearly cancel: float32 measures the length of their sum wrongly, float64 adds it."""
    torch.manual_seed(0)
    objective = NetObjective(
        nn.Sequential(nn.Linear(3, 2), nn.Flatten(), nn.Linear(2 * 512, 1)),
        clip_norm=1e-3,
        loss="squared_error",
    )
    x = torch.randn(1, 1, 512, 3)
    x[:, :, 1::2] = -x[:, :, ::2] * (1 + 1e-4 * torch.randn(1, 1, 256, 1))
    theta = objective.start(1)
    half = objective.layout[-2]
    theta[:, half.start : half.stop] = 1.0  # every position has the same gradient, so the inputs cancel
    moved = objective.clipped_sums(theta, x, torch.full((1, 1, 1), 50.0))
    assert 0.5e-3 < moved.norm() <= 1e-3 * (1 + 1e-9)


def test_norms_of_sums_that_cancel_are_never_below_the_exact_ones():
    """Two positions that almost cancel, in float64: what is lost in the sum is added to its norm."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        first, g = torch.randn(2, 3, generator=generator, dtype=torch.float64)
        second = torch.nextafter(first, torch.tensor(torch.inf, dtype=torch.float64))
        x, gradients = torch.stack([first, second])[None], torch.stack([g, -g])[None]
        steps = [Fraction(b) - Fraction(a) for a, b in zip(first.tolist(), second.tolist(), strict=True)]
        exact = sum(step**2 for step in steps) * sum(Fraction(each) ** 2 for each in g.tolist())
        assert Fraction(_matrix_norms(x, gradients).item()) >= exact
