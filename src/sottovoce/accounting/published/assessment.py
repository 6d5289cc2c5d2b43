"""The exact loss of one averaging next to the published formula, per pair of nodes.

Losses are relative to local privacy: 0 if the observer learns nothing of a user, 1 if it can compute the
user's noisy value. The formula is equation (6) of Cyffers et al. 2022 (Muffliato), which is no guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sottovoce.accounting.exact import exact_loss
from sottovoce.accounting.published.formulas import published_loss
from sottovoce.errors import InvalidInput, Refused
from sottovoce.graphs import Network
from sottovoce.protocols import Protocol

ALL_PAIRS = 4096  # nodes up to which every pair is computed
SLACK = 1e-9  # exact exceeds published by more than rounding
PUBLISHED_FOR = ("gossip", "chebyshev", "randomized")


def assess(
    network: Network,
    protocol: Protocol,
    observer: int | None = None,
    colluders: Sequence[int] = (),
    own_noise: bool = True,
    tick: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Return the exact and the published loss of one averaging, with the summaries.

    Means are those of `sottovoce.privacy.mean_loss`: over all users, the observers themselves counting 0.

    Examples
    --------
    >>> import sottovoce as sv
    >>> path = sv.graphs.path(3)
    >>> assessment = assess(path, sv.protocols.Gossip(path, 2), observer=2)
    >>> assessment["exact"].round(6).tolist(), assessment["rank"], assessment["protocol"]
    ([1.0, 1.0, 0.0], 2, 'gossip')
    """
    n = network.n
    if observer is None and colluders:
        raise InvalidInput("Colluders join an observer; add --observer.")
    if observer is None and n > ALL_PAIRS:
        raise Refused(f"All pairs of {n:,} nodes are too many (at most {ALL_PAIRS:,}); add --observer.")
    if observer is None:
        h = exact_loss(protocol, own_noise=own_noise, progress=tick)
        others = ~np.eye(n, dtype=bool)
        # with one noise per node the leakage of all users adds up to the rank
        rank = int(np.rint(h.sum(axis=0)).max()) if not protocol.fresh_std else None
    else:
        view = protocol.view({observer, *colluders}, own_noise)
        h, rank = view.leakage(), view.rank
        others = ~np.isin(np.arange(n), view.observers)
    published = _published_for(network, protocol, observer, colluders)
    exact_others = h[others]
    return {
        "n": n,
        "edges": len(network.edges),
        "spectral_gap": network.spectral_gap,
        "protocol": protocol.name,
        "rounds": protocol.rounds,
        "observer": observer,
        "rank": rank,
        "exact": None if observer is None else h,
        "published": None if observer is None or published is None else published,
        "mean_exact": float(exact_others.sum() / h.size),
        "max_exact": float(exact_others.max(initial=0.0)),
        "mean_published": None if published is None else float(published[others].sum() / h.size),
        "understated_pairs": None
        if published is None
        else float((exact_others > published[others] + SLACK).sum() / max(1, exact_others.size)),
        **({"colluders": list(colluders)} if colluders else {}),
        **({} if own_noise else {"own_noise": False}),
        **({"notes": notes} if (notes := missing_links(network, protocol)) else {}),
        **({"_pairs": (h, published)} if observer is None else {}),
    }


def _published_for(
    network: Network, protocol: Protocol, observer: int | None, colluders: Sequence[int]
) -> np.ndarray | None:
    """Return eq. (6) for all pairs or one observer, None where it was not published or is too large."""
    if protocol.name not in PUBLISHED_FOR or network.n > ALL_PAIRS:
        return None
    # accelerated gossip has the messages of plain gossip, recombined: the formula is evaluated on those
    source = (
        {"source": protocol}
        if protocol.name == "randomized"
        else {"source": network, "rounds": protocol.rounds}
    )
    loss = published_loss(**source)
    return loss if observer is None else loss[:, [observer, *colluders]].sum(axis=1)


def missing_links(network: Network, protocol: Protocol) -> list[str]:
    """Return a sentence about links that a protocol uses and the network lacks, if there are any."""
    if protocol.name != "exchange":
        return []
    for level in range(protocol.rounds):
        for v in range(network.n):
            partner = v ^ (1 << level)
            if partner > v and partner not in network.neighbors(v):
                return [
                    f"exchange pairs nodes {v} and {partner}, which are not joined in {network.name}; "
                    f"it needs hypercube:{protocol.rounds} or further links"
                ]
    return []


def by_distance(network: Network, assessment: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Summarize the result of `assess` by distance from the observer, or the nearest of several."""
    if assessment["observer"] is None:
        exact, published = assessment["_pairs"]
        if network.n > 1024:
            return []
        distance = np.array([network.distances_from(v) for v in range(network.n)])
    else:
        exact, published = assessment["exact"], assessment["published"]
        group = [assessment["observer"], *assessment.get("colluders", ())]
        distance = np.min([network.distances_from(v) for v in group], axis=0)
    rows = []
    for d in range(1, int(distance.max(initial=0)) + 1):
        at = distance == d
        row = {
            "distance": d,
            "pairs": int(at.sum()),
            "exact_mean": float(exact[at].mean()),
            "exact_max": float(exact[at].max()),
            "determined": int((exact[at] > 1 - 1e-8).sum()),
            # eq. (6) can exceed local privacy, which always holds: shown at most 1
            "published_mean": None if published is None else float(np.minimum(published[at], 1.0).mean()),
        }
        rows.append(row)
    return rows
