"""Local privacy only: an adversary may observe every message, and no amplification is claimed."""

from __future__ import annotations

from dataclasses import dataclass

from sottovoce.accounting.curve import Curve
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.observation.base import ObservationModel
from sottovoce.accounting.question import PrivacyQuestion


@dataclass(frozen=True)
class LocalOnly(ObservationModel):
    """Nothing is claimed beyond local privacy: any observer sees at most every message.

    ``published`` is a formula as printed, against any one node, for reproduction: a curve and the sentence
    that names its source.
    """

    published: tuple[Curve, str] | None = None
    labels = ("published",)
    between_peers = True

    def guarantee(self, question: PrivacyQuestion) -> Guarantee:
        """Return the local-DP guarantee, or the printed formula if it is requested by its label."""
        if question.label is None:
            return question.local_guarantee()
        if self.published is None or question.view not in ("network", "pairwise"):
            raise question.unsupported_label()
        curve, source = self.published
        return question.answer("published", curve, (source,))
