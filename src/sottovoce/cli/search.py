"""`sottovoce search FILE.toml`: learning rates and clips tried, and what the search itself spends."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from sottovoce._validate import positive
from sottovoce.cli.options import Json, Out, TrainingFile, number_list
from sottovoce.cli.output import as_result, emit, if_stopped, progress, require_writable, template


def search(
    file: TrainingFile,
    rates: Annotated[str, Option(help="Learning rates to try, separated by commas.")] = "0.05,0.1,0.5",
    clip_norms: Annotated[str, Option(help="Clip norms to try, separated by commas.")] = "1",
    out: Out = None,
    json: Json = False,
) -> None:
    """Try learning rates and clip norms, and print what the search itself spends.

    Every run looks at the records, so every run is paid for: the last line is the
    loss of all of them together, which is what a participant has given away once
    the best setting is published. Tune on public data to avoid it.

    \b
    Example:
      sottovoce search plan.toml --rates 0.1,0.5 --clip-norms 0.5,1 --json
    """
    from sottovoce.planfile import training

    require_writable(out)
    grid = number_list(rates, "--rates"), number_list(clip_norms, "--clip-norms")
    for value in (*grid[0], *grid[1]):  # before the first run is charged
        positive(value, "every learning rate and clip norm")
    spent = "what was run has been spent, and nothing of it was written."
    runs = len(grid[0]) * len(grid[1])
    with if_stopped(lambda: spent), progress("search", runs, quiet=json) as tick:
        metrics = training.search(file, *grid, tick)
    score = next(key for key in training.SCORES if key in metrics["best"])

    scores = [{key: row[key] for key in ("clip_norm", "rate", score)} for row in metrics["tried"]]
    text = template("search", scores=scores, metrics=metrics)
    config = {"file": file.name, "rates": rates, "clip_norms": clip_norms}
    emit(as_result("search", config, metrics), json, text, out)
