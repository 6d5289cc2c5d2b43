r"""Gaussian mechanism for the proximal steps of private ADMM.

.. math:: \Delta_i = \mathrm{clip}_C\big(\mathrm{prox}_{\gamma f_i}(2z - u_i) - z\big)

`ClientProxMechanism` releases 2 Delta_i of every client with its own noise, `RecordProxMechanism` a noisy
mean over the records of one holder, `TokenProxMechanism` the step of the holder of a token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from sottovoce.accounting.release import Release
from sottovoce.data import Shards
from sottovoce.mechanisms.admm_kernels import client_moves, token_hops
from sottovoce.mechanisms.base import Mechanism, inner_clip
from sottovoce.mechanisms.random_walk import TokenMechanism
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives.clipping import clip_rows
from sottovoce.objectives.glm import GLM


class ProximalStep(NamedTuple):
    """One proximal step: ``local`` stays with the holder, ``released`` leaves."""

    local: np.ndarray
    released: np.ndarray


@dataclass(eq=False, kw_only=True)
class ProximalMechanism(Mechanism):
    """What clients and a holder of records share: their data, and the scale of a step."""

    objective: GLM
    data: Shards  # the records of the hosted agents
    gamma: float  # the proximal step
    clip_norm: float  # C
    noise_std: float  # of what is released

    def _slack(self) -> float:
        return self.random.noise.slack(self.data.dim, self.noise_std) if self.noise_std else 0.0


def sample_participants(random: RunRandomness, k: int, users: int, rate: float) -> np.ndarray:
    """Return (users,) who takes part in round ``k``: each with probability ``rate``, independently."""
    return np.asarray(random.draws(0, k).random(users) < rate)


@dataclass(eq=False, kw_only=True)
class ClientProxMechanism(ProximalMechanism):
    """Noisy moves of the hosted clients of a federation, at user level.

    Guarantees
    ----------
    A client moves its row by at most 4C. Records that are not finite give no move. Rounding of a protective
    source is paid for by clipping a little lower.
    """

    users: int  # how many clients there are in all
    sample_rate: float  # probability with which a client takes part in a round
    everyone: bool  # whether all add noise (behind a secure sum), so that its amount tells nothing
    adjacency: str = "user"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.set_scale(4.0 * self.clip_norm, self.noise_std)
        # a row is twice a move, and both of two neighboring rows are rounded: 2 slack beside 4C
        self._inner_clip = inner_clip(self.clip_norm, self._slack() / 2)
        self._last: tuple[int, np.ndarray, ProximalStep] | None = None

    def proximal_step(self, u: np.ndarray, z: np.ndarray, k: int) -> ProximalStep:
        """Return 2 Delta of every hosted client with duals ``u`` at the model ``z``, and it with noise.

        The message of a step and the update of the dual need it; both get the same bytes, one release.
        """
        if self._last is None or k != self._last[0] or u is not self._last[1]:
            self._last = (k, u, self._step(u, z, k))
        return self._last[2]

    def _step(self, u: np.ndarray, z: np.ndarray, k: int) -> ProximalStep:
        model, data, C = self.objective, self.data, self._inner_clip
        chosen = sample_participants(self.random, k, self.users, self.sample_rate)[self.agents]
        records = (model.kind, model.width, data.X, data.y, data.offsets)
        rows = 2.0 * client_moves(*records, u, z, self.gamma, C, chosen)
        senders = np.arange(len(self.agents)) if self.everyone else np.flatnonzero(chosen)
        noisy = rows.copy()
        noisy[senders] = self.add_noise(rows[senders], senders.tolist(), k)
        return ProximalStep(rows, noisy)

    def release_of(self, place: int, step: int) -> Release:
        return replace(super().release_of(place, step), user_rate=self.sample_rate)


@dataclass(eq=False, kw_only=True)
class RecordProxMechanism(ProximalMechanism):
    """The noisy mean of all records' moves, of one holder, at record level.

    Guarantees
    ----------
    A record replaced moves the mean by at most 2C/n (``"mean"``) or 4C/n. With noise in the state no such
    bound holds, see `sottovoce.algorithms.admm.CentralADMM`.
    """

    relaxation: float
    noise_in: Literal["mean", "increment", "state"]  # where the noise goes
    records: int  # the public number of records
    adjacency: str = "replace-one"

    def __post_init__(self) -> None:
        super().__post_init__()
        moves = 2.0 if self.noise_in == "mean" else 4.0
        self.set_scale(moves * self.clip_norm / self.records, self.noise_std)
        # both of two neighboring means are rounded: 2 slack beside the clips over n that a record moves
        self._inner_clip = inner_clip(self.clip_norm, self._slack() * 2 * self.records / moves)

    def step(self, u: np.ndarray, z: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the duals (records, p) after step ``k`` at the model ``z``, and the noisy mean (1, p)."""
        model, data, lam, fresh = self.objective, self.data, self.relaxation, self.noise_in == "mean"
        C = math.inf if fresh else self._inner_clip
        each = np.arange(len(data.y) + 1)  # every record counts as a client
        records = (model.kind, model.width, data.X, data.y, each)
        moves = client_moves(*records, u, z, self.gamma, C, np.ones(len(data.y), bool))
        u = u + 2.0 * lam * moves
        mean = (clip_rows(u - z, self._inner_clip) if fresh else 2.0 * moves).mean(axis=0)
        noisy = self.add_noise(mean[None], [0], k)
        if self.noise_in == "state":
            u = u + lam * (noisy[0] - mean)
        return u, noisy


@dataclass(eq=False, kw_only=True)
class TokenProxMechanism(TokenMechanism):
    """Noisy moves of the holder of a token that hops to a uniformly drawn user, at user level.

    Guarantees
    ----------
    A user moves a release, twice its clipped move, by at most 4C.
    """

    gamma: float
    relaxation: float
    noise_std: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.set_noise(self.noise_std, moves=4.0)

    def many_steps(
        self, u: np.ndarray, zh: np.ndarray, counts: np.ndarray, k: int, count: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return duals, mean and contributions after ``count`` hops from step ``k``, compiled."""
        u, zh, counts = u.copy(), zh.copy(), counts.copy()
        model, data, r = self.objective, self.data, self.objective.regularizer
        records = (model.kind, model.width, data.X, data.y, data.offsets)
        step = (self.grid, self.gamma, self.relaxation, self.inner_clip)
        prox: Any = (r.l1, r.l2, r.box or math.inf, r.ball or math.inf, r.intercepts)
        for _, noise, uniform in self.stretches(k, count):
            holders = (uniform[0] * data.n).astype(np.int64)
            token_hops(*records, u, zh[0], counts, self.contributions, holders, noise[0], *step, *prox)
        return u, zh, counts
