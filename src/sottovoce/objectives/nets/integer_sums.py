r"""Clipped sums on a device without float64: shares are cut to whole multiples of a grid and add up exactly.

.. math:: S = h \sum_r \mathrm{trunc}(w_r g_r / h), \qquad C\, 2^{-23} < h \le C\, 2^{-22}

A sum in float32 would move by its rounding errors wherever one record more shifts all later ones. Whole
numbers of 32 bits add without rounding: what one record adds does not depend on the others, nor on the order
or the pieces in which they are added. Sums of up to 256 records are added in float64 on the host.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from sottovoce.objectives.clipping import clip_weights

_BITS, _TOGETHER = 22, 256  # 2^8 numbers of up to 2^22 stay below 2^31
_RUN = 256  # squares that are added in float32; their sums are added in float64 on the host
_UNIT, _TINY = 2.0**-24, 2.0**-126  # the largest rounding error of float32, and what may become zero
_LEAST = 2.0**-90  # of C: the inverse of the grid is a number of float32


@cache
def has_float64(device: torch.device) -> bool:
    """Return whether a device computes in float64."""
    try:
        float(torch.zeros(1, device=device, dtype=torch.float64))
    except (RuntimeError, TypeError):
        return False
    return True


def add_integer_sums(gradients: Tensor, present: Tensor, clip_norm: float, sums: Tensor) -> None:
    """Add the sum of the clipped float32 gradients (records, d) to ``sums`` (d,), float64 on the host.

    Without a clip (``inf``) the grid suits the longest gradient.

    Guarantees
    ----------
    One record moves the sum by at most C in Euclidean norm (add or remove; 2C for replace), whatever the
    other records are: its share is a function of its own gradient, and shares add without rounding, up to
    2^31 records. Roundings are charged to the record, by a clip lowered by less than 1e-5 C: a run of 256
    squares in float32 is short of the true sum by a factor (1 - 2^-24)^256 and 256 numbers of 2^-126 at most,
    and the norm is enlarged by both; the weight is lowered by a factor 1 - 2^-21, which covers its own
    rounding and that of the product, 2^-24 each; cutting toward zero makes no number larger. A gradient that
    holds NaN or infinity, or whose square overflows, adds zero. Assumed: the device rounds float32 sums and
    products to the nearest number, or to zero below 2^-126.
    """
    squared = _squared_norms(gradients)
    usable = torch.isfinite(squared)
    longest = float(squared[usable].max().sqrt()) if bool(usable.any()) else 0.0
    scale = clip_norm if math.isfinite(clip_norm) else longest
    if scale < _LEAST:
        return
    grid = 2.0 ** (math.ceil(math.log2(scale)) - _BITS)
    weights = clip_weights(squared, clip_norm) * present.cpu() * ((1 - 2.0**-21) / grid)
    gradients.masked_fill_(~usable.to(gradients.device)[:, None], 0.0)
    shares = gradients.mul_(weights.float().to(gradients.device)[:, None]).to(torch.int32)
    for part in torch.split(shares, _TOGETHER):
        sums += part.sum(0, dtype=torch.int32).cpu().double() * grid


def _squared_norms(gradients: Tensor) -> Tensor:
    """Return the most that the squared norms of float32 rows may truly be, in float64 on the host."""
    padded = torch.nn.functional.pad(gradients, (0, -gradients.shape[1] % _RUN))
    runs = padded.view(len(gradients), -1, _RUN)
    squares = runs.square().sum(2).cpu().double()
    return squares.sum(1) * (1 + (_RUN + 4) * _UNIT) + 2 * gradients.shape[1] * _TINY
