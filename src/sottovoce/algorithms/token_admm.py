r"""Private ADMM without a server: a token carries z^ from user to user.

.. math:: u_i \mathrel{+}= \lambda(2\Delta_i + \eta),\qquad
          \hat z \mathrel{+}= \frac{\lambda}{n}(2\Delta_i + \eta),\qquad
          \Delta_i = \mathrm{clip}_C\big(\mathrm{prox}_{\gamma f_i}(2z - u_i) - z\big)

References: [1] Cyffers, Bellet, Basu 2023, Algorithm 4 <https://arxiv.org/abs/2302.12559>.
Departures from [1]: the network bound of the paper is not claimed; the guarantee is local.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sottovoce._validate import count
from sottovoce.accounting.curve import Curve
from sottovoce.accounting.guarantee import Adjacency, Guarantee
from sottovoce.accounting.observation import LocalOnly, ObservationModel
from sottovoce.accounting.release import Release
from sottovoce.algorithms.admm import UsersADMM
from sottovoce.algorithms.schedule import Schedule
from sottovoce.data.base import Shards
from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.admm import TokenProxMechanism
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives.glm import GLM
from sottovoce.protocols import TokenPass
from sottovoce.runners import Algorithm, State, in_blocks


@dataclass(frozen=True, repr=False)
class TokenADMM(UsersADMM):
    """Private ADMM without a server: a token carries z^ from user to user, uniformly, at user level.

    Parameters
    ----------
    objective, users, gamma, relaxation, clip_norm, noise_std : as in `FederatedADMM`.
    steps : number of hops.
    cap : contributions per user; beyond it a user adds noise only. None leaves them unbounded, and the
        local statement then counts all hops.

    Guarantees
    ----------
    "local": ``cap`` contributions, mu^2 = cap (4 C / sigma)^2; that is what other views get too. The
    network bound of the paper is available with ``label="published"``: the token's map is not a contraction
    for flat losses, so amplification by iteration does not apply as is: the bound is not checked against a
    budget.

    Examples
    --------
    >>> plan = TokenADMM(GLM("squared"), users=50, steps=500, cap=20, gamma=1.0, clip_norm=1.0, noise_std=8.0)
    >>> plan.privacy("network").label, plan.privacy("network", label="published").label
    ('ldp', 'published')
    """

    objective: GLM
    users: int
    steps: int
    gamma: float
    clip_norm: float
    noise_std: float
    relaxation: float = 0.5
    cap: int | None = None
    adjacency: Adjacency = "user"

    name = "token-admm"
    sequential = True  # one holder at a time: ranks would only wait for each other

    def __post_init__(self) -> None:
        super().__post_init__()
        count(self.users, "users", minimum=2)

    @property
    def _contributions(self) -> int:
        """The most contributions of one user."""
        return self.steps if self.cap is None else min(self.cap, self.steps)

    @property
    def observation(self) -> ObservationModel:
        """Local privacy; the network bound of the paper is a printed formula."""
        mu = self._sensitivity(4.0) / self.noise_std if self.noise_std else math.inf
        rate = mu**2 / 2 * self._contributions * math.log(self.users) / self.users
        wording = (
            "formula of Cyffers, Bellet, Basu 2023 for complete graphs, where "
            f"sigma > {2 * self.clip_norm:g} sqrt(alpha (alpha - 1))"
        )
        return LocalOnly((Curve.gaussian(math.sqrt(2 * rate)), wording))

    @cached_property
    def schedule(self) -> Schedule:
        """The protocol of one row, the token's: its path is drawn during the run."""
        return Schedule(TokenPass(1, 0, []), self.steps)

    def releases(self, agent: int) -> Sequence[Release]:
        return (Release(agent, 0, self._sensitivity(4.0), self.noise_std, steps=self._contributions),)

    def guarantees(self) -> list[Guarantee]:
        return [self.privacy("local"), self.privacy("network", label="published")]

    def _traffic(self) -> tuple[int, int]:
        return self.steps, self.steps

    def mechanism(self, data: Shards, agents: Sequence[int], random: RunRandomness) -> TokenProxMechanism:
        if list(agents) != list(range(self.users)):
            raise InvalidInput(f"{self.name} runs in one process, where all users are hosted.")
        return self._mechanism(TokenProxMechanism, agents, random, data=data)

    def algorithm(self, mechanism: TokenProxMechanism, start: np.ndarray) -> Algorithm:
        """Return Algorithm 4 of [1], one row being the token's; the hops are compiled."""

        def block(state: State, k: int, count: int) -> State:
            token: Token = state.own
            u, zh, counts = mechanism.many_steps(token.u, token.zh, token.counts, k, count)
            return State((), Token(zh, u, counts))

        counts, prox = np.zeros(len(start), np.int64), self._regularized
        init = State((), Token(start[:1], start, counts))
        return in_blocks(lambda: init, lambda state: prox(state.own.zh), block)

    def outputs(self, rows: np.ndarray, state: State) -> dict[str, np.ndarray]:
        token: Token = state.own
        return {"coef": rows[0], "mean": token.zh[0], "contributions": token.counts}


class Token(NamedTuple):
    """What the token carries (z^, one row), every user's dual, and how often each held the token."""

    zh: np.ndarray
    u: np.ndarray
    counts: np.ndarray
