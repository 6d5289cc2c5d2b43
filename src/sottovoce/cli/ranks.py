"""`--ranks N`: the same command once per rank on this machine; torchrun starts it on several."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce.errors import ConfigError, SottovoceError

if TYPE_CHECKING:
    from sottovoce.runners import Cluster, Result

__all__ = ["Split", "inside", "start", "train_network"]

_STARTED = "SOTTOVOCE_RANKS"


def inside() -> bool:
    """Whether this process is a rank, started by `start` or by torchrun."""
    return "RANK" in os.environ and (_STARTED in os.environ or "TORCHELASTIC_RUN_ID" in os.environ)


def start(ranks: int) -> None:
    """Run this very command on ``ranks`` ranks and exit as they do."""
    from sottovoce.runners.launch import Ended, launch

    command = [sys.executable, "-m", "sottovoce.cli.main", *sys.argv[1:]]
    try:
        launch(command, ranks, environment={_STARTED: str(ranks)})
    except Ended as ended:
        if ended.told:  # a rank has said why
            sys.exit(1)
        raise


class Split:
    """One rank's part of a command: joins, and lets only one rank speak when something is wrong."""

    def __init__(self, ranks: int | None, checkpoint: Path | None, *, show: bool) -> None:
        self.ranks, self.checkpoint, self.show = ranks, checkpoint, show
        self.cluster: Cluster | None = None

    def __enter__(self) -> Cluster:
        from sottovoce.runners import Cluster

        try:
            self.cluster = Cluster.join(timeout=float(os.environ.get("SOTTOVOCE_TIMEOUT", "300")))
        except SottovoceError:
            if os.environ["RANK"] != "0":
                sys.exit(1)
            raise
        return self.cluster

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        assert self.cluster is not None
        try:
            self.cluster.__exit__(kind, error, trace)
        except SottovoceError as told:
            error = told
        if isinstance(error, Exception) and not self.cluster.speaks:
            sys.exit(1)
        if isinstance(error, SottovoceError):
            raise error

    def train(self, built: Any, noise: Any, **more: Any) -> Result | None:
        """Run a built plan, with ``more`` options of `run_on_ranks`; the result is on rank 0."""
        from sottovoce.algorithms import run_on_ranks
        from sottovoce.cli.output import progress

        assert self.cluster is not None
        if self.ranks is not None and self.ranks != self.cluster.size:
            raise ConfigError(f"--ranks is {self.ranks}, but {self.cluster.size} ranks were started.")
        steps = int(getattr(built.plan, "steps", 1))
        quiet = not self.show or self.cluster.rank != 0
        with progress(f"{built.plan.name} on {self.cluster.size} ranks", steps, quiet=quiet) as tell:
            return run_on_ranks(
                self.cluster, built.plan, built.data, noise,
                checkpoint=self.checkpoint, every=max(1, steps // 50), progress=tell, **more,
            )  # fmt: skip


def train_network(
    part: Split, file: Path, *, out: Path | None = None, logs: Path | None = None, json: bool = False
) -> None:
    """Run a file with a ``[model]`` section on ranks; rank 0 prints and writes the record and the logs."""
    from sottovoce.cli.average import show_price
    from sottovoce.cli.config import checked, read_toml
    from sottovoce.cli.output import console
    from sottovoce.cli.train import Built
    from sottovoce.cli.train_deep import (
        DeepFile,
        build,
        evaluate_every,
        logged,
        noise_source,
        price_file,
        show_network,
    )  # fmt: skip
    from sottovoce.errors import BudgetExceeded

    cluster = part.cluster
    assert cluster is not None

    def prepare() -> tuple[DeepFile, Any, dict[str, Any]]:
        tables = read_toml(file)
        settings = checked(DeepFile, tables, file.name)
        found = price_file(file, tables)
        if found.get("feasible") is False:
            raise BudgetExceeded(found["verdict"])
        return settings, Built(*build(settings, file.parent), None), found

    settings, built, found = cluster.agree("the plan file", prepare)
    if cluster.rank == 0 and not json:
        show_price(console(), found)
    plan: Any = built.plan
    with logged(logs if cluster.rank == 0 else None, plan, settings) as tell:
        every = evaluate_every(plan, settings)
        result = part.train(built, noise_source(settings), evaluate_every=every, on_step=tell)
    if result is not None:
        show_network(result, found, out=out, json=json)
