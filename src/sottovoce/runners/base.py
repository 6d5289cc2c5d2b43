"""What a runner knows of an algorithm, and the result it leaves.

An algorithm is four functions on arrays whose first axis is the agents hosted here; they change no state
they are given, and noise and the record of releases are the mechanism's. A stacked runner hosts
all agents in one process, a cluster rank a slice, a peer one.
"""

from __future__ import annotations

import json
import platform
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from sottovoce._hooks import NotebookDisplay, hook
from sottovoce._io import atomic_write, digest, to_jsonable
from sottovoce.errors import DataError, InvalidInput, MissingDependency

if TYPE_CHECKING:
    import pandas

RECORD, ARRAYS = "record.json", "arrays.npz"

Common = TypeVar("Common")
Own = TypeVar("Own")


class State(NamedTuple, Generic[Common, Own]):
    """What an algorithm remembers between two steps, in two parts that never mix.

    ``common`` is what everybody may know (the model, moments that follow from results, counters): it may be
    handed to a member that joins late, to a Flower client, to the next membership version. ``own`` stays with
    the agent: its parameters, duals, trackers, anything that its records have touched. Either part is an
    array, a number, None, or a nesting of those. Over ranks an array has one row per hosted agent, or is the
    same on every rank.
    """

    common: Common
    own: Own


class Algorithm(NamedTuple):
    """Four functions of the state, and `block`, a faster form of many steps that some algorithms have.

    For ``k = 0, 1, ...`` a runner computes ``m = message(state, k)``, hands ``m`` (one row per hosted
    agent) to the protocol of step ``k`` and calls ``state = update(state, received, k)`` with the rows
    that came out. Data, noise source and the numbers of the hosted agents are bound by the factory that
    makes the algorithm. None of the functions changes the state it is given; noise and the record of releases
    are the mechanism's.

    Where a loop is sequential, ``block(state, k, count)`` may stand for steps ``k`` to ``k + count - 1`` at
    once, mixing included, compiled; it returns the state that those steps would. Only a runner that hosts
    all agents calls it.

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
    block: Callable[[Any, int, int], Any] | None = None


def in_blocks(
    init: Callable[[], Any], output: Callable[[Any], Any], block: Callable[[Any, int, int], Any]
) -> Algorithm:
    """Return an algorithm of one process that exchanges no rows: a single step is a block of one."""
    return Algorithm(
        init=init,
        message=lambda state, k: output(state),
        update=lambda state, received, k: block(state, k, 1),
        output=output,
        block=block,
    )


@dataclass(frozen=True)
class Result(NotebookDisplay):
    """What a run leaves: plain values that JSON can hold, and the arrays it produced.

    ``config`` describes the plan, ``outputs`` are arrays by name (``"rows"``: one output row per agent,
    ``"coef"``: what was learned; not part of the JSON form), ``metrics`` the final numbers, ``history`` has a
    mapping per recorded step, ``guarantees`` are as `Guarantee.to_dict` gives them, ``provenance`` says with
    what version and when.

    Examples
    --------
    >>> result = Result(name="demo", config={"n": 2}, metrics={"error": 0.5})
    >>> result.to_dict()["metrics"]["error"]
    0.5
    """

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()
    guarantees: Sequence[Mapping[str, Any]] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values for JSON: everything but the output arrays."""
        names = ("name", "config", "metrics", "history", "guarantees", "provenance")
        return {name: to_jsonable(getattr(self, name)) for name in names}

    @property
    def coef(self) -> np.ndarray:
        """What was learned: the output called ``"coef"``."""
        if "coef" not in self.outputs:
            there = ", ".join(map(repr, self.outputs)) or "none"
            raise InvalidInput(f"This result of {self.name} has no coef; its outputs are: {there}.")
        return self.outputs["coef"]

    def to_frame(self) -> pandas.DataFrame:
        """Return the history as a pandas data frame, one row per recorded step.

        Without a history it has one row, the final metrics.
        """
        try:
            import pandas
        except ImportError:
            raise MissingDependency("Data frames need pandas; pip install pandas.") from None
        return pandas.DataFrame([to_jsonable(dict(row)) for row in self._table()])

    def to_latex(self) -> str:
        r"""Return the history, or the final metrics, as a LaTeX table (package booktabs).

        Examples
        --------
        >>> print(Result("demo", metrics={"error_least": 0.5, "rounds": 12}).to_latex())
        \begin{tabular}{rr}
        \toprule
        error\_least & rounds \\
        \midrule
        0.5 & 12 \\
        \bottomrule
        \end{tabular}
        """
        whole = [to_jsonable(dict(row)) for row in self._table()]
        rows = [{k: v for k, v in row.items() if not isinstance(v, (dict, list))} for row in whole]
        names = list(dict.fromkeys(name for row in rows for name in row))
        lines = [" & ".join(_latex(row.get(name, "")) for name in names) + r" \\" for row in rows]
        head = " & ".join(map(_latex, names)) + r" \\"
        inside = [r"\toprule", head, r"\midrule", *lines, r"\bottomrule"]
        return "\n".join([rf"\begin{{tabular}}{{{'r' * len(names)}}}", *inside, r"\end{tabular}"])

    def _table(self) -> Sequence[Mapping[str, Any]]:
        if not self.history and not self.metrics:
            raise InvalidInput(f"This result of {self.name} has no numbers: neither history nor metrics.")
        return self.history or [self.metrics]

    def report(self, path: str | Path, title: str | None = None) -> Path:
        """Write a page about this result: one HTML file with its numbers, curves and guarantees."""
        page: Path = hook("Result.report")(self, path, title)
        return page

    def save(self, folder: str | Path) -> Path:
        """Write the result (``record.json``) and the output arrays (``arrays.npz``) into a folder."""
        place = Path(folder)
        if place.exists() and not place.is_dir():
            raise DataError(f"{place} is a file; a result is saved as a folder, name another place.")
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in self.outputs.items()}
        for name, array in arrays.items():
            if array.dtype.hasobject:
                raise InvalidInput(f"Output {name!r} must be an array of numbers, got one of {array.dtype}.")
        stored = {f"output.{name}": array for name, array in arrays.items()}
        atomic_write(place / ARRAYS, lambda file: np.savez(file, **stored))
        # the digests tie the two files together: after a crash between them, the pair is refused
        record = {**self.to_dict(), "outputs": {name: digest(array) for name, array in arrays.items()}}
        atomic_write(place / RECORD, json.dumps(record, indent=1) + "\n")
        return place

    @classmethod
    def load(cls, folder: str | Path) -> Result:
        """Read what `save` wrote; refuse a folder whose result and arrays do not belong together."""
        place = Path(folder)
        try:
            record = json.loads((place / RECORD).read_text(encoding="utf-8"))
            with open(place / ARRAYS, "rb") as file, np.load(file, allow_pickle=False) as stored:
                outputs = {name.removeprefix("output."): stored[name] for name in stored.files}
            whole = {name: digest(array) for name, array in outputs.items()} == record["outputs"]
            fields = {key: record[key] for key in cls("").to_dict()}
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(f"There is no result in {place}; `result.save(folder)` makes one.") from None
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(f"The result in {place} cannot be read ({error}); save it again.") from None
        if not whole:
            raise DataError(f"{place / ARRAYS} does not belong to the result beside it; save both again.")
        return cls(**fields, outputs=outputs)


def _latex(value: object) -> str:
    """Return a value as LaTeX text; privacy bounds keep all their digits, so none is rounded down."""
    text = "" if value is None else str(value)
    return "".join(f"\\{letter}" if letter in "_%&#$" else letter for letter in text)


def provenance_now(started: float, **more: object) -> dict[str, Any]:
    """Return version, Python, and seconds since ``started`` (`time.perf_counter`)."""
    from sottovoce import __version__

    return {
        "version": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "seconds": round(time.perf_counter() - started, 3),
        **more,
    }
