"""Auditing with one run: many canaries, each included by a fair coin, guessed from what was seen.

Many-run audits train thousands of models to learn about one record. One run with ``m`` canaries gives ``m``
coin flips at once: an (epsilon, delta)-DP mechanism lets nobody guess more of them than a binomial
distribution with success rate ``e^eps / (1 + e^eps)`` does, up to delta. Users are the canaries of an
averaging, records those of a training.

References: Steinke, Nasr, Jagielski 2023, "Privacy auditing with one (1) training run", Algorithm 1 and
Theorem 5.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sottovoce import _validate
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.attacks.bounds import one_run_epsilon
from sottovoce.errors import InvalidInput


@dataclass(frozen=True)
class OneRun:
    """What one run proves about a claim."""

    canaries: int
    guesses: int
    correct: int
    epsilon: float
    epsilon_claimed: float
    delta: float
    level: float

    @property
    def refuted(self) -> bool:
        """Whether the guesses contradict the claim, at error probability ``level``."""
        return self.epsilon > self.epsilon_claimed


def audit_one_run(
    scores: np.ndarray,
    included: np.ndarray,
    guarantee: Guarantee,
    *,
    guesses: int | None = None,
    delta: float = 1e-5,
    level: float = 0.05,
) -> OneRun:
    """Guess the canaries with the most telling scores and hold the number of hits against a claim.

    Parameters
    ----------
    scores, included : one score per canary, higher for included ones, and the coins.
    guesses : how many canaries to guess, half as in and half as out; fixed beforehand, by default all.

    Examples
    --------
    >>> import numpy as np
    >>> from sottovoce.privacy import Adversary, Curve, Guarantee
    >>> rng = np.random.default_rng(0)
    >>> coins = rng.random(2000) < 0.5
    >>> claim = Guarantee(Adversary("local"), "add-remove", "ldp", Curve.gaussian(1.0))
    >>> run = audit_one_run(coins + rng.normal(size=2000), coins, claim)
    >>> 0 < run.epsilon < run.epsilon_claimed
    True
    """
    values, coins = np.asarray(scores, dtype=np.float64).ravel(), np.asarray(included, dtype=bool).ravel()
    if values.shape != coins.shape or not len(values):
        raise InvalidInput(f"expected one score per canary, got {len(values)} and {len(coins)} coins.")
    m = len(values)
    r = m if guesses is None else _validate.count(guesses, "guesses")
    if r > m:
        raise InvalidInput(f"guesses must be at most the number of canaries {m}, got {r}.")
    order = np.argsort(np.where(np.isnan(values), np.inf, values), kind="stable")
    low, high = order[: r // 2], order[m - (r - r // 2) :]
    correct = int((~coins[low]).sum() + coins[high].sum())
    bound = one_run_epsilon(m, r, correct, delta=delta, level=level)
    return OneRun(m, r, correct, bound, float(guarantee.epsilon(delta)), delta, level)
