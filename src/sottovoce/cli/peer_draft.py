"""`sottovoce peer draft`: a plan file becomes the draft of an agreement; `peer agree` adds the members."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.output import Json, emit, safe

if TYPE_CHECKING:
    from sottovoce.planfile.read import LoadedPlan

__all__ = ["draft", "draft_of"]


def draft(
    plan: Annotated[Path, typer.Argument(help="A plan file that sottovoce plan calls private and useful.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Write the draft here.")] = Path("draft.toml"),
    json: Json = False,
) -> None:
    """Write the draft of an agreement that says what a plan file says; peer agree adds the members.

    The noise is the plan's. A member is charged for what the plan states against its members where sums are
    masked, and else for its own noise alone, as if all others colluded.

    \b
    Examples:
        sottovoce peer draft plan.toml -o draft.toml
        sottovoce peer agree draft.toml -m north.pem@10.0.0.1:7000 -m south.pem@10.0.0.2:7000 -o a.toml
    """
    from sottovoce._io import atomic_write
    from sottovoce.errors import ConfigError
    from sottovoce.planfile.read import load_file

    if out.exists():
        raise ConfigError(f"{out} exists already; name another file with --out.")
    text = draft_of(load_file(plan), plan.name)
    atomic_write(out, text)
    next_step = f"Written to {safe(out)}. Next: sottovoce peer agree {safe(out)} -m CERTIFICATE@HOST:PORT ..."
    emit({"draft": str(out)}, json, lambda screen: screen.print(next_step))


def draft_of(built: LoadedPlan, where: str = "the plan") -> str:
    """Return the text of the draft.

    Examples
    --------
    >>> from sottovoce.planfile.schema import check_plan_file
    >>> from sottovoce.planfile.read import plan_from_settings
    >>> tables = {"version": 1, "network": {"graph": "complete:4"}, "protocol": {"name": "masked"},
    ...           "average": {"radius": 0.5, "adjacency": "user"},
    ...           "budget": {"epsilon": 3.0, "delta": 1e-5}}
    >>> draft = draft_of(plan_from_settings(check_plan_file(tables, "plan"), Path(), "plan"))
    >>> print(draft.split("[model]")[1].split())
    ['kind', '=', '"mean"', 'parameters', '=', '1', '[budget]', 'epsilon', '=', '3.0', 'delta', '=', '1e-05']
    """
    from sottovoce._io import to_toml
    from sottovoce.errors import ConfigError

    plan: Any = built.plan
    settings = built.settings
    if settings.network is None or settings.network.graph is None or settings.model is not None:
        raise ConfigError(
            f"{where}: a draft is made of averages and linear models over a graph by name; write "
            "others by hand."
        )
    if not isinstance(plan.noise_multiplier, float):
        raise ConfigError(f"{where}: members of an agreement have one noise multiplier; leave noise out.")
    option = settings.average if settings.train is None else settings.train
    assert option is not None
    left_out = {
        "algorithm",
        "fresh_graph",
        "evaluate_every",
        "values",
        "adjacency",
        "clip_norm",
        "radius",
        "batch_size",
        "sample_rate",
    }
    algorithm: dict[str, Any] = {
        "name": plan.name, "protocol": _protocol(built, where), "adjacency": plan.adjacency,
        "clip_norm": float(plan.radius if settings.train is None else plan.clip_norm),
        "noise_multiplier": plan.noise_multiplier,
        **option.model_dump(exclude_unset=True, exclude=left_out),
    }  # fmt: skip
    if settings.train is None:
        model: dict[str, Any] = {"kind": "mean", "parameters": 1}
        data: dict[str, Any] = {}
    else:
        if plan.adjacency != "user":
            rate = _rate(plan, where)
            algorithm |= {"batch_size": rate * sum(plan.sizes) / plan.n, "sample_rate": rate}
        model = {"kind": plan.objective.loss, "parameters": int(plan.width)}
        data = _columns(built, where)
        classes = data.get("classes", ())
        if model["kind"] == "softmax" or len(classes) > 2:
            model |= {"kind": "logistic", "classes": len(classes)}
    tables = {"algorithm": algorithm, "model": model, "data": data, "budget": _budget(built)}
    head = {"version": 1, "title": settings.title or where, "graph": settings.network.graph}
    return to_toml({**head, **{name: table for name, table in tables.items() if table}})


def _protocol(built: LoadedPlan, where: str) -> str:
    from sottovoce.errors import ConfigError

    section = built.settings.protocol
    if any(getattr(section, key) is not None for key in ("rounds", "tree", "root", "fresh")):
        raise ConfigError(
            f'{where}: write the protocol as one name, for example name = "tree:kind=uniform"; an agreement '
            "has no other place for its options."
        )
    plan: Any = built.plan
    return section.name or str(getattr(plan.protocol, "name", plan.protocol))


def _rate(plan: Any, where: str) -> float:
    from sottovoce.errors import ConfigError

    if plan.batch_size is None:
        return float(plan.sample_rate or 1.0)
    if len(set(plan.sizes)) > 1:
        raise ConfigError(
            f"{where}: a lot of sites of different sizes gives each another rate, which would tell its size; "
            "write sample_rate instead."
        )
    return float(plan.batch_size / plan.sizes[0])


def _columns(built: LoadedPlan, where: str) -> dict[str, Any]:
    """Return what the agreement says about members' files."""
    from sottovoce.errors import ConfigError

    data = built.settings.data
    assert data is not None
    assert built.records is not None
    if data.unit_rows or data.standardize or data.missing == "drop":
        raise ConfigError(
            f"{where}: an agreement knows bounds, categories and an intercept, but neither unit_rows, "
            "standardize nor missing; leave them out (the clip bounds what a record can do)."
        )
    columns: Any = built.records.columns
    features = () if columns is None else tuple(columns.features)
    if built.records.data is None and data.features is None and not isinstance(data.bounds, dict):
        features = ()  # records that are only announced have no names for their columns yet
    table: dict[str, Any] = {"features": features, "target": data.label or ""}
    if isinstance(data.bounds, dict):
        table["bounds"] = {key: list(pair) for key, pair in data.bounds.items()}
    if data.categories:
        table["categories"] = {key: [str(v) for v in values] for key, values in data.categories.items()}
    if data.classes:
        table["classes"] = [str(each) for each in data.classes]
    if data.intercept:
        table["intercept"] = True
    return {key: value for key, value in table.items() if value}


def _budget(built: LoadedPlan) -> dict[str, float]:
    budget = built.settings.budget
    delta = 1e-5 if budget is None else budget.delta
    if built.plan.schedule(0).masked:
        known = built.plan.epsilon(delta) if budget is None else budget.epsilon
        return {"epsilon": known, "delta": delta}
    local = built.plan.privacy("local").epsilon(delta)
    return {"epsilon": math.ceil(local * 1000) / 1000, "delta": delta}
