"""A trusted curator holds all records; the adversary observes the results it releases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sottovoce.accounting.guarantee import Guarantee, Label
from sottovoce.accounting.observation.base import ObservationModel
from sottovoce.accounting.question import PrivacyQuestion
from sottovoce.accounting.wording import CURATOR
from sottovoce.errors import InvalidInput

if TYPE_CHECKING:
    from sottovoce.accounting.guarantee import ViewName
    from sottovoce.accounting.question import AccountablePlan


@dataclass(frozen=True)
class Curator(ObservationModel):
    """One trusted holder of all records releases the results: the only view is ``central``.

    ``published`` names the source of a printed formula, where the cost of the plan is one and therefore no
    guarantee.
    """

    published: str | None = None
    central_only = True

    def guarantee(self, question: PrivacyQuestion) -> Guarantee:
        """Return the loss of everything the curator releases."""
        if question.user is not None:
            raise InvalidInput(
                f"The curator holds all records, so no user can be named, got user={question.user}."
            )
        label: Label = "exact" if self.published is None else "published"
        source = () if self.published is None else (self.published,)
        return question.answer(label, question.local_guarantee().curve, (CURATOR, *source))

    def default_view(
        self, plan: AccountablePlan, observer: int | None, user: int | None
    ) -> tuple[ViewName, int | None]:
        return "central", None
