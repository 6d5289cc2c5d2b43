"""Private averaging by any averaging protocol. Each node adds Gaussian noise once, then the network averages.

.. math:: x_v^0 = x_v + \\eta_v, \\quad \\eta_v \\sim \\mathcal N(0, \\sigma^2 I), \\qquad
          x^{T} = \\mathrm{gossip}_T(x^0)

References: [1] Cyffers, Even, Bellet, Massoulié, "Muffliato: Peer-to-Peer Privacy Amplification for
Decentralized Optimization and Averaging", NeurIPS 2022, Algorithms 1 and 2.
Departures from [1]: the pairwise loss is the exact projector form, because equation (6) understates it;
values are clipped to a public ball before the noise and never after it; any averaging protocol may stand in
for accelerated gossip (randomized, time-varying, fresh-noise, tree, exchange).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from sottovoce import _validate
from sottovoce.accounting.accountant import ViewName
from sottovoce.accounting.guarantee import Adjacency, Guarantee
from sottovoce.accounting.observation import Averaging
from sottovoce.accounting.release import Release
from sottovoce.algorithms.options import NoiseAllocation, require_capabilities, resolved_protocol
from sottovoce.algorithms.plan import Plan, noise_on_grid
from sottovoce.algorithms.schedule import Schedule
from sottovoce.algorithms.tree_noise import optimal_noise
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network
from sottovoce.mechanisms.base import Announced
from sottovoce.mechanisms.value import ValueMechanism
from sottovoce.noise.grid import MaskGrid, mask_grid
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import rounds_values
from sottovoce.objectives.clipping import clip_around
from sottovoce.protocols import Chebyshev, NamedProtocol, Protocol, rounds_for
from sottovoce.protocols.masked import FINE
from sottovoce.runners import Algorithm, State

_MAX_NODES = 2048  # beyond, the noise in the result is not computed: it takes a matrix of n x n numbers


@dataclass(frozen=True, repr=False)
class PrivateAveraging(Plan):
    """Private averaging of one row per node.

    Parameters
    ----------
    protocol : an averaging protocol, or its name with ``network``; a `Network` stands for accelerated gossip
        on it with the theoretical number of rounds at this noise (`for_budget`: at a noise of 1).
    noise_std : standard deviation of the noise each node adds, per coordinate (absolute).
    radius : values are clipped to the ball of this radius around ``center``; the sensitivity is twice it.
    center : a public point, a number or one per coordinate.
    dim : numbers per node where it must be known without data (wire formats, costs).
    network, seed : for a protocol given by name.
    noise_allocation : ``"equal"``, or over trees ``"optimal"``: the least total noise that hides everybody
        from any ``tolerate`` members, with ``noise_std`` the largest of all (what local privacy takes) and at
        least the share ``floor`` of its variance for everybody, which is what remains once more collude.
    site_weights : public positive numbers, one per node, say of records: the result is the weighted mean. A
        node of twice the mean weight sends twice its row and adds twice ``noise_std``, so that the noise
        hides every node's row alike. None: every node counts alike.

    Guarantees
    ----------
    User level: the whole row of one node is replaced; weights are public and stay. ``local`` holds against
    all others together, with their keys and noise; ``pairwise``, ``network`` and ``colluders`` are exact for
    honest-but-curious observers who follow the public schedule, where the coalitions can be tried, otherwise
    the local guarantee; ``central`` is for somebody who sees one node's final row. Rows that are not finite
    count as ``center``. A negative noise is refused; with none nothing is protected, and every epsilon is
    infinite.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> plan = sv.PrivateAveraging(sv.protocols.Tree(sv.graphs.grid(4, 4)), noise_std=1.0, radius=0.5)
    >>> plan.privacy("pairwise", observer=0, user=15).label
    'exact'
    >>> rng = np.random.default_rng(0)
    >>> result = plan.run(rng.uniform(-0.5, 0.5, size=16), rng)
    >>> result.outputs["rows"].shape
    (16, 1)
    """

    protocol: Any
    noise_std: float
    radius: float
    center: float | tuple[float, ...] = 0.0
    dim: int = 1
    adjacency: Adjacency = "user"
    network: Any = None
    seed: int = 0
    noise_allocation: NoiseAllocation = "equal"
    floor: float = 0.1
    tolerate: int = 1
    site_weights: tuple[float, ...] | None = None

    steps: ClassVar[int] = 1  # type: ignore[misc]
    name = "averaging"
    needs = ("averages",)
    adjacencies = ("user",)
    query_kind = "value"
    maskable = True
    noise_field = "noise_std"
    observation = Averaging()  # one release per node, averaged: exact where coalitions can be tried

    @classmethod
    def _resolved(cls, options: dict[str, Any]) -> dict[str, Any]:
        dim = options["dim"] if options["dim"] > 1 else None  # one is also the default
        center = _validate.point(options["center"], "center", dim)
        options = super()._resolved(options)
        names = (options["protocol"], options["network"])
        protocol, network = resolved_protocol(*names, cls.name, cls.protocols)
        if isinstance(protocol, NamedProtocol) and network is not None:
            protocol = protocol.at(network, seed=options["seed"])
        elif isinstance(protocol, Network):
            # in units of the radius: values within 1 of the center are, on average, within 1 of their mean.
            # Without noise disagreement alone decides, as with a thousandth of the radius.
            relative = options["noise_std"] / options["radius"] or 1e-3
            protocol = Chebyshev(protocol, rounds_for(protocol, noise_std=relative, variance=1.0))
        protocol = require_capabilities(protocol, cls.name, cls.needs)
        if network is not None and protocol.n != network.n:
            raise InvalidInput(f"the protocol is for {protocol.n} nodes, the network has {network.n}.")
        weights = _site_weights(options["site_weights"], protocol)
        protocol = protocol.scaled(options["noise_std"])
        return {**options, "center": center, "protocol": protocol, "site_weights": weights}

    def __post_init__(self) -> None:
        _ = self._noise_stds  # optimal noise on a protocol without a tree is refused now

    @property
    def n(self) -> int:
        return int(self.protocol.n)

    @property
    def width(self) -> int:
        return self.dim

    @property
    def noise_multiplier(self) -> float:
        """Noise over the radius, the clip norm here. The sensitivity is twice the radius: 1 means mu = 2."""
        return self.noise_std / self.radius

    @cached_property
    def _noise_stds(self) -> tuple[float, ...]:
        """Standard deviation of every node's noise."""
        if self.noise_allocation == "equal":
            return tuple(float(self.noise_std) * factor for factor in self._site_factors)
        factors = np.array(self._site_factors)
        moves = factors / factors.max()
        shares = optimal_noise([self.protocol], self.tolerate, floor=self.floor, required=moves**2)
        return tuple(float(self.noise_std * factors.max()) * share for share in shares)

    @cached_property
    def _site_factors(self) -> tuple[float, ...]:
        """What every node's row is multiplied with before it is averaged: its weight over the mean."""
        if self.site_weights is None:
            return (1.0,) * self.n
        mean = math.fsum(self.site_weights) / self.n
        return tuple(weight / mean for weight in self.site_weights)

    @property
    def grid(self) -> MaskGrid | None:
        if not self.protocol.masked or self.noise_std == 0:
            return None
        bound = self.radius * max(self._site_factors) + float(np.abs(self.center).max())
        sensitivity, stds = 2 * self.radius * min(self._site_factors), list(self._noise_stds)
        return mask_grid(bound=bound, sensitivity=sensitivity, noise_std=stds, dim=self.dim, steps=1)

    @cached_property
    def schedule(self) -> Schedule:
        protocol = self.protocol
        if protocol.masked and self.noise_std == 0:
            protocol = protocol.on_grid(FINE)
        return Schedule(protocol, 1, grid=self._read_grid)

    def releases(self, agent: int) -> Sequence[Release]:
        """Return the one release of a node, or one for every visit of a walk; none if it never comes."""
        times = self.protocol.contributions(agent)
        sensitivity = 2 * (self.radius * self._site_factors[agent])
        return (Release(agent, 0, sensitivity, self._noise_stds[agent], count=times),) if times else ()

    def mechanism(self, data: np.ndarray, agents: Sequence[int], random: RunRandomness) -> ValueMechanism:
        gridded, dim = noise_on_grid(self, random, agents, [1.0] * len(agents)), data.shape[1]
        fresh = random.protective and bool(self.protocol.fresh_std)
        on_grid = rounds_values(random.noise) and self.grid is not None
        if dim != self.dim and (fresh or on_grid):
            raise InvalidInput(
                f"protective noise is for the dim={self.dim} numbers per node that are accounted for, the "
                f"data have {dim}; state dim={dim}."
            )
        center: ArrayLike = self.center
        if on_grid:  # a public point, moved to the grid on which rows add up
            spacing = self.schedule.grid_spacing
            assert spacing is not None
            center = np.rint(np.asarray(center, float) / spacing) * spacing
        factors = np.array([self._site_factors[a] for a in agents])
        if self.site_weights is not None:  # a ball around the center stays one, and its radius grows alike
            middle = np.asarray(center, data.dtype)
            with np.errstate(over="ignore", invalid="ignore"):  # what is not finite counts as the center
                data = middle + factors.astype(data.dtype)[:, None] * (data - middle)
        radii, stds = (self.radius * factors).tolist(), [self._noise_stds[a] for a in agents]
        facts = {"rows": data, "center": center, "noise_later": bool(self.protocol.adds_noise)}
        return self._mechanism(ValueMechanism, agents, gridded, radius=radii, noise_std=stds, **facts)

    def _announced(self, agents: Sequence[int]) -> Announced | None:
        return None if self.protocol.adds_noise else super()._announced(agents)

    def algorithm(self, mechanism: ValueMechanism, start: np.ndarray) -> Algorithm:
        """Return Algorithms 1 and 2 of [1]: send the noisy row, keep what comes out."""
        dtype = mechanism.rows.dtype  # means of integer sums are float64, whatever the rows were
        return Algorithm(
            init=lambda: State((), (np.zeros_like(mechanism.rows),)),
            message=lambda state, k: mechanism.noisy_rows(k),
            update=lambda state, received, k: State((), (received.astype(dtype, copy=False),)),
            output=lambda state: state.own[0],
        )

    def prepared(self, data: object) -> np.ndarray:
        """Return (n, dim) floats; values that are not finite stay, and are clipped to the center later."""
        rows = _validate.rows(data, self.n, "data", finite=False)
        _validate.point(self.center, "center", rows.shape[1])
        return rows

    def starting(self, data: np.ndarray, random: RunRandomness, agents: Sequence[int]) -> np.ndarray:
        return np.zeros((len(list(agents)), data.shape[1]), data.dtype)

    def metrics(self, rows: np.ndarray, data: np.ndarray, random: RunRandomness) -> dict[str, Any]:
        """Return the error against the true mean, in simulations only, and the disagreement."""
        numbers: dict[str, Any] = {"dim": data.shape[1]}
        if not random.protective:
            clipped = clip_around(data, np.asarray(self.center), self.radius)
            truth = np.average(clipped, axis=0, weights=self._site_factors)
            numbers["mean_squared_error"] = float(np.mean((rows - truth) ** 2))
            numbers["disagreement"] = float(np.mean((rows - rows.mean(axis=0)) ** 2))
        return numbers

    def guarantees(self) -> list[Guarantee]:
        views: tuple[ViewName, ...] = ("local", "network", "central") if self.n <= 256 else ("local",)
        return [self.privacy(view) for view in views]

    @property
    def _gaussian_noise(self) -> float:
        return self.noise_std or self.radius

    def describe(self) -> Mapping[str, Any]:
        protocol = {"protocol": self.protocol.name, "n": self.n, "rounds": self.protocol.rounds}
        names = ["noise_std", "radius", "center", "noise_multiplier"]
        names += ["noise_allocation", "floor", "tolerate"] if self.noise_allocation != "equal" else []
        names += [] if self.site_weights is None else ["site_weights"]
        return {"algorithm": self.name, **protocol, **{name: getattr(self, name) for name in names}}


def noise_in_result(plan: PrivateAveraging) -> float | None:
    """Return the standard deviation of the noise in the worst node's result, per coordinate.

    None where it depends on the run (a walk), or where too many nodes make it slow to compute.
    """
    protocol = plan.protocol
    if protocol.n > _MAX_NODES or protocol.adds_noise:
        return None
    return float(np.sqrt(protocol.noise_variance(np.square(plan._noise_stds)).max()))


def _site_weights(weights: Sequence[float] | None, protocol: Protocol) -> tuple[float, ...] | None:
    """Refuse weights that are not one public positive number per node, or where noise follows no node."""
    if weights is None:
        return None
    each = _validate.several(weights, "site_weights")
    if len(each) != protocol.n:
        raise InvalidInput(f"site_weights must be one positive number per node ({protocol.n}), got {each!r}.")
    if protocol.adds_noise or protocol.fresh_std:
        raise InvalidInput(
            f"site_weights need noise that every node adds to its own row, once; {protocol.name} "
            "draws more: take gossip, chebyshev, tree, exchange or masked."
        )
    return tuple(_validate.positive(weight, "a site's weight") for weight in each)


def Muffliato(protocol: object, noise_std: float, radius: float, **options: Any) -> PrivateAveraging:
    """Return `PrivateAveraging` by gossip (Algorithm 1 of [1]) or accelerated gossip (Algorithm 2).

    Parameters are those of `PrivateAveraging`; a network stands for accelerated gossip on it.

    Examples
    --------
    >>> import sottovoce as sv
    >>> sv.Muffliato(sv.graphs.hypercube(4), noise_std=2.0, radius=0.5).protocol.name
    'chebyshev'
    """
    plan = PrivateAveraging(protocol, noise_std, radius, **options)
    if plan.protocol.name not in ("gossip", "chebyshev"):
        got = plan.protocol.name
        raise InvalidInput(f"Muffliato averages by gossip or chebyshev, got {got}; take PrivateAveraging.")
    return plan
