"""One file per published algorithm; each gives a `Plan` that knows its own price."""

from __future__ import annotations

import importlib
from typing import Any

_MODULES: dict[str, tuple[str, ...]] = {
    "admm": ("CentralADMM", "FederatedADMM", "TokenADMM"),
    "consensus_sgd": ("ConsensusSGD", "consensus_sgd"),
    "decentralized": ("LearningPlan",),
    "decor": ("Decor",),
    "dp_cd": ("DPCD",),
    "dp_gcd": ("DPGCD",),
    "dp_sgd": ("DPSGD",),
    "estimators": ("PrivateLasso", "PrivateLogisticRegression", "PrivateRidge"),
    "fixed_point": ("FixedPoint",),
    "mafalda": ("Mafalda",),
    "deep": ("DeepPlan",),
    "deep_consensus": ("DeepConsensus",),
    "deep_muffliato": ("DeepMuffliato",),
    "deep_sgd": ("DeepSGD",),
    "deep_walk": ("DeepWalk",),
    "dp_dinno": ("DPDiNNO",),
    "dp_dsgd": ("DPDSGD",),
    "dp_dsgt": ("DPDSGT",),
    "muffliato": ("Muffliato", "averaging"),
    "muffliato_sgd": ("MuffliatoSGD", "muffliato_sgd"),
    "plan": ("Plan",),
    "random_walk": ("RandomWalkSGD",),
    "ranks": ("run_on_ranks",),
}
_NAMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    """Import an algorithm on first use; some need numba or torch."""
    if name in _NAMES:
        return getattr(importlib.import_module(f"sottovoce.algorithms.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'sottovoce.algorithms' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
