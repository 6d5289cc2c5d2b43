"""From a plan file to the draft of an agreement, and from the draft and its members to the agreement."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sottovoce.algorithms.gradient_plan import n_params
from sottovoce.errors import ConfigError
from sottovoce.peers.agreement import Agreement, member_entry, write_agreement
from sottovoce.peers.identity import read_certificate
from sottovoce.planfile.read import LoadedPlan
from sottovoce.planfile.schema import DataSection
from sottovoce.planfile.write import agreement_text

# keys of [average] and [train] that an agreement does not have, or that every draft states
_NOT_OPTIONS = {"algorithm", "evaluate_every", "values"} | {
    *("adjacency", "clip_norm", "radius", "batch_size", "sample_rate")
}

_SCALED = (
    "Every member prepares the same columns in the same order and scales each record to length at most 1."
)


def draft_agreement(loaded: LoadedPlan, where: str = "the plan") -> str:
    """Return the text of the draft."""
    plan: Any = loaded.plan
    settings = loaded.settings
    section = settings.average if settings.train is None else settings.train
    assert section is not None
    _require_agreeable(loaded, where)
    rate, data = None, {}
    model: dict[str, Any] = {"kind": "mean", "parameters": 1}
    if settings.data is not None:
        if plan.adjacency != "user":
            of_batch = plan.batch_size is not None
            rate = float(plan.batch_size / plan.sizes[0] if of_batch else plan.sample_rate or 1.0)
        model = {"kind": plan.objective.loss, "parameters": n_params(plan.objective)}
        data = _columns(loaded, settings.data)
        classes = data.get("classes", ())
        if model["kind"] == "softmax" or len(classes) > 2:
            model |= {"kind": "logistic", "classes": len(classes)}
    options = section.model_dump(exclude_unset=True, exclude=_NOT_OPTIONS)
    assert settings.network is not None
    assert loaded.network is not None
    graph = str(settings.network.graph)
    if graph.startswith("file:"):  # an agreement depends on no other file
        graph = "edges:" + ",".join(f"{u}-{v}" for u, v in loaded.network.edges.tolist())
    if settings.network.weights is not None:
        graph += f":weights={settings.network.weights}"
    epsilon = math.inf  # not used unless sums are masked
    if settings.budget is not None:
        epsilon = settings.budget.epsilon
    elif plan.schedule(0).masked:
        epsilon = plan.epsilon(loaded.delta)
    own = plan.protocol
    return agreement_text(
        plan,
        {"title": settings.title or where, "graph": graph, "model": model, "data": data},
        (epsilon, loaded.delta),
        protocol=settings.protocol.name or (own if isinstance(own, str) else own.name),
        options=options | {"noise_multiplier": plan.noise_multiplier},
        sample_rate=rate,
        comments=[_SCALED] if settings.data is not None and settings.data.unit_rows else (),
    )


def _require_agreeable(loaded: LoadedPlan, where: str) -> None:
    """Raise unless an agreement can say what the plan file says."""
    plan: Any = loaded.plan
    settings, data = loaded.settings, loaded.settings.data
    network, protocol = settings.network, settings.protocol
    options = (protocol.rounds, protocol.kind, protocol.root, protocol.fresh)
    cannot = {
        "a plan without [network] graph": network is None or network.graph is None,
        "a [model]": settings.model is not None,
        "unequal noise multipliers (state one number)": not isinstance(plan.noise_multiplier, float),
        '[protocol] options (write one name, "tree:kind=uniform")': any(each is not None for each in options),
    }
    if data is not None and settings.model is None:
        penalties = ("l1", "l2", "box", "ball", "class_weight")
        used = [name for name in penalties if getattr(plan.objective, name, None)]
        other = used or plan.objective.loss not in ("logistic", "squared", "softmax")
        of_batch = plan.adjacency != "user" and plan.batch_size is not None
        cannot |= {
            f"[objective] {' and '.join([plan.objective.loss, *used])}": bool(other),
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
    assert loaded.records is not None
    return loaded.records.data is None and data.features is None and not isinstance(data.bounds, dict)


def _columns(loaded: LoadedPlan, data: DataSection) -> dict[str, Any]:
    assert loaded.records is not None
    columns: Any = None if _prepared(loaded, data) else loaded.records.columns
    features = () if columns is None else tuple(columns.features)
    scales = {} if columns is None else columns.scales
    bounds = {key: [scale.low, scale.high] for key, scale in scales.items() if scale.low is not None}
    if isinstance(data.bounds, dict):
        bounds |= {key: list(pair) for key, pair in data.bounds.items() if key in {*features, data.label}}
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


def add_members(draft: Path, members: Sequence[str], out: Path) -> Agreement:
    """Write the agreement of a draft and its members, each given as CERTIFICATE@HOST:PORT."""
    entries = []
    for text in members:
        certificate, at, address = text.rpartition("@")
        if not at or not certificate:
            raise ConfigError(f"A member is CERTIFICATE@HOST:PORT, got {text!r}.")
        entries.append(member_entry(read_certificate(certificate), address))
    if len(entries) < 2:
        raise ConfigError(
            f"An agreement has two members or more, got {len(entries)}; give --member for each."
        )
    if out.exists():
        raise ConfigError(f"{out} exists already; name another file with --out.")
    try:
        content = tomllib.loads(draft.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"The draft {draft} cannot be read: {error}.") from None
    for table in ("members", "signatures"):
        if table in content:
            raise ConfigError(f"The draft {draft} must not hold [{table}]; members are given with --member.")
    return write_agreement(out, content, entries)
