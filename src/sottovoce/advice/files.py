"""Files of an advice: the plan file and the draft of an agreement of a row, and all in one folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce._format import number
from sottovoce._io import atomic_write, to_jsonable, to_toml
from sottovoce.advice.candidates import parse_net
from sottovoce.advice.comparison import PlanSummary
from sottovoce.advice.requirements import Requirements
from sottovoce.algorithms.gradient_plan import GradientPlan
from sottovoce.algorithms.plan import Plan
from sottovoce.planfile.agreement_draft import draft_agreement
from sottovoce.planfile.read import LoadedPlan
from sottovoce.planfile.schema import check_plan_file
from sottovoce.planfile.write import plan_tables

if TYPE_CHECKING:
    from sottovoce.advice.advisor import Advice

_MODELS = {"mean": "Mean", "logistic": "Logistic model", "linear": "Linear model", "net": "Neural network"}
_OWN_NET = "mynet:build"  # a plan file names a network by the function that builds it


def save(advice: Advice, folder: Path) -> list[Path]:
    """Write the files of an advice; only the recommended row has a plan file and a draft."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"advice.json": json.dumps(to_jsonable(advice.to_dict()), indent=1)}
    if advice.recommended is not None:
        texts["plan.toml"] = plan_file(advice.requirements, advice.recommended)
        texts["agreement-draft.toml"] = agreement_draft(advice.requirements, advice.recommended)
    written = [atomic_write(folder / name, text) for name, text in texts.items()]
    return [*written, advice.plot(folder / "front.svg")]


def plan_file(requirements: Requirements, row: PlanSummary) -> str:
    """Return the text of the plan file (version 1) of a row; the data files it names are the users' own."""
    return to_toml(*_plan_tables(requirements, row))


def _plan_tables(requirements: Requirements, row: PlanSummary) -> tuple[dict[str, Any], list[str]]:
    """Return the tables of the plan file of a row and the comments before them."""
    assert row.candidate is not None
    network = {"graph": f"complete:{requirements.n}"} if requirements.reachable else None
    tables = plan_tables(row.plan, network=network, protocol=row.candidate.protocol, model=_net(requirements))
    del tables["noise"]  # it follows from the budget
    if row.plan.query_kind == "value":
        notes = ["values.csv holds one value per member, in the order of [network]."]
    else:
        order = "the sites' names" if requirements.reachable else "[network]"
        notes = _describe_records(requirements, row, tables, order)
    budget: dict[str, Any] = {"epsilon": requirements.epsilon, "delta": requirements.delta, "view": "network"}
    # under masks an outsider sees less than a member, so the view of a member decides the noise
    own_noise = requirements.view == "outsider" and not row.masked
    if requirements.view in ("local", "colluders") or own_noise:
        budget["view"] = requirements.view
    if requirements.view == "colluders":
        budget["colluders"] = requirements.colluders
    return {"version": 1, "title": _title(requirements), **tables, "budget": budget}, notes


def _describe_records(
    requirements: Requirements, row: PlanSummary, tables: dict[str, Any], order: str
) -> list[str]:
    """Complete [data] and return what the users' own file must hold, in words."""
    data, middle = tables["data"], requirements.middle
    columns, notes = "its features (numbers from -1 to 1, or with bounds by name), label", []
    if requirements.compute == "mean":
        # taken as they are: the clip norm, half the range, bounds what a value contributes
        data |= {"label": "value", "features": ["one"], "bounds": "none"}
        del data["width"]
        columns = f"one (always 1), value (less {middle:g}, the middle of its range)"
    elif requirements.compute == "logistic":
        data |= {"unit_rows": True, "classes": ["no", "yes"]}
        notes = ["classes are the public names of the two labels."]
    elif requirements.compute == "net":
        data["classes"] = _class_names(row.plan)
        notes = ["classes are the public names of the labels.", *_notes_on_net(requirements)]
    else:
        data["unit_rows"] = True
        notes = [f"labels are (target - {middle:g}) / {requirements.half:g}."]
    return [
        f"records.csv holds a line per record: {columns}, and site (its member).",
        "sottovoce plan accounts for this file without it, from sizes: the records of each member, in the "
        f"order of {order}; sottovoce train runs it.",
        *notes,
    ]


def agreement_draft(requirements: Requirements, row: PlanSummary) -> str:
    """Return the draft of an agreement of a row: what `peer draft` makes of its plan file, with its noise."""
    tables, _ = _plan_tables(requirements, row)
    charged = "charged as such: sums are masked"
    if not row.masked:
        charged = "what is charged, below, is a member's own noise alone, as if all others colluded"
    budget = f"epsilon {number(requirements.epsilon, 'limit')} at delta {number(requirements.delta, 'delta')}"
    comments = [f"{budget} against {requirements.adversary}; {charged}.", *_notes_on_net(requirements)]
    network = requirements.network
    if network.node_names is not None:
        comments.append(f"nodes 0 to {requirements.n - 1} are {', '.join(map(str, network.node_names))}")
    settings = check_plan_file(tables, "plan.toml")
    return draft_agreement(LoadedPlan(row.plan, None, network, (), settings), comments=comments)


def _net(requirements: Requirements) -> dict[str, Any] | None:
    """Return the [model] section of a neural network."""
    if requirements.model is None:
        return None
    if not isinstance(requirements.model, str):
        return {"module": _OWN_NET}
    name, options = parse_net(requirements.model)
    return {"name": name, "options": options}


def _class_names(plan: Plan) -> list[str]:
    """Return numbers as names of the classes, as many as the last linear layer of a network tells apart."""
    from torch import nn

    from sottovoce.objectives.nets.objective import NetObjective

    assert isinstance(plan, GradientPlan)
    assert isinstance(plan.objective, NetObjective)
    layers = plan.objective.network.modules()
    outputs = [layer.out_features for layer in layers if isinstance(layer, nn.Linear)]
    return [str(k) for k in range(outputs[-1])] if outputs else []


def _notes_on_net(requirements: Requirements) -> list[str]:
    if requirements.model is None or isinstance(requirements.model, str):
        return []
    return [f"module: the function that builds your network, {_OWN_NET} is build in mynet.py."]


def _title(requirements: Requirements) -> str:
    model = _MODELS[requirements.compute]
    return f"{model} of {requirements.n} members, epsilon {number(requirements.epsilon, 'limit')}"
