"""`sottovoce predict DIR FILE`: predictions of a saved model for new records."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from sottovoce._io import atomic_write
from sottovoce.cli.options import Json
from sottovoce.cli.output import emit, template
from sottovoce.errors import ConfigError, DataError

SHOWN = 10


def predict(
    model: Annotated[Path, Argument(help="A folder written by train --out, peer run or fitted.save.")],
    new: Annotated[Path, Argument(help="New records: a table with the model's columns, or .npz.")],
    out: Annotated[Path | None, Option("--out", "-o", help="Write the predictions here (.csv).")] = None,
    module: Annotated[
        str | None, Option(help='What builds the network, "mynet:build", where the folder does not name it.')
    ] = None,
    json: Json = False,
) -> None:
    """Predict new records with a saved model.

    Columns are scaled as in training; predictions have the names and units of
    the labels. Predictions spend no privacy budget.

    \b
    Example:
      sottovoce train plan.toml --out model
      sottovoce predict model new.csv --out predictions.csv
    """
    import numpy as np

    from sottovoce.models.fitted import Fitted, load_model

    if out is not None and out.suffix.lower() != ".csv":
        raise ConfigError(f"Predictions are written as a .csv file, got --out {out}.")
    if not new.is_file():
        raise DataError(f"There is no file {new}.")
    fitted = load_model(model, module=module)
    if not isinstance(fitted, Fitted):
        raise DataError(f"{model} holds a result and no model; sottovoce train --out FOLDER writes both.")
    predictions = np.asarray(fitted.predict(new))
    rows = [list(np.atleast_1d(row)) for row in predictions]
    if predictions.ndim == 1:
        names = [fitted.label if isinstance(fitted.label, str) else "prediction"]
    else:
        width, names = predictions.shape[1], [str(name) for name in fitted.target.names]
        names = names if len(names) == width else [f"y{j}" for j in range(width)]
    if out is not None:
        lines = io.StringIO()
        csv.writer(lines, lineterminator="\n").writerows([names, *rows])
        atomic_write(out, lines.getvalue())
    privacy = {"epsilon": fitted.privacy.epsilon(fitted.delta), "delta": fitted.delta}
    result = {"model": str(model), "records": len(predictions), "columns": names, "predictions": predictions}
    result |= {"privacy": {**privacy, "against": str(fitted.privacy.adversary)}}

    shown = [[str(i), *map(str, row)] for i, row in enumerate(rows[:SHOWN])]
    emit(result, json, template("predict", names=names, shown=shown, count=len(rows), out=out))
