"""Observation models: what an adversary observes of a plan's releases, one file per model."""

from sottovoce.accounting.observation.averaging import Averaging
from sottovoce.accounting.observation.base import ObservationModel
from sottovoce.accounting.observation.consensus import Consensus
from sottovoce.accounting.observation.correlated import PairCorrelated, TimeCorrelated
from sottovoce.accounting.observation.curator import Curator
from sottovoce.accounting.observation.federation import Federation
from sottovoce.accounting.observation.linear_gossip import LinearGossip
from sottovoce.accounting.observation.local_only import LocalOnly
from sottovoce.accounting.observation.random_walk import TokenWalk

__all__ = [
    "Averaging",
    "Consensus",
    "Curator",
    "Federation",
    "LinearGossip",
    "LocalOnly",
    "ObservationModel",
    "PairCorrelated",
    "TimeCorrelated",
    "TokenWalk",
]
