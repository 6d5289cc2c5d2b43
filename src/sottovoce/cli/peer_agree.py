"""`sottovoce peer agree`: from a draft to an agreement that everybody has read, priced and signed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.output import Json, console, emit, progress, safe, table
from sottovoce.cli.peer_options import HomeOption, Population, PreviousOption

if TYPE_CHECKING:
    from rich.console import Console

    from sottovoce.peers.agreed_run import AgreedRun
    from sottovoce.peers.agreement import Agreement
    from sottovoce.peers.member_directory import MemberDirectory
    from sottovoce.peers.membership_changes import SettledSpending

__all__ = ["agree"]


def agree(
    file: Annotated[Path, typer.Argument(help="A draft (with --member and --out) or an agreement.")],
    member: Annotated[
        list[str] | None, typer.Option("--member", "-m", help="CERTIFICATE@HOST:PORT, in the graph's order.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the agreement here.")] = None,
    sign: Annotated[Path | None, typer.Option(help="Sign with the identity in this folder.")] = None,
    merge: Annotated[
        list[Path] | None, typer.Option(help="Take over the signatures in another member's copy.")
    ] = None,
    home: HomeOption = None,
    population: Population = None,
    previous: PreviousOption = None,
    data: Annotated[
        Path | None, typer.Option(help="Check this member's records against the agreement, too.")
    ] = None,
    yes: Annotated[
        str, typer.Option(help="The run's hash, or its first 8 digits: what was read is what is signed.")
    ] = "",
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Price long runs over drawn trees against single members, too."),
    ] = False,
    json: Json = False,
) -> None:
    """Build, check, price and sign an agreement; what it costs is printed before anything is signed.

    In a home the sheet is read first, without --sign; signing then needs the run's hash that it names.
    Of an epoch --previous counts what the run before has released, instead of all that it had planned.

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
    from sottovoce.peers.signing_summary import signing_summary

    own = find_member_directory(home, identity=sign)
    if member:
        if out is None:
            raise ConfigError("Building an agreement needs --out, the file to write.")
        agreement, file = _build(file, member, out), out
    else:
        agreement = read_agreement(file)
    pairs = len(agreement.members) * (len(agreement.members) - 1)
    with progress("pairs of members priced", pairs if exact else None, quiet=json or not exact) as tell:
        agreed_run = AgreedRun(agreement, exact=exact, progress=tell)
        rows = agreed_run.table()
    page = signing_summary(agreed_run)
    if data is not None:
        read_records(data, agreement)
    if not json:
        _show_sheet(console(), page)
        _show_price(console(), agreement, rows)
    for node in range(agreed_run.n):
        agreed_run.spending(node)
    settled = _settled(own, agreement, previous or [])
    after = [] if own is None else _against_book(own, agreed_run, population, settled)
    epochs = _over_epochs(own, agreed_run, settled)
    if not json:
        _show_forecast(console(), after, epochs, settled.remarks)
    _refuse_overdraft(after)
    for other in merge or ():
        _require_whole(read_agreement(other), str(other))
        agreement = merge_signatures(file, other)
    if sign is not None and own is not None and (len(yes) < 8 or not agreement.run.hex().startswith(yes)):
        raise ConfigError(
            f"Signing needs the hash of what was read, got {yes!r}; read the sheet without --sign, then add "
            f"--yes {agreement.run.hex()[:16]}."
        )
    if sign is not None:
        agreement = sign_agreement(file, read_identity(sign), secrets=sign)
    signed = _verified(agreement)
    missing = [m.name for m in agreement.members if m.name not in signed]
    found = {
        "file": str(file),
        "run": agreement.run.hex(),
        "rounds": agreed_run.rounds,
        "members": rows,
        "sheet": page,
        "book": after,
        "epochs": epochs,
        "remarks": list(settled.remarks),
        "signed": signed,
        "missing": missing,
    }
    emit(found, json, lambda out: _show_signatures(out, agreement, signed, missing))


def _build(draft: Path, members: list[str], output: Path) -> Agreement:
    import tomllib

    from sottovoce.errors import ConfigError
    from sottovoce.peers.agreement import member_entry, write_agreement
    from sottovoce.peers.identity import read_certificate

    entries = []
    for text in members:
        certificate, at, address = text.rpartition("@")
        if not at or not certificate:
            raise ConfigError(f"A member is CERTIFICATE@HOST:PORT, got {text!r}.")
        entries.append(member_entry(read_certificate(certificate), address))
    try:
        content = tomllib.loads(draft.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"The draft {draft} cannot be read: {error}.") from None
    for taken in ("members", "signatures"):
        if taken in content:
            raise ConfigError(f"The draft {draft} must not hold [{taken}]; members are given with --member.")
    return write_agreement(output, content, entries)


def _show_sheet(out: Console, page: dict[str, Any]) -> None:
    rows = [(each["name"], each["address"], each["words"]) for each in page["members"]]
    out.print(table(["member", "address", "words of its certificate"], rows, title=safe(page["title"])))
    out.print("connections: " + ", ".join(f"{u} - {v}" for u, v in page["connections"]))
    for part in ("algorithm", "model", "data", "timing"):
        stated = ", ".join(f"{name} = {value}" for name, value in page[part].items())
        out.print(safe(f"{part}: {stated or 'as the program has it'}"))
    for sentence in page["assumptions"]:
        out.print(safe(f"assumed: {sentence}"))


def _show_price(out: Console, agreement: Agreement, rows: list[dict[str, Any]]) -> None:
    part = agreement.algorithm
    protocol = part.protocol or agreement.plan.schedule(0).name
    out.print(safe(f"{agreement.title}: {part.name} over {protocol} on {agreement.graph}"))
    out.print(f"run {agreement.run.hex()}")
    charged = [view for view in ("colluders",) if f"epsilon_{view}" in rows[0]]  # with masks
    shown = [
        (
            row["member"],
            row["releases"],
            *(
                f"{row[f'epsilon_{view}']:.4g} ({row[f'label_{view}']})"
                for view in ("local", *charged, "network", "mean")
            ),
            f"{row['budget']:g}",
        )
        for row in rows
    ]
    colluders = [f"any {rows[0]['tolerate']} members (charged)"] if charged else []
    own = "own noise alone" if charged else "all messages seen"
    heads = ["member", "releases", own, *colluders, "worst member", "mean member", "budget"]
    title = f"epsilon at delta {agreement.budget.delta:g}, adjacency {part.adjacency}"
    out.print(table(heads, shown, title=title))


def _show_signatures(out: Console, agreement: Agreement, signed: list[str], missing: list[str]) -> None:
    out.print(f"signed by {', '.join(signed) or 'nobody yet'}")
    false = [name for name in missing if name in agreement.signatures]
    if false:
        out.print(f"not a valid signature: {', '.join(false)}")
    if missing:
        out.print(f"still to sign: {', '.join(missing)}")


def _verified(agreement: Agreement) -> list[str]:
    """Return the members whose signature is there and is theirs."""
    from sottovoce.peers.identity import verify

    signed = []
    for member in agreement.members:
        try:
            raw = bytes.fromhex(agreement.signatures.get(member.name, ""))
            content = agreement.signed_content(member.name)
        except ValueError:
            continue
        if raw and verify(member.certificate.encode(), raw, content):
            signed.append(member.name)
    return sorted(signed)


def _require_whole(agreement: Agreement, where: str) -> None:
    """Raise if a copy brings a signature that is not its member's: it would overwrite a good one."""
    from sottovoce.errors import IdentityError

    false = sorted(set(agreement.signatures) - set(_verified(agreement)))
    if false:
        raise IdentityError(
            f"The signature of {false[0]} in {where} is not for this text, so nothing was taken over; ask "
            f"{false[0]} for a copy."
        )


def _settled(own: MemberDirectory | None, agreement: Agreement, previous: list[Path]) -> SettledSpending:
    """Return what the epochs before have cost this home, where this is an epoch that it has not begun."""
    from sottovoce.peers.agreement import read_agreement
    from sottovoce.peers.membership_changes import SettledSpending, other_model, settle

    if own is None or not agreement.continues:
        return SettledSpending()
    known = own.lifetime_ledger.runs
    if agreement.run.hex() in known or (agreement.continues not in known and not previous):
        return SettledSpending()
    if not previous:
        remark = (
            f"the run {agreement.continues[:16]} that this epoch continues is counted whole, as planned; "
            "--previous with its agreement counts what it has released"
        )
        return SettledSpending(remarks=(remark,))
    settled = settle([read_agreement(each) for each in previous], agreement, own.name, member_directory=own)
    return replace(settled, remarks=(*settled.remarks, *other_model(agreement, settled.place)))


def _against_book(
    own: MemberDirectory, agreed_run: AgreedRun, population: str | None, settled: SettledSpending
) -> list[dict[str, Any]]:
    """Return what the home has spent, what the agreement adds and the total, for each lifetime budget."""
    own.pinned_certificates.require(agreed_run.agreement, own.identity.fingerprint)
    node = agreed_run.agreement.index(own.name)
    cost = own.charge_of(agreed_run, node, population=population, continues=settled.runs)
    return own.lifetime_ledger.forecast(cost, closing=settled.closings)


def _over_epochs(
    own: MemberDirectory | None, agreed_run: AgreedRun, settled: SettledSpending
) -> dict[str, Any] | None:
    """Return what all epochs cost together of the agreed budget, or raise where they do not fit it."""
    if own is None or not settled.before.parts:
        return None
    node, budget = agreed_run.agreement.index(own.name), agreed_run.agreement.budget
    settled.before.require(agreed_run, node)
    charged_guarantee = agreed_run.charged_guarantee(node)
    return {
        "spent": settled.before.spent(budget.delta),
        "adds": charged_guarantee.epsilon(budget.delta),
        "total": settled.before.total(charged_guarantee, budget.delta),
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "parts": [{"run": part["run"], "ledger": part["ledger"]} for part in settled.before.parts],
    }


def _show_forecast(
    out: Console, rows: list[dict[str, Any]], epochs: dict[str, Any] | None, remarks: Iterable[str]
) -> None:
    if epochs is not None:
        out.print(
            f"agreed budget (delta {epochs['delta']:g}): epochs before {epochs['spent']:.4g} + new "
            f"{epochs['adds']:.4g} = total {epochs['total']:.4g} of {epochs['epsilon']:g}; the step that was "
            "broken off is in both"
        )
    for row in rows:
        out.print(
            f"book ({row['adjacency']}, {row['view']}, delta {row['delta']:g}): spent {row['spent']:.4g} + "
            f"new {row['adds']:.4g} = total {row['total']:.4g} of {row['epsilon']:g}"
        )
    for remark in remarks:
        out.print(safe(f"remark: {remark}"))


def _refuse_overdraft(rows: list[dict[str, Any]]) -> None:
    from sottovoce.errors import BudgetExceeded

    for row in rows:
        if not row["total"] <= row["epsilon"]:
            raise BudgetExceeded(
                f"Spent so far {row['spent']:.4g}, this adds {row['adds']:.4g}, total {row['total']:.4g} of "
                f"a lifetime budget of {row['epsilon']:g} ({row['adjacency']}, {row['view']}), so it is not "
                "signed; agree on more noise or fewer steps, or raise the budget with `peer budget --raise`."
            )
