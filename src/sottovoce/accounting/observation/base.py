"""The base class of observation models: what an adversary observes of a plan's releases.

A plan lists its releases; how much of them an adversary learns depends on how they travel. An observation
model states that as a frozen dataclass with its accounting functions. Each model is one file; the accountant
validates a question and calls the model of the plan. Other packages read the declared facts below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from sottovoce.accounting.guarantee import Guarantee, ViewName
    from sottovoce.accounting.question import AccountablePlan, PrivacyQuestion


@dataclass(frozen=True)
class ObservationModel:
    """How releases reach an adversary. The base class claims local privacy and nothing more.

    Guarantees
    ----------
    A model that overrides nothing yields the local-DP guarantee, which holds against any adversary.
    """

    # ---- facts that other packages read ------------------------------------------------------------------

    central_only: ClassVar[bool] = False  # one trusted holder: the published result is all that is observed
    single_averaging: ClassVar[bool] = False  # every agent releases one row, and one protocol averages them
    common_model: ClassVar[bool] = False  # every step ends in exact consensus: all agents know the model
    exact_pairs: ClassVar[bool] = False  # what one agent learns of another is known exactly
    step_is_averaging: ClassVar[bool] = False  # a single step is one averaging
    between_peers: ClassVar[bool] = False  # releases travel along the schedule only, so peers can run it
    masks_hide: ClassVar[bool] = False  # masked sums are accounted: by default against all they tolerate
    takes_participations: ClassVar[bool] = False  # the local view may count the rounds of one client

    # ---- accounting --------------------------------------------------------------------------------------

    def guarantee(self, question: PrivacyQuestion) -> Guarantee:
        """Return the guarantee that answers ``question``; `account` refuses it if another label is wanted."""
        return question.local_guarantee()

    def guarantee_each(self, question: PrivacyQuestion) -> dict[int, Guarantee]:
        """Return the guarantee of every agent outside the coalition that ``question`` names."""
        return {user: self.guarantee(question.about(user)) for user in question.users(question.observers)}

    def default_view(
        self, plan: AccountablePlan, observer: int | None, user: int | None
    ) -> tuple[ViewName, int | None]:
        """Return the view, and how many collude, for a question that names neither view nor colluders."""
        if plan.n == 1:
            return "local", None  # there is no other member
        if self.masks_hide and observer is None:
            protocol = plan.schedule(0)
            if protocol.masked and protocol.tolerate is not None and protocol.tolerate > 1:
                return "colluders", protocol.tolerate
        return "network" if observer is None or user is None else "pairwise", None
