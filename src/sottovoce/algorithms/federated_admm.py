r"""Private ADMM between a server, or masked sums in its place, and sampled clients.

.. math:: \Delta_i = \mathrm{clip}_C\big(\mathrm{prox}_{\gamma f_i}(2z - u_i) - z\big),\qquad
          u_i \mathrel{+}= 2\lambda\Delta_i,\qquad
          \hat z \mathrel{+}= \frac{\lambda}{n}\sum_{i \in S}(2\Delta_i + \eta_i),\qquad
          z = \mathrm{prox}_{\gamma r}(\hat z)

References: [1] Cyffers, Bellet, Basu 2023, Algorithm 3 <https://arxiv.org/abs/2302.12559>.
Departures from [1]: with a secure sum clients keep u_i without noise, so that each round is one sampled
Gaussian, and all clients add noise in every round, so that its amount does not depend on who was sampled; the
server adds to its running mean z^ (see `sottovoce.algorithms.admm`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sottovoce.accounting.guarantee import Adjacency, Guarantee
from sottovoce.accounting.observation import Federation, ObservationModel
from sottovoce.accounting.release import Release
from sottovoce.algorithms.admm import UsersADMM
from sottovoce.algorithms.options import resolved_protocol
from sottovoce.algorithms.plan import noise_on_grid
from sottovoce.algorithms.schedule import Schedule
from sottovoce.data.base import Shards
from sottovoce.errors import InvalidInput
from sottovoce.mechanisms.admm import ClientProxMechanism, sample_participants
from sottovoce.noise.grid import MaskGrid, mask_grid
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives.glm import GLM
from sottovoce.protocols import NamedProtocol, Protocol
from sottovoce.protocols.server import Server
from sottovoce.runners import Algorithm, State


@dataclass(frozen=True, repr=False)
class FederatedADMM(UsersADMM):
    """Private ADMM between a server and sampled clients, at user level.

    Parameters
    ----------
    objective : loss and regularizer; a client's f_i is the mean loss of its records.
    users : n.
    steps : K rounds.
    sample_rate : q; every client takes part in a round with this probability, independently.
    gamma, relaxation, clip_norm, noise_std : as in `CentralADMM`, the noise being each client's own.
    secure_sum : whether the server (and everybody) sees only the sum of a round's messages.
    protocol, network, seed : ``"masked"`` and who talks to whom: the sum without a server, by masked exact
        consensus over a spanning tree. What ``secure_sum`` assumes, masks then give; every client answers in
        every round, with noise alone where it was not sampled. None: a server that is assumed to have one.

    Guarantees
    ----------
    "local" without a secure sum: everybody sees who takes part, so that sampling does not amplify; the number
    of a client's rounds is drawn, mu^2 = N (4 C / sigma)^2 with N ~ Bin(K, q). With ``participations`` known,
    that number; a result names the most and the fewest rounds of a client. "local" with one: K sampled
    Gaussian rounds, because every client answers in every round. "central" (secure sum only): the same, a
    client's data being replaced. Every client adds noise in every round, sampled or not, so the sum always
    holds n shares (less those of the members named as colluders). A client's dual depends on the
    rounds it took part in, which nobody sees, and the result does not tell. Sampling amplifies all the
    same: whatever the dual is in either world, a round is dominated by the same pair, and a mixture over
    unseen states, weighted anew after each output, is no more telling than its worst pair of states
    (joint convexity).

    Examples
    --------
    >>> plan = FederatedADMM(GLM("squared"), users=50, steps=20, sample_rate=0.2, gamma=1.0, clip_norm=1.0,
    ...                      noise_std=4.0)
    >>> plan.privacy("local").label, plan.privacy("central").label
    ('ldp', 'exact')
    >>> plan.privacy("central").epsilon(1e-5) < plan.privacy("local").epsilon(1e-5)
    True
    """

    objective: GLM
    users: int
    steps: int
    sample_rate: float
    gamma: float
    clip_norm: float
    noise_std: float
    relaxation: float = 0.5
    secure_sum: bool = True
    adjacency: Adjacency = "user"
    protocol: Any = None
    network: Any = None
    seed: int = 0

    name = "federated-admm"
    needs = ("masked",)
    network_optional = True
    maskable = True

    @classmethod
    def _resolved(cls, options: dict[str, Any]) -> dict[str, Any]:
        options = super()._resolved(options)
        value, network = options["protocol"], options["network"]
        if value is None and network is not None:
            value = "masked"  # members without a server: a network is named for nothing else
        if isinstance(value, str):
            value, network = resolved_protocol(value, network, cls.name, cls.protocols)
        if isinstance(value, NamedProtocol) and network is not None:
            value = value.at(network, seed=options["seed"])
        return {**options, "protocol": value}

    def __post_init__(self) -> None:
        super().__post_init__()
        protocol = self.protocol
        if protocol is None:
            return
        if not isinstance(protocol, Protocol) or not protocol.masked:
            raise InvalidInput(f"{self.name} runs over masked or a server, got {type(protocol).__name__}.")
        if not self.secure_sum:
            raise InvalidInput("masks are a secure sum; leave secure_sum=False out, or the protocol.")
        if protocol.n != self.users:
            raise InvalidInput(f"the network has {protocol.n} nodes, the plan {self.users} users.")

    @property
    def grid(self) -> MaskGrid | None:
        if self.protocol is None or not self.noise_std or self.objective.dim is None:
            return None
        C, std = self.clip_norm, [self.noise_std] * self.users
        return mask_grid(bound=2 * C, sensitivity=4 * C, noise_std=std, dim=self.width, steps=self.steps)

    @property
    def observation(self) -> ObservationModel:
        return Federation(self.users, self.secure_sum)

    @cached_property
    def schedule(self) -> Schedule:
        """One round: rows go up, their mean comes down."""
        return Schedule(self.protocol or Server(self.users), self.steps, grid=self._read_grid)

    def releases(self, agent: int) -> Sequence[Release]:
        """Return a client's noisy moves; the rate counts only where who took part is hidden."""
        if agent not in self._releases:
            sensitivity, rate = self._sensitivity(4.0), self.sample_rate  # a row is twice a clipped step
            release = Release(agent, 0, sensitivity, self.noise_std, user_rate=rate, steps=self.steps)
            self._releases[agent] = (release,)
        return self._releases[agent]

    @cached_property
    def _releases(self) -> dict[int, tuple[Release]]:
        return {}  # thousands of clients are read by the mechanism and by every guarantee

    def guarantees(self) -> list[Guarantee]:
        stated = [self.privacy("local"), *([self.privacy("central")] if self.secure_sum else [])]
        return stated if self.protocol is None else [*stated, self.privacy()]

    def _traffic(self) -> tuple[int, int]:
        if self.protocol is not None:
            return super()._traffic()
        return 2 * self.steps, 2 * self.users * self.steps  # model down, noisy step up

    def metrics(self, rows: np.ndarray, data: Shards, random: RunRandomness) -> dict[str, Any]:
        """Return in how many rounds clients took part, where everybody sees it."""
        if self.secure_sum:
            return {}
        drawn = (sample_participants(random, k, self.users, self.sample_rate) for k in range(self.steps))
        rounds = np.sum([*drawn], axis=0)
        return {"fewest_rounds": int(rounds.min()), "most_rounds": int(rounds.max())}

    def mechanism(self, data: Shards, agents: Sequence[int], random: RunRandomness) -> ClientProxMechanism:
        random = noise_on_grid(self, random, agents, [1.0] * len(agents))
        return self._mechanism(ClientProxMechanism, agents, random, data=data, everyone=self.secure_sum)

    def algorithm(self, mechanism: ClientProxMechanism, start: np.ndarray) -> Algorithm:
        """Return Algorithm 3 of [1]: z^ is common, each client's dual its own.

        Messages that everybody sees may stay in u_i, and then their noise is corrected later; behind a secure
        sum the dual stays without noise.
        """
        prox, lam = self._regularized, self.relaxation

        def message(state: State, k: int) -> np.ndarray:
            return mechanism.proximal_step(state.own[0], prox(state.common[0][0]), k).released

        def update(state: State, received: np.ndarray, k: int) -> State:
            (zh,), (u,) = state
            step = mechanism.proximal_step(u, prox(zh[0]), k)
            own = u + lam * (step.local if self.secure_sum else step.released)
            return State((absorbed(zh, received[:1], lam),), (own,))

        return Algorithm(
            init=lambda: State((start[:1],), (start,)),
            message=message,
            update=update,
            output=lambda state: np.repeat(prox(state.common[0]), len(state.own[0]), axis=0),
        )


def absorbed(zh: np.ndarray, mean: np.ndarray, relaxation: float) -> np.ndarray:
    """Return the running mean of the duals after a round whose messages had this mean."""
    return zh + relaxation * mean
