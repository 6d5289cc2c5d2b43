r"""Gaussian mechanism of a walk whose path is drawn while it runs: one holder at a time.

.. math:: \tilde g_v(\theta) = \mathrm{clip}_C\Big(\frac{1}{m_v}\sum_{d \in D_v} \nabla\ell(\theta; d)
          + \lambda\theta\Big) + z C\,\xi, \qquad \text{noise alone once } v \text{ reached its cap}

A walk of a million hops is one sequential loop, so its randomness is drawn by chunks of steps: the numbers of
step k depend on (key, token, k) alone, whatever number of steps is done at once.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from sottovoce.data import Shards
from sottovoce.graphs import Network
from sottovoce.mechanisms.base import Announced, Mechanism, inner_clip
from sottovoce.mechanisms.random_walk_kernels import holder_moves, walk
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import grid_of
from sottovoce.objectives.clipping import clip_rows
from sottovoce.objectives.glm import GLM
from sottovoce.objectives.kernels import on_grid

_PATH, _NOISE, _FIRST = 0, 1, 3  # keys of the hidden draws
_NUMBERS = 1 << 17  # numbers of noise in a chunk: they stay in the cache


class HiddenNoise:
    """Noise and uniform numbers of every step of some tokens, drawn by chunks of steps.

    Parameters
    ----------
    random : the randomness of the run.
    tokens, width, std : how many tokens, numbers of noise per step, and its standard deviation.

    Guarantees
    ----------
    In a simulation the numbers of step k depend on (key, token, k) and on nothing else. Protective numbers
    are fresh in every chunk, and none serves two steps.
    """

    def __init__(self, random: RunRandomness, tokens: int, width: int, std: float) -> None:
        self.random, self.tokens, self.width, self.std = random, tokens, width, std
        self.chunk = max(1, _NUMBERS // (width * tokens))
        self._current: tuple[int, np.ndarray, np.ndarray] | None = None

    def __call__(self, k: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Return the place of step ``k`` in its chunk, and the chunk's noise and uniform numbers."""
        chunk, place = divmod(k, self.chunk)
        if self._current is None or self._current[0] != chunk:
            noise = np.empty((self.tokens, self.chunk, self.width))
            uniform = np.empty((self.tokens, self.chunk))
            for token in range(self.tokens):
                self._fill(noise[token], token, chunk)
                self.random.draws(_PATH, token, chunk).random(out=uniform[token])
            self._current = (chunk, noise, uniform)
        return place, self._current[1], self._current[2]

    def _fill(self, out: np.ndarray, token: int, chunk: int) -> None:
        """Draw the noise of one token in one chunk of steps."""
        if not self.std:
            out[:] = 0.0
        elif self.random.protective:
            rows = np.arange(len(out))
            out[:] = self.random.noise.perturb(
                np.zeros_like(out), agents=rows, step=chunk, std=self.std, stream=token
            )
        else:
            self.random.draws(_NOISE, token, chunk).standard_normal(out=out)
            out *= self.std


class RandomWalkMechanism(Mechanism):
    """Noisy steps of the holders of one or several tokens, at user level.

    Parameters
    ----------
    objective, data : a generalized linear model, and the records of all nodes.
    network : the graph and the transition weights of the tokens.
    random : noise, and the hidden draws of the paths.
    clip_norm : C, for the holder's whole gradient.
    noise_multiplier : z, noise over C.
    cap : contributions of a node, all tokens together; None for no cap.
    steps, tokens : hops of each token, and how many tokens there are.
    releases : what the plan announced, per node; None leaves the comparison out (tests).

    Guarantees
    ----------
    A node moves a step by at most 2C, and contributes at most ``cap`` times; then the noise alone goes on.
    Sensitivity, noise and number of contributions are those the plan announced, or `ReleaseMismatch`
    is raised before anything is drawn. Rounding of a protective source is paid for by a lower clip.
    """

    decay = 0.0  # the l2 term is inside the clip

    def __init__(
        self,
        objective: GLM,
        data: Shards,
        network: Network,
        random: RunRandomness,
        *,
        clip_norm: float,
        noise_multiplier: float,
        cap: int | None,
        steps: int,
        tokens: int,
        releases: Announced | None = None,
    ) -> None:
        super().__init__(range(data.n), random, "user", releases)
        self.objective, self.data, self.tokens = objective, data, tokens
        std = noise_multiplier * clip_norm if noise_multiplier else 0.0
        self.noisy = std > 0
        self.cap = steps * tokens if cap is None else min(cap, steps * tokens)
        self.clip_norm = inner_clip(clip_norm, random.noise.slack(data.dim, std) if self.noisy else 0.0)
        self.grid = grid_of(random.noise, std)
        W = network.W
        self._links = (W.indptr, W.indices)
        # on the complete graph the next holder is uniform: one multiplication instead of a search
        self._uniform = bool(W.nnz == network.n**2 and np.ptp(W.data) < 1e-12)
        self._cumulative = np.zeros(0) if self._uniform else _running(W)
        self.draws = HiddenNoise(random, tokens, data.dim, std)
        if self.announced is not None:
            self.announced.check_totals(sensitivity=2.0 * clip_norm, noise_std=std, contributions=self.cap)

    def first(self) -> np.ndarray:
        """Return the node at which each token starts, uniformly drawn."""
        return self.random.draws(_FIRST).integers(len(self.agents), size=self.tokens)

    def row(self, theta: np.ndarray, k: int, token: int, *, holder: int, contributions: int) -> np.ndarray:
        """Return the noisy gradient of ``holder`` at the token's model, noise alone beyond its cap."""
        place, noise, _ = self.draws(k)
        X, y = self.data.user(holder)
        limit = self.clip_norm if contributions < self.cap else 0.0
        gradient = self.objective.gradient(theta, X, y) + self.objective.l2 * theta
        return np.asarray(on_grid(clip_rows(gradient[None], limit)[0], noise[token, place], self.grid))

    def next(self, holder: int, k: int, token: int) -> int:
        """Return the node to which the holder passes the token, drawn from its row of the weights."""
        place, _, uniform = self.draws(k)
        if self._uniform:
            return int(uniform[token, place] * len(self.agents))
        indptr, indices = self._links
        links = slice(indptr[holder], indptr[holder + 1])
        return int(
            indices[links][np.searchsorted(self._cumulative[links], uniform[token, place], side="right")]
        )

    def many_steps(
        self,
        theta: np.ndarray,
        holders: np.ndarray,
        counts: np.ndarray,
        k: int,
        rates: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return models, holders and contributions after ``len(rates)`` steps from step ``k``, compiled."""
        theta, holders, counts = theta.copy(), holders.copy(), counts.copy()
        model, data, done = self.objective, self.data, 0
        while done < len(rates):
            place, noise, uniform = self.draws(k + done)
            here = slice(place, place + min(self.draws.chunk - place, len(rates) - done))
            some = rates[done : done + here.stop - place]
            walk(
                model.kind, model.width, theta, data.X, data.y, data.offsets, *self._links, self._cumulative,
                self._uniform, holders, counts, self.cap, noise[:, here], uniform[:, here], self.grid,
                self.clip_norm, some, model.l2,
            )  # fmt: skip
            done += len(some)
        return theta, holders, counts


def holder_step(
    model: GLM,
    X: np.ndarray,
    y: np.ndarray,
    theta: np.ndarray,
    *,
    learning_rate: float,
    clip_norm: float,
    noise: np.ndarray,
    grid: float = 0.0,
) -> np.ndarray:
    """Return the token's model after one holder's compiled step; ``clip_norm=0`` leaves the noise alone."""
    after = np.array(theta, dtype=float)
    holder_moves(
        model.kind, model.width, after, X, y, clip_norm, noise, grid, learning_rate, model.l2, after.copy()
    )
    return after


def _running(W: csr_array) -> np.ndarray:
    """Return the running sums within each row of a CSR matrix, the last entry of a row being 1."""
    sums = np.cumsum(W.data)
    before = np.concatenate([[0.0], sums])[W.indptr[:-1]]
    running = np.asarray(sums - np.repeat(before, np.diff(W.indptr)))
    running[W.indptr[1:] - 1] = 1.0
    return running
