"""Users' networks by the name of the function that builds them, and weights from files.

A file is read once; the same bytes are compared with the agreed digest and compiled. Code and weights come
from the local disk, never from a saved model or from another member.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce.errors import DataError, InvalidInput, MissingDependency

if TYPE_CHECKING:
    from torch import Tensor, nn


def build_module(
    spec: str,
    folder: str | Path = ".",
    *,
    sha256: str | None = None,
    options: Mapping[str, object] | None = None,
) -> nn.Module:
    """Return the network that ``spec``, ``"file:function"``, builds.

    ``"mynet:build"`` is the function ``build`` of ``mynet.py`` in ``folder``, or else of an installed module
    ``mynet``; ``"nets/mynet.py:build"`` names the file. ``options`` are the arguments of the function.

    Guarantees
    ----------
    With ``sha256`` no code runs but a file with this digest and what it imports.
    """
    name, colon, function = spec.partition(":")
    if not colon or not name or not function.isidentifier():
        raise InvalidInput(f'a module is named "file:function", for example "mynet:build", got {spec!r}.')
    module = load_code(name, Path(folder), sha256)
    maker = getattr(module, function, None)
    if not callable(maker):
        raise InvalidInput(f"{name} has no function {function!r} that could build the network.")
    built = _run(lambda: maker(**dict(options or {})), spec)
    try:
        from torch import nn
    except ImportError:
        raise MissingDependency("Networks need torch; pip install 'sottovoce[deep]'.") from None
    if not isinstance(built, nn.Module):
        raise InvalidInput(f"{spec} must return a torch nn.Module, got {type(built).__name__}.")
    return built


def _run(code: Callable[[], object], name: str) -> object:
    """Run code of the user's, or raise one sentence."""
    try:
        return code()
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise InvalidInput(f"{name} failed with {type(error).__name__}: {first}.") from error


def build_named(builder: Mapping[str, Any], folder: str | Path = ".") -> nn.Module:
    """Return the network of a ``builder``: ``options``, and ``zoo``, or ``module`` and ``sha256``."""
    from sottovoce.objectives.nets.zoo import build

    if "zoo" not in builder:
        return build_module(builder["module"], folder, sha256=builder["sha256"], options=builder["options"])
    try:
        return build(builder["zoo"], **builder["options"])
    except (TypeError, OverflowError) as error:
        raise InvalidInput(f"{builder['zoo']} cannot be built from these options: {error}.") from None


def needs_safetensors() -> None:
    """Raise unless safetensors is installed."""
    if importlib.util.find_spec("safetensors") is None:
        raise MissingDependency("Weights are stored with safetensors; pip install 'sottovoce[deep]'.")


def read_weights(path: str | Path, *, sha256: str | None = None) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name; a file of another digest or format is refused."""
    return parse_weights(_read(Path(path), sha256), Path(path).name)


def parse_weights(content: bytes, name: str) -> dict[str, Tensor]:
    """Return the tensors in the bytes of a safetensors file."""
    needs_safetensors()
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(content)
    except (SafetensorError, ValueError):
        raise DataError(
            f"{name} is not a safetensors file; safetensors.torch.save_file(module.state_dict(), file) "
            "writes one."
        ) from None


def put_weights(module: nn.Module, weights: Mapping[str, Tensor], where: str) -> nn.Module:
    """Put weights into a network, in place; names and shapes must be those of the network."""
    state = module.state_dict()
    known = dict(weights)
    # safetensors holds a tensor that two names share once
    places = {(t.data_ptr(), t.shape): name for name, t in state.items() if name in weights and t.numel()}
    for name, tensor in state.items():
        if name not in known and (tensor.data_ptr(), tensor.shape) in places:
            known[name] = weights[places[tensor.data_ptr(), tensor.shape]]
    own, shapes = ({name: tuple(t.shape) for name, t in each.items()} for each in (state, known))
    if own != shapes:
        wrong = next(name for name in (*shapes, *own) if own.get(name) != shapes.get(name))
        raise DataError(
            f"the weights in {where} do not fit this {type(module).__name__}: '{wrong}' is "
            f"{shapes.get(wrong, 'not there')} there and {own.get(wrong, 'not there')} in the network."
        )
    kind = next((t.dtype for t in weights.values() if t.is_floating_point()), None)
    if kind is not None:
        module.to(kind)
    module.load_state_dict(known)
    return module


def load_code(name: str, folder: Path, sha256: str | None = None) -> types.ModuleType:
    """Return the Python module of a file in ``folder``, or else an installed one."""
    file = folder / (name if name.endswith(".py") else name.replace(".", "/") + ".py")
    if not file.is_file():
        if sha256 is not None or name.endswith(".py"):
            raise DataError(f"There is no file {file}; code is supplied locally.")
        try:
            return importlib.import_module(name)
        except ImportError as error:
            raise DataError(f"There is no file {file} and no installed module {name!r} ({error}).") from None
    content = _read(file, sha256)
    module = types.ModuleType(f"_sottovoce_{file.stem}_{hashlib.sha256(content).hexdigest()[:16]}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # dataclasses and pickling look a class up by its module
    try:
        _run(lambda: exec(compile(content, str(file), "exec"), module.__dict__), file.name)
    except InvalidInput:
        del sys.modules[module.__name__]
        raise
    return module


def _read(path: Path, sha256: str | None) -> bytes:
    """Return the bytes of a file, which must have the digest if there is one."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from None
    digest = hashlib.sha256(content).hexdigest()
    if sha256 is not None and sha256.lower() != digest:
        raise DataError(
            f"{path.name} has the SHA-256 {digest[:16]}..., expected {sha256[:16]}...; take the file "
            "that was agreed on."
        )
    return content
