"""An averaging protocol of your own: a public sequence of sparse matrices, and nothing else.

Node v's state after round t is row v of ``matrix(t) @ state``; its messages are read off the matrix. The runner
executes it, the accountant measures what an observer sees, the attack exploits it: all from these few lines.
"""

import numpy as np
from scipy import sparse

import sottovoce as sv


class TwoStars(sv.protocols.LinearProtocol):
    """Odd rounds average with node 0, even rounds with the last node: two hubs take turns."""

    name = "two-stars"

    def __init__(self, n, rounds):
        self.n, self.rounds = n, rounds
        self._matrices = [self._star(0), self._star(n - 1)]

    def _star(self, hub):
        W = np.eye(self.n)
        for v in range(self.n):
            if v != hub:  # doubly stochastic, so the mean of all is kept
                W[v, v] -= 1 / self.n
                W[v, hub] += 1 / self.n
                W[hub, v] += 1 / self.n
                W[hub, hub] -= 1 / self.n
        return sparse.csr_array(W)

    def matrix(self, t):
        return self._matrices[t % 2]


def build(network, rounds, options, rng):
    """What an entry point of the group sottovoce.protocols names: then plan files know `two-stars:6`."""
    return TwoStars(network.n, 2 * network.n if rounds is None else rounds)


if __name__ == "__main__":
    protocol = TwoStars(8, rounds=60)
    plan = sv.PrivateAveraging.for_budget(protocol, radius=0.5, epsilon=12.0, delta=1e-5)
    values = np.linspace(-0.5, 0.5, 8) ** 2
    result = plan.run(values, np.random.default_rng(0))
    print(f"truth {values.mean():.3f}, answers {result.outputs['rows'].ravel().round(3).tolist()}")
    print(f"{sv.advice.usefulness(plan)}")
    print(f"what node 1 learns of the others: {protocol.view(1).leakage().round(3).tolist()}")
    print(f"without noise node 1 can compute the values of nodes {sv.attacks.gossip_attack(protocol, [1]).nodes}")
