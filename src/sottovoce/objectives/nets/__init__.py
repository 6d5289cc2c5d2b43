"""Per-example gradients of torch modules."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["NetObjective"]


def __getattr__(name: str) -> Any:
    """Import torch on first use."""
    if name in __all__:
        return getattr(importlib.import_module("sottovoce.objectives.nets.objective"), name)
    raise AttributeError(f"module 'sottovoce.objectives.nets' has no attribute {name!r}")
