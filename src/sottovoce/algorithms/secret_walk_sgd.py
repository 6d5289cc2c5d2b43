r"""Random-walk SGD on drawn paths: tokens carry models along paths that are drawn while they walk.

.. math:: \theta^{k+1} = \theta^k - \eta_k \tilde G_{v_k}(\theta^k), \qquad v_{k+1} \sim W_{v_k,\cdot}

References: [1] Cyffers, Bellet, Upadhyay, "Differentially private decentralized learning with random walks",
ICML 2024 <https://arxiv.org/abs/2402.07471>; [2] Cyffers, Bellet 2022 for the complete graph.
Departures: the pairwise guarantee is that of the path accountant (`accounting.observation.random_walk`),
which needs no condition on the noise and lets observers know the whole path, once it is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from sottovoce.accounting.observation import ObservationModel, TokenWalk
from sottovoce.accounting.release import Release
from sottovoce.algorithms.schedule import Schedule
from sottovoce.algorithms.walk_plan import WalkPlan
from sottovoce.errors import DataError, InvalidInput
from sottovoce.mechanisms.random_walk import RandomWalkMechanism
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives.glm import GLM
from sottovoce.protocols import TokenPass
from sottovoce.runners import Algorithm, State, in_blocks


@dataclass(frozen=True, repr=False)
class SecretWalkSGD(WalkPlan):
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path != "secret":
            raise InvalidInput(f'path of a secret walk must be "secret", got {self.path!r}.')
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

    def releases(self, agent: int) -> Sequence[Release]:
        """Return as many contributions as the path may bring."""
        (each,), most = super().releases(agent), self.steps * self.tokens
        return (replace(each, steps=most if self.cap is None else min(self.cap, most)),)

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

    def algorithm(self, mechanism: RandomWalkMechanism, start: np.ndarray) -> Algorithm:
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
