"""`sottovoce demo`: the tour. Sixteen clinics, what they would reveal, what they do, an attack on that."""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from sottovoce._format import fixed, number, percent
from sottovoce._io import to_jsonable
from sottovoce.cli.options import Json
from sottovoce.cli.output import console, progress, safe, table

if TYPE_CHECKING:
    from rich.console import Console


def demo(
    out: Annotated[Path, Option("--out", "-o", help="Folder for the report and the results.")] = Path(
        "sottovoce-demo"
    ),
    quick: Annotated[bool, Option("--quick", help="Fewer repetitions; rougher numbers.")] = False,
    json: Json = False,
) -> None:
    """Take the tour: sixteen clinics, no server, about a minute.

    Shows what averaging reveals without noise, what a plan costs before it
    runs, private averages and private training against their yardsticks, an
    attack on our own claims, and writes a report with pictures. All runs are
    simulations with reproducible noise.

    \b
    Example:
      sottovoce demo --out tour
    """
    from sottovoce.demo import clinics as tour

    started = time.perf_counter()
    screen = console()
    if not json:
        _show_opening(screen)
    with progress("reading the clinics' data", None, quiet=json):
        clinics = tour.consortium()
    results: dict[str, dict[str, Any]] = {}
    for part in tour.parts(quick):
        with progress(part.title, part.ticks, quiet=json) as tick:
            results[part.name] = part.run(clinics, tick).to_dict()
        if not json:
            SHOW[part.name](screen, results[part.name])
    with progress("drawing the report", None, quiet=json):
        report, plan = tour.write(out, clinics, results)
    seconds = time.perf_counter() - started
    if json:
        metrics = {name: result["metrics"] for name, result in results.items()}
        about = {"report": str(report), "seconds": round(seconds, 1)}
        print(json_module.dumps(to_jsonable(metrics) | about, indent=1))
    else:
        _show_closing(screen, report, plan, seconds)


# ---- what the tour prints ------------------------------------------------------------------------------

OPENING = """[bold]Sottovoce[/bold]: private learning without a server

Sixteen clinics, 28 patients each, want to know the [bold]share of malignant tumors[/bold] among all their \
patients, and to train a common classifier. Each talks to four others. No central party is trusted; the \
clinics are curious but follow the rules.

How much can be learned about a patient is bounded by ε: 1 is strong, above about 10 weak. δ is the \
chance that the bound fails.

[dim]The clinics are invented, the patients are a public data set (scikit-learn's breast cancer), and the \
noise is simulated: it can be repeated, and would protect nobody.[/dim]"""
SHARES = """Now every clinic adds Gaussian noise once. The share of what the noise leaves open: at 1.00 \
Acquarosa learns all that the noise permits, at 0 it learns nothing. The formula in the literature, and the \
truth:"""
UNDERSTATES = """The formula understates [bold]{share:.0f} %[/bold] of these pairs. Sottovoce computes the \
exact share and checks only guarantees against a budget.

Noise for one patient at ε = 1 promises the following; the best guess at one patient's record is right \
{guess}. Labels: ldp holds whatever the others do, exact is computed from all that this clinic sees."""
ONE_PATIENT = """[dim]Said plainly: this noise hides a patient, not a clinic. Hiding a whole clinic among \
sixteen would drown the answer.[/dim]"""
AVERAGE = """True {quantity}: [bold]{truth:.3f}[/bold]. One private answer: [bold]{one_answer:.3f}[/bold]. \
The noise is the same in every row; what differs is how much one clinic learns about a patient of another \
(ε at δ = 1e-5, one record exchanged):"""
MASKS = """Gossip hides nothing from a typical clinic; a tree comes close to a trusted curator, without one. \
A direct neighbor still learns as much as local privacy allows, unless the rows carry masks that cancel in \
the sum: then every clinic learns about as little as from a curator, with the tree's own messages. [dim]The \
curator's row assumes trust in the curator, the masks assume that standard encryption is not \
broken.[/dim]"""
CONSENSUS = """Exact consensus averages along another public tree in every step; its guarantee against any \
one clinic holds for any model. Masks hide each clinic's row among all others', so less noise is enough. \
Gossip can promise local privacy only, and pays for it in accuracy. [dim]Accuracy on 114 patients nobody \
trained on; mean and deviation of {repeats} repetitions (alone: of the 16 clinics). The settings were chosen \
with these patients in view: an illustration, not a proof.[/dim]"""
AUDIT = """Acquarosa tries to tell which of two values a neighbor (Belmirto) or the farthest clinic \
(Torrelieve) holds, by the best linear test over {runs:,} averagings each. μ measures how well it can, as ε \
does: 0 not at all, 2 in 84 of 100 cases. Tightness is the μ that the attack reached over the μ that was \
claimed: near 100 % a claim is no larger than needed, above 100 % it is wrong."""


def _show_opening(screen: Console) -> None:
    from rich.panel import Panel

    screen.print(Panel(OPENING, border_style="cyan", padding=(1, 2)))


def _heading(screen: Console, step: int, text: str) -> None:
    screen.print()
    screen.rule(f"[bold cyan]{step}[/bold cyan]  [bold]{text}[/bold]", align="left", style="cyan")


def _show_reconstruction(screen: Console, result: Mapping[str, Any]) -> None:
    metrics, config = result["metrics"], result["config"]
    observer = config["labels"][metrics["observer"]]
    _heading(screen, 1, "Without noise, averaging tells on you")
    screen.print(
        f"The clinics average by gossip, {config['rounds']} rounds, no noise. [bold]{observer}[/bold] only "
        "listens to its four neighbors, and solves linear equations in what it heard:"
    )
    rows = [
        [row["name"], row["distance"], f"{row['true']:.4f}", f"{row['recovered']:.4f}"]
        for row in metrics["recovered"]
    ]
    screen.print(table(["clinic", "hops away", "its true share", f"as computed by {observer}"], rows))
    count = f"[bold red]{metrics['count']} of 15[/bold red]"
    screen.print(f"{count} clinics' private numbers, to the last digit, some from four hops away.")


def _show_account(screen: Console, result: Mapping[str, Any]) -> None:
    from sottovoce.accounting.wording import guess

    _heading(screen, 2, "The plan, before anything runs")
    screen.print(SHARES)
    rows = []
    for row in result["metrics"]["by_distance"]:
        exact, formula = row["exact_mean"], row["published_mean"]
        wrong = f"[red]understated {exact / formula:.0f} times[/red]" if exact > 1.5 * formula else ""
        rows.append([row["distance"], row["pairs"], fixed(formula), fixed(exact, "share"), wrong])
    screen.print(table(["hops away", "clinics", "published formula", "exact", ""], rows))
    one = guess(result["guarantees"][0]["best_guess"])
    screen.print(UNDERSTATES.format(share=100 * result["metrics"]["understated_pairs"], guess=one))
    _show_guarantees(screen, result)
    screen.print(ONE_PATIENT)


def _show_guarantees(screen: Console, result: Mapping[str, Any]) -> None:
    from sottovoce.accounting.wording import stored_adversary

    names, rows = result["config"].get("labels"), []
    for g in result["guarantees"][:6]:
        label = g["label"] if g["valid"] else f"[yellow]{g['label']}[/yellow]"
        against = stored_adversary(g["adversary"], names, "clinic")
        hidden = "a whole clinic" if g["adjacency"] == "user" else "one patient"
        numbers = [number(g["epsilon"], "epsilon"), number(g["delta"], "delta")]
        rows.append([g.get("what", ""), hidden, against, *numbers, label])
    columns = ["method", "hides", "against", "ε", "δ", "label"]
    first = 0 if result["name"] == "training" else 1
    screen.print(table(columns[first:], [row[first:] for row in rows]))


def _show_averages(screen: Console, result: Mapping[str, Any]) -> None:
    _heading(screen, 3, "Private averages: the same answer, less exposure")
    screen.print(AVERAGE.format_map(result["metrics"]))
    rows = []
    for m in result["metrics"]["methods"]:
        epsilons = [fixed(m[key], "epsilon") for key in ("epsilon_worst", "epsilon_typical")]
        rows.append([m["method"], m["trusts"], f"{m['error']:.3f}", *epsilons, m["messages"]])
    columns = ["method", "must trust", "error", "ε, worst pair", "ε, typical pair", "messages"]
    screen.print(table(columns, rows))
    screen.print(MASKS)


def _show_training(screen: Console, result: Mapping[str, Any]) -> None:
    metrics, config = result["metrics"], result["config"]
    screen.print()
    screen.print(
        f"[bold]Private training[/bold] of a classifier, {config['steps']} steps, at ε = "
        f"{number(metrics['epsilon'], 'limit')}, δ = {number(metrics['delta'], 'delta')} for one patient's "
        "record (added or removed):"
    )
    rows = []
    for m in metrics["methods"]:
        style, label = ("cyan", m["label"]) if m["private"] else ("dim", "")
        bar = f"[{style}]{'█' * round((100 * m['accuracy'] - 70) / 1.25)}[/{style}]"
        spread = f"± {100 * m['spread']:.1f}" if m["spread"] else ""
        against = m["against"] if m["private"] else "not private"
        rows.append([m["method"], bar, f"{100 * m['accuracy']:.1f} %", spread, against, label])
    screen.print(table(["method", "accuracy (from 70 %)", "", "", "ε holds against", "label"], rows))
    screen.print(CONSENSUS.format_map(config))
    _show_guarantees(screen, result)


def _show_audit(screen: Console, result: Mapping[str, Any]) -> None:
    metrics = result["metrics"]
    _heading(screen, 4, "An attack on our own claims")
    ours = [a["refuted"] for a in metrics["audits"].values() if a["label"] in ("ldp", "exact")]
    sure = f"at {100 * metrics['confidence']:g} % confidence"
    screen.print(f"[bold]Our guarantees: {sum(ours)} of {len(ours)} refuted[/bold], {sure}.")
    screen.print(AUDIT.format_map(metrics))
    rows = []
    for name, a in metrics["audits"].items():
        what = "formula" if a["label"] == "published" else "guarantee"
        verdict = f"[bold red]{what} refuted[/bold red]" if a["refuted"] else "[green]holds[/green]"
        numbers = [
            fixed(a["mu_claimed"], "mu"),
            fixed(a["mu_lower"], "lower bound"),
            percent(a["tightness"], "lower bound", 0),
        ]
        rows.append([name, a["label"], *numbers, verdict])
    columns = ["attack on", "label", "μ claimed, at most", "μ reached, at least", "tightness", ""]
    screen.print(table(columns, rows))
    if any(ours):
        screen.print("[bold red]A guarantee of ours was refuted. Please report this.[/bold red]")


SHOW = {
    "reconstruction": _show_reconstruction,
    "account": _show_account,
    "averages": _show_averages,
    "training": _show_training,
    "audit": _show_audit,
}


def _show_closing(screen: Console, written: Path, plan: Path, seconds: float) -> None:
    _heading(screen, 5, "The report")
    screen.print(f"[bold]{written}[/bold]: all of this with pictures, on one page that needs no network.")
    screen.print(f"[dim]{seconds:.0f} seconds.[/dim] Next:")
    for line, about in (
        ("sottovoce account --graph grid:4:4 --observer 0", "another network"),
        (f"sottovoce plan {plan}", "your own budget: a file to change"),
        ("sottovoce peer --help", "your own organization"),
    ):
        screen.print(f"  {safe(line):50} [dim]{about}[/dim]")
