"""Learning over networks on houses: Muffliato-GD, exact consensus, a trusted aggregator, a random walk.

Muffliato figure 1(c): logistic regression on binarized California housing, features standardized and
every record scaled to unit length, records dealt out to n = 2000 and 4000 users, a fresh Erdős-Rényi graph
for every gradient step, against a trusted aggregator. `walk-vs-gossip` is the picture of Bellet's 2024 talk.

Every method gets the same mean privacy loss: the mean over ordered pairs of nodes of mu^2 (twice the Rényi
loss per order). Per gradient step and in units of (2C/sigma)^2 it is, for

- trees: 2 (n - 1) / n^2, exact, a guarantee (a fresh uniform spanning tree of the step's graph);
- Muffliato: rank of a node's view over n, at most (messages received) / n; the value of the linear
  system for one step, "conditional" for learning. Equation (9) of the paper prints the same mean. With the
  theoretical number of rounds, and (muffliato-1, muffliato-4) with fewer;
- the aggregator: 1 / n, what everybody learns from the released mean.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

import sottovoce as sv
from sottovoce import graphs, protocols
from sottovoce._format import significant
from sottovoce.accounting.observation.random_walk import FirstPassage, first_passage, walk_loss
from sottovoce.algorithms.consensus_sgd import ConsensusSGD
from sottovoce.algorithms.muffliato_sgd import MuffliatoSGD
from sottovoce.algorithms.random_walk_sgd import RandomWalkSGD
from sottovoce.data import Dataset, Shards, equal, load
from sottovoce.objectives import GLM
from sottovoce.runners.base import Result
from sottovoce.runners.sweep import Trial
from sottovoce_papers import drawing
from sottovoce_papers.common import Spread, curve_of, draw_curve, in_turn, result
from sottovoce_papers.registry import Experiment, ResultTable


@dataclass(frozen=True)
class Config:
    """Users, steps and the mean loss at which all are compared."""

    users: tuple[int, ...] = (2000, 4000)
    steps: int = 50
    learning_rates: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
    clip_norm: float = 1.0
    density: float = 1.5
    short_rounds: tuple[int, ...] = (1, 4)
    mean_mu: float = 0.25
    runs: int = 5
    seed: int = 0


QUICK = Config(users=(128,), steps=8, learning_rates=(2.0,), runs=2, mean_mu=1.0)


def prepared(seed: int = 0) -> Dataset:
    """Return houses as in the paper: standardized, unit records, 80 % for training."""
    return load("houses").standardized().unit_rows().split(0.2, np.random.default_rng(seed))


def run(quick: bool = False, *, spread: Spread = in_turn, **options: Any) -> Result:
    """Return test accuracies at one mean privacy loss, medians over runs, with the noise each needed."""
    config = replace(QUICK if quick else Config(), **options)
    trials = [Trial(f"n={n}", {"n": n, "config": asdict(config)}) for n in config.users]
    metrics = dict(zip((trial.name for trial in trials), spread(houses_trial, trials), strict=True))
    paper = "gossip and trusted aggregator behave alike in accuracy"
    return result("muffliato-houses", config, metrics=metrics, paper=paper)


def schedules(n: int, steps: int, density: float, seed: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Return a fresh Erdős-Rényi graph per step, with Chebyshev gossip and a uniform spanning tree on each.

    The graphs are public randomness, the same for every method.
    """
    drawn = [graphs.erdos_renyi(n, density, np.random.default_rng([seed, n, k])) for k in range(steps)]
    rounds = protocols.rounds_for(drawn[0], noise_std=1.0, variance=1.0)
    gamma = protocols.Chebyshev(drawn[0], rounds).gamma
    streams = [np.random.default_rng([seed, n, k, 1]) for k in range(steps)]
    trees = [protocols.Tree(g, kind="uniform", rng=rng) for g, rng in zip(drawn, streams, strict=True)]
    return drawn, [protocols.Chebyshev(g, rounds, gamma=gamma) for g in drawn], trees


def houses_trial(*, n: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the methods for one number of users."""
    settings = Config(**config)
    data = prepared(settings.seed)
    shards = data.shards(equal(data.n, n, np.random.default_rng(settings.seed)))
    graphs, chebyshev, trees = schedules(n, settings.steps, settings.density, settings.seed)
    rounds = chebyshev[0].rounds
    gossip: dict[str, Any] = {
        "muffliato": chebyshev,
        **{f"muffliato-{k}": [sv.protocols.Gossip(g, k) for g in graphs] for k in settings.short_rounds},
    }
    shares = {"aggregator": 1 / n, "tree": 2 * (n - 1) / n**2}
    for name, schedule in gossip.items():
        ranks = [sv.protocols.Gossip(graphs[k], schedule[0].rounds).view(k).rank for k in range(3)]
        shares[name] = float(np.mean(ranks)) / n
    common: dict[str, Any] = {"objective": GLM("logistic"), "steps": settings.steps, "adjacency": "user"}
    common["clip_norm"] = settings.clip_norm
    metrics: dict[str, Any] = {"rounds": rounds, "mean_degree": float(np.mean(graphs[0].degrees))}
    for method, share in shares.items():
        # mean over pairs of mu^2: steps * share * (2 / z)^2 = mean_mu^2
        z = 2 * math.sqrt(settings.steps * share) / settings.mean_mu

        def make(step: float, method: str = method, z: float = z) -> Any:
            if method in gossip:
                return MuffliatoSGD(protocol=gossip[method], learning_rate=step, noise_multiplier=z, **common)
            return ConsensusSGD(protocol=trees, learning_rate=step, noise_multiplier=z, **common)

        metrics[method] = {
            "noise_multiplier": z,
            "mean_share_per_step": share,
            "messages_per_node": make(1.0).cost()["messages_per_node"] if method != "aggregator" else 1.0,
            **_tuned(make, shards, data, settings),
        }
    base = metrics["aggregator"]["median"]
    metrics["points_below_aggregator"] = {
        method: round(100 * (base - metrics[method]["median"]), 3) for method in ("tree", *gossip)
    }
    fastest = max(settings.learning_rates)
    plain = ConsensusSGD(protocol=trees, learning_rate=fastest, noise_multiplier=0.0, **common)
    outputs = plain.run(shards, np.random.default_rng(0)).outputs
    metrics["without_noise"] = mean_accuracy(outputs["rows"], data)
    return metrics


def _tuned(make: Any, shards: Shards, data: Dataset, config: Config) -> dict[str, Any]:
    """Return accuracies of fresh runs at the step size that was best in one."""

    def accuracy(step: float, seed: int) -> float:
        rows = make(step).run(shards, np.random.default_rng([config.seed, seed])).outputs["rows"]
        return mean_accuracy(rows, data)

    best = max(config.learning_rates, key=lambda step: accuracy(step, 0))
    fresh = [accuracy(best, 1 + k) for k in range(config.runs)]
    return {"learning_rate": best, "median": float(np.median(fresh)), "accuracies": fresh}


def mean_accuracy(rows: np.ndarray, data: Dataset) -> float:
    """Mean over nodes of the test accuracy of their models."""
    assert data.y_test is not None
    return float(np.mean(np.sign(data.X_test @ rows.T) == data.y_test[:, None]))


@dataclass(frozen=True)
class WalkConfig:
    """A token of ``visits * users`` hops against gossip with ``gossip_steps`` steps, at one mean loss.

    Both run on one Erdős-Rényi graph with ``density * ln n / n`` of the edges.
    """

    users: int = 2000
    visits: int = 20
    gossip_steps: int = 50
    learning_rates: tuple[float, ...] = (0.02, 0.05, 0.1, 0.5, 2.0)
    density: float = 1.5
    mean_mu: float = 0.25
    runs: int = 5
    seed: int = 0


WALK_QUICK = WalkConfig(users=128, visits=4, gossip_steps=8, learning_rates=(0.1, 1.0), runs=2, mean_mu=1.0)


COMPLETE = "walk, complete graph"


def complete_passage(n: int, steps: int) -> FirstPassage:
    """Return `first_passage` in closed form on the complete graph, where the next holder is uniform."""
    t = np.arange(steps, dtype=np.float64)
    both = np.where(t >= 1, (1 - 2 / n) ** (t - 1) / n if n > 2 else (t == 1) / n, 0.0)
    one = np.where(t >= 1, (1 - 1 / n) ** (t - 1) / n, 0.0)
    return FirstPassage(both, both.copy(), one, (1 - 1 / n) ** t / n)


def walk(quick: bool = False, **options: Any) -> Result:
    """Return accuracy along the run for a random walk and for Muffliato-GD on one graph; and for a walk on
    the complete graph, where gossip gives away as much as local privacy.

    The walk's loss is the path accountant's (a guarantee: convex loss, step below 2/beta, any sender), at
    order 2, for one pair at every distance, weighted by how many pairs are that far apart; gossip's is that
    of `run`.
    """
    config = replace(WALK_QUICK if quick else WalkConfig(), **options)
    n, data = config.users, prepared(config.seed)
    shards = data.shards(equal(data.n, n, np.random.default_rng(config.seed)))
    hops = config.visits * n
    graph = sv.graphs.erdos_renyi(n, config.density, np.random.default_rng([config.seed, n]))
    far = graph.distances_from(0)
    at = {int(d): int(np.flatnonzero(far == d)[0]) for d in np.unique(far[far > 0])}
    passages = {d: first_passage(graph, hops, user=u, observer=0) for d, u in at.items()}
    shares = {d: float((far == d).sum() / (n - 1)) for d in at}

    def loss(passage: Any, sigma: float) -> float:
        return float(walk_loss(passage, 2.0, sigma, final_public=True)[0])

    def multiplier(pairs: list[tuple[float, Any]]) -> float:
        low, high = 0.3, 300.0
        for _ in range(10):
            sigma = math.sqrt(low * high)
            mean = sum(weight * loss(passage, sigma) for weight, passage in pairs)
            # the target is alpha mu^2 / 2 at alpha = 2
            low, high = (sigma, high) if mean > config.mean_mu**2 else (low, sigma)
        return 2 * high

    z_walk = multiplier([(shares[d], passages[d]) for d in at])
    z_complete = multiplier([(1.0, complete_passage(n, hops))])
    complete = sv.graphs.complete(n)
    model = GLM("logistic")
    rounds = sv.protocols.rounds_for(graph, noise_std=1.0, variance=1.0)
    share = sv.protocols.Gossip(graph, rounds).view(0).rank / n
    z_gossip = 2 * math.sqrt(config.gossip_steps * share) / config.mean_mu

    def one(method: str, step: float, seed: int) -> list[dict[str, float]]:
        rng = np.random.default_rng([config.seed, seed])
        common: dict[str, Any] = {"learning_rate": step, "clip_norm": 1.0, "adjacency": "user"}
        if method != "gossip":
            walked, z = (graph, z_walk) if method == "walk" else (complete, z_complete)
            plan: Any = RandomWalkSGD(model, walked, steps=hops, noise_multiplier=z, path="secret", **common)
        else:
            gossip = sv.protocols.Chebyshev(graph, rounds)
            plan = MuffliatoSGD(model, gossip, steps=config.gossip_steps, noise_multiplier=z_gossip, **common)
        result = plan.run(shards, rng, evaluate=lambda rows: {"accuracy": mean_accuracy(rows, data)})
        return [dict(row) for row in result.history]

    metrics: dict[str, Any] = {
        "hops": hops, "rounds": rounds, "share_of_pairs": shares,
        "walk_loss_by_distance": {d: loss(passages[d], z_walk / 2) for d in at},
    }  # fmt: skip
    for method, z in (("walk", z_walk), ("gossip", z_gossip), (COMPLETE, z_complete)):
        best = max(config.learning_rates, key=lambda s: one(method, s, 0)[-1]["accuracy"])
        curves = [one(method, best, 1 + k) for k in range(config.runs)]
        along = np.array([[row["accuracy"] for row in c] for c in curves])
        messages = hops if method != "gossip" else config.gossip_steps * rounds * 2 * len(graph.edges)
        metrics[method] = {
            "noise_multiplier": z,
            "learning_rate": best,
            "median": float(np.median([c[-1]["accuracy"] for c in curves])),
            "accuracies": [c[-1]["accuracy"] for c in curves],
            "curve": {"share": [row["step"] / curves[0][-1]["step"] for row in curves[0]], **curve_of(along)},
            "messages": messages,
        }
    return result("walk-vs-gossip", config, metrics=metrics)


def _methods(metrics: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The metrics of methods among others."""
    return {name: one for name, one in metrics.items() if isinstance(one, dict) and "accuracies" in one}


def _spread(one: Mapping[str, Any]) -> tuple[float, float, float]:
    return one["median"], min(one["accuracies"]), max(one["accuracies"])


def table(record: dict[str, Any]) -> ResultTable:
    rows = tuple(
        (users, name, one["noise_multiplier"], *_spread(one), one["messages_per_node"])
        for users, methods in record["metrics"].items()
        for name, one in _methods(methods).items()
    )
    columns = (
        "users", "method", "noise multiplier", "accuracy, tuned (median)", "least", "most", "messages a node",
    )  # fmt: skip
    mean = record["config"]["mean_mu"]
    return ResultTable(
        columns, rows,
        f"One mean privacy loss for all (mean mu {significant(mean, 'mu')}); the paper prints curves at "
        "the same noise instead (muffliato-iterations).",
        {"noise multiplier": "noise"},
    )  # fmt: skip


def held(record: dict[str, Any]) -> bool:
    """Whether gossip and the aggregator are within a point at one mean loss."""
    return all(metrics["points_below_aggregator"]["muffliato"] <= 1 for metrics in record["metrics"].values())


def plot(record: dict[str, Any]) -> Any:
    metrics = record["metrics"]
    with drawing.figure_of(len(metrics), sharey=True) as (figure, panels):
        for panel, (users, by_method) in zip(panels, metrics.items(), strict=True):
            methods = list(_methods(by_method))
            for k, name in enumerate(methods):
                percent = [100 * a for a in by_method[name]["accuracies"]]
                drawing.medians(panel, [k], [percent], k, "_nolegend_")
            drawing.level(panel, 100 * by_method["without_noise"], "without noise")
            called = [re.sub(r"-(\d+)$", r", rounds: \1", name) for name in methods]
            panel.set_xticks(range(len(methods)), called)
            drawing.names(
                panel, "method", "test accuracy (%)", f"houses, {users}, one mean privacy loss",
                legend=panel is panels[0],
            )  # fmt: skip
    return figure


def walk_table(record: dict[str, Any]) -> ResultTable:
    rows = tuple(
        (name, one["noise_multiplier"], one["learning_rate"], *_spread(one), one["messages"])
        for name, one in _methods(record["metrics"]).items()
    )
    columns = (
        "method", "noise multiplier", "learning rate", "accuracy, tuned (median)", "least", "most",
        "messages",
    )  # fmt: skip
    config = record["config"]
    return ResultTable(
        columns, rows,
        f"houses, {config['users']:,} users on one Erdős-Rényi graph; one mean privacy loss for all (mean mu "
        f"{significant(config['mean_mu'], 'mu')}). The walk's cost is the path accountant's, an upper "
        "bound: on a sparse graph a token soon comes back, and every return counts.",
        {"noise multiplier": "noise"},
    )  # fmt: skip


def walk_held(record: dict[str, Any]) -> bool:
    """Whether the walk is at least as accurate as gossip at one mean loss."""
    return record["metrics"]["walk"]["median"] >= record["metrics"]["gossip"]["median"]


def plot_walk(record: dict[str, Any]) -> Any:
    with drawing.figure_of() as (figure, (axes,)):
        for k, method in enumerate(("walk", "gossip", COMPLETE)):
            curve = record["metrics"][method]["curve"]
            draw_curve(axes, 100 * np.array(curve["share"]), curve, k, method, scale=100)
        title = "houses, one graph and one mean privacy loss: median, least and most"
        drawing.names(axes, "share of the run (%)", "test accuracy (%)", title)
    return figure


EXPERIMENTS = {
    "muffliato-houses": Experiment(run, plot, table, held, config=Config),
    "walk-vs-gossip": Experiment(walk, plot_walk, walk_table, walk_held, config=WalkConfig),
}
