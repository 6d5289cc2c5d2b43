"""A network of torch's own layers as plain values, and back: a saved model holds no code."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sottovoce.errors import DataError

if TYPE_CHECKING:
    from torch import nn


def described_module(module: nn.Module) -> dict[str, Any] | None:
    """Return a network of torch's own layers as plain values, or None where only code says what it is.

    A layer is its name and the arguments that made it: torch keeps them as attributes of the same names, and
    what ``repr`` shows of a layer is not all of them.
    """
    described = _described(module)
    if described is None:
        return None
    try:
        again = rebuilt_module(described)
    except (TypeError, ValueError, AttributeError, RuntimeError):
        return None
    shapes = [{name: tuple(t.shape) for name, t in m.state_dict().items()} for m in (module, again)]
    return described if repr(again) == repr(module) and shapes[0] == shapes[1] else None


def _described(module: nn.Module) -> dict[str, Any] | None:
    from torch import nn

    kind = type(module)
    stock = getattr(nn, kind.__name__, None) is kind
    if not stock or module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__:
        return None
    if kind is nn.Sequential:
        parts = [[name, _described(child)] for name, child in module.named_children()]
        return None if any(part is None for _, part in parts) else {"layer": "Sequential", "parts": parts}
    if list(module.children()):
        return None
    # a device or a type is no argument of a saved layer, and a bias that is there is a tensor
    names = [name for name in inspect.signature(kind.__init__).parameters if name not in ("device", "dtype")]
    arguments = {name: getattr(module, name) for name in names if hasattr(module, name)}
    if "bias" in arguments:
        arguments["bias"] = arguments["bias"] is not None and arguments["bias"] is not False
    values = [
        part for value in arguments.values() for part in (value if isinstance(value, tuple) else [value])
    ]
    plain = all(value is None or isinstance(value, (bool, int, float, str)) for value in values)
    return {"layer": kind.__name__, "arguments": arguments} if plain else None


def rebuilt_module(described: Mapping[str, Any]) -> nn.Module:
    """Return the network that `described_module` described: layers of ``torch.nn`` by name, nothing else."""
    from torch import nn

    if described["layer"] == "Sequential":
        return nn.Sequential(OrderedDict((name, rebuilt_module(part)) for name, part in described["parts"]))
    kind = vars(nn).get(str(described["layer"]))
    if not (inspect.isclass(kind) and issubclass(kind, nn.Module)):
        raise DataError(
            f"the saved model names the layer {described['layer']!r}, which torch.nn does not have."
        )
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in described["arguments"].items()}
    return kind(**arguments)
