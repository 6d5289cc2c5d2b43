"""The summary page that a privacy officer signs: a plan, an agreement or a statement in plain values.

A summary page is part of a result; the HTML page shows what is in it and nothing else. Costs come from the
accountant, sentences from `sottovoce.accounting.wording`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from sottovoce import __version__
from sottovoce._io import plain
from sottovoce.accounting import wording
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.advice.usefulness import usefulness
from sottovoce.report.elements import CERTAIN, best_guess

if TYPE_CHECKING:
    from sottovoce.peers.agreed_run import AgreedRun

__all__ = ["of_agreement", "of_audit", "of_plan", "of_reconstruction", "of_result", "of_statement"]

MATRIX = 24  # members up to which the matrix fits on a page
_STEPS = 64  # steps over which the shares of a long schedule are averaged
YES, NO, PART, UNKNOWN = "yes", "no", "only in part", "unknown"
_TONE = {YES: "good", NO: "bad", PART: "bad", UNKNOWN: "open"}


def of_plan(
    plan: Any,
    *,
    title: str = "",
    names: Sequence[str] | None = None,
    delta: float = 1e-5,
    limit: float | None = None,
    who: Mapping[str, Any] | None = None,
    accepted: Iterable[str] = (),
    lifetime: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the summary page of a plan that has not run yet.

    Parameters
    ----------
    plan : any plan.
    title : its purpose, in one line.
    names : of the members.
    delta, limit, who : the budget: epsilon ``limit`` at ``delta``, against the view that ``who`` names.
    accepted : what is read of private records and not charged, by name.
    lifetime : rows of `LifetimeLedger.forecast`, where this is about one member.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = sv.PrivateAveraging("exchange", network="hypercube:3", noise_std=2.0, radius=0.5)
    >>> page = of_plan(plan, title="Waiting times", limit=2.5)
    >>> [(one["question"], one["answer"]) for one in page["answers"]], page["guess"]
    ([('Private?', 'yes'), ('Useful?', 'no')], 'from 50 to 60 in 100')
    """
    adversary, uncharged = dict(who or {}), list(accepted)
    stated = plan.privacy(**adversary)
    local = stated if stated.adversary.kind in ("local", "central") else plan.privacy("local")
    useful = usefulness(plan)
    called = _names(names, plan.n)
    answers = [
        _answer("Private?", *_private(stated, delta, limit, uncharged)),
        _answer("Useful?", useful.verdict, _sentence(useful.sentence.split("; give sample")[0])),
    ]
    page = _begin("plan", title or plan.name, answers)
    shares, over = _shares(plan)
    page |= {
        "members": [{"name": name} for name in called[:200]],
        "hidden": _sentence(wording.adjacency(plan.adjacency, noun="member")),
        "against": _sentence(_adversary_words(stated, names)),
        "guess": wording.guess(stated.best_guess),
        "losses": _losses(plan, shares, called, adversary, delta, stated, local),
        "matrix": _matrix(shares, called, over),
        "not_covered": wording.not_covered(
            stated.adversary.kind, plan.adjacency, count=stated.adversary.count, accepted=uncharged,
            assumptions=stated.assumptions, has_ledger=bool(lifetime),
        ),
        "uncharged": uncharged,
    }  # fmt: skip
    page["stated"] = _stated(stated)
    page["budgets"] = _lifetime_budgets(lifetime) or _one_budget(stated, delta, limit)
    page["marks"] |= {"plan": _digest(plan.describe())}
    return _plain(page)


def of_agreement(agreed_run: AgreedRun, *, lifetime: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the summary page of an agreement: members, plan, privacy cost and signatures."""
    from sottovoce.peers.signing import signed_by

    agreement = agreed_run.agreement
    page = of_plan(
        agreement.plan, title=agreement.title, names=[member.name for member in agreement.members],
        delta=agreement.budget.delta, limit=agreement.budget.epsilon, who=agreed_run.charged_view,
        lifetime=lifetime,
    )  # fmt: skip
    signed = signed_by(agreement)
    missing = [member.name for member in agreement.members if member.name not in signed]
    page["kind"] = "agreement"
    page["members"] = [
        {
            "name": member.name, "address": member.address, "fingerprint": member.fingerprint,
            "signed": member.name in signed,
        }
        for member in agreement.members
    ]  # fmt: skip
    why = "By every member." if not missing else f"Not by {', '.join(missing)}."
    page["answers"].append(_answer("Signed?", NO if missing else YES, why))
    page["marks"] = {"run": agreement.run.hex()} | page["marks"]
    page["marks"].pop("plan", None)
    return _plain(page)


def of_statement(
    statement: Mapping[str, Any],
    *,
    ledger: Mapping[str, Any] | None = None,
    lifetime: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the summary page of a member's statement after its run.

    Parameters
    ----------
    statement : the content of ``statement.json``.
    ledger : the status of the ledger of the run (`peers.status.read_status`), if there is one.
    lifetime : rows of the lifetime ledger, before and after this run.

    Examples
    --------
    >>> statement = {"run": "ab", "member": "north", "finished": True, "rounds": 3, "of": 3,
    ...              "algorithm": "averaging", "protocol": "tree", "noise": "protective",
    ...              "budget": {"epsilon": 2.0, "delta": 1e-5},
    ...              "guarantee": {"view": "local", "adversary": "anyone who sees every message",
    ...                            "label": "ldp", "adjacency": "user", "epsilon": 1.0, "delta": 1e-5,
    ...                            "assumptions": []}}
    >>> [one["answer"] for one in of_statement(statement)["answers"]]
    ['yes', 'yes']
    """
    stated, budget, member = statement["guarantee"], statement["budget"], statement["member"]
    epsilon, delta, limit = float(stated["epsilon"]), float(stated["delta"]), float(budget["epsilon"])
    guess = _stored_guess(stated, delta)
    accepted = list(statement.get("accepted") or ())
    simulated = "not protective" in str(statement.get("noise", ""))
    answer, why = _judged(
        stated["label"], epsilon, delta, limit, guess, accepted, simulated, stated["adversary"]
    )
    left_out = list(statement.get("left_out") or ())
    how = f"{statement['rounds']} of {statement['of']} rounds were done" + (
        f"; {len(left_out)} exchanges were left out." if left_out else "."
    )
    finished = YES if statement["finished"] else NO
    answers = [_answer("Private?", answer, why), _answer("Finished?", finished, how)]
    page = _begin("statement", (ledger or {}).get("title") or str(statement["algorithm"]), answers)
    losses = [_stored_loss("charged", member, stated, delta)]
    for key, who in (("ldp", "against everybody"), ("network", "against one member")):
        other = statement.get(key)
        if other and other["adversary"] != stated["adversary"]:
            losses.append(_stored_loss(who, member, other, delta))
    page |= {
        "members": [{"name": member}],
        "hidden": _sentence(wording.adjacency(stated["adjacency"], noun="member")),
        "against": _sentence(stated["adversary"]),
        "guess": wording.guess(guess),
        "losses": losses,
        "not_covered": wording.not_covered(
            stated["view"], stated["adjacency"], count=stated.get("count"), accepted=accepted,
            assumptions=stated["assumptions"], simulated=simulated, has_ledger=bool(lifetime),
        ),
        "uncharged": accepted,
        "incidents": [str(line) for line in statement.get("incidents") or ()],
        "stated": {
            "adjacency": stated["adjacency"], "label": stated["label"], "mu": stated.get("mu"),
            "assumptions": list(stated["assumptions"]),
        },
        "budgets": _lifetime_budgets(lifetime)
        or [_budget("this agreement", limit, float(budget["delta"]), None, epsilon, epsilon)],
    }  # fmt: skip
    page["marks"] = {"run": str(statement["run"])} | page["marks"]
    if ledger is not None:
        page["marks"] = {"head of the ledger": ledger["ledger_head"], **page["marks"]}
    return _plain(page)


def of_result(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the summary page of a result; None if it states no guarantee.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> plan = sv.PrivateAveraging(sv.protocols.HypercubeExchange(4), noise_std=4.0, radius=1.0)
    >>> page = of_result(plan.run(np.zeros(4), np.random.default_rng(0)).to_dict())
    >>> page["answers"][0]["answer"]  # a simulation protects nobody
    'no'
    """
    stored = [g for g in result.get("guarantees", ()) if "curve" in g]
    if not stored:
        return None
    order = ("local", "outsider", "colluders", "network", "pairwise", "central")
    stored = sorted(stored, key=lambda g: order.index(g["adversary"]["kind"]))
    chosen = next((g for g in stored if g["adversary"]["kind"] != "local"), stored[0])
    names = result["config"].get("labels")
    whole = Guarantee.from_dict(chosen)
    delta = float(chosen.get("delta") or 1e-5)
    simulated = "not protective" in str(result["provenance"].get("noise", ""))
    accepted = list(dict.fromkeys(name for g in stored for name in g.get("accepted", ())))
    answer, why = _private(whole, delta, None, accepted, simulated)
    score = next(
        (k for k in ("test_accuracy", "accuracy", "mean_squared_error") if k in result["metrics"]), None
    )
    score_text = f"It ended with {score.replace('_', ' ')} {result['metrics'][score]:.3f}." if score else ""
    answers = [_answer("Private?", answer, why)]
    answers.append(_answer("Useful?", UNKNOWN, score_text or "The result holds no score."))
    title = str(result["config"].get("title") or result["metrics"].get("title") or result["name"])
    page = _begin(
        "result", title.replace("-", " ").capitalize() if title == result["name"] else title, answers
    )
    page |= {
        "members": [{"name": str(name)} for name in names or ()][:200],
        "hidden": _sentence(wording.adjacency(whole.adjacency, noun="member")),
        "against": _sentence(_adversary_words(whole, names)),
        "guess": wording.guess(whole.best_guess),
        "losses": [
            _loss(_adversary_words(Guarantee.from_dict(g), names), "", Guarantee.from_dict(g), delta, names)
            for g in stored[:6]
        ],
        "matrix": None,
        "not_covered": wording.not_covered(
            whole.adversary.kind, whole.adjacency, count=whole.adversary.count, accepted=accepted,
            assumptions=whole.assumptions, simulated=simulated,
        ),
        "uncharged": accepted,
        "budgets": [],
        "stated": _stated(whole),
    }  # fmt: skip
    page["marks"] = {"result": _digest({k: v for k, v in result.items() if k != "summary_page"})} | page[
        "marks"
    ]
    page["marks"]["version"] = str(result["provenance"].get("version", __version__))
    return _plain(page)


def of_reconstruction(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary page of an attack: whose values somebody computes.

    Examples
    --------
    >>> of_reconstruction({"graph": "path:3", "n": 3, "protocol": "gossip", "rounds": 2, "attackers": [0],
    ...                    "reconstructed": [1, 2], "names": ["1", "2"]})["answers"][0]["answer"]
    'no'
    """
    known, others = len(facts["reconstructed"]), int(facts["n"]) - len(facts["attackers"])
    who = ", ".join(map(str, facts["attackers"]))
    many = len(facts["attackers"]) > 1
    computes = f"Node{'s' * many} {who} compute{'s' * (not many)} the value of {known} of {others} others"
    why = f"{computes} after {facts['rounds']} rounds of {facts['protocol']}."
    page = _begin(
        "attack", f"Attack on {facts['graph']}", [_answer("Hidden without noise?", NO if known else YES, why)]
    )
    computed = [str(name) for name in facts.get("names", ())]
    return _plain(
        page
        | {
            "not_covered": [f"Without noise: {', '.join(computed)}."] if computed else [],
            "marks": {"result": _digest(facts)} | page["marks"],
        }
    )


def of_audit(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary page of an audit: whether a claim was broken.

    Examples
    --------
    >>> audits = {"neighbor": {"label": "exact", "mu_claimed": 1.0, "mu_lower": 0.9, "refuted": False}}
    >>> facts = {"audits": audits, "runs": 1000, "confidence": 0.999, "graph": "ring:4"}
    >>> of_audit(facts)["answers"][0]["answer"]
    'yes'
    """
    broken = [(name, a) for name, a in facts["audits"].items() if a["refuted"]]
    ours = [name for name, a in broken if a["label"] in ("ldp", "exact")]
    printed = [name for name, a in broken if a["label"] not in ("ldp", "exact")]
    count = len(facts["audits"])
    sure = f"{facts['runs']:,} runs per view, {count} views, confidence {100 * facts['confidence']:g} %"
    why = f"No guarantee was broken ({sure})." if not ours else f"Broken: {', '.join(ours)} ({sure})."
    answers = [_answer("Did the guarantees hold?", NO if ours else YES, why)]
    if printed:
        why = f"The published formula, which is not a guarantee, was broken: {', '.join(printed)}."
        answers.append(_answer("Did the published formula hold?", NO, why))
    where = facts.get("graph") or "private averaging"
    page = _begin("audit", f"Audit of {where}", answers)
    page["not_covered"] = ["What no test was tried for: an audit can refute a claim, and cannot prove one."]
    page["marks"] = {"result": _digest(facts)} | page["marks"]
    return _plain(page)


# ---- parts ------------------------------------------------------------------------------------------------


def _stated(stated: Guarantee) -> dict[str, Any]:
    return {
        "adjacency": stated.adjacency, "label": stated.label,
        "mu": stated.mu if stated.curve.is_gaussian else None, "assumptions": list(stated.assumptions),
    }  # fmt: skip


def _begin(kind: str, purpose: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
    day = datetime.now(UTC).date().isoformat()
    return {
        "kind": kind, "purpose": purpose, "answers": answers, "members": [], "hidden": "", "against": "",
        "guess": "", "losses": [], "matrix": None, "not_covered": [], "uncharged": [], "incidents": [],
        "budgets": [], "stated": None, "marks": {"date": day, "version": __version__},
    }  # fmt: skip


def _answer(question: str, answer: str, why: str) -> dict[str, Any]:
    return {"question": question, "answer": answer, "tone": _TONE[answer], "why": why}


def _private(
    stated: Guarantee, delta: float, limit: float | None, accepted: Sequence[str], simulated: bool = False
) -> tuple[str, str]:
    epsilon = stated.epsilon(delta)
    return _judged(
        stated.label, epsilon, delta, limit, stated.best_guess, accepted, simulated,
        _adversary_words(stated, None),
    )  # fmt: skip


def _judged(
    label: str,
    epsilon: float,
    delta: float,
    limit: float | None,
    guess: float,
    accepted: Sequence[str],
    simulated: bool,
    against: str,
) -> tuple[str, str]:
    """Return whether something is private, and why or why not, in one sentence."""
    spent = f"epsilon {epsilon:.3f} at delta {delta:g} against {against}"
    if label not in ("ldp", "exact"):
        return NO, f"The number is {label}: {wording.label(label)}."
    if simulated:
        return (
            NO,
            f"It would spend {spent}, but the noise was drawn from a seed: a simulation protects nobody.",
        )
    if limit is not None and epsilon > limit:
        return NO, f"It spends {spent}, more than the budget of {limit:g}."
    if guess > CERTAIN:
        return NO, f"It spends {spent}: a true bound, but so weak that an observer may be all but certain."
    within = "; no budget was set." if limit is None else f", within the budget of {limit:g}."
    if accepted:
        return PART, f"It spends {spent}{within} Something else was read and not charged: see below."
    return YES, f"It spends {spent}{within}"


def _adversary_words(stated: Guarantee, names: Sequence[str] | None) -> str:
    return wording.stored_adversary(
        stated.adversary.to_dict(), None if names is None else list(names), "member"
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _loss(
    who: str, name: str, stated: Guarantee, delta: float, names: Sequence[str] | None
) -> dict[str, Any]:
    return {
        "who": who, "name": name, "against": _adversary_words(stated, names),
        "epsilon": stated.epsilon(delta),
        "delta": delta, "guess": wording.guess(stated.best_guess), "label": stated.label,
    }  # fmt: skip


def _stored_guess(stated: Mapping[str, Any], delta: float) -> float:
    stored = stated.get("best_guess")
    guess = best_guess(float(stated["epsilon"]), delta) if stored is None else float(stored)
    assert guess is not None
    return guess


def _stored_loss(who: str, member: str, stated: Mapping[str, Any], delta: float) -> dict[str, Any]:
    return {
        "who": who, "name": member, "against": stated["adversary"], "epsilon": float(stated["epsilon"]),
        "delta": delta, "guess": wording.guess(_stored_guess(stated, delta)), "label": stated["label"],
    }  # fmt: skip


def _losses(
    plan: Any,
    shares: np.ndarray | None,
    names: Sequence[str],
    adversary: Mapping[str, Any],
    delta: float,
    stated: Guarantee,
    local: Guarantee,
) -> list[dict[str, Any]]:
    """Return what the worst and a typical member lose, and what everybody loses whatever the others do."""
    rows = []
    if shares is not None and not {"user", "observer"} & set(adversary) and plan.n > 1:
        order = np.argsort(np.where(np.eye(plan.n, dtype=bool), -1.0, shares).max(axis=1), kind="stable")
        for who, u in (("worst member", int(order[-1])), ("typical member", int(order[(plan.n - 1) // 2]))):
            try:
                rows.append(_loss(who, names[u], plan.privacy(**adversary, user=u), delta, names))
            except ValueError:  # a view that is of no one user
                break
    if not rows:
        rows = [_loss("worst member", "any", stated, delta, names)]
    if local is not stated:
        rows.append(_loss("against everybody", "any", local, delta, names))
    return rows


def _shares(plan: Any) -> tuple[np.ndarray | None, int]:
    """Return (n, n) the share of one step's local privacy, ``[user, observer]``, and over how many steps."""
    if not plan.observation.exact_pairs or not 1 < plan.n <= 4 * MATRIX:
        return None, 0
    steps = min(plan.steps, _STEPS)
    total = np.zeros((plan.n, plan.n))
    leakage: dict[int, np.ndarray] = {}
    kept_alive = []  # ids of protocols that are gone may be used again
    for k in range(steps):
        protocol = plan.schedule(k)
        if id(protocol) not in leakage:
            kept_alive.append(protocol)
            leakage[id(protocol)] = np.array([protocol.view({v}).leakage() for v in range(plan.n)]).T
        total += leakage[id(protocol)]
    return total / steps, steps


def _matrix(shares: np.ndarray | None, names: Sequence[str], steps: int) -> dict[str, Any] | None:
    if shares is None or len(shares) > MATRIX:
        return None
    over = "" if steps == 1 else f", mean of {steps} steps"
    values = [[None if u == v else float(x) for v, x in enumerate(row)] for u, row in enumerate(shares)]
    return {
        "names": list(names),
        "values": values,
        "what": "Row: whose data. Column: who looks. 0: learns nothing. 1: sees that member's noisy numbers "
        f"in full{over}.",
    }


def _one_budget(stated: Guarantee, delta: float, limit: float | None) -> list[dict[str, Any]]:
    if limit is None:
        return []
    epsilon = stated.epsilon(delta)
    return [_budget("this plan", limit, delta, None, epsilon, epsilon)]


def _lifetime_budgets(lifetime: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        _budget(
            f"lifetime, {row['adjacency']}, {row['view']}", row["epsilon"], row["delta"], row["spent"],
            row["adds"], row["total"],
        )
        for row in lifetime
    ]  # fmt: skip


def _budget(
    what: str, limit: float, delta: float, spent: float | None, adds: float, total: float
) -> dict[str, Any]:
    left = round(max(0.0, limit - total), 9)
    return {
        "what": what, "limit": limit, "delta": delta, "spent": spent, "adds": adds, "total": total,
        "left": left,
    }  # fmt: skip


def _names(names: Sequence[str] | None, n: int) -> list[str]:
    return [f"member {v}" for v in range(n)] if names is None else [str(name) for name in names]


def _digest(value: Any) -> str:
    text = json.dumps(_plain(value), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    return plain(value)
