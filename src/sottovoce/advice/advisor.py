"""Which plan to take, for example for twelve hospitals, epsilon 2 and a required accuracy.

Candidates at their least noise become rows; each row is judged against the requirements, and the rows are
ranked. Where nothing fits, the smallest change after which something does is searched for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sottovoce._format import number
from sottovoce.accounting.budget import Budget
from sottovoce.accounting.wording import guess
from sottovoce.advice import files
from sottovoce.advice.candidates import STEPS, AveragingCandidate, averaging_candidates, plan_for
from sottovoce.advice.comparison import PlanSummary, draw_front, pareto, summarize
from sottovoce.advice.requirements import Requirements
from sottovoce.advice.samples import Sample, SampleArgument
from sottovoce.advice.suggestions import Suggestion, suggestions
from sottovoce.advice.usefulness import Score, Usefulness, simulate, usefulness
from sottovoce.algorithms.gradient_plan import GradientPlan
from sottovoce.algorithms.plan import Plan
from sottovoce.data.base import Dataset
from sottovoce.errors import BudgetInfeasible, InvalidInput
from sottovoce.graphs import Network

if TYPE_CHECKING:
    import networkx as nx

_LEARNING_RATES = {"logistic": (1.0, 4.0, 16.0), "linear": (0.5, 1.0, 1.9), "net": (0.1, 0.5)}
_SAMPLE_RATE = 0.1
# runs of a simulation: to choose the learning rate, for every row, for the best rows
_RUNS = {"logistic": (2, 4, 20), "linear": (2, 4, 20), "net": (1, 2, 4)}
_NO_SUGGESTION = " No change of what is hidden, of epsilon, members or records alone helps; ask for less."


@dataclass(frozen=True)
class Advice:
    """A ranked table, the recommended row with its reasons, and what would change the choice.

    Attributes
    ----------
    requirements : what is required.
    rows : the candidates, best first; those that do not fit come last and say why.
    recommended : the row to take, or None.
    reasons : whether it meets the budget, what to expect, what it hides and costs, and the best guess.
    changes : the nearest alternatives, and what would have to be different for them to be taken.
    suggestions : where nothing fits, the least change after which one does: of the noise, the protocol, what
        is hidden, epsilon, members, records or seconds.
    simulated_on : what simulations were run on.

    Examples
    --------
    >>> import sottovoce as sv
    >>> advice = sv.advise(6, epsilon=1.0, delta=1e-5, records=100)
    >>> advice.changes[0]
    'If members cannot share keys: mean by tree with few leaves, uneven noise, ± 0.00482.'
    """

    requirements: Requirements
    rows: tuple[PlanSummary, ...]
    recommended: PlanSummary | None
    reasons: str
    changes: tuple[str, ...]
    suggestions: tuple[Suggestion, ...]
    simulated_on: str

    @property
    def plan(self) -> Plan:
        """The recommended plan. For the mean of records it learns one coefficient of a column of ones.

        Its labels are the values less the middle of their range; `save` writes this down as a plan file.
        """
        if self.recommended is None:
            raise BudgetInfeasible(f"Nothing fits: {self.reasons}")
        return self.recommended.plan

    def plot(self, path: str | Path) -> Path:
        """Draw the front (time against error) as an SVG or PNG file."""
        values = f"{self.requirements.low:g} to {self.requirements.high:g}"
        units = {"mean": f"error of the mean (values in {values})", "linear": f"error (targets in {values})"}
        unit = units.get(self.requirements.compute, "share of wrong answers")
        if all(row.use.off is None and row.use.score is None for row in self.rows):
            unit = "noise over the largest possible signal"
        return draw_front(self.rows, path, chosen=self.recommended, unit=unit)

    def save(self, folder: str | Path) -> list[Path]:
        """Write plan.toml, the draft of an agreement, the front and the table into a folder."""
        return files.save(self, Path(folder))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return vars(self) | {
            "requirements": self.requirements.to_dict(),
            "rows": [row.to_dict() for row in self.rows],
            "recommended": None if self.recommended is None else self.recommended.name,
            "suggestions": [dict(vars(suggestion)) for suggestion in self.suggestions],
        }

    @property
    def headline(self) -> str:
        """What to take, or that nothing fits."""
        return "Nothing fits." if self.recommended is None else f"Take: {self.recommended.name}."

    def __str__(self) -> str:
        suggestions = [suggestion.sentence for suggestion in self.suggestions]
        lines = [f"{self.headline} {self.reasons}", *self.changes, *suggestions, self.simulated_on]
        return "\n".join(lines)


def advise(
    members: int | str | Network | nx.Graph | Iterable[Sequence[object]],
    *,
    sample: SampleArgument | None = None,
    progress: Callable[[int], None] = lambda done: None,
    **requirements: Any,
) -> Advice:
    """Return which plan to take, with reasons, alternatives and files; nothing private is read.

    Parameters
    ----------
    members : a number (anyone can reach anyone), pairs of members that can talk, a network or its name.
    sample : public records (X, y) to simulate training on; None: synthetic ones for linear models.
    progress : called with the number of candidates done.
    requirements : ``epsilon``, ``delta``, ``records`` and everything else that
        `sottovoce.advice.Requirements.from_arguments` takes.

    Guarantees
    ----------
    Every epsilon in the answer was computed for the plan it stands beside. The recommended plan meets the
    budget against the view of the requirements. Simulations use public or synthetic records, and the answer
    says which.

    Examples
    --------
    >>> import sottovoce as sv
    >>> advice = sv.advise(10, epsilon=1.0, delta=1e-5, hide="member", records=200)
    >>> advice.recommended is None  # ± 0.39 for values in [0, 1] is no answer
    True
    >>> advice.suggestions[1].sentence
    'Allow epsilon 1.66: ± 0.25.'
    >>> advice = sv.advise(10, epsilon=1.0, delta=1e-5, records=200)
    >>> advice.recommended.name, round(advice.recommended.use.error, 4)
    ('mean by masked sum', 0.001)
    """
    if requirements.get("compute") in ("logistic", "linear") and requirements.get("features") is None:
        X = sample.X if isinstance(sample, Dataset) else sample[0] if isinstance(sample, tuple) else None
        requirements["features"] = None if X is None else np.shape(X)[-1]
    required = Requirements.from_arguments(members, **requirements)
    records = _sample(required, sample)
    source = "No data were read; errors are computed by formulas."
    if records is not None:
        source = f"Simulated on {records.source}; nothing private was read."
    elif required.training:
        source = "No data were read and nothing was simulated; give public records as a sample for a score."
    candidates = _Evaluation(required, records).rows(progress)
    rows = tuple(_ranked(pareto([_judged(required, row) for row in candidates])))
    best = rows[0]
    if best.fits:
        return Advice(required, rows, best, _reasons(required, best), _changes(required, rows), (), source)
    changes = _suggestions(required, records, rows)
    best = min(rows, key=_quietest_first)
    reasons = f"The best, {best.name}: {' '.join(best.problems)}" + ("" if changes else _NO_SUGGESTION)
    return Advice(required, rows, None, reasons, (), changes, source)


def _sample(requirements: Requirements, sample: SampleArgument | None) -> Sample | None:
    if not requirements.training:
        if sample is not None:
            raise InvalidInput("a mean needs no sample: its error is a closed form; leave sample out.")
        return None
    net, linear = requirements.compute == "net", requirements.compute == "linear"
    if net and sample is None:
        return None
    public = Sample.from_argument(
        "synthetic" if sample is None else sample,
        "squared" if linear else requirements.compute,
        requirements.features or 1,
        unit=requirements.half if linear else 1.0,
        middle=requirements.middle if linear else 0.0,
    )
    if not net and public.features != requirements.features:
        raise InvalidInput(
            f"the sample has {public.features} features, the model "
            f"{requirements.features}; leave features out to take "
            "the sample's."
        )
    return public


# ---- the rows -----------------------------------------------------------------------------------------


class _Evaluation:
    """The candidates for some requirements at their least noise; simulated where there is a sample."""

    def __init__(self, requirements: Requirements, sample: Sample | None) -> None:
        self.requirements, self.sample = requirements, sample
        self.rate_runs, self.row_runs, self.best_runs = _RUNS.get(requirements.compute, (0, 0, 0))
        self.rates: dict[tuple[int, float], float] = {}
        self.best: dict[tuple[object, ...], float] = {}
        self.scores: dict[tuple[object, ...], Score] = {}

    def rows(self, progress: Callable[[int], None]) -> list[PlanSummary]:
        """Return a row for each candidate, number of steps and sample rate."""
        requirements = self.requirements
        steps = STEPS[requirements.compute]
        enough = requirements.hide == "record" and min(requirements.sizes) >= 10 / _SAMPLE_RATE
        rows: list[PlanSummary] = []
        for candidate in averaging_candidates(requirements):
            settings = [(count, 1.0) for count in steps]
            if requirements.training and candidate.has("masked") and enough:
                settings.append((steps[-1], _SAMPLE_RATE))
            for setting in settings:
                rows.append(self.row(candidate, *setting))
                progress(len(rows))
        return rows if self.sample is None else self.scored(rows)

    def scored(self, rows: list[PlanSummary]) -> list[PlanSummary]:
        """Return the rows, the best of them simulated more often, all compared with the same best score.

        Every row is compared with what the longest training learns without noise, not with its own.
        """
        scores = {k: row.use.score for k, row in enumerate(rows) if row.use.score is not None}
        for k in sorted(scores, key=lambda k: rows[k].loss)[:3]:
            scores[k] = self.score(rows[k].plan, self.best_runs)
        best = (min if scores[0].lower_is_better else max)(score.best for score in scores.values())
        return [
            replace(row, use=row.use.with_score(replace(scores[k], best=best))) for k, row in enumerate(rows)
        ]

    def row(self, candidate: AveragingCandidate, steps: int, sample_rate: float) -> PlanSummary:
        requirements = self.requirements
        rate = self.rate(candidate, steps, sample_rate)
        plan = plan_for(requirements, candidate, steps=steps, learning_rate=rate, sample_rate=sample_rate)
        name, use = f"mean by {candidate.name}", usefulness(plan)
        if self.sample is not None:
            use = use.with_score(self.score(plan, self.row_runs))
        if requirements.training:
            name = f"{candidate.name} ({plan.name}), {steps} steps"
            name += f", batches of {sample_rate:.0%}" if sample_rate < 1 else ""
        return summarize(
            name,
            plan,
            use,
            delta=requirements.delta,
            colluders=max(2, requirements.colluders),
            latency=requirements.latency,
            candidate=candidate,
        )

    def rate(self, candidate: AveragingCandidate, steps: int, sample_rate: float) -> float:
        """Return the learning rate that did best in a few simulated runs of the first candidate."""
        if not self.requirements.training:
            return 1.0
        rates = _LEARNING_RATES[self.requirements.compute]
        if self.sample is None:
            return rates[-1]
        if (steps, sample_rate) not in self.rates:
            plan = plan_for(self.requirements, candidate, steps=steps, sample_rate=sample_rate)
            assert isinstance(plan, GradientPlan)
            trials = {rate: replace(plan, learning_rate=rate) for rate in rates}
            scores = {rate: self.score(trial, self.rate_runs) for rate, trial in trials.items()}
            self.rates[steps, sample_rate] = min(rates, key=lambda rate: scores[rate].loss)
        return self.rates[steps, sample_rate]

    def score(self, plan: Plan, runs: int) -> Score:
        """Return the score of a plan; with exact consensus it depends on the noise of a step alone."""
        assert self.sample is not None
        assert isinstance(plan, GradientPlan)
        kind = (plan.name, plan.steps, plan.rate(0), plan.sample_rate)
        key = (*kind, f"{usefulness(plan).signal_to_noise:.6g}", runs)
        if key not in self.scores:
            seed, best = self.requirements.seed, self.best.get(kind)
            self.scores[key] = simulate(plan, self.sample, runs=runs, seed=seed, best=best)
            self.best[kind] = self.scores[key].best
        return self.scores[key]


def _judged(requirements: Requirements, row: PlanSummary) -> PlanSummary:
    """Return the row with whether it meets the budget, and all reasons why it does not fit."""
    epsilons = [row.epsilon(view) for view, _ in requirements.views]
    private = all(epsilon is not None and epsilon <= requirements.epsilon for epsilon in epsilons)
    target, seconds = requirements.target, requirements.seconds
    problems: list[str] = []
    if not private:
        problems.append(f"it spends more than epsilon {number(requirements.epsilon, 'limit')}.")
    if row.use.useful is False:
        problems.append(row.use.sentence)
    if not _reaches(row.use, target):
        problems.append(f"{row.use.answer} misses the target of {target or 0.0:g}.")
    if seconds and row.seconds > seconds:
        problems.append(f"it takes {row.seconds:.3g} s, more than {seconds:g}.")
    if requirements.silent == "go on" and not row.tolerates_dropout:
        problems.append("a silent member stops it.")
    return replace(row, private=private, problems=tuple(problems))


def _reaches(use: Usefulness, target: float | None) -> bool:
    """Whether the answer is as good as required; where nothing was simulated, it may be."""
    if target is None or (use.score is None and use.off is None):
        return True
    if use.score is None:
        return (use.off or 0.0) <= target
    return use.score.mean <= target if use.score.lower_is_better else use.score.mean >= target


def _ranked(rows: Sequence[PlanSummary]) -> list[PlanSummary]:
    """Return fitting rows first, best answer first; about equal answers are ordered by noise, then time."""
    order = sorted(rows, key=lambda row: (not row.fits, row.loss, row.seconds))
    best = order[0]
    if not best.fits:
        return order
    slack = 0.01 * best.loss if best.use.score is None else best.use.score.half / 2
    near = [row for row in order if row.fits and row.loss <= best.loss + slack]
    front = [row for row in near if row.dominated_by is None] or near
    first = min(front, key=lambda row: (_noisiness(row), row.seconds, row.messages, row.loss))
    return [first, *(row for row in order if row is not first)]


def _noisiness(row: PlanSummary) -> float:
    """Return the noise of the run in steps of a tenth: of equal scores the quieter plan is the safer one."""
    return round(-10 * math.log(row.use.signal_to_noise)) if row.use.signal_to_noise else 0.0


def _quietest_first(row: PlanSummary) -> tuple[float, float, float]:
    """Order rows by noise first, because scores depend on the chance of a simulation."""
    return _noisiness(row), row.loss, row.seconds


# ---- words --------------------------------------------------------------------------------------------


def _reasons(requirements: Requirements, best: PlanSummary) -> str:
    expected = f"What to expect: {best.use.answer} (one standard deviation)."
    if best.use.error is not None:
        counted = "noise and largest bias" if best.use.bias else "one standard deviation"
        expected = (
            f"The mean will be right to about {best.use.answer} ({counted}), on a scale from "
            f"{requirements.low:g} to {requirements.high:g}."
        )
    elif best.use.score is None:
        expected = "How good the model will be is not known; give public records as a sample for a score."
    hidden = "a whole member" if requirements.hide == "member" else "a single record"
    rounds = f"{best.rounds:,} {'round' if best.rounds == 1 else 'rounds'} ({best.seconds:.3g} s)"
    return (
        f"It meets epsilon {number(requirements.epsilon, 'limit')} at delta "
        f"{number(requirements.delta, 'delta')} against {requirements.adversary}. "
        f"{expected} It hides {hidden} and takes {rounds} and {best.messages:,} messages. The best guess of "
        f"any one member is right {guess(best.best_guess)}."
    )


def _changes(requirements: Requirements, rows: Sequence[PlanSummary]) -> tuple[str, ...]:
    best, *others = rows
    private = [row for row in others if row.private]
    sentences = []

    def alternative(condition: str, row: PlanSummary | None) -> None:
        if row is not None:
            but = ", which is not useful" if row.use.useful is False else ""
            sentences.append(f"If {condition}: {row.name}, {row.use.answer}{but}.")

    if best.masked:
        alternative("members cannot share keys", next((row for row in private if not row.masked), None))
    if not best.tolerates_dropout:
        gossip = next((row for row in private if row.tolerates_dropout), None)
        alternative("the run must go on when a member falls silent", gossip)
    largest, total = max(requirements.sizes), requirements.total
    if requirements.hide == "record" and 2 * largest > total and requirements.n > 2:
        name = requirements.network.node_name(requirements.sizes.index(largest))
        sentences.append(
            f"Member {name} holds {largest / total:.1%} of all records, so the answer is mostly its own; the "
            "mean of the members' means is what gossip computes."
        )
    return tuple(sentences)


# ---- where nothing fits -------------------------------------------------------------------------------


def _suggestions(
    requirements: Requirements, sample: Sample | None, rows: Sequence[PlanSummary]
) -> tuple[Suggestion, ...]:
    """Return the least that would have to change, one at a time."""
    waits = requirements.silent == "wait"
    possible = [row for row in rows if waits or row.tolerates_dropout]
    if not possible:
        return ()
    best = min(possible, key=_quietest_first)
    allowed = requirements.seconds
    if allowed is not None and best.seconds > allowed:
        if best.use.useful is not False:
            return (Suggestion("seconds", best.seconds, f"Allow {best.seconds:.3g} s."),)
        return ()
    view, colluders = requirements.views[0]
    budget = Budget(requirements.epsilon, requirements.delta, view=view, colluders=colluders or ())
    records = round(requirements.total / requirements.n)
    return suggestions(
        best.plan,
        budget,
        sample=sample,
        records=records if records > 1 else 100,
        fits=lambda use: use.useful is not False and _reaches(use, requirements.target),
    )
