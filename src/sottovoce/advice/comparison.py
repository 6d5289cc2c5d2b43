"""Plans side by side: what each reveals to whom, how good its answer is, what it costs; who is dominated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sottovoce import _validate
from sottovoce.accounting.accountant import account_each
from sottovoce.advice.candidates import STALLS, AveragingCandidate, statement
from sottovoce.advice.usefulness import Usefulness, usefulness
from sottovoce.algorithms.averaging import PrivateAveraging, noise_stds
from sottovoce.algorithms.gradient_plan import GradientPlan, noise_multipliers
from sottovoce.algorithms.plan import Plan
from sottovoce.errors import InvalidInput, SottovoceError

_PAIRS = 7  # pairs of members of which the typical one is the middle
_LOOKERS = 2  # members that look, where what one sees takes long to work out (gossip)
_SAME = 1e-3  # relative: calibrated plans spend 99.9 to 100 of 100 of their budget

COLUMNS = (
    "plan", "steps", "batch_size", "noise", "outsider", "network", "pairwise", "colluders", "local", "answer",
    "useful", "messages", "rounds", "bytes", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class PlanSummary:
    """One plan with everything a choice needs.

    Parameters
    ----------
    name, plan : what it is called, and the plan itself.
    words : the tree or partner graph in words.
    lot : expected records of a member in a step; None for all.
    noise : least and largest noise over the clip among the members.
    epsilon_outsider, epsilon_network, epsilon_pairwise, epsilon_colluders, epsilon_local : at ``delta``,
        against somebody who taps every link, the worst member, the middle one of some pairs of members, any
        ``colluders`` members, all others together. None where nobody fits the description.
    colluders_bound : whether the number for colluders is only known to be no larger than stated.
    best_guess : how often the worst member guesses right which of two worlds it sees, at best.
    use : what the answer is worth.
    messages, rounds, bytes, seconds : of the whole run.
    silent : what one silent member does.
    private : whether the budget is met, where there is one.
    problems : why it does not fit, one sentence each.
    dominated_by : name of a row that is better in something and worse in nothing.

    Examples
    --------
    >>> import sottovoce as sv
    >>> row = sv.advise(8, epsilon=2.0, delta=1e-5, records=50).recommended
    >>> row.private, row.fits, row.answer, row.silent.split(";")[0]
    (True, True, '± 0.00266', 'the step waits for it')
    """

    name: str
    plan: Plan
    words: str
    batch_size: float | None
    noise: tuple[float, float]
    delta: float
    epsilon_outsider: float | None
    epsilon_network: float | None
    epsilon_pairwise: float | None
    epsilon_colluders: float | None
    colluders: int
    colluders_bound: bool
    epsilon_local: float
    best_guess: float
    use: Usefulness
    messages: int
    rounds: int
    bytes: int | None
    seconds: float
    silent: str
    candidate: AveragingCandidate | None = None
    private: bool | None = None
    problems: tuple[str, ...] = ()
    dominated_by: str | None = None

    @property
    def fits(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.problems

    @property
    def loss(self) -> float:
        """How bad the answer is, for comparing: error, share of wrong answers, or noise over signal."""
        use = self.use
        if use.error is not None:
            return math.hypot(use.error, use.bias)
        if use.score is not None:
            return use.score.mean if use.score.lower_is_better else 1 - use.score.mean
        return 1 / use.signal if use.signal else math.inf

    @property
    def answer(self) -> str:
        """The worth of the answer in a few characters."""
        use = self.use
        if use.error is not None:
            return f"± {math.hypot(use.error, use.bias):.3g}"
        if use.score is not None:
            return str(use.score)
        return "unknown" if use.signal is None else f"signal {use.signal:.3g}"

    def cells(self) -> tuple[Any, ...]:
        """Return the row as a table shows it, in the order of `COLUMNS`; noise is over the clip."""
        low, high = self.noise
        noise = f"{low:.3g}" if high <= low * (1 + 1e-9) else f"{low:.3g} to {high:.3g}"
        batch_size = "all" if self.batch_size is None else f"{self.batch_size:g}"
        return (
            self.name, self.plan.steps, batch_size, noise,
            *map(_shown, (self.epsilon_outsider, self.epsilon_network, self.epsilon_pairwise)),
            ("<= " if self.colluders_bound else "") + _shown(self.epsilon_colluders),
            _shown(self.epsilon_local),
            self.answer, self.use.verdict, self.messages, self.rounds,
            "-" if self.bytes is None else self.bytes, f"{self.seconds:.3g}",
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain values, for JSON."""
        use = self.use
        plain: dict[str, Any] = {
            key: getattr(self, key)
            for key in (
                "name", "words", "batch_size", "delta", "epsilon_outsider", "epsilon_network",
                "epsilon_pairwise", "epsilon_colluders", "colluders",
                "colluders_bound", "epsilon_local", "best_guess", "messages", "rounds",
                "bytes", "seconds", "silent", "private", "dominated_by",
            )
        }  # fmt: skip
        plain |= {"algorithm": self.plan.name, "steps": self.plan.steps, "noise": list(self.noise)}
        plain |= {"useful": use.useful, "sentence": use.sentence, "error": use.error, "bias": use.bias}
        plain |= {"range": use.span, "signal": use.signal, "problems": list(self.problems)}
        score = use.score
        plain["score"] = None if score is None else dict(vars(score))
        return plain


def _shown(epsilon: float | None) -> str:
    return "-" if epsilon is None else f"{epsilon:.3g}"


def summarize(
    name: str,
    plan: Plan,
    *,
    delta: float,
    colluders: int = 2,
    latency: float = 0.05,
    candidate: AveragingCandidate | None = None,
    words: str = "",
    use: Usefulness | None = None,
) -> PlanSummary:
    """Return one plan priced: every number is the plan's own answer.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = sv.PrivateAveraging(sv.protocols.HypercubeExchange(8), noise_std=4.0, radius=0.5)
    >>> row = summarize("exchange", plan, delta=1e-5)
    >>> round(row.epsilon_network, 3), row.messages, row.answer
    (0.926, 24, '± 1.41')
    """
    local_only = plan.observation.central_only
    protocol = plan.schedule(0)
    how = candidate or AveragingCandidate(_name_of(plan), getattr(plan, "network", None), words)  # type: ignore[arg-type]
    everyone = plan.privacy("central" if local_only else "local")
    outsiders = member = together = None
    worst, bound = everyone, False
    if not local_only:
        outsiders = plan.privacy("outsider").epsilon(delta)
        if plan.n > 1:
            worst = plan.privacy("network")
            member = worst.epsilon(delta)
        if plan.n > colluders and member is not None:
            together, bound = _together(plan, delta, colluders, how, member, everyone.epsilon(delta))
    cost = plan.cost()
    rounds = int(cost["rounds"])
    return PlanSummary(
        name=name,
        plan=plan,
        words=how.words or protocol.name,
        batch_size=_lot(plan),
        noise=_noise(plan),
        delta=delta,
        epsilon_outsider=outsiders,
        epsilon_network=member,
        epsilon_pairwise=None if local_only or plan.n < 2 else _typical(plan, delta, how),
        epsilon_colluders=together,
        colluders=colluders,
        colluders_bound=bound,
        epsilon_local=everyone.epsilon(delta),
        best_guess=worst.best_guess,
        use=use if use is not None else usefulness(plan),
        messages=int(cost["messages"]),
        rounds=rounds,
        bytes=cost.get("bytes"),
        seconds=rounds * latency,
        silent=how.silent if candidate is not None or protocol.exact else _silence(protocol.name),
        candidate=candidate,
    )


def _together(
    plan: Plan, delta: float, count: int, candidate: AveragingCandidate, member: float, everyone: float
) -> tuple[float, bool]:
    """Return epsilon against any ``count`` members, and whether it is only a bound.

    It lies between that of one member and that of all: where these are the same, nothing is left to ask.
    """
    if member >= everyone * (1 - 1e-9):
        return everyone, False
    guarantee = statement(plan, "colluders", count, candidate)
    return guarantee.epsilon(delta), guarantee.adversary.kind == "local"


def _name_of(plan: Plan) -> str:
    """The protocol's name in the form that `parse` reads."""
    named = getattr(plan, "protocol", None)
    text = getattr(named, "name", None) or plan.schedule(0).name
    return str(named) if hasattr(named, "drawn") else str(text)


def _silence(name: str) -> str:
    from sottovoce.advice.candidates import GOES_ON

    return GOES_ON if name in ("gossip", "refreshed") else STALLS


def _lot(plan: Any) -> float | None:
    batch_size, rate, sizes = (getattr(plan, key, None) for key in ("batch_size", "sample_rate", "sizes"))
    if batch_size is not None:
        return float(batch_size)
    if rate is None or rate == 1:
        return None
    return float(rate) * (sum(sizes) / len(sizes) if sizes else 1.0)


def _noise(plan: Any) -> tuple[float, float]:
    if isinstance(plan, GradientPlan):
        each: Sequence[float] = noise_multipliers(plan)
    elif isinstance(plan, PrivateAveraging):
        each = [std / plan.radius for std in noise_stds(plan)]
    else:
        each = (float(getattr(plan, "noise_multiplier", None) or 0.0),)
    return float(min(each)), float(max(each))


def _typical(plan: Plan, delta: float, candidate: AveragingCandidate) -> float:
    """The middle of what some pairs of members learn of each other; under masks all pairs are alike."""
    n = plan.n
    if candidate.masked:
        pairs = [(0, 1)]
    else:
        rng = np.random.default_rng(0)
        once = plan.steps == 1 and plan.observation.one_step_averages
        if once and not plan.schedule(0).exact and n > _PAIRS + _LOOKERS:
            return _typical_of_few(plan, delta, rng)
        drawn = (rng.choice(n, 2, replace=False).tolist() for _ in range(_PAIRS))
        pairs = list(dict.fromkeys((int(v), int(u)) for v, u in drawn))
    epsilons = [plan.privacy("pairwise", observer=v, user=u).epsilon(delta) for v, u in pairs]
    return float(np.median(epsilons))


def _typical_of_few(plan: Plan, delta: float, rng: np.random.Generator) -> float:
    """The same over pairs of which few members are the ones that look: one view tells of all others."""
    order = rng.permutation(plan.n).tolist()
    lookers, users = order[:_LOOKERS], order[_LOOKERS : _LOOKERS + _PAIRS]
    epsilons = []
    for k, v in enumerate(lookers):
        learned = account_each(plan, [v])
        epsilons += [learned[u].epsilon(delta) for u in users[k::_LOOKERS]]
    return float(np.median(epsilons))


def pareto(rows: Sequence[PlanSummary]) -> list[PlanSummary]:
    """Return the rows with the dominated ones marked.

    A row is dominated by one that reveals no more to the worst member, answers no worse and takes no longer,
    and is better in one of these.

    Examples
    --------
    >>> import sottovoce as sv
    >>> make = lambda s: sv.PrivateAveraging(sv.protocols.HypercubeExchange(4), noise_std=s, radius=0.5)
    >>> tree = sv.PrivateAveraging(sv.protocols.Tree(sv.graphs.path(4)), noise_std=3.0, radius=0.5)
    >>> rows = [summarize("quiet", make(2.0), delta=1e-5), summarize("loud", make(3.0), delta=1e-5),
    ...         summarize("slow", tree, delta=1e-5)]
    >>> [row.dominated_by for row in pareto(rows)]
    [None, None, 'loud']
    """
    marked = []
    for row in rows:
        better = next((other.name for other in rows if other is not row and _dominates(other, row)), None)
        marked.append(replace(row, dominated_by=better))
    return marked


def _dominates(one: PlanSummary, other: PlanSummary) -> bool:
    no_worse, better = _answers(one, other)
    for a, b in ((_seen(one), _seen(other)), (one.seconds, other.seconds)):
        no_worse = no_worse and a <= b * (1 + _SAME)
        better = better or a < b * (1 - _SAME)
    return no_worse and better


def _seen(row: PlanSummary) -> float:
    return row.epsilon_network if row.epsilon_network is not None else row.epsilon_local


def _answers(one: PlanSummary, other: PlanSummary) -> tuple[bool, bool]:
    """Return whether one row's answer is no worse than another's, and whether it is better.

    Scores are simulated, so they differ only by more than their intervals; the noise behind them is exact.
    """
    first, second = one.use, other.use
    no_worse, better = True, False
    if first.score is not None and second.score is not None:
        margin = max(first.score.half, second.score.half)
        no_worse, better = one.loss <= other.loss + margin, one.loss < other.loss - margin
    if first.signal is not None and second.signal is not None:
        a, b = 1 / first.signal, 1 / second.signal
    elif first.error is not None and second.error is not None:
        a, b = one.loss, other.loss
    else:
        return False, False  # an average and a model: nothing to compare
    return no_worse and a <= b * (1 + _SAME), better or a < b * (1 - _SAME)


def compare(
    plans: Any, *, delta: float, colluders: int = 2, latency: float = 0.05, sample: Any = None
) -> list[PlanSummary]:
    """Return plans as rows, the dominated ones marked.

    Parameters
    ----------
    plans : plans by name (a mapping), or a list.
    delta : at which epsilon is stated.
    colluders : how many members the column of colluders is about.
    latency : seconds a round takes.
    sample : public records, or ``"synthetic"``, for the score of training plans.

    Examples
    --------
    >>> import sottovoce as sv
    >>> exchange = sv.PrivateAveraging(sv.protocols.HypercubeExchange(8), noise_std=4.0, radius=0.5)
    >>> masked = sv.PrivateAveraging("masked", network="hypercube:3", noise_std=1.6, radius=0.5)
    >>> [(row.name, row.dominated_by) for row in compare({"a": exchange, "b": masked}, delta=1e-5)]
    [('a', None), ('b', None)]
    """
    _validate.delta(delta)
    named = dict(plans) if hasattr(plans, "items") else {f"plan {k + 1}": p for k, p in enumerate(plans)}
    if not named:
        raise InvalidInput("compare needs at least one plan, got none.")
    rows = []
    for name, plan in named.items():
        try:
            use = usefulness(plan, sample=None if _is_mean(plan) else sample)
            rows.append(summarize(name, plan, delta=delta, colluders=colluders, latency=latency, use=use))
        except SottovoceError as error:
            raise type(error)(f"{name}: {error}") from None
    return pareto(rows)


def _is_mean(plan: Any) -> bool:
    from sottovoce.advice.usefulness import is_average

    return is_average(plan)
