"""Tables of numbers for the pages, made from docs/results when the site is built."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from sottovoce._format import Quantity, significant

RESULTS = Path(__file__).parents[1] / "results"
LEARNING = (
    "dpcd-electricity", "dpgcd-madelon", "dpgcd-dorothea", "muffliato-houses", "walk-vs-gossip", "admm-lasso",
    "topologies", "convex-audits",
)  # fmt: skip
# the column of an experiment's table that matters: the first of these words that a heading has
KEYS = (
    "ours tuned", "tuned (median)", "ours", "accuracy", "mean loss", "median", "success", "share of", "ratio",
)  # fmt: skip
METHODS = {"dsgd": "DP-DSGD", "dsgt": "DP-DSGT", "dinno": "DP-DiNNO"}
BUDGETS = (0.5, 1.0, 10.0)
PAPER = "Bayrooti et al."


def result(name: str) -> dict[str, Any]:
    """Return a stored result."""
    stored: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return stored


def markdown(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(
        "| " + " | ".join(str(cell).replace("|", r"\|") for cell in line) + " |\n" for line in lines
    )


def tables() -> dict[str, str]:
    """Return every table by the name of its file."""
    makers: tuple[Callable[[], str], ...] = (
        experiments, learning, table1, reached, tuned_cells, printed_cells, not_run, walks, audit, consensus,
        steps, overview, anchors, speed, trust, masked_mnist, masked_images, masked_agents, masked_network,
        fine_tuning, ranks,
    )  # fmt: skip
    return {maker.__name__.replace("_", "-"): maker() for maker in makers}


# ---- experiments -----------------------------------------------------------------------------------------


def experiments(names: Sequence[str] | None = None) -> str:
    """Every stored result: the claim, whether it held, numbers."""
    from sottovoce_papers.paper_index import stored_results
    from sottovoce_papers.registry import find

    rows = []
    for name, stored in sorted(stored_results(RESULTS).items()):
        if names is not None and name not in names:
            continue
        experiment = find(name)
        numbers = "" if experiment.table is None else _numbers(experiment.table(stored))
        rows.append((f"`{name}`", experiment.claim, experiment.verdict(stored), numbers))
    return markdown(("name", "the source says", "here", "from the result"), rows)


def learning() -> str:
    """The results on convex problems."""
    return experiments(LEARNING)


def _numbers(shown: Any) -> str:
    """Return the column that matters, in the first, a middle and the last row that have it."""
    named = (
        k for word in KEYS for k, c in enumerate(shown.columns) if k and re.search(rf"\b{re.escape(word)}", c)
    )
    key = next(named, len(shown.columns) - 1)
    rows = [row for row in shown.rows if row[key] not in (None, "", "not run")]
    chosen = [rows[k] for k in dict.fromkeys((0, len(rows) // 2, len(rows) - 1))] if rows else []
    texts = []
    for row in chosen:
        label = ", ".join(_short(cell) for cell in row[: min(key, 4)] if cell not in (None, ""))
        texts.append(f"{label}: {_short(row[key], shown.kinds[key])}")
    return f"{shown.columns[key]}: " + "; ".join(texts)


def _short(value: Any, quantity: Quantity = "value") -> str:
    return significant(value, quantity) if isinstance(value, float) else str(value)


# ---- networks --------------------------------------------------------------------------------------------


def _mean(row: dict[str, Any] | None, trials: bool = False) -> str:
    if row is None or row["accuracy"] is None:
        return "–"
    spread = f" ± {row['std']:.2f}" if row["std"] is not None else ""
    return f"{row['accuracy']:.2f}{spread}" + (f" ({row['trials']})" if trials else "")


def _printed(row: dict[str, Any]) -> str:
    return f"{row['paper']:.2f} ± {row['paper_std']:.2f}"


def _tuned(table: str = "table1") -> dict[tuple[str, float, Any, float], dict[str, Any]]:
    """The cells of a table by method, budget, graph and skew, in the tuned setting."""
    from sottovoce_papers.bayrooti2023.tables import in_setting

    rows = in_setting(result(table)).values()
    return {
        (row["method"], row["epsilon"], row["fiedler"], row["skew"]): dict(row)
        for row in rows
        if row["trials"]
    }


def table1() -> str:
    """Table 1 on the densest and the sparsest graph."""
    cells, rows = _tuned(), []
    for graph, fiedler in (("complete", 1.0), (".06", 0.06)):
        for method, name in METHODS.items():
            found = [cells[method, epsilon, fiedler, 1.0] for epsilon in BUDGETS]
            rows.append([graph, name, *(text for row in found for text in (_mean(row), _printed(row)))])
    heads = [text for e in BUDGETS for text in (f"epsilon {e:g}", PAPER)]
    return markdown(("graph", "method", *heads), rows)


def reached() -> str:
    """How many of the cells of `table1` are above the printed mean."""
    cells = [
        cell for (m, e, f, _), cell in _tuned().items() if m in METHODS and e in BUDGETS and f in (1.0, 0.06)
    ]
    above = sum(cell["accuracy"] > cell["paper"] for cell in cells)
    below = [f"{_cell(cell)} ({_mean(cell)})" for cell in cells if cell["accuracy"] <= cell["paper"]]
    rest = f" Not above: {', '.join(below)}." if below else ""
    return f"{above} of these {len(cells)} cells are above the printed mean.{rest}\n"


def tuned_cells() -> str:
    """What the tuned settings reach, and the paper's claims in numbers."""
    tables = {name: _tuned(name) for name in ("table1", "table2")}
    printed = [row for cells in tables.values() for row in cells.values() if row["paper"] is not None]
    unique = {row["cell"]: row for row in printed}
    below = [row for row in unique.values() if row["accuracy"] < row["paper"] - (row["paper_std"] or 0)]
    first, second = tables["table1"], tables["table2"]
    tracked = [first["dsgt", 1.0, fiedler, 1.0]["accuracy"] for fiedler in (1.0, 0.7, 0.39, 0.06)]
    central = {e: first["central", e, None, 1.0] for e in BUDGETS}
    lost = {m: second[m, 0.5, 0.06, 0.0]["accuracy"] - second[m, 0.5, 0.06, 1.0]["accuracy"] for m in METHODS}
    dense = [first["dsgd", 0.5, fiedler, 1.0]["accuracy"] for fiedler in (1.0, 0.39)]
    ten = [first[m, 10.0, f, 1.0] for m in METHODS for f in (1.0, 0.7, 0.39, 0.06)]
    best, own = max(ten, key=lambda row: row["paper"]), max(ten, key=lambda row: row["accuracy"])
    named = ", ".join(f"{_cell(row)} ({_mean(row)}, paper {_printed(row)})" for row in below)
    losses = ", ".join(f"{METHODS[m]} {points:.1f}" for m, points in lost.items())
    return (
        f"Tuned, {len(below)} of {len(unique)} cells of Tables 1 and 2 are below the printed mean minus its "
        f"standard deviation: {named}.\n\nDP-DSGT at epsilon 1 has {min(tracked):.2f} to {max(tracked):.2f} "
        f"on the four graphs, the central run {central[1.0]['accuracy']:.2f}. DP-DSGD at epsilon .5 loses "
        f"{dense[0] - dense[1]:.1f} points from the complete graph to .39; `figure1` allows 2. From t = 0 to "
        f"1 at epsilon .5 the methods lose, in points: {losses}.\n\n"
        '"DP-SGD always upper bounds the decentralized algorithms" is not so at epsilon 10, where the '
        f"central run has {central[10.0]['paper']:.2f} in the paper and {central[10.0]['accuracy']:.2f} "
        f"here, and the best decentralized one {best['paper']:.2f} and {own['accuracy']:.2f}.\n"
    )


def printed_cells() -> str:
    """How the printed settings compare with the printed numbers."""
    from sottovoce_papers.bayrooti2023.tables import in_setting

    rows = [
        row for row in in_setting(result("table1"), "printed").values()
        if row["trials"] and row["paper"] is not None and row["epsilon"] != "inf"
    ]  # fmt: skip
    low = [row for row in rows if row["accuracy"] < row["paper"] - row["paper_std"]]
    high = [row for row in rows if row["accuracy"] > row["paper"] + row["paper_std"]]
    named = ", ".join(f"{_cell(row)} ({row['accuracy']:.2f} against {_printed(row)})" for row in low)
    second = in_setting(result("table2"), "printed").values()
    ran, cells = sum(bool(row["trials"]) for row in second if row["paper"]), result("table2")["metrics"]
    return (
        f"Of {len(rows)} cells of Table 1 with noise {len(rows) - len(low) - len(high)} are within the "
        f"printed standard deviation, {len(high)} above and {len(low)} below: {named}. {ran} of "
        f"{cells['cells_in_the_paper']} cells of Table 2 were run as printed.\n"
    )


def _cell(row: dict[str, Any]) -> str:
    budget = "without noise" if row["epsilon"] == "inf" else f"at epsilon {row['epsilon']:g}"
    graph = {None: "", 1.0: ", complete graph"}.get(row["fiedler"], f", graph {row['fiedler'] or 0:g}")
    skew = "" if row["skew"] == 1 else f", t = {row['skew']:g}"
    return f"{({**METHODS, 'central': 'central'})[row['method']]} {budget}{graph}{skew}"


def not_run() -> str:
    """The tables and figures without a full record."""
    from sottovoce_papers.paper_index import ITEMS, stored_results

    stored = stored_results(RESULTS)
    states = [(item, item.state(stored)) for item in ITEMS]
    lines = [
        f"- {item.source}, {item.number} ({item.what}): {why}."
        for item, (state, why) in states
        if state != "done"
    ]
    return "\n".join(
        [f"{len(ITEMS) - len(lines)} of {len(ITEMS)} tables and figures are done. Not done:", "", *lines, ""]
    )


def walks() -> str:
    """A walk against gossip for learning."""
    walk, gossip, complete = (
        result("walk-vs-gossip")["metrics"][method]["median"]
        for method in ("walk", "gossip", "walk, complete graph")
    )
    return (
        "For learning on one Erdős-Rényi graph at one mean loss the walk has an accuracy of "
        f"{walk:.2f}, gossip {gossip:.2f} (`walk-vs-gossip`), a walk on the complete graph {complete:.2f}. "
        "Our path accountant, an upper bound, charges every return of the token, while gossip's value is "
        "`conditional`: this comparison is not fair to the walk.\n"
    )


def audit() -> str:
    """Lower bounds of Table 5, ours beside the paper's, of the model's loss and of a neighbor's messages."""
    rows = result("audit-table5")["history"]
    texts = []
    for row in rows:
        if row["look"] == "loss" and row["epsilon_paper"] is not None:
            near = (r for r in rows if (r["algorithm"], r["look"]) == (row["algorithm"], "neighbour"))
            more = "".join(f", {r['epsilon_lower']:.3f} from a neighbor's messages" for r in near)
            name = METHODS.get(row["algorithm"].removeprefix("dp-"), "DP-SGD")
            texts.append(f"{name} {row['epsilon_lower']:.3f} (paper {row['epsilon_paper']:g}){more}")
    return f"Lower bounds on epsilon from the trained model's loss: {'; '.join(texts)}.\n"


def anchors() -> str:
    """Masked sums beside the best figure with a trusted curator."""
    rows = [*result("secure-sum-mnist")["history"], *result("secure-sum-images")["history"]]
    texts = []
    for row in rows:
        if row["against"] == "one" and row["epsilon"] == 1:
            name, best = max(row["anchors"].items(), key=lambda pair: pair[1])
            data = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}[row["data"]]
            side = "above" if row["accuracy"] > best else "below"
            gap = abs(row["accuracy"] - best)
            texts.append(f"{data} {row['accuracy']:.2f}, {gap:.2f} {side} the best of these ({name})")
    return f"Ten agents with masked sums, against any one member, at epsilon 1: {'; '.join(texts)}.\n"


def consensus() -> str:
    """Exact consensus with fixed features."""
    rows = result("consensus-mnist")["history"]
    heads = ["none" if row["epsilon"] == "inf" else f"{row['epsilon']:g}" for row in rows]
    return markdown(
        ("epsilon", *heads),
        (
            ("exact consensus", *map(_mean, rows)),
            (f"{PAPER}, central DP-SGD", *(row["paper_central"] for row in rows)),
            (f"{PAPER}, best decentralized on this graph", *(row["paper_best"] for row in rows)),
        ),
    )


def overview() -> str:
    """The sparsest graph: exact consensus, the paper's methods, the paper's numbers."""
    cells = _tuned()
    own = {r["epsilon"]: r for r in result("secure-sum-mnist")["history"] if r["against"] == "local"}
    rows = [["**exact consensus, linear on fixed features**", *(_mean(own[e], trials=True) for e in BUDGETS)]]
    for method in ("dsgt", "dinno", "dsgd"):
        rows.append([f"{METHODS[method]} (ours)", *(_mean(cells[method, e, 0.06, 1.0]) for e in BUDGETS)])
    best = [max((cells[m, e, 0.06, 1.0] for m in METHODS), key=lambda row: row["paper"]) for e in BUDGETS]
    central = [cells["central", e, None, 1.0] for e in BUDGETS]
    rows.append([f"{PAPER}, best decentralized", *map(_printed, best)])
    rows.append([f"{PAPER}, central DP-SGD", *map(_printed, central)])
    return markdown(("", *(f"epsilon {e:g}" for e in BUDGETS)), rows)


def fine_tuning() -> str:
    """A transformer fine-tuned by ten agents."""
    from sottovoce_papers.registry import find

    shown = find("fine-tuning-text").table(result("fine-tuning-text"))  # type: ignore[misc]
    return markdown(shown.columns, ([_short(cell) for cell in row] for row in shown.rows))


# ---- masked sums -----------------------------------------------------------------------------------------


def _masked(name: str, adversaries: dict[str, str]) -> str:
    history = result(name)["history"]
    found = {(row["data"], row["epsilon"], row["against"]): row for row in history}
    rows = []
    for data, epsilon in dict.fromkeys((row["data"], row["epsilon"]) for row in history):
        anchors = next(row["anchors"] for row in history if (row["data"], row["epsilon"]) == (data, epsilon))
        elsewhere = ", ".join(f"{key} {value:.2f}" for key, value in anchors.items())
        cells = (_mean(found.get((data, epsilon, who)), trials=True) for who in adversaries)
        rows.append((data, f"{epsilon:g}", *cells, elsewhere))
    return markdown(("data", "epsilon", *adversaries.values(), "central, elsewhere"), rows)


def masked_mnist() -> str:
    """Masked sums on MNIST, by adversary."""
    adversaries = {
        "outsiders": "masked: outsiders", "one": "masked: any one member", "three": "masked: any three",
        "local": "own noise only", "central": "trusted curator",
    }  # fmt: skip
    return _masked("secure-sum-mnist", adversaries)


def masked_images() -> str:
    """Masked sums on other images."""
    return _masked("secure-sum-images", {"one": "masked: any one member"})


def masked_agents() -> str:
    """Masked sums by number of agents."""
    found = {(row["agents"], row["against"]): row for row in result("secure-sum-agents")["history"]}
    adversaries = {
        "one": "masked: any one member", "tree": "tree without masks: any one member",
        "local": "own noise only",
    }  # fmt: skip
    rows = (
        (n, *(_mean(found.get((n, who)), trials=True) for who in adversaries))
        for n in dict.fromkeys(n for n, _ in found)
    )
    return markdown(("agents", *adversaries.values()), rows)


def masked_network() -> str:
    """Masked sums and exact consensus with the network of Bayrooti et al."""
    from sottovoce_papers.extensions.secure_sum import NETWORK_WORDS

    found = {(row["method"], row["epsilon"]): row for row in result("secure-sum-network")["history"]}
    budgets = (*BUDGETS, 100.0)
    rows = (
        (NETWORK_WORDS[method], *(_mean(found.get((method, epsilon)), trials=True) for epsilon in budgets))
        for method in ("consensus", "masked")
    )
    return markdown(("average and adversary", *(f"epsilon {e:g}" for e in budgets)), rows)


# ---- benchmarks ------------------------------------------------------------------------------------------


def steps() -> str:
    """Where the time of a step goes."""
    parts = result("benchmarks")["deep"]["whole_steps"]
    first, second = (parts[method]["share_of_a_step"] for method in ("dp-dsgt", "dp-dinno"))
    rows = ((name, first[name], second[name]) for name in first)
    return markdown(("part of a step", "DP-DSGT", "DP-DiNNO"), rows)


def speed() -> str:
    """Times faster than named rivals."""
    deep, convex = result("benchmarks")["deep"], result("benchmarks")["convex"]
    net = deep["mnist_10x256"]
    rows = (
        ("clipped gradients, MNIST net, 10 x 256 records", "Opacus, hooks", net["fast_over_opacus_hooks"]),
        ("the same", "Opacus, ghost clipping", net["fast_over_opacus_ghost"]),
        ("ResNet-9, 50 records", "Opacus, hooks", deep["resnet9_batch50"]["over_opacus_hooks"]),
        ("equation (6), all pairs of 2,048 nodes", "scipy sparse products",
         result("benchmarks")["foundation"]["published"]["times_faster"]),
        ("random walk, 8 features", "a loop in numpy", convex["random_walk"]["complete_against_numpy"]),
        ("two ranks against one, ResNet-9", "one process", result("benchmarks")["scale"]["resnet"]["ratio"]),
    )  # fmt: skip
    return markdown(("what", "rival", "ours, times faster"), ((*row[:2], f"{row[2]:.4g}") for row in rows))


def trust() -> str:
    """Attempts to break peers."""
    checks = result("verification")
    kills, worlds, fuzz = checks["kills"], checks["simulator"], checks["fuzzing"]
    rows = (
        ("killing a peer during a run", f"{kills['kills']:,}",
         f"{kills['undercounts']} rows sent that the ledger does not have"),
        ("simulated loss, copies, power cuts", f"{worlds['worlds']:,}", f"{worlds['violations']} violations"),
        ("mutated frames", f"{fuzz['frames']:,}", f"{fuzz['bugs']} refused frames that changed the state"),
    )  # fmt: skip
    return markdown(("what was tried", "how often", "outcome"), rows)


def ranks() -> str:
    """Several processes for one run, and workers for many."""
    stored = result("benchmarks")["scale"]
    resnet, audits, start = stored["resnet"], stored["audits"], stored["start"]
    seconds = resnet["seconds_per_step_2_ranks"], resnet["seconds_per_step_1_rank"]
    rows = (
        ("ResNet-9, ten agents on a ring, 2 ranks of one thread against 1",
         f"{resnet['ratio']} times ({seconds[0]:.1f} s against {seconds[1]:.1f} s a step)"),
        ("bytes sent in a round of that run", f"{resnet['bytes_sent_per_round']:,}"),
        ("64 audits of 400,000 runs, 2 workers against 1", f"{audits['ratio_median']} times"),
        ("the same with the start of the workers counted", f"{audits['ratio_with_start_median']} times"),
        ("from nothing to the first result of a sweep of two trials",
         ", ".join(f"{name} {value:.1f} s" for name, value in start.items() if "," in name)),
    )  # fmt: skip
    return markdown(("what", "figure"), rows)
