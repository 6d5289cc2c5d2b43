"""Training options."""

import copy

import numpy as np
import pytest
import torch
from tests.estimators.cases import circles, fit, mlp, rng
from torch import nn


def _body_and_head(parameters):
    *body, weight, bias = parameters
    return [
        {"params": body, "lr": 0.01, "weight_decay": 0.0},
        {"params": [weight, bias], "weight_decay": 0.3},
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.3),
        lambda p: torch.optim.SGD(p, lr=0.3, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.05),
        lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.95), weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.02, eps=1e-6, weight_decay=0.2),
        lambda p: torch.optim.AdamW(_body_and_head(p), lr=0.02, weight_decay=0.2),
        lambda p: torch.optim.SGD(_body_and_head(p), lr=0.2, momentum=0.5),
    ],
)
def test_without_noise_it_is_torchs_own_training(make):
    net = mlp().double()
    X, y = circles(60)
    fitted = fit(net, (X, y), network="ring:3", noise_multiplier=0.0, clip_norm=1e6, steps=7,
                    optimizer=make(net.parameters()), rng=rng())  # fmt: skip
    twin = copy.deepcopy(net)
    optimizer = make(twin.parameters())
    for _ in range(7):
        optimizer.zero_grad()
        nn.functional.cross_entropy(twin(torch.as_tensor(X)), torch.as_tensor(y)).backward()
        optimizer.step()
    for a, b in zip(fitted.model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)
    assert fitted.privacy.epsilon(1e-5) == np.inf
