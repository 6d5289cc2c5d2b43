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
from collections.abc import Mapping
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

    Parameters
    ----------
    spec : ``"mynet:build"``, the function ``build`` of ``mynet.py`` in ``folder``, or else of an installed
        module ``mynet``; ``"nets/mynet.py:build"`` names the file.
    folder : where files are looked for.
    sha256 : digest that the file must have; then only a file will do.
    options : arguments of the function.

    Guarantees
    ----------
    With ``sha256`` no code runs but a file with this digest and what it imports.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> text = "from torch import nn\\ndef build(width=2):\\n    return nn.Linear(width, 2)\\n"
    >>> _ = (folder / "mynet.py").write_text(text)
    >>> build_module("mynet:build", folder, options={"width": 3})
    Linear(in_features=3, out_features=2, bias=True)
    """
    name, colon, function = spec.partition(":")
    if not colon or not name or not function.isidentifier():
        raise InvalidInput(f'a module is named "file:function", for example "mynet:build", got {spec!r}.')
    module = load_code(name, Path(folder), sha256)
    maker = getattr(module, function, None)
    if not callable(maker):
        raise InvalidInput(f"{name} has no function {function!r} that could build the network.")
    try:
        built = maker(**dict(options or {}))
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise InvalidInput(f"{spec} failed with {type(error).__name__}: {first}.") from error
    try:
        from torch import nn
    except ImportError:
        raise MissingDependency("Networks need torch; pip install 'sottovoce[deep]'.") from None
    if not isinstance(built, nn.Module):
        raise InvalidInput(f"{spec} must return a torch nn.Module, got {type(built).__name__}.")
    return built


def build_named(builder: Mapping[str, Any], folder: str | Path = ".") -> nn.Module:
    """Return the network that a ``builder`` names, as saved models hold it.

    It has ``options`` and either ``zoo``, the name of a network of this package, or ``module`` and
    ``sha256``, as in `build_module`.
    """
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
    path = Path(path)
    content = _read(path)
    _same(content, sha256, path)
    return parse_weights(content, path.name)


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
    own = {name: tuple(tensor.shape) for name, tensor in state.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}

    # safetensors holds a tensor that two names share once
    def place(tensor: Tensor) -> tuple[int, tuple[int, ...]]:
        return tensor.data_ptr(), tuple(tensor.shape)

    shared = {place(tensor): name for name, tensor in state.items() if name in shapes and tensor.numel()}
    known = dict(weights)
    for name, tensor in state.items():
        if name not in known and place(tensor) in shared:
            known[name] = known[shared[place(tensor)]]
            shapes[name] = own[name]
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
    content = _read(file)
    _same(content, sha256, file)
    module = types.ModuleType(f"_sottovoce_{file.stem}_{hashlib.sha256(content).hexdigest()[:16]}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # dataclasses and pickling look a class up by its module
    try:
        exec(compile(content, str(file), "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[module.__name__]
        first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise InvalidInput(f"{file.name} cannot be run: {type(error).__name__}: {first}.") from error
    return module


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from None


def _same(content: bytes, sha256: str | None, path: Path) -> None:
    digest = hashlib.sha256(content).hexdigest()
    if sha256 is not None and sha256.lower() != digest:
        raise DataError(
            f"{path.name} has the SHA-256 {digest[:16]}..., expected {sha256[:16]}...; take the file "
            "that was agreed on."
        )
