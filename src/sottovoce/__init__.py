"""Sottovoce: private learning without a server, with a proven bound on what was revealed to whom.

The bound is exact where every step ends in consensus, the schedule is fixed and nothing is sampled.
"""

from __future__ import annotations

from sottovoce._lazy import lazy_names

__version__ = "0.1.0"

_PACKAGES = "accounting advice algorithms attacks data errors graphs objectives peers privacy protocols"
_NAMES = dict.fromkeys([*_PACKAGES.split(), "report", "runners", "sklearn"], "") | {
    "Guarantee": "accounting.guarantee",
    "Muffliato": "algorithms",
    "Network": "graphs",
    "Plan": "algorithms",
    "PrivateAveraging": "algorithms",
    "Protocol": "protocols",
    "Result": "runners",
    "TrainingOptions": "estimators.training",
    "Budget": "accounting.budget",
    "advise": "advice",
    "compare": "advice",
    "fit": "estimators.fitting",
    "load_model": "models.fitted",
    "load_plan": "planfile.read",
    "make_private": "integrations.own_loop",
    "save_plan": "planfile.write",
}
__all__ = ["__version__", *_NAMES]

__getattr__, __dir__ = lazy_names(__name__, _NAMES)
