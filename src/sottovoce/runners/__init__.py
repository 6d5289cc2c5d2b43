"""One algorithm text, three ways to run it."""

from sottovoce.runners.base import Algorithm, Result
from sottovoce.runners.cluster import Cluster, run_cluster
from sottovoce.runners.stacked import run_stacked

__all__ = ["Algorithm", "Cluster", "Result", "run_cluster", "run_stacked"]
