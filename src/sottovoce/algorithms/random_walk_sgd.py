"""Random-walk SGD by one name: the option ``path`` chooses between a public and a secret path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sottovoce.algorithms.plan import Plan
from sottovoce.algorithms.public_walk_sgd import PublicWalkSGD
from sottovoce.algorithms.secret_walk_sgd import SecretWalkSGD


@dataclass(frozen=True, repr=False)
class RandomWalkSGD(PublicWalkSGD):
    """SGD carried by a token over a network, for linear models, networks and peers.

    Parameters are those of `GradientPlan`, with a network (or its name) in place of the protocol, and these:

    Parameters
    ----------
    path : ``"public"``: drawn from the public ``seed``, or given as one node per step: everybody knows it
        before the run. ``"secret"``: drawn during the run, at user level, for linear models simulated in one
        process; the plan is then a `SecretWalkSGD`.
    cap : contributions per node, all tokens together; beyond it a holder adds noise only (secret paths).
    tokens : independent tokens, whose models are averaged in the end (secret paths).
    feature_norm : public bound on |x|, for pairwise guarantees that use convexity (secret paths).
    final_public : whether the last holder hands the model to everybody. If not, every node keeps the model
        it saw last; with a secret path such a plan can be accounted but not run here, because the result of a
        run would hand the model out.

    Guarantees
    ----------
    An agent pays for each of its visits, and for nothing else; label "ldp" against everybody.

    Examples
    --------
    >>> import sottovoce as sv
    >>> from sottovoce.objectives import GLM
    >>> plan = RandomWalkSGD(GLM(), sv.graphs.ring(4), steps=10, clip_norm=1.0, noise_multiplier=2.0,
    ...                      adjacency="user", path=(0, 1, 2, 3, 0, 1, 2, 3, 0, 1))
    >>> [sum(r.draws for r in plan.releases(i)) for i in range(4)]
    [3, 3, 2, 2]
    >>> secret = RandomWalkSGD(GLM(), sv.graphs.complete(20), steps=400, learning_rate=0.5, clip_norm=1.0,
    ...                        noise_multiplier=8.0, adjacency="user", path="secret", cap=30)
    >>> secret.privacy("local").label, round(secret.privacy("local").mu, 3)
    ('ldp', 1.369)
    """

    @classmethod
    def _variant(cls, options: Mapping[str, Any]) -> type[Plan]:
        return SecretWalkSGD if options["path"] == "secret" else cls
