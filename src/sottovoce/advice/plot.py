"""The front as a picture: what time buys in accuracy, the dominated plans in grey."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sottovoce.advice.comparison import PlanSummary
from sottovoce.errors import InvalidInput

__all__ = ["draw_front"]

FRONT, BEHIND, CHOSEN = "#1b5e8c", "#9aa5ad", "#b3541e"


def draw_front(
    rows: Sequence[PlanSummary], path: str | Path, *, chosen: PlanSummary | None = None, unit: str = ""
) -> Path:
    """Draw time against error for every row and write an SVG or PNG file.

    Examples
    --------
    >>> import tempfile, sottovoce as sv
    >>> plan = sv.PrivateAveraging(sv.protocols.HypercubeExchange(4), noise_std=1.0, radius=1.0)
    >>> row = sv.advice.compare([plan], delta=1e-5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw_front(row, folder + "/front.svg").name
    'front.svg'
    """
    target = Path(path)
    if target.suffix not in (".svg", ".png"):
        raise InvalidInput(f"the front is drawn as .svg or .png, got {target.name!r}.")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(7.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    rows = [row for row in rows if math.isfinite(row.loss)]  # what is not known has no place
    front = sorted((r for r in rows if r.dominated_by is None), key=lambda r: r.seconds)
    behind = [r for r in rows if r.dominated_by is not None]
    axes.plot([r.seconds for r in behind], [r.loss for r in behind], "o", color=BEHIND, label="dominated")
    axes.plot([r.seconds for r in front], [r.loss for r in front], "o-", color=FRONT, label="front")
    if chosen is not None:
        axes.plot(
            [chosen.seconds], [chosen.loss], "o", ms=11, mfc="none", mec=CHOSEN, mew=2, label="take this"
        )
    for row in front:
        axes.annotate(
            row.name, (row.seconds, row.loss), xytext=(6, 6), textcoords="offset points", fontsize=8
        )
    for row in behind:
        axes.annotate(
            row.name, (row.seconds, row.loss), xytext=(6, -10), textcoords="offset points", fontsize=7,
            color=BEHIND,
        )  # fmt: skip
    timed = all(row.seconds > 0 for row in rows)  # one holder alone sends nothing, and takes no rounds
    axes.set(xscale="log" if timed else "linear", yscale="log", xlabel="seconds", ylabel=unit or "error")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target)
    return target
