"""One function per kind of result: what a reader should see of it, in which words."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from sottovoce._format import number
from sottovoce.errors import DataError
from sottovoce.report.elements import Figure, Section, Table

__all__ = ["SECTIONS", "provenance", "scalars", "section_of"]

# result name -> "module:function"; one line for every kind of result with a section of its own
SECTIONS: dict[str, str] = {
    "account": "sottovoce.report.sections:account",
    "plan": "sottovoce.report.sections:plan",
    "agreement": "sottovoce.report.sections:agreement",
    "statement": "sottovoce.report.sections:statement",
    "attack": "sottovoce.report.sections:attack",
    "attack-dgd": "sottovoce.report.sections:attack_dgd",
    "reconstruction": "sottovoce.report.sections:reconstruction",
    "averages": "sottovoce.report.sections:averages",
    "training": "sottovoce.report.sections:training",
    "audit": "sottovoce.report.sections:audit",
}


def section_of(result: Mapping[str, Any]) -> Section:
    """Return the section of a result: its own kind's, or the general one.

    Examples
    --------
    >>> from sottovoce.runners import Result
    >>> section_of(Result("something-new", metrics={"error": 0.5}).to_dict()).title
    'Something new'
    """
    tell = _teller(str(result["name"]))
    try:
        return tell(result)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as problem:
        raise DataError(
            f"The record {result['name']!r} lacks what its section shows ({type(problem).__name__}: "
            f"{problem}); write it again with this version."
        ) from None


def _teller(name: str) -> Callable[[Mapping[str, Any]], Section]:
    """Return what makes a result's section: its own, one of an installed package, or the general one."""
    if name in SECTIONS:
        module, _, function = SECTIONS[name].partition(":")
        own: Callable[[Mapping[str, Any]], Section] = getattr(importlib.import_module(module), function)
        return own
    for find in _added():
        section = find(name)
        if section is not None:
            return section
    return general


@cache
def _added() -> tuple[Callable[[str], Callable[[Mapping[str, Any]], Section] | None], ...]:
    """Functions of installed packages from a result's name to its section (None for names of others)."""
    from importlib.metadata import entry_points

    return tuple(entry.load() for entry in entry_points(group="sottovoce.report_sections"))


def general(result: Mapping[str, Any]) -> Section:
    """Settings, numbers, and curves of the history."""
    settings = scalars(result["config"])
    measured = scalars(result["metrics"])
    blocks: list[Figure | Table] = []
    if measured:
        blocks.append(Table(("measured", "value"), tuple(measured.items())))
    blocks += _history(result["history"])
    if settings:
        blocks.append(Table(("setting", "value"), tuple(settings.items())))
    title = str(result["config"].get("title") or result["name"]).replace("-", " ").replace("_", " ")
    return Section(
        title[:1].upper() + title[1:],
        str(result["config"].get("about", "")),
        tuple(blocks),
        tuple(result["guarantees"]),
        provenance(result),
    )


def provenance(result: Mapping[str, Any]) -> str:
    """Return where the numbers come from, in one line."""
    entries = [f"{key} {number(value)}" for key, value in scalars(result["provenance"]).items()]
    return "Record: " + ", ".join(entries) + "." if entries else ""


def scalars(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that are one word or number, under names for people."""
    plain = {k: v for k, v in values.items() if isinstance(v, (str, int, float, bool)) and v != ""}
    return {key.replace("_", " "): value for key, value in plain.items()}


def _history(history: list[Any]) -> list[Figure | Table]:
    from sottovoce.report import figures

    rows = [row for row in history if isinstance(row, dict)]
    if len(rows) < 2:
        return []
    axis = next((k for k in ("step", "round", "rounds", "epoch") if k in rows[0]), None)
    x = [row[axis] for row in rows] if axis else list(range(len(rows)))
    names = [k for k in rows[0] if k != axis and all(isinstance(r.get(k), (int, float)) for r in rows)]
    return [
        Figure(
            figures.curves(
                x, {name.replace("_", " "): [r[name] for r in rows]}, xlabel=axis or "record",
                ylabel=name.replace("_", " "), title=f"{name} over the run", markers=len(x) <= 30,
            ),
            f"{name.replace('_', ' ').capitalize()} over the run.",
        )
        for name in names[:4]
    ]  # fmt: skip


def _called(result: Mapping[str, Any], v: int) -> str:
    labels = result["config"].get("labels")
    return str(labels[v]) if labels else f"participant {v}"


# ---- what an account shows ---------------------------------------------------------------------------


def account(result: Mapping[str, Any]) -> Section:
    """The graph colored by what one node learns, and the loss against distance."""
    from sottovoce.report import figures

    config, metrics = result["config"], result["metrics"]
    observer = metrics["observer"]
    blocks: list[Figure | Table] = []
    who = "every participant in turn" if observer is None else _called(result, observer)
    if observer is not None and metrics.get("edge_list") is not None:
        group = [observer, *metrics.get("colluders", ())]
        picture = figures.graph_picture(
            metrics["edge_list"], metrics["exact"], observers=group, labels=config.get("labels"),
            title=f"What {who} learns",
        )  # fmt: skip
        named = " and ".join(_called(result, v) for v in group)
        text = f"What {named} (ringed) learns about each other participant from one private averaging."
        blocks.append(Figure(picture, text + " Red: as much as if there were no network at all."))
    rows = metrics["by_distance"]
    if rows:
        largest, mean = ([r[key] for r in rows] for key in ("exact_max", "exact_mean"))
        series = {"exact, largest": largest, "exact, mean": mean} if largest != mean else {"exact": mean}
        colors = {"exact": figures.EXACT, "exact, largest": figures.EXACT, "exact, mean": figures.OTHER}
        if rows[0]["published_mean"] is not None:
            series["published formula"] = [r["published_mean"] for r in rows]
            colors["published formula"] = figures.PUBLISHED
        picture = figures.curves(
            [r["distance"] for r in rows], series, xlabel="distance in the network",
            ylabel="share of local privacy lost", title="Loss against distance", colors=colors,
            levels={"local privacy (no network)": 1.0},
            limits=(0.0, 1.08),
        )  # fmt: skip
        blocks.append(
            Figure(
                picture,
                "Privacy loss against distance; the published formula is shown at most as 1.",
            )
        )
        blocks.append(_distance_table(rows))
    if "published_bounds" in metrics:
        blocks += _published_tables(metrics["published_bounds"])
    share = metrics["understated_pairs"]
    lead = (
        f"On {config['graph']} with {metrics['protocol']} over {metrics['rounds']} rounds, seen by {who}: on "
        f"average {100 * metrics['mean_exact']:.0f}% of what local privacy would reveal, at worst "
        f"{100 * metrics['max_exact']:.0f}%."
    )
    if share is not None:
        lead += f" The published formula understates {100 * share:.0f}% of these pairs."
    return Section("Who learns what", lead, tuple(blocks), tuple(result["guarantees"]), provenance(result))


def _distance_table(rows: list[Any]) -> Table:
    columns = (
        "distance",
        "participants",
        "exact, mean",
        "exact, largest",
        "fully determined",
        "published, mean",
    )
    keys = ("distance", "pairs", "exact_mean", "exact_max", "determined", "published_mean")
    shown = [k for k in range(6) if k < 5 or rows[0]["published_mean"] is not None]
    return Table(tuple(columns[k] for k in shown), tuple(tuple(r[keys[k]] for k in shown) for r in rows))


def _published_tables(bounds: Mapping[str, Any]) -> list[Figure | Table]:
    """What the papers' formulas say, each with its label and the exact loss where it has one."""
    losses = tuple(
        (f"{r['source']}, {r['formula']}", r["mean"], r["largest"], r["exact_mean"], r["exact_largest"],
         f"{r['bound']}: {r['why']}", r["label"])
        for r in bounds["losses"]
    )  # fmt: skip
    errors = tuple(
        (f"{r['source']}, {r['formula']}: {r['what']}", r["value"], r["unit"], f"{r['bound']}: {r['why']}",
         r["label"])
        for r in bounds["errors"]
    )  # fmt: skip
    return [
        Table(("loss by", "mean", "largest", "exact, mean", "exact, largest", "a bound?", "label"), losses),
        Table(("error by", "value", "unit", "a bound?", "label"), errors),
    ]


def _costs(cost: Mapping[str, Any]) -> Table:
    return Table(("what travels", "amount"), tuple((k.replace("_", " "), v) for k, v in cost.items()))


def _standard(result: Mapping[str, Any]) -> list[Figure | Table]:
    """The topics of NIST SP 800-226, where a result can answer them."""
    from sottovoce.report.standards import nist

    if not result.get("summary_page") or not result["summary_page"]["stated"]:
        return []
    rows = tuple((row["topic"], row["question"], row["answer"]) for row in nist(result))
    caption = "The topics that NIST SP 800-226 asks an evaluation to cover, answered from this record."
    return [Table(("topic", "question", "answer"), rows, caption)]


def agreement(result: Mapping[str, Any]) -> Section:
    """Who connects to whom, what every member pays, what travels."""
    from sottovoce.report import figures

    metrics, config = result["metrics"], result["config"]
    blocks: list[Figure | Table] = []
    names = config["labels"]
    if len(names) <= 60:
        picture = figures.graph_picture(
            metrics["edge_list"],
            [0.0] * len(names),
            labels=names,
            title="Who talks to whom",
            scale_label=None,
        )
        blocks.append(Figure(picture, "Who talks to whom."))
    columns = ("member", "epsilon, everybody", "epsilon, one member", "budget", "delta", "releases")
    keys = ("member", "epsilon_local", "epsilon_network", "budget", "delta", "releases")
    blocks.append(Table(columns, tuple(tuple(row[k] for k in keys) for row in metrics["costs"])))
    blocks.append(_costs(metrics["cost"]))
    settings = {**scalars(config), **{f"model {k}": v for k, v in scalars(metrics["model"]).items()}}
    blocks.append(Table(("setting", "value"), tuple(settings.items())))
    blocks += _standard(result)
    return Section(metrics["title"], "", tuple(blocks), tuple(result["guarantees"]), provenance(result))


def statement(result: Mapping[str, Any]) -> Section:
    """What a member stated after its run, beside what its ledger says."""
    metrics, account = result["metrics"], result["metrics"].get("account")
    blocks: list[Figure | Table] = []
    if account:
        rows = [
            ("rounds", f"{account['round']} of {account['rounds']}"),
            ("releases", account["releases"]),
            ("epsilon by the ledger, own noise only", account["epsilon_spent"]),
            ("budget of the agreement", account["epsilon_budget"]),
            ("rows in the ledger", account["ledger_rows"]),
            ("head of the ledger", account["ledger_head"]),
        ]
        if account.get("population"):
            rows.append(("charged to the population", account["population"]))
        blocks.append(Table(("account", "value"), tuple((k, number(v)) for k, v in rows)))
    if metrics["left_out"]:
        blocks.append(Table(("round", "exchange left out with"), tuple(map(tuple, metrics["left_out"]))))
    blocks += _standard(result)
    lead = f"Stated by {metrics['member']} after {metrics['rounds']} of {metrics['of']} rounds."
    return Section("The statement", lead, tuple(blocks), tuple(result["guarantees"]), provenance(result))


def attack(result: Mapping[str, Any]) -> Section:
    """Whose values somebody computes from what it receives, without noise."""
    values = {**result["config"], **result["metrics"]}
    who = ", ".join(map(str, values["attackers"]))
    blocks: list[Figure | Table] = []
    if values["names"]:
        blocks.append(Table(("value computed exactly",), tuple((name,) for name in values["names"])))
    mixed = values.get("combinations") or []
    if mixed:
        rows = tuple((text,) for text in mixed[:20])
        caption = f"{len(mixed)} combinations are known" + (
            "; the first 20 are shown." if len(mixed) > 20 else "."
        )
        blocks.append(Table(("combination of several values",), rows, caption))
    lead = (
        f"{values['protocol']} on {values['graph']}, {values['rounds']} rounds, no noise, seen by node {who}."
    )
    return Section("What an attacker computes", lead, tuple(blocks), (), provenance(result))


def attack_dgd(result: Mapping[str, Any]) -> Section:
    """Whose pictures come back from decentralized gradient descent."""
    values = {**result["config"], **result["metrics"]}
    rows = tuple(
        (u, "yes" if u in values["identifiable"] else "no", values["psnr"][u],
         "yes" if u in values["recovered"] else "no")
        for u in range(len(values["psnr"])) if u not in values["attackers"]
    )  # fmt: skip
    lead = f"{values['count']} of {len(rows)} pictures come back with a PSNR of 10 or more."
    columns = ("node", "identifiable", "PSNR in dB", "comes back")
    return Section("What gradients give away", lead, (Table(columns, rows),), (), provenance(result))


def plan(result: Mapping[str, Any]) -> Section:
    """What a plan costs, and whether its budget is met."""
    metrics = result["metrics"]
    verdict = metrics.get("verdict", "")
    lead = f"{'Feasible.' if metrics.get('feasible') else 'Not feasible.'} {verdict}" if verdict else ""
    blocks: list[Figure | Table] = [
        _costs(metrics["cost"]),
        Table(("setting", "value"), tuple(scalars(result["config"]).items())),
        *_standard(result),
    ]
    title = metrics.get("title") or "The plan"
    return Section(title, lead, tuple(blocks), tuple(result["guarantees"]), provenance(result))


# ---- the demonstration's results -----------------------------------------------------------------------


def reconstruction(result: Mapping[str, Any]) -> Section:
    """Whose values one participant computes when no noise is added."""
    from sottovoce.report import figures

    metrics = result["metrics"]
    observer = metrics["observer"]
    rows = tuple((r["name"], r["true"], r["recovered"], r["error"]) for r in metrics["recovered"])
    colors = [1.0 if v in metrics["reconstructed"] else 0.0 for v in range(metrics["n"])]
    picture = figures.graph_picture(
        metrics["edge_list"], colors, observers=[observer], labels=result["config"].get("labels"),
        title="Reconstructed without noise", scale_label=None,
    )  # fmt: skip
    return Section(
        "Without noise: averaging reveals",
        f"{_called(result, observer)} follows the protocol, breaks nothing, and solves linear "
        f"equations in what it received: the private numbers of {len(rows)} of the {metrics['n'] - 1} others "
        "come out exactly.",
        (
            Figure(picture, f"Red: computed exactly by {_called(result, observer)} (ringed)."),
            Table(
                ("participant", f"true {metrics['quantity']}", "computed by the observer", "difference"), rows
            ),
        ),
        (),
        provenance(result),
    )


def averages(result: Mapping[str, Any]) -> Section:
    """The same accuracy, very different exposure: error and epsilon per method."""
    from sottovoce.report import figures

    metrics = result["metrics"]
    columns = (
        "method",
        "trusted",
        "epsilon, worst pair",
        "epsilon, typical pair",
        "error of the answer",
        "messages",
    )
    keys = ("method", "trusts", "epsilon_worst", "epsilon_typical", "error", "messages")
    rows = tuple(tuple(r[k] for k in keys) for r in metrics["methods"])
    history = result["history"]
    series = {name: [h[name] for h in history] for name in history[0] if name != "round"}
    picture = figures.curves(
        [h["round"] for h in history], series, xlabel="rounds of communication",
        ylabel="root mean squared error", title="Error against rounds", log=True,
        levels={"noise alone (same for all)": metrics["noise_floor"]}, markers=False,
    )  # fmt: skip
    return Section(
        "Private averages: the same answer, less exposure",
        f"The true {metrics['quantity']} is {number(metrics['truth'])}. Every method below adds the same "
        "noise, so that the answers are equally accurate; they differ in what one participant learns about a "
        "patient of another.",
        (
            Table(
                columns, rows, f"Epsilon at delta = {metrics['delta']:g}, when {metrics['adjacency_words']}."
            ),
            Figure(
                picture, "How far each participant's answer is from the truth, by rounds of communication."
            ),
        ),
        tuple(result["guarantees"]),
        provenance(result),
    )


def training(result: Mapping[str, Any]) -> Section:
    """Accuracy of private training against its yardsticks."""
    from sottovoce.report import figures

    metrics = result["metrics"]
    methods = metrics["methods"]
    start = metrics.get("start", 50.0)
    shades = [figures.GOOD if m.get("private") else figures.LOCAL for m in methods]
    picture = figures.bars(
        [m["method"] for m in methods], [100 * m["accuracy"] for m in methods],
        spread=[100 * m["spread"] for m in methods],
        xlabel=f"accuracy on unseen patients, % (from {start:g}%)",
        title="Accuracy", start=start, colors=shades, form="{:.1f}",
    )  # fmt: skip
    columns = ("method", "accuracy", "±", "epsilon", "against", "label")
    rows = tuple(
        (m["method"], m["accuracy"], m["spread"], m["epsilon"], m["against"], m["label"]) for m in methods
    )
    return Section(
        "Private training",
        metrics["lead"],
        (
            Figure(
                picture, "Teal: private. Grey: yardsticks. Whiskers: standard deviation over the repetitions."
            ),
            Table(columns, rows, f"Epsilon at delta = {metrics['delta']:g}."),
        ),
        tuple(result["guarantees"]),
        provenance(result),
    )


def audit(result: Mapping[str, Any]) -> Section:
    """What the sharpest test shows, against what was claimed."""
    from sottovoce.report import figures

    values = {**result["config"], **result["metrics"]}
    audits = list(values["audits"].items())
    broken = [name for name, a in audits if a["refuted"]]
    picture = figures.intervals(
        [name for name, _ in audits],
        [a["mu_lower"] for _, a in audits],
        [a["mu_claimed"] for _, a in audits],
        xlabel="μ (0: nothing learnt; larger: easier to tell two data sets apart)", title="Audit",
    )  # fmt: skip
    columns = ("view", "claim", "μ claimed, at most", "μ shown, at least", "tightness", "verdict")
    rows = tuple(
        (
            name,
            a["label"],
            a["mu_claimed"],
            a["mu_lower"],
            a["tightness"],
            "broken" if a["refuted"] else "holds",
        )
        for name, a in audits
    )
    valid_broken = [name for name, a in audits if a["refuted"] and a["label"] in ("ldp", "exact")]
    verdict = (
        "No guarantee was broken." if not valid_broken else f"BROKEN GUARANTEES: {', '.join(valid_broken)}."
    )
    if set(broken) - set(valid_broken):
        verdict += " The published formula, which is not a guarantee, was broken."
    strong = tuple(k for k, (_, a) in enumerate(audits) if a["refuted"])
    return Section(
        "An attack on our own claims",
        f"The averaging was run {values['runs']:,} times per view under two neighboring data sets, and the "
        f"best test was asked to tell them apart. {verdict}",
        (Figure(picture, "A bar that passes its tick breaks the claim."), Table(columns, rows, "", strong)),
        (),
        provenance(result),
    )
