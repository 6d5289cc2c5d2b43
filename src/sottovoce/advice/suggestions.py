"""Suggestions for a plan that is not private enough, or whose answer is of no use.

Suggestions are ordered by what they cost people: the noise that the budget needs, another protocol, a record
instead of a member as what is hidden, a larger epsilon, more members, more records. Each was tried on a plan
made for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from sottovoce._format import number, significant
from sottovoce.accounting.budget import Budget
from sottovoce.advice.candidates import calibrated
from sottovoce.advice.samples import Sample
from sottovoce.advice.usefulness import Usefulness, is_average, usefulness
from sottovoce.algorithms.averaging import PrivateAveraging
from sottovoce.algorithms.consensus_sgd import ConsensusSGD
from sottovoce.algorithms.gradient_plan import GradientPlan
from sottovoce.algorithms.muffliato_sgd import MuffliatoSGD
from sottovoce.algorithms.plan import Plan
from sottovoce.errors import SottovoceError
from sottovoce.objectives import GLM

_RUNS = 4  # of a simulation that only decides useful or not
_MOST_MEMBERS = 1024
_MOST_TRAINING_MEMBERS = 64  # each trial is accounted over many steps, and may be a simulation


@dataclass(frozen=True)
class Suggestion:
    """One change after which something fits: what changes, to which value, and a sentence."""

    what: str
    value: float | str
    sentence: str


def suggestions(
    plan: Plan,
    budget: Budget,
    *,
    sample: Sample | None = None,
    records: int = 100,
    fits: Callable[[Usefulness], bool] = lambda use: use.useful is not False,
    most: int = 3,
) -> tuple[Suggestion, ...]:
    """Return the cheapest changes to a plan that meet the budget and give a useful answer.

    Parameters
    ----------
    plan : the plan as it is.
    budget : what may be spent, and against which view.
    sample : public or synthetic records to judge training by; None judges by signal and noise.
    records : of each member, for the error of an average over records.
    fits : whether an answer is good enough; by default, one that is not useless for certain.
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
    >>> [suggestion.what for suggestion in suggestions(plan, budget)]
    ['hide', 'epsilon', 'members']
    >>> suggestions(plan, budget)[1].sentence
    'Allow epsilon 6.62: ± 0.249.'
    """
    return tuple(islice(_Search(plan, budget, sample, records, fits).suggestions(), most))


class _Search:
    """One plan, one budget, and the changes that are tried in order."""

    def __init__(
        self,
        plan: Plan,
        budget: Budget,
        sample: Sample | None,
        records: int,
        fits: Callable[[Usefulness], bool],
    ) -> None:
        self.plan, self.budget, self.sample, self.each, self.fits = plan, budget, sample, records, fits
        # against these views masks change nothing: the noise of a member's own row decides
        own_noise_decides = budget.view in ("local", "outsider", "pairwise", "central")
        self.masks_help = plan.maskable and not own_noise_decides

    def suggestions(self) -> Iterator[Suggestion]:
        calibrated = self.calibrated(self.plan)
        for change in (self.noise, self.masks, self.record, self.larger_epsilon, self.members, self.records):
            try:
                suggestion = change(calibrated or self.plan)
            except SottovoceError:  # this change is not possible for this plan
                continue
            if suggestion is not None:
                yield suggestion

    # ---- the changes ----------------------------------------

    def noise(self, plan: Plan) -> Suggestion | None:
        before = self.plan.privacy(**self.budget.adversary)
        meets = before.valid and before.epsilon(self.budget.delta) <= self.budget.epsilon
        if meets or plan is self.plan or not isinstance(plan, (GradientPlan, PrivateAveraging)):
            return None
        multiplier = plan.noise_multiplier
        noise = float(max(multiplier) if isinstance(multiplier, tuple) else multiplier)
        return self.useful("noise", noise, f"Take noise {significant(noise, 'required noise')}", plan)

    def masks(self, plan: Plan) -> Suggestion | None:
        if not self.masks_help or plan.n < 3 or plan.schedule(0).masked:
            return None
        words = 'Take masked sums (protocol "masked")'
        return self.useful("protocol", "masked", words, self.calibrated(self.masked(plan)))

    def record(self, plan: Plan) -> Suggestion | None:
        if plan.adjacency != "user":
            return None
        hide = "Hide a record instead of a member"
        if isinstance(plan, PrivateAveraging):
            answer = self.useful_answer(self.calibrated(self.mean_of_records(plan)))
            if answer is None:
                return None
            view = " --view outsider" if self.budget.view == "outsider" else ""
            epsilon = number(self.budget.epsilon, "limit")
            command = f"advise {plan.n} --epsilon {epsilon} --records {self.each}{view}"
            sentence = f"{hide}, with {self.each:,} records each: {answer} (sottovoce {command})."
            return Suggestion("hide", "record", sentence)
        if "add-remove" not in plan.adjacencies or plan.sizes is None:
            return None
        record: Plan = replace(plan, adjacency="add-remove")  # type: ignore[type-var]
        suggestion = self.useful("hide", "record", hide, self.calibrated(record))
        if suggestion is None and plan.n >= 3 and self.masks_help:
            hide += ", and take masked sums"
            suggestion = self.useful("hide", "record", hide, self.calibrated(self.masked(record)))
        return suggestion

    def larger_epsilon(self, plan: Plan) -> Suggestion | None:
        noise = getattr(plan, plan.noise_field)
        if isinstance(noise, tuple) or not noise > 0:
            return None
        factor = _least(lambda f: self.useful_answer(plan.with_noise(noise / f)) is not None, 1.0, 2.0**24)
        if factor is None:
            return None
        quieter = plan.with_noise(noise / factor)
        epsilon = quieter.privacy(**self.budget.adversary).epsilon(self.budget.delta)
        rounded = significant(epsilon, "epsilon", 3)
        return self.useful("epsilon", float(rounded), f"Allow epsilon {rounded}", quieter)

    def members(self, plan: Plan) -> Suggestion | None:
        if not self.masks_help:
            return None
        most = _MOST_MEMBERS if is_average(plan) else _MOST_TRAINING_MEMBERS

        def larger(n: int) -> Plan | None:
            return self.calibrated(self.masked(plan, n))

        count = _least_whole(lambda n: self.useful_answer(larger(n)) is not None, max(plan.n, 3), most)
        if count is None or count == plan.n:
            return None
        return self.useful("members", count, f"Find {count:,} members and take masked sums", larger(count))

    def records(self, plan: Plan) -> Suggestion | None:
        if not isinstance(plan, GradientPlan) or plan.sizes is None or plan.batch_size is not None:
            return None
        if plan.adjacency == "user":
            return None

        def larger(factor: float) -> GradientPlan:
            return replace(plan, sizes=tuple(math.ceil(factor * size) for size in plan.sizes or ()))

        factor = _least(lambda f: self.useful_answer(larger(f)) is not None, 1.0, 2.0**20)
        if factor is None or factor == 1.0:
            return None
        each = round(sum(larger(factor).sizes or ()) / plan.n)
        return self.useful("records", each, f"Collect {each:,} records at each member", larger(factor))

    # ---- shared by the changes ------------------------------

    def mean_of_records(self, plan: PrivateAveraging) -> Plan:
        """Return the mean of all members' records over the same protocol: one step of least squares on 1."""
        options: dict[str, Any] = {key: getattr(plan, key) for key in ("protocol", "network", "seed")}
        algorithm: type[GradientPlan] = MuffliatoSGD
        if plan.schedule(0).reaches_consensus:
            algorithm = ConsensusSGD
            options |= {key: getattr(plan, key) for key in ("noise_allocation", "floor", "tolerate")}
        return algorithm(
            GLM("squared", dim=1),
            steps=1,
            learning_rate=1.0,
            clip_norm=float(plan.radius),
            adjacency="add-remove",
            sizes=(self.each,) * plan.n,
            noise_multiplier=1.0,
            **options,
        )

    def masked(self, plan: Plan, n: int | None = None) -> Plan:
        """Return the plan over masked sums, and of ``n`` members with as many records each."""
        colluders = self.budget.colluders
        tolerate = colluders if isinstance(colluders, int) else len(colluders)
        network = plan.network  # type: ignore[attr-defined]  # a plan that takes masks has one
        changes: dict[str, Any] = {
            "protocol": "masked" if tolerate <= 1 else f"masked:tolerate={tolerate}",
            "network": plan.schedule(0).network if network is None else network,
        }
        if isinstance(plan, (PrivateAveraging, ConsensusSGD)):
            changes["noise_allocation"] = "equal"
        if isinstance(getattr(plan, plan.noise_field), tuple):
            changes["noise_multiplier"] = 1.0
        if n is not None:
            changes["network"] = f"complete:{n}"
            if plan.sizes is not None:
                changes["sizes"] = (max(1, round(sum(plan.sizes) / plan.n)),) * n
        masked: Plan = replace(plan, **changes)  # type: ignore[type-var]
        return masked

    def calibrated(self, plan: Plan) -> Plan | None:
        """Return the plan with the least noise that meets the budget, None where no noise does."""
        epsilon, delta, adversary = self.budget.epsilon, self.budget.delta, self.budget.adversary
        noise = getattr(plan, plan.noise_field)
        try:
            if isinstance(noise, float) and noise > 0 and plan.privacy(**adversary).curve.is_gaussian:
                return calibrated(plan, lambda trial: [trial.privacy(**adversary)], epsilon, delta)
            return plan.calibrated_to(epsilon, delta, **adversary)
        except SottovoceError:
            return None

    def useful(self, what: str, value: float | str, words: str, plan: Plan | None) -> Suggestion | None:
        """Return the suggestion of a change that leads to a plan, None where its answer is of no use."""
        answer = self.useful_answer(plan)
        return None if answer is None else Suggestion(what, value, f"{words}: {answer}.")

    def useful_answer(self, plan: Plan | None) -> str | None:
        """Return how good the answer of a plan is, None where it is of no use for certain."""
        if plan is None:
            return None
        sample = None if is_average(plan) else self.sample
        use = usefulness(plan, sample=sample, runs=_RUNS)
        return use.answer if self.fits(use) else None


def _least(works: Callable[[float], bool], low: float, most: float) -> float | None:
    """Return the smallest value from ``low`` on that works, to one percent; None if none up to ``most`` does.

    A larger value must never make things worse.
    """
    high = low
    while not works(high):
        if high >= most:
            return None
        low, high = high, min(high * 2, most)
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if works(middle) else (middle, high)
    return high


def _least_whole(works: Callable[[int], bool], low: int, most: int) -> int | None:
    """Return the smallest whole number from ``low`` on that works, large ones to one percent."""
    high = low
    while not works(high):
        low, high = high, high * 2
        if high > most:
            return None
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if works(middle) else (middle, high)
    return high
