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
    *("adjacency", "clip_norm", "radius", "batch_size", "sample_rate"),
}

_SCALED = (
    "Every member prepares the same columns in the same order and scales each record to length at most 1."
)


def draft_agreement(loaded: LoadedPlan, where: str = "the plan") -> str:
    """Return the text of the draft.

    Examples
    --------
    >>> from pathlib import Path
    >>> from sottovoce.planfile.schema import check_plan_file
    >>> from sottovoce.planfile.read import plan_from_settings
    >>> tables = {"version": 1, "network": {"graph": "complete:4"}, "protocol": {"name": "masked"},
    ...           "average": {"radius": 0.5, "adjacency": "user"},
    ...           "budget": {"epsilon": 3.0, "delta": 1e-5}}
    >>> draft = draft_agreement(plan_from_settings(check_plan_file(tables, "plan"), Path(), "plan"))
    >>> print(draft.split("[model]")[1].split())
    ['kind', '=', '"mean"', 'parameters', '=', '1', '[budget]', 'epsilon', '=', '3.0', 'delta', '=', '1e-05']
    """
    plan: Any = loaded.plan
    settings = loaded.settings
    if settings.network is None or settings.network.graph is None or settings.model is not None:
        raise ConfigError(
            f"{where}: a draft is made from a plan with [network] graph and an average or a linear model; "
            "write the agreement about another plan by hand."
        )
    if not isinstance(plan.noise_multiplier, float):
        raise ConfigError(
            f"{where}: all members of an agreement have the same noise multiplier, got "
            f"{plan.noise_multiplier}; state one number, or leave it to [budget]."
        )
    section = settings.average if settings.train is None else settings.train
    assert section is not None
    rate, data = None, {}
    model: dict[str, Any] = {"kind": "mean", "parameters": 1}
    if settings.data is not None:
        rate = None if plan.adjacency == "user" else _sample_rate(plan, where)
        _refuse_other_objectives(plan.objective, where)
        model = {"kind": plan.objective.loss, "parameters": n_params(plan.objective)}
        data = _columns(loaded, settings.data, where)
        classes = data.get("classes", ())
        if model["kind"] == "softmax" or len(classes) > 2:
            model |= {"kind": "logistic", "classes": len(classes)}
    options = section.model_dump(exclude_unset=True, exclude=_NOT_OPTIONS)
    title, graph = settings.title or where, settings.network.graph
    if graph.startswith("file:"):  # an agreement depends on no other file
        assert loaded.network is not None
        graph = "edges:" + ",".join(f"{u}-{v}" for u, v in loaded.network.edges.tolist())
    if settings.network.weights is not None:
        graph += f":weights={settings.network.weights}"
    epsilon = math.inf  # not used unless sums are masked
    if settings.budget is not None:
        epsilon = settings.budget.epsilon
    elif plan.schedule(0).masked:
        epsilon = plan.epsilon(loaded.delta)
    return agreement_text(
        plan,
        {"title": title, "graph": graph, "model": model, "data": data},
        (epsilon, loaded.delta),
        protocol=_protocol(loaded, where),
        options=options | {"noise_multiplier": plan.noise_multiplier},
        sample_rate=rate,
        comments=[_SCALED] if settings.data is not None and settings.data.unit_rows else (),
    )


def _refuse_other_objectives(objective: Any, where: str) -> None:
    """Raise unless an agreement can name the objective: a loss alone, without penalty or constraint."""
    kinds, options = ("logistic", "squared", "softmax"), ("l1", "l2", "box", "ball", "class_weight")
    used = [name for name in options if getattr(objective, name, None)]
    if objective.loss not in kinds or used:
        raise ConfigError(
            f"{where}: an agreement has the loss {', '.join(kinds)} and no {', '.join(options)}, got "
            f"{' and '.join([objective.loss, *used])}; change [objective], or train on one machine."
        )


def _protocol(loaded: LoadedPlan, where: str) -> str:
    plan: Any = loaded.plan
    section, own = loaded.settings.protocol, plan.protocol
    if any(option is not None for option in (section.rounds, section.kind, section.root, section.fresh)):
        raise ConfigError(
            f'{where}: write the protocol as one name, for example name = "tree:kind=uniform"; an agreement '
            "has no other place for its options."
        )
    return section.name or (own if isinstance(own, str) else own.name)


def _sample_rate(plan: Any, where: str) -> float:
    if plan.batch_size is None:
        return float(plan.sample_rate or 1.0)
    if len(set(plan.sizes)) > 1:
        raise ConfigError(
            f"{where}: one batch size for sites of different sizes gives each another sample rate, which "
            "would reveal its size; write sample_rate instead."
        )
    return float(plan.batch_size / plan.sizes[0])


def _columns(loaded: LoadedPlan, data: DataSection, where: str) -> dict[str, Any]:
    """Return what the agreement says about members' files."""
    assert loaded.records is not None
    bounds = data.bounds if isinstance(data.bounds, dict) else {}
    # records that are only announced have no names for their columns yet: members prepare the columns
    prepared = loaded.records.data is None and data.features is None and not bounds
    if (data.unit_rows and not prepared) or data.standardize:
        raise ConfigError(
            f"{where}: an agreement knows bounds, categories, missing and an intercept, but neither "
            "unit_rows nor standardize; leave them out (the clip bounds what a record can do)."
        )
    columns: Any = loaded.records.columns
    features = () if columns is None or prepared else tuple(columns.features)
    pairs = (
        {key: (scale.low, scale.high) for key, scale in columns.scales.items() if scale.low is not None}
        if features
        else {}
    )
    table = {
        "features": features,
        "target": data.label,
        "bounds": {
            key: list(pair) for key, pair in {**pairs, **bounds}.items() if key in {*features, data.label}
        },
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
