"""An agreement at work: its plan, what its frames look like, and one member's part in it.

Everything that must be equal at all members is a function of the agreement alone; where chance is needed
(trees, starting points, a walk's path), its seed is the run's name. What is computed is the plan's text,
what it costs is the plan's price; here they meet the wire and the member.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sottovoce.data.randomness import Random
from sottovoce.errors import BudgetExceeded
from sottovoce.peers.agreement import Agreement
from sottovoce.peers.frames import Wire
from sottovoce.peers.plans import hosted_data
from sottovoce.peers.programs import StepProgram
from sottovoce.peers.records import Records
from sottovoce.privacy import Guarantee, account
from sottovoce.privacy.laws import Law, Local
from sottovoce.privacy.noise import NoiseSource
from sottovoce.privacy.releases import Release, Spending

__all__ = ["Job"]

# Members times members times steps up to which the exact price against single members is computed: a table
# is read before signing, and beyond this it would take minutes. The local price then stands for it.
_QUICK = 1 << 16


class Job:
    """An agreement, ready to be priced and run by any of its members.

    Guarantees
    ----------
    What `program` draws is what `plan.releases` lists, or the run stops before anything leaves; the prices
    are those of `sottovoce.privacy.account` for this very plan.

    Examples
    --------
    `Job(agreement).program(node, records, ProtectiveNoise())` is what `sottovoce peer run` drives.

    >>> from sottovoce.peers.agreement import example_agreement, read_agreement
    >>> file, members = example_agreement()
    >>> job = Job(read_agreement(file))
    >>> job.rounds, job.wire.dim
    (1, 1)
    """

    def __init__(self, agreement: Agreement) -> None:
        self.agreement, self.plan = agreement, agreement.plan
        self.n: int = self.plan.n
        self.steps: int = self.plan.steps
        self.rounds = sum(self.plan.schedule(k).rounds for k in range(self.steps))
        self.wire = Wire(agreement.run, self.n, self.rounds, self.plan.width, agreement.model.number)

    # ---- what runs -------------------------------------------------------------------------------

    def program(self, node: int, records: Records, noise: NoiseSource | Random) -> StepProgram:
        """Return the computation of one member on its own records.

        The lots are keyed by the operating system: which records were in one stays secret. A `Random` instead
        of a noise source fixes the lots too, for comparing runs bit by bit in tests.
        """
        random = noise if isinstance(noise, Random) else Random(noise, os.urandom(32), 0)
        random = replace(random, start=self.agreement.seed)
        data = hosted_data(self.plan, self.agreement.model.model_dump(), records.X, records.y)
        source = self.plan.source(data, [node], random).metered()
        text = self.plan.algorithm(source, self.plan.starting(data, random, [node]))
        return StepProgram(text, self.plan.schedule, self.steps, node=node, source=source)

    # ---- what it costs ---------------------------------------------------------------------------

    def releases(self, node: int) -> Sequence[Release]:
        """Return everything ``node`` will release if nothing goes wrong, run-length coded."""
        planned: Sequence[Release] = self.plan.releases(node)
        return planned

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
        # an exchange left out can tell a neighbour more, not less: then only the local number holds
        return self.agreement.timing.late == "wait" and self.n**2 * self.steps <= _QUICK

    def spent(self, node: int, releases: Iterable[Release]) -> Guarantee:
        """Return what was revealed by releases that were made, as a ledger lists them."""
        return account(_Charged(self.plan, tuple(releases)), "local", user=node)

    def spending(self, node: int) -> Spending:
        """Return an empty account with the member's budget, or raise if the plan itself does not fit."""
        spending = Spending(self.agreement.member_budget)
        if not spending.fits(*self.releases(node)):
            budget = self.agreement.budget
            raise BudgetExceeded(
                f"The plan costs {self.agreement.members[node].name} epsilon "
                f"{self.local(node).epsilon(budget.delta):.3g} at delta {budget.delta:g}, the budget is "
                f"{budget.epsilon:g}; agree on more noise, fewer steps or a larger budget."
            )
        return spending

    def table(self) -> list[dict[str, Any]]:
        """Return one row per member: epsilon by view, each with its label.

        ``local`` is against everybody who sees all messages, ``network`` against the most curious single
        member, ``mean`` the average over the single members.
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
        return rows

    def _against_members(self, node: int) -> tuple[float, float, str]:
        """Return the worst and the mean epsilon of ``node`` against one other member, and their label."""
        others = [v for v in range(self.n) if v != node]
        first = self.network(node, others[0])
        # a local number is the same against everybody; an exact one is asked for member by member, and the
        # worst of them is the price in the network
        against = [first, *(self.network(node, v) for v in others[1:])] if first.label == "exact" else [first]
        epsilons = [guarantee.epsilon(self.agreement.budget.delta) for guarantee in against]
        return max(epsilons), sum(epsilons) / len(epsilons), first.label


@dataclass(frozen=True)
class _Charged:
    """Releases that one member has made, in the form the accountant reads: only the local price holds."""

    plan: Any
    charged: tuple[Release, ...]

    @property
    def law(self) -> Law:
        return Local()

    @property
    def n(self) -> int:
        return int(self.plan.n)

    @property
    def steps(self) -> int:
        return int(self.plan.steps)

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
        return [release for release in self.charged if release.sender == agent]
