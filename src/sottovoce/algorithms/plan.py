"""A plan knows its own price: the object that runs is the object that is accounted.

Every published algorithm of this package is a `Plan`. ``plan.privacy(view)`` answers before anything
runs, ``plan.cost()`` says what travels, ``plan.run(data, rng)`` executes, and ``for_budget`` inverts the
same forward function that ``privacy`` evaluates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from sottovoce.errors import InvalidInput
from sottovoce.privacy import Guarantee
from sottovoce.runners import Result

__all__ = ["Plan", "View"]

View = Literal["local", "pairwise", "network", "colluders", "central"]


class Plan(ABC):
    """An algorithm with its protocol, noise and steps fixed, ready to be priced and run.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> plan = sv.Muffliato(sv.graphs.hypercube(4), noise_std=2.0, radius=0.5)
    >>> plan.privacy("local").label, plan.cost()["messages"]
    ('ldp', 320)
    """

    name: str

    @abstractmethod
    def privacy(
        self,
        view: View = "local",
        *,
        observer: int | None = None,
        user: int | None = None,
        colluders: Iterable[int] = (),
    ) -> Guarantee:
        """Return the guarantee against one kind of adversary, before anything runs.

        Parameters
        ----------
        view : ``"local"`` (anyone who sees every message), ``"pairwise"`` (``observer`` about ``user``),
            ``"network"`` (``observer``, or the worst node, about its worst user), ``"colluders"``
            (``observer`` and ``colluders`` together) or ``"central"`` (only what is finally released).
        observer, user, colluders : node numbers.
        """

    @abstractmethod
    def run(self, data: Any, rng: Any, *, progress: bool = False) -> Result:
        """Execute the plan in this process; ``rng`` is a numpy Generator or a noise source."""

    @abstractmethod
    def cost(self) -> Mapping[str, Any]:
        """Return what travels: rounds, messages (rows sent), and bytes."""

    @abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """Return the plan as plain values, for records and tables."""

    def guarantees(self) -> list[Guarantee]:
        """Return the statements worth printing by default; every plan has at least the local one."""
        return [self.privacy("local")]

    def require(self, epsilon: float, delta: float, view: View = "local", **who: Any) -> Guarantee:
        """Return the guarantee if it meets the budget, else raise with a sentence."""
        guarantee = self.privacy(view, **who)
        guarantee.require(epsilon, delta)
        return guarantee

    def __repr__(self) -> str:
        inside = ", ".join(f"{key}={value!r}" for key, value in self.describe().items())
        return f"{type(self).__name__}({inside})"


def known_view(view: str) -> str:
    """Return ``view`` if it is one of the five, else raise a sentence that lists them."""
    if view not in ("local", "pairwise", "network", "colluders", "central"):
        raise InvalidInput(f"view must be local, pairwise, network, colluders or central, got {view!r}.")
    return view


def clipped_rows(rows: Any, centre: np.ndarray | float, radius: float) -> np.ndarray:
    """Return every row pulled into the ball of ``radius`` around a public ``centre``.

    A row that holds NaN or infinity becomes the centre: it says nothing, instead of spoiling everything.

    Examples
    --------
    >>> import numpy as np
    >>> clipped_rows(np.array([[3.0, 4.0], [np.nan, 0.0]]), 0.0, 1.0).round(9).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    array = np.asarray(rows)
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float64)
    offset = array - np.asarray(centre, dtype=array.dtype)
    offset[~np.isfinite(offset).all(axis=1)] = 0.0
    # A row of 1e200 has an infinite norm in floating point; so divide by the largest entry first.
    largest = np.abs(offset).max(axis=1, initial=0.0, keepdims=True)
    shape = offset / np.where(largest > 0, largest, 1)
    length = np.maximum(np.linalg.norm(shape, axis=1, keepdims=True), 1)
    too_long = largest > radius / length
    return np.asarray(centre, dtype=array.dtype) + np.where(too_long, shape * (radius / length), offset)
