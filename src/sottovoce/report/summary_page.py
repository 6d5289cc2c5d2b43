"""The summary page that a privacy officer signs: a plan, an agreement or a statement in plain values.

A summary page is part of a result; the HTML page shows what is in it and nothing else. Costs come from the
accountant, sentences from `sottovoce.accounting.wording`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from sottovoce import __version__
from sottovoce._format import percent
from sottovoce._io import to_jsonable
from sottovoce.accounting import wording
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.observation.coalitions import pair_shares
from sottovoce.accounting.release import ReleaseKind, count_by_kind
from sottovoce.accounting.wording import NO, PART, UNKNOWN, YES
from sottovoce.advice.usefulness import usefulness
from sottovoce.algorithms.plan import Plan
from sottovoce.algorithms.registry import algorithm
from sottovoce.errors import ConfigError
from sottovoce.objectives.trivial import comparison
from sottovoce.report.rendering import environment
from sottovoce.report.sections import guarantee_row

if TYPE_CHECKING:
    from sottovoce.peers.agreed_run import AgreedRun

MATRIX = 24  # members up to which the matrix fits on a page
_STEPS = 64  # steps over which the shares of a long schedule are averaged
_TRIED = 3  # members that the accountant is asked about to name the worst
_TONE = {YES: "good", NO: "bad", PART: "bad", UNKNOWN: "open"}
_USEFUL = {True: YES, False: NO, None: UNKNOWN}
_VIEWS = ("local", "outsider", "colluders", "network", "pairwise", "central")
_DISTRIBUTION = {"gaussian": "Gaussian", "laplace": "Laplace", "noisy-max": "Laplace"}
_STATED = ("view", "adjacency", "label", "mu", "assumptions")
Lifetime = Sequence[Mapping[str, Any]]


def of_plan(
    plan: Plan,
    *,
    title: str = "",
    names: Sequence[object] | None = None,
    delta: float = 1e-5,
    limit: float | None = None,
    adversary: Mapping[str, Any] | None = None,
    accepted: Iterable[str] = (),
    lifetime: Lifetime = (),
    privacy: Guarantee | None = None,
    local: Guarantee | None = None,
    use: Mapping[str, Any] | None = None,
    simulated: bool = False,
) -> dict[str, Any]:
    """Return the summary page of a plan that has not run yet.

    ``names`` are those of the members; ``delta``, ``limit`` and ``adversary`` the budget; ``accepted`` what
    is read of private records and not charged, by name; ``lifetime`` rows of `LifetimeLedger.forecast`, where
    this is about one member. ``privacy``, ``local`` and ``use`` (the plan's assessment, which says whether
    the answer is of use) are computed where they are not known. ``simulated`` says that the noise is drawn
    from a seed.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = sv.PrivateAveraging("exchange", network="hypercube:3", noise_std=2.0, radius=0.5)
    >>> page = of_plan(plan, title="Waiting times", limit=2.5)
    >>> [(one["question"], one["answer"]) for one in page["answers"]], page["guess"]
    ([('Private?', 'yes'), ('Useful?', 'no')], 'at most 60 times in 100 instead of 50')
    """
    view, uncharged = dict(adversary or {}), list(accepted)
    privacy = plan.privacy(**view) if privacy is None else privacy
    if use is None:
        judged = usefulness(plan)
        use = {"useful": judged.useful, "usefulness": judged.sentence}
    labels = [f"member {v}" for v in range(plan.n)] if names is None else [str(name) for name in names]
    stated = _stated(privacy.to_dict(delta), None if names is None else labels)
    shares, steps = _shares(plan)
    losses = _member_losses(plan, shares, labels, view, stated)
    if stated["view"] not in ("local", "central"):
        local = plan.privacy("local") if local is None else local
        losses.append(_loss(_stated(local.to_dict(delta), labels), "against everybody", "any"))
    useful = _answer("Useful?", _USEFUL[use["useful"]], _sentence(use["usefulness"]))
    return _page(
        "plan",
        title or plan.name,
        [_private(stated, uncharged, limit, simulated=simulated), useful],
        {"plan": _digest(plan.describe())},
        members=[] if plan.central else [{"name": name} for name in labels[:200]],
        noise=_noise_of(plan),
        holder=_holder(plan.describe()),
        **_scope(stated, uncharged, simulated=simulated, ledger=bool(lifetime)),
        losses=losses,
        matrix=_matrix(shares, labels, steps),
        budgets=_budgets(lifetime, "this plan", stated, limit, delta),
    )


def of_agreement(
    agreed_run: AgreedRun, *, lifetime: Lifetime = (), local: Guarantee | None = None
) -> dict[str, Any]:
    """Return the summary page of an agreement: members, plan, privacy cost and signatures."""
    agreement = agreed_run.agreement
    page = of_plan(
        agreement.plan,
        title=agreement.title,
        names=[member.name for member in agreement.members],
        delta=agreement.budget.delta,
        limit=agreement.budget.epsilon,
        adversary=agreed_run.charged_view,
        accepted=agreement.accept,
        lifetime=lifetime,
        local=local,
    )
    signed = agreement.check_signatures().valid
    members = [
        {"name": m.name, "address": m.address, "fingerprint": m.fingerprint, "signed": m.name in signed}
        for m in agreement.members
    ]
    missing = [str(member["name"]) for member in members if not member["signed"]]
    why = "By every member." if not missing else f"Not by {', '.join(missing)}."
    page["answers"].append(_answer("Signed?", NO if missing else YES, why))
    if agreement.timing.late != "wait":
        page["matrix"] = None  # an exchange left out can tell a neighbor more than the schedule does
    del page["marks"]["plan"]
    marks = {"run": agreement.run_id.hex()} | page["marks"]
    return page | {"kind": "agreement", "members": members, "marks": marks}


def of_statement(
    statement: Mapping[str, Any], *, ledger: Mapping[str, Any] | None = None, lifetime: Lifetime = ()
) -> dict[str, Any]:
    """Return the summary page of a member's statement (``statement.json``) after its run.

    ``ledger`` is the status of the ledger of the run, ``lifetime`` the rows of the lifetime ledger before and
    after it.
    """
    charged, budget, member = statement["guarantee"], statement["budget"], statement["member"]
    stated, limit = _stated(charged), float(budget["epsilon"])
    accepted = list(statement.get("accepted") or ())
    simulated = is_simulated(statement)
    others = {"against everybody": statement.get("ldp"), "against one member": statement.get("network")}
    losses = [_loss(stated, "charged", member)]
    for who, row in others.items():
        if row and row["adversary"] != charged["adversary"]:
            losses.append(_loss(_stated(row | {"delta": stated["delta"]}), who, member))
    left_out = len(statement.get("left_out") or ())
    how = f"{statement['rounds']} of {statement['of']} rounds were done"
    how += f"; {left_out} exchanges were left out." if left_out else "."
    finished = _answer("Finished?", YES if statement["finished"] else NO, how)
    head = {} if ledger is None else {"head of the ledger": ledger["ledger_head"]}
    return _page(
        "statement",
        (ledger or {}).get("title") or str(statement["algorithm"]),
        [_private(stated, accepted, limit, simulated=simulated), finished],
        head | {"run": str(statement["run_id"])},
        members=[{"name": member}],
        noise="Gaussian",  # the only noise that peers draw
        holder=_holder(statement),
        **_scope(stated, accepted, simulated=simulated, ledger=bool(lifetime)),
        losses=losses,
        incidents=[str(line) for line in statement.get("incidents") or ()],
        budgets=_budgets(lifetime, "this agreement", stated, limit, float(budget["delta"])),
    )


def of_result(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the summary page of a result; None if it states no guarantee."""
    rows = [g for g in result.get("guarantees", ()) if "curve" in g]
    if not rows:
        return None
    config, metrics, provenance = result["config"], result["metrics"], result["provenance"]
    rows.sort(key=lambda g: _VIEWS.index(g["adversary"]["kind"]))
    # the released result alone is the view of a plan only where a curator holds the records
    curated = all(g["adversary"]["kind"] == "central" for g in rows)
    budget, own = provenance.get("budget"), ("network", "colluders", *(["central"] if curated else []))
    # the guarantee that the budget was checked against; without a budget that of the plan's own view
    decisive = [g for g in rows if (budget and g["adversary"] == budget["adversary"])]
    chosen = next(iter([*decisive, *(g for g in rows if g["adversary"]["kind"] in own), *rows]))
    limit = None if budget is None else float(budget["epsilon"])
    names, delta = config.get("labels"), float(chosen.get("delta") or 1e-5)
    at_delta, simulated = {"delta": delta, "epsilon": None}, is_simulated(provenance)
    stated, *shown = [_stated({**g, **at_delta}, names) for g in (chosen, *rows[:6])]
    accepted = list(dict.fromkeys(name for g in rows for name in g.get("accepted", ())))
    answer, why = UNKNOWN, "The result holds no score."
    scores = ("test_accuracy", "accuracy", "rmse", "test_mean_squared_error", "mean_squared_error", "loss")
    score = next((key for key in scores if key in metrics), None)
    if (sentence := comparison(metrics)) is not None:
        answer, why = YES if metrics["better_than_trivial"] else NO, _sentence(sentence)
    elif score is not None:
        shown_score = percent(metrics[score]) if "accuracy" in score else f"{metrics[score]:.3f}"
        why = f"It ended with {score.replace('_', ' ')} {shown_score}."
    title = config.get("title") or metrics.get("title") or result["name"].replace("-", " ").capitalize()
    page = _page(
        "result",
        str(title),
        [_private(stated, accepted, limit, simulated=simulated), _answer("Useful?", answer, why)],
        {"result": _digest({key: value for key, value in result.items() if key != "summary_page"})},
        members=[{"name": str(name)} for name in names or ()][:200],
        noise=_noise_in(rows),
        holder=_holder({"algorithm": result["name"], **config}),
        **_scope(stated, accepted, simulated=simulated),
        losses=[_loss(each, each["against"]) for each in [stated, *(one for one in shown if one != stated)]],
        budgets=_budgets((), "this run", stated, limit, delta),
    )
    page["marks"]["version"] = str(provenance.get("version", __version__))
    return page


def of_reconstruction(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary page of an attack: whose values somebody computes."""
    return _from_template("attack", facts, known=len(facts["reconstructed"]))


def of_audit(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary page of an audit: whether a claim was refuted."""
    refuted = {name: a["label"] for name, a in facts["audits"].items() if a["refuted"]}
    ours = [name for name, label in refuted.items() if wording.is_guarantee(label)]
    return _from_template("audit", facts, ours=ours, printed=[name for name in refuted if name not in ours])


# ---- parts ------------------------------------------------------------------------------------------------


def _stated(stored: Mapping[str, Any], names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return a stored guarantee in words and numbers, about members."""
    return guarantee_row(stored, names, "member")


def _scope(
    stated: Mapping[str, Any], accepted: Sequence[str], *, simulated: bool = False, ledger: bool = False
) -> dict[str, Any]:
    """Return what is hidden from whom, and what is not covered."""
    return {
        "hidden": _sentence(wording.adjacency(stated["hides"], noun="member")),
        "hides_member": stated["hides"] == "user",
        "against": _sentence(stated["against"]),
        "guess": wording.guess(float(stated["guess"])),
        "not_covered": wording.not_covered(
            stated["view"],
            stated["hides"],
            label=stated["label"],
            count=stated["count"],
            named=bool(stated["observers"]),
            accepted=accepted,
            assumptions=stated["assumptions"],
            simulated=simulated,
            has_ledger=ledger,
        ),
        "uncharged": list(accepted),
        "stated": {key: stated["hides" if key == "adjacency" else key] for key in _STATED},
    }


def _loss(stated: Mapping[str, Any], who: str, name: str = "") -> dict[str, Any]:
    """Return the row of the table of losses: who loses this."""
    words = {"who": who, "name": name, "against": stated["against"]}
    words["guess"] = wording.guess(float(stated["guess"]))
    return words | {key: stated[key] for key in ("label", "epsilon", "delta")}


def _private(
    stated: Mapping[str, Any], accepted: Sequence[str], limit: float | None, *, simulated: bool = False
) -> dict[str, str]:
    """Return whether it is private, and why or why not, in one sentence."""
    numbers = float(stated["epsilon"]), float(stated["delta"])
    words = *numbers, stated["against"], stated["label"], float(stated["guess"])
    answer, why = wording.private(*words, limit=limit, accepted=accepted, simulated=simulated)
    return _answer("Private?", answer, why)


def _page(
    kind: str, purpose: str, answers: list[dict[str, str]], marks: Mapping[str, str], **parts: object
) -> dict[str, Any]:
    """Return a page with these parts; the others are empty."""
    empty = dict.fromkeys(("members", "losses", "not_covered", "uncharged", "incidents", "budgets"), ())
    words = dict.fromkeys(("hidden", "against", "guess"), "")
    today = {"date": datetime.now(UTC).date().isoformat(), "version": __version__}
    head = {"kind": kind, "purpose": purpose, "answers": answers, "marks": {**marks, **today}}
    page: dict[str, Any] = to_jsonable(
        {
            **head,
            **empty,
            **words,
            "matrix": None,
            "hides_member": None,
            "stated": None,
            "noise": "",
            "holder": "",
            **parts,
        }
    )
    return page


def _from_template(kind: str, facts: Mapping[str, Any], **values: object) -> dict[str, Any]:
    """Return the page of an attack or an audit, whose sentences are in ``templates/summary_page.json``."""
    template = environment().get_template("summary_page.json")
    words = json.loads(template.render(kind=kind, facts=facts, **values))
    answers = [_answer(**answer) for answer in words.pop("answers")]
    return _page(kind, words.pop("purpose"), answers, {"result": _digest(facts)}, **words)


def _answer(question: str, answer: str, why: str) -> dict[str, str]:
    return {"question": question, "answer": answer, "tone": _TONE[answer], "why": why}


def is_simulated(about: Mapping[str, Any]) -> bool:
    """Return whether noise was drawn from a seed, by the provenance of a result or a statement."""
    return "not protective" in str(about.get("noise", ""))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _noise_of(plan: Plan) -> str:
    """Return the distributions that the noise of a plan is drawn from, in words; "none" without noise."""
    drawn = (r for u in range(plan.n) for r in plan.releases(u) if r.noise_std)
    return " and ".join(sorted({_DISTRIBUTION[release.mechanism] for release in drawn})) or "none"


def _noise_in(guarantees: Iterable[Mapping[str, Any]]) -> str:
    """Return the same for stored guarantees, by the parts of their curves; "" where they have none."""
    curves = [g["curve"] for g in guarantees]
    for curve in curves:  # grows by the curves inside a curve
        curves += [*curve.get("others", ()), *curve.get("bounds", ())]
    parts = [part for curve in curves for part in curve["parts"]]
    if any(part["kind"] in ("laplace", "pure") for part in parts):
        return "Laplace"
    return "" if not parts else "none" if all(part.get("mu") == "inf" for part in parts) else "Gaussian"


def _holder(config: Mapping[str, Any]) -> str:
    """Return who adds the noise of an algorithm: members, server (its clients), token, curator, or ""."""
    try:
        plan_class = algorithm(str(config.get("algorithm")))
    except ConfigError:  # of a package that is not installed here
        return ""
    if plan_class.central:
        return "curator"
    if plan_class.sequential or config.get("protocol") == "walk":
        return "token"
    return "server" if plan_class.network_optional and not config.get("protocol") else "members"


def _member_losses(
    plan: Plan,
    shares: np.ndarray | None,
    names: Sequence[str],
    view: Mapping[str, Any],
    stated: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Return the stated loss, which is that of the worst member, with its name, and what a typical one loses.

    The accountant has the numbers; shares and releases only say which members to ask it about. The worst has
    no name where none of them is known to lose as much as stated, and a typical one is shown where all
    release alike, so that the shares order the members.
    """
    if view.get("user") is not None:
        return [_loss(stated, "named member", names[view["user"]])]
    if shares is None or stated["observers"] or stated["view"] == "central":
        return [_loss(stated, "worst member", "any")]

    def loss_of(user: int) -> dict[str, Any]:
        return _stated(plan.privacy(**view, user=user).to_dict(float(stated["delta"])), names)

    kinds = [count_by_kind(plan.releases(u)) for u in range(plan.n)]
    largest = np.where(np.eye(plan.n, dtype=bool), -1.0, shares).max(axis=1)
    order = np.argsort(largest * list(map(_squared_loss, kinds)), kind="stable")
    likely = order[: -_TRIED - 1 : -1].tolist()
    largest_loss = float(stated["epsilon"])
    worst = next((u for u in likely if math.isclose(float(loss_of(u)["epsilon"]), largest_loss)), None)
    alike = len(set(map(float, largest))) == 1 and all(kind == kinds[0] for kind in kinds)
    losses = [_loss(stated, "worst member", "any" if worst is None or alike else names[worst])]
    if all(kind == kinds[0] for kind in kinds):
        typical = int(order[(plan.n - 1) // 2])
        losses.append(_loss(loss_of(typical), "typical member", names[typical]))
    return losses


def _squared_loss(kinds: Counter[ReleaseKind]) -> float:
    """Return about what an agent with these releases loses under local privacy, to compare agents by."""
    return sum(
        count * ((1.0 if kind.adjacency == "user" else kind.sample_rate) / kind.noise_to_sensitivity) ** 2
        for kind, count in kinds.items()
    )


def _shares(plan: Plan) -> tuple[np.ndarray | None, int]:
    """Return (n, n) the share of the loss of one step, ``[user, observer]``, and over how many steps."""
    if not 1 < plan.n <= 4 * MATRIX:
        return None, 0
    steps = min(plan.steps, _STEPS)
    times = Counter(plan.schedule(k) for k in range(steps))
    total = np.zeros((plan.n, plan.n))
    for protocol, count in times.items():
        shares = pair_shares(plan, protocol)
        if shares is None:
            return None, 0
        total += count * shares
    return total / steps, steps


def _matrix(shares: np.ndarray | None, names: Sequence[str], steps: int) -> dict[str, Any] | None:
    if shares is None or len(shares) > MATRIX:
        return None
    over = "" if steps == 1 else f", mean of {steps} steps"
    what = (
        "Row: whose data. Column: who looks. Share of the squared loss (mu²); where nothing is sampled, a "
        "quarter is about half of epsilon. 0: learns nothing. 1: sees that member's noisy numbers in full"
    )
    values = [[None if u == v else float(x) for v, x in enumerate(row)] for u, row in enumerate(shares)]
    return {"names": list(names), "values": values, "what": f"{what}{over}."}


def _budgets(
    lifetime: Lifetime, what: str, stated: Mapping[str, Any], limit: float | None, delta: float
) -> list[dict[str, Any]]:
    """Return the lifetime budgets, or else the budget of this plan or agreement."""
    rows = [{**row, "what": f"lifetime, {row['adjacency']}, {row['view']}"} for row in lifetime]
    if not rows and limit is not None:
        epsilon = float(stated["epsilon"])
        loss = {"spent": None, "adds": epsilon, "total": epsilon}
        rows = [{"what": what, "epsilon": limit, "delta": delta} | loss]
    keys = ("what", "delta", "spent", "adds", "total")
    return [
        {key: row[key] for key in keys}
        | {"limit": row["epsilon"], "left": max(0.0, row["epsilon"] - row["total"])}
        for row in rows
    ]


def _digest(value: object) -> str:
    text = json.dumps(to_jsonable(value), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
