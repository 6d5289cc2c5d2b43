"""Linear models and a small problem."""

import math

import numpy as np
from hypothesis import strategies as st

from sottovoce.objectives import GLM

MODELS = [GLM("logistic"), GLM("squared"), GLM("huber", width=0.7), GLM("hinge", width=0.7)]
IDS = [m.loss for m in MODELS]


def problem(seed=0, n=40, p=5):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, p)), np.sign(rng.normal(size=n)), rng.normal(size=p)


def numeric_gradient(function, w, step=1e-6):
    """Return the slope of a function of several numbers by differences."""
    return np.array([(function(w + h) - function(w - h)) / (2 * step) for h in step * np.eye(len(w))])


HOSTILE = st.sampled_from([0.0, 1.0, -3.0, 1e38, -1e300, 1e308, 5e-324, math.inf, -math.inf, math.nan])
