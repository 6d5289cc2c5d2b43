"""From a plan file, or an advised plan, to the draft of an agreement: all of it but its members."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sottovoce._io import to_toml
from sottovoce.algorithms.build import plan_options
from sottovoce.algorithms.gradient_plan import n_params
from sottovoce.data.images import ImageReading
from sottovoce.errors import ConfigError
from sottovoce.planfile.read import LoadedPlan
from sottovoce.planfile.schema import DataSection, ModelSection

# keys of [average] and [train] that an agreement does not have, or that every draft states
_NOT_OPTIONS = {"algorithm", "evaluate_every", "values"} | {
    *("adjacency", "clip_norm", "radius", "batch_size", "sample_rate")
}
_IN_NETWORKS = ("sha256", "weights", "weights_sha256", "initial")  # keys of [model] without a place
_SCALED = (
    "Every member prepares the same columns in the same order and scales each record to length at most 1."
)


def draft_agreement(loaded: LoadedPlan, where: str = "the plan", comments: Sequence[str] = ()) -> str:
    """Return the text of the draft; ``sottovoce peer agree`` adds the members.

    The noise is the plan's. With masked sums its budget is that of the file, or what the plan costs; over
    trees and gossip a member is charged for its own noise alone, as if all others colluded.
    """
    plan: Any = loaded.plan
    settings = loaded.settings
    section = settings.average if settings.train is None else settings.train
    assert section is not None
    _require_agreeable(loaded, where)
    values = {key: getattr(plan, key) for key in plan_options(plan.name)}
    own, clip_norm = plan.protocol, float(values.get("radius", values.get("clip_norm")) or 0.0)
    algorithm = {
        "name": plan.name,
        "protocol": settings.protocol.name or (own if isinstance(own, str) else own.name),
        "adjacency": plan.adjacency,
        "clip_norm": clip_norm,
        **section.model_dump(exclude_unset=True, exclude=_NOT_OPTIONS),
        "noise_multiplier": plan.noise_multiplier,
    }
    model: dict[str, Any] = {"kind": "mean", "parameters": 1}
    data: dict[str, Any] = {}
    if settings.data is not None:
        if plan.adjacency != "user":
            of_batch = plan.batch_size is not None
            rate = float(plan.batch_size / plan.sizes[0] if of_batch else plan.sample_rate or 1.0)
            algorithm |= {"batch_size": rate * sum(plan.sizes) / plan.n, "sample_rate": rate}
        model = _model(plan, settings.model)
        data = _columns(loaded, settings.data, regression=_is_regression(model))
        classes = data.get("classes", ())
        if model["kind"] == "softmax" or (model["kind"] != "net" and len(classes) > 2):
            model |= {"kind": "logistic", "classes": len(classes)}
        comments = [*comments, *([_SCALED] if settings.data.unit_rows else [])]
    assert settings.network is not None
    assert loaded.network is not None
    graph = str(settings.network.graph)
    if graph.startswith("file:"):  # an agreement depends on no other file
        graph = "edges:" + ",".join(f"{u}-{v}" for u, v in loaded.network.edges.tolist())
    if settings.network.weights is not None:
        graph += f":weights={settings.network.weights}"
    if not plan.schedule(0).masked:
        epsilon = math.ceil(plan.privacy("local").epsilon(loaded.delta) * 1000) / 1000
    else:
        epsilon = plan.epsilon(loaded.delta) if settings.budget is None else settings.budget.epsilon
    budget = {"epsilon": float(epsilon), "delta": loaded.delta}
    head = {"version": 1, "title": settings.title or where, "graph": graph}
    sections = {"algorithm": algorithm, "model": model, "data": data, "budget": budget}
    return to_toml(head | {key: part for key, part in sections.items() if part}, comments)


def _require_agreeable(loaded: LoadedPlan, where: str) -> None:
    """Raise unless an agreement can say what the plan file says."""
    plan: Any = loaded.plan
    settings, data = loaded.settings, loaded.settings.data
    network, protocol = settings.network, settings.protocol
    options = (protocol.rounds, protocol.kind, protocol.root, protocol.fresh)
    cannot = {
        "a plan without [network] graph": network is None or network.graph is None,
        "unequal noise multipliers (state one number)": not isinstance(plan.noise_multiplier, float),
        '[protocol] options (write one name, "tree:kind=uniform")': any(each is not None for each in options),
    }
    if settings.model is not None:
        stated = [key for key in _IN_NETWORKS if getattr(settings.model, key) is not None]
        images = loaded.adapter is not None and isinstance(loaded.adapter.columns, ImageReading)
        weighted = data is not None and (data.class_weight or data.class_shares) is not None
        cannot |= {f"[model] {' and '.join(stated)}": bool(stated), "a set of images": images}
        cannot["[data] class_weight or class_shares"] = weighted
    elif data is not None:
        penalties = ("l1", "l2", "box", "ball", "class_weight")
        used = [name for name in penalties if getattr(plan.objective, name, None)]
        other = used or plan.objective.loss not in ("logistic", "squared", "softmax")
        cannot |= {f"[objective] {' and '.join([plan.objective.loss, *used])}": bool(other)}
    if data is not None:
        of_batch = plan.adjacency != "user" and plan.batch_size is not None
        cannot |= {
            "one batch_size for unequal sites (write sample_rate)": of_batch and len(set(plan.sizes)) > 1,
            "[data] unit_rows": data.unit_rows and not _prepared(loaded, data),
            "[data] standardize": data.standardize,
        }
    problems = [words for words, wrong in cannot.items() if wrong]
    if problems:
        raise ConfigError(
            f"{where}: an agreement cannot say {', '.join(problems)}; change it, or write the agreement "
            "by hand."
        )


def _prepared(loaded: LoadedPlan, data: DataSection) -> bool:
    """Whether members prepare the columns: records that are only announced have no names for them yet."""
    return _announced(loaded) and data.features is None and not isinstance(data.bounds, dict)


def _announced(loaded: LoadedPlan) -> bool:
    return loaded.adapter is None or loaded.adapter.data is None


def _model(plan: Any, section: ModelSection | None) -> dict[str, Any]:
    parameters = n_params(plan.objective)
    if section is None:
        return {"kind": plan.objective.loss, "parameters": parameters}
    loss = plan.objective.describe()["loss"]
    named = {"net": section.name, "module": section.module, "options": section.options}
    named["loss"] = None if loss == "cross_entropy" else loss
    return {"kind": "net", "parameters": parameters} | {key: value for key, value in named.items() if value}


def _is_regression(model: dict[str, Any]) -> bool:
    return model["kind"] == "squared" or model.get("loss") in ("squared_error", "absolute_error")


def _columns(loaded: LoadedPlan, data: DataSection, *, regression: bool) -> dict[str, Any]:
    features: tuple[str, ...] = ()
    bounds: Any = {}
    if _announced(loaded):
        named = data.bounds if isinstance(data.bounds, dict) else {}
        features = tuple(data.features or (key for key in named if key != data.label))
        numeric = [key for key in features if key not in (data.categories or {})]
        if isinstance(data.bounds, tuple):
            bounds = {key: list(data.bounds) for key in numeric}
    else:
        columns: Any = vars(loaded.adapter)["columns"]
        if columns is not None:
            features = tuple(columns.features)
            scales = columns.scales.items()
            bounds = {key: [scale.low, scale.high] for key, scale in scales if scale.low is not None}
    if isinstance(data.bounds, dict):
        bounds |= {key: list(pair) for key, pair in data.bounds.items() if key in {*features, data.label}}
    elif regression and features:  # one pair bounds the amount to predict as well
        bounds = "none" if data.bounds == "none" else bounds | {data.label: list(data.bounds or ())}
    table = {
        "features": features,
        "target": data.label,
        "bounds": bounds,
        "categories": {
            key: values if isinstance(values, int) else list(map(str, values))
            for key, values in (data.categories or {}).items()
        },
        "classes": list(map(str, data.classes or ())),
        "missing": "" if data.missing == "refuse" else data.missing,
        "intercept": data.intercept,
    }
    return {key: value for key, value in table.items() if value}
