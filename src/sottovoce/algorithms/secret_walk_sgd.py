r"""Random-walk SGD on a path that is drawn during the run, simulated in one process.

.. math:: \theta^{k+1} = \theta^k - \eta_k\big(\mathrm{clip}_C(\nabla f_{v_k}(\theta^k)) + z C\,\xi^k\big),
          \qquad v_{k+1} \sim W_{v_k,\cdot}

References: [1] Cyffers, Bellet, Upadhyay, "Differentially private decentralized learning with random walks",
ICML 2024 <https://arxiv.org/abs/2402.07471>; [2] Cyffers, Bellet 2022 for the complete graph.
Departures from [1]: the pairwise guarantee is that of the path accountant (`sottovoce.accounting.walks`),
which needs no condition on the noise; the printed formula is `public_walk_sgd.published_losses`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from sottovoce.accounting.observation import ObservationModel, TokenWalk
from sottovoce.accounting.release import Release
from sottovoce.algorithms.gradient_plan import GradientPlan
from sottovoce.algorithms.public_walk_sgd import PublicWalkSGD
from sottovoce.algorithms.schedule import Schedule
from sottovoce.errors import DataError, InvalidInput
from sottovoce.mechanisms.random_walk import RandomWalkMechanism
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives.glm import GLM
from sottovoce.protocols import TokenPass
from sottovoce.runners import Algorithm, State


@dataclass(frozen=True, repr=False)
class SecretWalkSGD(PublicWalkSGD):
    """SGD carried by tokens on secret paths; `RandomWalkSGD` with ``path="secret"``.

    Guarantees
    ----------
    User level. "local" counts ``cap`` (else all) contributions. "pairwise" and "network" use the path
    accountant, which hands the observer the whole path, so that how often each node contributed may be
    published. Amplification by iteration is counted only when ``feature_norm`` is given; the plan is refused
    unless the loss is smooth with learning_rate <= 2/beta and the clip is never active. Tokens add up.
    """

    path: Any = "secret"

    def _check_schedule(self) -> None:
        # rows are tokens: sizes are checked against the network
        if self.sizes is not None and len(self.sizes) != self.n:
            raise InvalidInput(
                f"the network has {self.n} nodes, but sizes are given for {len(self.sizes)} agents."
            )

    def _check_sampling(self) -> None:
        if self.adjacency != "user" or self.batch_size is not None or self.sample_rate is not None:
            raise InvalidInput(
                'a walk on a secret path is accounted at user level with all records; give adjacency="user" '
                "and no batch_size."
            )

    def _check_path(self) -> None:
        if not isinstance(self.objective, GLM):
            raise InvalidInput("a secret path is for linear models; networks walk a public one.")
        if isinstance(self.noise_multiplier, tuple):
            raise InvalidInput("a secret path takes one noise multiplier for all nodes.")
        if self.feature_norm is None:
            return
        beta = self.objective.smoothness(self.feature_norm)
        steepest = self.objective.slope_bound * self.feature_norm
        if self.objective.l2 or steepest > (self.clip_norm or 0.0):
            raise InvalidInput(
                "Amplification by iteration needs gradients that the clip never touches (a clipped step "
                f"may expand): l2 = 0 and clip_norm >= {steepest:g}; or leave feature_norm out."
            )
        longest = max(self.rate(0), self.rate(self.steps - 1))
        if longest > 2 / beta:
            raise InvalidInput(
                f"Amplification by iteration needs learning_rate <= 2/beta = {2 / beta:.4g}, got "
                f"{longest:g}; take a smaller step, or leave feature_norm out."
            )

    @cached_property
    def _holders(self) -> np.ndarray:
        raise InvalidInput("a secret path is drawn during the run; nobody knows it before.")

    @property
    def observation(self) -> ObservationModel:
        """The distribution of the path decides what an observer learns."""
        return TokenWalk(
            self.network,
            self.steps,
            tokens=self.tokens,
            cap=self.cap,
            contractive=self.feature_norm is not None,
            final_public=self.final_public,
        )

    @cached_property
    def schedule(self) -> Schedule:
        """One row per token, and tokens never mix: a secret path is no public schedule."""
        return self._schedule(TokenPass(self.tokens, 0, []))

    def releases(self, agent: int) -> Sequence[Release]:
        """Return as many releases as the path may bring."""
        if agent not in self._releases:
            (whole,) = GradientPlan.releases(self, agent)
            most = self.steps * self.tokens
            visits = most if self.cap is None else min(self.cap, most)
            self._releases[agent] = (replace(whole, step=0, steps=visits),)
        return self._releases[agent]

    def source(self, data: Any, agents: Sequence[int], random: RunRandomness) -> RandomWalkMechanism:
        """Return the mechanism before all nodes' records."""
        if list(agents) != list(range(self.n)):
            raise InvalidInput('a walk on a secret path runs in one process; peers take path="public".')
        assert isinstance(self.objective, GLM)
        assert isinstance(self.noise_multiplier, float)
        assert self.clip_norm is not None
        return RandomWalkMechanism(
            self.objective,
            data,
            self.network,
            random,
            clip_norm=self.clip_norm,
            noise_multiplier=self.noise_multiplier,
            cap=self.cap,
            steps=self.steps,
            tokens=self.tokens,
            releases=[self.releases(a) for a in agents] if np.isfinite(self.clip_norm) else None,
        )

    def algorithm(self, source: RandomWalkMechanism, start: np.ndarray) -> Algorithm:  # type: ignore[override]
        """Return the update rule of the tokens."""
        return token_walk(source, start, self.rate)

    def prepared(self, data: Any) -> Any:
        """Return the agents' records checked, also against the public bound on their length."""
        if not self.final_public:
            raise InvalidInput(
                "the result of a run hands the model out, so a secret path with final_public=False can be "
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

    def outputs(self, rows: np.ndarray, state: Any) -> dict[str, np.ndarray]:
        """Return the mean of the tokens' models, and how often every node contributed."""
        return {"coef": rows.mean(axis=0), "contributions": state.own.counts}

    def _traffic(self) -> tuple[int, int]:
        """Return one row per hop: how often a token stays is not known before."""
        return self.steps, self.steps * self.tokens + (self.n - 1 if self.final_public else 0)


class Tokens(NamedTuple):
    """The model each token carries, who holds it, and how often every node contributed."""

    theta: np.ndarray
    holders: np.ndarray
    counts: np.ndarray


def token_walk(source: RandomWalkMechanism, start: np.ndarray, rate: Callable[[int], float]) -> Algorithm:
    """Return walks whose paths are drawn as they go, one row per token; `block` is compiled."""

    def init() -> State:
        holders = source.first()
        return State((), Tokens(start[holders], holders, np.zeros(len(source.agents), np.int64)))

    def message(state: State, k: int) -> np.ndarray:
        tokens: Tokens = state.own
        moved, counts = tokens.theta.copy(), tokens.counts.copy()
        for token, holder in enumerate(tokens.holders):
            gradient = source.row(
                tokens.theta[token], k, token, holder=int(holder), contributions=int(counts[holder])
            )
            moved[token] -= rate(k) * gradient
            counts[holder] += 1
        return moved

    def update(state: State, received: np.ndarray, k: int) -> State:
        tokens: Tokens = state.own
        counts = tokens.counts + np.bincount(tokens.holders, minlength=len(tokens.counts))
        after = [source.next(int(holder), k, token) for token, holder in enumerate(tokens.holders)]
        return State((), Tokens(received, np.array(after, tokens.holders.dtype), counts))

    def block(state: State, k: int, count: int) -> State:
        first, last = rate(k), rate(k + count - 1)
        rates = np.full(count, first)
        if first != last:
            rates = np.array([rate(k + i) for i in range(count)])
        theta, holders, counts = state.own
        return State((), Tokens(*source.many_steps(theta, holders, counts, k, rates)))

    return Algorithm(init, message, update, lambda state: state.own.theta, block)
