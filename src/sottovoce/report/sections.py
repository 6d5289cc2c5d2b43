"""Sections of a page: paragraphs, figures and tables; one function per kind of result says what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any

from sottovoce._format import FIELDS, Quantity, fine, fixed, number, percent
from sottovoce._io import to_jsonable
from sottovoce.accounting import wording
from sottovoce.errors import DataError
from sottovoce.report import figures
from sottovoce.report.rendering import texts
from sottovoce.report.standards import nist


@dataclass(frozen=True)
class Figure:
    """A picture (inline SVG, or what draws it for a page) and the sentence that says what it shows."""

    picture: str | Callable[[], str] = field(repr=False)
    caption: str
    kind: str = field(default="figure", init=False)

    @property
    def svg(self) -> str:
        """The picture; a terminal, which shows tables only, never has it drawn."""
        return self.picture if isinstance(self.picture, str) else self.picture()


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers under headings; numbers are aligned and shortened.

    ``strong`` marks rows (by index) that the reader should see first. ``quantities`` says what each column
    holds: to that side its numbers are rounded.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    caption: str = ""
    strong: tuple[int, ...] = ()
    quantities: Sequence[Quantity] = ()
    kind: str = field(default="table", init=False)

    def numeric(self) -> list[bool]:
        """Return, per column, whether it holds numbers and nothing else."""
        return [all(_numeric(row[k]) for row in self.rows) for k in range(len(self.columns))]

    def cells(self) -> list[list[str]]:
        """Return the text of every cell; a column of numbers has one format, with the digits that count."""
        form, kinds = [], self.quantities or ["value"] * len(self.columns)
        for k, numeric in enumerate(self.numeric()):
            values = [row[k] for row in self.rows if isinstance(row[k], float)] if numeric else []
            small = any(0 < abs(value) < 0.01 for value in values)  # three decimals would round it away
            form.append(fine if small else fixed if values else number)
        return [
            [write(cell, kind) for write, cell, kind in zip(form, row, kinds, strict=True)]
            for row in self.rows
        ]


@dataclass(frozen=True)
class Section:
    """The part of a page for one result: title, lead, figures, tables and guarantees."""

    title: str
    lead: str = ""
    blocks: tuple[Figure | Table, ...] = ()
    guarantees: tuple[dict[str, Any], ...] = ()
    footnote: str = ""


def _numeric(value: object) -> bool:
    return (
        value is None or value == "inf" or (isinstance(value, (int, float)) and not isinstance(value, bool))
    )


def guarantee_row(
    stored: Mapping[str, Any], names: Sequence[str] | None = None, noun: str = "participant"
) -> dict[str, Any]:
    """Return a guarantee as pages show it, from a result or a statement; ``names`` are the participants'.

    Epsilon is computed again where it is missing.
    """
    delta, epsilon, guess = (stored.get(key) for key in ("delta", "epsilon", "best_guess"))
    if "curve" in stored:
        from sottovoce.accounting.guarantee import Guarantee

        whole = Guarantee.from_dict(stored)
        guess = whole.best_guess
        if epsilon is None:
            delta = 1e-5 if delta is None else delta
            epsilon = to_jsonable(whole.epsilon(delta))
    verdict, meaning = wording.verdict(str(stored.get("label")))
    if verdict == "Guarantee" and guess is not None and guess > wording.CERTAIN:
        verdict = "No protection in practice"
    if verdict == "Guarantee" and stored.get("accepted"):  # read of private records, and not charged
        verdict = f"Guarantee, except for what was accepted: {', '.join(stored['accepted'])}"
    who, hides = stored.get("adversary") or stored.get("against") or "", str(stored.get("adjacency"))
    about = who if isinstance(who, dict) else {"kind": stored.get("view", ""), "count": stored.get("count")}
    return {
        "against": wording.stored_adversary(who, names, noun),
        "view": about.get("kind"),
        "count": about.get("count"),
        "observers": list(about.get("observers") or ()),
        "what": stored.get("what", ""),
        "hides": hides,
        "adjacency": wording.adjacency(hides, about.get("user"), names=names, noun=noun),
        "epsilon": epsilon,
        "delta": delta,
        "mu": stored.get("mu"),
        "guess": guess,
        "label": stored.get("label"),
        "verdict": verdict,
        "meaning": meaning,
        "assumptions": list(stored.get("assumptions") or ()),
    }


# ---- what a reader should see of each kind of result ---------------------------------------------------

StoredResult = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]


def section_of(result: StoredResult) -> Section:
    """Return the section of a result: its own kind's, one of an installed package, or the general one."""
    name = str(result["name"])
    make = SECTIONS.get(name) or next(filter(None, (find(name) for find in _added())), general)
    try:
        return make(result)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as problem:
        raise DataError(
            f"The result {name!r} lacks what its section shows ({type(problem).__name__}: {problem}); write "
            "it again with this version."
        ) from None


@cache
def _added() -> tuple[Callable[[str], Callable[[StoredResult], Section] | None], ...]:
    """Functions of installed packages from a result's name to its section (None for names of others)."""
    return tuple(entry.load() for entry in entry_points(group="sottovoce.report_sections"))


def _section(result: StoredResult, title: str, lead: str, *blocks: Figure | Table | None) -> Section:
    shown = tuple(block for block in blocks if block is not None)
    return Section(title, lead, shown, tuple(result["guarantees"]), provenance(result))


def _table(columns: Mapping[str, str], rows: Rows, caption: str = "", strong: tuple[int, ...] = ()) -> Table:
    """Return a table of stored rows; ``columns`` maps keys of a row, which say the quantity, to headings."""
    cells = tuple(tuple(row[key] for key in columns) for row in rows)
    return Table(tuple(columns.values()), cells, caption, strong, tuple(map(_quantity, columns)))


def pairs(values: Mapping[str, Any], *heads: str) -> Table | None:
    """Return a table of stored values, one per row, under names for people; their keys say the quantities."""
    rows = tuple((key.replace("_", " "), number(value, _quantity(key))) for key, value in values.items())
    return Table(heads, rows) if rows else None


def _quantity(key: str) -> Quantity:
    return FIELDS.get(key, "value")


def provenance(result: StoredResult) -> str:
    """Return where the numbers come from, in one line."""
    stored = scalars(result["provenance"]).items()
    entries = [f"{key.replace('_', ' ')} {number(value, _quantity(key))}" for key, value in stored]
    return "Result: " + ", ".join(entries) + "." if entries else ""


def scalars(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that are one word or number."""
    return {k: v for k, v in values.items() if isinstance(v, (str, int, float, bool)) and v != ""}


def general(result: StoredResult) -> Section:
    """Settings, numbers, lists of rows as tables, and curves of the history."""
    config, metrics = dict(result["config"]), result["metrics"]
    title = str(config.pop("title", "") or result["name"]).replace("-", " ").replace("_", " ")
    about = str(config.pop("about", ""))
    measured = pairs(scalars(metrics), "measured", "value")
    settings = pairs(scalars(config), "setting", "value")
    lists = [
        rows for rows in metrics.values() if isinstance(rows, list) and rows and isinstance(rows[0], dict)
    ]
    tables = [_table({key: key.replace("_", " ") for key in rows[0]}, rows) for rows in lists]
    blocks = (measured, *tables, *_history(result["history"]), settings)
    return _section(result, title[:1].upper() + title[1:], about, *blocks)


def _history(history: Iterable[object]) -> list[Figure]:
    axis, series = figures.history_series(history)
    drawn = []
    for name, (x, values) in list(series.items())[:4]:
        words = name.replace("_", " ")
        svg = figures.curves(x, {words: values}, xlabel=axis, ylabel=words, title=f"{name} over the run")
        drawn.append(Figure(svg, f"{words.capitalize()} over the run."))
    return drawn


def _name(result: StoredResult, v: int) -> str:
    labels = result["config"].get("labels")
    return str(labels[v]) if labels else f"participant {v}"


# ---- what an account shows -----------------------------------------------------------------------------


def account(result: StoredResult) -> Section:
    """The graph colored by what one node learns, and the loss against distance."""
    words, config, metrics = texts("sections.toml")["account"], result["config"], result["metrics"]
    observer, understated = metrics["observer"], metrics["understated_pairs"]
    who = "every participant in turn" if observer is None else _name(result, observer)
    blocks: list[Figure | Table] = []
    if observer is not None and metrics.get("edge_list") is not None:
        group = [observer, *metrics.get("colluders", ())]
        options = {"observers": group, "labels": config.get("labels"), "title": f"What {who} learns"}
        shares = metrics["exact"]
        draw = partial(figures.graph_picture, metrics["edge_list"], len(shares), values=shares, **options)
        named = " and ".join(_name(result, v) for v in group)
        blocks.append(Figure(draw, words["picture"].format(group=named)))
    if metrics["by_distance"]:
        blocks += _by_distance(metrics["by_distance"], words)
    # what the papers' formulas say, each with its label and the exact loss where it has one
    for kind, rows in metrics.get("published_bounds", {}).items():
        if kind in ("losses", "errors"):
            blocks.append(_table(words[kind], [_formula(row) for row in rows]))
    losses = {key: percent(metrics[key], "share", 0) for key in ("mean_exact", "max_exact")}
    about = {"graph": config["graph"], "protocol": metrics["protocol"], "rounds": metrics["rounds"]}
    lead = words["lead"].format(who=who, **about, **losses)
    if understated is not None:
        lead += words["understated"].format(understated=percent(understated, places=0))
    return _section(result, words["title"], lead, *blocks)


def _by_distance(rows: Rows, words: Mapping[str, Any]) -> list[Figure | Table]:
    largest, mean = ([row[key] for row in rows] for key in ("exact_max", "exact_mean"))
    series = {"exact, largest": largest, "exact, mean": mean} if largest != mean else {"exact": mean}
    colors = {"exact": figures.EXACT, "exact, largest": figures.EXACT, "exact, mean": figures.OTHER}
    columns = dict(words["by_distance"])
    if rows[0]["published_mean"] is None:
        del columns["published_mean"]
    else:
        series["published formula"] = [row["published_mean"] for row in rows]
        colors["published formula"] = figures.PUBLISHED
    levels, x = {"local privacy (no network)": 1.0}, [row["distance"] for row in rows]
    draw = partial(figures.curves, x, series, **words["axes"], colors=colors, levels=levels)
    return [Figure(draw, words["curve"]), _table(columns, rows)]


def _formula(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a paper's formula for a loss or an error, with its source, and what the error is about."""
    what = f": {row['what']}" if "what" in row else ""
    name = f"{row['source']}, {row['formula']}{what}"
    return {**row, "formula": name, "judged": f"{row['bound']}: {row['why']}"}


# ---- plans, agreements, statements, attacks ------------------------------------------------------------


def _costs(cost: Mapping[str, Any]) -> Table:
    return Table(("what travels", "amount"), tuple((k.replace("_", " "), v) for k, v in cost.items()))


def _standard(result: StoredResult) -> Table | None:
    if not (result.get("summary_page") or {}).get("stated"):
        return None
    words = texts("sections.toml")["standard"]
    return _table(words["columns"], nist(result), words["caption"])


def plan(result: StoredResult) -> Section:
    """What a plan costs, and whether its budget is met."""
    metrics = result["metrics"]
    meets = {True: "Meets its budget. ", False: "Exceeds its budget. "}.get(metrics.get("feasible"), "")
    settings = pairs(scalars(result["config"]), "setting", "value")
    title = metrics.get("title") or "The plan"
    lead = meets + metrics.get("verdict", "")
    return _section(result, title, lead, _costs(metrics["cost"]), settings, _standard(result))


def agreement(result: StoredResult) -> Section:
    """Who connects to whom, what every member pays, what travels."""
    metrics, config = result["metrics"], result["config"]
    names, picture = config["labels"], None
    if len(names) <= 60:
        title = "Who talks to whom"
        svg = figures.graph_picture(metrics["edge_list"], len(names), labels=names, title=title)
        picture = Figure(svg, f"{title}.")
    settings = {**scalars(config), **{f"model {k}": v for k, v in scalars(metrics["model"]).items()}}
    members = _table(texts("sections.toml")["agreement"]["columns"], metrics["costs"])
    tables = members, _costs(metrics["cost"]), pairs(settings, "setting", "value")
    return _section(result, metrics["title"], "", picture, *tables, _standard(result))


def statement(result: StoredResult) -> Section:
    """What a member stated after its run, beside what its ledger says."""
    words, metrics, ledger = (
        texts("sections.toml")["statement"],
        result["metrics"],
        result["metrics"].get("account"),
    )
    account, left_out = None, None
    if ledger:
        rows = {"rounds": f"{ledger['round']} of {ledger['rounds']}", "releases": ledger["releases"]}
        against = f"against {ledger['adversary']}, label {ledger['label']}"
        rows["epsilon by the ledger"] = f"{number(ledger['epsilon_spent'], 'spent')} ({against})"
        rows["budget of the agreement"] = number(ledger["epsilon_budget"], "limit")
        rows |= {"rows in the ledger": ledger["ledger_rows"], "head of the ledger": ledger["ledger_head"]}
        if ledger.get("population"):
            rows["charged to the population"] = ledger["population"]
        account = pairs(rows, "account", "value")
    if metrics["left_out"]:
        left_out = Table(("round", "exchange left out with"), tuple(map(tuple, metrics["left_out"])))
    lead = words["lead"].format(**metrics)
    return _section(result, words["title"], lead, account, left_out, _standard(result))


def attack(result: StoredResult) -> Section:
    """Whose values somebody computes from what it receives, without noise."""
    words, values = texts("sections.toml")["attack"], {**result["config"], **result["metrics"]}
    combinations = values.get("combinations") or []
    more = words["combinations"].format(count=len(combinations))
    tables = [
        Table(("value computed exactly",), tuple((name,) for name in values["names"])),
        Table(("combination of several values",), tuple((text,) for text in combinations[:20]), more),
    ]
    lead = words["lead"].format(who=", ".join(map(str, values["attackers"])), **values)
    return _section(result, words["title"], lead, *(table for table in tables if table.rows))


def audit(result: StoredResult) -> Section:
    """What the sharpest test shows, against what was claimed."""
    words, values = texts("sections.toml")["audit"], {**result["config"], **result["metrics"]}
    audits = [
        a | {"view": name, "verdict": "refuted" if a["refuted"] else "holds"}
        for name, a in values["audits"].items()
    ]
    refuted = [k for k, a in enumerate(audits) if a["refuted"]]
    ours = [audits[k]["view"] for k in refuted if wording.is_guarantee(audits[k]["label"])]
    lead = words["lead"].format(**values)
    lead += words["refuted"].format(ours=", ".join(ours)) if ours else words["holds"]
    if len(refuted) > len(ours):
        lead += words["published"]
    return _section(result, words["title"], lead, _table(words["columns"], audits, strong=tuple(refuted)))


# the name of a result: what makes its section
SECTIONS: dict[str, Callable[[StoredResult], Section]] = {
    make.__name__: make for make in (account, plan, agreement, statement, attack, audit)
}
