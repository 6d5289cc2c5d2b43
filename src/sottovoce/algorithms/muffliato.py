"""Muffliato: private averaging by gossip. Each node adds Gaussian noise once, then the network averages.

.. math:: x_v^0 = x_v + \\eta_v, \\quad \\eta_v \\sim \\mathcal N(0, \\sigma^2 I), \\qquad
          x^{T} = \\mathrm{gossip}_T(x^0)

References: [1] Cyffers, Even, Bellet, Massoulié, "Muffliato: Peer-to-Peer Privacy Amplification for
Decentralized Optimization and Averaging", NeurIPS 2022, Algorithms 1 and 2.
Departures from [1]: the pairwise loss is the exact projector form, because equation (6) understates it;
values are clipped to a public ball before the noise and never after it; any averaging protocol may stand in
for accelerated gossip (randomized, time-varying, refreshed, tree, exchange).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sottovoce import _validate
from sottovoce.algorithms.plan import Plan, View, clipped_rows, known_view
from sottovoce.errors import BudgetInfeasible, InvalidInput
from sottovoce.graphs import Network
from sottovoce.privacy import Adversary, Curve, Guarantee, averaging_guarantee
from sottovoce.privacy.gaussian import gaussian_mu
from sottovoce.privacy.noise import as_noise
from sottovoce.protocols import Chebyshev, Protocol, Refreshed, Walk, rounds_for
from sottovoce.runners import Algorithm, Result, run_stacked
from sottovoce.runners.base import provenance_now

__all__ = ["Muffliato", "averaging"]


@dataclass(frozen=True, repr=False)
class Muffliato(Plan):
    """Private averaging of one row per node.

    Parameters
    ----------
    protocol : an averaging protocol; a `Network` stands for accelerated gossip on it with the theoretical
        number of rounds.
    noise_std : standard deviation of the noise each node adds, per coordinate (absolute).
    radius : values are clipped to the ball of this radius around ``centre``; the sensitivity is twice it.
    centre : a public point, a number or one per coordinate.

    Guarantees
    ----------
    User level: the whole row of one node is replaced. ``local`` holds against anyone who sees every
    message; ``pairwise``, ``network`` and ``colluders`` are exact for honest-but-curious observers who
    follow the public schedule; ``central`` is for somebody who sees one node's final row. Rows that are
    not finite count as ``centre``. A negative or zero noise is refused.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> plan = sv.Muffliato(sv.protocols.Tree(sv.graphs.grid(4, 4)), noise_std=1.0, radius=0.5)
    >>> plan.privacy("pairwise", observer=0, user=15).label
    'exact'
    >>> rng = np.random.default_rng(0)
    >>> result = plan.run(rng.uniform(-0.5, 0.5, size=16), rng)
    >>> result.outputs["rows"].shape
    (16, 1)
    """

    protocol: Protocol
    noise_std: float
    radius: float
    centre: float | tuple[float, ...] = 0.0
    name: str = field(default="muffliato", init=False)

    def __post_init__(self) -> None:
        _validate.positive(self.noise_std, "noise_std")
        _validate.positive(self.radius, "radius")
        if isinstance(self.protocol, Network):
            network = self.protocol
            rounds = rounds_for(network, noise_std=self.noise_std / self.radius)
            object.__setattr__(self, "protocol", Chebyshev(network, rounds))
        if not isinstance(self.protocol, Protocol):
            raise InvalidInput(
                f"protocol must be a protocol or a network, got {type(self.protocol).__name__}."
            )
        object.__setattr__(self, "protocol", _scaled(self.protocol, self.noise_std))

    # ---- what it costs -----------------------------------------------------------------------------

    @property
    def sensitivity(self) -> float:
        """How far replacing one node's row moves it: the diameter of the ball."""
        return 2 * self.radius

    @property
    def n(self) -> int:
        """Number of nodes."""
        return self.protocol.n

    def privacy(
        self,
        view: View = "local",
        *,
        observer: int | None = None,
        user: int | None = None,
        colluders: Iterable[int] = (),
    ) -> Guarantee:
        """Return the guarantee against one kind of adversary (see `Plan.privacy`)."""
        known_view(view)
        if view == "local":
            return self._local()
        if view == "central":
            return self._central(0 if observer is None else observer)
        listed = list(colluders)
        if view == "colluders" and not listed:
            raise InvalidInput("The colluders view needs colluders=[...], got none.")
        if view == "pairwise" and (observer is None or user is None):
            raise InvalidInput("The pairwise view needs observer=... and user=....")
        if observer is None and not listed:
            return self._worst_node(user)
        group = listed if observer is None else [observer, *listed]
        return self._against(group, user)

    def _against(self, observers: Iterable[int], user: int | None) -> Guarantee:
        seen = self.protocol.view(observers)
        return averaging_guarantee(seen, user, sensitivity=self.sensitivity, noise_std=self.noise_std)

    def _worst_node(self, user: int | None) -> Guarantee:
        each = (self._against([v], user) for v in range(self.n) if v != user)
        worst = max(each, key=lambda g: g.mu)
        return replace(worst, adversary=Adversary("network", user=user))

    def _local(self) -> Guarantee:
        releases = np.bincount(self.protocol.path).max() if isinstance(self.protocol, Walk) else 1
        return Guarantee(
            Adversary("local"),
            "user",
            "ldp",
            Curve.gaussian(self.sensitivity / self.noise_std * math.sqrt(releases)),
        )

    def _central(self, node: int) -> Guarantee:
        share = float(self.protocol.output_view(node).leakage().max())
        walk = self.protocol
        if isinstance(walk, Walk) and not walk.final_public and node not in walk.path:
            share = math.inf  # the token never came by: the row is the node's own, without noise
        return Guarantee(
            Adversary("central"),
            "user",
            "exact",
            Curve.gaussian(self.sensitivity / self.noise_std * math.sqrt(share)),
            assumptions=(f"only the final row of node {node} is released, and no message is seen",),
        )

    def guarantees(self) -> list[Guarantee]:
        """Return the local, worst-node and released-output statements."""
        return [self.privacy("local"), self.privacy("network"), self.privacy("central")]

    def cost(self, dim: int = 1, bytes_per_number: int = 8) -> Mapping[str, Any]:
        """Return rounds, rows sent in all and per node, and bytes for rows of ``dim`` numbers."""
        messages = self.protocol.messages
        return {
            "rounds": self.protocol.rounds,
            "messages": messages,
            "messages_per_node": messages / self.n,
            "bytes": messages * dim * bytes_per_number,
        }

    def describe(self) -> Mapping[str, Any]:
        """Return the plan as plain values."""
        return {
            "algorithm": self.name,
            "protocol": self.protocol.name,
            "n": self.n,
            "rounds": self.protocol.rounds,
            "noise_std": self.noise_std,
            "radius": self.radius,
            "noise_multiplier": self.noise_std / self.sensitivity,
        }

    @classmethod
    def for_budget(
        cls,
        protocol: Protocol | Network,
        *,
        epsilon: float,
        delta: float,
        radius: float,
        centre: float | tuple[float, ...] = 0.0,
        view: View = "local",
        **who: Any,
    ) -> Muffliato:
        """Return the plan with the least noise whose ``privacy(view)`` meets (epsilon, delta).

        The number of rounds and, for refreshed gossip, the ratio of the two noises are those of the
        protocol given (a network is first turned into accelerated gossip).

        Examples
        --------
        >>> import sottovoce as sv
        >>> pair = {"observer": 0, "user": 8}
        >>> plan = sv.Muffliato.for_budget(
        ...     sv.protocols.Exchange(16), epsilon=1.0, delta=1e-5, radius=0.5, view="pairwise", **pair
        ... )
        >>> plan.privacy("pairwise", **pair).epsilon(1e-5) <= 1.0
        True
        """
        _validate.positive(radius, "radius")
        if isinstance(protocol, Network):
            protocol = Chebyshev(protocol, rounds_for(protocol, noise_std=1.0))
        start = cls(protocol, noise_std=2 * radius, radius=radius, centre=centre)
        allowed = gaussian_mu(epsilon, delta)
        if allowed <= 0:
            raise BudgetInfeasible(
                f"No noise meets epsilon {epsilon:g} at delta {delta:g}; allow a larger epsilon or delta."
            )
        # The share h does not depend on the noise, so mu at noise multiplier z is mu at 1, over z.
        at_one = start.privacy(view, **who)
        noise_std = 2 * radius * at_one.mu / allowed
        if noise_std == 0:
            raise BudgetInfeasible(
                "This observer learns nothing of this user at any noise; calibrate for another pair or view."
            )
        plan = cls(protocol, noise_std=noise_std, radius=radius, centre=centre)
        while plan.privacy(view, **who).epsilon(delta) > epsilon:  # the last places: never above the target
            plan = replace(plan, noise_std=plan.noise_std * (1 + 1e-12))
        return plan

    # ---- how it runs -------------------------------------------------------------------------------

    def run(self, data: Any, rng: Any, *, progress: bool = False) -> Result:
        """Average ``data`` (one row per node) in this process.

        ``rng`` is a numpy Generator (a simulation: its noise can be reproduced and protects nobody) or a
        noise source. The error against the true mean is recorded for simulations only.
        """
        started = time.perf_counter()
        noise = as_noise(rng)
        rows = _shaped(data, self.n)
        algorithm = averaging(
            rows,
            range(self.n),
            noise,
            noise_std=self.noise_std,
            radius=self.radius,
            centre=self.centre,
            noise_later=isinstance(self.protocol, Walk),
        )
        out = run_stacked(algorithm, self.protocol, 1, noise=noise)
        metrics: dict[str, Any] = {"dim": rows.shape[1]}
        if not noise.protective:
            truth = clipped_rows(rows, np.asarray(self.centre), self.radius).mean(axis=0)
            metrics["mean_squared_error"] = float(np.mean((out - truth) ** 2))
            metrics["disagreement"] = float(np.mean((out - out.mean(axis=0)) ** 2))
        return Result(
            name=self.name,
            config=dict(self.describe()),
            outputs={"rows": out},
            metrics=metrics,
            guarantees=[g.to_dict() for g in self.guarantees()]
            if self.n <= 256
            else [self._local().to_dict()],
            provenance=provenance_now(
                started,
                noise="protective" if noise.protective else "simulation: reproducible, not protective",
            ),
        )


def averaging(
    rows: np.ndarray,
    agents: Any,
    noise: Any,
    *,
    noise_std: float,
    radius: float,
    centre: float | tuple[float, ...] = 0.0,
    noise_later: bool = False,
) -> Algorithm:
    """Return the three functions of private averaging for the agents hosted here.

    ``noise_later`` leaves the noise to the protocol (a walk draws it at every contribution, about zero).

    Examples
    --------
    >>> import numpy as np
    >>> from sottovoce.privacy.noise import SimulatedNoise
    >>> text = averaging(np.zeros((2, 1)), [0, 1], SimulatedNoise(0), noise_std=1.0, radius=1.0)
    >>> text.message(text.init(), 0).shape
    (2, 1)
    """
    public = np.asarray(centre, dtype=float)

    def init() -> np.ndarray:
        inner = radius - noise.slack(rows.shape[1], noise_std)
        if inner <= 0:
            raise InvalidInput(
                f"The rounding slack exceeds the radius {radius}; a larger radius or less noise is needed."
            )
        return clipped_rows(rows, public, inner)

    def message(state: np.ndarray, k: int) -> np.ndarray:
        if noise_later:
            return state
        # Noise is added about the centre, so that the grid of a protective source is the centre's.
        offset = state - public.astype(state.dtype)
        return public.astype(state.dtype) + noise.perturb(offset, agents=agents, step=k, std=noise_std)

    def update(state: np.ndarray, received: np.ndarray, k: int) -> np.ndarray:
        return received

    return Algorithm(init, message, update, output=lambda state: state)


def _shaped(data: Any, n: int) -> np.ndarray:
    """Return (n, dim) floats; values that are not finite stay, and are clipped to the centre later."""
    array = np.asarray(data)
    if array.dtype not in (np.float32, np.float64):
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise InvalidInput(f"data must be numbers, got an array of {array.dtype}.") from None
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[0] != n:
        raise InvalidInput(f"data must have one row per node ({n}), got shape {array.shape}.")
    return array


def _scaled(protocol: Protocol, noise_std: float) -> Protocol:
    """Return refreshed gossip with its fresh noise in proportion to the first noise; others unchanged."""
    if isinstance(protocol, Refreshed) and protocol.sigma != noise_std:
        return Refreshed(
            protocol.network, protocol.rounds, tau=protocol.fresh_std * noise_std, sigma=noise_std
        )
    if isinstance(protocol, Walk) and protocol.std != noise_std:
        return Walk(
            protocol.network,
            protocol.rounds,
            path=protocol.path,
            std=noise_std,
            final_public=protocol.final_public,
        )
    return protocol
