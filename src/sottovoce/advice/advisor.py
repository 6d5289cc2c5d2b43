"""Which plan to take: twelve hospitals, epsilon 2, this accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.advice import files
from sottovoce.advice.candidates import (
    FEW_LEAVES,
    STEPS,
    AveragingCandidate,
    averaging_candidates,
    each_candidate,
    plan_for,
    statement,
)
from sottovoce.advice.comparison import COLUMNS, PlanSummary, pareto, summarize
from sottovoce.advice.requirements import Requirements
from sottovoce.advice.samples import Sample, features_and_labels
from sottovoce.advice.suggestions import Suggestion, least, least_whole
from sottovoce.advice.usefulness import Score, Usefulness, simulate, step_noise, usefulness
from sottovoce.errors import BudgetInfeasible, InvalidInput

RATES = {"logistic": (1.0, 4.0, 16.0), "linear": (0.5, 1.0, 1.9), "net": (0.1, 0.5)}
BATCH_SHARE = 0.1
# runs of a simulation: for rates, for every row, for the best rows
RUNS = {"logistic": (2, 4, 20), "linear": (2, 4, 20), "net": (1, 2, 4)}
_MOST_MEMBERS = 1024
_NO_WAY = (
    " Neither a larger epsilon (up to 4,096), nor more members, nor a million times as many records would "
    "change that; ask for less."
)


@dataclass(frozen=True)
class Advice:
    """A ranked table, the row to take with its reasons, and what would change the choice.

    Attributes
    ----------
    requirements : what is wanted.
    rows : the candidates, best first; those that do not fit come last and say why.
    recommended : the row to take, or None.
    reasons : two sentences.
    changes : the nearest alternatives, and what would have to be different for them to be taken.
    suggestions : where nothing fits, the smallest epsilon, number of members or records at which one does.
    simulated_on : what simulations were run on.

    Examples
    --------
    >>> advice = advise(6, epsilon=1.0, delta=1e-5, records=100)
    >>> advice.changes[0]
    'If members cannot share keys: consensus-sgd over tree, few leaves, ± 0.00482.'
    """

    requirements: Requirements
    rows: tuple[PlanSummary, ...]
    recommended: PlanSummary | None
    reasons: str
    changes: tuple[str, ...]
    suggestions: tuple[Suggestion, ...]
    simulated_on: str

    @property
    def plan(self) -> Any:
        """The recommended plan, ready to run."""
        if self.recommended is None:
            raise BudgetInfeasible(f"Nothing fits: {self.reasons}")
        return self.recommended.plan

    def table(self) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """Return the columns and the rows of the table."""
        return COLUMNS, [row.cells() for row in self.rows]

    def plot(self, path: str | Path) -> Path:
        """Draw the front (time against error) as an SVG or PNG file."""
        from sottovoce.advice.plot import draw_front

        return draw_front(self.rows, path, chosen=self.recommended, unit=_unit(self.requirements))

    def save(self, folder: str | Path) -> list[Path]:
        """Write plan.toml, the draft of an agreement, the front and the table into a folder."""
        return files.save(self, Path(folder))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "requirements": files.to_dict(self.requirements),
            "rows": [row.to_dict() for row in self.rows],
            "recommended": None if self.recommended is None else self.recommended.name,
            "reasons": self.reasons,
            "changes": list(self.changes),
            "suggestions": [dict(vars(way)) for way in self.suggestions],
            "simulated_on": self.simulated_on,
        }

    def __str__(self) -> str:
        head = "Nothing fits." if self.recommended is None else f"Take {self.recommended.name}."
        ways = [way.sentence for way in self.suggestions]
        return "\n".join([f"{head} {self.reasons}", *self.changes, *ways, self.simulated_on])


def advise(
    members: Any, *, sample: Any = None, progress: Callable[[int], None] | None = None, **requirements: Any
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
    >>> [suggestion.sentence for suggestion in advice.suggestions][:2]
    ['Hide a record instead of a member: ± 0.000983.', 'Allow epsilon 1.65.']
    >>> advice = sv.advise(10, epsilon=1.0, delta=1e-5, records=200)
    >>> advice.recommended.name, round(advice.recommended.use.error, 4)
    ('consensus-sgd over masked', 0.001)
    """
    if requirements.get("features") is None and sample is not None:
        if requirements.get("compute") in ("logistic", "linear"):
            requirements["features"] = _columns(sample)
    wanted = Requirements.from_arguments(members, **requirements)
    chosen = _sample(wanted, sample)
    ranked = _ranked(pareto(_CandidateEvaluation(wanted, chosen, progress).rows()))
    source = _sample_in_words(wanted, chosen)
    if ranked and ranked[0].fits:
        reasons, changes = _reasons(wanted, ranked), _changes(wanted, ranked)
        return Advice(wanted, tuple(ranked), ranked[0], reasons, changes, (), source)
    suggested = _suggestions(wanted, chosen, ranked)
    reasons = _why_not(ranked) + ("" if suggested else _NO_WAY)
    return Advice(wanted, tuple(ranked), None, reasons, (), suggested, source)


def _columns(sample: Any) -> int | None:
    """Return how many features a public sample has, where the caller does not say it."""
    if isinstance(sample, str):
        return None
    shape = np.shape(features_and_labels(sample)[0])
    return int(shape[1]) if len(shape) == 2 else None


def _sample(requirements: Requirements, sample: Any) -> Sample | None:
    if not requirements.training:
        if sample is not None:
            raise InvalidInput("a mean needs no sample: its error is a closed form; leave sample out.")
        return None
    kind = {"linear": "squared"}.get(requirements.compute, requirements.compute)
    unit = requirements.half if requirements.compute == "linear" else 1.0
    if sample is None or (isinstance(sample, str) and sample == "synthetic"):
        return None if kind == "net" else Sample.synthetic(kind, requirements.features or 1, unit)
    if isinstance(sample, str):
        raise InvalidInput(f'sample must be "synthetic", (X, y) or a Dataset, got {sample!r}.')
    X, y = features_and_labels(sample)
    public = Sample.public(kind, X, y, unit=unit, middle=requirements.middle if kind == "squared" else 0.0)
    if kind != "net" and public.features != requirements.features:
        raise InvalidInput(
            f"the sample has {public.features} features, the model {requirements.features}; leave features "
            "out to take the sample's."
        )
    return public


def _sample_in_words(requirements: Requirements, sample: Sample | None) -> str:
    if not requirements.training:
        return "No data were read; errors are closed forms."
    if sample is None:
        return "No data were read and nothing was simulated; give public records as a sample for a score."
    return f"Simulated on {sample.source}; nothing private was read."


# ---- the candidates -----------------------------------------------------------------------------------


class _CandidateEvaluation:
    """The candidates of one requirements, each at its least noise."""

    def __init__(
        self, requirements: Requirements, sample: Sample | None, progress: Callable[[int], None] | None
    ) -> None:
        self.requirements, self.sample, self.progress = requirements, sample, progress
        self.tuning, self.first, self.final = RUNS.get(requirements.compute, (0, 0, 0))
        self.rates: dict[tuple[int, float], float] = {}
        self.best: dict[tuple[Any, ...], float] = {}
        self.scores: dict[tuple[Any, ...], Score] = {}
        self.done = 0

    def rows(self) -> list[PlanSummary]:
        rows = [row for candidate in averaging_candidates(self.requirements) for row in self.of(candidate)]
        if self.sample is None or not self.requirements.training:
            return rows
        leading = sorted(rows, key=lambda row: row.loss)[:3]
        rows = [self.again(row) if any(row is one for one in leading) else row for row in rows]
        return self.against_the_best(rows)

    def of(self, candidate: AveragingCandidate) -> list[PlanSummary]:
        requirements = self.requirements
        if not requirements.training:
            return [self.row(candidate, 1, 1.0, 1.0)]
        settings = [(steps, 1.0) for steps in STEPS[requirements.compute]]
        if candidate.masked and requirements.hide == "record" and min(requirements.sizes) >= 10 / BATCH_SHARE:
            settings.append((STEPS[requirements.compute][-1], BATCH_SHARE))
        return [
            self.row(candidate, steps, self.rate(candidate, steps, share), share) for steps, share in settings
        ]

    def rate(self, candidate: AveragingCandidate, steps: int, share: float) -> float:
        """Return the rate that did best in a few simulated runs of the first candidate."""
        rates = RATES[self.requirements.compute]
        if self.sample is None:
            return rates[len(rates) // 2]
        if (steps, share) not in self.rates:
            plan: Any = plan_for(self.requirements, candidate, steps=steps, share=share)
            tried = {}
            for rate in rates:
                score = self.score(replace(plan, learning_rate=rate), self.tuning)
                tried[rate] = score.mean if score.lower_is_better else -score.mean
            self.rates[steps, share] = min(tried, key=lambda rate: tried[rate])
        return self.rates[steps, share]

    def score(self, plan: Any, runs: int) -> Score:
        """Return the score of a plan; of exact consensus it depends on the noise of a step alone."""
        assert self.sample is not None
        kind = (plan.name, plan.steps, plan.rate(0), plan.sample_rate)
        key = (*kind, float(f"{step_noise(plan):.6g}"), runs)
        if key not in self.scores:
            self.scores[key] = simulate(
                plan, self.sample, sizes=self.requirements.sizes, runs=runs, seed=self.requirements.seed,
                best=self.best.get(kind),
            )  # fmt: skip
            self.best[kind] = self.scores[key].best
        return self.scores[key]

    def row(self, candidate: AveragingCandidate, steps: int, rate: float, share: float) -> PlanSummary:
        requirements = self.requirements
        plan = plan_for(requirements, candidate, steps=steps, learning_rate=rate, share=share)
        use = usefulness(plan)
        if requirements.training and self.sample is not None:
            use = _with_score(use, self.score(plan, self.first))
        row = summarize(
            _named(requirements, plan, candidate, share),
            plan,
            delta=requirements.delta,
            colluders=max(2, requirements.colluders),
            latency=requirements.latency,
            candidate=candidate,
            use=use,
        )
        self.done += 1
        if self.progress is not None:
            self.progress(self.done)
        return with_verdict(requirements, row)

    def against_the_best(self, rows: list[PlanSummary]) -> list[PlanSummary]:
        """Hold every row against what the longest training learns without noise, not against its own."""
        scores = [row.use.score for row in rows if row.use.score is not None]
        lower = scores[0].lower_is_better
        best = (min if lower else max)(score.best for score in scores)
        judged_anew = []
        for row in rows:
            score = row.use.score
            assert score is not None
            use = _with_score(row.use, replace(score, best=best))
            judged_anew.append(with_verdict(self.requirements, replace(row, use=use, problems=())))
        return judged_anew

    def again(self, row: PlanSummary) -> PlanSummary:
        """Return a leading row with a score of more runs."""
        use = _with_score(row.use, self.score(row.plan, self.final))
        return with_verdict(self.requirements, replace(row, use=use, problems=()))


def _with_score(use: Usefulness, score: Score) -> Usefulness:
    sentence = (
        f"a run on {score.source} ends at {score} (learning nothing: {score.chance:.3g}, without noise: "
        f"{score.best:.3g})."
    )
    return replace(use, useful=score.useful, score=score, sentence=sentence)


def _named(requirements: Requirements, plan: Any, candidate: AveragingCandidate, share: float) -> str:
    name = f"{plan.name} over {candidate.protocol}"
    if candidate.noise == "optimal":
        few = candidate.protocol.startswith(FEW_LEAVES)
        name = f"{plan.name} over tree, few leaves" if few else f"{name}, optimal noise"
    if requirements.training:
        name += f", {plan.steps} steps" + (f", batches of {share:.0%}" if share < 1 else "")
    return name


def with_verdict(requirements: Requirements, row: PlanSummary) -> PlanSummary:
    """Return the row with all that speaks against it; what it spends is what the plan answered."""
    assert row.candidate is not None
    problems = []
    spent = [getattr(row, f"epsilon_{view}") for view, _ in requirements.views]
    private = all(epsilon is not None and epsilon <= requirements.epsilon for epsilon in spent)
    if not private:
        problems.append(f"it spends more than epsilon {requirements.epsilon:g}.")
    if not row.use.useful:
        problems.append(row.use.sentence)
    if requirements.target is not None and not _reaches(row, requirements.target):
        problems.append(f"{row.answer} misses the target of {requirements.target:g}.")
    if requirements.seconds is not None and row.seconds > requirements.seconds:
        problems.append(f"it takes {row.seconds:.3g} s, more than {requirements.seconds:g}.")
    if requirements.silent == "go on" and not row.candidate.goes_on:
        problems.append("a silent member stops it.")
    return replace(row, private=private, problems=tuple(problems))


def _reaches(row: PlanSummary, target: float) -> bool:
    score = row.use.score
    if row.use.error is not None:
        return row.loss <= target
    if score is None:
        return True  # nothing was simulated, so nothing is known against it
    return score.mean <= target if score.lower_is_better else score.mean >= target


def _ranked(rows: Sequence[PlanSummary]) -> list[PlanSummary]:
    """Fitting rows first, the best answer first; those that cannot be told apart by noise, then time."""
    order = sorted(rows, key=lambda row: (not row.fits, row.loss, row.seconds))
    fitting = [row for row in order if row.fits]
    if not fitting:
        return order
    near = [row for row in fitting if row.loss <= fitting[0].loss + _slack(fitting[0])]
    front = [row for row in near if row.dominated_by is None] or near
    first = min(front, key=lambda row: (_noisiness(row), row.seconds, row.messages, row.loss))
    return [first, *(row for row in order if row is not first)]


def _noisiness(row: PlanSummary) -> float:
    """Noise of the run in steps of a tenth: of scores that look alike the quieter plan is the safer one."""
    return round(-10 * math.log(row.use.signal)) if row.use.signal else 0.0


def _slack(row: PlanSummary) -> float:
    score = row.use.score
    return 0.01 * row.loss if score is None else score.half / 2


# ---- words --------------------------------------------------------------------------------------------


def _unit(requirements: Requirements) -> str:
    if requirements.compute == "mean":
        return f"error of the mean (values in {requirements.low:g} to {requirements.high:g})"
    if requirements.compute == "linear":
        return f"error (targets in {requirements.low:g} to {requirements.high:g})"
    return "share of wrong answers"


def _reasons(requirements: Requirements, rows: Sequence[PlanSummary]) -> str:
    best = rows[0]
    others = [row for row in rows[1:] if row.fits and _kind(row) != _kind(best)]
    whom = files.adversary(requirements)
    first = f"It meets epsilon {requirements.epsilon:g} against {whom} and answers {best.answer}"
    if others:
        first += f", where the next kind of plan, {others[0].name}, answers {others[0].answer}"
    hidden = "a whole member" if requirements.hide == "member" else "a single record"
    second = (
        f"It hides {hidden}, takes {best.rounds:,} {'round' if best.rounds == 1 else 'rounds'} "
        f"({best.seconds:.3g} s) and {best.messages:,} "
        f"messages, and leaves the worst member guessing right {best.best_guess:.1%} of the time at best"
    )
    return f"{first}. {second}."


def _kind(row: PlanSummary) -> str:
    first, *others = row.name.split(", ")
    return ", ".join([first, *(word for word in others if word in ("few leaves", "optimal noise"))])


def _changes(requirements: Requirements, rows: Sequence[PlanSummary]) -> tuple[str, ...]:
    best = rows[0]
    sentences: list[str] = []
    private = [row for row in rows[1:] if row.private]
    if best.candidate is not None and best.candidate.masked:
        plain = next((row for row in private if row.candidate and not row.candidate.masked), None)
        if plain is not None:
            sentences.append(f"If members cannot share keys: {plain.name}, {plain.answer}{_but(plain)}.")
    if best.candidate is not None and not best.candidate.goes_on:
        gossip = next((row for row in private if row.candidate and row.candidate.goes_on), None)
        if gossip is not None:
            sentences.append(
                f"If the run must go on when a member falls silent: {gossip.name}, "
                f"{gossip.answer}{_but(gossip)}."
            )
    quick = min((row for row in private if row.fits), key=lambda row: row.seconds, default=None)
    if quick is not None and quick.seconds < best.seconds:
        sentences.append(f"If time matters more: {quick.name}, {quick.answer} in {quick.seconds:.3g} s.")
    largest = max(requirements.sizes)
    if requirements.hide == "record" and 2 * largest > requirements.total and requirements.n > 2:
        name = requirements.network.label(requirements.sizes.index(largest))
        sentences.append(
            f"Member {name} holds {largest / requirements.total:.1%} of all records, so the answer is mostly "
            "its own; the mean of the members' means is what gossip computes."
        )
    return tuple(sentences)


def _but(row: PlanSummary) -> str:
    return "" if row.use.useful else ", which is not useful"


def _why_not(rows: Sequence[PlanSummary]) -> str:
    if not rows:
        return "There is no candidate."
    best = _quietest(rows)
    return f"The best, {best.name}: {' '.join(best.problems)}"


def _quietest(rows: Sequence[PlanSummary]) -> PlanSummary:
    """The row whose answer is best but for the chance of a simulation."""
    return min(rows, key=lambda row: (_noisiness(row), row.loss, row.seconds))


# ---- where nothing fits -------------------------------------------------------------------------------


def _suggestions(
    requirements: Requirements, sample: Sample | None, rows: Sequence[PlanSummary]
) -> tuple[Suggestion, ...]:
    """Return the least that would have to change, one thing at a time."""
    good = [row for row in rows if requirements.silent == "wait" or (row.candidate and row.candidate.goes_on)]
    if not good:
        return ()
    best = _quietest(good)
    suggestions: list[Suggestion] = []

    def works(changed: Requirements) -> PlanSummary | None:
        return _fitting(changed, sample, best)

    if (
        requirements.hide == "member"
        and max(requirements.sizes) > 1
        and (row := works(requirements.changed(hide="record"))) is not None
    ):
        suggestions.append(Suggestion("hide", "record", f"Hide a record instead of a member: {row.answer}."))
    most_epsilon = 2.0**12 * max(requirements.epsilon, 1.0)
    epsilon = least(
        lambda e: works(requirements.changed(epsilon=e)) is not None, requirements.epsilon, most_epsilon
    )
    if epsilon is not None:
        suggestions.append(Suggestion("epsilon", epsilon, f"Allow epsilon {epsilon:.3g}."))
    most = _MOST_MEMBERS if sample is None else 128
    count = least_whole(lambda n: works(requirements.changed(members=n)) is not None, requirements.n, most)
    if count is not None:
        suggestions.append(
            Suggestion("members", count, f"Find {count:,} members, with as many records each.")
        )
    if requirements.hide == "record":
        each = max(1, round(requirements.total / requirements.n))
        more = least_whole(lambda r: works(requirements.changed(records=r)) is not None, each, each * 2**20)
        if more is not None:
            suggestions.append(Suggestion("records", more, f"Collect {more:,} records at each member."))
    if requirements.seconds is not None and best.seconds > requirements.seconds and best.use.useful:
        suggestions.append(Suggestion("seconds", best.seconds, f"Allow {best.seconds:.3g} s."))
    return tuple(suggestions)


def _fitting(requirements: Requirements, sample: Sample | None, like: PlanSummary) -> PlanSummary | None:
    """Return a row of the same kind as ``like`` that fits, or None."""
    assert like.candidate is not None
    plan: Any = like.plan
    share = float(getattr(plan, "sample_rate", None) or 1.0)
    rate = plan.rate(0) if requirements.training else 1.0
    wanted = _same(like.candidate)
    for candidate in (one for one in each_candidate(requirements) if _same(one) == wanted):
        try:
            changed = plan_for(requirements, candidate, steps=plan.steps, learning_rate=rate, share=share)
        except BudgetInfeasible:
            continue
        use = usefulness(changed)
        if requirements.training and sample is not None:
            use = _with_score(
                use, simulate(changed, sample, sizes=requirements.sizes, runs=3, seed=requirements.seed)
            )
        # only what decides: every view that must meet the budget was accounted when the noise was calibrated
        spent: Any = {
            f"epsilon_{view}": statement(changed, view, c, candidate).epsilon(requirements.delta)
            for view, c in requirements.views
        }
        seconds = changed.cost()["rounds"] * requirements.latency
        row = replace(like, plan=changed, use=use, candidate=candidate, seconds=seconds, **spent)
        if (row := with_verdict(requirements, row)).fits:
            return row
    return None


def _same(candidate: AveragingCandidate) -> tuple[str, str]:
    return candidate.protocol, candidate.noise
