"""Learning rates and optimizers, compared with torch."""

import numpy as np
import pytest
import torch
from torch import nn

from sottovoce.algorithms import Optimizer, Rate
from sottovoce.errors import InvalidInput

MADE = {
    "sgd": (torch.optim.SGD, {}),
    "sgd, decay": (torch.optim.SGD, {"weight_decay": 0.3}),
    "momentum": (torch.optim.SGD, {"momentum": 0.7}),
    "momentum, decay": (torch.optim.SGD, {"momentum": 0.7, "weight_decay": 0.3}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.7, "nesterov": True, "weight_decay": 0.1}),
    "adam": (torch.optim.Adam, {}),
    "adam, decay": (torch.optim.Adam, {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.3}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.3}),
}
RATES = (0.5, 0.2, 0.4, 0.1)


def theirs(kind, start, gradients, groups=None):
    """Torch's path, on one tensor or on groups (slice, options)."""
    make, options = MADE[kind]
    parts = [torch.tensor(start[:, a:b], requires_grad=True) for a, b, _ in groups or [(0, None, {})]]
    torch_groups = [
        {"params": [part], **more}
        for part, (_, _, more) in zip(parts, groups or [(0, None, {})], strict=True)
    ]
    optimizer = make(torch_groups, lr=RATES[0], **options)
    factors = [group["lr"] / RATES[0] for group in optimizer.param_groups]
    for rate, gradient in zip(RATES, gradients, strict=True):
        for group, factor in zip(optimizer.param_groups, factors, strict=True):
            group["lr"] = rate * factor
        for part, (a, b, _) in zip(parts, groups or [(0, None, {})], strict=True):
            part.grad = torch.tensor(gradient[:, a:b])
        optimizer.step()
    return np.concatenate([part.detach().numpy() for part in parts], axis=1)


def ours(optimizer, start, gradients):
    theta, state = start, optimizer.init(start)
    for rate, gradient in zip(RATES, gradients, strict=True):
        step, state = optimizer.step(state, gradient, rate, theta)
        theta = theta - step
    return theta


def numbers():
    rng = np.random.default_rng(0)
    return rng.normal(size=(2, 5)), rng.normal(size=(len(RATES), 2, 5))


@pytest.mark.parametrize("kind", MADE)
def test_optimizer_steps_equal_torch_on_one_row(kind):
    start, gradients = numbers()
    name = MADE[kind][0].__name__
    actual = ours(Optimizer.from_value({"name": name, **MADE[kind][1]}), start, gradients)
    np.testing.assert_allclose(actual, theirs(kind, start, gradients), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["sgd, decay", "momentum, decay", "adam, decay", "adamw"])
def test_parameter_groups_have_own_rate_and_decay(kind):
    start, gradients = numbers()
    options = MADE[kind][1]
    groups = [
        (0, 2, {}),
        (2, 3, {"lr": 0.25 * RATES[0], "weight_decay": 0.0}),
        (3, 5, {"lr": 2.0 * RATES[0], "weight_decay": 0.9}),
    ]
    built = Optimizer.from_value({"name": MADE[kind][0].__name__, **options})
    parted = Optimizer(
        built.kind, built.beta, built.beta2, built.epsilon, built.weight_decay,
        groups=((2, 3, 0.25, 0.0), (3, 5, 2.0, 0.9)),
    )  # fmt: skip
    assert not parted.is_plain_sgd
    np.testing.assert_allclose(
        ours(parted, start, gradients), theirs(kind, start, gradients, groups), rtol=0, atol=1e-12
    )


def test_torch_option_names_are_translated():
    assert Optimizer.from_value("Adam") == Optimizer("adam") == Optimizer.from_value({"kind": "adam"})
    assert (
        Optimizer.from_value({"name": "SGD"})
        == Optimizer.from_value({"name": "sgd", "momentum": 0.0})
        == Optimizer()
    )
    assert Optimizer.from_value({"name": "momentum"}) == Optimizer("momentum", beta=0.9)
    assert Optimizer.from_value({"name": "SGD", "momentum": 0.5, "nesterov": True}) == Optimizer(
        "momentum", beta=0.5, nesterov=True
    )
    adamw = Optimizer("adamw", weight_decay=0.1)
    assert Optimizer.from_value(adamw) is adamw
    assert Optimizer().is_plain_sgd
    assert not Optimizer("momentum").is_plain_sgd
    assert not Optimizer(weight_decay=0.1).is_plain_sgd


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"kind": "lion"}, "sgd, momentum, adam or adamw"),
        ({"kind": "momentum", "beta": 1.0}, "beta must lie"),
        ({"kind": "momentum", "beta": -0.1}, "beta must lie"),
        ({"kind": "adam", "beta2": 1.0}, "beta2 must lie"),
        ({"kind": "adam", "beta2": -0.5}, "beta2 must lie"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"kind": "adam", "nesterov": True}, "nesterov goes with momentum"),
        ({"name": "SGD", "dampening": 0.5}, "'dampening' is not known; sgd takes momentum, nesterov"),
        ({"name": "Adam", "amsgrad": True}, "'amsgrad' is not known; adam takes betas, eps"),
    ],
)
def test_invalid_optimizers_are_refused(value, message):
    with pytest.raises(InvalidInput, match=message):
        Optimizer.from_value(value)


@pytest.mark.parametrize(
    "settings", [(0.0, None), (-1.0, None), (0.1, 0.0), (0.1, 0.01, "square"), (0.1, None, "linear", 1.0)]
)
def test_invalid_rates_are_refused(settings):
    with pytest.raises(InvalidInput):
        Rate(*settings)
    assert Rate.from_value((0.1, 0.01)) == Rate.from_value({"start": 0.1, "end": 0.01}) == Rate(0.1, 0.01)


@pytest.mark.parametrize(
    ("shape", "middle"), [("geometric", 0.2), ("linear", 0.25), ("cosine", 0.25), ("constant", 0.4)]
)
def test_learning_rate_goes_from_its_first_to_its_last_value(shape, middle):
    rate = Rate(0.4, 0.1, shape)
    assert rate(0, 5) == 0.4
    assert rate(2, 5) == pytest.approx(middle)
    assert rate(4, 5) == pytest.approx(0.4 if shape == "constant" else 0.1)
    quarter = {"geometric": 0.4 * 0.25**0.25, "linear": 0.325, "cosine": 0.1 + 0.15 * (1 + 0.5**0.5)}
    assert rate(1, 5) == pytest.approx(quarter.get(shape, 0.4))
    assert Rate(0.4, 0.1, shape)(0, 1) == 0.4


def test_warm_up_and_cosine_rates_are_those_of_torch():
    rate = Rate(0.5, 0.1, "cosine", warmup=0.25)
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    rising = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / 5, 1.0, total_iters=4)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 14, eta_min=0.1)
    both = torch.optim.lr_scheduler.SequentialLR(optimizer, [rising, falling], [5])
    expected = []
    for _ in range(20):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        both.step()
    assert np.allclose([rate(k, 20) for k in range(20)], expected, atol=1e-12)
