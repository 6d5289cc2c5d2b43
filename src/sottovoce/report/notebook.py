"""What a notebook shows of a network, a protocol, a view, a guarantee, a plan and a result.

Every number comes from the object itself: a guarantee gives its epsilon, a plan its privacy cost, a view its
leakage. All text is escaped. `sottovoce._hooks` binds these as ``_repr_html_``, ``plot`` and
``report``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce._format import number
from sottovoce._io import atomic_write
from sottovoce.accounting import wording
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.advice.usefulness import usefulness
from sottovoce.algorithms.plan import Plan
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network
from sottovoce.leakage.view import GaussianView
from sottovoce.protocols import Protocol
from sottovoce.report import figures
from sottovoce.report.elements import guarantee_row
from sottovoce.runners import Result

__all__ = ["html", "plot", "report"]

DELTA = 1e-5  # where nobody names one; every number says at which delta it is
DRAWN = 200  # nodes of a network that are drawn in a cell
MATRIX = 640  # nodes times rounds up to which a protocol is drawn in a cell
_GOOD, _BAD, _GREY = "#1d8a5a", "#c0392b", "#7d8597"


# ---- HTML ------------------------------------------------------------------------------------------------


@singledispatch
def html(thing: Any) -> str:
    """Return what a notebook shows of a thing.

    Examples
    --------
    >>> import sottovoce as sv
    >>> page = html(sv.graphs.ring(4))
    >>> "ring:4" in page, "<svg" in page, "<script" in page
    (True, True, False)
    """
    raise InvalidInput(
        f"a notebook shows networks, protocols, plans and the like, got {type(thing).__name__}."
    )


@html.register
def _(thing: Network) -> str:
    facts = {
        "nodes": thing.n, "edges": len(thing.edges), "neighbors": _span(thing.degrees),
        "spectral gap": thing.spectral_gap,
    }  # fmt: skip
    picture = _drawn(thing, thing.name) if thing.n <= DRAWN else ""
    return _box(f"Network {thing.name}", _facts(facts), picture)


@html.register
def _(thing: Protocol) -> str:
    facts = {"nodes": thing.n, "rounds": thing.rounds, "rows sent": thing.messages}
    picture = _drawn(thing, thing.name) if thing.n * thing.rounds <= MATRIX else ""
    return _box(f"Protocol {thing.name}", _facts(facts), picture)


@html.register
def _(thing: GaussianView) -> str:
    h = thing.leakage()
    seen = [u for u in range(thing.n) if thing.covers(u)]
    facts = {
        "who looks": ", ".join(map(str, thing.observers)) or "nobody inside",
        "independent combinations seen": thing.rank,
        "can compute the noisy value of": ", ".join(map(str, seen[:40])) + (" ..." if len(seen) > 40 else "")
        or "nobody",
        "largest share of local privacy lost": float(np.delete(h, thing.observers).max(initial=0.0)),
    }
    if thing.rounded_up:
        facts["note"] = "rounded up where floating point could not decide"
    picture = _drawn(thing, "what is learned of each node") if thing.n <= DRAWN else ""
    return _box("What these observers see", _facts(facts), picture)


@html.register
def _(thing: Guarantee) -> str:
    verdict, meaning = wording.verdict(thing.label)
    uncharged = [assumption for assumption in thing.assumptions if assumption.startswith("not charged")]
    others = [assumption for assumption in thing.assumptions if assumption not in uncharged]
    color = _GOOD if thing.valid and not uncharged else _BAD
    facts = {
        "against": str(thing.adversary),
        "epsilon": f"{_loss(thing.epsilon(DELTA))} at delta {DELTA:g}",
        "best guess": wording.guess(thing.best_guess),
        "cannot be told apart": wording.adjacency(thing.adjacency, thing.adversary.user),
        "label": f"{thing.label}: {meaning}",
    }
    notes = "".join(f"<li>{_marked(assumption, _BAD)}</li>" for assumption in uncharged)
    notes += "".join(f"<li>{escape(assumption)}</li>" for assumption in others)
    details = f"<details><summary>Assumes</summary><ul>{notes}</ul></details>" if notes else ""
    return _box(verdict, _facts(facts) + details, color=color)


@html.register
def _(thing: Plan) -> str:
    rows = [
        (
            str(g.adversary),
            _loss(g.epsilon(DELTA)),
            wording.guess(g.best_guess),
            g.label,
            "yes" if g.valid else "no",
        )
        for g in thing.guarantees()
    ]
    costs = _table(("against", f"epsilon at {DELTA:g}", "best guess", "label", "guarantee"), rows)
    facts: dict[str, Any] = {
        "nodes": thing.n,
        "steps": thing.steps,
        "hides": wording.adjacency(thing.adjacency),
    }
    facts |= {key.replace("_", " "): value for key, value in thing.cost().items()}
    worth = usefulness(thing)
    verdict = _marked(str(worth), {True: _GOOD, False: _BAD, None: _GREY}[worth.useful])
    return _box(f"Plan {thing.name}", costs + verdict + _facts(facts))


@html.register
def _(thing: Result) -> str:
    parts = [_facts(_scalars(thing.metrics))] if _scalars(thing.metrics) else []
    stated = [guarantee_row(dict(g), thing.config.get("labels")) for g in thing.guarantees]
    if stated:
        rows = [
            (g["against"], number(g["epsilon"]), number(g["delta"]), g["label"], g["verdict"]) for g in stated
        ]
        parts.append(_table(("against", "epsilon", "delta", "label", "standing"), rows))
    noise = str(thing.provenance.get("noise", ""))
    if "not protective" in noise:
        parts.append(_marked(noise, _BAD))
    picture = _drawn(thing, f"{thing.name}, along the run") if len(_curves(thing.history)[1]) else ""
    return _box(f"Result of {thing.name}", "".join(parts), picture)


# ---- pictures --------------------------------------------------------------------------------------------


@singledispatch
def plot(thing: Any, ax: Any = None, **options: Any) -> Any:
    """Draw a thing into matplotlib axes and return them; ``thing.plot(...)`` is the same.

    Parameters
    ----------
    thing : a network (options ``values`` in [0, 1] that color the nodes, ``observers`` that are ringed), a
        protocol (what each node learns of each other), a view (of each node), a guarantee (epsilon against
        delta), a plan (epsilon against each adversary; option ``delta``), a result (its history; option
        ``what``, one name or several).
    ax : matplotlib axes; None makes new ones.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> import sottovoce as sv
    >>> view = sv.protocols.Gossip(sv.graphs.path(3), rounds=2).view(0)
    >>> axes = plot(view, Figure().add_subplot())
    >>> [round(float(bar.get_height()), 3) for bar in axes.patches]
    [0.0, 1.0, 1.0]
    """
    raise InvalidInput(f"networks, protocols, plans and the like have a picture, got {type(thing).__name__}.")


@plot.register
def _(thing: Network, ax: Any = None, *, values: Any = None, observers: Iterable[int] | int = ()) -> Any:
    ax = _axes(ax)
    colored = values is not None
    shown = np.asarray(values, dtype=float) if colored else np.full(thing.n, 0.35)
    if shown.shape != (thing.n,):
        raise InvalidInput(f"values colors one node each ({thing.n}), got shape {shown.shape}.")
    positions = figures.springs(thing.edges.tolist(), thing.n)
    names = [str(thing.label(v)) for v in range(thing.n)] if thing.n <= 40 else None
    points = figures.graph(ax, thing.edges, positions, shown, names, vmin=0.0, vmax=1.0)
    points.set_edgecolor(figures.INK)  # light nodes need an outline on a light page
    ringed = [observers] if isinstance(observers, int) else list(observers)
    if ringed:
        ax.scatter(*positions[ringed].T, s=230, c="none", edgecolors=figures.INK, linewidths=2.0, zorder=3)
    if colored:
        bar = ax.figure.colorbar(points, ax=ax, shrink=0.7, pad=0.02)
        bar.set_label("share of local privacy lost")
    return ax


@plot.register
def _(thing: Protocol, ax: Any = None) -> Any:
    ax = _axes(ax)
    h = np.array([thing.view(v).leakage() for v in range(thing.n)])
    shown = np.where(np.eye(thing.n, dtype=bool), np.nan, h)
    image = ax.imshow(shown, vmin=0.0, vmax=max(1.0, float(np.nanmax(shown))), cmap="cividis")
    ax.set(xlabel="about node", ylabel="node that looks", title="share of local privacy lost")
    ax.figure.colorbar(image, ax=ax, shrink=0.8)
    return ax


@plot.register
def _(thing: GaussianView, ax: Any = None) -> Any:
    ax = _axes(ax)
    colors = [figures.COLORS[1] if thing.covers(u) else figures.COLORS[0] for u in range(thing.n)]
    ax.bar(range(thing.n), thing.leakage(), color=colors)
    who = ", ".join(map(str, thing.observers)) or "an outsider"
    ax.set(xlabel="node", ylabel="share of local privacy lost", title=f"seen by {who}; orange: computed")
    return ax


@plot.register
def _(thing: Guarantee, ax: Any = None) -> Any:
    ax = _axes(ax)
    deltas = np.logspace(-8, -2, 13)
    losses = [thing.epsilon(float(delta)) for delta in deltas]
    points = [(d, e) for d, e in zip(deltas, losses, strict=True) if math.isfinite(e)]
    if points:
        ax.plot(*zip(*points, strict=True), marker="o", color=figures.COLORS[0])
    ax.set_xscale("log")
    ax.set(xlabel="delta", ylabel="epsilon", title=f"{thing.label}, against {thing.adversary}")
    return ax


@plot.register
def _(thing: Plan, ax: Any = None, *, delta: float = DELTA) -> Any:
    ax = _axes(ax)
    stated = [g for g in thing.guarantees() if math.isfinite(g.epsilon(delta))]
    losses = [g.epsilon(delta) for g in stated]
    bars = ax.barh(
        [f"{g.adversary} [{g.label}]" for g in stated], losses,
        color=[figures.COLORS[0] if g.valid else figures.COLORS[6] for g in stated],
    )  # fmt: skip
    ax.bar_label(bars, [_loss(loss) for loss in losses], padding=3)
    ax.invert_yaxis()
    ax.set(xlabel=f"epsilon at delta {delta:g}", title=thing.name)
    ax.margins(x=0.15)
    return ax


@plot.register
def _(thing: Result, ax: Any = None, *, what: str | Sequence[str] | None = None) -> Any:
    axis, series = _curves(thing.history)
    chosen = [what] if isinstance(what, str) else list(series)[:1] if what is None else list(what)
    if not series:
        raise InvalidInput(
            f"this result of {thing.name} has no history to draw; run with evaluate=... to get one."
        )
    for name in chosen:
        if name not in series:
            raise InvalidInput(f"the history has {', '.join(series)}, got what={name!r}.")
    ax = _axes(ax)
    for k, name in enumerate(chosen):
        ax.plot(*series[name], marker="o", ms=4, color=figures.COLORS[k % 7], label=name)
    ax.set(xlabel=axis, ylabel=chosen[0] if len(chosen) == 1 else "", title=thing.name)
    if len(chosen) > 1:
        ax.legend()
    return ax


def report(result: Result, path: str | Path, title: str | None = None) -> Path:
    """Write the page of a result, one file that needs nothing else; ``result.report(path)`` is the same.

    Examples
    --------
    >>> import tempfile
    >>> page = report(Result("demo", metrics={"error": 0.5}), Path(tempfile.mkdtemp()) / "demo.html")
    >>> page.read_text()[:15]
    '<!doctype html>'
    """
    from sottovoce.report.page import build

    target = Path(path)
    if target.suffix not in (".html", ".htm"):
        raise InvalidInput(f"a report is a page, as report.html, got {target.name!r}.")
    return atomic_write(target, build([result.to_dict()], title or f"Result of {result.name}"))


# ---- pieces ----------------------------------------------------------------------------------------------


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(layout="constrained")[1]


def _drawn(thing: Any, title: str) -> str:
    """Return a picture as inline SVG, with ids of its own so that several cells can stand on one page."""
    with figures.axes_of(5.2, 3.2) as (figure, axes):
        plot(thing, axes)
        svg = figures.inline(figure, title)
    mark = hashlib.sha256(svg.encode()).hexdigest()[:10]
    return f'<div style="max-width:36em">{figures.placed(svg, f"sv-{mark}-")}</div>'


def _marked(text: str, color: str) -> str:
    """Return a sentence beside a bar of color: colored text is hard to read on some pages."""
    return f'<p style="border-left:4px solid {color};padding-left:.5em;margin:.4em 0">{escape(text)}</p>'


def _box(title: str, *parts: str, color: str = _GREY) -> str:
    head = f'<div style="font-weight:600;margin-bottom:.3em">{escape(title)}</div>'
    return f'<div style="border-left:4px solid {color};padding:.3em .9em">{head}{"".join(parts)}</div>'


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f'<th style="text-align:left">{escape(str(column))}</th>' for column in columns)
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align:left">{escape(str(cell))}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _facts(facts: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row" style="text-align:left">{escape(str(key))}</th>'
        f'<td style="text-align:left">{escape(number(value))}</td></tr>'
        for key, value in facts.items()
    )
    return f"<table><tbody>{rows}</tbody></table>"


def _loss(epsilon: float) -> str:
    return "infinite" if math.isinf(epsilon) else f"{epsilon:.3g}"


def _span(degrees: np.ndarray) -> str:
    least, most = int(degrees.min()), int(degrees.max())
    return str(least) if least == most else f"{least} to {most}"


def _scalars(values: Mapping[str, Any]) -> dict[str, Any]:
    kinds = (str, int, float, bool, np.integer, np.floating)
    return {key.replace("_", " "): value for key, value in values.items() if isinstance(value, kinds)}


def _curves(history: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, tuple[list[float], list[float]]]]:
    """Return the name of the axis and, per number of the history, where and what it was."""
    rows = [row for row in history if isinstance(row, Mapping)]
    axis = next((key for key in ("step", "round", "rounds", "epoch") if rows and key in rows[0]), "record")
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for k, row in enumerate(rows):
        for name, value in row.items():
            if name != axis and isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
                x, y = curves.setdefault(name, ([], []))
                x.append(float(row.get(axis, k)))
                y.append(float(value))
    return axis, {name: pair for name, pair in curves.items() if len(pair[1]) > 1}
