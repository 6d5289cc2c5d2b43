r"""MAFALDA-SGD: each node correlates its own noise over time, in the way that hurts the model least.

.. math:: \theta^{t+1} = W\Big(\theta^t - \nu\big(\mathrm{clip}_C(g_u^t)
          + \sum_{s \le t} (C_{loc}^{-1})_{ts}\, \xi_u^s\big)\Big),\qquad
          \xi \sim \mathcal N(0, (z\,\mathrm{sens}\,C)^2 I)

C_loc (lower triangular) minimises sens(X)^2 tr(M X^{-1}), X = C_loc^T C_loc, with the Gram matrix M of how
noise injected at step s spreads through the network until the end.

References: Bellet, Cyffers, Frey, Gaudel, Lerévérend, Taïani, "Unified Privacy Guarantees for Decentralized
Learning via Matrix Factorization" <https://arxiv.org/abs/2510.17480>. Departures: read through its public
code and a summary; the optimiser for repeated participation is a quasi-Newton search on the factor, not
the authors' solver, and the sensitivity it reports is computed afterwards from the definition.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from sottovoce._validate import count
from sottovoce.algorithms.decentralized import Gradients, LearningPlan
from sottovoce.algorithms.plan import View, known_view
from sottovoce.data import Shards
from sottovoce.errors import InvalidInput
from sottovoce.privacy import Adversary, Curve, Guarantee
from sottovoce.privacy.noise import NoiseSource
from sottovoce.protocols import Gossip
from sottovoce.runners import Algorithm

__all__ = ["Factorisation", "Mafalda", "factorise", "noise_gram"]


class Factorisation(NamedTuple):
    """A correlation of noise over time.

    ``C`` lower triangular (steps, steps); ``sensitivity`` of C for the participation; ``error`` =
    sensitivity^2 tr(M X^{-1}), the noise energy in the models at equal privacy.
    """

    C: np.ndarray
    sensitivity: float
    error: float


@dataclass(frozen=True, repr=False)
class Mafalda(LearningPlan):
    """D-SGD with optimally correlated local noise, at user level, for one round of gossip per step.

    Parameters are those of `LearningPlan`; ``noise_multiplier`` is the noise of an equivalent single release:
    the whole run, in which a user's data enter every step, is 2/z-GDP.

    Guarantees
    ----------
    "local", label "ldp": against anybody who sees every message, 2/z-GDP in all for a user, whatever the
    loss, since the factor's sensitivity scales the noise. Correlating noise over time needs all of it to stay
    secret, past steps included.

    Examples
    --------
    >>> import sottovoce as sv
    >>> gossip = sv.protocols.Gossip(sv.graphs.ring(8), 1)
    >>> plan = Mafalda(sv.objectives.GLM(), gossip, steps=9, step_size=0.1, l2_clip=1.0, noise_multiplier=2)
    >>> plan.privacy().mu, plan.privacy().label
    (1.0, 'ldp')
    """

    name: str = field(default="mafalda-sgd", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.level != "user":
            raise InvalidInput('MAFALDA is accounted at user level; leave level="user".')
        if type(self.schedule(0)) is not Gossip or self.schedule(0).rounds != 1:
            raise InvalidInput(f"MAFALDA averages by one round of Gossip, got {self.schedule(0)!r}.")

    def privacy(
        self,
        view: View = "local",
        *,
        observer: int | None = None,
        user: int | None = None,
        colluders: Iterable[int] = (),
    ) -> Guarantee:
        """Return the local guarantee, restated against weaker adversaries."""
        mu = 2 / self.noise_multiplier if self.noise_multiplier else math.inf
        local = Guarantee(Adversary("local"), "user", "ldp", Curve.gaussian(mu))
        if known_view(view) == "local":
            return local
        listed = sorted({*colluders, *([] if observer is None else [observer])})
        if view == "central":
            return local.against(Adversary("central"))
        kind = "colluders" if len(listed) > 1 else ("network" if user is None else "pairwise")
        return local.against(Adversary(kind, tuple(listed), user))

    def factorisation(self) -> Factorisation:
        """Return the correlation this plan uses."""
        protocol = self.schedule(0)
        assert isinstance(protocol, Gossip)
        eigenvalues = tuple(np.round(np.linalg.eigvalsh(protocol.network.W.toarray()), 14).tolist())
        return _factorise(eigenvalues, self.steps)

    def algorithm(self, shards: Shards, agents: Sequence[int], noise: NoiseSource) -> Algorithm:
        """Return the text for the hosted agents; the state keeps each agent's fresh draws."""
        gradient = Gradients(
            self.objective, shards, agents, noise, l2_clip=self.l2_clip, noise_multiplier=0.0
        )
        if noise.protective:
            raise InvalidInput(
                "Correlated noise reuses past draws and is not on the grid of a protective source; simulate "
                "MAFALDA with a numpy Generator."
            )
        found = self.factorisation()
        inverse = np.linalg.inv(found.C)
        std = self.noise_multiplier * self.l2_clip * found.sensitivity
        who = np.asarray(list(agents))
        nu, dim, T = self.step_size, shards.dim, self.steps

        def init() -> _State:
            return _State(np.zeros((shards.n, dim)), np.zeros((T, shards.n, dim)))

        def message(state: _State, k: int) -> np.ndarray:
            if std == 0:
                return state.theta - nu * gradient(state.theta, k)
            state.draws[k] = noise.perturb(np.zeros((shards.n, dim)), agents=who, step=k, std=std)
            z = np.tensordot(inverse[k, : k + 1], state.draws[: k + 1], axes=1)
            return state.theta - nu * (gradient(state.theta, k) + z)

        def update(state: _State, received: np.ndarray, k: int) -> _State:
            return state._replace(theta=received)

        return Algorithm(init, message, update, output=lambda state: state.theta)


class _State(NamedTuple):
    theta: np.ndarray
    draws: np.ndarray


def noise_gram(eigenvalues: Any, steps: int) -> np.ndarray:
    """Return M with M_{ss'} = sum over eigenvalues w and t >= max(s, s') of w^(2t - s - s' + 2).

    Examples
    --------
    >>> noise_gram([1.0], 2).tolist()
    [[2.0, 1.0], [1.0, 1.0]]
    """
    w = np.asarray(eigenvalues, dtype=float)
    T = count(steps, "steps")
    M = np.zeros((T, T))
    powers = w[:, None] ** np.arange(2 * T + 1)
    traces = powers.sum(axis=0)  # traces[k] = tr(W^k)
    for s in range(T):
        for r in range(s, T):
            exponents = 2 * np.arange(r, T) - s - r + 2
            M[s, r] = M[r, s] = traces[exponents].sum()
    return M


def factorise(M: np.ndarray, participation: str = "every") -> Factorisation:
    """Return the noise correlation that minimises sens^2 tr(M X^{-1}).

    "once": sens^2 = max of diag X, solved by a fixed-point iteration. "every": sens^2 = the sum of |X|, a
    quasi-Newton search started from the better of the identity and the "once" solution.

    Examples
    --------
    >>> round(factorise(noise_gram([1.0], 2), "once").error, 4)  # the golden ratio squared
    2.618
    """
    once = _single(M)
    X = once if participation == "once" else _every(M, once)
    C = _lower_factor(X)
    return Factorisation(C, sensitivity(C, participation), error(C, M, participation))


def sensitivity(C: np.ndarray, participation: str) -> float:
    """Return sens(C): the largest |C g| over g with entries of length at most 1 where data take part."""
    X = C.T @ C
    return math.sqrt(float(np.diag(X).max() if participation == "once" else np.abs(X).sum()))


def error(C: np.ndarray, M: np.ndarray, participation: str) -> float:
    """Return sens^2 tr(M X^{-1}) for X = C'C."""
    B = np.linalg.inv(C)
    return sensitivity(C, participation) ** 2 * float(np.trace(B.T @ M @ B))


@lru_cache(maxsize=32)
def _factorise(eigenvalues: tuple[float, ...], steps: int) -> Factorisation:
    return factorise(noise_gram(eigenvalues, steps), "every")


def _root(A: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(A)
    return (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T


def _single(M: np.ndarray, iterations: int = 500) -> np.ndarray:
    """X with unit diagonal minimising tr(M X^{-1}): v <- diag((D M D)^{1/2}), D = diag(v)^{1/2}."""
    v = np.sqrt(np.diag(M)).copy()
    for _ in range(iterations):
        d = np.sqrt(v)
        new = np.diag(_root(d[:, None] * M * d))
        done = np.abs(new - v).max() <= 1e-13 * np.abs(v).max()
        v = new
        if done:
            break
    d = np.sqrt(v)
    X = _root(d[:, None] * M * d) / np.outer(d, d)
    return X / np.diag(X).max()


def _every(M: np.ndarray, once: np.ndarray) -> np.ndarray:
    import scipy.optimize

    T = len(M)
    below = np.tril_indices(T)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        L = np.zeros((T, T))
        L[below] = flat
        X = L @ L.T
        inverse = np.linalg.inv(X)
        size, energy = np.abs(X).sum(), np.trace(M @ inverse)
        G = np.sign(X) / size - (inverse @ M @ inverse) / energy
        return float(np.log(size) + np.log(energy)), (2 * G @ L)[below]

    best, value = np.eye(T), math.inf
    minimise: Any = scipy.optimize.minimize
    for start in (np.eye(T), once):
        found = minimise(
            objective, np.linalg.cholesky(start)[below], jac=True, method="L-BFGS-B", options={"maxiter": 500}
        )
        if found.fun < value:
            L = np.zeros((T, T))
            L[below] = found.x
            best, value = L @ L.T, found.fun
    return best


def _lower_factor(X: np.ndarray) -> np.ndarray:
    """Lower triangular C with X = C'C: Cholesky in reversed order."""
    L = np.linalg.cholesky(X[::-1, ::-1])
    return L.T[::-1, ::-1]
