"""The explorer's page: Bokeh draws, its scripts are inside the page, and nothing is fetched from outside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sottovoce import __version__
from sottovoce.errors import MissingDependency
from sottovoce.report.explorer.model import GRAPHS, PAIRS, ExplorerModel, offline
from sottovoce.report.figures import SCALE

__all__ = ["live_page", "offline_page"]

PROTOCOLS = ("gossip", "chebyshev", "refreshed", "randomized", "tree", "exchange", "masked")


def live_page(model: ExplorerModel, nonce: str) -> str:
    """Return the page that asks a server of one's own machine."""
    return _page({"live": True, "scene": model.scene()}, nonce=nonce)


def offline_page(model: ExplorerModel, progress: Any = None) -> str:
    """Return one file that holds everything it shows: all observers and rounds, pairs up to 32 nodes."""
    content = offline(model, progress)
    return _page({"live": False, "pairs": model.network.n <= PAIRS, **content}, nonce="")


def _page(data: Mapping[str, Any], *, nonce: str) -> str:
    import jinja2
    import markupsafe

    graph, course = _plots()
    palette = _palette(64)
    filled = {**data, "graph": graph, "course_plot": course, "palette": palette}
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


def _bokeh() -> str:
    """Return Bokeh's own script, which it ships, as text that no closing tag can end early."""
    try:
        from bokeh.resources import INLINE
    except ImportError:
        raise MissingDependency(
            "The explorer draws with Bokeh, which is not installed; pip install 'sottovoce[explore]'."
        ) from None
    resources = INLINE.clone(components=["bokeh"])
    return "\n".join(resources.js_raw).replace("</script", "<\\/script")


def _palette(count: int) -> list[str]:
    """Return the colors of the reports' scale, from nothing lost to all of it."""
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    scale = LinearSegmentedColormap.from_list("loss", SCALE)
    return [to_hex(scale(k / (count - 1))) for k in range(count)]


def _plots() -> tuple[Any, Any]:
    """Return the two drawings, empty, as Bokeh's own JSON; the page fills their sources."""
    try:
        from bokeh.embed import json_item
        from bokeh.models import (
            ColumnDataSource,
            HoverTool,
            LinearColorMapper,
            PointDrawTool,
            Range1d,
            Scatter,
            Segment,
            TapTool,
            Text,
        )
        from bokeh.plotting import figure
    except ImportError:
        raise MissingDependency(
            "The explorer draws with Bokeh, which is not installed; pip install 'sottovoce[explore]'."
        ) from None

    columns = ("x", "y", "id", "name", "share", "told", "words", "marker", "size", "thick", "label")
    nodes = ColumnDataSource({key: [] for key in columns}, name="nodes")
    edges = ColumnDataSource({key: [] for key in ("x0", "y0", "x1", "y1")}, name="edges")
    mates = ColumnDataSource({key: [] for key in ("x0", "y0", "x1", "y1")}, name="mates")
    plot = figure(sizing_mode="stretch_both", toolbar_location=None, tools="", name="plot", min_border=4,
                  x_range=Range1d(start=0, end=1), y_range=Range1d(start=0, end=1),
                  outline_line_color=None)  # fmt: skip
    plot.axis.visible = False
    plot.grid.visible = False
    ends: dict[str, Any] = {"x0": "x0", "y0": "y0", "x1": "x1", "y1": "y1"}
    dashes = Segment(**ends, line_width=1, line_dash="dashed", line_alpha=0.45, name="mate-glyph")
    plot.add_glyph(mates, dashes)
    plot.add_glyph(edges, Segment(**ends, line_width=1.6, name="edge-glyph"))
    mapper = LinearColorMapper(palette=_palette(256), low=0.0, high=1.0)
    circles = Scatter(
        x="x", y="y", size="size", marker="marker", line_width="thick",
        fill_color={"field": "share", "transform": mapper}, name="node-glyph",
    )  # fmt: skip
    drawn = plot.add_glyph(nodes, circles, selection_glyph=None, nonselection_glyph=None)
    under = Text(x="x", y="y", text="label", text_align="center", text_baseline="top", y_offset=13,
                 text_font_size="12px", name="name-glyph")  # fmt: skip
    above = Text(x="x", y="y", text="told", text_align="center", text_baseline="bottom", y_offset=-12,
                 text_font_size="11px", name="number-glyph")  # fmt: skip
    for text in (under, above):
        plot.add_glyph(nodes, text, selection_glyph=None, nonselection_glyph=None)
    tools: Any = [drawn]  # its type says glyphs with x and y, which a scatter has
    tap = TapTool(renderers=tools, name="tap", mode="append")
    pen = PointDrawTool(renderers=tools, name="pen", empty_value=0)
    hover = HoverTool(renderers=tools, tooltips=[("", "@name"), ("", "@words")])
    plot.add_tools(tap, hover, pen)
    plot.toolbar.active_tap = tap
    plot.toolbar.active_drag = None

    over = ColumnDataSource({key: [] for key in ("rounds", "worst", "mean", "published")}, name="course")
    second = figure(
        sizing_mode="stretch_both", toolbar_location=None, tools="", name="course-plot", min_border=4,
        x_axis_label="rounds", y_axis_label="share lost",
        x_range=Range1d(start=0, end=1), y_range=Range1d(start=-0.02, end=1.08), outline_line_color=None,
    )  # fmt: skip
    from sottovoce.report import figures

    for key, legend, color, dash in (
        ("worst", "exact, worst", figures.EXACT, "solid"),
        ("mean", "exact, mean", figures.GOOD, "dashed"),
        ("published", "published, mean", figures.PUBLISHED, "dotted"),
    ):
        second.line(
            "rounds", key, source=over, color=color, line_width=3, line_dash=dash, legend_label=legend
        )
    second.xaxis[0].name, second.yaxis[0].name = "x-axis", "y-axis"
    second.ygrid[0].name, second.xgrid.visible = "grid", False
    second.legend[0].name = "legend"
    second.legend[0].orientation = "horizontal"
    second.add_layout(second.legend[0], "above")  # beside the lines, never over them
    second.legend.border_line_color = None
    second.legend[0].update(label_text_font_size="11px", padding=2, spacing=8, margin=0, glyph_width=16)
    return json_item(plot), json_item(second)
