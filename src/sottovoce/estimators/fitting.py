"""One call from a model and data to the fitted model and its privacy guarantee."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sottovoce import graphs
from sottovoce._validate import did_you_mean
from sottovoce.accounting.budget import Budget, accepted_delta, delta_warning
from sottovoce.algorithms import registry
from sottovoce.algorithms.build import build_plan, plan_options
from sottovoce.algorithms.consensus_sgd import exact_protocol
from sottovoce.algorithms.gradient_plan import GradientPlan
from sottovoce.algorithms.plan import Plan, public_units
from sottovoce.data.ingest import IngestedRecords, check_accepted, ingest
from sottovoce.data.partition import to_nodes
from sottovoce.data.tables import TableData
from sottovoce.errors import GraphError, InvalidInput
from sottovoce.estimators.training import TrainingOptions
from sottovoce.graphs import Network, as_network
from sottovoce.models.adapters import LinearAdapter, ModelAdapter, adapt_model
from sottovoce.models.fitted import Fitted
from sottovoce.models.prepared import PreparedFit, how_many, with_assumptions
from sottovoce.noise.samplers import ProtectiveNoise
from sottovoce.objectives import GLM
from sottovoce.objectives.base import Objective
from sottovoce.objectives.glm import REGRESSIONS
from sottovoce.runners.loggers import Logs, evaluation_log
from sottovoce.runners.run import OnEvaluation, OnStep

if TYPE_CHECKING:
    import networkx

ITEMS = "each item of the dataset is made from one record, and random numbers, alone"
# names that other libraries have for an option
_OTHER_NAMES = {
    "max_grad_norm": "clip_norm",
    "l2_norm_clip": "clip_norm",
    "lr": "learning_rate",
    "expected_batch_size": "batch_size",
    "criterion": "loss",
    "target_epsilon": "epsilon",
    "target_delta": "delta",
    "graph": "network",
    "random_state": "rng",
}
_MOST_CORRELATED = 300  # features beyond which the row of all their second moments would be long
_TABLE_OPTIONS = ("features", "drop", "bounds", "categories", "missing")
# option -> the argument of `fit` that has it
_PLACES = {
    **{item.name: "training=sv.TrainingOptions({}=...)" for item in fields(TrainingOptions)},
    **{item.name: "budget=sv.Budget(epsilon, delta, {}=...)" for item in fields(Budget)},
    **dict.fromkeys(("epsilon", "delta"), "budget=sv.Budget(epsilon, delta)"),
    **dict.fromkeys(_TABLE_OPTIONS, "data=sv.data.TableData(table, label, {}=...)"),
}
Sites = Sequence[object] | np.ndarray


def fit(
    model: object,
    data: object,
    *,
    network: str | Network | networkx.Graph | None = None,
    budget: Budget | None = None,
    training: TrainingOptions | None = None,
    algorithm: str | None = None,
    plan: Callable[[Objective, tuple[int, ...]], Plan] | None = None,
    label: str | Sequence[str] | None = None,
    group: str | Sites | None = None,
    test: object = None,
    accept: Sequence[str] = (),
    rng: np.random.Generator | ProtectiveNoise | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = False,
    on_step: OnStep | None = None,
    on_evaluation: OnEvaluation | None = None,
    logs: Logs | None = None,
    population: str | None = None,
    **options: object,
) -> Fitted:
    """Train a model on records spread over the nodes of a network, within a privacy budget.

    Parameters
    ----------
    model : a torch ``nn.Module`` (left as it is), or a linear model: ``"logistic"``, ``"squared"``,
        ``"huber"``, ``"hinge"``, a `GLM`, or scikit-learn's LogisticRegression, Ridge or LinearRegression.
    data : a `sottovoce.data.TableData`, which says how a table is read, or its ``source``: a CSV path, a data
        frame or a mapping of columns; a pair (inputs, targets) of arrays or tensors, where inputs may be a
        mapping or tuple of them, as the module's ``forward`` takes them; a torch Dataset, read record by
        record as batches need them; a DataLoader, whose batch size, over all nodes, becomes the expected size
        of Poisson batches.
    network : who talks to whom: a `Network`, a networkx graph, a name such as ``"ring:8"``, or a family alone
        (``"ring"``) where ``group`` says how many there are.
    budget : what may be spent, against whom, and what is hidden.
    training : steps, batches, rates, loss.
    algorithm : a gradient method by its name; by default ``"consensus-newton"`` for a linear model with a
        budget for records and no learning rate, else ``"consensus-sgd"``.
    plan : a function of (objective, sizes) that makes the plan, instead of algorithm and options.
    label : the column to predict, or several.
    group : the column, or the array, that says which node holds a record; node i holds the i-th site in
        sorted order, or the one with its label. None deals records out evenly.
    test : public records in the same form, for metrics and history.
    accept : what is read from private records and not charged, by name: ``"standardize"``, ``"class names"``,
        ``"held-out score"`` (of a `Dataset` that holds some out), ``"tuning"``; the guarantee says so. And
        ``"large delta"``, a delta above one over the number of records, which is refused otherwise.
    rng : None draws protective noise; a numpy Generator makes a simulation that protects nobody.
    checkpoint, progress : as in `Plan.run`.
    on_step, on_evaluation : called with (step, rows of all nodes) and with (step, scores).
    logs : a ``.csv`` file, a folder for TensorBoard, or a `sottovoce.runners.loggers.Logger`: the scores of
        every evaluation, and epsilon up to it.
    population : whose records they are, by the name in this machine's lifetime ledger; None for the first.
    options : of the algorithm (protocol, weighting, sample_rate, seed, ...). By default the nodes share keys,
        and a masked sum shows nobody more than the sum of all; ``protocol="tree"`` needs no keys.

    Guarantees
    ----------
    ``fitted.privacy`` is the plan's own guarantee, and its epsilon at ``delta`` is at most the budget. One
    record moves its node's clipped sum by at most ``clip_norm``, for every module (`NetObjective`). Sizes of
    the nodes are public. Tables are scaled record by record by public bounds; whatever was read from private
    records stands in the guarantee. Test records are taken as public. A fit that is refused because of a
    value in the records may tell something about them. With a Generator nobody is protected, and the
    guarantee says so. Starting weights are public: pretrain on public data. On a machine with a member
    directory (`sottovoce peer init`) protective noise is charged to its lifetime ledger before any is drawn,
    refused beyond the lifetime budget, and a fit that goes on from its ``checkpoint`` is not charged again.
    Early stopping reads scores of released models on public test records and nothing else; the whole plan is
    charged, and the guarantee is that of the whole plan.

    Examples
    --------
    >>> import torch, sottovoce as sv
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (800, 2))
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> fitted = fit(net, (X, (X[:, 0] > X[:, 1]).astype(int)), network="ring:4",
    ...              budget=sv.Budget(epsilon=3.0, delta=1e-5),
    ...              training=sv.TrainingOptions(steps=30, learning_rate=1.0), rng=rng)
    >>> fitted.privacy.label, round(fitted.privacy.epsilon(1e-5), 1)
    ('exact', 3.0)
    >>> fitted.predict([[0.9, -0.9], [-0.9, 0.9]]).tolist()
    [1, 0]
    """
    training = TrainingOptions() if training is None else training
    noise = noise_source(rng)
    for name, function in (("on_step", on_step), ("on_evaluation", on_evaluation)):
        if function is not None and not callable(function):
            raise InvalidInput(f"{name} must be a function, got {function!r}.")
    prepared = prepare(
        model,
        data,
        network=network,
        budget=budget,
        training=training,
        algorithm=algorithm,
        plan=plan,
        label=label,
        group=group,
        test=test,
        accept=accept,
        simulated=not isinstance(noise, ProtectiveNoise),
        options=options,
    )
    adversary = {} if budget is None else budget.adversary
    with evaluation_log(logs, prepared.plan, prepared.delta, adversary) as log:

        def evaluated(step: int, scores: Mapping[str, Any]) -> None:
            log(step, scores)
            if on_evaluation is not None:
                on_evaluation(step, scores)

        result = prepared.run(
            noise,
            every=training.evaluate_every,
            checkpoint=checkpoint,
            progress=progress,
            on_step=on_step,
            on_evaluation=evaluated,
            early_stopping=training.stopping_rule,
            purpose="fit",
            population=population,
        )
    assert result is not None  # of one process
    return prepared.fitted(result)


def noise_source(rng: np.random.Generator | ProtectiveNoise | None) -> np.random.Generator | ProtectiveNoise:
    """Return the noise of a fit: protective by default, simulated by a Generator; others are refused."""
    if rng is not None and not isinstance(rng, (np.random.Generator, ProtectiveNoise)):
        raise InvalidInput(
            f"rng must be None for noise that protects, or a numpy Generator for a simulation, got {rng!r}; "
            "np.random.default_rng(0) makes one."
        )
    return ProtectiveNoise() if rng is None else rng


def prepare(
    model: object,
    data: object,
    *,
    network: str | Network | networkx.Graph | None,
    budget: Budget | None,
    training: TrainingOptions,
    algorithm: str | None,
    label: str | Sequence[str] | None,
    group: str | Sites | None,
    accept: Sequence[str],
    simulated: bool,
    options: Mapping[str, object],
    plan: Callable[[Objective, tuple[int, ...]], Plan] | None = None,
    test: object = None,
    notes: Sequence[str] = (),
    caller: Callable[..., object] | None = None,
) -> PreparedFit:
    """Return what `fit` trains by, with its guarantee; ``notes`` are more assumptions of the ``caller``."""
    if not isinstance(budget, Budget | None):
        raise InvalidInput(f"budget must be sv.Budget(epsilon, delta), got {budget!r}.")
    if not isinstance(training, TrainingOptions):
        raise InvalidInput(f"training must be sv.TrainingOptions(...), got {training!r}.")
    _check_options(options, algorithm or "consensus-sgd", budget, fit if caller is None else caller)
    table = _table(data, label, group)
    if training.classes is not None:
        table = replace(table, classes=training.classes)
    loss = model.loss if isinstance(model, GLM) else model
    regression = loss in REGRESSIONS or type(model).__name__ in ("Ridge", "LinearRegression")
    needs = partial(table.label_problem, regression=regression, accept=accept)
    private = ingest(table, accept=accept, label_problem=needs)
    held_out = private.test if test is None and "held-out score" in accept else None
    if held_out is not None:
        test = (held_out.inputs, held_out.targets)
    public = None if test is None else ingest(TableData(test, table.label), columns=private.columns)
    own = plan is not None and network is None
    topology = None if own else _network(network, private, algorithm or "consensus-sgd")
    n = 1 if topology is None else topology.n
    if training.early_stopping is not None and (public is None or held_out is not None):
        raise InvalidInput(
            "early stopping needs public records, test=...: private ones would steer training."
        )
    if private.batch_size is not None:
        training, note = _with_loader_batches(training, private.batch_size, n)
        notes = [*notes, note]
    names = None if topology is None else topology.node_names
    parts = to_nodes(private.n, n, private.groups, names, np.random.default_rng(0))
    adapter = adapt_model(model, replace(private, test=public), parts, training)
    read = [name for name in adapter.uncharged if held_out is not None or name != "held-out score"]
    uncharged = check_accepted(accept, sorted(read))
    sizes = adapter.sizes
    if plan is not None:
        chosen = _own_plan(plan, adapter.objective, sizes, budget)
    else:
        name = algorithm or _default_algorithm(adapter, training, budget)
        if name == "consensus-newton" and isinstance(adapter, LinearAdapter) and budget is not None:
            settings = {**training.newton_options(adapter, budget), **options}
        else:
            settings = {**training.plan_options(sizes, adapter.objective), **options}
        noiseless = budget is None and training.noise_multiplier == 0
        if registry.algorithm(name).maskable and not noiseless:  # masked sums are of rounded rows
            together = 0 if budget is None else how_many(budget)
            uneven = settings.get("noise_allocation") == "optimal"  # on trees
            settings.setdefault("protocol", None if uneven else exact_protocol(len(sizes), together))
        chosen = _built_plan(name, adapter.objective, topology, training, budget, settings)
    if budget is not None:
        delta, units = budget.delta, public_units(chosen)
        uncharged += accepted_delta(delta, units, chosen.adjacency, accept)
        if (large := delta_warning(delta, units, chosen.adjacency)) is not None:
            warnings.warn(large, stacklevel=3)
    stated = partial(
        with_assumptions,
        accepted=uncharged,
        notes=notes if private.dataset is None else [*notes, ITEMS],
        public_test=public is not None and held_out is None,
        simulated=simulated,
    )
    privacy = stated(chosen.privacy(**({} if budget is None else budget.adversary)))
    others = [stated(guarantee) for guarantee in chosen.guarantees()]
    guarantees = [privacy, *(guarantee for guarantee in others if guarantee != privacy)]
    return PreparedFit(adapter, chosen, privacy, guarantees, uncharged, budget)


def _with_loader_batches(training: TrainingOptions, batch_size: int, n: int) -> tuple[TrainingOptions, str]:
    """Return the options with the batches of a DataLoader, which holds the records of all nodes, and a
    note."""
    if training.batch_size is not None:
        raise InvalidInput(
            f"the DataLoader has batch_size {batch_size} already; leave it out of TrainingOptions."
        )
    each = "" if n == 1 else f", {batch_size / n:g} at each node"
    return replace(training, batch_size=batch_size / n), (
        f"batches are Poisson samples of {batch_size} records expected{each}: the DataLoader's batch size; "
        "its shuffling and drop_last are not used"
    )


def _check_options(
    options: Mapping[str, object], algorithm: str, budget: Budget | None, caller: Callable[..., object]
) -> None:
    """Refuse an option that neither the algorithm nor the calling function has, and say where it belongs."""
    known = set(plan_options(algorithm)) - {"objective", "sizes", "network"}
    for option in options:
        name = _OTHER_NAMES.get(option, option)
        if name == "adjacency" and budget is None:
            continue  # with training.noise_multiplier there is no budget to have it
        called = "" if name == option else f"{option} is called {name} here; "
        if name in _PLACES:
            raise InvalidInput(f"{called}write {_PLACES[name].format(name)}.")
        if called:
            raise InvalidInput(f"{called}write {name}=...")
        if name not in known:
            near = did_you_mean(option, {*known, *_PLACES, *signature(caller).parameters} - {"options"})
            raise InvalidInput(f"{caller.__name__} has no option {option!r} for {algorithm}{near}.")


def _table(data: object, label: str | Sequence[str] | None, group: str | Sites | None) -> TableData:
    if not isinstance(data, TableData):
        return TableData(data, label, group)
    if label is not None or (group is not None and data.group is not None):
        raise InvalidInput("label and group are named by the TableData already; leave them out.")
    return data if group is None else replace(data, group=group)


def _network(
    network: str | Network | networkx.Graph | None, private: IngestedRecords, algorithm: str
) -> Network | None:
    if registry.algorithm(algorithm).central:
        if network is not None:
            raise InvalidInput(f"{algorithm} has one holder of all records; leave network out.")
        return None
    if network is None:
        raise InvalidInput('fit needs network=..., who talks to whom, for example network="ring:8".')
    if isinstance(network, str) and ":" not in network and private.groups is not None:
        try:
            return graphs.parse(network)
        except GraphError:
            return graphs.parse(f"{network}:{len(np.unique(private.groups))}")
    return as_network(network)


def _default_algorithm(adapter: ModelAdapter, training: TrainingOptions, budget: Budget | None) -> str:
    """Return Newton steps, which need no learning rate, for linear models that hide records; else SGD."""
    newton = (
        isinstance(adapter, LinearAdapter)
        and budget is not None
        and budget.adjacency != "user"
        and not training.needs_rate
        and training.steps != 1
        and int(adapter.objective.dim) <= _MOST_CORRELATED
    )
    return "consensus-newton" if newton else "consensus-sgd"


def _own_plan(
    plan: Callable[..., object], objective: Objective, sizes: tuple[int, ...], budget: Budget | None
) -> Plan:
    chosen = plan(objective, sizes) if callable(plan) else plan
    if not isinstance(chosen, Plan) or vars(chosen).get("objective") is not objective:
        raise InvalidInput(
            f"plan must be a function (objective, sizes) -> a Plan for this objective, got {plan!r}."
        )
    if budget is not None:
        budget.require_adjacency(chosen.adjacency)
        chosen.privacy(**budget.adversary).require(budget.epsilon, budget.delta)
    return chosen


def _built_plan(
    algorithm: str,
    objective: Objective,
    network: Network | None,
    training: TrainingOptions,
    budget: Budget | None,
    settings: dict[str, object],
) -> Plan:
    if not issubclass(registry.algorithm(algorithm), GradientPlan):
        raise InvalidInput(f"fit runs gradient methods such as consensus-sgd or dp-dsgt, got {algorithm}.")
    if (budget is None) == (training.noise_multiplier is None):
        got = "neither" if budget is None else "both"
        raise InvalidInput(
            f"give either budget=sv.Budget(...) or TrainingOptions(noise_multiplier=...), got {got}."
        )
    settings.setdefault("adjacency", (budget and budget.adjacency) or "add-remove")
    if budget is None:
        settings["noise_multiplier"] = training.noise_multiplier
    return build_plan(algorithm, settings, objective=objective, network=network, budget=budget)
