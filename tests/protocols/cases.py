"""Protocols on small graphs, and helpers that run them."""

import numpy as np

import sottovoce as sv
from sottovoce.protocols import (
    AcceleratedRandomized,
    Chebyshev,
    Dropout,
    Gossip,
    HypercubeExchange,
    Randomized,
    TimeVarying,
    Tree,
    fresh_erdos_renyi,
)


class CountingNoise:
    """A noise source whose draws are a function of (agent, step, stream): enough to compare runners."""

    protective = False

    def perturb(self, values, *, agents, step, std, stream=0):
        draws = [np.random.default_rng([a, step, stream]).normal(size=values.shape[1]) for a in agents]
        return values + (std * np.array(draws)).astype(values.dtype)


def averaging_protocols():
    rng = np.random.default_rng(11)
    er = sv.graphs.erdos_renyi(10, 1.5, rng)
    return [
        Gossip(er, 6),
        Chebyshev(er, 6),
        Randomized(er, 60, rng),
        AcceleratedRandomized(er, 40, rng),
        AcceleratedRandomized(er, 40, rng, intensities="uniform"),
        TimeVarying([er, sv.graphs.ring(10), er]),
        fresh_erdos_renyi(10, 4, rng),
        Dropout.random(er, 6, rng, node_rate=0.3, edge_rate=0.1),
        HypercubeExchange(8),
        Tree(er),
        Tree(er, kind="uniform", rng=rng),
        Tree(er, kind="capped", rng=rng, max_children=1),
    ]


def random_tree(n, rng):
    """Every labeled tree equally likely."""
    return Tree(sv.graphs.complete(n), kind="uniform", rng=rng)


def run_locally(protocol, values, noise=None, step=0):
    """Return the rows that peers end with, and every row that was sent, by (round, sender, receiver)."""
    nodes = [protocol.node_state(v) for v in range(protocol.n)]
    for v, node in enumerate(nodes):
        node.start(values[v])
    sent = {}
    for t in range(protocol.rounds):
        outbox = {(v, to): node.message(t) for v, node in enumerate(nodes) for to in node.sends(t)}
        sent |= {(t, v, to): row for (v, to), row in outbox.items()}
        for v, node in enumerate(nodes):
            node.receive(t, {w: outbox[w, v] for w in node.expects(t)}, noise, step)
    return np.array([node.result() for node in nodes]), sent
