r"""The computation of a network and its loss as a list of steps, each known to keep samples apart.

The network runs once on proxies (`torch.fx.Proxy`) that know the shape and type of a sample.
`per_sample_rules` judges every operation on them, and each becomes a step; every layer of torch is one step.
Training runs the list, not the network's Python code, so no step runs that was not judged: no branch on a
value, no buffer written, no counter. The trace uses shapes, types and the module, which are public, and no
record.
"""

from __future__ import annotations

import copy
import operator
import random
from collections.abc import Callable
from itertools import starmap
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from sottovoce.objectives.nets.losses import sharing_copy
from sottovoce.objectives.nets.per_sample_rules import (
    MODULES,
    RANDOM,
    RANDOM_MODULES,
    Batch,
    Count,
    NotPerSample,
    Weight,
    judge_function,
    judge_method,
    judge_module,
)


class Trace:
    """The list of steps, ready to run on ``(inputs, targets)`` of a whole batch.

    ``random`` says whether a step draws random numbers, ``layers`` which layers are called.
    """

    def __init__(self, root: nn.Module, graph: fx.Graph) -> None:
        graph.lint()
        self.layers = [
            str(node.target).removeprefix("net.") for node in graph.nodes if node.op == "call_module"
        ]
        self.random = any(_is_random(root, node) for node in graph.nodes)
        self._run: Callable[..., Tensor] = fx.GraphModule(root, graph)

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample, (samples,)."""
        return self._run(inputs, targets)


def _is_random(root: nn.Module, node: fx.Node) -> bool:
    """Whether a step draws random numbers in the mode the network was in."""
    if node.op == "call_module":
        layer = root.get_submodule(str(node.target))
        return layer.training and isinstance(layer, RANDOM_MODULES)
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name == "scaled_dot_product_attention":
        return bool(node.kwargs.get("dropout_p", node.args[4] if len(node.args) > 4 else 0.0))
    return name in RANDOM and node.kwargs.get("training") is not False


def trace(
    net: nn.Module,
    loss: Callable[..., Any],
    inputs: tuple[int, ...],
    inputs_type: torch.dtype,
    targets: tuple[int, ...],
    targets_type: torch.dtype,
    stacked: nn.Module | None = None,
) -> Trace:
    """Return the steps of ``loss(net(x), y)`` for samples of the given shapes, in the mode ``net`` is in.

    The network is left as it is. The steps call the layers of ``stacked``, which have the same names, instead
    of its own; ``inputs`` and ``targets`` are shapes of one sample.

    Raises
    ------
    NotPerSample : some step is not on the list, or the network cannot be written as a list of steps.

    Guarantees
    ----------
    Row i of what the trace returns depends on row i of its arguments, on weights and on random numbers drawn
    for this row; on no other row and not on the number of rows.
    """
    root, running = nn.Module(), nn.Module()
    root.net, running.net = net, net if stacked is None else stacked
    if isinstance(loss, nn.Module):
        root.loss = running.loss = loss
    tracer = _Tracer(root, running)
    arguments = tuple(Batch.of(*of, tracer.device) for of in ((inputs, inputs_type), (targets, targets_type)))
    state = _random_state()
    try:
        with torch.enable_grad():
            losses = tracer.run(loss, arguments)
    except NotPerSample:
        raise
    except Exception as reason:  # any error of the network's code on proxies: it is not a list of steps
        first = (str(reason).strip() or type(reason).__name__).splitlines()[0]
        raise NotPerSample(f"the network or loss cannot be written as fixed steps ({first})") from reason
    finally:
        drew = not _equal_states(state, _random_state())
        torch.set_rng_state(torch.from_numpy(state[0]))
        random.setstate(state[1])
        np.random.set_state(state[2])  # noqa: NPY002
    if drew:
        raise NotPerSample("the network or loss draws random numbers that belong to no sample")
    if not isinstance(losses, _Proxy) or not isinstance(losses.node.meta["value"], Batch):
        raise NotPerSample("the loss does not depend on the samples")
    if losses.node.meta["value"].one.ndim != 1:
        raise NotPerSample("the loss gives more than one number per sample")
    tracer.graph.output(losses.node)
    return Trace(running, tracer.graph)


def _random_state() -> tuple[np.ndarray, Any, Any]:
    """Of every generator a network may draw from on its own."""
    return torch.get_rng_state().numpy(), random.getstate(), np.random.get_state()  # noqa: NPY002


def _equal_states(one: tuple[np.ndarray, Any, Any], other: tuple[np.ndarray, Any, Any]) -> bool:
    of_numpy = zip(one[2], other[2], strict=True)
    return np.array_equal(one[0], other[0]) and one[1] == other[1] and all(starmap(np.array_equal, of_numpy))


class _Proxy(fx.Proxy):
    """A stand-in that answers questions about shape and type, and gives the batch's size as a stand-in."""

    tracer: Any

    def __getattr__(self, name: str) -> Any:
        value = self.node.meta.get("value")
        if isinstance(value, Weight):
            if name in _OF_A_WEIGHT:
                return getattr(self.tracer.parameters[value.name], name)
            raise NotPerSample(f"parameter '{value.name}' is used outside its layer")
        if isinstance(value, Batch):
            if name in ("shape", "size"):
                return self._size() if name == "shape" else self._size
            if name in _QUESTIONS:
                return getattr(value.one, name)
            if name == "device":
                return self.tracer.device
            if name == "mT":
                return self.transpose(-1, -2)
        return fx.proxy.Attribute(self, name)

    def _size(self, dim: int | None = None) -> Any:
        """Return the shape of a batch, whose first number is a stand-in, or one number of it."""
        batch_size = self.tracer.create_proxy("call_method", "size", (self, 0), {})
        shape = (batch_size, *self.node.meta["value"].one.shape[1:])
        return shape if dim is None else shape[dim]

    def __len__(self) -> int:
        raise NotPerSample("the network or loss asks for the size of the batch")

    def __iter__(self) -> Any:
        raise NotPerSample("the network or loss goes through the samples one after the other")

    def __bool__(self) -> bool:
        raise NotPerSample("the network or loss branches on values or on the size of the batch")


_OF_A_WEIGHT = frozenset("shape ndim dtype device size dim numel requires_grad is_cuda layout".split())
_QUESTIONS = frozenset(
    "ndim dim ndimension dtype layout is_floating_point is_complex element_size is_cuda is_sparse is_nested "
    "is_quantized is_mkldnn is_meta".split()
)


class _Tracer(fx.proxy.GraphAppendingTracer):
    def __init__(self, root: nn.Module, running: nn.Module) -> None:
        super().__init__(fx.Graph())
        self.root, self.running = root, running
        trainable = [(name.removeprefix("net."), p) for name, p in root.named_parameters() if p.requires_grad]
        self.parameters = dict(trainable)
        self.trainable = {id(p): name for name, p in trainable}
        self.device = next(iter(self.parameters.values()), torch.empty(0)).device
        self.constants: dict[int, str] = {}
        self.alive: list[Tensor] = []

    def run(self, loss: Callable[..., Any], arguments: tuple[Batch, ...]) -> Any:
        copied: Any = sharing_copy(self.root)  # forward may write to its module: this one is thrown away
        before = [b.clone() for b in copied.buffers()]
        self._stand_in(copied)
        x, y = (self._placeholder(name, value) for name, value in zip("xy", arguments, strict=True))
        self.first = x.node
        outputs = copied.net(x)
        losses = copied.loss(outputs, y) if isinstance(loss, nn.Module) else loss(outputs, y)
        if any(not torch.equal(a, b) for a, b in zip(before, copied.buffers(), strict=True)):
            raise NotPerSample("the network writes to a buffer")
        return losses

    def _placeholder(self, name: str, value: Batch) -> Any:
        node = self.create_node("placeholder", name, (), {})
        node.meta["value"] = value
        return _Proxy(node, self)

    def _stand_in(self, copied: nn.Module) -> None:
        """Layers of torch become steps, trainable parameters stand-ins that no operation accepts."""
        for path, module in list(copied.named_modules()):
            if path.startswith(("net", "loss")) and self._is_step(path, module):
                module.forward = self._step(path, module)
                continue
            for key, parameter in module._parameters.items():
                if parameter is not None and id(parameter) in self.trainable:
                    name = self.trainable[id(parameter)]
                    node = self.create_node("get_attr", f"net.{name}", (), {})
                    node.meta["value"] = Weight(name)
                    module._parameters[key] = _Proxy(node, self)
                    self.graph.erase_node(node)

    def _is_step(self, path: str, module: nn.Module) -> bool:
        forward = (module._forward_hooks, module._forward_pre_hooks)
        if type(module) not in MODULES or any((*forward, module._backward_hooks, module._backward_pre_hooks)):
            return False
        trainable = any(id(p) in self.trainable for p in module.parameters())
        return "forward" not in module.__dict__ and (path.startswith("net") or not trainable)

    def _step(self, path: str, module: nn.Module) -> Callable[..., Any]:
        twin = copy.copy(module).eval()  # judged without dropout, by the layer's own forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            if type(twin) is nn.Embedding and len(args) == 1 and isinstance(args[0], Tensor):
                args = (self._for_every_sample(args[0]),)  # learned positions: the same look-up for each
            value = judge_module(twin, self._values(args), self._values(kwargs))
            return self._wrap(
                self.create_node("call_module", path, self._args(args), self._args(kwargs)), value
            )

        return forward

    def _for_every_sample(self, constant: Tensor) -> Any:
        """A constant index as the samples' own, so that what is looked up belongs to each of them.

        What comes out has the samples first instead of nothing or an axis of one: under broadcasting it is
        the same, and any other use of it is judged as that of a tensor of samples.
        """
        index = constant if constant.ndim > 1 and constant.shape[0] == 1 else constant[None]
        keep = (-1,) * (index.ndim - 1)
        batch_size = self.create_node("call_method", "size", (self.first, 0), {})
        batch_size.meta["value"] = Count()
        node = self.create_node("call_method", "expand", (self._constant(index), batch_size, *keep), {})
        return self._wrap(node, Batch(index))

    def _values(self, arguments: Any) -> Any:
        return fx.node.map_aggregate(self._args(arguments), self._value)

    def _value(self, argument: Any) -> Any:
        return argument.meta["value"] if isinstance(argument, fx.Node) else argument

    def _args(self, arguments: Any) -> Any:
        return self.create_arg(arguments)

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, Tensor):
            if id(a) in self.trainable:
                raise NotPerSample(f"parameter '{self.trainable[id(a)]}' is used outside its layer")
            return self._constant(a)
        return super().create_arg(a)

    def _constant(self, tensor: Tensor) -> fx.Node:
        if tensor.requires_grad:
            raise NotPerSample("a tensor that asks for gradients is no parameter of the network")
        name = self.constants.setdefault(id(tensor), f"constant_{len(self.constants)}")
        self.alive.append(tensor)  # or its id may be given away
        if not hasattr(self.running, name):
            self.running.register_buffer(name, tensor.detach().clone(), persistent=False)
        node = self.create_node("get_attr", name, (), {})
        node.meta["value"] = tensor.detach()
        return node

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> Any:
        args, kwargs = self._args(args), self._args(kwargs)
        values = [fx.node.map_aggregate(part, self._value) for part in (args, kwargs)]
        if torch.is_autocast_enabled("cpu"):
            raise NotPerSample("the network uses autocast")
        if target in (torch.is_floating_point, torch.is_complex) and isinstance(values[0][0], Batch):
            return target(values[0][0].one)
        if kind == "call_function":
            value = judge_function(target, *values)
        elif target == "size":
            value = Count()
        else:
            value = judge_method(target, *values)
        return self._wrap(self.create_node(kind, target, args, kwargs), value)

    def _wrap(self, node: fx.Node, value: Any) -> Any:
        node.meta["value"] = value
        if isinstance(value, (list, tuple)):
            items = []
            for i, item in enumerate(value):
                part = self.create_node("call_function", operator.getitem, (node, i), {})
                items.append(self._wrap(part, item))
            return items if type(value) is list else type(value)(items)
        return _Proxy(node, self)
