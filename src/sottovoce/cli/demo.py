"""`sottovoce demo`: the tour. Sixteen clinics, what they would reveal, what they do, an attack on that."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce._format import number
from sottovoce._io import plain
from sottovoce.cli.output import Json, console, progress, safe, table

if TYPE_CHECKING:
    from rich.console import Console

    from sottovoce.demo.clinics import Consortium

__all__ = ["demo"]


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the report and the records.")] = Path(
        "sottovoce-demo"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions; rougher numbers.")] = False,
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
    from sottovoce.demo import tour

    started = time.perf_counter()
    screen = console()
    if not json:
        _opening(screen)
    with progress("reading the clinics' data", None, quiet=json):
        clinics = tour.consortium()
    records: dict[str, dict[str, Any]] = {}
    show = {
        "reconstruction": _show_reconstruction, "account": _show_account, "averages": _show_averages,
        "training": _show_training, "audit": _show_audit,
    }  # fmt: skip
    for part in tour.parts(quick):
        if part.name == "account":
            records[part.name] = _account(clinics)
        else:
            with progress(part.title, part.ticks, quiet=json) as tick:
                records[part.name] = part.run(clinics, tick).to_dict()
        if not json:
            show[part.name](screen, records[part.name])
    with progress("drawing the report", None, quiet=json):
        report, plan = tour.write(out, clinics, {name: plain(record) for name, record in records.items()})
    seconds = time.perf_counter() - started
    if json:
        import json as json_module

        metrics = {name: record["metrics"] for name, record in records.items()}
        print(
            json_module.dumps(
                plain(metrics) | {"report": str(report), "seconds": round(seconds, 1)}, indent=1
            )
        )
    else:
        _closing(screen, report, plan, seconds)


def _account(clinics: Consortium) -> dict[str, Any]:
    """Return the account of gossip with noise, as the first clinic sees it."""
    from sottovoce.cli.account import record
    from sottovoce.demo import tour

    protocol, assessment = tour.account(clinics)
    return record(clinics.network, protocol, assessment)


# ---- telling it ----------------------------------------------------------------------------------------


def _opening(screen: Console) -> None:
    from rich.panel import Panel

    text = (
        "[bold]Sottovoce[/bold]: private learning without a server\n\n"
        "Sixteen clinics, 28 patients each, want to know the [bold]share of malignant tumours[/bold] among "
        "all "
        "their patients, and to train a common classifier. Each talks to four others. Nobody is trusted.\n"
        "[dim]The clinics are invented, the patients are a public data set (scikit-learn's breast cancer), "
        "and "
        "the noise is simulated: it can be repeated, and would protect nobody.[/dim]"
    )
    screen.print(Panel(text, border_style="cyan", padding=(1, 2)))


def _heading(screen: Console, step: int, text: str) -> None:
    screen.print()
    screen.rule(f"[bold cyan]{step}[/bold cyan]  [bold]{text}[/bold]", align="left", style="cyan")


def _show_reconstruction(screen: Console, record: dict[str, Any]) -> None:
    metrics, names = record["metrics"], record["config"]["labels"]
    observer = names[metrics["observer"]]
    _heading(screen, 1, "Without noise, averaging tells on you")
    screen.print(
        f"The clinics average by gossip, {record['config']['rounds']} rounds, no noise. "
        f"[bold]{observer}[/bold] only "
        "listens to its four neighbors, and solves linear equations in what it heard:"
    )
    rows = [
        [r["name"], r["distance"], f"{r['true']:.4f}", f"{r['recovered']:.4f}"] for r in metrics["recovered"]
    ]
    columns = ["clinic", "hops away", "its true share", f"as computed by {observer}"]
    screen.print(table(columns, rows))
    screen.print(
        f"[bold red]{metrics['count']} of 15[/bold red] clinics' private numbers, to the last digit, some "
        "from four "
        "hops away."
    )


def _show_account(screen: Console, record: dict[str, Any]) -> None:
    metrics = record["metrics"]
    _heading(screen, 2, "The plan, before anything runs")
    screen.print(
        "Now every clinic adds Gaussian noise once. What is left to learn is a share of local privacy: "
        "1.00 means "
        "that the network hides nothing, 0 that it hides everything. The formula in the literature, and "
        "the truth:"
    )
    rows = []
    for row in metrics["by_distance"]:
        exact, formula = row["exact_mean"], row["published_mean"]
        wrong = f"[red]understated {exact / formula:.0f} times[/red]" if exact > 1.5 * formula else ""
        rows.append([row["distance"], row["pairs"], f"{formula:.3f}", f"{exact:.3f}", wrong])
    screen.print(table(["hops away", "clinics", "published formula", "exact", ""], rows))
    screen.print(
        f"The formula understates [bold]{100 * metrics['understated_pairs']:.0f}%[/bold] of these pairs. "
        "Sottovoce "
        "computes the exact share, labels every number, and lets only guarantees accept a budget. Noise "
        "for one "
        "patient at ε = 1 promises:"
    )
    _show_guarantees(screen, record)
    screen.print(
        "[dim]Said plainly: this noise hides a patient, not a clinic. Hiding a whole clinic among sixteen "
        "would "
        "drown the answer.[/dim]"
    )


def _show_guarantees(screen: Console, record: dict[str, Any], limit: int = 6) -> None:
    from sottovoce.accounting.wording import stored_adversary

    names = record["config"].get("labels")
    rows = [
        [g.get("what", ""), stored_adversary(g["adversary"], names), number(g["epsilon"]), f"{g['delta']:g}",
         g["adjacency"], g["label"] if g["valid"] else f"[yellow]{g['label']}[/yellow]"]
        for g in record["guarantees"][:limit]
    ]  # fmt: skip
    columns = ["for", "against", "ε", "δ", "adjacency", "label"]
    if not any(row[0] for row in rows):
        rows, columns = [row[1:] for row in rows], columns[1:]
    screen.print(table(columns, rows))


def _show_averages(screen: Console, record: dict[str, Any]) -> None:
    metrics = record["metrics"]
    _heading(screen, 3, "Private averages: the same answer, less exposure")
    screen.print(
        f"True {metrics['quantity']}: [bold]{metrics['truth']:.3f}[/bold]. One private answer: "
        f"[bold]{metrics['one_answer']:.3f}[/bold]. The noise is the same in every row; what differs is how "
        "much one "
        "clinic learns about a patient of another (ε at δ = 1e-5, one record exchanged):"
    )
    rows = [
        [m["method"], m["trusts"], f"{m['error']:.3f}", f"{m['epsilon_worst']:.2f}",
         f"{m['epsilon_typical']:.2f}", m["messages"]]
        for m in metrics["methods"]
    ]  # fmt: skip
    columns = ["method", "must trust", "error", "ε, worst pair", "ε, typical pair", "messages"]
    screen.print(table(columns, rows))
    screen.print(
        "Gossip hides nothing from a typical clinic; a tree comes close to a trusted curator, without one. "
        "A direct "
        "neighbor still learns as much as local privacy allows, unless the rows carry masks that cancel in "
        "the sum: then every clinic learns as little as from a curator, with the tree's own messages. "
        "[dim]Labels: exact, the curator's row assumes trust, the masks that X25519 and AES-256 hold.[/dim]"
    )


def _show_training(screen: Console, record: dict[str, Any]) -> None:
    metrics = record["metrics"]
    screen.print()
    screen.print(
        f"[bold]Private training[/bold] of a classifier, {record['config']['steps']} steps, at ε = "
        f"{metrics['epsilon']:g}, δ = {metrics['delta']:g} for one patient's record (added or removed):"
    )
    rows = []
    for m in metrics["methods"]:
        bar = "█" * round((100 * m["accuracy"] - 70) / 1.25)
        style = "cyan" if m["private"] else "dim"
        spread = f"± {100 * m['spread']:.1f}" if m["spread"] else ""
        rows.append(
            [m["method"], f"[{style}]{bar}[/{style}]", f"{100 * m['accuracy']:.1f}%", spread, m["against"],
             m["label"] if m["private"] else ""]
        )  # fmt: skip
    screen.print(table(["method", "accuracy (from 70%)", "", "", "ε holds against", "label"], rows))
    screen.print(
        "Exact consensus averages along another public tree in every step; its guarantee against any one "
        "clinic holds for any model. Masks hide each clinic's row among all others', so less noise is "
        "enough. Gossip can promise local privacy only, and pays for it in accuracy. "
        "[dim]Accuracy on 114 patients nobody trained on; mean and deviation of "
        f"{record['config']['repeats']} repetitions (alone: of the 16 clinics). "
        "The settings were chosen with these patients in view: an illustration, not a proof.[/dim]"
    )
    _show_guarantees(screen, record)


def _show_audit(screen: Console, record: dict[str, Any]) -> None:
    metrics = record["metrics"]
    _heading(screen, 4, "An attack on our own claims")
    screen.print(
        f"{metrics['runs']:,} averagings per view under two neighboring inputs; the best linear test tries "
        "to tell them "
        "apart. μ is the distance between the two worlds: claimed at most, shown at least."
    )
    rows = []
    for name, a in metrics["audits"].items():
        verdict = "[bold red]broken[/bold red]" if a["refuted"] else "[green]holds[/green]"
        tight = f"{100 * a['tightness']:.0f}%"
        rows.append([name, a["label"], f"{a['mu_claimed']:.3f}", f"{a['mu_lower']:.3f}", tight, verdict])
    screen.print(table(["view", "claim", "μ claimed", "μ shown", "tightness", ""], rows))
    broken = [a for a in metrics["audits"].values() if a["refuted"]]
    ours = [a for a in broken if a["label"] in ("ldp", "exact")]
    if ours:
        screen.print("[bold red]A guarantee of ours was broken. Please report this.[/bold red]")
    else:
        screen.print(
            f"No guarantee was broken, at {100 * metrics['confidence']:g}% confidence"
            + ("; the published formula was." if broken else ".")
        )


def _closing(screen: Console, written: Path, plan: Path, seconds: float) -> None:
    _heading(screen, 5, "The report")
    screen.print(f"[bold]{written}[/bold]: all of this with pictures, on one page that needs no network.")
    screen.print(f"[dim]{seconds:.0f} seconds.[/dim] Next:")
    for line, about in (
        ("sottovoce account --graph grid:4:4 --observer 0", "your own network"),
        (f"sottovoce plan {plan}", "your own budget: a file to change"),
        ("sottovoce peer --help", "your own organization"),
    ):
        screen.print(f"  {safe(line):50} [dim]{about}[/dim]")
