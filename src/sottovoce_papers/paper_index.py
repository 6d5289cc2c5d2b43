"""Every table and figure of the five sources, and what this library has of it.

The sources are Bayrooti, Gao, Prorok 2023 (private decentralized deep learning), Cyffers, Even, Bellet,
Massoulié 2022 (Muffliato), and three talks by Bellet: 2023 on private decentralized learning, 2024 on attacks
and random walks, 2024 on private optimization. Talks print pictures without numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.report.result_files import read_result
from sottovoce_papers.bayrooti2023.tables import figure1_of


@dataclass(frozen=True)
class Item:
    """One table or figure of a source, the experiment that makes it, or why there is none."""

    source: str
    number: str
    what: str
    experiment: str | None = None
    missing: str = ""

    def state(self, results: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
        """Return a word (done, partly, runnable, cannot be drawn) and a sentence."""
        if self.experiment is None:
            return "cannot be drawn", self.missing
        result = results.get(self.experiment)
        if result is None:
            return "runnable", self.missing or "no stored result"
        provenance, metrics = result["provenance"], result["metrics"]
        cells, of = metrics.get("cells"), metrics.get("cells_in_the_paper")
        if cells is not None and of is not None and cells < of:
            return "partly", f"{cells} of {of} cells; python -m sottovoce_papers.trials runs the rest"
        return "done", lasted(provenance.get("trial_seconds", provenance.get("seconds", 0.0)))


def lasted(seconds: float) -> str:
    """Return a time as a person says it."""
    if seconds < 1:
        return "under 1 s"
    if seconds < 300:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def stored_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results of experiments in a folder by name, in the order of `ITEMS`."""
    names = dict.fromkeys(item.experiment for item in ITEMS if item.experiment is not None)
    results: dict[str, dict[str, Any]] = {}
    for name in names:
        path = folder / f"{name}.json"
        if path.is_file():
            results[name] = read_result(path)
        elif name == "figure1" and "table1" in results:
            results[name] = figure1_of(results["table1"])
    return results


_CIFAR = "not run: needs the CIFAR-100 files and about 17 days a trial on one core"
_ITEMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "Bayrooti et al. 2023": (
        ("Table 1", "accuracy by method, budget and graph, MNIST: 65 cells", "table1"),
        ("Table 2", "accuracy by data skew, MNIST, sparse graph: 25 cells", "table2"),
        ("Table 3", "training hours of every method", "table3"),
        ("Table 4", "accuracy by data skew, CIFAR-100: 40 cells", "table4", _CIFAR),
        ("Table 5", "lower bounds by membership inference", "audit-table5"),
        ("Figure 1", "accuracy against connectivity", "figure1"),
        ("Figure 2", "CIFAR-100 accuracy against data skew, private and not", "table4", _CIFAR),
        ("Figure 3", "losses on one record, SGD against DP-SGD", "loss-histograms"),
    ),
    "Cyffers et al. 2022": (
        ("Table 1", "utility by topology and algorithm", "muffliato-utility"),
        ("Figure 1(a)", "pairwise loss by distance, four graphs", "topologies"),
        ("Figure 1(b)", "loss from one node of a Facebook ego graph", "ego-loss"),
        ("Figure 1(c), top", "histogram of the pairwise loss, fresh graphs", "muffliato-histogram"),
        ("Figure 1(c), bottom", "accuracy over iterations, same parameters", "muffliato-iterations"),
        ("Figure 1(c), bottom", "the same at one mean privacy loss", "muffliato-houses"),
        ("Theorems 2, 3", "error bounds beside measured errors", "muffliato-utility"),
        ("Remark 1", "randomized gossip with momentum", "muffliato-utility"),
        ("Appendix H", "loss by Euclidean distance, geometric graph", "geometric-distance"),
        ("Appendix H", "other ego graphs", "ego-loss"),
        ("Appendix H", "loss under dropout", "muffliato-dropout"),
        ("Theorem 5", "excess risk of Muffliato-GD beside its rate", "muffliato-rate"),
    ),
    "Bellet 2023": (
        ("walk against local DP", "network, local and central DP-SGD", "walk-vs-local"),
        ("amplification", "a walk's loss against ln^2 n / n", "walk-amplification"),
        ("utility table", "local, central and gossip averaging", "muffliato-utility"),
    ),
    "Bellet 2024, decentralized learning": (
        ("Figure 1", "reconstruction on a geometric graph", "attack-geometric"),
        ("Figure 2", "reconstruction on Erdős-Rényi graphs", "attack-erdos-renyi"),
        ("Figure 3", "reconstruction on Facebook ego 414", "attack-ego414"),
        ("Figure 4, above", "line of 31, CIFAR-10, softmax regression", "attack-line-cifar10"),
        ("Figure 4, below", "line of 31, MNIST, convolutional net", "attack-line-mnist"),
        ("Figure 5", "the Florentine families as attackers", "attack-florentine"),
        ("walk against gossip, averaging", "loss by distance at equal utility", "walk-vs-gossip-averaging"),
        ("walk against gossip, SGD", "accuracy along the run at one mean loss", "walk-vs-gossip"),
    ),
    "Bellet 2024, optimization": (
        ("utility of DP-SGD", "excess risk beside the printed rates", "dpsgd-rates"),
        ("DP-SGD on imbalanced problems", "one step size for unequal features", "imbalanced"),
        ("DP-CD", "objective on electricity, raw and standardized", "dpcd-electricity"),
        ("DP-CD", "objective over the passes", "dpcd-curves"),
        ("DP-GCD", "objective on madelon", "dpgcd-madelon"),
        ("DP-GCD", "dorothea: 100,000 sparse features", "dpgcd-dorothea"),
        ("private ADMM", "Lasso: central, federated, token", "admm-lasso"),
        ("fixed-point utility", "noisy fixed-point iterations against their bound", "fixed-point-utility"),
    ),
    "beyond": (
        ("Table 1 of Bayrooti et al.", "exact consensus with fixed features", "consensus-mnist"),
        ("Table 1 of Bayrooti et al.", "masked sums: every adversary, MNIST", "secure-sum-mnist"),
        ("the network of Bayrooti et al.", "exact consensus and masked sums", "secure-sum-network"),
        ("images", "masked sums on Fashion-MNIST and CIFAR-10", "secure-sum-images"),
        ("agents", "accuracy against the number of agents", "secure-sum-agents"),
        ("averages", "noise in a mean of masked rows", "secure-sum-mean"),
        ("settings", "what was tried for the masked sums", "secure-sum-tuning"),
        ("settings", "what was tried for the network of Bayrooti et al.", "bayrooti2023-tuning"),
        ("text", "a transformer fine-tuned by ten agents", "fine-tuning-text"),
        ("images", "a small ResNet fine-tuned by ten agents", "fine-tuning-images"),
        ("audits", "attempts to refute every convex plan", "convex-audits"),
    ),
}
ITEMS = tuple(Item(source, *row) for source, rows in _ITEMS.items() for row in rows)
