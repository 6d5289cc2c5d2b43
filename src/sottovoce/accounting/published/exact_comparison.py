"""One averaging on one network: its exact loss next to the papers' formulas, which are no guarantee.

Losses are in the unit of one release under local privacy: 0 if an observer learns nothing of a user, 1 if it
can compute the user's noisy value. Where a formula is about ``steps`` releases of every node, local privacy
is ``steps``. Errors are squared errors of a node.

References: [1] Cyffers, Even, Bellet, Massoulié, "Muffliato: peer-to-peer privacy amplification for
decentralized optimization and averaging", NeurIPS 2022; [2] Cyffers, Bellet, Upadhyay, "Differentially
private decentralized learning with random walks", ICML 2024, as stated in Bellet's 2024 talk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sottovoce import _validate
from sottovoce.accounting.exact import exact_loss
from sottovoce.accounting.published import formulas
from sottovoce.errors import InvalidInput, Refused
from sottovoce.graphs import Network
from sottovoce.graphs.parsing import family_of
from sottovoce.leakage.view import DETERMINED
from sottovoce.protocols import Protocol, rounds_for

ALL_PAIRS = 4096  # nodes up to which every pair is computed
DENSE = 2048  # nodes up to which Corollary 1 and the walk, which are dense (n, n) matrices, are computed
SLACK = 1e-9  # exact exceeds published by more than rounding
PUBLISHED_FOR = ("gossip", "chebyshev", "randomized")
_GOSSIP_PAPER, _WALK_PAPER = "Cyffers et al. 2022", "Cyffers et al. 2024"
_LARGE_NOISE = "sigma^2 >= Delta^2 alpha (alpha - 1) / 2"


def compare_with_published(
    network: Network,
    protocol: Protocol,
    observer: int | None = None,
    colluders: Sequence[int] = (),
    tick: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Return the exact loss and equation (6) of one averaging, with the summaries.

    Means are the mean loss of [1] (`sottovoce.privacy.mean_loss`), whose sum over the other nodes is divided
    by n, so that an observer counts 0 for itself; over pairs of different nodes it is n / (n - 1) times as
    large.
    """
    n, rank = network.n, None
    if observer is None and colluders:
        raise InvalidInput("Colluders join an observer; add --observer.")
    if observer is None and n > ALL_PAIRS:
        raise Refused(f"All pairs of {n:,} nodes are too many (at most {ALL_PAIRS:,}); add --observer.")
    if observer is None:
        exact = exact_loss(protocol, progress=tick)
        others = ~np.eye(n, dtype=bool)
        if not protocol.fresh_std:  # with one noise per node the leakage of all users adds up to the rank
            rank = int(np.rint(exact.sum(axis=0)).max())
    else:
        view = protocol.view({observer, *colluders})
        exact, rank = view.leakage(), view.rank
        others = ~np.isin(np.arange(n), view.observers)
    published = None  # equation (6) was not published for other protocols, or is too large
    if protocol.name in PUBLISHED_FOR and n <= ALL_PAIRS:
        # accelerated gossip has the messages of plain gossip, recombined: the formula is about those
        about = (protocol,) if protocol.name == "randomized" else (network, protocol.rounds)
        published = formulas.published_loss(*about)
        if observer is not None:
            published = published[:, [observer, *colluders]].sum(axis=1)
    assessment: dict[str, Any] = {
        "n": n,
        "edges": len(network.edges),
        "spectral_gap": network.spectral_gap,
        "protocol": protocol.name,
        "rounds": protocol.rounds,
        "observer": observer,
        "rank": rank,
        "exact": None if observer is None else exact,
        "published": None if observer is None else published,
        "mean_exact": float(exact[others].sum() / exact.size),
        "max_exact": float(exact[others].max(initial=0.0)),
        "mean_published": None,
        "understated_pairs": None,
    }
    if published is not None:
        understated = exact[others] > published[others] + SLACK
        assessment["mean_published"] = float(published[others].sum() / exact.size)
        assessment["understated_pairs"] = float(understated.sum() / max(1, understated.size))
    if colluders:
        assessment["colluders"] = list(colluders)
    if notes := missing_links(network, protocol):
        assessment["notes"] = notes
    return assessment | ({"_pairs": (exact, published)} if observer is None else {})


def missing_links(network: Network, protocol: Protocol) -> list[str]:
    """Return a sentence about links that a protocol uses and the network lacks, if there are any."""
    if protocol.name != "exchange":
        return []
    pairs = ((v, v ^ (1 << level)) for level in range(protocol.rounds) for v in range(network.n))
    return [
        f"exchange pairs nodes {v} and {partner}, which are not joined in {network.name}; "
        f"it needs hypercube:{protocol.rounds} or further links"
        for v, partner in pairs
        if partner > v and partner not in network.neighbors(v)
    ][:1]


def by_distance(network: Network, assessment: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Summarize a comparison by distance from the observer, or from the nearest of several."""
    if assessment["observer"] is None:
        if network.n > 1024:
            return []
        exact, published = assessment["_pairs"]
        distance = np.array([network.distances_from(v) for v in range(network.n)])
    else:
        exact, published = assessment["exact"], assessment["published"]
        group = [assessment["observer"], *assessment.get("colluders", ())]
        distance = np.min([network.distances_from(v) for v in group], axis=0)
    return [
        {
            "distance": d,
            "pairs": int(at.sum()),
            "exact_mean": float(exact[at].mean()),
            "exact_max": float(exact[at].max()),
            "determined": int((exact[at] > 1 - DETERMINED).sum()),
            # eq. (6) can exceed local privacy, which always holds: shown at most 1
            "published_mean": None if published is None else float(np.minimum(published[at], 1.0).mean()),
        }
        for d, at in ((d, distance == d) for d in range(1, int(distance.max(initial=0)) + 1))
    ]


# ---- all printed formulas about one network --------------------------------------------------------------


def published_bounds(
    network: Network,
    protocol: Protocol,
    observer: int | None = None,
    *,
    steps: int = 1,
    noise_std: float | None = None,
    assessed: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the papers' formulas for one network: ``losses`` and ``errors``, a mapping per formula.

    ``steps`` is how often every node takes part, for the formulas of learning (9) and of a walk, whose token
    then makes ``n * steps`` hops; ``noise_std`` sigma for values within 1 of their center, without which
    errors are in units of sigma^2; ``assessed`` the result of `compare_with_published`.

    Guarantees
    ----------
    None: label ``published``. ``bound`` says in how far a formula is one, and ``why``. ``understated`` is the
    share of the pairs (for equation (7): of the observers) whose exact loss is above the formula, None where
    the exact loss is about another quantity.
    """
    steps = _validate.count(steps, "steps")
    if network.n < 2 or not network.averaging:
        what = "one node" if network.n < 2 else "weights that are not symmetric"
        raise InvalidInput(f"The papers' formulas are about averaging between nodes, got {what}.")
    if protocol.name not in PUBLISHED_FOR:
        raise InvalidInput(
            f"The papers have formulas for {', '.join(PUBLISHED_FOR[:-1])} and {PUBLISHED_FOR[-1]}, and none "
            f"for {protocol.name}; take one of these, or read its exact loss."
        )
    if network.n > ALL_PAIRS:
        raise Refused(f"The formulas are computed for at most {ALL_PAIRS:,} nodes, got {network.n:,}.")
    assessment = compare_with_published(network, protocol, observer) if assessed is None else assessed
    if assessment.get("colluders"):
        raise InvalidInput("The papers' formulas are about one observer; leave the colluders out.")
    left_out = [f"Corollary 1 and the walk, above {DENSE:,} nodes"] if network.n > DENSE else []
    return {
        "label": "published",
        "unit": "one release under local privacy",
        "steps": steps,
        "losses": list(_losses(network, protocol, assessment, steps)),
        "errors": [_error(network, protocol, noise_std)],
        **({"left_out": left_out} if left_out else {}),
    }


class _Formula(NamedTuple):
    """A formula about privacy: its losses per pair [u, v] or observer v, and in how far it is a bound."""

    name: str
    function: str
    losses: np.ndarray
    exact: np.ndarray | None
    bound: str
    why: str
    local: int = 1  # how many releases of every node it is about
    source: str = _GOSSIP_PAPER


def _losses(
    network: Network, protocol: Protocol, assessment: Mapping[str, Any], steps: int
) -> Iterator[dict[str, Any]]:
    """Yield one row per formula about privacy."""
    n, observer = network.n, assessment["observer"]
    if observer is None:
        observers, (exact, six) = list(range(n)), assessment["_pairs"]
    else:
        observers, exact, six = [observer], assessment["exact"][:, None], assessment["published"][:, None]
    own = observers, np.arange(len(observers))
    others = np.ones(six.shape, dtype=bool)
    others[own] = False

    def means(losses: np.ndarray) -> np.ndarray:
        """Return, per observer, the sum over the others divided by n, as [1] defines the mean loss."""
        return np.asarray((losses.sum(axis=0) - losses[own]) / n) if losses.ndim == 2 else losses

    for formula in _formulas(network, protocol, observers, exact, six, means(exact), steps):
        losses, truth = formula.losses, formula.exact
        each = losses[others] if losses.ndim == 2 else losses
        true_each = None if truth is None else truth[others] if truth.ndim == 2 else truth
        yield {
            "formula": formula.name,
            "source": formula.source,
            "label": "published",
            "function": formula.function,
            "local": formula.local,
            "mean": float(means(losses).mean()),
            "largest": float(each.max()),
            "exact_mean": None if truth is None else float(means(truth).mean()),
            "exact_largest": None if true_each is None else float(true_each.max()),
            "understated": None if true_each is None else float((true_each > each + SLACK).mean()),
            "bound": formula.bound,
            "why": formula.why,
        }


def _formulas(
    network: Network,
    protocol: Protocol,
    observers: list[int],
    exact: np.ndarray,
    six: np.ndarray,
    exact_means: np.ndarray,
    steps: int,
) -> Iterator[_Formula]:
    """Yield the formulas that are about this network; ``six`` is equation (6)."""
    n, T = network.n, protocol.rounds
    fixed = protocol.name != "randomized"  # one matrix: Corollary 1 and equation (9) are about that
    why = "adds up messages that share their noise"
    yield _Formula("Theorem 1, (6)", "published_loss", six, exact, "no", why)
    # (7) is the mean of (6) over all u; for a fixed matrix that is rounds times degree over n
    seven = formulas.published_mean_loss(network, T)[observers] if fixed else six.mean(axis=0)
    why = "exact losses add up to the messages that are independent"
    yield _Formula("mean loss, (7)", "published_mean_loss", seven, exact_means, "of the mean", why)
    if fixed and n <= DENSE:
        losses = formulas.corollary_loss(network, T)[:, observers]
        why = "is above (6), which is not above the loss"
        yield _Formula("Corollary 1", "corollary_loss", losses, exact, "no", why)
    family, numbers = family_of(network.name)
    if fixed and family == "er":
        degrees = network.degrees[observers]
        losses = np.array([formulas.erdos_renyi_published_loss(n, int(d), T) for d in degrees])
        dense_enough = "" if numbers[1] > 1 else f" and c above 1 (here {numbers[1]:g})"
        why = (
            "between nodes that are no neighbors, if observers know no edges but their own and "
            f"{_LARGE_NOISE}{dense_enough}; between neighbors it is 1"
        )
        yield _Formula("Theorem 4", "erdos_renyi_published_loss", losses, None, "under conditions", why)
    if fixed and steps > 1:
        name = f"Theorem 6, (9), {steps:,} steps"
        why = "as (6), and leaves out that a step leaks in later ones"
        yield _Formula(name, "published_sgd_loss", steps * six, None, "no", why, steps)
    if n <= DENSE:
        losses = formulas.published_walk_loss(network, n * steps)[:, observers]
        name = f"walk, {n * steps:,} hops"
        why = (
            "an order, here with the constant of its authors' code; if losses are convex and smooth, senders "
            f"hidden, visits to a node at most {steps:,} and {_LARGE_NOISE}"
        )
        bound = "up to constants"
        yield _Formula(name, "published_walk_loss", losses, None, bound, why, steps, _WALK_PAPER)


def _error(network: Network, protocol: Protocol, noise_std: float | None) -> dict[str, Any]:
    """Return the row of the formula about the error: Theorem 2 or 3."""
    randomized = protocol.name == "randomized"
    kind, by = ("randomized", "randomized") if randomized else ("synchronous", "chebyshev")
    # values within 1 of their center are no further than 1 from their mean, on average
    sigma, spread = (1.0, 0.25) if noise_std is None else (noise_std, 1.0)
    stop = rounds_for(network, kind=kind, noise_std=sigma, variance=spread)
    applies = protocol.name == by and protocol.rounds >= stop
    why = f"for {by} of {stop:,} {'ticks' if randomized else 'rounds'} or more"
    if noise_std is None:
        why += ", with sigma at least half the width of the values"
    if not applies:
        why += f"; here it is {protocol.name} of {protocol.rounds:,}"
    return {
        "formula": f"Theorem {3 if randomized else 2}",
        "source": _GOSSIP_PAPER,
        "label": "published",
        "function": "published_error",
        "what": "half the squared error",
        "value": formulas.published_error(network, sigma, randomized=randomized),
        "unit": "sigma^2" if noise_std is None else "radius^2",
        "bound": "yes" if applies else "not here",
        "why": why,
        "rounds_needed": stop,
    }
