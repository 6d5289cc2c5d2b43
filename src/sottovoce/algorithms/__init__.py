"""One file per published algorithm; each gives a `Plan`, which computes its own privacy guarantee."""

from __future__ import annotations

import importlib
from typing import Any

from sottovoce.algorithms.registry import ALGORITHMS

_NAMES: dict[str, str] = {
    "GradientPlan": "gradient_plan",
    "Muffliato": "averaging",
    "Plan": "plan",
    "Optimizer": "optimizers",
    "Rate": "optimizers",
}
_NAMES |= {place.partition(":")[2]: place.partition(":")[0] for place in ALGORITHMS.values()}

__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    """Import an algorithm on first use; some need numba or torch."""
    if name in _NAMES:
        return getattr(importlib.import_module(f"sottovoce.algorithms.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'sottovoce.algorithms' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
