"""What it costs: guarantees, loss curves, exact views, published formulas, calibration, noise and the ledger.

Names are imported on first use, so that importing this package stays quick.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES: dict[str, tuple[str, ...]] = {
    "curves": ("Curve",),
    "exact": (
        "LearningView", "averaging_guarantee", "consensus_guarantee", "consensus_leakage", "exact_loss",
        "learning_guarantee", "learning_view",
    ),
    "gaussian": ("gaussian_delta", "gaussian_epsilon", "gaussian_mu"),
    "guarantees": ("Adjacency", "Adversary", "Guarantee", "Label"),
    "ledger": ("Budget", "Ledger", "MemoryLedger", "Release"),
    "noise": ("NoiseSource", "ProtectiveNoise", "RecordedNoise", "SimulatedNoise", "as_noise"),
    "renyi": (
        "laplace_rdp", "mixture_rdp", "pure_rdp", "rdp_delta", "rdp_epsilon", "sampled_gaussian_rdp",
        "zcdp_epsilon",
    ),
    "sampling": ("sampled_gaussian",),
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
