"""How peers average: public schedules of linear messages, read by runner, peer, accountant and attacker."""

from sottovoce.protocols.base import LinearProtocol, Local, Protocol
from sottovoce.protocols.consensus import ExactConsensus, Exchange, Tree, spanning_tree
from sottovoce.protocols.few_leaves import few_leaf_tree
from sottovoce.protocols.gossip import Chebyshev, Gossip, NeighbourSum, Refreshed, rounds_for
from sottovoce.protocols.masked import Masked
from sottovoce.protocols.names import NamedProtocol, parse
from sottovoce.protocols.replicated import Replicated
from sottovoce.protocols.varying import (
    AcceleratedRandomized,
    Dropout,
    Randomized,
    TimeVarying,
    fresh_erdos_renyi,
)
from sottovoce.protocols.views import GaussianView
from sottovoce.protocols.walk import Handover, Spread, Walk, draw_path

__all__ = [
    "AcceleratedRandomized",
    "Chebyshev",
    "Dropout",
    "ExactConsensus",
    "Exchange",
    "GaussianView",
    "Gossip",
    "Handover",
    "LinearProtocol",
    "Local",
    "Masked",
    "NamedProtocol",
    "NeighbourSum",
    "Protocol",
    "Randomized",
    "Refreshed",
    "Replicated",
    "Spread",
    "TimeVarying",
    "Tree",
    "Walk",
    "draw_path",
    "few_leaf_tree",
    "fresh_erdos_renyi",
    "parse",
    "rounds_for",
    "spanning_tree",
]
