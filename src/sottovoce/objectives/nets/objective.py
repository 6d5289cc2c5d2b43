r"""Clipped sums of per-sample gradients for any network, all agents at once.

.. math:: S_a(\theta_a) = \sum_{d \in lot_a} \min(1, C / \|g_d\|)\, g_d, \quad g_d = \nabla \ell(\theta_a; d)

No per-sample gradient is formed where its norm suffices. The network runs once on the lots of all agents
laid end to end; its layers with parameters are replaced by stacked twins (`nets_layers`) which read the
weights of agent ``a`` from row ``a`` of a matrix and keep what they saw. One backward pass yields the norms
(ghost norms), and one product per layer the weighted sum (book-keeping) [1], [2].

This fast form runs a list of steps (`per_sample_trace`) of which each is known to keep the samples of a lot
apart. Whatever has no such list is computed one record at a time (`nets_single`): slower, and a function of
one record by construction as well. Which of the two, and whether a network is accepted at all, is decided
from shapes and random numbers before the first lot, never from records.

References
----------
[1] Bu, Wang, Zha, Karypis 2023, "Differentially Private Optimization on Large Model at Small Cost".
[2] Li, Tramèr, Liang, Hashimoto 2022, "Large Language Models Can Be Strong Differentially Private Learners".
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sottovoce import _validate
from sottovoce.data.agent_tensors import AgentData
from sottovoce.errors import DataError, InvalidInput
from sottovoce.objectives.clipping import clip_weights
from sottovoce.objectives.nets import checks
from sottovoce.objectives.nets.attention import attention_slots, split_attention
from sottovoce.objectives.nets.float64_sums import row_squares, weighted_rows
from sottovoce.objectives.nets.layers import Stacked, stacked_twin
from sottovoce.objectives.nets.per_sample_rules import NotPerSample
from sottovoce.objectives.nets.recurrent import recurrent_slots, split_recurrent
from sottovoce.objectives.nets.trace import Trace, sharing_copy, trace
from sottovoce.objectives.nets.vmap_gradients import OneByOne
from sottovoce.objectives.prox import Regularizer

PerSampleLoss = Callable[[Tensor, Tensor], Tensor]


class Slot(NamedTuple):
    """Where one parameter lives in a row."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


def _logits(outputs: Any) -> Any:
    """The scores of a network that returns a dict with them, as many language models do."""
    return outputs["logits"] if isinstance(outputs, dict) and "logits" in outputs else outputs


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each sample, (samples,)."""
    return nn.functional.cross_entropy(_logits(outputs), targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return half the squared error of each sample, (samples,)."""
    outputs = _logits(outputs)
    if outputs.ndim != targets.ndim:  # (samples, 1) against (samples,) would subtract every pair
        targets = targets.reshape(outputs.shape)
    return 0.5 * (outputs - targets).flatten(1).square().sum(1)


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the absolute error of each sample, summed over its numbers, (samples,)."""
    outputs = _logits(outputs)
    if outputs.ndim != targets.ndim:
        targets = targets.reshape(outputs.shape)
    return (outputs - targets).flatten(1).abs().sum(1)


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the logistic loss of each sample's yes-or-no labels, their mean, (samples,)."""
    outputs = _logits(outputs)
    if outputs.ndim != targets.ndim:  # one label given as (samples,) for outputs (samples, 1)
        targets = targets.reshape(outputs.shape)
    each = nn.functional.binary_cross_entropy_with_logits(
        outputs, targets.to(outputs.dtype), reduction="none"
    )
    return each.flatten(1).mean(1)


LOSSES: dict[str, PerSampleLoss] = {
    "cross_entropy": cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "squared_error": squared_error,
    "absolute_error": absolute_error,
}
TASKS: dict[Any, str] = {
    cross_entropy: "classification",
    binary_cross_entropy: "labels",
    squared_error: "regression",
    absolute_error: "regression",
}


class NetObjective:
    """A network and its loss, seen as a function of parameter rows, one row per agent.

    The module trains in training mode (dropout on) with its buffers as they came, and is evaluated in
    evaluation mode. Numbers are computed in the type of its parameters, float32 or float64.

    Parameters
    ----------
    module : any ``nn.Module`` whose first input axis is the sample. A copy is made.
    loss : ``"cross_entropy"``, ``"binary_cross_entropy"`` (yes-or-no labels), ``"squared_error"``,
        ``"absolute_error"``, or a function ``(outputs, targets) -> (samples,)``,
        such as the losses of torch with ``reduction="none"``.
    clip : C; ``inf`` for no clipping.
    physical_batch : how many samples, all agents together, go through the network at a time; a larger lot
        is split into such chunks whose sums are added, and is still one lot.
    device : where the work is done.
    initial : ``"keep"`` starts a run from the weights the module came with, ``"reset"`` draws new ones.

    Guarantees
    ----------
    One record changes the sum of its agent by at most C in Euclidean norm (add or remove; 2C for replace), up
    to N^2 2^-53 C in a lot of N records: norms and sums are taken in float64, and noise is to be added in
    float64 too, before the row is rounded. A record with NaN or infinity
    anywhere in its gradient contributes zero. This holds by construction for every module: either each step
    of network and loss is on the list of operations that keep samples apart, or the gradient of a record is
    computed from that record alone, on a fresh copy of module and loss. Not covered: a network or loss that
    keeps records outside itself, in a global variable. Networks that are seen to mix samples are refused:
    BatchNorm by name, others by alarms on random inputs before the first lot.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> objective = NetObjective(net, clip_norm=1.0)
    >>> theta = objective.random_init(np.random.default_rng(0), agents=2)
    >>> theta.shape == (2, 4 * 8 + 8 + 8 * 3 + 3)
    True
    >>> x, y = torch.randn(2, 5, 4), torch.zeros(2, 5, dtype=torch.long)
    >>> sums = objective.clipped_sums(theta, x, y)
    >>> bool((sums.norm(dim=1) <= 5).all())
    True
    """

    bytes_per_number = 4
    regularizer = Regularizer()

    def __init__(
        self,
        module: nn.Module,
        loss: str | PerSampleLoss = "cross_entropy",
        *,
        clip_norm: float = 1.0,
        physical_batch: int | None = None,
        device: str = "cpu",
        initial: Literal["keep", "reset"] = "keep",
    ) -> None:
        if not isinstance(module, nn.Module):
            raise InvalidInput(f"a network must be a torch nn.Module, got {type(module).__name__}.")
        if initial not in ("keep", "reset"):
            raise InvalidInput(f'initial must be "keep" or "reset", got {initial!r}.')
        refuse_mixing_layers(module)
        _refuse_unfinished(module)
        if isinstance(loss, str) and loss not in LOSSES:
            raise InvalidInput(f"loss must be one of {sorted(LOSSES)} or a function, got {loss!r}.")
        if clip_norm != float("inf"):
            _validate.positive(clip_norm, "clip_norm")
        self.loss = LOSSES[loss] if isinstance(loss, str) else loss
        self.clip_norm, self.keeps = float(clip_norm), initial == "keep"
        self.physical_batch = None if physical_batch is None else _validate.count(physical_batch, "batch")
        self.device = torch.device(device)
        self._plain = copy.deepcopy(module).to(self.device).eval()
        self.layout = _layout(self._plain)
        self.n_params = self.layout[-1].stop
        self.dtype = _number_type(self._plain)
        self._training = sharing_copy(self._plain).train()
        self._split = sharing_copy(self._training)  # what is traced: as `_training`, large layers taken apart
        attention, recurrent = split_attention(self._split), split_recurrent(self._split)
        self._attention, self._recurrent = attention, recurrent
        self._net = copy.deepcopy(self._split)
        self._twins = _replace_layers(self._net, self._places())
        self._anchor = torch.zeros((), device=self.device, requires_grad=True, dtype=self.dtype)
        self._paths: dict[Any, _Path] = {}
        self._types: dict[Any, torch.dtype] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_paths": {}}

    def __copy__(self) -> NetObjective:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)  # with what was found out about lots
        return other

    @property
    def uses_fallback(self) -> bool:
        """Whether gradients are formed one record at a time; before the first lot, judged from the layers."""
        return self._twins is None or any(path.trace is None for path in self._paths.values())

    def explain(self, inputs: Tensor, targets: Tensor) -> str:
        """Return how sums of such lots are computed, and why; ``inputs`` and ``targets`` lend their shapes.

        Examples
        --------
        >>> objective = NetObjective(nn.Sequential(nn.EmbeddingBag(9, 4), nn.Linear(4, 2)))
        >>> objective.explain(torch.zeros(1, 5, 3, dtype=torch.long), torch.zeros(1, 5, dtype=torch.long))
        "one record at a time: layer '0' (EmbeddingBag) has no fast form"
        """
        path = self._path(*self._typed(inputs, targets))
        return "fast: all records at once" if path.trace else f"one record at a time: {path.reason}"

    def random_init(self, rng: np.random.Generator, agents: int = 1) -> np.ndarray:
        """Return freshly drawn parameters, the same row for every agent, (agents, n_params)."""
        module = copy.deepcopy(self._training)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**62)))
            for layer in module.modules():
                if hasattr(layer, "reset_parameters"):
                    layer.reset_parameters()  # type: ignore[operator]
        return np.repeat(_flatten(module).cpu().numpy()[None], agents, axis=0)

    def initial_rows(self, rng: np.random.Generator, agents: int = 1, dim: int | None = None) -> np.ndarray:
        """Return the rows a run starts from: the module's own weights, or new ones with ``"reset"``."""
        return self.start(agents) if self.keeps else self.random_init(rng, agents)

    def start(self, agents: int = 1) -> np.ndarray:
        """Return the parameters the module came with, (agents, n_params)."""
        return np.repeat(_flatten(self._plain).cpu().numpy()[None], agents, axis=0)

    def module(self, row: np.ndarray) -> nn.Module:
        """Return a copy of the module with the parameters of ``row``, in evaluation mode."""
        module = copy.deepcopy(self._plain)
        with torch.no_grad():
            for name, value in self._named(torch.as_tensor(row, device=self.device)).items():
                module.get_parameter(name).copy_(value)
        return module

    @torch.no_grad()
    def clipped_sums(
        self, theta: Any, inputs: Tensor, targets: Tensor, present: Tensor | None = None
    ) -> Tensor:
        """Return the clipped sum of every agent's lot, (agents, n_params), in float64 (see `wide_sums`).

        Random numbers of dropout are drawn from torch's default generator: seed it to repeat a run.

        Parameters
        ----------
        theta : (agents, n_params) parameters.
        inputs, targets : (agents, lot, ...); shorter lots are padded to the longest.
        present : (agents, lot) bool, False on padding; all True by default.
        """
        theta = torch.as_tensor(theta, dtype=self.dtype, device=self.device)
        agents, batch_size = self._check(theta, inputs, targets)
        sums = torch.zeros(agents, self.n_params, device=self.device, dtype=torch.float64)
        if not agents * batch_size:
            return sums
        if present is None:
            present = torch.ones(agents, batch_size, dtype=torch.bool)
        inputs, targets = self._typed(inputs, targets)
        path = self._path(inputs, targets)
        chunk = max(1, batch_size if self.physical_batch is None else self.physical_batch // agents)
        for first in range(0, batch_size, chunk):
            part = slice(first, first + chunk)
            pieces = (inputs[:, part], targets[:, part], present[:, part])
            x, y, there = (piece.to(self.device) for piece in pieces)
            try:
                if path.trace is None:
                    self._single_sums(path.each, theta, x, y, there, sums)
                else:
                    self._stacked_sums(path.trace, theta, x, y, there, sums)
            except (RuntimeError, IndexError) as error:
                raise _bad_values(error) from error
        return sums

    @torch.no_grad()
    def losses(self, theta: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample under each agent's parameters, (agents, samples)."""
        inputs, targets = (t[0] for t in self._typed(inputs[None], targets[None]))
        return torch.stack([self.loss(out, targets.to(self.device)) for out in self.outputs(theta, inputs)])

    # ---- what a plan asks ----------------------------------------------------------------------------

    def prepared(self, data: AgentData) -> AgentData:
        """Return the agents' records in the form `query` takes."""
        if not isinstance(data, AgentData):
            raise DataError(
                f"a network takes AgentData, tensors with one part per agent, got {type(data).__name__}."
            )
        return data

    def describe(self) -> dict[str, Any]:
        """Return the network as plain values: what names it in records and checkpoints."""
        shapes = [[slot.name, list(slot.shape)] for slot in self.layout]
        loss = getattr(self.loss, "__name__", type(self.loss).__name__)
        kind = type(self._training).__name__
        return {
            "network": kind,
            "n_params": self.n_params,
            "loss": loss,
            "clip_norm": self.clip_norm,
            "parameters": shapes,
        }

    def query(self, data: AgentData) -> NetQuery:
        """Return what sums clipped gradients over lots of the agents' records."""
        return NetQuery(self, data)

    @property
    def task(self) -> str | None:
        """What the loss says is learned: classification, labels (yes or no each) or regression."""
        return TASKS.get(self.loss)

    @torch.no_grad()
    def metrics(self, rows: np.ndarray, data: AgentData) -> dict[str, Any]:
        """Return the agents' mean loss on the public test set, where there is one, and what fits the task.

        Classification: mean and least accuracy in percent. Yes-or-no labels: the share of right ones.
        Regression: the root of the mean squared error. A loss of one's own: accuracy where labels are whole
        numbers and the outputs have more numbers than one.
        """
        if data.test is None:
            return {}
        same = bool((rows == rows[0]).all())
        inputs, targets = (t[0] for t in self._typed(data.test[0][None], data.test[1][None]))
        targets = targets.to(self.device)
        losses, scores = [], []
        for out in self.outputs(rows[:1] if same else rows, inputs):
            losses.append(float(self.loss(out, targets).double().mean()))
            scores.append(self._score(out, targets))
        name, known = self._scored(targets), [score for score in scores if score is not None]
        found: dict[str, Any] = {"loss": float(np.mean(losses))}
        if name is None or not known:
            return found
        found[name] = float(np.mean(known))
        return found | ({"accuracy_least": float(np.min(known))} if name == "accuracy" else {})

    def _scored(self, targets: Tensor) -> str | None:
        if self.task == "regression":
            return "rmse"
        if self.task is None and (targets.is_floating_point() or targets.ndim != 1):
            return None
        return "accuracy"

    def _score(self, out: Any, targets: Tensor) -> float | None:
        """Accuracy in percent, or the root mean squared error."""
        out = _logits(out)
        if self.task == "regression":
            return float((out - targets.reshape(out.shape)).double().square().mean().sqrt())
        if self.task == "labels":
            wanted = targets.reshape(out.shape) > 0.5
            return 100 * float(((out > 0) == wanted).double().mean())
        if self.task is None and not (torch.is_tensor(out) and out.ndim == 2 and out.shape[1] > 1):
            return None
        return 100 * float((_scores(out).argmax(-1) == targets).float().mean())

    def accuracy(self, theta: Any, inputs: Tensor, targets: Tensor) -> np.ndarray:
        """Return the share of samples that each agent's network classifies rightly, (agents,)."""
        targets = targets.to(self.device)
        right = [
            (_scores(out).argmax(-1) == targets).float().mean().item() for out in self.outputs(theta, inputs)
        ]
        return np.array(right)

    def outputs(self, theta: Any, inputs: Tensor, chunk: int = 2000) -> Iterator[Any]:
        """Yield what each agent's network gives for all inputs, in evaluation mode."""
        theta = torch.as_tensor(theta, dtype=self.dtype, device=self.device)
        inputs = inputs.to(self._input_type(inputs[None]))
        with torch.no_grad():
            for row in theta:
                named = self._named(row)
                yield _joined([
                    torch.func.functional_call(self._plain, named, (inputs[i : i + chunk].to(self.device),))
                    for i in range(0, len(inputs), chunk)
                ])  # fmt: skip

    def output_shape(self, inputs: Tensor) -> tuple[int, ...] | None:
        """Return the shape of what the network gives for one record like ``inputs``; None if it cannot."""
        x = checks.random_inputs(self._plain, (1, *inputs.shape[1:]), self._input_type(inputs[None, :1])).to(
            self.device
        )
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                return tuple(_scores(copy.deepcopy(self._plain)(x)).shape[1:])
        except Exception:  # the first lot says what is wrong, in words
            return None

    def _typed(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets in the types that network and loss take; decided from their types and shapes."""
        inputs = inputs.to(self._input_type(inputs))
        return inputs, targets.to(self._target_type(inputs, targets))

    def _input_type(self, inputs: Tensor) -> torch.dtype:
        if inputs.is_floating_point():
            return self.dtype
        key = ("inputs", inputs.dtype, inputs.shape[2:])
        if key not in self._types:
            whole, number = (
                checks.random_inputs(self._plain, (1, *inputs.shape[2:]), kind)
                for kind in (torch.int64, self.dtype)
            )
            ids = _works(self._plain, whole.to(self.device)) or not _works(
                self._plain, number.to(self.device)
            )
            self._types[key] = torch.int64 if ids else self.dtype  # tokens, or pixels
        return self._types[key]

    def _target_type(self, inputs: Tensor, targets: Tensor) -> torch.dtype:
        if targets.is_floating_point():
            if self.loss is cross_entropy and targets.ndim == 2:
                raise InvalidInput(
                    f"cross_entropy wants whole numbers as labels, got {targets.dtype}; use labels.long(), "
                    "or loss='squared_error' for numbers."
                )
            return self.dtype
        key = ("targets", targets.dtype, inputs.shape[2:], targets.shape[2:])
        if key not in self._types:
            kinds = [torch.int64, self.dtype]
            works = [self._one_random_pass(inputs, targets, kind) is None for kind in kinds]
            self._types[key] = kinds[works.index(True)] if any(works) else torch.int64
        return self._types[key]

    def _one_random_pass(self, inputs: Tensor, targets: Tensor, kind: torch.dtype) -> InvalidInput | None:
        """One random record through network and loss, in training mode; what went wrong, if anything."""
        x = checks.random_inputs(self._plain, (1, *inputs.shape[2:]), inputs.dtype).to(self.device)

        def make(outputs: Any) -> Tensor:
            return checks.random_targets(outputs, (1, *targets.shape[2:]), kind).to(self.device)

        try:
            with torch.random.fork_rng(devices=[]):
                checks.explained(self._training, self.loss, x, make)
        except InvalidInput as error:
            return error
        return None

    @torch.no_grad()  # sums are taken by numpy, which refuses tensors that ask for gradients
    def _path(self, inputs: Tensor, targets: Tensor) -> _Path:
        """How lots of these shapes are computed; decided once, on random numbers."""
        key = (inputs.shape[2:], inputs.dtype, targets.shape[2:], targets.dtype)
        if key not in self._paths:
            error = self._one_random_pass(inputs, targets, targets.dtype)
            if error is not None:
                raise error
            self._paths[key] = self._choose(inputs, targets)
        return self._paths[key]

    def _choose(self, inputs: Tensor, targets: Tensor) -> _Path:
        rows = inputs.shape[0] * inputs.shape[1]
        x, y = self._random_lot(inputs, targets, 8)
        checks.refuse_mixing(self._training, self.loss, x, y)
        each = OneByOne(self._training, self.loss, self._named)
        try:
            steps = self._trace(self._split, inputs, targets)
            if self._agrees(steps, inputs, targets):
                return _Path(steps, each.loop, "")
            reason = "the fast form does not give the gradients of single records"
        except NotPerSample as found:
            reason = str(found)
        x, y = self._random_lot(inputs, targets, min(max(rows, 8), 64))
        checks.refuse_mixing(self._training, self.loss, x, y)
        row = self._random_rows(1)[0]
        random = checks.refuse_memory(each, row, x[:3], y[:3])
        return _Path(None, each.mapped if self._maps(each, row, x[:2], y[:2], random) else each.loop, reason)

    def _random_lot(self, inputs: Tensor, targets: Tensor, rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        x = checks.random_inputs(self._plain, (rows, *inputs.shape[2:]), inputs.dtype, seed).to(self.device)
        with torch.no_grad():
            try:
                outputs = copy.deepcopy(self._plain)(x[:1])
            except Exception:  # a network that only runs in training mode
                outputs = None
        shape = (rows, *targets.shape[2:])
        return x, checks.random_targets(outputs, shape, targets.dtype, seed + 1).to(self.device)

    def _random_rows(self, agents: int, seed: int = 0) -> Tensor:
        start = torch.as_tensor(self.start(agents), device=self.device)
        noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(seed)).to(start)
        return start * (1 + 0.1 * noise) + 0.01 * noise

    def _trace(self, net: nn.Module, inputs: Tensor, targets: Tensor) -> Trace:
        if self._twins is None:
            raise NotPerSample(_without_twin(self._split))
        steps = trace(
            net, self.loss, tuple(inputs.shape[2:]), inputs.dtype, tuple(targets.shape[2:]), targets.dtype,
            self._net,
        )  # fmt: skip
        for path in self._attention:
            if f"{path}.fused" in steps.layers and f"{path}.q" in steps.layers:
                raise NotPerSample(
                    f"attention '{path}' looks at its own input in one call, at another in the next"
                )
        return steps

    def _agrees(self, steps: Trace, inputs: Tensor, targets: Tensor) -> bool:
        """Whether the fast form gives what single records give, on random ones.

        In float64, where a kink that rounding decides one way or the other is no difference, and with dropout
        off; where a network takes neither, as it is.
        """
        for double in (True, False):
            exact = copy.copy(self)
            exact._paths = {}
            try:
                exact._become(double=double, quiet=steps.random)
                x = inputs.double() if double and inputs.is_floating_point() else inputs
                y = targets.double() if double and targets.is_floating_point() else targets
                steps = exact._trace(exact._split, x, y)
                return steps.random or exact._agrees_on(steps, x, y)
            except Exception:  # a network that insists on its own type
                continue
        return False

    def _become(self, *, double: bool, quiet: bool) -> None:
        """Be the same network in float64, with dropout off."""
        self._training = copy.deepcopy(self._training).train(not quiet)
        self._split = copy.deepcopy(self._training)
        split_attention(self._split)
        split_recurrent(self._split)
        if double:
            self.dtype = torch.float64
            self._training.double()
            self._split.double()
        self._net = copy.deepcopy(self._split)
        self._twins = _replace_layers(self._net, self._places())
        self._anchor = torch.zeros((), device=self.device, requires_grad=True, dtype=self.dtype)

    def _places(self) -> dict[str, Any]:
        """Where the parameters lie, of layers that were taken apart too."""
        return recurrent_slots(attention_slots(_slots(self.layout), self._attention), self._recurrent)

    def _agrees_on(self, steps: Trace, inputs: Tensor, targets: Tensor) -> bool:
        theta = self._random_rows(2).to(self.dtype)
        x, y = (t[:, None] for t in self._random_lot(inputs, targets, 2))
        there = torch.ones(2, 1, dtype=torch.bool, device=self.device)
        fast, slow = (torch.zeros_like(theta, dtype=torch.float64) for _ in range(2))
        before = [b.clone() for b in self._net.buffers()]
        with torch.random.fork_rng(devices=[]):
            NetObjective._stacked_sums(self, steps, theta, x, y, there, fast)
            each = OneByOne(self._training, self.loss, self._named)
            self._single_sums(each.loop, theta, x, y, there, slow)
        frozen = all(torch.equal(a, b) for a, b in zip(before, self._net.buffers(), strict=True))
        close = (fast - slow).norm() <= (1e-6 if self.dtype == torch.float64 else 1e-2) * slow.norm() + 1e-9
        return frozen and bool(close)

    def _maps(self, each: OneByOne, row: Tensor, x: Tensor, y: Tensor, random: bool) -> bool:
        """Whether `torch.func` takes the network and agrees with the loop."""
        try:
            with torch.random.fork_rng(devices=[]):
                mapped, looped = each.mapped(row, x, y), each.loop(row, x, y)
        except InvalidInput:
            raise
        except Exception:
            return False
        return random or bool((mapped - looped).norm() <= 1e-3 * looped.norm() + 1e-6)

    def _named(self, row: Tensor) -> dict[str, Tensor]:
        return {slot.name: row[slot.start : slot.stop].view(slot.shape) for slot in self.layout}

    def _check(self, theta: Tensor, inputs: Tensor, targets: Tensor) -> tuple[int, int]:
        if theta.ndim != 2 or theta.shape[1] != self.n_params or theta.shape[0] != inputs.shape[0]:
            raise InvalidInput(
                f"theta must have shape (agents, {self.n_params}) with one row per lot, got "
                f"{tuple(theta.shape)} for inputs of shape {tuple(inputs.shape)}."
            )
        if inputs.ndim < 2 or targets.shape[:2] != inputs.shape[:2]:
            raise InvalidInput(
                f"inputs and targets must have shape (agents, lot, ...), got {tuple(inputs.shape)} and "
                f"{tuple(targets.shape)}."
            )
        return theta.shape[0], inputs.shape[1]

    def _stacked_sums(
        self, steps: Trace, theta: Tensor, inputs: Tensor, targets: Tensor, present: Tensor, sums: Tensor
    ) -> None:
        assert self._twins is not None
        agents, batch_size = present.shape
        for twin in self._twins:
            twin.load(theta, self._anchor)
        flat = inputs.flatten(0, 1)
        with torch.enable_grad():
            losses = steps(flat, targets.flatten(0, 1))
            if losses.requires_grad:
                torch.autograd.grad(losses.sum(), self._anchor, allow_unused=True)
        squared = torch.zeros(agents * batch_size, device=self.device, dtype=torch.float64)
        used = [twin for twin in self._twins if twin.seen]  # the others have no gradient
        for twin in used:
            squared += twin.squared_norms()
        weights = clip_weights(squared, self.clip_norm)
        weights = torch.where(present.flatten(), weights, torch.zeros_like(weights))
        bad = ~torch.isfinite(squared)
        for twin in used:
            twin.add_weighted(sums, weights, bad if bool(bad.any()) else None)
            twin.forget()

    def _single_sums(
        self,
        each: Callable[[Tensor, Tensor, Tensor], Tensor],
        theta: Tensor,
        inputs: Tensor,
        targets: Tensor,
        present: Tensor,
        sums: Tensor,
    ) -> None:
        for a in range(theta.shape[0]):
            gradients = each(theta[a], inputs[a], targets[a])
            squared = row_squares(gradients)
            weights = clip_weights(squared, self.clip_norm) * present[a]
            finite = torch.where(torch.isfinite(squared)[:, None], gradients, 0.0)
            sums[a] += weighted_rows(weights[None], finite[None])[0]


class _Path(NamedTuple):
    """How sums are computed: a list of steps, or one record at a time and why."""

    trace: Trace | None
    each: Callable[[Tensor, Tensor, Tensor], Tensor]
    reason: str


def refuse_mixing_layers(module: nn.Module) -> None:
    """Raise for a layer that mixes the samples of a lot, by its name."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            size = layer.num_features
            groups = max(g for g in (1, 2, 4, 8, 16) if size % g == 0)
            raise InvalidInput(
                f"layer '{name}' ({type(layer).__name__}) mixes the samples of a lot, so one record's "
                f"influence cannot be clipped; use GroupNorm({groups}, {size}) in its place."
            )
        if getattr(layer, "track_running_stats", False):
            raise InvalidInput(
                f"layer '{name}' ({type(layer).__name__}) keeps running statistics of the records; "
                "set track_running_stats=False."
            )
        if isinstance(layer, nn.Embedding) and (layer.max_norm is not None or layer.scale_grad_by_freq):
            raise InvalidInput(
                f"layer '{name}' (Embedding) changes with the tokens of the lot; "
                "set max_norm=None and scale_grad_by_freq=False."
            )


def _refuse_unfinished(module: nn.Module) -> None:
    """Raise for weights that do not exist yet or are no numbers."""
    for name, value in module.named_parameters():
        if isinstance(value, nn.parameter.UninitializedParameter):
            raise InvalidInput(f"parameter '{name}' has no shape yet; run the module once on an example.")
        if not bool(torch.isfinite(value).all()):
            raise InvalidInput(f"parameter '{name}' holds NaN or infinity; give finite weights.")


def _layout(module: nn.Module) -> list[Slot]:
    slots: list[Slot] = []
    start = 0
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            slots.append(Slot(name, start, start + parameter.numel(), tuple(parameter.shape)))
            start += parameter.numel()
    if not slots:
        raise InvalidInput("the module has no trainable parameter, so there is nothing to learn.")
    return slots


def _slots(layout: list[Slot]) -> dict[str, Slot]:
    return {slot.name: slot for slot in layout}


def _number_type(module: nn.Module) -> torch.dtype:
    """The type of the trainable parameters, which must be one, float32 or float64."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.float64):
            raise InvalidInput(
                f"parameter '{name}' is {parameter.dtype}, too coarse to clip in; train in float32 "
                "(module.float()) and convert the result."
            )
    kinds = {p.dtype for p in module.parameters() if p.requires_grad}
    if len(kinds) > 1:
        raise InvalidInput("the parameters are partly float32 and partly float64; use module.float().")
    return kinds.pop()


def _works(module: nn.Module, x: Tensor) -> bool:
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            copy.deepcopy(module)(x)
    except Exception:
        return False
    return True


def _joined(parts: list[Any]) -> Any:
    """Outputs of several chunks as one, whatever they are made of."""
    return pytree.tree_map(
        lambda *pieces: torch.cat(pieces) if torch.is_tensor(pieces[0]) else pieces[0], *parts
    )


def _scores(outputs: Any) -> Tensor:
    """The tensor in which the largest number names the class."""
    outputs = _logits(outputs)
    if not torch.is_tensor(outputs):
        raise InvalidInput(
            f"accuracy needs a network that gives one tensor of scores or a dict with 'logits', got "
            f"{type(outputs).__name__}; measure `losses` instead."
        )
    return outputs


def _bad_values(error: Exception) -> InvalidInput:
    first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return InvalidInput(
        f"the lot holds a value that network or loss cannot use (a label or a token out of range?): {first}; "
        "labels go from 0 to classes - 1, tokens from 0 to num_embeddings - 1."
    )


def _without_twin(net: nn.Module) -> str:
    """Which layer has no fast form."""
    owners: dict[int, str] = {}
    for name, layer in net.named_modules():
        own = [p for p in layer._parameters.values() if p is not None]
        for parameter in own:
            if id(parameter) in owners:
                return f"layers '{owners[id(parameter)]}' and '{name}' share a parameter"
            owners[id(parameter)] = name
        slots = {key: object() for key, p in layer._parameters.items() if p is not None}
        trained = [p.requires_grad for p in own]
        if any(trained) and not (all(trained) and stacked_twin(layer, slots)):
            kind = type(layer).__name__
            where = f"layer '{name}' ({kind})" if name else f"the network itself ({kind})"
            return f"{where} {'has no fast form' if all(trained) else 'trains a part of its parameters'}"
    return "a layer has no fast form"


def _flatten(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters() if p.requires_grad])


def _replace_layers(net: nn.Module, slots: dict[str, Slot]) -> list[Stacked] | None:
    """Put stacked twins in the place of the layers with parameters; None when one has no twin."""
    seen: set[int] = set()
    for parameter in (p for layer in net.modules() for p in layer._parameters.values() if p is not None):
        if id(parameter) in seen:
            return None  # tied weights: the norm of a sum of two layers' gradients is not a sum of norms
        seen.add(id(parameter))
    twins: list[Stacked] = []
    for name, layer in list(net.named_modules()):
        prefix = f"{name}." if name else ""
        own = {key: slots.get(prefix + key) for key, p in layer._parameters.items() if p is not None}
        if not own or all(slot is None for slot in own.values()):
            continue
        twin = stacked_twin(layer, own) if all(slot is not None for slot in own.values()) else None
        if twin is None:
            return None
        layer.forward = twin
        twins.append(twin)
    return twins


class NetQuery:
    """Sums of clipped gradients of the hosted agents' records (see `GradientQuery`)."""

    decay = 0.0
    compiled_descent = None

    def __init__(self, objective: NetObjective, data: AgentData) -> None:
        self.objective, self.data = copy.copy(objective), data  # the copy's clip is set by the gate
        self.width, self.sizes = objective.n_params, data.sizes
        self.dtype = np.float64 if objective.dtype == torch.float64 else np.float32
        self._seeds: Callable[[int], int] | None = None

    def reseed(self, seeds: Callable[[int], int]) -> None:
        """Draw dropout and random transforms of the next sums from ``seeds(place)``, leave torch's own alone.

        Each agent draws from a seed of its own, so its numbers do not depend on who is hosted beside it.
        """
        self._seeds = seeds

    def sums(
        self, theta: np.ndarray, batches: Sequence[np.ndarray], places: Sequence[int], clip_norm: float
    ) -> np.ndarray:
        """Return, per place, the sum over its lot of gradients clipped to ``clip_norm``."""
        self.objective.clip_norm = clip_norm
        if self._seeds is None or not self._draws():
            return self._sums(theta, batches, places)
        found = []
        with torch.random.fork_rng(devices=[]):
            for row, batch, place in zip(theta, batches, places, strict=True):
                torch.manual_seed(self._seeds(place))
                found.append(self._sums(row[None], [batch], [place]))
        return np.concatenate(found) if found else self._sums(theta, batches, places)

    def _draws(self) -> bool:
        """Whether sums may draw random numbers: dropout, transforms of a lazy dataset, what is unknown."""
        if type(self.data) is not AgentData:
            return True
        one = [t[None, :1] for t in (self.data.inputs, self.data.targets)]  # their shapes
        path = self.objective._path(*self.objective._typed(*one))
        return path.trace is None or path.trace.random

    def _sums(self, theta: np.ndarray, batches: Sequence[np.ndarray], places: Sequence[int]) -> np.ndarray:
        x, y, present = self.data.gather(batches, list(places))
        return np.asarray(self.objective.clipped_sums(theta, x, y, present).cpu().numpy())
