"""Ready files: the plan file and the draft of an agreement for a row, and everything in one folder."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from sottovoce._io import atomic_write, plain, to_toml
from sottovoce.advice.candidates import net_words
from sottovoce.advice.comparison import PlanSummary
from sottovoce.advice.requirements import Requirements
from sottovoce.errors import InvalidInput

__all__ = ["agreement_draft", "plan_file"]


def plan_file(wish: Requirements, row: PlanSummary) -> str:
    """Return the text of the plan file (version 1) of a row; the data files it names are the users' own.

    Examples
    --------
    >>> from sottovoce.advice import advise
    >>> advice = advise(8, epsilon=3.0, delta=1e-5, hide="member", target=0.4)
    >>> print(plan_file(advice.wish, advice.rows[0]).split("[budget]")[1].strip())
    epsilon = 3.0
    delta = 1e-05
    view = "network"
    """
    scheme = _named_scheme(row)
    tables: dict[str, dict[str, Any]] = {
        "network": {"graph": _graph(wish)},
        "protocol": {"name": scheme.protocol, "seed": wish.seed},
    }
    plan: Any = row.plan
    notes: list[str] = []
    if plan.query == "value":
        tables["average"] = {
            "radius": wish.half, "center": wish.middle, "adjacency": "user", "values": "values.csv",
            **_uneven(plan),
        }  # fmt: skip
        notes.append(f"values.csv holds one value per member, in the order of {_order(wish)}.")
    else:
        tables |= _training(wish, plan, notes)
    tables["budget"] = {"epsilon": wish.epsilon, "delta": wish.delta, **_view(wish, row)}
    return to_toml({"version": 1, "title": _title(wish), **tables}, notes)


def _training(wish: Requirements, plan: Any, notes: list[str]) -> dict[str, dict[str, Any]]:
    width = plan.objective.dim if wish.compute != "net" else net_words(str(wish.model))[1].get("inputs")
    data: dict[str, Any] = {
        "file": "records.csv", "label": "label", "group": "site", "partition": "column",
        "sizes": list(wish.sizes) if len(set(wish.sizes)) > 1 else wish.sizes[0],
    }  # fmt: skip
    if width is not None:
        data["width"] = int(width)
    train: dict[str, Any] = {
        "algorithm": plan.name, "adjacency": plan.adjacency, "steps": plan.steps,
        "learning_rate": plan.rate(0), "clip_norm": plan.clip_norm, **_uneven(plan),
    }  # fmt: skip
    if plan.sample_rate is not None:
        train |= {"sample_rate": plan.sample_rate, "accounting": plan.accounting}
    site = "site (its member's name in edges.txt)" if not wish.reachable else "site (its member)"
    notes.append(f"records.csv holds a line per record: its features, label, and {site}.")
    if wish.compute == "mean":
        data["label"] = "value"
        data["features"] = ["one"]
        del data["width"]
        notes[-1] = (
            "records.csv holds a line per record: one (always 1), value (less "
            f"{wish.middle:g}, the middle of its range), and {site}."
        )
        notes.append(_until_then(wish))
        return {"data": data, "objective": {"loss": "squared"}, "train": train}
    notes.append(_until_then(wish))
    if wish.compute == "net":
        name, options = net_words(str(wish.model))
        return {"data": data, "model": {"name": name, "options": options}, "train": train}
    data["unit_rows"] = True
    if wish.compute == "logistic":
        data["classes"] = ["no", "yes"]
        notes.append("classes are the public names of the two labels.")
    else:
        notes.append(f"labels are (target - {wish.middle:g}) / {wish.half:g}.")
    loss = "logistic" if wish.compute == "logistic" else "squared"
    return {"data": data, "objective": {"loss": loss}, "train": train}


def _until_then(wish: Requirements) -> str:
    order = "in the order of the sites' names" if wish.reachable else "in the order of edges.txt"
    return (
        f"sottovoce plan prices this file without it, from sizes: the records of each member, {order}; "
        "sottovoce train runs it."
    )


def _uneven(plan: Any) -> dict[str, Any]:
    """Return the options of uneven noise, where a plan has it."""
    if getattr(plan, "noise", "equal") == "equal":
        return {}
    return {"noise": plan.noise, "floor": plan.floor, "tolerate": plan.tolerate}


def agreement_draft(wish: Requirements, row: PlanSummary) -> str:
    """Return the draft of an agreement; ``sottovoce peer agree`` adds the members.

    With masked sums its budget is that of the wish, against as many members as are tolerated. Over trees and
    gossip a member is charged for its own noise alone, as if all others colluded, and the draft says so.

    Examples
    --------
    >>> from sottovoce.advice import advise
    >>> advice = advise(8, epsilon=3.0, delta=1e-5, records=50)
    >>> draft = agreement_draft(advice.wish, advice.rows[0])
    >>> draft.splitlines()[3], draft.split("[budget]")[1].split()[:3]
    ('graph = "complete:8"', ['epsilon', '=', '3.0'])
    """
    scheme, plan = _named_scheme(row), row.plan
    one: Any = plan
    algorithm: dict[str, Any] = {
        "name": plan.name, "protocol": scheme.protocol, "adjacency": plan.adjacency,
        "clip_norm": float(one.radius if plan.query == "value" else one.clip_norm),
        "noise_multiplier": float(one.noise_multiplier), **_uneven(plan),
    }  # fmt: skip
    if plan.query == "value":
        algorithm["center"] = wish.middle
        model: dict[str, Any] = {"kind": "mean", "parameters": 1}
    else:
        algorithm |= {"steps": plan.steps, "learning_rate": float(one.rate(0))}
        if plan.adjacency != "user":
            rate = float(one.sample_rate or 1.0)
            algorithm |= {"batch_size": rate * wish.total / wish.n, "sample_rate": rate}
        model = _model(wish, plan)
    if scheme.masked:
        epsilon = wish.epsilon
        said = "charged as such: sums are masked"
    else:
        epsilon = math.ceil(row.epsilon_everyone * 1000) / 1000
        said = "what is charged, below, is a member's own noise alone, as if all others colluded"
    whom = against(wish)
    labels = wish.network.labels
    comments = [f"epsilon {wish.epsilon:g} at delta {wish.delta:g} against {whom}; {said}."]
    if labels is not None:
        comments.append(f"nodes 0 to {wish.n - 1} are {', '.join(map(str, labels))}")
    tables = {
        "algorithm": algorithm,
        "model": model,
        "budget": {"epsilon": float(epsilon), "delta": wish.delta},
    }
    head = {"version": 1, "title": _title(wish), "graph": _graph(wish, inline=True)}
    return to_toml({**head, **tables}, comments)


def _model(wish: Requirements, plan: Any) -> dict[str, Any]:
    if wish.compute == "net":
        name, options = net_words(str(wish.model))
        return {"kind": "net", "parameters": plan.n_params, "net": name, "options": options}
    kind = "logistic" if wish.compute == "logistic" else "squared"
    return {"kind": kind, "parameters": plan.n_params}


def save(advice: Any, folder: Path) -> list[Path]:
    """Write the files of an advice; what a row has no file for is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [_write(folder / "advice.json", json.dumps(plain(advice.to_dict()), indent=1))]
    written.append(advice.plot(folder / "front.svg"))
    if advice.recommended is not None:
        wish, row = advice.wish, advice.recommended
        if not wish.reachable:
            written.append(_write(folder / "edges.txt", _edges(wish)))
        written.append(_write(folder / "plan.toml", plan_file(wish, row)))
        written.append(_write(folder / "agreement-draft.toml", agreement_draft(wish, row)))
    return written


def _edges(wish: Requirements) -> str:
    """Return the links by their members' names, in an order that gives everybody the same number again."""
    name = _names(wish)
    known = [f"{name[v]} {name[v]}" for v in range(wish.n)]  # a member beside itself is known, and no link
    links = [f"{name[u]} {name[v]}" for u, v in wish.network.edges.tolist()]
    return "\n".join(["# the members in their order, then who can talk to whom", *known, *links]) + "\n"


def _names(wish: Requirements) -> list[Any]:
    """Return what members are called in a file of links: numbers, where their names do not fit into one."""
    labels = wish.network.labels or ()
    words = all(isinstance(x, str) and re.fullmatch(r"[^\s,#%][^\s,]*", x) for x in labels)
    if labels and words and not any(str(x).lstrip("+-").isdecimal() for x in labels):
        return list(labels)
    numbers = [x for x in labels if isinstance(x, int) and x >= 0]
    if numbers and numbers == sorted(numbers) and len(numbers) == len(labels):
        return list(numbers)
    return list(range(wish.n))


def _order(wish: Requirements) -> str:
    return "the members" if wish.reachable else "edges.txt"


def against(wish: Requirements) -> str:
    """Return whom a wish is about, in words."""
    if wish.against == "everyone":
        return "everyone else together"
    if wish.against == "outsiders":
        return "outsiders and any one member"
    return "any one member" if wish.colluders == 1 else f"any {wish.colluders} members together"


def wish_record(wish: Requirements) -> dict[str, Any]:
    """Return what was asked as plain values."""
    kept = dict(vars(wish))
    kept["network"] = {"name": wish.network.name, "n": wish.n, "edges": wish.network.edges.tolist()}
    return kept


def _write(path: Path, text: str) -> Path:
    atomic_write(path, text)
    return path


def _named_scheme(row: PlanSummary) -> Any:
    if row.scheme is None:
        raise InvalidInput(f"{row.name} is a plan of yours; only rows of an advice have files.")
    return row.scheme


def _graph(wish: Requirements, *, inline: bool = False) -> str:
    if wish.reachable:
        return f"complete:{wish.n}"
    if inline:
        return "edges:" + ",".join(f"{u}-{v}" for u, v in wish.network.edges.tolist())
    return "file:edges.txt"


def _view(wish: Requirements, row: PlanSummary) -> dict[str, Any]:
    """Return the view that decides the noise, as a plan file says it."""
    if wish.against == "everyone":
        return {"view": "local"}
    if wish.against == "outsiders" and not row.scheme.masked:  # type: ignore[union-attr]
        return {"view": "outsider"}
    if wish.colluders > 1:
        return {"view": "colluders", "colluders": wish.colluders}
    return {"view": "network"}


def _title(wish: Requirements) -> str:
    what = {"mean": "mean", "logistic": "logistic model", "linear": "linear model", "net": "network"}
    return f"{what[wish.compute].capitalize()} of {wish.n} members, epsilon {wish.epsilon:g}"
