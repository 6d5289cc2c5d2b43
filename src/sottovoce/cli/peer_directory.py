"""`sottovoce peer init, trust, budget, keygen`: a member's identity, trusted certificates and spending."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from sottovoce.cli.options import Json
from sottovoce.cli.output import emit, template
from sottovoce.cli.peer_options import (
    Adjacency,
    Days,
    Delta,
    DirectoryOption,
    Epsilon,
    Population,
    View,
    Why,
    require_directory,
)
from sottovoce.errors import ConfigError

if TYPE_CHECKING:
    from sottovoce.ledger.balance import LifetimeBudget


def init(
    folder: Annotated[Path, Argument(help="The member directory: a new folder, or one to show.")],
    name: Annotated[str | None, Option(help="Create it for the member of this name.")] = None,
    population: Annotated[str, Option(help="A name for the people in the records.")] = "patients",
    epsilon: Epsilon = None,
    delta: Delta = 1e-5,
    adjacency: Adjacency = None,
    view: View = "network",
    copy: Annotated[Path | None, Option(help="For the ledger's second copy, best on another disk.")] = None,
    why: Why = "the member directory was created",
    days: Days = 730.0,
    json: Json = False,
) -> None:
    """Create a member directory: identity, pinned certificates, and the lifetime ledger of all releases."""
    from sottovoce.peers.identity import CERTIFICATE, proquint
    from sottovoce.peers.member_directory import ASSUMPTIONS, MemberDirectory

    if name is not None:
        budgets = [_lifetime_budget(epsilon, delta, adjacency, view)]
        own = MemberDirectory.create(
            folder, name, population=population, budgets=budgets, copy=copy, why=why, days=days
        )
    else:
        own = MemberDirectory(folder)
    fingerprint = own.identity.fingerprint
    trusted = {who: proquint(digest) for who, digest in own.pinned_certificates.pinned().items()}
    result = {
        "directory": str(own.folder),
        "name": own.name,
        "copy": str(own.copy),
        "certificate": str(own.identity_folder / CERTIFICATE),
        "fingerprint": fingerprint,
        "words": proquint(fingerprint),
        "trusted": trusted,
        "populations": list(own.lifetime_ledger.populations),
        "assumptions": list(ASSUMPTIONS),
    }
    lines = [
        f"{own.name}: {own.folder}; copy of the lifetime ledger: {own.copy}",
        f"Give {result['certificate']} to the other members and read its words to them by telephone: "
        f"{result['words']}",
        *(f"Trusted: {who}  {words}" for who, words in trusted.items()),
        *(f"Assumed: {sentence}" for sentence in ASSUMPTIONS),
    ]
    emit(result, json, lines)


def _lifetime_budget(epsilon: float | None, delta: float, adjacency: str | None, view: str) -> LifetimeBudget:
    from sottovoce.ledger.balance import LifetimeBudget

    if epsilon is None or adjacency is None:
        raise ConfigError("A lifetime budget needs its epsilon and --adjacency; give both.")
    return LifetimeBudget(epsilon, delta, adjacency, view)


def trust(
    why: Why,
    certificate: Annotated[Path | None, Argument(help="Another member's certificate.")] = None,
    directory: DirectoryOption = None,
    replace: Annotated[bool, Option("--replace", help="Take it instead of the one pinned.")] = False,
    forget: Annotated[str, Option(help="Trust the member of this name no longer.")] = "",
    json: Json = False,
) -> None:
    """Pin another member's certificate, after its words were compared by telephone."""
    from sottovoce.peers.identity import proquint

    pinned_certificates = require_directory(directory).pinned_certificates
    if (certificate is None) == (not forget) or (forget and replace):
        raise ConfigError("Name a certificate to trust, or a member to --forget; one of the two.")
    if certificate is None:
        pinned_certificates.forget(forget, why)
        emit({"name": forget, "pinned": False}, json, [f"{forget} is no longer pinned."])
        return
    name = pinned_certificates.trust(certificate, why, instead=replace)
    fingerprint = pinned_certificates.pinned()[name]
    result = {"name": name, "fingerprint": fingerprint, "words": proquint(fingerprint)}
    emit(result, json, [f"{name} is pinned: {result['words']}"])


def budget(
    directory: DirectoryOption = None,
    population: Population = None,
    open_: Annotated[str | None, Option("--open", help="Open another population.")] = None,
    raise_: Annotated[float | None, Option("--raise", help="Set a lifetime budget of this epsilon.")] = None,
    close: Annotated[str | None, Option("--close", help="Give up a run permanently, by its hash.")] = None,
    restore: Annotated[bool, Option("--restore", help="Continue from the ledger's longer copy.")] = False,
    epsilon: Epsilon = None,
    delta: Delta = 1e-5,
    adjacency: Adjacency = None,
    view: View = "network",
    why: Why = "",
    json: Json = False,
) -> None:
    """Show all that was ever released and the lifetime budgets, or change them (with --why)."""
    from sottovoce.peers.member_directory import ASSUMPTIONS

    own = require_directory(directory)
    ledger = own.lifetime_ledger
    if sum(bool(act) for act in (open_, raise_ is not None, close, restore)) > 1:
        raise ConfigError("--open, --raise, --close and --restore exclude each other; give one of them.")
    if restore:
        own.restore(why)
    elif close:
        matches = [run_id for run_id in ledger.runs if run_id.startswith(close)]
        if len(matches) != 1:
            raise ConfigError(f"{len(matches)} runs begin with {close}; give more of the hash.")
        own.close(matches[0], why)
    elif open_:
        ledger.open_population(open_, [_lifetime_budget(epsilon, delta, adjacency, view)], why)
    elif raise_ is not None:
        ledger.set_budget(population, _lifetime_budget(raise_, delta, adjacency, view), why)
    entries = [each for each in ledger.summary() if population in (None, each["population"])]
    result = {"directory": str(own.folder), "populations": entries, "assumptions": list(ASSUMPTIONS)}
    charges = {
        entry["population"]: [
            [
                each["since"][:10],
                each["what"],
                each["run_id"][:16] or "-",
                each["status"],
                each["releases"],
                ", ".join(each["adjacencies"]),
            ]
            for each in entry["charges"]
        ]
        for entry in entries
    }
    emit(result, json, template("budget", charges=charges, **result))


def keygen(
    folder: Annotated[Path, Argument(help="A new folder for the key and the certificate.")],
    name: Annotated[str, Option(help="The member's name: lower-case letters, digits, hyphens.")] = "",
    days: Days = 730.0,
    renew: Annotated[bool, Option("--renew", help="A new certificate for the existing key.")] = False,
    json: Json = False,
) -> None:
    """Create an identity: a private key that stays here, and a certificate for the others.

    With --renew the key gets a certificate with a new date, which the others pin; a running agreement
    continues with it through `peer membership --certificate`.
    """
    from sottovoce.peers.identity import CERTIFICATE, make_identity, proquint, renew_certificate

    if not renew and not name:
        raise ConfigError("A new identity needs --name, the member's name in agreements.")
    identity = renew_certificate(folder, days=days) if renew else make_identity(folder, name, days=days)
    certificate, fingerprint = folder / CERTIFICATE, identity.fingerprint
    words = proquint(fingerprint)
    result = {"name": identity.name, "certificate": str(certificate), "fingerprint": fingerprint}
    reading = f"Give {certificate} to the other members and read its words to them by telephone."
    emit({**result, "words": words}, json, [f"{identity.name}: {words}", reading])
