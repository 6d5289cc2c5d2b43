"""All agents in one process: the message rows of a step are one array, mixing is one product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sottovoce.protocols import Protocol
from sottovoce.runners.base import Algorithm

__all__ = ["run_stacked"]


def run_stacked(
    algorithm: Algorithm,
    protocol: Protocol | Callable[[int], Protocol],
    steps: int,
    *,
    state: Any = None,
    start: int = 0,
    noise: Any = None,
    after_step: Callable[[int, Any], None] | None = None,
) -> Any:
    """Run ``steps - start`` steps and return the final state.

    Parameters
    ----------
    algorithm : the three functions, hosting all agents.
    protocol : one protocol for every step, or a function of the step (fresh graphs, fresh trees).
    steps : the step to stop before.
    state, start : where to go on after an interruption; by default from `Algorithm.init`.
    noise : a noise source, for protocols that add fresh noise in every round.
    after_step : called with (step, state); progress bars, checkpoints and metrics live there.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> values = np.array([[1.0], [3.0]])
    >>> averaging = Algorithm(lambda: values, lambda s, k: s, lambda s, r, k: r, lambda s: s)
    >>> run_stacked(averaging, sv.protocols.Exchange(2), steps=1).ravel().tolist()
    [2.0, 2.0]
    """
    schedule = protocol if callable(protocol) else lambda k: protocol
    if state is None:
        state = algorithm.init()
    for k in range(start, steps):
        received = schedule(k).apply(algorithm.message(state, k), noise=noise, step=k)
        state = algorithm.update(state, received, k)
        if after_step is not None:
            after_step(k, state)
    return state
