"""Identities: keys for their owner only, certificates that TLS and agreements take."""

import datetime as dt
import os
import shutil
import stat

import pytest

from sottovoce.errors import IdentityError
from sottovoce.peers.identity import check_certificate, make_identity, read_certificate, read_identity, verify


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
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
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


def test_a_clock_before_the_certificate_is_told_as_such(tmp_path):
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
