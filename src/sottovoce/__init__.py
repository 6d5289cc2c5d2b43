"""Sottovoce: private learning without a server, with an exact account of what was revealed to whom."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_SUBPACKAGES = (
    "accounting", "advice", "algorithms", "attacks", "data", "errors", "graphs", "objectives", "peers",
    "privacy", "protocols", "report", "runners", "sklearn",
)  # fmt: skip
_NAMES: dict[str, str] = {  # public name -> module that defines it
    "Guarantee": "sottovoce.privacy",
    "Muffliato": "sottovoce.algorithms",
    "Network": "sottovoce.graphs",
    "Plan": "sottovoce.algorithms",
    "PrivateAveraging": "sottovoce.algorithms",
    "Protocol": "sottovoce.protocols",
    "Result": "sottovoce.runners",
    "TrainingOptions": "sottovoce.estimators.training",
    "Budget": "sottovoce.accounting.budget",
    "advise": "sottovoce.advice",
    "compare": "sottovoce.advice",
    "fit": "sottovoce.estimators.fitting",
    "load_model": "sottovoce.models.saved",
    "load_plan": "sottovoce.planfile.read",
    "save_plan": "sottovoce.planfile.write",
}
__all__ = ["__version__", *_SUBPACKAGES, *_NAMES]


def __getattr__(name: str) -> Any:
    """Import sub-packages and the central names on first use, so that importing is quick."""
    if name in _SUBPACKAGES:
        return importlib.import_module(f"sottovoce.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'sottovoce' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
