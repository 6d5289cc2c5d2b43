"""Strangers get no application byte; the sender is the certificate; TLS 1.3 or nothing (I4, I4b)."""

import asyncio
import datetime as dt
import socket
import ssl
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from sottovoce.errors import FrameError, IdentityError
from sottovoce.peers import transport as module
from sottovoce.peers.agreement import Member, member_entry
from sottovoce.peers.identity import CertificateSigner, make_identity
from sottovoce.peers.wire_format import POSITION, ROW, FrameCodec

FOLDER = Path(tempfile.mkdtemp(prefix="sottovoce-test-"))
NAMES = ("server", "friend", "distant", "stranger", "expired", "future", "revoked")
PAST = dt.datetime.now(dt.UTC) - dt.timedelta(days=30)


def new_identity(name):
    options = {"expired": {"start": PAST, "days": 3}, "future": {"start": PAST + dt.timedelta(days=60)}}
    return make_identity(FOLDER / name, name, **options.get(name, {}))


IDENTITIES = {name: new_identity(name) for name in NAMES}
IMPOSTOR = make_identity(FOLDER / "impostor", "friend")  # the right name on another key
LISTED = ("server", "friend", "distant", "expired", "future", "revoked")
MEMBERS = [
    Member(**member_entry(IDENTITIES[name].certificate, f"127.0.0.1:{7000 + i}"))
    for i, name in enumerate(LISTED)
]
CONTACTS = [1, 3, 4, 5]  # all but the distant member, who is no neighbor
WIRE = FrameCodec(bytes(32), len(LISTED), 5, 3, "float64")
ROW_FRAME = b"SVOC\1" + bytes([ROW]) + b"\0\0"


class Listening:
    """A server that counts what reaches the application."""

    def __init__(self):
        self.frames, self.events = [], []

    async def __aenter__(self):
        self.transport = module.TlsTransport(
            MEMBERS,
            0,
            IDENTITIES["server"],
            CONTACTS,
            lambda sender, raw: self.frames.append((sender, raw)),
            largest=WIRE.largest,
            revoked=[IDENTITIES["revoked"].fingerprint],
            config=module.TransportConfig(log=self.events.append),
        )
        await self.transport.listen("127.0.0.1:0")
        return self

    async def __aexit__(self, *error):
        await self.transport.stop()

    async def call(self, identity, *messages, roots=None, key=None, chain=None, hello=None, maximum=None):
        """Call as ``identity``; return (what stopped it or "OK", the application bytes that came back)."""
        return await asyncio.to_thread(self._call, identity, messages, roots, key, chain, hello, maximum)

    def _call(self, identity, messages, roots, key, chain, hello, maximum):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=(roots or IDENTITIES["server"].certificate).decode())
        if maximum is not None:
            context.maximum_version = maximum
        came = b""
        if identity is not None or key is not None:
            pair = FOLDER / "pair.pem"
            pair.write_bytes((chain or identity.certificate) + (key or identity.key))
            try:
                context.load_cert_chain(pair)
            except ssl.SSLError as error:  # not even OpenSSL takes a key that is another's
                return type(error).__name__, came
        try:
            with socket.create_connection(("127.0.0.1", self.transport.listener.port), timeout=5) as raw:
                with context.wrap_socket(raw) as tls:
                    for message in (HELLO.to_bytes() if hello is None else hello, *messages):
                        tls.sendall(len(message).to_bytes(4, "little") + message)
                    while len(came) < 4 + module.HELLO.size:
                        got = tls.recv(4096)
                        if not got:
                            return "closed", came
                        came += got
                    tls.settimeout(0.1)
                    try:
                        came += tls.recv(4096)
                    except TimeoutError:
                        pass
                    return tls.version(), came
        except (OSError, ssl.SSLError) as error:
            return type(error).__name__, came

    async def plain(self, content):
        """Send bytes without TLS; what comes back may be a TLS alert, and nothing else."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.transport.listener.port)
        writer.write(content)
        await writer.drain()
        try:
            answer = await asyncio.wait_for(reader.read(4096), 2)
        except (TimeoutError, ConnectionError):
            answer = b""
        writer.close()
        return "alert" if answer[:1] in (b"", b"\x15") else "application bytes", b""


HELLO = module.Hello(bytes(32), bytes(32), 0.0, "test")
OLD = ssl.TLSVersion.TLSv1_2


CASES = {
    "no certificate": lambda s: s.call(None, b"row"),
    "a stranger's certificate": lambda s: s.call(IDENTITIES["stranger"], b"row"),
    "the right name on another key": lambda s: s.call(IMPOSTOR, b"row"),
    "a friend's certificate without its key": lambda s: s.call(
        None, b"row", key=IDENTITIES["stranger"].key, chain=IDENTITIES["friend"].certificate
    ),
    "a member who is no neighbor": lambda s: s.call(IDENTITIES["distant"], b"row"),
    "an expired certificate": lambda s: s.call(IDENTITIES["expired"], b"row"),
    "a certificate not yet valid": lambda s: s.call(IDENTITIES["future"], b"row"),
    "a revoked certificate": lambda s: s.call(IDENTITIES["revoked"], b"row"),
    "a stranger who shows a friend's certificate as its issuer": lambda s: s.call(
        IDENTITIES["stranger"],
        b"row",
        chain=IDENTITIES["stranger"].certificate + IDENTITIES["friend"].certificate,
    ),
    "a certificate that a friend has signed": lambda s: s.call(
        None, b"row", key=IDENTITIES["stranger"].key, chain=signed_by_friend()
    ),
    "the server's own certificate": lambda s: s.call(IDENTITIES["server"], b"row"),
    "a hello without TLS": lambda s: s.plain(HELLO.to_bytes()),
    "the words for a relay": lambda s: s.plain(b"SVRELAY1" + bytes(33)),
    "plain HTTP/1.1": lambda s: s.plain(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "plain HTTP/2 preface": lambda s: s.plain(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64)),
    "a frame straight into the socket": lambda s: s.plain(bytes(200)),
    "TLS 1.2": lambda s: s.call(IDENTITIES["friend"], b"row", maximum=OLD),
    "a client that expects another server": lambda s: s.call(
        IDENTITIES["friend"], b"row", roots=IDENTITIES["stranger"].certificate
    ),
}


def signed_by_friend():
    """Return a leaf for the stranger's key that the friend's key has signed, with the friend's own below."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    friend = x509.load_pem_x509_certificate(IDENTITIES["friend"].certificate)
    stranger = serialization.load_pem_private_key(IDENTITIES["stranger"].key, None)
    signer = serialization.load_pem_private_key(IDENTITIES["friend"].key, None)
    leaf = (
        x509.CertificateBuilder()
        .subject_name(friend.subject)
        .issuer_name(friend.subject)
        .public_key(stranger.public_key())
        .serial_number(7)
        .not_valid_before(dt.datetime.now(dt.UTC) - dt.timedelta(days=1))
        .not_valid_after(dt.datetime.now(dt.UTC) + dt.timedelta(days=1))
        .sign(signer, hashes.SHA256())
    )
    return leaf.public_bytes(serialization.Encoding.PEM) + IDENTITIES["friend"].certificate


def meet(action):
    async def scene():
        async with Listening() as server:
            outcome = await action(server)
            for _ in range(1000):  # until what was sent has been read to its end
                if not any(contact.connections for contact in server.transport._known.values()):
                    break
                await asyncio.sleep(0.01)
            return outcome, server.frames, server

    return asyncio.run(scene())


@pytest.mark.parametrize("case", CASES)
def test_strangers_get_no_application_byte(case):
    (outcome, came), frames, _ = meet(CASES[case])
    assert frames == [], case
    assert outcome not in ("TLSv1.2", "TLSv1.3", "application bytes"), case
    assert came == b"", case  # not one application byte
    if case == "TLS 1.2":
        assert outcome == "SSLError"  # the handshake itself fails, not only what comes after it


def test_a_neighbor_gets_through_over_tls_13():
    (outcome, came), frames, _ = meet(lambda s: s.call(IDENTITIES["friend"], ROW_FRAME))
    assert (outcome, frames) == ("TLSv1.3", [(1, ROW_FRAME)])
    assert module.Hello.read(came[4:]).against(HELLO) == ""


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (
            HELLO._replace(run_id=b"r" * 32),
            "answers, but with another agreement: 7272727272727272, here 0000",
        ),
        (HELLO._replace(session=b"k" * 32), "other mask keys"),
        (HELLO._replace(version=9, package="9.1"), "speaks version 9 of the protocol (package 9.1)"),
        (HELLO._replace(version=0), "upgrade it"),
        (b"something else entirely", "no version of this program says"),
    ],
)
def test_a_neighbor_with_another_agreement_is_refused_with_a_reason(hello, why):
    raw = hello if isinstance(hello, bytes) else hello.to_bytes()
    _, frames, server = meet(lambda s: s.call(IDENTITIES["friend"], ROW_FRAME, hello=raw))
    assert frames == []
    (event,) = [event for event in server.events if event["event"] == "refused"]
    assert event["member"] == "friend"
    assert why in event["why"]
    assert server.transport.report()["neighbors"]["friend"]["why"] == event["why"]


def test_the_sender_is_the_certificate_not_the_frame(consortium):
    """I4b: a frame with another member's number is refused by the core, under the sender TLS proved."""
    import numpy as np

    group = consortium(n=3, graph="complete:3")
    peer = group.peers()[0]
    certificates = [member.certificate.encode() for member in group.agreement.members]
    theirs = CertificateSigner(group.identities[2], certificates)
    forged = peer.agreed_run.codec.row(np.zeros(3), sender=2, round=0)
    signed = replace(peer.agreed_run.codec, signer=theirs).row(np.zeros(3), sender=2, round=0)
    before = peer.core.digest()
    for raw in (forged, signed):
        with pytest.raises(FrameError, match="certificate"):
            peer.core.receive(0.0, 1, raw)
    assert peer.core.digest() == before


def test_an_oversized_message_is_refused_unread():
    """Its length alone ends the connection."""

    async def scene(s):
        return await s.call(IDENTITIES["friend"], bytes(s.transport.largest + 1))

    (_, _), frames, server = meet(scene)
    assert frames == []
    assert server.transport.refusals.total() == 1
    (event,) = [event for event in server.events if event["event"] == "refused"]
    assert "bytes came where at most" in event["why"]


def test_frames_after_a_refused_one_are_taken():
    """A connection carries many frames: a refused one is counted and told, the next are taken."""

    def deliver(sender, raw):
        if raw[8:] == b"bad":
            raise FrameError("no frame")
        seen.append((sender, raw))

    async def scene(s):
        s.transport.deliver = deliver
        return await s.call(IDENTITIES["friend"], ROW_FRAME, ROW_FRAME + b"bad", ROW_FRAME + b"two")

    seen = []
    server = meet(scene)[2]
    assert server.transport.refusals.total() == 1
    assert [raw for _, raw in seen] == [ROW_FRAME, ROW_FRAME + b"two"]
    assert {"event": "refused", "member": "friend", "why": "no frame", "count": 1} in server.events


def test_control_frames_are_limited_and_rows_are_not():
    """Beyond its allowance a member's control frames are not even looked at; rows among them all arrive."""
    control = bytes([*ROW_FRAME[:5], POSITION, *ROW_FRAME[6:]])

    async def scene(s):
        flood = [message for _ in range(500) for message in (control, control, ROW_FRAME)]
        await s.call(IDENTITIES["friend"], *flood)

    begun = time.monotonic()
    _, frames, server = meet(scene)
    seconds = time.monotonic() - begun
    rows = [raw for _, raw in frames if raw == ROW_FRAME]
    taken = [raw for _, raw in frames if raw == control]
    assert len(rows) == 500
    assert len(taken) <= module._CONTROL[1] + seconds * module._CONTROL[0] < 1000
    assert server.transport.refusals["friend", "too many control frames"] == 1000 - len(taken)


def test_a_connection_with_many_refused_frames_is_read_slowly(monkeypatch):
    """What it takes to refuse a flood is bounded, and the log gets one line; true rows still arrive."""
    monkeypatch.setattr(module, "_REFUSED", (100.0, 20.0))
    pauses = []
    monkeypatch.setattr(module.Connection, "pause", lambda self, seconds: pauses.append(seconds))

    async def scene(s):
        await s.call(IDENTITIES["friend"], *[b"x"] * 200, ROW_FRAME)

    begun = time.monotonic()
    _, frames, server = meet(scene)
    seconds = time.monotonic() - begun
    assert frames == [(1, ROW_FRAME)]
    assert server.transport.refusals["friend", module.BAD_FRAME] == 200
    assert 0 < len(pauses)
    assert len(pauses) >= 200 - 20 - 100 * seconds
    assert sum(event["event"] == "refused" for event in server.events) <= 1 + seconds / module.LOG_AGAIN


@pytest.mark.parametrize("whose", ["server", "friend"])
def test_an_open_connection_does_not_outlive_a_certificate(whose):
    """I4 in the middle of a run: the handshake was long ago; the frame after the last second is not taken."""

    async def scene(s):
        def deliver(sender, raw):
            s.frames.append((sender, raw))
            s.transport._until[LISTED.index(whose)] = 0.0

        s.transport.deliver = deliver
        await s.call(IDENTITIES["friend"], ROW_FRAME, ROW_FRAME)

    _, frames, server = meet(scene)
    assert frames == [(1, ROW_FRAME)]
    assert server.transport.refusals["friend", "the certificate has expired"] == 1


def test_a_partly_sent_frame_comes_first_on_the_next_connection():
    """A connection that breaks in the middle of a row: the next one begins with that row, then the others."""
    members = [Member(**member_entry(IDENTITIES[name].certificate, "h:1")) for name in ("server", "friend")]
    sender = module.TlsTransport(members, 0, IDENTITIES["server"], [1], print, largest=WIRE.largest)
    contact = sender._known[1]
    broken = Mock(unsent=[b"half of it left", b"and none of this"])
    contact.connections[broken] = None
    contact.queue.append(b"queued since")
    sender._lost(1, broken, ConnectionResetError("gone"))
    assert list(contact.queue) == [b"half of it left", b"and none of this", b"queued since"]
    assert contact.connections == {}


def test_reconnecting_loses_no_queued_frame(free_ports):
    """The receiver goes away and comes back at its address; what was queued meanwhile arrives, in order."""

    def receiver(to):
        return module.TlsTransport(
            members, 1, IDENTITIES["friend"], [0], lambda s, raw: to.append(raw), largest=WIRE.largest
        )

    async def until(condition):
        for _ in range(1000):
            if condition():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it did not come")

    async def scene():
        first, second = [], []
        friend = receiver(first)
        await friend.start()
        sender = module.TlsTransport(members, 0, IDENTITIES["server"], [1], print, largest=WIRE.largest)
        await sender.start()
        sender.send(1, ROW_FRAME + b"1")
        await until(lambda: first)
        await friend.stop()
        await asyncio.sleep(0.05)
        sender.send(1, ROW_FRAME + b"2")
        sender.send(1, ROW_FRAME + b"3")
        friend = receiver(second)
        await friend.start()
        await until(lambda: len(second) == 2)
        sender.send(1, ROW_FRAME + b"4")
        await sender.flush(5.0)  # returns after the last was read
        assert second == [
            ROW_FRAME + b"2",
            ROW_FRAME + b"3",
            ROW_FRAME + b"4",
        ]
        await asyncio.gather(sender.stop(), friend.stop())
        return first

    ports = free_ports(2)
    members = [
        Member(**member_entry(IDENTITIES[name].certificate, f"127.0.0.1:{port}"))
        for name, port in zip(("server", "friend"), ports, strict=True)
    ]
    assert asyncio.run(scene()) == [ROW_FRAME + b"1"]


def test_a_transport_without_contacts_does_not_start():
    async def scene():
        alone = module.TlsTransport(
            MEMBERS,
            0,
            IDENTITIES["server"],
            [5],
            print,
            largest=10,
            revoked=[IDENTITIES["revoked"].fingerprint],
        )
        with pytest.raises(IdentityError, match="nobody"):
            await alone.start("127.0.0.1:0")
        await alone.stop()

    asyncio.run(scene())


def test_no_insecure_mode_exists():
    """The words that would open one do not occur in the package."""
    source = Path(module.__file__).parent
    words = ("CERT_NONE", "CERT_OPTIONAL", "_create_unverified_context", "TLSv1_2", "insecure_channel")
    for path in source.glob("*.py"):
        text = path.read_text()
        for word in words:
            assert word not in text, f"{path.name}: {word}"


def test_the_key_is_never_in_a_file_that_others_could_read(monkeypatch):
    """OpenSSL reads keys from files: what it gets is memory of this process, gone afterwards."""
    paths = []
    load = ssl.SSLContext.load_cert_chain

    def watched(self, path, *more):
        paths.append(path)
        return load(self, path, *more)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", watched)
    meet(lambda s: asyncio.sleep(0))
    assert paths
    for path in paths:
        assert path.startswith("/proc/self/fd/")
