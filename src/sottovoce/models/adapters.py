"""Adapters between models (torch modules, linear models, scikit-learn estimators) and plans.

What is learned (classes, yes-or-no labels, numbers) and which loss fits is decided from types, shapes and the
caller's options, never from the values of records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.accounting.budget import Budget
from sottovoce.algorithms.consensus_newton import newton_options
from sottovoce.data.base import Features, Shards, is_sparse, is_tensor, with_ones
from sottovoce.data.batch_loaders import (
    IndexedDataset,
    all_items,
    items_in_memory,
    split_item,
    stack_items,
)
from sottovoce.data.images import ImageReading
from sottovoce.data.ingest import IngestedRecords, Target
from sottovoce.data.tables import Classes, ClassNumbers, Columns
from sottovoce.errors import DataError, InvalidInput, MissingDependency
from sottovoce.models.linear_model import LinearModel
from sottovoce.objectives import GLM, Softmax
from sottovoce.objectives.glm import LOSSES as LINEAR
from sottovoce.objectives.glm import REGRESSIONS
from sottovoce.objectives.trivial import trivial_scores, with_trivial
from sottovoce.runners import Result

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sottovoce.data.agent_tensors import AgentData, LazyData
    from sottovoce.objectives.nets.inputs import Layout
    from sottovoce.objectives.nets.objective import NetObjective

Loss = str | Callable[..., Any] | None  # of one record: a name, a torch loss, a function
Label = str | Sequence[str] | None
_WHOLE_BYTES = 1 << 28  # items of a dataset that lie in memory are packed once up to this size
_ERRORS = ("rmse", "trivial_rmse")  # in the unit of the labels


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Options of a model, whoever trains it: `fit` (whose options extend these) or a plan file."""

    clip_norm: float | None = None
    loss: Loss = None
    initial: Literal["keep", "reset"] = "keep"
    class_weight: ClassNumbers | Literal["balanced"] | None = None
    class_shares: ClassNumbers | None = None
    physical_batch: int | None = None
    device: str = "cpu"


def _class_weights(
    options: ModelOptions, target: Target, count: int | None = None
) -> tuple[float, ...] | None:
    """Return the public weight of every class; ``count`` is their number where they have no names."""
    if options.class_weight is None and options.class_shares is None:
        return None
    classes = target.classes
    if classes is None and target.task in ("labels", "classification") and count:
        classes = Classes(tuple(range(max(2, count))))
    if classes is None:
        raise InvalidInput(f"class_weight is for classes; this model learns {target.task}.")
    return classes.weights(options.class_weight, options.class_shares)


@dataclass
class ModelAdapter:
    """A model and the agents' records, in the form plans take, and the way back.

    ``columns``, ``layout`` and ``label`` say how inputs are read, ``builder`` what made a network; ``sizes``
    are the records of each agent, and ``uncharged`` is what was read from them, by name. Records of which
    only the sizes are stated have no ``data``: a plan of them is accounted before they are there.
    """

    objective: Any
    data: Any
    target: Target
    evaluate: Callable[[np.ndarray], dict[str, float]] | None = None
    layout: Layout | None = None
    columns: Columns | ImageReading | None = None
    label: Label = None
    builder: Mapping[str, object] | None = None
    sizes: tuple[int, ...] = ()
    uncharged: tuple[str, ...] = ()

    def model(self, row: np.ndarray) -> nn.Module | LinearModel:
        """Return the model of a row of parameters."""
        raise NotImplementedError

    def rescaled(self, scores: Mapping[str, Any]) -> dict[str, Any]:
        """Return scores with errors of regression in the unit of the labels."""
        width = 1.0 if self.target.scale is None else self.target.scale.width
        return {name: value * width if name in _ERRORS else value for name, value in scores.items()}

    def scored(self, result: Result) -> Result:
        """Return the result with the scores of its model, errors of regression in the unit of the labels."""
        metrics = {**result.metrics, **({} if self.evaluate is None else self.evaluate(result.coef[None]))}
        history = [self.rescaled(entry) for entry in result.history]
        return replace(result, metrics=self.rescaled(metrics), history=history)


def adapt_model(
    module: object,
    records: IngestedRecords,
    parts: list[np.ndarray],
    options: ModelOptions,
    *,
    intercept: bool = True,
) -> ModelAdapter:
    """Return the model and its records as plans take them; ``parts`` are the records of each node.

    ``module`` is a torch module, a `GLM`, a name of one, or an estimator of scikit-learn; ``intercept`` is
    that of a `GLM`.
    """
    if isinstance(module, (str, GLM, Softmax)) or type(module).__module__.startswith("sklearn."):
        adapter = _adapt_linear(module, records, parts, options, intercept)
    else:
        adapter = _adapt_network(module, records, parts, options)
    adapter.columns, adapter.label = records.columns, records.table.label
    adapter.sizes, adapter.uncharged = tuple(len(part) for part in parts), records.uncharged
    return adapter


# ---- networks ----------------------------------------


class NetworkAdapter(ModelAdapter):
    """A network, and its records as tensors."""

    def model(self, row: np.ndarray) -> nn.Module:
        """Return the caller's network with the parameters of ``row``."""
        net = self.objective.module(row)
        return net if self.layout is None else net.module


def _adapt_network(
    module: object,
    records: IngestedRecords,
    parts: list[np.ndarray],
    options: ModelOptions,
) -> ModelAdapter:
    try:
        import torch
    except ImportError:
        raise MissingDependency("Networks need torch; pip install 'sottovoce[deep]'.") from None
    from sottovoce.data.agent_tensors import AgentData, LazyData
    from sottovoce.objectives.nets.checks import output_shape
    from sottovoce.objectives.nets.inputs import Layout, Unpacking, as_tensor
    from sottovoce.objectives.nets.losses import LOSSES, WeightedLoss
    from sottovoce.objectives.nets.objective import NetObjective

    if not isinstance(module, torch.nn.Module):
        raise InvalidInput(
            f"module must be a torch module, a GLM or one of {', '.join(LINEAR)}, got "
            f"{type(module).__name__}."
        )
    first, raw, label = records.inputs, records.targets, records.table.label
    if records.dataset is not None:
        first, raw = _first_item(records.dataset, label)
        if "class names" in records.uncharged:
            raise InvalidInput(
                "a Dataset is not read through for its classes; declare them with classes=[...]."
            )
    layout = Layout.of(first) if isinstance(first, (Mapping, tuple)) else None
    net = module if layout is None else Unpacking(module, layout)

    def pack(inputs: Mapping[str, Any] | Sequence[Any]) -> Tensor:
        return as_tensor(inputs, "data") if layout is None else layout.pack(inputs)

    example = pack(first)
    objective = NetObjective(
        net,
        clip_norm=1.0 if options.clip_norm is None else options.clip_norm,
        physical_batch=options.physical_batch,
        device=options.device,
        initial=options.initial,
    )
    kind = objective.paths.input_type(example[None, :1])
    width = output_shape(objective.network, tuple(example.shape[1:]), kind)
    target, loss = _target(raw, records, options.loss, width)
    if (weights := _class_weights(options, target, None if width is None else math.prod(width))) is not None:
        loss = WeightedLoss(LOSSES[loss] if isinstance(loss, str) else loss, weights)
    objective = objective.with_loss(loss)
    classes = width[0] if target.task == "classification" and width is not None and len(width) == 1 else None

    def encoded(labels: ArrayLike | Tensor) -> np.ndarray:
        """Return targets; numbers in float32, the type of most networks, whole numbers as they are."""
        numbers = target.encode(_plain_labels(labels))
        return numbers.astype(np.float32) if numbers.dtype.kind == "f" else numbers

    def read(i: int) -> tuple[Tensor, Tensor]:
        """Return one record of a Dataset."""
        try:
            item = records.dataset[i]  # type: ignore[index]
        except Exception as error:  # the dataset is the caller's code
            raise DataError(f"record {i} of the dataset cannot be read: {error!r}.") from error
        inputs, raw_label = split_item(item, label)
        one = stack_items([inputs])
        x = one[0] if layout is None else layout.pack(one)[0]
        y = torch.as_tensor(encoded(np.asarray([raw_label])))[0]
        if classes is not None and not 0 <= int(y) < classes:
            raise DataError(f"record {i} has label {int(y)}, but the classes are 0 to {classes - 1}.")
        return x, y

    test = None
    if (tested := records.test) is not None:
        inputs, labels = tested.inputs, tested.targets
        if tested.dataset is not None:
            inputs, labels = all_items(tested.dataset, label)
        test = (pack(inputs), encoded(labels))
        network_outputs(objective, np.zeros((1, objective.n_params)), test[0][:1])
    data: AgentData | LazyData
    if records.dataset is None:
        data = AgentData(example, encoded(records.targets), parts, test=test, classes=classes)
    else:
        data = LazyData(read, parts, test=test)
        if len(records.dataset) * example.nbytes <= _WHOLE_BYTES:
            try:
                batch = items_in_memory(records.dataset)
                if batch is not None:
                    inputs, labels = split_item(batch, label)
                    whole = AgentData(pack(inputs), encoded(labels), parts, test=test, classes=classes)
                    data = whole if whole.like == data.like else data
            except (DataError, RuntimeError, TypeError, KeyError, ValueError):
                pass  # an odd item is named when a batch holds it
    _check_one_record(objective, data)
    return NetworkAdapter(objective, data, target, layout=layout)


def network_outputs(objective: NetObjective, theta: ArrayLike, inputs: Tensor) -> Any:
    """Return what a network of parameters ``theta`` gives for inputs; an error names the layer at fault."""
    from sottovoce.objectives.nets.checks import run_explained

    try:
        return next(objective.outputs(np.asarray(theta), inputs))
    except (RuntimeError, IndexError):
        typed = inputs[:1].to(objective.paths.input_type(inputs[None]))
        run_explained(objective.network, lambda outputs, targets: outputs, typed, lambda outputs: outputs)
        raise


def _check_one_record(objective: NetObjective, data: AgentData | LazyData) -> None:
    """Raise before anything is accounted or spent, if no record of this shape goes through."""
    from sottovoce.objectives.nets.slow_path import announce_slow_path

    x, y, _ = data.gather([np.arange(1)], [0])
    objective.paths.check_records(*objective.paths.typed(x[:, :1], y[:, :1]))
    announce_slow_path(objective, x[:, :1], y[:, :1])


def _first_item(dataset: IndexedDataset, label: Label) -> tuple[Any, Any]:
    """Return inputs and target of the first record as a batch of one: their shapes say what is learned."""
    try:
        item = dataset[0]
    except Exception as error:  # the dataset is the caller's code
        raise DataError(f"the dataset must give records by number, dataset[0] failed: {error!r}.") from None
    inputs, target = split_item(item, label)
    if target is None:
        raise DataError(
            "an item of the dataset must be a pair (inputs, target), or a mapping with the label named by "
            f"label=..., got {type(item).__name__} with label={label!r}."
        )
    try:
        return stack_items([inputs]), np.asarray([target]) if isinstance(target, str) else stack_items(
            [target]
        )
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"items of the dataset must hold tensors or numbers, the first one fails: {error}."
        ) from None


def _plain_labels(raw: object) -> np.ndarray:
    return raw.detach().cpu().numpy() if is_tensor(raw) else np.asarray(raw)


def _target(
    raw: object, records: IngestedRecords, loss: Loss, width: tuple[int, ...] | None
) -> tuple[Target, Any]:
    """Return what is learned, and the loss of one record, from types, shapes and options."""
    from sottovoce.objectives.nets.losses import LOSSES, TASKS, custom_loss

    array, label, scale = _plain_labels(raw), records.table.label, records.table.label_scale()
    names = () if isinstance(label, str) or label is None else tuple(map(str, label))
    one = width is None or math.prod(width) == 1
    if loss is None:
        loss = "squared_error" if scale is not None else _usual_loss(array, records, width)
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise InvalidInput(f"loss must be one of {', '.join(LOSSES)} or a function, got {loss!r}.")
        task: str = TASKS[LOSSES[loss]]
    else:
        loss, task = custom_loss(loss)
    if task == "regression":
        return Target(task, None, scale, names), loss
    if scale is not None:
        raise InvalidInput(
            "bounds of the label are for regression; leave them out, or set loss='squared_error'."
        )
    classes = records.classes_of(array) if array.ndim == 1 else None
    if classes is None:
        return Target(task, None, None, names), loss
    known = len(classes.values)
    if task == "own":
        task = "labels" if one else "classification"
    if task == "labels" and known != 2:
        raise InvalidInput(f"a yes-or-no label has two classes, got {known}.")
    if task == "classification" and width is not None and known != width[0]:
        raise InvalidInput(
            f"there are {known} classes, but the network gives {width[0]} scores; change its last layer."
        )
    return Target(task, classes, None, names), loss


def _usual_loss(array: np.ndarray, records: IngestedRecords, width: tuple[int, ...] | None) -> str:
    """Return the name of the loss that fits labels and outputs."""
    named = array.dtype.kind in "OUSb" or records.table.classes is not None
    named |= "class names" in records.uncharged
    if array.ndim == 2:
        return "squared_error" if array.dtype.kind == "f" else "binary_cross_entropy"
    several = width is not None and math.prod(width) != 1
    if array.dtype.kind == "f" and not named and not several:
        return "squared_error"
    if width is None or several:
        return "cross_entropy"
    if named:
        return "binary_cross_entropy"
    raise InvalidInput(
        "the network gives one number and the labels are whole numbers; say loss='binary_cross_entropy' for "
        "0 and 1, or loss='squared_error' for amounts."
    )


# ---- linear models ----------------------------------------


@dataclass
class LinearAdapter(ModelAdapter):
    """A linear model, and its records as shards."""

    names: tuple[str, ...] = ()
    intercept: bool = True
    feature_norm: float = 1.0  # what most records are no longer than, by public facts

    def newton_options(self, budget: Budget) -> dict[str, Any]:
        """Return the options of Newton steps that suit a budget."""
        records, norm = sum(self.sizes), self.feature_norm
        return newton_options(self.objective, records, budget.epsilon, budget.delta, norm)

    def model(self, row: np.ndarray) -> LinearModel:
        """Return the coefficients with the names of their features."""
        classes = self.objective.classes if isinstance(self.objective, Softmax) else None
        return LinearModel.of_row(row, self.objective.loss, self.names, self.intercept, classes)


def _glm(module: Any, records: int, intercept: bool) -> tuple[GLM | Softmax, bool]:
    """Return the linear model that was named, and whether it has an intercept: ``intercept``, or its own."""
    if isinstance(module, (GLM, Softmax)):
        return module, intercept
    if isinstance(module, str):
        if module not in LINEAR:
            raise InvalidInput(f"a linear model is one of {', '.join(LINEAR)}, got {module!r}.")
        return GLM(module), intercept  # type: ignore[arg-type]
    kind = type(module).__name__
    params = module.get_params()
    if kind == "LogisticRegression" and params.get("penalty", "l2") in ("l2", "deprecated", None):
        strength = 0.0 if params.get("penalty", "l2") is None or math.isinf(params["C"]) else 1 / params["C"]
        return GLM("logistic", l2=strength / records), params["fit_intercept"]
    if kind in ("Ridge", "LinearRegression"):
        return GLM("squared", l2=params.get("alpha", 0.0) / records), params["fit_intercept"]
    raise InvalidInput(
        "of scikit-learn's estimators fit takes LogisticRegression (l2), Ridge and LinearRegression, got "
        f"{kind}; sottovoce.sklearn has private ones for one holder."
    )


def _adapt_linear(
    module: Any,
    records: IngestedRecords,
    parts: list[np.ndarray],
    options: ModelOptions,
    intercept: bool,
) -> ModelAdapter:
    if records.dataset is not None or isinstance(records.inputs, (Mapping, tuple)):
        raise DataError("a linear model takes a table or one array of features; a network takes the rest.")
    if options.loss is not None:
        raise InvalidInput(
            "a linear model has its own loss; name it instead of the module, or leave loss out."
        )
    model, intercept = _glm(module, sum(len(part) for part in parts), intercept)
    weight = None if isinstance(module, (str, GLM, Softmax)) else module.get_params().get("class_weight")
    if weight is not None:
        if options.class_weight is not None:
            raise InvalidInput("the estimator has a class_weight already; leave one out.")
        options = replace(options, class_weight=weight)
    X = _features(records.inputs, intercept)
    if model.dim not in (None, X.shape[1]):
        raise InvalidInput(
            f"the model has {model.dim} features, the data have {X.shape[1]} with the intercept."
        )
    target = linear_target(model, records)
    model = replace(
        _several_classes(model, target, _class_weights(options, target)), dim=X.shape[1], intercept=intercept
    )
    y, columns = linear_labels(target, records.targets), records.columns
    data: Shards | tuple[Features, np.ndarray] = (X, y)
    if not is_sparse(X):
        data = Shards.from_parts(X, y, parts)
    elif len(parts) > 1:
        raise DataError("the data are sparse; dealing them out among users needs a dense array.")
    # columns within their bounds are rarely near them all at once; an array is taken as within [-1, 1]
    square = (X.shape[1] - intercept) / 2 if columns is None else columns.usual_square
    adapter = LinearAdapter(
        model,
        data,
        target,
        names=() if columns is None else columns.names,
        intercept=intercept,
        feature_norm=math.sqrt(square + intercept),
    )
    if (tested := records.test) is not None:
        test = (_features(tested.inputs, intercept), linear_labels(target, tested.targets))
        if test[0].shape[1] != X.shape[1]:
            raise DataError(
                f"the test records have {test[0].shape[1] - intercept} features, those to train on "
                f"{X.shape[1] - intercept}."
            )
        adapter.evaluate = _linear_evaluation(model, target, *test)
    return adapter


def _features(inputs: Any, intercept: bool) -> Features:
    if not is_sparse(inputs):
        inputs = np.asarray(inputs.detach() if is_tensor(inputs) else inputs, dtype=np.float64)
        if inputs.ndim != 2:
            raise DataError(f"a linear model takes features (records, features), got shape {inputs.shape}.")
    return with_ones(inputs) if intercept else inputs


def _several_classes(
    model: GLM | Softmax, target: Target, weights: tuple[float, ...] | None
) -> GLM | Softmax:
    """Return the linear model that fits the target: logistic regression of several classes is a softmax."""
    if target.task == "classification" and not isinstance(model, Softmax):
        assert target.classes is not None
        if model.loss != "logistic":
            raise InvalidInput(f"a {model.loss} loss is for two classes, got {len(target.classes.values)}.")
        if model.class_weight is not None and weights is None:
            raise InvalidInput("with several classes, give class_weight in TrainingOptions, one per class.")
        for key, value in {"l1": model.l1, "box": model.box, "ball": model.ball}.items():
            if value:
                raise InvalidInput(
                    f"logistic regression with several classes takes l2 only; leave {key} out."
                )
        model = Softmax(len(target.classes.values), l2=model.l2)
    return model if weights is None else replace(model, class_weight=weights)


def linear_target(model: GLM | Softmax, records: IngestedRecords) -> Target:
    """Return what a linear model learns: numbers, one of two classes, or one of several."""
    if model.loss in REGRESSIONS:
        return Target("regression", None, records.table.label_scale(common=True))
    if records.table.label_bounds is not None:
        raise InvalidInput("bounds of the label are for regression; leave them out, or take loss squared.")
    classes = records.classes_of(records.targets)
    if isinstance(model, Softmax):
        classes = Classes(tuple(range(model.classes))) if classes is None else classes
        if len(classes.values) != model.classes:
            raise InvalidInput(f"the model has {model.classes} classes, the labels {len(classes.values)}.")
        return Target("classification", classes)
    classes = classes or Classes((0, 1))
    return Target("labels" if len(classes.values) == 2 else "classification", classes)


def linear_labels(target: Target, raw: object) -> np.ndarray:
    """Return labels as a linear model takes them: -1 and 1, class numbers, or numbers."""
    encoded = target.encode(_plain_labels(raw))
    if encoded.ndim != 1:
        raise DataError(f"a linear model predicts one number, got targets of shape {encoded.shape}.")
    return 2.0 * encoded - 1.0 if target.task == "labels" else encoded


def _linear_evaluation(
    model: GLM | Softmax, target: Target, X: Features, y: np.ndarray
) -> Callable[[np.ndarray], dict[str, Any]]:
    """Return a function from rows to the scores of their mean on test records, beside those of a constant."""
    trivial = trivial_scores(target.task, y)

    def evaluate(rows: np.ndarray) -> dict[str, Any]:
        w = rows.mean(axis=0)
        scores = {"loss": float(model.losses(w, X, y).mean())}
        predicted = model.predict(w, X)
        if target.task == "regression":
            scores["rmse"] = float(np.sqrt(np.mean((predicted - y) ** 2)))
        else:
            scores["accuracy"] = float((predicted == y).mean())
        return with_trivial(scores, trivial)

    return evaluate
