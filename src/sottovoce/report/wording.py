"""Guarantees in the words of a privacy officer: against whom, about what, how it is known, under what."""

from __future__ import annotations

import math
from typing import Any

from sottovoce.accounting import wording

__all__ = ["best_guess", "guarantee_row"]

CERTAIN = 0.99  # a best guess above this protects nobody in practice


def best_guess(epsilon: float | str | None, delta: float | None) -> float | None:
    """Return how often the best possible attacker is right about a fair coin, at most, knowing one point.

    The coin decides between two neighboring data sets; (epsilon, delta) bounds the success of any test.
    Where the whole curve is known, `Guarantee.best_guess` is less and exact.

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


def adversary(who: dict[str, Any] | str, names: list[str] | None = None, noun: str = "participant") -> str:
    """Return a stored adversary in words, with the participants' names where there are any.

    Examples
    --------
    >>> adversary({"kind": "pairwise", "observers": [1], "user": 0}, ["Ada", "Bo"])
    'Bo, about Ada'
    >>> adversary({"kind": "local", "observers": [], "user": None})
    'anyone who sees every message'
    """
    if isinstance(who, str):
        return who
    return wording.adversary(
        str(who.get("kind")), who.get("observers") or (), _about(who), who.get("count"),
        names=names, noun=noun,
    )  # fmt: skip


def _about(who: dict[str, Any] | str) -> list[int]:
    """Return the users a stored adversary looks at; none for the worst."""
    if isinstance(who, str):
        return []
    user = who.get("user")
    return list(who.get("users") or ([] if user is None else [user]))


def guarantee_row(stored: dict[str, Any], names: list[str] | None = None) -> dict[str, Any]:
    """Return one stored guarantee as the page shows it; epsilon is computed again where it is missing.

    Examples
    --------
    >>> from sottovoce.privacy import Adversary, Curve, Guarantee
    >>> one = Guarantee(Adversary("local"), "user", "ldp", Curve.gaussian(1.0)).to_dict(delta=1e-5)
    >>> row = guarantee_row(one)
    >>> round(row["epsilon"], 3), row["verdict"], round(row["guess"], 3)
    (4.377, 'Guarantee', 0.691)
    """
    delta = stored.get("delta")
    epsilon = stored.get("epsilon")
    guess = None
    if "curve" in stored:
        from sottovoce.accounting.guarantee import Guarantee

        whole = Guarantee.from_dict(stored)
        guess = whole.best_guess  # from the whole curve: one point of it knows much less
        if epsilon is None:
            delta = 1e-5 if delta is None else delta
            value = whole.epsilon(delta)
            epsilon = "inf" if math.isinf(value) else value
    verdict, meaning = wording.verdict(str(stored.get("label")))
    guess = best_guess(epsilon, delta) if guess is None else guess
    if verdict == "Guarantee" and guess is not None and guess > CERTAIN:
        verdict = "No protection in practice"
    if verdict == "Guarantee" and stored.get("accepted"):  # read of private records, and not charged
        verdict = f"Guarantee, except for what was accepted: {', '.join(stored['accepted'])}"
    who = stored.get("adversary") or stored.get("against") or ""
    return {
        "against": adversary(who, names),
        "what": stored.get("what", ""),
        "adjacency": wording.adjacency(
            str(stored.get("adjacency")), _about(who), names=names, noun="participant"
        ),
        "epsilon": epsilon,
        "delta": delta,
        "guess": guess,
        "label": stored.get("label"),
        "verdict": verdict,
        "meaning": meaning,
        "assumptions": list(stored.get("assumptions") or ()),
    }
