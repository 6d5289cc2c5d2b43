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
from sottovoce.advice.usefulness import Usefulness, usefulness
from sottovoce.algorithms.plan import Plan
from sottovoce.report.elements import CERTAIN, best_guess

if TYPE_CHECKING:
    from sottovoce.peers.agreed_run import AgreedRun

MATRIX = 24  # members up to which the matrix fits on a page
_STEPS = 64  # steps over which the shares of a long schedule are averaged
YES, NO, PART, UNKNOWN = "yes", "no", "only in part", "unknown"
_TONE = {YES: "good", NO: "bad", PART: "bad", UNKNOWN: "open"}
_VIEWS = ("local", "outsider", "colluders", "network", "pairwise", "central")
Lifetime = Sequence[Mapping[str, Any]]


def of_plan(
    plan: Plan,
    *,
    title: str = "",
    names: Sequence[str] | None = None,
    delta: float = 1e-5,
    limit: float | None = None,
    adversary: Mapping[str, Any] | None = None,
    accepted: Iterable[str] = (),
    lifetime: Lifetime = (),
    local: Guarantee | None = None,
    use: Usefulness | None = None,
) -> dict[str, Any]:
    """Return the summary page of a plan that has not run yet.

    Parameters
    ----------
    title : its purpose, in one line.
    names : of the members.
    delta, limit, adversary : the budget: epsilon ``limit`` at ``delta``, against this adversary.
    accepted : what is read of private records and not charged, by name.
    lifetime : rows of `LifetimeLedger.forecast`, where this is about one member.
    local, use : the local guarantee and the usefulness of the plan, where they are known already.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = sv.PrivateAveraging("exchange", network="hypercube:3", noise_std=2.0, radius=0.5)
    >>> page = of_plan(plan, title="Waiting times", limit=2.5)
    >>> [(one["question"], one["answer"]) for one in page["answers"]], page["guess"]
    ([('Private?', 'yes'), ('Useful?', 'no')], 'from 50 to 60 in 100')
    """
    view, uncharged = dict(adversary or {}), list(accepted)
    stated = plan.privacy(**view)
    if stated.adversary.kind in ("local", "central"):
        local = stated
    elif local is None:
        local = plan.privacy("local")
    use = usefulness(plan) if use is None else use
    labels = [f"member {v}" for v in range(plan.n)] if names is None else [str(name) for name in names]
    shares, steps = _shares(plan)
    epsilon = stated.epsilon(delta)
    budget = [] if limit is None else [_budget("this plan", limit, delta, None, epsilon, epsilon)]
    return _page(
        "plan",
        title or plan.name,
        [
            _answer("Private?", *_private(stated, delta, limit, uncharged)),
            _answer("Useful?", use.verdict, _sentence(use.sentence.split("; give sample")[0])),
        ],
        {"plan": _digest(plan.describe())},
        members=[{"name": name} for name in labels[:200]],
        **_scope(stated, names, uncharged, has_ledger=bool(lifetime)),
        losses=_losses(plan, shares, labels, view, delta, stated, local),
        matrix=_matrix(shares, labels, steps),
        budgets=_lifetime_budgets(lifetime) or budget,
    )


def of_agreement(
    agreed_run: AgreedRun, *, lifetime: Lifetime = (), local: Guarantee | None = None
) -> dict[str, Any]:
    """Return the summary page of an agreement: members, plan, privacy cost and signatures."""
    from sottovoce.peers.signing import signed_by

    agreement = agreed_run.agreement
    page = of_plan(
        agreement.plan,
        title=agreement.title,
        names=[member.name for member in agreement.members],
        delta=agreement.budget.delta,
        limit=agreement.budget.epsilon,
        adversary=agreed_run.charged_view,
        lifetime=lifetime,
        local=local,
    )
    signed = signed_by(agreement)
    members = [
        {"name": m.name, "address": m.address, "fingerprint": m.fingerprint, "signed": m.name in signed}
        for m in agreement.members
    ]
    missing = [str(member["name"]) for member in members if not member["signed"]]
    why = "By every member." if not missing else f"Not by {', '.join(missing)}."
    page["answers"].append(_answer("Signed?", NO if missing else YES, why))
    del page["marks"]["plan"]
    marks = {"run": agreement.run.hex()} | page["marks"]
    return page | {"kind": "agreement", "members": members, "marks": marks}


def of_statement(
    statement: Mapping[str, Any], *, ledger: Mapping[str, Any] | None = None, lifetime: Lifetime = ()
) -> dict[str, Any]:
    """Return the summary page of a member's statement after its run.

    Parameters
    ----------
    statement : the content of ``statement.json``.
    ledger : the status of the ledger of the run, if there is one.
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
    accepted = list(statement.get("accepted") or ())
    simulated = _is_simulated(statement)
    others = [("against everybody", statement.get("ldp")), ("against one member", statement.get("network"))]
    rows = [("charged", stated)]
    rows += [(who, one) for who, one in others if one and one["adversary"] != stated["adversary"]]
    losses = [
        _loss(
            who,
            member,
            one["adversary"],
            float(one["epsilon"]),
            delta,
            _stored_guess(one, delta),
            one["label"],
        )
        for who, one in rows
    ]
    guess = _stored_guess(stated, delta)
    private = _judged(stated["label"], epsilon, delta, limit, guess, accepted, simulated, stated["adversary"])
    left_out = len(statement.get("left_out") or ())
    how = f"{statement['rounds']} of {statement['of']} rounds were done"
    how += f"; {left_out} exchanges were left out." if left_out else "."
    answers = [
        _answer("Private?", *private),
        _answer("Finished?", YES if statement["finished"] else NO, how),
    ]
    spent = _budget("this agreement", limit, float(budget["delta"]), None, epsilon, epsilon)
    head = {} if ledger is None else {"head of the ledger": ledger["ledger_head"]}
    return _page(
        "statement",
        (ledger or {}).get("title") or str(statement["algorithm"]),
        answers,
        head | {"run": str(statement["run"])},
        members=[{"name": member}],
        hidden=_sentence(wording.adjacency(stated["adjacency"], noun="member")),
        against=_sentence(stated["adversary"]),
        guess=wording.guess(guess),
        losses=losses,
        not_covered=wording.not_covered(
            stated["view"],
            stated["adjacency"],
            count=stated.get("count"),
            accepted=accepted,
            assumptions=stated["assumptions"],
            simulated=simulated,
            has_ledger=bool(lifetime),
        ),
        uncharged=accepted,
        incidents=[str(line) for line in statement.get("incidents") or ()],
        stated={"mu": None} | {key: stated.get(key) for key in ("adjacency", "label", "mu", "assumptions")},
        budgets=_lifetime_budgets(lifetime) or [spent],
    )


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
    config, metrics, provenance = result["config"], result["metrics"], result["provenance"]
    stored.sort(key=lambda g: _VIEWS.index(g["adversary"]["kind"]))
    chosen = next((g for g in stored if g["adversary"]["kind"] != "local"), stored[0])
    names, delta = config.get("labels"), float(chosen.get("delta") or 1e-5)
    stated, simulated = Guarantee.from_dict(chosen), _is_simulated(provenance)
    accepted = list(dict.fromkeys(name for g in stored for name in g.get("accepted", ())))
    scores = ("test_accuracy", "accuracy", "mean_squared_error")
    score = next((key for key in scores if key in metrics), None)
    why = "The result holds no score."
    if score is not None:
        why = f"It ended with {score.replace('_', ' ')} {metrics[score]:.3f}."
    answers = [
        _answer("Private?", *_private(stated, delta, None, accepted, simulated)),
        _answer("Useful?", UNKNOWN, why),
    ]
    title = config.get("title") or metrics.get("title") or result["name"].replace("-", " ").capitalize()
    shown = [Guarantee.from_dict(g) for g in stored[:6]]
    page = _page(
        "result",
        str(title),
        answers,
        {"result": _digest({key: value for key, value in result.items() if key != "summary_page"})},
        members=[{"name": str(name)} for name in names or ()][:200],
        **_scope(stated, names, accepted, simulated=simulated),
        losses=[_loss_of(_adversary(each, names), "", each, delta, names) for each in shown],
    )
    page["marks"]["version"] = str(provenance.get("version", __version__))
    return page


def of_reconstruction(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary page of an attack: whose values somebody computes.

    Examples
    --------
    >>> of_reconstruction({"graph": "path:3", "n": 3, "protocol": "gossip", "rounds": 2, "attackers": [0],
    ...                    "reconstructed": [1, 2], "names": ["1", "2"]})["answers"][0]["answer"]
    'no'
    """
    attackers, known = facts["attackers"], len(facts["reconstructed"])
    who, many = ", ".join(map(str, attackers)), len(attackers) > 1
    computes = f"Nodes {who} compute" if many else f"Node {who} computes"
    others = f"{known} of {int(facts['n']) - len(attackers)} others"
    why = f"{computes} the value of {others} after {facts['rounds']} rounds of {facts['protocol']}."
    answer = _answer("Hidden without noise?", NO if known else YES, why)
    names = ", ".join(str(name) for name in facts.get("names", ()))
    return _page(
        "attack",
        f"Attack on {facts['graph']}",
        [answer],
        {"result": _digest(facts)},
        not_covered=[f"Without noise: {names}."] if names else [],
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
    broken = {name: a["label"] for name, a in facts["audits"].items() if a["refuted"]}
    ours = [name for name, label in broken.items() if label in ("ldp", "exact")]
    printed = [name for name in broken if name not in ours]
    views, confidence = len(facts["audits"]), 100 * facts["confidence"]
    sure = f"{facts['runs']:,} runs per view, {views} views, confidence {confidence:g} %"
    why = f"No guarantee was broken ({sure})." if not ours else f"Broken: {', '.join(ours)} ({sure})."
    answers = [_answer("Did the guarantees hold?", NO if ours else YES, why)]
    if printed:
        why = f"The published formula, which is not a guarantee, was broken: {', '.join(printed)}."
        answers.append(_answer("Did the published formula hold?", NO, why))
    return _page(
        "audit",
        f"Audit of {facts.get('graph') or 'private averaging'}",
        answers,
        {"result": _digest(facts)},
        not_covered=["What no test was tried for: an audit can refute a claim, and cannot prove one."],
    )


# ---- parts ------------------------------------------------------------------------------------------------


def _page(
    kind: str, purpose: str, answers: list[dict[str, str]], marks: Mapping[str, str], **parts: object
) -> dict[str, Any]:
    """Return a page with these parts; the others are empty."""
    empty = dict.fromkeys(("members", "losses", "not_covered", "uncharged", "incidents", "budgets"), ())
    words = dict.fromkeys(("hidden", "against", "guess"), "")
    today = {"date": datetime.now(UTC).date().isoformat(), "version": __version__}
    head = {"kind": kind, "purpose": purpose, "answers": answers, "marks": {**marks, **today}}
    page: dict[str, Any] = plain({**head, **empty, **words, "matrix": None, "stated": None, **parts})
    return page


def _answer(question: str, answer: str, why: str) -> dict[str, str]:
    return {"question": question, "answer": answer, "tone": _TONE[answer], "why": why}


def _scope(
    stated: Guarantee,
    names: Sequence[str] | None,
    accepted: Sequence[str],
    *,
    simulated: bool = False,
    has_ledger: bool = False,
) -> dict[str, Any]:
    """Return what a guarantee hides from whom, and what it does not cover."""
    view = stated.adversary
    return {
        "hidden": _sentence(wording.adjacency(stated.adjacency, noun="member")),
        "against": _sentence(_adversary(stated, names)),
        "guess": wording.guess(stated.best_guess),
        "not_covered": wording.not_covered(
            view.kind,
            stated.adjacency,
            count=view.count,
            accepted=accepted,
            assumptions=stated.assumptions,
            simulated=simulated,
            has_ledger=has_ledger,
        ),
        "uncharged": list(accepted),
        "stated": {
            "adjacency": stated.adjacency,
            "label": stated.label,
            "mu": stated.mu if stated.curve.is_gaussian else None,
            "assumptions": list(stated.assumptions),
        },
    }


def _private(
    stated: Guarantee, delta: float, limit: float | None, accepted: Sequence[str], simulated: bool = False
) -> tuple[str, str]:
    epsilon, guess, against = stated.epsilon(delta), stated.best_guess, _adversary(stated, None)
    return _judged(stated.label, epsilon, delta, limit, guess, accepted, simulated, against)


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


def _is_simulated(about: Mapping[str, Any]) -> bool:
    return "not protective" in str(about.get("noise", ""))


def _adversary(stated: Guarantee, names: Sequence[str] | None) -> str:
    labels = None if names is None else list(names)
    return wording.stored_adversary(stated.adversary.to_dict(), labels, "member")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _stored_guess(stated: Mapping[str, Any], delta: float) -> float:
    stored = stated.get("best_guess")
    guess = best_guess(float(stated["epsilon"]), delta) if stored is None else float(stored)
    assert guess is not None
    return guess


def _loss(
    who: str, name: str, against: str, epsilon: float, delta: float, guess: float, label: str
) -> dict[str, Any]:
    words = {"who": who, "name": name, "against": against, "guess": wording.guess(guess), "label": label}
    return {**words, "epsilon": epsilon, "delta": delta}


def _loss_of(
    who: str, name: str, stated: Guarantee, delta: float, names: Sequence[str] | None
) -> dict[str, Any]:
    epsilon, guess = stated.epsilon(delta), stated.best_guess
    return _loss(who, name, _adversary(stated, names), epsilon, delta, guess, stated.label)


def _losses(
    plan: Plan,
    shares: np.ndarray | None,
    names: Sequence[str],
    view: Mapping[str, Any],
    delta: float,
    stated: Guarantee,
    local: Guarantee,
) -> list[dict[str, Any]]:
    """Return what the worst and a typical member lose, and what everybody loses whatever the others do."""
    rows = []
    if shares is not None and not {"user", "observer"} & set(view) and plan.n > 1:
        order = np.argsort(np.where(np.eye(plan.n, dtype=bool), -1.0, shares).max(axis=1), kind="stable")
        for who, u in (("worst member", int(order[-1])), ("typical member", int(order[(plan.n - 1) // 2]))):
            try:
                rows.append(_loss_of(who, names[u], plan.privacy(**view, user=u), delta, names))
            except ValueError:  # a view that is of no one user
                break
    if not rows:
        rows = [_loss_of("worst member", "any", stated, delta, names)]
    if local is not stated:
        rows.append(_loss_of("against everybody", "any", local, delta, names))
    return rows


def _shares(plan: Plan) -> tuple[np.ndarray | None, int]:
    """Return (n, n) the share of one step's local privacy, ``[user, observer]``, and over how many steps."""
    if not plan.observation.exact_pairs or not 1 < plan.n <= 4 * MATRIX:
        return None, 0
    steps = min(plan.steps, _STEPS)
    protocols = [plan.schedule(k) for k in range(steps)]
    distinct = {id(protocol): protocol for protocol in protocols}
    leakage = {
        key: np.array([protocol.view({v}).leakage() for v in range(plan.n)]).T
        for key, protocol in distinct.items()
    }
    total = np.zeros((plan.n, plan.n))
    for protocol in protocols:
        total += leakage[id(protocol)]
    return total / steps, steps


def _matrix(shares: np.ndarray | None, names: Sequence[str], steps: int) -> dict[str, Any] | None:
    if shares is None or len(shares) > MATRIX:
        return None
    over = "" if steps == 1 else f", mean of {steps} steps"
    what = (
        "Row: whose data. Column: who looks. 0: learns nothing. 1: sees that member's noisy numbers in full"
    )
    values = [[None if u == v else float(x) for v, x in enumerate(row)] for u, row in enumerate(shares)]
    return {"names": list(names), "values": values, "what": f"{what}{over}."}


def _lifetime_budgets(lifetime: Lifetime) -> list[dict[str, Any]]:
    rows = []
    for row in lifetime:
        what = f"lifetime, {row['adjacency']}, {row['view']}"
        sums = row["spent"], row["adds"], row["total"]
        rows.append(_budget(what, row["epsilon"], row["delta"], *sums))
    return rows


def _budget(
    what: str, limit: float, delta: float, spent: float | None, adds: float, total: float
) -> dict[str, Any]:
    sums = {"spent": spent, "adds": adds, "total": total, "left": round(max(0.0, limit - total), 9)}
    return {"what": what, "limit": limit, "delta": delta, **sums}


def _digest(value: object) -> str:
    text = json.dumps(plain(value), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
