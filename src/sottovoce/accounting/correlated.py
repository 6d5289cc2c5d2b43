"""Correlated noise: over time at one node (MAFALDA-SGD) and between neighbors (DECOR).

**Over time.** Node u uses at step t the noise :math:`\\sum_{s \\le t} (C^{-1})_{ts} \\xi_s` with independent
:math:`\\xi_s` of standard deviation sigma * sens * Delta, so that errors of later steps cancel those of
earlier ones. With :math:`X = C^T C` the loss under the local view is that of one Gaussian mechanism with mu
= 1 / sigma, where

.. math:: sens^2 = \\max_{\\pi} \\sum_{s,t \\in \\pi} |X_{st}|

over the sets of steps a user may take part in, and the error is sens^2 tr(M X^-1) with the Gram matrix
:math:`M_{ss'} = \\sum_{t \\ge \\max(s,s')} tr\\,W^{2t-s-s'+2}`. With one participation per user the
constraint is diag X = 1 and X solves a fixed-point equation; otherwise a projected gradient method finds it.

**Between neighbors.** Each pair of neighbors draws a common noise that one adds and the other subtracts; it
hides both from everyone else and vanishes from the mean. One step reveals a Gaussian with covariance
:math:`s_d^2 I + s_c^2 L`, L the Laplacian of the graph of honest nodes.

References: [1] Bellet, Cyffers, Frey, Gaudel, Lerévérend, Taïani, "Unified privacy guarantees for
decentralized learning via matrix factorization", arXiv 2510.17480; [2] Allouah, Koloskova, El Firdoussi,
Jaggi, Guerraoui, "The privacy power of correlated noise in decentralized learning", ICML 2024, Algorithm 2;
[3] Denisov, McMahan, Rush, Smith, Thakurta, "Improved differential privacy for SGD via optimal private
linear operators on adaptive streams", NeurIPS 2022, Theorem 3.2 (the fixed point).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import scipy.sparse as sp

from sottovoce import _validate
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network, takes_network

__all__ = ["decor_variances"]

# ---- between neighbors: DECOR ------------------------------------------------------------------------


@takes_network
def decor_variances(
    network: Network, private_std: float, shared_std: float, colluders: Iterable[int] = ()
) -> np.ndarray:
    """Return (n,): diagonal of (s_d^2 I + s_c^2 L_H)^-1 over honest nodes H; infinite for colluders.

    One step costs node i, per unit of squared shift, exactly this much mu^2.

    >>> import sottovoce as sv
    >>> float(decor_variances(sv.graphs.ring(16), 0.5, 3.0)[0].round(5))
    0.38196
    """
    private, shared = (
        _validate.positive(private_std, "private_std"),
        _validate.non_negative(shared_std, "shared_std"),
    )
    honest = _honest(network, colluders)
    L = _laplacian(network, honest)
    out = np.full(network.n, math.inf)
    out[honest] = np.diagonal(np.linalg.inv(private**2 * np.eye(len(honest)) + shared**2 * L.toarray()))
    return out


def _honest(network: Network, colluders: Iterable[int]) -> np.ndarray:
    listed = list(colluders)
    gone = _validate.nodes(listed, network.n, "colluders") if listed else ()
    honest = np.setdiff1d(np.arange(network.n), np.asarray(gone, dtype=np.int64))
    if not len(honest):
        raise InvalidInput("colluders must leave at least one honest node, got all of them.")
    return honest


def _laplacian(network: Network, honest: np.ndarray) -> sp.csr_array:
    inside = network.adjacency[honest][:, honest]
    return sp.csr_array(sp.diags_array(np.asarray(inside.sum(axis=1)).ravel()) - inside)
