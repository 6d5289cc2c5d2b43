"""The papers' formulas for one network, side by side: every number has the label ``published``.

Losses are in the unit of one release under local privacy, alpha Delta^2 / (2 sigma^2); where a formula is
about ``steps`` releases of every node, local privacy is ``steps``. Errors are squared errors of a node.
The exact loss stands next to a formula about the same quantity. No number here may accept a budget.

References: [1] Cyffers, Even, Bellet, Massoulié, "Muffliato: peer-to-peer privacy amplification for
decentralized optimization and averaging", NeurIPS 2022; [2] Cyffers, Bellet, Upadhyay, "Differentially
private decentralized learning with random walks", ICML 2024, as stated in Bellet's 2024 talk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from sottovoce import _validate
from sottovoce.accounting.published import formulas
from sottovoce.accounting.published.assessment import ALL_PAIRS, PUBLISHED_FOR, SLACK, assess
from sottovoce.errors import InvalidInput, Refused
from sottovoce.graphs import Network, takes_network
from sottovoce.graphs.parsing import family_of
from sottovoce.protocols import Protocol, rounds_for

DENSE = 2048  # nodes up to which Corollary 1 and the walk, which are dense (n, n) matrices, are computed
MUFFLIATO, WALKS = "Cyffers et al. 2022", "Cyffers et al. 2024"
_LARGE_NOISE = "sigma^2 >= Delta^2 alpha (alpha - 1) / 2"
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
    """Return the papers' formulas for one network: ``losses`` and ``errors``, a mapping per formula.

    Parameters
    ----------
    network, protocol : who talks to whom, and gossip on it: ``gossip``, ``chebyshev`` or ``randomized``.
    observer : the curious node; None: every node in turn.
    steps : how often every node takes part, for the formulas of learning (9) and of a walk, whose token
        then makes ``n * steps`` hops.
    noise_std : sigma for values within 1 of their center; without it errors are in units of sigma^2.
    assessed : the result of `sottovoce.accounting.published.assessment.assess` for the same arguments.

    Guarantees
    ----------
    None: label ``published``. ``bound`` says in how far a formula is one, and ``why``. ``understated`` is the
    share of the pairs (for equation (7): of the observers) whose exact loss is above the formula, None where
    the exact loss is not about the same thing.

    Examples
    --------
    >>> import sottovoce as sv
    >>> path = sv.graphs.path(3)
    >>> bounds = published_bounds(path, sv.protocols.Gossip(path, 2), observer=2)
    >>> for row in bounds["losses"][:3]:
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
    assessment = assess(network, protocol, observer) if assessed is None else assessed
    if assessment.get("colluders"):
        raise InvalidInput("The papers' formulas are about one observer; leave the colluders out.")
    left_out = []
    if network.n > DENSE:
        left_out.append(f"Corollary 1 and the walk, above {DENSE:,} nodes")
    return {
        "label": "published",
        "unit": "one release under local privacy",
        "steps": steps,
        "losses": list(_losses(network, protocol, assessment, steps)),
        "errors": list(_errors(network, protocol, noise_std)),
        **({"left_out": left_out} if left_out else {}),
    }


# ---- losses ----------------------------------------------------------------------------------------


def _losses(
    network: Network, protocol: Protocol, assessment: Mapping[str, Any], steps: int
) -> Iterator[dict[str, Any]]:
    """Yield one row per formula about privacy."""
    n, T, observer = network.n, protocol.rounds, assessment["observer"]
    observers = list(range(n)) if observer is None else [observer]
    exact, six = _pairs(assessment)
    fixed = protocol.name != "randomized"  # one matrix: Corollary 1 and equation (9) are about that
    dense = n <= DENSE
    about_pairs = partial(_pair_row, observers=observers)
    yield about_pairs(
        "Theorem 1, (6)", "published_loss", six, exact, "no", "adds up messages that share their noise"
    )
    # (7) is the mean of (6) over all u; for a fixed matrix that is rounds times degree over n
    means = formulas.published_mean_loss(network, T)[observers] if fixed else six.mean(axis=0)
    exact_means = _means(exact, observers)
    yield _row(
        "mean loss, (7)",
        "published_mean_loss",
        means,
        exact_means,
        "of the mean",
        "exact losses add up to the messages that are independent",
    )
    if fixed and dense:
        corollary = formulas.corollary_loss(network, T)[:, observers]
        why = "is above (6), which is not above the loss"
        yield about_pairs("Corollary 1", "corollary_loss", corollary, exact, "no", why)
    family, numbers = family_of(network.name)
    if fixed and family == "er":
        degrees = network.degrees[observers]
        losses = np.array([formulas.erdos_renyi_published_loss(n, int(d), T) for d in degrees])
        dense_enough = "" if numbers[1] > 1 else f" and c above 1 (here {numbers[1]:g})"
        why = (
            "between nodes that are no neighbors, if observers know no edges but their own and "
            f"{_LARGE_NOISE}{dense_enough}; between neighbors it is 1"
        )
        yield _row("Theorem 4", "erdos_renyi_published_loss", losses, None, "under conditions", why)
    if fixed and steps > 1:
        why = "as (6), and leaves out that a step leaks in later ones"
        name = f"Theorem 6, (9), {steps:,} steps"
        yield about_pairs(name, "published_sgd_loss", steps * six, None, "no", why, local=steps)
    if dense:
        hops = n * steps
        walk = formulas.published_walk_loss(network, hops)[:, observers]
        why = (
            "an order, here with the constant of its authors' code; if losses are convex and smooth, senders "
            f"hidden, visits to a node at most {steps:,} and {_LARGE_NOISE}"
        )
        row = about_pairs(
            f"walk, {hops:,} hops", "published_walk_loss", walk, None, "up to constants", why, local=steps
        )
        yield {**row, "source": WALKS}


def _pairs(assessment: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return exact and published losses [u, v], with one column per observer."""
    if assessment["observer"] is None:
        exact, six = assessment["_pairs"]
        return exact, six
    return np.asarray(assessment["exact"])[:, None], np.asarray(assessment["published"])[:, None]


def _row(
    formula: str,
    function: str,
    losses: np.ndarray,
    exact: np.ndarray | None,
    bound: str,
    why: str,
    *,
    mean: float | None = None,
    exact_mean: float | None = None,
    local: int = 1,
) -> dict[str, Any]:
    """Return the row of one formula; means are those of the losses unless they are passed."""
    if exact is not None and exact_mean is None:
        exact_mean = float(exact.mean())
    return {
        "formula": formula,
        "source": MUFFLIATO,
        "function": function,
        "label": "published",
        "local": local,
        "mean": float(losses.mean()) if mean is None else mean,
        "largest": float(losses.max()),
        "exact_mean": exact_mean,
        "exact_largest": None if exact is None else float(exact.max()),
        "understated": None if exact is None else float((exact > losses + SLACK).mean()),
        "bound": bound,
        "why": why,
    }


def _pair_row(
    formula: str,
    function: str,
    losses: np.ndarray,
    exact: np.ndarray | None,
    bound: str,
    why: str,
    *,
    observers: list[int],
    local: int = 1,
) -> dict[str, Any]:
    """Return the row of a formula about pairs [u, v], over u other than v."""
    others = np.ones(losses.shape, dtype=bool)
    others[observers, np.arange(len(observers))] = False
    return _row(
        formula,
        function,
        losses[others],
        None if exact is None else exact[others],
        bound,
        why,
        mean=float(_means(losses, observers).mean()),
        exact_mean=None if exact is None else float(_means(exact, observers).mean()),
        local=local,
    )


def _means(loss: np.ndarray, observers: list[int]) -> np.ndarray:
    """Return, per observer, the sum over the others divided by n, as [1] defines the mean loss."""
    own = loss[observers, np.arange(len(observers))]
    return np.asarray((loss.sum(axis=0) - own) / loss.shape[0])


# ---- errors ----------------------------------------------------------------------------------------


def _errors(network: Network, protocol: Protocol, noise_std: float | None) -> Iterator[dict[str, Any]]:
    """Yield one row per formula about the error: Theorem 2 or 3, then the line of Table 1."""
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
    yield {
        "formula": f"Theorem {3 if randomized else 2}",
        "source": MUFFLIATO,
        "function": "published_error",
        "label": "published",
        "what": "half the squared error",
        "value": published_error(network, sigma, variance=spread, randomized=randomized),
        "unit": "sigma^2" if noise_std is None else "radius^2",
        "bound": "yes" if applies else "not here",
        "why": why,
        "rounds_needed": stop,
    }
    rows = {"local privacy": "ldp", "trusted curator": "curator", "this graph": "arbitrary"}
    family, numbers = family_of(network.name)
    if family in _COLUMNS:
        rows[f"column {_COLUMNS[family]}"] = _COLUMNS[family]
    elif family == "torus" and numbers[0] == numbers[1]:
        rows["column C-torus, C = 2"] = "torus"
    for name, row in rows.items():
        yield {
            "formula": f"Table 1, {name}",
            "source": MUFFLIATO,
            "function": "published_utility",
            "label": "published",
            "what": "squared error",
            "value": formulas.published_utility(
                network,
                1.0,
                alpha=1.0,
                row=row,  # type: ignore[arg-type]
                randomized=randomized,
            ),
            "unit": "alpha Delta^2 / epsilon",
            "bound": "up to constants",
            "why": "an order at mean loss epsilon; constants and logarithms are not printed",
        }
