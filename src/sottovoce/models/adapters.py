"""Adapters between models (torch modules, linear models, scikit-learn estimators) and plans.

What is learned (classes, yes-or-no labels, numbers) and which loss fits is decided from types, shapes and the
caller's options, never from the values of records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sottovoce.accounting.guarantee import Guarantee
from sottovoce.algorithms.plan import Plan
from sottovoce.data.base import Shards, signed_labels
from sottovoce.data.images import ImageReading
from sottovoce.data.ingest import Target, UserData
from sottovoce.data.tables import Classes, Columns, Scale
from sottovoce.errors import DataError, InvalidInput, MissingDependency
from sottovoce.models.saved import Fitted, LinearModel, split_item
from sottovoce.objectives import GLM, Softmax
from sottovoce.runners import Result

Loss = str | Callable[..., Any] | None  # of one record: a name, a torch loss, a function
LINEAR = {"logistic": "logistic", "squared": "squared", "huber": "huber"}
SIMULATED = "the noise is simulated from a seed: this fit is a simulation and protects nobody"
TEST = "the test records are public"


@dataclass(frozen=True)
class ModelOptions:
    """Options of the caller about model and labels.

    Examples
    --------
    >>> ModelOptions(classes=["no", "yes"]).clip_norm
    1.0
    """

    loss: Loss = None
    clip_norm: float = 1.0
    initial: Any = "keep"
    classes: Sequence[Any] | None = None
    accept: tuple[str, ...] = ()
    label: Any = None
    label_bounds: Any = None
    physical_batch: int | None = 4096
    device: str = "cpu"


class ModelAdapter:
    """A model and the agents' records, in the form plans take, and the way back.

    Examples
    --------
    >>> from sottovoce.data.ingest import ingest
    >>> private = ingest(([[0.5], [-0.5]], [1, 0]))
    >>> adapter = adapt_model("logistic", private, None, [np.array([0]), np.array([1])], ModelOptions())
    >>> adapter.model(np.array([2.0, 1.0])).scores([[3.0]]).tolist()
    [7.0]
    """

    layout: Any = None

    def __init__(self, objective: Any, data: Any, target: Target) -> None:
        self.objective, self.data, self.target = objective, data, target
        self.evaluate: Any = None

    def start(self, plan: Plan) -> np.ndarray | None:
        """None: the plan's own start."""
        return None

    def model(self, row: np.ndarray) -> Any:
        """Return the model of a row of parameters."""
        raise AssertionError("each kind of model has its own")

    def in_units(self, result: Result) -> Result:
        """Return the result with errors of regression in the unit of the labels."""
        scale = self.target.scale
        if scale is None:
            return result

        def rescaled(metrics: Mapping[str, Any]) -> dict[str, Any]:
            return {k: v * scale.width if k == "rmse" else v for k, v in metrics.items()}

        return replace(
            result, metrics=rescaled(result.metrics), history=[rescaled(h) for h in result.history]
        )


def adapt_model(
    module: Any, private: UserData, public: UserData | None, parts: list[np.ndarray], options: ModelOptions
) -> ModelAdapter:
    """Return the model and its records as plans take them.

    Parameters
    ----------
    module : a torch module, a `GLM`, a name of one, or an estimator of scikit-learn.
    private, public : private records, and public ones for metrics.
    parts : the records of each node.
    options : of the caller.

    Examples
    --------
    >>> import torch
    >>> from sottovoce.data.ingest import ingest
    >>> private = ingest((np.eye(2), [1, 0]))
    >>> adapter = adapt_model(torch.nn.Linear(2, 2), private, None, [np.array([0, 1])], ModelOptions())
    >>> adapter.target.task, adapter.data.sizes.tolist()
    ('classification', [2])
    """
    linear = isinstance(module, (str, GLM, Softmax)) or type(module).__module__.startswith("sklearn.")
    return (_adapt_linear if linear else _adapt_network)(module, private, public, parts, options)


def fitted_model(
    adapter: ModelAdapter,
    plan: Plan,
    result: Result,
    privacy: Guarantee,
    delta: float,
    *,
    columns: Columns | ImageReading | None = None,
    label: str | Sequence[str] | None = None,
    builder: Mapping[str, Any] | None = None,
) -> Fitted:
    """Return the model that a run has fitted, with its guarantee and how its inputs are read."""
    row, rows = result.outputs["coef"], result.outputs.get("rows")
    if rows is not None and len(rows) and bool((rows == rows[0]).all()) and rows[0].shape == row.shape:
        row = rows[0]  # the mean of equal rows rounds
    return Fitted(
        model=adapter.model(row),
        privacy=privacy,
        plan=plan,
        result=replace(result, outputs={**result.outputs, "model": row}),
        target=adapter.target,
        delta=delta,
        columns=columns,
        layout=adapter.layout,
        label=label,
        builder=builder,
    )


# ---- networks ----------------------------------------


class _Network(ModelAdapter):
    def model(self, row: np.ndarray) -> Any:
        net = self.objective.module(row)
        return net if self.layout is None else net.module

    def start(self, plan: Plan) -> np.ndarray | None:
        mine = getattr(plan, "objective", None)
        if mine is self.objective:
            return None
        width = getattr(mine, "n_params", None)
        if width != self.objective.n_params:
            raise InvalidInput(
                f"the plan is for a model of {width} parameters, the module has {self.objective.n_params}; "
                "make the plan for this module, or pass plan=lambda objective, sizes: ..."
            )
        return self.objective.start(1)[0] if self.objective.keeps_weights else None


def _adapt_network(
    module: Any, private: UserData, public: UserData | None, parts: list[np.ndarray], options: ModelOptions
) -> ModelAdapter:
    try:
        import torch
    except ImportError:
        raise MissingDependency("Networks need torch; pip install 'sottovoce[deep]'.") from None
    from sottovoce.data.agent_tensors import AgentData
    from sottovoce.data.lazy_dataset import LazyData
    from sottovoce.objectives.nets.evaluation import output_shape
    from sottovoce.objectives.nets.inputs import Layout, Unpacking, as_tensor
    from sottovoce.objectives.nets.objective import NetObjective

    if not isinstance(module, torch.nn.Module):
        raise InvalidInput(
            f"module must be a torch module, a GLM or one of {', '.join(LINEAR)}, got "
            f"{type(module).__name__}."
        )
    first, raw = (
        (private.inputs, private.targets)
        if private.dataset is None
        else _first_item(private.dataset, options.label)
    )
    if private.dataset is not None and options.classes is None and "class names" in options.accept:
        raise InvalidInput("a Dataset is not read through for its classes; declare them with classes=[...].")
    several = isinstance(first, (Mapping, tuple))
    layout = Layout.of(first) if several else None
    pack: Any = layout.pack if layout is not None else (lambda inputs: as_tensor(inputs, "data"))
    net = module if layout is None else Unpacking(module, layout)
    example = pack(first)
    trial = NetObjective(net, "cross_entropy", clip_norm=options.clip_norm, device=options.device)
    width = output_shape(trial, example)
    target, chosen = _target(raw, options, width)
    objective = NetObjective(
        net,
        chosen,
        clip_norm=options.clip_norm,
        physical_batch=options.physical_batch,
        device=options.device,
        initial=options.initial,
    )
    known = width[0] if target.task == "classification" and width is not None and len(width) == 1 else None
    test = None
    if public is not None:
        inputs, labels = (
            (public.inputs, public.targets)
            if public.dataset is None
            else _all_items(public.dataset, options.label)
        )
        test = (pack(inputs), target.encode(_plain_labels(labels)))
    if private.dataset is None:
        encoded = target.encode(_plain_labels(private.targets))
        ready: Any = AgentData(example, _typed(encoded), parts, test=_typed_test(test), classes=known)
    else:
        read = _reader(private.dataset, options.label, layout, target, known)
        ready = LazyData(read, parts, test=_typed_test(test))
    _require_fit(objective, ready)
    adapter = _Network(objective, ready, target)
    adapter.layout = layout
    return adapter


def _require_fit(objective: Any, data: Any) -> None:
    """Raise one sentence before anything is accounted or spent, if no record of this shape goes through."""
    x, y, _ = data.gather([np.arange(1)], [0])
    objective.paths.check_records(*objective.paths.typed(x[:, :1], y[:, :1]))


def _first_item(dataset: Any, label: Any) -> tuple[Any, Any]:
    """Inputs and target of the first record as a batch of one: its shapes and types say what is learned."""
    import torch

    try:
        inputs, target = split_item(dataset[0], label)
    except (KeyError, IndexError, TypeError) as error:
        raise DataError(f"the dataset must give records by number, dataset[0] failed: {error!r}.") from None
    if target is None:
        raise DataError(
            "an item of the dataset must be a pair (inputs, target), or a mapping with the label named by "
            f"label=..., got {type(dataset[0]).__name__} with label={label!r}."
        )
    one = _batched(inputs, lambda value: torch.as_tensor(value)[None])
    return one, np.asarray([target]) if isinstance(target, str) else torch.as_tensor(target)[None]


def _all_items(dataset: Any, label: Any) -> tuple[Any, Any]:
    """A public dataset, loaded."""
    import torch

    items = [split_item(dataset[i], label) for i in range(len(dataset))]
    one = items[0][0]
    if isinstance(one, Mapping):
        inputs: Any = {k: torch.stack([torch.as_tensor(x[k]) for x, _ in items]) for k in one}
    elif isinstance(one, (tuple, list)):
        inputs = tuple(torch.stack([torch.as_tensor(x[j]) for x, _ in items]) for j in range(len(one)))
    else:
        inputs = torch.stack([torch.as_tensor(x) for x, _ in items])
    return inputs, np.array([np.asarray(y) for _, y in items])


def _batched(inputs: Any, one: Callable[[Any], Any]) -> Any:
    if isinstance(inputs, Mapping):
        return {name: one(value) for name, value in inputs.items()}
    return tuple(one(value) for value in inputs) if isinstance(inputs, (tuple, list)) else one(inputs)


def _reader(dataset: Any, label: Any, layout: Any, target: Target, known: int | None) -> Any:
    import torch

    def read(i: int) -> tuple[Any, Any]:
        inputs, raw = split_item(dataset[i], label)
        one = _batched(inputs, lambda value: torch.as_tensor(value)[None])
        x = one[0] if layout is None else layout.pack(one)[0]
        y = torch.as_tensor(_typed(target.encode(_plain_labels(np.asarray([raw])))))[0]
        if known is not None and not 0 <= int(y) < known:
            raise DataError(f"record {i} has label {int(y)}, but the classes are 0 to {known - 1}.")
        return x, y

    return read


def _plain_labels(raw: Any) -> np.ndarray:
    return raw.detach().cpu().numpy() if hasattr(raw, "detach") else np.asarray(raw)


def _typed(targets: np.ndarray) -> np.ndarray:
    """Numbers in float32, the type of most networks; whole numbers as they are."""
    return targets.astype(np.float32) if targets.dtype.kind == "f" else targets


def _typed_test(test: Any) -> Any:
    return None if test is None else (test[0], _typed(test[1]))


def _target(raw: Any, options: ModelOptions, width: Any) -> tuple[Target, Any]:
    """What is learned, and the loss of one record, from types, shapes and options."""
    from sottovoce.objectives.nets.losses import LOSSES, TASKS

    array, loss, label = _plain_labels(raw), options.loss, options.label
    several = () if isinstance(label, str) or label is None else tuple(map(str, label))
    scale = _label_scale(options)
    one = width is None or math.prod(width) == 1
    if loss is None:
        loss = _usual_loss(array, options, one, scale, width)
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise InvalidInput(f"loss must be one of {', '.join(LOSSES)} or a function, got {loss!r}.")
        task: str = TASKS[LOSSES[loss]]
    else:
        loss, task = _own_loss(loss)
    if task == "regression":
        return Target(task, None, scale, several), loss
    if scale is not None:
        raise InvalidInput(
            "bounds of the label are for regression; leave them out, or set loss='squared_error'."
        )
    classes = Classes.declared(array, options.classes, options.accept) if array.ndim == 1 else None
    if task == "own" and classes is not None:
        task = "classification" if not one else "labels"
    if classes is not None and task == "labels" and len(classes.values) != 2:
        raise InvalidInput(f"a yes-or-no label has two classes, got {len(classes.values)}.")
    if (
        classes is not None
        and task == "classification"
        and width is not None
        and len(classes.values) != width[0]
    ):
        raise InvalidInput(
            f"there are {len(classes.values)} classes, but the network gives {width[0]} scores; change its "
            "last layer."
        )
    return Target(task, classes, None, several), loss


def _label_scale(options: ModelOptions) -> Scale | None:
    if options.label_bounds is None:
        return None
    if not isinstance(options.label_bounds, Sequence) or len(options.label_bounds) != 2:
        raise DataError(f"the bounds of the label must be a pair (low, high), got {options.label_bounds!r}.")
    return Scale.from_bounds(options.label_bounds[0], options.label_bounds[1], "the label")


def _usual_loss(array: np.ndarray, options: ModelOptions, one: bool, scale: Any, width: Any) -> str:
    if scale is not None:
        return "squared_error"
    names = array.dtype.kind in "OUSb" or options.classes is not None or "class names" in options.accept
    if array.ndim == 2:
        return "squared_error" if array.dtype.kind == "f" else "binary_cross_entropy"
    if array.dtype.kind == "f" and not names:
        return "squared_error"
    if not one or width is None:
        return "cross_entropy"
    if names:
        return "binary_cross_entropy"
    raise InvalidInput(
        "the network gives one number and the labels are whole numbers; say loss='binary_cross_entropy' for "
        "0 and 1, or loss='squared_error' for amounts."
    )


def _own_loss(loss: Any) -> tuple[Any, str]:
    """A loss of the caller's: torch losses are taken record by record."""
    import torch

    if not callable(loss):
        raise InvalidInput(f"loss must be a name or a function of (outputs, targets), got {loss!r}.")
    tasks = {"CrossEntropyLoss": "classification", "BCEWithLogitsLoss": "labels", "MSELoss": "regression",
             "L1Loss": "regression", "SmoothL1Loss": "regression", "HuberLoss": "regression"}  # fmt: skip
    task = tasks.get(type(loss).__name__, "own") if isinstance(loss, torch.nn.Module) else "own"
    if hasattr(loss, "reduction") and isinstance(loss, torch.nn.Module):
        from sottovoce.objectives.nets.losses import PerRecord

        loss = PerRecord(loss)
    return loss, task


# ---- linear models ----------------------------------------


class LinearAdapter(ModelAdapter):
    """A linear model, and its records as shards.

    Examples
    --------
    >>> adapter = LinearAdapter(GLM("squared"), None, Target("regression"))
    >>> adapter.model(np.array([2.0, 1.0])).intercept
    1.0
    """

    names: tuple[str, ...] = ()
    intercept = True

    def model(self, row: np.ndarray) -> LinearModel:
        classes = getattr(self.objective, "classes", None)
        return LinearModel.of_row(
            row, self.objective.loss, names=self.names, intercept=self.intercept, classes=classes
        )


def _glm(module: Any, records: int) -> tuple[Any, bool]:
    """The linear model that was named, and whether it has an intercept."""
    if isinstance(module, (GLM, Softmax)):
        return module, True
    if isinstance(module, str):
        if module not in LINEAR:
            raise InvalidInput(f"a linear model is one of {', '.join(LINEAR)}, got {module!r}.")
        return GLM(LINEAR[module]), True  # type: ignore[arg-type]
    kind = type(module).__name__
    params = module.get_params()
    if kind == "LogisticRegression" and params.get("penalty", "l2") in ("l2", "deprecated", None):
        strength = 0.0 if params.get("penalty", "l2") is None or math.isinf(params["C"]) else 1 / params["C"]
        return GLM("logistic", l2=strength / records), params["fit_intercept"]
    if kind in ("Ridge", "LinearRegression"):
        return GLM("squared", l2=params.get("alpha", 0.0) / records), params["fit_intercept"]
    raise InvalidInput(
        "of scikit-learn's estimators fit takes LogisticRegression (l2), Ridge and LinearRegression, got "
        f"{kind}; sottovoce.estimators.sklearn_estimators has private ones for one holder."
    )


def _adapt_linear(
    module: Any, private: UserData, public: UserData | None, parts: list[np.ndarray], options: ModelOptions
) -> ModelAdapter:
    if private.dataset is not None or isinstance(private.inputs, (Mapping, tuple)):
        raise DataError("a linear model takes a table or one array of features; a network takes the rest.")
    if options.loss is not None:
        raise InvalidInput(
            "a linear model has its own loss; name it instead of the module, or leave loss out."
        )
    model, intercept = _glm(module, sum(len(part) for part in parts))
    X = _features(private.inputs, intercept)
    if model.dim not in (None, X.shape[1]):
        raise InvalidInput(
            f"the model has {model.dim} features, the data have {X.shape[1]} with the intercept."
        )
    target = linear_target(model, private.targets, options)
    model = replace(several_classes(model, target), dim=X.shape[1])
    adapter = LinearAdapter(
        model, Shards.from_parts(X, linear_labels(target, private.targets), parts), target
    )
    adapter.intercept = intercept
    adapter.names = private.columns.names if private.columns is not None else ()
    if public is not None:
        test = (_features(public.inputs, intercept), linear_labels(target, public.targets))
        adapter.evaluate = lambda rows: _linear_metrics(model, rows.mean(axis=0), *test)
    return adapter


def _features(inputs: Any, intercept: bool) -> np.ndarray:
    array = np.asarray(inputs.detach() if hasattr(inputs, "detach") else inputs, dtype=np.float64)
    if array.ndim != 2:
        raise DataError(f"a linear model takes features (records, features), got shape {array.shape}.")
    return np.hstack([array, np.ones((len(array), 1))]) if intercept else array


def several_classes(model: Any, target: Target) -> Any:
    """Return the linear model that fits the target: logistic regression of several classes is a softmax.

    Examples
    --------
    >>> several_classes(GLM(l2=0.1), Target("classification", Classes(("a", "b", "c"))))
    Softmax(classes=3, l2=0.1, dim=None)
    """
    if target.task != "classification" or isinstance(model, Softmax):
        return model
    assert target.classes is not None
    for key in ("l1", "box", "ball"):
        if getattr(model, key):
            raise InvalidInput(f"logistic regression with several classes takes l2 only; leave {key} out.")
    return Softmax(len(target.classes.values), l2=model.l2)


def linear_target(model: Any, raw: Any, options: ModelOptions) -> Target:
    """Return what a linear model learns: numbers, one of two classes, or one of several.

    Examples
    --------
    >>> linear_target(GLM(), ["a", "c", "b"], ModelOptions(classes=["a", "b", "c"])).task
    'classification'
    """
    if model.loss not in ("logistic", "softmax"):
        return Target("regression", None, _label_scale(options))
    if options.label_bounds is not None:
        raise InvalidInput("bounds of the label are for regression; leave them out, or take loss squared.")
    classes = Classes.declared(raw, options.classes, options.accept)
    if model.loss == "softmax":
        classes = Classes(tuple(range(model.classes))) if classes is None else classes
        if len(classes.values) != model.classes:
            raise InvalidInput(f"the model has {model.classes} classes, the labels {len(classes.values)}.")
        return Target("classification", classes)
    if classes is None:
        labels = _plain_labels(raw)
        signed_labels(labels)  # refuses what is not 0/1 or -1/1
        classes = Classes((-1, 1) if (labels.astype(float) < 0).any() else (0, 1))
    return Target("labels" if len(classes.values) == 2 else "classification", classes)


def linear_labels(target: Target, raw: Any) -> np.ndarray:
    """Return labels as a linear model takes them: -1 and 1, class numbers, or numbers.

    Examples
    --------
    >>> linear_labels(Target("labels", Classes(("no", "yes"))), ["yes", "no"]).tolist()
    [1.0, -1.0]
    """
    encoded = target.encode(_plain_labels(raw))
    if encoded.ndim != 1:
        raise DataError(f"a linear model predicts one number, got targets of shape {encoded.shape}.")
    return 2.0 * encoded - 1.0 if target.task == "labels" else encoded


def _linear_metrics(model: Any, w: np.ndarray, X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    metrics = {"loss": float(model.losses(w, X, y).mean())}
    if model.loss in ("logistic", "softmax"):
        return metrics | {"accuracy": 100 * float((model.predict(w, X) == y).mean())}
    return metrics | {"rmse": float(np.sqrt(np.mean((X @ w - y) ** 2)))}
