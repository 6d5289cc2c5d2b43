"""Schedules: the protocol of every step, a pure function of public values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network
from sottovoce.noise.grid import MaskGrid
from sottovoce.protocols import NamedProtocol, Protocol

_REMEMBERED = 8192  # protocols drawn per step that are kept


class CachedSchedule:
    """A schedule given as a function, called once per step: the accounted schedule is the one that runs."""

    def __init__(self, function: Callable[[int], Protocol]) -> None:
        self.function = function
        self._protocols: dict[int, Protocol] = {}

    def __call__(self, k: int) -> Protocol:
        if k not in self._protocols:
            self._protocols[k] = self.function(k)
        return self._protocols[k]

    def __str__(self) -> str:
        return "a function of the step"


ScheduleArgument = Protocol | NamedProtocol | CachedSchedule | Sequence[Protocol] | Callable[[int], Protocol]


class Schedule:
    """The protocol of step k as ``schedule(k)``; the same protocol for the same step.

    ``protocol`` is one for all steps, a name to be built on ``network`` with ``seed``, one per step, or a
    function of the step. ``accept`` raises an error about a protocol that the algorithm cannot use. Rows of
    masked protocols lie on ``grid``; fresh noise of named protocols is in proportion to ``row_noise(k)``.
    """

    def __init__(
        self,
        protocol: ScheduleArgument,
        steps: int,
        *,
        network: Network | None = None,
        seed: int = 0,
        accept: Callable[[Protocol], Protocol] | None = None,
        grid: Callable[[], MaskGrid | None] | None = None,
        row_noise: Callable[[int], float] | None = None,
    ) -> None:
        self.protocol, self.steps, self.network, self.seed = protocol, steps, network, seed
        self._accept, self._grid, self._row_noise = accept, grid, row_noise
        self._drawn: dict[int, Protocol] = {}
        # by identity; the ungridded protocol is kept too, so that its identity stays its own
        self._gridded: dict[int, tuple[Protocol, Protocol]] = {}
        self._scaled: dict[float, Protocol] = {}

    @property
    def is_stationary(self) -> bool:
        """Whether all steps have the same protocol; a tree drawn anew for each step is not."""
        named = isinstance(self.protocol, NamedProtocol) and not self.protocol.drawn
        return self.steps == 1 or named or isinstance(self.protocol, Protocol)

    def __call__(self, k: int) -> Protocol:
        protocol = self.ungridded(k)
        if self._row_noise is not None and isinstance(self.protocol, NamedProtocol) and protocol.fresh_std:
            std = self._row_noise(k)
            if std not in self._scaled:  # one object per scale: peers and accountants remember protocols
                self._scaled[std] = protocol.scaled(std)
            return self._scaled[std]
        if not protocol.masked or self.grid_spacing is None:
            return protocol
        if id(protocol) not in self._gridded:
            self._gridded[id(protocol)] = (protocol, protocol.on_grid(self.grid_spacing))
        return self._gridded[id(protocol)][1]

    def ungridded(self, k: int) -> Protocol:
        """Return the protocol of step ``k`` as it was given, masked ones without the plan's grid."""
        protocol = self.protocol
        if isinstance(protocol, Protocol):
            return protocol
        if isinstance(protocol, NamedProtocol):
            key = k if protocol.drawn else 0
            if key not in self._drawn:
                while len(self._drawn) >= _REMEMBERED:
                    self._forget(next(iter(self._drawn)))
                assert self.network is not None
                self._drawn[key] = protocol.at(self.network, seed=self.seed, step=key)
            return self._drawn[key]
        chosen: Protocol = protocol(k) if callable(protocol) else protocol[k]
        return chosen if self._accept is None else self._accept(chosen)

    def in_order(self) -> Callable[[int], Protocol]:
        """Return the schedule for sequential access; protocols of past steps are freed.

        A small tree kept for every step would fragment the memory of the rows: 6 GB for 2,000 steps of a
        network with 38,424 parameters.
        """
        before, last = set(self._drawn), -1

        def schedule(k: int) -> Protocol:
            nonlocal last
            protocol = self(k)
            if last not in before and last != k and not self.is_stationary:
                self._forget(last)
            last = k
            return protocol

        return schedule

    def _forget(self, k: int) -> None:
        self._gridded.pop(id(self._drawn.pop(k, None)), None)

    @cached_property
    def grid_spacing(self) -> float | None:
        """The spacing of the common grid; None without masks or noise."""
        try:
            grid = None if self._grid is None else self._grid()
        except InvalidInput:  # a simulation needs none, and a protective run raises the error itself
            grid = None
        return None if grid is None else grid.spacing
