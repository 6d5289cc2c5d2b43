"""A federation: sampled clients send to a server; with a secure sum only the sum of a round is observed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.observation.base import ObservationModel
from sottovoce.accounting.observation.coalitions import (
    coalition_assumptions,
    releases_are_alike,
    worst_coalitions,
)
from sottovoce.accounting.question import SAMPLED_CLIENTS, PrivacyQuestion, participation_hidden
from sottovoce.accounting.release import ShareCurves
from sottovoce.protocols.base import block_variances


@dataclass(frozen=True)
class Federation(ObservationModel):
    """Sampled clients send to a server; with ``secure_sum`` only the sum of a round is observed."""

    users: int
    secure_sum: bool
    masks_hide = True
    takes_participations = True

    def guarantee(self, question: PrivacyQuestion) -> Guarantee:
        """Return the guarantee of a client that is hidden in the sum of the clients outside a coalition."""
        stds = question.noise_stds()
        seen = question.view == "local" or not self.secure_sum
        if seen or stds is None or not releases_are_alike(question):
            # a secure sum needs an answer of every client, so clients that were not drawn send noise alone
            return question.local_guarantee(hidden=self.secure_sum)
        protocol = question.protocol
        if protocol.masked:
            coalitions = worst_coalitions(question)
            if coalitions is None or not question.plan.is_stationary:  # later masks may hide less
                return question.local_guarantee(hidden=True)
            assumptions = list(coalition_assumptions(question, coalitions, ()))
        else:
            coalitions = (
                question.largest_noise_coalitions(stds) if question.any_members else question.coalitions or []
            )
            assumptions = ["a secure sum hides single messages"]
        curves = ShareCurves(question.method)
        present = self.users
        for coalition in coalitions:
            # masks hide a client among those still joined to it by keys, an assumed sum among all others
            honest = np.setdiff1d(np.arange(self.users), coalition)
            groups = protocol.blocks(coalition) if protocol.masked else [honest]
            hiding = block_variances(groups, stds**2)
            present = min(present, *map(len, groups))
            for u in question.users(coalition):
                share = stds[u] ** 2 / hiding[u] if stds[u] else 1.0
                curves.add(participation_hidden(question.counts(u)), share)
        assumptions.append(f"{present} clients add their noise in every round, sampled or not")
        if question.plan.adjacency == "user" and any(
            r.user_rate < 1 for u in range(self.users) for r in question.releases(u)
        ):
            assumptions.append(SAMPLED_CLIENTS)
        return question.answer("exact", curves.worst, assumptions)
