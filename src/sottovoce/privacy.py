"""Privacy: the public names of accounting, leakage and noise. Names are imported on first use."""

from __future__ import annotations

from sottovoce._lazy import lazy_names

_MODULES = {
    "account": "accounting.accountant",
    "account_each": "accounting.accountant",
    "Budget": "accounting.budget",
    "calibrate": "accounting.calibration",
    "Curve": "accounting.curve",
    "LearningView": "accounting.exact",
    "exact_loss": "accounting.exact",
    "learning_view": "accounting.exact",
    "gaussian_delta": "accounting.gaussian",
    "gaussian_epsilon": "accounting.gaussian",
    "gaussian_mu": "accounting.gaussian",
    "Adjacency": "accounting.guarantee",
    "Adversary": "accounting.guarantee",
    "Guarantee": "accounting.guarantee",
    "Label": "accounting.guarantee",
    "mean_loss": "accounting.published.formulas",
    "published_loss": "accounting.published.formulas",
    "AccountablePlan": "accounting.question",
    "Release": "accounting.release",
    "sampled_gaussian": "accounting.guarantee",
    "GaussianView": "leakage.view",
    "ProtectiveNoise": "noise.samplers",
    "SimulatedNoise": "noise.samplers",
}

__all__ = list(_MODULES)
__getattr__, __dir__ = lazy_names(__name__, _MODULES, package="sottovoce")
