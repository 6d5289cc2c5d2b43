"""The coordinator's question: twelve hospitals, epsilon 2, this accuracy: what shall we run?"""

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
    each_scheme,
    plan_for,
    schemes,
    statement,
)
from sottovoce.advice.comparison import COLUMNS, PlanSummary, pareto, row_of
from sottovoce.advice.requirements import Requirements
from sottovoce.advice.samples import Sample, pair_of
from sottovoce.advice.suggestions import Suggestion, least, least_whole
from sottovoce.advice.usefulness import Score, Usefulness, simulate, step_noise, usefulness
from sottovoce.errors import BudgetInfeasible, InvalidInput

__all__ = ["Advice", "Suggestion", "advise"]

RATES = {"logistic": (1.0, 4.0, 16.0), "linear": (0.5, 1.0, 1.9), "net": (0.1, 0.5)}
LOT_SHARE = 0.1
# runs of a simulation: for rates, for every row, for the best rows
RUNS = {"logistic": (2, 4, 20), "linear": (2, 4, 20), "net": (1, 2, 4)}
_MOST_MEMBERS = 1024
_NO_WAY = (
    " Neither a larger epsilon (up to 4,096), nor more members, nor a million times as many records would "
    "change that; ask for less."
)
_FIELDS = {  # view -> where a row holds the plan's answer
    "network": "epsilon_member", "outsider": "epsilon_outsiders", "colluders": "epsilon_colluders",
    "local": "epsilon_everyone",
}  # fmt: skip


@dataclass(frozen=True)
class Advice:
    """A ranked table, the row to take with its reasons, and what would change the choice.

    Attributes
    ----------
    wish : what was asked.
    rows : the candidates, best first; those that do not fit come last and say why.
    recommended : the row to take, or None.
    reasons : two sentences.
    changes : the nearest alternatives, and what would have to be different for them to be taken.
    ways_out : where nothing fits, the smallest epsilon, number of members or records at which something does.
    data_said : what simulations were run on.

    Examples
    --------
    >>> advice = advise(6, epsilon=1.0, delta=1e-5, records=100)
    >>> advice.changes[0]
    'If members cannot share keys: consensus-sgd over tree, few leaves, +- 0.00482.'
    """

    wish: Requirements
    rows: tuple[PlanSummary, ...]
    recommended: PlanSummary | None
    reasons: str
    changes: tuple[str, ...]
    ways_out: tuple[Suggestion, ...]
    data_said: str

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

        return draw_front(self.rows, path, chosen=self.recommended, unit=_unit(self.wish))

    def save(self, folder: str | Path) -> list[Path]:
        """Write plan.toml, the draft of an agreement, the front and the table into a folder."""
        return files.save(self, Path(folder))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "wish": files.wish_record(self.wish),
            "rows": [row.to_dict() for row in self.rows],
            "recommended": None if self.recommended is None else self.recommended.name,
            "reasons": self.reasons,
            "changes": list(self.changes),
            "ways_out": [dict(vars(way)) for way in self.ways_out],
            "simulated_on": self.data_said,
        }

    def __str__(self) -> str:
        head = "Nothing fits." if self.recommended is None else f"Take {self.recommended.name}."
        ways = [way.sentence for way in self.ways_out]
        return "\n".join([f"{head} {self.reasons}", *self.changes, *ways, self.data_said])


def advise(
    members: Any,
    *,
    epsilon: float,
    delta: float,
    compute: Any = "mean",
    records: int | Sequence[int] = 1,
    hide: Any = "record",
    against: str | int = "member",
    values: tuple[float, float] = (0.0, 1.0),
    features: int | None = None,
    model: str | None = None,
    target: float | None = None,
    sample: Any = None,
    silent: Any = "wait",
    latency: float = 0.05,
    seconds: float | None = None,
    masks: bool = True,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Advice:
    """Return which plan to take, with reasons, alternatives and files; nothing private is read.

    Parameters
    ----------
    members : a number (anyone can reach anyone), pairs of members that can talk, a network or its name.
    epsilon, delta : the budget.
    compute : ``"mean"`` of values in a range, ``"logistic"`` or ``"linear"`` (a model), ``"net"``.
    records : per member, one number or one each; public.
    hide : a ``"record"`` or a whole ``"member"``.
    against : ``"outsiders"`` (and any one member: no budget is accepted against less), any one
        ``"member"``, a number of colluding members, or ``"everyone"`` else together.
    values : range of the values, or of a linear model's target; public.
    features, model : columns of a linear model; a network such as ``"mlp:inputs=64:hidden=16"``.
    target : the error (mean, linear) one accepts at most, or the accuracy one needs at least.
    sample : public records (X, y) to simulate training on; None: synthetic ones for linear models.
    silent : ``"wait"`` for a silent member, or ``"go on"`` without it.
    latency, seconds : seconds a round takes; the longest a run may take.
    masks : whether members can share keys with one another for masked sums.
    seed : public chance: trees, simulations.
    progress : called with the number of candidates done.

    Guarantees
    ----------
    Every epsilon in the answer was asked of the plan it stands beside. The recommended plan meets the budget
    against everybody named. Simulations use public or synthetic records, and the answer says which.

    Examples
    --------
    >>> import sottovoce as sv
    >>> advice = sv.advise(10, epsilon=1.0, delta=1e-5, hide="member", records=200)
    >>> advice.recommended is None  # +- 0.39 for values in [0, 1] is no answer
    True
    >>> [way.sentence for way in advice.ways_out][:2]
    ['Hide a record instead of a member: +- 0.000983.', 'Allow epsilon 1.65.']
    >>> advice = sv.advise(10, epsilon=1.0, delta=1e-5, records=200)
    >>> advice.recommended.name, round(advice.recommended.use.error, 4)
    ('consensus-sgd over masked', 0.001)
    """
    if features is None and sample is not None and compute in ("logistic", "linear"):
        features = _columns(sample)
    wish = Requirements.of(
        members, epsilon=epsilon, delta=delta, compute=compute, records=records, hide=hide, against=against,
        values=values, features=features, model=model, target=target, silent=silent, latency=latency,
        seconds=seconds, masks=masks, seed=seed,
    )  # fmt: skip
    chosen = _sample(wish, sample)
    rows = _Trial(wish, chosen, progress).rows()
    ranked = _ranked(pareto(rows))
    best = ranked[0] if ranked and ranked[0].fits else None
    if best is None:
        ways = _ways_out(wish, chosen, ranked)
        why = _why_not(ranked) + ("" if ways else _NO_WAY)
        return Advice(wish, tuple(ranked), None, why, (), ways, _said(wish, chosen))
    return Advice(
        wish, tuple(ranked), best, _reasons(wish, ranked), _changes(wish, ranked), (), _said(wish, chosen)
    )


def _columns(sample: Any) -> int | None:
    """Return how many features a public sample has, where nobody said it."""
    if isinstance(sample, str):
        return None
    shape = np.shape(pair_of(sample)[0])
    return int(shape[1]) if len(shape) == 2 else None


def _sample(wish: Requirements, given: Any) -> Sample | None:
    if not wish.training:
        if given is not None:
            raise InvalidInput("a mean needs no sample: its error is a closed form; leave sample out.")
        return None
    kind = {"linear": "squared"}.get(wish.compute, wish.compute)
    unit = wish.half if wish.compute == "linear" else 1.0
    if given is None or (isinstance(given, str) and given == "synthetic"):
        return None if kind == "net" else Sample.synthetic(kind, wish.features, unit)
    if isinstance(given, str):
        raise InvalidInput(f'sample must be "synthetic", (X, y) or a Dataset, got {given!r}.')
    X, y = pair_of(given)
    found = Sample.public(kind, X, y, unit=unit, middle=wish.middle if kind == "squared" else 0.0)
    if kind != "net" and found.features != wish.features:
        raise InvalidInput(
            f"the sample has {found.features} features, the model {wish.features}; leave features out to "
            "take the sample's."
        )
    return found


def _said(wish: Requirements, sample: Sample | None) -> str:
    if not wish.training:
        return "No data were read; errors are closed forms."
    if sample is None:
        return "No data were read and nothing was simulated; give public records as a sample for a score."
    return f"Simulated on {sample.source}; nothing private was read."


# ---- the candidates -----------------------------------------------------------------------------------


class _Trial:
    """The candidates of one wish, each at its least noise."""

    def __init__(
        self, wish: Requirements, sample: Sample | None, progress: Callable[[int], None] | None
    ) -> None:
        self.wish, self.sample, self.progress = wish, sample, progress
        self.tuning, self.first, self.final = RUNS.get(wish.compute, (0, 0, 0))
        self.rates: dict[tuple[int, float], float] = {}
        self.best: dict[tuple[Any, ...], float] = {}
        self.scores: dict[tuple[Any, ...], Score] = {}
        self.done = 0

    def rows(self) -> list[PlanSummary]:
        found = [row for scheme in schemes(self.wish) for row in self.of(scheme)]
        if self.sample is None or not self.wish.training:
            return found
        leading = sorted(found, key=lambda row: row.loss)[:3]
        found = [self.again(row) if any(row is one for one in leading) else row for row in found]
        return self.against_the_best(found)

    def of(self, scheme: AveragingCandidate) -> list[PlanSummary]:
        wish = self.wish
        if not wish.training:
            return [self.row(scheme, 1, 1.0, 1.0)]
        settings = [(steps, 1.0) for steps in STEPS[wish.compute]]
        if scheme.masked and wish.hide == "record" and min(wish.sizes) >= 10 / LOT_SHARE:
            settings.append((STEPS[wish.compute][-1], LOT_SHARE))
        return [self.row(scheme, steps, self.rate(scheme, steps, share), share) for steps, share in settings]

    def rate(self, scheme: AveragingCandidate, steps: int, share: float) -> float:
        """Return the rate that did best in a few simulated runs of the first scheme asked about."""
        rates = RATES[self.wish.compute]
        if self.sample is None:
            return rates[len(rates) // 2]
        if (steps, share) not in self.rates:
            plan: Any = plan_for(self.wish, scheme, steps=steps, share=share)
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
                plan, self.sample, sizes=self.wish.sizes, runs=runs, seed=self.wish.seed,
                best=self.best.get(kind),
            )  # fmt: skip
            self.best[kind] = self.scores[key].best
        return self.scores[key]

    def row(self, scheme: AveragingCandidate, steps: int, rate: float, share: float) -> PlanSummary:
        wish = self.wish
        plan = plan_for(wish, scheme, steps=steps, learning_rate=rate, share=share)
        use = usefulness(plan)
        if wish.training and self.sample is not None:
            use = _with_score(use, self.score(plan, self.first))
        row = row_of(
            _named(wish, plan, scheme, share), plan, delta=wish.delta, colluders=max(2, wish.colluders),
            latency=wish.latency, scheme=scheme, use=use,
        )  # fmt: skip
        self.done += 1
        if self.progress is not None:
            self.progress(self.done)
        return judged(wish, row)

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
            judged_anew.append(judged(self.wish, replace(row, use=use, problems=())))
        return judged_anew

    def again(self, row: PlanSummary) -> PlanSummary:
        """Return a leading row with a score of more runs."""
        use = _with_score(row.use, self.score(row.plan, self.final))
        return judged(self.wish, replace(row, use=use, problems=()))


def _with_score(use: Usefulness, score: Score) -> Usefulness:
    said = (
        f"a run on {score.source} ends at {score} (learning nothing: {score.chance:.3g}, without noise: "
        f"{score.best:.3g})."
    )
    return replace(use, useful=score.useful, score=score, sentence=said)


def _named(wish: Requirements, plan: Any, scheme: AveragingCandidate, share: float) -> str:
    name = f"{plan.name} over {scheme.protocol}"
    if scheme.noise == "optimal":
        few = scheme.protocol.startswith(FEW_LEAVES)
        name = f"{plan.name} over tree, few leaves" if few else f"{name}, optimal noise"
    if wish.training:
        name += f", {plan.steps} steps" + (f", lots of {share:.0%}" if share < 1 else "")
    return name


def judged(wish: Requirements, row: PlanSummary) -> PlanSummary:
    """Return the row with all that speaks against it; what it spends is what the plan answered."""
    assert row.scheme is not None
    problems = []
    spent = [getattr(row, _FIELDS[view]) for view, _ in wish.views]
    private = all(epsilon is not None and epsilon <= wish.epsilon for epsilon in spent)
    if not private:
        problems.append(f"it spends more than epsilon {wish.epsilon:g}.")
    if not row.use.useful:
        problems.append(row.use.sentence)
    if wish.target is not None and not _reaches(row, wish.target):
        problems.append(f"{row.answer} misses the target of {wish.target:g}.")
    if wish.seconds is not None and row.seconds > wish.seconds:
        problems.append(f"it takes {row.seconds:.3g} s, more than {wish.seconds:g}.")
    if wish.silent == "go on" and not row.scheme.goes_on:
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


def _unit(wish: Requirements) -> str:
    if wish.compute == "mean":
        return f"error of the mean (values in {wish.low:g} to {wish.high:g})"
    if wish.compute == "linear":
        return f"error (targets in {wish.low:g} to {wish.high:g})"
    return "share of wrong answers"


def _reasons(wish: Requirements, rows: Sequence[PlanSummary]) -> str:
    best = rows[0]
    others = [row for row in rows[1:] if row.fits and _kind(row) != _kind(best)]
    first = f"It meets epsilon {wish.epsilon:g} against {files.against(wish)} and answers {best.answer}"
    if others:
        first += f", where the next kind of plan, {others[0].name}, answers {others[0].answer}"
    hidden = "a whole member" if wish.hide == "member" else "a single record"
    second = (
        f"It hides {hidden}, takes {best.rounds:,} {'round' if best.rounds == 1 else 'rounds'} "
        f"({best.seconds:.3g} s) and {best.messages:,} "
        f"messages, and leaves the worst member guessing right {best.best_guess:.1%} of the time at best"
    )
    return f"{first}. {second}."


def _kind(row: PlanSummary) -> str:
    first, *others = row.name.split(", ")
    return ", ".join([first, *(word for word in others if word in ("few leaves", "optimal noise"))])


def _changes(wish: Requirements, rows: Sequence[PlanSummary]) -> tuple[str, ...]:
    best, found = rows[0], []
    private = [row for row in rows[1:] if row.private]
    if best.scheme is not None and best.scheme.masked:
        plain = next((row for row in private if row.scheme and not row.scheme.masked), None)
        if plain is not None:
            found.append(f"If members cannot share keys: {plain.name}, {plain.answer}{_but(plain)}.")
    if best.scheme is not None and not best.scheme.goes_on:
        gossip = next((row for row in private if row.scheme and row.scheme.goes_on), None)
        if gossip is not None:
            found.append(
                f"If the run must go on when a member falls silent: {gossip.name}, "
                f"{gossip.answer}{_but(gossip)}."
            )
    quick = min((row for row in private if row.fits), key=lambda row: row.seconds, default=None)
    if quick is not None and quick.seconds < best.seconds:
        found.append(f"If time matters more: {quick.name}, {quick.answer} in {quick.seconds:.3g} s.")
    largest = max(wish.sizes)
    if wish.hide == "record" and 2 * largest > wish.total and wish.n > 2:
        name = wish.network.label(wish.sizes.index(largest))
        found.append(
            f"Member {name} holds {largest / wish.total:.1%} of all records, so the answer is mostly its "
            "own; the mean of the members' means is what gossip computes."
        )
    return tuple(found)


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


def _ways_out(
    wish: Requirements, sample: Sample | None, rows: Sequence[PlanSummary]
) -> tuple[Suggestion, ...]:
    """Return the least that would have to change, one thing at a time."""
    good = [row for row in rows if wish.silent == "wait" or (row.scheme and row.scheme.goes_on)]
    if not good:
        return ()
    best = _quietest(good)
    found: list[Suggestion] = []

    def works(changed: Requirements) -> PlanSummary | None:
        return _fitting(changed, sample, best)

    if wish.hide == "member" and max(wish.sizes) > 1 and (row := works(wish.but(hide="record"))) is not None:
        found.append(Suggestion("hide", "record", f"Hide a record instead of a member: {row.answer}."))
    most_epsilon = 2.0**12 * max(wish.epsilon, 1.0)
    epsilon = least(lambda e: works(wish.but(epsilon=e)) is not None, wish.epsilon, most_epsilon)
    if epsilon is not None:
        found.append(Suggestion("epsilon", epsilon, f"Allow epsilon {epsilon:.3g}."))
    most = _MOST_MEMBERS if sample is None else 128
    count = least_whole(lambda n: works(wish.but(members=n)) is not None, wish.n, most)
    if count is not None:
        found.append(Suggestion("members", count, f"Find {count:,} members, with as many records each."))
    if wish.hide == "record":
        each = max(1, round(wish.total / wish.n))
        more = least_whole(lambda r: works(wish.but(records=r)) is not None, each, each * 2**20)
        if more is not None:
            found.append(Suggestion("records", more, f"Collect {more:,} records at each member."))
    if wish.seconds is not None and best.seconds > wish.seconds and best.use.useful:
        found.append(Suggestion("seconds", best.seconds, f"Allow {best.seconds:.3g} s."))
    return tuple(found)


def _fitting(wish: Requirements, sample: Sample | None, like: PlanSummary) -> PlanSummary | None:
    """Return a row of the same kind as ``like`` that fits, or None."""
    assert like.scheme is not None
    plan: Any = like.plan
    share = float(getattr(plan, "sample_rate", None) or 1.0)
    rate = plan.rate(0) if wish.training else 1.0
    wanted = _same(like.scheme)
    for scheme in (one for one in each_scheme(wish) if _same(one) == wanted):
        try:
            made = plan_for(wish, scheme, steps=plan.steps, learning_rate=rate, share=share)
        except BudgetInfeasible:
            continue
        use = usefulness(made)
        if wish.training and sample is not None:
            use = _with_score(use, simulate(made, sample, sizes=wish.sizes, runs=3, seed=wish.seed))
        # only what decides: the plan was asked for every view it must meet when its noise was found
        spent: Any = {
            _FIELDS[view]: statement(made, view, c, scheme).epsilon(wish.delta) for view, c in wish.views
        }
        seconds = made.cost()["rounds"] * wish.latency
        row = replace(like, plan=made, use=use, scheme=scheme, seconds=seconds, **spent)
        if (row := judged(wish, row)).fits:
            return row
    return None


def _same(scheme: AveragingCandidate) -> tuple[str, str]:
    return scheme.protocol, scheme.noise
