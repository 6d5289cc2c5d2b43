"""`sottovoce search FILE.toml`: learning rates and clips tried, and what the search itself spends."""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce._format import number
from sottovoce.cli.options import Out, number_list
from sottovoce.cli.output import Json, as_record, finish, if_stopped, progress, table
from sottovoce.cli.train import charged_training, read_training, run_training
from sottovoce.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

# scores in the order in which they are looked for, and whether more of them is better
SCORES = {"accuracy": True, "test_accuracy": True, "test_mean_squared_error": False}


def search(
    file: Annotated[Path, typer.Argument(help="A plan file with \\[data] and \\[train] sections.")],
    rates: Annotated[str, typer.Option(help="Learning rates to try, separated by commas.")] = "0.05,0.1,0.5",
    clip_norms: Annotated[str, typer.Option(help="Clip norms to try, separated by commas.")] = "1",
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
    stated: list[Any] = []
    score = ""
    settings = [
        (c, r) for c in number_list(clip_norms, "--clip-norms") for r in number_list(rates, "--rates")
    ]
    spent = "what was run has been spent, and nothing of it was written."
    with if_stopped(lambda: spent), progress("search", len(settings), quiet=json) as tell:
        for clip_norm, rate in settings:
            built = read_training(file, learning_rate=rate, clip_norm=clip_norm)
            result = run_training(built, charged=charged_training(built))
            assert result is not None
            assert built.records is not None
            scores = {**result.metrics, **built.records.score(result.outputs["coef"])}
            score = next((key for key in SCORES if key in scores), "")
            if not score:
                raise ConfigError(
                    f"{file.name} has no records to score on; [data] test_file names public ones."
                )
            rows.append({"clip_norm": clip_norm, "rate": rate, score: float(scores[score])})
            budget = built.settings.budget
            stated.append(built.plan.privacy(**({} if budget is None else budget.budget.adversary)))
            delta = 1e-5 if budget is None else budget.delta
            tell(len(rows))
    best = (max if SCORES[score] else min)(rows, key=lambda row: row[score])
    total = reduce(add, stated)
    payload: dict[str, Any] = {
        "tried": rows,
        "best": best,
        "runs": len(rows),
        "delta": delta,
        "against": str(total.adversary),
        "epsilon_of_one_run": stated[-1].epsilon(delta),
        "epsilon_of_the_search": total.epsilon(delta),
    }

    def text(screen: Console) -> None:
        screen.print(
            table(("clip_norm", "rate", score), [(r["clip_norm"], r["rate"], r[score]) for r in rows])
        )
        screen.print(
            f"Best: clip norm {best['clip_norm']:g}, rate {best['rate']:g}, {score} {number(best[score])}."
        )
        screen.print(
            f"One run costs epsilon {number(payload['epsilon_of_one_run'])} at delta {delta:g} against "
            f"{payload['against']}; the search of {len(rows)} runs costs "
            f"{number(payload['epsilon_of_the_search'])}, and this is what has been spent."
        )

    config = {"file": file.name, "rates": rates, "clip_norms": clip_norms}
    finish(as_record("search", config, payload), json, out, text)
