"""Page one, the page a privacy officer signs: what a plan, an agreement or a statement says, in plain values.

A front is part of a record: the page shows what is in it and nothing else. Prices come from the accountant,
sentences from `sottovoce.accounting.wording`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from sottovoce import __version__
from sottovoce._io import plain
from sottovoce.accounting import wording
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.advice.usefulness import usefulness
from sottovoce.report.elements import CERTAIN, best_guess

__all__ = ["of_agreement", "of_audit", "of_plan", "of_reconstruction", "of_record", "of_statement"]

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
    booked: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return page one of a plan: nothing has run yet.

    Parameters
    ----------
    plan : any plan.
    title : its purpose, in one line.
    names : of the members.
    delta, limit, who : the budget: epsilon ``limit`` at ``delta``, against the view that ``who`` names.
    accepted : what is read of private records and not charged, by name.
    booked : rows of a home's book (`LifetimeLedger.forecast`), where this is about one member.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = sv.PrivateAveraging("exchange", network="hypercube:3", noise_std=2.0, radius=0.5)
    >>> front = of_plan(plan, title="Waiting times", limit=2.5)
    >>> [(one["question"], one["answer"]) for one in front["answers"]], front["guess"]
    ([('Private?', 'yes'), ('Useful?', 'no')], 'from 50 to 60 in 100')
    """
    asked, uncharged = dict(who or {}), list(accepted)
    stated = plan.privacy(**asked)
    local = stated if stated.adversary.kind in ("local", "central") else plan.privacy("local")
    useful = usefulness(plan)
    called = _names(names, plan.n)
    answers = [
        _answer("Private?", *_private(stated, delta, limit, uncharged)),
        _answer("Useful?", useful.verdict, _sentence(useful.sentence.split("; give sample")[0])),
    ]
    front = _begin("plan", title or plan.name, answers)
    shares, over = _shares(plan)
    front |= {
        "members": [{"name": name} for name in called[:200]],
        "hidden": _sentence(wording.adjacency(plan.adjacency, noun="member")),
        "against": _adversary(stated, names),
        "guess": wording.guess(stated.best_guess),
        "losses": _losses(plan, shares, called, asked, delta, stated, local),
        "matrix": _matrix(shares, called, over),
        "not_covered": wording.not_covered(
            stated.adversary.kind, plan.adjacency, count=stated.adversary.count, accepted=uncharged,
            assumptions=stated.assumptions, has_ledger=bool(booked),
        ),
        "uncharged": uncharged,
    }  # fmt: skip
    front["stated"] = _stated(stated)
    front["budgets"] = _budgets(booked) or _one_budget(stated, delta, limit)
    front["marks"] |= {"plan": _digest(plan.describe())}
    return _plain(front)


def of_agreement(agreement: Any, *, booked: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return page one of an agreement: who, what, at which price, signed by whom.

    Examples
    --------
    >>> from sottovoce.peers.agreement import example_agreement, read_agreement
    >>> front = of_agreement(read_agreement(example_agreement()[0]))
    >>> front["kind"], [member["signed"] for member in front["members"]]
    ('agreement', [False, False])
    """
    from sottovoce.peers.agreed_run import AgreedRun
    from sottovoce.peers.identity import verify

    job = AgreedRun(agreement)
    charged = {"view": "local"} if not job.tolerate else {"view": "colluders", "colluders": job.tolerate}
    if job.tolerate == 1:
        charged = {"view": "network"}
    names = [member.name for member in agreement.members]
    front = of_plan(
        agreement.plan, title=agreement.title, names=names, delta=agreement.budget.delta,
        limit=agreement.budget.epsilon, who=charged, booked=booked,
    )  # fmt: skip

    def signed(member: Any) -> bool:
        try:
            raw = bytes.fromhex(agreement.signatures.get(member.name, ""))
        except ValueError:
            return False
        content = agreement.signed_content(member.name) if raw else b""
        return bool(raw) and verify(member.certificate.encode(), raw, content)

    front["kind"] = "agreement"
    front["members"] = [
        {
            "name": member.name, "address": member.address, "fingerprint": member.fingerprint,
            "signed": signed(member),
        }
        for member in agreement.members
    ]  # fmt: skip
    missing = [member["name"] for member in front["members"] if not member["signed"]]
    said = "By every member." if not missing else f"Not by {', '.join(missing)}."
    front["answers"].append(_answer("Signed?", NO if missing else YES, said))
    front["marks"] = {"run": agreement.run.hex()} | front["marks"]
    front["marks"].pop("plan", None)
    return _plain(front)


def of_statement(
    statement: Mapping[str, Any],
    *,
    about: Mapping[str, Any] | None = None,
    booked: Sequence[Mapping[str, Any]] = (),
    agreed: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return page one of what a member stated after its run.

    Parameters
    ----------
    statement : the content of ``statement.json``.
    about : what the ledger beside it says (`peers.status.read_status`), if it is there.
    booked : rows of the home's book, before and after this run.
    agreed : page one of the agreement of the same run, whose members and matrix are taken over.

    Examples
    --------
    >>> said = {"run": "ab", "member": "north", "finished": True, "rounds": 3, "of": 3,
    ...         "algorithm": "averaging", "protocol": "tree", "noise": "protective",
    ...         "budget": {"epsilon": 2.0, "delta": 1e-5},
    ...         "guarantee": {"view": "local", "adversary": "anyone who sees every message", "label": "ldp",
    ...                       "adjacency": "user", "epsilon": 1.0, "delta": 1e-5, "assumptions": []}}
    >>> [one["answer"] for one in of_statement(said)["answers"]]
    ['yes', 'yes']
    """
    stated, budget = statement["guarantee"], statement["budget"]
    epsilon, delta = float(stated["epsilon"]), float(stated["delta"])
    guess = stated.get("best_guess")
    guess = best_guess(epsilon, delta) if guess is None else float(guess)
    assert guess is not None
    reads = list(statement.get("accepted") or ())
    simulated = "not protective" in str(statement.get("noise", ""))
    answer, why = _judged(
        stated["label"], epsilon, delta, float(budget["epsilon"]), guess, reads, simulated,
        stated["adversary"],
    )  # fmt: skip
    done = bool(statement["finished"])
    left_out = list(statement.get("left_out") or ())
    how = f"{statement['rounds']} of {statement['of']} rounds were done" + (
        f"; {len(left_out)} exchanges were left out." if left_out else "."
    )
    answers = [_answer("Private?", answer, why), _answer("Finished?", YES if done else NO, how)]
    title = (about or {}).get("title") or (agreed or {}).get("purpose") or str(statement["algorithm"])
    front = _begin("statement", title, answers)
    members = (agreed or {}).get("members") or [{"name": statement["member"]}]
    lost = [
        {"who": "charged", "name": statement["member"], "against": stated["adversary"], "epsilon": epsilon,
         "delta": delta, "guess": wording.guess(guess), "label": stated["label"]}
    ]  # fmt: skip
    for key, said in (("ldp", "against everybody"), ("network", "against one member")):
        other = statement.get(key)
        if other and other["adversary"] != stated["adversary"]:
            found = other.get("best_guess")
            found = best_guess(float(other["epsilon"]), delta) if found is None else float(found)
            assert found is not None
            lost.append({"who": said, "name": statement["member"], "against": other["adversary"],
                         "epsilon": float(other["epsilon"]), "delta": delta, "guess": wording.guess(found),
                         "label": other["label"]})  # fmt: skip
    count = stated.get("count")
    front |= {
        "members": members,
        "hidden": _sentence(wording.adjacency(stated["adjacency"], noun="member")),
        "against": _sentence(stated["adversary"]),
        "guess": wording.guess(guess),
        "losses": lost,
        "matrix": (agreed or {}).get("matrix"),
        "not_covered": wording.not_covered(
            stated["view"], stated["adjacency"], count=count, accepted=reads,
            assumptions=stated["assumptions"], simulated=simulated, has_ledger=bool(booked),
        ),
        "uncharged": reads,
        "incidents": [str(line) for line in statement.get("incidents") or ()],
    }  # fmt: skip
    own = [{"what": "this agreement", "limit": float(budget["epsilon"]), "delta": float(budget["delta"]),
            "spent": None, "adds": epsilon, "total": epsilon,
            "left": _left(float(budget["epsilon"]), epsilon)}]  # fmt: skip
    front["stated"] = {
        "adjacency": stated["adjacency"], "label": stated["label"], "mu": stated.get("mu"),
        "assumptions": list(stated["assumptions"]),
    }  # fmt: skip
    front["budgets"] = _budgets(booked) or own
    front["marks"] = {"run": str(statement["run"])} | front["marks"]
    if about is not None:
        front["marks"] = {"head of the ledger": about["ledger_head"], **front["marks"]}
    return _plain(front)


def of_record(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return page one of a result record, from what is in it; None where it states no guarantee.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> plan = sv.PrivateAveraging(sv.protocols.HypercubeExchange(4), noise_std=4.0, radius=1.0)
    >>> front = of_record(plan.run(np.zeros(4), np.random.default_rng(0)).to_dict())
    >>> front["answers"][0]["answer"]  # a simulation protects nobody
    'no'
    """
    listed = [g for g in record.get("guarantees", ()) if "curve" in g]
    if not listed:
        return None
    order = ("local", "outsider", "colluders", "network", "pairwise", "central")
    listed = sorted(listed, key=lambda g: order.index(g["adversary"]["kind"]))
    chosen = next((g for g in listed if g["adversary"]["kind"] != "local"), listed[0])
    names = record["config"].get("labels")
    whole = Guarantee.from_dict(chosen)
    delta = float(chosen.get("delta") or 1e-5)
    simulated = "not protective" in str(record["provenance"].get("noise", ""))
    reads = list(dict.fromkeys(name for g in listed for name in g.get("accepted", ())))
    answer, why = _private(whole, delta, None, reads, simulated)
    score = next(
        (k for k in ("test_accuracy", "accuracy", "mean_squared_error") if k in record["metrics"]), None
    )
    told = f"It ended with {score.replace('_', ' ')} {record['metrics'][score]:.3f}." if score else ""
    answers = [_answer("Private?", answer, why)]
    answers.append(_answer("Useful?", UNKNOWN, told or "The record holds no score."))
    title = str(record["config"].get("title") or record["metrics"].get("title") or record["name"])
    front = _begin(
        "record", title.replace("-", " ").capitalize() if title == record["name"] else title, answers
    )
    front |= {
        "members": [{"name": str(name)} for name in names or ()][:200],
        "hidden": _sentence(wording.adjacency(whole.adjacency, noun="member")),
        "against": _adversary(whole, names),
        "guess": wording.guess(whole.best_guess),
        "losses": [
            _loss(_said(Guarantee.from_dict(g), names), "", Guarantee.from_dict(g), delta, names)
            for g in listed[:6]
        ],
        "matrix": None,
        "not_covered": wording.not_covered(
            whole.adversary.kind, whole.adjacency, count=whole.adversary.count, accepted=reads,
            assumptions=whole.assumptions, simulated=simulated,
        ),
        "uncharged": reads,
        "budgets": [],
        "stated": _stated(whole),
    }  # fmt: skip
    front["marks"] = {"record": _digest({k: v for k, v in record.items() if k != "front"})} | front["marks"]
    front["marks"]["version"] = str(record["provenance"].get("version", __version__))
    return _plain(front)


def of_reconstruction(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return page one of an attack: whose values somebody computes.

    Examples
    --------
    >>> of_reconstruction({"graph": "path:3", "n": 3, "protocol": "gossip", "rounds": 2, "attackers": [0],
    ...                    "reconstructed": [1, 2], "names": ["1", "2"]})["answers"][0]["answer"]
    'no'
    """
    known, others = len(found["reconstructed"]), int(found["n"]) - len(found["attackers"])
    who = ", ".join(map(str, found["attackers"]))
    many = len(found["attackers"]) > 1
    asked = f"Node{'s' * many} {who} compute{'s' * (not many)} the value of {known} of {others} others"
    why = f"{asked} after {found['rounds']} rounds of {found['protocol']}."
    front = _begin(
        "attack", f"Attack on {found['graph']}", [_answer("Hidden without noise?", NO if known else YES, why)]
    )
    computed = [str(name) for name in found.get("names", ())]
    return _plain(
        front
        | {
            "not_covered": [f"Without noise: {', '.join(computed)}."] if computed else [],
            "marks": {"record": _digest(found)} | front["marks"],
        }
    )


def of_audit(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return page one of an audit: whether a claim was broken.

    Examples
    --------
    >>> audits = {"neighbor": {"label": "exact", "mu_claimed": 1.0, "mu_lower": 0.9, "refuted": False}}
    >>> found = {"audits": audits, "runs": 1000, "confidence": 0.999, "graph": "ring:4"}
    >>> of_audit(found)["answers"][0]["answer"]
    'yes'
    """
    broken = [(name, a) for name, a in found["audits"].items() if a["refuted"]]
    ours = [name for name, a in broken if a["label"] in ("ldp", "exact")]
    printed = [name for name, a in broken if a["label"] not in ("ldp", "exact")]
    count = len(found["audits"])
    sure = f"{found['runs']:,} runs per view, {count} views, confidence {100 * found['confidence']:g} %"
    said = f"No guarantee was broken ({sure})." if not ours else f"Broken: {', '.join(ours)} ({sure})."
    answers = [_answer("Did the guarantees hold?", NO if ours else YES, said)]
    if printed:
        why = f"The published formula, which is not a guarantee, was broken: {', '.join(printed)}."
        answers.append(_answer("Did the published formula hold?", NO, why))
    where = found.get("graph") or "private averaging"
    front = _begin("audit", f"Audit of {where}", answers)
    front["not_covered"] = ["What no test was tried for: an audit can refute a claim, and cannot prove one."]
    front["marks"] = {"record": _digest(found)} | front["marks"]
    return _plain(front)


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
        _said(stated, None),
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
        return NO, f"The price is {spent}, but the noise was drawn from a seed: a simulation protects nobody."
    if limit is not None and epsilon > limit:
        return NO, f"It spends {spent}, more than the budget of {limit:g}."
    if guess > CERTAIN:
        return NO, f"It spends {spent}: true, and so weak that an observer may be all but certain."
    within = "; no budget was set." if limit is None else f", within the budget of {limit:g}."
    if accepted:
        return PART, f"It spends {spent}{within} Something else was read and not charged: see below."
    return YES, f"It spends {spent}{within}"


def _said(stated: Guarantee, names: Sequence[str] | None) -> str:
    return wording.stored_adversary(
        stated.adversary.to_dict(), None if names is None else list(names), "member"
    )


def _adversary(stated: Guarantee, names: Sequence[str] | None) -> str:
    return _sentence(_said(stated, names))


def _sentence(text: str) -> str:
    said = text[:1].upper() + text[1:]
    return said if said.endswith(".") else said + "."


def _loss(
    who: str, name: str, stated: Guarantee, delta: float, names: Sequence[str] | None
) -> dict[str, Any]:
    return {
        "who": who, "name": name, "against": _said(stated, names), "epsilon": stated.epsilon(delta),
        "delta": delta, "guess": wording.guess(stated.best_guess), "label": stated.label,
    }  # fmt: skip


def _losses(
    plan: Any,
    shares: np.ndarray | None,
    names: Sequence[str],
    asked: Mapping[str, Any],
    delta: float,
    stated: Guarantee,
    local: Guarantee,
) -> list[dict[str, Any]]:
    """Return what the worst and a typical member lose, and what everybody loses whatever the others do."""
    found = []
    if shares is not None and not {"user", "observer"} & set(asked) and plan.n > 1:
        order = np.argsort(np.where(np.eye(plan.n, dtype=bool), -1.0, shares).max(axis=1), kind="stable")
        for who, u in (("worst member", int(order[-1])), ("typical member", int(order[(plan.n - 1) // 2]))):
            try:
                found.append(_loss(who, names[u], plan.privacy(**asked, user=u), delta, names))
            except ValueError:  # a view that is of no one user
                break
    if not found:
        found = [_loss("worst member", "any", stated, delta, names)]
    if local is not stated:
        found.append(_loss("against everybody", "any", local, delta, names))
    return found


def _shares(plan: Any) -> tuple[np.ndarray | None, int]:
    """Return (n, n) the share of one step's local privacy, ``[user, observer]``, and over how many steps."""
    if not plan.observation.exact_pairs or not 1 < plan.n <= 4 * MATRIX:
        return None, 0
    steps = min(plan.steps, _STEPS)
    total = np.zeros((plan.n, plan.n))
    known: dict[int, np.ndarray] = {}
    held = []
    for k in range(steps):
        protocol = plan.schedule(k)
        if id(protocol) not in known:
            held.append(protocol)
            known[id(protocol)] = np.array([protocol.view({v}).leakage() for v in range(plan.n)]).T
        total += known[id(protocol)]
    return total / steps, steps


def _matrix(shares: np.ndarray | None, names: Sequence[str], steps: int) -> dict[str, Any] | None:
    if shares is None or len(shares) > MATRIX:
        return None
    over = "" if steps == 1 else f", mean of {steps} steps"
    values = [[None if u == v else float(x) for v, x in enumerate(row)] for u, row in enumerate(shares)]
    return {"names": list(names), "values": values, "what": f"Share of local privacy that is lost{over}."}


def _one_budget(stated: Guarantee, delta: float, limit: float | None) -> list[dict[str, Any]]:
    if limit is None:
        return []
    spent = stated.epsilon(delta)
    return [{"what": "this plan", "limit": limit, "delta": delta, "spent": None, "adds": spent,
             "total": spent, "left": _left(limit, spent)}]  # fmt: skip


def _budgets(booked: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "what": f"lifetime, {row['adjacency']}, {row['view']}", "limit": row["epsilon"],
            "delta": row["delta"], "spent": row["spent"], "adds": row["adds"], "total": row["total"],
            "left": _left(row["epsilon"], row["total"]),
        }
        for row in booked
    ]  # fmt: skip


def _left(limit: float, total: float) -> float:
    return round(max(0.0, limit - total), 9)


def _names(names: Sequence[str] | None, n: int) -> list[str]:
    return [f"member {v}" for v in range(n)] if names is None else [str(name) for name in names]


def _digest(value: Any) -> str:
    text = json.dumps(_plain(value), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    return plain(value)
