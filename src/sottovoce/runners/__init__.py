"""One algorithm, three ways to run it."""

from sottovoce.runners.base import Algorithm, Result, State
from sottovoce.runners.distributed import Cluster
from sottovoce.runners.in_process import run_stacked

__all__ = ["Algorithm", "Cluster", "Result", "State", "run_stacked"]
