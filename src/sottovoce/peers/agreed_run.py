"""Bind an agreement to one member: node program, format of frames, privacy cost.

Everything that must be equal at all members is a function of the agreement alone. Public random choices
(trees, starting points, a walk's path) are seeded with the run's name. The algorithm and its privacy cost are
the plan's own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sottovoce.accounting.accountant import account
from sottovoce.accounting.budget import Budget
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.observation import LocalOnly, ObservationModel
from sottovoce.accounting.release import Release, Spending
from sottovoce.errors import BudgetExceeded, DataError
from sottovoce.ledger.lifetime import view_name
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import NoiseSource
from sottovoce.peers.agreement import Agreement
from sottovoce.peers.agreement_plan import hosted_data
from sottovoce.peers.member_data import Records
from sottovoce.peers.node_program import StepProgram
from sottovoce.peers.run_keys import MaskedRows, RunKeys
from sottovoce.peers.wire_format import FrameCodec
from sottovoce.secure_sum.keys import MaskKey
from sottovoce.secure_sum.masks import PairMasks

# Members times members times steps up to which the exact price against single members is computed: a table
# is read before signing, and beyond this it would take minutes. The local price then stands for it.
_QUICK = 1 << 16


class AgreedRun:
    """An agreement, ready to be priced and run by any of its members.

    Parameters
    ----------
    agreement : what all have signed, or will.
    exact : whether the exact price against single members is computed however long it takes, as it may where
        every step draws a tree of its own; else the local price stands for it beyond a few thousand steps.
    progress : called with the number of pairs of members priced so far.

    Guarantees
    ----------
    What `program` draws is what `plan.releases` lists, or the run stops before anything leaves; the prices
    are those of `sottovoce.privacy.account` for this very plan.

    Examples
    --------
    `AgreedRun(agreement).program(node, records)` is what `sottovoce peer run` drives.

    >>> from sottovoce.peers.agreement import example_agreement, read_agreement
    >>> file, members = example_agreement()
    >>> agreed_run = AgreedRun(read_agreement(file))
    >>> agreed_run.rounds, agreed_run.codec.dim
    (1, 1)
    """

    def __init__(
        self, agreement: Agreement, *, exact: bool = False, progress: Callable[[int], None] | None = None
    ) -> None:
        self.agreement, self.plan = agreement, agreement.plan
        self._always_exact, self._progress, self._pairs_done = exact, progress, 0
        self.n: int = self.plan.n
        self.steps: int = self.plan.steps
        every = (self.plan.schedule(k).rounds for k in range(self.steps))
        steady = self.plan.is_stationary  # then a run of ten million steps is read as fast as one of ten
        self.rounds = self.steps * self.plan.schedule(0).rounds if steady else sum(every)
        self.grid = self.plan.grid
        if self.grid is None:
            self.codec = FrameCodec(
                agreement.run, self.n, self.rounds, self.plan.width, agreement.model.number
            )
        else:
            wide, kind = self.grid.dim + self.grid.checks, f"int{self.grid.bits}"
            self.codec = FrameCodec(agreement.session, self.n, self.rounds, wide, kind)

    # ---- what runs -------------------------------------------------------------------------------

    def program(
        self,
        node: int,
        records: Records,
        noise: NoiseSource | RunRandomness | RunKeys | None = None,
        key: MaskKey | None = None,
        start: np.ndarray | None = None,
    ) -> StepProgram:
        """Return the computation of one member on its own records.

        Noise and lots are functions of a key that the operating system makes for this run: a step that is
        done again is the same. A noise source instead draws afresh every time, and a `RunRandomness` fixes
        the lots too, for comparing runs bit by bit in tests. ``key`` is the mask key that was signed, where
        sums are masked; without it only a saved state can go on. ``start`` is the model that a membership
        version goes on from.
        """
        keys = noise if isinstance(noise, RunKeys) else None
        if noise is None:
            keys = RunKeys(self.agreement.session, self.agreement.membership_version)
        if keys is not None:
            random = RunRandomness(keys.noise, keys.batches, 0)
        else:
            random = noise if isinstance(noise, RunRandomness) else RunRandomness(noise, os.urandom(32), 0)  # type: ignore[arg-type]
        random = replace(random, start=self.agreement.seed)
        data = hosted_data(self.plan, self.agreement.model.model_dump(), records.X, records.y)
        source = self.plan.source(data, [node], random).recording()
        first = self.plan.starting(data, random, [node])
        if start is not None:
            if start.shape != first.shape[1:]:
                raise DataError(
                    f"The model to go on from has shape {start.shape}, the agreement's has {first.shape[1:]}."
                )
            first = start.astype(first.dtype)[None]
        text = self.plan.algorithm(source, first)
        masked = (
            None if self.grid is None else MaskedRows(self.grid, self.masks(node, key), self.agreement.run)
        )
        # exact consensus joins everybody; drawn gossip or a walk may leave out a member, who must be heard
        beside = () if self.plan.schedule(0).exact else self.agreement.neighbors(node)
        return StepProgram(
            text,
            self.plan.schedule,
            self.steps,
            node=node,
            source=source,
            masked=masked,
            keys=keys,
            steady=self.plan.is_stationary,
            beside=beside,
        )

    @cached_property
    def bound(self) -> float | None:
        """The largest number in a row that clip and noise allow, but for a chance below 2^-40 in the run.

        For releases of whole members over gossip, trees and exchanges. At record level nothing public bounds
        a sum of clipped records, models and trackers wander with what was received, and a masked row looks
        like any other: there it is None, and only the sum can be judged, without saying whose fault it is.
        """
        plan, protocol = self.plan, self.plan.schedule(0)
        if self.grid is not None or not plan.maskable or plan.adjacency != "user":
            return None
        if not (protocol.convex or protocol.exact):
            return None
        releases = [release for node in range(self.n) for release in self.releases(node)]
        numbers = sum(release.draws for release in releases) * self.codec.dim
        tail = math.sqrt(2 * math.log(2.0**41 * numbers))
        largest = max(release.sensitivity / 2 + tail * release.noise_std for release in releases)
        center = float(np.max(np.abs(plan.center)))
        return (largest + center) * (1 if protocol.convex else self.n) * (1 + 1e-6)

    def masks(self, node: int, key: MaskKey | None) -> PairMasks | None:
        """Return the first pair keys of a member with all its partners."""
        if self.grid is None or key is None:
            return None
        agreed = self.agreement
        return PairMasks.agree(
            key,
            node,
            [member.name for member in agreed.members],
            agreed.publics,
            self.plan.schedule(0).partners(node),
            run=agreed.run,
            membership_version=agreed.membership_version,
            bits=self.grid.bits,
        )

    # ---- what it costs ---------------------------------------------------------------------------

    def releases(self, node: int) -> Sequence[Release]:
        """Return everything ``node`` will release if nothing goes wrong, run-length coded."""
        planned: Sequence[Release] = self.plan.releases(node)
        return planned

    @cached_property
    def tolerate(self) -> int:
        """How many members may collude against what is charged: 0 where only the own noise counts."""
        if self.grid is None or self.plan.schedule(0).tolerate is None:
            return 0
        return max(1, int(self.plan.schedule(0).tolerate))

    def noise_amplification(self, node: int) -> float:
        """Return the noise that hides a member's row from those it is charged against, over its own noise."""
        if not self.tolerate:
            return 1.0
        protocol = self.plan.schedule(0)
        stds = [self.plan.releases(v)[0].noise_std for v in range(self.n)]
        others = sorted((v for v in range(self.n) if v != node), key=lambda v: -stds[v])
        if protocol.tolerate:  # any such set of members: without the largest noise the rest hides least
            worst = protocol.hiding_std(others[: self.tolerate], stds)[node]
        else:
            worst = min(protocol.hiding_std(v, stds)[node] for v in others)
        return float(worst) / stds[node]

    def charged_guarantee(self, node: int) -> Guarantee:
        """Return what is charged: against everybody, or with masks against any members it tolerates."""
        return account(self.plan, user=node, **self.charged_view)

    @property
    def charged_view(self) -> dict[str, Any]:
        """The adversary against whom a run is charged, as arguments of `account`."""
        if not self.tolerate:
            return {"view": "local"}
        return (
            {"view": "network"} if self.tolerate == 1 else {"view": "colluders", "colluders": self.tolerate}
        )

    def local(self, node: int) -> Guarantee:
        """Return what ``node`` reveals to somebody who sees every message."""
        return account(self.plan, "local", user=node)

    def network(self, node: int, observer: int | None = None) -> Guarantee:
        """Return what ``node`` reveals to one other member: the most curious, or ``observer``."""
        view: Any = "network" if observer is None else "pairwise"
        return account(self.plan, view, observer=observer, user=node, label=None if self._exact else "ldp")

    @property
    def _exact(self) -> bool:
        """Whether more than the local number may be asked for."""
        # an exchange left out can tell a neighbor more, not less: then only the local number holds
        quick = self._always_exact or self.n**2 * (1 if self.plan.is_stationary else self.steps) <= _QUICK
        return self.agreement.timing.late == "wait" and quick

    def spent(self, node: int, releases: Iterable[Release]) -> Guarantee:
        """Return what was revealed by releases that were made, as a ledger lists them."""
        released = tuple(releases)
        if not self.tolerate or not released:
            return account(ActualReleases(self.plan, released), "local", user=node)
        return account(ActualReleases(self.plan, released, node), user=node, **self.charged_view)

    def spent_locally(self, node: int, releases: Iterable[Release]) -> Guarantee:
        """Return what the own noise alone leaves of it, whatever all others do."""
        return account(ActualReleases(self.plan, tuple(releases)), "local", user=node)

    def cost_of_interrupted(self, node: int, releases: Iterable[Release]) -> dict[str, Guarantee]:
        """Return what releases of a run that was broken off cost against members, by view; valid ones only.

        Guarantees
        ----------
        Every step that released anything is priced in full, the broken one too: what was seen of it is a part
        of what a whole step shows. A view that is not named here has the price of the whole agreed run.
        """
        released = tuple(releases)
        queries = [self.charged_view] if self.tolerate else []
        if self.plan.observation.common_model and self._exact:
            queries.append({"view": "network"})
        if not released:
            nothing = self.spent_locally(node, ())
            whole = (self.network(node), self.charged_guarantee(node))
            return {view_name(priced): nothing for priced in whole if priced.label == "exact"}
        priced = [account(ActualReleases(self.plan, released, node), user=node, **view) for view in queries]
        return {view_name(each): each for each in priced if each.label == "exact"}

    def spending(self, node: int) -> Spending:
        """Return an empty account with the member's budget, or raise if the plan itself does not fit."""
        spending = AmplifiedSpending(self.agreement.member_budget, self.noise_amplification(node))
        if not spending.fits(*self.releases(node)):
            budget = self.agreement.budget
            raise BudgetExceeded(
                f"The plan costs {self.agreement.members[node].name} epsilon "
                f"{self.charged_guarantee(node).epsilon(budget.delta):.3g} at delta {budget.delta:g}, the "
                "budget is "
                f"{budget.epsilon:g}; agree on more noise, fewer steps or a larger budget."
            )
        return spending

    def table(self) -> list[dict[str, Any]]:
        """Return one row per member: epsilon by view, each with its label.

        ``local`` is against everybody who sees all messages, ``network`` against the most curious single
        member, ``mean`` the average over the single members. With masks ``colluders`` is what is charged,
        against any ``tolerate`` members who tap every link; ``local``, the own noise, is its ``ldp`` beside.
        """
        budget = self.agreement.budget
        rows = []
        for node, member in enumerate(self.agreement.members):
            local = self.local(node)
            worst, mean, label = self._against_members(node)
            rows.append(
                {
                    "member": member.name,
                    "adjacency": self.plan.adjacency,
                    "delta": budget.delta,
                    "releases": sum(release.draws for release in self.releases(node)),
                    "epsilon_local": local.epsilon(budget.delta),
                    "label_local": local.label,
                    "epsilon_network": worst,
                    "label_network": label,
                    "epsilon_mean": mean,
                    "label_mean": label,
                    "budget": budget.epsilon,
                }
            )
            if self.tolerate:
                charged = self.charged_guarantee(node)
                rows[-1] |= {
                    "tolerate": self.tolerate,
                    "epsilon_colluders": charged.epsilon(budget.delta),
                    "label_colluders": charged.label,
                }
        return rows

    def _against_members(self, node: int) -> tuple[float, float, str]:
        """Return the worst and the mean epsilon of ``node`` against one other member, and their label."""
        others = [v for v in range(self.n) if v != node]
        first = self.network(node, others[0])
        # a local number is the same against everybody; an exact one is asked for member by member, and the
        # worst of them is the price in the network
        against = [first]
        for v in others[1:] if first.label == "exact" else ():
            against.append(self.network(node, v))
        self._pairs_done += len(others)
        if self._progress is not None:
            self._progress(self._pairs_done)
        epsilons = [guarantee.epsilon(self.agreement.budget.delta) for guarantee in against]
        return max(epsilons), sum(epsilons) / len(epsilons), first.label


class AmplifiedSpending(Spending):
    """The budget that stops a run: releases count with the noise that hides them, also that of others.

    In a masked sum the noise of honest members hides a member's row, so every release is charged with
    `AgreedRun.noise_amplification` times its own noise. `AgreedRun.charged_guarantee`, which is signed,
    computes the same cost with `account`; this class adds up releases one by one while a run is under way.
    """

    def __init__(self, budget: Budget, noise_amplification: float) -> None:
        super().__init__(budget)
        self.noise_amplification = noise_amplification

    def _amplified(self, releases: Iterable[Release]) -> list[Release]:
        return [
            replace(release, noise_std=release.noise_std * self.noise_amplification) for release in releases
        ]

    def fits(self, *releases: Release) -> bool:
        """Return whether ``releases`` can be charged on top of what was."""
        return super().fits(*self._amplified(releases))

    def add(self, *releases: Release) -> None:
        """Count ``releases`` without asking whether they fit."""
        super().add(*self._amplified(releases))


@dataclass(frozen=True)
class ActualReleases:
    """Releases that one member has made, in the form the accountant reads: only the local price holds.

    With masks it is the plan's price: every step ends in a sum or in nothing, so half a run is priced too.
    """

    plan: Any
    charged: tuple[Release, ...]
    node: int | None = None  # whose they are, among others who follow the plan

    @property
    def observation(self) -> ObservationModel:
        model: ObservationModel = LocalOnly() if self.node is None else self.plan.observation
        return model

    @property
    def n(self) -> int:
        return int(self.plan.n)

    @property
    def steps(self) -> int:
        return int(self.plan.steps)

    @property
    def is_stationary(self) -> bool:
        return bool(self.plan.is_stationary)

    @property
    def width(self) -> int:
        return int(self.plan.width)

    @property
    def accounting(self) -> str:
        return "pld"

    @property
    def adjacency(self) -> str:
        return str(self.plan.adjacency)

    @property
    def assumptions(self) -> tuple[str, ...]:
        assumed: tuple[str, ...] = self.plan.assumptions
        return assumed

    def schedule(self, k: int) -> Any:
        return self.plan.schedule(k)

    def releases(self, agent: int) -> Sequence[Release]:
        if self.node is not None and agent != self.node:
            planned: Sequence[Release] = self.plan.releases(agent)
            return planned
        return [release for release in self.charged if release.sender == agent]
