"""Objectives: generalized linear models, softmax regression and neural networks.

Kernels and networks are imported on first use, so a plan can be built and its privacy cost computed without
numba or torch.
"""

from __future__ import annotations

from sottovoce._lazy import lazy_names
from sottovoce.objectives.glm import GLM

_NAMES = {"clip_around": "clipping", "clip_rows": "clipping", "Softmax": "softmax", "Regularizer": "prox"}

__all__ = ["GLM", *_NAMES]
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
