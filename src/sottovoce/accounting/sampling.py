"""Poisson-sampled Gaussian steps as a guarantee: the accounting of DP-SGD and all record-level methods.

Each step draws every record independently with probability ``sample_rate``, clips each contribution to norm
C, and adds Gaussian noise of standard deviation ``noise_multiplier * C`` to the sum.

References: [1] Abadi et al., "Deep learning with differential privacy", CCS 2016; [2] Mironov, Talwar, Zhang,
"Rényi differential privacy of the sampled Gaussian mechanism", 2019.
"""

from __future__ import annotations

from typing import Literal

from sottovoce.accounting.curve import Curve, Method
from sottovoce.accounting.guarantee import Adversary, Guarantee


def sampled_gaussian(
    sample_rate: float,
    noise_multiplier: float,
    steps: int,
    method: Method = "pld",
    *,
    adjacency: Literal["add-remove", "replace-one"] = "add-remove",
    adversary: Adversary | None = None,
) -> Guarantee:
    """Return the guarantee of ``steps`` Poisson-sampled Gaussian steps.

    Parameters
    ----------
    sample_rate : probability with which each record enters a step.
    noise_multiplier : noise standard deviation over clip norm, for both adjacencies.
    method : ``"pld"`` (numerical, tight to about 1e-3) or ``"rdp"`` (Rényi, as most papers account).

    Guarantees
    ----------
    Record level, against whoever sees every noisy sum (label ``ldp``), other records known. Holds for Poisson
    sampling only: shuffled or fixed-size batches need another account. ``noise_multiplier=0`` gives infinity,
    ``sample_rate=0`` or no steps give 0. Under replace-one the sum moves by twice the clip norm, which is
    included.

    >>> loss = sampled_gaussian(0.01, 1.0, 1000)
    >>> round(loss.epsilon(1e-5), 2), round(sampled_gaussian(0.01, 1.0, 1000, "rdp").epsilon(1e-5), 2)
    (1.83, 2.1)
    """
    curve = Curve.sampled_gaussian(sample_rate, noise_multiplier, steps, adjacency=adjacency, method=method)
    assumptions = ("Poisson sampling: every record enters every step independently",)
    return Guarantee(adversary or Adversary("local"), adjacency, "ldp", curve, assumptions)
