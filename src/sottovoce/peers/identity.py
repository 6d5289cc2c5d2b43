"""Who a peer is: a P-256 key of its own, a certificate signed with it, and the certificates of the others.

There is no authority. The agreement lists every member's certificate; a connection is accepted only from a
certificate that is listed, byte for byte, and whose owner is a neighbor. Whoever drafts an agreement could
list a certificate of its own as somebody else's, so a member directory pins the certificates that it got by
hand, after the fingerprint was read aloud. A private key that others can read is refused.

Keys are P-256 and nothing else: one kind of signature with a fixed length, and no RSA key, which would make
TLS 1.2 possible. Another key is refused when it is read, not when the peers fail to connect.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import stat
import struct
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, SignatureAlgorithmOID

from sottovoce._io import atomic_write
from sottovoce.errors import DataError, IdentityError, TryLater
from sottovoce.ledger.lifetime import LifetimeLedger

if TYPE_CHECKING:
    from sottovoce.peers.agreement import Agreement

KEY, CERTIFICATE = "key.pem", "certificate.pem"
MEMBER_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# what reading a damaged certificate raises, at once or when one of its parts is used
DAMAGED = (ValueError, OverflowError, UnsupportedAlgorithm, x509.InvalidVersion)
_MOST_DAYS = 36_500  # of a certificate
_FORGOTTEN = ""  # the fingerprint of a member that was pinned and is no longer
_ECDSA = ec.ECDSA(hashes.SHA256())
_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aiou"


@dataclass(frozen=True)
class Identity:
    """A member's own key and certificate."""

    name: str
    key: bytes = field(repr=False)
    certificate: bytes = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate, in hex."""
        return fingerprint(self.certificate)

    def sign(self, content: bytes) -> bytes:
        """Return a signature of ``content``."""
        return _private_key(self.key).sign(content, _ECDSA)


class NotYetValid(IdentityError, TryLater):
    """A certificate begins later than now: this machine's clock is behind, or will get there."""


class CertificateSigner:
    """Signs with a member's own key and verifies with the certificates of all members, in their order.

    Signatures are P-256, written as the two numbers of 32 bytes each.
    """

    def __init__(self, identity: Identity, certificates: Iterable[bytes]) -> None:
        self._key = _private_key(identity.key)
        self._public = [x509.load_pem_x509_certificate(pem).public_key() for pem in certificates]

    def sign(self, content: bytes) -> bytes:
        """Return a signature of 64 bytes."""
        r, s = decode_dss_signature(self._key.sign(content, _ECDSA))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")

    def verify(self, node: int, content: bytes, signature: bytes) -> bool:
        """Return whether ``node`` signed ``content``."""
        if node >= len(self._public) or len(signature) != 64:
            return False
        r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
        return _verified(self._public[node], encode_dss_signature(r, s), content)


def require_member_name(name: str, where: str = "A member's name") -> None:
    """Raise unless a name can stand in an agreement; such a name is also safe as the name of a file."""
    if not MEMBER_NAME.fullmatch(name):
        rule = "lower-case letters a to z, digits and hyphens, at most 63 characters"
        raise IdentityError(f"{where} must have {rule}, got {name[:80]!a}.")


def make_identity(
    folder: str | Path, name: str, *, days: float = 730.0, start: dt.datetime | None = None
) -> Identity:
    """Make a key and a certificate, valid from ``start`` or now on, in a folder for the owner only.

    Examples
    --------
    >>> import tempfile
    >>> identity = make_identity(tempfile.mkdtemp() + "/bob", "bob")
    >>> verify(identity.certificate, identity.sign(b"yes"), b"yes")
    True
    """
    require_member_name(name)
    folder = Path(folder)
    if (folder / KEY).exists():
        raise IdentityError(f"{folder / KEY} exists already; keep it, or choose another folder.")
    identity = _identity(ec.generate_private_key(ec.SECP256R1()), name, days, start)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file, content, mode in ((KEY, identity.key, 0o600), (CERTIFICATE, identity.certificate, 0o644)):
            handle = os.open(folder / file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
    except OSError as error:
        raise IdentityError(f"The identity cannot be written to {folder} ({error.strerror}).") from None
    return identity


def renew_certificate(folder: str | Path, *, days: float = 730.0) -> Identity:
    """Make a new certificate for the key in ``folder``; the one before is kept beside it under its last day.

    The others pin the new one, and a run continues with it in a new membership version.
    """
    folder = Path(folder)
    try:
        old = (folder / CERTIFICATE).read_bytes()
        key = serialization.load_pem_private_key((folder / KEY).read_bytes(), password=None)
        until = x509.load_pem_x509_certificate(old).not_valid_after_utc
    except (OSError, TypeError, *DAMAGED) as error:
        raise IdentityError(
            f"{folder} holds no key and certificate to renew ({error}); name the identity folder."
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise IdentityError(f"The key in {folder} is of another kind than this program makes.")
    identity = _identity(key, common_name(old), days)
    atomic_write(folder / f"certificate-{until:%Y-%m-%d-%H%M%S}.pem", old, mode=0o644)
    atomic_write(folder / CERTIFICATE, identity.certificate, mode=0o644)
    return identity


def read_identity(folder: str | Path) -> Identity:
    """Read an identity and check it: owner-only key, matching certificate, not expired."""
    file = Path(folder) / KEY
    try:
        mode, pem = stat.S_IMODE(file.stat().st_mode), file.read_bytes()
    except OSError as error:
        raise IdentityError(
            f"The key {file} cannot be read ({error.strerror}); `sottovoce peer keygen` makes one."
        ) from None
    if mode & 0o077:
        raise IdentityError(f"The key {file} can be read by others; run chmod 600 on it.")
    certificate = read_certificate(file.with_name(CERTIFICATE))
    try:
        public = serialization.load_pem_private_key(pem, None).public_key()
    except (ValueError, TypeError):
        raise IdentityError(f"The key {file} is not a private key; restore it.") from None
    if public != x509.load_pem_x509_certificate(certificate).public_key():
        raise IdentityError(f"The key {file} does not belong to the certificate beside it; restore both.")
    return Identity(common_name(certificate), pem, certificate)


def read_certificate(path: str | Path) -> bytes:
    """Return the canonical PEM of a certificate file; raise if it is none or is not valid now."""
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise IdentityError(f"The certificate {path} cannot be read ({error.strerror}).") from None
    return check_certificate(raw, str(path))


def check_certificate(raw: bytes, where: str, now: dt.datetime | None = None) -> bytes:
    """Return the canonical PEM of a certificate that is valid now, or raise with the remedy.

    Guarantees
    ----------
    The certificate has one name that can stand in an agreement, a P-256 key and dates that include ``now``.
    Damaged bytes raise `IdentityError`, whatever part of the certificate they are in.
    """
    try:
        with warnings.catch_warnings(action="error"):
            parsed = x509.load_pem_x509_certificate(raw)
            key, names = parsed.public_key(), parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            first, last = parsed.not_valid_before_utc, parsed.not_valid_after_utc
            pem = parsed.public_bytes(serialization.Encoding.PEM)
    except (Warning, *DAMAGED):
        raise IdentityError(
            f"{where} is not a certificate, or a damaged one; get it from its owner again."
        ) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != ec.SECP256R1.name:
        raise IdentityError(
            f"The certificate {where} must have a P-256 key; `sottovoce peer keygen` makes one."
        )
    if raw.count(b"-----BEGIN") != 1:
        raise IdentityError(f"{where} must hold one certificate and nothing else.")
    if len(names) != 1:
        raise IdentityError(f"The certificate {where} must have one name, got {len(names)}.")
    require_member_name(str(names[0].value), f"The name in the certificate {where}")
    signed = parsed.signature_algorithm_oid == SignatureAlgorithmOID.ECDSA_WITH_SHA256
    if not signed or not _verified(key, parsed.signature, parsed.tbs_certificate_bytes):
        raise IdentityError(
            f"The certificate {where} is damaged or not signed with its own key; get it from its owner again."
        )
    now = now or dt.datetime.now(dt.UTC)
    if not first <= now <= last:
        early = now < first
        remedy = "check this machine's clock" if early else "make a new identity and a new agreement"
        raise (NotYetValid if early else IdentityError)(
            f"The certificate {where} is valid from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC, and "
            f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC; {remedy}."
        )
    return pem


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate's DER form, in hex."""
    return x509.load_pem_x509_certificate(certificate).fingerprint(hashes.SHA256()).hex()


def common_name(certificate: bytes) -> str:
    """Return the name a certificate was made for."""
    names = x509.load_pem_x509_certificate(certificate).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def expiry(certificate: bytes) -> float:
    """Return when a certificate ends, in seconds since 1970."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()


def verify(certificate: bytes, signature: bytes, content: bytes) -> bool:
    """Return whether ``signature`` of ``content`` was made with the certificate's key."""
    return _verified(x509.load_pem_x509_certificate(certificate).public_key(), signature, content)


def host_name(name: str) -> str:
    """Return the DNS name in a member's certificate; addresses may change, it does not."""
    return f"{name}.peer.sottovoce"


def proquint(digest: str) -> str:
    """Return a fingerprint as six short words that can be read aloud (proquints of its first 96 bits).

    D. Wilkerson, "A Proposal for Proquints", 2009, https://arxiv.org/abs/0901.4016.
    """
    words = struct.unpack(">6H", bytes.fromhex(digest)[:12])
    places = ((12, _CONSONANTS), (10, _VOWELS), (6, _CONSONANTS), (4, _VOWELS), (0, _CONSONANTS))
    return "-".join(
        "".join(letters[(bits >> shift) % len(letters)] for shift, letters in places) for bits in words
    )


class PinnedCertificates:
    """The certificates that a member directory trusts: files by member name, fingerprints in the ledger.

    Guarantees
    ----------
    A certificate is pinned by `trust` only, which is an act in the lifetime ledger. A file that was exchanged
    since does not match the lifetime ledger and is refused; so is an agreement with a member who is not
    pinned, or is pinned with another certificate (`require`). Only files ``NAME.pem`` in ``folder`` are
    written or removed, where NAME is a member's name other than ``own``.
    """

    def __init__(self, folder: str | Path, lifetime_ledger: LifetimeLedger, own: str) -> None:
        self.folder, self.lifetime_ledger, self.own = Path(folder), lifetime_ledger, own

    def trust(self, certificate: str | Path, why: str, *, instead: bool = False) -> str:
        """Pin a certificate and return the member's name; ``instead`` allows another one than before."""
        pem = read_certificate(certificate)
        name, digest = common_name(pem), fingerprint(pem)
        if name == self.own:
            raise IdentityError(
                f"{certificate} is a certificate for {name}, this member's own name; the others pin it, or "
                "another member must choose another name."
            )
        known, file = self._known().get(name), self.folder / f"{name}.pem"
        if not instead and known != digest and (known is not None or file.exists()):
            raise IdentityError(
                f"{file} exists, but the lifetime ledger pins no {name}; look at it, then use --replace."
                if known is None
                else f"{name} is pinned with another certificate ({proquint(known)}) than this one "
                f"({proquint(digest)}); ask {name} by telephone, then use --replace."
            )
        if known != digest:
            self.lifetime_ledger.trust(name, digest, why)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic_write(file, pem, mode=0o600)
        except (OSError, DataError) as error:
            raise IdentityError(
                f"The address book cannot be written ({error}); run `peer trust` again."
            ) from None
        return name

    def forget(self, name: str, why: str) -> None:
        """Trust a member's certificate no longer; agreements that list it are refused from now on."""
        if name not in self._known():
            raise IdentityError(f"No member {name!a} is pinned; `peer init FOLDER` lists who is.")
        self.lifetime_ledger.trust(name, _FORGOTTEN, why)
        if MEMBER_NAME.fullmatch(name):  # another name may point outside the folder
            (self.folder / f"{name}.pem").unlink(missing_ok=True)

    def pinned(self) -> dict[str, str]:
        """Return fingerprints by name, each compared with its file."""
        known = self._known()
        for name, digest in known.items():
            if not MEMBER_NAME.fullmatch(name):
                raise IdentityError(
                    f"The address book pins {name!a}, which is not a member's name; remove it with "
                    f"`peer trust --forget {name!a}`."
                )
            try:
                same = fingerprint((self.folder / f"{name}.pem").read_bytes()) == digest
            except (OSError, *DAMAGED):
                same = False
            if not same:
                raise IdentityError(
                    f"The certificate of {name} in the address book is not the one the lifetime ledger "
                    f"names; get it from {name} again and run `peer trust`, or `peer trust --forget {name}`."
                )
        return known

    def _known(self) -> dict[str, str]:
        pinned = self.lifetime_ledger.pinned
        return {name: digest for name, digest in pinned.items() if digest != _FORGOTTEN}

    def require(self, agreement: Agreement, own: str) -> None:
        """Raise unless every member other than ``own`` (a fingerprint) is pinned as it is listed."""
        known = self.pinned()
        for member in agreement.members:
            name, pinned = member.name, known.get(member.name)
            if member.fingerprint in (own, pinned):
                continue
            if pinned is None:
                raise IdentityError(
                    f"{name} is not in the address book; get its certificate, compare the words by telephone "
                    "and run `peer trust`."
                )
            raise IdentityError(
                f"The agreement lists another certificate for {name} ({proquint(member.fingerprint)}) than "
                f"the one pinned ({proquint(pinned)}); do not sign, ask {name} by telephone."
            )


def _private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _verified(key: PublicKeyTypes, signature: bytes, content: bytes) -> bool:
    try:
        cast(ec.EllipticCurvePublicKey, key).verify(signature, content, _ECDSA)
    except (InvalidSignature, AttributeError, TypeError):  # the last two: a key of another kind
        return False
    return True


def _identity(
    key: ec.EllipticCurvePrivateKey, name: str, days: float, start: dt.datetime | None = None
) -> Identity:
    if not 0 < days <= _MOST_DAYS:
        raise IdentityError(f"A certificate is valid for 1 to {_MOST_DAYS:,} days, got {days:g}.")
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    start = start or dt.datetime.now(dt.UTC) - dt.timedelta(minutes=5)
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    built = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host_name(name))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usages, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Identity(name, secret, built.public_bytes(pem))
