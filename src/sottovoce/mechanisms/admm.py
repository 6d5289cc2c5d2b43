r"""The gate of private ADMM: records answer a model with a clipped proximal move.

.. math:: \Delta_i = \mathrm{clip}_C\big(\mathrm{prox}_{\gamma f_i}(2z - u_i) - z\big)

`ClientProxMechanism` answers for clients (2 Delta_i plus noise of its own), `RecordProxMechanism` for the
one holder of all records (a noisy mean), `TokenProxMechanism` for the holder of a token. A question that is
asked again (the text asks for the message, then for the dual) is answered with the same bytes: it is one
release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from sottovoce.accounting.release import Release
from sottovoce.data import Shards
from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.admm_kernels import client_move, client_moves, record_moves, token_hops
from sottovoce.mechanisms.gradient import AnnouncedReleases, RecordsReleases
from sottovoce.mechanisms.random_walk import HiddenNoise, compare
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import grid_of
from sottovoce.objectives.clipping import clip_rows
from sottovoce.objectives.glm import GLM
from sottovoce.objectives.kernels import on_grid

__all__ = [
    "Answer",
    "ClientProxMechanism",
    "NoiseIn",
    "RecordProxMechanism",
    "TokenProxMechanism",
    "sample_participants",
]

NoiseIn = Literal["mean", "increment", "state"]


class Answer(NamedTuple):
    """What stays with the holder, and what leaves."""

    kept: np.ndarray
    released: np.ndarray


def _inner_clip(clip_norm: float, slack: float) -> float:
    if slack >= clip_norm:
        raise InvalidInput(
            f"the rounding slack {slack:g} exceeds the clip {clip_norm:g}; less noise is needed."
        )
    return clip_norm - slack


class _Once:
    """The last question and its answer."""

    def __init__(self) -> None:
        self._last: tuple[int, np.ndarray, Answer] | None = None

    def __call__(self, step: int, about: np.ndarray, make: Callable[[], Answer]) -> Answer:
        if self._last is None or step != self._last[0] or about is not self._last[1]:
            self._last = (step, about, make())
        return self._last[2]


def sample_participants(random: RunRandomness, k: int, users: int, rate: float) -> np.ndarray:
    """Return (users,) who takes part in round ``k``: each with probability ``rate``, independently."""
    return np.asarray(random.draws(0, k).random(users) < rate)


class ClientProxMechanism(RecordsReleases):
    """Noisy moves of the hosted clients of a federation, at user level.

    Parameters
    ----------
    objective, data : a generalized linear model, and the records of the hosted clients.
    agents, users : their numbers, and how many clients there are in all.
    random : noise, and the hidden draws of who takes part.
    gamma, clip, noise_std : the proximal step, C, and the noise on 2 Delta.
    sample_rate : probability with which a client takes part in a round.
    everyone : whether those who do not take part add their noise too (behind a secure sum), so that its
        amount does not tell how many did.
    releases : what the plan announced, per hosted client; None leaves out the comparison.

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
        releases: Sequence[Sequence[Release]] | None = None,
    ) -> None:
        self.objective, self.data, self.random, self.users = objective, data, random, users
        self.agents = [int(a) for a in agents]
        self.numbers = np.asarray(random.keys_for(self.agents))
        self.gamma, self.std, self.sensitivity = gamma, noise_std, 4.0 * clip_norm
        self.sample_rate, self.everyone = sample_rate, everyone
        # a row is twice a move, and both of two neighboring rows are rounded: 2 slack beside 4C
        slack = random.noise.slack(data.dim, noise_std) / 2 if noise_std else 0.0
        self.clip_norm = _inner_clip(clip_norm, slack)
        self.planned = None if releases is None else AnnouncedReleases(releases)
        self._once = _Once()

    def answer(self, u: np.ndarray, z: np.ndarray, k: int) -> Answer:
        """Return (2 Delta of every hosted client, the same with noise: what it sends)."""
        return self._once(k, u, lambda: self._answer(u, z, k))

    def _answer(self, u: np.ndarray, z: np.ndarray, k: int) -> Answer:
        model, data = self.objective, self.data
        chosen = sample_participants(self.random, k, self.users, self.sample_rate)[self.agents]
        rows = 2.0 * client_moves(
            model.kind, model.width, data.X, data.y, data.offsets, u, z, self.gamma, self.clip_norm, chosen
        )
        senders = np.arange(len(self.agents)) if self.everyone else np.flatnonzero(chosen)
        if self.planned is not None:
            self.planned.check(senders.tolist(), k, 0, sensitivity=self.sensitivity, noise_std=self.std)
        noisy = rows.copy()
        if self.std and len(senders):
            noisy[senders] = self.random.noise.perturb(
                rows[senders], agents=self.numbers[senders], step=k, std=self.std
            )
        if self._drawn is not None:
            self._drawn += [
                Release(self.agents[i], k, self.sensitivity, self.std, user_rate=self.sample_rate)
                for i in senders
            ]
        return Answer(rows, noisy)


class RecordProxMechanism:
    """The noisy mean of all records' moves, of one holder, at record level.

    Parameters
    ----------
    objective, data : a generalized linear model, and the records of the one holder.
    agents, random : the holder's number, and its noise.
    gamma, relaxation, clip, noise_std : as in `sottovoce.algorithms.admm.CentralADMM`.
    noise_in : where the noise goes.
    records : the public number of records.
    releases : what the plan announced; None leaves out the comparison.

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
        releases: Sequence[Sequence[Release]] | None = None,
    ) -> None:
        self.objective, self.data, self.random = objective, data, random
        self.numbers = list(random.keys_for([int(a) for a in agents]))
        self.gamma, self.relaxation, self.std, self.noise_in = gamma, relaxation, noise_std, noise_in
        moves = 2.0 if noise_in == "mean" else 4.0
        self.sensitivity = moves * clip_norm / records
        slack = random.noise.slack(data.dim, noise_std) * 2 * records / moves if noise_std else 0.0
        self.clip_norm = _inner_clip(clip_norm, slack)
        self.planned = None if releases is None else AnnouncedReleases(releases)
        self._once = _Once()

    def answer(self, u: np.ndarray, z: np.ndarray, k: int) -> Answer:
        """Return (the duals after step ``k``, (1, records, p); the noisy mean that is released)."""
        return self._once(k, u, lambda: self._answer(u[0], z, k))

    def _answer(self, u: np.ndarray, z: np.ndarray, k: int) -> Answer:
        model, data, lam = self.objective, self.data, self.relaxation
        free = math.inf if self.noise_in == "mean" else self.clip_norm
        moves = record_moves(model.kind, model.width, data.X, data.y, u, z, self.gamma, free)
        u = u + 2.0 * lam * moves
        if self.noise_in == "mean":
            mean = clip_rows(u - z, self.clip_norm).mean(axis=0)
        else:
            mean = 2.0 * moves.mean(axis=0)
        if self.planned is not None:
            self.planned.check([0], k, 0, sensitivity=self.sensitivity, noise_std=self.std)
        noisy = mean[None]
        if self.std:
            noisy = self.random.noise.perturb(noisy, agents=self.numbers, step=k, std=self.std)
        if self.noise_in == "state":
            u = u + lam * (noisy[0] - mean)
        return Answer(u[None], noisy)


class TokenProxMechanism:
    """Noisy moves of the holder of a token that hops to a uniformly drawn user, at user level.

    Parameters
    ----------
    objective, data : a generalized linear model, and the records of all users.
    random : noise, and the hidden draws of the path.
    gamma, relaxation, clip, noise_std : as in `sottovoce.algorithms.admm.TokenADMM`.
    cap, steps : contributions of a user (None: no cap), and hops.
    releases : what the plan announced, per user; None leaves out the comparison.

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
        releases: Sequence[Sequence[Release]] | None = None,
    ) -> None:
        self.objective, self.data, self.gamma, self.relaxation = objective, data, gamma, relaxation
        self.cap = steps if cap is None else min(cap, steps)
        self.clip_norm = _inner_clip(
            clip_norm, random.noise.slack(data.dim, noise_std) / 2 if noise_std else 0.0
        )
        self.grid = grid_of(random.noise, noise_std)
        self.draws = HiddenNoise(random, 1, data.dim, noise_std)
        if releases is not None:
            compare(releases, sensitivity=4.0 * clip_norm, noise_std=noise_std, contributions=self.cap)

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

    def stretch(
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
