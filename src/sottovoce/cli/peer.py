"""`sottovoce peer`: one organisation's side of a run, from its key to its statement."""

from __future__ import annotations

import json as _json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.epochs import epoch
from sottovoce.cli.output import Json, console, emit, safe, table

if TYPE_CHECKING:
    from rich.console import Console

    from sottovoce.peers.agreement import Agreement
    from sottovoce.peers.home import Home
    from sottovoce.peers.jobs import Job

__all__ = ["peer"]

peer = typer.Typer(
    help="""One organisation's side: its home and book, its key, the agreement, the run, the ledger.

\b
Examples:
    sottovoce peer home ~/.sottovoce --name north --population patients --epsilon 5 --adjacency add-remove
    sottovoce peer trust south.pem --why "read aloud by Dr. Sud"
    sottovoce peer book
    sottovoce peer keygen identity --name north
    sottovoce peer agree agreement.toml --sign identity
    sottovoce peer run agreement.toml --identity identity --data mine.csv --state state
    sottovoce peer status state
""",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
peer.command()(epoch)

State = Annotated[Path, typer.Argument(help="The state folder of a running or stopped peer.")]
HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="The home; else SOTTOVOCE_HOME, else ~/.sottovoce where that is one."),
]
Why = Annotated[str, typer.Option("--why", help="The reason, kept in the book for good.")]
Epsilon = Annotated[float | None, typer.Option(help="A lifetime budget.")]
Delta = Annotated[float, typer.Option(help="The delta of that budget.")]
Adjacency = Annotated[str | None, typer.Option(help="add-remove, replace-one or user.")]
View = Annotated[str, typer.Option(help="Against whom: local, outsider, network or colluders:2.")]
Population = Annotated[
    str | None, typer.Option(help="Whose records they are, by the book's name; else its first population.")
]


@peer.command()
def home(
    folder: Annotated[Path, typer.Argument(help="The home: a new folder, or one to look at.")],
    name: Annotated[str | None, typer.Option(help="Make a home for the member of this name.")] = None,
    population: Annotated[str, typer.Option(help="Whose records are used here.")] = "patients",
    epsilon: Epsilon = None,
    delta: Delta = 1e-5,
    adjacency: Adjacency = None,
    view: View = "network",
    copy: Annotated[
        Path | None, typer.Option(help="Where the book's second copy lies, best on another disk.")
    ] = None,
    why: Why = "the home was made",
    days: Annotated[float, typer.Option(help="How long the certificate is valid.")] = 730.0,
    json: Json = False,
) -> None:
    """Make an organisation's home: identity, address book, and the book of all it will ever release.

    \b
    Example:
        sottovoce peer home ~/.sottovoce --name north --population patients --epsilon 5 --adjacency add-remove
    """
    from sottovoce.errors import ConfigError
    from sottovoce.peers.addresses import spoken
    from sottovoce.peers.book import Lifetime
    from sottovoce.peers.home import ASSUMPTIONS, Home
    from sottovoce.peers.identity import CERTIFICATE

    if name is not None:
        if epsilon is None or adjacency is None:
            raise ConfigError(
                "A home needs --epsilon and --adjacency, the lifetime budget of its population."
            )
        limit = Lifetime(epsilon, delta, adjacency, view)
        own = Home.create(folder, name, population=population, budgets=[limit], copy=copy, why=why, days=days)
    else:
        own = Home(folder)
    mark = own.identity.fingerprint
    trusted = {who: spoken(digest) for who, digest in own.addresses.pinned().items()}
    found = {
        "home": str(own.folder),
        "name": own.name,
        "copy": str(own.copy),
        "certificate": str(own.identity_folder / CERTIFICATE),
        "fingerprint": mark,
        "words": spoken(mark),
        "trusted": trusted,
        "populations": list(own.book.populations),
        "assumptions": list(ASSUMPTIONS),
    }

    def text(out: Console) -> None:
        out.print(f"{own.name}: {safe(found['home'])}; the book's second copy is in {safe(found['copy'])}")
        out.print(f"Give {safe(found['certificate'])} to the others and read them: {found['words']}")
        for who, words in trusted.items():
            out.print(f"trusted: {who}  {words}")
        for sentence in ASSUMPTIONS:
            out.print(f"assumed: {sentence}")

    emit(found, json, text)


@peer.command()
def trust(
    certificate: Annotated[Path, typer.Argument(help="Another member's certificate.")],
    why: Why,
    home: HomeOption = None,
    replace: Annotated[bool, typer.Option("--replace", help="Take it instead of the one pinned.")] = False,
    json: Json = False,
) -> None:
    """Pin another member's certificate, after its words were compared by telephone.

    \b
    Example:
        sottovoce peer trust south.pem --why "read aloud by Dr. Sud on 3 May"
    """
    from sottovoce.peers.addresses import spoken

    own = _home(home)
    name = own.addresses.trust(certificate, why, instead=replace)
    mark = own.addresses.pinned()[name]
    found = {"name": name, "fingerprint": mark, "words": spoken(mark)}
    emit(found, json, lambda out: out.print(f"{name} is pinned: {found['words']}"))


@peer.command()
def book(
    home: HomeOption = None,
    population: Population = None,
    open_: Annotated[str | None, typer.Option("--open", help="Open another population.")] = None,
    raise_: Annotated[
        float | None, typer.Option("--raise", help="Set a lifetime budget of this epsilon.")
    ] = None,
    close: Annotated[str | None, typer.Option("--close", help="Give a run up for good, by its hash.")] = None,
    restore: Annotated[
        bool, typer.Option("--restore", help="Go on from the longer copy after one was lost or set back.")
    ] = False,
    epsilon: Epsilon = None,
    delta: Delta = 1e-5,
    adjacency: Adjacency = None,
    view: View = "network",
    why: Why = "",
    json: Json = False,
) -> None:
    """List every release ever started from this home, or record an act of the officer (with --why).

    \b
    Examples:
        sottovoce peer book
        sottovoce peer book --raise 8 --adjacency add-remove --why "vote of 3 May"
        sottovoce peer book --open staff --epsilon 1 --adjacency user --why "vote of 4 May"
        sottovoce peer book --close 3f54dcc1 --why "south has left"
        sottovoce peer book --restore --why "the disk was replaced"
    """
    from sottovoce.errors import ConfigError
    from sottovoce.peers.book import Lifetime
    from sottovoce.peers.home import ASSUMPTIONS

    own = _home(home)
    if sum(bool(act) for act in (open_, raise_ is not None, close, restore)) > 1:
        raise ConfigError("The book takes one act at a time; leave out all but one.")
    limit = raise_ if raise_ is not None else epsilon
    if (open_ or raise_ is not None) and (limit is None or adjacency is None):
        raise ConfigError("A lifetime budget needs its epsilon and --adjacency; give both.")
    if restore:
        own.restore(why)
    elif close:
        matches = [run for run in own.book.runs if run.startswith(close)]
        if len(matches) != 1:
            raise ConfigError(f"{len(matches)} runs in the book begin with {close}; give more of the hash.")
        own.close(matches[0], why)
    elif limit is not None and adjacency is not None:
        budget = Lifetime(limit, delta, adjacency, view)
        if open_:
            own.book.open_population(open_, [budget], why)
        elif raise_ is not None:
            own.book.set_budget(population, budget, why)
    entries = [each for each in own.book.summary() if population in (None, each["population"])]
    found = {"home": str(own.folder), "populations": entries, "assumptions": list(ASSUMPTIONS)}

    def text(out: Console) -> None:
        for each in entries:
            _show_population(out, each)
        for sentence in ASSUMPTIONS:
            out.print(f"assumed: {sentence}")

    emit(found, json, text)


@peer.command()
def keygen(
    folder: Annotated[Path, typer.Argument(help="A new folder for the key and the certificate.")],
    name: Annotated[str, typer.Option(help="The member's name: lower-case letters, digits, hyphens.")],
    days: Annotated[float, typer.Option(help="How long the certificate is valid.")] = 730.0,
    json: Json = False,
) -> None:
    """Make an identity: a private key that stays here, and a certificate to give to the others.

    \b
    Example:
        sottovoce peer keygen identity --name north
    """
    from sottovoce.peers.identity import CERTIFICATE, make_identity

    identity = make_identity(folder, name, days=days)
    certificate = folder / CERTIFICATE
    found = {"name": name, "certificate": str(certificate), "fingerprint": identity.fingerprint}

    def text(out: Console) -> None:
        out.print(f"{name}: {identity.fingerprint}")
        out.print(
            f"Give {safe(certificate)} to the other members; read the fingerprint to them by telephone."
        )

    emit(found, json, text)


@peer.command()
def agree(
    file: Annotated[Path, typer.Argument(help="A draft (with --member and --output) or an agreement.")],
    member: Annotated[
        list[str] | None, typer.Option("--member", "-m", help="CERTIFICATE@HOST:PORT, in the graph's order.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the agreement here.")] = None,
    sign: Annotated[Path | None, typer.Option(help="Sign with the identity in this folder.")] = None,
    merge: Annotated[
        list[Path] | None, typer.Option(help="Take over the signatures in another member's copy.")
    ] = None,
    home: HomeOption = None,
    population: Population = None,
    data: Annotated[
        Path | None, typer.Option(help="Check this member's records against the agreement, too.")
    ] = None,
    yes: Annotated[
        str, typer.Option(help="The run's hash, or its first 8 digits: what was read is what is signed.")
    ] = "",
    json: Json = False,
) -> None:
    """Build, check, price and sign an agreement; what it costs is printed before anything is signed.

    In a home the sheet is read first, without --sign; signing then needs the run's hash that it names.

    \b
    Examples:
        sottovoce peer agree draft.toml -m north.pem@10.0.0.1:7000 -m south.pem@10.0.0.2:7000 -o a.toml
        sottovoce peer agree agreement.toml
        sottovoce peer agree agreement.toml --data mine.csv
        sottovoce peer agree agreement.toml --sign identity --yes 3f54dcc1
        sottovoce peer agree agreement.toml --merge from-south.toml
    """
    from sottovoce.errors import ConfigError
    from sottovoce.peers.agreement import merge_signatures, read_agreement, sign_agreement
    from sottovoce.peers.home import find_home
    from sottovoce.peers.identity import read_identity
    from sottovoce.peers.jobs import Job
    from sottovoce.peers.records import read_records
    from sottovoce.peers.sheet import sheet

    own = find_home(home, identity=sign)
    if member:
        if output is None:
            raise ConfigError("Building an agreement needs --output, the file to write.")
        agreement, file = _build(file, member, output), output
    else:
        agreement = read_agreement(file)
    job = Job(agreement)
    rows = job.table()
    page = sheet(job)
    if data is not None:
        read_records(data, agreement)
    if not json:
        _show_sheet(console(), page)
        _show_price(console(), agreement, rows)
    for node in range(job.n):
        job.spending(node)
    after = [] if own is None else _against_book(own, job, population)
    if not json:
        _show_forecast(console(), after)
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
        "rounds": job.rounds,
        "members": rows,
        "sheet": page,
        "book": after,
        "signed": signed,
        "missing": missing,
    }
    emit(found, json, lambda out: _show_signatures(out, agreement, signed, missing))


@peer.command()
def run(
    agreement: Annotated[Path, typer.Argument(help="The agreement, signed by all.")],
    data: Annotated[Path, typer.Option(help="This member's records, CSV or NPZ; they stay here.")],
    identity: Annotated[
        Path | None, typer.Option(help="The folder with this member's key; by default the home's.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="The state folder: ledger, model, statement; by default in the home.")
    ] = None,
    home: HomeOption = None,
    population: Population = None,
    new_data: Annotated[
        str, typer.Option("--new-data", help="Why the records differ from those the run began with.")
    ] = "",
    previous: Annotated[
        Path | None, typer.Option(help="The agreement of the epoch before, where this one continues a run.")
    ] = None,
    previous_state: Annotated[
        Path | None, typer.Option(help="Its state folder, for a run without a home.")
    ] = None,
    listen: Annotated[str | None, typer.Option(help="Listen here instead of at the agreed address.")] = None,
    revoke: Annotated[
        list[str] | None, typer.Option(help="A certificate fingerprint that is no longer accepted.")
    ] = None,
    json: Json = False,
) -> None:
    """Run this member's peer until the model is there; start it again after a crash and it goes on.

    \b
    Example:
        sottovoce peer run agreement.toml --identity identity --data mine.npz --state state
    """
    import asyncio
    import signal

    from sottovoce.errors import ConfigError, PeerError
    from sottovoce.peers.agreement import read_agreement
    from sottovoce.peers.home import find_home
    from sottovoce.peers.identity import read_identity
    from sottovoce.peers.records import read_records
    from sottovoce.peers.runtime import MODEL, STATEMENT, Peer

    agreed = read_agreement(agreement)
    agreed.require_signatures(where=str(agreement))
    at = find_home(home, identity=identity)
    if at is None and (identity is None or state is None):
        raise ConfigError("Without a home a run needs --identity and --state; `peer home` makes a home.")
    key = identity if identity is not None or at is None else at.identity_folder
    assert key is not None
    own = read_identity(key)
    if at is None and not json:
        console(error=True).print("no home on this machine: what this run costs is added to no book")
    records = read_records(data, agreed)
    show = _lines if json else _progress(agreed)

    signals: list[int] = []
    place: list[Path] = []

    async def live() -> Any:
        peer = Peer(
            agreed, own, records, state, log=show, listen=listen, revoked=revoke or (), secrets=key,
            home=at, population=population, new_records=new_data, previous_state=previous_state,
            previous=None if previous is None else read_agreement(previous),
            start=agreement.with_suffix(".npz"),
        )  # fmt: skip
        place.append(peer.state)

        def stop(number: int) -> None:
            signals.append(number)
            peer.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        return await peer.run()

    try:
        outcome = asyncio.run(live())
    except PeerError:
        if signal.SIGINT in signals:
            raise KeyboardInterrupt from None
        raise
    files = {"model": str(place[0] / MODEL), "statement": str(place[0] / STATEMENT)}
    if json:
        _lines(
            {"event": "done", "rounds": outcome.rounds, **files, "guarantee": outcome.statement["guarantee"]}
        )
        return
    said = outcome.statement["guarantee"]
    out = console()
    out.print(
        f"Done after {outcome.rounds} rounds. Against everybody who sees all messages of {own.name}: "
        f"epsilon {said['epsilon']:.4g} at delta {said['delta']:g}, adjacency {said['adjacency']}, "
        f"label {said['label']}."
    )
    out.print(f"Model: {safe(files['model'])}   Statement: {safe(files['statement'])}")


@peer.command()
def status(state: State, json: Json = False) -> None:
    """Say how far a peer is, whom it has heard, what it has spent and what is left; disturbs nothing."""
    from sottovoce.peers.status import read_status

    found = read_status(state)

    def text(out: Console) -> None:
        mode = "running" if found["running"] else "finished" if found["finished"] else "stopped"
        out.print(f"{found['member']} in {safe(repr(found['title']))} ({found['run'][:16]}): {mode}")
        out.print(f"round {found['round']} of {found['rounds']}; {found['rows_sent']} rows sent")
        out.print("heard: " + (", ".join(f"{n} to round {r}" for n, r in found["heard"].items()) or "nobody"))
        out.print(
            f"spent epsilon {found['epsilon_spent']:.4g} of {found['epsilon_budget']:g} at delta "
            f"{found['delta']:g} (adjacency {found['adjacency']}, label ldp) in {found['releases']} releases"
        )
        out.print(f"ledger: {found['ledger_rows']} rows, chain intact, head {found['ledger_head'][:16]}")
        for incident in found["incidents"]:
            out.print(f"incident: {safe(incident)}")

    emit(found, json, text)


@peer.command()
def ledger(state: State, json: Json = False) -> None:
    """Print every release and the digest of every row sent and heard; the whole chain is checked first."""
    from sottovoce.peers.status import read_proof

    found = read_proof(state)

    def text(out: Console) -> None:
        rows = [
            (
                r["step"],
                r["count"],
                f"{r['sensitivity']:.4g}",
                f"{r['noise_std']:.4g}",
                f"{r['sample_rate']:g}",
            )
            for r in found["releases"]
        ]
        out.print(table(["step", "count", "sensitivity", "noise std", "sample rate"], rows, title="Releases"))
        out.print(f"{len(found['sent'])} rows sent, {len(found['heard'])} heard; head {found['head']}")

    emit(found, json, text)


@peer.command()
def compare(
    files: Annotated[
        list[Path], typer.Argument(help="What `peer ledger --json` printed, of two members or more.")
    ],
    json: Json = False,
) -> None:
    """Say whether the members' ledgers fit each other: a member that sent different rows shows here.

    \b
    Example:
        sottovoce peer compare north.json south.json east.json
    """
    from sottovoce.errors import ConfigError, PeerError
    from sottovoce.peers.compare import compare_proofs

    proofs = []
    for file in files:
        try:
            proofs.append(_json.loads(file.read_bytes()))
        except ValueError:
            raise ConfigError(f"{file} is not JSON; `sottovoce peer ledger --json` prints it.") from None
    found = compare_proofs(proofs)
    if found:
        first = found[0]
        raise PeerError(
            f"{len(found)} contradictions: member {first['sender']} sent different rows in round "
            f"{first['round']}, by the ledgers of members {', '.join(map(str, first['members']))}, or a file "
            "was changed; compare the ledgers themselves."
        )
    emit({"ledgers": len(proofs), "contradictions": []}, json, lambda out: out.print("the ledgers fit"))


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


def _home(folder: Path | None) -> Home:
    from sottovoce.errors import ConfigError
    from sottovoce.peers.home import find_home

    own = find_home(folder)
    if own is None:
        raise ConfigError("This machine has no home yet; `sottovoce peer home` makes one, --home names one.")
    return own


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


def _against_book(own: Home, job: Job, population: str | None) -> list[dict[str, Any]]:
    """Return what the home has spent, what the agreement adds and the total, for each lifetime budget."""
    own.addresses.require(job.agreement, own.identity.fingerprint)
    node = job.agreement.index(own.name)
    return own.book.forecast(own.charge_of(job, node, population=population))


def _show_forecast(out: Console, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        out.print(
            f"book ({row['adjacency']}, {row['view']}, delta {row['delta']:g}): spent {row['spent']:.4g} + "
            f"new {row['adds']:.4g} = total {row['total']:.4g} of {row['epsilon']:g}"
        )


def _refuse_overdraft(rows: list[dict[str, Any]]) -> None:
    from sottovoce.errors import BudgetExceeded

    for row in rows:
        if not row["total"] <= row["epsilon"]:
            raise BudgetExceeded(
                f"Spent so far {row['spent']:.4g}, this adds {row['adds']:.4g}, total {row['total']:.4g} of "
                f"a lifetime budget of {row['epsilon']:g} ({row['adjacency']}, {row['view']}), so it is not "
                "signed; agree on more noise or fewer steps, or raise the budget with `peer book --raise`."
            )


def _show_population(out: Console, entry: dict[str, Any]) -> None:
    rows = [
        (
            each["since"][:10],
            safe(each["what"]),
            each["run"][:16] or "-",
            each["status"],
            each["releases"],
            ", ".join(each["adjacencies"]),
        )
        for each in entry["charges"]
    ]
    heads = ["since", "what", "run", "status", "releases", "adjacency"]
    out.print(table(heads, rows, title=entry["population"]))
    for row in entry["budgets"]:
        left = max(0.0, row["epsilon"] - row["total"])
        out.print(
            f"spent epsilon {row['total']:.4g} of {row['epsilon']:g} at delta {row['delta']:g} "
            f"({row['adjacency']}, {row['view']}), {left:.4g} left"
        )
    for remark in entry["remarks"]:
        out.print(f"remark: {remark}")


def _lines(event: dict[str, Any]) -> None:
    print(_json.dumps(event), flush=True)


def _progress(agreed: Agreement) -> Any:
    """Return a listener: a bar on a terminal, one line in ten otherwise."""
    out = console(error=True)
    said = {"tenth": -1}

    def show(event: dict[str, Any]) -> None:
        if event["event"] == "listening":
            out.print(f"{event['member']} is listening; run {event['run'][:16]}, waiting for its neighbours")
            return
        if event["event"] == "known":
            out.print(f"run {event['run'][:16]} is known and goes on in {safe(event['state'])}")
            return
        tenth = 10 * event["at"] // max(event["of"], 1)
        if out.is_terminal:
            waiting = ", ".join(event["waiting"]) or "nobody"
            line = f"round {event['at']}/{event['of']}  releases {event['releases']}  waiting for {waiting}"
            out.print(line.ljust(78)[:78], end="\r")
        elif tenth != said["tenth"]:
            said["tenth"] = tenth
            out.print(f"round {event['at']} of {event['of']}, {event['releases']} releases")

    return show
