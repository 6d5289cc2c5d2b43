"""What plans of many nodes share: a schedule of protocols, clipped gradients of the hosted agents, a run.

An algorithm here is the text (init, message, update, output) on rows of hosted agents. Noise, lots and
gradients of an agent depend on its own number, data and step only, never on who else is hosted, so a
stacked run, a cluster rank and a peer compute the same bytes.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sottovoce._validate import count, non_negative, positive, probability
from sottovoce.algorithms.blocks import fingerprint, load_checkpoint, save_checkpoint
from sottovoce.algorithms.central import Evaluate, progress_bar
from sottovoce.algorithms.plan import Plan
from sottovoce.data import Shards
from sottovoce.errors import InvalidInput
from sottovoce.objectives import GLM, clip_rows
from sottovoce.objectives.glm import user_gradients
from sottovoce.privacy import Adversary, Curve, Guarantee
from sottovoce.privacy.guarantees import EMPTY_PLACE, Adjacency
from sottovoce.privacy.noise import NoiseSource, as_noise
from sottovoce.protocols import Protocol
from sottovoce.runners import Algorithm, Result, run_stacked
from sottovoce.runners.base import provenance_now

__all__ = ["Gradients", "LearningPlan", "Schedule"]

Schedule = Protocol | Sequence[Protocol] | Callable[[int], Protocol]
_LOTS = 0x4C00  # noise streams that serve Poisson lots in simulations
_WIDTH = 128  # uniforms are drawn in rows of this length, so that hosting others changes nothing


@dataclass(frozen=True, repr=False)
class LearningPlan(Plan):
    """Fields and methods common to decentralized learning; see the plans built on it.

    Parameters
    ----------
    objective : what is minimised; every node's own loss is the mean over its records.
    protocol : the averaging of every step: one protocol, one per step, or a function of the step.
    steps, learning_rate : T and nu.
    clip : C. At user level a node's whole gradient is clipped, at record level each record's.
    noise_multiplier : z, noise over C: std z C on a node's gradient (user) or on its clipped sum (record).
    level : "user" (a node's whole data set is replaced) or "record" (one record added or removed; its place
        stays and counts as empty, since divisor and noise are relative to a node's number of records).
    sample_rate : Poisson rate of a node's lots; None takes all records in every step.

    Examples
    --------
    >>> import sottovoce as sv
    >>> issubclass(sv.algorithms.MuffliatoSGD, LearningPlan)
    True
    """

    objective: GLM
    protocol: Schedule
    steps: int
    learning_rate: float
    clip: float
    noise_multiplier: float
    level: Literal["user", "record"] = "user"
    sample_rate: float | None = None

    def __post_init__(self) -> None:
        count(self.steps, "steps")
        positive(self.learning_rate, "learning_rate")
        non_negative(self.noise_multiplier, "noise_multiplier")
        if not self.clip > 0 or (self.clip == math.inf and self.noise_multiplier > 0):
            raise InvalidInput(f"clip must be positive, finite where noise is added, got {self.clip!r}.")
        if self.level not in ("user", "record"):
            raise InvalidInput(f'level must be "user" or "record", got {self.level!r}.')
        if self.sample_rate is not None:
            probability(self.sample_rate, "sample_rate", zero=False)
        if isinstance(self.protocol, Sequence) and len(self.protocol) != self.steps:
            raise InvalidInput(f"The schedule holds {len(self.protocol)} protocols for {self.steps} steps.")
        if self.objective.l1 or self.objective.box is not None or self.objective.ball is not None:
            raise InvalidInput("Decentralized gradient methods take l2 only; use ADMM for l1, box or ball.")

    # ---- the schedule ------------------------------------------------------------------------------

    def schedule(self, k: int) -> Protocol:
        """Return the protocol of step ``k``."""
        if isinstance(self.protocol, Protocol):
            return self.protocol
        if isinstance(self.protocol, Sequence):
            return self.protocol[k]
        return self.protocol(k)

    @property
    def n(self) -> int:
        """Number of nodes."""
        return self.schedule(0).n

    def protocols(self) -> list[Protocol]:
        """Return the protocols of all steps."""
        return [self.schedule(k) for k in range(self.steps)]

    # ---- what it costs -----------------------------------------------------------------------------

    @property
    def adjacency(self) -> Adjacency:
        """What neighbouring data sets differ in."""
        return "user" if self.level == "user" else "add-remove"

    @property
    def assumed(self) -> tuple[str, ...]:
        """What every statement of this plan rests on: divisor and noise follow a node's number of records."""
        return () if self.level == "user" else (EMPTY_PLACE,)

    def step_curve(self, share: float = 1.0, steps: int = 1) -> Curve:
        """Return the loss of ``steps`` releases of which an observer learns the share h = ``share``."""
        if share <= 0:
            return Curve.none()
        z = self.noise_multiplier / math.sqrt(share)
        if self.level == "user":
            return Curve.gaussian(2 / z if z else math.inf, steps)
        if self.sample_rate is None:
            return Curve.gaussian(1 / z if z else math.inf, steps)
        return Curve.sampled_gaussian(self.sample_rate, z, steps)

    def local(self) -> Guarantee:
        """Return the local statement: everybody sees every message."""
        curve = self.step_curve(1.0, self.steps)
        return Guarantee(Adversary("local"), self.adjacency, "ldp", curve, self.assumed)

    def cost(self, dim: int = 1, bytes_per_number: int = 8) -> Mapping[str, Any]:
        """Return rounds, rows sent in all and per node, and bytes for rows of ``dim`` numbers."""
        if isinstance(self.protocol, Protocol):
            rounds, messages = self.protocol.rounds * self.steps, self.protocol.messages * self.steps
        else:
            every = self.protocols()
            rounds, messages = sum(p.rounds for p in every), sum(p.messages for p in every)
        return {
            "rounds": rounds,
            "messages": messages,
            "messages_per_node": messages / self.n,
            "bytes": messages * dim * bytes_per_number,
        }

    def describe(self) -> Mapping[str, Any]:
        """Return the plan as plain values."""
        first = self.schedule(0)
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("protocol", "name")}
        plain["objective"] = {f.name: getattr(self.objective, f.name) for f in fields(self.objective)}
        fixed = isinstance(self.protocol, Protocol)
        return {
            "algorithm": self.name,
            "n": self.n,
            "protocol": first.name + ("" if fixed else " (drawn afresh for every step)"),
            "rounds_per_step": first.rounds,
            **plain,
        }

    # ---- how it runs -------------------------------------------------------------------------------

    def check_sizes(self, shards: Shards, agents: Sequence[int]) -> None:
        """Refuse data that the statements do not cover; here they cover any numbers of records."""

    @abstractmethod
    def algorithm(self, shards: Shards, agents: Sequence[int], noise: NoiseSource) -> Algorithm:
        """Return the algorithm's text for the agents hosted here, whose shards are given in that order."""

    def run(
        self,
        data: Shards,
        rng: Any,
        *,
        progress: bool = False,
        checkpoint: str | Path | None = None,
        evaluate: Evaluate | None = None,
        every: int | None = None,
    ) -> Result:
        """Train in this process on one shard per node; ``evaluate(rows)`` fills the history.

        Every ``every`` steps (a fiftieth of the run by default) the history is written and, if asked for,
        a checkpoint, from which an interrupted run goes on to the same result.
        """
        started = time.perf_counter()
        if data.n != self.n:
            raise InvalidInput(f"The plan is for {self.n} nodes, the data have {data.n} users.")
        noise = as_noise(rng)
        X, y = self.objective.check(data.X, data.y)
        text = self.algorithm(Shards(X, y, data.offsets), range(self.n), noise)
        config = dict(self.describe())
        identity = fingerprint({**config, "noise": repr(noise)}, X, y) if checkpoint else ""
        found = None if checkpoint is None else load_checkpoint(checkpoint, identity)
        start, state = (0, None) if found is None else (found[0], _unpack(text.init(), found[1]))
        every = every or max(1, self.steps // 50)
        bar = progress_bar(self.name, self.steps) if progress else None
        history: list[dict[str, Any]] = []

        def after(k: int, now: Any) -> None:
            if (k + 1) % every == 0 or k + 1 == self.steps:
                if evaluate is not None:
                    history.append({"step": k + 1, **evaluate(text.output(now))})
                if checkpoint is not None:
                    save_checkpoint(checkpoint, identity, k + 1, _pack(now))
            if bar is not None:
                bar(k + 1)

        state = run_stacked(
            text, self.schedule, self.steps, state=state, start=start, noise=noise, after_step=after
        )
        rows = text.output(state)
        said = "protective" if noise.protective else "simulation: reproducible, not protective"
        return Result(
            name=self.name,
            config=config,
            outputs={"rows": rows, "coef": rows.mean(axis=0)},
            metrics={"disagreement": float(np.mean((rows - rows.mean(axis=0)) ** 2))},
            history=history,
            guarantees=[g.to_dict() for g in self.guarantees()],
            provenance=provenance_now(started, noise=said),
        )


class Gradients:
    """The clipped gradients of the hosted agents, and the noise they need.

    Examples
    --------
    >>> from sottovoce.privacy.noise import SimulatedNoise
    >>> shards = Shards(np.array([[3.0]]), np.array([0.0]), np.array([0, 1]))
    >>> source = Gradients(GLM("squared"), shards, [0], SimulatedNoise(0), clip=1.0, noise_multiplier=0.0)
    >>> source(np.array([[1.0]]), 0).tolist()
    [[1.0]]
    """

    def __init__(
        self,
        objective: GLM,
        shards: Shards,
        agents: Sequence[int],
        noise: NoiseSource,
        *,
        clip: float,
        noise_multiplier: float,
        level: str = "user",
        sample_rate: float | None = None,
        scale: float = 1.0,
    ) -> None:
        self.objective, self.shards, self.noise = objective, shards, noise
        self.agents = np.asarray(list(agents))
        self.user_level, self.sample_rate = level == "user", sample_rate
        rate = 1.0 if sample_rate is None else sample_rate
        self.divisor = rate * shards.sizes.astype(float)
        # what one clipped unit weighs in the gradient: 1 at user level, 1/lot at record level
        unit = np.ones(shards.n) if self.user_level else 1.0 / self.divisor
        self.std = noise_multiplier * clip * unit if noise_multiplier else np.zeros(shards.n)
        slack = 0.0
        if noise_multiplier:
            slack = max(
                noise.slack(shards.dim, scale * s) / (scale * u)
                for s, u in {*zip(self.std, unit, strict=True)}
            )
        # both of two neighbouring releases are rounded: 2 slack beside 2C (user) or beside C (record)
        self.clip = clip - (slack if self.user_level else 2 * slack)
        if self.clip <= 0:
            raise InvalidInput(f"The rounding slack exceeds the clip {clip}; clip less or add less noise.")

    def __call__(self, theta: np.ndarray, k: int) -> np.ndarray:
        """Return one gradient row per hosted agent at its own row of ``theta``, clipped, without noise."""
        model, shards = self.objective, self.shards
        clip = math.inf if self.user_level else self.clip
        g = user_gradients(
            model.kind,
            model.width,
            theta,
            shards.X,
            shards.y,
            shards.offsets,
            self._lot(k),
            self.divisor,
            clip,
        )
        if self.user_level:
            return clip_rows(g + model.l2 * theta, self.clip)
        return g

    def perturb(self, values: np.ndarray, k: int, scale: float, stream: int = 0) -> np.ndarray:
        """Return ``values`` with this plan's noise times ``scale``."""
        if not self.std.any():
            return values
        return self.noise.perturb(values, agents=self.agents, step=k, std=scale * self.std, stream=stream)

    def _lot(self, k: int) -> np.ndarray:
        sizes = self.shards.sizes
        if self.sample_rate is None or self.sample_rate >= 1:
            return np.ones(len(self.shards.y), dtype=bool)
        if self.noise.protective:
            return np.random.Generator(np.random.Philox()).random(len(self.shards.y)) < self.sample_rate
        from scipy.special import ndtri

        threshold = ndtri(self.sample_rate)
        rows = np.zeros((len(sizes), _WIDTH))
        chunks = [
            self.noise.perturb(rows, agents=self.agents, step=k, std=1.0, stream=_LOTS + c)
            for c in range(-(-int(sizes.max()) // _WIDTH))
        ]
        drawn = np.hstack(chunks) < threshold
        return drawn[np.arange(drawn.shape[1]) < sizes[:, None]]


def _pack(state: Any) -> dict[str, np.ndarray]:
    return dict(state._asdict()) if hasattr(state, "_asdict") else {"state": np.asarray(state)}


def _unpack(like: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    return type(like)(**arrays) if hasattr(like, "_asdict") else arrays["state"]
