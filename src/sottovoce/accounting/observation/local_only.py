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
    that names its source. ``delay``: rows go from node to node, and a release is in those of so many steps
    later and after, so named observers learn nothing of what is out of their reach; None: all is seen.
    """

    published: tuple[Curve, str] | None = None
    delay: int | None = None
    between_peers = True

    def guarantee(self, question: PrivacyQuestion) -> Guarantee:
        """Return the local-DP guarantee, or the printed formula if it is requested by its label."""
        one_node = question.view in ("network", "pairwise")
        if question.label != "published" or self.published is None or not one_node:
            return question.local_guarantee(delay=self.delay)
        curve, source = self.published
        return question.answer("published", curve, (source,))
