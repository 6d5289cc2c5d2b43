"""What single nodes learn in Muffliato: by distance, on ego graphs, under dropout, on fresh graphs.

Figure 1(a), 1(b), 1(c, top) and Appendix H. All losses are exact, as a share of the local loss: 1 is what
local privacy alone would give. `topologies` is figure 1(a): one averaging with the theoretical number of
rounds, sigma 1; the paper plots its equation (6); here the exact loss stands beside it, with the share of
pairs that the equation understates.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.spatial import cKDTree
from scipy.stats import spearmanr

import sottovoce as sv
from sottovoce import graphs, privacy, protocols
from sottovoce.data import data_folder
from sottovoce.errors import DataError
from sottovoce.runners.base import Result
from sottovoce_papers import drawing
from sottovoce_papers.common import draw_curve, result
from sottovoce_papers.registry import Experiment, ResultTable


def ego_loss(quick: bool = False, *, egos: tuple[int, ...] = (414, 686, 698, 3980), seed: int = 0) -> Result:
    """Return what every node learns of one user drawn at random, on Facebook ego graphs."""
    rng = np.random.default_rng(seed)
    by_graph: dict[str, Any] = {}
    for ego in (0,) if quick else egos:
        network = graphs.karate() if quick else ego_network(ego)
        if network is None:
            raise DataError("the ego graphs need the folder facebook_ego; name it by SOTTOVOCE_DATA.")
        rounds = protocols.rounds_for(network)
        user = int(rng.integers(network.n))
        loss = privacy.exact_loss(network, rounds=rounds)[user]  # to every observer
        printed = privacy.published_loss(network, rounds=rounds)[user]
        loss[user] = printed[user] = 0.0
        far = network.distances_from(user)
        by_graph["karate" if quick else f"ego-{ego}"] = {
            "n": network.n, "rounds": rounds, "user": user, "loss": loss, "edges": network.edges,
            "distances": far, "mean": float(np.delete(loss, user).mean()),
            "mean_of_neighbors": float(loss[far == 1].mean()), "published": printed,
            "published_beyond_two_hops": float(printed[far > 2].mean()) if (far > 2).any() else None,
            "mean_beyond_two_hops": float(loss[far > 2].mean()) if (far > 2).any() else None,
        }  # fmt: skip
    return result("ego-loss", {"egos": egos, "seed": seed}, metrics=by_graph, seed=seed)


def ego_table(record: dict[str, Any]) -> ResultTable:
    rows = tuple(
        (name, f["n"], f["rounds"], f["user"], f["mean_of_neighbors"], f["mean"], f["mean_beyond_two_hops"],
         f["published_beyond_two_hops"])
        for name, f in record["metrics"].items()
    )  # fmt: skip
    columns = (
        "graph", "nodes", "rounds", "user", "neighbors learn", "mean", "ours: beyond two hops (exact)",
        "paper: beyond two hops, formula (6)",
    )  # fmt: skip
    note = "Loss towards others as a share of the local loss. The paper draws formula (6), not a bound."
    return ResultTable(columns, rows, note, dict.fromkeys(columns[4:], "share"))


def ego_held(record: dict[str, Any]) -> bool:
    """Whether nodes beyond two hops learn less than half of what neighbors learn, on every graph."""
    far = [f for f in record["metrics"].values() if f["mean_beyond_two_hops"] is not None]
    return all(f["mean_beyond_two_hops"] < f["mean_of_neighbors"] / 2 for f in far)


def plot_ego(record: dict[str, Any]) -> Any:
    by_graph = record["metrics"]
    columns = len(by_graph)
    with drawing.figure_of(columns, 2, width=2.9 * columns + 0.8, height=2.9) as (figure, panels):
        for k, (name, one) in enumerate(by_graph.items()):
            positions = drawing.layout(one["edges"], one["n"])
            for panel, values, kind in (
                (panels[k], np.minimum(one["published"], 1), "formula (6)"),
                (panels[columns + k], one["loss"], "exact"),
            ):
                points = drawing.graph(panel, one["edges"], positions, values, vmin=0, vmax=1)
                panel.scatter(
                    *positions[one["user"]], marker="*", s=160, color=drawing.COLORS[1], zorder=4,
                    label="the user",
                )  # fmt: skip
                panel.set_title(f"{name}, n = {one['n']}, {one['rounds']} rounds: {kind}", fontsize=9)
        panels[0].legend(labelcolor=drawing.INK)
        figure.colorbar(points, ax=panels, shrink=0.7, label="loss of the user towards a node (local = 1)")
    return figure


def geometric_distance(
    quick: bool = False, *, n: int = 512, radius: float = 0.1, observers: int = 4, seed: int = 0
) -> Result:
    """Return the exact loss over hops and over Euclidean distance on a random geometric graph."""
    import networkx as nx

    if quick:
        n, radius, observers = 60, 0.3, 1
    rng = np.random.default_rng(seed)
    while True:  # until connected
        positions = rng.random((n, 2))
        graph = nx.Graph()
        graph.add_nodes_from(range(n))
        graph.add_edges_from(cKDTree(positions).query_pairs(radius))
        if nx.is_connected(graph):
            break
    network = graphs.from_networkx(graph)
    rounds = protocols.rounds_for(network)
    hops: list[int] = []
    distance: list[float] = []
    loss: list[float] = []
    printed: list[float] = []
    formula = privacy.published_loss(network, rounds=rounds)
    for v in rng.choice(n, size=observers, replace=False).tolist():
        h = privacy.exact_loss(network, rounds=rounds, observer=v)
        others = np.arange(n) != v
        hops += network.distances_from(v)[others].tolist()
        distance += np.linalg.norm(positions - positions[v], axis=1)[others].round(4).tolist()
        loss += h[others].round(6).tolist()
        printed += formula[others, v].round(6).tolist()
    correlations = {
        "rank_correlation_hops": _ranked(hops, printed),
        "rank_correlation_distance": _ranked(distance, printed),
    }
    config = {"n": n, "radius": radius, "observers": observers, "seed": seed, "rounds": rounds}
    metrics = {"hops": hops, "distance": distance, "loss": loss, "published": printed, **correlations}
    return result("geometric-distance", config, metrics=metrics, seed=seed)


def _ranked(x: list[Any], y: list[float]) -> float | None:
    """Rank correlation; None where all values are alike."""
    return None if len(set(y)) < 2 else float(spearmanr(x, y).statistic)


def _bins(distance: Any, loss: Any, count: int = 10) -> list[tuple[float, float, float, float]]:
    """Return (middle, mean, least, most) of the loss over equal ranges of the distance."""
    x, y = np.array(distance), np.array(loss)
    edges = np.linspace(0, x.max() + 1e-9, count + 1)
    rows = []
    for low, high in itertools.pairwise(edges):
        inside = y[(x >= low) & (x < high)]
        if len(inside):
            rows.append(
                (float((low + high) / 2), float(inside.mean()), float(inside.min()), float(inside.max()))
            )
    return rows


def distance_table(record: dict[str, Any]) -> ResultTable:
    metrics = record["metrics"]
    exact, printed = (_bins(metrics["distance"], metrics[key]) for key in ("loss", "published"))
    rows = tuple((*a, b[1]) for a, b in zip(exact, printed, strict=True))
    ranks = [metrics[f"rank_correlation_{key}"] for key in ("distance", "hops")]
    written = ", ".join("none" if r is None else f"{r:.3f}" for r in ranks)
    verdict = "The exact loss falls with distance." if _falls(metrics) else "The exact loss does not fall."
    columns = ("Euclidean distance", "ours: exact, mean", "least", "most", "paper: formula (6), mean")
    note = (
        f"Share of the local loss. Rank correlation of formula (6) with distance and with hops: {written}. "
    )
    return ResultTable(columns, rows, note + verdict, dict.fromkeys(columns[1:], "share"))


def _falls(metrics: dict[str, Any]) -> bool:
    """Whether the exact loss falls with Euclidean distance."""
    ranked = _ranked(metrics["distance"], metrics["loss"])
    return ranked is not None and ranked < -0.5


def distance_held(record: dict[str, Any]) -> bool | None:
    """Whether distance ranks formula (6) as well as hops do, and the exact loss falls with it."""
    far, hops = (record["metrics"][f"rank_correlation_{key}"] for key in ("distance", "hops"))
    if far is None or hops is None:
        return None
    return bool(far <= hops + 0.02) and _falls(record["metrics"])


def plot_distance(record: dict[str, Any]) -> Any:
    metrics = record["metrics"]
    with drawing.figure_of(2, sharey=True) as (figure, panels):
        axes = (("hops", "shortest path (hops)"), ("distance", "Euclidean distance (side = 1)"))
        for panel, (key, label) in zip(panels, axes, strict=True):
            for k, which, name in ((0, "loss", "exact"), (1, "published", "formula (6)")):
                y = np.maximum(metrics[which], 1e-4)
                style = {"s": 5, "alpha": 0.35, "color": drawing.COLORS[k], "marker": drawing.MARKERS[k]}
                panel.scatter(metrics[key], y, **style, label=name)
            drawing.level(panel, 1.0, "local privacy")
            title = f"geometric graph, n = {record['config']['n']}"
            drawing.names(panel, label, "loss (local = 1)", title, yscale="log")
    return figure


def add_by_distance(losses: dict[int, list[float]], network: Any, observer: int, loss: np.ndarray) -> None:
    """Add what an observer learns of every other node to the losses at its distance."""
    for u, far in enumerate(network.distances_from(observer).tolist()):
        if u != observer:
            losses.setdefault(int(far), []).append(float(loss[u]))


def by_distance(losses: dict[int, list[float]]) -> dict[str, list[Any]]:
    """Return mean, least and most of the losses at every distance."""
    values = [losses[d] for d in sorted(losses)]
    return {
        "distances": sorted(losses),
        "loss": [float(np.mean(at)) for at in values],
        "least": [float(np.min(at)) for at in values],
        "most": [float(np.max(at)) for at in values],
    }


def dropout(
    quick: bool = False,
    *,
    dimension: int = 7,
    rates: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5),
    observers: int = 3,
    draws: int = 3,
    seed: int = 0,
) -> Result:
    """Return loss and error on a hypercube when nodes are silent in some rounds."""
    if quick:
        dimension, rates, observers, draws = 4, (0.0, 0.3), 1, 1
    network = graphs.hypercube(dimension)
    rounds = 3 * protocols.rounds_for(network)  # plain gossip: no acceleration over changing matrices
    rng = np.random.default_rng(seed)
    rows = []
    for rate in rates:
        by: dict[int, list[float]] = {}
        errors, means = [], []
        for _ in range(draws):
            protocol = protocols.Dropout.random(network, rounds, rng, node_rate=rate)
            mixed = protocol.apply(np.eye(network.n))
            errors.append(float((mixed**2).sum(axis=1).mean()))  # noise variance kept, of 1
            for v in rng.choice(network.n, size=observers, replace=False).tolist():
                h = protocol.view(v).leakage()
                means.append(float(np.delete(h, v).mean()))
                add_by_distance(by, network, v, h)
        rows.append({"rate": rate, **by_distance(by), "mean": float(np.mean(means)),
                     "noise_left": float(np.mean(errors))})  # fmt: skip
    config = {"dimension": dimension, "rounds": rounds, "observers": observers, "draws": draws, "seed": seed}
    return result("muffliato-dropout", config, history=rows, metrics={"rates": len(rows)}, seed=seed)


def dropout_table(record: dict[str, Any]) -> ResultTable:
    n = 2 ** record["config"]["dimension"]
    rows = tuple(
        (r["rate"], r["mean"], r["loss"][0], r["loss"][-1], r["noise_left"] * n) for r in record["history"]
    )
    columns = (
        "share of nodes silent",
        "mean loss",
        "neighbors",
        "furthest",
        "noise left, times n (1: exact)",
    )
    note = f"hypercube of {n} nodes, {record['config']['rounds']} rounds of plain gossip."
    return ResultTable(columns, rows, note, dict.fromkeys(columns[1:4], "share"))


def plot_dropout(record: dict[str, Any]) -> Any:
    with drawing.figure_of() as (figure, (axes,)):
        for k, r in enumerate(record["history"]):
            x, label = np.array(r["distances"]) + 0.06 * k, f"{r['rate']:.0%} silent"
            draw_curve(axes, x, r, k, label, middle="loss")
        drawing.level(axes, 1.0, "local privacy")
        drawing.names(
            axes, "distance (hops)", "loss (local = 1)", "nodes silent at random: mean, best and worst pair"
        )
    return figure


def histogram(
    quick: bool = False,
    *,
    users: tuple[int, ...] = (2000, 4000),
    steps: int = 10,
    density: float = 1.5,
    seed: int = 0,
) -> Result:
    """Return what node 0 learns of every other, averaged over gradient steps with a fresh graph each.

    Per step the view of one averaging is exact; over the steps of learning their sum is `conditional`.
    """
    if quick:
        users, steps = (128, 256), 3
    by_users: dict[str, Any] = {}
    for n in users:
        total = np.zeros(n)
        for k in range(steps):
            network = graphs.erdos_renyi(n, density, np.random.default_rng([seed, n, k]))
            rounds = protocols.rounds_for(network, noise_std=1.0, variance=1.0)
            total += privacy.exact_loss(network, rounds=rounds, observer=0)
        share = np.delete(total, 0) / steps
        edges = np.linspace(0, 1, 51)
        histogram = {"rounds": rounds, "edges": edges, "count": np.histogram(share, edges)[0]}
        histogram |= {"mean": float(share.mean()), "std": float(share.std())}
        by_users[f"n={n}"] = {**histogram, "least": float(share.min()), "most": float(share.max())}
    config = {"users": users, "steps": steps, "density": density, "seed": seed}
    return result("muffliato-histogram", config, metrics=by_users, seed=seed)


def histogram_table(record: dict[str, Any]) -> ResultTable:
    rows = tuple(
        (n, f["rounds"], f["mean"], f["std"], f["least"], f["most"]) for n, f in record["metrics"].items()
    )
    columns = ("users", "rounds a step", "mean loss", "std", "least", "most")
    note = f"Share of the local loss (1), over {record['config']['steps']} steps with a fresh graph each."
    return ResultTable(columns, rows, note, dict.fromkeys(("mean loss", "least", "most"), "share"))


def histogram_held(record: dict[str, Any]) -> bool:
    """Whether every pair is below the local loss, and more users give less loss with less spread."""
    cells = list(record["metrics"].values())
    falls = all(b["mean"] < a["mean"] and b["std"] < a["std"] for a, b in itertools.pairwise(cells))
    return falls and all(f["most"] < 1 for f in cells)


def plot_histogram(record: dict[str, Any]) -> Any:
    with drawing.figure_of() as (figure, (axes,)):
        for k, (n, f) in enumerate(record["metrics"].items()):
            share = np.array(f["count"]) / sum(f["count"])
            style = {"fill": True, "color": drawing.COLORS[k], "alpha": 0.55}
            axes.stairs(share, f["edges"], **style, label=f"{n}: mean {f['mean']:.3f}")
        axes.axvline(1.0, color=drawing.INK, ls="--", lw=1.2, label="local privacy")
        drawing.names(
            axes, "pairwise loss (local = 1)", "share of the nodes", "towards node 0, fresh graph every step"
        )
    return figure


EGOS = (0, 107, 348, 414, 686, 698, 1684, 3437, 3980)


@dataclass(frozen=True)
class TopologiesConfig:
    """Graph sizes; ``egos`` are read from the data folder when it is there.

    Of Erdős-Rényi graphs ``draws`` are taken, as the paper averages over 5; ``observers`` is per graph.
    """

    dimension: int = 11
    density: float = 1.5
    side: int = 45
    radius: float = 0.06
    egos: tuple[int, ...] = EGOS
    observers: int = 3
    draws: int = 5
    seed: int = 0


TOPOLOGIES_QUICK = TopologiesConfig(dimension=5, side=5, radius=0.35, egos=(), observers=1, draws=2)


def run_topologies(quick: bool = False, **options: Any) -> Result:
    """Return mean losses by distance, exact and published, per graph."""
    config = replace(TOPOLOGIES_QUICK if quick else TopologiesConfig(), **options)
    n = 2**config.dimension
    rng = np.random.default_rng(config.seed)
    graphs: dict[str, Any] = {
        "hypercube": [sv.graphs.hypercube(config.dimension)],
        "erdos-renyi": [sv.graphs.erdos_renyi(n, config.density, rng) for _ in range(config.draws)],
        "grid": [sv.graphs.grid(config.side, config.side)],
        "geometric": [sv.graphs.geometric(n, config.radius, rng)],
    }
    skipped = []
    for ego in config.egos:
        network = ego_network(ego)
        if network is None:
            skipped.append(ego)
        else:
            graphs[f"ego-{ego}"] = [network]
    metrics: dict[str, Any] = {name: topology_losses(g, config.observers, rng) for name, g in graphs.items()}
    return result("topologies", {**asdict(config), "skipped_egos": skipped}, metrics=metrics)


def topology_losses(networks: Sequence[Any], observers: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return rounds and, per distance, the mean exact and published loss over graphs and a few observers."""
    rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    every_rounds = [sv.protocols.rounds_for(network, noise_std=1.0) for network in networks]
    for network, rounds in zip(networks, every_rounds, strict=True):
        who = rng.choice(network.n, size=min(observers, network.n), replace=False).tolist()
        published = sv.privacy.published_loss(network, rounds=rounds)
        for v in who:
            exact_of_v = sv.privacy.exact_loss(network, rounds=rounds, observer=v)
            rows.append((exact_of_v, published[:, v], network.distances_from(v)))
    exact, printed, far = (np.array(list(column)) for column in zip(*rows, strict=True))
    others = far > 0
    at = {int(d): far == d for d in np.unique(far[others])}
    return {
        "n": networks[0].n,
        "graphs": len(networks),
        "rounds": round(float(np.mean(every_rounds))),
        "distances": list(at),
        "exact": [float(exact[these].mean()) for these in at.values()],
        "best": [float(exact[these].min()) for these in at.values()],
        "worst": [float(exact[these].max()) for these in at.values()],
        "published": [float(printed[these].mean()) for these in at.values()],
        "understated_pairs": float((exact > printed * (1 + 1e-9) + 1e-9)[others].mean()),
        "mean_exact": float(exact[others].mean()),
    }


def ego_network(ego: int) -> Any:
    """The largest component of a Facebook ego network, or None without the data."""
    import networkx as nx

    try:
        file = data_folder("facebook_ego") / "facebook_ego.npz"
    except DataError:
        return None
    with np.load(file, allow_pickle=False) as arrays:
        graph = nx.Graph(arrays[f"ego{ego}"].tolist())
    largest = graph.subgraph(max(nx.connected_components(graph), key=len))
    return sv.graphs.from_networkx(nx.convert_node_labels_to_integers(largest))


def topologies_table(record: dict[str, Any]) -> ResultTable:
    rows = []
    for name, cell in record["metrics"].items():
        exact, far = cell["exact"], cell["distances"]
        rows.append((
            name, cell["n"], cell["rounds"], exact[0], exact[len(far) // 2], exact[-1], far[-1],
            cell["mean_exact"], cell["understated_pairs"],
        ))  # fmt: skip
    columns = (
        "graph", "nodes", "rounds", "next to it", "halfway", "furthest", "furthest distance", "mean",
        "pairs understated by (6)",
    )  # fmt: skip
    config = record["config"]
    return ResultTable(
        columns, tuple(rows),
        f"Exact loss over the local loss (1); observers per graph: {config['observers']}, Erdős-Rényi "
        f"graphs: {config.get('draws', 1)}.",
        dict.fromkeys(("next to it", "halfway", "furthest", "mean"), "share"),
    )  # fmt: skip


def topologies_held(record: dict[str, Any]) -> bool:
    """Whether the mean loss at the furthest distance is below that of neighbors on every graph."""
    return all(cell["exact"][-1] < cell["exact"][0] for cell in record["metrics"].values())


def plot_topologies(record: dict[str, Any]) -> Any:
    by_graph = {name: cell for name, cell in record["metrics"].items() if len(cell["distances"]) > 1}
    columns = min(4, len(by_graph))
    rows = -(-len(by_graph) // columns)
    with drawing.figure_of(columns, rows, height=2.7, width=3.1 * columns, sharey=True) as (figure, panels):
        for panel, (name, cell) in zip(panels, by_graph.items(), strict=False):
            x, middle = cell["distances"], np.maximum(cell["exact"], FLOOR)
            bars = None
            if "best" in cell:
                bars = [middle - np.maximum(cell["best"], FLOOR), np.maximum(cell["worst"], FLOOR) - middle]
            drawing.error_bars(panel, x, middle, bars, 0, "exact: mean, best and worst pair")
            published = np.maximum(cell["published"], FLOOR)
            drawing.error_bars(panel, x, published, None, 1, "published (6), mean", paper=True)
            drawing.level(panel, 1.0, "local privacy")
            over = f", {cell['graphs']} graphs" if cell.get("graphs", 1) > 1 else ""
            drawing.names(
                panel, "distance (hops)", "loss (local = 1)", f"{name}, n = {cell['n']:,}{over}",
                legend=panel is panels[0], yscale="log", ylim=(0.7 * FLOOR, 100),
            )  # fmt: skip
        for panel in panels[len(by_graph) :]:
            panel.set_axis_off()
    return figure


FLOOR = 1e-4  # losses below are drawn there: no reader tells 1e-9 from nothing


EXPERIMENTS = {
    "ego-loss": Experiment(ego_loss, plot_ego, ego_table, ego_held),
    "geometric-distance": Experiment(geometric_distance, plot_distance, distance_table, distance_held),
    "muffliato-dropout": Experiment(dropout, plot_dropout, dropout_table),
    "muffliato-histogram": Experiment(histogram, plot_histogram, histogram_table, histogram_held),
    "topologies": Experiment(
        run_topologies, plot_topologies, topologies_table, topologies_held, config=TopologiesConfig
    ),
}
