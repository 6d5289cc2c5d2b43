"""`sottovoce search FILE.toml`: learning rates and clips tried, and what the search itself spends."""

from __future__ import annotations

from functools import reduce
from itertools import product
from operator import add
from typing import TYPE_CHECKING, Annotated

from typer import Option

from sottovoce._format import number
from sottovoce.cli.options import Json, Out, TrainingFile, number_list
from sottovoce.cli.output import as_result, emit, if_stopped, progress, table
from sottovoce.cli.train import charge_plan, read_training, run_training
from sottovoce.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

# scores in the order in which they are looked for, and how the best one is chosen
SCORES = {"accuracy": max, "test_accuracy": max, "test_mean_squared_error": min}


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
    rows: list[dict[str, float]] = []
    guarantees = []
    pairs = list(product(number_list(clip_norms, "--clip-norms"), number_list(rates, "--rates")))
    spent = "what was run has been spent, and nothing of it was written."
    with if_stopped(lambda: spent), progress("search", len(pairs), quiet=json) as tick:
        for clip_norm, rate in pairs:
            loaded = read_training(file, learning_rate=rate, clip_norm=clip_norm)
            result = run_training(loaded, charge=charge_plan(loaded))
            assert result is not None
            assert loaded.records is not None
            scores = {**result.metrics, **loaded.records.score(result.outputs["coef"])}
            score = next((key for key in SCORES if key in scores), None)
            if score is None:
                raise ConfigError(
                    f"{file.name} has no records to score on; [data] test_file names public ones."
                )
            rows.append({"clip_norm": clip_norm, "rate": rate, score: float(scores[score])})
            guarantees.append(loaded.privacy)
            tick(len(rows))
    assert score is not None
    best = SCORES[score](rows, key=lambda row: row[score])
    total, delta = reduce(add, guarantees), loaded.delta
    metrics = {
        "tried": rows,
        "best": best,
        "runs": len(rows),
        "delta": delta,
        "against": str(total.adversary),
        "epsilon_of_one_run": guarantees[-1].epsilon(delta),
        "epsilon_of_the_search": total.epsilon(delta),
    }

    def text(screen: Console) -> None:
        screen.print(table(("clip_norm", "rate", score), [list(row.values()) for row in rows]))
        setting = f"clip norm {best['clip_norm']:g}, rate {best['rate']:g}"
        screen.print(f"Best: {setting}, {score} {number(best[score])}.")
        screen.print(
            f"One run costs epsilon {number(metrics['epsilon_of_one_run'])} at delta {delta:g} against "
            f"{metrics['against']}; the search of {len(rows)} runs costs "
            f"{number(metrics['epsilon_of_the_search'])}, and this is what has been spent."
        )

    config = {"file": file.name, "rates": rates, "clip_norms": clip_norms}
    emit(as_result("search", config, metrics), json, text, out)
