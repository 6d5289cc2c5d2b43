"""What a charge costs: guarantees of `account`, by the adjacencies and views of lifetime budgets.

Nothing is composed here by rules of its own: a guarantee is that of a plan, or that of listed releases which
everybody sees in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sottovoce.accounting.accountant import account
from sottovoce.accounting.guarantee import Guarantee, Label
from sottovoce.accounting.observation import LocalOnly, ObservationModel
from sottovoce.accounting.question import AccountablePlan
from sottovoce.accounting.release import Release
from sottovoce.errors import InvalidInput, NotAGuarantee
from sottovoce.protocols import Protocol

LIFETIME_VIEWS = "local, outsider, network or colluders:c"
_OTHER_RECORD_LEVEL = {"add-remove": "replace-one", "replace-one": "add-remove"}


def _no_schedule(k: int) -> Protocol:
    raise NotImplementedError("releases that are seen in full need no schedule")


@dataclass(frozen=True)
class OwnReleases:
    """Releases as a plan that `account` reads; by default every adversary sees all of them in full."""

    n: int
    adjacency: str
    releases: Callable[[int], Sequence[Release]]
    assumptions: tuple[str, ...] = ()
    accounting: str = "pld"
    observation: ObservationModel = field(default_factory=LocalOnly)
    steps: int = 1
    width: int = 1
    is_stationary: bool = True
    schedule: Callable[[int], Protocol] = _no_schedule


def colluders_of(view: str) -> int | None:
    """Return c of the view ``"colluders:c"``, None for another view."""
    name, _, count = view.partition(":")
    return int(count) if name == "colluders" and count.isdigit() and int(count) >= 1 else None


def is_lifetime_view(view: str) -> bool:
    """Return whether a lifetime budget can be against this view."""
    return view in ("local", "outsider", "network") or colluders_of(view) is not None


def view_name(guarantee: Guarantee) -> str:
    """Return the view of a guarantee, as lifetime budgets name it; named observers are no such view."""
    adversary = guarantee.adversary
    if adversary.kind == "colluders":
        return f"colluders:{adversary.count}" if adversary.count is not None else "named colluders"
    return "one named member" if adversary.observers else adversary.kind


def require_lifetime_guarantee(guarantee: Guarantee, node: int | None) -> None:
    """Raise unless a guarantee is valid, against a whole class of view, and about ``node`` (None: all)."""
    view, about = view_name(guarantee), guarantee.adversary.user
    if not guarantee.valid:
        raise NotAGuarantee(
            f"The lifetime ledger takes labels ldp and exact, got {guarantee.label} for {view}."
        )
    if not is_lifetime_view(view):
        raise InvalidInput(
            f"The lifetime ledger stores guarantees against {LIFETIME_VIEWS}, got one against {view}."
        )
    if about != node:
        expected, got = ("everybody" if who is None else f"node {who}" for who in (node, about))
        raise InvalidInput(f"The guarantee against {view} must be about {expected}, got one about {got}.")


def lifetime_guarantees(
    plan: AccountablePlan, views: Iterable[str], *, user: int | None = None, label: Label | None = None
) -> tuple[Guarantee, ...]:
    """Return what `account` says of a plan against ``views``, and always against ``local``.

    ``views`` are those of lifetime budgets; one that has no meaning for the plan (two colluders of two) is
    left out, and the local guarantee covers it. ``user`` is the agent whose people are charged, None for
    everybody; ``label="ldp"`` claims no more than local privacy against members.

    Guarantees
    ----------
    A plan about records also gets its local guarantee under the other record-level adjacency. With a trusted
    curator, who is this member, everything it releases counts as seen. A plan whose cost is a printed formula
    is refused.
    """
    seen_in_full = OwnReleases(plan.n, plan.adjacency, plan.releases, plan.assumptions, plan.accounting)
    if plan.observation.central_only:
        if not account(plan).valid:
            raise NotAGuarantee(
                "The cost of this plan is a printed formula, not a guarantee, so protective noise cannot be "
                "charged; choose another solver, or a seed for a simulation."
            )
        guarantees = [account(seen_in_full, "local", user=user)]
    else:
        guarantees = [account(plan, "local", user=user)]
        for view in dict.fromkeys(views):
            colluders = colluders_of(view)
            if view != "local" and (colluders or int(view == "network")) < plan.n:
                against: dict[str, Any] = {"view": view.partition(":")[0]}
                if colluders:
                    against["colluders"] = colluders
                guarantees.append(account(plan, user=user, label=label, **against))
    other = _OTHER_RECORD_LEVEL.get(plan.adjacency)
    if other is not None:

        def restated(agent: int) -> list[Release]:
            return [_restated(each, other) for each in plan.releases(agent)]

        also = replace(seen_in_full, adjacency=other, releases=restated)
        guarantees.append(account(also, "local", user=user))
    return tuple(guarantees)


def guarantees_of_releases(releases: Iterable[Release], user: int | None = None) -> tuple[Guarantee, ...]:
    """Return the local guarantees of releases that are certain: every one of them is made, or was."""
    certain = [replace(each, user_rate=1.0) for each in releases]
    adjacencies = {each.adjacency for each in certain}
    if not certain:
        return ()
    if len(adjacencies) > 1:
        raise InvalidInput(
            f"One charge has releases of one adjacency, got {', '.join(sorted(adjacencies))}; charge them "
            "one after the other."
        )
    alone = OwnReleases(1 if user is None else user + 1, adjacencies.pop(), lambda agent: certain)
    return lifetime_guarantees(alone, (), user=user)


def _restated(release: Release, adjacency: str) -> Release:
    """Return the same release under the other record-level adjacency."""
    if adjacency == "replace-one":  # one removed and one added: it moves at most twice as far
        return replace(release, adjacency=adjacency, sensitivity=2 * release.sensitivity)
    # Removing a record moves a release no further than replacing one. With sampling, replace-one already
    # reads the sensitivity as two clip norms, so removing a record moves it by one.
    factor = 0.5 if release.sample_rate < 1 else 1.0
    return replace(release, adjacency=adjacency, sensitivity=factor * release.sensitivity)
