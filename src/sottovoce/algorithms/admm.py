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
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numba import njit

from sottovoce._validate import count, non_negative, positive, probability
from sottovoce.algorithms.blocks import fingerprint, on_grid, randomness, run_blocks
from sottovoce.algorithms.central import CentralPlan, Evaluate, recorder, records_of
from sottovoce.algorithms.plan import Plan, View, known_view
from sottovoce.data import Shards
from sottovoce.errors import InvalidInput
from sottovoce.objectives import GLM, clip_rows
from sottovoce.objectives.glm import slope
from sottovoce.objectives.prox import logistic_margin
from sottovoce.privacy import Adversary, Curve, Guarantee
from sottovoce.privacy.guarantees import Adjacency
from sottovoce.privacy.noise import NoiseSource
from sottovoce.runners.base import Result, provenance_now

__all__ = ["CentralADMM", "FederatedADMM", "TokenADMM", "local_step"]


@dataclass(frozen=True, repr=False)
class CentralADMM(CentralPlan):
    """Private ADMM at a trusted curator, at record level.

    Parameters
    ----------
    objective : loss and regulariser.
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
    has no guarantee: its statement is the printed 8 alpha K C^2 / (n sigma)^2, labelled "published".

    Examples
    --------
    >>> plan = CentralADMM(GLM("squared"), records=100, steps=25, gamma=1.0, clip=1.0, noise_std=0.1)
    >>> round(plan.privacy().mu, 6), plan.privacy().label
    (1.0, 'exact')
    """

    objective: GLM
    records: int
    steps: int
    gamma: float
    clip: float
    noise_std: float
    relaxation: float = 0.5
    noise_in: Literal["mean", "increment", "state"] = "mean"
    adjacency: Adjacency = "replace-one"
    name: str = field(default="admm", init=False)

    def __post_init__(self) -> None:
        _check(self)
        count(self.records, "records")

    def curve(self) -> Curve:
        """Return the loss: K Gaussian releases of the mean."""
        mu = self._moves * self.clip / (self.records * self.noise_std) if self.noise_std else math.inf
        return Curve.gaussian(mu, self.steps)

    @property
    def _moves(self) -> float:
        """How many clip lengths over n one record can move a release."""
        return 2.0 if self.noise_in == "mean" else 4.0

    def privacy(self, view: View = "central", **who: Any) -> Guarantee:
        """Return what the released z cost one record; "published" for noise in the state."""
        found = super().privacy(view, **who)
        if self.noise_in == "state":
            said = ("formula of Cyffers, Bellet, Basu 2023 with one common noise vector",)
            return replace(found, label="published", assumptions=(*found.assumptions, *said))
        return found

    @classmethod
    def for_budget(cls, *, epsilon: float, delta: float, steps: int, **options: Any) -> CentralADMM:
        """Return the plan that spends exactly the budget."""
        from sottovoce.privacy import gaussian_mu

        trial = cls(steps=steps, noise_std=1.0, **options)
        trial.privacy().require(1e300, delta)  # a published formula may not accept a budget
        std = trial.curve().mu / gaussian_mu(epsilon, delta)
        return replace(trial, noise_std=std * (1 + 1e-12))

    def run(
        self,
        data: Any,
        rng: Any,
        *,
        progress: bool = False,
        checkpoint: Any = None,
        evaluate: Evaluate | None = None,
    ) -> Result:
        """Train on ``data`` (a Dataset or (X, y)) and return z."""
        started = time.perf_counter()
        X, y = records_of(data, self.objective)
        n, p = X.shape
        if n != self.records:
            raise InvalidInput(f"The plan is for {self.records} records (a public number), got {n}.")
        random, model, lam = randomness(rng), self.objective, self.relaxation
        clip = max(self.clip - random.slack(p, self.noise_std) * 2 * n / self._moves, 0.0)
        grid = random.grid(self.noise_std)

        def advance(state: dict[str, np.ndarray], k: int, size: int) -> dict[str, np.ndarray]:
            u, zh, z = state["u"], state["zh"], state["w"]
            free = math.inf if self.noise_in == "mean" else clip
            moves = _moves(model.kind, model.width, X, y, u, z, self.gamma, free)
            u = u + 2.0 * lam * moves
            eta = random.gaussian(1, p, block=k, std=self.noise_std)[0]
            if self.noise_in == "mean":
                zh = z + on_grid(clip_rows(u - z, clip).mean(axis=0), eta, grid)
            else:
                mean = 2.0 * moves.mean(axis=0)
                noisy = on_grid(mean, eta, grid)
                zh = zh + lam * noisy
                if self.noise_in == "state":
                    u = u + lam * (noisy - mean)
            return {"u": u, "zh": zh, "w": model.regulariser.prox(zh, self.gamma)}

        state = {"u": np.zeros((n, p)), "zh": np.zeros(p), "w": np.zeros(p)}
        config = dict(self.describe())
        history: list[dict[str, Any]] = []
        state = run_blocks(
            state,
            self.steps,
            1,
            advance,
            checkpoint=checkpoint,
            identity=fingerprint(config, X, y) if checkpoint else "",
            every=max(1, self.steps // 20),
            after_block=recorder(history, evaluate, progress, self.name, self.steps),
        )
        return Result(
            name=self.name,
            config=config,
            outputs={"coef": state["w"], "mean": state["zh"]},
            history=history,
            guarantees=[self.privacy().to_dict()],
            provenance=provenance_now(started, noise=random.said),
        )


@dataclass(frozen=True, repr=False)
class FederatedADMM(Plan):
    """Private ADMM between a server and sampled clients, at user level.

    Parameters
    ----------
    objective : loss and regulariser; a client's f_i is the mean loss of its records.
    users : n.
    steps : K rounds.
    sample_rate : q; every client takes part in a round with this probability, independently.
    gamma, relaxation, clip, noise_std : as in `CentralADMM`, the noise being each client's own.
    secure_sum : whether the server (and everybody) sees only the sum of a round's messages.

    Guarantees
    ----------
    "local": every message seen, a client that takes part in all K rounds: mu^2 = K (4 C / sigma)^2; with
    ``participations`` known, K_i in place of K. "central" (secure sum only): K sampled Gaussian rounds, a
    client's data being replaced. Every client adds noise in every round, sampled or not, so the sum always
    holds n shares (colluders' shares are not counted when they are named). A client's dual depends on the
    rounds it took part in, which nobody sees. Sampling amplifies all the same: whatever the dual is in
    either world, a round is dominated by the same pair, and a mixture over unseen states, weighted anew
    after each output, is no more telling than its worst pair of states (joint convexity).

    Examples
    --------
    >>> plan = FederatedADMM(GLM("squared"), users=50, steps=20, sample_rate=0.2, gamma=1.0, clip=1.0,
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
    clip: float
    noise_std: float
    relaxation: float = 0.5
    secure_sum: bool = True
    name: str = field(default="admm-federated", init=False)

    def __post_init__(self) -> None:
        _check(self)
        count(self.users, "users")
        probability(self.sample_rate, "sample_rate", zero=False)

    def privacy(
        self,
        view: View = "local",
        *,
        observer: int | None = None,
        user: int | None = None,
        colluders: Iterable[int] = (),
        participations: int | None = None,
    ) -> Guarantee:
        """Return the local statement, or with a secure sum the central one."""
        if known_view(view) == "local":
            k = self.steps if participations is None else count(participations, "participations", minimum=0)
            mu = 4 * self.clip / self.noise_std if self.noise_std else math.inf
            said = () if participations is None else (f"the client takes part in {k} rounds",)
            return Guarantee(Adversary("local", user=user), "user", "ldp", Curve.gaussian(mu, k), said)
        if view == "central" and self.secure_sum:
            present = self.users - len(set(colluders))
            # a message is 2 lambda Delta, so the clip norm of the sum is 2 lambda C
            z = self.noise_std * math.sqrt(present) / (2 * self.clip) if self.noise_std else 0.0
            curve = Curve.sampled_gaussian(self.sample_rate, z, self.steps, adjacency="replace-one")
            assumptions = (
                "a secure sum hides single messages",
                f"{present} clients add their noise in every round, sampled or not",
            )
            return Guarantee(Adversary("central"), "user", "exact", curve, assumptions)
        raise InvalidInput(
            f'Federated ADMM has the view "local" and, with secure_sum=True, "central"; got {view!r}.'
        )

    def guarantees(self) -> list[Guarantee]:
        """Return the local statement and, with a secure sum, the central one."""
        return [self.privacy("local"), *([self.privacy("central")] if self.secure_sum else [])]

    def cost(self, dim: int = 1, bytes_per_number: int = 8) -> Mapping[str, Any]:
        """Return rounds and rows sent: model down, noisy move up, for every client and round."""
        messages = 2 * self.users * self.steps
        return {
            "rounds": 2 * self.steps,
            "messages": messages,
            "messages_per_node": messages / self.users,
            "bytes": messages * dim * bytes_per_number,
        }

    def describe(self) -> Mapping[str, Any]:
        """Return the plan as plain values."""
        return _plain(self)

    def run(
        self,
        data: Shards,
        rng: Any,
        *,
        progress: bool = False,
        checkpoint: Any = None,
        evaluate: Evaluate | None = None,
    ) -> Result:
        """Train on the users' shards and return z."""
        started = time.perf_counter()
        shards = _shards(self.objective, data, self.users)
        n, p = self.users, shards.dim
        random, model, lam = randomness(rng), self.objective, self.relaxation
        clip = max(self.clip - random.slack(p, self.noise_std) / 2, 0.0)

        def advance(state: dict[str, np.ndarray], k: int, size: int) -> dict[str, np.ndarray]:
            u, z = state["u"].copy(), state["w"]
            chosen = random.draws(0, k).random(n) < self.sample_rate
            moves = _client_moves(
                model.kind, model.width, shards.X, shards.y, shards.offsets, u, z, self.gamma, clip, chosen
            )
            rows = 2.0 * moves
            noisy = rows.copy()
            if self.noise_std > 0:
                # with a secure sum all clients add noise; without, those who send
                senders = np.arange(n) if self.secure_sum else np.flatnonzero(chosen)
                noisy[senders] = random.noise.perturb(
                    rows[senders], agents=senders, step=k, std=self.noise_std
                )
            # messages that everybody sees may stay in u_i, and then their noise is corrected later
            u += lam * (rows if self.secure_sum else noisy)
            zh = state["zh"] + (lam / n) * noisy.sum(axis=0)
            taken = state["taken"] + chosen
            return {"u": u, "zh": zh, "w": model.regulariser.prox(zh, self.gamma), "taken": taken}

        state = {"u": np.zeros((n, p)), "zh": np.zeros(p), "w": np.zeros(p), "taken": np.zeros(n, int)}
        config = dict(self.describe())
        history: list[dict[str, Any]] = []
        state = run_blocks(
            state,
            self.steps,
            1,
            advance,
            checkpoint=checkpoint,
            identity=fingerprint(config, shards.X, shards.y) if checkpoint else "",
            every=max(1, self.steps // 20),
            after_block=recorder(history, evaluate, progress, self.name, self.steps),
        )
        return Result(
            name=self.name,
            config=config,
            outputs={"coef": state["w"], "mean": state["zh"], "participations": state["taken"]},
            history=history,
            guarantees=[g.to_dict() for g in self.guarantees()],
            provenance=provenance_now(started, noise=random.said),
        )

    # ---- one side at a time: what a federation's client and server call ---------------------------------

    def client(
        self,
        X: np.ndarray,
        y: np.ndarray,
        u: np.ndarray,
        z: np.ndarray,
        *,
        agent: int,
        step: int,
        noise: NoiseSource,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return (the row client ``agent`` sends, its new dual) of one round, as `run` computes them.

        Examples
        --------
        >>> from sottovoce.privacy.noise import SimulatedNoise
        >>> plan = FederatedADMM(GLM("squared"), users=1, steps=1, sample_rate=1.0, gamma=1.0, clip=9.0,
        ...                      noise_std=0.0, secure_sum=False)
        >>> row, u = plan.client(np.ones((1, 1)), np.array([2.0]), np.zeros(1), np.zeros(1), agent=0, step=0,
        ...                      noise=SimulatedNoise(0))
        >>> row.tolist(), u.tolist()
        ([2.0], [1.0])
        """
        slack = noise.slack(len(u), self.noise_std) if self.noise_std else 0.0
        clip = max(self.clip - slack / 2, 0.0)
        model = self.objective
        row = 2.0 * client_move(model.kind, model.width, X, y, u, z, self.gamma, clip)
        sent = row
        if self.noise_std:
            sent = noise.perturb(row[None], agents=[agent], step=step, std=self.noise_std)[0]
        return sent, u + self.relaxation * (row if self.secure_sum else sent)

    def server(self, zh: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the mean of the duals after one round; ``rows``: one per client, zero if not asked."""
        return zh + (self.relaxation / self.users) * rows.sum(axis=0)


@dataclass(frozen=True, repr=False)
class TokenADMM(Plan):
    """Private ADMM without a server: a token carries z^ from user to user, uniformly, at user level.

    Parameters
    ----------
    objective, users, gamma, relaxation, clip, noise_std : as in `FederatedADMM`.
    steps : number of hops.
    cap : contributions per user; beyond it a user adds noise only. None leaves them unbounded, and the
        local statement then counts all hops.

    Guarantees
    ----------
    "local": ``cap`` contributions, mu^2 = cap (4 C / sigma)^2. The network bound of the paper is available as
    "published": the token's map is not a contraction for flat losses, so amplification by iteration does
    not apply as is, and the bound never accepts a budget.

    Examples
    --------
    >>> plan = TokenADMM(GLM("squared"), users=50, steps=500, cap=20, gamma=1.0, clip=1.0, noise_std=8.0)
    >>> plan.privacy("local").label, plan.privacy("network").label
    ('ldp', 'published')
    """

    objective: GLM
    users: int
    steps: int
    gamma: float
    clip: float
    noise_std: float
    relaxation: float = 0.5
    cap: int | None = None
    name: str = field(default="admm-token", init=False)

    def __post_init__(self) -> None:
        _check(self)
        count(self.users, "users", minimum=2)
        if self.cap is not None:
            count(self.cap, "cap")

    def privacy(
        self,
        view: View = "local",
        *,
        observer: int | None = None,
        user: int | None = None,
        colluders: Iterable[int] = (),
    ) -> Guarantee:
        """Return the local statement, or the published network formula."""
        times = self.steps if self.cap is None else self.cap
        mu = 4 * self.clip / self.noise_std if self.noise_std else math.inf
        if known_view(view) == "local":
            return Guarantee(Adversary("local"), "user", "ldp", Curve.gaussian(mu, times))
        if view not in ("network", "pairwise") or tuple(colluders):
            raise InvalidInput(f'Token ADMM has the views "local" and "network", got {view!r}.')
        n = self.users
        rate = mu**2 / 2 * times * math.log(n) / n
        said = (
            "formula of Cyffers, Bellet, Basu 2023 for complete graphs",
            f"sigma > {2 * self.clip:g} sqrt(alpha (alpha - 1))",
        )
        curve = Curve.gaussian(math.sqrt(2 * rate))
        return Guarantee(Adversary("network"), "user", "published", curve, said)

    def guarantees(self) -> list[Guarantee]:
        """Return the local statement and the published network formula."""
        return [self.privacy("local"), self.privacy("network")]

    def cost(self, dim: int = 1, bytes_per_number: int = 8) -> Mapping[str, Any]:
        """Return one row per hop."""
        return {
            "rounds": self.steps,
            "messages": self.steps,
            "messages_per_node": self.steps / self.users,
            "bytes": self.steps * dim * bytes_per_number,
        }

    def describe(self) -> Mapping[str, Any]:
        """Return the plan as plain values."""
        return _plain(self)

    def run(
        self,
        data: Shards,
        rng: Any,
        *,
        progress: bool = False,
        checkpoint: Any = None,
        evaluate: Evaluate | None = None,
    ) -> Result:
        """Carry the token ``steps`` hops over the users' shards and return z."""
        started = time.perf_counter()
        shards = _shards(self.objective, data, self.users)
        n, p = self.users, shards.dim
        random, model = randomness(rng), self.objective
        clip = max(self.clip - random.slack(p, self.noise_std) / 2, 0.0)
        cap = self.steps if self.cap is None else self.cap

        def advance(state: dict[str, np.ndarray], block: int, size: int) -> dict[str, np.ndarray]:
            u, zh, taken = state["u"].copy(), state["zh"].copy(), state["taken"].copy()
            holders = random.draws(0, block).integers(n, size=size)
            noise = random.gaussian(size, p, block=block, std=self.noise_std)
            for k, i in enumerate(holders):
                X, y = shards.user(i)
                move, u[i] = local_step(
                    model, X, y, u[i], zh, gamma=self.gamma, relaxation=self.relaxation,
                    clip=clip if taken[i] < cap else 0.0,
                    noise=noise[k], grid=random.grid(self.noise_std),
                )  # fmt: skip
                zh += move / n
                taken[i] += 1
            return {"u": u, "zh": zh, "taken": taken, "w": model.regulariser.prox(zh, self.gamma)}

        state = {"u": np.zeros((n, p)), "zh": np.zeros(p), "w": np.zeros(p), "taken": np.zeros(n, int)}
        config = dict(self.describe())
        history: list[dict[str, Any]] = []
        state = run_blocks(
            state,
            self.steps,
            max(1, self.steps // 50),
            advance,
            checkpoint=checkpoint,
            identity=fingerprint(config, shards.X, shards.y) if checkpoint else "",
            after_block=recorder(history, evaluate, progress, self.name, self.steps),
        )
        return Result(
            name=self.name,
            config=config,
            outputs={"coef": state["w"], "mean": state["zh"], "participations": state["taken"]},
            history=history,
            guarantees=[g.to_dict() for g in self.guarantees()],
            provenance=provenance_now(started, noise=random.said),
        )


def local_step(
    model: GLM,
    X: np.ndarray,
    y: np.ndarray,
    u: np.ndarray,
    zh: np.ndarray,
    *,
    gamma: float,
    relaxation: float,
    clip: float,
    noise: np.ndarray,
    grid: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (what to add n times to z^, the new u_i) of one hop: the step a peer calls.

    Examples
    --------
    >>> move, u = local_step(GLM("squared"), np.ones((1, 1)), np.array([2.0]), np.zeros(1), np.zeros(1),
    ...                      gamma=1.0, relaxation=0.5, clip=10.0, noise=np.zeros(1))
    >>> move.tolist(), u.tolist()
    ([1.0], [1.0])
    """
    z = model.regulariser.prox(zh, gamma)
    move = client_move(model.kind, model.width, X, y, u, z, gamma, clip)
    released = relaxation * on_grid(2.0 * move, noise, grid)
    return released, u + released


def _check(plan: Any) -> None:
    count(plan.steps, "steps")
    positive(plan.gamma, "gamma")
    non_negative(plan.noise_std, "noise_std")
    probability(plan.relaxation, "relaxation", zero=False)
    if not plan.clip > 0 or (plan.clip == math.inf and plan.noise_std > 0):
        raise InvalidInput(f"clip must be positive, finite where noise is added, got {plan.clip!r}.")


def _plain(plan: Any) -> dict[str, Any]:
    fields = asdict(plan)
    return {"algorithm": fields.pop("name"), **fields}


def _shards(objective: GLM, data: Shards, users: int) -> Shards:
    if data.n != users:
        raise InvalidInput(f"The plan is for {users} users, the data have {data.n}.")
    X, y = objective.check(data.X, data.y)
    return Shards(X, y, data.offsets)


# --- kernels ----------------------------------------------------------------------------------------


@njit(cache=True)
def _moves(kind, width, X, y, u, z, gamma, clip):
    """clip_C(prox_{gamma f_i}(2z - u_i) - z) for every record."""
    n, p = X.shape
    out = np.empty((n, p))
    for i in range(n):
        out[i] = client_move(kind, width, X[i : i + 1], y[i : i + 1], u[i], z, gamma, clip)
    return out


@njit(cache=True)
def _client_moves(kind, width, X, y, offsets, u, z, gamma, clip, chosen):
    n, p = u.shape
    out = np.zeros((n, p))
    for i in range(n):
        if chosen[i]:
            a, b = offsets[i], offsets[i + 1]
            out[i] = client_move(kind, width, X[a:b], y[a:b], u[i], z, gamma, clip)
    return out


@njit(cache=True)
def client_move(kind, width, X, y, u, z, gamma, clip):
    """clip_C(prox_{gamma f}(2z - u) - z), f the mean loss of the rows; not finite counts as zero."""
    v = 2.0 * z - u
    move = prox_rows(kind, width, X, y, v, gamma) - z
    largest = 0.0
    finite = True
    for j in range(len(move)):
        finite = finite and math.isfinite(move[j])
        largest = max(largest, abs(move[j]))
    if not finite:
        return np.zeros(len(move))
    if largest == 0.0 or clip == math.inf:
        return move
    squares = 0.0
    for j in range(len(move)):
        squares += (move[j] / largest) ** 2
    length = math.sqrt(squares)
    if largest * length <= clip:
        return move
    return (move / largest) * (clip / length)


@njit(cache=True)
def prox_rows(kind, width, X, y, v, gamma):
    """prox_{gamma f}(v): a scalar equation for one row, damped Newton for several."""
    m, p = X.shape
    if m == 1:
        x = X[0]
        a = 0.0
        b = 0.0
        for j in range(p):
            a += x[j] * v[j]
            b += x[j] * x[j]
        weight = gamma * b
        if kind == 0:
            margin = logistic_margin(y[0] * a, weight) * y[0]
        else:
            margin = (a + weight * y[0]) / (1.0 + weight)
            if kind == 2 and abs(margin - y[0]) > width:
                margin = a - weight * math.copysign(width, a - y[0])
        return v - gamma * slope(kind, width, margin, y[0]) * x
    w = v.copy()
    H = np.empty((p, p))
    for _ in range(50):
        g = w - v
        H[:] = 0.0
        for j in range(p):
            H[j, j] = 1.0
        for i in range(m):
            a = 0.0
            for j in range(p):
                a += X[i, j] * w[j]
            s = slope(kind, width, a, y[i]) * gamma / m
            c = gamma / m
            if kind == 0:
                q = abs(slope(kind, width, a, y[i]))
                c *= q * (1.0 - q)
            elif kind == 2 and abs(a - y[i]) > width:
                c = 0.0
            for j in range(p):
                g[j] += s * X[i, j]
                for l in range(p):
                    H[j, l] += c * X[i, j] * X[i, l]
        if not math.isfinite(H.sum() + g.sum()):
            return np.full(p, np.nan)  # a record overflows; the caller counts it as no move
        step = np.linalg.solve(H, g)
        largest = 0.0
        for j in range(p):
            largest = max(largest, abs(step[j]))
        before = _envelope(kind, width, X, y, v, gamma, w)
        scale = 1.0
        trial = w - step
        while scale > 1e-10 and not _envelope(kind, width, X, y, v, gamma, trial) <= before + 1e-15 * abs(
            before
        ):
            scale *= 0.5
            trial = w - scale * step
        w = trial
        if not largest > 1e-13 * (1.0 + np.abs(w).max()):
            break
    return w


@njit(cache=True)
def _envelope(kind, width, X, y, v, gamma, w):
    """gamma * mean loss + |w - v|^2 / 2, what the prox minimises."""
    m, p = X.shape
    total = 0.0
    for i in range(m):
        a = 0.0
        for j in range(p):
            a += X[i, j] * w[j]
        if kind == 0:
            t = y[i] * a
            total += math.log1p(math.exp(-t)) if t > 0 else -t + math.log1p(math.exp(t))
        else:
            r = abs(a - y[i])
            total += 0.5 * r * r if kind == 1 or r <= width else width * (r - 0.5 * width)
    value = gamma * total / m
    for j in range(p):
        value += 0.5 * (w[j] - v[j]) ** 2
    return value
