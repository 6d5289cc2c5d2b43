r"""Private ADMM: central, federated with client sampling, and carried by a token.

For min (1/n) sum_i f_i(w) + r(w) with step gamma and relaxation lambda, every client keeps u_i and does

.. math:: \Delta_i = \mathrm{clip}_C\big(\mathrm{prox}_{\gamma f_i}(2z - u_i) - z\big),\qquad
          u_i \mathrel{+}= 2\lambda\Delta_i,\qquad \hat z \mathrel{+}= \frac1n\sum_i(\ldots),\qquad
          z = \mathrm{prox}_{\gamma r}(\hat z)

References: Cyffers, Bellet, Basu 2023, Algorithms 2-4 <https://arxiv.org/abs/2302.12559>; Bellet's 2024 talk.
Departures, each needed for the statement or the answer to be right:

- central: the noise goes onto the released mean and not into u_i. With noise in u_i (independent, as printed,
  or one common vector) u_i depends on what cannot be computed from record i and the released z: given the
  same z, replacing record 1 moves every u_i, and the printed loss is not an upper bound. That form is kept
  as ``noise_in="state"`` with the label "published".
- the server adds to its running mean z^ (printed: to z), else the fixed point is wrong when r is not zero;
- federated with secure sum: clients keep u_i without noise, so that each round is one sampled Gaussian, and
  all clients add noise in every round, so that its amount does not depend on who was sampled;
- token: the network bound of the paper is not claimed; what is guaranteed is the local statement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sottovoce._validate import clip as checked_clip
from sottovoce._validate import count, non_negative, positive, probability
from sottovoce.accounting.accountant import account
from sottovoce.accounting.curve import Curve
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.observation import Curator, Federation, LocalOnly, ObservationModel
from sottovoce.accounting.release import Release
from sottovoce.algorithms.plan import Adjacency, CentralPlan, Plan, View, as_network, check_adjacency
from sottovoce.data.base import Shards, as_agent_records
from sottovoce.errors import InvalidInput
from sottovoce.noise.grid import MaskGrid, mask_grid
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives.glm import GLM
from sottovoce.protocols import Protocol, TokenPass, parse
from sottovoce.protocols.server import Server
from sottovoce.runners import Algorithm, State

__all__ = ["CentralADMM", "FederatedADMM", "TokenADMM", "central_admm", "federated_admm", "token_admm"]

Prox = Callable[[np.ndarray], np.ndarray]


def _check(plan: Any) -> None:
    count(plan.steps, "steps")
    positive(plan.gamma, "gamma")
    non_negative(plan.noise_std, "noise_std")
    probability(plan.relaxation, "relaxation", zero=False)
    check_adjacency(plan.adjacency, plan.adjacencies, plan.name)
    if not isinstance(plan.objective, GLM):
        raise InvalidInput(f"{plan.name} is for linear models, got {type(plan.objective).__name__}.")
    checked_clip(plan.clip_norm, noisy=plan.noise_std > 0)


class _ADMM(Plan):
    """What the three share: the options' names, the regularizer's map, the width of a row."""

    objective: GLM
    gamma: float
    relaxation: float
    clip_norm: float
    noise_std: float

    noise_field: ClassVar[str] = "noise_std"
    query: ClassVar[str] = "prox-move"

    @property
    def width(self) -> int:
        """Numbers in one row: the features."""
        if self.objective.dim is None:
            raise InvalidInput(
                "the number of parameters is not known without data; GLM(..., dim=...) states it."
            )
        return self.objective.dim

    def prox(self, zh: np.ndarray) -> np.ndarray:
        """Return z, the regularizer's map at z^."""
        return self.objective.regularizer.prox(zh, self.gamma)

    def _booked(self, moves: float) -> float:
        """Return how far a change moves a release; without clip and noise nothing is promised."""
        return moves * (self.clip_norm if math.isfinite(self.clip_norm) else 1.0)

    def _announced(self, agents: Sequence[int]) -> list[Sequence[Release]] | None:
        return [self.releases(int(a)) for a in agents] if math.isfinite(self.clip_norm) else None


class _Users(_ADMM):
    """What the two without a curator share: as many shards as users."""

    users: int
    adjacencies: ClassVar[tuple[str, ...]] = ("user",)

    @property
    def n(self) -> int:
        """Number of users."""
        return self.users

    def prepared(self, data: Any) -> Shards:
        """Return the users' records checked."""
        data = as_agent_records(data)
        if data.n != self.users:
            raise InvalidInput(f"The plan is for {self.users} users, the data have {data.n}.")
        return self.objective.prepared(data)

    def starting(self, data: Any, random: RunRandomness, agents: Sequence[int]) -> np.ndarray:
        """Return zeros."""
        return np.zeros((len(list(agents)), data.dim))

    def _cost(self, rounds: int, messages: int) -> Mapping[str, Any]:
        found = {"rounds": rounds, "messages": messages, "messages_per_node": messages / self.users}
        if self.objective.dim is None:
            return found
        return {**found, "bytes": messages * self.width * self.bytes_per_number}


@dataclass(frozen=True, repr=False)
class CentralADMM(_ADMM, CentralPlan):
    """Private ADMM at a trusted curator, at record level.

    Parameters
    ----------
    objective : loss and regularizer.
    records : the public number of records n.
    steps : K.
    gamma, relaxation : the proximal step, and lambda in (0, 1].
    clip : C, the length to which each record's share is clipped (gamma L is enough for an L-Lipschitz
        loss: at the solution u_i - z = -gamma grad f_i).
    noise_std : sigma.
    noise_in : where the noise goes.
        "mean" (default): z^ = z + mean of clip_C(u_i - z) + noise, afresh in every step, so that past noise
        does not pile up; "increment": z^ grows by the noisy mean of the clipped moves, noise piles up;
        "state": as published, one common vector into every u_i.

    Guarantees
    ----------
    replace-one. "mean": the released mean moves by at most 2 C / n, u_i being a function of record i and
    the released z, so K steps cost mu^2 = K (2 C / (n sigma))^2. "increment": K (4 C / (n sigma))^2. "state"
    has no guarantee: its statement is the printed 8 alpha K C^2 / (n sigma)^2, labeled "published".

    Examples
    --------
    >>> plan = CentralADMM(GLM("squared"), records=100, steps=25, gamma=1.0, clip_norm=1.0, noise_std=0.1)
    >>> round(plan.privacy().mu, 6), plan.privacy().label
    (1.0, 'exact')
    """

    objective: GLM
    records: int
    steps: int
    gamma: float
    clip_norm: float
    noise_std: float
    relaxation: float = 0.5
    noise_in: str = "mean"
    adjacency: Adjacency = "replace-one"

    name: ClassVar[str] = "admm"
    adjacencies: ClassVar[tuple[str, ...]] = ("replace-one",)

    def __post_init__(self) -> None:
        _check(self)
        count(self.records, "records")
        if self.noise_in not in ("mean", "increment", "state"):
            raise InvalidInput(f'noise_in must be "mean", "increment" or "state", got {self.noise_in!r}.')

    @property
    def observation(self) -> ObservationModel:
        """A trusted curator; noise inside the state, as printed, has no guarantee."""
        if self.noise_in == "state":
            return Curator("formula of Cyffers, Bellet, Basu 2023 with one common noise vector")
        return Curator()

    def releases(self, agent: int) -> Sequence[Release]:
        """Return K noisy means."""
        sensitivity = self._booked(2.0 if self.noise_in == "mean" else 4.0) / self.records
        return (Release(agent, 0, sensitivity, self.noise_std, self.adjacency, steps=self.steps),)

    def source(self, data: Shards, agents: Sequence[int], random: RunRandomness) -> Any:
        """Return the gate before the holder's records."""
        from sottovoce.mechanisms.admm import RecordProxMechanism

        return RecordProxMechanism(
            self.objective, data, agents, random, gamma=self.gamma, relaxation=self.relaxation,
            clip_norm=self.clip_norm, noise_std=self.noise_std, noise_in=self.noise_in,  # type: ignore[arg-type]
            records=self.records, releases=self._announced(agents),
        )  # fmt: skip

    def algorithm(self, source: Any, start: np.ndarray) -> Algorithm:
        """Return the text for the holder."""
        fresh = self.noise_in == "mean"
        return central_admm(source, start, self.prox, self.records, 0.0 if fresh else self.relaxation)

    def prepared(self, data: Any) -> Shards:
        """Return the holder's records, checked: as many as the plan says."""
        shards = self.objective.prepared(super().prepared(data))
        if shards.n != 1:
            raise InvalidInput(f"A trusted holder has all records in one part, got {shards.n} users.")
        if len(shards.y) != self.records:
            raise InvalidInput(
                f"The plan is for {self.records} records (a public number), got {len(shards.y)}."
            )
        return shards

    def outputs(self, rows: np.ndarray, state: Any) -> dict[str, np.ndarray]:
        """Return z and z^."""
        return {"coef": rows[0], "mean": state.common[0][0]}


@dataclass(frozen=True, repr=False)
class FederatedADMM(_Users):
    """Private ADMM between a server and sampled clients, at user level.

    Parameters
    ----------
    objective : loss and regularizer; a client's f_i is the mean loss of its records.
    users : n.
    steps : K rounds.
    sample_rate : q; every client takes part in a round with this probability, independently.
    gamma, relaxation, clip, noise_std : as in `CentralADMM`, the noise being each client's own.
    secure_sum : whether the server (and everybody) sees only the sum of a round's messages.
    protocol, network, seed : ``"masked"`` and who talks to whom: the sum without a server, by masked exact
        consensus over a spanning tree. What ``secure_sum`` assumes, masks then give; every client answers in
        every round, with noise alone where it was not sampled. None: a server that is said to have one.

    Guarantees
    ----------
    "local": every message seen, a client that takes part in all K rounds: mu^2 = K (4 C / sigma)^2; with
    ``participations`` known, K_i in place of K. "central" (secure sum only): K sampled Gaussian rounds, a
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

    name: ClassVar[str] = "federated-admm"
    protocols: ClassVar[tuple[str, ...]] = ("masked",)
    network_optional: ClassVar[bool] = True
    maskable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self)
        count(self.users, "users")
        probability(self.sample_rate, "sample_rate", zero=False)
        self._settle_protocol()

    def _settle_protocol(self) -> None:
        protocol = self.protocol
        if protocol is None and self.network is not None:
            protocol = "masked"  # members without a server: a network is named for nothing else
        if isinstance(protocol, str):
            named = parse(protocol)
            if named.name not in self.protocols:
                raise InvalidInput(f"{self.name} runs over masked or a server, not over {named.name}.")
            if self.network is None:
                raise InvalidInput(f"{self.name} needs a network for its protocol {protocol}.")
            protocol = named.at(as_network(self.network), seed=self.seed)
        if protocol is None:
            return
        if not protocol.masked:
            raise InvalidInput(f"{self.name} runs over masked or a server, got {type(protocol).__name__}.")
        if not self.secure_sum:
            raise InvalidInput("masks are a secure sum; leave secure_sum=False out, or the protocol.")
        if protocol.n != self.users:
            raise InvalidInput(f"the network has {protocol.n} nodes, the plan {self.users} users.")
        object.__setattr__(self, "protocol", protocol)
        try:
            grid = self.grid
        except InvalidInput:  # a simulation needs none, and what protects asks for the grid itself
            grid = None
        if grid is not None:
            object.__setattr__(self, "protocol", protocol.on_grid(grid.step))

    @property
    def grid(self) -> MaskGrid | None:
        """The common integer grid of masked rows; None with a server, without noise or without a width."""
        masked = self.protocol is not None and self.protocol.masked
        if not masked or not self.noise_std or self.objective.dim is None:
            return None
        return mask_grid(
            bound=2 * self.clip_norm, sensitivity=4 * self.clip_norm, noise_std=[self.noise_std] * self.users,
            dim=self.width, steps=self.steps,
        )  # fmt: skip

    @property
    def observation(self) -> ObservationModel:
        """Sampled clients and a server."""
        return Federation(self.users, self.secure_sum)

    def schedule(self, k: int) -> Protocol:
        """Return the round: rows go up, their mean comes down."""
        masked: Protocol | None = self.protocol
        return Server(self.users) if masked is None else masked

    def releases(self, agent: int) -> Sequence[Release]:
        """Return a client's noisy moves; the rate counts only where who took part is hidden."""
        if agent not in self._listed:
            sensitivity, rate = self._booked(4.0), self.sample_rate
            release = Release(agent, 0, sensitivity, self.noise_std, user_rate=rate, steps=self.steps)
            self._listed[agent] = (release,)
        return self._listed[agent]

    @cached_property
    def _listed(self) -> dict[int, tuple[Release]]:
        return {}  # thousands of clients are listed by the gate and by every statement

    def privacy(
        self,
        view: View | None = None,
        *,
        observer: int | None = None,
        user: int | None = None,
        colluders: int | Iterable[int] = (),
        label: str | None = None,
        participations: int | None = None,
    ) -> Guarantee:
        """Return the guarantee; ``participations`` (local view) is how often the client took part."""
        return account(
            self, view, observer=observer, user=user, colluders=colluders, participations=participations,
            label=label,  # type: ignore[arg-type]
        )  # fmt: skip

    def guarantees(self) -> list[Guarantee]:
        """Return the local statement and, with a secure sum, the central one; with masks, the members'."""
        stated = [self.privacy("local"), *([self.privacy("central")] if self.secure_sum else [])]
        return stated if self.protocol is None else [*stated, self.privacy()]

    def cost(self) -> Mapping[str, Any]:
        """Return rounds and rows sent: model down, noisy move up, for every client and round."""
        if self.protocol is not None:
            return self._cost(self.protocol.rounds * self.steps, self.protocol.messages * self.steps)
        return self._cost(2 * self.steps, 2 * self.users * self.steps)

    def source(self, data: Shards, agents: Sequence[int], random: RunRandomness) -> Any:
        """Return the gate before the hosted clients' records."""
        from sottovoce.mechanisms.admm import ClientProxMechanism

        return ClientProxMechanism(
            self.objective,
            data,
            agents,
            self.users,
            self.on_grid(random, agents, [1.0] * len(agents)),
            gamma=self.gamma,
            clip_norm=self.clip_norm,
            noise_std=self.noise_std,
            sample_rate=self.sample_rate,
            everyone=self.secure_sum,
            releases=self._announced(agents),
        )

    def algorithm(self, source: Any, start: np.ndarray) -> Algorithm:
        """Return the text for the clients that ``source`` hosts."""
        return federated_admm(source, start, self.prox, self.relaxation, secure_sum=self.secure_sum)

    def server(self, zh: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return z^ after one round, as the text computes it; ``rows``: one per client, zero if not asked.

        Examples
        --------
        >>> plan = FederatedADMM(GLM(), users=2, steps=1, sample_rate=1.0, gamma=1.0, clip_norm=1.0,
        ...                      noise_std=1.0)
        >>> plan.server(np.zeros(1), np.array([[1.0], [0.0]])).tolist()
        [0.25]
        """
        return _absorbed(zh, self.schedule(0).apply(rows)[0], self.relaxation)

    def outputs(self, rows: np.ndarray, state: Any) -> dict[str, np.ndarray]:
        """Return z and z^; who took part stays untold."""
        return {"coef": rows[0], "mean": state.common[0][0]}


@dataclass(frozen=True, repr=False)
class TokenADMM(_Users):
    """Private ADMM without a server: a token carries z^ from user to user, uniformly, at user level.

    Parameters
    ----------
    objective, users, gamma, relaxation, clip, noise_std : as in `FederatedADMM`.
    steps : number of hops.
    cap : contributions per user; beyond it a user adds noise only. None leaves them unbounded, and the
        local statement then counts all hops.

    Guarantees
    ----------
    "local": ``cap`` contributions, mu^2 = cap (4 C / sigma)^2; that is what other views get too. The
    network bound of the paper is available with ``label="published"``: the token's map is not a contraction
    for flat losses, so amplification by iteration does not apply as is, and the bound never accepts a budget.

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

    name: ClassVar[str] = "token-admm"
    sequential: ClassVar[bool] = True  # one holder at a time: ranks would only wait for each other

    def __post_init__(self) -> None:
        _check(self)
        count(self.users, "users", minimum=2)
        if self.cap is not None:
            count(self.cap, "cap")

    @property
    def contributions(self) -> int:
        """The most contributions of one user."""
        return self.steps if self.cap is None else min(self.cap, self.steps)

    @property
    def observation(self) -> ObservationModel:
        """Local privacy; the network bound of the paper is a printed formula."""
        mu = self._booked(4.0) / self.noise_std if self.noise_std else math.inf
        rate = mu**2 / 2 * self.contributions * math.log(self.users) / self.users
        said = (
            "formula of Cyffers, Bellet, Basu 2023 for complete graphs, where "
            f"sigma > {2 * self.clip_norm:g} sqrt(alpha (alpha - 1))"
        )
        return LocalOnly((Curve.gaussian(math.sqrt(2 * rate)), said))

    def schedule(self, k: int) -> Protocol:
        """Return the protocol of one row, the token's: its path is drawn during the run."""
        return TokenPass(1, 0, [])

    def releases(self, agent: int) -> Sequence[Release]:
        """Return as many noisy moves as the path may bring."""
        return (Release(agent, 0, self._booked(4.0), self.noise_std, steps=self.contributions),)

    def guarantees(self) -> list[Guarantee]:
        """Return the local statement and the published network formula."""
        return [self.privacy("local"), self.privacy("network", label="published")]

    def cost(self) -> Mapping[str, Any]:
        """Return one row per hop."""
        return self._cost(self.steps, self.steps)

    def source(self, data: Shards, agents: Sequence[int], random: RunRandomness) -> Any:
        """Return the gate before the users' records."""
        from sottovoce.mechanisms.admm import TokenProxMechanism

        if list(agents) != list(range(self.users)):
            raise InvalidInput(f"{self.name} runs in one process, where all users are hosted.")
        return TokenProxMechanism(
            self.objective,
            data,
            random,
            gamma=self.gamma,
            relaxation=self.relaxation,
            clip_norm=self.clip_norm,
            noise_std=self.noise_std,
            cap=self.cap,
            steps=self.steps,
            releases=self._announced(agents),
        )

    def algorithm(self, source: Any, start: np.ndarray) -> Algorithm:
        """Return the text of the token."""
        return token_admm(source, start, self.prox)

    def outputs(self, rows: np.ndarray, state: Any) -> dict[str, np.ndarray]:
        """Return z, z^, and how often each user held the token."""
        token: Token = state.own
        return {"coef": rows[0], "mean": token.zh[0], "contributions": token.counts}


def central_admm(
    source: Any, start: np.ndarray, prox: Prox, records: int, relaxation: float = 0.0
) -> Algorithm:
    """Return the text of Algorithm 2 with the noise on what is released.

    ``relaxation`` 0 makes z^ afresh in every step, from z and the released mean; else z^ grows by its share.

    Examples
    --------
    >>> from sottovoce.mechanisms.base import ProximalStep
    >>> class Half:
    ...     def proximal_step(self, u, z, k):
    ...         return ProximalStep(u, (1.0 - z)[None])
    >>> text = central_admm(Half(), np.zeros((1, 1)), lambda zh: zh, records=1, relaxation=0.5)
    >>> text.output(text.update(text.init(), text.message(text.init(), 0), 0)).tolist()
    [[0.5]]
    """

    def init() -> State:
        duals = np.repeat(start[:, None], records, axis=1)
        return State((start,), (duals,))

    def message(state: State, k: int) -> np.ndarray:
        released: np.ndarray = source.proximal_step(state.own[0], prox(state.common[0][0]), k).released
        return released

    def update(state: State, received: np.ndarray, k: int) -> State:
        (zh,) = state.common
        z = prox(zh[0])
        duals = source.proximal_step(state.own[0], z, k).local
        return State((zh + relaxation * received if relaxation else z + received,), (duals,))

    return Algorithm(init, message, update, lambda state: prox(state.common[0]))


def federated_admm(
    source: Any, start: np.ndarray, prox: Prox, relaxation: float, *, secure_sum: bool
) -> Algorithm:
    """Return the text of Algorithm 3: z^ is common, each client's dual its own.

    Messages that everybody sees may stay in u_i, and then their noise is corrected later; behind a secure
    sum the dual stays without noise.

    Examples
    --------
    >>> from sottovoce.mechanisms.base import ProximalStep
    >>> class Pull:
    ...     def proximal_step(self, u, z, k):
    ...         return ProximalStep(2.0 * (1.0 - z) + 0.0 * u, 2.0 * (1.0 - z) + 0.0 * u)
    >>> text = federated_admm(Pull(), np.zeros((2, 1)), lambda zh: zh, 0.5, secure_sum=True)
    >>> after = text.update(text.init(), text.message(text.init(), 0), 0)
    >>> after.common[0].tolist(), after.own[0].tolist()
    ([[1.0]], [[1.0], [1.0]])
    """

    def message(state: State, k: int) -> np.ndarray:
        released: np.ndarray = source.proximal_step(state.own[0], prox(state.common[0][0]), k).released
        return released

    def update(state: State, received: np.ndarray, k: int) -> State:
        (zh,), (u,) = state
        answer = source.proximal_step(u, prox(zh[0]), k)
        own = u + relaxation * (answer.local if secure_sum else answer.released)
        return State((_absorbed(zh, received[:1], relaxation),), (own,))

    return Algorithm(
        init=lambda: State((start[:1],), (start,)),
        message=message,
        update=update,
        output=lambda state: np.repeat(prox(state.common[0]), len(state.own[0]), axis=0),
    )


def _absorbed(zh: np.ndarray, mean: np.ndarray, relaxation: float) -> np.ndarray:
    """Return the running mean of the duals after a round whose messages had this mean."""
    return zh + relaxation * mean


class Token(NamedTuple):
    """What the token carries (z^, one row), every user's dual, and how often each held the token."""

    zh: np.ndarray
    u: np.ndarray
    counts: np.ndarray


def token_admm(source: Any, start: np.ndarray, prox: Prox) -> Algorithm:
    """Return the text of Algorithm 4, one row being the token's; `block` is compiled.

    Examples
    --------
    >>> class Pull:
    ...     def holder(self, k):
    ...         return k
    ...     def row(self, u, z, k, holder, contributions):
    ...         return 1.0 - z
    >>> text = token_admm(Pull(), np.zeros((2, 1)), lambda zh: zh)
    >>> text.message(text.init(), 0).tolist(), text.update(text.init(), np.array([[0.5]]), 0).own.u.tolist()
    ([[0.5]], [[1.0], [0.0]])
    """
    n = len(start)

    def moved(token: Token, k: int) -> tuple[int, np.ndarray]:
        i = source.holder(k)
        row = source.row(token.u[i], prox(token.zh[0]), k, holder=i, contributions=int(token.counts[i]))
        return i, row

    def message(state: State, k: int) -> np.ndarray:
        _, row = moved(state.own, k)
        carried: np.ndarray = state.own.zh + row / n
        return carried

    def update(state: State, received: np.ndarray, k: int) -> State:
        token: Token = state.own
        i, row = moved(token, k)
        u, counts = token.u.copy(), token.counts.copy()
        u[i] += row
        counts[i] += 1
        return State((), Token(received, u, counts))

    def block(state: State, k: int, count: int) -> State:
        token: Token = state.own
        u, zh, counts = source.many_steps(token.u, token.zh, token.counts, k, count)
        return State((), Token(zh, u, counts))

    return Algorithm(
        init=lambda: State((), Token(start[:1], start, np.zeros(n, np.int64))),
        message=message,
        update=update,
        output=lambda state: prox(state.own.zh),
        block=block if hasattr(source, "many_steps") else None,
    )
