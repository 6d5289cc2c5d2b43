"""`sottovoce predict DIR FILE`: predictions of a stored model for new records."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce._io import plain
from sottovoce.cli.output import Json, emit, safe, table
from sottovoce.errors import ConfigError, DataError

__all__ = ["predict"]

SHOWN = 10


def predict(
    model: Annotated[Path, typer.Argument(help="A folder written by train --out, peer run or fitted.save.")],
    new: Annotated[Path, typer.Argument(help="New records: a table with the model's columns, or .npz.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the predictions here, as a .csv file.")
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(help='What builds the network, "mynet:build", where the folder does not name it.'),
    ] = None,
    json: Json = False,
) -> None:
    """Predict new records with a stored model.

    Columns are scaled as in training; predictions have the names and units of
    the labels. Predictions spend no privacy budget.

    \b
    Example:
      sottovoce train plan.toml --out model
      sottovoce predict model new.csv --out predictions.csv
    """
    import numpy as np

    from sottovoce.models.saved import Fitted, load_model

    if out is not None and out.suffix.lower() != ".csv":
        raise ConfigError(f"Predictions are written as a .csv file, got --out {out}.")
    if not new.is_file():
        raise DataError(f"There is no file {new}.")
    fitted = load_model(model, module=module)
    if not isinstance(fitted, Fitted):
        raise DataError(f"{model} holds a result and no model; sottovoce train --out FOLDER writes both.")
    predictions = np.asarray(fitted.predict(new))
    names = [f"{name}" for name in _names(fitted, predictions)]
    if out is not None:
        _write(out, names, predictions)
    record: dict[str, Any] = {
        "model": str(model),
        "records": len(predictions),
        "columns": names,
        "predictions": plain(predictions),
        "privacy": {
            "epsilon": fitted.privacy.epsilon(fitted.delta), "delta": fitted.delta,
            "against": str(fitted.privacy.adversary),
        },
    }  # fmt: skip

    def show(screen: Any) -> None:
        first = [np.atleast_1d(row) for row in predictions[:SHOWN]]
        rows = [[str(i), *(safe(str(value)) for value in row)] for i, row in enumerate(first)]
        screen.print(table(["record", *names], rows, title=f"{len(predictions):,} predictions"))
        if len(predictions) > SHOWN:
            screen.print(f"... and {len(predictions) - SHOWN:,} more")
        if out is not None:
            screen.print(f"Written to {safe(str(out))}.")

    emit(record, json, show)


def _names(fitted: Any, predictions: Any) -> list[str]:
    """Return what the columns of the predictions are called."""
    if predictions.ndim == 1:
        return [fitted.label if isinstance(fitted.label, str) else "prediction"]
    width = predictions.shape[1]
    return list(fitted.target.names) if len(fitted.target.names) == width else [f"y{j}" for j in range(width)]


def _write(out: Path, names: list[str], predictions: Any) -> None:
    import numpy as np

    from sottovoce._io import atomic_write

    lines = io.StringIO()
    rows = csv.writer(lines, lineterminator="\n")
    rows.writerow(names)
    rows.writerows([*np.atleast_1d(row)] for row in predictions)
    atomic_write(out, lines.getvalue())
