"""The budget of a run: epsilon at delta, against one adversary, under one adjacency."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict, get_args

from sottovoce import _validate
from sottovoce.accounting.guarantee import Adjacency, Label, ViewName
from sottovoce.errors import InvalidInput

__all__ = ["AdversaryOptions", "Budget"]


class AdversaryOptions(TypedDict, total=False):
    """The arguments of `Plan.privacy`."""

    view: ViewName | None
    observer: int | None
    user: int | None
    colluders: int | Iterable[int]
    label: Label | None
    participations: int | None


@dataclass(frozen=True)
class Budget:
    """What may be spent: epsilon at delta, against whom, and what is hidden.

    Parameters
    ----------
    epsilon : an infinite epsilon asks for no privacy and gets no noise.
    delta : well below one over the number of records; 1e-5 is usual.
    view : the adversary: ``"network"`` (the worst single member), ``"local"``, ``"outsider"``,
        ``"pairwise"``, ``"colluders"`` or ``"central"``; None takes the plan's own: ``"network"``;
        ``"colluders"`` where masks tolerate several; ``"central"`` with one trusted holder of all records.
    adjacency : what is hidden: one record (``"add-remove"``, ``"replace-one"``) or everything that one node
        holds (``"user"``); None is that of the plan, ``"add-remove"`` where `sottovoce.fit` builds one.
    observer, user, colluders : node numbers for the view; ``colluders`` may be a number of nodes.

    Examples
    --------
    >>> Budget(epsilon=2.0, delta=1e-5).adversary
    {}
    >>> Budget(2.0, 1e-5, view="colluders", colluders=3).adversary
    {'view': 'colluders', 'colluders': 3}
    """

    epsilon: float
    delta: float
    view: ViewName | None = None
    adjacency: Adjacency | None = None
    observer: int | None = None
    user: int | None = None
    colluders: int | tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.epsilon != math.inf:
            _validate.positive(self.epsilon, "epsilon")
        _validate.delta(self.delta)
        for name, value, allowed in (("view", self.view, ViewName), ("adjacency", self.adjacency, Adjacency)):
            if value is not None and value not in get_args(allowed):
                raise InvalidInput(f"{name} must be one of {', '.join(get_args(allowed))}, got {value!r}.")
        if isinstance(self.colluders, Iterable) and not isinstance(self.colluders, tuple):
            object.__setattr__(self, "colluders", tuple(self.colluders))

    def require_adjacency(self, adjacency: str) -> None:
        """Refuse a plan whose adjacency contradicts that of the budget."""
        if self.adjacency not in (None, adjacency):
            raise InvalidInput(
                f"The budget is for adjacency {self.adjacency!r}, the plan has {adjacency!r}; make them the "
                "same, or leave the budget's out."
            )

    @property
    def adversary(self) -> AdversaryOptions:
        """The arguments of `Plan.privacy`; those that were left out are the plan's own."""
        adversary: AdversaryOptions = {}
        if self.view is not None:
            adversary["view"] = self.view
        if self.observer is not None:
            adversary["observer"] = self.observer
        if self.user is not None:
            adversary["user"] = self.user
        if self.colluders != ():
            adversary["colluders"] = self.colluders
        return adversary
