"""Auditing with one run: many canaries, each included by a fair coin, guessed from what was seen.

Many-run audits train thousands of models to learn about one record. One run with ``m`` canaries gives ``m``
coin flips at once: an (epsilon, delta)-DP mechanism lets nobody guess more of them than a binomial law
with success rate ``e^eps / (1 + e^eps)`` does, up to delta. Users are the canaries of an averaging, records
those of a training.

References: Steinke, Nasr, Jagielski 2023, "Privacy auditing with one (1) training run", Algorithm 1 and
Theorem 5.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sottovoce import _validate
from sottovoce.accounting.exact import averaging_guarantee
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.attacks.bounds import one_run_epsilon
from sottovoce.errors import InvalidInput
from sottovoce.noise.samplers import as_noise
from sottovoce.protocols import Protocol

__all__ = ["OneRun", "audit_one_run", "one_run_averaging", "one_run_training"]


@dataclass(frozen=True)
class OneRun:
    """What one run proves about a claim.

    Examples
    --------
    >>> OneRun(100, 100, 60, 0.1, 1.0, 1e-5, 0.05).refuted
    False
    """

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
    >>> found = audit_one_run(coins + rng.normal(size=2000), coins, claim)
    >>> 0 < found.epsilon < found.epsilon_claimed
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


def one_run_averaging(
    protocol: Protocol,
    observers: int | Iterable[int],
    *,
    sensitivity: float,
    noise_std: float,
    dim: int,
    rng: np.random.Generator,
    delta: float = 1e-5,
    level: float = 0.05,
) -> OneRun:
    """Audit one averaging with the users as canaries: each holds a random direction, or nothing.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> gossip = sv.protocols.Gossip(sv.graphs.complete(60), 1)
    >>> found = one_run_averaging(
    ...     gossip, 0, sensitivity=3.0, noise_std=1.0, dim=500, rng=np.random.default_rng(0)
    ... )
    >>> found.refuted, found.epsilon > 1
    (False, True)
    """
    view = protocol.view(observers)
    users = np.setdiff1d(np.arange(protocol.n), view.observers)
    directions = rng.normal(size=(protocol.n, _validate.count(dim, "dim")))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    coins = rng.random(protocol.n) < 0.5
    rows = sensitivity * coins[:, None] * directions
    noisy = as_noise(rng).perturb(rows, agents=range(protocol.n), step=0, std=noise_std)
    estimate = view.reconstruct(protocol.observe(noisy, observers))
    share = view.leakage()
    scores = np.einsum("ud,ud->u", estimate, directions) - share * sensitivity / 2
    claim = averaging_guarantee(view, None, sensitivity=sensitivity, noise_std=noise_std)
    return audit_one_run(scores[users], coins[users], claim, delta=delta, level=level)


def one_run_training(
    plan: Any,
    net: Any,
    problem: Any,
    canaries: np.ndarray,
    labels: np.ndarray,
    *,
    start: np.ndarray,
    rng: np.random.Generator,
    delta: float = 1e-2,
    level: float = 0.05,
) -> OneRun:
    """Train once with many canary records at the owner and guess them from its model's losses.

    Parameters
    ----------
    plan, net, problem, start : as in `train_models`; the problem's own canary is not used.
    canaries, labels : pictures ``(m, side, side)`` and classes; each is given to the owner by a fair coin.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> from sottovoce.algorithms.dp_dsgd import DPDSGD
    >>> from sottovoce.attacks.small_net import SmallNet
    >>> from sottovoce.objectives.nets import NetObjective
    >>> rng, net = np.random.default_rng(0), SmallNet()
    >>> start = net.initial(rng)
    >>> problem = sv.attacks.MembershipProblem(
    ...     rng.random((3, 5, 14, 14)), np.zeros((3, 5), int), np.ones((14, 14)), 0, 0
    ... )
    >>> plan = DPDSGD(
    ...     NetObjective(net.module(start), clip_norm=1.0), sv.graphs.path(3), steps=2, sizes=problem.sizes,
    ...     noise_multiplier=4.0, learning_rate=0.05,
    ... )  # fmt: skip
    >>> canaries, classes = rng.random((8, 14, 14)), np.zeros(8, int)
    >>> one_run_training(plan, net, problem, canaries, classes, start=start, rng=rng).refuted
    False
    """
    from sottovoce.attacks.membership import CopiesQuery, owner_claim
    from sottovoce.noise.run_randomness import RunRandomness
    from sottovoce.runners import run_stacked

    coins = rng.random(len(canaries)) < 0.5
    query = CopiesQuery(net, problem, member=False, copies=1)
    query.add_records(problem.owner, canaries, labels, coins)
    gradients = plan.source(query, range(problem.agents), RunRandomness.of(rng))
    theta = np.tile(np.asarray(start, dtype=np.float32), (problem.agents, 1))
    algorithm = plan.algorithm(gradients, theta)
    final = algorithm.output(run_stacked(algorithm, plan.schedule, plan.steps))[problem.owner]
    before, after = net.losses(np.stack([start, final]), canaries, np.asarray(labels))
    claim = owner_claim(plan, problem)
    return audit_one_run(before - after, coins, claim, delta=delta, level=level)
