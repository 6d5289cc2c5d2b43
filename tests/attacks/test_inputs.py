"""From a descent to the records: gradients of the victims, pictures that come back."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.attacks.inputs import (
    attack_network,
    attack_softmax,
    draw_pictures,
    module_gradients,
    softmax_gradients,
)
from sottovoce.errors import InvalidInput


def test_gradients_of_the_victims_are_those_of_the_objectives():
    torch = pytest.importorskip("torch")
    from sottovoce.objectives.nets.objective import NetObjective

    rng, n, dim, classes = np.random.default_rng(0), 4, 5, 3
    x, y = rng.normal(size=(n, dim)), rng.integers(0, classes, n)
    theta = rng.normal(size=(n, classes * (dim + 1)))
    data = sv.data.Shards(np.column_stack([x, np.ones(n)]), y.astype(float), np.arange(n + 1))
    each, places = [np.array([0])] * n, list(range(n))
    expected = sv.objectives.Softmax(classes).query(data).sums(theta, each, places, np.inf)
    np.testing.assert_allclose(softmax_gradients(x, y, classes)(theta, 0), expected, atol=1e-12)

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(dim, 4), torch.nn.Tanh(), torch.nn.Linear(4, classes))
    gradients, start = module_gradients(net, x, y)
    rows = np.tile(start, (n, 1)) + 0.1 * rng.normal(size=(n, len(start)))
    tensors = (torch.as_tensor(a[:, None]) for a in (rows.astype(np.float32), x.astype(np.float32), y))
    thetas, inputs, targets = tensors
    sums = NetObjective(net, clip_norm=1e9).clipped_sums(thetas[:, 0], inputs, targets)
    np.testing.assert_allclose(gradients(rows, 0), np.asarray(sums), atol=1e-5)


def test_softmax_regression_gives_every_picture_away_unless_noise_hides_it():
    rng = np.random.default_rng(0)
    images, labels = draw_pictures("digits", 6, rng)
    options = {"steps": 6, "learning_rate": 1e-6, "classes": 10}
    attack = attack_softmax(sv.graphs.path(6), 0, images, labels, **options)
    assert attack.recovered == (1, 2, 3, 4, 5)
    assert attack.success_rate == 1
    assert attack.labels[1:].tolist() == labels[1:].tolist()
    result = attack.to_dict()
    assert result["count"] == 5
    assert result["psnr"][0] is None
    noisy = attack_softmax(sv.graphs.path(6), 0, images, labels, rng=rng, noise_std=1.0, **options)
    assert noisy.success_rate < 1


def test_mixtures_of_different_classes_give_pictures_away():
    """A leaf of a star knows only the sum of the other leaves' gradients; classes separate it."""
    images, labels = draw_pictures("digits", 5, np.random.default_rng(1))
    labels = np.arange(5)
    attack = attack_softmax(sv.graphs.star(5), 1, images, labels, steps=4, learning_rate=1e-6, classes=10)
    assert attack.attack.identifiable == (0,)
    assert set(attack.above_grey) & {2, 3, 4}
    assert attack.to_dict()["above_grey"] == list(attack.above_grey)


def test_a_network_is_attacked_by_search():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    images, labels = draw_pictures("digits", 3, rng)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    options = {"steps": 3, "learning_rate": 1e-4, "rng": rng, "iterations": 40, "tv": 0.0}
    attack = attack_network(sv.graphs.path(3), 0, images, labels, net, **options)
    assert attack.labels[1:].tolist() == labels[1:].tolist()
    assert np.isnan(attack.inputs[0]).all()
    assert np.isfinite(attack.inputs[1:]).all()


def test_invalid_records_are_refused():
    with pytest.raises(InvalidInput, match="one picture and one label per node"):
        attack_softmax(sv.graphs.path(3), 0, np.zeros((2, 4)), np.zeros(2), steps=2, learning_rate=0.1)
    with pytest.raises(InvalidInput, match="digits, mnist or cifar10"):
        draw_pictures("faces", 3, np.random.default_rng(0))
