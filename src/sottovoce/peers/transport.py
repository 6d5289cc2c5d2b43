"""Frames over mutual TLS 1.3: only neighbors can connect, and the certificate is the sender.

A server trusts exactly the certificates of its neighbors, a caller exactly the certificate of the member it
calls; others fail in the handshake, before any application byte. The certificate is then compared with the
agreement once more, and a frame is handed on under that member's number, whatever the frame says. There is no
insecure mode.

Between two neighbors one connection carries frames both ways. If both have an address, both can call; if one
has none, it calls; if neither has, both call a relay. Each end first sends which agreement it holds, so that
a difference is reported at once. Frames that a broken connection may have lost are requested again by the
peer that misses them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import select
import ssl
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from sottovoce import __version__
from sottovoce.errors import FrameError, IdentityError, PeerError
from sottovoce.peers.agreement import Member
from sottovoce.peers.connection import (
    Connection,
    Proxy,
    call,
    client_context,
    closed_on_error,
    meet_at_relay,
    read_message,
    relay_token,
    server_context,
    tls_handshake,
    write_message,
)
from sottovoce.peers.identity import Identity, expiry
from sottovoce.peers.listener import PATIENCE, Listener, RateLimit
from sottovoce.peers.paced_sender import PacedSender
from sottovoce.peers.wire_format import KINDS, NEWS, POSITION, ROW, SUMMARY, VERSION, FrameCodec

_QUEUE = 256
_CONNECTIONS = 4  # of one member; the oldest is closed, it is most likely a dead one
_PAUSE, _LONGEST = 0.05, 1.0  # seconds before a member is called again
_HEADSTART = 1.0  # seconds that the first of two who could both call is waited for
# what one member may do: so often a second, and so often at once
_CONTROL = 40.0, 120.0  # control frames
_NEWS = 1_000.0, 3_000.0  # frames of heads and receipts: one or a few with every row
_FRAMES = 4_000.0, 1_000.0  # frames of one connection before it is paused
_REFUSED = 500.0, 1_000.0  # refused frames before their connection is paused
_CALLS = 1.0, 20.0  # connections
_LINES = 0.1, 20.0  # lines of the log about its connections
LOG_AGAIN = 10.0  # seconds before another refusal of the same member for the same reason is logged
BAD_FRAME = "not a frame of this run"
CLOCK = 60.0  # seconds that two clocks may differ without a message
HELLO = struct.Struct("<4sBB2x32s32sd24s")
_MAGIC = b"SVOH"
_OTHER = (
    "answers with another certificate than the agreed one: its key was changed, or something else listens "
    "there"
)


class Hello(NamedTuple):
    """The first message of each end, inside TLS: its agreement, its clock and its version; nothing secret."""

    run_id: bytes
    session: bytes
    time: float
    package: str
    version: int = VERSION
    only_check: bool = False

    def to_bytes(self) -> bytes:
        """Return the bytes that are sent."""
        package = self.package.encode("ascii", "replace")[:24]
        return HELLO.pack(
            _MAGIC, self.version, self.only_check, self.run_id, self.session, self.time, package
        )

    @classmethod
    def read(cls, raw: bytes) -> Hello:
        """Return the hello of the other end, or raise `FrameError`."""
        if len(raw) != HELLO.size or raw[:4] != _MAGIC:
            raise FrameError("it says something that no version of this program says")
        _, version, check, run_id, session, when, word = HELLO.unpack(raw)
        package = word.rstrip(b"\0").decode("ascii", "replace")
        printable = "".join(c if c.isprintable() else "?" for c in package)
        return cls(run_id, session, when, printable, version, bool(check))

    def against(self, own: Hello) -> str:
        """Return why two ends cannot talk, or nothing."""
        if self.version != own.version:
            newer = "this machine" if self.version > own.version else "it"
            return (
                f"answers, but speaks version {self.version} of the protocol (package {self.package}), this "
                f"machine {own.version} (package {own.package}); upgrade {newer}"
            )
        if self.run_id != own.run_id:
            return (
                f"answers, but with another agreement: {self.run_id.hex()[:16]}, here "
                f"{own.run_id.hex()[:16]}; compare the two files"
            )
        if self.session != own.session:
            return (
                "answers with the same agreement but other mask keys: somebody signed again; merge the "
                "newest signatures at both ends"
            )
        return ""

    def clock_apart(self, own: float) -> float:
        """Return how many seconds the other's clock is ahead."""
        apart = self.time - own
        return apart if abs(apart) < 1e12 else 1e12


def apart_in_words(seconds: float) -> str:
    """Return a difference between clocks for a person."""
    minutes = round(abs(seconds) / 60)  # two readings of a clock are never exactly a whole hour apart
    days, hours = minutes // 1440, minutes // 60 % 24
    span = f"{days} d {hours} h" if days else f"{hours} h {minutes % 60} min"
    return f"{span} {'ahead' if seconds > 0 else 'behind'}"


class TransportConfig(NamedTuple):
    """The names of a run, the relay and proxy to use, and a log that gets a small mapping per event.

    With a ``pace`` frames leave only in the middle of the spans of so many seconds that begin at
    ``spans_from`` by the monotonic clock.
    """

    run_id: bytes = bytes(32)
    session: bytes = bytes(32)
    relay: str = ""
    proxy: Proxy | None = None
    log: Callable[[dict[str, Any]], None] = lambda event: None
    pace: float | None = None
    spans_from: float = 0.0


class NeighborState:
    """What is known of one neighbor: its connections, its queue, and why it is not connected."""

    def __init__(self) -> None:
        self.queue: deque[bytes] = deque(maxlen=_QUEUE)
        self.connections: dict[Connection, RateLimit] = {}  # the newest, the last, is written to
        self.up, self.down = asyncio.Event(), asyncio.Event()
        self.down.set()
        self.why = self.package = ""
        self.heard = self.clock = 0.0
        self.frames = 0
        self.calls, self.lines = RateLimit(*_CALLS), RateLimit(*_LINES)
        self.control, self.news, self.refused = RateLimit(*_CONTROL), RateLimit(*_NEWS), RateLimit(*_REFUSED)

    @property
    def newest(self) -> Connection | None:
        """The connection that sends."""
        return next(reversed(self.connections), None)

    def next_message(self, connection: Connection) -> bytes | None:
        """Return what a connection sends next; only the newest one sends."""
        return self.queue.popleft() if self.queue and connection is self.newest else None


class TlsTransport:
    """One peer's end of the connections with its neighbors, over mutual TLS 1.3.

    Only ``contacts`` may connect, unless the fingerprint of their certificate is ``revoked``. ``deliver`` is
    called with (sender, bytes) for every frame and raises `FrameError` to refuse it; one longer than
    ``largest`` is refused unread. By ``clock`` no connection outlives the certificate that opened it.

    Guarantees
    ----------
    Every frame is handed to ``deliver`` under the number of the member that is proved to have sent it. Frames
    may be lost: they are requested again. What `report` returns does not depend on data.
    """

    def __init__(
        self,
        members: Iterable[Member],
        node: int,
        identity: Identity,
        contacts: Iterable[int],
        deliver: Callable[[int, bytes], None],
        *,
        largest: int,
        revoked: Iterable[str] = (),
        clock: Callable[[], float] = time.time,
        config: TransportConfig = TransportConfig(),  # noqa: B008 - immutable
    ) -> None:
        self.members, self.node, self.identity = list(members), node, identity
        barred = set(revoked)
        self.contacts = [s for s in contacts if self.members[s].fingerprint not in barred]
        self.deliver, self.largest = deliver, max(largest, HELLO.size)
        self.clock, self.config = clock, config
        self.refusals: Counter[tuple[str, str]] = Counter()  # (member, why): frames that were not taken
        self._refusal_logged: dict[tuple[str, str], tuple[float, int]] = {}  # when, and the count then
        self._pins = {bytes.fromhex(self.members[s].fingerprint): s for s in self.contacts}
        self._until = {s: expiry(self.members[s].certificate.encode()) for s in (node, *self.contacts)}
        self._first_expiry = min(self._until.values())
        self._known = {s: NeighborState() for s in self.contacts}
        self._leaving = False
        self._tasks: list[asyncio.Task[None]] = []
        self.listener: Listener | None = None
        self._sender: PacedSender | None = None
        if config.pace is not None:
            self._sender = PacedSender(config.pace, config.spans_from, 2 * self.largest + (1 << 20))

    async def start(self, address: str | None = None) -> None:
        """Begin to listen, at ``address`` or at the agreed one, and to call."""
        if not self.contacts:
            raise IdentityError("No neighbor with a valid certificate is left; there is nobody to talk to.")
        if address is not None or self.members[self.node].reachable:
            await self.listen(address or self.members[self.node].address)
        self._tasks += [asyncio.create_task(self._keep(s)) for s in self.contacts]

    async def listen(self, address: str) -> None:
        """Let neighbors connect to an address."""
        roots = [self.members[s].certificate for s in self.contacts]
        self.listener = Listener(address, self._enter, context=server_context(self.identity, roots))
        await self.listener.open()

    def send(self, to: int, *frames: bytes) -> None:
        """Queue frames for a contact."""
        contact = self._known.get(to)
        if contact is None:
            return
        for raw in frames:
            kind = FrameCodec.kind_of(raw)
            if kind in (POSITION, SUMMARY):  # only the newest question and answer are worth sending
                for old in [each for each in contact.queue if FrameCodec.kind_of(each) == kind]:
                    if FrameCodec.wants_answer(old) == FrameCodec.wants_answer(raw):
                        contact.queue.remove(old)
            contact.queue.append(raw)
        self._pour(to)

    def push(self, seconds: float) -> None:
        """Send what is queued for so long; nothing is read and nobody is let in meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            busy = {each.tls.fileno(): each for each in self._connections if each.unsent}
            if not busy:
                time.sleep(left)
                return
            poll = select.poll()
            for number in busy:
                poll.register(number, select.POLLOUT)
            for number, _ in poll.poll(1000 * left):
                busy[number].write()

    def expired(self, *members: int) -> list[int]:
        """Return which of ``members`` (by default this one and all contacts) have an expired certificate."""
        now = self.clock()
        if now <= self._first_expiry:
            return []
        return [s for s in members or self._until if now > self._until[s]]

    async def flush(self, seconds: float) -> None:
        """Wait at most so long until what is queued has arrived; nothing is sent later."""
        self._leaving = True
        contacts = self._known.values()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(each.queue for each in contacts) or any(each.unsent for each in self._connections):
                    await asyncio.sleep(0.005)
                for connection in self._connections:
                    connection.leave()
                while self._connections:
                    await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """End listening and sending."""
        self._leaving = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.listener is not None:
            self.listener.close()
        for connection in self._connections:
            connection.close()
        if self._sender is not None:
            self._sender.close()

    @property
    def _connections(self) -> list[Connection]:
        return [each for contact in self._known.values() for each in contact.connections]

    def report(self) -> dict[str, Any]:
        """Return ``neighbors`` (connected or not, and why) and what was refused."""
        now = time.monotonic()
        neighbors = {
            self.members[s].name: {
                "connected": bool(c.connections),
                "seconds_since_heard": round(now - c.heard, 1) if c.heard else None,
                "frames": c.frames,
                "clock_ahead": round(c.clock, 1),
                "package": c.package,
                "why": "" if c.connections else c.why,
            }
            for s, c in self._known.items()
        }
        refused = [{"from": who, "why": why, "count": n} for (who, why), n in sorted(self.refusals.items())]
        listener = {} if self.listener is None else {**self.listener.counts, "waiting": self.listener.waiting}
        return {"neighbors": neighbors, "refused": refused, "listener": listener}

    # ---- connecting ------------------------------------------------------------------------------

    async def _enter(self, tls: ssl.SSLSocket, host: str) -> None:
        """Accept a connection that has passed TLS if its certificate and its agreement are right."""
        sender = self._pins.get(shown_fingerprint(tls))
        if sender is None:
            self._refuse("a stranger", "the certificate is not a neighbor's")
            raise PeerError("a stranger")
        if not self._known[sender].calls.take(time.monotonic()):
            self.refuse(sender, "too many connections")
            tls.close()
            return
        try:
            await self._greet(tls, sender, calling=False)
        except PeerError as error:
            tls.close()
            self.refuse(sender, "another agreement, keys or version", str(error))
            if not self._known[sender].connections:
                self._known[sender].why = str(error)

    async def _keep(self, to: int) -> None:
        """Call a contact whenever there is no connection with it, if it or the relay can be called."""
        own, other, contact = self.members[self.node], self.members[to], self._known[to]
        if not other.reachable and (own.reachable or not self.config.relay):
            return  # it calls this peer
        # of two who could both call, the first in the list does, and the other if that does not help
        headstart = _HEADSTART if other.reachable and own.reachable and to < self.node else 0.0
        context, pause = client_context(self.identity, other.certificate), _PAUSE
        while True:
            await contact.down.wait()
            if headstart:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(headstart):  # wait_for can lose a cancellation
                        await contact.up.wait()
                if contact.connections:
                    continue
            begun = time.monotonic()
            try:
                await self._call(to, context)
            except (PeerError, OSError) as error:
                if contact.why != str(error) and not contact.connections and not self._leaving:
                    contact.why = str(error)
                    self._log(to, "trouble", why=contact.why)
            if contact.connections:
                pause = _PAUSE
            else:
                pause = min(2 * pause, _LONGEST) if time.monotonic() - begun < 10 else _PAUSE
                await asyncio.sleep(pause)

    async def _call(self, to: int, context: ssl.SSLContext) -> None:
        other, config = self.members[to], self.config
        # at a relay both have called: the first in the list is the TLS client
        server = not other.reachable and to < self.node
        try:
            if other.reachable:
                sock = await call(other.address, proxy=config.proxy)
            else:
                token = relay_token(config.session, self.node, to)
                sock = await meet_at_relay(config.relay, token, int(server), proxy=config.proxy)
        except PeerError as error:
            raise PeerError(f"cannot be reached: {error}") from None
        if server:
            context = server_context(self.identity, [other.certificate])
        try:
            async with asyncio.timeout(PATIENCE):
                tls = await tls_handshake(sock, context, server=server)
                with closed_on_error(tls):
                    if shown_fingerprint(tls) != bytes.fromhex(other.fingerprint):
                        raise PeerError(_OTHER)
                    await self._greet(tls, to, calling=True)
        except TimeoutError:
            problem = "is reached, but says nothing: something else listens there, or it is busy"
        except ssl.SSLError as error:
            problem = _in_words(error)
        except OSError as error:
            problem = (
                f"closed the connection before a word ({error.strerror or error}): it has another agreement "
                "without this member's certificate, has revoked it, or is stopping"
            )
        else:
            return
        raise PeerError(problem)

    async def _greet(self, tls: ssl.SSLSocket, to: int, *, calling: bool) -> None:
        """Exchange hellos; if both ends hold one agreement, keep the connection."""
        contact = self._known[to]
        own = Hello(self.config.run_id, self.config.session, self.clock(), __version__)
        try:
            await write_message(tls, own.to_bytes())
            theirs = Hello.read(await read_message(tls, HELLO.size))
        except FrameError as error:
            raise PeerError(f"answers, but {error}".rstrip(".")) from None
        if not theirs.only_check and (why := theirs.against(own)):
            raise PeerError(why)
        if theirs.only_check or self._leaving:
            tls.close()
            return
        contact.package, contact.clock = theirs.package, theirs.clock_apart(own.time)
        if self._sender is not None:
            self._sender.carry(tls)
        connection = Connection(
            tls,
            largest=self.largest,
            next_message=contact.next_message,
            on_message=partial(self._receive, to),
            on_close=partial(self._lost, to),
        )
        contact.connections[connection] = RateLimit(*_FRAMES)
        if len(contact.connections) > _CONNECTIONS:
            next(iter(contact.connections)).close()
        contact.up.set()
        contact.down.clear()
        contact.why = ""
        self._log(to, "connected", called=calling)
        if abs(contact.clock) > CLOCK:
            self._log(to, "clock", apart=apart_in_words(contact.clock))
        self._pour(to)

    def _log(self, to: int, event: str, **details: str | bool) -> None:
        """Log what happened to the connection with a contact, unless it happens all the time."""
        if self._known[to].lines.take(time.monotonic()):
            self.config.log({"event": event, "member": self.members[to].name, **details})

    # ---- frames ----------------------------------------------------------------------------------

    def _pour(self, to: int) -> None:
        contact = self._known[to]
        newest = contact.newest
        if newest is None or newest.unsent or (contact.queue and self.expired(to, self.node)):
            return  # what waits is written later, by the newest connection
        newest.write()

    def _receive(self, sender: int, connection: Connection, raw: bytes) -> None:
        contact, now = self._known[sender], time.monotonic()
        contact.heard = now
        contact.frames += 1
        if not contact.connections[connection].take(now):
            connection.pause(0.05)
        kind, why, details = FrameCodec.kind_of(raw), "", ""
        allowed = contact.news if kind == NEWS else contact.control
        if kind not in KINDS:  # not charged to the allowance of the member's true control frames
            why = BAD_FRAME
        elif kind != ROW and not allowed.take(now):
            why = "too many control frames"
        elif self.expired(sender, self.node):
            why = "the certificate has expired"
            connection.close()
        else:
            try:
                self.deliver(sender, raw)
            except FrameError as error:
                why, details = BAD_FRAME, str(error)  # the frames that follow are still taken
            except PeerError:
                connection.close()  # this peer has stopped
        if why:
            self.refuse(sender, why, details)
            if not contact.refused.take(now):
                connection.pause(0.1)

    def refuse(self, sender: int, why: str, details: str = "") -> None:
        """Count a frame or a call of a member that was not taken, and log it now and then."""
        self._refuse(self.members[sender].name, why, details)

    def _refuse(self, who: str, why: str, details: str = "") -> None:
        self.refusals[who, why] += 1
        count, now = self.refusals[who, why], time.monotonic()
        logged_at, logged_count = self._refusal_logged.get((who, why), (-math.inf, 0))
        if now - logged_at >= LOG_AGAIN:
            self._refusal_logged[who, why] = now, count
            event = {"event": "refused", "member": who, "why": details or why}
            self.config.log({**event, "count": count - logged_count})

    def _lost(self, to: int, connection: Connection, error: Exception | None) -> None:
        contact = self._known[to]
        if connection not in contact.connections:
            return
        del contact.connections[connection]
        contact.queue.extendleft(reversed(connection.unsent))
        if isinstance(error, FrameError):
            self.refuse(to, BAD_FRAME, str(error))
        if contact.connections:
            self._pour(to)
            return
        contact.up.clear()
        contact.down.set()
        if not self._leaving:
            contact.why = (
                "closed the connection" if error is None else f"the connection broke ({_plain(error)})"
            )
            self._log(to, "lost", why=contact.why)


def shown_fingerprint(tls: ssl.SSLSocket) -> bytes:
    """Return the digest of the certificate that made the connection, or nothing without TLS 1.3."""
    certificate = tls.getpeercert(binary_form=True)
    if certificate is None or tls.version() != "TLSv1.3":
        return b""
    return hashlib.sha256(certificate).digest()


def _in_words(error: ssl.SSLError) -> str:
    """Return what a failed handshake means for the person who looks for its cause."""
    theirs = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else ""
    reason = (theirs or error.reason or str(error)).replace("_", " ").lower()
    if "expired" in reason or "not yet valid" in reason:
        finds = "shows a certificate that is" if theirs else "finds this member's certificate"
        return f"{finds} expired or not valid yet: compare the clocks of both machines"
    if theirs:
        return _OTHER
    if "alert" in reason or "unknown ca" in reason or "certificate" in reason:
        return (
            f"refuses this member's certificate ({reason}): it has another agreement without it, has revoked "
            "it, or its clock is wrong"
        )
    if "version" in reason or "wrong" in reason or "record" in reason:
        return f"answers, but does not speak TLS 1.3 ({reason}): something else listens there"
    return f"broke off the handshake ({reason})"


def _plain(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "TLS").replace("_", " ").lower()
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
