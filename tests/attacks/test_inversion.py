"""Gradient inversion: closed form, its edges, and the search for convolutional nets."""

import numpy as np
import pytest

from sottovoce.attacks import inversion
from sottovoce.errors import InvalidInput


def softmax_gradients(weights, bias, x, label):
    logits = x @ weights.T + bias
    p = np.exp(logits - logits.max())
    delta = p / p.sum() - np.eye(len(bias))[label]
    return np.outer(delta, x), delta


@pytest.mark.parametrize("seed", range(5))
def test_closed_form_returns_input_and_label(seed):
    rng = np.random.default_rng(seed)
    weights, bias = rng.normal(size=(10, 64)), rng.normal(size=10)
    xs, labels = rng.uniform(size=(7, 64)), rng.integers(0, 10, 7)
    stacked = [softmax_gradients(weights, bias, x, y) for x, y in zip(xs, labels, strict=True)]
    inverted = inversion.invert_linear(np.stack([g for g, _ in stacked]), np.stack([d for _, d in stacked]))
    np.testing.assert_allclose(inverted.inputs, xs, atol=1e-10)
    np.testing.assert_array_equal(inverted.labels, labels)


def test_a_batch_gives_a_weighted_mix():
    rng = np.random.default_rng(0)
    xs = rng.uniform(size=(2, 5))
    deltas = np.array([[0.5, -0.5], [-0.2, 0.2]])
    mix = inversion.invert_linear(deltas.T @ xs, deltas.sum(0)).inputs
    k = np.argmax(np.abs(deltas.sum(0)))
    np.testing.assert_allclose(mix, deltas[:, k] @ xs / deltas[:, k].sum())


def test_wrong_shapes_and_zero_gradients():
    with pytest.raises(InvalidInput, match="bias gradient of shape"):
        inversion.invert_linear(np.zeros((3, 4)), np.zeros(4))
    assert np.isnan(inversion.invert_linear(np.zeros((3, 4)), np.zeros(3)).inputs).all()
    assert inversion.psnr(np.full((1, 2), np.nan), np.zeros((1, 2)))[0] == -np.inf


def test_noise_lowers_psnr_as_its_variance_predicts():
    """x_hat = (delta x + e) / delta_k for a known delta: mean square error s^2 / delta_k^2."""
    rng = np.random.default_rng(1)
    x, delta, noise_std = rng.uniform(size=20_000), np.array([-0.8, 0.8]), 0.05
    noisy = np.outer(delta, x) + rng.normal(0, noise_std, (2, len(x)))
    score = inversion.psnr(inversion.invert_linear(noisy, delta).inputs[None], x[None])[0]
    assert abs(score - 10 * np.log10(0.8**2 / noise_std**2)) < 0.2


def test_search_recovers_an_image_from_a_convolutional_net():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 6, 3, stride=2, padding=1), torch.nn.Sigmoid(), torch.nn.Flatten(),
        torch.nn.Linear(6 * 16, 4),
    )  # fmt: skip
    image = np.zeros((1, 1, 8, 8), dtype=np.float32)
    image[0, 0, 2:6, 3:5] = 1
    loss = torch.nn.functional.cross_entropy(net(torch.as_tensor(image)), torch.tensor([2]))
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))]).numpy()
    rng = np.random.default_rng(0)
    images, distance = inversion.invert_gradients(
        net, gradient[None], (1, 8, 8), rng=rng, iterations=150, tv=1e-4
    )
    assert distance[0] < 0.01
    assert inversion.psnr(images, image)[0] > 15
    with pytest.raises(InvalidInput, match="columns"):
        inversion.invert_gradients(net, gradient[None, :-1], (1, 8, 8), rng=rng)
