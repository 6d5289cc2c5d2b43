"""Every table and figure of the five sources, and what this library has of it.

B23 is Bayrooti, Gao, Prorok 2023 (private decentralized deep learning); M22 is Cyffers, Even, Bellet,
Massoulié 2022 (Muffliato); T23 and T24 are Bellet's talks on private decentralized learning and on attacks
and walks; O24 is his talk on private optimisation. Talks print pictures without numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

__all__ = ["ITEMS", "Item", "lasted", "stored"]


@dataclass(frozen=True)
class Item:
    """One table or figure of a source, the experiment that makes it, or why there is none.

    Examples
    --------
    >>> Item("B23", "Table 1", "accuracy", "table1").state()[0] in ("done", "partly", "runnable")
    True
    """

    source: str
    number: str
    what: str
    experiment: str | None = None
    missing: str = ""

    def state(self) -> tuple[str, str]:
        """Return a word (done, partly, runnable, cannot be drawn) and a sentence.

        ``done`` means that a record of the full form is stored; it says so when the code that its numbers
        rest on has changed since.
        """
        if self.experiment is None:
            return "cannot be drawn", self.missing
        kept = stored().get(self.experiment)
        if kept is None:
            return "runnable", self.missing or "not run in full yet"
        from sottovoce.experiments.registry import code_digest, is_current

        current = is_current(kept.get("code"), code_digest(self.experiment))
        age = "" if current else ", made by an earlier version of the code"
        if kept.get("assembled") and kept.get("code") is None:
            age = ", assembled from stored trials, whose code was not noted"
        if not current and kept.get("earlier"):
            age = f", {kept['earlier']} of {kept['trials']} trials by an earlier version of the code"
        cells, of = kept.get("cells"), kept.get("of")
        if cells is not None and of is not None and cells < of:
            return (
                "partly",
                f"{cells} of {of} cells{age}; scripts/run_papers.py runs the rest",
            )
        return "done", f"{lasted(kept['seconds'])}{age}"


def lasted(seconds: float) -> str:
    """Return a time as a person says it.

    Examples
    --------
    >>> lasted(0.3), lasted(88), lasted(1191), lasted(47845)
    ('under 1 s', '88 s', '20 min', '13.3 h')
    """
    if seconds < 1:
        return "under 1 s"
    if seconds < 300:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@cache
def stored() -> Mapping[str, Mapping[str, Any]]:
    """Return what is known of the stored records, by experiment: file, command, seconds, digest of the code.

    Examples
    --------
    >>> all({"file", "command", "seconds"} <= set(kept) for kept in stored().values())
    True
    """
    text = resources.files("sottovoce.experiments").joinpath("records.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, Any]] = json.loads(text)
    return found


ITEMS: tuple[Item, ...] = (
    Item("B23", "Table 1", "accuracy by method, budget and graph, MNIST: 65 cells", "table1"),
    Item("B23", "Table 2", "accuracy by data skew, MNIST, sparse graph: 25 cells", "table2"),
    Item("B23", "Table 3", "training hours of every method", "table3"),
    Item(
        "B23",
        "Table 4",
        "accuracy by data skew, CIFAR-100: 40 cells",
        "table4",
        "not run: needs the CIFAR-100 files and about 17 days a trial on one core",
    ),
    Item("B23", "Table 5", "lower bounds by membership inference", "audit-table5"),
    Item("B23", "Figure 1", "accuracy against connectivity", "figure1"),
    Item(
        "B23",
        "Figure 2",
        "CIFAR-100 accuracy against data skew, private and not",
        "table4",
        "not run: needs the CIFAR-100 files and about 17 days a trial on one core",
    ),
    Item("B23", "Figure 3", "losses on one record, SGD against DP-SGD", "loss-histograms"),
    Item("M22", "Table 1", "utility by topology and algorithm", "muffliato-utility"),
    Item("M22", "Figure 1(a)", "pairwise loss by distance, four graphs", "topologies"),
    Item("M22", "Figure 1(b)", "loss from one node of a Facebook ego graph", "ego-loss"),
    Item("M22", "Figure 1(c), top", "histogram of the pairwise loss, fresh graphs", "muffliato-histogram"),
    Item("M22", "Figure 1(c), bottom", "accuracy over iterations, same parameters", "muffliato-iterations"),
    Item("M22", "Figure 1(c), bottom", "the same at one mean privacy loss", "muffliato-houses"),
    Item("M22", "Theorems 2, 3", "error bounds beside measured errors", "muffliato-utility"),
    Item("M22", "Remark 1", "randomized gossip with momentum", "muffliato-utility"),
    Item("M22", "Appendix H", "loss by Euclidean distance, geometric graph", "geometric-distance"),
    Item("M22", "Appendix H", "other ego graphs", "ego-loss"),
    Item("M22", "Appendix H", "loss under dropout", "muffliato-dropout"),
    Item("M22", "Theorem 5", "excess risk of Muffliato-GD beside its rate", "muffliato-rate"),
    Item("T23", "walk against local DP", "network, local and central DP-SGD", "walk-vs-local"),
    Item("T23", "amplification", "a walk's loss against ln^2 n / n", "walk-amplification"),
    Item("T23", "utility table", "local, central and gossip averaging", "muffliato-utility"),
    Item("T24", "Figure 1", "reconstruction on a geometric graph", "attack-geometric"),
    Item("T24", "Figure 2", "reconstruction on Erdős-Rényi graphs", "attack-erdos-renyi"),
    Item("T24", "Figure 3", "reconstruction on Facebook ego 414", "attack-ego414"),
    Item("T24", "Figure 4, above", "line of 31, CIFAR-10, softmax regression", "attack-line-cifar10"),
    Item("T24", "Figure 4, below", "line of 31, MNIST, convolutional net", "attack-line-mnist"),
    Item("T24", "Figure 5", "the Florentine families as attackers", "attack-florentine"),
    Item(
        "T24",
        "walk against gossip, averaging",
        "loss by distance at equal utility",
        "walk-vs-gossip-averaging",
    ),
    Item("T24", "walk against gossip, SGD", "accuracy along the run at one mean loss", "walk-vs-gossip"),
    Item("O24", "utility of DP-SGD", "excess risk beside the printed rates", "dpsgd-rates"),
    Item("O24", "DP-SGD on imbalanced problems", "one step size for unequal features", "imbalanced"),
    Item("O24", "DP-CD", "objective on electricity, raw and standardised", "dpcd-electricity"),
    Item("O24", "DP-CD", "objective over the passes", "dpcd-curves"),
    Item("O24", "DP-GCD", "objective on madelon", "dpgcd-madelon"),
    Item("O24", "DP-GCD", "dorothea: 100,000 sparse features", "dpgcd-dorothea"),
    Item("O24", "private ADMM", "Lasso: central, federated, token", "admm-lasso"),
    Item(
        "O24",
        "fixed-point utility",
        "noisy fixed-point iterations against their bound",
        "fixed-point-utility",
    ),
    Item("beyond", "Table 1 of B23", "exact consensus with fixed features", "consensus-mnist"),
    Item("beyond", "Table 1 of B23", "masked sums: every adversary, MNIST", "secure-sum-mnist"),
    Item("beyond", "B23's network", "exact consensus and masked sums beside B23", "secure-sum-network"),
    Item("beyond", "images", "masked sums on Fashion-MNIST and CIFAR-10", "secure-sum-images"),
    Item("beyond", "agents", "accuracy against the number of agents", "secure-sum-agents"),
    Item("beyond", "averages", "noise in a mean of masked rows", "secure-sum-mean"),
    Item("beyond", "settings", "what was tried for the masked sums", "secure-sum-tuning"),
    Item("beyond", "settings", "what was tried for B23's network", "b23-tuning"),
    Item("beyond", "text", "a transformer fine-tuned by ten agents", "fine-tuning-text"),
    Item("beyond", "images", "a small ResNet fine-tuned by ten agents", "fine-tuning-images"),
    Item("beyond", "audits", "attempts to refute every convex plan", "convex-audits"),
)
