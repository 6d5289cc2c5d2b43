r"""Random-walk SGD: the holder of a token takes one noisy step and passes the token on.

.. math:: \theta^{k+1} = \theta^k - \eta_k \tilde G_{v_k}(\theta^k), \qquad v_{k+1} \sim W_{v_k,\cdot}

References: [1] Cyffers, Bellet, Upadhyay, "Differentially private decentralized learning with random walks",
ICML 2024 <https://arxiv.org/abs/2402.07471>; [2] Cyffers, Bellet 2022 for the complete graph.
Departures: a public path (peers, neural nets) is accounted as it is: an agent pays for its own visits. At
record level batches are Poisson and clipped record by record. On a path drawn during the run
(``path="secret"``) the pairwise guarantee is that of the path accountant
(`accounting.observation.random_walk`), which needs no condition on the noise and lets observers know the
whole path, once it is drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from sottovoce._validate import several
from sottovoce.accounting.observation import ObservationModel, TokenWalk
from sottovoce.accounting.release import Release
from sottovoce.algorithms.gradient_plan import GradientPlan
from sottovoce.algorithms.plan import Plan
from sottovoce.algorithms.schedule import Schedule
from sottovoce.errors import DataError, InvalidInput
from sottovoce.graphs import Network, as_network
from sottovoce.mechanisms.gradient import GradientMechanism
from sottovoce.mechanisms.random_walk import RandomWalkMechanism
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives.glm import GLM
from sottovoce.protocols import Broadcast, Protocol, TokenPass, Walk, draw_path
from sottovoce.runners import Algorithm, State, in_blocks


@dataclass(frozen=True, repr=False)
class RandomWalkSGD(GradientPlan):
    """SGD carried by a token over a network, for linear models, neural nets and peers.

    Parameters are those of `GradientPlan`, with a network (or its name) in place of the protocol, and these:

    Parameters
    ----------
    path : ``"public"``: drawn from the public ``seed``, or given as one node per step: everybody knows it
        before the run. ``"secret"``: drawn during the run, so that nobody knows it before, and nobody has to
        keep it from others after; at user level, for linear models simulated in one process. The plan is then
        a `SecretWalkSGD`.
    cap : contributions per node, all tokens together; beyond it a holder adds noise only (drawn paths).
    tokens : independent tokens, whose models are averaged in the end (drawn paths).
    feature_norm : public bound on |x|, for pairwise guarantees that use convexity (drawn paths).
    final_public : whether the last holder hands the model to everybody. If not, every node keeps the model
        it saw last; with a drawn path such a plan can be accounted but not run here, because the result of a
        run would hand the model out.

    Guarantees
    ----------
    An agent pays for each of its visits, and for nothing else; label "ldp" against everybody.

    Examples
    --------
    >>> import sottovoce as sv
    >>> from sottovoce.objectives import GLM
    >>> plan = RandomWalkSGD(GLM(), sv.graphs.ring(4), steps=10, clip_norm=1.0, noise_multiplier=2.0,
    ...                      adjacency="user", path=(0, 1, 2, 3, 0, 1, 2, 3, 0, 1))
    >>> [sum(r.draws for r in plan.releases(i)) for i in range(4)]
    [3, 3, 2, 2]
    >>> secret = RandomWalkSGD(GLM(), sv.graphs.complete(20), steps=400, learning_rate=0.5, clip_norm=1.0,
    ...                        noise_multiplier=8.0, adjacency="user", path="secret", cap=30)
    >>> secret.privacy("local").label, round(secret.privacy("local").mu, 3)
    ('ldp', 1.369)
    """

    path: str | tuple[int, ...] = "public"
    cap: int | None = None
    tokens: int = 1
    feature_norm: float | None = None
    final_public: bool = True

    name = "random-walk-sgd"
    needs = ("token",)
    uses_optimizer = False
    sequential = True  # one holder at a time: ranks would only wait for each other

    @classmethod
    def _variant(cls, options: Mapping[str, Any]) -> type[Plan]:
        return SecretWalkSGD if options["path"] == "secret" else cls

    @classmethod
    def _with_protocol(cls, options: dict[str, Any]) -> dict[str, Any]:
        protocol, network, path = options["protocol"], options["network"], options["path"]
        if protocol is not None and not (isinstance(protocol, str) and protocol == "walk"):
            if network is not None:
                raise InvalidInput(f"{cls.name} runs over walk, not over {protocol}.")
            network = protocol
        if network is None:
            raise InvalidInput(f"{cls.name} needs a network for its protocol walk.")
        network = as_network(network)
        if not isinstance(path, str):
            path = tuple(int(v) for v in Walk(network, options["steps"], path=several(path, "path")).path)
        elif path not in ("public", "secret"):
            raise InvalidInput(f'path must be "public", "secret" or one node per step, got {path!r}.')
        return {**options, "protocol": "walk", "network": network, "path": path}

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_path()

    def _check_path(self) -> None:
        if self.cap is not None or self.tokens != 1 or self.feature_norm is not None:
            raise InvalidInput('cap, tokens and feature_norm are for path="secret"; leave them out.')

    @property
    def n(self) -> int:
        return int(self.network.n)

    @cached_property
    def _holders(self) -> np.ndarray:
        """The holder of the token at every step of a public path."""
        if isinstance(self.path, tuple):
            return np.array(self.path)
        return _drawn_path(self.network, self.steps, self.seed)

    @cached_property
    def schedule(self) -> Schedule:
        """The hop of every step; at the end the model goes to all, edge by edge."""
        return self._schedule(self._hop)

    def _hop(self, k: int) -> Protocol:
        holder = int(self._holders[k])
        if k + 1 < self.steps:
            return TokenPass(self.n, holder, [int(self._holders[k + 1])])
        return Broadcast(self.network, holder) if self.final_public else TokenPass(self.n, holder, [])

    @cached_property
    def _visits(self) -> dict[int, list[tuple[int, int]]]:
        """Per node the (first step, steps) of every visit of the token."""
        visits: dict[int, list[tuple[int, int]]] = {}
        bounds = [0, *(np.flatnonzero(np.diff(self._holders)) + 1).tolist(), self.steps]
        for start, stop in itertools.pairwise(bounds):
            visits.setdefault(int(self._holders[start]), []).append((start, stop - start))
        return visits

    def releases(self, agent: int) -> Sequence[Release]:
        if agent not in self._releases:
            (whole,) = super().releases(agent)
            visits = self._visits.get(agent, [])
            self._releases[agent] = tuple(replace(whole, step=step, steps=steps) for step, steps in visits)
        return self._releases[agent]

    @cached_property
    def _releases(self) -> dict[int, tuple[Release, ...]]:
        return {}

    def algorithm(self, mechanism: GradientMechanism, start: np.ndarray) -> Algorithm:
        """Return the walk along the public path: in step k the holder steps and hands over.

        Only the holder computes and releases. Until the end the output is the token's model, where
        its holder is hosted, if it will be handed to everybody; otherwise what each agent saw last.
        """
        path, places = self._holders, {agent: place for place, agent in enumerate(mechanism.agents)}

        def message(state: State, k: int) -> np.ndarray:
            (theta,) = state.own
            place = places.get(int(path[k]))
            if place is None:
                return theta
            token = theta[[place]]
            gradient = mechanism.rows(token, k, 0, [place])
            if mechanism.decay.any():  # the l2 term holds no data and costs nothing
                gradient = gradient + mechanism.decay * token
            moved: np.ndarray = theta.copy()
            moved[[place]] -= theta.dtype.type(self.rate(k)) * gradient
            return moved

        def update(state: State, received: np.ndarray, k: int) -> State:
            return State(np.asarray(path[min(k + 1, len(path) - 1)]), (received,))

        def output(state: State) -> np.ndarray:
            (theta,) = state.own
            place = places.get(int(state.common)) if self.final_public else None
            return theta if place is None else np.repeat(theta[[place]], len(theta), axis=0)

        return Algorithm(lambda: State(np.asarray(path[0]), (start,)), message, update, output)

    def outputs(self, rows: np.ndarray, state: State) -> dict[str, np.ndarray]:
        return {"coef": rows[self._holders[-1]]}

    def _traffic(self) -> tuple[int, int]:
        """Return one row per hop to another node, and the broadcast of a public result."""
        hops = int((np.diff(self._holders) != 0).sum())
        return self.steps, hops + (self.n - 1 if self.final_public else 0)


@lru_cache(maxsize=32)
def _drawn_path(network: Network, steps: int, seed: int) -> np.ndarray:
    path = draw_path(network, steps, np.random.default_rng(seed))
    path.setflags(write=False)
    return path


# ---- a path that is drawn during the run ---------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class SecretWalkSGD(RandomWalkSGD):
    """SGD carried by tokens on paths drawn during the run, simulated in one process; one row per token.

    Guarantees
    ----------
    User level. "local" counts ``cap`` (else all) contributions. "pairwise" and "network" use the path
    accountant, which hands the observer the whole path, so that how often each node contributed may be
    published. Amplification by iteration is counted only when ``feature_norm`` is given; the plan is refused
    unless the loss is smooth with learning_rate <= 2/beta and the clip is never active. Tokens add up.
    """

    path: str | tuple[int, ...] = "secret"

    def _check_schedule(self) -> None:
        self._check_sizes(self.n)  # against the network: rows are tokens

    def _check_sampling(self) -> None:
        if self.adjacency != "user" or self.batch_size is not None or self.sample_rate is not None:
            raise InvalidInput(
                'a walk with path="secret" is accounted at user level with all records; give '
                'adjacency="user" and no batch_size.'
            )

    def _check_path(self) -> None:
        if not isinstance(self.objective, GLM):
            raise InvalidInput('path="secret" is for linear models; neural nets walk a public path.')
        if isinstance(self.noise_multiplier, tuple):
            raise InvalidInput('path="secret" takes one noise multiplier for all nodes.')
        if self.feature_norm is None:
            return
        beta = self.objective.smoothness(self.feature_norm)
        steepest = self.objective.slope_bound * self.feature_norm
        if self.objective.l2 or steepest > (self.clip_norm or 0.0):
            raise InvalidInput(
                "Amplification by iteration needs gradients that the clip never touches (a clipped step "
                f"may expand): l2 = 0 and clip_norm >= {steepest:g}; or leave feature_norm out."
            )
        longest = max(self._rates)
        if longest > 2 / beta:
            raise InvalidInput(
                f"Amplification by iteration needs learning_rate <= 2/beta = {2 / beta:.4g}, got "
                f"{longest:g}; take a smaller step, or leave feature_norm out."
            )

    @property
    def observation(self) -> ObservationModel:
        return TokenWalk(
            self.network,
            self.steps,
            tokens=self.tokens,
            cap=self.cap,
            contractive=self.feature_norm is not None,
            final_public=self.final_public,
            rates=self._rates if len(set(self._rates)) > 1 else None,
        )

    @cached_property
    def _rates(self) -> tuple[float, ...]:
        return tuple(map(self.rate, range(self.steps)))

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule of the runner: every token has one row, and the rows are never mixed.

        It says nothing of the path, which is drawn during the run.
        """
        return self._schedule(TokenPass(self.tokens, 0, []))

    @cached_property
    def _visits(self) -> dict[int, list[tuple[int, int]]]:
        """As many as the path may bring."""
        most = self.steps * self.tokens
        visits = most if self.cap is None else min(self.cap, most)
        return {agent: [(0, visits)] for agent in range(self.n)}

    def prepared(self, data: object) -> Any:
        if not self.final_public:
            raise InvalidInput(
                'the result of a run hands the model out, so path="secret" with final_public=False can be '
                "accounted but not run; take final_public=True."
            )
        records = super().prepared(data)
        if self.feature_norm is not None:
            too_long = np.linalg.norm(records.X, axis=1) > self.feature_norm * (1 + 1e-9)
            if too_long.any():
                raise DataError(
                    f"Record {int(np.flatnonzero(too_long)[0])} is longer than feature_norm = "
                    f"{self.feature_norm:g}, on which the guarantee counts; scale the records first."
                )
        return records

    def mechanism(self, data: Any, agents: Sequence[int], random: RunRandomness) -> RandomWalkMechanism:
        if list(agents) != list(range(self.n)):
            raise InvalidInput('a walk with path="secret" runs in one process; peers take path="public".')
        return self._mechanism(RandomWalkMechanism, agents, random, data=data)

    def algorithm(self, mechanism: RandomWalkMechanism, start: np.ndarray) -> Algorithm:  # type: ignore[override]
        """Return walks whose paths are drawn as they go, one row per token; the steps are compiled."""

        def init() -> State:
            holders = mechanism.first()
            return State((), Tokens(start[holders], holders, np.zeros(len(mechanism.agents), np.int64)))

        def block(state: State, k: int, count: int) -> State:
            rates = np.array(self._rates[k : k + count])
            theta, holders, counts = state.own
            return State((), Tokens(*mechanism.many_steps(theta, holders, counts, k, rates)))

        return in_blocks(init, lambda state: state.own.theta, block)

    def outputs(self, rows: np.ndarray, state: State) -> dict[str, np.ndarray]:
        return {"coef": rows.mean(axis=0), "contributions": state.own.counts}

    def _traffic(self) -> tuple[int, int]:
        """Return one row per hop: how often a token stays is not known before."""
        return self.steps, self.steps * self.tokens + (self.n - 1 if self.final_public else 0)


class Tokens(NamedTuple):
    """The model each token carries, who holds it, and how often every node contributed."""

    theta: np.ndarray
    holders: np.ndarray
    counts: np.ndarray
