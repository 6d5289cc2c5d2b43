"""Records of several agents, Poisson lots, and the noisy gradient that every network algorithm uses.

.. math:: \\tilde G_i(\\theta) = \\frac{1}{L}\\Big(\\sum_{d \\in lot_i}
          \\mathrm{clip}_C(\\nabla \\ell(\\theta; d)) + z_i C\\, \\xi\\Big),
          \\qquad lot_i \\sim \\mathrm{Poisson}(q_i)

The divisor L is fixed and public, whatever the lot turned out to be: dividing by its real size would tell it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sottovoce import _validate
from sottovoce.errors import DataError, InvalidInput
from sottovoce.objectives.nets import NetObjective

__all__ = ["AgentData", "Lots", "NoisyGradients"]

Level = Literal["add-remove", "replace-one", "user"]


class AgentData:
    """The records of every agent, laid end to end, and a public test set.

    Parameters
    ----------
    inputs, targets : records; the first axis is the record.
    parts : one array of row numbers per agent; an agent may not share a record with another.
    test : public ``(inputs, targets)`` for evaluation, or None.
    classes : number of classes, where targets are labels; they are checked here, once.

    Examples
    --------
    >>> data = AgentData(np.zeros((4, 2), np.float32), [0, 1, 0, 1], [[0, 1, 2], [3]], classes=2)
    >>> data.agents, data.sizes.tolist()
    (2, [3, 1])
    """

    def __init__(
        self,
        inputs: Any,
        targets: Any,
        parts: Sequence[Any],
        *,
        test: tuple[Any, Any] | None = None,
        classes: int | None = None,
    ) -> None:
        rows = [np.asarray(part, dtype=np.int64) for part in parts]
        self.sizes = np.array([len(part) for part in rows])
        if len(rows) == 0 or (self.sizes == 0).any():
            raise DataError("every agent needs at least one record; leave the empty ones out.")
        order = np.concatenate(rows)
        if len(np.unique(order)) != len(order):
            raise DataError("a record is given to two agents; the parts must be disjoint.")
        labels = np.asarray(targets)
        for where, y in (("record", labels), ("test record", None if test is None else np.asarray(test[1]))):
            if y is not None and classes is not None and ((y < 0) | (y >= classes)).any():
                i = int(np.flatnonzero((y < 0) | (y >= classes))[0])
                raise DataError(f"{where} {i} has label {y[i]}, but the classes are 0 to {classes - 1}.")
        whole = len(order) == len(inputs) and bool((np.diff(order) == 1).all())
        picked = inputs if whole else np.asarray(inputs)[order]
        self.inputs = torch.as_tensor(np.ascontiguousarray(picked))
        self.targets = torch.as_tensor(np.ascontiguousarray(labels[order]))
        self.offsets = np.concatenate([[0], np.cumsum(self.sizes)])
        self.test = None if test is None else (torch.as_tensor(test[0]), torch.as_tensor(np.asarray(test[1])))
        self._whole: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def agents(self) -> int:
        """Number of agents."""
        return len(self.sizes)

    def gather(self, lots: Sequence[np.ndarray], agents: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs, targets (agents, longest lot, ...) and which places hold a record."""
        sizes = np.array([len(lot) for lot in lots])
        full = bool((sizes == self.sizes[list(agents)]).all())
        if full and self._whole is not None and len(lots) == self.agents:
            return self._whole
        longest = -(-int(sizes.max(initial=0)) // 8) * 8  # a few lengths only, so that buffers are reused
        index = np.zeros((len(lots), longest), np.int64)
        for row, lot, a in zip(index, lots, agents, strict=True):
            row[: len(lot)] = self.offsets[a] + lot
        present = torch.from_numpy(np.arange(longest) < sizes[:, None])
        at = torch.from_numpy(index.ravel())
        x = self.inputs.index_select(0, at).view(len(lots), longest, *self.inputs.shape[1:])
        y = self.targets.index_select(0, at).view(len(lots), longest, *self.targets.shape[1:])
        if full and len(lots) == self.agents:
            self._whole = (x, y, present)  # full lots are the same in every step
        return x, y, present


class Lots:
    """Poisson lots that can be drawn again: they depend on (seed, agent, step, stream) and nothing else.

    Guarantees
    ----------
    Each record of agent ``i`` is in a lot independently with probability ``rates[i]``: the sampler that
    is accounted is the sampler that runs. A rate of 1 takes every record. An empty lot is a lot.

    Examples
    --------
    >>> lots = Lots([1000, 500], [0.1, 1.0], seed=3)
    >>> [len(lot) for lot in lots.draw([0, 1], step=0)][1]
    500
    >>> bool((lots.draw([0], 7)[0] == Lots([1000], [0.1], seed=3).draw([0], 7)[0]).all())
    True
    """

    def __init__(self, sizes: Sequence[int] | np.ndarray, rates: Sequence[float], seed: int) -> None:
        self.sizes = [_validate.count(int(size), "an agent's number of records") for size in sizes]
        self.rates = [_validate.probability(rate, "sample rate", zero=False) for rate in rates]
        self.seed = _validate.count(seed, "seed", minimum=0)
        self._key = np.random.SeedSequence([self.seed, 0x107]).generate_state(2, np.uint64)

    def draw(self, agents: Sequence[int], step: int, stream: int = 0) -> list[np.ndarray]:
        """Return the rows, within each agent's own records, of its lot."""
        return [self._one(int(a), step, stream) for a in agents]

    def _one(self, agent: int, step: int, stream: int) -> np.ndarray:
        size, rate = self.sizes[agent], self.rates[agent]
        if rate == 1:
            return np.arange(size)
        counter = np.array([0, agent, step, stream], np.uint64)
        rng = np.random.Generator(np.random.Philox(key=self._key, counter=counter))
        return np.flatnonzero(rng.random(size) < rate)


class NoisyGradients:
    """Draw the lots, clip, sum, add noise, divide: the only place where records are touched.

    Parameters
    ----------
    objective : the network and its clip C.
    data, lots : records and their sampler.
    noise : a noise source, or None for the non-private limit.
    noise_multipliers : z of every agent of ``data``.
    divisors : the public L of every agent.
    agents : the agents hosted here.
    adjacency : ``"user"`` clips the agent's mean gradient instead of every record's.

    Guarantees
    ----------
    Add/remove: one record moves the sum of its agent by at most C; the rounding of a protective source is
    paid for by clipping a little lower. User level: the row released moves by at most 2C. With noise
    multiplier 0 nothing is protected, and no source is asked.

    Examples
    --------
    >>> from sottovoce.privacy.noise import SimulatedNoise
    >>> objective = NetObjective(torch.nn.Linear(2, 2), max_grad_norm=1.0)
    >>> data = AgentData(np.ones((4, 2), np.float32), np.zeros(4, int), [[0, 1], [2, 3]])
    >>> lots = Lots(data.sizes, [1.0, 1.0], seed=0)
    >>> noisy = NoisyGradients(objective, data, lots, SimulatedNoise(0), [1.0, 1.0], [2, 2])
    >>> noisy(objective.start(2), step=0).shape
    (2, 6)
    """

    def __init__(
        self,
        objective: NetObjective,
        data: AgentData,
        lots: Lots,
        noise: Any,
        noise_multipliers: Sequence[float],
        divisors: Sequence[float],
        *,
        agents: Sequence[int] | None = None,
        adjacency: Level = "add-remove",
    ) -> None:
        objective = copy.copy(objective)  # its clip may be lowered below
        self.objective, self.data, self.lots, self.noise = objective, data, lots, noise
        self.agents = list(range(data.agents)) if agents is None else [int(a) for a in agents]
        self.multipliers = np.asarray(noise_multipliers, float)[self.agents]
        self.divisors = np.asarray(divisors, np.float32)[self.agents, None]
        self.adjacency = adjacency
        self.clip = objective.max_grad_norm
        if self.multipliers.any() and not np.isfinite(self.clip):
            raise InvalidInput("noise needs a finite max_grad_norm to be measured against, got inf.")
        slack = 0.0
        if noise is not None and self.multipliers.any():
            # both of two neighbouring releases are rounded: 2 slack beside C (record) or beside 2C (user)
            slack = noise.slack(objective.n_params, float(self.multipliers.max()) * self.clip)
            slack *= 1 if adjacency == "user" else 2
            if slack >= self.clip:
                raise InvalidInput(
                    f"the rounding slack {slack:g} exceeds max_grad_norm {self.clip:g}; less noise is needed."
                )
        self.inner_clip = self.clip - slack
        objective.max_grad_norm = float("inf") if adjacency == "user" else self.inner_clip

    def __call__(self, theta: np.ndarray, step: int, stream: int = 0) -> np.ndarray:
        """Return the noisy gradient of every hosted agent at its own row, (agents, n_params) float32."""
        return self.rows(theta, step, stream, range(len(self.agents)))

    def rows(self, theta: np.ndarray, step: int, stream: int, places: Sequence[int]) -> np.ndarray:
        """Return the noisy gradients of some of the hosted agents only, by their place in the list."""
        places = list(places)
        agents = [self.agents[i] for i in places]
        x, y, present = self.data.gather(self.lots.draw(agents, step, stream), agents)
        sums = self.objective.clipped_sums(theta, x, y, present).cpu().numpy()
        divisors, z = self.divisors[places], self.multipliers[places]
        if self.adjacency == "user":
            mean = sums / divisors
            norms = np.linalg.norm(mean, axis=1, keepdims=True)
            mean *= np.minimum(1, self.inner_clip / np.maximum(norms, 1e-30))
            return self._noised(mean, z, agents, step, stream)
        return self._noised(sums, z, agents, step, stream) / divisors

    def _noised(
        self, rows: np.ndarray, z: np.ndarray, agents: list[int], step: int, stream: int
    ) -> np.ndarray:
        if self.noise is None or not z.any():
            return rows
        std = z * self.clip
        noisy: np.ndarray = self.noise.perturb(rows, agents=agents, step=step, std=std, stream=stream)
        return noisy
