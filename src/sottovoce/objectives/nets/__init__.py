"""Per-example gradients of torch modules.

To follow how they are computed, begin with `objective`.
"""

from __future__ import annotations

from sottovoce._lazy import lazy_names

__all__ = ["NetObjective"]
__getattr__, __dir__ = lazy_names(__name__, {"NetObjective": "objective"})
