"""All agents in one process: the message rows of a step are one array, mixing is one product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sottovoce._validate import count
from sottovoce.noise.samplers import NoiseSource
from sottovoce.protocols import Protocol
from sottovoce.runners.base import Algorithm

Mix = Callable[[Protocol, Any, int], Any]  # (protocol, rows sent, step) -> rows received


def run_stacked(
    algorithm: Algorithm,
    schedule: Protocol | Callable[[int], Protocol],
    end_step: int,
    *,
    state: object = None,
    first_step: int = 0,
    noise: NoiseSource | None = None,
    after_step: Callable[[int, Any], None] | None = None,
    every: int = 1,
    mix: Mix | None = None,
) -> Any:
    """Run the steps from ``first_step`` up to, but not including, ``end_step``; return the final state.

    ``after_step`` is called with (step just done, state after it); an algorithm with a compiled
    `Algorithm.block` is seen after each stretch only. A stretch ends at each multiple of ``every``, so that
    what is checkpointed or evaluated is the same with and without a block, and after an interruption.
    ``noise`` is for protocols that add fresh noise; ``mix`` exchanges rows, by default `Protocol.apply`.
    """
    protocol_of = schedule if callable(schedule) else lambda k: schedule
    mixed = mix or (lambda protocol, rows, k: protocol.apply(rows, noise=noise, step=k))
    count(every, "every")
    if state is None:
        state = algorithm.init()
    k = first_step
    while k < end_step:
        if algorithm.block is not None:
            stretch = min(every - k % every, end_step - k)
            state = algorithm.block(state, k, stretch)
            k += stretch
        else:
            state = algorithm.update(state, mixed(protocol_of(k), algorithm.message(state, k), k), k)
            k += 1
        if after_step is not None:
            after_step(k - 1, state)
    return state
