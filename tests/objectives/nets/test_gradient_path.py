"""One record moves a clipped sum by at most C for every network; what keeps samples apart is fast."""

import numpy as np
import pytest
import torch
from tests.objectives.nets.networks import (
    APART,
    CLASSES,
    CLIP,
    MIXING,
    MIXING_LOSSES,
    ROWS,
    SINGLE,
    TOKENS,
    WIDTH,
    Does,
    Net,
    close,
    records,
    reference,
    rows,
    slow_tanh,
    with_head,
)
from torch import nn

import sottovoce as sv
from sottovoce.data.agent_tensors import AgentData
from sottovoce.errors import InvalidInput
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives.nets import losses
from sottovoce.objectives.nets.objective import NetObjective


def influence(objective, seed=0):
    """The most that removing, hiding or replacing one of twelve records moved the sum, in units of C."""
    x, y = records((WIDTH,), seed=seed)
    theta = objective.start(1)
    whole = objective.clipped_sums(theta, x, y)
    again = objective.clipped_sums(theta, x, y)
    moved = [(whole - again).norm().item() * 1e6]  # a second pass gives the same: nothing is remembered
    for at in (0, 5, 11):
        rest = [i for i in range(12) if i != at]
        moved.append((whole - objective.clipped_sums(theta, x[:, rest], y[:, rest])).norm().item())
        other = x.clone()
        other[:, at] = 30.0
        present = torch.ones(1, 12, dtype=torch.bool)
        present[:, at] = False
        hidden = objective.clipped_sums(theta, other, y, present)
        moved.append((whole - hidden).norm().item())
        moved.append((objective.clipped_sums(theta, other, y) - hidden).norm().item())
    return max(moved) / CLIP


def bounded(make):
    """Refused with a sentence, or no record moves the sum by more than C."""
    torch.manual_seed(0)
    objective = make()
    try:
        objective.clipped_sums(objective.start(1), *records((WIDTH,)))
    except InvalidInput:
        return
    assert influence(objective) <= 1 + 1e-5
    assert objective.explain(*records((WIDTH,))).startswith("one record")


@pytest.mark.parametrize("name", MIXING)
def test_networks_that_mix_samples_move_by_at_most_the_clip(name):
    bounded(lambda: NetObjective(Net(MIXING[name]), clip_norm=CLIP))


@pytest.mark.parametrize("name", MIXING_LOSSES)
def test_losses_that_mix_samples_move_by_at_most_the_clip(name):
    bounded(lambda: NetObjective(nn.Linear(WIDTH, CLASSES), MIXING_LOSSES[name], clip_norm=CLIP))


def test_mixing_in_large_batches_only_is_computed_one_by_one():
    """No alarm on smaller batches hears it; construction does not need to."""

    def late(net, h):
        return h - h.mean(0) if len(h) > 49 else h

    objective = NetObjective(Net(late), clip_norm=CLIP)
    assert influence(objective) <= 1 + 1e-5
    x, y = records((WIDTH,), batch_size=60)
    theta = objective.start(1)
    change = objective.clipped_sums(theta, x, y) - objective.clipped_sums(theta, x[:, 1:], y[:, 1:])
    assert change.norm() <= CLIP * (1 + 1e-5)


def test_a_network_that_changes_later_runs_the_judged_steps():
    """A counter outside the module: the steps that run are those that were judged."""
    calls = []

    def later(net, h):
        calls.append(1)
        return h - h.mean(0) if len(calls) > 40 else h

    objective = NetObjective(Net(later), clip_norm=CLIP)
    for seed in range(4):
        assert influence(objective, seed) <= 1 + 1e-5


DOUBLE = ("mlp", "conv2d", "layer norm", "embedding", "encoder layer", "positions", "gru", "lstm both ways",
          "lstm memory", "lstm frozen memory", "conv3d strided", "conv transpose in groups",
          "prelu by channel", "embedding bag", "tied")  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [*((name, torch.float32, 1e-6) for name in (*APART, *SINGLE)),
     *((name, torch.float64, 1e-12) for name in DOUBLE)],
)  # fmt: skip
def test_networks_that_keep_samples_apart_are_right_and_fast(name, dtype, tolerance):
    make, shape = {**APART, **SINGLE}[name]
    module = with_head(make, shape).to(dtype)
    objective = NetObjective(module, clip_norm=CLIP)
    x, y = records(shape, agents=2, batch_size=3)
    theta = torch.from_numpy(rows(objective, 2))
    assert theta.dtype == dtype
    ours = objective.clipped_sums(theta, x, y)
    explanation = objective.explain(x, y)
    assert explanation.startswith("fast" if name in APART else "one record"), explanation
    expected = reference(module, losses.cross_entropy, theta, x, y, CLIP)
    assert close(ours, expected, tolerance)
    assert all(torch.equal(a, b) for a, b in zip(module.buffers(), objective.network.buffers(), strict=True))


def dropout(fast=True):
    torch.manual_seed(0)
    kind = nn.Tanh() if fast else slow_tanh()
    return nn.Sequential(nn.Linear(WIDTH, 16), kind, nn.Dropout(0.5), nn.Linear(16, CLASSES))


@pytest.mark.parametrize("fast", [True, False])
def test_dropout_trains_and_does_not_evaluate(fast):
    module = dropout(fast).eval()
    objective = NetObjective(module, clip_norm=1e6)
    x, y = records((WIDTH,))
    theta = objective.start(1)
    assert objective.explain(x, y).startswith("fast" if fast else "one record")

    def sums(seed):
        torch.manual_seed(seed)
        return objective.clipped_sums(theta, x, y)

    assert torch.equal(sums(1), sums(1))
    assert not torch.equal(sums(1), sums(2))
    same = torch.zeros_like(x) + 1.0
    torch.manual_seed(3)
    twice = objective.clipped_sums(theta, same[:, :2], y[:, :1].expand(1, 2))
    torch.manual_seed(3)
    once = objective.clipped_sums(theta, same[:, :1], y[:, :1])
    assert (twice - 2 * once).norm() > 1e-3  # two records, two masks
    assert torch.equal(*(next(objective.outputs(theta, x[0])) for _ in range(2)))
    right = (module(x[0]).argmax(1) == y[0]).float().mean().item()
    data = AgentData(x[0], y[0], [np.arange(len(y[0]))], test=(x[0], y[0]))
    assert objective.metrics(theta, data)["accuracy"] == pytest.approx(right)
    assert not objective.module(theta[0]).training


class Rounded(torch.autograd.Function):
    """A step upwards, the identity downwards: its gradient is not that of what it computes."""

    @staticmethod
    def forward(ctx, h):
        return h.sign()

    @staticmethod
    def backward(ctx, g):
        return g


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_a_fast_form_with_other_gradients_steps_aside(p):
    """Also where dropout hides the difference from a comparison of two passes."""
    torch.manual_seed(0)
    net = nn.Sequential(Does(Rounded.apply), nn.Dropout(p), nn.Linear(8, CLASSES))
    objective = NetObjective(net, clip_norm=CLIP)
    x, y = records((WIDTH,), agents=2, batch_size=3)
    assert objective.explain(x, y).startswith("one record at a time: the fast form does not")
    theta = rows(objective, 2)
    if not p:
        expected = reference(net, losses.cross_entropy, theta, x, y, CLIP)
        assert (objective.clipped_sums(theta, x, y) - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("kind", [torch.float64, torch.uint8, torch.int32, torch.bool, torch.float16])
def test_types_of_inputs_and_labels_are_converted(kind):
    objective = NetObjective(nn.Linear(WIDTH, CLASSES), clip_norm=CLIP)
    x, y = records((WIDTH,))
    x = (x > 0).to(kind)
    labels = y.to(torch.int32 if kind.is_floating_point else torch.uint8)
    expected = objective.clipped_sums(objective.start(1), x.float(), y)
    assert torch.equal(objective.clipped_sums(objective.start(1), x, labels), expected)
    data = AgentData(x[0], labels[0], [np.arange(len(x[0]))], test=(x[0], labels[0]))
    assert objective.metrics(objective.start(1), data)["accuracy"] >= 0


@pytest.mark.parametrize("kind", [torch.uint8, torch.int32])
def test_tokens_of_any_whole_type(kind):
    objective = NetObjective(nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(16, CLASSES)))
    x, y = records(TOKENS)
    sums = (objective.clipped_sums(objective.start(1), tokens, y) for tokens in (x, x.to(kind)))
    assert torch.equal(*sums)


def test_nothing_is_decided_by_a_record():
    """Records of NaN, and a batch of one, take the same path as any."""
    objective = NetObjective(nn.Linear(WIDTH, CLASSES), clip_norm=CLIP)
    x, y = records((WIDTH,), batch_size=1)
    assert not objective.clipped_sums(objective.start(1), x * float("nan"), y).any()
    assert objective.explain(x, y).startswith("fast")
    fresh = NetObjective(objective.network, clip_norm=CLIP)
    assert torch.equal(
        fresh.clipped_sums(objective.start(1), x, y), objective.clipped_sums(objective.start(1), x, y)
    )


def test_masks_of_dropout_are_an_agents_own_whoever_is_hosted_beside_it():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))
    objective = NetObjective(net, clip_norm=CLIP)
    x, y = records(ROWS, batch_size=18)
    data = AgentData(x[0], y[0], np.split(np.arange(18), [5, 11]))
    plan = sv.algorithms.DPDSGD(
        objective, sv.graphs.ring(3), steps=2, learning_rate=0.1, clip_norm=CLIP, noise_multiplier=0.0,
        sizes=(5, 6, 7),
    )  # fmt: skip
    theta = rows(objective, 3)
    random = RunRandomness.from_rng(np.random.default_rng(3))
    together = plan.mechanism(data, [0, 1, 2], random)(theta, 1)
    slices = [plan.mechanism(data.subset([a]), [a], random)(theta[[a]], 1) for a in range(3)]
    np.testing.assert_array_equal(np.concatenate(slices), together)
    assert not np.array_equal(together, plan.mechanism(data, [0, 1, 2], random)(theta, 0))
