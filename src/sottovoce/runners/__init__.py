"""One algorithm, three ways to run it."""

from sottovoce.runners.base import Algorithm, Result, State
from sottovoce.runners.distributed import Cluster, run_cluster
from sottovoce.runners.in_process import run_stacked

__all__ = ["Algorithm", "Cluster", "Result", "State", "run_cluster", "run_stacked"]
