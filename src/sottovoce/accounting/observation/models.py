"""Which mathematics speaks for a plan: the law under which its releases reach an observer.

A plan lists its releases; how much of them one observer learns depends on how they travel. A law is that
fact as a frozen value, with what the accountant needs beyond releases and schedule and nothing else. The
accountant (`sottovoce.privacy.account`) reads it; one that it does not know yields the local number only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sottovoce.accounting.curve import Curve
    from sottovoce.graphs import Network

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


@dataclass(frozen=True)
class ObservationModel:
    """How releases reach an observer; see the subclasses."""


@dataclass(frozen=True)
class LocalOnly(ObservationModel):
    """Nothing is claimed beyond local privacy: any observer sees at most every message.

    ``published`` is a formula as printed, against any one node, kept for reproduction: a curve and the
    sentence that says whose it is.

    Examples
    --------
    >>> LocalOnly().published is None
    True
    """

    published: tuple[Curve, str] | None = None


@dataclass(frozen=True)
class Averaging(ObservationModel):
    """Each agent releases its row once and a protocol averages the rows: exact for every view.

    Examples
    --------
    >>> Averaging() == Averaging()
    True
    """


@dataclass(frozen=True)
class Consensus(ObservationModel):
    """Every step ends in exact consensus, so the model is common knowledge and the views of steps compose.

    Examples
    --------
    >>> Consensus() == Consensus()
    True
    """


@dataclass(frozen=True)
class LinearGossip(ObservationModel):
    """Noisy gradients mixed by gossip without consensus: the linear formula is conditional, local is valid.

    Examples
    --------
    >>> LinearGossip() == LinearGossip()
    True
    """


@dataclass(frozen=True)
class TokenWalk(ObservationModel):
    """A token visits agents along a path drawn during the run and kept secret.

    Parameters
    ----------
    network : graph and transition weights.
    steps, tokens, cap : hops of each token, tokens, contributions per agent (None: no cap).
    contractive : whether amplification by iteration may be counted on.
    final_public : whether the final model is broadcast.
    """

    network: Network
    steps: int
    tokens: int = 1
    cap: int | None = None
    contractive: bool = False
    final_public: bool = True


@dataclass(frozen=True)
class TimeCorrelated(ObservationModel):
    """Each agent's noise is correlated over the steps; its joint release is priced as one mechanism."""


@dataclass(frozen=True)
class PairCorrelated(ObservationModel):
    """Neighbors share noise that cancels in the mean, from seeds that only the two of them know.

    ``own_std`` and ``pair_std`` are the standard deviations of an agent's own noise and of the noise that
    each pair shares, per step.
    """

    network: Network
    own_std: float
    pair_std: float


@dataclass(frozen=True)
class Curator(ObservationModel):
    """One trusted holder of all records releases the results: the only view is what it releases.

    ``published`` marks a plan whose price is a printed formula that is no guarantee, and says whose.
    """

    published: str | None = None


@dataclass(frozen=True)
class Federation(ObservationModel):
    """Sampled clients send to a server; with ``secure_sum`` only the sum of a round is seen."""

    users: int
    secure_sum: bool
