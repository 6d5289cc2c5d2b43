"""Figures as inline SVG: transparent, in the page's own text color, the same bytes every time."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

# At least 3:1 against the light and the dark band of a page (a test computes it).
EXACT, PUBLISHED, LOCAL, GOOD, OTHER = "#d1495b", "#b8741a", "#7d8597", "#1d8a99", "#8d6cab"
CYCLE = (EXACT, GOOD, PUBLISHED, OTHER, LOCAL, "#5a8f3c", "#b56576")
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7d8597")  # Okabe and Ito
INK = "#010203"  # replaced by the color of the page's text
SCALE = ("#b7dfe3", "#ecd9a8", "#e8a35c", "#d1495b")  # of `SHARE`, from 0 to 1
# what h is a share of: a quarter of it is half of mu, and about half of epsilon
SHARE = "share of the squared loss (mu²)"
_INKED = ("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color", "axes.titlecolor")
SETTINGS: Any = dict.fromkeys(_INKED, INK) | {
    "svg.fonttype": "none",
    "svg.hashsalt": "sottovoce",
    "font.size": 10,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "axes.titlesize": 10.5,
}
_MARK = "figure-id-"


@cache
def loss_scale() -> LinearSegmentedColormap:
    """Return the color scale of a share of the squared loss."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("loss", SCALE)


def loss_color(share: float) -> str:
    """Return the color of a share of the squared loss."""
    from matplotlib.colors import to_hex

    return str(to_hex(loss_scale()(min(1.0, max(0.0, float(share))))))


@contextmanager
def axes_of(width: float, height: float) -> Iterator[tuple[Figure, Axes]]:
    """Give a figure with one panel and its axes, in the style of all figures."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure, figure.add_subplot()


def inline(figure: Figure, title: str) -> str:
    """Return a figure as an <svg> element that takes the page's color, font and width."""
    import matplotlib

    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        patch.set_alpha(0.0)
    buffer = io.StringIO()
    with matplotlib.rc_context(SETTINGS):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(
        r'<svg [^>]*?viewBox="([^"]+)"[^>]*>', r'<svg viewBox="\1" role="img">', text, count=1, flags=re.S
    )
    text = text.replace(INK, "currentColor")
    # several figures share a page, which gives each a prefix of its own (see `placed`)
    text = re.sub(r'id="([^"]+)"', rf'id="{_MARK}\1"', text)
    text = re.sub(r'(xlink:href|href)="#([^"]+)"', rf'\1="#{_MARK}\2"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{_MARK}\1)", text)
    return text.replace(">", f"><title>{escape(title)}</title>", 1).replace("xlink:href", "href")


def placed(svg: str, prefix: str) -> str:
    """Return a figure with ids of its own, for a page that holds several."""
    return svg.replace(f'id="{_MARK}', f'id="{prefix}').replace(f"#{_MARK}", f"#{prefix}")


def graph_picture(
    edges: Sequence[Sequence[int]],
    n: int,
    *,
    values: ArrayLike | None = None,
    observers: Sequence[int] = (),
    labels: Sequence[str] | None = None,
    title: str = "network",
) -> str:
    """Return the picture of a network, as `draw_network` draws it."""
    with axes_of(7.2, 4.6) as (figure, axes):
        draw_network(axes, edges, n, values=values, observers=observers, labels=labels)
    return inline(figure, title)


def draw_network(
    axes: Axes,
    edges: Sequence[Sequence[int]],
    n: int,
    *,
    values: ArrayLike | None = None,
    observers: Sequence[int] = (),
    labels: Sequence[str] | None = None,
) -> None:
    """Draw a network, observers ringed; ``values``, shares of local privacy lost, color the nodes."""
    position, size = layout(edges, n), 230 if n <= 60 else 60
    draw_links(axes, edges, position, labels if n <= 40 else None)
    colors = np.zeros(n) if values is None else np.asarray(values, dtype=float)
    outline: dict[str, Any] = {"edgecolors": INK, "linewidths": 0.8, "zorder": 2}
    x, y = position.T
    points = axes.scatter(x, y, c=colors, cmap=loss_scale(), vmin=0, vmax=1, s=size, **outline)
    x, y = position[list(observers)].T
    axes.scatter(x, y, s=size * 1.3, c="none", edgecolors=INK, linewidths=2.2, zorder=3)
    axes.scatter(x, y, s=size * 0.2, c=INK, zorder=4)
    if values is not None:
        bar = axes.figure.colorbar(points, ax=axes, shrink=0.7, pad=0.02, aspect=22)
        bar.outline.set_visible(False)
        bar.set_label(SHARE)


def draw_links(
    axes: Axes, edges: Iterable[Sequence[int]], positions: np.ndarray, labels: Sequence[str] | None = None
) -> None:
    """Draw the links of a network, and the names of its nodes below them."""
    from matplotlib.collections import LineCollection

    segments = [positions[[u, v]] for u, v in edges]
    axes.add_collection(LineCollection(segments, colors=LOCAL, linewidths=0.7, alpha=0.5, zorder=1))
    below: dict[str, Any] = {"xytext": (0, -13), "textcoords": "offset points", "ha": "center"}
    for v, label in enumerate(labels or ()):
        axes.annotate(str(label), tuple(positions[v]), **below, fontsize=7.5)
    axes.set_axis_off()
    axes.margins(0.1)


def layout(edges: Sequence[Sequence[int]], n: int) -> np.ndarray:
    """Return (n, 2) positions: a drawing of the hypercube's own, else springs."""
    d = n.bit_length() - 1
    pairs = {(min(e), max(e)) for e in map(tuple, edges)}
    hypercube = {(v, v | 1 << k) for v in range(n) for k in range(d) if not v >> k & 1}
    if n == 1 << d and 3 <= d <= 5 and pairs == hypercube:
        angles = np.pi * (np.arange(d) + 0.5) / d
        steps = np.stack([np.cos(angles) * 1.5, np.sin(angles)], axis=1)
        return np.array([sum((2 * (v >> k & 1) - 1) * steps[k] for k in range(d)) for v in range(n)])
    return springs(edges, n)


def springs(edges: Sequence[Sequence[int]], n: int) -> np.ndarray:
    """Return (n, 2) positions by springs, the same every time."""
    import networkx

    graph = networkx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(map(tuple, edges))
    if n <= 100:
        positions = networkx.kamada_kawai_layout(graph)
    else:
        positions = networkx.spring_layout(graph, seed=0, iterations=60)
    return np.array([positions[v] for v in range(n)])


def history_series(
    history: Iterable[object],
) -> tuple[str, dict[str, tuple[list[float], list[float]]]]:
    """Return the name of the axis of a history and, per number in it, where and what it was."""
    rows = [row for row in history if isinstance(row, Mapping)]
    axis = next((key for key in ("step", "round", "rounds", "epoch") if rows and key in rows[0]), "entry")
    series: dict[str, tuple[list[float], list[float]]] = {}
    for k, row in enumerate(rows):
        for name, value in row.items():
            if name != axis and isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
                x, y = series.setdefault(name, ([], []))
                x.append(float(row.get(axis, k)))
                y.append(float(value))
    return axis, {name: pair for name, pair in series.items() if len(pair[1]) > 1}


def curves(
    x: Sequence[float],
    series: Mapping[str, Sequence[float | None]],
    *,
    xlabel: str,
    ylabel: str,
    title: str,
    colors: Mapping[str, str] | None = None,
    levels: Mapping[str, float] | None = None,
) -> str:
    """Return lines over a common axis; ``levels`` are horizontal lines with names."""
    with axes_of(7.2, 3.5) as (figure, axes):
        for k, (name, values) in enumerate(series.items()):
            y = np.array([np.nan if v is None else v for v in values], dtype=float)
            color = (colors or {}).get(name, CYCLE[k % len(CYCLE)])
            # wide below narrow: where two lines agree, both are seen
            wide, dash = 3.4 - 1.2 * min(k, 2), ("-", "--", ":", "-.")[k % 4]
            marker = "os^D"[k % 4] if len(x) <= 30 else None
            axes.plot(x, y, color=color, lw=wide, ls=dash, marker=marker, ms=4.5, label=name)
        for name, value in (levels or {}).items():
            axes.axhline(value, color=LOCAL, lw=1.4, ls=(0, (5, 3)), label=name)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.grid(axis="y", color=LOCAL, alpha=0.25, lw=0.7)
        axes.legend(frameon=False, fontsize=9, labelcolor=INK)
        if all(float(v).is_integer() for v in x) and len(x) <= 16:
            axes.set_xticks(list(x))
    return inline(figure, title)
