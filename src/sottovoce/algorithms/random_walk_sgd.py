r"""Random-walk SGD: a token carries the model; its holder takes one noisy step and passes it on.

.. math:: \theta^{k+1} = \theta^k - \eta_k \tilde G_{v_k}(\theta^k), \qquad v_{k+1} \sim W_{v_k,\cdot}

References: [1] Cyffers, Bellet, Upadhyay, "Differentially private decentralized learning with random walks",
ICML 2024 <https://arxiv.org/abs/2402.07471>; [2] Cyffers, Bellet 2022 for the complete graph.
Departures: a path that is public (peers, networks) is priced as it is: an agent pays for its own visits.
Where the path is drawn during the run, the pairwise statement is the path accountant
(`sottovoce.accounting.observation.random_walk`), which needs no condition on the noise; the printed
formula is kept as `RandomWalkSGD.published`. At record level lots are Poisson and clipped record by record.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sottovoce import _validate
from sottovoce.accounting.observation import LocalOnly, ObservationModel, TokenWalk
from sottovoce.accounting.release import Release
from sottovoce.algorithms.plan import GradientPlan, as_network
from sottovoce.errors import DataError, InvalidInput
from sottovoce.graphs import Network
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives.glm import GLM
from sottovoce.protocols import Broadcast, Protocol, TokenPass, Walk, draw_path
from sottovoce.runners import Algorithm, State

__all__ = ["RandomWalkSGD", "random_walk_sgd", "token_walk"]


@dataclass(frozen=True, repr=False)
class RandomWalkSGD(GradientPlan):
    """SGD carried by a token over a network, for linear models, networks and peers.

    Parameters are those of `GradientPlan`, with a network (or its name) in place of the protocol, and these:

    Parameters
    ----------
    path : ``"public"``: drawn from the public ``seed``, or given as one node per step: everybody knows it
        before the run, and it is priced as it is. ``"secret"``: drawn during the run, at user level, for
        linear models simulated in one process.
    cap : contributions per node, all tokens together; beyond it a holder adds noise only (secret paths).
    tokens : independent tokens, whose models are averaged in the end (secret paths).
    feature_norm : public bound on |x|, for pairwise statements that use convexity (secret paths).
    final_public : whether the last holder hands the model to everybody. If not, every node keeps the model
        it saw last; with a secret path such a plan can be priced but not run here, because the result of a
        run would hand the model out.

    Guarantees
    ----------
    Public path: an agent pays for each of its visits, and for nothing else; label "ldp" against everybody.
    Secret path: "local" counts ``cap`` (else all) contributions. "pairwise" and "network" use the path
    accountant, which hands the observer the whole path, so that how often each node contributed may be
    told. It counts on amplification by iteration only when ``feature_norm`` is given; the plan is refused
    unless the loss is smooth with learning_rate <= 2/beta and the clip is never active. Tokens add up.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = RandomWalkSGD(GLM(), sv.graphs.ring(4), steps=10, clip_norm=1.0, noise_multiplier=2.0,
    ...                      adjacency="user", path=(0, 1, 2, 3, 0, 1, 2, 3, 0, 1))
    >>> [sum(r.draws for r in plan.releases(i)) for i in range(4)]
    [3, 3, 2, 2]
    >>> hidden = RandomWalkSGD(GLM(), sv.graphs.complete(20), steps=400, learning_rate=0.5, clip_norm=1.0,
    ...                        noise_multiplier=8.0, adjacency="user", path="secret", cap=30)
    >>> hidden.privacy("local").label, round(hidden.privacy("local").mu, 3)
    ('ldp', 1.369)
    """

    path: Any = "public"
    cap: int | None = None
    tokens: int = 1
    feature_norm: float | None = None
    final_public: bool = True

    name: ClassVar[str] = "random-walk-sgd"
    protocols: ClassVar[tuple[str, ...]] = ("walk",)
    uses_optimizer: ClassVar[bool] = False
    sequential: ClassVar[bool] = True  # one holder at a time: ranks would only wait for each other

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.count(self.tokens, "tokens")
        if self.cap is not None:
            _validate.count(self.cap, "cap")
        if self.feature_norm is not None:
            _validate.positive(self.feature_norm, "feature_norm")
        if self.secret:
            self._check_secret()
        elif self.cap is not None or self.tokens != 1 or self.feature_norm is not None:
            raise InvalidInput('cap, tokens and feature_norm are for path="secret"; leave them out.')

    def _settle_protocol(self, put: Callable[[str, Any], None]) -> None:
        given = self.protocol
        if given is not None and given != "walk" and self.network is None:
            put("network", given)
        elif given not in (None, "walk"):
            raise InvalidInput(f"{self.name} runs over walk, not over {given}.")
        put("protocol", "walk")
        if self.network is None:
            raise InvalidInput(f"{self.name} needs a network for its protocol walk.")
        put("network", as_network(self.network))
        if isinstance(self.path, str):
            if self.path not in ("public", "secret"):
                raise InvalidInput(
                    f'path must be "public", "secret" or one node per step, got {self.path!r}.'
                )
            return
        put("path", tuple(int(v) for v in Walk(self.network, self.steps, path=self.path).path))

    def _settle_sizes(self, put: Callable[[str, Any], None]) -> None:
        if self.secret and self.sizes is not None:  # its rows are tokens: sizes are held against the network
            sizes = tuple(_validate.count(size, "an agent's number of records") for size in self.sizes)
            if len(sizes) != self.n:
                raise InvalidInput(
                    f"the network has {self.n} nodes, but sizes are given for {len(sizes)} agents."
                )
            put("sizes", sizes)
        else:
            super()._settle_sizes(put)

    def _check_secret(self) -> None:
        if not isinstance(self.objective, GLM):
            raise InvalidInput("a secret path is for linear models; networks walk a public one.")
        if self.adjacency != "user" or self.batch_size is not None or self.sample_rate is not None:
            raise InvalidInput(
                'a walk on a secret path is accounted at user level with all records; give adjacency="user" '
                "and no lot."
            )
        if isinstance(self.noise_multiplier, tuple):
            raise InvalidInput("a secret path takes one noise multiplier for all nodes.")
        if self.feature_norm is None:
            return
        beta = self.objective.smoothness(self.feature_norm)
        steepest = self.objective.slope_bound * self.feature_norm
        if self.objective.l2 or steepest > (self.clip_norm or 0.0):
            raise InvalidInput(
                "Amplification by iteration needs gradients that the clip never touches (a clipped step "
                f"may expand): l2 = 0 and clip >= {steepest:g}; or leave feature_norm out."
            )
        longest = max(self.rate(0), self.rate(self.steps - 1))
        if longest > 2 / beta:
            raise InvalidInput(
                f"Amplification by iteration needs learning_rate <= 2/beta = {2 / beta:.4g}, got "
                f"{longest:g}; take a smaller step, or leave feature_norm out."
            )

    # ---- the facts ----------------------------------------------------------------------------------------

    @property
    def secret(self) -> bool:
        """Whether the path is drawn during the run."""
        return isinstance(self.path, str) and self.path == "secret"

    @property
    def n(self) -> int:
        """Number of nodes."""
        return int(self.network.n)

    @cached_property
    def holders(self) -> np.ndarray:
        """The holder of the token at every step of a public path."""
        if self.secret:
            raise InvalidInput("a secret path is drawn during the run; nobody knows it before.")
        if isinstance(self.path, tuple):
            return np.array(self.path)
        return _drawn_path(self.network, self.steps, self.seed)

    @property
    def observation(self) -> ObservationModel:
        """A public path is priced as it is; a secret one by the law of the path."""
        if not self.secret:
            return LocalOnly()
        return TokenWalk(
            self.network,
            self.steps,
            tokens=self.tokens,
            cap=self.cap,
            contractive=self.feature_norm is not None,
            final_public=self.final_public,
        )

    def _agreed(self, k: int) -> Protocol:
        return self.schedule(k)

    def schedule(self, k: int) -> Protocol:
        """Return the hop of step ``k``; at the end of a public walk the model goes to all, edge by edge.

        A secret path is no public schedule: its text carries one row per token, and tokens never mix.
        """
        if self.secret:
            return TokenPass(self.tokens, 0, [])
        holder = int(self.holders[k])
        if k + 1 < self.steps:
            return TokenPass(self.n, holder, [int(self.holders[k + 1])])
        return Broadcast(self.network, holder) if self.final_public else TokenPass(self.n, holder, [])

    @cached_property
    def _visits(self) -> dict[int, list[tuple[int, int]]]:
        """Per node the stretches (first step, steps) in which it holds the token."""
        found: dict[int, list[tuple[int, int]]] = {}
        bounds = [0, *(np.flatnonzero(np.diff(self.holders)) + 1).tolist(), self.steps]
        for start, stop in itertools.pairwise(bounds):
            found.setdefault(int(self.holders[start]), []).append((start, stop - start))
        return found

    def releases(self, agent: int) -> Sequence[Release]:
        """Return one release per visit of the token, or as many as a secret path may bring."""
        if agent not in self._listed:
            (whole,) = super().releases(agent)
            if self.secret:
                most = self.steps * self.tokens
                visits = [(0, most if self.cap is None else min(self.cap, most))]
            else:
                visits = self._visits.get(agent, [])
            self._listed[agent] = tuple(replace(whole, step=step, steps=steps) for step, steps in visits)
        return self._listed[agent]

    @cached_property
    def _listed(self) -> dict[int, tuple[Release, ...]]:
        return {}

    def source(self, data: Any, agents: Sequence[int], random: RunRandomness) -> Any:
        """Return the gate before the hosted nodes' records."""
        if not self.secret:
            return super().source(data, agents, random)
        from sottovoce.mechanisms.random_walk import RandomWalkMechanism

        if list(agents) != list(range(self.n)):
            raise InvalidInput('a walk on a secret path runs in one process; peers take path="public".')
        assert isinstance(self.noise_multiplier, float)
        assert self.clip_norm is not None
        finite = bool(np.isfinite(self.clip_norm))
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
            releases=[self.releases(a) for a in agents] if finite else None,
        )

    def algorithm(self, source: Any, start: np.ndarray) -> Algorithm:
        """Return the text for the agents that ``source`` hosts."""
        if self.secret:
            return token_walk(source, start, self.rate)
        return random_walk_sgd(source, start, self.rate, self.holders, final_public=self.final_public)

    def prepared(self, data: Any) -> Any:
        """Return the agents' records checked, also against the public bound on their length."""
        if self.secret and not self.final_public:
            raise InvalidInput(
                "the result of a run hands the model out, so a secret path with final_public=False can be "
                "priced but not run; take final_public=True."
            )
        ready = super().prepared(data)
        if self.feature_norm is not None:
            too_long = np.linalg.norm(ready.X, axis=1) > self.feature_norm * (1 + 1e-9)
            if too_long.any():
                raise DataError(
                    f"Record {int(np.flatnonzero(too_long)[0])} is longer than feature_norm = "
                    f"{self.feature_norm:g}, on which the statement counts; scale the records first."
                )
        return ready

    def outputs(self, rows: np.ndarray, state: Any) -> dict[str, np.ndarray]:
        """Return the final model: the last holder's, or the mean of the tokens'."""
        if self.secret:
            return {"coef": rows.mean(axis=0), "contributions": state.own.counts}
        return {"coef": rows[self.holders[-1]]}

    # ---- what it costs ------------------------------------------------------------------------------------

    def cost(self) -> Mapping[str, Any]:
        """Return one row per hop to another node, and the broadcast of a public result.

        On a secret path every hop counts: how often a token stays is not known before.
        """
        hops = self.steps * self.tokens if self.secret else int((np.diff(self.holders) != 0).sum())
        messages = hops + (self.n - 1 if self.final_public else 0)
        found = {"rounds": self.steps, "messages": messages, "messages_per_node": messages / self.n}
        if self.objective.n_params is None:
            return found
        return {**found, "bytes": messages * self.width * self.bytes_per_number}

    def published(self) -> np.ndarray:
        """Return the printed formula of [1], no guarantee: (n, n) losses over alpha, user by observer."""
        from sottovoce.accounting.published.formulas import published_walk_loss

        (release,) = super().releases(0)
        per_visit = 1 / (2 * release.ratio**2)
        loss: np.ndarray = published_walk_loss(self.network, self.steps)
        return per_visit * self.tokens * loss


@lru_cache(maxsize=32)
def _drawn_path(network: Network, steps: int, seed: int) -> np.ndarray:
    path = draw_path(network, steps, np.random.default_rng(seed))
    path.setflags(write=False)
    return path


def random_walk_sgd(
    source: Any,
    start: np.ndarray,
    rate: Callable[[int], float],
    path: Sequence[int] | np.ndarray,
    *,
    final_public: bool = True,
) -> Algorithm:
    """Return the text of a walk along a public path: in step k the holder ``path[k]`` steps and hands over.

    Only the holder computes, so only the holder pays. Until the end the output is the token's model, where
    its holder is hosted, if it will be handed to everybody; otherwise what each agent saw last.

    Examples
    --------
    >>> class Itself:
    ...     agents, decay = [0, 1], 0.0
    ...
    ...     def rows(self, theta, k, stream, places):
    ...         return theta
    >>> text = random_walk_sgd(Itself(), np.ones((2, 1)), lambda k: 0.5, [1, 0])
    >>> text.message(text.init(), 0).tolist()
    [[1.0], [0.5]]
    """
    places = {agent: place for place, agent in enumerate(source.agents)}

    def message(state: State, k: int) -> np.ndarray:
        (theta,) = state.own
        place = places.get(int(path[k]))
        if place is None:
            return theta
        held = theta[[place]]
        gradient = source.rows(held, k, 0, [place])
        if source.decay:  # the l2 term holds no data and costs nothing
            gradient = gradient + theta.dtype.type(source.decay) * held
        moved: np.ndarray = theta.copy()
        moved[[place]] -= theta.dtype.type(rate(k)) * gradient
        return moved

    def update(state: State, received: np.ndarray, k: int) -> State:
        return State(np.asarray(path[min(k + 1, len(path) - 1)]), (received,))

    def output(state: State) -> np.ndarray:
        (theta,) = state.own
        place = places.get(int(state.common)) if final_public else None
        rows: np.ndarray = theta if place is None else np.repeat(theta[[place]], len(theta), axis=0)
        return rows

    return Algorithm(lambda: State(np.asarray(path[0]), (start,)), message, update, output)


class Tokens(NamedTuple):
    """The model each token carries, who holds it, and how often every node contributed."""

    theta: np.ndarray
    holders: np.ndarray
    counts: np.ndarray


def token_walk(source: Any, start: np.ndarray, rate: Callable[[int], float]) -> Algorithm:
    """Return the text of walks whose paths are drawn as they go, one row per token; `block` is compiled.

    Examples
    --------
    >>> import sottovoce as sv
    >>> from sottovoce.data import Shards
    >>> plan = RandomWalkSGD(GLM("squared"), sv.graphs.path(2), steps=2, learning_rate=0.5, clip_norm=1.0,
    ...                      adjacency="user", path="secret")
    >>> data = Shards(np.ones((2, 1)), np.array([2.0, 2.0]), np.array([0, 1, 2]))
    >>> source = plan.source(data, [0, 1], RunRandomness.from_rng(np.random.default_rng(0)))
    >>> text = token_walk(source, np.zeros((2, 1)), plan.rate)
    >>> text.output(text.block(text.init(), 0, 2)).tolist(), text.message(text.init(), 0).tolist()
    ([[1.0]], [[0.5]])
    """

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
        return State((), Tokens(*source.many_steps(*state.own, k, rates)))

    return Algorithm(init, message, update, lambda state: state.own.theta, block)
