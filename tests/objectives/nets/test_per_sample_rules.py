"""Operations that keep samples apart."""

import pytest
import torch
from tests.objectives.nets.networks import MIXING, MIXING_LOSSES, WIDTH, Does, Net, plain, records
from torch.nn import functional as F

from sottovoce.objectives.nets.per_sample_rules import NotPerSample
from sottovoce.objectives.nets.trace import trace

STEPS = {
    "a part of the samples": lambda h: h[:2],
    "an axis before the samples": lambda h: h[None] + 1,
    "a mask": lambda h: h[h[:, 0] > 0],
    "a norm of all": lambda h: h / h.norm(),
    "an axis counted from the end": lambda h: h.sum(-2),
    "a transpose": lambda h: h.t(),
    "half the rows": lambda h: h.view(-1, 2 * h.shape[1]),
    "a size that is computed": lambda h: h.view(h.shape[0] * 1, -1),
    "equal values that are rolled": lambda h: h * (h * 0 == 0).roll(1, 0),
    "equal values that are compared": lambda h: h * (h * 0).cummax(0).values,
    "joined samples": lambda h: torch.cat([h, h]),
    "squeezed": lambda h: h.squeeze(),
    "split samples": lambda h: h.chunk(2)[0],
    "a product of rows": lambda h: h @ h.transpose(0, 1),
    "einsum that forgets": lambda h: torch.einsum("nf,nf->f", h, h),
    "broadcast against rows": lambda h: h[:, :1] * h[:, 0],
    "padded samples": lambda h: F.pad(h, (0, 0, 1, 0)),
    "the batch's length": lambda h: h / len(h),
    "a step not listed": lambda h: torch.linalg.qr(h)[0],
    "one hot of unknown width": lambda h: F.one_hot(h.argmax(1)),
    "a constant across the samples": lambda h: h + torch.ones(8, 1).expand((8, h.shape[0])).sum(1),
    "filled with the batch's length": lambda h: h + torch.full((h.shape[0], 8), h.shape[0]),
    "a shape with the batch's length inside": lambda h: torch.zeros((1, h.shape[0])) + h,
    "written in place": lambda h: torch.zeros(8).add_(h[:, 0].mean()) + h,
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_that_do_not_keep_samples_apart_are_not_on_the_list(name):
    module = Does(STEPS[name])
    with pytest.raises(NotPerSample):
        trace(module, lambda out, y: out.exp()[:, 0], (WIDTH,), torch.float32, (), torch.float32)


@pytest.mark.parametrize(
    "spread",
    [
        lambda h: torch.arange(8.0).expand(h.shape),
        lambda h: torch.arange(8.0)[None].expand(h.size()),
        lambda h: torch.arange(8.0).expand_as(h),
        lambda h: torch.broadcast_to(torch.arange(8.0), h.shape),
        lambda h: torch.zeros(h.shape),
        lambda h: torch.full(h.shape, 2.0, dtype=h.dtype),
    ],
)
def test_constants_spread_over_the_samples_keep_them_apart(spread):
    module = Does(lambda h: h * (1 + spread(h)))
    steps = trace(module, lambda out, y: out.square().sum(1), (WIDTH,), torch.float32, (), torch.float32)
    x, y = torch.randn(5, WIDTH), torch.zeros(5)
    assert torch.equal(steps(x, y), module(x).square().sum(1))
    assert torch.allclose(steps(x[3:4], y[:1]), steps(x, y)[3:4])


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
