r"""Gaussian mechanism of a walk whose path is drawn while it runs: one holder at a time.

.. math:: \tilde g_v(\theta) = \mathrm{clip}_C\Big(\frac{1}{m_v}\sum_{d \in D_v} \nabla\ell(\theta; d)
          + \lambda\theta\Big) + z C\,\xi, \qquad \text{noise alone once } v \text{ reached its cap}

A walk of a million hops is one sequential loop, so its randomness is drawn by chunks of steps: the numbers of
step k depend on (key, token, k) alone, whatever number of steps is done at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from sottovoce.data import Shards
from sottovoce.graphs import Network
from sottovoce.mechanisms.base import Mechanism, inner_clip
from sottovoce.mechanisms.random_walk_kernels import walk
from sottovoce.noise.samplers import grid_of
from sottovoce.objectives.glm import GLM

_PATH, _NOISE, _FIRST = 0, 1, 3  # keys of the hidden draws
_NUMBERS = 1 << 17  # numbers of noise in a chunk: they stay in the cache


@dataclass(eq=False, kw_only=True)
class TokenMechanism(Mechanism):
    """What the holders of tokens share: hidden draws by chunks of steps, and a cap on contributions.

    Guarantees
    ----------
    In a simulation the numbers of step k depend on (key, token, k) and on nothing else. Protective numbers
    are fresh in every chunk, and no number is used in two steps. A node contributes at most ``cap`` times;
    after that the token gets noise alone from it. Sensitivity, noise and number of contributions are those
    the plan announced, or `ReleaseMismatch` is raised before anything is drawn.
    """

    objective: GLM
    data: Shards  # the records of all nodes
    clip_norm: float  # C
    cap: int | None  # contributions of a node, all tokens together; None: no cap
    steps: int  # hops of each token
    tokens: int = 1
    adjacency: str = "user"

    def set_noise(self, std: float, moves: float) -> None:
        """State the noise, and by how many clips a node moves a step."""
        noise, dim, most = self.random.noise, self.data.dim, self.steps * self.tokens
        self.noisy, self._std, self.grid = std > 0, std, grid_of(noise, std)
        self.contributions = most if self.cap is None else min(self.cap, most)
        # both of two neighboring steps are rounded: 2 slack beside the clips that a node moves
        self.inner_clip = inner_clip(self.clip_norm, 2 * noise.slack(dim, std) / moves if std else 0.0)
        self.chunk = max(1, _NUMBERS // (dim * self.tokens))
        self._current: tuple[int, np.ndarray, np.ndarray] | None = None
        if self.release_check is not None:
            s, count = moves * self.clip_norm, self.contributions
            self.release_check.check_totals(sensitivity=s, noise_std=std, contributions=count)

    def stretches(self, k: int, count: int) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yield noise and uniform numbers of ``count`` steps from ``k`` on by chunks, with their steps."""
        done = 0
        while done < count:
            chunk, place = divmod(k + done, self.chunk)
            if self._current is None or self._current[0] != chunk:
                noise = np.empty((self.tokens, self.chunk, self.data.dim))
                uniform = np.empty((self.tokens, self.chunk))
                for token in range(self.tokens):
                    self._fill(noise[token], token, chunk)
                    self.random.draws(_PATH, token, chunk).random(out=uniform[token])
                self._current = (chunk, noise, uniform)
            here = slice(place, place + min(self.chunk - place, count - done))
            steps = slice(done, done + here.stop - place)
            yield steps, self._current[1][:, here], self._current[2][:, here]
            done = steps.stop

    def _fill(self, out: np.ndarray, token: int, chunk: int) -> None:
        """Draw the noise of one token in one chunk of steps."""
        if not self._std:
            out[:] = 0.0
        elif self.random.protective:
            zeros, rows, noise = np.zeros_like(out), np.arange(len(out)), self.random.noise
            out[:] = noise.perturb(zeros, agents=rows, step=chunk, std=self._std, stream=token)
        else:
            self.random.draws(_NOISE, token, chunk).standard_normal(out=out)
            out *= self._std


@dataclass(eq=False, kw_only=True)
class RandomWalkMechanism(TokenMechanism):
    """Noisy steps of the holders of one or several tokens, at user level.

    Guarantees
    ----------
    A node moves a step by at most 2C; the clip is that of its whole gradient. Rounding of a protective source
    is paid for by a lower clip.
    """

    network: Network  # the graph and the transition weights of the tokens
    noise_multiplier: float  # z, noise over C

    def __post_init__(self) -> None:
        super().__post_init__()
        self.set_noise(self.noise_multiplier * self.clip_norm if self.noise_multiplier else 0.0, moves=2.0)
        W = self.network.W
        self._links = (W.indptr, W.indices)
        # on the complete graph the next holder is uniform: one multiplication instead of a search
        self._uniform = bool(W.nnz == self.network.n**2 and np.ptp(W.data) < 1e-12)
        self._cumulative = np.zeros(0) if self._uniform else _running(W)

    def first(self) -> np.ndarray:
        """Return the node at which each token starts, uniformly drawn."""
        return self.random.draws(_FIRST).integers(len(self.agents), size=self.tokens)

    def many_steps(
        self, theta: np.ndarray, holders: np.ndarray, counts: np.ndarray, k: int, rates: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return models, holders and contributions after ``len(rates)`` steps from step ``k``, compiled."""
        theta, holders, counts = theta.copy(), holders.copy(), counts.copy()
        model, data, C = self.objective, self.data, self.inner_clip
        records = (model.kind, model.width, theta, data.X, data.y, data.offsets)
        indptr, indices = self._links
        path = (indptr, indices, self._cumulative, self._uniform, holders, counts, self.contributions)
        decay = model.regularizer.decay(theta.shape[1])
        for steps, noise, uniform in self.stretches(k, len(rates)):
            walk(*(records + path), noise, uniform, self.grid, C, rates[steps], decay)
        return theta, holders, counts


def _running(W: csr_array) -> np.ndarray:
    """Return the running sums within each row of a CSR matrix, the last entry of a row being 1."""
    sums = np.cumsum(W.data)
    before = np.concatenate([[0.0], sums])[W.indptr[:-1]]
    running = np.asarray(sums - np.repeat(before, np.diff(W.indptr)))
    running[W.indptr[1:] - 1] = 1.0
    return running
