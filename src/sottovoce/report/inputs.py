"""Inputs of a report: plan files, agreements, statements, results, attacks and audits become results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce.errors import DataError
from sottovoce.noise.run_randomness import SIMULATION
from sottovoce.report import summary_page
from sottovoce.report.result_files import read_result, result_dict

if TYPE_CHECKING:
    from sottovoce.graphs import Network
    from sottovoce.peers.agreement import Agreement
    from sottovoce.peers.member_directory import MemberDirectory
    from sottovoce.planfile.read import LoadedPlan
    from sottovoce.protocols import Protocol

STATEMENT, RECORD, LEDGER = "statement.json", "record.json", "run.ledger"


def read_inputs(
    paths: Sequence[Path], member_directory: MemberDirectory | None = None
) -> list[dict[str, Any]]:
    """Return the results of several inputs; a statement shows the members and matrix of its agreement."""
    results = [read_input(path, member_directory) for path in paths]
    pages = [result["summary_page"] for result in results if result["name"] == "agreement"]
    agreements = {page["marks"]["run"]: page for page in pages}
    for result in results:
        page = result.get("summary_page")
        if result["name"] == "statement" and page is not None and page["marks"]["run"] in agreements:
            agreed = agreements[page["marks"]["run"]]
            page |= {key: agreed[key] for key in ("members", "matrix", "purpose")}
    return results


def read_input(path: str | Path, member_directory: MemberDirectory | None = None) -> dict[str, Any]:
    """Return the result of a file, or of a folder of a run or a model, with its summary page.

    An agreement and a statement are shown with the lifetime ledger of ``member_directory``.
    """
    place = Path(path)
    if place.suffix == ".toml":
        return _plan_or_agreement(place, member_directory)
    if place.is_dir():
        names = [name for name in (STATEMENT, RECORD) if (place / name).is_file()]
        if not names:
            raise DataError(f"{place} holds neither {STATEMENT} nor {RECORD}; name a file instead.")
        place = place / names[0]
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return with_summary_page(read_result(place))  # raises the error with its reason
    if isinstance(content, dict) and set(content) >= {"run_id", "member", "guarantee", "budget"}:
        try:
            return statement_result(content, place.parent, member_directory)
        except (KeyError, TypeError, ValueError) as problem:
            raise DataError(f"{place} lacks what its page shows ({problem!r}); make it again.") from None
    return with_summary_page(read_result(place))


def _plan_or_agreement(file: Path, member_directory: MemberDirectory | None) -> dict[str, Any]:
    from sottovoce.advice.assessment import assess
    from sottovoce.planfile.read import load_file, read_toml

    if "members" in read_toml(file):
        from sottovoce.peers.agreement import read_agreement

        return agreement_result(read_agreement(file), member_directory)
    loaded = load_file(file)
    return plan_result(assess(loaded), loaded)


def plan_result(assessment: Mapping[str, Any], loaded: LoadedPlan) -> dict[str, Any]:
    """Return the assessment of a plan file (`advice.assessment.assess`) as a result."""
    limit, network = loaded.settings.limit, loaded.network
    names = None if network is None or network.node_names is None else list(map(str, network.node_names))
    page = summary_page.of_plan(
        loaded.plan,
        title=loaded.settings.title,
        names=names,
        delta=loaded.delta,
        limit=None if limit is None else limit.epsilon,
        adversary=loaded.adversary,
        accepted=loaded.accepted,
        privacy=loaded.privacy,
        local=next((g for g in loaded.guarantees if g.adversary.kind == "local"), None),
        use=assessment,
        simulated=loaded.simulates,
    )
    metrics = {key: value for key, value in assessment.items() if key not in ("plan", "guarantees")}
    config = assessment["plan"] | ({} if names is None else {"labels": names})
    about = {"noise": SIMULATION} if loaded.simulates else {}
    return result_dict("plan", config, metrics, assessment["guarantees"], **about) | {"summary_page": page}


def account_result(network: Network, protocol: Protocol, assessment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the losses of an averaging (`compare_with_published`) as a result that can be drawn."""
    from sottovoce.accounting.published.exact_comparison import by_distance

    labels = None if network.node_names is None else [str(label) for label in network.node_names]
    config = {"graph": network.name, "protocol": protocol.name, "rounds": protocol.rounds, "labels": labels}
    metrics = {key: value for key, value in assessment.items() if key not in ("guarantees", "_pairs")}
    if network.n <= 400:
        metrics["edge_list"] = network.edges
    metrics["by_distance"] = by_distance(network, assessment)
    return result_dict("account", config, metrics, assessment.get("guarantees", []))


def with_summary_page(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with a summary page, if it states something and has none yet."""
    if result.get("summary_page"):
        return result
    facts = {**result["config"], **result["metrics"]}
    if result["name"] == "audit":
        page: dict[str, Any] | None = summary_page.of_audit(facts)
    elif result["name"] == "attack":
        page = summary_page.of_reconstruction(facts)
    else:
        page = summary_page.of_result(result)
    return result if page is None else result | {"summary_page": page}


def agreement_result(agreement: Agreement, member_directory: MemberDirectory | None = None) -> dict[str, Any]:
    """Return an agreement as a result: its plan, its privacy cost for every member, and the summary page."""
    from sottovoce.peers.agreed_run import AgreedRun

    agreed_run = AgreedRun(agreement)
    delta, plan = agreement.budget.delta, agreement.plan
    lifetime: list[dict[str, Any]] = []
    if member_directory is not None:
        charge = member_directory.charge_of(agreed_run, agreement.index(member_directory.name))
        lifetime = member_directory.lifetime_ledger.forecast(charge)
    guarantees = [plan.privacy("local")]
    if plan.n > 1 and agreement.timing.late == "wait":  # an exchange left out can tell a neighbor more
        guarantees.append(plan.privacy())
    names = [member.name for member in agreement.members]
    metrics = {
        "title": agreement.title,
        "graph": agreement.graph,
        "edge_list": agreement.network.edges,
        "cost": dict(plan.cost()),
        "costs": agreed_run.table(),
        "model": agreement.model.model_dump(exclude_unset=True),
        "timing": agreement.timing.model_dump(),
    }
    stored = [guarantee.to_dict(delta=delta) for guarantee in guarantees]
    page = summary_page.of_agreement(agreed_run, lifetime=lifetime, local=guarantees[0])
    config = dict(plan.describe()) | {"labels": names}
    return result_dict("agreement", config, metrics, stored) | {"summary_page": page}


def statement_result(
    statement: Mapping[str, Any], folder: Path, member_directory: MemberDirectory | None = None
) -> dict[str, Any]:
    """Return a member's statement as a result, with its ledger and its lifetime ledger."""
    ledger = None
    if (folder / LEDGER).exists():
        from sottovoce.peers.status import read_status

        ledger = read_status(folder)  # checks the whole chain
    stated = [statement[key] for key in ("guarantee", "ldp", "network") if statement.get(key)]
    unique: dict[str, Any] = {one["adversary"]: one for one in reversed(stated)}
    lifetime = [] if member_directory is None else _lifetime_rows(member_directory, statement["run_id"])
    config = {"algorithm": statement["algorithm"], "protocol": statement.get("protocol")}
    metrics = {
        "member": statement["member"],
        "rounds": statement["rounds"],
        "of": statement["of"],
        "left_out": statement.get("left_out") or [],
        "incidents": statement.get("incidents") or [],
        "statistical_distance": statement.get("statistical_distance"),
        "account": ledger,
    }
    guarantees = list(reversed(unique.values()))
    page = summary_page.of_statement(statement, ledger=ledger, lifetime=lifetime)
    result = result_dict("statement", config, metrics, guarantees, noise=statement.get("noise", ""))
    return result | {"summary_page": page}


def _lifetime_rows(member_directory: MemberDirectory, run_id: str) -> list[dict[str, Any]]:
    """Return, for each lifetime budget of the run's population, what was spent without it and with it."""
    from sottovoce.ledger.balance import curve_of_charges

    ledger = member_directory.lifetime_ledger
    charge = ledger.runs.get(run_id)
    if charge is None:
        raise DataError(
            f"The lifetime ledger of {member_directory.name} does not know the run {run_id[:16]}; name the "
            "member directory that ran it."
        )
    charges = [each for each in ledger.charges if each.population == charge.population]
    before = [each for each in charges if each.run_id != run_id]
    rows = []
    for limit in ledger.populations[charge.population]:
        spent, adds, total = (
            curve_of_charges(each, *limit.kind).epsilon(limit.delta) for each in (before, [charge], charges)
        )
        about = {"adjacency": limit.adjacency, "view": limit.view, "delta": limit.delta}
        sums = {"epsilon": limit.epsilon, "spent": spent, "adds": adds, "total": total}
        rows.append(about | sums)
    return rows
