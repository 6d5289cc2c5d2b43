"""A fitted model with its guarantee, and the folder it is saved in.

The folder holds ``model.safetensors`` (weights of a network) or ``model.json`` (coefficients with the names
of their features), ``record.json`` and ``arrays.npz`` (the run and its plan), ``statement.txt`` (the
guarantee in words), ``saved_model.json`` (how inputs and labels are read) and ``README.md`` (three lines that
load it); a run by a plan file or an agreement adds that file. No file holds code: a network that is made
neither of torch's own layers nor of the zoo's is passed again to `load_model`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce._io import atomic_write, plain
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.data.images import ImageReading, read_images
from sottovoce.data.ingest import Target, read_inputs
from sottovoce.data.tables import Classes, Columns, Scale
from sottovoce.errors import DataError, InvalidInput, MissingDependency
from sottovoce.runners import Result

FORMAT = 1
DESCRIPTION, WEIGHTS, COEFFICIENTS = "saved_model.json", "model.safetensors", "model.json"


@dataclass(frozen=True)
class LinearModel:
    """A linear model by its numbers: x.coef + intercept, for features as the columns give them.

    With several classes ``coef`` has one row and ``intercept`` one number per class.

    Examples
    --------
    >>> model = LinearModel(np.array([2.0]), 1.0, ("age",))
    >>> model.scores(np.array([[3.0]])).tolist()
    [7.0]
    >>> LinearModel.of_row(np.array([1.0, 0.5, 2.0, 0.0]), "softmax", classes=2).scores([[3.0]]).tolist()
    [[3.5, 6.0]]
    """

    coef: np.ndarray
    intercept: Any = 0.0
    feature_names: tuple[str, ...] = ()
    loss: str = "logistic"

    @classmethod
    def of_row(
        cls,
        row: np.ndarray,
        loss: str,
        *,
        names: tuple[str, ...] = (),
        intercept: bool = True,
        classes: int | None = None,
    ) -> LinearModel:
        """Return the model of a row of parameters, the last feature being the intercept's."""
        table = np.array(row if classes is None else np.reshape(row, (classes, -1)))
        if not intercept:
            return cls(table, 0.0 if classes is None else np.zeros(classes), names, loss)
        shift = table[..., -1]
        return cls(table[..., :-1], float(shift) if classes is None else shift, names, loss)

    def scores(self, X: Any) -> np.ndarray:
        """Return x.coef + intercept of every record, one number per class where there are several."""
        array = np.asarray(X, dtype=np.float64)
        if array.ndim != 2 or array.shape[1] != self.coef.shape[-1]:
            raise DataError(f"the model takes {self.coef.shape[-1]} features, got shape {array.shape}.")
        return np.asarray(array @ self.coef.T + self.intercept)


@dataclass(frozen=True, eq=False, repr=False)
class Fitted:
    """What `sottovoce.fit` returns: the model, what it cost, and how it came about.

    Attributes
    ----------
    model : a torch module in evaluation mode, or a `LinearModel`.
    privacy : the guarantee; ``privacy.epsilon(delta)``.
    plan : the plan that ran; after `load` its description.
    result : the whole run; ``history`` and ``metrics`` are its own.
    target, columns, layout : how labels and inputs are read; ``columns`` of a table, or of images.
    builder : what made the network, where a name says it.

    Examples
    --------
    >>> import sottovoce as sv
    >>> X = np.array([[0.9], [0.8], [-0.9], [-0.7]] * 50)
    >>> fitted = sv.fit("logistic", (X, ["yes", "yes", "no", "no"] * 50), network="ring:4",
    ...                 budget=sv.Budget(2.0, 1e-5), rng=np.random.default_rng(0),
    ...                 training=sv.TrainingOptions(steps=10, classes=["no", "yes"]))
    >>> fitted.predict([[0.5], [-0.5]]).tolist()
    ['yes', 'no']
    >>> print(fitted)
    a linear model by consensus-sgd: epsilon 1.999 at delta 1e-05, against any one node; simulated noise
    """

    model: Any
    privacy: Guarantee
    plan: Any
    result: Result
    target: Target
    delta: float
    columns: Columns | ImageReading | None = None
    layout: Any = None
    label: Any = None
    builder: Mapping[str, Any] | None = None
    _judge: dict[str, Any] = field(default_factory=dict)

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

    def scores(self, data: Any) -> np.ndarray:
        """Return what the model gives for new records, before it becomes a class or a unit."""
        if isinstance(self.columns, ImageReading):
            inputs = seen_images(self.columns, read_images(data))
        else:
            inputs = read_inputs(data, self.columns, self.label)
        if isinstance(self.model, LinearModel):
            return self.model.scores(inputs)
        return _network_scores(self, inputs)

    def predict(self, data: Any) -> np.ndarray:
        """Return predictions for new records (a table, a path, arrays, a Dataset) in the labels' words."""
        return self.target.decode(self.scores(data))

    def save(self, folder: str | Path, also: Mapping[str, str | bytes] | None = None) -> Path:
        """Save the model: weights or coefficients, record, statement, and three lines that load it.

        ``also`` are further files by name, such as the plan file that was run.

        Examples
        --------
        >>> import tempfile, sottovoce as sv
        >>> X = np.array([[0.9], [-0.9]] * 50)
        >>> fitted = sv.fit("logistic", (X, [1, 0] * 50), network="ring:4", budget=sv.Budget(2.0, 1e-5),
        ...                 rng=np.random.default_rng(0))
        >>> again = sv.load_model(fitted.save(tempfile.mkdtemp()))
        >>> bool((again.predict(X) == fitted.predict(X)).all()), again.privacy == fitted.privacy
        (True, True)
        """
        place = Path(folder)
        if place.exists() and not place.is_dir():
            raise DataError(f"{place} is a file; a model is saved as a folder, name another place.")
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
            content = json.dumps(plain({**vars(self.model), **shown}), indent=1).encode()
        else:
            content, stored["aliases"] = _weights(self.model)
            stored["layout"] = None if self.layout is None else self.layout.to_dict()
            stored["class"] = type(self.model).__name__
            stored["architecture"] = described_module(self.model)
        name = COEFFICIENTS if linear else WEIGHTS
        stored["model"] = {"file": name, "sha256": hashlib.sha256(content).hexdigest()}
        self.result.save(place)
        atomic_write(place / name, content)
        atomic_write(place / "statement.txt", self.privacy.statement(self.delta) + "\n")
        for extra, text in (also or {}).items():
            atomic_write(place / extra, text)
        atomic_write(place / "README.md", _readme(stored))
        atomic_write(place / DESCRIPTION, json.dumps(plain(stored), indent=1) + "\n")
        return place

    def to_onnx(self, path: str | Path, example: Any = None) -> Path:
        """Write the model as an ONNX file, for use without torch: prepared features in, scores out.

        Scaling of columns and names of classes are not in it. ``example``: one record or several, needed
        where the model was made from arrays. It needs ``pip install 'sottovoce[onnx]'``.

        Examples
        --------
        >>> import sottovoce as sv
        >>> fitted = sv.fit("logistic", (np.array([[0.9], [-0.9]] * 50), [1, 0] * 50), network="ring:4",
        ...                 budget=sv.Budget(2.0, 1e-5), rng=np.random.default_rng(0))
        >>> fitted.to_onnx("model.onnx", example=[["nine"]])
        Traceback (most recent call last):
        sottovoce.errors.DataError: the example must be records as the model takes them, numbers.
        """
        return to_onnx(self, Path(path), example)

    def report(self, path: str | Path) -> Path:
        """Write a page about the run: what was measured, and who could learn what."""
        return self.result.report(path, title=f"Fitted: {self._what}")

    @property
    def _what(self) -> str:
        return "a linear model" if isinstance(self.model, LinearModel) else type(self.model).__name__

    def __repr__(self) -> str:
        loss = self.privacy.epsilon(self.delta)
        simulated = "; simulated noise" if "not protective" in self.result.provenance.get("noise", "") else ""
        scores = "".join(f", {name} {value:.4g}" for name, value in self.metrics.items() if name in _SHOWN)
        return (
            f"{self._what} by {self.result.name}: epsilon {loss:.4g} at delta {self.delta:g}, against "
            f"{self.privacy.adversary}{scores}{simulated}"
        )


_SHOWN = ("accuracy", "rmse", "loss")


def load_model(folder: str | Path, module: Any = None) -> Any:
    """Return the model that `Fitted.save` wrote, or the result that ``result.save`` wrote.

    Parameters
    ----------
    folder : the folder.
    module : the network, for the weights to be put into (a copy is made), or ``"mynet:build"``, the function
        that builds it; needed where it is not made of torch's own layers, since a saved model holds no code.

    Examples
    --------
    >>> load_model("nowhere")
    Traceback (most recent call last):
    sottovoce.errors.DataError: There is no saved model or result in nowhere; fitted.save(folder) makes one.
    """
    place = Path(folder)
    if not (place / DESCRIPTION).is_file():
        if (place / "record.json").is_file():
            return Result.load(place)
        raise DataError(f"There is no saved model or result in {place}; fitted.save(folder) makes one.")
    result = Result.load(place)
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
        columns = None if stored["columns"] is None else _reading(stored["columns"])
        builder = stored.get("builder")
        target, privacy = Target.from_dict(stored["target"]), Guarantee.from_dict(stored["privacy"])
        delta, label = float(stored["delta"]), stored["label"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise DataError(f"the model saved in {place} cannot be read ({error}); save it again.") from None
    if hashlib.sha256(content).hexdigest() != expected:
        raise DataError(f"{place / name} is not the file this model was saved with (its SHA-256 differs).")
    layout = None
    try:
        if stored["kind"] == "linear":
            values = json.loads(content)
            shift = values["intercept"]
            model: Any = LinearModel(
                np.array(values["coef"]), np.array(shift) if isinstance(shift, list) else shift,
                tuple(values["feature_names"]), values["loss"],
            )  # fmt: skip
        else:
            model, layout = _network(place, stored, content, module)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise DataError(f"the model saved in {place} cannot be read ({error!r}); save it again.") from None
    return Fitted(model, privacy, result.config, result, target, delta, columns, layout, label, builder)


def _reading(record: Mapping[str, Any]) -> Columns | ImageReading:
    return ImageReading.from_dict(record) if "side" in record else Columns.from_dict(record)


def seen_images(reading: ImageReading, images: np.ndarray) -> np.ndarray:
    """Images as the network sees them: scaled, and as fixed features where the reading names some."""
    values = reading(images)
    if reading.features is None:
        return values
    from sottovoce.data.image_features import named_features

    grey = values.shape[1] == 1
    return named_features(reading.features)(values[:, 0] if grey else values)


# ---- networks ----------------------------------------


def _network_scores(fitted: Fitted, inputs: Any) -> np.ndarray:
    import torch

    from sottovoce.objectives.nets import checks
    from sottovoce.objectives.nets.inputs import Unpacking, as_tensor
    from sottovoce.objectives.nets.objective import NetObjective

    judge = fitted._judge.get("objective")
    if judge is None:
        net = fitted.model if fitted.layout is None else Unpacking(fitted.model, fitted.layout)
        judge = fitted._judge["objective"] = NetObjective(net)
    if hasattr(inputs, "__getitem__") and hasattr(inputs, "__len__") and not _in_memory(inputs):
        return np.concatenate([_network_scores(fitted, part) for part in _batches(inputs, fitted.label)])
    x = as_tensor(inputs, "data") if fitted.layout is None else fitted.layout.pack(inputs)
    if x.ndim < 1 or len(x) == 0:
        raise DataError(f"expected records on the first axis, got shape {tuple(x.shape)}.")
    try:
        out = next(judge.outputs(judge.start(1), x))
    except (RuntimeError, IndexError):
        typed = x[:1].to(judge.paths.input_type(x[None]))
        module = fitted.model if fitted.layout is None else judge.network
        checks.run_explained(module, _itself, typed, _itself)
        raise
    if isinstance(out, dict) and "logits" in out:
        out = out["logits"]
    if not torch.is_tensor(out):
        raise InvalidInput(f"the network gives {type(out).__name__}; call fitted.model itself for that.")
    return out.cpu().numpy()


def _itself(*values: Any) -> Any:
    return values[0]


def _in_memory(inputs: Any) -> bool:
    return (
        isinstance(inputs, (Mapping, tuple, np.ndarray))
        or hasattr(inputs, "detach")
        or (isinstance(inputs, list) and (not inputs or np.ndim(inputs[0]) > 0 or np.isscalar(inputs[0])))
    )


def _batches(dataset: Any, label: Any, size: int = 256) -> Any:
    """The inputs of a Dataset, some at a time; targets that come with them are left aside."""
    import torch

    for first in range(0, len(dataset), size):
        items = [split_item(dataset[i], label)[0] for i in range(first, min(first + size, len(dataset)))]
        one = items[0]
        if isinstance(one, Mapping):
            yield {key: torch.stack([torch.as_tensor(item[key]) for item in items]) for key in one}
        elif isinstance(one, (tuple, list)):
            yield tuple(torch.stack([torch.as_tensor(item[j]) for item in items]) for j in range(len(one)))
        else:
            yield torch.stack([torch.as_tensor(item) for item in items])


def split_item(item: Any, label: Any) -> tuple[Any, Any]:
    """Return inputs and target of one item of a Dataset: a pair, or a mapping with a label.

    Examples
    --------
    >>> split_item({"ids": [1, 2], "mask": [1, 0], "y": 0}, "y")
    ({'ids': [1, 2], 'mask': [1, 0]}, 0)
    """
    if isinstance(item, Mapping):
        named = {name: value for name, value in item.items() if name != label}
        return (next(iter(named.values())) if len(named) == 1 else named), item.get(label)
    if isinstance(item, (tuple, list)) and len(item) > 1:
        *inputs, target = item
        return (inputs[0] if len(inputs) == 1 else tuple(inputs)), target
    return item, None


def _weights(module: Any) -> tuple[bytes, dict[str, str]]:
    """The weights as a safetensors file, and which names share a tensor (the format holds each once)."""
    _needs_safetensors()
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


def _network(place: Path, stored: Mapping[str, Any], content: bytes, module: Any) -> tuple[Any, Any]:
    _needs_safetensors()
    import copy

    from safetensors import SafetensorError
    from safetensors.torch import load as read

    from sottovoce.objectives.nets.inputs import Layout
    from sottovoce.objectives.nets.module_files import build_module, put_weights

    try:
        weights = read(content)
    except (SafetensorError, ValueError) as error:
        raise DataError(f"{place / WEIGHTS} is not a safetensors file ({error}).") from None
    weights |= {name: weights[shared] for name, shared in stored["aliases"].items()}
    builder = stored.get("builder") or {}
    if isinstance(module, str):
        model = build_module(module, options=builder.get("options"))
    elif module is not None:
        model = copy.deepcopy(module)
    elif stored["architecture"] is not None:
        model = rebuilt_module(stored["architecture"])
    elif "zoo" in builder:
        from sottovoce.objectives.nets.zoo import build

        model = build(builder["zoo"], **builder["options"])
    else:
        raise DataError(
            f"the model saved in {place} holds the weights of a {stored['class']} and no code; pass the "
            f"network: sv.load_model({str(place)!r}, module={_again(stored)})."
        )
    put_weights(model, weights, str(place))
    layout = None if stored["layout"] is None else Layout.from_dict(stored["layout"])
    return model.eval(), layout


def described_module(module: Any) -> dict[str, Any] | None:
    """Return a network of torch's own layers as plain values, or None where only code says what it is.

    Examples
    --------
    >>> from torch import nn
    >>> rebuilt_module(described_module(nn.Sequential(nn.Linear(3, 2), nn.ReLU())))
    Sequential(
      (0): Linear(in_features=3, out_features=2, bias=True)
      (1): ReLU()
    )
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


def _described(module: Any) -> dict[str, Any] | None:
    from torch import nn

    kind = type(module)
    stock = kind.__module__.startswith("torch.nn.modules.") and getattr(nn, kind.__name__, None) is kind
    if not stock or module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__:
        return None
    if kind is nn.Sequential:
        inside = [[name, _described(child)] for name, child in module.named_children()]
        return None if any(part is None for _, part in inside) else {"layer": "Sequential", "parts": inside}
    if list(module.children()) or getattr(module, "parametrizations", None):
        return None
    arguments: dict[str, Any] = {}
    for name in inspect.signature(kind.__init__).parameters:
        if name in ("self", "device", "dtype", "args", "kwargs") or name.startswith("_"):
            continue
        value = getattr(module, name, inspect.Parameter.empty)
        if value is inspect.Parameter.empty:
            continue
        if name == "bias" and not isinstance(value, bool):
            value = value is not None
        if not _is_plain(value):
            return None
        arguments[name] = list(value) if isinstance(value, tuple) else value
    return {"layer": kind.__name__, "arguments": arguments}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


def rebuilt_module(described: Mapping[str, Any]) -> Any:
    """Return the network that `described_module` described: layers of ``torch.nn`` by name, nothing else."""
    from collections import OrderedDict

    from torch import nn

    if described["layer"] == "Sequential":
        parts = OrderedDict((name, rebuilt_module(part)) for name, part in described["parts"])
        return nn.Sequential(parts)
    kind = getattr(nn, str(described["layer"]), None)
    if not (inspect.isclass(kind) and issubclass(kind, nn.Module)):
        raise DataError(
            f"the saved model names the layer {described['layer']!r}, which torch.nn does not have."
        )
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in described["arguments"].items()}
    return kind(**arguments)


def _needs_safetensors() -> None:
    if importlib.util.find_spec("safetensors") is None:
        raise MissingDependency("Weights are kept with safetensors; pip install 'sottovoce[deep]'.")


def _readme(stored: Mapping[str, Any]) -> str:
    zoo = "zoo" in (stored["builder"] or {})
    ready = stored["kind"] == "linear" or stored["architecture"] is not None or zoo
    module = "" if ready else f", module={_again(stored)}"
    return (
        "# A model fitted by Sottovoce\n\n"
        "What it cost is in statement.txt, how it was made in record.json. To use it:\n\n"
        "    import sottovoce as sv\n"
        f'    fitted = sv.load_model("."{module})\n'
        '    fitted.predict("new.csv")\n'
    )


def agreed_model(agreement: Any, plan: Any, row: np.ndarray, privacy: Guarantee, **about: Any) -> Fitted:
    """Return what a member has learned in a peers' run, as a fitted model that can be saved and used.

    Parameters
    ----------
    agreement, plan : what was agreed on (`sottovoce.peers.agreement`) and the plan that ran (a job's own).
    row : the parameters this member ended with.
    privacy : what this member has revealed.
    about : for the record's provenance.

    Examples
    --------
    >>> from sottovoce.peers.agreement import example_agreement, read_agreement
    >>> agreement = read_agreement(example_agreement()[0])
    >>> agreed_model(agreement, agreement.plan, np.zeros(1), agreement.plan.privacy("local"))
    Traceback (most recent call last):
    sottovoce.errors.InvalidInput: the agreement is about a mean, which predicts nothing; model.npz holds it.
    """
    model, data = agreement.model, agreement.data
    if model.kind == "mean":
        raise InvalidInput("the agreement is about a mean, which predicts nothing; model.npz holds it.")
    columns, target = data.columns, _agreed_target(agreement)
    builder: dict[str, Any] | None = None
    if model.kind == "net":
        fitted = plan.objective.objective.module(row)
        builder = {"zoo": model.net, "options": dict(model.options)}
        if model.module:
            builder = {"module": model.module, "sha256": model.module_sha256, "options": dict(model.options)}
        if columns is not None and data.intercept:
            columns = replace(columns, ones=True)
    else:
        names = () if columns is None else columns.names
        loss = "softmax" if model.classes else model.kind
        fitted = LinearModel.of_row(
            row, loss, names=names, intercept=data.intercept, classes=model.classes
        )  # fmt: skip
    delta = agreement.budget.delta
    result = Result(
        name=agreement.algorithm.name,
        config={**agreement.model_dump(mode="json", exclude={"members", "signatures", "mask_keys"}),
                "members": [member.name for member in agreement.members], "run": agreement.run.hex()},
        outputs={"rows": row[None], "model": row},
        guarantees=[privacy.to_dict(delta)],
        provenance=about,
    )  # fmt: skip
    return Fitted(fitted, privacy, plan, result, target, delta, columns, None, data.target or None, builder)


def _agreed_target(agreement: Any) -> Target:
    model, data = agreement.model, agreement.data
    classes = Classes(data.classes) if data.classes else None
    pair = data.bounds.get(data.target)
    scale = None if pair is None else Scale.from_bounds(pair[0], pair[1], data.target)
    regression = model.kind == "squared" or model.loss in ("squared_error", "absolute_error")
    if regression:
        return Target("regression", None, scale)
    if model.kind == "logistic" and model.classes is None:
        return Target("labels", classes or Classes((0, 1)))
    return Target("labels" if model.loss == "binary_cross_entropy" else "classification", classes)


def _again(stored: Mapping[str, Any]) -> str:
    """How the network is given again: by the function that built it, or its class."""
    named = (stored.get("builder") or {}).get("module")
    return repr(named) if named else f"{stored['class']}(...)"


def to_onnx(fitted: Fitted, path: Path, example: Any = None) -> Path:
    """Write a fitted model as an ONNX file; see `Fitted.to_onnx`."""
    import warnings

    values = _example(fitted, example)

    if any(importlib.util.find_spec(name) is None for name in ("torch", "onnx", "onnxscript")):
        raise MissingDependency("ONNX files are written by torch and onnx; pip install 'sottovoce[onnx]'.")
    import torch

    if fitted.layout is not None:
        raise InvalidInput("ONNX export takes networks with one input; use fitted.model itself for several.")
    network = _linear_network(fitted.model) if isinstance(fitted.model, LinearModel) else fitted.model
    tensor = torch.as_tensor(np.repeat(values[:1], 2, axis=0))  # one record would be taken for a constant
    if tensor.is_floating_point():
        tensor = tensor.to(next(network.parameters()).dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network.eval(), (tensor,), str(path), input_names=["inputs"], output_names=["scores"],
            dynamic_shapes=({0: torch.export.Dim("records")},), dynamo=True, verbose=False,
            external_data=False,
        )  # fmt: skip
    return path


def _example(fitted: Fitted, example: Any) -> np.ndarray:
    """One record as the model takes it: the caller's, or zeros where the columns say how many."""
    if example is not None:
        try:
            array = np.asarray(example)
            return array if array.dtype.kind in "iu" else array.astype(np.float64)
        except (TypeError, ValueError):
            raise DataError("the example must be records as the model takes them, numbers.") from None
    if isinstance(fitted.model, LinearModel):
        return np.zeros((1, fitted.model.coef.shape[-1]))
    if isinstance(fitted.columns, Columns):
        return np.zeros((1, len(fitted.columns.names) + fitted.columns.ones))
    raise InvalidInput("the shape of a record is not known; give to_onnx(path, example=records).")


def _linear_network(model: LinearModel) -> Any:
    import torch

    coef = torch.as_tensor(np.atleast_2d(model.coef))
    layer = torch.nn.Linear(coef.shape[1], coef.shape[0], dtype=coef.dtype)
    with torch.no_grad():
        layer.weight.copy_(coef)
        layer.bias.copy_(torch.as_tensor(np.atleast_1d(model.intercept)))
    return layer
