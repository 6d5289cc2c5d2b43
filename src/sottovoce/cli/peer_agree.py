"""`sottovoce peer agree`: build, check and sign an agreement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.output import Json, console, emit, progress, safe, table
from sottovoce.cli.peer_options import DirectoryOption, Population, PreviousOption

if TYPE_CHECKING:
    from rich.console import Console

    from sottovoce.peers.agreement import Agreement
    from sottovoce.peers.signing import Forecast


def agree(
    file: Annotated[Path, typer.Argument(help="A draft (with --member and --out) or an agreement.")],
    member: Annotated[
        list[str] | None, typer.Option("--member", "-m", help="CERTIFICATE@HOST:PORT, in the graph's order.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the agreement here.")] = None,
    sign: Annotated[Path | None, typer.Option(help="Sign with the identity in this folder.")] = None,
    merge: Annotated[
        list[Path] | None, typer.Option(help="Add the signatures in another member's copy.")
    ] = None,
    home: DirectoryOption = None,
    population: Population = None,
    previous: PreviousOption = None,
    data: Annotated[
        Path | None, typer.Option(help="Also check this member's records against the agreement.")
    ] = None,
    yes: Annotated[
        str, typer.Option(help="The run's hash, or its first 8 digits, as confirmation of what is signed.")
    ] = "",
    exact: Annotated[
        bool, typer.Option("--exact", help="Compute the cost against each single member of long runs, too.")
    ] = False,
    json: Json = False,
) -> None:
    """Build, check and sign an agreement; its privacy cost is printed before anything is signed.

    A member with a directory reads the summary first, without --sign; signing then needs the run's hash that
    the summary names. When a run continues after a change of membership, --previous counts what the run
    before has released instead of all that it had planned.

    \b
    Examples:
        sottovoce peer agree draft.toml -m north.pem@10.0.0.1:7000 -m south.pem@10.0.0.2:7000 -o a.toml
        sottovoce peer agree agreement.toml
        sottovoce peer agree agreement.toml --data mine.csv
        sottovoce peer agree agreement.toml --sign identity --yes 3f54dcc1
        sottovoce peer agree agreement.toml --merge from-south.toml
        sottovoce peer agree next.toml --previous agreement.toml
    """
    from sottovoce.errors import ConfigError
    from sottovoce.peers.agreed_run import AgreedRun
    from sottovoce.peers.agreement import merge_signatures, read_agreement, sign_agreement
    from sottovoce.peers.identity import read_identity
    from sottovoce.peers.member_data import read_records
    from sottovoce.peers.member_directory import find_member_directory
    from sottovoce.peers.signing import add_members, forecast, require_valid_signatures, signed_by
    from sottovoce.peers.signing_summary import signing_summary

    directory = find_member_directory(home, identity=sign)
    if member:
        if out is None:
            raise ConfigError("Building an agreement needs --out, the file to write.")
        agreement, file = add_members(file, member, out), out
    else:
        agreement = read_agreement(file)
    pairs = len(agreement.members) * (len(agreement.members) - 1)
    with progress("pairs of members", pairs if exact else None, quiet=json or not exact) as tick:
        agreed_run = AgreedRun(agreement, exact=exact, progress=tick)
        rows = agreed_run.table()
    summary = signing_summary(agreed_run)
    if data is not None:
        read_records(data, agreement)
    if not json:
        _show_summary(console(), summary)
        _show_cost(console(), agreement, rows)
    for node in range(agreed_run.n):
        agreed_run.spending(node)
    earlier = [read_agreement(each) for each in previous or ()]
    expected = forecast(directory, agreed_run, population=population, previous=earlier)
    if not json:
        _show_forecast(console(), expected)
    expected.require()
    for copy in merge or ():
        require_valid_signatures(read_agreement(copy), str(copy))
        agreement = merge_signatures(file, copy)
    if sign is not None:
        if directory is not None and (len(yes) < 8 or not agreement.run.hex().startswith(yes)):
            raise ConfigError(
                f"Signing needs the hash of what was read, got {yes!r}; read the summary without --sign, "
                f"then add --yes {agreement.run.hex()[:16]}."
            )
        agreement = sign_agreement(file, read_identity(sign), secrets=sign)
    signed = signed_by(agreement)
    missing = [each.name for each in agreement.members if each.name not in signed]
    result = {
        "file": str(file), "run": agreement.run.hex(), "rounds": agreed_run.rounds, "members": rows,
        "summary": summary, "lifetime": list(expected.lifetime), "earlier": expected.earlier,
        "remarks": list(expected.remarks), "signed": signed, "missing": missing,
    }  # fmt: skip
    emit(result, json, lambda screen: _show_signatures(screen, agreement, signed, missing))


def _show_summary(screen: Console, summary: dict[str, Any]) -> None:
    rows = [(each["name"], each["address"], each["words"]) for each in summary["members"]]
    screen.print(table(["member", "address", "words of its certificate"], rows, title=safe(summary["title"])))
    screen.print("Connections: " + ", ".join(f"{u} - {v}" for u, v in summary["connections"]))
    for part in ("algorithm", "model", "data", "timing"):
        options = ", ".join(f"{name} = {value}" for name, value in summary[part].items())
        screen.print(safe(f"{part.capitalize()}: {options or _not_agreed(part, summary)}"))
    for sentence in summary["assumptions"]:
        screen.print(safe(f"Assumed: {sentence}"))


def _not_agreed(part: str, summary: dict[str, Any]) -> str:
    width = summary["model"].get("parameters")
    if part == "data" and summary["model"].get("kind") != "mean" and width is not None:
        return f"not agreed. Every member must prepare the same {width} columns in the same order."
    return "the defaults"


def _show_cost(screen: Console, agreement: Agreement, rows: list[dict[str, Any]]) -> None:
    algorithm = agreement.algorithm
    protocol = algorithm.protocol or agreement.plan.schedule(0).name
    screen.print(safe(f"{agreement.title}: {algorithm.name} over {protocol} on {agreement.graph}"))
    screen.print(f"Run {agreement.run.hex()}")
    masked = "epsilon_colluders" in rows[0]
    views = ("local", *(["colluders"] if masked else []), "network", "mean")
    cells = [
        (
            row["member"],
            row["releases"],
            *(f"{row[f'epsilon_{view}']:.4g} ({row[f'label_{view}']})" for view in views),
            f"{row['budget']:g}",
        )
        for row in rows
    ]
    many = rows[0].get("tolerate")
    colluders = f"any {'one member' if many == 1 else f'{many} members'} (charged to the budget)"
    heads = ["own noise alone", colluders] if masked else ["all messages seen"]
    columns = ["member", "releases", *heads, "worst member", "mean member", "budget"]
    title = f"Epsilon at delta {agreement.budget.delta:g}, adjacency {algorithm.adjacency}"
    screen.print(table(columns, cells, title=title))


def _show_forecast(screen: Console, expected: Forecast) -> None:
    if expected.earlier is not None:
        row = expected.earlier
        screen.print(
            f"Agreed budget (delta {row['delta']:g}): spent before {row['spent']:.4g} + new "
            f"{row['adds']:.4g} = total {row['total']:.4g} of {row['epsilon']:g}; "
            "the interrupted step is counted in both"
        )
    for row in expected.lifetime:
        screen.print(
            f"Lifetime budget ({row['adjacency']}, {row['view']}, delta {row['delta']:g}): spent "
            f"{row['spent']:.4g} + new {row['adds']:.4g} = total {row['total']:.4g} of {row['epsilon']:g}"
        )
    for remark in expected.remarks:
        screen.print(safe(f"Note: {remark}"))


def _show_signatures(screen: Console, agreement: Agreement, signed: list[str], missing: list[str]) -> None:
    screen.print(f"Signed by {', '.join(signed) or 'nobody yet'}")
    invalid = [name for name in missing if name in agreement.signatures]
    if invalid:
        screen.print(f"Invalid signature: {', '.join(invalid)}")
    if missing:
        screen.print(f"Still to sign: {', '.join(missing)}")
