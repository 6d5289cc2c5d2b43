"""Checks of a network on random records: what it accepts, and whether samples act on each other.

Construction (`trace`, `gradient_path`) bounds the influence of a record. These checks refuse networks that
are made for whole batches, which are of no use one record at a time. They never see a record.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sottovoce.errors import InvalidInput, SottovoceError
from sottovoce.objectives.nets.inputs import Unpacking
from sottovoce.objectives.nets.losses import PerSampleLoss, fresh_loss, logits, restore_generators


def random_inputs(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return random inputs; whole numbers are tokens that every embedding knows, masks hide nothing."""
    g = torch.Generator().manual_seed(0)
    tables = (m.num_embeddings for m in module.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag)))
    known = min(tables, default=2)
    floating = dtype.is_floating_point or dtype.is_complex
    numbers = torch.randn(shape, generator=g) if floating else torch.randint(0, known, shape, generator=g)
    if isinstance(module, Unpacking) and shape[1:] == module.token_columns.shape:
        tokens = module.token_columns
        if floating:
            numbers[:, tokens] = torch.randint(0, known, (shape[0], int(tokens.sum())), generator=g).float()
        numbers[:, module.mask_columns] = 1
    return numbers.to(dtype)


def random_targets(outputs: object, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return random targets: numbers in [0, 1), or labels 0 and 1 (0 where there is one class)."""
    g = torch.Generator().manual_seed(1)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.rand(shape, generator=g).to(dtype)
    one = isinstance(outputs, Tensor) and outputs.ndim > 1 and outputs.shape[1] == 1
    return torch.randint(0, 1 if one else 2, shape, generator=g).to(dtype)


def run_explained(
    module: nn.Module, loss: PerSampleLoss, x: Tensor, make_targets: Callable[[Any], Tensor]
) -> Any:
    """Return ``loss(module(x), y)``, or raise one sentence that names the layer at fault and the cure."""
    copied, running = copy.deepcopy(module), [("", module, (x,))]
    for name, layer in copied.named_modules():
        layer.register_forward_pre_hook(lambda m, args, name=name: running.append((name, m, args)))
        layer.register_forward_hook(lambda m, args, out: running.pop() and None)
    with torch.no_grad():
        try:
            outputs = copied(x)
        except SottovoceError:
            raise
        except Exception as error:
            name, layer, args = running[-1]
            where = f"layer '{name}'" if name else "the network"
            raise InvalidInput(
                f"{where} ({type(layer).__name__}) cannot use an input of {_described(args)}: "
                f"{first_line(error)}; a record here is {_described(x[0])}, so give records of the shape and "
                "type the network takes (first axis: one sample), or change the layer."
            ) from error
        targets = make_targets(outputs)
        try:
            return fresh_loss(loss)(outputs, targets)
        except SottovoceError:
            raise
        except Exception as error:
            raise InvalidInput(
                f"the loss cannot use outputs of {_described(outputs)} with targets of "
                f"{_described(targets)}: {first_line(error)}; give targets of the "
                "shape and type it takes, or another loss."
            ) from error


def refuse_mixing(module: nn.Module, loss: PerSampleLoss, x: Tensor, y: Tensor) -> None:
    """Raise if changing some rows moves the output or the loss of any other row."""
    rows = len(x)
    moved = torch.zeros(rows, dtype=torch.bool)
    moved[[0, rows // 2, rows - 1]] = True
    if moved.all():
        moved[0] = False
    other = x.clone()
    if x.is_floating_point():
        changed = 3 - 2 * x[moved].flip(0)
        if isinstance(module, Unpacking) and x.shape[1:] == module.token_columns.shape:
            changed[:, module.token_columns] = x[moved].flip(0)[:, module.token_columns]
        other[moved] = changed
    else:  # another token that is known to be one
        other[moved] = torch.where(x[moved] == 0, x.max(), torch.zeros_like(x[moved]))
    try:
        first, second = (_one_pass(module, loss, inputs, y) for inputs in (x, other))
    except Exception:
        return  # a module that takes one sample at a time only has nothing to mix
    for one, two in zip(first, second, strict=True):
        if not one.ndim or len(one) != rows or one.shape != two.shape:
            continue
        if not torch.allclose(one[~moved], two[~moved], rtol=1e-4, atol=1e-5, equal_nan=True):
            raise InvalidInput(
                "the output or the loss of one sample changes with the other samples of the batch, so a "
                "per-sample gradient does not exist; replace the step that mixes samples (GroupNorm for a "
                "batch statistic, a loss of each sample alone)."
            )


def _one_pass(module: nn.Module, loss: PerSampleLoss, x: Tensor, y: Tensor) -> list[Tensor]:
    """Return the outputs and losses of fresh copies, with the same random numbers in every pass."""
    with restore_generators(x.device), torch.no_grad():
        torch.manual_seed(0)
        outputs = copy.deepcopy(module)(x)
        tensors = [*pytree.tree_leaves(outputs), fresh_loss(loss)(outputs, y)]
    return [t for t in tensors if isinstance(t, Tensor) and t.is_floating_point()]


def _described(value: object) -> str:
    tensors = (t for t in pytree.tree_leaves(value) if isinstance(t, Tensor))
    words = [f"shape {tuple(t.shape)}, {str(t.dtype).removeprefix('torch.')}" for t in tensors]
    return ", ".join(words) or "no tensor"


def refuse_layers(module: nn.Module) -> None:
    """Raise for a layer that is known to mix samples, and for weights that are no numbers."""
    if isinstance(module, torch.jit.ScriptModule):
        raise InvalidInput(
            "a scripted module cannot be read layer by layer; give the module it was made from."
        )
    for name, layer in module.named_modules():
        where = f"layer '{name}' ({type(layer).__name__})"
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            size = layer.num_features
            groups = max(g for g in (1, 2, 4, 8, 16) if size % g == 0)
            raise InvalidInput(
                f"{where} mixes the samples of a batch, so one record's influence cannot be clipped; use "
                f"GroupNorm({groups}, {size}) in its place."
            )
        if getattr(layer, "track_running_stats", False):
            raise InvalidInput(
                f"{where} keeps running statistics of the records; set track_running_stats=False."
            )
        if isinstance(layer, nn.Embedding) and (layer.max_norm is not None or layer.scale_grad_by_freq):
            raise InvalidInput(
                f"{where} changes with the tokens of the batch; set max_norm=None and "
                "scale_grad_by_freq=False."
            )
    for name, value in module.named_parameters():
        if isinstance(value, nn.parameter.UninitializedParameter):
            raise InvalidInput(f"parameter '{name}' has no shape yet; run the module once on an example.")
        if value.is_meta:
            raise InvalidInput(
                f"parameter '{name}' has no numbers (device meta); make the module on the cpu."
            )
        if not bool(torch.isfinite(value).all()):
            raise InvalidInput(f"parameter '{name}' holds NaN or infinity; give finite weights.")


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".;")


def outputs_of(network: nn.Module, x: Tensor) -> Any:
    """Return what a fresh copy of a network gives for random records; None if it cannot use them."""
    try:
        with torch.no_grad(), restore_generators(x.device):
            return copy.deepcopy(network)(x)
    except Exception:  # the first batch raises an error that explains the reason
        return None


def output_shape(network: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[int, ...] | None:
    """Return the shape of the output for one record of this shape and type; None if it cannot be used."""
    x = random_inputs(network, (1, *shape), dtype).to(next(network.parameters()).device)
    outputs = logits(outputs_of(network, x))
    return tuple(outputs.shape[1:]) if torch.is_tensor(outputs) else None


def scores(outputs: object) -> Tensor:
    """Return the tensor in which the largest number names the class."""
    outputs = logits(outputs)
    if not torch.is_tensor(outputs):
        raise InvalidInput(
            f"accuracy needs a network that gives one tensor of scores or a dict with 'logits', got "
            f"{type(outputs).__name__}; measure `losses` instead."
        )
    return outputs
