"""Clipped sums against per-sample autograd, layer by layer and on random networks."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sottovoce.errors import InvalidInput
from sottovoce.objectives.clipping import clip_weights
from sottovoce.objectives.nets.float64_sums import add_weighted_rows, weighted_products
from sottovoce.objectives.nets.objective import NetObjective

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


class Slow(nn.Module):
    """An activation with a parameter of its own, which has no fast form."""

    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.25))

    def forward(self, h):
        return torch.where(h > 0, h, self.slope * h)


def reference(objective, theta, x, y, clip_norm):
    """One backward pass per sample; the slow truth."""
    sums = torch.zeros(x.shape[0], objective.n_params)
    for a in range(x.shape[0]):
        module = objective.module(theta[a])
        for i in range(x.shape[1]):
            module.zero_grad()
            objective.loss(module(x[a, i : i + 1]), y[a, i : i + 1]).sum().backward()
            g = torch.cat([p.grad.flatten() for p in module.parameters()])
            sums[a] += g * min(1.0, clip_norm / g.norm().item())
    return sums


def close(ours, theirs, relative=1e-5):
    return (ours - theirs).norm().item() <= relative * theirs.norm().item()


class Twice(nn.Module):
    """Calls the same layers twice: gradients of one sample add up before the norm."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


class Residual(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.layers(x)


LAYERS = {
    "linear": (nn.Linear(6, 5), (6,)),
    "linear without bias": (nn.Linear(6, 5, bias=False), (6,)),
    "linear over positions, ghost": (nn.Linear(40, 30), (3, 40)),
    "linear over positions, formed": (nn.Linear(3, 2), (20, 3)),
    "linear twice": (Twice(nn.Linear(6, 6)), (6,)),
    "conv2d formed": (nn.Conv2d(1, 3, 5), (1, 12, 12)),
    "conv2d ghost": (nn.Conv2d(16, 24, 3, padding=1), (16, 3, 3)),
    "conv2d options": (nn.Conv2d(2, 4, 3, stride=2, padding=(1, 0), dilation=2, bias=False), (2, 11, 12)),
    "conv2d dilated ghost": (nn.Conv2d(16, 24, 3, padding=2, dilation=2), (16, 3, 3)),
    "conv2d groups": (nn.Conv2d(4, 6, 3, groups=2), (4, 6, 6)),
    "conv2d groups ghost": (nn.Conv2d(32, 48, 3, groups=2, padding=1), (32, 2, 2)),
    "conv2d twice": (Twice(nn.Conv2d(2, 2, 3, padding=1)), (2, 5, 5)),
    "conv2d twice ghost": (Twice(nn.Conv2d(16, 16, 3, padding=1)), (16, 2, 2)),
    "conv1d": (nn.Conv1d(3, 4, 3, stride=2, padding=1), (3, 9)),
    "group norm": (nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)), (2, 6, 6)),
    "group norm twice": (Twice(nn.GroupNorm(2, 4)), (4, 3)),
    "layer norm": (nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6)), (3, 4)),
    "layer norm of images": (nn.LayerNorm([2, 5]), (2, 5)),
    "embedding": (nn.Embedding(7, 4), None),
    "embedding with padding": (nn.Embedding(7, 4, padding_idx=2), None),
    "no twin": (nn.Sequential(nn.Linear(6, 4), Slow()), (6,)),
    "residual": (Residual(nn.Linear(6, 6), nn.Tanh()), (6,)),
}


@pytest.mark.parametrize("clip_norm", [0.05, 0.5, 1e6], ids=["all clipped", "some", "none"])
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_equals_per_sample_autograd(name, clip_norm):
    layer, shape = LAYERS[name]
    torch.manual_seed(1)
    agents, batch_size = 3, 5
    x = (
        torch.randint(0, 7, (agents, batch_size, 4))
        if shape is None
        else torch.randn(agents, batch_size, *shape)
    )
    head = nn.Sequential(layer, nn.Flatten())
    width = head(x[0]).shape[1]
    net = nn.Sequential(head, nn.Tanh(), nn.Linear(width, 3))
    objective = NetObjective(net, clip_norm=clip_norm)
    assert objective.uses_fallback == (name == "no twin")
    theta = objective.start(agents) + 0.1 * np.random.default_rng(0).normal(
        size=(agents, objective.n_params)
    ).astype(np.float32)
    y = torch.randint(0, 3, (agents, batch_size))
    assert close(objective.clipped_sums(theta, x, y), reference(objective, theta, x, y, clip_norm))
    assert objective.uses_fallback == (name == "no twin")  # the fast form did not step aside


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_random_networks(data):
    """Any chain of supported layers."""
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    channels = data.draw(st.integers(1, 3))
    layers, c = [], channels
    for _ in range(data.draw(st.integers(1, 3))):
        out = 2 * data.draw(st.integers(1, 4))
        layers.append(
            nn.Conv2d(c, out, data.draw(st.sampled_from([1, 3])), padding=1, bias=data.draw(st.booleans()))
        )
        layers.append(
            data.draw(
                st.sampled_from(
                    [nn.Mish(), nn.Tanh(), nn.GroupNorm(2, out), Residual(nn.Conv2d(out, out, 1))]
                )
            )
        )
        c = out
    layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LayerNorm(4 * c), nn.Linear(4 * c, 3)]
    objective = NetObjective(nn.Sequential(*layers), clip_norm=data.draw(st.sampled_from([0.1, 1.0, 100.0])))
    x, y = torch.randn(2, 4, channels, 6, 6), torch.randint(0, 3, (2, 4))
    theta = objective.random_init(np.random.default_rng(data.draw(st.integers(0, 99))), agents=2)
    expected = reference(objective, theta, x, y, objective.clip_norm)
    assert close(objective.clipped_sums(theta, x, y), expected, 2e-5)


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
    objective.physical_batch = 4
    assert close(objective.clipped_sums(theta, x, y), whole, 1e-6)


def test_agents_permute():
    objective, x, y = small()
    theta = objective.random_init(np.random.default_rng(0), 2)
    theta[1] *= 1.5
    sums = objective.clipped_sums(theta, x, y)
    swapped = objective.clipped_sums(theta[::-1].copy(), x.flip(0), y.flip(0))
    assert close(swapped.flip(0), sums, 1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38, -1e30])
@pytest.mark.parametrize("fallback", [False, True])
def test_one_record_moves_the_sum_by_at_most_the_clip(value, fallback):
    """Influence of one record, whatever it holds; the others' contribution does not move."""
    objective, x, y = small()
    if fallback:
        net = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), Slow(), nn.Linear(4, 3))
        objective = NetObjective(net, clip_norm=0.7)
        assert objective.uses_fallback
    theta = objective.start(2)
    without = objective.clipped_sums(theta, x[:, 1:], y[:, 1:])
    x[0, 0, 0, 2, 3] = value
    with_it = objective.clipped_sums(theta, x, y)
    assert torch.isfinite(with_it).all()
    assert (with_it - without)[0].norm() <= 0.7 * (1 + 1e-5)
    if not np.isfinite(value):
        assert close(with_it[0], without[0], 1e-6)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.floats(1e-3, 1e4))
def test_influence_on_random_batches(seed, scale):
    objective, _, _ = small()
    g = torch.Generator().manual_seed(seed)
    x, y = scale * torch.randn(1, 5, 1, 6, 6, generator=g), torch.randint(0, 3, (1, 5), generator=g)
    theta = objective.random_init(np.random.default_rng(seed))
    change = objective.clipped_sums(theta, x, y) - objective.clipped_sums(theta, x[:, :4], y[:, :4])
    assert change.norm() <= 0.7 * (1 + 1e-4)


def test_empty_lot_gives_zero():
    objective, x, y = small()
    assert not objective.clipped_sums(objective.start(2), x[:, :0], y[:, :0]).any()
    none = torch.zeros(2, 6, dtype=torch.bool)
    assert not objective.clipped_sums(objective.start(2), x, y, none).any()


def test_layers_that_mix_samples_are_refused_by_name():
    with pytest.raises(InvalidInput, match=r"'1' \(BatchNorm2d\).*GroupNorm\(4, 4\)"):
        NetObjective(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)))
    with pytest.raises(InvalidInput, match="running statistics"):
        NetObjective(nn.Sequential(nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, track_running_stats=True)))
    with pytest.raises(InvalidInput, match="max_norm"):
        NetObjective(nn.Embedding(3, 2, max_norm=1.0))


def test_mixing_without_a_layer_is_refused_by_the_probe():
    class Centered(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return self.linear(x - x.mean(0))

    objective = NetObjective(Centered())
    with pytest.raises(InvalidInput, match="other samples of the batch"):
        objective.clipped_sums(objective.start(1), torch.randn(1, 4, 4), torch.zeros(1, 4, dtype=torch.long))


def test_tied_weights_fall_back_and_are_right():
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    net[2].weight = net[0].weight
    objective = NetObjective(net, clip_norm=0.1)
    assert objective.uses_fallback
    x, y = torch.randn(1, 5, 4), torch.randint(0, 4, (1, 5))
    theta = objective.start(1)
    assert close(objective.clipped_sums(theta, x, y), reference(objective, theta, x, y, 0.1))


def test_bad_shapes_and_losses_are_refused():
    objective, x, y = small()
    with pytest.raises(InvalidInput, match="one row per batch"):
        objective.clipped_sums(objective.start(1), x, y)
    averaged = NetObjective(nn.Linear(2, 2), lambda out, y: out.mean())
    with pytest.raises(InvalidInput, match="reduction='none'"):
        averaged.clipped_sums(averaged.start(1), torch.randn(1, 3, 2), torch.zeros(1, 3))
    with pytest.raises(InvalidInput, match="cross_entropy"):
        NetObjective(nn.Linear(2, 2), "hinge")


def test_clip_weights_at_the_edges():
    weights = clip_weights(torch.tensor([0.0, 4.0, float("inf")]), float("inf"))
    assert weights.tolist() == [1.0, 1.0, 0.0]


def cancelling(width, length, seed):
    """Two positions whose terms nearly cancel: a gradient far shorter than what it is added up from."""
    g = torch.Generator().manual_seed(seed)
    x, shift, out = (torch.nn.functional.normalize(torch.randn(width, generator=g), dim=0) for _ in range(3))
    inputs = torch.stack([x * length, x * length + shift * length * 3e-4 * (1 + seed % 5) / 5])
    return inputs[None, None], torch.stack([-out, out])[None, None]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("width", [2, 40])  # the gradient itself, and its ghost norm
@pytest.mark.parametrize("length", [1e3, 1e5, 1e9])
def test_a_record_that_cancels_itself_is_clipped_all_the_same(width, length, bias):
    """In float32 the ghost norm of such a record is noise: taken at its word it let 3000 C through."""
    objective = NetObjective(nn.Linear(width, width, bias=bias), "squared_error", clip_norm=1.0)
    theta = np.zeros((1, objective.n_params), np.float32)
    for seed in range(20):
        inputs, targets = cancelling(width, length, seed)
        assert objective.clipped_sums(theta, inputs, targets).norm().item() <= 1 + 1e-5
    assert not objective.uses_fallback


def test_a_record_that_cancels_itself_to_the_last_digit_is_clipped_all_the_same():
    """Two positions that differ in the last digit of one number: float64 too loses their ghost norm."""
    objective = NetObjective(nn.Linear(40, 40, bias=False), "squared_error", clip_norm=1.0)
    theta = np.zeros((1, objective.n_params), np.float32)
    for seed in range(20):
        inputs, targets = cancelling(40, 1e9, seed)
        inputs[..., 1, :] = inputs[..., 0, :]
        inputs[..., 1, 0] = torch.nextafter(inputs[..., 0, 0], torch.tensor(torch.inf))
        assert objective.clipped_sums(theta, inputs, targets).norm().item() <= 1 + 1e-5
    assert not objective.uses_fallback


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


class OneByOne(nn.Module):
    """A weight outside any layer: no fast form."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return (x * self.weight).sum(1, keepdim=True)


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
    "one by one": (OneByOne(), (4,), 10_000),
}


@pytest.mark.parametrize("name", LARGE)
def test_one_record_of_a_large_lot_moves_the_sum_by_the_clip(name):
    """All gradients point one way, so float32 sums are large and coarse: they moved by .997 to 1.003 C."""
    net, shape, size = LARGE[name]
    torch.manual_seed(0)
    objective = NetObjective(net, "squared_error", clip_norm=1.0)
    assert objective.uses_fallback == (name == "one by one")
    x = (
        torch.randint(0, 3, (1, size, *shape))
        if name == "embedding"
        else 1 + 0.2 * torch.randn(1, size, *shape)
    )
    y = torch.full((1, size, 1), -9.0)
    theta = objective.start(1)
    moved = objective.clipped_sums(theta, x, y) - objective.clipped_sums(theta, x[:, 1:], y[:, 1:])
    assert 1 - 1e-5 <= moved.norm() <= 1 + 1e-9
    assert objective.uses_fallback == (name == "one by one")


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


@pytest.mark.parametrize("width", [3, 40, 520])  # tiles, pieces, and pieces of large sums
def test_weighted_products_and_rows_are_sums(width):
    rng = np.random.default_rng(0)
    weights, g, x = (
        torch.as_tensor(rng.normal(size=(2, 300, *more)), dtype=torch.float32)
        for more in ((), (width,), (520,))
    )
    expected = np.einsum("ar,arp,ard->apd", *(t.double().numpy() for t in (weights, g, x)), optimize=True)
    products = weighted_products(weights, g, x)
    assert np.allclose(products, expected, rtol=1e-12, atol=1e-11)
    assert weighted_products(weights, g, x, products) is products
    assert np.allclose(products, 2 * expected, rtol=1e-12, atol=1e-11)
    sums = torch.ones(2, width + 5, dtype=torch.float64)
    add_weighted_rows(sums, 3, weights, g)
    assert np.allclose(sums[:, 3:-2], 1 + np.einsum("ar,arp->ap", weights.double(), g.double()))
    assert (sums[:, :3] == 1).all()
    assert (sums[:, -2:] == 1).all()


def test_asking_how_finds_the_fast_form_too():
    """Outside `clipped_sums` activations ask for gradients, which numpy refuses unless they are detached."""
    objective = NetObjective(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    explanation = objective.explain(torch.zeros(1, 5, 3), torch.zeros(1, 5, dtype=torch.long))
    assert explanation == "fast: all records at once"
