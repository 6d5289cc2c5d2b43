r"""Correlated noise behind the one noise interface: over time at one node, and between neighbors.

.. math:: \text{MAFALDA: } \mathrm{sens} \sum_{s \le t} (C^{-1})_{ts}\, \xi_u^s, \qquad
          \text{DECOR: } \bar z_u + \sum_{v \sim u} z_{uv}, \quad z_{uv} = -z_{vu}

Both wrap a simulated source. What they add in a step is a function of the source's key, the nodes and the
step, so an algorithm's state holds no past noise, and an interrupted run continues with the same bytes.
Neither is protective: a protective source forgets past draws and gives each end of an edge its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network
from sottovoce.noise.samplers import Agents, NoiseSource, Std
from sottovoce.noise.time_correlation import TimeCorrelation


def _simulated(source: NoiseSource, why: str) -> NoiseSource:
    if source.protective:
        raise InvalidInput(f"{why}: simulate it with a numpy Generator.")
    return source


class TimeCorrelatedNoise:
    """Noise of every node correlated over the steps, so that later steps cancel errors of earlier ones.

    Parameters
    ----------
    source : where fresh draws come from; not a protective one.
    correlation : C and its sensitivity.

    Guarantees
    ----------
    With ``std`` = z times the clip in every step, all steps together are one Gaussian mechanism of standard
    deviation ``std`` (see `sottovoce.noise.time_correlation`), if all fresh draws stay secret, past ones too.
    """

    protective = False

    def __init__(self, source: NoiseSource, correlation: TimeCorrelation) -> None:
        self.source = _simulated(source, "Noise correlated over time needs the draws of past steps")
        self.sens, self.inverse = correlation.sens, correlation.inverse
        self._fresh: dict[tuple[int, int, tuple[int, ...], int], np.ndarray] = {}

    def __repr__(self) -> str:
        return f"TimeCorrelatedNoise({self.source!r}, steps={len(self.inverse)})"

    def perturb(
        self, values: np.ndarray, *, agents: Agents, step: int, std: Std, stream: int = 0
    ) -> np.ndarray:
        """Return ``values`` plus std * sens * (row ``step`` of C^-1 on the fresh draws so far)."""
        if not 0 <= step < len(self.inverse):
            raise InvalidInput(f"the noise is correlated over {len(self.inverse)} steps, got step {step}.")
        numbers = tuple(int(a) for a in agents)
        scale = np.broadcast_to(np.asarray(std, float) * self.sens, (len(numbers),))[:, None]
        mixed = np.zeros(np.shape(values))
        for s, weight in enumerate(self.inverse[step, : step + 1]):
            mixed += weight * self._drawn(s, stream, numbers, values.shape[1])
        moved: np.ndarray = values + (scale * mixed).astype(values.dtype)
        return moved

    def _drawn(self, step: int, stream: int, numbers: tuple[int, ...], dim: int) -> np.ndarray:
        """Return the fresh draws of a step; they are kept only because drawing them again takes time."""
        key = (step, stream, numbers, dim)
        if key not in self._fresh:
            self._fresh[key] = self.source.perturb(
                np.zeros((len(numbers), dim)), agents=numbers, step=step, std=1.0, stream=stream
            )
        return self._fresh[key]

    def slack(self, dim: int, std: float = 1.0) -> float:
        """Return 0: nothing is rounded."""
        return 0.0


class PairSharedNoise:
    """Each node's own noise, and for every edge one draw that one end adds and the other subtracts.

    Parameters
    ----------
    source : where all draws come from; not a protective one. In a simulation one source knows all seeds;
        between machines each pair's seed comes from a key agreement, and both ends call the same function.
    network : whose edges share noise.
    pair_std : standard deviation of what a pair shares.
    nodes : the node behind each number that keys noise; None: the numbers are the nodes.

    Examples
    --------
    >>> import sottovoce as sv
    >>> noise = PairSharedNoise(sv.privacy.SimulatedNoise(1), sv.graphs.ring(4), 3.0)
    >>> rows = noise.perturb(np.zeros((4, 2)), agents=range(4), step=0, std=0.0)
    >>> bool(np.abs(rows).min() > 0), bool(np.abs(rows.sum(axis=0)).max() < 1e-12)
    (True, True)
    """

    protective = False

    def __init__(
        self, source: NoiseSource, network: Network, pair_std: float, nodes: Mapping[int, int] | None = None
    ) -> None:
        self.source = _simulated(source, "Shared noise must be the same at both ends of an edge")
        self.network, self.pair_std, self.nodes = network, pair_std, nodes

    def __repr__(self) -> str:
        return f"PairSharedNoise({self.source!r}, {self.network.name}, pair_std={self.pair_std:g})"

    def perturb(
        self, values: np.ndarray, *, agents: Agents, step: int, std: Std, stream: int = 0
    ) -> np.ndarray:
        """Return ``values`` with each node's own noise of ``std``, and what it shares along its edges."""
        numbers = [int(a) for a in agents]
        own = self.source.perturb(values, agents=numbers, step=step, std=std, stream=2 * stream)
        here = [number if self.nodes is None else self.nodes[number] for number in numbers]
        moved: np.ndarray = own + self._shared(here, values.shape[1], step, 2 * stream + 1).astype(own.dtype)
        return moved

    def _shared(self, here: list[int], dim: int, step: int, stream: int) -> np.ndarray:
        total = np.zeros((len(here), dim))
        rows = np.full(self.network.n, -1)
        rows[here] = np.arange(len(here))
        ends = rows[self.network.edges]
        mine = np.flatnonzero((ends >= 0).any(axis=1))
        if not self.pair_std or not len(mine):
            return total
        drawn = self.source.perturb(
            np.zeros((len(mine), dim)), agents=mine, step=step, std=self.pair_std, stream=stream
        )
        for side, sign in ((0, 1.0), (1, -1.0)):
            at = ends[mine, side]
            np.add.at(total, at[at >= 0], sign * drawn[at >= 0])
        return total

    def slack(self, dim: int, std: float = 1.0) -> float:
        """Return 0: nothing is rounded."""
        return 0.0
