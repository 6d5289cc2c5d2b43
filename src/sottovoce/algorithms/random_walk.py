r"""Private random-walk SGD: a token carries the model; its holder takes one noisy step and passes it on.

.. math:: \theta^{t+1} = \theta^t - \nu\big(\mathrm{clip}_C(\nabla\ell_{v_t}(\theta^t)) + z C\,\xi^t\big),
          \qquad v_{t+1} \sim W_{v_t,\cdot}

References: Cyffers, Bellet, Upadhyay 2024 <https://arxiv.org/abs/2402.07471>; Cyffers, Bellet 2022 for the
complete graph. Departures: the pairwise statement is the path accountant, which needs no condition on the
noise; the published formula is kept under the label "published".
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numba import njit

from sottovoce._validate import count, non_negative, positive
from sottovoce.algorithms.blocks import fingerprint, on_grid, randomness, run_blocks
from sottovoce.algorithms.central import Evaluate, recorder
from sottovoce.algorithms.plan import Plan, View, known_view
from sottovoce.data import Shards
from sottovoce.errors import DataError, InvalidInput
from sottovoce.graphs import Network
from sottovoce.objectives import GLM
from sottovoce.objectives.glm import slope
from sottovoce.privacy import Adversary, Curve, Guarantee
from sottovoce.runners.base import Result, provenance_now

__all__ = ["RandomWalkSGD", "hop"]


@dataclass(frozen=True, repr=False)
class RandomWalkSGD(Plan):
    """SGD carried by one or several tokens over a network, at user level.

    Parameters
    ----------
    objective : what is minimised; a node's loss is the mean over its records.
    network : graph and transition weights; `sv.graphs.complete(n)` passes to a uniformly drawn node.
    steps : hops of each token.
    learning_rate, clip : nu, and C for the holder's whole gradient.
    noise_multiplier : z, noise over C.
    cap : contributions per node (all tokens together); beyond it a holder adds noise only.
    tokens : independent tokens; the result is their mean.
    final_public : whether the final model is broadcast.
    sender_visible : whether a holder knows who passed it the token.
    feature_norm : public bound on |x|, needed by pairwise statements that use convexity.

    Guarantees
    ----------
    "local": cap (else all steps) contributions of 2/z-GDP, for any loss. "pairwise": the path accountant,
    valid with visible senders too, as it hands the observer the whole path; it counts on amplification by
    iteration only when ``feature_norm`` is given, the loss is smooth with learning_rate <= 2/beta and the
    clip is never active; it refuses otherwise. Tokens add up.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = RandomWalkSGD(GLM("logistic"), sv.graphs.complete(20), steps=400, learning_rate=0.5, clip=1.0,
    ...                      noise_multiplier=8.0, cap=30)
    >>> plan.privacy("local").label, round(plan.privacy("local").mu, 3)
    ('ldp', 1.369)
    """

    objective: GLM
    network: Network
    steps: int
    learning_rate: float
    clip: float
    noise_multiplier: float
    cap: int | None = None
    tokens: int = 1
    final_public: bool = False
    sender_visible: bool = False
    feature_norm: float | None = None
    name: str = field(default="random-walk-sgd", init=False)

    def __post_init__(self) -> None:
        count(self.steps, "steps")
        count(self.tokens, "tokens")
        positive(self.learning_rate, "learning_rate")
        non_negative(self.noise_multiplier, "noise_multiplier")
        if not self.clip > 0 or (self.clip == math.inf and self.noise_multiplier > 0):
            raise InvalidInput(f"clip must be positive, finite with noise, got {self.clip!r}.")
        if self.cap is not None:
            count(self.cap, "cap")
        if self.feature_norm is not None:
            positive(self.feature_norm, "feature_norm")
        if self.objective.l1 or self.objective.box is not None or self.objective.ball is not None:
            raise InvalidInput("Random-walk SGD takes l2 only; use token ADMM for l1, box or ball.")

    @property
    def n(self) -> int:
        """Number of nodes."""
        return self.network.n

    # ---- what it costs -----------------------------------------------------------------------------

    def privacy(
        self,
        view: View = "local",
        *,
        observer: int | None = None,
        user: int | None = None,
        colluders: Iterable[int] = (),
    ) -> Guarantee:
        """Return the local guarantee, or the path accountant's for one observer and one user."""
        mu = 2 / self.noise_multiplier if self.noise_multiplier else math.inf
        times = self.steps * self.tokens if self.cap is None else min(self.cap, self.steps * self.tokens)
        local = Guarantee(Adversary("local"), "user", "ldp", Curve.gaussian(mu, times))
        if known_view(view) == "local":
            return local
        if view == "central":
            return local.against(Adversary("central"))
        listed = sorted({*colluders, *([] if observer is None else [observer])})
        if view == "pairwise" and len(listed) == 1 and user is not None:
            return self._along_paths(listed[0], user)
        if not listed:
            raise InvalidInput(f"The {view} view of a walk needs observer=... (or colluders=...).")
        kind = "colluders" if len(listed) > 1 else "network"
        return local.against(Adversary(kind, tuple(listed), user))

    def _along_paths(self, observer: int, user: int) -> Guarantee:
        from sottovoce.privacy import walk_guarantee

        contractive = self.feature_norm is not None
        if contractive:
            assert self.feature_norm is not None
            beta = self.objective.smoothness(self.feature_norm) + self.objective.l2
            steepest = self.objective.slope_bound * self.feature_norm
            if self.objective.l2 or steepest > self.clip:
                raise InvalidInput(
                    "Amplification by iteration needs gradients that the clip never touches (a clipped step "
                    f"may expand): l2 = 0 and clip >= {steepest:g}; or leave feature_norm out."
                )
            if self.learning_rate > 2 / beta:
                raise InvalidInput(
                    f"Amplification by iteration needs learning_rate <= 2/beta = {2 / beta:.4g}, got "
                    f"{self.learning_rate:g}; take a smaller step, or leave feature_norm out."
                )
        return walk_guarantee(
            self.network,
            self.steps,
            user=user,
            observer=observer,
            noise_multiplier=self.noise_multiplier / 2,  # relative to the sensitivity 2C
            final_public=self.final_public,
            cap=self.cap,
            tokens=self.tokens,
            contractive=contractive,
        )

    def published(self) -> np.ndarray:
        """Return the published formula: (n, n) Rényi losses over alpha, user by observer."""
        from sottovoce.privacy import published_walk_loss

        return (2 * self.tokens / self.noise_multiplier**2) * published_walk_loss(self.network, self.steps)

    def cost(self, dim: int = 1, bytes_per_number: int = 8) -> Mapping[str, Any]:
        """Return one row per hop, and the broadcast of a public result."""
        messages = self.steps * self.tokens + (self.n - 1 if self.final_public else 0)
        return {
            "rounds": self.steps,
            "messages": messages,
            "messages_per_node": messages / self.n,
            "bytes": messages * dim * bytes_per_number,
        }

    def describe(self) -> Mapping[str, Any]:
        """Return the plan as plain values."""
        plain = asdict(replace(self, network=None))  # type: ignore[arg-type]
        plain.pop("name")
        return {"algorithm": self.name, **plain, "network": self.network.name, "n": self.n}

    @classmethod
    def for_budget(cls, *, epsilon: float, delta: float, **options: Any) -> RandomWalkSGD:
        """Return the plan with the least noise whose local guarantee meets the budget."""
        from sottovoce.privacy import gaussian_mu

        trial = cls(noise_multiplier=1.0, **options)
        return replace(trial, noise_multiplier=trial.privacy().mu / gaussian_mu(epsilon, delta) * (1 + 1e-12))

    # ---- how it runs -------------------------------------------------------------------------------

    def run(
        self,
        data: Shards,
        rng: Any,
        *,
        progress: bool = False,
        checkpoint: Any = None,
        evaluate: Evaluate | None = None,
    ) -> Result:
        """Walk ``steps`` hops with every token and return the mean of the final models."""
        started = time.perf_counter()
        if data.n != self.n:
            raise InvalidInput(f"The plan is for {self.n} nodes, the data have {data.n} users.")
        X, y = self.objective.check(data.X, data.y)
        if self.feature_norm is not None:
            too_long = np.linalg.norm(X, axis=1) > self.feature_norm * (1 + 1e-9)
            if too_long.any():
                raise DataError(
                    f"Record {int(np.flatnonzero(too_long)[0])} is longer than feature_norm = "
                    f"{self.feature_norm:g}, on which the statement counts; scale the records first."
                )
        random, p, model = randomness(rng), X.shape[1], self.objective
        std = self.noise_multiplier * self.clip if self.noise_multiplier else 0.0
        clip = self.clip - random.slack(p, std)
        if clip <= 0:
            raise InvalidInput(
                f"The rounding slack exceeds the clip {self.clip}; clip less or add less noise."
            )
        W = self.network.W
        uniform = bool(W.nnz == self.n**2 and np.ptp(W.data) < 1e-12)
        cumulative = np.zeros(0) if uniform else _cumulative(W)
        cap = self.steps * self.tokens if self.cap is None else self.cap

        def advance(state: dict[str, np.ndarray], block: int, size: int) -> dict[str, np.ndarray]:
            theta, counts, holders = (state[key].copy() for key in ("theta", "counts", "holders"))
            for token in range(self.tokens):
                if random.noise.protective:
                    noise = random.gaussian(size, p, block=block, std=std)
                else:
                    noise = random.draws(1, token, block).standard_normal((size, p)) * std
                holders[token] = _walk(
                    model.kind, model.width, theta[token], X, y, data.offsets, W.indptr, W.indices,
                    cumulative, uniform, holders[token], counts, cap, noise, random.grid(std),
                    random.draws(0, token, block), clip, self.learning_rate, model.l2,
                )  # fmt: skip
            return {"theta": theta, "counts": counts, "holders": holders, "w": theta.mean(axis=0)}

        first = random.draws(3).integers(self.n, size=self.tokens)
        state = {
            "theta": np.zeros((self.tokens, p)),
            "counts": np.zeros(self.n, np.int64),
            "holders": first,
            "w": np.zeros(p),
        }
        config = dict(self.describe())
        history: list[dict[str, Any]] = []
        state = run_blocks(
            state,
            self.steps,
            min(max(1, self.steps // 50), 1 << 16),
            advance,
            checkpoint=checkpoint,
            identity=fingerprint({**config, "noise": repr(random.noise)}, X, y) if checkpoint else "",
            after_block=recorder(history, evaluate, progress, self.name, self.steps),
        )
        return Result(
            name=self.name,
            config=config,
            outputs={"coef": state["w"], "rows": state["theta"], "contributions": state["counts"]},
            history=history,
            guarantees=[self.privacy("local").to_dict()],
            provenance=provenance_now(started, noise=random.said),
        )


def hop(
    model: GLM,
    X: np.ndarray,
    y: np.ndarray,
    theta: np.ndarray,
    *,
    learning_rate: float,
    clip: float,
    noise: np.ndarray,
    grid: float = 0.0,
    contribute: bool = True,
) -> np.ndarray:
    """Return the token's model after one holder's step: what a peer calls when the token arrives.

    Examples
    --------
    >>> hop(GLM("squared"), np.ones((1, 1)), np.array([2.0]), np.zeros(1), learning_rate=0.5, clip=1.0,
    ...     noise=np.zeros(1)).tolist()
    [0.5]
    """
    after = np.array(theta, dtype=float)
    limit = clip if contribute else 0.0
    _step(
        model.kind,
        model.width,
        after,
        X,
        y,
        limit,
        noise,
        grid,
        learning_rate,
        model.l2,
        np.empty(len(after)),
    )
    return after


def _cumulative(W: Any) -> np.ndarray:
    """Return the running sums within each row of a CSR matrix, the last entry of a row being 1."""
    sums = np.cumsum(W.data)
    before = np.concatenate([[0.0], sums])[W.indptr[:-1]]
    out = sums - np.repeat(before, np.diff(W.indptr))
    out[W.indptr[1:] - 1] = 1.0
    return out


@njit(cache=True)
def _step(kind, width, theta, X, y, clip, noise, grid, nu, l2, g):
    """theta -= nu (clip_C(mean gradient + l2 theta) + noise), in place."""
    m, p = X.shape
    if m == 1:
        a = 0.0
        for j in range(p):
            a += X[0, j] * theta[j]
        s = slope(kind, width, a, y[0])
        for j in range(p):
            g[j] = s * X[0, j] + l2 * theta[j]
    else:
        for j in range(p):
            g[j] = l2 * theta[j]
        for i in range(m):
            a = 0.0
            for j in range(p):
                a += X[i, j] * theta[j]
            s = slope(kind, width, a, y[i]) / m
            if math.isfinite(s):
                for j in range(p):
                    g[j] += s * X[i, j]
    squares = 0.0
    for j in range(p):
        squares += g[j] * g[j]
    if not squares < 1e300:
        scale = _safe_scale(g, clip)
    elif squares > clip * clip:
        scale = clip / math.sqrt(squares)
    else:
        scale = 1.0
    if grid == 0.0:
        for j in range(p):
            theta[j] -= nu * (scale * g[j] + noise[j])
    else:
        for j in range(p):
            theta[j] -= nu * on_grid(scale * g[j], noise[j], grid)


@njit(cache=True)
def _safe_scale(g, clip):
    """The clip factor of a gradient whose square overflows; one that is not finite becomes zero."""
    largest = 0.0
    for j in range(len(g)):
        if not math.isfinite(g[j]):
            g[:] = 0.0
            return 0.0
        largest = max(largest, abs(g[j]))
    squares = 0.0
    for j in range(len(g)):
        squares += (g[j] / largest) ** 2
    return min(1.0, clip / math.sqrt(squares) / largest)


@njit(cache=True)
def _walk(
    kind, width, theta, X, y, offsets, indptr, indices, cumulative, uniform, holder, counts, cap, noise, grid,
    rng, clip, nu, l2,
):  # fmt: skip
    n = len(offsets) - 1
    g = np.empty(len(theta))
    for k in range(len(noise)):
        a, b = offsets[holder], offsets[holder + 1]
        limit = clip if counts[holder] < cap else 0.0
        counts[holder] += 1
        _step(kind, width, theta, X[a:b], y[a:b], limit, noise[k], grid, nu, l2, g)
        r = rng.random()
        if uniform:
            holder = int(r * n)
        else:
            low, high = indptr[holder], indptr[holder + 1] - 1
            while low < high:
                middle = (low + high) // 2
                if cumulative[middle] > r:
                    high = middle
                else:
                    low = middle + 1
            holder = indices[low]
    return holder
