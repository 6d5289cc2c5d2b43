"""Ready files: the plan file and the draft of an agreement for a row, and everything in one folder."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from sottovoce._io import atomic_write, plain, to_toml
from sottovoce.advice.candidates import parse_net
from sottovoce.advice.comparison import PlanSummary
from sottovoce.advice.requirements import Requirements
from sottovoce.algorithms.gradient_plan import n_params
from sottovoce.errors import InvalidInput


def plan_file(requirements: Requirements, row: PlanSummary) -> str:
    """Return the text of the plan file (version 1) of a row; the data files it names are the users' own.

    Examples
    --------
    >>> from sottovoce.advice import advise
    >>> advice = advise(8, epsilon=3.0, delta=1e-5, hide="member", target=0.4)
    >>> print(plan_file(advice.requirements, advice.rows[0]).split("[budget]")[1].strip())
    epsilon = 3.0
    delta = 1e-05
    view = "network"
    """
    candidate = _candidate(row)
    tables: dict[str, dict[str, Any]] = {
        "network": {"graph": _graph(requirements)},
        "protocol": {"name": candidate.protocol, "seed": requirements.seed},
    }
    plan: Any = row.plan
    notes: list[str] = []
    if plan.query == "value":
        tables["average"] = {
            "radius": requirements.half,
            "center": requirements.middle,
            "adjacency": "user",
            "values": "values.csv",
            **_uneven(plan),
        }
        notes.append(f"values.csv holds one value per member, in the order of {_order(requirements)}.")
    else:
        tables |= _training(requirements, plan, notes)
    tables["budget"] = {
        "epsilon": requirements.epsilon,
        "delta": requirements.delta,
        **_view(requirements, row),
    }
    return to_toml({"version": 1, "title": _title(requirements), **tables}, notes)


def _training(requirements: Requirements, plan: Any, notes: list[str]) -> dict[str, dict[str, Any]]:
    width = (
        plan.objective.dim
        if requirements.compute != "net"
        else parse_net(str(requirements.model))[1].get("inputs")
    )
    data: dict[str, Any] = {
        "file": "records.csv", "label": "label", "group": "site", "partition": "column",
        "sizes": list(requirements.sizes) if len(set(requirements.sizes)) > 1 else requirements.sizes[0],
    }  # fmt: skip
    if width is not None:
        data["width"] = int(width)
    train: dict[str, Any] = {
        "algorithm": plan.name, "adjacency": plan.adjacency, "steps": plan.steps,
        "learning_rate": plan.rate(0), "clip_norm": plan.clip_norm, **_uneven(plan),
    }  # fmt: skip
    if plan.sample_rate is not None:
        train |= {"sample_rate": plan.sample_rate, "accounting": plan.accounting}
    site = "site (its member's name in edges.txt)" if not requirements.reachable else "site (its member)"
    notes.append(f"records.csv holds a line per record: its features, label, and {site}.")
    if requirements.compute == "mean":
        data["label"] = "value"
        data["features"] = ["one"]
        del data["width"]
        notes[-1] = (
            "records.csv holds a line per record: one (always 1), value (less "
            f"{requirements.middle:g}, the middle of its range), and {site}."
        )
        notes.append(_until_then(requirements))
        return {"data": data, "objective": {"loss": "squared"}, "train": train}
    notes.append(_until_then(requirements))
    if requirements.compute == "net":
        name, options = parse_net(str(requirements.model))
        return {"data": data, "model": {"name": name, "options": options}, "train": train}
    data["unit_rows"] = True
    if requirements.compute == "logistic":
        data["classes"] = ["no", "yes"]
        notes.append("classes are the public names of the two labels.")
    else:
        notes.append(f"labels are (target - {requirements.middle:g}) / {requirements.half:g}.")
    loss = "logistic" if requirements.compute == "logistic" else "squared"
    return {"data": data, "objective": {"loss": loss}, "train": train}


def _until_then(requirements: Requirements) -> str:
    order = "in the order of the sites' names" if requirements.reachable else "in the order of edges.txt"
    return (
        f"sottovoce plan prices this file without it, from sizes: the records of each member, {order}; "
        "sottovoce train runs it."
    )


def _uneven(plan: Any) -> dict[str, Any]:
    """Return the options of uneven noise, where a plan has it."""
    if getattr(plan, "noise", "equal") == "equal":
        return {}
    return {"noise": plan.noise, "floor": plan.floor, "tolerate": plan.tolerate}


def agreement_draft(requirements: Requirements, row: PlanSummary) -> str:
    """Return the draft of an agreement; ``sottovoce peer agree`` adds the members.

    With masked sums its budget is that of the requirements, against as many members as are tolerated.
    Over trees and gossip a member is charged for its own noise alone, as if all others colluded.

    Examples
    --------
    >>> from sottovoce.advice import advise
    >>> advice = advise(8, epsilon=3.0, delta=1e-5, records=50)
    >>> draft = agreement_draft(advice.requirements, advice.rows[0])
    >>> draft.splitlines()[3], draft.split("[budget]")[1].split()[:3]
    ('graph = "complete:8"', ['epsilon', '=', '3.0'])
    """
    candidate, plan = _candidate(row), row.plan
    one: Any = plan
    algorithm: dict[str, Any] = {
        "name": plan.name, "protocol": candidate.protocol, "adjacency": plan.adjacency,
        "clip_norm": float(one.radius if plan.query == "value" else one.clip_norm),
        "noise_multiplier": float(one.noise_multiplier), **_uneven(plan),
    }  # fmt: skip
    if plan.query == "value":
        algorithm["center"] = requirements.middle
        model: dict[str, Any] = {"kind": "mean", "parameters": 1}
    else:
        algorithm |= {"steps": plan.steps, "learning_rate": float(one.rate(0))}
        if plan.adjacency != "user":
            rate = float(one.sample_rate or 1.0)
            algorithm |= {"batch_size": rate * requirements.total / requirements.n, "sample_rate": rate}
        model = _model(requirements, plan)
    if candidate.masked:
        epsilon = requirements.epsilon
        charged = "charged as such: sums are masked"
    else:
        epsilon = math.ceil(row.epsilon_local * 1000) / 1000
        charged = "what is charged, below, is a member's own noise alone, as if all others colluded"
    whom = adversary(requirements)
    labels = requirements.network.labels
    comments = [
        f"epsilon {requirements.epsilon:g} at delta {requirements.delta:g} against {whom}; {charged}."
    ]
    if labels is not None:
        comments.append(f"nodes 0 to {requirements.n - 1} are {', '.join(map(str, labels))}")
    tables = {
        "algorithm": algorithm,
        "model": model,
        "budget": {"epsilon": float(epsilon), "delta": requirements.delta},
    }
    head = {"version": 1, "title": _title(requirements), "graph": _graph(requirements, inline=True)}
    return to_toml({**head, **tables}, comments)


def _model(requirements: Requirements, plan: Any) -> dict[str, Any]:
    if requirements.compute == "net":
        name, options = parse_net(str(requirements.model))
        return {"kind": "net", "parameters": n_params(plan.objective), "net": name, "options": options}
    kind = "logistic" if requirements.compute == "logistic" else "squared"
    return {"kind": kind, "parameters": n_params(plan.objective)}


def save(advice: Any, folder: Path) -> list[Path]:
    """Write the files of an advice; what a row has no file for is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [_write(folder / "advice.json", json.dumps(plain(advice.to_dict()), indent=1))]
    written.append(advice.plot(folder / "front.svg"))
    if advice.recommended is not None:
        requirements, row = advice.requirements, advice.recommended
        if not requirements.reachable:
            written.append(_write(folder / "edges.txt", _edges(requirements)))
        written.append(_write(folder / "plan.toml", plan_file(requirements, row)))
        written.append(_write(folder / "agreement-draft.toml", agreement_draft(requirements, row)))
    return written


def _edges(requirements: Requirements) -> str:
    """Return the links by their members' names, in an order that gives everybody the same number again."""
    name = _names(requirements)
    known = [
        f"{name[v]} {name[v]}" for v in range(requirements.n)
    ]  # a member beside itself is known, and no link
    links = [f"{name[u]} {name[v]}" for u, v in requirements.network.edges.tolist()]
    return "\n".join(["# the members in their order, then who can talk to whom", *known, *links]) + "\n"


def _names(requirements: Requirements) -> list[Any]:
    """Return what members are called in a file of links: numbers, where their names do not fit into one."""
    labels = requirements.network.labels or ()
    words = all(isinstance(x, str) and re.fullmatch(r"[^\s,#%][^\s,]*", x) for x in labels)
    if labels and words and not any(str(x).lstrip("+-").isdecimal() for x in labels):
        return list(labels)
    numbers = [x for x in labels if isinstance(x, int) and x >= 0]
    if numbers and numbers == sorted(numbers) and len(numbers) == len(labels):
        return list(numbers)
    return list(range(requirements.n))


def _order(requirements: Requirements) -> str:
    return "the members" if requirements.reachable else "edges.txt"


def adversary(requirements: Requirements) -> str:
    """Return the adversary of the requirements in words."""
    if requirements.view == "local":
        return "everyone else together"
    if requirements.view == "outsider":
        return "outsiders and any one member"
    return (
        "any one member" if requirements.colluders == 1 else f"any {requirements.colluders} members together"
    )


def to_dict(requirements: Requirements) -> dict[str, Any]:
    """Return requirements as plain values."""
    values = dict(vars(requirements))
    values["network"] = {
        "name": requirements.network.name,
        "n": requirements.n,
        "edges": requirements.network.edges.tolist(),
    }
    return values


def _write(path: Path, text: str) -> Path:
    atomic_write(path, text)
    return path


def _candidate(row: PlanSummary) -> Any:
    if row.candidate is None:
        raise InvalidInput(f"{row.name} is a plan of yours; only rows of an advice have files.")
    return row.candidate


def _graph(requirements: Requirements, *, inline: bool = False) -> str:
    if requirements.reachable:
        return f"complete:{requirements.n}"
    if inline:
        return "edges:" + ",".join(f"{u}-{v}" for u, v in requirements.network.edges.tolist())
    return "file:edges.txt"


def _view(requirements: Requirements, row: PlanSummary) -> dict[str, Any]:
    """Return the view that decides the noise, as a plan file says it."""
    if requirements.view == "local":
        return {"view": "local"}
    if requirements.view == "outsider" and not row.candidate.masked:  # type: ignore[union-attr]
        return {"view": "outsider"}
    if requirements.colluders > 1:
        return {"view": "colluders", "colluders": requirements.colluders}
    return {"view": "network"}


def _title(requirements: Requirements) -> str:
    what = {"mean": "mean", "logistic": "logistic model", "linear": "linear model", "net": "network"}
    model = what[requirements.compute].capitalize()
    return f"{model} of {requirements.n} members, epsilon {requirements.epsilon:g}"
