"""The hand-written sums against the generic ones."""

import numpy as np
import pytest
import torch

from sottovoce.data.agent_tensors import AgentData
from sottovoce.objectives.nets.objective import NetObjective
from sottovoce.objectives.nets.zoo import bayrooti_mnist
from sottovoce_papers.bayrooti2023.objective import BayrootiObjective


def both(clip_norm=0.8):
    return BayrootiObjective(clip_norm=clip_norm), NetObjective(bayrooti_mnist(), clip_norm=clip_norm)


def batch(agents=3, size=7, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(agents, size, 1, 32, 32, generator=g)
    x[:, :, :, :12] = -0.42  # background: windows full of ties
    return x, torch.randint(0, 10, (agents, size), generator=g)


@pytest.mark.parametrize("clip_norm", [0.1, 5.0, float("inf")])
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_equals_the_generic_sums(clip_norm, scale):
    fast, generic = both(clip_norm)
    theta = fast.random_init(np.random.default_rng(1), agents=3)
    theta = (scale * theta + 0.03 * np.random.default_rng(2).normal(size=theta.shape)).astype(np.float32)
    x, y = batch()
    present = torch.rand(3, 7, generator=torch.Generator().manual_seed(3)) > 0.3
    ours, theirs = (o.clipped_sums(theta, x, y, present) for o in (fast, generic))
    assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e38])
@pytest.mark.parametrize("place", [(0, 0), (15, 15), (31, 31)])
def test_a_bad_record_moves_nothing_else(value, place):
    fast, _ = both()
    theta = fast.random_init(np.random.default_rng(1), agents=3)
    x, y = batch()
    without = fast.clipped_sums(theta, x[:, 1:], y[:, 1:])
    x[1, 0, 0, place[0], place[1]] = value
    with_it = fast.clipped_sums(theta, x, y)
    assert torch.isfinite(with_it).all()
    assert (with_it - without)[1].norm() <= 0.8 * (1 + 1e-5)
    if not np.isfinite(value):
        assert (with_it - without)[1].norm() <= 1e-5


def test_outputs_equal_the_module():
    fast, generic = both()
    theta = fast.random_init(np.random.default_rng(1), agents=2)
    theta[1] *= 2
    x, y = batch(1, 9)
    for ours, theirs in zip(fast.outputs(theta, x[0]), generic.outputs(theta, x[0]), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    data = AgentData(x[0], y[0], [np.arange(len(y[0]))], test=(x[0], y[0]))
    assert fast.metrics(theta, data)["accuracy"] == generic.metrics(theta, data)["accuracy"]


def test_chunks_are_one_batch():
    fast, _ = both()
    theta = fast.random_init(np.random.default_rng(1), agents=3)
    x, y = batch()
    whole = fast.clipped_sums(theta, x, y)
    fast.physical_batch = 6
    assert (fast.clipped_sums(theta, x, y) - whole).norm() <= 1e-6 * whole.norm()
