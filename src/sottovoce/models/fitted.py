"""A fitted model with its guarantee: predictions, scores, and the folder it is saved in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from sottovoce import _validate
from sottovoce._format import number, percent
from sottovoce._hooks import NotebookDisplay, hook
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.data.base import is_tensor
from sottovoce.data.batch_loaders import all_items, input_batches
from sottovoce.data.images import ImageReading, read_images
from sottovoce.data.ingest import Target, ingest, read_inputs
from sottovoce.data.tables import Columns, TableData
from sottovoce.errors import DataError, InvalidInput
from sottovoce.models.adapters import ModelAdapter, network_outputs
from sottovoce.models.linear_model import LinearModel, probabilities
from sottovoce.models.saved import DESCRIPTION, read_model, require_unused, write_model
from sottovoce.runners import Result

if TYPE_CHECKING:
    from torch import nn

    from sottovoce.objectives.nets.inputs import Layout
    from sottovoce.objectives.nets.objective import NetObjective


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

    @classmethod
    def of_run(
        cls, adapter: ModelAdapter, plan: Any, result: Result, privacy: Guarantee, delta: float
    ) -> Fitted:
        """Return what a run has learned, with its guarantee and how its inputs are read."""
        row, rows = result.outputs.get("coef"), result.outputs.get("rows")
        if rows is not None and len(rows) and bool((rows == rows[0]).all()):
            if row is None or rows[0].shape == row.shape:
                row = rows[0]  # the mean of equal rows rounds
        assert row is not None
        model, reading = adapter.model(row), (adapter.columns, adapter.layout, adapter.label, adapter.builder)
        return cls(model, privacy, plan, result, adapter.target, delta, *reading)

    @property
    def history(self) -> list[Mapping[str, Any]]:
        """What was measured along the way: on public records, or on held-out ones accepted by name."""
        return list(self.result.history)

    @property
    def metrics(self) -> Mapping[str, Any]:
        """What was measured at the end: on public records, or on held-out ones accepted by name."""
        return self.result.metrics

    @property
    def rows(self) -> np.ndarray:
        """The parameters of every agent, (agents, parameters)."""
        return self.result.outputs["rows"]

    def scores(self, data: object) -> np.ndarray:
        """Return what the model gives for new records, before it becomes a class or a unit."""
        if isinstance(self.columns, ImageReading):
            inputs: Any = self.columns(read_images(data))
        else:
            inputs = read_inputs(data, self.columns, self.label)
        if isinstance(self.model, LinearModel):
            return self.model.scores(inputs)
        parts = [self._network_scores(part) for part in input_batches(inputs, self.label)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

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
        columns = self.columns if isinstance(self.columns, Columns) else None
        public = ingest(TableData(data, self.label, by), columns=columns)
        inputs, labels = public.inputs, public.targets
        if public.dataset is not None:
            inputs, labels = all_items(public.dataset, self.label)
        task, labels = self.target.task, np.asarray(labels)
        known = _METRICS.get(task, ())
        chosen = next(iter(known), None) if metric is None else metric
        if chosen not in known:
            allowed = ", ".join(known) or "none"
            raise InvalidInput(f"metric of {task} must be one of {allowed}, got {metric!r}.")
        truth = labels.astype(float) if task == "regression" else self.target.encode(labels)
        linear = isinstance(self.model, LinearModel)
        values = self.model.scores(inputs) if linear else self._network_scores(inputs)
        if task == "classification" and not ((truth >= 0) & (truth < values.shape[-1])).all():
            raise DataError(f"class labels must be 0 to {values.shape[-1] - 1}, as the model gives them.")
        if chosen != "auc":
            values = self.target.decode(values)
        if chosen == "accuracy":
            values = self.target.encode(values)
        if public.groups is None:
            return _measured(chosen, truth, values)
        rows = {str(site): public.groups == site for site in np.unique(public.groups)}
        return {site: _measured(chosen, truth[here], values[here]) for site, here in rows.items()}

    @cached_property
    def _objective(self) -> NetObjective:
        from sottovoce.objectives.nets.inputs import Unpacking
        from sottovoce.objectives.nets.objective import NetObjective

        return NetObjective(self.model if self.layout is None else Unpacking(self.model, self.layout))

    def _network_scores(self, inputs: Mapping[str, Any] | Sequence[Any]) -> np.ndarray:
        from sottovoce.objectives.nets.inputs import as_tensor
        from sottovoce.objectives.nets.losses import logits

        x = as_tensor(inputs, "data") if self.layout is None else self.layout.pack(inputs)
        if x.ndim < 1 or len(x) == 0:
            raise DataError(f"expected records on the first axis, got shape {tuple(x.shape)}.")
        outputs = logits(network_outputs(self._objective, self._objective.start(1), x))
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
        write_model(self, place, also or {})
        return place

    def to_onnx(self, path: str | Path, example: ArrayLike | None = None) -> Path:
        """Write the model as an ONNX file, for use without torch: prepared features in, scores out.

        Scaling of columns and names of classes are not in it. ``example``: one record or several, needed
        where the model was made from arrays. It needs ``pip install 'sottovoce[onnx]'``.
        """
        written: Path = hook("Fitted.to_onnx")(self, Path(path), example)
        return written

    def report(self, path: str | Path) -> Path:
        """Write a page about the run: what was measured, and who could learn what."""
        return self.result.report(path, title=f"Fitted: {self.kind}")

    @property
    def kind(self) -> str:
        """What the model is, in words."""
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
            f"{self.kind} by {self.result.name}: epsilon {number(epsilon, 'epsilon')} at delta "
            f"{number(self.delta, 'delta')} [{self.privacy.label}, {self.privacy.adjacency}], against "
            f"{self.privacy.adversary}{scores}{simulated}"
        )


_METRICS = {"labels": ("auc", "accuracy"), "classification": ("accuracy",), "regression": ("rmse",)}


def _measured(metric: str, truth: np.ndarray, values: np.ndarray) -> float:
    """Return a score; NaN where the records are of one class only and have no AUC."""
    if metric == "accuracy":
        return float(np.mean(values == truth))
    if metric == "rmse":
        return float(np.sqrt(np.mean((values - truth) ** 2)))
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(truth, np.ravel(values))) if len(np.unique(truth)) > 1 else math.nan


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
        stored, model = read_model(place, module)
        columns, layout = stored["columns"], None
        if stored["kind"] != "linear" and stored["layout"] is not None:
            from sottovoce.objectives.nets.inputs import Layout

            layout = Layout.from_dict(stored["layout"])
        return Fitted(
            model,
            Guarantee.from_dict(stored["privacy"]),
            result.config,
            result,
            Target.from_dict(stored["target"]),
            float(stored["delta"]),
            columns and (ImageReading if "side" in columns else Columns).from_dict(columns),
            layout,
            stored["label"],
            stored.get("builder"),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise DataError(f"the model saved in {place} cannot be read ({error!r}); save it again.") from None
