r"""Gaussian mechanism for the proximal steps of private ADMM.

.. math:: \Delta_i = \mathrm{clip}_C\big(\mathrm{prox}_{\gamma f_i}(2z - u_i) - z\big)

`ClientProxMechanism` releases 2 Delta_i of every client with its own noise, `RecordProxMechanism` a noisy
mean over the records of one holder, `TokenProxMechanism` the step of the holder of a token. An algorithm
needs each step twice, for the message and for the dual; both get the same bytes, which are one release.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from sottovoce.accounting.release import Release
from sottovoce.data import Shards
from sottovoce.mechanisms.admm_kernels import client_move, client_moves, record_moves, token_hops
from sottovoce.mechanisms.base import Announced, Mechanism, ProximalStep, inner_clip
from sottovoce.mechanisms.random_walk import HiddenNoise
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import grid_of
from sottovoce.objectives.clipping import clip_rows
from sottovoce.objectives.glm import GLM
from sottovoce.objectives.kernels import on_grid

NoiseIn = Literal["mean", "increment", "state"]


class ProximalMechanism(Mechanism):
    """Computes each proximal step once; the second call for a step returns the same result."""

    def __init__(
        self, agents: Sequence[int], random: RunRandomness, adjacency: str, releases: Announced | None
    ) -> None:
        super().__init__(agents, random, adjacency, releases)
        self._last: tuple[int, np.ndarray, ProximalStep] | None = None

    def proximal_step(self, u: np.ndarray, z: np.ndarray, k: int) -> ProximalStep:
        """Return the step of the duals ``u`` at the model ``z``, and what is released of it."""
        if self._last is None or k != self._last[0] or u is not self._last[1]:
            self._last = (k, u, self._step(u, z, k))
        return self._last[2]

    def _step(self, u: np.ndarray, z: np.ndarray, k: int) -> ProximalStep:
        raise NotImplementedError


def sample_participants(random: RunRandomness, k: int, users: int, rate: float) -> np.ndarray:
    """Return (users,) who takes part in round ``k``: each with probability ``rate``, independently."""
    return np.asarray(random.draws(0, k).random(users) < rate)


class ClientProxMechanism(ProximalMechanism):
    """Noisy moves of the hosted clients of a federation, at user level.

    Parameters
    ----------
    objective, data : a generalized linear model, and the records of the hosted clients.
    agents, users : their numbers, and how many clients there are in all.
    random : noise, and the hidden draws of who takes part.
    gamma, clip_norm, noise_std : the proximal step, C, and the noise on 2 Delta.
    sample_rate : probability with which a client takes part in a round.
    everyone : whether those who do not take part add their noise too (behind a secure sum), so that its
        amount does not tell how many did.
    releases : what the plan announced, per hosted client; None leaves the comparison out.

    Guarantees
    ----------
    A client moves its row by at most 4C. Records that are not finite give no move. What is drawn is what the
    plan announced, or `ReleaseMismatch` is raised and nothing leaves. Rounding of a protective source is
    paid for by clipping a little lower.
    """

    def __init__(
        self,
        objective: GLM,
        data: Shards,
        agents: Sequence[int],
        users: int,
        random: RunRandomness,
        *,
        gamma: float,
        clip_norm: float,
        noise_std: float,
        sample_rate: float,
        everyone: bool,
        releases: Announced | None = None,
    ) -> None:
        super().__init__(agents, random, "user", releases)
        self.objective, self.data, self.users, self.gamma = objective, data, users, gamma
        self.std = self.noise_std = np.full(len(self.agents), float(noise_std))
        self.sensitivity, self.noisy = np.full(len(self.agents), 4.0 * clip_norm), noise_std > 0
        self.sample_rate, self.everyone = sample_rate, everyone
        # a row is twice a move, and both of two neighboring rows are rounded: 2 slack beside 4C
        slack = random.noise.slack(data.dim, noise_std) / 2 if noise_std else 0.0
        self.clip_norm = inner_clip(clip_norm, slack)

    def _step(self, u: np.ndarray, z: np.ndarray, k: int) -> ProximalStep:
        """Return 2 Delta of every hosted client, and the same with noise."""
        model, data = self.objective, self.data
        chosen = sample_participants(self.random, k, self.users, self.sample_rate)[self.agents]
        rows = 2.0 * client_moves(
            model.kind, model.width, data.X, data.y, data.offsets, u, z, self.gamma, self.clip_norm, chosen
        )
        senders = np.arange(len(self.agents)) if self.everyone else np.flatnonzero(chosen)
        noisy = rows.copy()
        noisy[senders] = self.release(rows[senders], senders.tolist(), k)
        return ProximalStep(rows, noisy)

    def as_release(self, place: int, step: int) -> Release:
        """Return what one client releases in a round, with the rate at which it takes part."""
        return replace(super().as_release(place, step), user_rate=self.sample_rate)


class RecordProxMechanism(ProximalMechanism):
    """The noisy mean of all records' moves, of one holder, at record level.

    Parameters
    ----------
    objective, data : a generalized linear model, and the records of the one holder.
    agents, random : the holder's number, and its noise.
    gamma, relaxation, clip_norm, noise_std : as in `sottovoce.algorithms.admm.CentralADMM`.
    noise_in : where the noise goes.
    records : the public number of records.
    releases : what the plan announced; None leaves the comparison out.

    Guarantees
    ----------
    A record replaced moves the mean by at most 2C/n (``"mean"``) or 4C/n. What is drawn is what the plan
    announced. With noise in the state no such bound holds, see `CentralADMM`.
    """

    def __init__(
        self,
        objective: GLM,
        data: Shards,
        agents: Sequence[int],
        random: RunRandomness,
        *,
        gamma: float,
        relaxation: float,
        clip_norm: float,
        noise_std: float,
        noise_in: NoiseIn,
        records: int,
        releases: Announced | None = None,
    ) -> None:
        super().__init__(agents, random, "replace-one", releases)
        self.objective, self.data = objective, data
        self.gamma, self.relaxation, self.noise_in = gamma, relaxation, noise_in
        moves = 2.0 if noise_in == "mean" else 4.0
        self.std = self.noise_std = np.array([float(noise_std)])
        self.sensitivity, self.noisy = np.array([moves * clip_norm / records]), noise_std > 0
        slack = random.noise.slack(data.dim, noise_std) * 2 * records / moves if noise_std else 0.0
        self.clip_norm = inner_clip(clip_norm, slack)

    def _step(self, u: np.ndarray, z: np.ndarray, k: int) -> ProximalStep:
        """Return the duals after step ``k``, (1, records, p), and the noisy mean."""
        u = u[0]
        model, data, lam = self.objective, self.data, self.relaxation
        free = math.inf if self.noise_in == "mean" else self.clip_norm
        moves = record_moves(model.kind, model.width, data.X, data.y, u, z, self.gamma, free)
        u = u + 2.0 * lam * moves
        if self.noise_in == "mean":
            mean = clip_rows(u - z, self.clip_norm).mean(axis=0)
        else:
            mean = 2.0 * moves.mean(axis=0)
        noisy = self.release(mean[None], [0], k)
        if self.noise_in == "state":
            u = u + lam * (noisy[0] - mean)
        return ProximalStep(u[None], noisy)


class TokenProxMechanism(Mechanism):
    """Noisy moves of the holder of a token that hops to a uniformly drawn user, at user level.

    Parameters
    ----------
    objective, data : a generalized linear model, and the records of all users.
    random : noise, and the hidden draws of the path.
    gamma, relaxation, clip_norm, noise_std : as in `sottovoce.algorithms.admm.TokenADMM`.
    cap, steps : contributions of a user (None: no cap), and hops.
    releases : what the plan announced, per user; None leaves the comparison out.

    Guarantees
    ----------
    A user moves a release by at most 4C and contributes at most ``cap`` times; then noise alone goes on.
    """

    def __init__(
        self,
        objective: GLM,
        data: Shards,
        random: RunRandomness,
        *,
        gamma: float,
        relaxation: float,
        clip_norm: float,
        noise_std: float,
        cap: int | None,
        steps: int,
        releases: Announced | None = None,
    ) -> None:
        super().__init__(range(data.n), random, "user", releases)
        self.objective, self.data, self.gamma, self.relaxation = objective, data, gamma, relaxation
        self.noisy = noise_std > 0
        self.cap = steps if cap is None else min(cap, steps)
        # a row is twice a move, and both of two neighboring rows are rounded: 2 slack beside 4C
        slack = random.noise.slack(data.dim, noise_std) / 2 if noise_std else 0.0
        self.clip_norm = inner_clip(clip_norm, slack)
        self.grid = grid_of(random.noise, noise_std)
        self.draws = HiddenNoise(random, 1, data.dim, noise_std)
        if self.announced is not None:
            self.announced.check_totals(
                sensitivity=4.0 * clip_norm, noise_std=noise_std, contributions=self.cap
            )

    def holder(self, k: int) -> int:
        """Return who holds the token in step ``k``."""
        place, _, uniform = self.draws(k)
        return int(uniform[0, place] * self.data.n)

    def row(self, u: np.ndarray, z: np.ndarray, k: int, *, holder: int, contributions: int) -> np.ndarray:
        """Return what the holder adds to its dual and, over n, to the token's mean."""
        model, (X, y), (place, noise, _) = self.objective, self.data.user(holder), self.draws(k)
        limit = self.clip_norm if contributions < self.cap else 0.0
        move = client_move(model.kind, model.width, X, y, u, z, self.gamma, limit)
        return np.asarray(self.relaxation * on_grid(2.0 * move, noise[0, place], self.grid))

    def many_steps(
        self, u: np.ndarray, zh: np.ndarray, counts: np.ndarray, k: int, count: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return duals, mean and contributions after ``count`` hops from step ``k``, compiled."""
        u, zh, counts = u.copy(), zh.copy(), counts.copy()
        model, data, r, done = self.objective, self.data, self.objective.regularizer, 0
        while done < count:
            place, noise, uniform = self.draws(k + done)
            here = slice(place, place + min(self.draws.chunk - place, count - done))
            holders = (uniform[0, here] * data.n).astype(np.int64)
            token_hops(
                model.kind, model.width, data.X, data.y, data.offsets, u, zh[0], counts, self.cap, holders,
                noise[0, here], self.grid, self.gamma, self.relaxation, self.clip_norm, r.l1, r.l2,
                r.box or math.inf, r.ball or math.inf,
            )  # fmt: skip
            done += len(holders)
        return u, zh, counts
