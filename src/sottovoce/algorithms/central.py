"""What plans with a trusted curator share: one view, no messages, records in, coefficients out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from sottovoce.algorithms.plan import Plan, View, known_view
from sottovoce.errors import InvalidInput
from sottovoce.objectives import GLM
from sottovoce.privacy import Adversary, Curve, Guarantee
from sottovoce.privacy.guarantees import EMPTY_PLACE, Adjacency

__all__ = ["CentralPlan", "progress_bar", "recorder", "records_of"]

Evaluate = Callable[[np.ndarray], dict[str, Any]]


class CentralPlan(Plan):
    """A plan whose curator holds all records and releases the model: `curve` is its whole price.

    Examples
    --------
    >>> from sottovoce.algorithms.dp_cd import DPCD
    >>> plan = DPCD(GLM(), records=10, steps=4, clip=1.0, noise_multiplier=4.0, smoothness=(0.25,))
    >>> print(plan.privacy().adversary)
    anyone who sees the released output
    >>> plan.cost()["messages"]
    0
    """

    adjacency: Adjacency = "add-remove"

    @abstractmethod
    def curve(self) -> Curve:
        """Return the composed loss of everything that is released."""

    def privacy(
        self,
        view: View = "central",
        *,
        observer: int | None = None,
        user: int | None = None,
        colluders: Iterable[int] = (),
    ) -> Guarantee:
        """Return what the released model, all iterates included, costs one record."""
        if known_view(view) != "central":
            raise InvalidInput(f'{self.name} has a trusted curator: its view is "central", got {view!r}.')
        assumptions: tuple[str, ...] = ("the curator who holds the records is trusted",)
        if self.adjacency == "add-remove" and hasattr(self, "records"):
            assumptions += (EMPTY_PLACE,)
        return Guarantee(Adversary("central"), self.adjacency, "exact", self.curve(), assumptions)

    def guarantees(self) -> list[Guarantee]:
        """Return the one statement there is."""
        return [self.privacy()]

    def cost(self, dim: int = 1, bytes_per_number: int = 8) -> Mapping[str, Any]:
        """Return zeros: nothing travels."""
        return {"rounds": 0, "messages": 0, "messages_per_node": 0.0, "bytes": 0}

    def describe(self) -> Mapping[str, Any]:
        """Return the plan as plain values."""
        fields = asdict(self)  # type: ignore[call-overload]
        fields.pop("name", None)
        return {"algorithm": self.name, **fields}


def records_of(data: Any, objective: GLM) -> tuple[Any, np.ndarray]:
    """Return checked features and labels of a Dataset or an (X, y) pair."""
    X, y = (data.X, data.y) if hasattr(data, "X") else data
    return objective.check(X, y)


def recorder(
    history: list[dict[str, Any]], evaluate: Evaluate | None, progress: bool, name: str, steps: int
) -> Callable[[int, dict[str, np.ndarray]], None]:
    """Return what is called after a block: evaluation into ``history``, and a progress bar if wanted."""
    bar = progress_bar(name, steps) if progress else None

    def after(done: int, state: dict[str, np.ndarray]) -> None:
        if evaluate is not None:
            history.append({"step": done, **evaluate(state["w"])})
        if bar is not None:
            bar(done)

    return after


def progress_bar(name: str, steps: int) -> Callable[[int], None]:
    """Return a function that moves a bar on the terminal (standard error) to the given step."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, transient=True, console=Console(stderr=True))
    task = bar.add_task(name, total=steps)
    bar.start()

    def move(done: int) -> None:
        bar.update(task, completed=done)
        if done >= steps:
            bar.stop()

    return move
