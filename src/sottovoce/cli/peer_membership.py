"""`sottovoce peer membership`: draft the next agreement of a run whose members, addresses or keys change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.output import Json, emit

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["membership"]


def membership(
    agreement: Annotated[Path, typer.Argument(help="The agreement of the run that is to go on.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Write the next epoch's agreement here.")],
    state: Annotated[
        Path | None, typer.Option(help="This member's state folder of the run; by default in its home.")
    ] = None,
    home: Annotated[Path | None, typer.Option(help="The organization's home.")] = None,
    without: Annotated[list[str] | None, typer.Option(help="A member who leaves.")] = None,
    moved: Annotated[list[str] | None, typer.Option(help="A member's new address: east=host:port.")] = None,
    certificate: Annotated[
        list[Path] | None, typer.Option(help="A member's new certificate, of a new key or a new date.")
    ] = None,
    graph: Annotated[str | None, typer.Option(help="The graph of those who remain.")] = None,
    json: Json = False,
) -> None:
    """Draft the next epoch of a stopped run, and say what it costs together with what was spent.

    The model goes on from where it was, the step under way is done again. Everybody who
    remains reads the file with `peer agree --previous`, signs it, and runs it with --previous.

    \b
    Example:
        sottovoce peer membership agreement.toml --without east -o next.toml
    """
    from sottovoce.accounting.curve import Curve
    from sottovoce.errors import ConfigError
    from sottovoce.ledger.run_ledger import read_ledger
    from sottovoce.peers.agreed_run import AgreedRun
    from sottovoce.peers.agreement import read_agreement
    from sottovoce.peers.identity import read_certificate
    from sottovoce.peers.member_directory import find_member_directory
    from sottovoce.peers.membership_changes import EarlierSpending, draft_membership_change

    old = read_agreement(agreement)
    if state is None:
        at = find_member_directory(home)
        known = None if at is None else at.lifetime_ledger.runs.get(old.run.hex())
        if at is None or known is None:
            raise ConfigError("The run is in no home here; name its state folder with --state.")
        state = at.folder / known.state
    moves = dict(_pair(each) for each in moved or ())
    pems = [read_certificate(each) for each in certificate or ()]
    new = draft_membership_change(
        out, old, state, without=without or (), moved=moves, certificates=pems, graph=graph
    )
    stored = read_ledger(state)
    name, was, agreed_run = old.members[stored["node"]].name, AgreedRun(old), AgreedRun(new)
    delta = new.budget.delta
    spent = was.spent(stored["node"], stored["saved"].releases)
    earlier = EarlierSpending(stored["about"].get("before", ()))
    rows = []
    for node, member in enumerate(new.members):
        adds = agreed_run.charged_guarantee(node)
        # what the others have spent their own ledgers say; members of one run have spent about the same
        total = Curve.total([*earlier.curves, spent.curve, adds.curve]).epsilon(delta)
        rows.append({"member": member.name, "adds": adds.epsilon(delta), "total": total, "view": adds.label})
    found: dict[str, Any] = {
        "run": new.run.hex(),
        "continues": new.continues,
        "membership_version": new.membership_version,
        "file": str(out),
        "model": str(out.with_suffix(".npz")),
        "start": new.start,
        "steps": new.plan.steps,
        "spent_by": name,
        "spent": earlier.total(spent, delta),
        "delta": delta,
        "members": rows,
        "noise_multiplier": new.algorithm.noise_multiplier,
    }

    def text(screen: Console) -> None:
        screen.print(
            f"Membership version {new.membership_version} of {old.run.hex()[:16]}: "
            f"{len(new.members)} members, {new.plan.steps} steps, "
            f"noise multiplier {new.algorithm.noise_multiplier:.4g}."
        )
        screen.print(
            f"{name} has spent epsilon {found['spent']:.4g} at delta {delta:g} so far, the broken step "
            "included."
        )
        for row in rows:
            screen.print(f"  {row['member']}: this adds {row['adds']:.4g}, together {row['total']:.4g}")
        screen.print(f"Written: {out} and {found['model']}; send both to everybody who remains.")

    emit(found, json, text)


def _pair(text: str) -> tuple[str, str]:
    from sottovoce.errors import ConfigError

    name, sign, address = text.partition("=")
    if not sign or not name or not address:
        raise ConfigError(f"--moved takes name=host:port, got {text!r}.")
    return name, address
