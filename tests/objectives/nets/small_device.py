"""A torch device without float64, as some graphics cards are: its numbers live on the host.

It is a backend of its own (PrivateUse1), for the whole process, so tests run this file in a process:

    python -m tests.objectives.nets.small_device

It prints, as JSON, what one network gives there and on the processor.
"""

import json
import warnings

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import sottovoce as sv
from sottovoce.errors import InvalidInput
from sottovoce.objectives.nets.gradient_path import NetworkForms
from sottovoce.objectives.nets.objective import NetObjective


class OnDevice(torch.Tensor):
    """A tensor that says it is on the device, and holds its numbers on the host."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, host):
        if host.dtype == torch.float64:
            raise TypeError("this device has no float64")
        shape = {"strides": host.stride(), "dtype": host.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, host.size(), device="small:0", **shape)

    def __init__(self, host):
        self.host = host

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        return run(op, *args, **(kwargs or {}))


def run(op, *args, **kwargs):
    """Run one operation on the host; its results stay on the device unless the host is named."""
    device = kwargs.get("device")
    if device is not None:
        kwargs["device"] = torch.device("cpu")
    host_args, host_kwargs = pytree.tree_map(
        lambda leaf: leaf.host if isinstance(leaf, OnDevice) else leaf, (args, kwargs)
    )
    out = op(*host_args, **host_kwargs)
    name = op._schema.name
    if name.endswith("_"):
        return args[0]
    if "out" in kwargs:
        return kwargs["out"]
    if name == "aten::_local_scalar_dense" or (device is not None and torch.device(device).type == "cpu"):
        return out
    return pytree.tree_map(lambda leaf: OnDevice(leaf) if torch.is_tensor(leaf) else leaf, out)


def without_maps(*_):
    """`torch.func` does not work with a backend written in Python."""
    raise RuntimeError("no vmap")


def main():
    _setup_privateuseone_for_python_backend("small")
    library = torch.library.Library("_", "IMPL")
    library.fallback(run, "PrivateUse1")
    NetworkForms.mapped_gradients = without_maps
    warnings.simplefilter("ignore")
    answers = {}
    try:
        torch.zeros(1, device="small", dtype=torch.float64)
    except TypeError as error:
        answers["float64"] = str(error)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Mish(), nn.Flatten(), nn.Linear(32, 3))
    x, y = torch.randn(2, 6, 1, 6, 6), torch.randint(0, 3, (2, 6))
    x[0, 0] = torch.nan
    for clip_norm in (0.7, float("inf")):
        sums = []
        for device in ("cpu", "small"):
            objective = NetObjective(net, clip_norm=clip_norm, device=device)
            sums.append(objective.clipped_sums(objective.start(2), x, y))
        answers[f"difference {clip_norm}"] = float((sums[0] - sums[1]).norm() / sums[0].norm())
    answers["explain"] = objective.explain(x, y)
    try:
        NetObjective(nn.Linear(2, 2).double(), device="small")
    except InvalidInput as error:
        answers["double"] = str(error)
    points = np.random.default_rng(0).uniform(-1, 1, (200, 2))
    labels = (points[:, 0] > points[:, 1]).astype(int)
    for device in ("cpu", "small"):
        torch.manual_seed(0)
        training = sv.TrainingOptions(steps=10, learning_rate=1.0, device=device)
        fitted = sv.fit(
            nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)),
            (points, labels),
            network="ring:4",
            budget=sv.Budget(3.0, 1e-5),
            training=training,
            test=(points, labels),
            rng=np.random.default_rng(0),
        )
        answers[f"loss {device}"] = fitted.result.metrics["loss"]
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
