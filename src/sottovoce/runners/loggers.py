"""Where the numbers of a run are written while it runs: TensorBoard, CSV, or a logger of one's own.

A logger has two methods (`Logger`). An installed package adds one by an entry point of the group
``sottovoce.loggers``, whose object makes a logger from the text after its name: ``logs="mlflow:trial-7"``.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from sottovoce.errors import ConfigError, InvalidInput, MissingDependency
from sottovoce.runners.plan_interface import RunnablePlan
from sottovoce.runners.run import OnEvaluation


@runtime_checkable
class Logger(Protocol):
    """Takes the numbers of a run."""

    def scalars(self, step: int, values: Mapping[str, Any]) -> None:
        """Write the numbers among ``values`` for one step."""

    def close(self) -> None:
        """Finish writing."""


Logs = str | Path | Logger


class TensorBoardLogger:
    """An event file in a folder; ``tensorboard --logdir FOLDER`` shows it."""

    def __init__(self, folder: str | Path) -> None:
        if find_spec("tensorboard") is None:
            raise MissingDependency(
                "Logs in a folder are written by tensorboard, which is not installed; pip install "
                "'sottovoce[tensorboard]', or name a .csv file."
            )
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(folder))

    def scalars(self, step: int, values: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [
            Summary.Value(tag=tag, simple_value=_float32_above(value) if tag == "epsilon" else value)
            for tag, value in _numbers(values).items()
        ]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=scalars)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class CsvLogger:
    """A new CSV file with a column ``step`` and one for every number of the first entry."""

    def __init__(self, path: str | Path) -> None:
        try:
            self._file = open(path, "x", newline="", encoding="utf-8")
        except FileExistsError:
            raise ConfigError(f"{path} exists; name another file for the logs.") from None
        except OSError as error:
            raise ConfigError(f"The logs cannot be written to {path} ({error.strerror}).") from None
        self._writer: csv.DictWriter[str] | None = None

    def scalars(self, step: int, values: Mapping[str, Any]) -> None:
        entry = {"step": step, **_numbers(values)}
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, list(entry), extrasaction="ignore", lineterminator="\n")
            self._writer.writeheader()
        self._writer.writerow(entry)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def open_logger(logs: Logs) -> Logger:
    """Return the logger of a ``.csv`` file, of a folder (TensorBoard), or of a name and its text."""
    if isinstance(logs, Logger):
        return logs
    if not isinstance(logs, (str, Path)):
        raise InvalidInput(
            "logs must be a .csv file, a folder for TensorBoard, the name of an installed logger, or an "
            f"object with scalars(step, values) and close(), got {type(logs).__name__}."
        )
    name, colon, text = str(logs).partition(":")
    for point in entry_points(group="sottovoce.loggers") if colon else ():
        if point.name == name:
            logger: Logger = point.load()(text)
            return logger
    return CsvLogger(logs) if Path(logs).suffix.lower() == ".csv" else TensorBoardLogger(logs)


@contextmanager
def evaluation_log(
    logs: Logs | None, plan: RunnablePlan, delta: float, adversary: Mapping[str, Any] | None = None
) -> Iterator[OnEvaluation]:
    """Yield a function of (step, numbers) that writes them with epsilon up to the step; None: no log.

    ``adversary`` are the options of `Plan.privacy`; None takes the first of the plan's own guarantees.
    """
    if logs is None:
        yield lambda step, entry: None
        return

    def spent(step: int) -> dict[str, float]:
        try:
            shorter: Any = replace(plan, steps=step)  # type: ignore[type-var]
        except InvalidInput:  # no step yet, or a plan whose length is that of a path it was given
            return {}
        guarantee = shorter.guarantees()[0] if adversary is None else shorter.privacy(**adversary)
        return {"epsilon": guarantee.epsilon(delta)}

    with closing(open_logger(logs)) as log:
        yield lambda step, entry: log.scalars(step, {**entry, **spent(step)})


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "step"
    }


def _float32_above(value: float) -> float:
    """Return the least float32 that is not below: a bound of privacy is never rounded down."""
    near = np.float32(value)
    return float(near if float(near) >= value else np.nextafter(near, np.float32(np.inf)))
