"""What it costs: guarantees, loss curves, exact views, published formulas, calibration, noise and the ledger.

Names are imported on first use, so that importing this package stays quick.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES: dict[str, tuple[str, ...]] = {
    # not account.py: a module of that name would hide the function once it is imported
    "accountant": ("Priced", "account", "account_each"),
    "calibration": ("calibrate", "noise_for_budget", "noise_multiplier_for_budget"),
    "correlated": (
        "TimeCorrelation", "decor_bound", "decor_guarantee", "decor_variances", "mafalda", "mafalda_gram",
        "time_correlation",
    ),
    "curves": ("Curve",),
    "exact": (
        "LearningView", "averaging_guarantee", "consensus_guarantee", "consensus_leakage", "exact_loss",
        "learning_guarantee", "learning_view",
    ),
    "gaussian": ("gaussian_delta", "gaussian_epsilon", "gaussian_epsilons", "gaussian_mu"),
    "guarantees": ("Adjacency", "Adversary", "Guarantee", "Label"),
    "masks": (
        "GridNoise", "MaskGrid", "MaskKey", "PairMasks", "SummedNoise", "counted_variance", "grid_noise",
        "mask_grid", "mask_label", "next_chain", "pair_key", "session_hash", "simulated_masks", "sum_range",
    ),
    "releases": ("Budget", "Release"),
    "noise": ("NoiseSource", "ProtectiveNoise", "RecordedNoise", "SimulatedNoise", "as_noise"),
    "papers": ("published_bounds", "published_error"),
    "published": (
        "corollary_loss", "erdos_renyi_loss", "erdos_renyi_published_loss", "mean_loss",
        "published_guarantee", "published_loss", "published_mean_loss", "published_sgd_loss",
        "published_utility",
        "published_walk_guarantee", "published_walk_loss",
    ),
    "renyi": (
        "laplace_rdp", "mixture_rdp", "pure_rdp", "rdp_delta", "rdp_epsilon", "sampled_gaussian_rdp",
        "zcdp_epsilon",
    ),
    "sampling": ("sampled_gaussian",),
    "trees": (
        "few_leaf_tree", "fresh_tree_noise", "least_tree_noise", "optimal_noise", "tree_blocks",
        "tree_hiding", "tree_noise_program", "worst_tree_coalitions", "worst_tree_share",
    ),
    "walks": ("FirstPassage", "complete_passage", "first_passage", "walk_guarantee", "walk_loss"),
}  # fmt: skip
_NAMES = {name: f"sottovoce.privacy.{module}" for module, names in _MODULES.items() for name in names}
_NAMES["GaussianView"] = "sottovoce.protocols"

__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'sottovoce.privacy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
