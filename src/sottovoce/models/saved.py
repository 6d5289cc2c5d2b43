"""A fitted model with its guarantee, and the folder it is saved in.

The folder holds ``model.safetensors`` (weights of a network) or ``model.json`` (coefficients with the names
of their features), ``record.json`` and ``arrays.npz`` (the run and its plan), ``guarantee.txt`` (the
guarantee in words), ``saved_model.json`` (how inputs and labels are read) and ``README.md`` (three lines that
load it); a run by a plan file or an agreement adds that file. No file holds code: a network that is made
neither of torch's own layers nor of the zoo's is passed again to `load_model`.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import inspect
import json
import math
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from sottovoce import _validate
from sottovoce._format import number, percent
from sottovoce._hooks import NotebookDisplay
from sottovoce._io import atomic_write, to_jsonable
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.data.base import is_tensor
from sottovoce.data.images import ImageReading, read_images
from sottovoce.data.ingest import IndexedDataset, Target, ingest, read_inputs
from sottovoce.data.tables import Columns, TableData
from sottovoce.errors import DataError, InvalidInput, MissingDependency
from sottovoce.runners import Result

if TYPE_CHECKING:
    from torch import nn

    from sottovoce.objectives.nets.inputs import Layout
    from sottovoce.objectives.nets.objective import NetObjective

FORMAT = 1
DESCRIPTION, WEIGHTS, COEFFICIENTS = "saved_model.json", "model.safetensors", "model.json"


@dataclass(frozen=True)
class LinearModel:
    """A linear model by its numbers: x.coef + intercept, for features as the columns give them.

    With several classes ``coef`` has one row and ``intercept`` one number per class.
    """

    coef: np.ndarray
    intercept: float | np.ndarray = 0.0
    feature_names: tuple[str, ...] = ()
    loss: str = "logistic"

    @classmethod
    def of_row(
        cls, row: np.ndarray, loss: str, names: tuple[str, ...], intercept: bool, classes: int | None
    ) -> LinearModel:
        """Return the model of a row of parameters, the last feature being the intercept's."""
        table = np.array(row if classes is None else np.reshape(row, (classes, -1)))
        if not intercept:
            return cls(table, 0.0 if classes is None else np.zeros(classes), names, loss)
        shift = table[..., -1]
        return cls(table[..., :-1], float(shift) if classes is None else shift, names, loss)

    def scores(self, X: ArrayLike) -> np.ndarray:
        """Return x.coef + intercept of every record, one number per class where there are several."""
        array = np.asarray(X, dtype=np.float64)
        if array.ndim != 2 or array.shape[1] != self.coef.shape[-1]:
            raise DataError(f"the model takes {self.coef.shape[-1]} features, got shape {array.shape}.")
        return np.asarray(array @ self.coef.T + self.intercept)


@dataclass(frozen=True, eq=False, repr=False)
class Fitted(NotebookDisplay):
    """What `sottovoce.fit` returns: the model, its privacy guarantee, and the run that fitted it.

    ``model`` is a torch module in evaluation mode, or a `LinearModel`; ``plan`` the plan that ran, after
    `load_model` its description; ``result`` the whole run. ``target``, ``columns`` (of a table, or of images)
    and ``layout`` say how labels and inputs are read, ``builder`` what made the network, where a name says
    it.

    Examples
    --------
    >>> import sottovoce as sv
    >>> X = np.array([[0.9], [0.8], [-0.9], [-0.7]] * 50)
    >>> fitted = sv.fit("logistic", (X, ["yes", "yes", "no", "no"] * 50), network="ring:4",
    ...                 budget=sv.Budget(2.0, 1e-5), rng=np.random.default_rng(0),
    ...                 training=sv.TrainingOptions(steps=10, classes=["no", "yes"]))
    >>> fitted.predict([[0.5], [-0.5]]).tolist()
    ['yes', 'no']
    >>> str(fitted).split(": ")[1]
    'epsilon 1.999 at delta 1e-05 [exact, add-remove], against any one node; simulated noise'
    """

    model: Any
    privacy: Guarantee
    plan: Any
    result: Result
    target: Target
    delta: float
    columns: Columns | ImageReading | None = None
    layout: Layout | None = None
    label: Any = None
    builder: Mapping[str, Any] | None = None

    @property
    def history(self) -> list[Mapping[str, Any]]:
        """What was measured along the way, on public records."""
        return list(self.result.history)

    @property
    def metrics(self) -> Mapping[str, Any]:
        """What was measured at the end, on public records."""
        return self.result.metrics

    @property
    def rows(self) -> np.ndarray:
        """The parameters of every agent, (agents, parameters)."""
        return self.result.outputs["rows"]

    def scores(self, data: object) -> np.ndarray:
        """Return what the model gives for new records, before it becomes a class or a unit."""
        if isinstance(self.columns, ImageReading):
            inputs: Any = seen_images(self.columns, read_images(data))
        else:
            inputs = read_inputs(data, self.columns, self.label)
        if not isinstance(self.model, LinearModel) and isinstance(inputs, IndexedDataset):
            if not _in_memory(inputs):
                return np.concatenate([self._network_scores(part) for part in _batches(inputs, self.label)])
        return self._scored(inputs)

    decision_function = scores  # scikit-learn's name

    def predict(self, data: object, threshold: float = 0.5) -> np.ndarray:
        """Return predictions for new records (a table, a path, arrays, a Dataset) in the labels' words.

        A yes-or-no label is yes where its probability is above ``threshold``; lower it for rare events.
        """
        scores = self.scores(data)
        if threshold != 0.5:
            share = _validate.probability(threshold, "threshold", zero=False, one=False)
            if self.target.task != "labels":
                raise InvalidInput(f"a threshold is for yes-or-no labels, not for {self.target.task}.")
            self._require_probabilities()
            scores = scores - math.log(share / (1 - share))
        return self.target.decode(scores)

    def predict_proba(self, data: object) -> np.ndarray:
        """Return the probability of every class, (records, classes), in the order of the classes."""
        if self.target.task not in ("classification", "labels"):
            raise InvalidInput(f"probabilities are of classes; this model predicts {self.target.task}.")
        self._require_probabilities()
        scores = self.scores(data)
        if self.target.task == "labels" and scores.ndim == 2 and scores.shape[1] == 1:
            scores = scores[:, 0]
        return probabilities(scores, several=self.target.task == "classification")

    def _require_probabilities(self) -> None:
        if isinstance(self.model, LinearModel) and self.model.loss == "hinge":
            raise InvalidInput("a hinge loss gives no probabilities; decision_function has its scores.")

    def score(
        self,
        data: object,
        metric: Literal["auc", "accuracy", "rmse"] | None = None,
        by: str | Sequence[object] | np.ndarray | None = None,
    ) -> float | dict[str, float]:
        """Return how well the model predicts records with labels, by default AUC, accuracy or rmse.

        ``data`` is a table with the label's column, or a pair (inputs, labels), and taken as public. ``by``
        is a column, or one name per record: one score per site, or, with ``metric="accuracy"`` and the column
        of the label, per class; NaN where all records of a site are of one class.
        """
        public = ingest(TableData(data, self.label, by), columns=self._table_columns)
        task, labels = self.target.task, np.asarray(public.targets)
        known = _METRICS.get(task, ())
        chosen = next(iter(known), None) if metric is None else metric
        if chosen not in known:
            allowed = ", ".join(known) or "none"
            raise InvalidInput(f"metric of {task} must be one of {allowed}, got {metric!r}.")
        truth = labels.astype(float) if task == "regression" else self.target.encode(labels)
        values = self._scored(public.inputs)
        if chosen != "auc":
            values = self.target.decode(values)
        if chosen == "accuracy":
            values = self.target.encode(values)
        if public.groups is None:
            return _measured(chosen, truth, values)
        rows = {str(site): public.groups == site for site in np.unique(public.groups)}
        return {site: _measured(chosen, truth[here], values[here]) for site, here in rows.items()}

    @property
    def _table_columns(self) -> Columns | None:
        return self.columns if isinstance(self.columns, Columns) else None

    def _scored(self, inputs: Any) -> np.ndarray:
        """Return the scores of inputs in the form the model takes."""
        return (
            self.model.scores(inputs) if isinstance(self.model, LinearModel) else self._network_scores(inputs)
        )

    @cached_property
    def _objective(self) -> NetObjective:
        from sottovoce.objectives.nets.inputs import Unpacking
        from sottovoce.objectives.nets.objective import NetObjective

        return NetObjective(self.model if self.layout is None else Unpacking(self.model, self.layout))

    def _network_scores(self, inputs: Mapping[str, Any] | Sequence[Any]) -> np.ndarray:
        from sottovoce.objectives.nets import checks
        from sottovoce.objectives.nets.inputs import as_tensor
        from sottovoce.objectives.nets.losses import logits

        x = as_tensor(inputs, "data") if self.layout is None else self.layout.pack(inputs)
        if x.ndim < 1 or len(x) == 0:
            raise DataError(f"expected records on the first axis, got shape {tuple(x.shape)}.")
        objective = self._objective
        try:
            outputs = logits(next(objective.outputs(objective.start(1), x)))
        except (RuntimeError, IndexError):
            typed = x[:1].to(objective.paths.input_type(x[None]))
            module = self.model if self.layout is None else objective.network
            checks.run_explained(module, lambda outputs, targets: outputs, typed, lambda outputs: outputs)
            raise
        if not is_tensor(outputs):
            kind = type(outputs).__name__
            raise InvalidInput(f"the network gives {kind}; call fitted.model itself for that.")
        return outputs.cpu().numpy()

    def save(
        self, folder: str | Path, also: Mapping[str, str | bytes] | None = None, *, replace: bool = False
    ) -> Path:
        """Save the model: weights or coefficients, result, statement, and a card with three lines to load it.

        ``also`` are further files by name, such as the plan file that was run. No file is overwritten unless
        ``replace`` says so.
        """
        place = Path(folder)
        if not replace:
            require_unused(place)
        linear = isinstance(self.model, LinearModel)
        stored: dict[str, Any] = {
            "format": FORMAT,
            "kind": "linear" if linear else "network",
            "privacy": self.privacy.to_dict(self.delta),
            "delta": self.delta,
            "label": self.label,
            "target": self.target.to_dict(),
            "columns": None if self.columns is None else self.columns.to_dict(),
            "builder": None if self.builder is None else dict(self.builder),
        }
        if linear:
            # classes and scaling stand in saved_model.json as well; here they are for people
            shown = {"classes": stored["target"]["classes"], "scaling": stored["columns"]}
            content = json.dumps(to_jsonable({**vars(self.model), **shown}), indent=1).encode()
        else:
            content, stored["aliases"] = _weights(self.model)
            stored["layout"] = None if self.layout is None else self.layout.to_dict()
            stored["class"] = type(self.model).__name__
            stored["architecture"] = described_module(self.model)
        name = COEFFICIENTS if linear else WEIGHTS
        stored["model"] = {"file": name, "sha256": hashlib.sha256(content).hexdigest()}
        self.result.save(place)
        files = {
            name: content,
            "guarantee.txt": self.privacy.statement(self.delta) + "\n",
            **(also or {}),
            "README.md": self._card(stored),
            DESCRIPTION: json.dumps(to_jsonable(stored), indent=1) + "\n",
        }
        for file, text in files.items():
            atomic_write(place / file, text)
        return place

    def to_onnx(self, path: str | Path, example: ArrayLike | None = None) -> Path:
        """Write the model as an ONNX file, for use without torch: prepared features in, scores out.

        Scaling of columns and names of classes are not in it. ``example``: one record or several, needed
        where the model was made from arrays. It needs ``pip install 'sottovoce[onnx]'``.
        """
        values = self._example(example)
        if any(importlib.util.find_spec(name) is None for name in ("torch", "onnx", "onnxscript")):
            raise MissingDependency(
                "ONNX files are written by torch and onnx; pip install 'sottovoce[onnx]'."
            )
        import torch

        if self.layout is not None:
            raise InvalidInput(
                "ONNX export takes networks with one input; use fitted.model itself for several."
            )
        network = _linear_network(self.model) if isinstance(self.model, LinearModel) else self.model
        tensor = torch.as_tensor(np.repeat(values[:1], 2, axis=0))  # one record would be taken for a constant
        if tensor.is_floating_point():
            tensor = tensor.to(next(network.parameters()).dtype)
        names: dict[str, Any] = {"input_names": ["inputs"], "output_names": ["scores"]}
        shapes = ({0: torch.export.Dim("records")},)
        options = {"dynamo": True, "verbose": False, "external_data": False, **names}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(network.eval(), (tensor,), str(path), dynamic_shapes=shapes, **options)
        return Path(path)

    def _example(self, example: ArrayLike | None) -> np.ndarray:
        """Return one record as the model takes it: the caller's, or zeros where the columns say how many."""
        if example is not None:
            array = np.asarray(example)
            if array.dtype.kind not in "biuf":
                raise DataError("the example must be records as the model takes them, numbers.")
            return array if array.dtype.kind in "iu" else array.astype(np.float64)
        if isinstance(self.model, LinearModel):
            return np.zeros((1, self.model.coef.shape[-1]))
        if isinstance(self.columns, Columns):
            return np.zeros((1, len(self.columns.names) + self.columns.ones))
        raise InvalidInput("the shape of a record is not known; give to_onnx(path, example=records).")

    def report(self, path: str | Path) -> Path:
        """Write a page about the run: what was measured, and who could learn what."""
        return self.result.report(path, title=f"Fitted: {self._kind}")

    def _card(self, stored: Mapping[str, Any]) -> str:
        """Return what a reader should know of the model, in Markdown."""
        rebuilds = stored["kind"] == "linear" or stored["architecture"] or "zoo" in (stored["builder"] or {})
        module = "" if rebuilds else f", module={_module_argument(stored)}"
        label = "" if self.label is None else f" `{self.label}`"
        classes = self.target.classes
        names = "" if classes is None else f" ({', '.join(map(str, classes.values))})"
        read = f", from {', '.join(self.columns.features)}" if isinstance(self.columns, Columns) else ""
        scores = [
            f"- {name.replace('_', ' ')}: {percent(value) if 'accuracy' in name else number(value)}"
            for name, value in self.metrics.items()
            if isinstance(value, float)
        ]
        measured = ["## Scores", "On public records:", "\n".join(scores)] if scores else []
        use = ["import sottovoce as sv", f'fitted = sv.load_model("."{module})', 'fitted.predict("new.csv")']
        parts = [
            f"# {self._kind[:1].upper()}{self._kind[1:]} fitted by Sottovoce",
            f"It predicts{label}{names}{read}. How it was made is in record.json.",
            "## Privacy",
            self.privacy.statement(self.delta),
            *measured,
            "## Use",
            "\n".join(f"    {line}" for line in use),
        ]
        return "\n\n".join(parts) + "\n"

    @property
    def _kind(self) -> str:
        return "a linear model" if isinstance(self.model, LinearModel) else type(self.model).__name__

    def __repr__(self) -> str:
        epsilon = self.privacy.epsilon(self.delta)
        simulated = "; simulated noise" if "not protective" in self.result.provenance.get("noise", "") else ""
        shown = [(name, self.metrics[name]) for name in self.metrics if name in ("accuracy", "rmse", "loss")]
        scores = "".join(
            f", {name} {percent(value) if name == 'accuracy' else number(value)}" for name, value in shown
        )
        if self.metrics.get("better_than_trivial") is False:
            scores += ", no better than a constant answer"
        return (
            f"{self._kind} by {self.result.name}: epsilon {number(epsilon, 'epsilon')} at delta "
            f"{number(self.delta, 'delta')} [{self.privacy.label}, {self.privacy.adjacency}], against "
            f"{self.privacy.adversary}{scores}{simulated}"
        )


def probabilities(scores: np.ndarray, *, several: bool) -> np.ndarray:
    """Return the probability of every class: of several by their scores, or of no and yes by one score."""
    if several:
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=-1, keepdims=True))
    share = np.exp(-np.logaddexp(0, -scores))
    return np.stack([1 - share, share], axis=-1)


_METRICS = {"labels": ("auc", "accuracy"), "classification": ("accuracy",), "regression": ("rmse",)}


def _measured(metric: str, truth: np.ndarray, values: np.ndarray) -> float:
    """Return a score; NaN where the records are of one class only and have no AUC."""
    if metric == "accuracy":
        return float(np.mean(values == truth))
    if metric == "rmse":
        return float(np.sqrt(np.mean((values - truth) ** 2)))
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(truth, np.ravel(values))) if len(np.unique(truth)) > 1 else math.nan


def require_unused(place: Path) -> None:
    """Raise if a folder holds a file that a saved model would overwrite."""
    if place.exists() and not place.is_dir():
        raise DataError(f"{place} is a file; a model is saved as a folder, name another place.")
    names = (DESCRIPTION, WEIGHTS, COEFFICIENTS, "record.json", "arrays.npz", "guarantee.txt", "README.md")
    there = next((name for name in names if (place / name).exists()), None)
    if there == DESCRIPTION:
        raise DataError(f"{place} holds a saved model, which cannot be fitted again; name another folder.")
    if there is not None:
        raise DataError(f"{place} holds {there} already; name another folder.")


def load_model(folder: str | Path, module: nn.Module | str | None = None) -> Any:
    """Return the model that `Fitted.save` wrote, or the result that ``result.save`` wrote.

    ``module`` is the network, for the weights to be put into (a copy is made), or ``"mynet:build"``, the
    function that builds it; needed where it is not made of torch's own layers, since a saved model holds no
    code.

    Examples
    --------
    >>> load_model("nowhere")
    Traceback (most recent call last):
    sottovoce.errors.DataError: There is no saved model or result in nowhere; fitted.save(folder) makes one.
    """
    place = Path(folder)
    described = (place / DESCRIPTION).is_file()
    if not described and not (place / "record.json").is_file():
        raise DataError(f"There is no saved model or result in {place}; fitted.save(folder) makes one.")
    result = Result.load(place)
    if not described:
        return result
    try:
        stored = json.loads((place / DESCRIPTION).read_text(encoding="utf-8"))
        if stored["format"] != FORMAT:
            raise DataError(
                f"{place} is a saved model of format {stored['format']}, this version reads {FORMAT}."
            )
        name, expected = stored["model"]["file"], stored["model"]["sha256"]
        if name not in (WEIGHTS, COEFFICIENTS):
            raise DataError(f"{place / DESCRIPTION} names the model {name!r}, expected {WEIGHTS}.")
        content = (place / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != expected:
            raise DataError(
                f"{place / name} is not the file this model was saved with (its SHA-256 differs)."
            )
        if stored["kind"] == "linear":
            values, layout = json.loads(content), None
            shift = values["intercept"]
            model: Any = LinearModel(
                coef=np.array(values["coef"]),
                intercept=np.array(shift) if isinstance(shift, list) else shift,
                feature_names=tuple(values["feature_names"]),
                loss=values["loss"],
            )
        else:
            model, layout = _network(place, stored, content, module)
        columns = stored["columns"]
        columns = columns and (ImageReading if "side" in columns else Columns).from_dict(columns)
        return Fitted(
            model,
            Guarantee.from_dict(stored["privacy"]),
            result.config,
            result,
            Target.from_dict(stored["target"]),
            float(stored["delta"]),
            columns,
            layout,
            stored["label"],
            stored.get("builder"),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise DataError(f"the model saved in {place} cannot be read ({error!r}); save it again.") from None


def seen_images(reading: ImageReading, images: np.ndarray) -> np.ndarray:
    """Return images as the network sees them: scaled, and as fixed features where the reading names some."""
    values = reading(images)
    if reading.features is None:
        return values
    from sottovoce.data.image_features import named_features

    grey = values.shape[1] == 1
    return named_features(reading.features)(values[:, 0] if grey else values)


# ---- networks ----------------------------------------


def _in_memory(inputs: object) -> bool:
    if isinstance(inputs, list):
        return not inputs or np.ndim(inputs[0]) > 0 or np.isscalar(inputs[0])
    return isinstance(inputs, (Mapping, tuple, np.ndarray)) or is_tensor(inputs)


def _batches(dataset: IndexedDataset, label: str | None, size: int = 256) -> Iterator[Any]:
    """Yield the inputs of a Dataset, some at a time; targets that come with them are left aside."""
    for first in range(0, len(dataset), size):
        numbers = range(first, min(first + size, len(dataset)))
        yield stack_items([split_item(dataset[i], label)[0] for i in numbers])


def split_item(item: object, label: str | Sequence[str] | None) -> tuple[Any, Any]:
    """Return inputs and target of one item of a Dataset: a pair, or a mapping with a label.

    Without a name for it the label is ``"labels"`` or ``"label"``, as in Hugging Face's datasets.
    """
    if isinstance(item, Mapping):
        label = next((name for name in ("labels", "label") if name in item), None) if label is None else label
        named = {name: value for name, value in item.items() if name != label}
        return (next(iter(named.values())) if len(named) == 1 else named), item.get(label)
    if isinstance(item, (tuple, list)) and len(item) > 1:
        *inputs, target = item
        return (inputs[0] if len(inputs) == 1 else tuple(inputs)), target
    return item, None


def stack_items(items: Sequence[Any]) -> Any:
    """Return the inputs of several records as one batch; a record may be a mapping or a tuple of tensors."""
    import torch

    def stacked(values: Sequence[object]) -> torch.Tensor:
        return torch.stack([torch.as_tensor(value) for value in values])

    if isinstance(items[0], Mapping):
        return {key: stacked([item[key] for item in items]) for key in items[0]}
    if isinstance(items[0], (tuple, list)):
        return tuple(stacked([item[j] for item in items]) for j in range(len(items[0])))
    return stacked(items)


def _weights(module: nn.Module) -> tuple[bytes, dict[str, str]]:
    """Return the weights as a safetensors file, and which names share a tensor (the format holds it once)."""
    from sottovoce.objectives.nets.module_files import needs_safetensors

    needs_safetensors()
    from safetensors.torch import save

    tensors: dict[str, Any] = {}
    places: dict[tuple[int, tuple[int, ...]], str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in module.state_dict().items():
        key = (tensor.data_ptr(), tuple(tensor.shape))
        if tensor.numel() and key in places:
            aliases[name] = places[key]
            continue
        places[key] = name
        tensors[name] = tensor.detach().cpu().contiguous().clone()
    return save(tensors), aliases


def _network(
    place: Path, stored: Mapping[str, Any], content: bytes, module: nn.Module | str | None
) -> tuple[nn.Module, Layout | None]:
    from sottovoce.objectives.nets.inputs import Layout
    from sottovoce.objectives.nets.module_files import build_module, build_named, parse_weights, put_weights

    weights = parse_weights(content, str(place / WEIGHTS))
    weights |= {name: weights[shared] for name, shared in stored["aliases"].items()}
    builder = stored.get("builder") or {}
    if isinstance(module, str):
        model = build_module(module, options=builder.get("options"))
    elif module is not None:
        model = copy.deepcopy(module)
    elif stored["architecture"] is not None:
        model = rebuilt_module(stored["architecture"])
    elif "zoo" in builder:
        model = build_named(builder)
    else:
        raise DataError(
            f"the model saved in {place} holds the weights of a {stored['class']} and no code; pass the "
            f"network: sv.load_model({str(place)!r}, module={_module_argument(stored)})."
        )
    put_weights(model, weights, str(place))
    layout = None if stored["layout"] is None else Layout.from_dict(stored["layout"])
    return model.eval(), layout


def _module_argument(stored: Mapping[str, Any]) -> str:
    """Return how the network is passed to `load_model`: by the function that built it, or its class."""
    name = (stored.get("builder") or {}).get("module")
    return repr(name) if name else f"{stored['class']}(...)"


def described_module(module: nn.Module) -> dict[str, Any] | None:
    """Return a network of torch's own layers as plain values, or None where only code says what it is.

    A layer is its name and the arguments that made it: torch keeps them as attributes of the same names, and
    what ``repr`` shows of a layer is not all of them.
    """
    described = _described(module)
    if described is None:
        return None
    try:
        again = rebuilt_module(described)
    except (TypeError, ValueError, AttributeError, RuntimeError):
        return None
    shapes = [{name: tuple(t.shape) for name, t in m.state_dict().items()} for m in (module, again)]
    return described if repr(again) == repr(module) and shapes[0] == shapes[1] else None


def _described(module: nn.Module) -> dict[str, Any] | None:
    from torch import nn

    kind = type(module)
    stock = getattr(nn, kind.__name__, None) is kind
    if not stock or module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__:
        return None
    if kind is nn.Sequential:
        parts = [[name, _described(child)] for name, child in module.named_children()]
        return None if any(part is None for _, part in parts) else {"layer": "Sequential", "parts": parts}
    if list(module.children()):
        return None
    # a device or a type is no argument of a saved layer, and a bias that is there is a tensor
    names = [name for name in inspect.signature(kind.__init__).parameters if name not in ("device", "dtype")]
    arguments = {name: getattr(module, name) for name in names if hasattr(module, name)}
    if "bias" in arguments:
        arguments["bias"] = arguments["bias"] is not None and arguments["bias"] is not False
    values = [
        part for value in arguments.values() for part in (value if isinstance(value, tuple) else [value])
    ]
    plain = all(value is None or isinstance(value, (bool, int, float, str)) for value in values)
    return {"layer": kind.__name__, "arguments": arguments} if plain else None


def rebuilt_module(described: Mapping[str, Any]) -> nn.Module:
    """Return the network that `described_module` described: layers of ``torch.nn`` by name, nothing else."""
    from torch import nn

    if described["layer"] == "Sequential":
        return nn.Sequential(OrderedDict((name, rebuilt_module(part)) for name, part in described["parts"]))
    kind = vars(nn).get(str(described["layer"]))
    if not (inspect.isclass(kind) and issubclass(kind, nn.Module)):
        raise DataError(
            f"the saved model names the layer {described['layer']!r}, which torch.nn does not have."
        )
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in described["arguments"].items()}
    return kind(**arguments)


def _linear_network(model: LinearModel) -> nn.Module:
    import torch

    coef = torch.as_tensor(np.atleast_2d(model.coef))
    layer = torch.nn.Linear(coef.shape[1], coef.shape[0], dtype=coef.dtype)
    with torch.no_grad():
        layer.weight.copy_(coef)
        layer.bias.copy_(torch.as_tensor(np.atleast_1d(model.intercept)))
    return layer
