"""Options of plans: one meaning and one check per name, and how they are brought into one form.

The fields of a plan class are its options. `converted` checks each of them by its name when a plan is built,
so that a plan holds numbers, tuples, `Rate` and `Optimizer` objects, whatever form the user wrote.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from sottovoce import _validate, protocols
from sottovoce.algorithms.optimizers import Optimizer, Rate, RateTable
from sottovoce.data.base import Shards, is_sparse
from sottovoce.errors import BudgetInfeasible, InvalidInput, SottovoceError
from sottovoce.graphs import Network, as_network
from sottovoce.graphs.parsing import network_if_named
from sottovoce.objectives.glm import GLM
from sottovoce.protocols import NamedProtocol, Protocol
from sottovoce.protocols.registry import Capability

NoiseAllocation = Literal["equal", "optimal"]


def converted(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options checked and in one form; None stays where it is the default."""
    return {
        name: value
        if name not in _CHECKS or (value is None and defaults.get(name, ...) is None)
        else _CHECKS[name](value, name)
        for name, value in options.items()
    }


def _sizes(value: Sequence[int], name: str) -> tuple[int, ...]:
    return tuple(
        _validate.count(size, "an agent's number of records") for size in _validate.several(value, name)
    )


def _positive_each(value: float | Sequence[float], name: str) -> float | tuple[float, ...]:
    if isinstance(value, (int, float)):
        return _validate.positive(value, name)
    return tuple(_validate.positive(v, f"every entry of {name}") for v in _validate.several(value, name))


def _noise_multipliers(value: float | Sequence[float] | np.ndarray, name: str) -> float | tuple[float, ...]:
    """Return one number, or one per agent where they differ."""
    if not isinstance(value, (Sequence, np.ndarray)) or isinstance(value, (str, bytes)):
        return _validate.non_negative(value, name)  # type: ignore[arg-type]
    each = tuple(_validate.non_negative(z, name) for z in value)
    if any(each) and not all(each):
        raise InvalidInput(f"agent {each.index(0.0)} has no noise while others do; give every agent some.")
    return each[0] if len(set(each)) == 1 else each


def _learning_rate(value: float | tuple[float, float] | Rate | RateTable, name: str) -> Rate | RateTable:
    if isinstance(value, RateTable):
        return value
    try:
        return Rate.from_value(value)
    except TypeError:
        got = _validate.shown(value)
        raise InvalidInput(f"{name} must be a number, a pair (first, last) or a Rate, got {got}.") from None


def _function(value: Callable[..., Any], name: str) -> Callable[..., Any]:
    if not callable(value):
        raise InvalidInput(f"{name} must be a function, got {_validate.shown(value)}.")
    return value


def _one_of(*words: str) -> Callable[[str, str], str]:
    return lambda value, name: _validate.choice(_validate.word(value, name), words, name)


_COUNTS = "steps records users dim tolerate local_steps primal_steps cap tokens period active_blocks stages"
_POSITIVE = "gamma radius local_rate rho rho_growth feature_norm step_scale smoothness_mu batch_size"
_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(_COUNTS.split(), _validate.count),
    **dict.fromkeys(_POSITIVE.split(), _validate.positive),
    **dict.fromkeys(("noise_std", "noise_ratio", "pair_multiplier", "sensitivity"), _validate.non_negative),
    **dict.fromkeys(("secure_sum", "fresh_moments", "final_public"), _validate.flag),
    **dict.fromkeys(("smoothness", "bounds"), _positive_each),
    **dict.fromkeys(("floor", "sample_rate"), partial(_validate.probability, zero=False)),
    **dict.fromkeys(("operator", "active", "error"), _function),
    "seed": partial(_validate.count, minimum=0),
    "adjacency": _validate.word,
    "sizes": _sizes,
    "clip_norm": lambda value, name: _validate.clip(value),
    "noise_multiplier": _noise_multipliers,
    "learning_rate": _learning_rate,
    "optimizer": lambda value, name: Optimizer.from_value(value),
    "relaxation": lambda value, name: (
        value if callable(value) else _validate.probability(value, name, zero=False)
    ),
    "average_from": _validate.probability,
    "smoothness_share": partial(_validate.probability, zero=False, one=False),
    "accounting": _one_of("pld", "rdp"),
    "weighting": _one_of("records", "sites"),
    "noise_allocation": _one_of("equal", "optimal"),
    "noise_in": _one_of("mean", "increment", "state"),
    "output": _one_of("mean", "last"),
}


def require_linear(objective: object, plan: str, *, separable: bool = False) -> None:
    """Refuse an objective that is no linear model, or that coordinates or proximal steps cannot minimize."""
    if not isinstance(objective, GLM):
        raise InvalidInput(f"{plan} is for linear models, got {type(objective).__name__}.")
    if objective.class_weight is not None:
        raise InvalidInput(f"{plan} takes no class weights; take dp-sgd or consensus-sgd.")
    if separable and not objective.regularizer.separable:
        raise InvalidInput(f"{plan} needs a separable regularizer; take a box instead of the ball.")


def require_dense(records: object, plan: str) -> None:
    """Refuse sparse features, which the compiled steps of nearly all plans cannot read."""
    if isinstance(records, Shards) and is_sparse(records.X):
        raise InvalidInput(f"{plan} works on dense features, got sparse ones; dp-gcd takes sparse data.")


def check_noise_allocation(allocation: str, view: str | None) -> None:
    """Refuse to calibrate optimal noise against an adversary for whom everybody takes the same."""
    if allocation == "optimal" and view in ("local", "outsider"):
        raise BudgetInfeasible(
            f'noise_allocation = "optimal" hides members from one another; against the view {view} everybody '
            "takes the same: leave noise_allocation out, or name the view network or colluders."
        )


def resolved_protocol(
    value: object, network: object, plan: str, allowed: Sequence[str]
) -> tuple[Any, Network | None]:
    """Return a protocol argument and a network with the objects in place of their names.

    A string that names no protocol names a network. A named protocol that the plan does not run over, or that
    has no network to be built on, is refused; other arguments stay as they are.
    """
    network = None if network is None else as_network(network)
    if isinstance(value, str):
        word = value.split(":")[0]
        # listing installed protocols takes a while: only for words that are not built in
        if word not in protocols.registry.BUILT_IN and word not in protocols.registry.names():
            with contextlib.suppress(SottovoceError):  # a misspelt protocol is refused as one
                return as_network(value), network
        value = protocols.parse(value)
    elif not isinstance(value, (Protocol, NamedProtocol)):
        value = network_if_named(value)
    if isinstance(value, NamedProtocol):
        built_in = value.name in protocols.registry.BUILT_IN  # a plan checks what an installed one builds
        if allowed and built_in and value.name not in allowed:
            raise InvalidInput(f"{plan} runs over {' or '.join(allowed)}, not over {value.name}.")
        if network is None:
            raise InvalidInput(f"{plan} needs a network for its protocol {value}.")
    return value, network


# what a protocol must do to have a capability, in words
_CAPABILITIES = {
    "averages": "brings the rows together at their mean",
    "mixes": "brings the rows together at a weighted mean",
    "linear": "is given by its matrices",
    "neighbor_sum": "adds up the rows of neighbors",
    "masked": "sums rows under masks",
}


def require_capabilities(protocol: object, plan: str, needs: Sequence[Capability]) -> Protocol:
    """Return a protocol that an algorithm can use, or refuse it, also where it is no built-in one."""
    if not isinstance(protocol, Protocol):
        raise not_a_protocol(protocol)
    if "reaches_consensus" in needs and not protocol.reaches_consensus:
        raise InvalidInput(f"Exact consensus needs a tree, an exchange or a masked sum, got {protocol.name}.")
    for capability, words in _CAPABILITIES.items():
        if capability in needs and not getattr(protocol, capability):
            if capability == "averages" and protocol.mixes:
                raise InvalidInput(
                    f"{plan} needs a protocol that {words}, got {protocol.name} over weights that do not "
                    "keep the mean; take metropolis weights."
                )
            raise InvalidInput(f"{plan} needs a protocol that {words}, got {protocol.name}.")
    return protocol


def not_a_protocol(value: object) -> InvalidInput:
    """Return the error about an argument that is no protocol."""
    return InvalidInput(f"protocol must be a protocol, a network or a name, got {_validate.shown(value)}.")
