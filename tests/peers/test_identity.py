"""Identities: keys for their owner only, certificates that TLS and agreements take."""

import base64
import datetime as dt
import os
import shutil
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sottovoce.errors import IdentityError, InvalidInput
from sottovoce.ledger.balance import LifetimeBudget
from sottovoce.peers.identity import (
    check_certificate,
    fingerprint,
    make_identity,
    read_certificate,
    read_identity,
    verify,
)
from sottovoce.peers.member_directory import MemberDirectory


def test_keys_are_for_their_owner(tmp_path):
    identity = make_identity(tmp_path / "id", "alice")
    assert stat.S_IMODE((tmp_path / "id" / "key.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "id").stat().st_mode) == 0o700
    assert read_identity(tmp_path / "id") == identity
    assert "PRIVATE" not in repr(identity)
    assert verify(identity.certificate, identity.sign(b"x"), b"x")
    assert not verify(identity.certificate, identity.sign(b"x"), b"y")
    assert not verify(identity.certificate, b"junk", b"x")
    with pytest.raises(IdentityError, match="exists"):
        make_identity(tmp_path / "id", "alice")
    os.chmod(tmp_path / "id" / "key.pem", 0o644)
    with pytest.raises(IdentityError, match="chmod 600"):
        read_identity(tmp_path / "id")


def test_missing_mixed_and_expired_identities_are_refused(tmp_path):
    with pytest.raises(IdentityError, match="keygen"):
        read_identity(tmp_path / "none")
    for name in ("a", "b"):
        make_identity(tmp_path / name, name)
    shutil.copy(tmp_path / "a" / "certificate.pem", tmp_path / "b" / "certificate.pem")
    with pytest.raises(IdentityError, match="does not belong"):
        read_identity(tmp_path / "b")
    past = dt.datetime.now(dt.UTC) - dt.timedelta(days=10)
    make_identity(tmp_path / "c", "c", days=1, start=past)
    with pytest.raises(IdentityError, match="and this machine's clock says"):
        read_identity(tmp_path / "c")
    (tmp_path / "d.pem").write_text("hello")
    with pytest.raises(IdentityError, match="not a certificate"):
        read_certificate(tmp_path / "d.pem")
    with pytest.raises(IdentityError):
        make_identity(tmp_path / "e", "Not A Name")


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_keys_that_tls_does_not_take_are_refused_when_read(kind, tmp_path):
    """Listed in an agreement, such a member would only ever fail in the handshake, or allow TLS 1.2."""
    from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

    key = ed25519.Ed25519PrivateKey.generate() if kind == "ed25519" else rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ed")])
    now = dt.datetime.now(dt.UTC)
    built = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + dt.timedelta(days=1))
    signed = built.sign(key, None if kind == "ed25519" else hashes.SHA256())
    file = tmp_path / "certificate.pem"
    file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    with pytest.raises(IdentityError, match="must have a P-256 key"):
        read_certificate(file)


def test_a_clock_before_the_certificate_is_named(tmp_path):
    identity = make_identity(tmp_path / "a", "a")
    now = dt.datetime.now(dt.UTC)
    with pytest.raises(IdentityError, match="check this machine's clock"):
        check_certificate(identity.certificate, "a.pem", now - dt.timedelta(days=400))
    with pytest.raises(IdentityError, match="make a new identity"):
        check_certificate(identity.certificate, "a.pem", now + dt.timedelta(days=4000))
    start = dt.datetime(2026, 5, 3, 10, 0, tzinfo=dt.UTC)
    later = make_identity(tmp_path / "b", "b", start=start, days=2)
    with pytest.raises(
        IdentityError, match=r"from 2026-05-03 10:00 to .* clock says 2026-05-03 09:00 UTC; c"
    ):
        check_certificate(later.certificate, "b.pem", start - dt.timedelta(hours=1))


def certificate_for(*names):
    """Return a certificate as a stranger can make it: any names, a key of the right kind."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [x509.NameAttribute(x509.NameOID.COMMON_NAME, name, _validate=False) for name in names]
    )
    now = dt.datetime.now(dt.UTC)
    first, last = now - dt.timedelta(days=1), now + dt.timedelta(days=1)
    built = x509.CertificateBuilder(subject, subject, key.public_key(), 1, first, last)
    return built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.fixture
def north(tmp_path):
    budgets = [LifetimeBudget(5.0, 1e-5, "replace-one")]
    return MemberDirectory.create(
        tmp_path / "north", "north", population="patients", budgets=budgets, copy=tmp_path / "copy"
    )


def files_below(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


NAMES = [
    "../identity/key", "{folder}/server", "South", "s\u043euth", "south\n", "\x1b[31msouth", "..", "", "a b",
    "south/", "-south", "s" * 64, "north",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Attribute's length")
@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_a_certificate_never_becomes_another_file(name, north, tmp_path):
    (tmp_path / "server.pem").write_text("another program's key")
    names = [name.format(folder=tmp_path)] if name else []
    (tmp_path / "theirs.pem").write_bytes(certificate_for(*names))
    before = files_below(tmp_path)
    with pytest.raises(IdentityError) as refusal:
        north.pinned_certificates.trust(tmp_path / "theirs.pem", "it came by mail", instead=True)
    assert str(refusal.value).isprintable()
    assert str(refusal.value).isascii()
    assert files_below(tmp_path) == before


def test_a_certificate_with_two_names_is_refused(tmp_path):
    (tmp_path / "theirs.pem").write_bytes(certificate_for("south", "east"))
    with pytest.raises(IdentityError, match="must have one name, got 2"):
        read_certificate(tmp_path / "theirs.pem")


def test_damaged_certificates_are_refused_in_one_sentence():
    whole = x509.load_pem_x509_certificate(certificate_for("south"))
    body = whole.public_bytes(serialization.Encoding.DER)
    # the byte before the signature says how many of its last bits are unused, and may say one
    for place in set(range(len(body))) - {len(body) - len(whole.signature) - 1}:
        for bit in (1, 128):
            damaged = bytearray(body)
            damaged[place] ^= bit
            text = base64.encodebytes(bytes(damaged)).decode()
            pem = f"-----BEGIN CERTIFICATE-----\n{text}-----END CERTIFICATE-----\n"
            with pytest.raises(IdentityError) as refusal:
                check_certificate(pem.encode(), "south.pem")
            assert str(refusal.value).isprintable()


def test_nothing_is_overwritten_without_a_word(north, tmp_path):
    pinned, book = north.pinned_certificates, tmp_path / "north" / "addresses"
    file = tmp_path / "south.pem"
    file.write_bytes(certificate_for("south"))
    book.mkdir()
    (book / "south.pem").write_text("notes of the officer")
    with pytest.raises(IdentityError, match="exists, but the lifetime ledger pins no south"):
        pinned.trust(file, "read aloud")
    assert (book / "south.pem").read_text() == "notes of the officer"
    pinned.trust(file, "read aloud", instead=True)
    before = files_below(tmp_path)
    (tmp_path / "new.pem").write_bytes(certificate_for("south"))
    with pytest.raises(InvalidInput, match="printable"):
        pinned.trust(tmp_path / "new.pem", "", instead=True)  # a reason is needed: nothing is half replaced
    (tmp_path / "new.pem").unlink()
    assert files_below(tmp_path) == before


def test_a_member_is_forgotten_and_trusted_anew(north, tmp_path):
    pinned, file = north.pinned_certificates, tmp_path / "south.pem"
    file.write_bytes(certificate_for("south"))
    pinned.trust(file, "read aloud")
    pinned.forget("south", "south has left")
    assert pinned.pinned() == {}
    assert not (tmp_path / "north" / "addresses" / "south.pem").exists()
    with pytest.raises(IdentityError, match="No member 'south' is pinned"):
        pinned.forget("south", "again")
    file.write_bytes(certificate_for("south"))
    pinned.trust(file, "a new key, read aloud")
    assert pinned.pinned() == {"south": fingerprint(file.read_bytes())}


def test_a_pin_with_a_path_for_a_name_is_removed_without_touching_the_file(north, tmp_path):
    """A directory written before names were checked can hold such a pin; forgetting it makes it usable."""
    north.lifetime_ledger.trust("../identity/key", "ab" * 32, "it came by mail")
    with pytest.raises(IdentityError, match="--forget"):
        north.pinned_certificates.pinned()
    north.pinned_certificates.forget("../identity/key", "not a name")
    assert north.pinned_certificates.pinned() == {}
    assert north.identity.name == "north"
