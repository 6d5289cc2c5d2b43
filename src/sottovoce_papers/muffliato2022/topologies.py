"""Privacy loss by distance: synthetic graphs and the Facebook ego networks.

Muffliato figures 1(a) and 1(b): one averaging with the theoretical number of rounds, sigma 1; the loss
of node u towards an observer v, by their distance. The paper plots its equation (6); here the exact loss
stands beside it, in units of the local loss, with the share of pairs the equation understates.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

import sottovoce as sv
from sottovoce.data import data_folder
from sottovoce.errors import DataError
from sottovoce.runners.base import Result
from sottovoce_papers import drawing
from sottovoce_papers.common import result
from sottovoce_papers.registry import Experiment, ResultTable

EGOS = (0, 107, 348, 414, 686, 698, 1684, 3437, 3980)


@dataclass(frozen=True)
class Config:
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


QUICK = Config(dimension=5, side=5, radius=0.35, egos=(), observers=1, draws=2)


def run(quick: bool = False, **options: Any) -> Result:
    """Return mean losses by distance, exact and published, per graph."""
    started = time.perf_counter()
    config = replace(QUICK if quick else Config(), **options)
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
    metrics: dict[str, Any] = {name: by_distance(g, config.observers, rng) for name, g in graphs.items()}
    return result("topologies", started, {**asdict(config), "skipped_egos": skipped}, metrics=metrics)


def by_distance(networks: Sequence[Any], observers: int, rng: np.random.Generator) -> dict[str, Any]:
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


def table(record: dict[str, Any]) -> ResultTable:
    """Return one line per graph: what one node learns of another, at distance 1, halfway and at the end."""
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


def held(record: dict[str, Any]) -> bool:
    """Whether the mean loss at the furthest distance is below that of neighbors on every graph."""
    return all(cell["exact"][-1] < cell["exact"][0] for cell in record["metrics"].values())


def plot(record: dict[str, Any]) -> Any:
    """Draw the loss by distance: mean with best and worst pair, the published formula, the local line."""
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
    "topologies": Experiment(
        "Privacy loss by distance, synthetic graphs and Facebook egos", "Cyffers et al. 2022, figure 1(a)",
        run, plot, table=table, held=held, config=Config,
        claim="Privacy is amplified with distance, far below the local loss.",
    )
}  # fmt: skip
