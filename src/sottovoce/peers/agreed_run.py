"""An agreement as one member runs it: its plan with node program, format of frames and privacy cost.

Everything that must be equal at all members is a function of the agreement alone. Public random choices
(trees, starting points, a walk's path) are seeded with the run's name. The algorithm and its privacy cost are
the plan's own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from sottovoce._format import compared, number
from sottovoce.accounting import wording
from sottovoce.accounting.accountant import account
from sottovoce.accounting.budget import Budget
from sottovoce.accounting.guarantee import Guarantee, Label
from sottovoce.accounting.observation import LocalOnly
from sottovoce.accounting.release import Release, Spending
from sottovoce.data.base import Shards
from sottovoce.errors import BudgetExceeded, ConfigError, DataError
from sottovoce.ledger.cost import OwnReleases, lifetime_guarantees, view_name
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import NoiseSource
from sottovoce.peers.agreement import Agreement
from sottovoce.peers.member_data import Records
from sottovoce.peers.node_program import StepProgram
from sottovoce.peers.run_keys import MaskedRows, RunKeys
from sottovoce.peers.sum_check import SumCheck
from sottovoce.peers.wire_format import FrameCodec
from sottovoce.protocols import Protocol
from sottovoce.secure_sum.keys import MaskKey
from sottovoce.secure_sum.masks import PairMasks

if TYPE_CHECKING:
    from sottovoce.protocols import Masked

# Members times members times steps up to which the exact cost against single members is computed: a table
# is read before signing, and beyond this it would take minutes. The local cost then stands for it.
_QUICK = 1 << 16


class AgreedRun:
    """An agreement, ready to be accounted and run by any of its members.

    ``module`` and ``weights`` are this member's copies of a module that members wrote and of its weights.

    Guarantees
    ----------
    What `program` draws is what ``plan.releases`` lists, or the run stops before anything leaves; the costs
    are those of `sottovoce.privacy.account` for this very plan.
    """

    def __init__(
        self, agreement: Agreement, *, module: str | Path | None = None, weights: str | Path | None = None
    ) -> None:
        self.agreement, self.plan = agreement, agreement.plan
        if module is not None or weights is not None:
            if agreement.model.kind != "net":
                raise ConfigError("The agreement has no network; leave --module and --weights out.")
            self.plan = replace(self.plan, objective=self.plan.objective.with_files(module, weights))
        self.n: int = self.plan.n
        self.steps: int = self.plan.steps
        # a stationary run of ten million steps is read as fast as one of ten
        counted, times = (1, self.steps) if self.plan.is_stationary else (self.steps, 1)
        self.rounds: int = times * sum(self.plan.schedule(k).rounds for k in range(counted))
        self.grid = self.plan.grid
        width, number = self.plan.width, str(agreement.model.number)
        if self.grid is not None:
            width, number = self.grid.dim + self.grid.checks, f"int{self.grid.bits}"
        self.codec = FrameCodec(agreement.session, self.n, self.rounds, width, number)

    # ---- what runs -------------------------------------------------------------------------------

    def program(
        self,
        node: int,
        records: Records,
        noise: NoiseSource | RunRandomness | RunKeys | None = None,
        key: MaskKey | None = None,
        start_row: np.ndarray | None = None,
    ) -> StepProgram:
        """Return the computation of one member on its own records.

        Noise and batches are functions of a key that the operating system makes for this run: a step that is
        done again is the same. For tests a noise source draws afresh every time, and a `RunRandomness` fixes
        the batches too. ``key`` is the mask key that was signed, where sums are masked; without it only a
        saved state can go on. ``start_row`` is the model that a membership version goes on from.
        """
        agreement, keys = self.agreement, None
        if noise is None or isinstance(noise, RunKeys):
            keys = noise or RunKeys(agreement.session, agreement.membership_version)
            noise = RunRandomness(keys.noise, keys.batches, 0)
        random = noise if isinstance(noise, RunRandomness) else RunRandomness(noise, os.urandom(32), 0)
        random = replace(random, start_seed=agreement.seed)
        data = self._hosted_data(records)
        mechanism = self.plan.mechanism(data, [node], random).recording()
        start_rows = self.plan.starting(data, random, [node])
        if start_row is not None:
            if start_row.shape != start_rows.shape[1:]:
                raise DataError(
                    f"The model to go on from has shape {start_row.shape}, the agreement's has "
                    f"{start_rows.shape[1:]}."
                )
            start_rows = start_row.astype(start_rows.dtype)[None]
        masked = None
        if self.grid is not None:
            masked = MaskedRows(self.grid, self._pair_masks(node, key), agreement.run_id, self.sum_check)
        return StepProgram(
            self.plan.algorithm(mechanism, start_rows),
            self.plan.schedule,
            self.steps,
            node=node,
            mechanism=mechanism,
            masked=masked,
            keys=keys,
            stationary=self.plan.is_stationary,
            # exact consensus joins everybody; drawn gossip or a walk may leave out a member
            extra_contacts=() if self.protocol.reaches_consensus else agreement.neighbors(node),
        )

    def _hosted_data(self, records: Records) -> object:
        """Return one member's records in the form its plan's mechanism takes."""
        X, y = records
        if self.plan.query_kind == "value":
            return X.mean(axis=0, dtype=X.dtype)[None]
        data: object = Shards(X, y, np.array([0, len(X)]))
        if self.agreement.model.kind == "net":
            self.plan.objective.require_torch()
            from sottovoce.data.agent_tensors import AgentData

            data = AgentData(X, y, [np.arange(len(X))])
        try:
            return self.plan.objective.prepared(data)
        except DataError as error:
            raise DataError(f"This member's records do not fit the agreement: {error}") from None

    def _pair_masks(self, node: int, key: MaskKey | None) -> PairMasks | None:
        """Return the first pair keys of a member with all its partners."""
        if key is None:
            return None
        agreement, protocol = self.agreement, cast("Masked", self.protocol)  # masked sums alone have a grid
        return PairMasks.agree(
            key,
            node,
            agreement.names,
            agreement.publics,
            protocol.partners(node),
            run_id=agreement.run_id,
            membership_version=agreement.membership_version,
            bits=self.grid.bits,
        )

    @property
    def protocol(self) -> Protocol:
        """The protocol of the first step; those of later steps are of the same kind."""
        protocol: Protocol = self.plan.schedule(0)
        return protocol

    @cached_property
    def bound(self) -> float | None:
        """The largest number in a row that clip and noise allow, but for a chance below 2^-40 in the run.

        For releases of whole members over gossip, trees and exchanges. At record level nothing public bounds
        a sum of clipped records; a model or tracker depends on all rows that were received; and a masked row
        looks like any other. There it is None, and only the sum can be judged, not who spoiled it.
        """
        plan, protocol = self.plan, self.protocol
        if self.grid is not None or not plan.maskable or plan.adjacency != "user":
            return None
        if not (protocol.convex or protocol.reaches_consensus):
            return None
        releases = [release for node in range(self.n) for release in plan.releases(node)]
        numbers = sum(release.draws for release in releases) * self.codec.dim
        tail = math.sqrt(2 * math.log(2.0**41 * numbers))
        largest: float = max(release.sensitivity / 2 + tail * release.noise_std for release in releases)
        center = float(np.max(np.abs(plan.center)))
        return (largest + center) * (1 if protocol.convex else self.n) * (1 + 1e-6)

    @property
    def sum_check(self) -> SumCheck | None:
        """What the public sum of a masked step is compared with; None where rows are not masked."""
        grid, plan = self.grid, self.plan
        if grid is None:
            return None
        row_norm = (grid.bound + math.sqrt(grid.dim)) * grid.spacing
        if plan.adjacency != "user" and plan.sizes is None:  # coordinates are clamped, batches have no bound
            row_norm *= math.sqrt(grid.dim)
        row_norm += float(np.linalg.norm(np.broadcast_to(plan.center, grid.dim)))
        noise_std = float(np.linalg.norm(grid.stds))
        limit = self.agreement.checks.largest_mean
        return SumCheck(self.n, grid.dim, self.steps, row_norm, noise_std, limit)

    # ---- what it costs ---------------------------------------------------------------------------

    @cached_property
    def tolerate(self) -> int:
        """How many members may collude against what is charged: 0 where only the own noise counts."""
        tolerated = None if self.grid is None else self.protocol.tolerate
        return 0 if tolerated is None else max(1, tolerated)

    @property
    def charged_view(self) -> dict[str, Any]:
        """The adversary against whom a run is charged, as arguments of `account`."""
        if self.tolerate > 1:
            return {"view": "colluders", "colluders": self.tolerate}
        return {"view": "network" if self.tolerate else "local"}

    def charged_guarantee(self, node: int) -> Guarantee:
        """Return the guarantee that is charged: local, or with masks against the colluders they tolerate."""
        return account(self.plan, user=node, **self.charged_view)

    def lifetime_guarantees(self, node: int, views: Iterable[str]) -> tuple[Guarantee, ...]:
        """Return what the lifetime ledger stores of this run for the people of ``node``.

        They are against everybody, against one member, against whom the run is charged, and against the
        ``views`` of lifetime budgets.
        """
        charged = self.charged_guarantee(node)
        others = [view for view in ("network", *views) if view != view_name(charged)]
        label: Label | None = None if self._exact else "ldp"
        guarantees = lifetime_guarantees(self.plan, others, user=node, label=label)
        return guarantees if view_name(charged) == "local" else (*guarantees, charged)

    def guarantee_against_members(self, node: int) -> Guarantee:
        """Return what ``node`` reveals to the most curious other member."""
        return account(self.plan, "network", user=node, label=None if self._exact else "ldp")

    @property
    def _exact(self) -> bool:
        """Whether more than the local cost may be computed."""
        # an exchange left out can tell a neighbor more, not less: then only the local cost holds
        quick = self.n**2 * (1 if self.plan.is_stationary else self.steps) <= _QUICK
        return self.agreement.timing.late == "wait" and quick

    def spent(self, node: int, releases: Iterable[Release]) -> Guarantee:
        """Return the cost of releases that were made, as a ledger lists them, by the view that is charged."""
        actual = tuple(releases)
        return self._cost_of(node, actual, self.charged_view if actual else {"view": "local"})

    def spent_locally(self, node: int, releases: Iterable[Release]) -> Guarantee:
        """Return the local cost of releases that were made: whatever all others see or do."""
        return self._cost_of(node, tuple(releases), {"view": "local"})

    def stated(self, guarantee: Guarantee, node: int) -> dict[str, Any]:
        """Return a guarantee about ``node`` in words and plain numbers, as statements and status have it."""
        delta, who = self.agreement.budget.delta, guarantee.adversary
        words = wording.stored_adversary(who.to_dict() | {"user": node}, self.agreement.names, "member")
        return {
            "view": who.kind,
            "adversary": words,
            "adjacency": guarantee.adjacency,
            "label": guarantee.label,
            "epsilon": guarantee.epsilon(delta),
            "delta": delta,
            "best_guess": guarantee.best_guess,
            "assumptions": list(guarantee.assumptions),
        }

    def cost_of_interrupted(self, node: int, releases: Iterable[Release]) -> tuple[Guarantee, ...]:
        """Return what releases of a run that was broken off cost against members, where more is known of it.

        Guarantees
        ----------
        Every step that released anything is accounted in full, the broken one too: what was seen of it is a
        part of what a whole step shows. Another view has the local cost of what was released.
        """
        actual = tuple(releases)
        if not actual:
            return ()
        views = [self.charged_view] if self.tolerate else []
        if self.plan.observation.common_model and self._exact and self.charged_view["view"] != "network":
            views.append({"view": "network"})
        guarantees = [self._cost_of(node, actual, view) for view in views]
        return tuple(each for each in guarantees if each.label == "exact")

    def _cost_of(self, node: int, releases: tuple[Release, ...], view: Mapping[str, Any]) -> Guarantee:
        """Account releases of ``node`` that were made, among others who follow the plan.

        Without masks only the local cost holds for a part of a run. With masks every step ends in a sum or
        in nothing, so the plan's observation model holds for half a run, too.
        """
        plan = self.plan
        actual = OwnReleases(
            plan.n,
            plan.adjacency,
            lambda other: releases if other == node else plan.releases(other),
            plan.assumptions,
            observation=LocalOnly() if view["view"] == "local" else plan.observation,
            steps=plan.steps,
            width=plan.width,
            is_stationary=plan.is_stationary,
            schedule=plan.schedule,
        )
        return account(actual, user=node, **view)

    def spending(self, node: int) -> Spending:
        """Return an empty account with the member's budget, or raise if the plan itself does not fit.

        The plan costs what `charged_guarantee` says, which is signed and charged to the lifetime ledger.
        """
        agreed = self.agreement.budget
        epsilon = self.charged_guarantee(node).epsilon(agreed.delta)
        if not epsilon <= agreed.epsilon:
            cost, limit = compared(epsilon, agreed.epsilon)
            raise BudgetExceeded(
                f"The plan costs {self.agreement.members[node].name} epsilon {cost} at delta "
                f"{number(agreed.delta, 'delta')}, the budget is {limit}; agree on more noise, fewer steps "
                "or a larger budget."
            )
        budget = Budget(agreed.epsilon, agreed.delta, adjacency=self.plan.adjacency)
        return Spending(budget, planned=self.plan.releases(node))

    def table(self) -> list[dict[str, Any]]:
        """Return one row per member: epsilon by view, each with its label.

        ``local`` is against all others together, with their keys and noise, ``network`` against the most
        curious single member. With masks the run is charged for ``colluders``, any ``tolerate`` members who
        tap every link; ``local`` is then the cost if all others collude.
        """
        delta, rows = self.agreement.budget.delta, []
        for node, member in enumerate(self.agreement.members):
            costs = {"local": account(self.plan, "local", user=node)}
            costs["network"] = self.guarantee_against_members(node)
            row = {
                "member": member.name,
                "adjacency": self.plan.adjacency,
                "delta": delta,
                "releases": sum(release.draws for release in self.plan.releases(node)),
                "budget": self.agreement.budget.epsilon,
            }
            if self.tolerate:
                costs["colluders"], row["tolerate"] = self.charged_guarantee(node), self.tolerate
            for view, guarantee in costs.items():
                row |= {f"epsilon_{view}": guarantee.epsilon(delta), f"label_{view}": guarantee.label}
            rows.append(row)
        return rows
