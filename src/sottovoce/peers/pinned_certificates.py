"""The address book: which certificate belongs to which member, pinned once and compared out of band.

An agreement brings the certificates of all members along, and whoever drafts it could list one of its own as
somebody else's. So a member directory keeps those it was given by hand, after the fingerprint was read aloud,
and takes no agreement that names another.
"""

from __future__ import annotations

from pathlib import Path

from sottovoce._io import atomic_write
from sottovoce.errors import DataError, IdentityError
from sottovoce.ledger.lifetime import LifetimeLedger
from sottovoce.peers.agreement import Agreement
from sottovoce.peers.identity import common_name, fingerprint, read_certificate

_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aiou"
_SPOKEN = 6  # words of 16 bits: 96 bits, far beyond what anybody can search for


def proquint(digest: str) -> str:
    """Return a fingerprint as six short words that can be read aloud (proquints of its first 96 bits).

    D. Wilkerson, "A Proposal for Proquints", 2009, https://arxiv.org/abs/0901.4016.
    """
    raw = bytes.fromhex(digest)[: 2 * _SPOKEN]
    return "-".join(_word(int.from_bytes(raw[i : i + 2], "big")) for i in range(0, len(raw), 2))


class PinnedCertificates:
    """The pinned certificates of a member directory: files by member name, their fingerprints in the lifetime
    ledger.

    Guarantees
    ----------
    A certificate is pinned by `trust` only, which is an act in the lifetime ledger. A file that was exchanged
    since does not match the lifetime ledger and is refused; so is an agreement with a member who is not
    pinned, or is pinned with another certificate (`require`).
    """

    def __init__(self, folder: str | Path, lifetime_ledger: LifetimeLedger) -> None:
        self.folder, self.lifetime_ledger = Path(folder), lifetime_ledger

    def trust(self, certificate: str | Path, why: str, *, instead: bool = False) -> str:
        """Pin a certificate and return the member's name; ``instead`` allows another one than before."""
        pem = read_certificate(certificate)
        name, digest = common_name(pem), fingerprint(pem)
        known = self.lifetime_ledger.pinned.get(name)
        if known not in (None, digest) and not instead:
            raise IdentityError(
                f"{name} is pinned with another certificate ({proquint(known or '')}) than this one "
                f"({proquint(digest)}); ask {name} by telephone, then use --replace."
            )
        try:
            atomic_write(self.folder / f"{name}.pem", pem, mode=0o600)
        except DataError as error:
            raise IdentityError(f"The address book cannot be written: {error}") from None
        if known != digest:
            self.lifetime_ledger.trust(name, digest, why)
        return name

    def pinned(self) -> dict[str, str]:
        """Return fingerprints by name, each compared with its file."""
        known = self.lifetime_ledger.pinned
        for name, digest in known.items():
            try:
                same = fingerprint((self.folder / f"{name}.pem").read_bytes()) == digest
            except (OSError, ValueError):
                same = False
            if not same:
                raise IdentityError(
                    f"The certificate of {name} in the address book is not the one the lifetime ledger "
                    "names; get it "
                    f"from {name} again and run `peer trust`."
                )
        return known

    def require(self, agreement: Agreement, own: str) -> None:
        """Raise unless every member is pinned with the certificate listed; ``own`` is the member
        directory's own.
        """
        known = self.pinned()
        for member in agreement.members:
            if member.fingerprint == own:
                continue
            pinned = known.get(member.name)
            if pinned is None:
                raise IdentityError(
                    f"{member.name} is not in the address book; get its certificate, compare the words by "
                    "telephone and run `peer trust`."
                )
            if pinned != member.fingerprint:
                raise IdentityError(
                    f"The agreement lists another certificate for {member.name} "
                    f"({proquint(member.fingerprint)}) than the one pinned ({proquint(pinned)}); do not "
                    "sign, "
                    f"ask {member.name} by telephone."
                )


def _word(bits: int) -> str:
    letters = (
        (12, 15, _CONSONANTS),
        (10, 3, _VOWELS),
        (6, 15, _CONSONANTS),
        (4, 3, _VOWELS),
        (0, 15, _CONSONANTS),
    )
    return "".join(alphabet[(bits >> shift) & mask] for shift, mask, alphabet in letters)
