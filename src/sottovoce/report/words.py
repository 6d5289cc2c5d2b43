"""Guarantees in the words of a privacy officer: against whom, about what, how it is known, under what."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["best_guess", "guarantee_row", "said_label"]

LABELS = {
    "ldp": ("Guarantee", "Holds even if every message is read by everybody."),
    "exact": ("Guarantee", "Computed exactly from everything this observer receives."),
    "conditional": ("Not a guarantee", "Exact for a simplified (linear) system; not shown for this run."),
    "published": ("Not a guarantee", "A formula as printed in a paper; it can understate the loss."),
}
CERTAIN = 0.99  # a best guess above this protects nobody in practice
ADJACENCY = {
    "user": "one participant's whole data set is replaced",
    "replace-one": "one person's record is exchanged for another",
    "add-remove": "one person's record is added or removed",
}


def best_guess(epsilon: float | str | None, delta: float | None) -> float | None:
    """Return how often the best possible attacker is right about a fair coin, at most.

    The coin decides between two neighbouring data sets; (epsilon, delta) bounds the success of any test.

    Examples
    --------
    >>> round(best_guess(1.0, 1e-5), 3), best_guess(0.0, 0.0), best_guess("inf", 1e-5)
    (0.731, 0.5, 1.0)
    """
    if epsilon is None:
        return None
    if epsilon == "inf" or float(epsilon) > 700:
        return 1.0
    odds = math.exp(float(epsilon))
    return min(1.0, (odds + (delta or 0.0)) / (1 + odds))


def said_label(label: str) -> tuple[str, str]:
    """Return whether a label is a guarantee, and what it means.

    Examples
    --------
    >>> said_label("published")[0]
    'Not a guarantee'
    """
    return LABELS.get(label, ("Unknown", "This label is not known to this version."))


def adversary(who: dict[str, Any] | str, names: list[str] | None = None) -> str:
    """Return an adversary in words, with the participants' names where there are any.

    Examples
    --------
    >>> adversary({"kind": "pairwise", "observers": [1], "user": 0}, ["Ada", "Bo"])
    'Bo, about Ada'
    >>> adversary({"kind": "local", "observers": [], "user": None})
    'anyone who sees every message'
    """
    if isinstance(who, str):
        return who
    observers, user = who.get("observers") or [], who.get("user")

    def called(v: int) -> str:
        return names[v] if names is not None and 0 <= v < len(names) else f"participant {v}"

    text = {
        "central": "anyone who sees the released result",
        "local": "anyone who sees every message",
        "colluders": " and ".join(called(v) for v in observers) + " together",
    }.get(str(who.get("kind")), called(observers[0]) if observers else "any one participant")
    return text if user is None else f"{text}, about {called(user)}"


def guarantee_row(stored: dict[str, Any], names: list[str] | None = None) -> dict[str, Any]:
    """Return one stored guarantee as the page shows it; epsilon is computed again where it is missing.

    Examples
    --------
    >>> from sottovoce.privacy import Adversary, Curve, Guarantee
    >>> one = Guarantee(Adversary("local"), "user", "ldp", Curve.gaussian(1.0)).to_dict(delta=1e-5)
    >>> row = guarantee_row(one)
    >>> round(row["epsilon"], 3), row["verdict"], round(row["guess"], 3)
    (4.377, 'Guarantee', 0.988)
    """
    delta = stored.get("delta")
    epsilon = stored.get("epsilon")
    if epsilon is None and "curve" in stored:
        from sottovoce.privacy import Guarantee

        delta = 1e-5 if delta is None else delta
        value = Guarantee.from_dict(stored).epsilon(delta)
        epsilon = "inf" if math.isinf(value) else value
    verdict, meaning = said_label(str(stored.get("label")))
    guess = best_guess(epsilon, delta)
    if verdict == "Guarantee" and guess is not None and guess > CERTAIN:
        verdict = "No protection in practice"
    return {
        "against": adversary(stored.get("adversary") or stored.get("against") or "", names),
        "what": stored.get("what", ""),
        "adjacency": ADJACENCY.get(str(stored.get("adjacency")), str(stored.get("adjacency"))),
        "epsilon": epsilon,
        "delta": delta,
        "guess": guess,
        "label": stored.get("label"),
        "verdict": verdict,
        "meaning": meaning,
        "assumptions": list(stored.get("assumptions") or ()),
    }
