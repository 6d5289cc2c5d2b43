"""`sottovoce peer membership`: draft the next agreement of a run whose members, addresses or keys change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.output import Json, emit
from sottovoce.cli.peer_options import DirectoryOption

if TYPE_CHECKING:
    from rich.console import Console


def membership(
    agreement: Annotated[Path, typer.Argument(help="The agreement of the run that is to go on.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Write the new agreement here.")],
    state: Annotated[
        Path | None,
        typer.Option(help="This member's state folder of the run; by default in the member directory."),
    ] = None,
    home: DirectoryOption = None,
    without: Annotated[list[str] | None, typer.Option(help="A member who leaves.")] = None,
    moved: Annotated[list[str] | None, typer.Option(help="A member's new address: east=host:port.")] = None,
    certificate: Annotated[
        list[Path] | None, typer.Option(help="A member's new certificate, of a new key or a new date.")
    ] = None,
    graph: Annotated[str | None, typer.Option(help="The graph of those who remain.")] = None,
    json: Json = False,
) -> None:
    """Draft the agreement by which a stopped run continues, and print its cost with what was spent.

    The model continues from its last state, the interrupted step is done again. Every member who
    remains reads the file with `peer agree --previous`, signs it, and runs it with --previous.

    \b
    Example:
        sottovoce peer membership agreement.toml --without east -o next.toml
    """
    from sottovoce.errors import ConfigError
    from sottovoce.peers.agreement import read_agreement
    from sottovoce.peers.identity import read_certificate
    from sottovoce.peers.member_directory import find_member_directory
    from sottovoce.peers.membership_changes import cost_of_change, draft_membership_change

    old = read_agreement(agreement)
    if state is None:
        directory = find_member_directory(home)
        charge = None if directory is None else directory.lifetime_ledger.runs.get(old.run.hex())
        if directory is None or charge is None:
            raise ConfigError("No member directory here knows the run; name its state folder with --state.")
        state = directory.folder / charge.state
    new = draft_membership_change(
        out, old, state, without=without or (), moved=dict(_pair(each) for each in moved or ()),
        certificates=[read_certificate(each) for each in certificate or ()], graph=graph,
    )  # fmt: skip
    result: dict[str, Any] = {
        "run": new.run.hex(), "continues": new.continues, "membership_version": new.membership_version,
        "file": str(out), "model": str(out.with_suffix(".npz")), "start": new.start, "steps": new.plan.steps,
        "noise_multiplier": new.algorithm.noise_multiplier, **cost_of_change(old, new, state),
    }  # fmt: skip

    def text(screen: Console) -> None:
        screen.print(
            f"Membership version {new.membership_version} of {old.run.hex()[:16]}: {len(new.members)} "
            f"members, {new.plan.steps:,} steps, noise multiplier {new.algorithm.noise_multiplier:.4g}."
        )
        screen.print(
            f"{result['spent_by']} has spent epsilon {result['spent']:.4g} at delta {result['delta']:g} so "
            "far, with the interrupted step."
        )
        for row in result["members"]:
            screen.print(f"  {row['member']}: this adds {row['adds']:.4g}, together {row['total']:.4g}")
        screen.print(f"Written: {out} and {result['model']}; send both to every member who remains.")

    emit(result, json, text)


def _pair(text: str) -> tuple[str, str]:
    from sottovoce.errors import ConfigError

    name, sign, address = text.partition("=")
    if not sign or not name or not address:
        raise ConfigError(f"--moved takes name=host:port, got {text!r}.")
    return name, address
