"""The papers' tables and figures, one file each: configuration in, result record out."""

from sottovoce.experiments.registry import Experiment, find, registry

__all__ = ["Experiment", "find", "registry"]
