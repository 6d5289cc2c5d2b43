"""Entries of the DP Deployments Registry and answers to the topics of NIST SP 800-226.

Both are filled from a result with a summary page; facts that a plan cannot know are left to its members.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sottovoce._format import fixed, number, significant
from sottovoce.accounting import wording
from sottovoce.errors import DataError

MEMBERS = "To be filled in by the members."
_UNITS = {
    "add-remove": "one record (added or removed)",
    "replace-one": "one record (replaced)",
    "user": "one member, with all its records (replaced)",
}
_NOISE = (
    "Nothing was drawn yet. Protective noise is a discrete Gaussian on a public grid, keyed by the operating "
    "system; a seed makes a simulation, which protects nobody."
)


def registry(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result as an entry of the Differential Privacy Deployments Registry (registry.opendp.org)."""
    page, stated = _parts(result)
    loss, algorithm = page["losses"][0], _algorithm(result)
    members = [member["name"] for member in page["members"]]
    local = stated["view"] == "local"
    parameters = {"epsilon": loss["epsilon"], "delta": loss["delta"]}
    if stated["mu"] is not None:
        parameters["mu"] = stated["mu"]
    return {
        "status": "Draft",
        "registry_authors": [],
        "deployment": {
            "name": page["purpose"],
            "data_curator": ", ".join(members) or MEMBERS,
            "intended_use": MEMBERS,
            "data_product_type": (
                "Summary statistics" if algorithm == "averaging" else "Machine learning model"
            ),
            "data_product_region": MEMBERS,
            "data_product_description": algorithm + (f" of {len(members)} members" if members else ""),
            "publication_date": page["marks"]["date"],
            "additional_information_urls": [],
            "dp_flavor": {
                "name": _definition(stated),
                "data_domain": MEMBERS,
                "unprotected_quantities": " ".join(page["not_covered"]) or "none",
            },
            "privacy_loss": {
                "privacy_unit": _UNITS.get(stated["adjacency"], stated["adjacency"]),
                "privacy_unit_description": page["hidden"],
                "privacy_parameters": parameters,
                "privacy_parameters_description": (
                    f"Against {loss['against']}; {wording.label(stated['label'])}. The best guess is right "
                    f"{loss['guess']}."
                ),
            },
            "model": {
                "model_type": "Local" if local else "Other",
                "model_type_description": (
                    "Decentralized: members add noise to what they send and average over a network without "
                    "a server." + ("" if local else " Epsilon is against the observer named above.")
                ),
                "release_type": "One-shot",
                "release_type_description": page["answers"][0]["why"],
                "interactivity": "Non-interactive",
            },
            "additional_dp_information": {
                "post_processing": "Averages of noisy rows, and updates computed from them.",
                "composition": _composition(result, page),
            },
            "implementation": {
                "pre_processing_eda_hyperparameter_tuning": _reads(page),
                "mechanisms": _mechanism(result),
                "justification": " ".join(answer["why"] for answer in page["answers"][:2]),
            },
        },
    }


def nist(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the topics that NIST SP 800-226 asks an evaluation to cover, answered from a result."""
    page, stated = _parts(result)
    loss = page["losses"][0]
    # the adversary is whom the promise holds against, and not who is trusted
    trusted = "Whoever holds all records, with all of them" if stated["view"] == "central" else "Nobody"
    trust = f"{trusted}. The promise holds against {loss['against']}. Assumed: "
    trust += f"{'; '.join(stated['assumptions'] or ['nothing further'])}."
    for row in page["losses"]:
        if row["who"] == "against everybody":
            trust += f" Without any trust: {_at_delta(row)}."
    answers = {
        "Privacy parameters": (
            "How strong is the guarantee?",
            f"E{_at_delta(loss)[1:]} against {loss['against']}; the best guess is right {loss['guess']}.",
        ),
        "Unit of privacy": ("What is hidden?", page["hidden"]),
        "Definition": (
            "Which kind of differential privacy?",
            f"{_definition(stated)}; epsilon is rounded upwards.",
        ),
        "Trust model": ("Who is trusted, and with what?", trust),
        "Query model": (
            "Who may ask what, and how often?",
            "Nobody asks: one run of a plan that is fixed and public beforehand.",
        ),
        "Composition": ("What is added up?", _composition(result, page)),
        "Mechanisms": ("Which noise is added where?", _mechanism(result)),
        "Implementation": (
            "Floating point, randomness, timing?",
            str(result.get("provenance", {}).get("noise") or _NOISE),
        ),
        "Utility": ("Is the answer of use?", _utility(result, page)),
        "Bias": (
            "Who pays for the noise?",
            f"Clipping and noise weigh most on small groups; compare scores by group. {MEMBERS}",
        ),
        "Data security": (
            "Who can reach the records?",
            f"Records stay with their member; what leaves is noisy rows. Storage and access: {MEMBERS}",
        ),
        "Data collection": ("What was read before?", _reads(page)),
    }
    return [
        {"topic": topic, "question": question, "answer": answer}
        for topic, (question, answer) in answers.items()
    ]


def _parts(result: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    page = result.get("summary_page")
    if not page or not page["stated"]:
        raise DataError(
            f"The result {result.get('name')!r} states no guarantee, so no registry could list it; give a "
            "plan, an agreement or a statement."
        )
    return page, page["stated"]


def _algorithm(result: Mapping[str, Any]) -> str:
    return str(result["config"].get("algorithm", result["name"]))


def _definition(stated: Mapping[str, Any]) -> str:
    kind = "Approximate" if stated["mu"] is None else "Gaussian"
    return f"{kind} differential privacy"


def _at_delta(loss: Mapping[str, Any]) -> str:
    return f"epsilon {fixed(loss['epsilon'], 'epsilon')} at delta {number(loss['delta'], 'delta')}"


def _composition(result: Mapping[str, Any], page: Mapping[str, Any]) -> str:
    steps = result["config"].get("steps") or 1
    releases = (
        "One release per member." if steps == 1 else f"{steps} steps, composed by their privacy curves."
    )
    ledger = any("lifetime" in row["what"] for row in page["budgets"])
    more = "A lifetime ledger adds up all runs on these records." if ledger else "Other runs are not counted."
    return f"{releases} {more}"


def _mechanism(result: Mapping[str, Any]) -> str:
    config = result["config"]
    multiplier, protocol = config.get("noise_multiplier"), config.get("protocol")
    clip_norm = config.get("clip_norm", config.get("radius"))
    parts = ["Gaussian noise at every member"]
    if isinstance(multiplier, (int, float)):  # what protects: rounded downwards
        parts.append(f"noise multiplier {significant(multiplier, 'noise')}")
    if isinstance(clip_norm, (int, float)):
        parts.append(f"contributions clipped to {clip_norm:g}")
    if protocol:
        parts.append(f"averaged over {protocol['name'] if isinstance(protocol, dict) else protocol}")
    return ", ".join(parts) + "."


def _reads(page: Mapping[str, Any]) -> str:
    uncharged = " ".join(map(wording.exception, page["uncharged"]))
    return uncharged or "Nothing was read of private records without being charged, as far as the plan says."


def _utility(result: Mapping[str, Any], page: Mapping[str, Any]) -> str:
    answer = page["answers"][1]
    if result["name"] == "statement":
        finished = "The run finished" if answer["answer"] == "yes" else "The run did not finish"
        return f"{finished}. Its accuracy was not measured."
    return f"{answer['answer'].capitalize()}. {answer['why']}"
