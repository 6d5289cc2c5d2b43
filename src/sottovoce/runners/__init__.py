"""One algorithm, three ways to run it."""

from sottovoce.runners.base import Algorithm, Result, State, in_blocks
from sottovoce.runners.distributed import Cluster
from sottovoce.runners.in_process import run_stacked

__all__ = ["Algorithm", "Cluster", "Result", "State", "in_blocks", "run_stacked"]
