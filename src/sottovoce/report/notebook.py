"""What a notebook shows of a network, a protocol, a view, a guarantee, a plan, a result and a fitted model.

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
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from sottovoce._format import FIELDS, number
from sottovoce._io import atomic_write, to_jsonable
from sottovoce.accounting import wording
from sottovoce.accounting.exact import exact_loss
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.advice.usefulness import usefulness
from sottovoce.algorithms.plan import Plan
from sottovoce.errors import InvalidInput
from sottovoce.graphs import Network
from sottovoce.leakage.view import GaussianView
from sottovoce.models.fitted import Fitted
from sottovoce.protocols import Protocol
from sottovoce.report import figures
from sottovoce.report.page import build
from sottovoce.report.rendering import environment
from sottovoce.report.sections import guarantee_row, scalars
from sottovoce.report.summary_page import is_simulated
from sottovoce.runners import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DELTA = 1e-5  # where nobody names one; every number says at which delta it is
DRAWN = 200  # nodes of a network that are drawn in a cell
MATRIX = 640  # nodes times rounds up to which a protocol is drawn in a cell
_GOOD, _BAD, _GREY = "#1d8a5a", "#c0392b", "#7d8597"


# ---- HTML ------------------------------------------------------------------------------------------------


@singledispatch
def html(shown: object) -> str:
    """Return what a notebook shows of an object."""
    raise InvalidInput(
        f"a notebook shows networks, protocols, plans and the like, got {type(shown).__name__}."
    )


@html.register
def _(network: Network) -> str:
    least, most = int(network.degrees.min()), int(network.degrees.max())
    facts = {
        "nodes": network.n,
        "edges": len(network.edges),
        "neighbors": str(least) if least == most else f"{least} to {most}",
        "spectral gap": network.spectral_gap,
    }
    return _box(f"Network {network.name}", {"facts": facts}, *_picture(network, network.n <= DRAWN))


@html.register
def _(protocol: Protocol) -> str:
    facts = {"nodes": protocol.n, "rounds": protocol.rounds, "rows sent": protocol.message_count}
    picture = _picture(protocol, protocol.n * protocol.rounds <= MATRIX)
    return _box(f"Protocol {protocol.name}", {"facts": facts}, *picture)


@html.register
def _(view: GaussianView) -> str:
    computed = [str(u) for u in range(view.n) if view.covers(u)]
    more = " ..." if len(computed) > 40 else ""
    largest = float(np.delete(view.leakage(), view.observers).max(initial=0.0))
    facts = {
        "who looks": ", ".join(map(str, view.observers)) or "nobody inside",
        "independent combinations seen": view.rank,
        "can compute the noisy value of": ", ".join(computed[:40]) + more or "nobody",
        f"largest {figures.SHARE}": number(largest, "share"),
    }
    if view.rounded_up:
        facts["note"] = "rounded up where floating point could not decide"
    return _box("What these observers see", {"facts": facts}, *_picture(view, view.n <= DRAWN))


@html.register
def _(guarantee: Guarantee) -> str:
    verdict, meaning = wording.verdict(guarantee.label)
    uncharged = [
        line for line in guarantee.assumptions if line.startswith(("not charged", "accepted by name"))
    ]
    others = [line for line in guarantee.assumptions if line not in uncharged]
    facts = {
        "against": str(guarantee.adversary),
        "epsilon": f"{number(guarantee.epsilon(DELTA), 'epsilon')} at delta {number(DELTA, 'delta')}",
        "best guess": wording.guess(guarantee.best_guess),
        "cannot be told apart": wording.adjacency(guarantee.adjacency, guarantee.adversary.user),
        "label": f"{guarantee.label}: {meaning}",
    }
    details = {"assumes": others, "uncharged": uncharged, "color": _BAD}
    color = _GOOD if guarantee.valid and not uncharged else _BAD
    return _box(verdict, {"facts": facts}, details, color=color)


@html.register
def _(plan: Plan) -> str:
    rows = []
    for g in plan.guarantees():
        loss, guess = number(g.epsilon(DELTA), "epsilon"), wording.guess(g.best_guess)
        rows.append((str(g.adversary), loss, guess, g.label, number(g.valid)))
    columns = ("against", f"epsilon at {number(DELTA, 'delta')}", "best guess", "label", "guarantee")
    facts = {"nodes": plan.n, "steps": plan.steps, "hides": wording.adjacency(plan.adjacency)}
    facts |= {key.replace("_", " "): value for key, value in plan.cost().items()}
    use = usefulness(plan)
    verdict = {"sentence": str(use), "color": {True: _GOOD, False: _BAD, None: _GREY}[use.useful]}
    return _box(f"Plan {plan.name}", {"columns": columns, "rows": rows}, verdict, {"facts": facts})


@html.register
def _(result: Result) -> str:
    numbers = scalars(to_jsonable(result.metrics))
    facts = {key.replace("_", " "): number(value, FIELDS.get(key, "value")) for key, value in numbers.items()}
    parts: list[dict[str, Any]] = [{"facts": facts}]
    rows = []
    for g in [guarantee_row(dict(stored), result.config.get("labels")) for stored in result.guarantees]:
        loss = number(g["epsilon"], "epsilon"), number(g["delta"], "delta")
        rows.append((g["against"], *loss, g["label"], g["verdict"]))
    if rows:
        parts.append({"columns": ("against", "epsilon", "delta", "label", "standing"), "rows": rows})
    noise = str(result.provenance.get("noise", ""))
    if is_simulated(result.provenance):
        parts.append({"sentence": noise, "color": _BAD})
    picture = _picture(result, bool(figures.history_series(result.history)[1]))
    return _box(f"Result of {result.name}", *parts, *picture)


@html.register
def _(fitted: Fitted) -> str:
    return f"<p><strong>{escape(str(fitted))}</strong></p>{html(fitted.result)}"


def _box(title: str, *parts: Mapping[str, Any], color: str = _GREY) -> str:
    return environment().get_template("notebook.html").render(title=title, parts=parts, color=color)


def _picture(shown: object, small: bool) -> list[dict[str, str]]:
    """Return a picture as inline SVG, with ids of its own so that several cells can stand on one page."""
    if not small:
        return []
    with figures.axes_of(5.2, 3.2) as (figure, axes):
        plot(shown, axes)
        svg = figures.inline(figure, type(shown).__name__)
    mark = hashlib.sha256(svg.encode()).hexdigest()[:10]
    return [{"svg": figures.placed(svg, f"sv-{mark}-")}]


# ---- pictures --------------------------------------------------------------------------------------------


def plot(shown: object, ax: Axes | None = None, **options: Any) -> Axes:
    """Draw an object into matplotlib axes (None: new ones) and return them; ``shown.plot(...)`` is the same.

    A network has the options ``values`` in [0, 1] that color the nodes and ``observers`` that are ringed; a
    plan ``delta``; a result ``what``, one name of its history or several.
    """
    if ax is None:
        import matplotlib.pyplot as plt

        ax = plt.subplots(layout="constrained")[1]
    _draw(shown, ax, **options)
    return ax


@singledispatch
def _draw(shown: object, ax: Axes) -> None:
    raise InvalidInput(f"networks, protocols, plans and the like have a picture, got {type(shown).__name__}.")


@_draw.register(Network)
def _(
    network: Network,
    ax: Axes,
    *,
    values: ArrayLike | None = None,
    observers: Iterable[int] | int = (),
) -> None:
    if values is not None and np.shape(values) != (network.n,):
        shape = np.shape(values)
        raise InvalidInput(f"values colors one node each ({network.n}), got shape {shape}.")
    names = [str(network.node_name(v)) for v in range(network.n)]
    ringed = [observers] if isinstance(observers, int) else list(observers)
    edges = network.edges.tolist()
    figures.draw_network(ax, edges, network.n, values=values, observers=ringed, labels=names)


@_draw.register(Protocol)
def _(protocol: Protocol, ax: Axes) -> None:
    others = np.where(np.eye(protocol.n, dtype=bool), np.nan, exact_loss(protocol).T)
    image = ax.imshow(others, vmin=0.0, vmax=max(1.0, float(np.nanmax(others))), cmap="cividis")
    ax.set(xlabel="about node", ylabel="node that looks", title=figures.SHARE)
    ax.figure.colorbar(image, ax=ax, shrink=0.8)


@_draw.register(Fitted)
def _(fitted: Fitted, ax: Axes, **options: Any) -> None:
    _draw(fitted.result, ax, **options)


@_draw.register(GaussianView)
def _(view: GaussianView, ax: Axes) -> None:
    colors = [figures.COLORS[1] if view.covers(u) else figures.COLORS[0] for u in range(view.n)]
    ax.bar(range(view.n), view.leakage(), color=colors)
    who = ", ".join(map(str, view.observers)) or "an outsider"
    ax.set(xlabel="node", ylabel=figures.SHARE, title=f"seen by {who}; orange: computed")


@_draw.register(Guarantee)
def _(guarantee: Guarantee, ax: Axes) -> None:
    deltas = np.logspace(-8, -2, 13)
    ax.semilogx(deltas, [guarantee.epsilon(float(delta)) for delta in deltas], "o-", color=figures.COLORS[0])
    ax.set(xlabel="delta", ylabel="epsilon", title=f"{guarantee.label}, against {guarantee.adversary}")


@_draw.register(Plan)
def _(plan: Plan, ax: Axes, *, delta: float = DELTA) -> None:
    stated = [(g, g.epsilon(delta)) for g in plan.guarantees()]
    stated = [(g, loss) for g, loss in stated if math.isfinite(loss)]
    names = [f"{g.adversary} [{g.label}]" for g, _ in stated]
    colors = [figures.COLORS[0] if g.valid else figures.COLORS[6] for g, _ in stated]
    bars = ax.barh(names, [loss for _, loss in stated], color=colors)
    ax.bar_label(bars, [number(loss, "epsilon") for _, loss in stated], padding=3)
    ax.invert_yaxis()
    ax.set(xlabel=f"epsilon at delta {number(delta, 'delta')}", title=plan.name)
    ax.margins(x=0.15)


@_draw.register(Result)
def _(result: Result, ax: Axes, *, what: str | Sequence[str] | None = None) -> None:
    axis, series = figures.history_series(result.history)
    if not series:
        raise InvalidInput(
            f"this result of {result.name} has no history to draw; run with evaluate=... to get one."
        )
    chosen = [what] if isinstance(what, str) else list(series)[:1] if what is None else list(what)
    for name in chosen:
        if name not in series:
            raise InvalidInput(f"the history has {', '.join(series)}, got what={name!r}.")
    for k, name in enumerate(chosen):
        ax.plot(*series[name], marker="o", ms=4, color=figures.COLORS[k % 7], label=name)
    ax.set(xlabel=axis, ylabel=chosen[0] if len(chosen) == 1 else "", title=result.name)
    if len(chosen) > 1:
        ax.legend()


def report(result: Result, path: str | Path, title: str | None = None) -> Path:
    """Write the page of a result, one file that needs nothing else; ``result.report(path)`` is the same."""
    target = Path(path)
    if target.suffix not in (".html", ".htm"):
        raise InvalidInput(f"a report is a page, as report.html, got {target.name!r}.")
    return atomic_write(target, build([result.to_dict()], title or f"Result of {result.name}"))
