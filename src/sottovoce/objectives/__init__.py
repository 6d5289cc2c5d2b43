"""Objectives: generalized linear models, softmax regression and neural networks.

Kernels and networks are imported on first use, so a plan can be built and its privacy cost computed without
numba or torch.
"""

from __future__ import annotations

import importlib
from typing import Any

from sottovoce.objectives.glm import GLM

_MODULES = {
    "clipping": ("clip_around", "clip_rows"),
    "softmax": ("Softmax",),
    "prox": ("Regularizer",),
}
_NAMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["GLM", *_NAMES]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(f"sottovoce.objectives.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'sottovoce.objectives' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
