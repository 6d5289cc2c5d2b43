"""Local privacy only: an adversary may observe every message, and no amplification is claimed.

The one exception is time: a release that cannot reach named observers before the end costs nothing against
them (`LocalOnly.delay`).
"""

from __future__ import annotations

from dataclasses import dataclass

from sottovoce.accounting.curve import Curve
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.observation.base import ObservationModel
from sottovoce.accounting.question import PrivacyQuestion


@dataclass(frozen=True)
class LocalOnly(ObservationModel):
    """Every adversary is taken to see every message, so the local-DP guarantee holds against it.

    ``published`` is a curve printed in a paper for one observing node, with a sentence that names the paper.
    ``delay`` is the number of steps after which the rows that a node sends contain its release. With it, the
    releases that cannot reach named observers before the end cost nothing against them, and the label is then
    ``exact``; with None, every observer is taken to see every release.
    """

    published: tuple[Curve, str] | None = None
    delay: int | None = None
    between_peers = True

    def guarantee(self, question: PrivacyQuestion) -> Guarantee:
        """Return the local-DP guarantee, or the printed formula if it is requested by its label."""
        one_node = question.view in ("network", "pairwise")
        if question.label == "published" and self.published is not None and one_node:
            curve, source = self.published
            return question.answer("published", curve, (source,))
        return question.local_guarantee() if self.delay is None else question.guarantee_in_reach(self.delay)
