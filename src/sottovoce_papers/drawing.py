"""Figures of the experiments: one marker per curve, named axes, values of a paper as open points."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.report.figures import COLORS as COLORS
from sottovoce.report.figures import INK as INK
from sottovoce.report.figures import SETTINGS, draw_links, springs

layout = springs
MANY = 15  # points of a curve that still have room for bars
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@contextmanager
def figure_of(
    columns: int = 1, rows: int = 1, *, width: float = 0.0, height: float = 3.4, **shared: Any
) -> Iterator[Any]:
    """Give a figure and its panels, in the style of all figures; panels come as a flat list."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        wide = 6.4 if columns == 1 else (3.5 if columns <= 3 else 2.8) * columns + 0.4
        size = (width or wide, height * rows)
        figure = Figure(figsize=size, layout="constrained")
        panels = list(np.ravel(figure.subplots(rows, columns, **shared)))
        yield figure, panels
        _tidy(figure, panels, rows, columns, bool(shared.get("sharey")))


def _tidy(figure: Any, panels: list[Any], rows: int, columns: int, shared: bool) -> None:
    """Name shared axes once and keep labels and legends off the drawing."""
    grid = panels[-1].get_gridspec()
    for panel in figure.axes:  # one across a whole row must share the grid of the others, or it covers them
        spec = panel.get_subplotspec()
        if spec is not None and spec.get_gridspec() is not grid and spec.get_gridspec().nrows == rows > 1:
            panel.set_subplotspec(grid[spec.rowspan.start : spec.rowspan.stop, :])
    left = [(k, panel) for k, panel in enumerate(panels) if panel.figure is not None]
    for k, panel in left:
        if shared and k % columns:  # the axis is that of the first panel in the row
            panel.set_ylabel("")
        lines = -(-len(panel.get_xlabel()) * columns // round(14 * figure.get_figwidth()))
        if lines > 1:
            panel.set_xlabel(textwrap.fill(panel.get_xlabel(), len(panel.get_xlabel()) // lines + 6))
        _whole_steps(panel)
        _cut(panel)
    figure.draw_without_rendering()
    for _, panel in left:
        labels = [label for label in panel.get_xticklabels() if label.get_text()]
        boxes = [label.get_window_extent() for label in labels]
        if any(a.padded(3).overlaps(b) for a, b in pairwise(boxes)):
            panel.tick_params(axis="x", labelrotation=30)
            for label in labels:
                label.set(ha="right", rotation_mode="anchor")
    _free_legends(figure)


def _whole_steps(panel: Any) -> None:
    """Mark hops, rounds and the like at whole numbers."""
    from matplotlib.collections import PathCollection
    from matplotlib.ticker import AutoLocator, MaxNLocator

    scattered = [c for c in panel.collections if isinstance(c, PathCollection)]
    points = [np.asarray(c.get_offsets(), dtype=float)[:, 0] for c in scattered]
    x = np.concatenate([_places(panel), *points])
    if len(x) and isinstance(panel.xaxis.get_major_locator(), AutoLocator) and np.allclose(x, np.round(x)):
        panel.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))


def _cut(panel: Any) -> None:
    """Where one point would flatten all others, end the axis before it and write its value there."""
    curves = [line for line in panel.get_lines() if line.get_transform() == panel.transData]
    points = np.array([xy for line in curves for xy in line.get_xydata() if np.isfinite(xy).all()])
    if panel.get_yscale() != "linear" or len(points) < 8:
        return
    (_, second), (x, first) = points[np.argsort(points[:, 1], kind="stable")][-2:]
    if first > 3 * second > 0:
        panel.set_ylim(min(0.0, *points[:, 1]), 1.15 * second)
        panel.annotate(
            f"↑ {first:.4g}", (x, 1.15 * second), xytext=(0, 2), textcoords="offset points", ha="center",
            va="bottom", fontsize=8.5, annotation_clip=False,
        )  # fmt: skip


def _places(panel: Any) -> np.ndarray:
    """Where the curves have points, on the x axis; lines across the whole panel have none."""
    curves = [line for line in panel.get_lines() if line.get_transform() == panel.transData]
    points = [np.asarray(line.get_xdata(), dtype=float) for line in curves]
    return np.unique(np.concatenate(points)) if points else np.array([])


def _free_legends(figure: Any) -> None:
    """Move the legends out of the panels where one of them covers what is drawn, or has much to say."""
    with_legend = [panel for panel in figure.axes if panel.get_legend() is not None]
    if not any(len(p.get_legend().get_texts()) > 5 or _covers(p.get_legend(), p) for p in with_legend):
        return
    groups: list[dict[str, Any]] = []  # panels that speak of the same things share a legend
    for panel in figure.axes:
        handles, labels = panel.get_legend_handles_labels()
        by_label = dict(zip(labels, handles, strict=True))
        known = next((group for group in groups if set(by_label) & set(group)), None)
        if known is not None:
            known.update({label: by_label[label] for label in by_label if label not in known})
        elif by_label:
            groups.append(by_label)
    if len(groups) == 1:
        for panel in with_legend:
            panel.get_legend().remove()
        columns = _columns(figure.get_figwidth(), groups[0])
        figure.legend(
            groups[0].values(), groups[0].keys(), loc="outside lower center", ncols=columns, labelcolor=INK
        )
        return
    for panel in with_legend:  # each under its own panel
        handles, labels = panel.get_legend_handles_labels()
        columns = _columns(panel.get_position().width * figure.get_figwidth(), labels)
        below = -0.62 / (panel.get_position().height * figure.get_figheight())
        panel.legend(
            handles, labels, loc="upper center", bbox_to_anchor=(0.5, below), ncols=columns, labelcolor=INK
        )


def _columns(inches: float, labels: Any) -> int:
    """How many names stand side by side; they fill one column after the other."""
    widths = [0.6 + 0.075 * len(label) for label in labels]
    for columns in range(len(widths), 1, -1):
        rows = -(-len(widths) // columns)
        if sum(max(widths[k : k + rows]) for k in range(0, len(widths), rows)) <= inches:
            return -(-len(widths) // rows)  # no column much shorter than the others
    return 1


def _covers(legend: Any, panel: Any) -> bool:
    """Whether a legend lies over a curve, a bar, a point or an error bar of its panel."""
    from matplotlib.collections import LineCollection, PathCollection

    box = legend.get_window_extent().padded(1)
    paths = [(line.get_path(), line.get_transform(), False) for line in panel.get_lines()]
    paths += [(patch.get_path(), patch.get_transform(), True) for patch in panel.patches]
    for drawn in panel.collections:
        if isinstance(drawn, LineCollection):
            paths += [(path, drawn.get_transform(), False) for path in drawn.get_paths()]
        elif isinstance(drawn, PathCollection):
            points = drawn.get_offset_transform().transform(drawn.get_offsets())
            if any(box.contains(*point) for point in points):
                return True
    return any(
        path.transformed(place).cleaned(remove_nans=True).intersects_bbox(box, filled)
        for path, place, filled in paths
    )


def save(figure: Any, path: str | Path) -> Path:
    """Write a figure as .svg, .png or .pdf, the same bytes every time."""
    import matplotlib

    target = Path(path)
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(target.suffix)
    with matplotlib.rc_context(SETTINGS):
        figure.savefig(target, bbox_inches="tight", dpi=160, metadata=metadata)
    return target


def error_bars(panel: Any, x: Any, y: Any, spread: Any, k: int, label: str, *, paper: bool = False) -> None:
    """Draw one curve with its spread; what a paper prints is dotted, with open markers.

    ``spread`` is a symmetric width, or two rows (down, up); None leaves it out. Of many points the spread is
    a band: bars would stand too close to be read.
    """
    color, marker = COLORS[k % len(COLORS)], MARKERS[k % len(MARKERS)]
    values = np.array([np.nan if v is None else v for v in y], dtype=float)
    widths = None
    if spread is not None:
        rows = np.atleast_2d(np.array(
            [[0.0 if v is None else v for v in row] for row in np.atleast_2d(np.array(spread, dtype=object))],
            dtype=float,
        ))  # fmt: skip
        widths = rows if len(rows) == 2 else np.vstack([rows, rows])
        # the mean of equal numbers may lie a last place beyond the largest of them
        widths = np.where(np.abs(widths) <= 1e-12 * np.abs(values), 0.0, widths)
    many = len(values) > MANY
    if many and widths is not None:
        panel.fill_between(
            list(x), values - widths[0], values + widths[1], color=color, alpha=0.2, lw=0, zorder=1
        )
        widths = None
    panel.errorbar(
        list(x), values, yerr=widths, color=color, marker=marker, ms=3 if many else 5, capsize=3,
        lw=1.2 if paper else 1.8, ls=":" if paper else "-", mfc="none" if paper else color, label=label,
        elinewidth=1.0,
    )  # fmt: skip


def level(panel: Any, value: float, label: str, k: int = 6) -> None:
    """Draw a horizontal line with a name."""
    panel.axhline(value, color=COLORS[k % len(COLORS)], lw=1.3, ls=(0, (5, 3)), label=label)


def names(panel: Any, xlabel: str, ylabel: str, title: str = "", *, legend: bool = True, **more: Any) -> None:
    """Name the axes (with units), set scales and limits, and explain the curves."""
    panel.set(xlabel=xlabel, ylabel=ylabel, title=title, **more)
    panel.grid(axis="y", color=COLORS[6], alpha=0.25, lw=0.7)
    if panel.get_xscale() == "log":
        from matplotlib.ticker import NullFormatter

        places = [x for x in _places(panel) if x > 0]
        panel.xaxis.set_minor_formatter(NullFormatter())  # 2 x 10^1, 3 x 10^1 ... overprint each other
        if 2 <= len(places) <= 8:
            panel.set_xticks(places, [f"{x:g}" for x in places])
    if legend and panel.get_legend_handles_labels()[0]:
        panel.legend(labelcolor=INK)  # moves out of the panel when the figure is done, if it covers anything


def medians(panel: Any, x: Any, groups: Sequence[Sequence[float]], k: int, label: str) -> None:
    """Draw the median of each group of values, with bars to its least and its most."""
    middle = np.array([np.median(values) for values in groups])
    down, up = (middle - [min(v) for v in groups], [max(v) for v in groups] - middle)
    error_bars(panel, x, middle, [down, up], k, label)


def graph(
    panel: Any, edges: Any, positions: np.ndarray, values: Any, labels: Any = None, **limits: float
) -> Any:
    """Draw a network whose nodes are colored by a number; return the points, for a color scale."""
    draw_links(panel, edges, positions, labels)
    size, colors = 120 if len(positions) <= 60 else 26, np.asarray(values, dtype=float)
    return panel.scatter(*positions.T, c=colors, cmap="cividis", s=size, zorder=2, **limits)


def attacked(panel: Any, edges: Any, positions: np.ndarray, attacker: int, known: Sequence[int]) -> None:
    """Draw a network with its attacker, the nodes it reconstructs and the others."""
    draw_links(panel, edges, positions)
    size = 45 if len(positions) <= 60 else 20
    others = sorted(set(range(len(positions))) - set(known) - {attacker})
    for chosen, k, label in (
        (others, 2, "not reconstructed"), (sorted(known), 3, "reconstructed"), ([attacker], 1, "attacker"),
    ):  # fmt: skip
        marked = "*" if label == "attacker" else MARKERS[k]
        panel.scatter(*positions[chosen].T, s=size * (4 if marked == "*" else 1), marker=marked,
                      color=COLORS[k], label=label, zorder=3)  # fmt: skip


def picture_rows(panel: Any, pictures: Any, chosen: Sequence[int]) -> None:
    """Draw two rows of small pictures: what is true above, what was reconstructed below."""
    import base64

    side = int(pictures["shape"][-1])
    gap = max(1, side // 10)
    canvas = np.full((2 * side + gap, len(chosen) * (side + gap), 4), 0.0)
    for row, name in enumerate(("true", "reconstructed")):
        for column, u in enumerate(chosen):
            stored = pictures[name][u]
            if stored is None:
                continue
            encoded = isinstance(stored, str)
            flat = np.frombuffer(base64.b64decode(stored), np.uint8) if encoded else np.array(stored)
            pixels = np.broadcast_to(flat.reshape(-1, side, side) / 255, (3, side, side))
            top, left = row * (side + gap), column * (side + gap)
            canvas[top : top + side, left : left + side, :3] = np.moveaxis(pixels, 0, 2)
            canvas[top : top + side, left : left + side, 3] = 1.0
    panel.imshow(canvas, interpolation="nearest", aspect="equal")
