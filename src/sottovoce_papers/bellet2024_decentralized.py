"""Bellet 2024, talk "Privacy in decentralized machine learning": attacks, and a walk against gossip.

Figures 1 to 5 (El Mrini, Cyffers, Bellet 2024): nodes from gossip, pictures from gradient descent. The talk
prints pictures and no numbers; what must come out is their shape. Figures 1 to 3: reconstruction spreads from
the attacker with the rounds, more attackers know more, and on the ego graph the number a node reconstructs
depends on where it sits. Figures 4 and 5: on a line of 31 nodes the attacker at one end recovers inputs far
away; on the Florentine graph the success rate (PSNR of at least 10) depends on the attacker. A picture of one
grey scores about 10 as well, so results carry that score beside the attack's, and count pictures at least 3
decibels above it, of nodes with a determined gradient and of others apart. Departures: the network of the
MNIST figure is not given there; a small one with sigmoids is used (`line_network`), with fewer iterations.

The walk against gossip for averaging, loss by distance at equal noise in the result, twice: by our
accountants (the exact view; the walk's path is public), and as the talk draws it, the printed formula of the
walk against Theorem 1's formula (6) of gossip, neither of which is a bound of what is run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sottovoce import graphs, protocols
from sottovoce.accounting.published.formulas import published_loss, published_walk_loss
from sottovoce.attacks.gossip import gossip_attack, reconstruct_gossip, reconstructed_by_each
from sottovoce.attacks.inputs import draw_pictures
from sottovoce.data import data_folder
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network
from sottovoce.protocols import Gossip
from sottovoce.runners import Result
from sottovoce_papers import drawing
from sottovoce_papers.common import draw_curve, result
from sottovoce_papers.muffliato2022.losses import add_by_distance, by_distance
from sottovoce_papers.registry import Experiment, ResultTable, pick

# ---- nodes, from gossip (figures 1 to 3) -----------------------------------------------------------------


def geometric(
    quick: bool = False, *, n: int = 50, radius: float = 0.2, attacker: int = 0, seed: int = 1
) -> Result:
    """Figure 1: one geometric graph, nodes known to one attacker after 1, 2, ... rounds."""
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
    return result("attack-geometric", config, metrics=metrics, seed=seed)


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
    return result("attack-erdos-renyi", config, metrics=metrics, history=history, seed=seed)


def ego414(quick: bool = False, *, rounds: int = 10) -> Result:
    """Figure 3: the friendship graph around Facebook user 414; every node as the attacker."""
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
    return result("attack-ego414", config, metrics=metrics)


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


def geometric_table(record: dict[str, Any]) -> ResultTable:
    others = record["config"]["n"] - 1
    rows = tuple((int(r), count, count / others) for r, count in record["metrics"]["count"].items())
    return ResultTable(
        ("rounds", "nodes reconstructed", "share of the others"), rows, "One attacker, no noise."
    )


def geometric_held(record: dict[str, Any]) -> bool:
    """Whether reconstruction only grows with the rounds, and passes the neighbors."""
    counts = list(record["metrics"]["count"].values())
    return counts == sorted(counts) and counts[-1] > counts[0]


def plot_geometric(record: dict[str, Any]) -> Any:
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


def shares_table(record: dict[str, Any]) -> ResultTable:
    rows = tuple(
        (h["n"], h["p"], h["rounds"], h["attackers"], h["share"], h["std"]) for h in record["history"]
    )
    columns = ("nodes", "edge probability", "rounds", "attackers", "share reconstructed", "std over graphs")
    note = f"{record['config']['graphs']} random graphs each; the talk prints curves and no numbers."
    return ResultTable(columns, rows, note)


def shares_held(record: dict[str, Any]) -> bool:
    """Whether more attackers know more, on average."""
    means = [record["metrics"]["mean_share"][k] for k in sorted(record["metrics"]["mean_share"], key=int)]
    return means == sorted(means)


def plot_shares(record: dict[str, Any]) -> Any:
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


def ego_table(record: dict[str, Any]) -> ResultTable:
    metrics, others = record["metrics"], record["config"]["n"] - 1
    rows = tuple(
        (what, value, value / others)
        for what, value in (("least", metrics["least"]), ("mean", metrics["mean"]), ("most", metrics["most"]))
    )
    return ResultTable(
        ("over the attackers", "nodes reconstructed", "share of the others"), rows,
        f"{record['config']['graph']}, {record['config']['rounds']} rounds, {others + 1} attackers in turn.",
    )  # fmt: skip


def ego_held(record: dict[str, Any]) -> bool:
    """Whether what a node reconstructs depends on where it sits."""
    return record["metrics"]["most"] > record["metrics"]["least"]


def plot_ego(record: dict[str, Any]) -> Any:
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


# ---- pictures, from gradient descent (figures 4 and 5) ---------------------------------------------------


def line_cifar10(
    quick: bool = False, *, nodes: int = 31, steps: int | None = None, rate: float = 1e-4, noise: float = 0.0,
    repeats: int = 10, seed: int = 0,
) -> Result:  # fmt: skip
    """Figure 4, above: CIFAR-10 pictures, softmax regression, learning rate 1e-4, some draws of pictures."""
    from sottovoce.attacks.inputs import attack_softmax

    nodes, data, repeats = (10, "digits", 2) if quick else (nodes, "cifar10", repeats)

    def attacked(rng: np.random.Generator) -> tuple[np.ndarray, Any]:
        images, labels = draw_pictures(data, nodes, rng)
        return images, attack_softmax(
            graphs.path(nodes), 0, images, labels, steps=steps or nodes, learning_rate=rate, rng=rng,
            noise_std=noise, classes=10,
        )  # fmt: skip

    config = {"nodes": nodes, "data": data, "steps": steps or nodes, "rate": rate, "noise": noise}
    return _line("attack-line-cifar10", config, attacked, repeats, seed)


def line_mnist(
    quick: bool = False, *, nodes: int = 31, rate: float = 1e-6, iterations: int = 600, tv: float = 1e-3,
    repeats: int = 5, seed: int = 0,
) -> Result:  # fmt: skip
    """Figure 4, below: MNIST pictures, a convolutional network, learning rate 1e-6, gradients searched."""
    from sottovoce.attacks.inputs import attack_network

    nodes, data, iterations, repeats = (
        (5, "digits", 60, 2) if quick else (nodes, "mnist", iterations, repeats)
    )

    def attacked(rng: np.random.Generator) -> tuple[np.ndarray, Any]:
        images, labels = draw_pictures(data, nodes, rng)
        return images, attack_network(
            graphs.path(nodes), 0, images, labels, line_network(images.shape[-1], rng), steps=nodes,
            learning_rate=rate, rng=rng, iterations=iterations, tv=tv,
        )  # fmt: skip

    config = {
        "nodes": nodes, "data": data, "steps": nodes, "rate": rate, "iterations": iterations, "tv": tv,
    }  # fmt: skip
    return _line("attack-line-mnist", config, attacked, repeats, seed)


def _line(
    name: str, config: dict[str, Any], attacked: Callable[[np.random.Generator], tuple[np.ndarray, Any]],
    repeats: int, seed: int,
) -> Result:  # fmt: skip
    """Attack ``repeats`` draws of pictures; everything of the first is kept, of the others their scores.

    Whose gradient is determined the graph alone says, so it is the same in every draw.
    """
    from sottovoce.attacks.inputs import SUCCESS

    draws = [attacked(np.random.default_rng([seed, r] if r else seed)) for r in range(repeats)]
    images, first = draws[0]
    scores, grey = (np.array([getattr(attack, which) for _, attack in draws]) for which in ("psnr", "grey"))
    rows = []
    for u in first.attack.reached:
        score, one_grey = scores[:, u], grey[:, u]
        row = {"distance": u, "identifiable": u in first.attack.identifiable}
        row |= {"psnr": score.mean(), "psnr_std": score.std()}
        row |= {"psnr_of_grey": one_grey.mean(), "psnr_of_grey_std": one_grey.std()}
        better, success = int((score > one_grey).sum()), int((score >= SUCCESS).sum())
        rows.append({**row, "better_than_grey": better, "success": success})
    metrics = first.to_dict() | {"pictures": _thumbnails(images, first.inputs)}
    parts = {"outputs": {"images": images, "reconstructed": first.inputs}, "metrics": metrics}
    return result(name, {**config, "repeats": repeats}, history=rows, seed=seed, **parts)


def florentine(
    quick: bool = False, *, rate: float = 1e-5, steps: int = 7, repeats: int = 10, noise: float = 0.0,
    example: int = 5, seed: int = 0,
) -> Result:  # fmt: skip
    """Figure 5: every Florentine family as attacker, averaged over draws of pictures, one row per family."""
    from sottovoce.attacks.inputs import attack_softmax

    data, repeats = ("digits", 1) if quick else ("cifar10", repeats)
    network = graphs.florentine()
    rng = np.random.default_rng(seed)
    if not 0 <= example < network.n:
        raise InvalidInput(f"example must be a node from 0 to {network.n - 1}, got {example}.")
    options: dict[str, Any] = {"steps": steps, "learning_rate": rate, "noise_std": noise, "classes": 10}
    attacks: list[list[Any]] = [[] for _ in range(network.n)]
    for r in range(repeats):
        images, labels = draw_pictures(data, network.n, rng)
        for attacker, draws in enumerate(attacks):
            draws.append(attack_softmax(network, attacker, images, labels, rng=rng, **options))
        if r == 0:
            pictured = _thumbnails(images, attacks[example][0].inputs)
    rows = [_family(network.node_name(v), draws) for v, draws in enumerate(attacks)]
    config = {"data": data, "rate": rate, "steps": steps, "repeats": repeats, "noise": noise}
    metrics = {"example": {"attacker": example, "pictures": pictured}}
    return result("attack-florentine", config, metrics=metrics, history=rows, seed=seed)


def _family(name: Any, draws: list[Any]) -> dict[str, Any]:
    """Return what one attacker sees: shares of all others, and of those with a determined gradient or not."""
    system = draws[0].attack
    determined, others = set(system.identifiable), set(system.targets) - set(system.identifiable)
    success = [attack.success_rate for attack in draws]
    shares = {
        group: float(np.mean([len(nodes & set(a.above_grey)) for a in draws])) / len(nodes) if nodes else None
        for group, nodes in (("all", determined | others), ("identifiable", determined), ("others", others))
    }
    return {
        "attacker": str(name),
        "identifiable": len(determined),
        "above_grey": shares,
        "success_rate": float(np.mean(success)),
        "success_std": float(np.std(success)),
        "median_psnr": float(np.mean([np.median(a.psnr[list(system.targets)]) for a in draws])),
    }


def line_network(side: int, rng: np.random.Generator) -> Any:
    """Return the network of the MNIST figure: two strided convolutions with sigmoids, one linear layer."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        small = (side + 3) // 4
        net = torch.nn.Sequential(
            torch.nn.Conv2d(1, 8, 5, stride=2, padding=2), torch.nn.Sigmoid(),
            torch.nn.Conv2d(8, 8, 5, stride=2, padding=2), torch.nn.Sigmoid(),
            torch.nn.Flatten(), torch.nn.Linear(8 * small * small, 10),
        )  # fmt: skip
        for parameter in net.parameters():
            torch.nn.init.uniform_(parameter, -0.5, 0.5)
    return net


def _thumbnails(truth: np.ndarray, reconstructed: np.ndarray) -> dict[str, Any]:
    """Return both rows of pictures for a record: 8-bit values in base64, NaN as none."""
    import base64

    rows: dict[str, Any] = {"shape": list(truth.shape[1:])}
    for name, images in (("true", truth), ("reconstructed", reconstructed)):
        rows[name] = [
            None if np.isnan(image).any()
            else base64.b64encode(np.round(255 * image).astype(np.uint8).tobytes()).decode()
            for image in images
        ]  # fmt: skip
    return rows


def line_table(record: dict[str, Any]) -> ResultTable:
    repeats = record["config"]["repeats"]
    determined = sum(row["identifiable"] for row in record["history"])
    rows = tuple(
        (
            row["distance"], row["psnr"], row["psnr_std"], row["psnr_of_grey"], row["better_than_grey"],
            "yes" if row["better_than_grey"] > repeats / 2 else "no",
        )
        for row in record["history"]
    )  # fmt: skip
    back = sum(row["better_than_grey"] for row in record["history"]) / repeats
    reach = sum(row["success"] for row in record["history"]) / repeats
    return ResultTable(
        ("distance", "PSNR (dB)", "std", "PSNR of grey (dB)", f"better, of {repeats}", "comes back"),
        rows,
        f"Mean and std over {repeats} draws of pictures; {determined} of {len(rows)} gradients are "
        f"determined. Of {len(rows)} pictures {back:.3g} on average come back better "
        f"than one grey; {reach:.3g} reach the 10 decibels that the talk counts as success.",
    )


def line_held(record: dict[str, Any]) -> bool:
    """Whether most pictures come back better than grey in most draws, far ones among them."""
    rows = line_table(record).rows
    back = [row[0] for row in rows if row[-1] == "yes"]
    return len(back) > len(rows) / 2 and max(back) > max(row[0] for row in rows) / 2


def plot_line(record: dict[str, Any]) -> Any:
    rows, repeats = record["history"], record["config"]["repeats"]
    scored = [row["distance"] for row in rows]
    with drawing.figure_of(1, 2, width=8.2, height=2.6, height_ratios=(2.2, 1)) as (figure, panels):
        for k, which, label in ((0, "psnr", "reconstruction"), (6, "psnr_of_grey", "a picture of one grey")):
            drawing.error_bars(
                panels[0], scored, [row[which] for row in rows], [row[f"{which}_std"] for row in rows], k,
                label,
            )  # fmt: skip
        drawing.level(panels[0], 10.0, "10 dB: success in the talk", 4)
        title = f"{record['name']}: mean and std over {repeats} draws of pictures"
        drawing.names(panels[0], "distance from the attacker (hops)", "PSNR (dB)", title)
        pictures = record["metrics"].get("pictures")
        if pictures is not None:
            drawing.picture_rows(panels[1], pictures, scored)
            panels[1].set_title("above: held by the nodes, by distance; below: reconstructed", fontsize=9)
        panels[1].set_axis_off()
    return figure


def florentine_table(record: dict[str, Any]) -> ResultTable:
    rows = (
        (*head, *(shares[group] for group in ("identifiable", "others", "all")), *rest)
        for head, shares, rest in zip(
            pick(record["history"], "attacker", "identifiable"),
            (row["above_grey"] for row in record["history"]),
            pick(record["history"], "success_rate", "success_std", "median_psnr"),
            strict=True,
        )
    )
    columns = (
        "attacker", "identifiable nodes", "share of them", "share of the others", "share of all",
        "10 dB or more", "std over draws", "median PSNR (dB)",
    )  # fmt: skip
    config = record["config"]
    return ResultTable(
        columns, tuple(sorted(rows, key=lambda row: -row[4])),
        "Shares of pictures at least 3 dB better than one grey, and of those with a PSNR of at least 10, "
        f"after {config['steps']} steps; {config['repeats']} draws of pictures.",
    )  # fmt: skip


def florentine_held(record: dict[str, Any]) -> bool:
    """Whether success depends on the attacker."""
    rates = [row["above_grey"]["all"] for row in record["history"]]
    return max(rates) > min(rates)


def plot_florentine(record: dict[str, Any]) -> Any:
    rows, example, network = record["history"], record["metrics"]["example"], graphs.florentine()
    edges, families = network.edges.tolist(), [row["attacker"] for row in rows]
    with drawing.figure_of(1, 2, width=7.4, height=3.0, height_ratios=(4, 1)) as (figure, panels):
        shares = [row["above_grey"]["all"] for row in rows]
        points = drawing.graph(panels[0], edges, drawing.layout(edges, network.n), shares, families)
        figure.colorbar(points, ax=panels[0], shrink=0.8, label="share at least 3 dB above grey")
        steps = record["config"]["steps"]
        panels[0].set_title(f"softmax regression by gossip, {steps} steps, one picture per family")
        shown = [u for u in range(len(example["pictures"]["true"])) if u != example["attacker"]]
        drawing.picture_rows(panels[1], example["pictures"], shown)
        panels[1].set_axis_off()
        who = families[example["attacker"]]
        panels[1].set_title(f"above: the others' pictures; below: what {who} reconstructs", fontsize=9)
    return figure


METHODS = ("walk", "gossip", "walk, printed formula", "gossip, formula (6)")


def averaging(
    quick: bool = False, *, n: int = 64, visits: int = 8, draws: int = 5, observers: int = 6, seed: int = 0
) -> Result:
    """Return loss by distance of walk and gossip whose results carry the same noise, on four graphs.

    Gossip adds noise of variance s^2 once and keeps s^2 / n of it; a walk of T hops adds v in every hop and
    keeps v / T of it, so v = s^2 T / n. Losses are in units of gossip's local loss.
    """
    if quick:
        n, visits, draws, observers = 16, 3, 1, 2
    rng = np.random.default_rng(seed)
    d = n.bit_length() - 1
    networks = {
        "complete": graphs.complete(n),
        "hypercube": graphs.hypercube(d),
        "geometric": graphs.geometric(n, 2.2 * math.sqrt(math.log(n) / (math.pi * n)), rng),
        "ring": graphs.ring(n),
    }
    by_graph: dict[str, Any] = {}
    for name, network in networks.items():
        rounds = protocols.rounds_for(network)
        chebyshev = protocols.Chebyshev(network, rounds)
        remaining = float((chebyshev.apply(np.eye(network.n)) ** 2).sum(axis=1).mean())  # about 1 / n
        who = rng.choice(network.n, size=min(observers, network.n), replace=False).tolist()
        losses: dict[str, dict[int, list[float]]] = {method: {} for method in METHODS}
        hops = visits * network.n
        printed = published_walk_loss(network, hops) / (hops * remaining), published_loss(network, rounds)
        for _ in range(draws):
            walk = protocols.Walk(network, hops, rng, final_public=True)
            for v in who:
                # per unit of the walk's noise; the same noise in the result makes it kept * T times gossip's
                add_by_distance(losses["walk"], network, v, walk.view(v).leakage() / (hops * remaining))
        for v in who:
            exact = protocols.Gossip(network, rounds).view(v).leakage()
            for method, loss in zip(METHODS[1:], (exact, *(table[:, v] for table in printed)), strict=True):
                add_by_distance(losses[method], network, v, loss)
        by_graph[name] = {"n": network.n, "rounds": rounds, "hops": hops}
        for method, by in losses.items():
            mean = float(np.mean([x for values in by.values() for x in values]))
            by_graph[name][method] = {**by_distance(by), "mean": mean}
    config = {"n": n, "visits": visits, "draws": draws, "seed": seed}
    return result("walk-vs-gossip-averaging", config, metrics=by_graph, seed=seed)


def averaging_table(record: dict[str, Any]) -> ResultTable:
    rows = []
    for graph, f in record["metrics"].items():
        for method in METHODS:
            loss, count = f[method]["loss"], f["hops" if "walk" in method else "rounds"]
            rows.append((graph, method, count, f[method]["mean"], loss[0], loss[-1]))
    columns = ("graph", "method", "hops or rounds", "mean loss", "neighbors", "furthest")
    smaller = [graph for graph, f in record["metrics"].items() if _closer(f, *METHODS[2:])]
    note = (
        "Losses at the same noise in the result, in units of gossip's local loss (1). In the talk's "
        f"accounting neighbors learn less from the walk on: {', '.join(smaller) or 'none of the graphs'}."
    )
    return ResultTable(columns, tuple(rows), note, dict.fromkeys(columns[3:], "loss"))


def averaging_held(record: dict[str, Any]) -> bool:
    """Whether neighbors learn less from the walk than from gossip, on every graph."""
    return all(_closer(f, *METHODS[:2]) for f in record["metrics"].values())


def _closer(by_method: Mapping[str, Any], walk: str, gossip: str) -> bool:
    return bool(by_method[walk]["loss"][0] <= by_method[gossip]["loss"][0])


def plot_averaging(record: dict[str, Any]) -> Any:
    by_graph = record["metrics"]
    with drawing.figure_of(len(by_graph), width=3.0 * len(by_graph), sharey=True) as (figure, panels):
        for panel, (graph, f) in zip(panels, by_graph.items(), strict=True):
            for k, method in enumerate(METHODS):
                draw_curve(panel, f[method]["distances"], f[method], k, method, floor=1e-4, middle="loss")
            drawing.level(panel, 1.0, "local, gossip")
            labels = "distance (hops)", "loss at equal utility", f"{graph}, n = {f['n']}"
            drawing.names(panel, *labels, legend=panel is panels[0], yscale="log")
    return figure


EXPERIMENTS = {
    "attack-line-cifar10": Experiment(line_cifar10, plot_line, line_table, line_held),
    "attack-line-mnist": Experiment(line_mnist, plot_line, line_table, line_held),
    "attack-florentine": Experiment(florentine, plot_florentine, florentine_table, florentine_held),
    "attack-geometric": Experiment(geometric, plot_geometric, geometric_table, geometric_held),
    "attack-erdos-renyi": Experiment(erdos_renyi, plot_shares, shares_table, shares_held),
    "attack-ego414": Experiment(ego414, plot_ego, ego_table, ego_held),
    "walk-vs-gossip-averaging": Experiment(averaging, plot_averaging, averaging_table, averaging_held),
}
