"""Plans side by side: what they reveal, how good their answers are, what they cost; which are dominated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce import _validate
from sottovoce._format import number, significant
from sottovoce.accounting.accountant import account_each
from sottovoce.advice.candidates import AveragingCandidate, guarantee_against
from sottovoce.advice.samples import SampleArgument
from sottovoce.advice.usefulness import Usefulness, is_average, usefulness
from sottovoce.algorithms.averaging import PrivateAveraging
from sottovoce.algorithms.dp_cd import DPCD
from sottovoce.algorithms.federated_admm import FederatedADMM
from sottovoce.algorithms.gradient_plan import GradientPlan, noise_multipliers
from sottovoce.algorithms.plan import Plan
from sottovoce.errors import InvalidInput, SottovoceError

_PAIRS = 7  # pairs of members, of which the typical one is the median
_OBSERVERS = 2  # observing members where one view takes long to compute (gossip)
_SAME = 1e-3  # relative: calibrated plans spend 99.9 to 100 percent of their budget
_FRONT, _DOMINATED, _CHOSEN = "#1b5e8c", "#9aa5ad", "#b3541e"
_WAITS = "the step waits for it; if it stays away, the others agree on a run without it"
_GOES_ON = "its exchanges are left out (late = drop), the others go on"


@dataclass(frozen=True)
class PlanSummary:
    """One plan with everything a choice needs.

    Every epsilon is at ``delta``: against somebody who taps every link, the worst member, a typical member
    about one other, any ``colluders`` members (``colluders_bound``: an upper bound only), all others
    together; None where there is no such adversary. ``noise`` is the least and the largest over the clip
    norm, ``best_guess`` how often the worst member guesses right which of two data sets it sees.
    ``problems`` say why the plan does not fit; ``dominated_by`` names a row that is better in something and
    worse in nothing.
    """

    name: str
    plan: Plan
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
    masked: bool
    tolerates_dropout: bool
    candidate: AveragingCandidate | None = None
    private: bool | None = None
    problems: tuple[str, ...] = ()
    dominated_by: str | None = None

    @property
    def fits(self) -> bool:
        """Whether it has no problem."""
        return not self.problems

    @property
    def loss(self) -> float:
        """How bad the answer is, for comparing: error, share of wrong answers, or noise over signal."""
        use = self.use
        if use.off is not None:
            return use.off
        if use.score is not None:
            return use.score.loss
        return 1 / use.signal_to_noise if use.signal_to_noise else math.inf

    @property
    def batch_size(self) -> float | None:
        """Expected records of a member in a step; None for all."""
        plan = self.plan
        if isinstance(plan, GradientPlan) and plan.batch_size is not None:
            return float(plan.batch_size)
        rate = plan.sample_rate if isinstance(plan, (GradientPlan, FederatedADMM)) else None
        if rate is None or rate == 1:
            return None
        return float(rate) * (sum(plan.sizes) / len(plan.sizes) if plan.sizes else 1.0)

    @property
    def silent(self) -> str:
        """What happens if a member falls silent."""
        return _GOES_ON if self.tolerates_dropout else _WAITS

    def epsilon(self, view: str) -> float | None:
        """Return epsilon against a view."""
        value: float | None = vars(self)[f"epsilon_{view}"]
        return value

    def cells(self) -> dict[str, str | int]:
        """Return the row as tables show it."""
        cells: dict[str, str | int] = {
            view: "-" if (epsilon := self.epsilon(view)) is None else number(epsilon, "epsilon")
            for view in ("outsider", "network", "pairwise", "colluders", "local")
        }
        if self.colluders_bound:
            cells["colluders"] = f"<= {cells['colluders']}"
        cells |= {"steps": self.plan.steps, "messages": self.messages, "rounds": self.rounds}
        cells |= {"answer": self.use.answer, "useful": self.use.verdict, "seconds": f"{self.seconds:.3g}"}
        cells["noise"] = " to ".join(dict.fromkeys(significant(one, "noise", 3) for one in self.noise))
        cells["batch_size"] = "all" if self.batch_size is None else f"{self.batch_size:g}"
        cells["bytes"] = "-" if self.bytes is None else self.bytes
        return cells

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain values, for JSON."""
        left_out = ("plan", "use", "candidate", "masked", "tolerates_dropout")
        own = {key: value for key, value in vars(self).items() if key not in left_out}
        own |= {"algorithm": self.plan.name, "steps": self.plan.steps, "batch_size": self.batch_size}
        return own | self.use.to_dict() | {"sentence": self.use.sentence, "silent": self.silent}


def summarize(
    name: str,
    plan: Plan,
    use: Usefulness,
    *,
    delta: float,
    colluders: int,
    latency: float,
    candidate: AveragingCandidate | None = None,
) -> PlanSummary:
    """Return the summary of one plan: every epsilon is computed by the plan itself."""
    central_only = plan.observation.central_only
    protocol, cost = plan.schedule(0), plan.cost()
    local = plan.privacy("central" if central_only else "local")
    worst, bound = local, False
    outsider = network = pairwise = together = None
    if not central_only:
        outsider = plan.privacy("outsider").epsilon(delta)
    if not central_only and plan.n > 1:
        worst = plan.privacy("network")
        network, pairwise = worst.epsilon(delta), _typical_pair(plan, delta)
        if plan.n > colluders:
            together = local.epsilon(delta)
            # colluders lie between one member and all others: nothing to compute where these are equal
            if network < together * (1 - 1e-9):
                guarantee = guarantee_against(plan, "colluders", colluders)
                together, bound = guarantee.epsilon(delta), guarantee.adversary.kind == "local"
    return PlanSummary(
        name=name,
        plan=plan,
        noise=_noise(plan),
        delta=delta,
        epsilon_outsider=outsider,
        epsilon_network=network,
        epsilon_pairwise=pairwise,
        epsilon_colluders=together,
        colluders=colluders,
        colluders_bound=bound,
        epsilon_local=local.epsilon(delta),
        best_guess=worst.best_guess,
        use=use,
        messages=int(cost["messages"]),
        rounds=int(cost["rounds"]),
        bytes=cost.get("bytes"),
        seconds=int(cost["rounds"]) * latency,
        masked=protocol.masked,
        tolerates_dropout=protocol.tolerates_dropout,
        candidate=candidate,
    )


def _noise(plan: Plan) -> tuple[float, float]:
    each: Sequence[float] = (0.0,)
    if isinstance(plan, GradientPlan):
        each = noise_multipliers(plan)
    elif isinstance(plan, PrivateAveraging):
        each = [release.noise_std / plan.radius for u in range(plan.n) for release in plan.releases(u)]
    elif isinstance(plan, DPCD):
        each = (plan.noise_multiplier,)
    return float(min(each)), float(max(each))


def _typical_pair(plan: Plan, delta: float) -> float:
    """Return the median of what some pairs of members learn of each other; under masks all are alike."""
    n, protocol, rng = plan.n, plan.schedule(0), np.random.default_rng(0)
    once = plan.steps == 1 and plan.observation.step_is_averaging
    slow = once and not protocol.masked and not protocol.reaches_consensus
    if slow and n > _PAIRS + _OBSERVERS:  # few observers, because one view tells of all other members
        order = rng.permutation(n).tolist()
        views = [account_each(plan, [observer]) for observer in order[:_OBSERVERS]]
        users = order[_OBSERVERS : _OBSERVERS + _PAIRS]
        guarantees = [views[k % _OBSERVERS][user] for k, user in enumerate(users)]
    else:
        pairs = {(0, 1)}
        if not protocol.masked:
            draws = (rng.choice(n, 2, replace=False).tolist() for _ in range(_PAIRS))
            pairs = {(v, u) for v, u in draws}
        guarantees = [plan.privacy("pairwise", observer=v, user=u) for v, u in pairs]
    return float(np.median([guarantee.epsilon(delta) for guarantee in guarantees]))


def pareto(rows: Sequence[PlanSummary]) -> list[PlanSummary]:
    """Return the rows with the dominated ones marked.

    A row is dominated by one that reveals no more to the worst member, answers no worse and takes no longer,
    and is better in one of these.
    """

    def dominating(row: PlanSummary) -> str | None:
        return next((other.name for other in rows if other is not row and _dominates(other, row)), None)

    return [replace(row, dominated_by=dominating(row)) for row in rows]


def _dominates(one: PlanSummary, other: PlanSummary) -> bool:
    """Whether one row is no worse in answer, privacy and time, and better in one of them.

    Scores are simulated, so they differ only by more than their intervals; the noise behind them is exact.
    """
    first, second = one.use, other.use
    if first.signal_to_noise is not None and second.signal_to_noise is not None:
        answers = (1 / first.signal_to_noise, 1 / second.signal_to_noise)
    elif first.error is not None and second.error is not None:
        answers = (one.loss, other.loss)
    else:
        return False  # an average and a model cannot be compared
    # against the worst member, or against everybody where there is no other member
    a, b = (r.epsilon_local if r.epsilon_network is None else r.epsilon_network for r in (one, other))
    pairs = [(a, b), (one.seconds, other.seconds), answers]
    no_worse = all(a <= b * (1 + _SAME) for a, b in pairs)
    better = any(a < b * (1 - _SAME) for a, b in pairs)
    if first.score is not None and second.score is not None:
        margin = max(first.score.half, second.score.half)
        no_worse = no_worse and one.loss <= other.loss + margin
        better = better or one.loss < other.loss - margin
    return no_worse and better


def compare(
    plans: Mapping[str, Plan] | Iterable[Plan],
    *,
    delta: float,
    colluders: int = 2,
    latency: float = 0.05,
    sample: SampleArgument | None = None,
) -> list[PlanSummary]:
    """Return plans, a mapping by name or a list, as rows with epsilon at ``delta``, the dominated ones
    marked.

    ``colluders`` is how many members the column of colluders is about, ``latency`` the seconds a round takes,
    ``sample`` public records, or ``"synthetic"``, for the score of training plans.

    Examples
    --------
    >>> import sottovoce as sv
    >>> exchange = sv.PrivateAveraging(sv.protocols.HypercubeExchange(8), noise_std=4.0, radius=0.5)
    >>> masked = sv.PrivateAveraging("masked", network="hypercube:3", noise_std=1.6, radius=0.5)
    >>> [(row.name, row.dominated_by) for row in compare({"a": exchange, "b": masked}, delta=1e-5)]
    [('a', None), ('b', None)]
    """
    _validate.delta(delta)
    named = plans if isinstance(plans, Mapping) else {f"plan {k}": p for k, p in enumerate(plans, 1)}
    if not named:
        raise InvalidInput("compare needs at least one plan, got none.")
    rows = []
    for name, plan in named.items():
        try:
            use = usefulness(plan, sample=None if is_average(plan) else sample)
            rows.append(summarize(name, plan, use, delta=delta, colluders=colluders, latency=latency))
        except SottovoceError as error:
            raise type(error)(f"{name}: {error}") from None
    return pareto(rows)


def draw_front(
    rows: Sequence[PlanSummary], path: str | Path, *, chosen: PlanSummary | None = None, unit: str = "error"
) -> Path:
    """Draw time against error for every row as an SVG or PNG file; points have the numbers of the rows."""
    target = Path(path)
    if target.suffix not in (".svg", ".png"):
        raise InvalidInput(f"the front is drawn as .svg or .png, got {target.name!r}.")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.4), layout="constrained")
    axes = figure.add_subplot()
    numbers: dict[tuple[float, float], list[str]] = {}  # rows at the same place share a label
    drawn = [(k, row) for k, row in enumerate(rows, 1) if math.isfinite(row.loss)]
    for k, row in drawn:
        color = _FRONT if row.dominated_by is None else _DOMINATED
        axes.plot(row.seconds, row.loss, "o", color=color, label=f"{k}  {row.name}")
        numbers.setdefault((row.seconds, float(f"{row.loss:.4g}")), []).append(str(k))
    for place, together in numbers.items():
        axes.annotate(", ".join(together), place, xytext=(6, 6), textcoords="offset points", fontsize=8)
    front = sorted((row.seconds, row.loss) for _, row in drawn if row.dominated_by is None)
    axes.plot(*np.array(front).reshape(-1, 2).T, color=_FRONT, lw=1, label="front: nothing is better in all")
    if chosen is not None:
        ring: dict[str, Any] = {"ms": 11, "mfc": "none", "mec": _CHOSEN, "mew": 2}
        axes.plot(chosen.seconds, chosen.loss, "o", label="take this", **ring)
    timed = all(row.seconds > 0 for _, row in drawn)  # one holder alone sends nothing, in no rounds
    axes.set(xscale="log" if timed else "linear", yscale="log", xlabel="seconds", ylabel=unit)
    axes.tick_params(which="both", labelsize=8)
    axes.grid(True, which="major", alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target)
    return target
