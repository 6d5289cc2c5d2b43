"""Scalars for TensorBoard, written by the package `tensorboard`, which is an extra."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sottovoce.algorithms.plan import Plan
from sottovoce.errors import InvalidInput, MissingDependency


def require_tensorboard() -> None:
    """Raise if the package `tensorboard` is not installed."""
    if find_spec("tensorboard") is None:
        raise MissingDependency(
            "Logs are written by tensorboard, which is not installed; pip install 'sottovoce[tensorboard]'."
        )


class EventLog:
    """An event file in a folder; ``tensorboard --logdir FOLDER`` shows it."""

    def __init__(self, folder: str | Path) -> None:
        require_tensorboard()
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(folder))

    def scalars(self, step: int, values: Mapping[str, Any]) -> None:
        """Write the numbers among ``values`` for one step."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [
            Summary.Value(tag=tag, simple_value=float(value))
            for tag, value in values.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and tag != "step"
        ]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=scalars)))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


@contextmanager
def step_log(
    folder: Path | None, plan: Plan, delta: float
) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    """Yield a function of (step, numbers) that writes them with epsilon up to the step; None: no log."""
    if folder is None:
        yield lambda step, entry: None
        return

    def write(step: int, entry: Mapping[str, Any]) -> None:
        try:
            shorter: Any = replace(plan, steps=step)  # type: ignore[type-var]
        except InvalidInput:  # a plan whose length is that of a path it was given
            log.scalars(step, entry)
        else:
            log.scalars(step, {**entry, "epsilon": shorter.guarantees()[0].epsilon(delta)})

    with closing(EventLog(folder)) as log:
        yield write
