"""The explorer's page, and the server that shows it on this machine.

Bokeh draws, its scripts are inside the page, and nothing is fetched from outside. Why the server may be
trusted on a machine with a browser: it listens on 127.0.0.1 and no other address; a request without the token
of this start gets 403, and so does one whose Host is not this address (a name that a page elsewhere has
pointed here) or whose Origin is another page; it reads no files and writes none.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from sottovoce import __version__
from sottovoce.errors import MissingDependency, SottovoceError
from sottovoce.report import figures
from sottovoce.report.explorer.model import PAIRS, ExplorerModel, ExplorerSettings, answered, offline
from sottovoce.report.rendering import environment

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource
    from bokeh.plotting import figure


def live_page(model: ExplorerModel, nonce: str) -> str:
    """Return the page that asks a server of one's own machine."""
    return _page({"live": True, "scene": model.scene()}, nonce=nonce)


def offline_page(model: ExplorerModel, progress: Callable[[int], None] | None = None) -> str:
    """Return one file that holds everything it shows: all observers and rounds, pairs up to 32 nodes."""
    content = offline(model, progress)
    return _page({"live": False, "pairs": model.network.n <= PAIRS, **content}, nonce="")


def _page(data: Mapping[str, Any], *, nonce: str) -> str:
    import markupsafe

    if find_spec("bokeh") is None:
        raise MissingDependency(
            "The explorer draws with Bokeh, which is not installed; pip install 'sottovoce[explore]'."
        )
    from bokeh.embed import json_item

    plots = {"graph": json_item(_network_plot()), "course_plot": json_item(_course_plot())}
    templates, scene = environment(), data["scene"]
    # inside <script> only "</" and "<!--" could end it, and JSON may spell them otherwise
    written = json.dumps({**data, **plots, "palette": _palette(64)}, allow_nan=False).replace("<", "\\u003c")
    graph = scene["graph"] if len(scene["graph"]) <= 40 else "a drawn graph"
    return templates.get_template("explorer.html").render(
        live=data["live"],
        pairs=data.get("pairs"),
        title=scene["title"] or f"What each participant of {graph} learns",
        scale=_palette(8),
        version=__version__,
        nonce=markupsafe.Markup(f' nonce="{nonce}"') if nonce else "",
        bokeh=markupsafe.Markup(_bokeh()),
        data=markupsafe.Markup(written),
        script=markupsafe.Markup(templates.get_template("explorer.js").render()),
    )


def _bokeh() -> str:
    """Return Bokeh's own script, which it ships, as text that no closing tag can end early."""
    from bokeh.resources import INLINE

    return "\n".join(INLINE.clone(components=["bokeh"]).js_raw).replace("</script", "<\\/script")


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

    nodes = _source("nodes", "x y id name share number words marker size thick label")
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
        ("number-glyph", "number", "bottom", -12, "11px"),
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
    plot = _figure("course-plot", -0.02, 1.08, x_axis_label="rounds", y_axis_label="share of mu²")
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


# ---- the server ----------------------------------------------------------------------------------------

_LARGEST = 1_000_000  # bytes of one query
_PATIENCE = 30.0  # seconds a connection may stay silent
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class ExplorerServer:
    """A page of one model on 127.0.0.1, until it is closed.

    Parameters
    ----------
    model : what the page shows first.
    port : 0 takes any free one.

    Guarantees
    ----------
    Nobody without the address that `address` returns gets anything but 403; nobody on another machine
    reaches it at all.
    """

    def __init__(self, model: ExplorerModel, port: int = 0) -> None:
        self.model = model
        self.token = secrets.token_urlsafe(32)
        self._computing = threading.Lock()  # one query at a time: two cores are soon busy
        self._model = lru_cache(maxsize=32)(lambda setting: ExplorerModel(setting, model.opened))
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """The address to open, with the token in it."""
        return f"http://127.0.0.1:{self.port}/?token={self.token}"

    def __enter__(self) -> ExplorerServer:
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def serve(self) -> None:
        """Answer until somebody ends it, with Ctrl-C for example."""
        self._server.serve_forever()

    def close(self) -> None:
        """Stop answering and free the port."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._thread = None
        self._server.server_close()

    def answer(self, what: str, query: object) -> dict[str, Any]:
        """Return one answer; what does not fit is a sentence under ``refused``."""
        try:
            if not isinstance(query, dict):
                return {"refused": "A question is a JSON object."}
            setting = ExplorerSettings.read(query.get("setting"))
            with self._computing:
                model = self.model if setting == self.model.setting else self._model(setting)
                return answered(model, what, query)
        except SottovoceError as problem:
            return {"refused": str(problem)}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _PATIENCE
            server_version = "sottovoce"
            sys_version = ""

            def log_message(self, format: str, *args: object) -> None:
                """Stay silent: the address holds the token."""

            def do_GET(self) -> None:
                place = urlsplit(self.path)
                token = parse_qs(place.query).get("token", [""])[0]
                if not self._welcome(token):
                    return
                if place.path != "/":
                    self._send(404, "text/plain", "There is only one page here.")
                    return
                nonce = secrets.token_urlsafe(16)
                with outer._computing:
                    page = live_page(outer.model, nonce)
                policy = (
                    f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; "
                    "img-src data: blob:; font-src data:; connect-src 'self'; frame-ancestors 'none'; "
                    "base-uri 'none'; form-action 'none'"
                )
                self._send(200, "text/html", page, {"Content-Security-Policy": policy})

            def do_POST(self) -> None:
                if not self._welcome(self.headers.get("X-Sottovoce-Token", "")):
                    return
                length = self.headers.get("Content-Length", "")
                if not length.isdecimal() or int(length) > _LARGEST:
                    self._send(413, "application/json", json.dumps({"refused": "The question is too long."}))
                    return
                try:
                    query = json.loads(self.rfile.read(int(length)))
                except (ValueError, RecursionError):
                    query = None
                answer = outer.answer(urlsplit(self.path).path.strip("/"), query)
                self._send(200, "application/json", json.dumps(answer, allow_nan=False))

            def _welcome(self, token: str) -> bool:
                here = {f"127.0.0.1:{outer.port}", f"localhost:{outer.port}"}
                origin = self.headers.get("Origin")
                known = hmac.compare_digest(token.encode(), outer.token.encode())
                local = self.headers.get("Host") in here
                if known and local and (origin is None or origin.removeprefix("http://") in here):
                    return True
                self._send(403, "text/plain", "The address needs the token that was printed at the start.")
                return False

            def _send(self, code: int, kind: str, text: str, more: dict[str, str] | None = None) -> None:
                raw = text.encode()
                self.send_response(code)
                for name, value in {**HEADERS, **(more or {})}.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

        return Handler
