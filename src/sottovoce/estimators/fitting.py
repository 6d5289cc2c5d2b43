"""One call from a module and data of one's own to the fitted model and its price."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sottovoce import _validate, graphs
from sottovoce.accounting import wording
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.algorithms import registry
from sottovoce.algorithms.optimizers import Optimizer
from sottovoce.algorithms.plan import CentralPlan, GradientPlan, Plan, as_network
from sottovoce.data.ingest import UserData, ingest
from sottovoce.data.partition import by_column
from sottovoce.data.tables import TableData
from sottovoce.errors import DataError, GraphError, InvalidInput, Refused
from sottovoce.graphs import Network
from sottovoce.ledger.charge import charge
from sottovoce.ledger.lifetime import find_lifetime_ledger
from sottovoce.models.adapters import ModelOptions, adapt_model
from sottovoce.models.saved import Fitted, with_statement
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import ProtectiveNoise

__all__ = ["fit"]

SIMULATED = "the noise is simulated from a seed: this fit is a simulation and protects nobody"
ITEMS = "each item of the dataset is made from one record, and random numbers, alone"
TEST = "the test records are public"
_OTHER_WORDS = {
    "max_grad_norm": "clip_norm",
    "l2_norm_clip": "clip_norm",
    "target_epsilon": "epsilon",
    "target_delta": "delta",
    "lr": "learning_rate",
    "batch_size": "batch_size",
    "expected_batch_size": "batch_size",
    "optimizer": "optimizer",
    "network": "graph",
    "seed_noise": "rng",
    "random_state": "rng",
    "criterion": "loss",
}


def fit(
    module: Any,
    data: Any,
    *,
    graph: Any = None,
    epsilon: float | None = None,
    delta: float | None = None,
    label: Any = None,
    group: Any = None,
    algorithm: str = "consensus-sgd",
    plan: Plan | Callable[[Any, tuple[int, ...]], Plan] | None = None,
    view: Any = None,
    colluders: Any = (),
    adjacency: Literal["add-remove", "replace-one", "user"] = "add-remove",
    noise_multiplier: float | None = None,
    loss: Any = None,
    clip_norm: float = 1.0,
    steps: int | None = None,
    epochs: float | None = None,
    batch_size: float | None = None,
    learning_rate: Any = None,
    optimizer: Any = "sgd",
    initial: Literal["keep", "reset"] = "keep",
    classes: Sequence[Any] | None = None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    bounds: Any = None,
    categories: Mapping[str, Sequence[Any]] | None = None,
    missing: Literal["refuse", "middle"] = "refuse",
    accept: Sequence[str] = (),
    test: Any = None,
    rng: Any = None,
    every: int | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = False,
    physical_batch: int = 4096,
    device: str = "cpu",
    population: str | None = None,
    **options: Any,
) -> Fitted:
    """Train a model on records spread over the nodes of a graph, within a privacy budget.

    Parameters
    ----------
    module : a torch ``nn.Module`` (left as it is), or a linear model: ``"logistic"``, ``"squared"``,
        ``"huber"``, a `GLM`, or scikit-learn's LogisticRegression, Ridge or LinearRegression.
    data : a CSV path, a data frame or a mapping of columns, with ``label``; a pair (inputs, targets) of
        arrays or tensors, where inputs may be a mapping or tuple of them, as the module's ``forward`` takes
        them; a mapping of arrays with ``label``; a torch Dataset, read record by record when a lot asks.
    graph : who talks to whom: a `Network`, a networkx graph, a name such as ``"ring:8"``, or a family alone
        (``"ring"``) when ``group`` says how many there are.
    epsilon, delta : the budget against ``view`` (default: the worst single member; ``colluders`` together).
    label : the column to predict, or several.
    group : the column, or the array, that says which node holds a record; node i holds the i-th site in
        sorted order, or the one with its label. None deals records out evenly.
    algorithm : a gradient method by its name.
    plan : a plan of your own instead of graph, budget and options, or a function of (objective, sizes).
    adjacency : what is hidden: one record (``"add-remove"``, ``"replace-one"``) or a whole node (``"user"``).
    noise_multiplier : noise over clip, instead of a budget.
    loss : ``"cross_entropy"``, ``"binary_cross_entropy"``, ``"squared_error"``, ``"absolute_error"``, a torch
        loss, or a function (outputs, targets) -> one number per record; by default what fits the labels.
    clip, steps, lot, learning_rate, optimizer : as in every plan; ``batch_size=None`` takes all records
        every step. The rate may be ``{"start": .5, "end": .01, "shape": "cosine", "warmup": .1}``, the
        optimizer a name of torch's, ``{"name": "AdamW", "weight_decay": .01}`` or a torch optimizer.
    epochs : passes over the data instead of ``steps``; needs ``batch_size``.
    initial : ``"keep"`` starts from the module's weights, ``"reset"`` from new ones.
    classes : public class names, in order.
    features, drop, bounds, categories, missing : how a table is read, by public facts (`data.tables`).
    accept : what is read from private records and not charged, by name: ``"standardize"``, ``"class names"``,
        ``"held-out score"`` (of a `Dataset` that holds some out), ``"tuning"``; the statement says so.
    test : public records in the same form, for metrics and history.
    rng : None draws protective noise; a numpy Generator makes a simulation that protects nobody.
    every, checkpoint, progress : as in `Plan.run`.
    physical_batch, device : samples through the network at a time, and where.
    population : whose records they are, by the name in the book of this machine's home; None for the first.
    options : of the algorithm (protocol, weighting, sample_rate, seed, ...).

    Guarantees
    ----------
    ``fitted.privacy`` is the plan's own statement, and its epsilon at ``delta`` is at most the budget. One
    record moves its node's clipped sum by at most ``clip_norm``, for every module (`NetObjective`). Sizes of
    the nodes are public. Tables are scaled record by record by public bounds; whatever was read from private
    records stands in the statement. Test records are taken as public. A fit that is refused because of a
    value in the records may tell something about them. With a Generator nobody is protected, and the
    statement says so. Starting weights are public: pretrain on public data. On a machine with a home
    (`sottovoce peer init`) protective noise is charged to its book before any is drawn, refused beyond the
    lifetime budget, and a fit that goes on from its ``checkpoint`` is not charged again.

    Examples
    --------
    >>> import torch
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (800, 2))
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> fitted = fit(net, (X, (X[:, 0] > X[:, 1]).astype(int)), graph="ring:4", epsilon=3.0, delta=1e-5,
    ...              steps=30, learning_rate=1.0, rng=rng)
    >>> fitted.privacy.label, round(fitted.privacy.epsilon(1e-5), 1)
    ('exact', 3.0)
    >>> fitted.predict([[0.9, -0.9], [-0.9, 0.9]]).tolist()
    [1, 0]
    """
    table = TableData(data, label, group, features, drop, bounds, categories, missing)
    _known(options, algorithm)
    own = ingest(table, accept=_of_columns(accept))
    if test is None and own.test is not None and "held-out score" in accept:
        test = own.test
    shown = None if test is None else ingest(TableData(test, label), columns=own.columns)
    uncharged = _accepted(accept, own, classes, test)
    network = None if plan is not None and graph is None else _network(graph, own, algorithm)
    n = plan.n if isinstance(plan, Plan) else 1 if network is None else network.n
    parts = _parts(own, n, network)
    sizes = tuple(len(part) for part in parts)
    notes = [wording.uncharged(name) for name in uncharged]
    asked = ModelOptions(
        loss, clip_norm, initial, classes, tuple(accept), label, table.label_bounds, physical_batch, device
    )
    brought = adapt_model(module, own, shown, parts, asked)
    if own.dataset is not None:
        notes.append(ITEMS)
    if shown is not None and "held-out score" not in uncharged:
        notes.append(TEST)
    budget = {"epsilon": epsilon, "delta": delta, "view": view, "colluders": colluders}
    settings = {
        "steps": _steps(steps, epochs, batch_size, sizes),
        "clip_norm": clip_norm,
        "adjacency": adjacency,
        "sizes": sizes,
        "batch_size": batch_size,
        **_stepping(optimizer, learning_rate, brought.objective),
        **options,
    }
    made = _plan(plan, brought.objective, network, algorithm, noise_multiplier, budget, settings)
    random = ProtectiveNoise() if rng is None else rng
    if isinstance(rng, np.random.Generator):
        notes.append(SIMULATED)
    who = {} if colluders == () else {"colluders": colluders}
    statement = _noted(made.privacy(view, **who), notes)
    charged = None
    if RunRandomness.from_rng(random).protective:
        charged = charge(
            find_lifetime_ledger(),
            made,
            f"fit of {made.name}",
            statements=[statement],
            population=population,
            checkpoint=checkpoint,
        )
    result = made.run(
        brought.data, random, start=brought.start(made), evaluate=brought.evaluate,
        every=every or max(1, made.steps // 20), checkpoint=checkpoint, progress=progress,
        on_step=None if charged is None else lambda step, entry: charged.saving(step),
    )  # fmt: skip
    if charged is not None:
        charged.done(made.steps)
        result = replace(result, provenance={**result.provenance, "lifetime_budget": charged.summary})
    if brought.evaluate is not None:
        found = brought.evaluate(result.outputs["rows"])
        result = replace(result, metrics={**result.metrics, **found})
    rows = result.outputs["rows"]
    row = rows[0] if bool((rows == rows[0]).all()) else rows.mean(axis=0)  # after gossip rows differ a little
    stated = [statement, *(g for g in (_noted(g, notes) for g in made.guarantees()) if g != statement)]
    at = 1e-5 if delta is None else float(delta)
    return Fitted(
        model=brought.model(row),
        privacy=statement,
        plan=made,
        result=with_statement(brought.in_units(result), stated, row, at),
        target=brought.target,
        delta=at,
        columns=own.columns,
        layout=brought.layout,
        label=label,
    )


# ---- who, how long, how noisy ----------------------------------------


def _network(graph: Any, own: UserData, algorithm: str) -> Network | None:
    if issubclass(registry.algorithm(algorithm), CentralPlan):
        if graph is not None:
            raise InvalidInput(f"{algorithm} has one holder of all records; leave graph out.")
        return None
    if graph is None:
        raise InvalidInput('fit needs graph=..., who talks to whom, for example graph="ring:8".')
    if isinstance(graph, str) and ":" not in graph and own.groups is not None:
        try:
            return graphs.parse(graph)
        except GraphError:
            return graphs.parse(f"{graph}:{len(np.unique(own.groups))}")
    return as_network(graph)


def _parts(own: UserData, n: int, network: Network | None) -> list[np.ndarray]:
    """Which records each node holds."""
    if own.groups is None or n == 1:
        if own.n < n:
            raise DataError(f"{own.n} records cannot give each of {n} nodes one; take a smaller graph.")
        return np.array_split(np.random.default_rng(0).permutation(own.n), n) if n > 1 else [np.arange(own.n)]
    sites = np.unique(own.groups)
    if len(sites) != n:
        raise DataError(
            f"the graph has {n} nodes, but the records come from {len(sites)} sites; they must match."
        )
    return by_column(own.groups, None if network is None else network.labels)


def _steps(steps: int | None, epochs: float | None, batch_size: float | None, sizes: Sequence[int]) -> int:
    if epochs is None:
        return 100 if steps is None else steps
    if steps is not None or batch_size is None:
        raise InvalidInput("epochs goes with lot and without steps: it means epochs * records / lot steps.")
    _validate.positive(epochs, "epochs")
    return max(
        1, math.ceil(epochs * sum(sizes) / (_validate.positive(batch_size, "batch_size") * len(sizes)))
    )


def _stepping(optimizer: Any, learning_rate: Any, objective: Any) -> dict[str, Any]:
    """Optimizer and rate in the words of plans; a torch optimizer brings both, and its parameter groups."""
    groups: tuple[tuple[int, int, float, float], ...] = ()
    if hasattr(optimizer, "param_groups"):
        listed = optimizer.param_groups
        first = {k: v for k, v in listed[0].items() if k != "params"}
        for key in ("amsgrad", "maximize", "dampening", "centered"):
            if any(group.get(key) for group in listed):
                raise InvalidInput(f"the torch optimizer's {key} is not supported; leave it off.")
        learning_rate = float(first["lr"]) if learning_rate is None else learning_rate
        kept = ("momentum", "nesterov", "betas", "eps", "weight_decay")
        words = {k: v for k, v in first.items() if k in kept}
        if len(listed) > 1:
            groups = _groups(listed, first, objective)
        optimizer = {"name": type(optimizer).__name__, **words}
    chosen = replace(Optimizer.of(optimizer), groups=groups)
    if learning_rate is None:
        learning_rate = 0.01 if chosen.kind in ("adam", "adamw") else 0.5
    return {"optimizer": chosen, "learning_rate": learning_rate}


def _groups(
    listed: Sequence[Mapping[str, Any]], first: Mapping[str, Any], objective: Any
) -> tuple[tuple[int, int, float, float], ...]:
    """The stretches of a row that belong to a torch optimizer's parameter groups, in their order."""
    for group in listed[1:]:
        other = next(
            (k for k in ("momentum", "nesterov", "betas", "eps") if group.get(k) != first.get(k)), None
        )
        if other is not None:
            raise InvalidInput(f"parameter groups may differ in lr and weight_decay, not in {other}.")
    shapes = [tuple(p.shape) for group in listed for p in group["params"] if p.requires_grad]
    if shapes != [slot.shape for slot in objective.layout]:
        raise InvalidInput(
            "the groups of the torch optimizer must hold the module's trainable parameters, all of them, in "
            "their order; freeze the others with requires_grad_(False)."
        )
    slots, found = iter(objective.layout), []
    for group in listed:
        mine = [next(slots) for p in group["params"] if p.requires_grad]
        times = float(group["lr"]) / float(first["lr"])
        found += [(slot.start, slot.stop, times, float(group["weight_decay"])) for slot in mine]
    return tuple(found)


def _plan(
    plan: Any, objective: Any, network: Network | None, algorithm: str, noise_multiplier: float | None,
    budget: dict[str, Any], settings: dict[str, Any],
) -> Plan:  # fmt: skip
    who = {key: budget[key] for key in ("view", "colluders") if budget[key] not in (None, ())}
    epsilon, delta = budget["epsilon"], budget["delta"]
    if epsilon is not None and delta is None:
        raise InvalidInput(
            "a budget is epsilon and delta; delta=1e-5 is usual, well below one over the records."
        )
    if plan is not None:
        if not isinstance(plan, Plan) and not callable(plan):
            raise InvalidInput(f"plan must be a Plan, or a function that makes one, got {plan!r}.")
        made = plan if isinstance(plan, Plan) else plan(objective, settings["sizes"])
        if not isinstance(made, Plan):
            raise InvalidInput(
                f"plan must be a Plan, or a function that makes one, got {type(made).__name__}."
            )
        if epsilon is not None:
            made.require(epsilon, delta, who.pop("view", None), **who)
        return made
    cls = registry.algorithm(algorithm)
    if not issubclass(cls, GradientPlan):
        raise InvalidInput(f"fit runs gradient methods such as consensus-sgd or dp-dsgt, got {algorithm}.")
    if network is not None:
        settings = {**settings, "network": network}
    if (epsilon is None) == (noise_multiplier is None):
        raise InvalidInput("give epsilon=... with delta=..., or noise_multiplier=..., and not both.")
    if epsilon is None:
        return cls(objective, noise_multiplier=noise_multiplier, **settings)
    made = cls.for_budget(objective, epsilon=epsilon, delta=delta, **who, **settings)
    return made


def _noted(guarantee: Guarantee, notes: Sequence[str]) -> Guarantee:
    return replace(guarantee, assumptions=(*guarantee.assumptions, *notes)) if notes else guarantee


def _known(options: Mapping[str, Any], algorithm: str) -> None:
    """Refuse an option that nobody has, in words: many come from other libraries."""
    cls = registry.algorithm(algorithm)
    allowed = {f.name for f in fields(cls)} - {"objective", "sizes", "network"}
    for name in options:
        if name in allowed:
            continue
        if name in _OTHER_WORDS:
            raise InvalidInput(f"{name} is called {_OTHER_WORDS[name]} here.")
        near = difflib.get_close_matches(name, {*allowed, *inspect.signature(fit).parameters}, 1)
        raise InvalidInput(
            f"fit has no option {name!r} for {algorithm}" + (f"; try {near[0]}." if near else ".")
        )


def _accepted(accept: Sequence[str], own: UserData, classes: Any, test: Any) -> tuple[str, ...]:
    """What was read of private records, by name; refuse what was not accepted, or is not read."""
    if isinstance(accept, str):
        raise InvalidInput(f'accept must be a list of names, got {accept!r}; write accept=["{accept}"].')
    read = {*(own.columns.uncharged if own.columns is not None else ()), *own.uncharged} - {"held-out score"}
    if classes is None and "class names" in accept:
        read.add("class names")
    if test is not None and test is own.test:
        read.add("held-out score")
    for name in accept:
        if name not in wording.UNCHARGED:
            raise InvalidInput(f"accept knows {', '.join(wording.UNCHARGED)}, got {name!r}.")
        if name not in read and name != "tuning":  # only the user knows how settings were chosen
            raise InvalidInput(f"accept names {name!r}, but nothing of the kind is read; leave it out.")
    for name in sorted(read - set(accept)):
        raise Refused(
            f"the data were prepared by {wording.UNCHARGED[name]}, which no budget is charged for; "
            f"accept=[{name!r}] accepts that, and the statement says so."
        )
    return tuple(dict.fromkeys(accept))


def _of_columns(accept: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for word in accept if word == "standardize")
