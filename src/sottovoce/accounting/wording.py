"""Guarantees in words: against whom, about what, how it is known.

Sentences speak of nodes; a page for people passes the participants' names, or another noun.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sottovoce._format import compared, number, percent
from sottovoce.graphs import Network
from sottovoce.leakage.view import DETERMINED

# what may be read of private records without being charged, by the name under which a user accepts it
UNCHARGED = {
    "standardize": "the mean and deviation of every feature of the private records",
    "held-out score": "a score on private records that were held out",
    "class names": "the names of the classes, from the private labels",
    "tuning": "settings that were chosen on the private records",
}
LARGE_DELTA = "large delta"  # accepted by name as well; nothing is read, a promise is weakened
_WEAK_PROMISE = "delta is above one over the number of those it protects, so that one of them may be exposed"

YES, NO, PART, UNKNOWN = "yes", "no", "only in part", "unknown"
CERTAIN = 0.99  # a best guess above this protects nobody in practice
NO_PRIVACY = (
    "No noise is added: this is a run without privacy; use it only to compare, on records that may be public."
)

CURATOR = "the curator who holds the records is trusted"  # assumed by guarantees about a curator's results
# assumed where the noise of several members hides a row
OTHERS_ADD_NOISE = "members outside the coalition add their noise; one that does not counts as part of it"
_SEE_MORE = "they see more, and the view network, colluders or local says what"

_WITHOUT_OBSERVERS = {
    "central": "anyone who sees the released output",
    "local": "all others with their keys and noise",
    "outsider": "anyone who taps every link and holds no key",
}
# what the label of a number says about how it is known, and whether it is a guarantee
LABELS = {
    "ldp": (
        "local differential privacy: holds whatever all others see or do together, with their keys and noise",
        True,
    ),
    "exact": (
        "a proven upper bound for this named adversary, computed from what it sees; the loss itself only for "
        "averaging and exact consensus over a fixed schedule, where noise is drawn once and nothing is "
        "sampled or rounded up",
        True,
    ),
    "conditional": ("an upper bound for the linear system; not proven for the training run", False),
    "published": ("a formula as printed in a paper: no guarantee, and it can understate the loss", False),
}


def label(name: str) -> str:
    """Return what a label says about how a number is known."""
    return LABELS[name][0]


def is_guarantee(name: str) -> bool:
    """Return whether a number with this label is a guarantee, which may be checked against a budget."""
    return LABELS.get(name, ("", False))[1]


def verdict(name: str) -> tuple[str, str]:
    """Return whether a label is a guarantee, and what it means, for a reader of reports."""
    if name not in LABELS:
        return "Unknown", "This label is not known to this version."
    meaning = label(name)
    return "Guarantee" if is_guarantee(name) else "Not a guarantee", f"{meaning[0].upper()}{meaning[1:]}."


def uncharged(name: str) -> str:
    """Return the remark that a guarantee carries about something read, not charged, and accepted by name."""
    if name == LARGE_DELTA:
        return f"accepted by name: {_WEAK_PROMISE}"
    return f"not charged, accepted by name: {UNCHARGED[name]}"


def exception(name: str) -> str:
    """Return, in a sentence for people, what a guarantee leaves out because it was accepted by name."""
    if name == LARGE_DELTA:
        return f"Accepted: {_WEAK_PROMISE}."
    return f"Read of private records and not charged: {UNCHARGED.get(name, name)}."


def guess(best: float) -> str:
    """Return in words how often the best guess (`Guarantee.best_guess`) is right."""
    if best <= 0.5:
        return "50 times in 100, as by chance"
    places = 0 if 0.51 <= best <= 0.99 or best >= 1 else 2  # whole numbers would mislead near both ends
    return f"at most {percent(best, 'best guess', places).removesuffix(' %')} times in 100 instead of 50"


def private(
    epsilon: float,
    delta: float,
    against: str,
    label: str,
    best: float,
    *,
    limit: float | None = None,
    accepted: Iterable[str] = (),
    simulated: bool = False,
    subject: str = "It",
) -> tuple[str, str]:
    """Return whether something is private (yes, no, only in part) and why, in a sentence.

    ``best`` is how often the best guess is right, ``limit`` the budget, ``accepted`` what was accepted by
    name and is not in the guarantee; ``simulated`` says that the noise is drawn from a seed.
    """
    if not is_guarantee(label):
        weaker = "take the view local, or a plan over exact consensus"
        return NO, f"The number for this view is {label}, not a guarantee, and accepts no budget; {weaker}."
    if math.isinf(epsilon) and limit in (None, math.inf):
        return NO, NO_PRIVACY
    shown, allowed = (number(epsilon, "epsilon"), "") if limit is None else compared(epsilon, limit)
    loss = f"epsilon {shown} at delta {number(delta, 'delta')} against {against}"
    spent = f"{subject} spends {loss}"
    exceeds = limit is not None and epsilon > limit
    if simulated:
        over = f", more than the budget of {allowed}" if exceeds else ""
        seeded = "the noise is drawn from a seed: a simulation protects nobody"
        return NO, f"{subject} would spend {loss}{over}, but {seeded}."
    if exceeds:
        return NO, f"{spent}, more than the budget of {allowed}; more noise or fewer steps lower it."
    if best > CERTAIN:
        return NO, f"{spent}: a true bound, but so weak that an observer may be all but certain."
    why = f"{spent}; no budget was set." if limit is None else f"{spent}, within the budget of {allowed}."
    if any(accepted):
        return PART, f"{why} Something was accepted that the guarantee leaves out: see below."
    return YES, why


def learned(share: float, best: float) -> str:
    """Return in words what an observer learns of a user: a share of the squared loss, and its best guess."""
    right = f"the best guess is right {guess(best)}"
    if share <= 0:
        return f"nothing: {right}"
    if share > 1 - DETERMINED:
        return f"can compute its noisy value, so only its own noise protects it: {right}"
    return right


def not_covered(
    kind: str,
    adjacency: str,
    *,
    label: str = "exact",
    count: int | None = None,
    named: bool = False,
    accepted: Iterable[str] = (),
    assumptions: Iterable[str] = (),
    simulated: bool = False,
    has_ledger: bool = False,
) -> list[str]:
    """Return what a guarantee does not protect against, for the page that an officer signs, worst first.

    A guarantee with the label ldp holds against all others under any view; with another label the view says
    who is left out (``named``: all but named observers), and the assumptions whom it trusts.
    """
    limits, assumed = [exception(name) for name in accepted], list(assumptions)
    if simulated:
        limits.append("The noise can be reproduced from a public seed: it protects nobody.")
    if CURATOR in assumed:
        limits.append("The curator who holds the records, and whoever reads what reaches the curator.")
    elif label != "ldp":
        taps = "" if any(" tap" in line for line in assumed) else ", or read what others send each other"
        if kind in ("network", "pairwise"):
            limits.append(f"Members who pool what they see{taps}: for them only the local guarantee holds.")
        elif kind == "colluders":
            many = "More members than the guarantee covers" if count is None else f"More than {count} members"
            limits.append(f"{many} who pool what they see{taps}: for them only the local guarantee holds.")
        elif kind in ("central", "outsider"):
            also = ", and whoever reads messages on their way" if kind == "central" else ""
            limits.append(f"The members themselves{also}: {_SEE_MORE}.")
        if named:
            limits.append(
                "Members other than the observers named here: the view network or local covers them."
            )
    if OTHERS_ADD_NOISE in assumed:
        limits.append("Members who leave out their noise: each counts as one more who pools what it sees.")
    if adjacency != "user":
        limits.append("People with several records: one record is protected, not the whole person.")
    if any("honest but curious" in line for line in assumed):
        limits.append("Members who do not follow the protocol: they are taken to be honest but curious.")
    if not has_ledger:
        limits.append("Other studies on the same records cost extra and are not counted here.")
    return limits


def stored_adversary(
    stored: Mapping[str, Any] | str, names: Sequence[str] | None = None, noun: str = "participant"
) -> str:
    """Return a stored adversary (`Adversary.to_dict`) in words; ``names`` are the participants' own."""
    if isinstance(stored, str):
        return stored
    kind, count, user = str(stored.get("kind")), stored.get("count"), stored.get("user")
    nodes = list(stored.get("observers") or ())
    who = _named(nodes, names, noun) if nodes else f"any one {noun}"
    if kind in _WITHOUT_OBSERVERS:
        who = _WITHOUT_OBSERVERS[kind]
    elif kind == "colluders" and (count or len(nodes)) > 1:
        who = f"{who} together" if count is None else f"any {count} {noun}s together"
    return who if user is None else f"{who}, about {_named([user], names, noun)}"


def adjacency(
    name: str, user: int | None = None, *, names: Sequence[str] | None = None, noun: str = "node"
) -> str:
    """Return what two neighboring data sets differ in; ``user`` is whom the guarantee is about."""
    whose = None if user is None else _named([user], names, noun)
    if name == "user":
        one = "one user" if noun == "node" else f"one {noun}"
        return f"the whole data set of {whose or one} is replaced"
    change = {"replace-one": "replaced", "add-remove": "added or removed"}.get(name)
    if change is None:
        return name
    return f"one record of {whose} is {change}" if whose else f"one record is {change}"


def _named(nodes: Sequence[int], names: Sequence[str] | None, noun: str) -> str:
    """Return nodes as a list in words: by their own names, else by the noun and their numbers."""
    if names is None:
        words, before = [str(v) for v in nodes], f"{noun} " if len(nodes) == 1 else f"{noun}s "
    else:
        words, before = [names[v] if 0 <= v < len(names) else f"{noun} {v}" for v in nodes], ""
    return before + " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def name_nodes(text: str, network: Network | None) -> str:
    """Return a text that speaks of nodes by number with the names of its nodes."""
    if network is None or network.node_names is None:
        return text
    name_of = network.node_name

    def by_name(match: re.Match[str]) -> str:
        return re.sub(r"\d+", lambda number: str(name_of(int(number[0]))), match[1])

    return re.sub(r"\bnodes? (\d+(?:(?:, | and )\d+)*)", by_name, text)
