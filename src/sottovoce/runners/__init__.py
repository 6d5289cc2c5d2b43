"""One algorithm text, three ways to run it."""

from sottovoce.runners.base import Algorithm, Result
from sottovoce.runners.stacked import run_stacked

__all__ = ["Algorithm", "Result", "run_stacked"]
