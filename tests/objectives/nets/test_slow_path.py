"""A network that is computed one record at a time says so once, with layer, factor and cure."""

import re
import warnings

import numpy as np
import pytest
import torch
from tests.estimators.cases import BUDGET, circles, fit, mlp, rng
from tests.objectives.nets.networks import WIDTH, Does, Network, half_frozen, tied, twice
from torch import nn

from sottovoce.objectives.nets.slow_path import SlowPath

X, Y = circles(80)
SETTINGS = {"network": "ring:4", "steps": 3, "rng": rng(), **BUDGET}


def around(layer):
    return nn.Sequential(nn.Linear(2, WIDTH), layer, nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("net", "cause", "cure"),
    [
        (
            Network(lambda net, x: net.body(x + net.token), token=nn.Parameter(torch.zeros(2)), body=mlp()),
            r"the network itself \(Network\)|parameter 'token'",
            r"nn\.Embedding\(1, width\)",
        ),
        (tied(2), "layers '0' and '2' share a parameter", "give each layer its own"),
        (around(half_frozen()), r"layer '1' \(Linear\) trains a part", "freeze all of them"),
        (
            around(twice(nn.Bilinear(WIDTH, WIDTH, 4))),
            r"layer '1.layer' \(Bilinear\) has no fast form",
            "use linear, convolutional",
        ),
        (around(Does(lambda h: torch.stack([*h]), WIDTH, 4)), "", "act on each sample alone"),
    ],
)
def test_cause_factor_and_cure_are_named(net, cause, cure):
    with pytest.warns(SlowPath, match=cause) as caught:
        fit(net, (X, Y), **SETTINGS)
    [warning] = caught
    assert re.search(cure, str(warning.message))
    factor = int(re.search(r"about (\d+) times", str(warning.message)).group(1))
    assert 1 <= factor < 10_000


def test_fast_networks_say_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(mlp(), (X, Y), **SETTINGS)


def test_records_do_not_change_what_is_said_and_random_states_stay():
    """The choice and its announcement depend on shapes alone; torch's generator is not moved."""
    state = torch.get_rng_state()
    said = []
    for inputs in (X, np.zeros_like(X)):
        with pytest.warns(SlowPath) as caught:
            fit(tied(2), (inputs, Y), **SETTINGS)
        said.append(str(caught[0].message).partition(", about")[0])
        torch.set_rng_state(state)
    assert said[0] == said[1]
