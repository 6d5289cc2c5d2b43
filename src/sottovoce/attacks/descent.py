"""Reconstruction of decentralized gradient descent: from the models received to everybody's gradients.

Every step a node adds :math:`g_v^t = -\\nu \\nabla\\ell_v(\\theta_v^t)` to its model and averages with the
protocol. Gradients move slowly, so the attackers model them as :math:`g_v^t = g_v + N_v^t`. What they
receive, after removing what they contributed themselves, is linear in the unknown :math:`g`:

.. math:: \\hat Y = K g + F N, \\qquad K = F (1 \\otimes I), \\qquad \\mathrm{Cov} = \\sigma^2 F F^\\top

with one column block of :math:`F` per step. For one gossip round a step the row of ``(t, w)`` is
:math:`(\\sum_{i \\le t} W_{TT}^i)_w` over the targets :math:`T`. Generalized least squares solves it.

References: [1] El Mrini, Cyffers, Bellet 2024; Bellet, talk "Privacy in decentralized machine learning",
2024, slides "Knowledge matrix and observation vector for decentralized GD".
Departures from [1]: any linear protocol and any number of rounds a step; the covariance uses the targets'
own numbering (the published code indexes it by unshifted node numbers); nodes whose gradient is
determined are told from others in exact arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from sottovoce import _validate
from sottovoce.algorithms.muffliato_sgd import muffliato_sgd
from sottovoce.attacks.gossip import attacking_nodes, gossip_attack
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network
from sottovoce.protocols import Gossip, LinearProtocol

GradientFunction: TypeAlias = Callable[[np.ndarray, int], np.ndarray]  # (n, dim) models and step


@dataclass(frozen=True, eq=False)
class Transcript:
    """What a set of attackers saw of a descent.

    ``received`` are ``(messages, dim)`` in the order of `GradientAttack.messages`, ``own`` are ``(steps,
    rounds, attackers, dim)``, the attackers' own rows at the start of every round.
    """

    received: np.ndarray
    own: np.ndarray


@dataclass(frozen=True, eq=False)
class GradientAttack:
    """The linear system behind a descent, as a set of attackers sees it.

    ``messages`` are ``(step, round, sender)`` of every row received from a target; ``response`` ``(messages,
    steps, targets)`` says how a target's contribution at a step enters a message.
    """

    protocol: LinearProtocol
    attackers: tuple[int, ...]
    targets: tuple[int, ...]
    steps: int
    messages: tuple[tuple[int, int, int], ...]
    response: np.ndarray

    @property
    def knowledge(self) -> np.ndarray:
        """The matrix ``(messages, targets)`` applied to constant gradients."""
        return self.response.sum(axis=1)

    @property
    def covariance(self) -> np.ndarray:
        """Covariance ``(messages, messages)`` of the messages for fluctuations of variance one."""
        flat = self.response.reshape(len(self.messages), -1)
        return flat @ flat.T

    @cached_property
    def identifiable(self) -> tuple[int, ...]:
        """The targets whose constant gradient is determined, by exact arithmetic.

        Differences of the messages of consecutive steps are those of an averaging over all rounds of all
        steps.
        """
        return gossip_attack(_Repeated(self.protocol, self.steps), self.attackers, exact=True).nodes

    @property
    def reached(self) -> tuple[int, ...]:
        """The targets whose contribution is part of any message received."""
        return tuple(np.array(self.targets)[self.response.any(axis=(0, 1))].tolist())

    def gradients(self, seen: Transcript, initial: np.ndarray, learning_rate: float) -> np.ndarray:
        """Return the gradients ``(n, dim)`` estimated by generalized least squares.

        ``initial`` is the common first model ``(dim,)``. Messages are weighed by their covariance. For nodes
        that are not `identifiable` this is the solution of minimum norm, a known mixture of gradients; for
        attackers and for nodes that are not `reached` it is NaN.
        """
        nu = _validate.positive(learning_rate, "learning_rate")
        clean = self._without_own(seen, np.asarray(initial, dtype=np.float64))
        estimate = np.full((self.protocol.n, clean.shape[1]), np.nan)
        left, size, _ = self._factors
        solver = np.linalg.pinv(self.whitened, rcond=1e-13) @ (left / size).T
        estimate[list(self.targets)] = solver @ clean / -nu
        estimate[sorted(set(self.targets) - set(self.reached))] = np.nan
        return estimate

    @property
    def whitened(self) -> np.ndarray:
        """The matrix ``(directions, targets)`` of constant gradients, in units of the fluctuations.

        The squares of a column add up to ``mu^2`` of a constant unit shift, the other gradients known.
        """
        _, size, right = self._factors
        return right.reshape(len(size), self.steps, -1).sum(axis=1)

    @cached_property
    def _factors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Singular factors of the response: the covariance without squaring its condition number."""
        flat = self.response.reshape(len(self.messages), -1)
        left, size, right = np.linalg.svd(flat, full_matrices=False)
        keep = size > 1e-13 * size[0]
        return left[:, keep], size[keep], right[keep]

    def _without_own(self, seen: Transcript, initial: np.ndarray) -> np.ndarray:
        received, own = np.asarray(seen.received, np.float64), np.asarray(seen.own, np.float64)
        expected = (self.steps, self.protocol.rounds, len(self.attackers))
        if received.shape[0] != len(self.messages) or own.shape[:3] != expected:
            raise InvalidInput(
                f"the transcript must hold {len(self.messages)} received rows and own rows of shape "
                f"{(*expected, 'dim')}, got {received.shape[0]} and {own.shape}."
            )
        removed = np.zeros((len(self.targets), received.shape[1]))
        clean = received - initial
        heard, row = _heard(self.protocol, self.attackers, self.targets), 0
        for t in range(self.steps):
            for k in range(self.protocol.rounds):
                clean[row : row + len(heard[k])] -= removed[heard[k]]
                row += len(heard[k])
                matrix = self.protocol.matrix(k)[list(self.targets)]
                removed = matrix[:, list(self.targets)] @ removed
                removed += matrix[:, list(self.attackers)] @ (own[t, k] - initial)
        return clean


class _Repeated(LinearProtocol):
    """The averagings of all steps as one protocol."""

    name = "repeated"

    def __init__(self, protocol: LinearProtocol, steps: int) -> None:
        self.n, self.rounds = protocol.n, protocol.rounds * steps
        self._matrices = [protocol.matrix(k) for k in range(protocol.rounds)] * steps


def gradient_attack(
    averaging: Network | LinearProtocol, attackers: int | Iterable[int], steps: int
) -> GradientAttack:
    """Set up the attack on ``steps`` gradient steps, each followed by one averaging.

    A network stands for one gossip round a step. The attackers are one node or several that share what they
    see.

    Examples
    --------
    Seven steps on a ring of six, two attackers:

    >>> import sottovoce as sv
    >>> gradient_attack(sv.graphs.ring(6), attackers=(0, 3), steps=7).identifiable
    (1, 2, 4, 5)
    """
    protocol = Gossip(averaging, 1) if isinstance(averaging, Network) else averaging
    if protocol.masked:
        raise InvalidInput(
            "the attack on descent reads rows in clear, masked ones tell nothing but sums; attack the "
            "same plan over its tree, or use gossip_attack."
        )
    if not protocol.matrices_suffice:
        raise InvalidInput(
            "the attack on descent needs a linear protocol without memory or fresh noise, got "
            f"{protocol.name!r}; plain gossip has the same span as Chebyshev."
        )
    chosen, total = attacking_nodes(protocol, attackers), _validate.count(steps, "steps")
    targets = tuple(sorted(set(range(protocol.n)) - set(chosen)))
    messages, response = _responses(protocol, chosen, targets, total)
    return GradientAttack(protocol, chosen, targets, total, messages, response)


def run_descent(
    attack: GradientAttack,
    gradients: GradientFunction,
    models: np.ndarray,
    learning_rate: float,
    rng: np.random.Generator | None = None,
    noise_std: float = 0.0,
) -> Transcript:
    """Run decentralized gradient descent (Muffliato-SGD) and return what the attackers see of it.

    ``gradients`` is a function of the models ``(n, dim)`` and the step that gives one gradient per node;
    Gaussian noise added to them is a simulation, not protection.
    """
    protocol, own = attack.protocol, list(attack.attackers)
    start = _validate.rows(models, protocol.n, "models").astype(np.float64)
    if noise_std > 0 and rng is None:
        raise InvalidInput("noise needs a generator, give rng=np.random.default_rng(seed).")
    heard = _heard(protocol, attack.attackers, tuple(range(protocol.n)))
    targets = [[w for w in each if w not in own] for each in heard]
    received, mine = [], []

    def clear(theta: np.ndarray, step: int) -> np.ndarray:
        """Return the victims' gradients for the library's algorithm, without a mechanism to protect them."""
        exact = np.asarray(gradients(theta, step), dtype=np.float64)
        return exact if rng is None or noise_std <= 0 else exact + rng.normal(0.0, noise_std, exact.shape)

    algorithm = muffliato_sgd(clear, start, lambda t: learning_rate)
    state = algorithm.init()
    for t in range(attack.steps):
        rows = algorithm.message(state, t)
        for k in range(protocol.rounds):
            received.append(rows[targets[k]])
            mine.append(rows[own])
            rows = protocol.matrix(k) @ rows
        state = algorithm.update(state, rows, t)
    shape = (attack.steps, protocol.rounds, len(own), start.shape[1])
    return Transcript(np.concatenate(received), np.reshape(mine, shape))


def _responses(
    protocol: LinearProtocol, attackers: tuple[int, ...], targets: tuple[int, ...], steps: int
) -> tuple[tuple[tuple[int, int, int], ...], np.ndarray]:
    inner = [protocol.matrix(k)[list(targets)][:, list(targets)] for k in range(protocol.rounds)]
    heard = _heard(protocol, attackers, targets)
    # Only the age of a contribution matters: after[a][k] is what a contribution of age a steps has
    # become in round k, as rows of the senders.
    after: list[list[np.ndarray]] = []
    state = np.eye(len(targets))
    for _ in range(steps):
        after.append([])
        for k in range(protocol.rounds):
            after[-1].append(state[heard[k]])
            state = inner[k] @ state
    messages = []
    blocks = [np.zeros((0, steps, len(targets)))]
    for t in range(steps):
        for k in range(protocol.rounds):
            messages += [(t, k, targets[i]) for i in heard[k]]
            block = np.zeros((len(heard[k]), steps, len(targets)))
            for s in range(t + 1):
                block[:, s] = after[t - s][k]
            blocks.append(block)
    return tuple(messages), np.concatenate(blocks)


def _heard(protocol: LinearProtocol, attackers: tuple[int, ...], targets: tuple[int, ...]) -> list[list[int]]:
    """Return, per round, the places among the targets of those whose message reaches an attacker."""
    senders = [protocol.senders(k, attackers) for k in range(protocol.rounds)]
    return [[targets.index(w) for w in each if w in targets] for each in senders]
