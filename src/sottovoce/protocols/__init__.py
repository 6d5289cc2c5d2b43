"""How peers average: public schedules of linear messages, read by runner, peer, accountant and attacker.

- `base`: what every protocol has; `linear`: those that are sequences of sparse matrices.
- which messages are sent: `linear`, in `LinearProtocol.senders` and `receivers` for one round and `NodeState`
  for one node; `masked` and `walk` have their own; `sottovoce.algorithms.schedule` has the protocol per step.
- `registry`: protocols by name, and their capabilities; `rounds`: how many rounds gossip needs.
- gossip: `gossip` (plain, fresh noise), `chebyshev`, `randomized`, `time_varying` (also dropout).
- exact averages: `trees` (drawn by `spanning_trees`), `exchange`, `masked` (whose integer grid is
  `sottovoce.noise.grid` and whose masks are `sottovoce.secure_sum`), `server`.
- `walk`: a token that gathers noisy rows.

Gossip weights belong to the network: `sottovoce.graphs.weights`.
"""

from sottovoce.leakage.view import GaussianView
from sottovoce.protocols.base import Protocol
from sottovoce.protocols.chebyshev import Chebyshev
from sottovoce.protocols.exchange import HypercubeExchange
from sottovoce.protocols.gossip import FreshNoiseGossip, Gossip, NeighborSum
from sottovoce.protocols.linear import ExactConsensus, LinearProtocol, NodeState, as_linear
from sottovoce.protocols.masked import Masked
from sottovoce.protocols.randomized import AcceleratedRandomized, Randomized
from sottovoce.protocols.registry import NamedProtocol, names_with, parse
from sottovoce.protocols.rounds import rounds_for
from sottovoce.protocols.spanning_trees import few_leaf_tree, spanning_tree
from sottovoce.protocols.time_varying import Dropout, TimeVarying, fresh_erdos_renyi
from sottovoce.protocols.trees import Tree
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
