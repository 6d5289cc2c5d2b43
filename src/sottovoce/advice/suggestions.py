"""The cheapest ways out of a plan that is not private enough, or whose answer is of no use.

Ways are tried in the order of what they cost people: another way to average costs nothing, hiding a record
instead of a member costs a promise, a larger epsilon privacy, more members or records work. Each is asked of
a plan made for it, so every figure is one that a plan has answered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sottovoce.advice.samples import Sample
from sottovoce.advice.usefulness import Usefulness, is_average, usefulness
from sottovoce.algorithms.plan import Plan
from sottovoce.errors import SottovoceError

__all__ = ["Suggestion", "least", "least_whole", "ways_out"]

_RUNS = 4  # of a simulation that only decides useful or not
_MOST_MEMBERS = 1024
_RECORDS = 100  # a round number of records for what an average over records would answer
_LEARNING_MEMBERS = 64  # where each trial is priced over many steps, and may be a simulation


@dataclass(frozen=True)
class Suggestion:
    """One thing that would have to change, and how far, for something to fit.

    Examples
    --------
    >>> Suggestion("members", 16, "Find 16 members.").value
    16
    """

    what: str
    value: float | str
    sentence: str


def ways_out(
    plan: Plan,
    *,
    epsilon: float,
    delta: float,
    who: Mapping[str, Any] | None = None,
    sample: Sample | None = None,
    most: int = 3,
) -> tuple[Suggestion, ...]:
    """Return the cheapest ways to a plan that meets the budget and answers something of use.

    Parameters
    ----------
    plan : the plan as it stands.
    epsilon, delta, who : the budget, and the view it is against, as `Plan.privacy` takes it.
    sample : public or synthetic records to judge training by; None judges by signal and noise.
    most : how many ways.

    Guarantees
    ----------
    Nothing private is read. Each way was tried: the plan it describes meets the budget (but for the way that
    allows a larger epsilon, which states the one that plan meets) and is useful.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = sv.PrivateAveraging.for_budget("exchange", network="hypercube:3", radius=0.5, epsilon=1.0, delta=1e-5)
    >>> for way in ways_out(plan, epsilon=1.0, delta=1e-5, who={"view": "network"}):
    ...     print(way.sentence)
    Hide a record instead of a member, with 100 records each: +- 0.00659 (sottovoce advise 8 --epsilon 1 --records 100).
    Allow epsilon 6.62: +- 0.249.
    Find 16 members and take masked sums: +- 0.241.
    """  # noqa: E501
    found = []
    for way in _Search(plan, epsilon, delta, dict(who or {}), sample).tried():
        found.append(way)
        if len(found) == most:
            break
    return tuple(found)


class _Search:
    """One plan, one budget, and the ways tried in order."""

    def __init__(
        self, plan: Any, epsilon: float, delta: float, who: dict[str, Any], sample: Sample | None
    ) -> None:
        self.plan, self.epsilon, self.delta, self.who, self.sample = plan, epsilon, delta, who, sample
        self.hidden_from_all = who.get("view") in ("local", "outsider", "pairwise", "central")

    def tried(self) -> Iterator[Suggestion]:
        met = self.calibrated(self.plan)  # with the least noise, where the plan states one that is not enough
        if met is not None and not self.meets(self.plan) and self.good(met):
            yield Suggestion("noise", _noise(met), f"Take noise {_noise(met):.4g}: {self.answer(met)}.")
        for way in (self.masks, self.record, self.larger_epsilon, self.members, self.records):
            try:
                one = way(met or self.plan)
            except SottovoceError:  # that way is closed to this plan
                continue
            if one is not None:
                yield one

    # ---- the ways ----------------------------------------

    def masks(self, plan: Any) -> Suggestion | None:
        if not plan.maskable or plan.n < 3 or self.hidden_from_all or plan.schedule(0).masked:
            return None
        masked = self.calibrated(self.masked(plan))
        if masked is None or not self.good(masked):
            return None
        return Suggestion(
            "protocol", "masked", f'Take masked sums (protocol "masked"): {self.answer(masked)}.'
        )

    def record(self, plan: Any) -> Suggestion | None:
        if plan.adjacency != "user":
            return None
        if plan.observation.averages_once:
            off = usefulness(plan).error
            if off is None or not off / (2 * _RECORDS) <= plan.radius / 2:
                return None
            # a record moves a mean of so many by that much less, and all else stays as it is
            one = "outsiders" if self.who.get("view") == "outsider" else "member"
            against = "" if one == "member" else f" --against {one}"
            said = f"sottovoce advise {plan.n} --epsilon {self.epsilon:g} --records {_RECORDS}{against}"
            return Suggestion(
                "hide", "record",
                f"Hide a record instead of a member, with {_RECORDS} records each: "
                f"+- {off / (2 * _RECORDS):.3g} ({said}).",
            )  # fmt: skip
        if "add-remove" not in plan.adjacencies or plan.sizes is None:
            return None
        record = replace(plan, adjacency="add-remove")
        made = self.calibrated(record)
        if made is not None and self.good(made):
            return Suggestion("hide", "record", f"Hide a record instead of a member: {self.answer(made)}.")
        if plan.n < 3 or not plan.maskable or self.hidden_from_all:
            return None
        made = self.calibrated(self.masked(record))
        if made is None or not self.good(made):
            return None
        both = "Hide a record instead of a member, and take masked sums"
        return Suggestion("hide", "record", f"{both}: {self.answer(made)}.")

    def larger_epsilon(self, plan: Any) -> Suggestion | None:
        base = _scalar(plan)
        if base is None:
            return None
        share = least(lambda s: self.good(plan.with_noise(base / s)), 1.0, 2.0**12)
        if share is None:
            return None
        made = plan.with_noise(base / share)
        spent = made.privacy(**self.who).epsilon(self.delta)
        up = math.ceil(spent * 100) / 100 if spent < 100 else math.ceil(spent)
        return Suggestion("epsilon", up, f"Allow epsilon {up:g}: {self.answer(made)}.")

    def members(self, plan: Any) -> Suggestion | None:
        if not plan.maskable or self.hidden_from_all or not hasattr(plan, "network"):
            return None
        most = _MOST_MEMBERS if is_average(plan) else _LEARNING_MEMBERS
        made: dict[int, Any] = {}

        def works(n: int) -> bool:
            made[n] = self.calibrated(self.masked(plan, n))
            return made[n] is not None and self.good(made[n])

        count = least_whole(works, max(plan.n, 3), most)
        if count is None or count == plan.n:
            return None
        return Suggestion(
            "members", count, f"Find {count:,} members and take masked sums: {self.answer(made[count])}."
        )

    def records(self, plan: Any) -> Suggestion | None:
        sizes = plan.sizes
        if sizes is None or plan.adjacency == "user" or getattr(plan, "batch_size", None) is not None:
            return None

        def larger(factor: float) -> Any:
            return replace(plan, sizes=tuple(math.ceil(factor * size) for size in sizes))

        factor = least(lambda f: self.good(larger(f)), 1.0, 2.0**20)
        if factor is None or factor == 1.0:
            return None
        made = larger(factor)
        each = round(sum(made.sizes) / plan.n)
        return Suggestion("records", each, f"Collect {each:,} records at each member: {self.answer(made)}.")

    # ---- what they share ----------------------------------------

    def masked(self, plan: Any, n: int | None = None) -> Any:
        c = self.who.get("colluders", 1)
        tolerate = c if isinstance(c, int) else max(len(tuple(c)), 1)
        name = "masked" if tolerate <= 1 else f"masked:tolerate={tolerate}"
        graph = f"complete:{n}" if n is not None else _graph(plan)
        changed: dict[str, Any] = {"protocol": name, "network": graph}
        if hasattr(plan, "noise"):
            changed["noise"] = "equal"
        if isinstance(getattr(plan, plan.noise_field), tuple):
            changed["noise_multiplier"] = 1.0
        if n is not None and plan.sizes is not None:
            changed["sizes"] = (max(1, round(sum(plan.sizes) / plan.n)),) * n
        return replace(plan, **changed)

    def calibrated(self, plan: Any) -> Any:
        try:
            return plan.calibrated_to(self.epsilon, self.delta, **self.who)
        except SottovoceError:
            return None

    def meets(self, plan: Any) -> bool:
        stated = plan.privacy(**self.who)
        return bool(stated.valid and stated.epsilon(self.delta) <= self.epsilon)

    def judged(self, plan: Any) -> Usefulness:
        if self.sample is None or is_average(plan):
            return usefulness(plan)
        return usefulness(plan, sample=self.sample, runs=_RUNS)

    def good(self, plan: Any) -> bool:
        return self.judged(plan).useful is True

    def answer(self, plan: Any) -> str:
        use = self.judged(plan)
        if use.error is not None:
            return f"+- {math.hypot(use.error, use.bias):.3g}"
        if use.score is not None:
            return str(use.score)
        return f"signal {use.signal:.3g} times the noise"


def _noise(plan: Any) -> float:
    given = plan.noise_multiplier
    return float(max(given) if isinstance(given, tuple) else given)


def _scalar(plan: Any) -> float | None:
    """The noise that ``with_noise`` takes, where it is one number."""
    given = getattr(plan, plan.noise_field)
    return float(given) if isinstance(given, (int, float)) and given > 0 else None


def _graph(plan: Any) -> Any:
    network = getattr(plan, "network", None)
    return network if network is not None else getattr(plan.schedule(0), "network", f"complete:{plan.n}")


def least(works: Callable[[float], bool], low: float, most: float) -> float | None:
    """Return the smallest value from ``low`` on that works, to a hundredth of itself; None up to ``most``.

    >>> least(lambda x: x >= 3, 1.0, 100.0) < 3.03
    True
    """
    high = low
    if works(low):
        return low
    if not works(most):  # more of it never makes things worse: then nothing in between works either
        return None
    while not works(high):
        low, high = high, min(high * 2, most)
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if works(middle) else (middle, high)
    return high


def least_whole(works: Callable[[int], bool], low: int, most: int) -> int | None:
    """Return the smallest whole number from ``low`` on that works, large ones to a hundredth of themselves.

    >>> least_whole(lambda n: n >= 13, 4, 100)
    13
    """
    high = low
    while not works(high):
        low, high = high, high * 2
        if high > most:
            return None
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if works(middle) else (middle, high)
    return high
