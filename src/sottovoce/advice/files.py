"""Files of an advice: the plan file and the draft of an agreement of a row, and all in one folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce._format import number
from sottovoce._io import atomic_write, to_jsonable, to_toml
from sottovoce.advice.candidates import AveragingCandidate, parse_net
from sottovoce.advice.comparison import PlanSummary
from sottovoce.advice.requirements import Requirements
from sottovoce.algorithms.averaging import PrivateAveraging
from sottovoce.algorithms.consensus_sgd import ConsensusSGD
from sottovoce.algorithms.gradient_plan import GradientPlan, n_params
from sottovoce.errors import InvalidInput
from sottovoce.planfile.write import agreement_text, plan_tables

if TYPE_CHECKING:
    from sottovoce.advice.advisor import Advice

_MODELS = {"mean": "Mean", "logistic": "Logistic model", "linear": "Linear model", "net": "Neural network"}


def save(advice: Advice, folder: Path) -> list[Path]:
    """Write the files of an advice; only the recommended row has a plan file and a draft."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"advice.json": json.dumps(to_jsonable(advice.to_dict()), indent=1)}
    if advice.recommended is not None:
        requirements, row = advice.requirements, advice.recommended
        if not requirements.reachable:
            texts["edges.txt"] = _edges(requirements)
        texts["plan.toml"] = plan_file(requirements, row)
        texts["agreement-draft.toml"] = agreement_draft(requirements, row)
    written = [atomic_write(folder / name, text) for name, text in texts.items()]
    return [written[0], advice.plot(folder / "front.svg"), *written[1:]]


def plan_file(requirements: Requirements, row: PlanSummary) -> str:
    """Return the text of the plan file (version 1) of a row; the data files it names are the users' own."""
    candidate, plan = _candidate(row), row.plan
    graph = f"complete:{requirements.n}" if requirements.reachable else "file:edges.txt"
    model: dict[str, Any] | None = None
    if requirements.compute == "net":
        name, options = parse_net(str(requirements.model))
        model = {"name": name, "options": options}
    tables = plan_tables(plan, network={"graph": graph}, protocol=candidate.protocol, model=model)
    del tables["noise"]  # it follows from the budget
    if plan.query_kind == "value":
        order = "the members" if requirements.reachable else "edges.txt"
        notes = [f"values.csv holds one value per member, in the order of {order}."]
    else:
        notes = _describe_records(requirements, tables)
    budget: dict[str, Any] = {"epsilon": requirements.epsilon, "delta": requirements.delta}
    # under masks an outsider sees less than a member, so the view of a member decides the noise
    own_noise = requirements.view == "outsider" and not candidate.has("masked")
    if requirements.view == "local" or own_noise:
        budget["view"] = requirements.view
    elif requirements.colluders > 1:
        budget |= {"view": "colluders", "colluders": requirements.colluders}
    else:
        budget["view"] = "network"
    return to_toml({"version": 1, "title": _title(requirements), **tables, "budget": budget}, notes)


def _describe_records(requirements: Requirements, tables: dict[str, dict[str, Any]]) -> list[str]:
    """Complete [data] and return what the users' own file must hold, in words."""
    data, compute, middle = tables["data"], requirements.compute, requirements.middle
    site, order = "site (its member)", "the sites' names"
    if not requirements.reachable:
        site, order = "site (its member's name in edges.txt)", "edges.txt"
    columns, notes = "its features (numbers from -1 to 1, or with bounds by name), label", []
    if compute == "mean":
        data |= {"label": "value", "features": ["one"]}
        del data["width"]
        columns = f"one (always 1), value (less {middle:g}, the middle of its range)"
    elif compute == "logistic":
        data |= {"unit_rows": True, "classes": ["no", "yes"]}
        notes = ["classes are the public names of the two labels."]
    elif compute == "linear":
        data["unit_rows"] = True
        notes = [f"labels are (target - {middle:g}) / {requirements.half:g}."]
    return [
        f"records.csv holds a line per record: {columns}, and {site}.",
        "sottovoce plan accounts for this file without it, from sizes: the records of each member, in the "
        f"order of {order}; sottovoce train runs it.",
        *notes,
    ]


def agreement_draft(requirements: Requirements, row: PlanSummary) -> str:
    """Return the draft of an agreement of a row (`sottovoce.planfile.write.agreement_text`)."""
    candidate, plan = _candidate(row), row.plan
    assert isinstance(plan, (PrivateAveraging, GradientPlan))
    assert isinstance(plan.noise_multiplier, float)  # an advised plan has one noise level for all
    options: dict[str, Any] = {}
    if isinstance(plan, (PrivateAveraging, ConsensusSGD)) and plan.noise_allocation != "equal":
        options = {"noise_allocation": plan.noise_allocation, "floor": plan.floor, "tolerate": plan.tolerate}
    options["noise_multiplier"], rate = plan.noise_multiplier, None
    if isinstance(plan, PrivateAveraging):
        options["center"] = requirements.middle
        model: dict[str, Any] = {"kind": "mean", "parameters": 1}
    else:
        options |= {"steps": plan.steps, "learning_rate": float(plan.rate(0))}
        if plan.adjacency != "user":
            rate = float(plan.sample_rate or 1.0)
        kind = requirements.compute if requirements.compute in ("logistic", "net") else "squared"
        model = {"kind": kind, "parameters": n_params(plan.objective)}
        if kind == "net":
            name, network_options = parse_net(str(requirements.model))
            model |= {"net": name, "options": network_options}
    charged = "charged as such: sums are masked"
    if not candidate.has("masked"):
        charged = "what is charged, below, is a member's own noise alone, as if all others colluded"
    budget = f"epsilon {number(requirements.epsilon, 'limit')} at delta {number(requirements.delta, 'delta')}"
    comments = [f"{budget} against {requirements.adversary}; {charged}."]
    network = requirements.network
    if network.node_names is not None:
        comments.append(f"nodes 0 to {requirements.n - 1} are {', '.join(map(str, network.node_names))}")
    graph = f"complete:{requirements.n}"
    if not requirements.reachable:
        graph = "edges:" + ",".join(f"{u}-{v}" for u, v in network.edges.tolist())
    return agreement_text(
        plan,
        {"title": _title(requirements), "graph": graph, "model": model},
        (requirements.epsilon, requirements.delta),
        protocol=candidate.protocol,
        options=options,
        sample_rate=rate,
        comments=comments,
    )


def _edges(requirements: Requirements) -> str:
    """Return the links by their members' names, in an order that gives everybody the same number again."""
    names = _names(requirements)
    members = [f"{name} {name}" for name in names]  # a pair of a member and itself names it, and is no link
    links = [f"{names[u]} {names[v]}" for u, v in requirements.network.edges.tolist()]
    return "\n".join(["# the members in their order, then who can talk to whom", *members, *links]) + "\n"


def _names(requirements: Requirements) -> list[object]:
    """Return the members' names as a file of links can hold them, numbers where it cannot."""
    labels = list(requirements.network.node_names or ())
    words = all(isinstance(x, str) and re.fullmatch(r"[^\s,#%][^\s,]*", x) for x in labels)
    if labels and words and not any(str(x).lstrip("+-").isdecimal() for x in labels):
        return labels
    numbers = [x for x in labels if isinstance(x, int) and x >= 0]
    if numbers and numbers == sorted(numbers) and len(numbers) == len(labels):
        return labels
    return list(range(requirements.n))


def _candidate(row: PlanSummary) -> AveragingCandidate:
    if row.candidate is None:
        raise InvalidInput(f"{row.name} is a plan of yours; only rows of an advice have files.")
    return row.candidate


def _title(requirements: Requirements) -> str:
    model = _MODELS[requirements.compute]
    return f"{model} of {requirements.n} members, epsilon {number(requirements.epsilon, 'limit')}"
