"""How peers average: public schedules of linear messages, read by runner, peer, accountant and attacker."""

from sottovoce.protocols.base import LinearProtocol, Local, Protocol
from sottovoce.protocols.consensus import ExactConsensus, Exchange, Tree, spanning_tree
from sottovoce.protocols.gossip import Chebyshev, Gossip, NeighbourSum, Refreshed, rounds_for
from sottovoce.protocols.varying import Dropout, Randomized, TimeVarying, fresh_erdos_renyi
from sottovoce.protocols.views import GaussianView
from sottovoce.protocols.walk import Walk, draw_path

__all__ = [
    "Chebyshev",
    "Dropout",
    "ExactConsensus",
    "Exchange",
    "GaussianView",
    "Gossip",
    "LinearProtocol",
    "Local",
    "NeighbourSum",
    "Protocol",
    "Randomized",
    "Refreshed",
    "TimeVarying",
    "Tree",
    "Walk",
    "draw_path",
    "fresh_erdos_renyi",
    "rounds_for",
    "spanning_tree",
]
