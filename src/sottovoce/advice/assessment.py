"""What a plan file costs and what its answer is worth: guarantees, communication, error, budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sottovoce._io import to_jsonable
from sottovoce.accounting.budget import AdversaryOptions, delta_warning
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.published.exact_comparison import missing_links
from sottovoce.accounting.wording import YES, name_nodes, private, uncharged
from sottovoce.advice.samples import Sample
from sottovoce.advice.suggestions import suggestions
from sottovoce.advice.usefulness import is_average, usefulness
from sottovoce.algorithms.averaging import PrivateAveraging, noise_in_result
from sottovoce.algorithms.consensus_sgd import ConsensusSGD, estimand
from sottovoce.algorithms.gradient_plan import GradientPlan
from sottovoce.algorithms.plan import public_units
from sottovoce.errors import BudgetExceeded
from sottovoce.graphs import Network
from sottovoce.objectives import GLM
from sottovoce.planfile.read import LoadedPlan
from sottovoce.protocols import Protocol
from sottovoce.runners.plan_interface import has_noise

_HIDES = {
    "user": "everything a member holds: one whole member may be replaced",
    "add-remove": "a single record: one may be added or removed",
    "replace-one": "a single record: one may be replaced",
}
_RUNS = 20  # of a simulation, fewer where a run is long
_WORK = 4e9  # most numbers that a simulation processes


def assess(loaded: LoadedPlan, *, simulated: bool = False) -> dict[str, Any]:
    """Return guarantees, budget verdict, communication and usefulness of a plan file as plain values.

    ``simulated``: judge training by runs on synthetic records, and add suggestions where they are needed.
    """
    plan, budget = loaded.plan, loaded.settings.budget
    delta, guarantees, accepted = loaded.delta, loaded.guarantees, list(loaded.accepted)
    assessment: dict[str, Any] = {
        "title": loaded.settings.title,
        "plan": to_jsonable(dict(plan.describe())),
        "delta": delta,
    }
    if budget is not None:
        decisive = loaded.privacy
        guarantees = [*guarantees, *([] if decisive in guarantees else [decisive])]
        assessment["budget"] = budget.model_dump(exclude_none=True) | {"view": decisive.adversary.kind}
        assessment["feasible"] = decisive.valid and decisive.epsilon(delta) <= budget.epsilon
    answer, why = private(
        loaded.privacy.epsilon(delta),
        delta,
        name_nodes(str(loaded.privacy.adversary), loaded.network),
        loaded.privacy.label,
        loaded.privacy.best_guess,
        limit=None if budget is None else budget.epsilon,
        accepted=accepted,
        simulated=loaded.simulates,
        subject="The plan",
    )
    assessment |= {"private": answer == YES, "private_in_words": answer, "verdict": why}
    if accepted:
        remarks = tuple(map(uncharged, accepted))
        guarantees = [replace(g, assumptions=(*g.assumptions, *remarks)) for g in guarantees]
        assessment["accepted"] = accepted
    rows = guarantees_at(guarantees, delta, loaded.network)
    assessment["guarantees"] = [row | ({"accepted": accepted} if accepted else {}) for row in rows]
    assessment["cost"] = dict(plan.cost())
    large = delta_warning(delta, public_units(plan), plan.adjacency)
    notes = [] if large is None else [large]
    if loaded.network is not None:
        notes += missing_links(loaded.network, plan.schedule(0))
        if isinstance(plan, ConsensusSGD) and len(set(plan.sizes or ())) > 1:
            notes.append(f"Sites differ in size; learned is {estimand(plan)}.")
    assessment |= {"notes": notes} if notes else {}
    noise = noise_in_result(plan) if isinstance(plan, PrivateAveraging) else None
    if noise is not None:
        assessment["noise_in_result"] = noise
    assessment["hides"] = _HIDES[plan.adjacency] if has_noise(plan) else "nothing: no noise is added"
    assessment["reads"] = _files_read(loaded)
    return assessment | _usefulness(loaded, assessment, simulated)


def require_budget(assessment: Mapping[str, Any]) -> None:
    """Refuse to run a plan that does not meet its budget."""
    if assessment.get("feasible") is False:
        raise BudgetExceeded(assessment["verdict"])


def guarantees_at(
    guarantees: Iterable[Guarantee], delta: float, network: Network | None = None
) -> list[dict[str, Any]]:
    """Return guarantees as plain values with epsilon at ``delta``, and the adversary in words.

    On a ``network`` with labels, nodes are called by theirs.
    """
    return [g.to_dict(delta=delta) | {"against": name_nodes(str(g.adversary), network)} for g in guarantees]


def averaging_cost(
    network: Network,
    protocol: Protocol,
    observer: int | None,
    colluders: Sequence[int],
    noise: float | None,
    epsilon: float | None,
    delta: float,
) -> dict[str, Any]:
    """Return what an average of radius 1 costs at a noise multiplier, or the least noise for a budget.

    The adversaries are the local one, and ``observer`` with its ``colluders`` (None: the worst member).
    Without noise and epsilon nothing is returned.
    """
    if noise is None and epsilon is None:
        return {}
    who: AdversaryOptions = {"view": "network", "observer": observer}
    if colluders:
        together = set(colluders) if observer is None else {observer, *colluders}
        who = {"view": "colluders", "colluders": sorted(together)}
    adversaries: tuple[AdversaryOptions, ...] = ({"view": "local"}, who)
    plan = PrivateAveraging(protocol, noise_std=1.0 if noise is None else noise, radius=1.0)
    guarantees = [plan.privacy(**adversary) for adversary in adversaries]
    rows = guarantees_at(guarantees, delta, network)
    if noise is not None:
        if epsilon is not None:
            guarantees[-1].require(epsilon, delta)
        return {"noise_multiplier": noise, "delta": delta, "guarantees": rows}
    assert epsilon is not None
    least = [plan.calibrated_to(epsilon, delta, **each).noise_multiplier for each in adversaries]
    needed = [
        {key: row[key] for key in ("against", "label", "adjacency")} | {"noise_multiplier": multiplier}
        for row, multiplier in zip(rows, least, strict=True)
    ]
    return {"epsilon": epsilon, "delta": delta, "noise_for_budget": needed}


def _usefulness(loaded: LoadedPlan, assessment: Mapping[str, Any], simulated: bool) -> dict[str, Any]:
    """Return whether the answer is of use, in words and numbers, and what would change it."""
    plan, budget, sample, runs = loaded.plan, loaded.settings.limit, None, _RUNS
    if simulated and isinstance(plan, GradientPlan) and plan.query_kind == "gradient" and plan.sizes:
        model = plan.objective
        if isinstance(model, GLM) and model.loss != "huber" and model.dim is not None:
            work = plan.steps * min(sum(plan.sizes), 20_000) * model.dim
            runs = int(min(_RUNS, _WORK // max(work, 1)))
            sample = Sample(model.loss, model.dim) if runs >= 4 else None
    use = usefulness(plan, sample=None if is_average(plan) else sample, runs=runs)
    values = use.to_dict() | {"usefulness": use.sentence}
    if simulated and budget is not None and (use.useful is False or assessment.get("feasible") is False):
        changes = suggestions(plan, budget, sample=sample)
        values["suggestions"] = [suggestion.sentence for suggestion in changes]
    return values


def _files_read(loaded: LoadedPlan) -> list[str]:
    """Return what the assessment has read, in words."""
    network, data, average = loaded.settings.network, loaded.settings.data, loaded.settings.average
    files, graph = [], str(network.graph) if network is not None else ""
    if network is not None and network.matrix is not None:
        files.append(f"{network.matrix} (the weights of the network)")
    if graph.startswith("file:"):
        files.append(f"{graph.removeprefix('file:')} (the edges of the network)")
    if data is not None:
        source = data.file or data.name or "the data set"
        if loaded.adapter is not None and loaded.adapter.data is None:
            return [*files, f"no records ({source} is not there yet; how many there will be is stated)"]
        more = f", and {', '.join(loaded.accepted)}" if loaded.accepted else ""
        files.append(f"{source} (how many records there are, and of how many features{more})")
    if average is not None and isinstance(average.values, Path):
        files.append(f"no values ({average.values} is for sottovoce average)")
    return files
