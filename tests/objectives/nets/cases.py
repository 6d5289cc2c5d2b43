"""Small networks and their clipped sums by autograd."""

import torch
from torch import nn


class SlowTanh(nn.Module):
    """An activation with a parameter of its own, which has no fast form."""

    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.25))

    def forward(self, h):
        return torch.where(h > 0, h, self.slope * h)


def sums_by_autograd(objective, theta, x, y, clip_norm):
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
