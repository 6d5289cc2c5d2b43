r"""DP-CD: coordinate descent with noise and steps fitted to each coordinate.

.. math:: w_j \leftarrow \mathrm{prox}_{\gamma_j r_j}\Big(w_j - \gamma_j\Big(\frac1n\sum_i
          \mathrm{clip}(\partial_j f(w; d_i), C_j) + s_j\,\xi\Big)\Big),
          \qquad \gamma_j = c / M_j,\quad C_j = C\sqrt{M_j / \mathrm{tr} M},\quad s_j = z\,\frac{2 C_j}{n}

with j uniform. References: Mangold, Bellet, Salmon, Tommasi 2022, Algorithm 1
<https://arxiv.org/abs/2110.11688>; Bellet's 2024 talk on private optimisation.
Departures from the talk: the noise is N(0, s_j^2) with s_j proportional to C_j / n (the slide's power of L_j
is a misprint), the clip rule is read as above (the slide is garbled), the answer is the mean of the
iterates, and the noise comes from the exact Gaussian composition, sqrt(T) / z in GDP.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numba import njit

from sottovoce._validate import count, non_negative, positive
from sottovoce.algorithms.blocks import (
    Randomness,
    block_size,
    fingerprint,
    on_grid,
    randomness,
    run_blocks,
)
from sottovoce.algorithms.central import CentralPlan, Evaluate, recorder, records_of
from sottovoce.data.base import is_sparse
from sottovoce.errors import InvalidInput
from sottovoce.objectives import GLM
from sottovoce.privacy import Curve
from sottovoce.runners.base import Result, provenance_now

__all__ = ["DPCD", "coordinate_clips", "private_smoothness"]


@dataclass(frozen=True, repr=False)
class DPCD(CentralPlan):
    """Differentially private coordinate descent, central, at record level.

    Parameters
    ----------
    objective : a loss with a separable regulariser.
    records : the public number of records n, the divisor of every mean.
    steps : T, one coordinate each.
    clip : C, dealt out over the coordinates by C_j = C sqrt(M_j / tr M).
    noise_multiplier : z; coordinate j gets noise z times its sensitivity.
    smoothness : M_j when public; otherwise None, and they are released privately from ``bounds``.
    bounds : public B_j with |x_ij| <= B_j (values beyond are clipped in the estimate of M_j).
    smoothness_mu : GDP loss spent on releasing M_j.
    step_scale : c in gamma_j = c / M_j.
    period : restart from the running average every so many steps; None averages once at the end.
    adjacency : "replace-one" (n public, sensitivity 2 C_j / n) or "add-remove" (C_j / n).
    output : "mean" of the iterates (of the last period), or the "last" one.

    Guarantees
    ----------
    T Gaussian releases of multiplier z and, if M_j is private, one of smoothness_mu: together GDP with
    mu^2 = T / z^2 + smoothness_mu^2, tight for the worst case. Records that are not finite count as zeros.

    Examples
    --------
    >>> plan = DPCD(GLM("logistic"), records=1000, steps=100, clip=1.0, noise_multiplier=10.0,
    ...             smoothness=(0.25, 0.25))
    >>> plan.privacy().mu
    1.0
    """

    objective: GLM
    records: int
    steps: int
    clip: float
    noise_multiplier: float
    smoothness: tuple[float, ...] | None = None
    bounds: tuple[float, ...] | None = None
    smoothness_mu: float = 0.0
    step_scale: float = 1.0
    period: int | None = None
    adjacency: Literal["replace-one", "add-remove"] = "replace-one"
    output: Literal["mean", "last"] = "mean"

    name: str = field(default="dp-cd", init=False)

    def __post_init__(self) -> None:
        count(self.records, "records")
        count(self.steps, "steps")
        positive(self.step_scale, "step_scale")
        non_negative(self.noise_multiplier, "noise_multiplier")
        if not self.clip > 0 or (self.clip == math.inf and self.noise_multiplier > 0):
            raise InvalidInput(f"clip must be positive, and finite where noise is added, got {self.clip!r}.")
        if not self.objective.regulariser.separable:
            raise InvalidInput(
                "Coordinate descent needs a separable regulariser; take a box instead of the ball."
            )
        for name in ("smoothness", "bounds"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, tuple(positive(v, f"every entry of {name}") for v in value))
        if (self.smoothness is None) == (self.bounds is None):
            raise InvalidInput("Give either public smoothness constants or public feature bounds, not both.")
        if self.bounds is not None:
            positive(self.smoothness_mu, "smoothness_mu")

    @property
    def _moves(self) -> float:
        """How many clip lengths one record can move a sum."""
        return 2.0 if self.adjacency == "replace-one" else 1.0

    def curve(self) -> Curve:
        """Return the loss: T Gaussian releases, and that of M_j."""
        mu = 1 / self.noise_multiplier if self.noise_multiplier else math.inf
        curve = Curve.gaussian(mu, self.steps)
        return curve + Curve.gaussian(self.smoothness_mu) if self.bounds is not None else curve

    @classmethod
    def for_budget(
        cls, *, epsilon: float, delta: float, steps: int, smoothness_share: float = 0.1, **options: Any
    ) -> DPCD:
        """Return the plan that spends exactly the budget; ``smoothness_share`` of mu^2 goes to M_j.

        Examples
        --------
        >>> plan = DPCD.for_budget(epsilon=1.0, delta=1e-6, steps=50, objective=GLM(), records=1000,
        ...                        clip=1.0, bounds=(1.0, 1.0))
        >>> 0.99 < plan.privacy().epsilon(1e-6) <= 1.0
        True
        """
        from sottovoce.privacy import gaussian_mu

        mu = gaussian_mu(epsilon, delta)
        if options.get("bounds") is not None:
            options["smoothness_mu"] = mu * math.sqrt(smoothness_share)
            mu *= math.sqrt(1 - smoothness_share)
        z = math.sqrt(steps) / mu * (1 + 1e-12)  # rounding must not land above the budget
        return cls(steps=steps, noise_multiplier=z, **options)

    def run(
        self,
        data: Any,
        rng: Any,
        *,
        progress: bool = False,
        checkpoint: Any = None,
        evaluate: Evaluate | None = None,
        start: np.ndarray | None = None,
    ) -> Result:
        """Train on ``data`` (a Dataset or (X, y)) and return the released coefficients."""
        started = time.perf_counter()
        X, y = records_of(data, self.objective)
        if is_sparse(X):
            raise InvalidInput("DP-CD works on dense features; take DP-GCD for sparse data.")
        n, p = X.shape
        if self.adjacency == "replace-one" and n != self.records:
            raise InvalidInput(f"The plan is for {self.records} records (a public number), got {n}.")
        random = randomness(rng)
        M = self._released_smoothness(X, random)
        C = coordinate_clips(M, self.clip)
        # noise and grid in units of one coordinate's sensitivity, the same for every coordinate
        z = self.noise_multiplier
        unit = self._moves * C / self.records
        shrink = max(1 - 2 * random.slack(1, z), 0.0)
        r = self.objective.regulariser
        kind, width = self.objective.kind, self.objective.width
        Z = np.ascontiguousarray((y[:, None] * X if kind == 0 else X).T)

        def advance(state: dict[str, np.ndarray], block: int, size: int) -> dict[str, np.ndarray]:
            w, total = state["w"].copy(), state["total"].copy()
            u = Z.T @ w if kind == 0 else X @ w - y
            chosen = random.draws(0, block).integers(p, size=size)
            noise = random.gaussian(size, 1, block=block, std=z)[:, 0]
            first = block * self._block
            _block(
                kind, width, Z, u, w, total, chosen, noise, z > 0, random.grid(z), unit, self.step_scale / M,
                C * shrink, 1.0 / self.records, r.l1, r.l2, r.box or math.inf,
                first, self.period or self.steps, self.steps,
            )  # fmt: skip
            return {"w": w, "total": total}

        state = {"w": np.zeros(p) if start is None else np.array(start, dtype=float), "total": np.zeros(p)}
        config = dict(self.describe())
        history: list[dict[str, Any]] = []
        state = run_blocks(
            state,
            self.steps,
            self._block,
            advance,
            checkpoint=checkpoint,
            identity=fingerprint(config, X, y, M) if checkpoint else "",
            after_block=recorder(history, evaluate, progress, self.name, self.steps),
        )
        length = (self.steps - 1) % (self.period or self.steps) + 1
        w = state["w"] if self.output == "last" else state["total"] / length
        return Result(
            name=self.name,
            config=config,
            outputs={"coef": w, "last": state["w"], "mean": state["total"] / length, "smoothness": M},
            history=history,
            guarantees=[self.privacy().to_dict()],
            provenance=provenance_now(started, noise=random.said),
        )

    @property
    def _block(self) -> int:
        p = len(self.smoothness or self.bounds or ())
        return block_size(self.steps, minimum=8 * p)  # a block recomputes the margins: n p work

    def _released_smoothness(self, X: np.ndarray, random: Randomness) -> np.ndarray:
        given = self.smoothness if self.smoothness is not None else self.bounds
        if given is not None and len(given) != X.shape[1]:
            raise InvalidInput(f"The plan knows {len(given)} coordinates, the data have {X.shape[1]}.")
        if self.smoothness is not None:
            return np.array(self.smoothness)
        return private_smoothness(
            X, np.array(self.bounds), self.objective.curvature, self.records, self.smoothness_mu, random
        )


def coordinate_clips(M: np.ndarray, C: float) -> np.ndarray:
    """Return C_j = C sqrt(M_j / tr M), so that the squares add up to C^2.

    Examples
    --------
    >>> coordinate_clips(np.array([1.0, 3.0]), 2.0).tolist()
    [1.0, 1.7320508075688772]
    """
    return C * np.sqrt(M / M.sum()) if math.isfinite(C) else np.full(len(M), math.inf)


def private_smoothness(
    X: np.ndarray, bounds: np.ndarray, curvature: float, records: int, mu: float, random: Randomness
) -> np.ndarray:
    """Return M_j = curvature * B_j^2 * (noisy mean of min(x_ij^2 / B_j^2, 1)), floored at the noise.

    Guarantees
    ----------
    mu-GDP for one record, added, removed or replaced: every entry of the mean lies in [0, 1] and moves by
    at most 1/n, so the vector moves by at most sqrt(p)/n, and the noise has std sqrt(p) / (n mu).
    """
    p = len(bounds)
    std = math.sqrt(p) / (records * mu)
    ratio = np.clip(np.where(np.isfinite(X), X, 0.0), -bounds, bounds) / bounds
    share = (ratio * ratio).sum(axis=0) / records
    share = share * max(1 - 2 * random.slack(p, std) * records / math.sqrt(p), 0.0)
    noisy = random.noise.perturb(share[None], agents=[0], step=0, std=std, stream=1)[0]
    return curvature * bounds**2 * np.clip(noisy, std, 1.0)


@njit(cache=True)
def _block(
    kind,
    width,
    Z,
    u,
    w,
    total,
    chosen,
    noise,
    noisy,
    grid,
    unit,
    gamma,
    C,
    inverse,
    l1,
    l2,
    box,
    first,
    period,
    steps,
):
    delta = 0.0
    previous = 0
    for k in range(len(chosen)):
        t = first + k
        if t % period == 0 and t > 0:
            # restart from the average of the period that has just ended
            u += delta * Z[previous]
            delta = 0.0
            for i in range(len(w)):
                u += (total[i] / period - w[i]) * Z[i]
            w[:] = total / period
            total[:] = 0.0
        j = chosen[k]
        if kind == 0:
            G = _pass_logistic(u, delta, Z[previous], Z[j], C[j])
        elif kind == 1:
            G = _pass_squared(u, delta, Z[previous], Z[j], C[j])
        else:
            G = _pass_huber(u, delta, Z[previous], Z[j], C[j], width)
        G = G * inverse
        if noisy:  # also where the noise happens to be zero: what is not on the grid tells the sum itself
            G = on_grid(G / unit[j], noise[k], grid) * unit[j]
        v = w[j] - gamma[j] * G
        v = math.copysign(max(abs(v) - gamma[j] * l1, 0.0), v) / (1.0 + gamma[j] * l2)
        v = min(max(v, -box), box)
        delta = v - w[j]
        previous = j
        w[j] = v
        total += w
    u += delta * Z[previous]


# Sums may be reordered and divisions need no check for zero, so that loops become vector instructions;
# NaN and infinity keep their meaning.
_FAST = {"reassoc", "contract", "arcp", "nsz"}


@njit(cache=True, fastmath=_FAST, error_model="numpy")
def _pass_logistic(u, delta, before, column, C):
    """Move the margins by the last step and sum the clipped coordinate gradients of the next, in one pass.

    exp(v) is 2^n exp(r) with |r| <= ln(2)/2 and Taylor's polynomial of degree 11 for exp(r), to 1e-14; the
    exponent n enters through the bits of the number. All of it becomes vector instructions.
    """
    G = 0.0
    for i in range(len(u)):
        v = u[i] + delta * before[i]
        u[i] = v
        x = v if v < 700.0 else 700.0
        x = x if x > -700.0 else -700.0
        n = np.rint(x * 1.4426950408889634)
        r = x - n * 0.6931471805599453
        e = r * (1 / 39916800) + 1 / 3628800
        e = e * r + 1 / 362880
        e = e * r + 1 / 40320
        e = e * r + 1 / 5040
        e = e * r + 1 / 720
        e = e * r + 1 / 120
        e = e * r + 1 / 24
        e = e * r + 1 / 6
        e = e * r + 1 / 2
        e = (e * r + 1.0) * r + 1.0
        bits = np.float64(n + 6755399441055744.0).view(np.int64)  # 1.5 2^52: n stands in the low bits
        e = e * np.int64((bits + 1023) << 52).view(np.float64)
        c = -column[i] / (1.0 + e)
        c = C if c > C else c
        c = -C if c < -C else c
        G += c if c == c else 0.0
    return G


@njit(cache=True, fastmath=_FAST, error_model="numpy")
def _pass_squared(u, delta, before, column, C):
    G = 0.0
    for i in range(len(u)):
        v = u[i] + delta * before[i]
        u[i] = v
        c = v * column[i]
        c = C if c > C else c
        c = -C if c < -C else c
        G += c if c == c else 0.0
    return G


@njit(cache=True, fastmath=_FAST, error_model="numpy")
def _pass_huber(u, delta, before, column, C, width):
    G = 0.0
    for i in range(len(u)):
        v = u[i] + delta * before[i]
        u[i] = v
        v = width if v > width else v
        v = -width if v < -width else v
        c = v * column[i]
        c = C if c > C else c
        c = -C if c < -C else c
        G += c if c == c else 0.0
    return G
