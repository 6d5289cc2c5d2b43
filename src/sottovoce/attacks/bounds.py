"""From counts to lower bounds: what an experiment proves about a privacy loss.

Many runs: a test with true positives ``tp`` of ``members`` and false positives ``fp`` of ``others`` has
rates inside Clopper-Pearson intervals, and every (epsilon, delta) or mu-GDP mechanism bounds one rate by
the other. One run: with ``m`` canaries of which each is included by a fair coin, an (epsilon, delta)-DP
mechanism lets nobody guess more of them than a binomial distribution with success rate
``e^eps / (1 + e^eps)`` does, up to delta. Users are the canaries of an averaging, records of a training.

A lower bound above a claim proves a bug, at the stated confidence; a lower bound below it proves nothing.

References: [1] Clopper and Pearson 1934. [2] Kairouz, Oh, Viswanath 2015, Theorem 2.1 (the two lines of
an (epsilon, delta) trade-off). [3] Dong, Roth, Su 2022 (GDP). [4] Steinke, Nasr, Jagielski 2023, "Privacy
auditing with one (1) training run", Algorithm 1 and Theorem 5.2. [5] Bayrooti, Gao, Prorok 2023, Appendix D.
Departures from [5]: both sides of the trade-off are used, not only (TPR - delta) / FPR.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log

import numpy as np

from sottovoce import _validate
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.errors import InvalidInput


def clopper_pearson(successes: int, trials: int, level: float = 0.05) -> tuple[float, float]:
    """Return the two-sided confidence interval of a success rate, ``level / 2`` on each side."""
    from scipy.special import betaincinv

    k, n = _counts(successes, trials)
    alpha = _validate.probability(level, "level", zero=False, one=False) / 2
    low = 0.0 if k == 0 else float(betaincinv(k, n - k + 1, alpha))
    high = 1.0 if k == n else float(betaincinv(k + 1, n - k, 1 - alpha))
    return low, high


def epsilon_lower(
    tp: int, members: int, fp: int, others: int, delta: float = 0.0, level: float = 0.05
) -> float:
    """Return the largest epsilon that the counts refute, or 0.

    Guarantees
    ----------
    If the mechanism is (epsilon, delta)-DP between the two hypotheses, and the test was fixed before the
    counted trials, the value returned exceeds epsilon with probability at most ``level``: one bound is on
    the true positive rate and one on the false positive rate, each of error ``level / 2`` on the side used.
    """
    _validate.probability(delta, "delta", one=False)
    tpr_low, fpr_high = _rates(tp, members, fp, others, level)
    return max(_log_ratio(tpr_low - delta, fpr_high), _log_ratio(1 - fpr_high - delta, 1 - tpr_low), 0.0)


def mu_lower(tp: int, members: int, fp: int, others: int, level: float = 0.05) -> float:
    """Return the largest mu of Gaussian differential privacy that the counts refute, or 0."""
    from scipy.special import ndtri

    tpr_low, fpr_high = _rates(tp, members, fp, others, level)
    return max(0.0, float(ndtri(tpr_low) - ndtri(fpr_high)))


def _rates(tp: int, members: int, fp: int, others: int, level: float) -> tuple[float, float]:
    """Return a lower bound of the true positive rate and an upper bound of the false positive rate."""
    return clopper_pearson(tp, members, level)[0], clopper_pearson(fp, others, level)[1]


@dataclass(frozen=True)
class LowerBound:
    """The largest epsilon (at ``delta``) and the largest mu that one experiment refutes.

    The rule "member if the score is above (below) the threshold" was chosen on the first part of the scores,
    the positives ``tp`` of ``members`` and ``fp`` of ``others`` were counted on the rest; ``level`` is the
    error probability of the statement.
    """

    epsilon: float
    mu: float
    delta: float
    level: float
    threshold: float
    above: bool
    tp: int
    members: int
    fp: int
    others: int

    @property
    def tpr(self) -> float:
        """True positive rate on the counted part."""
        return self.tp / self.members

    @property
    def fpr(self) -> float:
        """False positive rate on the counted part."""
        return self.fp / self.others

    def refutes(self, guarantee: Guarantee) -> bool:
        """Return whether the counts contradict a `Guarantee` at a point of its curve, epsilon from 0 to 20.

        The confidence is that of the two rates: every point uses the same two intervals.
        """
        tpr_low, fpr_high = _rates(self.tp, self.members, self.fp, self.others, self.level)
        for epsilon in (0.0, *np.geomspace(0.01, 20, 60).tolist()):
            excess = max(tpr_low - exp(epsilon) * fpr_high, 1 - fpr_high - exp(epsilon) * (1 - tpr_low))
            if excess > float(guarantee.delta(epsilon)):
                return True
        return False

    def to_dict(self) -> dict[str, float]:
        """Return the JSON-ready form."""
        names = ("delta", "level", "threshold", "above", "tpr", "fpr", "members", "others")
        bounds = {"epsilon_lower": self.epsilon, "mu_lower": self.mu}
        return bounds | {name: getattr(self, name) for name in names}


def lower_bound(
    member_scores: np.ndarray,
    other_scores: np.ndarray,
    delta: float = 1e-2,
    level: float = 0.05,
    select: float = 0.2,
    by: str = "epsilon",
) -> LowerBound:
    """Choose a threshold on the first part of the scores, a share ``select``, and count on the rest.

    There is one score per model trained with and without the record; one that is NaN counts as plus infinity:
    a model that broke is evidence too. ``by`` says which bound the threshold maximizes, "epsilon" or "mu".

    Guarantees
    ----------
    The threshold never sees the scores it is judged on, so both bounds hold at error ``level`` each.
    """
    both = [np.asarray(scores, dtype=np.float64).ravel() for scores in (member_scores, other_scores)]
    inside, outside = (np.where(np.isnan(scores), inf, scores) for scores in both)
    share = _validate.probability(select, "select", zero=False, one=False)
    if by not in ("epsilon", "mu"):
        raise InvalidInput(f"by must be 'epsilon' or 'mu', got {by!r}.")
    cut_in, cut_out = (max(1, int(share * len(s))) for s in (inside, outside))
    if len(inside) - cut_in < 1 or len(outside) - cut_out < 1:
        got = f"{len(inside)} and {len(outside)}"
        raise InvalidInput(f"an audit needs at least two scores on each side, got {got}.")
    threshold, above = _best_threshold(inside[:cut_in], outside[:cut_out], delta, by)
    inside, outside = inside[cut_in:], outside[cut_out:]
    tp, fp = (int(((s > threshold) if above else (s <= threshold)).sum()) for s in (inside, outside))
    counts = (tp, len(inside), fp, len(outside))
    epsilon, mu = epsilon_lower(*counts, delta=delta, level=level), mu_lower(*counts, level=level)
    return LowerBound(epsilon, mu, delta, level, float(threshold), above, *counts)


def one_run_epsilon(
    canaries: int, guesses: int, correct: int, delta: float = 0.0, level: float = 0.05
) -> float:
    """Return the largest epsilon refuted by one run.

    So many ``canaries`` were included or left out by independent fair coins, so many of them guessed, and so
    many of the guesses ``correct``.

    Guarantees
    ----------
    For an (epsilon, delta)-DP mechanism in the add/remove sense (each canary against its absence) the
    value exceeds epsilon with probability at most ``level``.
    """
    m = _validate.count(canaries, "canaries")
    v, r = _counts(correct, guesses)
    if r > m:
        raise InvalidInput(f"guesses must be at most the number of canaries {m}, got {r}.")
    _validate.probability(delta, "delta", one=False)
    if _one_run_p_value(0.0, m, r, v, delta) >= level:
        return 0.0
    low, high = 0.0, 1.0
    while _one_run_p_value(high, m, r, v, delta) < level:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _one_run_p_value(middle, m, r, v, delta) < level else (low, middle)
    return low


def audit_one_run(
    scores: np.ndarray,
    included: np.ndarray,
    *,
    guesses: int | None = None,
    delta: float = 1e-5,
    level: float = 0.05,
) -> float:
    """Guess the canaries with the most telling scores; return the largest epsilon that the hits refute.

    There is one score per canary, higher for ``included`` ones. ``guesses`` says how many canaries are
    guessed, half as in and half as out; fixed beforehand, by default all.
    """
    values, coins = np.asarray(scores, dtype=np.float64).ravel(), np.asarray(included, dtype=bool).ravel()
    if values.shape != coins.shape or not len(values):
        raise InvalidInput(f"expected one score per canary, got {len(values)} and {len(coins)} coins.")
    m = len(values)
    r = m if guesses is None else _validate.count(guesses, "guesses")
    order = np.argsort(np.where(np.isnan(values), np.inf, values), kind="stable")
    low, high = order[: r // 2], order[max(m - (r - r // 2), 0) :]
    correct = int((~coins[low]).sum() + coins[high].sum())
    return one_run_epsilon(m, r, correct, delta=delta, level=level)


def _one_run_p_value(epsilon: float, m: int, r: int, v: int, delta: float) -> float:
    """P[Bin(r, q) >= v] + 2 m delta max_i P[v > Bin(r, q) >= v - i] / i, with q = e^eps / (1 + e^eps)."""
    from scipy.special import betainc

    q = 1 / (1 + exp(-epsilon))
    at_least = np.ones(v + 1)  # P[Bin >= k], k = 0..v
    k = np.arange(1, v + 1)
    at_least[1:] = betainc(k, r - k + 1, q)
    p = float(at_least[v])
    if delta > 0 and v > 0:
        p += 2 * m * delta * float(np.max((at_least[v - k] - at_least[v]) / k))
    return min(p, 1.0)


def _best_threshold(inside: np.ndarray, outside: np.ndarray, delta: float, by: str) -> tuple[float, bool]:
    """Return the cut with the best bound on these scores; the counts are smoothed by one success."""
    from scipy.special import ndtri

    cuts = np.unique(np.concatenate([inside, outside]))
    cuts = cuts[np.isfinite(cuts)]
    if len(cuts) == 0:
        return 0.0, True
    if len(cuts) > 2000:
        cuts = np.quantile(cuts, np.linspace(0, 1, 2000))
    tp = len(inside) - np.searchsorted(np.sort(inside), cuts, side="right")
    fp = len(outside) - np.searchsorted(np.sort(outside), cuts, side="right")
    best, threshold, direction = -inf, float(cuts[0]), True
    for above in (True, False):
        k, j = (tp, fp) if above else (len(inside) - tp, len(outside) - fp)
        tpr_low = _wilson(k, len(inside), -2.0)
        fpr_high = _wilson(j, len(outside), +2.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            if by == "mu":
                value = ndtri(tpr_low) - ndtri(fpr_high)
            else:
                ratios = (tpr_low - delta) / fpr_high, (1 - fpr_high - delta) / (1 - tpr_low)
                value = np.log(np.maximum(np.maximum(*ratios), 1e-300))
        value = np.where(np.isnan(value), -inf, value)
        at = int(np.argmax(value))
        if value[at] > best:
            best, threshold, direction = float(value[at]), float(cuts[at]), above
    return threshold, direction


def _wilson(k: np.ndarray, n: int, z: float) -> np.ndarray:
    """Wilson's score bound: close to Clopper-Pearson and vectorized, good enough to choose by."""
    p = k / n
    center = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return np.clip(center + half, 1e-12, 1 - 1e-12)


def _log_ratio(numerator: float, denominator: float) -> float:
    if numerator <= 0 or denominator <= 0:
        return -inf if numerator <= 0 else inf
    return log(numerator / denominator)


def _counts(successes: int, trials: int) -> tuple[int, int]:
    n = _validate.count(trials, "trials")
    k = _validate.count(successes, "successes", minimum=0)
    if k > n:
        raise InvalidInput(f"successes must be at most the number of trials {n}, got {k}.")
    return k, n
