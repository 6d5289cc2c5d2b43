"""Networks as lists of steps."""

import pytest
import torch
from tests.objectives.nets.networks import MIXING, MIXING_LOSSES, WIDTH, Net, plain, records

from sottovoce.objectives.nets.per_sample_rules import NotPerSample
from sottovoce.objectives.nets.trace import trace

HARMLESS = ("backward",)  # what it does on the way down is no step of the list; the sums step aside for it


@pytest.mark.parametrize("name", [*MIXING, *MIXING_LOSSES])
def test_no_list_of_steps_mixes_samples(name):
    """Construction alone, without alarms: nothing that mixes becomes a list of steps."""
    torch.manual_seed(0)
    net = Net(MIXING.get(name, lambda net, h: h)).train()
    arguments = (net, MIXING_LOSSES.get(name, plain), (WIDTH,), torch.float32, (), torch.long)
    if name not in HARMLESS:
        with pytest.raises(NotPerSample):
            trace(*arguments)
        return
    x, y = (t[0] for t in records((WIDTH,)))
    run = trace(*arguments)
    other = x.clone()
    other[::3] = 30.0
    moved = (run(x, y) - run(other, y)).abs()
    assert moved[::3].all()
    assert not moved[1::3].any()
    assert not moved[2::3].any()
