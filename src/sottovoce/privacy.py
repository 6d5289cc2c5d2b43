"""Privacy: guarantees, privacy curves, exact leakage, published formulas, calibration and noise.

This module is the public entry to `sottovoce.accounting`, `sottovoce.leakage`, `sottovoce.noise` and
`sottovoce.secure_sum`. Names are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES: dict[str, tuple[str, ...]] = {
    "accounting.accountant": ("AccountablePlan", "account", "account_each"),
    "accounting.calibration": ("calibrate",),
    "accounting.observation.correlated": ("decor_variances",),
    "noise.time_correlation": ("TimeCorrelation", "mafalda", "mafalda_gram", "time_correlation",),
    "accounting.curve": ("Curve",),
    "accounting.exact": ("LearningView", "exact_loss", "learning_view"),
    "accounting.gaussian": ("gaussian_delta", "gaussian_epsilon", "gaussian_epsilons", "gaussian_mu"),
    "accounting.guarantee": ("Adjacency", "Adversary", "Guarantee", "Label"),
    "secure_sum.keys": ("MaskKey", "mask_label", "next_chain", "pair_key", "session_hash"),
    "secure_sum.masks": ("PairMasks", "simulated_masks"),
    "noise.grid": (
        "GridNoise", "MaskGrid", "SummedNoise", "counted_variance", "grid_noise", "mask_grid", "sum_range",
    ),
    "accounting.budget": ("Budget",),
    "accounting.release": ("Release",),
    "noise.samplers": ("NoiseSource", "ProtectiveNoise", "RecordedNoise", "SimulatedNoise", "as_noise"),
    "accounting.published.bounds": ("published_bounds", "published_error"),
    "accounting.published.formulas": (
        "corollary_loss", "erdos_renyi_loss", "erdos_renyi_published_loss", "mean_loss",
        "published_loss", "published_mean_loss", "published_sgd_loss",
        "published_utility",
        "published_walk_guarantee", "published_walk_loss",
    ),
    "accounting.renyi": (
        "laplace_rdp", "pure_rdp", "rdp_delta", "rdp_epsilon", "sampled_gaussian_rdp",
    ),
    "accounting.sampling": ("sampled_gaussian",),
    "accounting.tree_noise": (
        "few_leaf_tree", "fresh_tree_noise", "least_tree_noise", "optimal_noise", "tree_blocks",
        "tree_hiding", "tree_noise_program", "worst_tree_coalitions",
    ),
    "accounting.observation.random_walk": ("FirstPassage", "complete_passage", "first_passage", "walk_loss"),
}  # fmt: skip
_NAMES = {name: f"sottovoce.{module}" for module, names in _MODULES.items() for name in names}
_NAMES["GaussianView"] = "sottovoce.leakage.view"

__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'sottovoce.privacy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
