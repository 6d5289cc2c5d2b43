"""From a plan file to a plan, its price, and `sottovoce plan`: one path, whatever is averaged or learned.

The registry gives the class that a file names, the fields of the class are the options it knows, and what
does not fit is refused by the class itself: Python, plan file and agreement say the same sentence.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from sottovoce._format import number
from sottovoce._io import plain
from sottovoce.cli.output import Json, assumptions, finish, named, safe, statements, table
from sottovoce.errors import BudgetExceeded, BudgetInfeasible, ConfigError
from sottovoce.planfile.schema import BudgetSection, NoiseSection, PlanFile, about, read_plan

if TYPE_CHECKING:
    from rich.console import Console

    from sottovoce.algorithms import Plan
    from sottovoce.graphs import Network
    from sottovoce.planfile.records import Records

__all__ = ["LoadedPlan", "built_plan", "plan", "price", "require_budget", "show_price"]

# key of [noise] -> the field of a plan that takes it as it is
NOISE = {"multiplier": "noise_multiplier", "std": "noise_std", "ratio": "noise_ratio"}
# fields of plans that other sections of a file say
ELSEWHERE = {
    "objective": "[objective] or [model]", "network": "[network]", "protocol": "[protocol]",
    "seed": "[protocol] seed", "sizes": "[data]", "records": "[data]", "users": "[data] users",
    "noise_multiplier": "[noise] multiplier", "noise_std": "[noise] std", "noise_ratio": "[noise] ratio",
}  # fmt: skip


class LoadedPlan(NamedTuple):
    """A plan, the records it runs on (None for an average), and what the file said besides."""

    plan: Plan
    records: Records | None
    network: Network | None
    accepted: tuple[str, ...]
    settings: PlanFile


# ---- from a file to a plan ----------------------------------------------------------------------------


def built_plan(settings: PlanFile, folder: Path, where: str, **changed: Any) -> LoadedPlan:
    """Return the plan that a file describes, with the records it runs on.

    Parameters
    ----------
    settings, folder : the file's sections, and where the files it names are looked for.
    where : what to call the file in a sentence.
    changed : options of the plan that stand in place of the file's.

    Examples
    --------
    >>> from sottovoce.planfile.schema import check_plan_file
    >>> tables = {"version": 1, "network": {"graph": "ring:4"}, "noise": {"multiplier": 4.0},
    ...           "average": {"radius": 1.0, "adjacency": "user"}}
    >>> plan = built_plan(check_plan_file(tables, "plan"), Path(), "plan").plan
    >>> round(plan.epsilon(1e-5, "local"), 3)
    1.993
    """
    from sottovoce.algorithms import registry

    train, average = settings.train, settings.average
    section = "average" if train is None else "train"
    if train is None:
        assert average is not None
        name, options = "averaging", average.model_dump(exclude={"values"})
    else:
        name, options = train.algorithm, train.model_dump(exclude={"algorithm", "fresh_graph", "every"})
        if name == "averaging":
            raise ConfigError(f"{where}: averaging is written as [average], without [train].")
    with about(f"{where}, [{section}]"):
        cls = registry.algorithm(name)
    known = {item.name: item for item in fields(cls) if item.init}
    options = {key: _frozen(value) for key, value in {**options, **changed}.items()}
    for key in options:
        if key in ELSEWHERE:
            raise ConfigError(f"{where}, [{section}] {key} has its own place: {ELSEWHERE[key]}.")
        if key not in known:
            offered = ", ".join(key for key in known if key not in ELSEWHERE)
            raise ConfigError(f"{where}, [{section}]: {name} has no option {key!r}; it knows {offered}.")
    with about(where):
        network = _network(settings, cls, name, folder)
        records = None if train is None else _records(settings, cls, folder, network, options)
        given = options | _said_elsewhere(settings, known, folder, network, records, options)
        read = () if records is None else records.uncharged
    for key, item in known.items():
        needed = item.default is MISSING and item.default_factory is MISSING
        if needed and key not in given and key != cls.noise_field:
            raise ConfigError(f"{where}, [{section}] {key} is missing; {name} needs it.")
    with about(f"{where}, [{section}]"):
        amount = _noise_given(cls, given, settings.noise)
    with about(f"{where}, [{section}]", options=True):
        made: Plan = cls(**given, **{cls.noise_field: 1.0 if amount is None else amount})
    if amount is None:
        with about(f"{where}, [{section}]"):
            made = _within_budget(made, settings.budget)
    from sottovoce.planfile.records import accepted

    return LoadedPlan(made, records, network, accepted(settings.accept, read, where), settings)


def _network(settings: PlanFile, cls: Any, name: str, folder: Path) -> Network | None:
    takes = bool(cls.protocols) and "network" in {item.name for item in fields(cls)}
    if takes and settings.network is None and not cls.network_optional:
        raise ConfigError(
            f'[network] is missing; {name} needs to know who talks to whom, for example graph = "ring:8".'
        )
    if not takes and settings.network is not None:
        raise ConfigError(f"{name} runs over no network; leave [network] out.")
    return None if settings.network is None else settings.network.build(folder)


def _records(
    settings: PlanFile, cls: Any, folder: Path, network: Network | None, options: Mapping[str, Any]
) -> Records:
    from sottovoce.planfile.records import linear_records, network_records

    assert settings.data is not None
    names = {item.name for item in fields(cls)}
    agents = network.n if network is not None else 1 if "records" in names else None
    if agents is not None and settings.data.users not in (None, agents):
        raise ConfigError(f"[data] users is {settings.data.users}, but the plan is for {agents} agents.")
    labels = None if network is None else network.labels
    if settings.model is not None:
        clip_norm = options.get("clip_norm", float("inf"))
        return network_records(settings.data, folder, agents, settings.model, clip_norm, labels)
    return linear_records(settings.data, folder, agents, _glm(settings), labels)


def _glm(settings: PlanFile) -> Any:
    """Return the linear model that [objective] describes."""
    from sottovoce.objectives import GLM

    chosen = {} if settings.objective is None else dict(settings.objective.model_extra or {})
    names = [item.name for item in fields(GLM) if item.name != "dim"]
    for key in chosen:
        if key not in names:
            raise ConfigError(f"[objective] {key} is not known; expected one of {', '.join(names)}.")
    with about("[objective]", options=True):
        return GLM(**chosen)


def _said_elsewhere(
    settings: PlanFile,
    known: Mapping[str, Any],
    folder: Path,
    network: Network | None,
    records: Records | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the options of a plan that other sections say, as far as its class has them."""
    said: dict[str, Any] = {}
    if network is not None:
        said = {"network": network, "seed": settings.protocol.seed}
        default = known["protocol"].default
        if settings.protocol.name is not None or default is MISSING:
            said["protocol"] = str(settings.protocol.named("chebyshev"))
        if settings.train is not None and settings.train.fresh_graph:
            said["protocol"] = _fresh_graphs(settings, folder, said.get("protocol"))
    elif settings.protocol.model_dump(exclude_defaults=True):
        raise ConfigError("[protocol] is for plans over a network; leave it out.")
    if records is not None:
        said |= {"objective": records.objective, "sizes": records.sizes}
        said |= {"records": records.total, "users": len(records.sizes)}
        if isinstance(options.get("smoothness"), (int, float)) and records.dim:  # one for all features
            said["smoothness"] = (float(options["smoothness"]),) * records.dim
    return {key: value for key, value in said.items() if key in known}


def _fresh_graphs(settings: PlanFile, folder: Path, protocol: str | None) -> Any:
    """Return a schedule that draws the graph anew for every step, from the public seed."""
    from sottovoce.algorithms.plan import CachedSchedule
    from sottovoce.protocols import parse

    section, seed = settings.network, settings.protocol.seed
    assert section is not None
    if not section.random:
        raise ConfigError("[train] fresh_graph needs a graph that is drawn: er or geometric.")
    if protocol is None:
        raise ConfigError("[train] fresh_graph needs [protocol] name.")
    named, graph = parse(protocol), section.graph

    class FreshGraphs(CachedSchedule):
        def __str__(self) -> str:  # names the run: another seed is another run
            return f"{named} on {graph}, drawn afresh in every step from seed {seed}"

    return FreshGraphs(
        lambda k: named.at(section.build(folder, seed=seed * 1_000_003 + k), seed=seed, step=k)
    )


def _frozen(value: Any) -> Any:
    """Return a list of the file as the tuple that a plan keeps."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _noise_given(cls: Any, options: Mapping[str, Any], noise: NoiseSection) -> float | None:
    """Return the noise that a file states, in the unit of the plan's own field; None where it states none."""
    given = {key: getattr(noise, key) for key in NOISE if getattr(noise, key) is not None}
    if len(given) > 1:
        raise ConfigError(f"[noise] takes {' or '.join(NOISE)}, got both; leave one out.")
    return next((_in_unit(cls, options, key, amount) for key, amount in given.items()), None)


def _within_budget(made: Plan, budget: BudgetSection | None) -> Plan:
    """Return the plan with the least noise that meets the budget, against the budget's own view."""
    if budget is None:
        raise ConfigError(
            "Neither [noise] nor [budget] is given; one of them decides how much noise is added."
        )
    made = made.calibrated_to(budget.epsilon, budget.delta, **budget.who)
    worst = made.noise_in_result()
    if budget.max_noise is not None and made.query != "value":
        raise ConfigError(f"[budget] max_noise is for averages; {made.name} does not know it before it runs.")
    if budget.max_noise is not None and worst is not None and worst > budget.max_noise:
        raise BudgetInfeasible(
            f"No noise meets epsilon {budget.epsilon:g} at delta {budget.delta:g} with at most "
            f"{budget.max_noise:g} of noise in the result: it would be {worst:.3g}; "
            "allow a larger epsilon or more noise, or let more nodes take part."
        )
    return made


def _in_unit(cls: Any, options: Mapping[str, Any], key: str, amount: float) -> float:
    """Return the amount of noise in the unit of the plan's own field; a multiplier is over the clip."""
    if NOISE[key] == cls.noise_field:
        return amount
    word = next(key for key, field in NOISE.items() if field == cls.noise_field)
    if "ratio" in (key, word):
        raise ConfigError(f"[noise] {key} does not fit {cls.name}; give {word}.")
    clip_norm = options.get("radius", options.get("clip_norm"))
    if not isinstance(clip_norm, (int, float)) or isinstance(clip_norm, bool) or not clip_norm > 0:
        raise ConfigError(
            f"[noise] {key} is measured against the clip, which must be positive, got {clip_norm!r}."
        )
    return amount * clip_norm if word == "std" else amount / clip_norm


# ---- what it costs ------------------------------------------------------------------------------------


HIDES = {
    "user": "everything a member holds: one whole member may be replaced",
    "add-remove": "a single record: one may be added or removed",
    "replace-one": "a single record: one may be replaced",
}
NO_PRIVACY = (
    "No noise is added: this is a run without privacy, a yardstick for others, on records that may be public."
)
_RUNS = 20  # of a simulation, fewer where a run is long
_WORK = 4e9  # numbers that a simulation may go through


def price(built: LoadedPlan, *, simulated: bool = False) -> dict[str, Any]:
    """Return what a plan costs and is worth: guarantees, communication, error, whether the budget is met.

    ``simulated``: judge training by runs on synthetic records, and look for ways out where it is needed.
    """
    made, budget = built.plan, built.settings.budget
    delta = 1e-5 if budget is None else budget.delta
    stated = made.guarantees()
    priced: dict[str, Any] = {
        "title": built.settings.title, "plan": plain(dict(made.describe())), "delta": delta,
    }  # fmt: skip
    if budget is not None:
        chosen = made.privacy(**budget.who)
        stated = [*stated, *([] if chosen in stated else [chosen])]
        said = budget.model_dump(exclude_none=True) | {"view": chosen.adversary.kind}
        found = verdict(chosen, budget)
        priced |= {"budget": said, **found, "verdict": named(found["verdict"], built.network)}
    if built.accepted:
        from sottovoce.accounting.wording import uncharged

        priced["accepted"] = list(built.accepted)
        remarks = tuple(uncharged(name) for name in built.accepted)
        stated = [replace(g, assumptions=(*g.assumptions, *remarks)) for g in stated]
    priced["guarantees"] = [
        one | ({"accepted": list(built.accepted)} if built.accepted else {})
        for one in statements(stated, delta, built.network)
    ]
    priced["cost"] = dict(made.cost())
    if built.network is not None:
        from sottovoce.accounting.published.assessment import missing_links

        notes = list(missing_links(built.network, made.schedule(0)))
        if len(set(made.sizes or ())) > 1 and made.estimand is not None:
            notes.append(f"Sites differ in size; learned is {made.estimand}.")
        priced |= {"notes": notes} if notes else {}
    worst = made.noise_in_result()
    if worst is not None:
        priced["noise_in_result"] = worst
        limit = None if budget is None else budget.max_noise
        if limit is not None and worst > limit:
            sentence = f"The result would carry {worst:.3g} of noise, more than the {limit:g} allowed."
            priced |= {"feasible": False, "verdict": sentence}
    priced["hides"] = HIDES[made.adjacency] if made.has_noise else "nothing: no noise is added"
    if not made.has_noise:
        priced = {"verdict": NO_PRIVACY, **priced, "private": False}
    priced["reads"] = files_read(built)
    return priced | worth(built, priced, simulated)


def worth(built: LoadedPlan, priced: Mapping[str, Any], simulated: bool) -> dict[str, Any]:
    """Return whether the answer is of use, in words and numbers, and what would change it."""
    from sottovoce.advice import Sample, ways_out
    from sottovoce.advice.usefulness import is_average, usefulness

    made: Any = built.plan
    sample, runs = None, _RUNS
    loss = getattr(getattr(made, "objective", None), "loss", None)
    if simulated and isinstance(loss, str) and made.query == "gradient" and made.sizes:
        numbers = made.steps * min(sum(made.sizes), 20_000) * made.objective.dim
        runs = int(min(_RUNS, _WORK // max(numbers, 1)))
        sample = Sample.synthetic(loss, made.objective.dim) if runs >= 4 and loss in KINDS else None
    averages = is_average(made)
    options: dict[str, Any] = {} if sample is None or averages else {"sample": sample, "runs": runs}
    use = usefulness(made, **options)
    said: dict[str, Any] = {
        "private": priced.get("private", priced.get("feasible")), "useful": use.useful,
        "usefulness": use.sentence,
        "error": use.error if use.error is None else float((use.error**2 + use.bias**2) ** 0.5),
        "range": use.span, "signal": use.signal,
        "score": None if use.score is None else dict(vars(use.score)),
    }  # fmt: skip
    budget = built.settings.budget
    bad = use.useful is False or priced.get("feasible") is False
    if simulated and bad and budget is not None:
        ways = ways_out(made, epsilon=budget.epsilon, delta=budget.delta, who=budget.who, sample=sample)
        said["ways_out"] = [way.sentence for way in ways]
    return said


KINDS = ("logistic", "squared")


def files_read(built: LoadedPlan) -> list[str]:
    """Return what pricing has read, in words."""
    settings, found = built.settings, []
    network = settings.network
    if network is not None and network.matrix is not None:
        found.append(f"{network.matrix} (the weights of the network)")
    if network is not None and (network.graph or "").startswith("file:"):
        found.append(f"{str(network.graph).removeprefix('file:')} (the edges of the network)")
    if settings.data is not None:
        source = settings.data.file or settings.data.name or "the data set"
        if built.records is not None and built.records.data is None:
            return [*found, f"no records ({source} is not there yet; how many there will be is stated)"]
        more = f", and {', '.join(built.accepted)}" if built.accepted else ""
        found.append(f"{source} (how many records there are, and of how many features{more})")
    if settings.average is not None and isinstance(settings.average.values, Path):
        found.append(f"no values ({settings.average.values} is for sottovoce average)")
    return found


def verdict(chosen: Any, budget: BudgetSection) -> dict[str, Any]:
    """Return whether a statement meets a budget, and a sentence that says why or why not."""
    spent = chosen.epsilon(budget.delta)
    where = f"epsilon {spent:.4g} at delta {budget.delta:g} against {chosen.adversary}"
    if not chosen.valid:
        return {
            "feasible": False,
            "verdict": f"The number for this view is {chosen.label}, not a guarantee, and accepts no budget; "
            "take the view local, or a plan over exact consensus.",
        }
    if spent == budget.epsilon == math.inf:
        return {"feasible": True, "private": False, "verdict": NO_PRIVACY}
    if spent > budget.epsilon:
        return {
            "feasible": False,
            "verdict": f"The plan spends {where}, more than the budget of {budget.epsilon:g}; "
            "more noise or fewer steps lower it.",
        }
    return {"feasible": True, "verdict": f"The plan spends {where}, within the budget of {budget.epsilon:g}."}


def plan_record(priced: dict[str, Any], built: LoadedPlan | None = None) -> dict[str, Any]:
    """Return the price of a plan as a result record; with the plan itself it has a page one."""
    from sottovoce import __version__

    kept = (
        "title", "delta", "budget", "feasible", "verdict", "cost", "noise_in_result", "notes", "accepted",
        "private", "useful", "usefulness", "hides", "reads", "error", "range", "signal", "score", "ways_out",
    )  # fmt: skip
    return plain(
        {
            "name": "plan",
            "config": priced["plan"],
            "metrics": {key: priced[key] for key in kept if key in priced},
            "history": [],
            "guarantees": priced["guarantees"],
            "provenance": {"version": __version__},
            **({} if built is None else {"front": _front(built)}),
        }
    )


def _front(built: LoadedPlan) -> dict[str, Any]:
    """Return the page that an officer signs."""
    from sottovoce.report.summary_page import of_plan

    budget = built.settings.budget
    names = None if built.network is None or built.network.labels is None else built.network.labels
    return of_plan(
        built.plan, title=built.settings.title, names=None if names is None else [str(x) for x in names],
        delta=1e-5 if budget is None else budget.delta, limit=None if budget is None else budget.epsilon,
        who={} if budget is None else budget.who, accepted=built.accepted,
    )  # fmt: skip


def show_price(screen: Console, priced: dict[str, Any]) -> None:
    """Print the price of a plan for a person."""
    from sottovoce.accounting.wording import UNCHARGED

    described = "; ".join(
        f"{_spoken(key)} {safe(_short(v))}" for key, v in priced["plan"].items() if _said(v)
    )
    screen.print(f"[bold]{safe(priced['title'] or 'Plan')}[/bold]: {described}")
    screen.print(f"Hides: {priced['hides']}.")
    if priced["reads"]:
        screen.print(f"Reads: {safe('; '.join(priced['reads']))}.")
    for note in priced.get("notes", ()):
        screen.print(f"[yellow]note:[/yellow] {safe(note)}")
    for name in priced.get("accepted", ()):
        screen.print(f"[bold red]not charged, accepted by name:[/bold red] {UNCHARGED[name]} ({name})")
    sure = "except for the above" if priced.get("accepted") else "yes"
    rows = [
        [g["against"], number(g["epsilon"]), f"{priced['delta']:g}", g["adjacency"], g["label"],
         sure if g["valid"] else "no"]
        for g in priced["guarantees"]
    ]  # fmt: skip
    columns = ["against", "epsilon", "delta", "adjacency", "label", "guarantee"]
    screen.print(table(columns, rows, title="What it reveals"))
    for line in assumptions(priced["guarantees"]):
        screen.print(f"  assumes: {safe(line)}")
    cost = priced["cost"]
    travels = f", {cost['bytes']:,} bytes" if "bytes" in cost else ""
    each = number(cost["messages_per_node"])
    screen.print(
        f"What travels: {cost['rounds']:,} rounds, {cost['messages']:,} messages ({each} per node){travels}"
    )
    if priced.get("noise_in_result") is not None:
        worst = number(priced["noise_in_result"])
        screen.print(f"Noise in the result of the worst node: {worst} per coordinate")
    _show_verdicts(screen, priced)


def _show_verdicts(screen: Console, priced: Mapping[str, Any]) -> None:
    color = {True: "[green]yes[/green]", False: "[red]no[/red]", None: "not known"}
    private, useful = color[priced["private"]], color[priced["useful"]]
    screen.print(f"[bold]Private: {private}; useful: {useful}.[/bold]")
    screen.print(f"  {safe(priced.get('verdict', 'No budget is given to hold it against.'))}")
    sentence = priced["usefulness"]
    screen.print(f"  {safe(sentence[:1].upper() + sentence[1:])}")
    if priced.get("ways_out"):
        screen.print("The cheapest ways out:")
        for sentence in priced["ways_out"]:
            screen.print(f"  {safe(sentence)}")


def _spoken(key: str) -> str:
    return "nodes" if key == "n" else key.replace("_", " ")


def _said(value: Any) -> bool:
    """Whether a setting is worth a word: what is not given is not."""
    return value is not None and value != [] and value != ""


def _short(value: Any) -> str:
    """Return a setting as a person says it: words and numbers, never a table of the program's own."""
    if isinstance(value, dict):
        name = value.get("name") or value.get("kind") or value.get("net")
        if name:
            return str(name)
        if "start" in value and "shape" in value:  # a learning rate
            start, end = value["start"], value.get("end")
            return _short(start) if end in (None, start) else f"{_short(start)} to {_short(end)}"
        inner = [f"{_spoken(k)} {_short(v)}" for k, v in value.items() if _said(v) and v != 0]
        return ", ".join(inner)
    if isinstance(value, list) and len(value) > 4:
        return f"{_short(value[0])}, {_short(value[1])}, ... ({len(value)})"
    if isinstance(value, list):
        return ", ".join(map(_short, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# ---- sottovoce plan -----------------------------------------------------------------------------------


def plan(
    file: Annotated[Path, typer.Argument(help="A plan file (TOML), as in the example.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the record here.")] = None,
    json: Json = False,
) -> None:
    """Say whether a plan file is private and useful, and what it costs, before it runs.

    Prints one row per adversary with epsilon, delta, adjacency and label, what
    travels, and two verdicts: private (is the \\[budget] met?) and useful (is the
    answer worth having? The error of an average in its own unit; training is
    simulated on synthetic records), with the cheapest ways out. Says which files
    it reads: values of an average never; of training records how many there are,
    which is public, and what the file accepts by name. The exit code is 1 when
    the budget is not met.

    \b
    Example (save as plan.toml, then run: sottovoce plan plan.toml):
      version = 1
      \\[network]
      graph = "hypercube:4"
      \\[protocol]
      name = "masked"
      \\[average]
      radius = 0.5
      adjacency = "user"
      \\[budget]
      epsilon = 2.0
      delta = 1e-5
      view = "network"
    """
    built = built_plan(read_plan(file), file.parent, file.name)
    priced = price(built, simulated=True)
    finish(priced | plan_record(priced, built), json, out, lambda screen: show_price(screen, priced))
    if priced.get("feasible") is False:
        if not json:
            print(f"sottovoce: {priced['verdict']}", file=sys.stderr)
        raise typer.Exit(1)


def require_budget(priced: Mapping[str, Any]) -> None:
    """Refuse to run a plan that does not meet its budget."""
    if priced.get("feasible") is False:
        raise BudgetExceeded(priced["verdict"])
