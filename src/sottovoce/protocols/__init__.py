"""How peers average: public schedules of linear messages, read by runner, peer, accountant and attacker."""

from sottovoce.leakage.view import GaussianView
from sottovoce.protocols.base import LinearProtocol, NodeState, Protocol, as_linear
from sottovoce.protocols.consensus import ExactConsensus, HypercubeExchange, Tree, spanning_tree
from sottovoce.protocols.gossip import Chebyshev, FreshNoiseGossip, Gossip, NeighborSum, rounds_for
from sottovoce.protocols.masked import Masked
from sottovoce.protocols.registry import NamedProtocol, names_with, parse
from sottovoce.protocols.replicated import Replicated
from sottovoce.protocols.spanning_trees import few_leaf_tree
from sottovoce.protocols.time_varying import (
    AcceleratedRandomized,
    Dropout,
    Randomized,
    TimeVarying,
    fresh_erdos_renyi,
)
from sottovoce.protocols.walk import Broadcast, TokenPass, Walk, draw_path

__all__ = [
    "AcceleratedRandomized",
    "Broadcast",
    "Chebyshev",
    "Dropout",
    "ExactConsensus",
    "FreshNoiseGossip",
    "GaussianView",
    "Gossip",
    "HypercubeExchange",
    "LinearProtocol",
    "Masked",
    "NamedProtocol",
    "NeighborSum",
    "NodeState",
    "Protocol",
    "Randomized",
    "Replicated",
    "TimeVarying",
    "TokenPass",
    "Tree",
    "Walk",
    "as_linear",
    "draw_path",
    "few_leaf_tree",
    "fresh_erdos_renyi",
    "names_with",
    "parse",
    "rounds_for",
    "spanning_tree",
]
