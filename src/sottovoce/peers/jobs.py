"""From an agreement to what one member computes, and to what it will cost.

Everything that must be equal at all members (protocols, trees, the walk's path) is a function of the
agreement alone: where chance is needed, its seed is the run's name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from sottovoce import protocols
from sottovoce.algorithms.muffliato import averaging
from sottovoce.errors import BudgetExceeded
from sottovoce.peers import learning
from sottovoce.peers.agreement import Agreement
from sottovoce.peers.frames import Wire
from sottovoce.peers.programs import MeteredNoise, StepProgram
from sottovoce.peers.records import Records
from sottovoce.privacy.ledger import Release, Spending, epsilon_of
from sottovoce.privacy.noise import NoiseSource, _random_words
from sottovoce.runners.base import Algorithm

__all__ = ["Job"]


class Job:
    """An agreement, ready to be priced and run by any of its members.

    Examples
    --------
    `Job(agreement).program(node, records, ProtectiveNoise())` is what `sottovoce peer run` drives.

    >>> from sottovoce.peers.agreement import example_agreement, read_agreement
    >>> file, members = example_agreement()
    >>> agreement = read_agreement(file)
    >>> Job(agreement).rounds
    1
    """

    def __init__(self, agreement: Agreement) -> None:
        self.agreement = agreement
        self.n = len(agreement.members)
        part = agreement.algorithm
        self.path: list[int] = []
        if part.name == "random-walk-sgd":
            drawn = protocols.draw_path(agreement.network, part.steps, self.public(0))
            self.path = [int(v) for v in drawn]
        self.steps = 1 if part.name == "averaging" else part.steps
        self.schedule: Callable[[int], protocols.Protocol] = lru_cache(maxsize=None)(self._protocol)
        self.rounds = sum(self.schedule(k).rounds for k in range(self.steps))
        self.wire = Wire(agreement.run, self.n, self.rounds, agreement.wire_dim, agreement.model.dtype)

    # ---- what runs -------------------------------------------------------------------------------

    def program(self, node: int, records: Records, noise: NoiseSource) -> StepProgram:
        """Return the computation of one member on its own records."""
        part = self.agreement.algorithm
        metered = MeteredNoise(
            noise,
            node=node,
            noise_multiplier=part.noise_multiplier,
            adjacency=part.adjacency,
            sample_rate=part.sample_rate,
        )
        algorithm = self.algorithm([node], [records], metered)
        return StepProgram(
            algorithm,
            self.schedule,
            self.steps,
            node=node,
            noise=metered,
            fresh=noise,
            contacts=self.contacts(node),
        )

    def algorithm(self, agents: list[int], records: list[Records], noise: Any) -> Algorithm:
        """Return the algorithm hosting ``agents``: one in a peer, all in the stacked runner."""
        part, dim = self.agreement.algorithm, self.agreement.model.parameters
        noisy: learning.NoisyGradient
        dtype = np.dtype(self.agreement.model.dtype)
        if part.name == "averaging":
            rows = np.stack([r.X.mean(axis=0) for r in records]).astype(dtype)
            return averaging(rows, agents, noise, noise_std=self.noise_std, radius=part.clip)
        # rounding moves each of two neighbouring values by the slack: once per radius, twice per length
        share = {"user": 1.0, "replace-one": part.lot, "add-remove": 2 * part.lot}[part.adjacency]
        clip = part.clip - share * noise.slack(dim, self.noise_std)
        if clip <= 0:
            raise BudgetExceeded("The rounding slack of the noise exceeds the clip; agree on a larger clip.")
        if self.agreement.model.kind == "net":
            from sottovoce.peers.nets import net_gradients

            noisy, start = net_gradients(self, agents, records, noise)
        else:
            gradient = _gradient(self.agreement, records, clip)
            noisy = learning.Noisy(gradient, noise, agents, self.noise_std)
            start = np.zeros((len(agents), dim), dtype)
        rate = part.learning_rate
        if part.name == "exact-consensus-sgd":
            return learning.exact_consensus_sgd(noisy, start, rate)
        if part.name == "muffliato-sgd":
            return learning.muffliato_sgd(noisy, start, rate)
        if part.name == "dp-dsgd":
            return learning.dp_dsgd(noisy, start, rate)
        if part.name == "dp-dsgt":
            return learning.dp_dsgt(noisy, start, rate)
        if part.name == "dp-dinno":
            degrees = self.agreement.network.degrees[agents]
            return learning.dp_dinno(
                noisy, start, rate, penalty=part.penalty, inner_steps=part.inner_steps, degrees=degrees
            )
        return learning.walk_sgd(noisy, start, rate, self.path)

    def contacts(self, node: int) -> tuple[int, ...]:
        """Return the members that ``node`` may exchange frames with."""
        name = self.agreement.algorithm.protocol
        if name == "exchange":
            return tuple(sorted(node ^ (1 << level) for level in range(self.n.bit_length() - 1)))
        if name == "walk":
            return tuple(v for v in range(self.n) if v != node)
        return tuple(int(v) for v in self.agreement.network.neighbours(node))

    # ---- what it costs ---------------------------------------------------------------------------

    @property
    def sensitivity(self) -> float:
        """How far one user, or one record, moves what is noised."""
        part = self.agreement.algorithm
        if part.adjacency == "user":
            return 2 * part.clip
        return part.clip / part.lot * (2 if part.adjacency == "replace-one" else 1)

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise, per coordinate."""
        return self.agreement.algorithm.noise_multiplier * self.sensitivity

    def releases(self, node: int) -> list[Release]:
        """Return everything ``node`` will release if nothing goes wrong."""
        part = self.agreement.algorithm
        draws = {"averaging": 1, "dp-dinno": part.steps * part.inner_steps}.get(part.name, part.steps)
        if part.name == "random-walk-sgd":
            draws = self.path.count(node)
        one = Release(
            sender=node,
            step=0,
            sensitivity=self.sensitivity,
            noise_std=self.noise_std,
            adjacency=part.adjacency,
            sample_rate=part.sample_rate,
        )
        return [one] * draws

    def spending(self, node: int) -> Spending:
        """Return an empty account with the member's budget, or raise if the plan itself does not fit."""
        spending = Spending(self.agreement.member_budget)
        planned = self.releases(node)
        if not spending.fits(*planned):
            cost = epsilon_of(_counted(planned), self.agreement.budget.delta)
            raise BudgetExceeded(
                f"The plan costs {self.agreement.members[node].name} epsilon {cost:.3g} at delta "
                f"{self.agreement.budget.delta:g}, the budget is {self.agreement.budget.epsilon:g}; agree on "
                "more noise, fewer steps or a larger budget."
            )
        return spending

    def table(self) -> list[dict[str, Any]]:
        """Return one row per member: its cost against everybody, and exactly against the worst neighbour."""
        agreement = self.agreement
        delta = agreement.budget.delta
        exact = self._pairwise()
        rows = []
        for node, member in enumerate(agreement.members):
            planned = self.releases(node)
            local = epsilon_of(_counted(planned), delta) if planned else 0.0
            rows.append(
                {
                    "member": member.name,
                    "adjacency": agreement.algorithm.adjacency,
                    "delta": delta,
                    "releases": len(planned),
                    "epsilon_local": local,
                    "label_local": "ldp",
                    "epsilon_worst_member": exact[node][0] if exact else None,
                    "epsilon_mean_member": exact[node][1] if exact else None,
                    "label_member": "exact" if exact else None,
                    "budget": agreement.budget.epsilon,
                }
            )
        return rows

    def _pairwise(self) -> list[tuple[float, float]]:
        """Return, per member, epsilon against the worst and the average other member; empty if not exact."""
        part, delta = self.agreement.algorithm, self.agreement.budget.delta
        if part.name not in ("averaging", "exact-consensus-sgd") or part.sample_rate < 1 or self.n > 64:
            return []
        if self.agreement.timing.late == "drop":  # an exchange left out can tell a neighbour more, not less
            return []
        total = np.zeros((self.n, self.n))
        for protocol, times in self._used():
            for v in range(self.n):
                total[v] += times * protocol.view(v).leakage()
        from sottovoce.privacy.gaussian import gaussian_epsilon

        found = []
        for u in range(self.n):
            mus = [math.sqrt(total[v, u]) / part.noise_multiplier for v in range(self.n) if v != u]
            losses = [float(gaussian_epsilon(mu, delta)) if mu else 0.0 for mu in mus]
            found.append((max(losses), float(np.mean(losses))))
        return found

    def _used(self) -> list[tuple[Any, int]]:
        used: dict[int, list[Any]] = {}
        for k in range(self.steps):
            protocol = self.schedule(k)
            used.setdefault(id(protocol), [protocol, 0])[1] += 1
        return [(protocol, times) for protocol, times in used.values()]

    # ---- schedules -------------------------------------------------------------------------------

    def _protocol(self, k: int) -> protocols.Protocol:
        part, network = self.agreement.algorithm, self.agreement.network
        if part.protocol == "walk":
            here = self.path[k]
            if k == len(self.path) - 1:  # the last holder tells everybody
                return learning.Handover(self.n, here, [v for v in range(self.n) if v != here])
            return learning.Handover(self.n, here, [self.path[k + 1]])
        if part.protocol == "tree" and part.name != "averaging":
            return protocols.Tree(network, kind="uniform", rng=self.public(k))
        return self._fixed

    @property
    def _fixed(self) -> protocols.Protocol:
        if not hasattr(self, "_built"):
            self._built = self._build()
        return self._built

    def _build(self) -> protocols.Protocol:
        part, network = self.agreement.algorithm, self.agreement.network
        if part.protocol == "gossip":
            rounds = 1 if part.name in ("dp-dsgd", "dp-dsgt") else part.rounds
            return protocols.Gossip(network, rounds)
        if part.protocol == "chebyshev":
            return protocols.Chebyshev(network, part.rounds)
        if part.protocol == "refreshed":
            scale = part.learning_rate if part.name == "muffliato-sgd" else 1.0
            sigma = self.noise_std * scale
            return protocols.Refreshed(network, part.rounds, tau=part.refresh * sigma, sigma=sigma)
        if part.protocol == "exchange":
            return protocols.Exchange(self.n)
        if part.protocol == "neighbour-sum":
            return protocols.NeighbourSum(network)
        return protocols.Tree(network)

    def public(self, k: int) -> np.random.Generator:
        """Public chance: the same at every member, drawn from the run's name."""
        return np.random.default_rng([*self.agreement.run, k])


def _gradient(agreement: Agreement, records: list[Records], clip: float) -> learning.Gradient:
    """Return the clipped gradient of every hosted agent: of its mean (user) or of each record in its lot."""
    part, kind = agreement.algorithm, agreement.model.kind

    def slopes(theta: np.ndarray, r: Records) -> np.ndarray:
        margins = r.X @ theta
        if kind == "squared":
            return margins - r.y
        with np.errstate(over="ignore"):
            return -r.y / (1 + np.exp(r.y * margins))

    def one(theta: np.ndarray, r: Records) -> np.ndarray:
        slope = slopes(theta, r)
        if part.adjacency == "user":
            mean = slope @ r.X / len(r.X)
            return _clipped(mean[None], clip)[0]
        norms = np.abs(slope) * np.linalg.norm(r.X, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            shrink = np.where(norms > clip, clip / norms, 1.0)
        weight = np.where(np.isfinite(norms), slope * shrink, 0.0) * _lot(len(r.X), part.sample_rate)
        return (weight @ r.X) / theta.dtype.type(part.lot)

    def gradient(theta: np.ndarray, k: int) -> np.ndarray:
        return np.stack([one(row, r) for row, r in zip(theta, records, strict=True)]).astype(theta.dtype)

    return gradient


def _lot(count: int, rate: float) -> np.ndarray:
    """Draw a Poisson lot with the operating system's randomness: which records were in it stays secret."""
    if rate >= 1.0:
        return np.ones(count)
    return (_random_words(count) < np.uint64(int(rate * 2**32))).astype(np.float64)  # never above the rate


def _clipped(rows: np.ndarray, clip: float) -> np.ndarray:
    from sottovoce.algorithms.plan import clipped_rows

    return clipped_rows(rows, 0.0, clip)


def _counted(releases: list[Release]) -> Any:
    spending = Spending()
    for release in releases:
        spending.add(release)
    return spending.counts
