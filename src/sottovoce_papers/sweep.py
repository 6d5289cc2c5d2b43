"""`sottovoce sweep`: many independent trials on workers, one record each, resumable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sottovoce import graphs
from sottovoce._format import number
from sottovoce.attacks.audit import audit_averaging
from sottovoce.cli.options import Json
from sottovoce.cli.output import emit, if_stopped, progress, table
from sottovoce.cli.plan_sweep import choices, sweep_plan
from sottovoce.errors import InvalidInput
from sottovoce.protocols import Gossip
from sottovoce.runners import Result
from sottovoce.runners import sweep as trials_of
from sottovoce_papers.registry import find


def sweep(
    what: Annotated[str, typer.Argument(help="A plan file, audit, or one of `sottovoce reproduce list`.")],
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="Folder of the records; of a plan file, a .csv table.")
    ] = None,
    epsilon: Annotated[str | None, typer.Option(help="Of a plan file: budgets, as 0.5,1,2.")] = None,
    network: Annotated[str | None, typer.Option(help="Of a plan file: graphs, as ring:8,complete:8.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="An option and its values, as n=20,40 or train.steps=10,20; all combinations."
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", help="Trials per combination, each with its own seed.")
    ] = 1,
    seed: Annotated[
        int, typer.Option("--seed", help="Seed of the sweep; trials' seeds are derived from it.")
    ] = 0,
    jobs: Annotated[int, typer.Option("--jobs", help="Number of workers.")] = 1,
    backend: Annotated[str, typer.Option("--backend", help="loky (this machine), ray or dask.")] = "loky",
    quick: Annotated[bool, typer.Option("--quick", help="The small form of the experiment.")] = False,
    json: Json = False,
) -> None:
    """Run a plan file, an experiment or an audit many times, in parallel, and keep one record per trial.

    Plan files are simulated: their noise is reproducible and protects nobody. An
    interrupted sweep goes on where it stopped: give the same command again.

    \b
        sottovoce sweep plan.toml --epsilon 0.5,1,2 --network ring:8,complete:8 --jobs 2 -o table.csv
        sottovoce sweep audit --set graph=path:3,ring:8 --repeats 32 --jobs 2 -o audits
        sottovoce sweep attack-geometric --quick --set n=20,30 --repeats 4 --jobs 2 -o geometric
    """
    if what.endswith(".toml"):
        words = [f"{name}={value}" for name, value in (("epsilon", epsilon), ("network", network)) if value]
        table_file = None if out is None else Path(out)
        options: dict[str, Any] = {"repeats": repeats, "seed": seed, "jobs": jobs, "backend": backend}
        sweep_plan(Path(what), choices([*words, *(settings or [])]), out=table_file, json=json, **options)
        return
    if out is None or epsilon is not None or network is not None:
        raise InvalidInput(
            "an experiment or audit needs --out FOLDER; --epsilon and --network: for plan files."
        )
    function, fixed = target(what, quick)
    if repeats > 1 and what != "audit" and not takes_seed(what):
        raise InvalidInput(f"{what} takes no seed, so --repeats {repeats} would run the same thing again.")
    trials = trials_of.repeated(trials_of.grid(**choices(settings or [])), repeats, fixed)
    resumable = f"finished trials are kept in {out}; the same command goes on."
    with (
        if_stopped(lambda: resumable),
        progress(f"{what}, {len(trials)} trials", len(trials), quiet=json) as tell,
    ):
        records = trials_of.sweep(function, trials, out, seed=seed, jobs=jobs, backend=backend, progress=tell)
    payload = {
        "what": what, "trials": len(records), "folder": out, "jobs": jobs, "backend": backend,
        "seconds": sum(record["seconds"] for record in records),
        "records": [{key: record[key] for key in ("trial", "seed", "seconds")} for record in records],
    }  # fmt: skip

    def text(console: Any) -> None:
        rows = [[record["trial"], number(record["seconds"])] for record in records[:20]]
        console.print(table(["trial", "seconds"], rows))
        more = "; the first 20 are shown" if len(records) > 20 else ""
        console.print(f"{len(records)} records in {out}{more}.")

    emit(payload, json, text)


def target(what: str, quick: bool = False) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the function that ``sottovoce sweep WHAT`` runs, and the options it always gets."""
    if what == "audit":
        return audit_trial, {}
    find(what)
    return experiment_trial, {"experiment": what, "quick": quick}


def experiment_trial(*, seed: int, experiment: str, quick: bool = False, **options: Any) -> Result:
    """Run one registered experiment with a derived seed; a job for `sweep`."""
    if takes_seed(experiment):
        options["seed"] = seed % 2**31
    return find(experiment).run(quick=quick, **options)


def takes_seed(experiment: str) -> bool:
    """Whether another seed makes the experiment another one; else repeating it would show nothing."""
    options = _options(experiment)
    return "seed" in options or any(option.kind is option.VAR_KEYWORD for option in options.values())


def has_trials(experiment: str) -> bool:
    """Whether the experiment is made of independent trials, which it then lets others run (``spread=``)."""
    return "spread" in _options(experiment)


def _options(experiment: str) -> Mapping[str, Any]:
    return signature(find(experiment).run).parameters


def audit_trial(
    *,
    seed: int,
    graph: str,
    rounds: int = 3,
    user: int = 0,
    observer: int | None = None,
    noise_multiplier: float = 0.5,
    runs: int = 20_000,
    delta: float = 1e-2,
    level: float = 1e-3,
    repeat: int = 0,
) -> dict[str, Any]:
    """Audit what one node (the furthest by default) learns of ``user`` by gossip; a job for `sweep`."""
    network = graphs.parse(graph)
    who = int(np.argmax(network.distances_from(user))) if observer is None else observer
    audit = audit_averaging(
        Gossip(network, rounds), user=user, observers=(who,), sensitivity=1.0, noise_std=noise_multiplier,
        runs=runs, rng=np.random.default_rng(seed), delta=delta, level=level,
    )  # fmt: skip
    return {"observer": who, **audit.to_dict(), "refuted": audit.refuted}
