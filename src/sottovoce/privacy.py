"""Privacy: the public names of accounting, leakage and noise. Names are imported on first use."""

from __future__ import annotations

from sottovoce._lazy import lazy_names

_NAMES = {
    "accounting.accountant": ("account", "account_each"),
    "accounting.budget": ("Budget",),
    "accounting.calibration": ("calibrate",),
    "accounting.curve": ("Curve",),
    "accounting.exact": ("LearningView", "exact_loss", "learning_view"),
    "accounting.gaussian": ("gaussian_delta", "gaussian_epsilon", "gaussian_mu"),
    "accounting.guarantee": ("Adjacency", "Adversary", "Guarantee", "Label", "sampled_gaussian"),
    "accounting.published.formulas": ("mean_loss", "published_loss"),
    "accounting.question": ("AccountablePlan",),
    "accounting.release": ("Release",),
    "leakage.view": ("GaussianView",),
    "noise.samplers": ("ProtectiveNoise", "SimulatedNoise"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = list(_MODULES)
__getattr__, __dir__ = lazy_names(__name__, _MODULES, package="sottovoce")
