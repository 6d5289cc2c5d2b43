"""An algorithm of your own: what is sent, how a row is updated, and what an adversary observes of it.

Here: sign descent over exact consensus. Every step the noisy gradients are averaged exactly and the model moves
by the rate in the direction of each coordinate's sign. The mechanism clips, draws and charges; this file says
what to do with what comes out.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import sottovoce as sv
from sottovoce.algorithms.gradient_plan import GradientPlan
from sottovoce.accounting.observation import Consensus
from sottovoce.runners import Algorithm, State


@dataclass(frozen=True, repr=False)
class SignDescent(GradientPlan):
    """Options, privacy cost, budget, checkpoints and plan files come from GradientPlan."""

    name: ClassVar[str] = "sign-descent"
    needs: ClassVar[tuple[str, ...]] = ("reaches_consensus",)  # a protocol that ends with the same mean everywhere
    default_protocol: ClassVar[str] = "tree:kind=uniform"
    maskable: ClassVar[bool] = True  # its message is a release, untouched
    uses_optimizer: ClassVar[bool] = False

    @property
    def observation(self):
        return Consensus()  # the model is common knowledge, so views of steps compose

    def algorithm(self, source, start):
        return Algorithm(
            init=lambda: State((start,), ()),
            message=lambda state, k: source(state.common[0], k),  # clip, add noise, check against the plan
            update=lambda state, received, k: State(
                (state.common[0] - self.rate(k) * np.sign(received),), ()
            ),
            output=lambda state: state.common[0],
        )


def toy(sites=8, each=200, seed=3):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(sites * each, 5))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.where(X @ [2.0, -1.0, 1.0, 0.5, -2.0] + 0.1 * rng.normal(size=len(X)) > 0, 1.0, -1.0)
    return sv.data.Shards(X, y, np.arange(0, sites * each + 1, each))


if __name__ == "__main__":
    data = toy()
    plan = SignDescent.for_budget(
        sv.objectives.GLM(dim=5), "masked", network="complete:8", steps=30, clip_norm=1.0, learning_rate=(0.5, 0.05),
        sizes=data.sizes.tolist(), epsilon=2.0, delta=1e-5,
    )
    result = plan.run(data, np.random.default_rng(0))
    right = np.mean(np.sign(data.X @ result.outputs["coef"]) == data.y)
    print(f"accuracy {right:.3f}; {plan.privacy().statement(1e-5)}")
    print(sv.advice.usefulness(plan, sample="synthetic"))
