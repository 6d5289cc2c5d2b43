"""What is minimized: generalized linear models, their proximal maps, and neural networks; and the one gate.

Kernels and networks are imported where they are used, so that a plan can be built and priced without numba
or torch.
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
