"""The budget of a run: epsilon at delta, against one adversary, under one adjacency."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, TypedDict, cast, get_args

from sottovoce import _validate
from sottovoce._format import number, significant
from sottovoce._io import to_jsonable
from sottovoce.accounting.guarantee import Adjacency, Guarantee, Label, ViewName
from sottovoce.accounting.wording import LARGE_DELTA
from sottovoce.errors import ConfigError, InvalidInput, Refused

__all__ = ["AdversaryOptions", "Budget", "MemberOptions", "accepted_delta", "delta_warning"]


class MemberOptions(TypedDict, total=False):
    """The arguments of `Plan.privacy` besides the view."""

    observer: int | None
    user: int | None
    colluders: int | Iterable[int]
    label: Label | None
    participations: int | None


class AdversaryOptions(MemberOptions, total=False):
    """The arguments of `Plan.privacy`."""

    view: ViewName | None


@dataclass(frozen=True)
class Budget:
    """What may be spent: epsilon at delta, against whom, and what is hidden.

    Parameters
    ----------
    epsilon : an infinite epsilon asks for no privacy and gets no noise.
    delta : well below one over the number of records; 1e-5 is usual.
    view : the adversary: ``"network"`` (the worst single member), ``"local"``, ``"outsider"``,
        ``"pairwise"``, ``"colluders"`` or ``"central"``; None takes that of the plan.
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
        if self.view is not None:
            _validate.choice(self.view, get_args(ViewName), "view")
        if self.adjacency is not None:
            _validate.choice(self.adjacency, get_args(Adjacency), "adjacency")
        if isinstance(self.colluders, Iterable) and not isinstance(self.colluders, tuple):
            object.__setattr__(self, "colluders", tuple(self.colluders))

    def require_adjacency(self, adjacency: str) -> None:
        """Refuse a plan whose adjacency contradicts that of the budget."""
        if self.adjacency not in (None, adjacency):
            raise InvalidInput(
                f"The budget is for adjacency {self.adjacency!r}, the plan has {adjacency!r}; make them the "
                "same, or leave the budget's out."
            )

    def to_dict(self, guarantee: Guarantee) -> dict[str, Any]:
        """Return the budget for the result of a run; ``guarantee`` is the one that it was checked against."""
        amounts = {"epsilon": to_jsonable(self.epsilon), "delta": self.delta}
        return amounts | {"adversary": guarantee.adversary.to_dict()}

    @property
    def adversary(self) -> AdversaryOptions:
        """The arguments of `Plan.privacy`; those that were left out are the plan's own."""
        options = {name: getattr(self, name) for name in ("view", "observer", "user", "colluders")}
        return cast(AdversaryOptions, {k: value for k, value in options.items() if value not in (None, ())})


def delta_warning(delta: float, units: float | None, adjacency: str) -> str | None:
    """Return a sentence about a delta above a tenth of one over the number of units; None for a smaller one.

    A mechanism that publishes one of ``units`` records as it is, chosen at random, has epsilon 0 at delta
    1 / units.
    """
    if units is None or delta <= 0.1 / units:
        return None
    above, so = "above a tenth of one over", "which is large"
    if delta > 1 / units:
        above, so = "above one over", "so that one of them may be exposed"
    noun = "members" if adjacency == "user" else "records"
    return (
        f"delta {number(delta, 'delta')} is {above} the number of {noun} ({number(round(units))}), {so}; "
        f"take at most {significant(0.1 / units, 'limit', 2)}."
    )


def accepted_delta(
    delta: float, units: float | None, adjacency: str, accept: Collection[str], file: str | None = None
) -> tuple[str, ...]:
    """Return the name under which a delta above one over the number of units is accepted; () if it is below.

    Raises unless the caller accepts it; ``file`` is the plan file that does, None for a call.
    """
    where, error = ("", InvalidInput) if file is None else (f"{file}, ", ConfigError)
    if units is None or delta <= 1 / units:
        if LARGE_DELTA in accept and units is not None:
            raise error(f"{where}accept names {LARGE_DELTA!r}, but delta is small; leave it out.")
        return ()
    if LARGE_DELTA not in accept:
        sentence = str(delta_warning(delta, units, adjacency)).rstrip(".")
        how = f'accept = ["{LARGE_DELTA}"]' + ("" if file is None else " at the top of the file")
        raise Refused(f"{where}{sentence}, or write {how}.")
    return (LARGE_DELTA,)
