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

from sottovoce import graphs
from sottovoce.attacks.gossip import gossip_attack, reconstruct_gossip, reconstructed_by_each
from sottovoce.data import data_folder
from sottovoce.graphs import Network
from sottovoce.protocols import Gossip
from sottovoce.runners import Result
from sottovoce_papers import drawing
from sottovoce_papers.common import result
from sottovoce_papers.registry import Experiment, Shown

TALK = "Bellet 2024 (talk), El Mrini, Cyffers, Bellet 2024"


def geometric(
    quick: bool = False, *, n: int = 50, radius: float = 0.2, attacker: int = 0, seed: int = 1
) -> Result:
    """Figure 1: one geometric graph, nodes known to one attacker after 1, 2, ... rounds."""
    started = time.perf_counter()
    if quick:
        n, radius = 20, 0.4
    network = graphs.geometric(n, radius, np.random.default_rng(seed))
    schedule = [1, 2, 3, 5, 8, 12, 20, 35, n]
    known = {rounds: sorted(reconstruct_gossip(network, attacker, rounds)) for rounds in schedule}
    config = {"n": n, "radius": radius, "attacker": attacker, "seed": seed, "edges": network.edges}
    metrics = {
        "count": {str(r): len(nodes) for r, nodes in known.items()},
        "nodes": {str(r): k for r, k in known.items()},
    }
    return result("attack-geometric", started, config, metrics=metrics, seed=seed)


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
    config = {"sizes": sizes, "probabilities": probabilities, "graphs": graphs, "rounds": rounds}
    metrics = {"mean_share": by_attackers}
    return result("attack-erdos-renyi", started, config, metrics=metrics, history=history, seed=seed)


def ego414(quick: bool = False, *, rounds: int = 10) -> Result:
    """Figure 3: the friendship graph around Facebook user 414; every node as the attacker."""
    started = time.perf_counter()
    network, rounds = (graphs.karate(), 3) if quick else (ego_414(), rounds)
    by_each = reconstructed_by_each(Gossip(network, rounds))
    counts = [len(nodes) for nodes in by_each]
    best = int(np.argmax(counts))
    config = {"graph": network.name, "n": network.n, "rounds": rounds, "edges": network.edges}
    metrics = {
        "counts": counts,
        "mean": float(np.mean(counts)),
        "least": min(counts),
        "most": max(counts),
        "best_attacker": best,
        "best_reconstructs": by_each[best],
        "degrees": network.degrees,
    }
    return result("attack-ego414", started, config, metrics=metrics)


def ego_414() -> Network:
    """Return the largest component of Facebook's ego graph 414: 148 nodes, 1692 edges."""
    file = data_folder("facebook_ego") / "414.edges.gz"
    return graphs.from_edges(file, largest_component=True, name="ego-414")


def _connected(n: int, p: float, rng: np.random.Generator) -> Network:
    """Draw G(n, p) until it is connected; where that hardly happens, keep the largest component."""
    import networkx as nx

    for _ in range(200):
        graph = nx.gnp_random_graph(n, p, seed=int(rng.integers(2**31)))
        if nx.is_connected(graph):
            return graphs.from_networkx(graph)
    edges: list[Any] = list(graph.edges)
    largest = max(nx.connected_components(graph), key=len)
    for node in sorted(set(graph) - largest):
        edges.append((node, min(largest)))
    return graphs.from_networkx(nx.Graph(edges))


def geometric_table(record: dict[str, Any]) -> Shown:
    """Return how many nodes are known after how many rounds."""
    others = record["config"]["n"] - 1
    rows = tuple((int(r), count, count / others) for r, count in record["metrics"]["count"].items())
    return Shown(("rounds", "nodes reconstructed", "share of the others"), rows, "One attacker, no noise.")


def geometric_held(record: dict[str, Any]) -> bool:
    """Whether reconstruction only grows with the rounds, and passes the neighbors."""
    counts = list(record["metrics"]["count"].values())
    return counts == sorted(counts) and counts[-1] > counts[0]


def plot_geometric(record: dict[str, Any]) -> Any:
    """Draw the graph after three numbers of rounds: attacker, reconstructed, not reconstructed."""
    config, nodes = record["config"], record["metrics"]["nodes"]
    rounds = sorted(nodes, key=int)
    chosen = [rounds[0], rounds[len(rounds) // 2], rounds[-1]]
    positions = drawing.layout(config["edges"], config["n"])
    with drawing.figure_of(3, height=3.2) as (figure, panels):
        for panel, after in zip(panels, chosen, strict=True):
            drawing.attacked(panel, config["edges"], positions, config["attacker"], nodes[after])
            counted = f"after {after} round{'s' if int(after) > 1 else ''}"
            panel.set_title(f"{counted}: {len(nodes[after])} of {config['n'] - 1}")
        panels[0].legend(loc="upper left", labelcolor=drawing.INK)
    return figure


def shares_table(record: dict[str, Any]) -> Shown:
    """Return the share reconstructed by size, density, rounds and number of attackers."""
    rows = tuple(
        (h["n"], h["p"], h["rounds"], h["attackers"], h["share"], h["std"]) for h in record["history"]
    )
    columns = ("nodes", "edge probability", "rounds", "attackers", "share reconstructed", "std over graphs")
    note = f"{record['config']['graphs']} random graphs each; the talk prints curves and no numbers."
    return Shown(columns, rows, note)


def shares_held(record: dict[str, Any]) -> bool:
    """Whether more attackers know more, on average."""
    means = [record["metrics"]["mean_share"][k] for k in sorted(record["metrics"]["mean_share"], key=int)]
    return means == sorted(means)


def plot_shares(record: dict[str, Any]) -> Any:
    """Draw the share reconstructed over the size, densities across and rounds down, with std over graphs."""
    history = record["history"]
    densities = sorted({h["p"] for h in history})
    cells = [(rounds, p) for rounds in sorted({h["rounds"] for h in history}) for p in densities]
    columns, rows = len(densities), len(cells) // len(densities)
    with drawing.figure_of(columns, rows, width=2.9 * columns, height=2.5, sharey=True) as (figure, panels):
        for panel, (rounds, p) in zip(panels, cells, strict=True):
            for k, attackers in enumerate(sorted({h["attackers"] for h in history})):
                line = [
                    h for h in history
                    if (h["p"], h["rounds"], h["attackers"]) == (p, rounds, attackers)
                ]  # fmt: skip
                share, std = (np.array([h[key] for h in line]) for key in ("share", "std"))
                bars = [np.minimum(std, share), np.minimum(std, 1 - share)]  # a share stays within 0 and 1
                drawing.error_bars(
                    panel, [h["n"] + 2 * (k - 1) for h in line], share, bars, k,
                    f"{attackers} attacker{'s' if attackers > 1 else ''}",
                )  # fmt: skip
            panel.set_xticks(sorted({h["n"] for h in history}))
            drawing.names(
                panel, "nodes", "share reconstructed", f"p = {p:g}, {rounds} rounds",
                legend=panel is panels[0], ylim=(-0.05, 1.08),
            )  # fmt: skip
    return figure


def ego_table(record: dict[str, Any]) -> Shown:
    """Return how many others a node reconstructs: least, mean, most."""
    metrics, others = record["metrics"], record["config"]["n"] - 1
    rows = tuple(
        (what, value, value / others)
        for what, value in (("least", metrics["least"]), ("mean", metrics["mean"]), ("most", metrics["most"]))
    )
    return Shown(
        ("over the attackers", "nodes reconstructed", "share of the others"), rows,
        f"{record['config']['graph']}, {record['config']['rounds']} rounds, {others + 1} attackers in turn.",
    )  # fmt: skip


def ego_held(record: dict[str, Any]) -> bool:
    """Whether what a node reconstructs depends on where it sits."""
    return record["metrics"]["most"] > record["metrics"]["least"]


def plot_ego(record: dict[str, Any]) -> Any:
    """Draw every node colored by how many it reconstructs, and the best placed attacker in detail."""
    config, metrics = record["config"], record["metrics"]
    positions = drawing.layout(config["edges"], config["n"])
    with drawing.figure_of(2, height=4.0, width=9.0) as (figure, panels):
        points = drawing.graph(panels[0], config["edges"], positions, metrics["counts"])
        figure.colorbar(points, ax=panels[0], shrink=0.8, label="nodes it reconstructs")
        panels[0].set_title("every node as the attacker")
        drawing.attacked(
            panels[1], config["edges"], positions, metrics["best_attacker"], metrics["best_reconstructs"]
        )
        panels[1].set_title(f"node {metrics['best_attacker']}: {metrics['most']} of {config['n'] - 1}")
        panels[1].legend(loc="upper left", labelcolor=drawing.INK)
    return figure


EXPERIMENTS = {
    "attack-geometric": Experiment(
        "Nodes reconstructed on a geometric graph, round by round", f"{TALK}, figure 1", geometric,
        plot_geometric, table=geometric_table, held=geometric_held,
        claim="Without noise reconstruction spreads from the attacker with the rounds of gossip.",
    ),
    "attack-erdos-renyi": Experiment(
        "Share reconstructed on Erdős-Rényi graphs, 1 to 3 attackers", f"{TALK}, figure 2", erdos_renyi,
        plot_shares, table=shares_table, held=shares_held,
        claim="A few attackers reconstruct a large share of a random graph; more attackers, more nodes.",
    ),
    "attack-ego414": Experiment(
        "Every node of Facebook ego graph 414 as attacker", f"{TALK}, figure 3", ego414,
        plot_ego, table=ego_table, held=ego_held,
        claim="On a real friendship graph what a node reconstructs depends on where it sits.",
    ),
}  # fmt: skip
