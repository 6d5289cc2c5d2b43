"""The choice between the two ways to clipped gradient sums: all records at once, or one at a time.

The fast path runs a list of steps (`trace`), each of which keeps the samples of a batch apart. Networks
without such a list are computed one record at a time, which is slower and a function of one record by
construction as well. The choice, and whether a network is accepted at all, depends on shapes and random
numbers, never on records.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sottovoce.errors import InvalidInput, SottovoceError
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


class NetworkForms:
    """One network in the forms that the two paths run.

    ``evaluation`` is the module in evaluation mode with the weights it came with, ``training`` in the mode in
    which gradients are taken.
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
        self.copies: list[Stacked] = []
        self.obstacle = ""  # why there is no fast form
        try:
            self.copies = _replace_layers(self.stacked, slots)
        except NotPerSample as reason:
            self.obstacle = str(reason)
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

    def _loss_of_one(self) -> Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]:
        """Return the loss of one record by fresh copies of module and loss.

        So it is a function of one record for every module: statistics over the batch are statistics of one,
        and buffers or counters that a pass writes are discarded with the copy.
        """
        module, loss = sharing_copy(self.training), fresh_loss(self.loss)

        def loss_of(named: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            out = torch.func.functional_call(module, named, (x[None],))
            value = loss(out, y[None])
            shape = tuple(value.shape) if torch.is_tensor(value) else type(value).__name__
            if shape != (1,):
                raise InvalidInput(
                    f"the loss must give one number per sample, shape (1,) for one sample, got {shape}; use "
                    "reduction='none'."
                )
            return value.sum()

        return loss_of

    def _gradient(self, row: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of one record by parameter; None where no path leads from loss to parameter."""
        # one leaf for each parameter: of one for all, every use would have a gradient of the whole row
        leaves = {name: t.detach().clone().requires_grad_() for name, t in self.named(row).items()}
        with torch.enable_grad():
            loss = self._loss_of_one()(leaves, x, y)
        if not loss.requires_grad:
            return ()
        return torch.autograd.grad(loss, [*leaves.values()], allow_unused=True)

    def looped_gradients(self, row: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the gradients (samples, parameters), each from a pass and a copy of its own."""
        rows = row.new_zeros(len(inputs), len(row))
        for out, x, y in zip(rows, inputs, targets, strict=True):
            for slot, part in zip(self.layout, self._gradient(row, x, y), strict=False):
                if part is not None:
                    out[slot.start : slot.stop] = part.flatten()
        return rows

    def reaches_parameters(self, inputs: Tensor, targets: Tensor) -> bool:
        """Return whether some of these records have a gradient, be it zero, of some parameter."""
        row = torch.as_tensor(self.start(1)[0], device=self.device)
        with restore_generators(self.device):
            try:
                gradients = (self._gradient(row, x, y) for x, y in zip(inputs, targets, strict=True))
                return any(part is not None for gradient in gradients for part in gradient)
            except SottovoceError:
                raise
            except Exception:  # a network that does not run on these numbers
                return True

    def mapped_gradients(self, row: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the same by `torch.func`, the records side by side; some modules refuse."""
        loss_of = self._loss_of_one()

        def of_row(row: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return loss_of(self.named(row), x, y)

        each = torch.func.vmap(torch.func.grad(of_row), in_dims=(None, 0, 0), randomness="different")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            return each(row, inputs, targets)

    def list_steps(self, inputs: Tensor, targets: Tensor) -> Trace:
        """Return network and loss as a list of steps, or raise `NotPerSample`."""
        if self.obstacle:
            raise NotPerSample(self.obstacle)
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
        losses = self._losses(steps, theta, inputs, targets)
        squared, used = self._squared_norms(losses)
        weights = clip_weights(squared, clip_norm)
        weights = torch.where(present.flatten(), weights, 0.0)
        # a sum of squares is finite only if all of them are
        bad = None if math.isfinite(squared.sum().item()) else ~torch.isfinite(squared)
        for stacked in used:
            stacked.add_weighted(sums, weights, bad)
        self._forget()

    def _losses(self, steps: Trace, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every record of all agents, laid end to end."""
        for stacked in self.copies:
            stacked.load(theta, self.anchor)
        with torch.enable_grad():
            return steps(inputs.flatten(0, 1), targets.flatten(0, 1))

    def _squared_norms(self, losses: Tensor) -> tuple[Tensor, list[Stacked]]:
        """Return the squared norm of every record's gradient, and the layers that hold what it is made of."""
        if losses.requires_grad:
            torch.autograd.grad(losses, self.anchor, torch.ones_like(losses), allow_unused=True)
        squared = torch.zeros(len(losses), device=self.device, dtype=torch.float64)
        used = [stacked for stacked in self.copies if stacked.held]  # the others have no gradient
        for stacked in used:
            squared += stacked.squared_norms()
        return squared, used

    def _forget(self) -> None:
        """Drop the last batch and the parameters, of which the layers hold views."""
        for stacked in self.copies:
            stacked.forget()

    def record_bytes(self, steps: Trace, x: Tensor, y: Tensor) -> int:
        """Return the memory that one more record in a batch takes: passes over four random ones and two."""

        def of_a_pass(samples: int) -> int:
            with restore_generators(self.device), _saved_storages() as saved:
                losses = self._losses(steps, theta, x[None, :samples], y[None, :samples])
            _, used = self._squared_norms(losses)
            total = sum(saved.values()) + sum(part.nbytes for stacked in used for part in stacked.held)
            self._forget()
            return total

        theta = torch.as_tensor(self.start(1), device=self.device)
        return max(1, (of_a_pass(4) - of_a_pass(2)) // 2)

    def random_inputs(self, inputs: Tensor, samples: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return random inputs of records with the shapes and the type of a batch, or of another type."""
        shape = (samples, *inputs.shape[2:])
        return checks.random_inputs(self.evaluation, shape, dtype or inputs.dtype).to(self.device)

    def random_batch(self, inputs: Tensor, targets: Tensor, samples: int) -> tuple[Tensor, Tensor]:
        """Return random records with the shapes and types of a batch."""
        x = self.random_inputs(inputs, samples)
        outputs = checks.outputs_of(self.evaluation, x[:1])  # None of a network that only runs in training
        y = checks.random_targets(outputs, (samples, *targets.shape[2:]), targets.dtype)
        return x, y.to(self.device)

    def random_rows(self, agents: int) -> Tensor:
        """Return the weights of the module with random changes."""
        start = torch.as_tensor(self.start(agents), device=self.device)
        noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(0)).to(start)
        return start.mul_(1 + 0.1 * noise).add_(noise.mul_(0.01))  # in place: rows may be large

    def paths_agree(self, steps: Trace, x: Tensor, y: Tensor, clip_norm: float) -> bool:
        """Return whether both paths give two agents the same sums, of one record each; no buffer changes."""
        theta = self.random_rows(2).to(self.dtype)
        present = torch.ones(2, 1, dtype=torch.bool, device=self.device)
        sums = torch.zeros_like(theta, dtype=torch.float64)
        before = [buffer.clone() for buffer in self.stacked.buffers()]
        with restore_generators(self.device):
            self.add_stacked_sums(steps, theta, x, y, present, clip_norm, sums)
            size = float(sums.norm())
            # what is left is the difference; in place, since rows may be large
            add_single_sums(self.looped_gradients, theta, x, y, present, clip_norm, sums.neg_())
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

    def typed(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets in the types that network and loss take."""
        inputs = inputs.to(self.input_type(inputs))
        return inputs, targets.to(self._target_type(inputs, targets))

    def input_type(self, inputs: Tensor) -> torch.dtype:
        """Return the type of inputs that the network takes; whole numbers are tokens or pixels."""

        def runs(kind: torch.dtype) -> bool:
            x = self.forms.random_inputs(inputs, 1, kind)
            return checks.outputs_of(self.forms.evaluation, x) is not None

        return self._first_type(("inputs", inputs.shape[2:]), inputs, runs)

    def _target_type(self, inputs: Tensor, targets: Tensor) -> torch.dtype:
        if targets.is_floating_point() and self.forms.loss is cross_entropy and targets.ndim == 2:
            raise InvalidInput(
                f"cross_entropy wants whole numbers as labels, got {targets.dtype}; use labels.long(), "
                "or loss='squared_error' for numbers."
            )

        def runs(kind: torch.dtype) -> bool:
            try:
                self._run_one(inputs, targets, kind)
            except InvalidInput:
                return False
            return True

        return self._first_type(("targets", inputs.shape[2:], targets.shape[2:]), targets, runs)

    def _first_type(self, key: Hashable, tensor: Tensor, fits: Callable[[torch.dtype], bool]) -> torch.dtype:
        """Return the type of the parameters, or for whole numbers the first type that fits."""
        dtype = self.forms.dtype
        if tensor.is_floating_point():
            return dtype
        if (key, tensor.dtype) not in self._types:
            kinds = (kind for kind in (torch.int64, dtype) if fits(kind))
            self._types[key, tensor.dtype] = next(kinds, torch.int64)
        return self._types[key, tensor.dtype]

    def check_records(self, inputs: Tensor, targets: Tensor) -> None:
        """Raise unless random records of these shapes and types go through network and loss, and train it."""
        self._run_one(inputs, targets, targets.dtype)
        x, y = self.forms.random_batch(inputs, targets, 8)
        if not self.forms.reaches_parameters(x, y):
            raise InvalidInput(
                "the loss does not depend on the trainable parameters of the network, so nothing would be "
                "learned; use their layers in forward(), without detach() and torch.no_grad()."
            )

    def _run_one(self, inputs: Tensor, targets: Tensor, target_type: torch.dtype) -> None:
        """Raise if one random record of these shapes does not go through network and loss."""
        forms = self.forms

        def make_targets(outputs: object) -> Tensor:
            return checks.random_targets(outputs, (1, *targets.shape[2:]), target_type).to(forms.device)

        with restore_generators(forms.device):
            checks.run_explained(forms.training, forms.loss, forms.random_inputs(inputs, 1), make_targets)

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
        x, y = forms.random_batch(inputs, targets, 8)
        checks.refuse_mixing(forms.training, forms.loss, x, y)
        try:
            if not has_float64(forms.device):
                raise NotPerSample(f"device '{forms.device}' has no float64")
            steps = forms.list_steps(inputs, targets)
            if self._is_correct(steps, x[:2, None], y[:2, None], clip_norm):
                record_bytes = forms.record_bytes(steps, x, y)
                return GradientPath(steps, forms.looped_gradients, "", record_bytes)
            reason = "the fast form does not give the gradients of single records"
        except NotPerSample as problem:
            reason = str(problem)
        x, y = forms.random_batch(inputs, targets, min(max(samples, 8), 64))
        checks.refuse_mixing(forms.training, forms.loss, x, y)
        row = forms.random_rows(1)[0]
        random = _refuse_memory(forms, row, x[:3], y[:3])
        each = forms.mapped_gradients if _vectorizes(forms, row, x[:2], y[:2], random) else None
        with restore_generators(forms.device), _saved_storages() as saved:
            gradient = forms.looped_gradients(row, x[:1], y[:1])
        record_bytes = sum(saved.values()) + 3 * gradient.nbytes  # its square and its share beside it
        return GradientPath(None, each or forms.looped_gradients, reason, record_bytes)

    def _is_correct(self, steps: Trace, inputs: Tensor, targets: Tensor, clip_norm: float) -> bool:
        """Return whether the fast form gives what single records give, on random ones.

        The comparison runs in float64, in which a kink that rounding decides one way or the other makes no
        difference, and with dropout off; if the network cannot run so, it runs as it is.
        """
        for double in (True, False):
            try:
                exact = self.forms.variant(double=double, dropout=not steps.random)
                x, y = (t.double() if double and t.is_floating_point() else t for t in (inputs, targets))
                steps = exact.list_steps(x, y)
                return steps.random or exact.paths_agree(steps, x, y, clip_norm)
            except Exception:  # a network that insists on its own type
                continue
        return False


def _refuse_memory(forms: NetworkForms, row: Tensor, x: Tensor, y: Tensor) -> bool:
    """Raise if a record's gradient changes after other records; return whether gradients are random."""

    def gradient(at: int, seed: int) -> Tensor:
        with restore_generators(row.device):
            torch.manual_seed(seed)
            return forms.looped_gradients(row, x[at : at + 1], y[at : at + 1])

    first = gradient(0, 0)
    for at in range(1, len(x)):
        gradient(at, at)
    if not torch.allclose(first, gradient(0, 0), rtol=1e-4, atol=1e-6, equal_nan=True):
        raise InvalidInput(
            "the gradient of one record changes with the records seen before it, so its influence cannot be "
            "clipped; keep nothing between passes (a global list, a counter) in the network or the loss."
        )
    return not torch.equal(first.nan_to_num(), gradient(0, 1).nan_to_num())


def _vectorizes(forms: NetworkForms, row: Tensor, x: Tensor, y: Tensor, random: bool) -> bool:
    """Return whether `torch.func` takes the network and agrees with the loop."""
    try:
        with restore_generators(row.device):
            mapped, looped = forms.mapped_gradients(row, x, y), forms.looped_gradients(row, x, y)
    except InvalidInput:
        raise
    except Exception:
        return False
    return random or bool((mapped - looped).norm() <= 1e-3 * looped.norm() + 1e-6)


def flatten(parameters: Iterable[nn.Parameter]) -> np.ndarray:
    """Return the trainable ones of some parameters as one row."""
    return torch.cat([part.detach().flatten() for part in parameters if part.requires_grad]).cpu().numpy()


def _replace_layers(net: nn.Module, slots: dict[str, Slot]) -> list[Stacked]:
    """Replace the layers with parameters by stacked copies; raise `NotPerSample` where there is none."""
    owners: dict[int, str] = {}
    copies: list[Stacked] = []
    for name, layer in list(net.named_modules()):
        parameters = {key: p for key, p in layer._parameters.items() if p is not None}
        for parameter in parameters.values():
            if id(parameter) in owners:  # the norm of a sum of two gradients is not a sum of norms
                raise NotPerSample(f"layers '{owners[id(parameter)]}' and '{name}' share a parameter")
            owners[id(parameter)] = name
        places = {key: f"{name}.{key}".removeprefix(".") for key in parameters}
        columns = {key: slots[place] for key, place in places.items() if place in slots}
        if not columns:
            continue
        whole = len(columns) == len(parameters)
        stacked = stacked_copy(layer, columns) if whole else None
        if stacked is None:
            kind = type(layer).__name__
            where = f"layer '{name}' ({kind})" if name else f"the network itself ({kind})"
            problem = "has no fast form" if whole else "trains a part of its parameters"
            raise NotPerSample(f"{where} {problem}")
        layer.forward = stacked
        copies.append(stacked)
    return copies
