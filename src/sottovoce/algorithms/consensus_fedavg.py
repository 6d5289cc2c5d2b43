r"""Federated averaging over exact consensus: no server, whole members hidden.

.. math:: \Delta_i^k = \theta^k - \mathrm{local}_L(\theta^k; D_i), \qquad
          \theta^{k+1} = \theta^k - \eta_k\, \mathrm{opt}\Big(\frac{1}{n}\sum_i
          \mathrm{clip}_C(\Delta_i^k) + z C\,\xi_i\Big)

Every member takes L plain steps from the common model on its own records; its whole update is clipped and
gets noise once, and the exact mean moves the model through any of the optimizers. What happens inside an
update costs nothing more, so a member may pass over its records as often as it likes.

References: McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models",
ICLR 2018, Algorithm 1 (DP-FedAvg).
Departures: without the server: the mean is computed by a tree, an exchange or a masked sum, all of which end
in exact consensus; all members take part in every step, so nothing is amplified by who was sampled; the
update is stated as a direction of descent, so that a rate of 1 with plain steps is federated averaging.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sottovoce.accounting.guarantee import Adjacency
from sottovoce.algorithms.consensus_sgd import ConsensusSGD, consensus_sgd
from sottovoce.mechanisms.gradient import GradientMechanism
from sottovoce.runners import Algorithm


@dataclass(frozen=True, repr=False)
class ConsensusFedAvg(ConsensusSGD):
    """Federated averaging without a server, at user level. Parameters as `ConsensusSGD`, and

    local_steps : L, plain gradient steps of a member between two exchanges.
    local_rate : their learning rate; ``learning_rate`` is that of the common model, 1 for plain averaging.

    Guarantees
    ----------
    As `ConsensusSGD` at user level: replacing all records of a member moves its update by at most 2C,
    whatever it did with them; one release per step, exact against members, coalitions and the released model.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = ConsensusFedAvg(sv.objectives.GLM(), sv.graphs.ring(8), steps=10, clip_norm=1.0,
    ...                        noise_multiplier=8.0, local_steps=5)
    >>> plan.privacy("local").adjacency, sum(release.draws for release in plan.releases(0))
    ('user', 10)
    """

    learning_rate: Any = 1.0
    adjacency: Adjacency = "user"
    local_steps: int = 1
    local_rate: float = 0.1

    name = "consensus-fedavg"
    one_batch_per_step = False  # several local steps
    adjacencies = ("user",)
    query_kind = "local-update"

    def algorithm(self, mechanism: GradientMechanism, start: np.ndarray) -> Algorithm:
        """Return the update rule of the members that ``mechanism`` hosts; the l2 term acts in local steps."""

        def release(theta: np.ndarray, k: int) -> np.ndarray:
            return mechanism.local_update(theta, k, steps=self.local_steps, rate=self.local_rate)

        return consensus_sgd(release, start, self, self.average_from)
