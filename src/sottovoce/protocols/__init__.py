"""How peers average: public schedules of linear messages, read by runner, peer, accountant and attacker."""

from sottovoce.protocols.base import LinearProtocol, Local, Protocol
from sottovoce.protocols.views import GaussianView

__all__ = ["GaussianView", "LinearProtocol", "Local", "Protocol"]
