"""What a runner needs to know of an algorithm, and the record it leaves.

An algorithm is three pure functions on arrays whose first axis is "the agents hosted here". A stacked
runner hosts all agents in one process, a cluster rank a slice, a peer one. A runner knows this shape
and nothing else of the algorithm; that is why runners lie below the algorithms: a plan can call its
runner without an upward import.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Algorithm", "Result"]


class Algorithm(NamedTuple):
    """Three pure functions, and how to read the answer off the state.

    For ``k = 0, 1, ...`` a runner computes ``m = message(state, k)``, hands ``m`` (one row per hosted
    agent) to the protocol of step ``k`` and calls ``state = update(state, received, k)`` with the rows
    that came out. Data, noise source and the numbers of the hosted agents are bound by the factory that
    makes the algorithm.

    Examples
    --------
    Averaging needs one step: send your row, keep what comes out.

    >>> import numpy as np
    >>> values = np.array([[1.0], [3.0]])
    >>> averaging = Algorithm(
    ...     init=lambda: values,
    ...     message=lambda state, k: state,
    ...     update=lambda state, received, k: received,
    ...     output=lambda state: state,
    ... )
    >>> averaging.message(averaging.init(), 0).shape
    (2, 1)
    """

    init: Callable[[], Any]
    message: Callable[[Any, int], Any]
    update: Callable[[Any, Any, int], Any]
    output: Callable[[Any], Any]


@dataclass(frozen=True)
class Result:
    """What a run leaves: a small record, and the arrays it produced.

    Parameters
    ----------
    name : what was run.
    config : plain values that describe the plan.
    outputs : arrays by name, ``"rows"`` being one output row per agent; not part of the record.
    metrics : final numbers by name.
    history : one mapping per recorded step.
    guarantees : statements, each as `Guarantee.to_dict` gives it.
    provenance : version, seed kind, time; filled by `provenance_now`.

    Examples
    --------
    >>> result = Result(name="demo", config={"n": 2}, metrics={"error": 0.5})
    >>> result.record()["metrics"]["error"]
    0.5
    """

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()
    guarantees: Sequence[Mapping[str, Any]] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Return the JSON-ready record: everything but the output arrays."""
        return {
            "name": self.name,
            "config": _plain(self.config),
            "metrics": _plain(self.metrics),
            "history": _plain(list(self.history)),
            "guarantees": _plain(list(self.guarantees)),
            "provenance": _plain(self.provenance),
        }

    def to_json(self) -> str:
        """Return the record as JSON text."""
        return json.dumps(self.record(), indent=1)


def provenance_now(started: float, **more: Any) -> dict[str, Any]:
    """Return version, Python, and seconds since ``started`` (`time.perf_counter`)."""
    from sottovoce import __version__

    return {
        "version": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "seconds": round(time.perf_counter() - started, 3),
        **more,
    }


def _plain(value: Any) -> Any:
    """Return ``value`` with numpy scalars, arrays and tuples turned into what JSON knows."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None if np.isnan(value) else ("inf" if value > 0 else "-inf")
    return value
