"""A training loop of one's own in torch, whose optimizer takes the steps of a private plan.

The loop stays as it is: batches from a loader, a forward pass, a loss, ``loss.backward()``,
``optimizer.step()``. The step is one of `sottovoce.runners.run.PlanRun`: it samples, clips the gradient
of every record, adds noise, mixes the rows of all sites and applies the optimizer, as `sottovoce.fit` does.
The gradient that reaches the parameters is never that of the loop's own backward pass, which could not be
clipped record by record: the loss must be the one given to `make_private`, and any other is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sottovoce import _validate
from sottovoce.accounting.budget import Budget
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.algorithms.gradient_plan import GradientPlan
from sottovoce.algorithms.optimizers import RateTable
from sottovoce.algorithms.plan import Plan
from sottovoce.data.batch_loaders import BatchLoader, loader_batch_size, loader_dataset
from sottovoce.errors import BudgetExceeded, InvalidInput
from sottovoce.estimators.fitting import Sites, noise_source, prepare
from sottovoce.estimators.schedulers import FIXED
from sottovoce.estimators.training import TrainingOptions
from sottovoce.graphs import Network
from sottovoce.mechanisms.gradient import GradientMechanism
from sottovoce.models.adapters import Loss
from sottovoce.models.fitted import Fitted
from sottovoce.models.prepared import PreparedFit
from sottovoce.noise.samplers import ProtectiveNoise
from sottovoce.objectives.nets.gradient_path import flatten
from sottovoce.runners.run import PlanRun

if TYPE_CHECKING:
    import networkx

_ANCHOR = torch.zeros((), requires_grad=True)  # makes autograd run backward; its own gradient is never set
LOOP = "the loop neither publishes losses or outputs of private batches nor lets them steer training"
_OTHER_LOSS = (
    "this loss is not the criterion of make_private alone, so one record's influence on it is not bounded; "
    "call backward on private.criterion(outputs, targets), unchanged."
)


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data_loader: object,
    *,
    budget: Budget,
    epochs: float,
    network: str | Network | networkx.Graph | None = None,
    criterion: Loss = None,
    clip_norm: float = 1.0,
    algorithm: str | None = None,
    group: str | Sites | None = None,
    label: str | None = None,
    classes: Sequence[object] | None = None,
    physical_batch: int | None = None,
    accept: Sequence[str] = (),
    rng: np.random.Generator | ProtectiveNoise | None = None,
    population: str | None = None,
    **options: object,
) -> PrivateTraining:
    """Return a model, an optimizer, a criterion and a loader for a private training loop of one's own.

    Parameters
    ----------
    model, optimizer : a torch module and an SGD, Adam or AdamW of its parameters. The weights of the module
        move with the steps; schedulers of the optimizer work as usual.
    data_loader : a DataLoader with the records of all sites; its batch size, over all sites, becomes the
        expected size of Poisson batches.
    budget, epochs : what may be spent, against whom, and the passes over the data that it is for.
    network : who talks to whom in a simulation of all sites in this process; None for one site that holds
        all records (dp-sgd).
    criterion : a torch loss or a function (outputs, targets) -> one number per record; by default what fits
        the labels.
    clip_norm : l2 bound of one record's gradient.
    algorithm : by default consensus-sgd over a network, dp-sgd without one.
    group, label, classes, accept, rng, population, options, physical_batch : as in `sottovoce.fit`.

    Guarantees
    ----------
    Those of `sottovoce.fit`, for the weights of the model after any number of steps up to the budget's. The
    charge to the lifetime ledger is made in the first ``optimizer.step()``, before noise is drawn; all
    ``epochs`` are charged, and steps beyond them are refused. Outputs and losses that the loop computes from
    private batches are not protected: the guarantee holds as long as they are neither published nor used
    to decide anything, and says so.

    Examples
    --------
    >>> import sottovoce as sv
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> X = torch.rand(400, 2) - 0.5
    >>> data = TensorDataset(X, (X[:, 0] > X[:, 1]).long())
    >>> net = nn.Linear(2, 2)
    >>> private = make_private(net, torch.optim.SGD(net.parameters(), lr=1.0), DataLoader(data, 40), epochs=2,
    ...                        network="complete:4", budget=sv.Budget(3.0, 1e-5),
    ...                        rng=np.random.default_rng(0))
    >>> model, optimizer, criterion, loader = private
    >>> for epoch in range(2):
    ...     for inputs, targets in loader:
    ...         optimizer.zero_grad()
    ...         loss = criterion(model(inputs), targets)
    ...         loss.backward()
    ...         optimizer.step()
    >>> round(private.get_epsilon(1e-5), 1)
    3.0
    """
    if not isinstance(data_loader, BatchLoader):
        raise InvalidInput(
            f"make_private takes a torch DataLoader, got {type(data_loader).__name__}; sv.fit takes the rest."
        )
    if not isinstance(model, nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidInput(
            "make_private takes a torch module and an optimizer of it, got "
            f"{type(model).__name__} and {type(optimizer).__name__}."
        )
    _validate.positive(epochs, "epochs")
    noise = noise_source(rng)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    held = [parameter for each in optimizer.param_groups for parameter in each["params"]]
    if {id(p) for p in held if p.requires_grad} != {id(p) for p in trained}:
        raise InvalidInput("the optimizer must hold the trainable parameters of this model, all of them.")
    records, batch_size = len(loader_dataset(data_loader)), loader_batch_size(data_loader)
    rates = RateTable([float(optimizer.param_groups[0]["lr"])])
    training = TrainingOptions(
        steps=math.ceil(epochs * math.ceil(records / batch_size)),
        learning_rate=rates,
        optimizer=optimizer,
        clip_norm=clip_norm,
        loss=criterion,
        classes=classes,
        physical_batch=physical_batch,
        device=str(trained[0].device) if trained else "cpu",
    )
    prepared = prepare(
        model,
        data_loader,
        network=network,
        budget=budget,
        training=training,
        algorithm=algorithm or ("dp-sgd" if network is None else "consensus-sgd"),
        label=label,
        group=group,
        accept=accept,
        simulated=not isinstance(noise, ProtectiveNoise),
        options=options,
        notes=[LOOP],
        caller=make_private,
    )
    running = PlanRun(
        prepared.plan,
        prepared.adapter.data,
        noise,
        purpose="own loop",
        population=population,
        guarantees=prepared.statements,
    )
    plan, mechanism = prepared.plan, running.mechanism
    if not (isinstance(plan, GradientPlan) and plan.one_batch_per_step):
        raise InvalidInput(
            f"{plan.name} draws other batches than one per site and step; take consensus-sgd, dp-dsgd, "
            "dp-dsgt or muffliato-sgd."
        )
    assert isinstance(mechanism, GradientMechanism)
    state = _LoopState(model, optimizer, prepared, running, mechanism, rates, math.ceil(records / batch_size))
    return PrivateTraining(
        PrivateModule(state), PrivateOptimizer(state), PrivateCriterion(state), PrivateLoader(state), state
    )


@dataclass(frozen=True)
class PrivateTraining:
    """The objects of a private training loop; they unpack as model, optimizer, criterion, data_loader."""

    model: PrivateModule
    optimizer: PrivateOptimizer
    criterion: PrivateCriterion
    data_loader: PrivateLoader
    _state: _LoopState

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.optimizer, self.criterion, self.data_loader))

    @property
    def plan(self) -> Plan:
        """The plan whose steps the optimizer takes."""
        return self._state.prepared.plan

    @property
    def privacy(self) -> Guarantee:
        """The guarantee of all steps that the budget is for."""
        return self._state.prepared.privacy

    def get_epsilon(self, delta: float) -> float:
        """Return epsilon of the steps taken so far, against the budget's adversary."""
        done, budget = self._state.running.done, self._state.prepared.budget
        if not done:
            return 0.0
        assert budget is not None
        shorter: Plan = replace(self.plan, steps=done)  # type: ignore[type-var]
        return shorter.privacy(**budget.adversary).epsilon(delta)

    def fitted(self) -> Fitted:
        """Return the model with its guarantee, as `sottovoce.fit` does: to save it, or to predict."""
        if not self._state.running.done:
            raise InvalidInput("the loop has taken no step yet, so nothing is fitted.")
        return self._state.prepared.fitted(self._state.running.result())


@dataclass(eq=False)
class _LoopState:
    """What the four objects share: the run, the module it moves, and where the loop is in a step."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    prepared: PreparedFit
    running: PlanRun
    mechanism: GradientMechanism
    rates: RateTable
    steps_per_pass: int
    backward_done: bool = False

    def __post_init__(self) -> None:
        self.parameters = list(self.module.parameters())  # a walk through all layers takes long
        self.trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        self.row = flatten(self.trained)  # what the module holds while nobody else changes it
        self.fixed = self._options()

    def _options(self) -> list[list[Any]]:
        """Return what the optimizer's groups hold besides a common rate."""
        groups = self.optimizer.param_groups
        first = float(groups[0]["lr"]) or 1.0
        return [
            [round(float(group["lr"]) / first, 9), *(group.get(key) for key in FIXED)] for group in groups
        ]

    def forget_backward(self) -> None:
        """Let no step follow before the next backward pass."""
        self.backward_done = False

    def require_steps(self) -> None:
        """Raise if the budget's steps are used up."""
        steps = self.prepared.plan.steps
        if self.running.done >= steps:
            raise BudgetExceeded(
                f"the budget is for {steps:,} steps, and all of them are done; give make_private more epochs "
                "to spend it on more steps with more noise."
            )

    def step(self) -> None:
        """Take the next step of the plan, and write its model into the module."""
        self.require_steps()
        if not self.backward_done:
            raise InvalidInput("call loss.backward() of private.criterion before optimizer.step().")
        if any(parameter.grad is not None for parameter in self.parameters):
            raise InvalidInput(
                "a parameter has a gradient of another loss, which a private step cannot use; for a penalty "
                "take weight_decay of the optimizer."
            )
        if not np.array_equal(flatten(self.trained).view(np.uint8), self.row.view(np.uint8)):
            raise InvalidInput(
                "the weights were changed beside the optimizer; load them before make_private."
            )
        if self._options() != self.fixed:
            raise InvalidInput(
                "the optimizer may change its rate and nothing else (momentum, weight decay, the relation of "
                "its groups) after make_private."
            )
        done = self.running.done
        self.rates.values[done:] = [float(self.optimizer.param_groups[0]["lr"])]
        self.running.advance(done + 1)
        self.backward_done = False
        rows = self.running.rows
        alike = len(rows) == 1 or bool((rows == rows[0]).all())
        self.row = rows[0] if alike else rows.mean(axis=0).astype(rows.dtype)
        with torch.no_grad():
            parts = torch.split(torch.as_tensor(self.row), [parameter.numel() for parameter in self.trained])
            for parameter, values in zip(self.trained, parts, strict=True):
                parameter.copy_(values.view_as(parameter))

    def batch(self) -> tuple[Any, Tensor]:
        """Return inputs and targets that the next step samples, of all sites together."""
        mechanism, data = self.mechanism, self.running.data
        places = range(len(mechanism.agents))
        x, y, present = data.gather_ahead(mechanism.batches.draw(places, self.running.done, 0), list(places))
        objective, layout = self.prepared.adapter.objective, self.prepared.adapter.layout
        inputs, targets = objective.paths.typed(x, y)
        at = present.flatten().nonzero()[:, 0]
        rows, labels = (part.flatten(0, 1).index_select(0, at) for part in (inputs, targets))
        return (rows if layout is None else layout.unpack(rows)), labels


def _of_tensors(function: Callable[[Tensor], Tensor], outputs: Any) -> Any:
    """Return outputs with ``function`` of each tensor in its place."""
    if torch.is_tensor(outputs):
        return function(outputs)
    return pytree.tree_map(lambda leaf: function(leaf) if torch.is_tensor(leaf) else leaf, outputs)


class PrivateModule(nn.Module):
    """The caller's module; in training its outputs feed the private criterion and no other loss."""

    def __init__(self, state: _LoopState) -> None:
        super().__init__()
        self.module, self._forget = state.module, state.forget_backward

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the module's outputs."""
        if not self.training or not torch.is_grad_enabled():
            return self.module(*inputs, **named)
        buffers = [buffer.clone() for buffer in self.module.buffers()]
        with torch.no_grad():
            outputs = self.module(*inputs, **named)
            for buffer, before in zip(self.module.buffers(), buffers, strict=True):
                buffer.copy_(before)  # what a layer counts of private records stays out of the model
        return _of_tensors(lambda leaf: _Output.apply(_ANCHOR, leaf, self._forget), outputs)  # type: ignore[no-untyped-call]


class PrivateCriterion:
    """The loss of the plan: its mean over a batch, whose ``backward`` lets the optimizer step."""

    def __init__(self, state: _LoopState) -> None:
        self._state = state

    def __call__(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the mean loss of the batch; of an empty one, zero."""
        state = self._state
        with torch.no_grad():
            plain = _of_tensors(Tensor.detach, outputs)
            losses = state.prepared.adapter.objective.loss(plain, targets)
        value = losses.cpu().double().mean() if len(losses) else torch.zeros((), dtype=torch.float64)

        def done() -> None:
            state.backward_done = True

        loss: Tensor = _Loss.apply(_ANCHOR, value, done)  # type: ignore[no-untyped-call]
        return loss


class PrivateOptimizer(torch.optim.Optimizer):
    """The caller's optimizer, whose step is one of the plan's; schedulers see its parameter groups."""

    def __init__(self, state: _LoopState) -> None:
        # groups and options are those of the caller's optimizer, so that its schedulers act on both
        self._state = state
        self.__dict__ |= {
            key: value for key, value in vars(state.optimizer).items() if key not in ("step", "_state")
        }

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the last backward pass."""
        self._state.forget_backward()
        for parameter in self._state.parameters:
            parameter.grad = None

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take the next step of the plan; the first one is charged before it draws noise."""
        if closure is not None:
            raise InvalidInput("a private step evaluates no closure; leave it out.")
        self._state.step()
        vars(self._state.optimizer)["_opt_called"] = True  # what a scheduler of that optimizer looks for


class PrivateLoader:
    """Poisson batches of the records of all sites, each the one that the next step uses."""

    def __init__(self, state: _LoopState) -> None:
        self._state = state

    def __len__(self) -> int:
        """Batches of one pass."""
        return self._state.steps_per_pass

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        for _ in range(len(self)):
            self._state.require_steps()
            yield self._state.batch()


class _Output(torch.autograd.Function):
    """Passes outputs on and refuses every gradient."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, output: Tensor, refuse: Callable[[], None]) -> Tensor:
        ctx.refuse = refuse
        return output.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.refuse()  # the private part of a sum of losses may have gone backward before
        raise InvalidInput(_OTHER_LOSS)


class _Loss(torch.autograd.Function):
    """A loss whose backward pass says that it was called, and refuses a changed loss."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, value: Tensor, done: Callable[[], None]) -> Tensor:
        ctx.done = done
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if float(gradients[0]) != 1.0:
            raise InvalidInput(_OTHER_LOSS)
        ctx.done()
        return None, None, None
