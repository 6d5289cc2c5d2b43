"""The network of Bayrooti et al. 2023 with exact consensus and with masked sums, beside their methods.

Model, batches, graphs and split are those of Bayrooti et al.'s Table 1 (`cells`); what differs is how
gradients are averaged, and against whom the budget holds: everybody else together (own noise, over a tree) or
any one member who taps every link (masked sums). Settings are those found for the central run at the same
budget on training records held out (`tuning`), which is not charged: ``accept = ["tuning"]``; none were tried
for these sums themselves. An exact sum does not depend on the graph: the trials of Table 1 serve.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sottovoce.runners import Result
from sottovoce.runners.base import provenance_now
from sottovoce.runners.sweep import Spread, Trial, in_turn, run_cells
from sottovoce_papers import drawing
from sottovoce_papers.bayrooti2023.cells import DELTA, Cell, cell_trial
from sottovoce_papers.bayrooti2023.printed import printed
from sottovoce_papers.bayrooti2023.settings import Settings, settings_of
from sottovoce_papers.common import accuracy_of
from sottovoce_papers.registry import Experiment, Shown

__all__ = ["EXPERIMENTS", "FIEDLER", "WORDS"]

WORDS = {"consensus": "exact consensus, own noise: everybody else", "masked": "masked sums: any one member"}
BESIDE = {"dsgd": "DP-DSGD", "dsgt": "DP-DSGT", "dinno": "DP-DiNNO", "central": "DP-SGD, central"}
FIEDLER = 0.39


def network_trial(*, settings: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Run one trial given as plain values."""
    return cell_trial(**options, settings=Settings(**settings))


def secure_sum_network(
    quick: bool = False,
    *,
    method: tuple[str, ...] = ("consensus", "masked"),
    epsilon: tuple[float, ...] = (0.5, 1.0, 10.0, 100.0),
    trials: int = 1,
    results: str | None = None,
    progress: bool = False,
    spread: Spread = in_turn,
) -> Result:
    """Run Bayrooti et al.'s network with exact sums, one digit per agent."""
    started = time.perf_counter()
    cells = [(Cell(m, float(e), FIEDLER), settings_of(m, float(e))) for m in method for e in epsilon]
    if quick:
        few = Settings(1.0, 0.5, 0.5, 2)
        cells = [(Cell(m, 1.0, FIEDLER, data="digits", batch_size=16), few) for m in method]
        trials, results = 1, None
    jobs = [
        [
            Trial(
                f"{cell.key} trial={trial}",
                {
                    "cell": asdict(cell), "settings": asdict(settings), "trial": trial,
                    **({"results": results} if results else {}), **({"progress": True} if progress else {}),
                },
            )
            for trial in range(trials)
        ]
        for cell, settings in cells
    ]  # fmt: skip
    ran = run_cells(spread, network_trial, jobs)
    rows = [
        {
            "method": cell.method,
            "epsilon": cell.epsilon,
            **accuracy_of(records),
            "each": [record["accuracy"] for record in records],
            "settings": asdict(settings),
            "noise_multiplier": max(records[0]["noise_multiplier"]),
            "epsilon_spent": max(record["epsilon_spent"] for record in records),
            "accept": ["tuning"],
            "printed": {
                name: pair[0]
                for name in BESIDE
                if (pair := printed(1, name, cell.epsilon, FIEDLER, 1.0)) is not None
            },
        }
        for (cell, settings), records in zip(cells, ran, strict=True)
    ]
    came = [record["provenance"] for records in ran for record in records]
    return Result(
        name="secure-sum-network",
        config={"delta": DELTA, "quick": quick},
        history=rows,
        provenance=provenance_now(
            started, noise="simulation: reproducible, not protective", trials=len(came),
            trial_seconds=round(sum(p["seconds"] for p in came), 1),
        ),
    )  # fmt: skip


def table(record: dict[str, Any]) -> Shown:
    """Return the accuracies beside those that Bayrooti et al. printed for its methods."""
    rows = tuple(
        (WORDS[row["method"]], row["epsilon"], row["accuracy"], row["std"], row["trials"],
         ", ".join(f"{BESIDE[name]} {value:.2f}" for name, value in row["printed"].items()))
        for row in record["history"]
    )  # fmt: skip
    columns = ("average", "epsilon", "accuracy", "± std", "trials", "Bayrooti et al., same network and graph")
    return Shown(columns, rows, "Test accuracy in percent at delta 1e-5, lots of 256, ten agents.")


def plot(record: dict[str, Any]) -> Any:
    """Draw accuracy against the budget, with Bayrooti et al.'s methods as open points."""
    rows = record["history"]
    with drawing.figure_of() as (figure, (panel,)):
        for k, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
            line = [row for row in rows if row["method"] == method]
            drawing.error_bars(
                panel, [r["epsilon"] for r in line], [r["accuracy"] for r in line],
                [r["std"] or 0.0 for r in line], k, WORDS[method],
            )  # fmt: skip
        beside = {row["epsilon"]: row["printed"] for row in rows}
        for k, name in enumerate(BESIDE, start=2):
            at = [e for e, values in beside.items() if name in values]
            drawing.error_bars(panel, at, [beside[e][name] for e in at], None, k, BESIDE[name], paper=True)
        drawing.names(
            panel,
            "privacy budget epsilon",
            "test accuracy (%)",
            "MNIST, Bayrooti et al.'s network",
            xscale="log",
        )
    return figure


def above_the_paper(record: dict[str, Any]) -> bool | None:
    """Whether masked sums are above all methods of the paper; a quick run cannot say."""
    rows = [row for row in record["history"] if row["method"] == "masked" and row["printed"]]
    if record["config"]["quick"] or not rows:
        return None
    return all(row["accuracy"] > max(row["printed"].values()) for row in rows)


EXPERIMENTS = {
    "secure-sum-network": Experiment(
        "The network of Bayrooti et al. with exact consensus and with masked sums",
        "beyond Bayrooti et al. 2023, Table 1", secure_sum_network,
        plot, table=table, held=above_the_paper,
        claim="With masked sums the network is above every method of the paper, its central run among them.",
    ),
}  # fmt: skip
