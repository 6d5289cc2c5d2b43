"""`sottovoce peer draft, agree, membership`: write, check, sign and change agreements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from sottovoce._format import number, significant
from sottovoce.cli.options import Json
from sottovoce.cli.output import console, emit, template
from sottovoce.cli.peer_options import (
    DirectoryOption,
    Population,
    PreviousOption,
    StateOption,
    require_directory,
)
from sottovoce.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from sottovoce.peers.agreement import Agreement


def draft(
    plan: Annotated[Path, Argument(help="A plan file that sottovoce plan calls private and useful.")],
    out: Annotated[Path, Option("--out", "-o", help="Write the draft here.")] = Path("draft.toml"),
    json: Json = False,
) -> None:
    """Write the draft of an agreement that says what a plan file says; peer agree adds the members.

    The noise is the plan's. A member is charged for what the plan states against its members where sums are
    masked, and else for its own noise alone, as if all others colluded.
    """
    from sottovoce._io import atomic_write
    from sottovoce.planfile.agreement_draft import draft_agreement
    from sottovoce.planfile.read import load_file

    if out.exists():
        raise ConfigError(f"{out} exists already; name another file with --out.")
    atomic_write(out, draft_agreement(load_file(plan), plan.name))
    next_step = f"Written to {out}. Next: sottovoce peer agree {out} -m CERTIFICATE@HOST:PORT ..."
    emit({"draft": str(out)}, json, [next_step])


def agree(
    file: Annotated[Path, Argument(help="A draft (with --member and --out) or an agreement.")],
    member: Annotated[list[str] | None, Option("-m", "--member", help="CERTIFICATE@HOST:PORT.")] = None,
    out: Annotated[Path | None, Option("--out", "-o", help="Write the agreement here.")] = None,
    sign: Annotated[Path | None, Option(help="Sign with the identity in this folder.")] = None,
    merge: Annotated[list[Path] | None, Option(help="Add the signatures in another member's copy.")] = None,
    directory: DirectoryOption = None,
    population: Population = None,
    previous: PreviousOption = None,
    data: Annotated[Path | None, Option(help="Also check this member's records.")] = None,
    yes: Annotated[str, Option(help="The run's hash, or its first 8 digits, after reading.")] = "",
    json: Json = False,
) -> None:
    """Build, check and sign an agreement; its privacy cost is printed before anything is signed.

    A member with a directory reads the summary first, without --sign; signing then needs the run's hash that
    the summary names. Members are in the order of the graph's nodes. When a run continues after a change of
    membership, --previous counts what the run before has released instead of all that it had planned.

    \b
    Examples:
        sottovoce peer agree draft.toml -m north.pem@10.0.0.1:7000 -m south.pem@10.0.0.2:7000 -o a.toml
        sottovoce peer agree agreement.toml --data mine.csv
        sottovoce peer agree agreement.toml --sign identity --yes 3f54dcc1
        sottovoce peer agree agreement.toml --merge from-south.toml
        sottovoce peer agree next.toml --previous agreement.toml
    """
    from sottovoce.peers.agreed_run import AgreedRun
    from sottovoce.peers.agreement import add_members, merge_signatures, read_agreement, sign_agreement
    from sottovoce.peers.forecast import forecast
    from sottovoce.peers.identity import read_identity
    from sottovoce.peers.member_data import read_records
    from sottovoce.peers.member_directory import find_member_directory
    from sottovoce.peers.statements import signing_summary

    own = find_member_directory(directory, identity=sign)
    if member:
        if out is None:
            raise ConfigError("Building an agreement needs --out, the file to write.")
        agreement, file = add_members(file, member, out), out
    else:
        agreement = read_agreement(file)
    agreed_run = AgreedRun(agreement)
    rows, summary = agreed_run.table(), signing_summary(agreed_run)
    if data is not None:
        read_records(data, agreement)
    if not json:
        _readable(agreement, summary, rows)(console())
    for node in range(agreed_run.n):
        agreed_run.spending(node)
    earlier = [read_agreement(each) for each in previous or ()]
    expected = forecast(own, agreed_run, population=population, previous=earlier)
    if not json:
        template("forecast", expected=expected)(console())
    expected.require()
    for copy in merge or ():
        agreement = merge_signatures(file, copy)
    if sign is not None:
        if own is not None and (len(yes) < 8 or not agreement.run_id.hex().startswith(yes)):
            raise ConfigError(
                f"Signing needs the hash of what was read, got {yes!r}; read the summary without --sign, "
                f"then add --yes {agreement.run_id.hex()[:16]}."
            )
        agreement = sign_agreement(file, read_identity(sign), secrets=sign)
    signatures = agreement.check_signatures()
    signed = signatures.valid
    missing = [name for name in agreement.names if name not in signed]
    result = {
        "file": str(file),
        "run_id": agreement.run_id.hex(),
        "rounds": agreed_run.rounds,
        "members": rows,
        "summary": summary,
        "lifetime": list(expected.lifetime),
        "earlier": expected.earlier,
        "remarks": list(expected.remarks),
        "signed": signed,
        "missing": missing,
    }
    lines = [f"Signed by {', '.join(signed) or 'nobody yet'}"]
    if signatures.invalid:
        lines.append(f"Invalid signature: {', '.join(signatures.invalid)}")
    if missing:
        lines.append(f"Still to sign: {', '.join(missing)}")
    emit(result, json, lines)


def _readable(
    agreement: Agreement, summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> Callable[[Console], None]:
    """Return what prints an agreement with its cost for every member."""
    many = rows[0].get("tolerate")
    views = {"local": "all others together"}
    if many:  # masked sums
        views["colluders"] = f"any {'one member' if many == 1 else f'{many} members'} (charged to the budget)"
    views["network"] = "one member, the worst"
    costs = []
    for row in rows:
        epsilons = [f"{number(row[f'epsilon_{view}'], 'epsilon')} ({row[f'label_{view}']})" for view in views]
        costs.append([row["member"], row["releases"], *epsilons, number(row["budget"], "limit")])
    return template(
        "agreement",
        agreement=agreement,
        protocol=agreement.algorithm.protocol or agreement.plan.schedule(0).name,
        summary=summary,
        members=[list(each.values()) for each in summary["members"]],
        views=list(views.values()),
        costs=costs,
    )


def membership(
    agreement: Annotated[Path, Argument(help="The agreement of the run that is to go on.")],
    out: Annotated[Path, Option("--out", "-o", help="Write the new agreement here.")],
    state: StateOption = None,
    directory: DirectoryOption = None,
    without: Annotated[list[str] | None, Option(help="A member who leaves.")] = None,
    moved: Annotated[list[str] | None, Option(help="A member's new address: east=host:port.")] = None,
    certificate: Annotated[list[Path] | None, Option(help="A member's new certificate.")] = None,
    graph: Annotated[str | None, Option(help="The graph of those who remain.")] = None,
    json: Json = False,
) -> None:
    """Draft the agreement by which a stopped run continues.

    The model continues from its last state, the interrupted step is done again. Every member who
    remains reads the file with `peer agree --previous`, signs it, and runs it with --previous.
    """
    from sottovoce.peers.agreement import read_agreement
    from sottovoce.peers.identity import read_certificate
    from sottovoce.peers.membership_changes import draft_membership_change

    old = read_agreement(agreement)
    if state is None:
        own = require_directory(directory)
        state = own.folder / own.lifetime_ledger.run(old.run_id.hex()).state
    new = draft_membership_change(
        out,
        old,
        state,
        without=without or (),
        moved=dict(_moved(each) for each in moved or ()),
        certificates=[read_certificate(each) for each in certificate or ()],
        graph=graph,
    )
    version, noise = new.membership_version, new.algorithm.noise_multiplier
    result = {
        "run_id": new.run_id.hex(),
        "continues": new.continues,
        "membership_version": version,
        "file": str(out),
        "model": str(out.with_suffix(".npz")),
        "start": new.start,
        "steps": new.plan.steps,
        "noise_multiplier": noise,
    }
    lines = [
        f"Membership version {version} of {old.run_id.hex()[:16]}: {len(new.members)} members, "
        f"{new.plan.steps:,} steps, noise multiplier {significant(noise, 'noise')}.",
        f"Written: {out} and {result['model']}; send both to every member who remains.",
        f"Its cost, with what was spent before: sottovoce peer agree {out} --previous {agreement}",
    ]
    emit(result, json, lines)


def _moved(text: str) -> tuple[str, str]:
    name, _, address = text.partition("=")
    if not name or not address:
        raise ConfigError(f"--moved takes name=host:port, got {text!r}.")
    return name, address
