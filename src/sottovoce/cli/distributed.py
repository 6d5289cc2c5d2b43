"""`--ranks N`: the same command once per rank on this machine; torchrun starts it on several."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING

from sottovoce.errors import ConfigError, SottovoceError

if TYPE_CHECKING:
    from sottovoce.runners import Cluster

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
        if ended.explained:  # a rank has printed why
            sys.exit(1)
        raise


class Split:
    """One rank's part of a command: joins the others, and only one rank prints an error."""

    def __init__(self, ranks: int | None) -> None:
        self.ranks = ranks
        self.cluster: Cluster | None = None

    def __enter__(self) -> Cluster:
        from sottovoce.runners import Cluster

        try:
            self.cluster = Cluster.join(timeout=float(os.environ.get("SOTTOVOCE_TIMEOUT", "300")))
        except SottovoceError:
            if os.environ["RANK"] != "0":
                sys.exit(1)
            raise
        if self.ranks is not None and self.ranks != self.cluster.size:
            wrong = ConfigError(f"--ranks is {self.ranks}, but {self.cluster.size} ranks were started.")
            self.__exit__(ConfigError, wrong, None)
            raise wrong
        return self.cluster

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.cluster is not None
        try:
            self.cluster.__exit__(kind, error, trace)
        except SottovoceError as failure:
            error = failure
        if isinstance(error, Exception) and not self.cluster.speaks:
            sys.exit(1)
        if isinstance(error, SottovoceError):
            raise error
