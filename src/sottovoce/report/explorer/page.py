"""The explorer's page: Bokeh draws, its scripts are inside the page, and nothing is fetched from outside."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce import __version__
from sottovoce.errors import MissingDependency
from sottovoce.report import figures
from sottovoce.report.explorer.model import PAIRS, ExplorerModel, offline

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource
    from bokeh.plotting import figure

GRAPHS = (
    "florentine karate path:8 ring:16 grid:4:4 torus:4:4 complete:8 star:9 hypercube:4 exponential:16 "
    "regular:24:4:seed=1 er:40:1.5:seed=3 geometric:40:0.3:seed=1 small_world:40:4:0.1:seed=1"
).split()
PROTOCOLS = ("gossip", "chebyshev", "fresh-noise", "randomized", "tree", "exchange", "masked")


def live_page(model: ExplorerModel, nonce: str) -> str:
    """Return the page that asks a server of one's own machine."""
    return _page({"live": True, "scene": model.scene()}, nonce=nonce)


def offline_page(model: ExplorerModel, progress: Callable[[int], None] | None = None) -> str:
    """Return one file that holds everything it shows: all observers and rounds, pairs up to 32 nodes."""
    content = offline(model, progress)
    return _page({"live": False, "pairs": model.network.n <= PAIRS, **content}, nonce="")


def _page(data: Mapping[str, Any], *, nonce: str) -> str:
    import jinja2
    import markupsafe

    _require_bokeh()
    from bokeh.embed import json_item

    plots = {"graph": json_item(_network_plot()), "course_plot": json_item(_course_plot())}
    filled = {**data, **plots, "palette": _palette(64)}
    folder = Path(__file__).parent / "templates"
    # inside <script> only "</" and "<!--" could end it, and JSON may spell them otherwise
    written = json.dumps(filled, allow_nan=False).replace("<", "\\u003c")
    script = (folder / "explorer.js").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    scene = data["scene"]
    return environment.get_template("explorer.html").render(
        live=data["live"],
        pairs=data.get("pairs"),
        title=scene["title"] or f"What each participant of {_short(scene['graph'])} learns",
        graphs=GRAPHS,
        protocols=PROTOCOLS,
        scale=_palette(8),
        version=__version__,
        nonce=markupsafe.Markup(f' nonce="{nonce}"') if nonce else "",
        bokeh=markupsafe.Markup(_bokeh()),
        data=markupsafe.Markup(written),
        script=markupsafe.Markup(script),
    )


def _short(graph: str) -> str:
    return graph if len(graph) <= 40 else "a drawn graph"


def _require_bokeh() -> None:
    if find_spec("bokeh") is None:
        raise MissingDependency(
            "The explorer draws with Bokeh, which is not installed; pip install 'sottovoce[explore]'."
        )


def _bokeh() -> str:
    """Return Bokeh's own script, which it ships, as text that no closing tag can end early."""
    from bokeh.resources import INLINE

    resources = INLINE.clone(components=["bokeh"])
    return "\n".join(resources.js_raw).replace("</script", "<\\/script")


def _palette(count: int) -> list[str]:
    """Return the colors of the reports' scale, from nothing lost to all of it."""
    return [figures.loss_color(k / (count - 1)) for k in range(count)]


def _source(name: str, columns: str) -> ColumnDataSource:
    """Return an empty table, which the page fills."""
    from bokeh.models import ColumnDataSource

    return ColumnDataSource({key: [] for key in columns.split()}, name=name)


def _figure(name: str, low: float, high: float, **axes: str) -> figure:
    from bokeh.models import Range1d
    from bokeh.plotting import figure

    options: dict[str, Any] = {"x_range": Range1d(start=0, end=1), "y_range": Range1d(start=low, end=high)}
    options |= {"toolbar_location": None, "tools": "", "min_border": 4, "outline_line_color": None}
    return figure(name=name, sizing_mode="stretch_both", **options | axes)


def _network_plot() -> figure:
    """Return the drawing of the network, empty."""
    from bokeh.models import HoverTool, LinearColorMapper, PointDrawTool, Scatter, Segment, TapTool, Text

    nodes = _source("nodes", "x y id name share told words marker size thick label")
    plot = _figure("plot", 0, 1)
    plot.axis.visible = False
    plot.grid.visible = False
    ends: dict[str, Any] = {key: key for key in ("x0", "y0", "x1", "y1")}
    dashes = Segment(**ends, line_width=1, line_dash="dashed", line_alpha=0.45, name="mate-glyph")
    plot.add_glyph(_source("mates", "x0 y0 x1 y1"), dashes)
    plot.add_glyph(_source("edges", "x0 y0 x1 y1"), Segment(**ends, line_width=1.6, name="edge-glyph"))
    mapper = LinearColorMapper(palette=_palette(256), low=0.0, high=1.0)
    fill: Any = {"field": "share", "transform": mapper}
    shape: dict[str, Any] = {"size": "size", "marker": "marker", "line_width": "thick"}
    circles = Scatter(x="x", y="y", **shape, fill_color=fill, name="node-glyph")
    still: dict[str, Any] = {"selection_glyph": None, "nonselection_glyph": None}
    points: Any = [plot.add_glyph(nodes, circles, **still)]  # its type says glyphs with x and y
    for name, text, baseline, offset, size in (
        ("name-glyph", "label", "top", 13, "12px"),
        ("number-glyph", "told", "bottom", -12, "11px"),
    ):
        place: dict[str, Any] = {"text_align": "center", "text_baseline": baseline, "y_offset": offset}
        plot.add_glyph(nodes, Text(x="x", y="y", text=text, text_font_size=size, name=name, **place), **still)
    tap = TapTool(renderers=points, name="tap", mode="append")
    pen = PointDrawTool(renderers=points, name="pen", empty_value=0)
    plot.add_tools(tap, HoverTool(renderers=points, tooltips=[("", "@name"), ("", "@words")]), pen)
    plot.toolbar.active_tap = tap
    plot.toolbar.active_drag = None
    return plot


def _course_plot() -> figure:
    """Return the drawing of the course over rounds, empty."""
    source = _source("course", "rounds worst mean published")
    plot = _figure("course-plot", -0.02, 1.08, x_axis_label="rounds", y_axis_label="share lost")
    for key, legend, color, dash in (
        ("worst", "exact, worst", figures.EXACT, "solid"),
        ("mean", "exact, mean", figures.GOOD, "dashed"),
        ("published", "published, mean", figures.PUBLISHED, "dotted"),
    ):
        style: dict[str, Any] = {"color": color, "line_width": 3, "line_dash": dash, "legend_label": legend}
        plot.line("rounds", key, source=source, **style)
    plot.xaxis[0].name, plot.yaxis[0].name = "x-axis", "y-axis"
    plot.ygrid[0].name, plot.xgrid.visible = "grid", False
    legends = plot.legend[0]
    legends.name, legends.orientation = "legend", "horizontal"
    plot.add_layout(legends, "above")  # beside the lines, never over them
    plot.legend.border_line_color = None
    legends.update(label_text_font_size="11px", padding=2, spacing=8, margin=0, glyph_width=16)
    return plot
