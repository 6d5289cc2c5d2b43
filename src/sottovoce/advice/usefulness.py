"""Whether the answer of a plan is of use: error of an average, simulated score of training.

The error of an average of values in a public range is a closed form of the plan's releases and protocol; an
answer off by more than a quarter of the range is useless. Training has no closed form. The signal-to-noise
ratio, the largest possible signal over the noise, follows from the plan: a small one says that the model will
be useless, a large one does not say that it will be useful. A simulation on public or synthetic records says
that. Nothing private is read here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sottovoce import graphs
from sottovoce.accounting.release import MOVES
from sottovoce.advice.samples import Sample, SampleArgument
from sottovoce.algorithms.averaging import PrivateAveraging
from sottovoce.algorithms.gradient_plan import GradientPlan, n_params
from sottovoce.algorithms.plan import Plan
from sottovoce.algorithms.schedule import Schedule
from sottovoce.errors import InvalidInput
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives import GLM
from sottovoce.protocols import HypercubeExchange, Protocol, Tree
from sottovoce.runners.in_process import run_stacked

_USELESS = 0.25  # of the range: an average that is off by more is useless
_TOO_NOISY = 10.0  # signal over noise if every record agreed; real gradients agree about a tenth as much
_DRAWS = 4000  # columns of the simulation where an error has no closed form
_RECORDS = 20_000  # most records of a simulation; with more, the noise of a step is kept


@dataclass(frozen=True)
class Score:
    """A simulated score: its mean, and ``half``, the half width of an interval in which nine runs in ten end.

    ``chance`` is the score of an answer that learned nothing, ``best`` that of the same training without
    noise, ``deviation`` the standard deviation between runs.
    """

    metric: str
    mean: float
    half: float
    runs: int
    chance: float
    best: float
    source: str
    deviation: float = 0.0

    @property
    def lower_is_better(self) -> bool:
        """Whether small is good, as for errors."""
        return self.metric != "accuracy"

    @property
    def loss(self) -> float:
        """The mean score as a loss, of which less is better: the error, or the share of wrong answers."""
        return self.mean if self.lower_is_better else 1 - self.mean

    @property
    def useful(self) -> bool:
        """Whether more than half of what can be learned is learned, and surely more than nothing."""
        sign = -1.0 if self.lower_is_better else 1.0
        halfway = (self.chance + self.best) / 2
        return sign * self.mean >= sign * halfway and sign * self.mean - self.half > sign * self.chance

    @property
    def sentence(self) -> str:
        """The score beside that of no learning and that of no noise."""
        bounds = f"learning nothing: {self.chance:.3g}, without noise: {self.best:.3g}"
        return f"a simulated run on {self.source} ends at {self} ({bounds})."

    def __str__(self) -> str:
        return f"{self.metric} {self.mean:.3g} ± {self.deviation:.2g}"


@dataclass(frozen=True)
class Usefulness:
    """Whether an answer is of use, why, and the numbers behind it.

    ``useful`` is None where only a simulation could tell. Of an average: ``error`` is the standard deviation
    of the worst node's answer, in the unit of the values, ``bias`` how far it may end from the mean even
    without noise (gossip that stops early), ``span`` the width of the range of the values. Of training:
    ``signal_to_noise`` is the largest possible signal of the run over its noise, ``score`` is simulated.
    """

    useful: bool | None
    sentence: str
    error: float | None = None
    bias: float = 0.0
    span: float | None = None
    signal_to_noise: float | None = None
    score: Score | None = None

    @property
    def off(self) -> float | None:
        """How far an average may be from the truth: noise and bias together."""
        return None if self.error is None else math.hypot(self.error, self.bias)

    @property
    def verdict(self) -> str:
        """Yes, no, or unknown."""
        return {True: "yes", False: "no", None: "unknown"}[self.useful]

    @property
    def answer(self) -> str:
        """How good the answer is, in a few characters."""
        if self.off is not None:
            return f"± {self.off:.3g}"
        if self.score is not None:
            return str(self.score)
        return "unknown" if self.signal_to_noise is None else f"signal-to-noise {self.signal_to_noise:.3g}"

    def with_score(self, score: Score) -> Usefulness:
        """Return the usefulness as a simulation judges it."""
        return replace(self, useful=score.useful, score=score, sentence=score.sentence)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain values, for JSON."""
        return {
            "useful": self.useful,
            "error": self.error,
            "bias": self.bias,
            "range": self.span,
            "score": None if self.score is None else dict(vars(self.score)),
            "signal_to_noise": self.signal_to_noise,
        }

    def __str__(self) -> str:
        return f"useful: {self.verdict}; {self.sentence}"


def usefulness(
    plan: Plan, *, sample: SampleArgument | None = None, runs: int = 20, seed: int = 0
) -> Usefulness:
    """Return whether the answer of a plan will be of use.

    Parameters
    ----------
    plan : any plan.
    sample : for training: public records ``(X, y)``, a Dataset, or ``"synthetic"``; without one the verdict
        is no where the noise is too large for any model, and unknown otherwise.
    runs, seed : of the simulation.

    Guarantees
    ----------
    Nothing private is read, so nothing is spent.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = sv.PrivateAveraging.for_budget(
    ...     "exchange", network="hypercube:3", radius=0.5, epsilon=1.0, delta=1e-5)
    >>> print(sv.advice.usefulness(plan))
    useful: no; values in a range of 1 are answered ± 1.32, wider than the range.
    """
    if is_average(plan):
        sd, bias, span = answer_error(plan)
        off = math.hypot(sd, bias)
        useful = off <= _USELESS * span
        remark = "" if useful else ", more than a quarter of the range"
        remark = ", wider than the range" if off > span else remark
        if plan.schedule(0).adds_noise:
            remark += " (noise only; the bias of the path is not included)"
        sentence = f"values in a range of {span:.4g} are answered ± {off:.3g}{remark}."
        return Usefulness(useful, sentence, error=sd, bias=bias, span=span)
    ratio = _signal_to_noise(plan)
    too_noisy = ratio is not None and ratio < _TOO_NOISY
    sentence = "a sample of public or synthetic records would give a score."
    use = Usefulness(False if too_noisy else None, sentence, signal_to_noise=ratio)
    if sample is not None:
        use = use.with_score(simulate(plan, Sample.for_plan(sample, plan), runs=runs, seed=seed))
    if ratio is None:
        return use
    beside = f"beside what the records can contribute (signal-to-noise {ratio:.3g})"
    words = f"the noise is small {beside}, which does not say how good the model is"
    if too_noisy or ratio == math.inf:
        words = f"the noise is too large to learn from {beside}" if too_noisy else "no noise is added"
    return replace(use, sentence=f"{words}; {use.sentence}")


# ---- averages -----------------------------------------------------------------------------------------


def is_average(plan: Plan) -> bool:
    """Whether a plan answers with a mean: averaging, or one step of least squares on the constant 1."""
    if plan.observation.single_averaging:
        return True
    if not isinstance(plan, GradientPlan) or not isinstance(plan.objective, GLM):
        return False
    squares = plan.objective.loss == "squared" and plan.objective.dim == 1
    return squares and plan.steps == 1 and plan.rate(0) == 1.0


def answer_error(plan: Plan) -> tuple[float, float, float]:
    """Return (sd, bias, span) of an average at the worst node: noise, what gossip leaves, and the range.

    Over exact consensus the sd is the root of all noise variances over n, and the bias is 0. A linear
    protocol ends with rows ``M x``: the sd is that of a row of ``M``, and its bias is at most half the
    range times the l1 distance of the row from ``1/n``, every site by its weight. Fresh noise in every
    round is simulated. For a walk the sd is simulated too, and its bias, of what the path leaves out or
    counts more than once, is not included.
    """
    if not is_average(plan):
        raise InvalidInput(f"{plan.name} does not answer with an average; ask for its usefulness instead.")
    n, stds, protocol = plan.n, _stds(plan), plan.schedule(0)
    if isinstance(plan, PrivateAveraging):
        weights = np.ones(n) if plan.site_weights is None else np.array(plan.site_weights)
        span, weights = 2.0 * float(plan.radius), weights / weights.mean()
    else:
        assert isinstance(plan, GradientPlan)
        span, weights = 2.0 * float(plan.clip_norm or 0.0), np.ones(n)
    if protocol.reaches_consensus:
        return math.sqrt(math.fsum(stds**2)) / n, 0.0, span
    if protocol.fresh_std or protocol.adds_noise:
        sd = _run(plan, np.zeros((n, _DRAWS)), np.random.default_rng(0)).std(axis=1)
        if protocol.adds_noise:
            return float(sd.max()), 0.0, span
        noise = RunRandomness.from_rng(np.random.default_rng(0)).noise
        # the same fresh noise twice: the difference is the noiseless protocol
        M = protocol.apply(np.eye(n), noise) - protocol.apply(np.zeros((n, n)), noise)
    else:
        M = np.asarray(protocol.apply(np.eye(n)))
        sd = np.sqrt(np.square(M) @ np.square(stds))
    bias = np.abs((M - 1 / n) * weights).sum(axis=1) * span / 2
    worst = int(np.argmax(np.hypot(sd, bias)))
    return float(sd[worst]), float(bias[worst]), span


def _stds(plan: Plan) -> np.ndarray:
    """Return every agent's noise in the unit of the rows that are averaged."""
    return np.array([max((r.noise_std for r in plan.releases(u)), default=0.0) for u in range(plan.n)])


# ---- training -----------------------------------------------------------------------------------------


def _largest_row(plan: GradientPlan, agent: int) -> float:
    """Return the longest row an agent can publish, in the unit of its releases: every record at its clip."""
    one = float(next(iter(plan.releases(agent))).sensitivity) / MOVES[plan.adjacency]
    if plan.adjacency == "user":
        return one
    if plan.batch_size is not None:
        return float(plan.batch_size) * one
    assert plan.sizes is not None  # a plan at record level knows its sizes or its batch size
    return float(plan.sizes[agent]) * float(plan.sample_rate or 1.0) * one


def _signal_to_noise(plan: Plan) -> float | None:
    """Return the largest possible signal of a run over its noise; None where steps are no noisy means."""
    if not isinstance(plan, GradientPlan) or plan.query_kind != "gradient":
        return None
    if any(r.mechanism != "gaussian" for u in range(plan.n) for r in plan.releases(u)):
        return None
    try:
        dim = n_params(plan.objective)
    except InvalidInput:
        return None
    active = [u for u in range(plan.n) if plan.releases(u)]
    if not active:
        return 0.0
    # a walk adds one member's noise per step and averages nothing, others add everybody's
    draws = sum(release.draws for u in active for release in plan.releases(u)) / plan.steps
    variance = math.fsum(_stds(plan)[active] ** 2) / len(active)
    noise = math.sqrt(variance / max(1.0, min(draws, len(active))))
    largest = float(np.mean([_largest_row(plan, u) for u in active]))
    if not largest:
        return 0.0
    of_step = noise / largest * math.sqrt(dim)  # in all coordinates, over the largest possible mean step
    return math.sqrt(plan.steps) / of_step if of_step else math.inf


def simulate(
    plan: Plan, sample: Sample, *, runs: int = 20, seed: int = 0, best: float | None = None
) -> Score:
    """Return the score of a training plan on public or synthetic records, split as the plan's would be.

    Every run draws its own records, split and noise, so the interval covers what differs from run to run:
    twice the deviation, at least one point, or what a small public sample leaves unknown, up to three. The
    plan's own algorithm and mechanism run. ``best`` is the score without noise where it is known.
    """
    if plan.sizes is None:
        raise InvalidInput("a simulation needs a plan with sizes=..., the number of records of each agent.")
    plan = _smaller(plan, plan.sizes)
    scores, noiseless = [], [] if best is None else [best]
    for k in range(runs):
        rng = np.random.default_rng([seed, k])
        data, judge = sample.draw(plan.sizes or (), rng, vars(plan).get("objective"))
        scores.append(judge(_run(plan, data, rng)))
        if best is None and k < 2:
            noiseless.append(judge(_run(plan.with_noise(0.0), data, rng)))
    deviation = float(np.std(scores, ddof=1)) if runs > 1 else 0.0
    mean = float(np.mean(scores))
    point = 0.01 if sample.metric == "accuracy" else 0.01 * sample.chance
    # test sets of the simulation are parts of the sample, so its smallness is in the deviation already
    half = max(2 * deviation, point, min(2 * sample.uncertainty(mean), 3 * point))
    best_mean = float(np.mean(noiseless))
    return Score(sample.metric, mean, half, runs, sample.chance, best_mean, sample.source, deviation)


def _smaller(plan: Plan, sizes: Sequence[int]) -> Plan:
    """Return the plan for fewer records with the same noise in a step, where there are very many."""
    total = sum(sizes)
    if total <= _RECORDS or not isinstance(plan, GradientPlan) or plan.batch_size is not None:
        return plan
    fewer = tuple(max(1, round(size * _RECORDS / total)) for size in sizes)
    # a member's noise does not depend on how many records it holds
    share = 1.0 if plan.adjacency == "user" else sum(fewer) / total
    noise = plan.noise_multiplier
    scaled = tuple(z * share for z in noise) if isinstance(noise, tuple) else noise * share
    return replace(plan, sizes=fewer, noise_multiplier=scaled)


def _run(plan: Plan, data: object, rng: np.random.Generator) -> np.ndarray:
    """Run a plan for its rows alone: no result, no guarantees."""
    records, random, agents = plan.prepared(data), RunRandomness.from_rng(rng), range(plan.n)
    source = plan.mechanism(records, agents, random)
    algorithm = plan.algorithm(source, plan.starting(records, random, agents))
    schedule: Schedule | Protocol = plan.schedule
    if plan.schedule(0).reaches_consensus and plan.steps > 1:  # any such protocol ends with the same mean
        n = plan.n
        schedule = HypercubeExchange(n) if n & (n - 1) == 0 else Tree(graphs.star(n), root=0)
    state = run_stacked(algorithm, schedule, plan.steps, noise=random.noise, every=plan.steps)
    return np.asarray(algorithm.output(state))
