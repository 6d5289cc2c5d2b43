"""One file per published algorithm; each gives a `Plan`, which computes its own privacy guarantee.

`plan` is the base of all plans, `central_plan` and `gradient_plan` that of most; `build` makes a plan from a
name, options and a budget; `options` checks options, `optimizers` has learning rates and optimizers,
`schedule` the protocol of every step, `tree_noise` the least noise on spanning trees, `registry` the names.
"""

from __future__ import annotations

from sottovoce._lazy import lazy_names
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
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
