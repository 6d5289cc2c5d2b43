"""Suggestions for a plan that is not private enough, or whose answer is of no use.

Suggestions are ordered by what they cost people: another protocol, a record instead of a member as what is
hidden, a larger epsilon, more members, more records. Each was tried on a plan made for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from sottovoce.accounting.budget import Budget
from sottovoce.advice.samples import Sample
from sottovoce.advice.usefulness import Usefulness, is_average, usefulness
from sottovoce.algorithms.plan import Plan
from sottovoce.errors import SottovoceError

_RUNS = 4  # of a simulation that only decides useful or not
_MOST_MEMBERS = 1024
_RECORDS = 100  # a round number of records for what an average over records would answer
_LEARNING_MEMBERS = 64  # where each trial is accounted over many steps, and may be a simulation


@dataclass(frozen=True)
class Suggestion:
    """One change after which something fits: what changes, to which value, and a sentence.

    Examples
    --------
    >>> Suggestion("members", 16, "Find 16 members.").value
    16
    """

    what: str
    value: float | str
    sentence: str


def suggestions(
    plan: Plan, budget: Budget, *, sample: Sample | None = None, most: int = 3
) -> tuple[Suggestion, ...]:
    """Return the cheapest changes to a plan that meets the budget and answers something of use.

    Parameters
    ----------
    plan : the plan as it is.
    budget : what may be spent, and against which view.
    sample : public or synthetic records to judge training by; None judges by signal and noise.
    most : how many suggestions.

    Guarantees
    ----------
    Nothing private is read. Each suggestion was tried: the plan it describes meets the budget (a suggestion
    to allow a larger epsilon states the epsilon that its plan meets) and is useful.

    Examples
    --------
    >>> import sottovoce as sv
    >>> budget = sv.Budget(1.0, 1e-5, view="network")
    >>> plan = sv.PrivateAveraging.for_budget("exchange", network="hypercube:3", radius=0.5, epsilon=1.0,
    ...                                       delta=1e-5)
    >>> for suggestion in suggestions(plan, budget):
    ...     print(suggestion.sentence)
    Hide a record instead of a member, with 100 records each: ± 0.00659 (sottovoce advise 8 --epsilon 1 --records 100).
    Allow epsilon 6.62: ± 0.249.
    Find 16 members and take masked sums: ± 0.241.
    """  # noqa: E501
    return tuple(islice(_Search(plan, budget, sample).suggestions(), most))


class _Search:
    """One plan, one budget, and the changes that are tried in order."""

    def __init__(self, plan: Any, budget: Budget, sample: Sample | None) -> None:
        self.plan, self.budget, self.sample = plan, budget, sample
        # against these views masks change nothing: the noise of a member's own row decides
        self.own_noise_decides = budget.view in ("local", "outsider", "pairwise", "central")

    def suggestions(self) -> Iterator[Suggestion]:
        calibrated = self.calibrated(self.plan)  # where the plan's own noise is not enough
        if calibrated is not None and not self.meets_budget(self.plan) and self.is_useful(calibrated):
            noise = _noise(calibrated)
            yield Suggestion("noise", noise, f"Take noise {noise:.4g}: {self.answer(calibrated)}.")
        for change in (self.masks, self.record, self.larger_epsilon, self.members, self.records):
            try:
                suggestion = change(calibrated or self.plan)
            except SottovoceError:  # this change is not possible for this plan
                continue
            if suggestion is not None:
                yield suggestion

    # ---- the changes ----------------------------------------

    def masks(self, plan: Any) -> Suggestion | None:
        if not plan.maskable or plan.n < 3 or self.own_noise_decides or plan.schedule(0).masked:
            return None
        masked = self.calibrated(self.masked(plan))
        if masked is None or not self.is_useful(masked):
            return None
        return Suggestion(
            "protocol", "masked", f'Take masked sums (protocol "masked"): {self.answer(masked)}.'
        )

    def record(self, plan: Any) -> Suggestion | None:
        if plan.adjacency != "user":
            return None
        if plan.observation.averages_once:
            error = usefulness(plan).error
            if error is None or not error / (2 * _RECORDS) <= plan.radius / 2:
                return None
            # a record moves a mean of so many by that much less, and all else stays as it is
            view = " --view outsider" if self.budget.view == "outsider" else ""
            command = (
                f"sottovoce advise {plan.n} --epsilon {self.budget.epsilon:g} --records {_RECORDS}{view}"
            )
            return Suggestion(
                "hide",
                "record",
                f"Hide a record instead of a member, with {_RECORDS} records each: "
                f"± {error / (2 * _RECORDS):.3g} ({command}).",
            )
        if "add-remove" not in plan.adjacencies or plan.sizes is None:
            return None
        record = replace(plan, adjacency="add-remove")
        calibrated = self.calibrated(record)
        if calibrated is not None and self.is_useful(calibrated):
            return Suggestion(
                "hide", "record", f"Hide a record instead of a member: {self.answer(calibrated)}."
            )
        if plan.n < 3 or not plan.maskable or self.own_noise_decides:
            return None
        calibrated = self.calibrated(self.masked(record))
        if calibrated is None or not self.is_useful(calibrated):
            return None
        both = "Hide a record instead of a member, and take masked sums"
        return Suggestion("hide", "record", f"{both}: {self.answer(calibrated)}.")

    def larger_epsilon(self, plan: Any) -> Suggestion | None:
        noise = _scalar(plan)
        if noise is None:
            return None
        share = least(lambda s: self.is_useful(plan.with_noise(noise / s)), 1.0, 2.0**12)
        if share is None:
            return None
        quieter = plan.with_noise(noise / share)
        epsilon = quieter.privacy(**self.budget.adversary).epsilon(self.budget.delta)
        rounded = math.ceil(epsilon * 100) / 100 if epsilon < 100 else math.ceil(epsilon)
        return Suggestion("epsilon", rounded, f"Allow epsilon {rounded:g}: {self.answer(quieter)}.")

    def members(self, plan: Any) -> Suggestion | None:
        if not plan.maskable or self.own_noise_decides or not hasattr(plan, "network"):
            return None
        most = _MOST_MEMBERS if is_average(plan) else _LEARNING_MEMBERS
        plans: dict[int, Any] = {}

        def works(n: int) -> bool:
            plans[n] = self.calibrated(self.masked(plan, n))
            return plans[n] is not None and self.is_useful(plans[n])

        count = least_whole(works, max(plan.n, 3), most)
        if count is None or count == plan.n:
            return None
        return Suggestion(
            "members", count, f"Find {count:,} members and take masked sums: {self.answer(plans[count])}."
        )

    def records(self, plan: Any) -> Suggestion | None:
        sizes = plan.sizes
        if sizes is None or plan.adjacency == "user" or getattr(plan, "batch_size", None) is not None:
            return None

        def larger(factor: float) -> Any:
            return replace(plan, sizes=tuple(math.ceil(factor * size) for size in sizes))

        factor = least(lambda f: self.is_useful(larger(f)), 1.0, 2.0**20)
        if factor is None or factor == 1.0:
            return None
        changed = larger(factor)
        each = round(sum(changed.sizes) / plan.n)
        return Suggestion(
            "records", each, f"Collect {each:,} records at each member: {self.answer(changed)}."
        )

    # ---- what they share ----------------------------------------

    def masked(self, plan: Any, n: int | None = None) -> Any:
        colluders = self.budget.colluders if self.budget.colluders != () else 1
        tolerate = colluders if isinstance(colluders, int) else max(len(colluders), 1)
        changed: dict[str, Any] = {
            "protocol": "masked" if tolerate <= 1 else f"masked:tolerate={tolerate}",
            "network": f"complete:{n}" if n is not None else _graph(plan),
        }
        if hasattr(plan, "noise"):
            changed["noise"] = "equal"
        if isinstance(getattr(plan, plan.noise_field), tuple):
            changed["noise_multiplier"] = 1.0
        if n is not None and plan.sizes is not None:
            changed["sizes"] = (max(1, round(sum(plan.sizes) / plan.n)),) * n
        return replace(plan, **changed)

    def calibrated(self, plan: Any) -> Any:
        try:
            return plan.calibrated_to(self.budget.epsilon, self.budget.delta, **self.budget.adversary)
        except SottovoceError:
            return None

    def meets_budget(self, plan: Any) -> bool:
        guarantee = plan.privacy(**self.budget.adversary)
        return bool(guarantee.valid and guarantee.epsilon(self.budget.delta) <= self.budget.epsilon)

    def usefulness(self, plan: Any) -> Usefulness:
        if self.sample is None or is_average(plan):
            return usefulness(plan)
        return usefulness(plan, sample=self.sample, runs=_RUNS)

    def is_useful(self, plan: Any) -> bool:
        return self.usefulness(plan).useful is True

    def answer(self, plan: Any) -> str:
        use = self.usefulness(plan)
        if use.error is not None:
            return f"± {math.hypot(use.error, use.bias):.3g}"
        if use.score is not None:
            return str(use.score)
        return f"signal {use.signal:.3g} times the noise"


def _noise(plan: Any) -> float:
    noise = plan.noise_multiplier
    return float(max(noise) if isinstance(noise, tuple) else noise)


def _scalar(plan: Any) -> float | None:
    """The noise that ``with_noise`` takes, where it is one number."""
    noise = getattr(plan, plan.noise_field)
    return float(noise) if isinstance(noise, (int, float)) and noise > 0 else None


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
