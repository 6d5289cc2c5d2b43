"""What the papers' own formulas say of one network, side by side: every number has the label ``published``.

Losses are in the unit of one release under local privacy, alpha Delta^2 / (2 sigma^2); where a formula is
about ``steps`` releases of every node, local privacy is ``steps``. Errors are squared errors of a node.
Beside a formula stands the exact loss where it speaks of the same thing, so that one sees whether it holds.
Nothing here may accept a budget.

References: [1] Cyffers, Even, Bellet, Massoulié, "Muffliato: peer-to-peer privacy amplification for
decentralized optimization and averaging", NeurIPS 2022; [2] Cyffers, Bellet, Upadhyay, "Differentially
private decentralized learning with random walks", ICML 2024, as stated in Bellet's 2024 talk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sottovoce import _validate
from sottovoce.accounting.published import formulas
from sottovoce.accounting.published.assessment import ALL_PAIRS, PUBLISHED_FOR, SLACK, assess
from sottovoce.errors import InvalidInput, Refused
from sottovoce.graphs import Network, takes_network
from sottovoce.graphs.parsing import family_of
from sottovoce.protocols import Protocol, rounds_for

__all__ = ["published_bounds", "published_error"]

DENSE = 2048  # nodes up to which Corollary 1 and the walk, which are dense (n, n) matrices, are computed
M22, C24 = "Cyffers et al. 2022", "Cyffers et al. 2024"
_LARGE = "sigma^2 >= Delta^2 alpha (alpha - 1) / 2"
_COLUMNS = {"ring": "ring", "complete": "complete", "hypercube": "expander", "exponential": "expander"}


@takes_network
def published_error(
    network: Network,
    noise_std: float,
    *,
    rounds: int | None = None,
    variance: float = 0.25,
    randomized: bool = False,
) -> float:
    """Return the bound of [1] on half the mean squared error of a node: 3 sigma^2 / n, Theorem 2.

    Parameters
    ----------
    network : the graph and its weights.
    noise_std : sigma, in the unit of the values.
    rounds : of accelerated gossip (`sottovoce.protocols.Chebyshev`), or ticks of randomized gossip. Below
        T_stop, which is `sottovoce.protocols.rounds_for`, nothing is claimed and the bound is infinite.
        None: T_stop rounds.
    variance : a public bound on the mean squared distance of the values from their mean.
    randomized : Theorem 3, 2 sigma^2 / n, for randomized gossip. `rounds_for` counts its ticks by the gap of
        the mean matrix, which is half the lambda(p) that [1] prints: twice as many.

    Examples
    --------
    >>> import sottovoce as sv
    >>> ring = sv.graphs.ring(16)
    >>> published_error(ring, 1.0), published_error(ring, 1.0, randomized=True)
    (0.1875, 0.125)
    >>> published_error(ring, 1.0, rounds=sv.protocols.rounds_for(ring) - 1)
    inf
    """
    sigma = _validate.positive(noise_std, "noise_std")
    kind = "randomized" if randomized else "synchronous"
    stop = rounds_for(network, noise_std=sigma, variance=variance, kind=kind)
    if rounds is not None and _validate.count(rounds, "rounds", minimum=0) < stop:
        return math.inf
    return (2 if randomized else 3) * sigma**2 / network.n


def published_bounds(
    network: Network,
    protocol: Protocol,
    observer: int | None = None,
    *,
    steps: int = 1,
    noise_std: float | None = None,
    assessed: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what the papers' formulas say of one network: ``losses`` and ``errors``, a mapping per formula.

    Parameters
    ----------
    network, protocol : who talks to whom, and gossip on it: ``gossip``, ``chebyshev`` or ``randomized``.
    observer : the curious node; None: every node in turn.
    steps : how often every node takes part, for the formulas of learning (9) and of a walk, whose token
        then makes ``n * steps`` hops.
    noise_std : sigma for values within 1 of their center; without it errors are in units of sigma^2.
    assessed : what `sottovoce.accounting.published.assessment.assess` returned for the same question, if it
    is at hand.

    Guarantees
    ----------
    None: label ``published``. ``bound`` says in how far a formula is one, and ``why``. ``understated`` is the
    share of the pairs (for equation (7): of the observers) whose exact loss is above the formula, None where
    the exact loss is not about the same thing.

    Examples
    --------
    >>> import sottovoce as sv
    >>> path = sv.graphs.path(3)
    >>> found = published_bounds(path, sv.protocols.Gossip(path, 2), observer=2)
    >>> for row in found["losses"][:3]:
    ...     print(row["formula"], round(row["largest"], 3), row["understated"], row["label"])
    Theorem 1, (6) 1.333 0.5 published
    mean loss, (7) 0.667 0.0 published
    Corollary 1 6.0 0.5 published
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
    found = assess(network, protocol, observer) if assessed is None else assessed
    if found.get("colluders"):
        raise InvalidInput("The papers' formulas are about one observer; leave the colluders out.")
    left_out = []
    if network.n > DENSE:
        left_out.append(f"Corollary 1 and the walk, above {DENSE:,} nodes")
    return {
        "label": "published",
        "unit": "one release under local privacy",
        "steps": steps,
        "losses": list(_losses(network, protocol, found, steps)),
        "errors": list(_errors(network, protocol, noise_std)),
        **({"left_out": left_out} if left_out else {}),
    }


# ---- losses ----------------------------------------------------------------------------------------


def _losses(
    network: Network, protocol: Protocol, found: Mapping[str, Any], steps: int
) -> Iterator[dict[str, Any]]:
    """Yield one mapping per formula about privacy."""
    n, T, observer = network.n, protocol.rounds, found["observer"]
    watching = range(n) if observer is None else (observer,)
    exact, six = _pairs(found)
    fixed = protocol.name != "randomized"  # one matrix: Corollary 1 and equation (9) are about that
    yield _about_pairs(
        "Theorem 1, (6)", M22, "published_loss", six, exact, watching,
        bound="no", why="adds up messages that share their noise",
    )  # fmt: skip
    # (7) is the mean of (6) over all u; for a fixed matrix that is rounds times degree over n
    means = formulas.published_mean_loss(network, T)[list(watching)] if fixed else six.mean(axis=0)
    exact_means = _means(exact, watching)
    yield {
        "formula": "mean loss, (7)", "source": M22, "function": "published_mean_loss",
        "label": "published", "local": 1, "mean": float(means.mean()), "largest": float(means.max()),
        "exact_mean": float(exact_means.mean()), "exact_largest": float(exact_means.max()),
        "understated": float((exact_means > means + SLACK).mean()),
        "bound": "of the mean", "why": "exact losses add up to the messages that are independent",
    }  # fmt: skip
    dense = n <= DENSE
    if fixed and dense:
        yield _about_pairs(
            "Corollary 1", M22, "corollary_loss", formulas.corollary_loss(network, T)[:, list(watching)],
            exact, watching, bound="no", why="is above (6), which is not above the loss",
        )  # fmt: skip
    family, numbers = family_of(network.name)
    if fixed and family == "er":
        degrees = network.degrees[list(watching)]
        values = np.array([formulas.erdos_renyi_published_loss(n, int(d), T) for d in degrees])
        dense_enough = "" if numbers[1] > 1 else f" and c above 1 (here {numbers[1]:g})"
        yield {
            "formula": "Theorem 4", "source": M22, "function": "erdos_renyi_published_loss",
            "label": "published", "local": 1, "mean": float(values.mean()), "largest": float(values.max()),
            "exact_mean": None, "exact_largest": None, "understated": None,
            "bound": "under conditions",
            "why": "between nodes that are no neighbors, if observers know no edges but their own and "
            f"{_LARGE}{dense_enough}; between neighbors it is 1",
        }  # fmt: skip
    if fixed and steps > 1:
        yield _about_pairs(
            f"Theorem 6, (9), {steps:,} steps", M22, "published_sgd_loss", steps * six, None,
            watching, local=steps, bound="no", why="as (6), and leaves out that a step leaks in later ones",
        )  # fmt: skip
    if dense:
        hops = n * steps
        yield _about_pairs(
            f"walk, {hops:,} hops", C24, "published_walk_loss",
            formulas.published_walk_loss(network, hops)[:, list(watching)], None, watching, local=steps,
            bound="up to constants", why="an order, here with the constant of its authors' code; if losses "
            f"are convex and smooth, senders hidden, visits to a node at most {steps:,} and {_LARGE}",
        )  # fmt: skip


def _pairs(found: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Exact and published losses [u, v], with one column per observer."""
    if found["observer"] is None:
        exact, six = found["_pairs"]
        return exact, six
    return np.asarray(found["exact"])[:, None], np.asarray(found["published"])[:, None]


def _about_pairs(
    formula: str, source: str, function: str, values: np.ndarray, exact: np.ndarray | None,
    watching: Any, *, bound: str, why: str, local: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Summarize a loss [u, v] over u other than v, beside the exact one."""
    others = np.ones(values.shape, dtype=bool)
    others[list(watching), np.arange(len(watching))] = False
    beside = None if exact is None else exact[others]
    return {
        "formula": formula, "source": source, "function": function, "label": "published", "local": local,
        "mean": float(_means(values, watching).mean()), "largest": float(values[others].max()),
        "exact_mean": None if exact is None else float(_means(exact, watching).mean()),
        "exact_largest": None if beside is None else float(beside.max()),
        "understated": None if beside is None else float((beside > values[others] + SLACK).mean()),
        "bound": bound, "why": why,
    }  # fmt: skip


def _means(loss: np.ndarray, watching: Any) -> np.ndarray:
    """Return, per observer, the sum over the others divided by n, as [1] defines the mean loss."""
    own = loss[list(watching), np.arange(len(watching))]
    return np.asarray((loss.sum(axis=0) - own) / loss.shape[0])


# ---- errors ----------------------------------------------------------------------------------------


def _errors(network: Network, protocol: Protocol, noise_std: float | None) -> Iterator[dict[str, Any]]:
    """Yield one mapping per formula about the error: Theorem 2 or 3, then the line of Table 1."""
    randomized = protocol.name == "randomized"
    kind, by = ("randomized", "randomized") if randomized else ("synchronous", "chebyshev")
    # values within 1 of their center are no further than 1 from their mean, on average
    sigma, spread = (1.0, 0.25) if noise_std is None else (noise_std, 1.0)
    stop = rounds_for(network, kind=kind, noise_std=sigma, variance=spread)
    bound = published_error(network, sigma, variance=spread, randomized=randomized)
    applies = protocol.name == by and protocol.rounds >= stop
    counted = "ticks" if randomized else "rounds"
    why = f"for {by} of {stop:,} {counted} or more"
    if noise_std is None:
        why += ", with sigma at least half the width of the values"
    if not applies:
        why += f"; here it is {protocol.name} of {protocol.rounds:,}"
    yield {
        "formula": f"Theorem {3 if randomized else 2}", "source": M22, "function": "published_error",
        "label": "published", "what": "half the squared error", "value": bound,
        "unit": "sigma^2" if noise_std is None else "radius^2", "bound": "yes" if applies else "not here",
        "why": why, "rounds_needed": stop,
    }  # fmt: skip
    rows: list[tuple[str, str, dict[str, Any]]] = [
        ("local privacy", "ldp", {}), ("trusted curator", "curator", {}), ("this graph", "arbitrary", {}),
    ]  # fmt: skip
    family, numbers = family_of(network.name)
    if family in _COLUMNS:
        rows.append((f"column {_COLUMNS[family]}", _COLUMNS[family], {}))
    elif family == "torus" and numbers[0] == numbers[1]:
        rows.append(("column C-torus, C = 2", "torus", {"dimension": 2}))
    for name, row, options in rows:
        value = formulas.published_utility(
            network, 1.0, alpha=1.0, row=row, randomized=randomized, **options  # type: ignore[arg-type]
        )  # fmt: skip
        yield {
            "formula": f"Table 1, {name}", "source": M22, "function": "published_utility",
            "label": "published", "what": "squared error", "value": value,
            "unit": "alpha Delta^2 / epsilon", "bound": "up to constants",
            "why": "an order at mean loss epsilon; constants and logarithms are not printed",
        }  # fmt: skip
