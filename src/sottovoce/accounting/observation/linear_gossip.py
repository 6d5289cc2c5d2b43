"""Linear gossip: noisy gradients mixed by gossip without consensus.

One step is one averaging, which is exact. Over several steps the linear formula ignores that honest nodes
evaluate gradients at points the adversary does not see. Its number has the label ``conditional`` and is
never checked against a budget; the local-DP guarantee always holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sottovoce.accounting.curve import Curve
from sottovoce.accounting.exact import learning_view
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.observation.averaging import Averaging
from sottovoce.accounting.observation.base import ObservationModel
from sottovoce.accounting.observation.coalitions import ROUNDED_UP
from sottovoce.accounting.question import PrivacyQuestion
from sottovoce.accounting.release import Release, ReleaseKind
from sottovoce.errors import InvalidInput
from sottovoce.protocols import as_linear


@dataclass(frozen=True)
class LinearGossip(ObservationModel):
    """Noisy gradients mixed by gossip without consensus: several steps have a local guarantee only."""

    step_is_averaging = True
    between_peers = True

    def guarantee(self, question: PrivacyQuestion) -> Guarantee:
        """Return the exact guarantee of a single step, the local-DP guarantee of several."""
        if question.view in ("network", "pairwise", "colluders"):
            if question.label == "conditional":
                return _conditional(question)
            if _releases_once(question):
                return Averaging().guarantee(question)
        return question.guarantee_in_reach(delay=0)

    def guarantee_each(self, question: PrivacyQuestion) -> dict[int, Guarantee]:
        """Return the guarantees of all users, of a single step from one view."""
        if _releases_once(question):
            return Averaging().guarantee_each(question)
        return super().guarantee_each(question)


def _releases_once(question: PrivacyQuestion) -> bool:
    """Whether every agent publishes once, in one step: then gossip is one averaging."""
    return question.plan.steps == 1 and all(
        sum(r.draws for r in question.releases(u)) == 1 for u in range(question.plan.n)
    )


def _conditional(question: PrivacyQuestion) -> Guarantee:
    """Return an upper bound for the linear system; gradients are fixed in it, so it is no guarantee."""
    plan = question.plan
    release = _common_release(question)
    protocols = [plan.schedule(k) for k in range(plan.steps)]
    coalitions = question.coalitions
    if coalitions is None:
        raise InvalidInput(f"Coalitions of {question.count} are too many to try; name one, or take fewer.")
    if not release.noise_std:
        raise InvalidInput("The linear formula needs noise, got none.")
    curves, rounded_up = [], False
    for done, coalition in enumerate(coalitions, 1):
        view = learning_view(list(map(as_linear, protocols)), plan.steps, coalition)
        losses = view.worst_case()
        share = float(losses.max() if question.user is None else losses[question.user])
        curves.append(Curve.gaussian(release.sensitivity / release.noise_std * float(np.sqrt(share))))
        rounded_up |= view.rounded_up
        question.report_progress(done)
    assumptions = ["gradients of honest nodes depend only on data and on what the observers see"]
    if rounded_up:
        assumptions.append(ROUNDED_UP)
    return question.answer("conditional", Curve.worst(curves), assumptions)


def _common_release(question: PrivacyQuestion) -> Release:
    """Return the one release that all agents have in every step; the formula takes nothing else."""
    plan = question.plan
    releases = [r for u in range(plan.n) for r in question.releases(u)]
    kinds = {ReleaseKind.from_release(r) for r in releases}
    every_step = all(r.draws == plan.steps and r.count == 1 and not r.joint for r in releases)
    if len(kinds) != 1 or not every_step or releases[0].mechanism != "gaussian" or plan.adjacency != "user":
        raise InvalidInput(
            "The linear formula is for user level and the same Gaussian noise of every agent in every step; "
            "leave label out for the local guarantee."
        )
    return releases[0]
