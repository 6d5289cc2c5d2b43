"""Norms and sums of per-sample gradients, layer by layer."""

import torch
from tests.objectives.nets.networks import APART, CLASSES, CLIP, SINGLE, WIDTH, records, with_head
from torch import nn

from sottovoce.objectives.nets.objective import NetObjective


def test_a_layer_nobody_calls_has_no_gradient():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, CLASSES))
    net[0].spare = nn.Linear(4, 4)
    objective = NetObjective(net, clip_norm=CLIP)
    x, y = records((WIDTH,))
    sums = objective.clipped_sums(objective.start(1), x, y)
    assert not objective.uses_fallback
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
