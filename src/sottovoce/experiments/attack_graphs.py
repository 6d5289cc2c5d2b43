"""How much of a graph is reconstructed from gossip: geometric, Erdős-Rényi and a real friendship graph.

Paper: Bellet, talk "Privacy in decentralized machine learning", 2024, figures 1 to 3 (El Mrini, Cyffers,
Bellet 2024). The talk prints pictures and no numbers; what must come out is their shape: reconstruction
spreads from the attacker with the rounds, more attackers know more, and on the ego graph the number a node
reconstructs depends on where it sits.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from sottovoce.experiments.registry import Experiment
from sottovoce.graphs import Network
from sottovoce.runners import Result
from sottovoce.runners.base import provenance_now

__all__ = ["EXPERIMENTS", "ego_414"]

TALK = "Bellet 2024 (talk), El Mrini, Cyffers, Bellet 2024"


def geometric(
    quick: bool = False, *, n: int = 50, radius: float = 0.2, attacker: int = 0, seed: int = 1
) -> Result:
    """Figure 1: one geometric graph, nodes known to one attacker after 1, 2, ... rounds."""
    from sottovoce import graphs
    from sottovoce.attacks.gossip import reconstruct_gossip

    started = time.perf_counter()
    if quick:
        n, radius = 20, 0.4
    network = graphs.geometric(n, radius, np.random.default_rng(seed))
    schedule = [1, 2, 3, 5, 8, 12, 20, 35, n]
    known = {rounds: sorted(reconstruct_gossip(network, attacker, rounds)) for rounds in schedule}
    return Result(
        "attack-geometric",
        config={"n": n, "radius": radius, "attacker": attacker, "seed": seed, "edges": network.edges},
        metrics={
            "count": {str(r): len(nodes) for r, nodes in known.items()},
            "nodes": {str(r): k for r, k in known.items()},
        },
        provenance=provenance_now(started, seed=seed),
    )


def erdos_renyi(
    quick: bool = False,
    *,
    sizes: tuple[int, ...] = (20, 40, 60, 80),
    probabilities: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5),
    attackers: tuple[int, ...] = (1, 2, 3),
    graphs: int = 20,
    rounds: tuple[int, ...] = (2, 3, 5),
    seed: int = 0,
) -> Result:
    """Figure 2: average share of nodes reconstructed over random graphs, for 1, 2, 3 attackers."""
    from sottovoce.attacks.gossip import gossip_attack
    from sottovoce.protocols import Gossip

    started = time.perf_counter()
    if quick:
        sizes, probabilities, graphs, rounds = (12, 20), (0.3, 0.5), 4, (2, 3)
    rng = np.random.default_rng(seed)
    history = []
    for n in sizes:
        for p in probabilities:
            drawn = [_connected(n, p, rng) for _ in range(graphs)]
            for k in attackers:
                for r in rounds:
                    shares = [
                        len(gossip_attack(Gossip(g, r), rng.choice(n, k, replace=False)).nodes) / (n - k)
                        for g in drawn
                    ]
                    history.append({
                        "n": n, "p": p, "attackers": k, "rounds": r,
                        "share": float(np.mean(shares)), "std": float(np.std(shares)),
                    })  # fmt: skip
    by_attackers = {
        str(k): float(np.mean([h["share"] for h in history if h["attackers"] == k])) for k in attackers
    }
    return Result(
        "attack-erdos-renyi",
        config={"sizes": sizes, "probabilities": probabilities, "graphs": graphs, "rounds": rounds},
        metrics={"mean_share": by_attackers},
        history=history,
        provenance=provenance_now(started, seed=seed),
    )


def ego414(quick: bool = False, *, rounds: int = 10) -> Result:
    """Figure 3: the friendship graph around Facebook user 414; every node as the attacker."""
    from sottovoce import graphs
    from sottovoce.attacks.gossip import reconstructed_by_each
    from sottovoce.protocols import Gossip

    started = time.perf_counter()
    network, rounds = (graphs.karate(), 3) if quick else (ego_414(), rounds)
    by_each = reconstructed_by_each(Gossip(network, rounds))
    counts = [len(nodes) for nodes in by_each]
    best = int(np.argmax(counts))
    return Result(
        "attack-ego414",
        config={"graph": network.name, "n": network.n, "rounds": rounds, "edges": network.edges},
        metrics={
            "counts": counts, "mean": float(np.mean(counts)), "least": min(counts), "most": max(counts),
            "best_attacker": best, "best_reconstructs": by_each[best],
            "degrees": network.degrees,
        },
        provenance=provenance_now(started),
    )  # fmt: skip


def ego_414() -> Network:
    """Return the largest component of Facebook's ego graph 414: 148 nodes, 1692 edges."""
    from sottovoce import graphs
    from sottovoce.data import data_folder

    file = data_folder("facebook_ego") / "414.edges.gz"
    return graphs.from_edges(file, largest_component=True, name="ego-414")


def _connected(n: int, p: float, rng: np.random.Generator) -> Network:
    """Draw G(n, p) until it is connected; where that hardly happens, keep the largest component."""
    import networkx as nx

    from sottovoce import graphs

    for _ in range(200):
        graph = nx.gnp_random_graph(n, p, seed=int(rng.integers(2**31)))
        if nx.is_connected(graph):
            return graphs.from_networkx(graph)
    edges: list[Any] = list(graph.edges)
    largest = max(nx.connected_components(graph), key=len)
    for node in sorted(set(graph) - largest):
        edges.append((node, min(largest)))
    return graphs.from_networkx(nx.Graph(edges))


EXPERIMENTS = {
    "attack-geometric": Experiment(
        "Nodes reconstructed on a geometric graph, round by round", f"{TALK}, figure 1", geometric
    ),
    "attack-erdos-renyi": Experiment(
        "Share reconstructed on Erdős-Rényi graphs, 1 to 3 attackers", f"{TALK}, figure 2", erdos_renyi
    ),
    "attack-ego414": Experiment(
        "Every node of Facebook ego graph 414 as attacker", f"{TALK}, figure 3", ego414
    ),
}
