"""What one averaging tells each node of each other: the exact share beside the published formula.

The share is of local privacy: 0 when the observer learns nothing of a user, 1 when it can compute the user's
noisy value. The formula is equation (6) of the Muffliato paper, which is no guarantee.
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

__all__ = ["assess", "by_distance", "missing_links"]

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
    >>> found = assess(path, sv.protocols.Gossip(path, 2), observer=2)
    >>> found["exact"].round(6).tolist(), found["rank"], found["protocol"]
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
        rank = int(np.rint(h.sum(axis=0)).max()) if _one_noise_each(protocol) else None
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
    """Return a sentence about links that a protocol uses and the network lacks, if there are any.

    Examples
    --------
    >>> import sottovoce as sv
    >>> missing_links(sv.graphs.ring(4), sv.protocols.HypercubeExchange(4))
    ['exchange pairs nodes 0 and 2, which are not joined in ring:4; it needs hypercube:2 or further links']
    """
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


def by_distance(network: Network, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Summarize what `assess` found at every distance from the observer (the nearest, where several collude).

    Examples
    --------
    >>> import sottovoce as sv
    >>> path = sv.graphs.path(3)
    >>> rows = by_distance(path, assess(path, sv.protocols.Gossip(path, 2), observer=2))
    >>> [(row["distance"], row["determined"]) for row in rows]
    [(1, 1), (2, 1)]
    """
    if found["observer"] is None:
        exact, published = found["_pairs"]
        if network.n > 1024:
            return []
        distance = np.array([network.distances_from(v) for v in range(network.n)])
    else:
        exact, published = found["exact"], found["published"]
        group = [found["observer"], *found.get("colluders", ())]
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


def _one_noise_each(protocol: Protocol) -> bool:
    """Whether coordinates are users, so that the leakage adds up to the rank."""
    return not protocol.fresh_std
