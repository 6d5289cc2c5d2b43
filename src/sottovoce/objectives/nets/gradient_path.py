"""The choice between the two ways to clipped gradient sums: all records at once, or one at a time.

The fast path runs a list of steps (`trace`), each of which keeps the samples of a batch apart. Networks
without such a list are computed one record at a time (`OneByOne`), which is slower and a function of
one record by construction as well. The choice, and whether a network is accepted at all, depends on shapes
and random numbers, never on records.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sottovoce.errors import InvalidInput
from sottovoce.objectives.clipping import clip_weights
from sottovoce.objectives.nets import checks
from sottovoce.objectives.nets.float64_sums import add_weighted_rows, row_squares
from sottovoce.objectives.nets.integer_sums import add_integer_sums, has_float64
from sottovoce.objectives.nets.layers import Slot, Stacked, stacked_copy
from sottovoce.objectives.nets.losses import (
    PerSampleLoss,
    cross_entropy,
    fresh_loss,
    restore_generators,
    sharing_copy,
)
from sottovoce.objectives.nets.per_sample_rules import NotPerSample
from sottovoce.objectives.nets.split_layers import split_layers, split_slots
from sottovoce.objectives.nets.trace import Trace, trace

RecordGradients = Callable[[Tensor, Tensor, Tensor], Tensor]  # (row, inputs, targets) -> (samples, n_params)


class GradientPath(NamedTuple):
    """How sums are computed: a list of steps, or one record at a time and why."""

    trace: Trace | None
    each: RecordGradients
    reason: str
    record_bytes: int  # memory that one more record in a batch takes


class OneByOne:
    """Gradients of ``loss(module(x[None]), y[None])`` for each record, as rows.

    The gradient of a record is computed from that record, the parameters and a fresh copy of the module and
    of the loss, so it is a function of one record for every module: statistics over the batch are statistics
    of one, and buffers or counters that a pass writes are discarded with the copy.

    Parameters
    ----------
    module : in the mode it is to run in; left as it is.
    loss : ``(outputs, targets) -> (samples,)``.
    named : makes a dict of parameters by name from a row.
    """

    def __init__(
        self, module: nn.Module, loss: PerSampleLoss, named: Callable[[Tensor], dict[str, Tensor]]
    ) -> None:
        self.module, self.loss, self.named = module, loss, named

    def _loss_of(self) -> Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]:
        module, loss = sharing_copy(self.module), fresh_loss(self.loss)

        def loss_of(named: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            out = torch.func.functional_call(module, named, (x[None],))
            value = loss(out, y[None])
            if value.shape != (1,):
                raise InvalidInput(
                    f"the loss must give one number per sample, shape (1,) for one sample, got "
                    f"{tuple(value.shape)}; use reduction='none'."
                )
            return value.sum()

        return loss_of

    def loop(self, row: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the gradients (samples, parameters), each from a pass and a copy of its own."""
        rows = row.new_zeros(len(inputs), len(row))
        for at, (x, y) in enumerate(zip(inputs, targets, strict=True)):
            # one leaf for each parameter: of one for all, every use would have a gradient of the whole row
            leaves = {name: t.detach().clone().requires_grad_() for name, t in self.named(row).items()}
            with torch.enable_grad():
                loss = self._loss_of()(leaves, x, y)
                if loss.requires_grad:
                    gradients = torch.autograd.grad(loss, [*leaves.values()], materialize_grads=True)
                    torch.cat([gradient.flatten() for gradient in gradients], out=rows[at].detach())
        return rows

    def mapped(self, row: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the same by `torch.func`, the records side by side; some modules refuse."""
        loss_of = self._loss_of()

        def of_row(row: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return loss_of(self.named(row), x, y)

        each = torch.func.vmap(torch.func.grad(of_row), in_dims=(None, 0, 0), randomness="different")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            return each(row, inputs, targets)


class NetworkForms:
    """One network in the forms that the two paths run.

    Parameters
    ----------
    evaluation : the module in evaluation mode, with the weights it came with.
    training : the module in the mode in which gradients are taken.
    loss : ``(outputs, targets) -> (samples,)``.
    layout : the columns of the parameters in a row.
    device, dtype : of the computation.
    """

    def __init__(
        self,
        evaluation: nn.Module,
        training: nn.Module,
        loss: PerSampleLoss,
        layout: list[Slot],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.evaluation, self.training, self.loss, self.layout = evaluation, training, loss, layout
        self.device, self.dtype = device, dtype
        self.split = sharing_copy(training)  # the form that is traced: large layers are taken apart
        self.attention, recurrent = split_layers(self.split)
        slots = split_slots({slot.name: slot for slot in layout}, self.attention, recurrent)
        self.stacked = sharing_copy(self.split)
        self.copies = _replace_layers(self.stacked, slots)
        self.anchor = torch.zeros((), device=device, requires_grad=True, dtype=dtype)

    def variant(self, *, double: bool, dropout: bool) -> NetworkForms:
        """Return the same network in float64, or without dropout."""
        training = copy.deepcopy(self.training).train(dropout)
        if double:
            training.double()
        dtype = torch.float64 if double else self.dtype
        return NetworkForms(self.evaluation, training, self.loss, self.layout, self.device, dtype)

    def named(self, row: Tensor) -> dict[str, Tensor]:
        """Return the parameters of a row by name."""
        return {slot.name: row[slot.start : slot.stop].view(slot.shape) for slot in self.layout}

    def start(self, agents: int) -> np.ndarray:
        """Return the weights the module came with, (agents, n_params)."""
        return np.repeat(flatten(self.evaluation.parameters())[None], agents, axis=0)

    def one_by_one(self) -> OneByOne:
        """Return the gradients of single records."""
        return OneByOne(self.training, self.loss, self.named)

    def list_steps(self, inputs: Tensor, targets: Tensor) -> Trace:
        """Return network and loss as a list of steps, or raise `NotPerSample`."""
        if self.copies is None:
            raise NotPerSample(_without_twin(self.split))
        shapes = (tuple(inputs.shape[2:]), inputs.dtype, tuple(targets.shape[2:]), targets.dtype)
        steps = trace(self.split, self.loss, *shapes, self.stacked)
        for path in self.attention:
            if f"{path}.fused" in steps.layers and f"{path}.q" in steps.layers:
                raise NotPerSample(
                    f"attention '{path}' looks at its own input in one call, at another in the next"
                )
        return steps

    def add_stacked_sums(
        self,
        steps: Trace,
        theta: Tensor,
        inputs: Tensor,
        targets: Tensor,
        present: Tensor,
        clip_norm: float,
        sums: Tensor,
    ) -> None:
        """Add the clipped sum of every agent's batch to ``sums``, all records at once."""
        squared, used = self._squared_norms(steps, theta, inputs, targets)
        weights = clip_weights(squared, clip_norm)
        weights = torch.where(present.flatten(), weights, torch.zeros_like(weights))
        bad = ~torch.isfinite(squared)
        for stacked in used:
            stacked.add_weighted(sums, weights, bad if bool(bad.any()) else None)
        self._forget()

    def _squared_norms(
        self, steps: Trace, theta: Tensor, inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, list[Stacked]]:
        """Return the squared norm of every record's gradient, and the layers that hold what it is made of."""
        assert self.copies is not None
        for stacked in self.copies:
            stacked.load(theta, self.anchor)
        with torch.enable_grad():
            losses = steps(inputs.flatten(0, 1), targets.flatten(0, 1))
            if losses.requires_grad:
                torch.autograd.grad(losses.sum(), self.anchor, allow_unused=True)
        squared = torch.zeros(inputs.shape[:2].numel(), device=self.device, dtype=torch.float64)
        used = [stacked for stacked in self.copies if stacked.seen]  # the others have no gradient
        for stacked in used:
            squared += stacked.squared_norms()
        return squared, used

    def _forget(self) -> None:
        """Drop the last batch and the parameters, of which the layers hold views."""
        for stacked in self.copies or ():
            stacked.forget()
            stacked.weights = {}

    def record_bytes(self, steps: Trace, inputs: Tensor, targets: Tensor) -> int:
        """Return the memory that one more record in a batch takes: passes over four and two random ones."""

        def of_a_pass(samples: int) -> int:
            x, y = (t[None] for t in self.random_batch(inputs, targets, samples))
            with restore_generators(self.device), _saved_storages() as saved:
                _, used = self._squared_norms(steps, theta, x, y)
            held = (part for stacked in used for seen in stacked.seen for part in seen[1:])
            total = sum(saved.values()) + sum(part.nbytes for part in held if part is not None)
            self._forget()
            return total

        theta = torch.as_tensor(self.start(1), device=self.device)
        return max(1, (of_a_pass(4) - of_a_pass(2)) // 2)

    def random_batch(
        self, inputs: Tensor, targets: Tensor, samples: int, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return random records with the shapes and types of a batch."""
        shape = (samples, *inputs.shape[2:])
        x = checks.random_inputs(self.evaluation, shape, inputs.dtype, seed).to(self.device)
        with torch.no_grad():
            try:
                outputs = copy.deepcopy(self.evaluation)(x[:1])
            except Exception:  # a network that only runs in training mode
                outputs = None
        y = checks.random_targets(outputs, (samples, *targets.shape[2:]), targets.dtype, seed + 1)
        return x, y.to(self.device)

    def random_rows(self, agents: int, seed: int = 0) -> Tensor:
        """Return the weights of the module with random changes."""
        start = torch.as_tensor(self.start(agents), device=self.device)
        noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(seed)).to(start)
        return start.mul_(1 + 0.1 * noise).add_(noise.mul_(0.01))  # in place: rows may be large

    def paths_agree(self, steps: Trace, inputs: Tensor, targets: Tensor, clip_norm: float) -> bool:
        """Return whether both paths give the same sums on random records, and no buffer changes."""
        theta = self.random_rows(2).to(self.dtype)
        x, y = (t[:, None] for t in self.random_batch(inputs, targets, 2))
        present = torch.ones(2, 1, dtype=torch.bool, device=self.device)
        sums = torch.zeros_like(theta, dtype=torch.float64)
        before = [buffer.clone() for buffer in self.stacked.buffers()]
        with restore_generators(self.device):
            self.add_stacked_sums(steps, theta, x, y, present, clip_norm, sums)
            size = float(sums.norm())
            # what is left is the difference; in place, since rows may be large
            add_single_sums(self.one_by_one().loop, theta, x, y, present, clip_norm, sums.neg_())
        unchanged = all(torch.equal(a, b) for a, b in zip(before, self.stacked.buffers(), strict=True))
        tolerance = 1e-6 if self.dtype == torch.float64 else 1e-2
        return unchanged and bool(sums.norm() <= tolerance * size + 1e-9)


@contextmanager
def _saved_storages() -> Iterator[dict[int, int]]:
    """Collect the sizes of the storages that forward passes keep for their backward passes."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield sizes


def add_single_sums(
    each: RecordGradients,
    theta: Tensor,
    inputs: Tensor,
    targets: Tensor,
    present: Tensor,
    clip_norm: float,
    sums: Tensor,
) -> None:
    """Add the clipped sum of every agent's batch to ``sums``, one record at a time."""
    for a in range(theta.shape[0]):
        gradients = each(theta[a], inputs[a], targets[a])
        if gradients.device != sums.device:  # it has no float64
            add_integer_sums(gradients, present[a], clip_norm, sums[a])
            continue
        squared = row_squares(gradients)
        weights = clip_weights(squared, clip_norm) * present[a]
        gradients.masked_fill_(~torch.isfinite(squared)[:, None], 0.0)
        add_weighted_rows(sums[a : a + 1], 0, weights[None], gradients[None])


class GradientPaths:
    """The types and the path that batches of given shapes take; decided once per shape."""

    def __init__(self, forms: NetworkForms) -> None:
        self.forms = forms
        self._paths: dict[Hashable, GradientPath] = {}
        self._types: dict[Hashable, torch.dtype] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_paths": {}}  # traces cannot be pickled

    @property
    def uses_fallback(self) -> bool:
        """Whether a path runs one record at a time; before the first batch, judged from the layers."""
        return self.forms.copies is None or any(path.trace is None for path in self._paths.values())

    def typed(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets in the types that network and loss take."""
        inputs = inputs.to(self.input_type(inputs))
        return inputs, targets.to(self._target_type(inputs, targets))

    def input_type(self, inputs: Tensor) -> torch.dtype:
        """Return the type of inputs that the network takes; whole numbers are tokens or pixels."""
        dtype, module = self.forms.dtype, self.forms.evaluation
        if inputs.is_floating_point():
            return dtype
        key = ("inputs", inputs.dtype, inputs.shape[2:])
        if key not in self._types:

            def runs(kind: torch.dtype) -> bool:
                x = checks.random_inputs(module, (1, *inputs.shape[2:]), kind)
                return _runs(module, x.to(self.forms.device))

            self._types[key] = torch.int64 if runs(torch.int64) or not runs(dtype) else dtype
        return self._types[key]

    def _target_type(self, inputs: Tensor, targets: Tensor) -> torch.dtype:
        dtype = self.forms.dtype
        if targets.is_floating_point():
            if self.forms.loss is cross_entropy and targets.ndim == 2:
                raise InvalidInput(
                    f"cross_entropy wants whole numbers as labels, got {targets.dtype}; use labels.long(), "
                    "or loss='squared_error' for numbers."
                )
            return dtype
        key = ("targets", targets.dtype, inputs.shape[2:], targets.shape[2:])
        if key not in self._types:
            kinds = (kind for kind in (torch.int64, dtype) if self._problem(inputs, targets, kind) is None)
            self._types[key] = next(kinds, torch.int64)
        return self._types[key]

    def check_records(self, inputs: Tensor, targets: Tensor) -> None:
        """Raise if one random record of these shapes and types does not go through network and loss."""
        problem = self._problem(inputs, targets, targets.dtype)
        if problem is not None:
            raise problem

    def _problem(self, inputs: Tensor, targets: Tensor, target_type: torch.dtype) -> InvalidInput | None:
        forms = self.forms
        x = checks.random_inputs(forms.evaluation, (1, *inputs.shape[2:]), inputs.dtype).to(forms.device)

        def make_targets(outputs: object) -> Tensor:
            return checks.random_targets(outputs, (1, *targets.shape[2:]), target_type).to(forms.device)

        try:
            with restore_generators(forms.device):
                checks.run_explained(forms.training, forms.loss, x, make_targets)
        except InvalidInput as error:
            return error
        return None

    @torch.no_grad()  # sums are taken by numpy, which refuses tensors that ask for gradients
    def choose(self, inputs: Tensor, targets: Tensor, clip_norm: float) -> GradientPath:
        """Return the path of batches of these shapes; decided once, on random numbers."""
        key = (inputs.shape[2:], inputs.dtype, targets.shape[2:], targets.dtype)
        if key not in self._paths:
            self.check_records(inputs, targets)
            self._paths[key] = self._choose(inputs, targets, clip_norm)
        return self._paths[key]

    def _choose(self, inputs: Tensor, targets: Tensor, clip_norm: float) -> GradientPath:
        forms, samples = self.forms, inputs.shape[0] * inputs.shape[1]
        checks.refuse_mixing(forms.training, forms.loss, *forms.random_batch(inputs, targets, 8))
        each = forms.one_by_one()
        try:
            if not has_float64(forms.device):
                raise NotPerSample(f"device '{forms.device}' has no float64")
            steps = forms.list_steps(inputs, targets)
            if self._is_correct(steps, inputs, targets, clip_norm):
                return GradientPath(steps, each.loop, "", forms.record_bytes(steps, inputs, targets))
            reason = "the fast form does not give the gradients of single records"
        except NotPerSample as problem:
            reason = str(problem)
        x, y = forms.random_batch(inputs, targets, min(max(samples, 8), 64))
        checks.refuse_mixing(forms.training, forms.loss, x, y)
        row = forms.random_rows(1)[0]
        random = _refuse_memory(each, row, x[:3], y[:3])
        vectorizes = _vectorizes(each, row, x[:2], y[:2], random)
        with restore_generators(forms.device), _saved_storages() as saved:
            gradient = each.loop(row, x[:1], y[:1])
        record_bytes = (
            sum(saved.values()) + 3 * gradient.nbytes
        )  # beside the gradient its square and its share
        return GradientPath(None, each.mapped if vectorizes else each.loop, reason, record_bytes)

    def _is_correct(self, steps: Trace, inputs: Tensor, targets: Tensor, clip_norm: float) -> bool:
        """Return whether the fast form gives what single records give, on random ones.

        The comparison runs in float64, in which a kink that rounding decides one way or the other makes no
        difference, and with dropout off; if the network cannot run so, it runs as it is.
        """
        for double in (True, False):
            try:
                exact = self.forms.variant(double=double, dropout=not steps.random)
                x = inputs.double() if double and inputs.is_floating_point() else inputs
                y = targets.double() if double and targets.is_floating_point() else targets
                steps = exact.list_steps(x, y)
                return steps.random or exact.paths_agree(steps, x, y, clip_norm)
            except Exception:  # a network that insists on its own type
                continue
        return False


def _refuse_memory(each: OneByOne, row: Tensor, x: Tensor, y: Tensor) -> bool:
    """Raise if a record's gradient changes after other records; return whether gradients are random."""

    def gradient(at: int, seed: int) -> Tensor:
        with restore_generators(row.device):
            torch.manual_seed(seed)
            return each.loop(row, x[at : at + 1], y[at : at + 1])

    first = gradient(0, 0)
    for at in range(1, len(x)):
        gradient(at, at)
    if not torch.allclose(first, gradient(0, 0), rtol=1e-4, atol=1e-6, equal_nan=True):
        raise InvalidInput(
            "the gradient of one record changes with the records seen before it, so its influence cannot be "
            "clipped; keep nothing between passes (a global list, a counter) in the network or the loss."
        )
    return not torch.equal(first.nan_to_num(), gradient(0, 1).nan_to_num())


def _vectorizes(each: OneByOne, row: Tensor, x: Tensor, y: Tensor, random: bool) -> bool:
    """Return whether `torch.func` takes the network and agrees with the loop."""
    try:
        with restore_generators(row.device):
            mapped, looped = each.mapped(row, x, y), each.loop(row, x, y)
    except InvalidInput:
        raise
    except Exception:
        return False
    return random or bool((mapped - looped).norm() <= 1e-3 * looped.norm() + 1e-6)


def _runs(module: nn.Module, x: Tensor) -> bool:
    try:
        with torch.no_grad(), restore_generators(x.device):
            copy.deepcopy(module)(x)
    except Exception:
        return False
    return True


def flatten(parameters: Iterable[nn.Parameter]) -> np.ndarray:
    """Return the trainable ones of some parameters as one row."""
    return torch.cat([part.detach().flatten() for part in parameters if part.requires_grad]).cpu().numpy()


def _without_twin(net: nn.Module) -> str:
    """Return a sentence that names the layer without a fast form."""
    owners: dict[int, str] = {}
    for name, layer in net.named_modules():
        parameters = {key: p for key, p in layer._parameters.items() if p is not None}
        for parameter in parameters.values():
            if id(parameter) in owners:
                return f"layers '{owners[id(parameter)]}' and '{name}' share a parameter"
            owners[id(parameter)] = name
        trained = [parameter.requires_grad for parameter in parameters.values()]
        if any(trained) and not (all(trained) and stacked_copy(layer, parameters)):
            kind = type(layer).__name__
            where = f"layer '{name}' ({kind})" if name else f"the network itself ({kind})"
            return f"{where} {'has no fast form' if all(trained) else 'trains a part of its parameters'}"
    return "a layer has no fast form"


def _replace_layers(net: nn.Module, slots: dict[str, Slot]) -> list[Stacked] | None:
    """Replace the layers with parameters by stacked copies; return None if a layer has none."""
    seen: set[int] = set()
    for parameter in (p for layer in net.modules() for p in layer._parameters.values() if p is not None):
        if id(parameter) in seen:
            return None  # tied weights: the norm of a sum of two layers' gradients is not a sum of norms
        seen.add(id(parameter))
    copies: list[Stacked] = []
    for name, layer in list(net.named_modules()):
        prefix = f"{name}." if name else ""
        columns = {key: slots.get(prefix + key) for key, p in layer._parameters.items() if p is not None}
        if all(slot is None for slot in columns.values()):
            continue
        stacked = stacked_copy(layer, columns) if all(slot is not None for slot in columns.values()) else None
        if stacked is None:
            return None
        layer.forward = stacked
        copies.append(stacked)
    return copies
