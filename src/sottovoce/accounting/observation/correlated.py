"""Correlated noise: over time at one node (MAFALDA-SGD) and between neighbors (DECOR).

**Over time.** The noise of a node's steps is correlated (`sottovoce.noise.correlated`), so the plan
lists all steps as one joint release. Its loss under the local view is that of one Gaussian mechanism.

**Between neighbors.** Each pair of neighbors draws a common noise that one adds and the other subtracts; it
hides both from everyone else and vanishes from the mean. One step reveals a Gaussian with covariance
:math:`s_d^2 I + s_c^2 L`, L the Laplacian of the graph of honest nodes.

References: [1] Bellet, Cyffers, Frey, Gaudel, Lerévérend, Taïani, "Unified privacy guarantees for
decentralized learning via matrix factorization", arXiv 2510.17480; [2] Allouah, Koloskova, El Firdoussi,
Jaggi, Guerraoui, "The privacy power of correlated noise in decentralized learning", ICML 2024, Algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.observation.base import ObservationModel
from sottovoce.accounting.question import PrivacyQuestion
from sottovoce.accounting.release import ShareCurves
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network, takes_network


@dataclass(frozen=True)
class TimeCorrelated(ObservationModel):
    """Each agent's noise is correlated over the steps; only its local guarantee holds."""


@dataclass(frozen=True)
class PairCorrelated(ObservationModel):
    """Neighbors share noise that cancels in the mean, from seeds that only the two of them know.

    ``own_std`` and ``pair_std`` are the standard deviations of an agent's own noise and of the noise that
    each pair shares, per step.
    """

    network: Network
    own_std: float
    pair_std: float

    def guarantee(self, question: PrivacyQuestion) -> Guarantee:
        """Return the guarantee against a coalition that sees all messages and its own pair seeds."""
        coalitions = question.coalitions
        if question.view == "local" or not self.own_std or coalitions is None:
            return question.local_guarantee()
        curves = ShareCurves(question.method)
        for done, coalition in enumerate(coalitions, 1):
            # h is relative to the agent's own noise: the coalition lacks the seeds of honest pairs
            h = self.own_std**2 * decor_variances(self.network, self.own_std, self.pair_std, coalition)
            for u in question.users(coalition):
                self._check_noise(question, u)
                curves.add(question.counts(u), h[u])
            question.report_progress(done)
        assumptions = (
            "all messages may be seen; the seeds that honest neighbors share stay secret",
            "honest pairs draw their shared noise afresh in every step",
        )
        return question.answer("exact", curves.worst, assumptions)

    def _check_noise(self, question: PrivacyQuestion, agent: int) -> None:
        for release in question.releases(agent):
            if release.sensitivity and not math.isclose(release.noise_std, self.own_std, rel_tol=1e-9):
                raise InvalidInput(
                    f"agent {agent} lists noise {release.noise_std:g}, but the observation model says its "
                    f"own noise is {self.own_std:g}; they must be the same."
                )


@takes_network
def decor_variances(
    network: Network, private_std: float, shared_std: float, colluders: Iterable[int] = ()
) -> np.ndarray:
    """Return (n,): diagonal of (s_d^2 I + s_c^2 L_H)^-1 over honest nodes H; infinite for colluders.

    One step costs node i, per unit of squared shift, exactly this much mu^2.
    """
    honest = np.setdiff1d(np.arange(network.n), np.array(list(colluders), dtype=np.int64))
    inside = network.adjacency[honest][:, honest].toarray()
    laplacian = np.diag(inside.sum(axis=1)) - inside
    variances = np.full(network.n, math.inf)
    covariance = private_std**2 * np.eye(len(honest)) + shared_std**2 * laplacian
    variances[honest] = np.diagonal(np.linalg.inv(covariance))
    return variances
