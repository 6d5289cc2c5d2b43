r"""Clipped sums of per-sample gradients for any network, all agents at once.

.. math:: S_a(\theta_a) = \sum_{d \in lot_a} \min(1, C / \|g_d\|)\, g_d, \quad g_d = \nabla \ell(\theta_a; d)

No per-sample gradient is formed where its norm suffices. The network runs once on the lots of all agents
laid end to end; its layers with parameters are replaced by stacked twins (`nets_layers`) which read the
weights of agent ``a`` from row ``a`` of a matrix and keep what they saw. One backward pass yields the norms
(ghost norms), and one product per layer the weighted sum (book-keeping) [1], [2].

References
----------
[1] Bu, Wang, Zha, Karypis 2023, "Differentially Private Optimization on Large Model at Small Cost".
[2] Li, Tramèr, Liang, Hashimoto 2022, "Large Language Models Can Be Strong Differentially Private Learners".
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sottovoce import _validate
from sottovoce.errors import InvalidInput
from sottovoce.objectives.nets_layers import Stacked, stacked_twin

__all__ = ["NetObjective", "Slot", "clip_weights", "cross_entropy", "squared_error"]

PerSampleLoss = Callable[[Tensor, Tensor], Tensor]


class Slot(NamedTuple):
    """Where one parameter lives in a row.

    Examples
    --------
    >>> Slot("weight", 0, 6, (2, 3)).shape
    (2, 3)
    """

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each sample, (samples,).

    Examples
    --------
    >>> cross_entropy(torch.zeros(2, 10), torch.tensor([1, 2])).tolist() == [np.float32(np.log(10))] * 2
    True
    """
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return half the squared error of each sample, (samples,).

    Examples
    --------
    >>> squared_error(torch.tensor([[3.0], [1.0]]), torch.tensor([[1.0], [1.0]])).tolist()
    [2.0, 0.0]
    """
    return 0.5 * (outputs - targets).flatten(1).square().sum(1)


LOSSES: dict[str, PerSampleLoss] = {"cross_entropy": cross_entropy, "squared_error": squared_error}


def clip_weights(squared_norms: Tensor, max_grad_norm: float) -> Tensor:
    """Return ``min(1, C / norm)`` for each sample, and 0 where the norm is not finite.

    ``max_grad_norm = inf`` switches clipping off (for runs without noise); bad records still count zero.

    Examples
    --------
    >>> clip_weights(torch.tensor([4.0, 0.25, float("nan")]), 1.0).tolist()
    [0.5, 1.0, 0.0]
    """
    norms = squared_norms.clamp(min=0).sqrt()
    weights = (max_grad_norm / norms.clamp(min=1e-30)).clamp(max=1.0)
    return torch.where(torch.isfinite(squared_norms), weights, torch.zeros_like(weights))


class NetObjective:
    """A network and its loss, seen as a function of parameter rows, one row per agent.

    Parameters
    ----------
    module : any ``nn.Module`` whose first input axis is the sample. A copy is made.
    loss : ``"cross_entropy"``, ``"squared_error"``, or a function ``(outputs, targets) -> (samples,)``.
    max_grad_norm : C; ``inf`` for no clipping.
    physical_batch : how many samples, all agents together, go through the network at a time; a larger lot
        is split into such chunks whose sums are added, and is still one lot.
    device : where the work is done.

    Guarantees
    ----------
    One record changes the sum of its agent by at most C in Euclidean norm (add or remove; 2C for replace),
    up to float32 rounding of the order 1e-6 C. A record with NaN or infinity anywhere in its gradient
    contributes zero. Layers that mix samples are refused: BatchNorm and its kind by name, others by a probe
    on random input before the first lot.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> objective = NetObjective(net, max_grad_norm=1.0)
    >>> theta = objective.initial(np.random.default_rng(0), agents=2)
    >>> theta.shape == (2, 4 * 8 + 8 + 8 * 3 + 3)
    True
    >>> x, y = torch.randn(2, 5, 4), torch.zeros(2, 5, dtype=torch.long)
    >>> sums = objective.clipped_sums(theta, x, y)
    >>> bool((sums.norm(dim=1) <= 5).all())
    True
    """

    def __init__(
        self,
        module: nn.Module,
        loss: str | PerSampleLoss = "cross_entropy",
        *,
        max_grad_norm: float = 1.0,
        physical_batch: int | None = None,
        device: str = "cpu",
    ) -> None:
        refuse_mixing_layers(module)
        if isinstance(loss, str) and loss not in LOSSES:
            raise InvalidInput(f"loss must be one of {sorted(LOSSES)} or a function, got {loss!r}.")
        if max_grad_norm != float("inf"):
            _validate.positive(max_grad_norm, "max_grad_norm")
        self.loss = LOSSES[loss] if isinstance(loss, str) else loss
        self.max_grad_norm = float(max_grad_norm)
        self.physical_batch = None if physical_batch is None else _validate.count(physical_batch, "batch")
        self.device = torch.device(device)
        self._plain = copy.deepcopy(module).to(self.device)
        self.layout = _layout(self._plain)
        self.n_params = self.layout[-1].stop
        self._net = copy.deepcopy(self._plain)
        self._twins = _replace_layers(self._net)
        self._anchor = torch.zeros((), device=self.device, requires_grad=True)
        self._probed = False

    @property
    def uses_fallback(self) -> bool:
        """Whether some layer has no stacked twin, so that `torch.func` forms each gradient."""
        return self._twins is None

    def initial(self, rng: np.random.Generator, agents: int = 1) -> np.ndarray:
        """Return freshly drawn parameters, the same row for every agent, (agents, n_params) float32."""
        module = copy.deepcopy(self._plain)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**62)))
            for layer in module.modules():
                if hasattr(layer, "reset_parameters"):
                    layer.reset_parameters()  # type: ignore[operator]
        return np.repeat(_flatten(module).numpy()[None], agents, axis=0)

    def start(self, agents: int = 1) -> np.ndarray:
        """Return the parameters the module came with, (agents, n_params) float32."""
        return np.repeat(_flatten(self._plain).cpu().numpy()[None], agents, axis=0)

    def module(self, row: np.ndarray) -> nn.Module:
        """Return a copy of the module with the parameters of ``row``, to use outside Sottovoce."""
        module = copy.deepcopy(self._plain)
        with torch.no_grad():
            for name, value in self._named(torch.as_tensor(row, device=self.device)).items():
                module.get_parameter(name).copy_(value)
        return module

    @torch.no_grad()
    def clipped_sums(
        self, theta: Any, inputs: Tensor, targets: Tensor, present: Tensor | None = None
    ) -> Tensor:
        """Return the clipped sum of every agent's lot, (agents, n_params) float32.

        Parameters
        ----------
        theta : (agents, n_params) parameters.
        inputs, targets : (agents, lot, ...); shorter lots are padded to the longest.
        present : (agents, lot) bool, False on padding; all True by default.
        """
        theta = torch.as_tensor(theta, dtype=torch.float32, device=self.device)
        agents, lot = self._check(theta, inputs)
        sums = torch.zeros(agents, self.n_params, device=self.device)
        if present is None:
            present = torch.ones(agents, lot, dtype=torch.bool)
        self._probe(inputs)
        chunk = max(1, lot if self.physical_batch is None else self.physical_batch // agents)
        work: Callable[..., None] = self._fallback_sums if self._twins is None else self._stacked_sums
        for first in range(0, lot, chunk):
            part = slice(first, first + chunk)
            pieces = (inputs[:, part], targets[:, part], present[:, part])
            work(theta, *(piece.to(self.device) for piece in pieces), sums)
        return sums

    @torch.no_grad()
    def losses(self, theta: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample under each agent's parameters, (agents, samples)."""
        return torch.stack([self.loss(out, targets.to(self.device)) for out in self._outputs(theta, inputs)])

    def accuracy(self, theta: Any, inputs: Tensor, targets: Tensor) -> np.ndarray:
        """Return the share of samples that each agent's network classifies rightly, (agents,)."""
        targets = targets.to(self.device)
        right = [(out.argmax(-1) == targets).float().mean().item() for out in self._outputs(theta, inputs)]
        return np.array(right)

    def _outputs(self, theta: Any, inputs: Tensor, chunk: int = 2000) -> Any:
        theta = torch.as_tensor(theta, dtype=torch.float32, device=self.device)
        with torch.no_grad():
            for row in theta:
                named = self._named(row)
                yield torch.cat([
                    torch.func.functional_call(self._plain, named, (inputs[i : i + chunk].to(self.device),))
                    for i in range(0, len(inputs), chunk)
                ])  # fmt: skip

    def _named(self, row: Tensor) -> dict[str, Tensor]:
        return {slot.name: row[slot.start : slot.stop].view(slot.shape) for slot in self.layout}

    def _check(self, theta: Tensor, inputs: Tensor) -> tuple[int, int]:
        if theta.ndim != 2 or theta.shape[1] != self.n_params or theta.shape[0] != inputs.shape[0]:
            raise InvalidInput(
                f"theta must have shape (agents, {self.n_params}) with one row per lot, got "
                f"{tuple(theta.shape)} for inputs of shape {tuple(inputs.shape)}."
            )
        return theta.shape[0], inputs.shape[1]

    def _stacked_sums(
        self, theta: Tensor, inputs: Tensor, targets: Tensor, present: Tensor, sums: Tensor
    ) -> None:
        assert self._twins is not None
        agents, lot = present.shape
        for twin in self._twins:
            twin.load(theta, self._anchor)
        flat = inputs.flatten(0, 1)
        with torch.enable_grad():
            outputs = self._net(flat)
            losses = self.loss(outputs, targets.flatten(0, 1))
            if losses.shape != (agents * lot,):
                raise InvalidInput(
                    f"the loss must give one number per sample, shape ({agents * lot},), got "
                    f"{tuple(losses.shape)}; use reduction='none'."
                )
            torch.autograd.grad(losses.sum(), self._anchor)
        squared = torch.zeros(agents * lot, device=self.device)
        for twin in self._twins:
            squared += twin.squared_norms()
        weights = clip_weights(squared, self.max_grad_norm)
        weights = torch.where(present.flatten(), weights, torch.zeros_like(weights))
        bad = ~torch.isfinite(squared)
        for twin in self._twins:
            twin.add_weighted(sums, weights, bad if bool(bad.any()) else None)
            twin.forget()

    def _fallback_sums(
        self, theta: Tensor, inputs: Tensor, targets: Tensor, present: Tensor, sums: Tensor
    ) -> None:
        def loss_of(row: Tensor, x: Tensor, y: Tensor) -> Tensor:
            out = torch.func.functional_call(self._plain, self._named(row), (x[None],))
            return self.loss(out, y[None]).sum()

        each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0), randomness="different")
        for a in range(theta.shape[0]):
            gradients = each(theta[a], inputs[a], targets[a])
            squared = gradients.square().sum(1)
            weights = clip_weights(squared, self.max_grad_norm) * present[a]
            sums[a] += weights @ torch.where(torch.isfinite(squared)[:, None], gradients, 0.0)

    def _probe(self, inputs: Tensor) -> None:
        """Refuse a network whose output for one sample depends on another sample of the lot."""
        if self._probed or inputs.shape[0] * inputs.shape[1] == 0:
            return
        shape = (3, *inputs.shape[2:])
        if inputs.is_floating_point():
            one = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(inputs.dtype)
            other = one.clone()
            other[1:] = 3 - 2 * one[1:].flip(0)
        else:
            one, other = torch.zeros(shape, dtype=inputs.dtype), torch.zeros(shape, dtype=inputs.dtype)
            other[1:] = 1
        was_training = self._plain.training
        self._plain.train(False)
        with torch.no_grad():
            a, b = self._plain(one.to(self.device))[0], self._plain(other.to(self.device))[0]
        self._plain.train(was_training)
        if not torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True):
            raise InvalidInput(
                "the network's output for one sample changes with the other samples of the lot, so a "
                "per-sample gradient does not exist; replace the step that mixes samples (GroupNorm for a "
                "batch statistic)."
            )
        self._probed = True


def refuse_mixing_layers(module: nn.Module) -> None:
    """Raise for a layer that mixes the samples of a lot, by its name.

    Examples
    --------
    >>> refuse_mixing_layers(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)))
    Traceback (most recent call last):
    ...
    sottovoce.errors.InvalidInput: layer '1' (BatchNorm2d) mixes the samples of a lot, ...
    """
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


def _flatten(module: nn.Module) -> Tensor:
    values = [p.detach().flatten() for p in module.parameters() if p.requires_grad]
    return torch.cat(values).float()


def _replace_layers(net: nn.Module) -> list[Stacked] | None:
    """Put stacked twins in the place of the layers with parameters; None when one has no twin."""
    seen: set[int] = set()
    for parameter in (p for layer in net.modules() for p in layer._parameters.values() if p is not None):
        if id(parameter) in seen:
            return None  # tied weights: the norm of a sum of two layers' gradients is not a sum of norms
        seen.add(id(parameter))
    slots = {slot.name: slot for slot in _layout(net)}
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
