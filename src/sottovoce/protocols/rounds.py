"""How many rounds of (accelerated) gossip a network needs in theory."""

from __future__ import annotations

import math

from sottovoce import _validate
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network, takes_network
from sottovoce.protocols.randomized import edge_intensities, momentum


@takes_network
def rounds_for(
    network: Network,
    *,
    noise_std: float = 1.0,
    variance: float = 0.25,
    kind: str = "synchronous",
    dim: int = 1,
) -> int:
    """Return the theoretical number of rounds after which noise, not disagreement, dominates the error.

    The default counts rounds of accelerated gossip (``chebyshev``); plain gossip needs more, about
    ``1 / sqrt(network.spectral_gap)`` times as many, for the same agreement.

    Parameters
    ----------
    variance : a public bound on the mean squared distance of the values from their mean (never computed
        from private data); 1/4 suits values in [0, 1].
    kind : ``"synchronous"`` (accelerated; Muffliato Theorem 2), ``"randomized"`` (Theorem 3, ticks),
        ``"accelerated-randomized"`` (Remark 1, ticks), or ``"descent"`` (Theorem 5, rounds within a gradient
        step; ``variance`` is then the gradients').
    dim : dimension of the rows (used by ``"descent"``).

    Examples
    --------
    >>> import sottovoce as sv
    >>> sv.protocols.rounds_for(sv.graphs.hypercube(11)), sv.protocols.rounds_for(sv.graphs.path(8))
    (19, 10)
    """
    sigma2 = _validate.positive(noise_std, "noise_std") ** 2
    spread = _validate.non_negative(variance, "variance")
    if network.n == 1:
        return 0
    gap = network.spectral_gap
    wanted = math.log(network.n / sigma2 * max(sigma2, spread))
    if kind == "synchronous":
        length = wanted / math.sqrt(gap)
    elif kind == "randomized":
        length = wanted * network.n / (1 - network.second_eigenvalue)
    elif kind == "accelerated-randomized":
        length = wanted / momentum(network, edge_intensities(network))[0]
    elif kind == "descent":
        length = math.log(max(network.n, spread / (dim * sigma2))) / math.sqrt(gap)
    else:
        raise InvalidInput(
            f"kind must be synchronous, randomized, accelerated-randomized or descent, got {kind!r}."
        )
    return max(1, math.ceil(length - 1e-9))
