"""The listening socket of a peer or relay.

Unauthenticated connections hold one file descriptor and are closed after a timeout. A TLS client sends first,
so the kernel keeps silent connections for a while, and no TLS state exists before the first byte. The number
of unauthenticated connections is limited per address and in all; beyond the limit the oldest one is closed,
so that a member, who needs a few milliseconds, can always connect. Handshakes cost processor time:
addresses from which no member has come take turns, fifty a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
import ssl
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

from sottovoce.errors import PeerError, TryLater
from sottovoce.peers.connection import split_address, tls_handshake

PATIENCE = 5.0  # seconds to show a certificate
PER_ADDRESS = 32  # connections of one address that have shown none yet
ALL = 2048  # of all addresses together
_PAUSE = 0.02  # seconds between two handshakes of strangers' addresses
# handshakes a second, and at once, of each of the last addresses that a member has come from
_OF_A_MEMBER, _MEMBERS = (20.0, 100.0), 1024
_AT_ONCE = 64  # accepted before established connections have their turn
_BACKLOG = 1024
_SWEEP = 0.1  # seconds between two looks for silent connections whose time is over
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def raise_limit(wanted: int = 65_536) -> int:
    """Raise the number of descriptors this process may hold, as far as the system lets it; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft == resource.RLIM_INFINITY:
        return most
    if soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return most
    return soft


class RateLimit:
    """A token bucket: so many a second, and so many at once."""

    def __init__(self, rate: float, burst: float) -> None:
        self.rate, self.burst, self.left, self.at = rate, burst, burst, 0.0

    def take(self, now: float) -> bool:
        self.left = min(self.burst, self.left + (now - self.at) * self.rate)
        self.at = now
        if self.left < 1:
            return False
        self.left -= 1
        return True


class _Guest:
    """A connection that has shown no certificate yet; it has a task once it has sent something."""

    def __init__(self, sock: socket.socket, host: str, until: float) -> None:
        self.sock, self.host, self.until = sock, host, until
        self.task: asyncio.Task[None] | None = None


class Listener:
    """A listening socket that lets in connections that show a listed certificate in time.

    Port 0 of ``address`` takes a free one, which `port` then holds. ``enter`` is called with a socket from
    which the first bytes have come, with a ``context`` the TLS connection after the handshake, and its host;
    it returns when the connection is accepted or closed. After ``patience`` seconds, and beyond so many
    pending ones ``per_address`` and in all, a connection is closed; with ``defer`` silent ones wait in the
    kernel first.
    """

    def __init__(
        self,
        address: str,
        enter: Callable[..., Awaitable[None]],
        *,
        context: ssl.SSLContext | None = None,
        patience: float = PATIENCE,
        per_address: int = PER_ADDRESS,
        most: int = ALL,
        defer: bool = True,
    ) -> None:
        self.address, self.enter, self.context, self.defer = address, enter, context, defer
        self.patience, self.per_address, self.most = patience, per_address, most
        self.counts: Counter[str] = Counter()
        self.port = 0
        self._sockets: list[socket.socket] = []
        self._pending: dict[_Guest, None] = {}  # in the order of arrival
        self._from: dict[str, dict[_Guest, None]] = {}  # the same, by address
        self._sweep: asyncio.TimerHandle | None = None  # when the oldest silent one is closed
        self._members: dict[str, RateLimit] = {}  # addresses from which a listed certificate was shown
        # one pending connection of every other address waits for the next handshake
        self._next, self._first_of = asyncio.Lock(), defaultdict[str, asyncio.Lock](asyncio.Lock)

    async def open(self) -> None:
        """Begin to listen."""
        loop = asyncio.get_running_loop()
        host, port = split_address(self.address)
        self.most = min(self.most, max(16, raise_limit() // 2))
        try:
            places = await loop.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, _, _, _, place in dict.fromkeys(places):
                sock = socket.create_server(place[:2], family=family, backlog=_BACKLOG)
                sock.setblocking(False)
                self._sockets.append(sock)
                self._defer(sock)
                self.port = sock.getsockname()[1]
                if not port:
                    break  # one free port
        except OSError as error:
            self.close()
            raise _cannot(self.address, error) from None
        for sock in self._sockets:
            loop.add_reader(sock.fileno(), self._accept, sock)

    def _defer(self, sock: socket.socket) -> None:
        """Leave silent connections to the kernel for a while: a TLS client sends first."""
        if self.defer and hasattr(socket, "TCP_DEFER_ACCEPT"):
            with contextlib.suppress(OSError):
                # without cookies a kernel whose queue is full of silent ones would drop a member's call
                if int(Path("/proc/sys/net/ipv4/tcp_syncookies").read_text()):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, max(1, int(self.patience)))

    def close(self) -> None:
        """Stop listening and close all pending connections."""
        for sock in self._sockets:
            asyncio.get_running_loop().remove_reader(sock.fileno())
            sock.close()
        self._sockets = []
        for guest in list(self._pending):
            self._dismiss(guest)
        if self._sweep is not None:
            self._sweep.cancel()

    @property
    def waiting(self) -> int:
        """How many have connected and not shown a certificate yet."""
        return len(self._pending)

    # ---- before the certificate ------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, place = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED and self._pending:
                    self._let_go(next(iter(self._pending)))
                    continue
                loop = asyncio.get_running_loop()  # there is nothing to close: try again in a moment
                loop.remove_reader(listener.fileno())
                loop.call_later(0.1, self._listen_again, listener)
                return
            self._add(sock, str(place[0]))

    def _listen_again(self, listener: socket.socket) -> None:
        if listener in self._sockets:
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)

    def _add(self, sock: socket.socket, host: str) -> None:
        sock.setblocking(False)
        self.counts["accepted"] += 1
        same = self._from.setdefault(host, {})
        if len(same) >= self.per_address or len(self._pending) >= self.most:
            self._let_go(next(iter(same if len(same) >= self.per_address else self._pending)))
        loop = asyncio.get_running_loop()
        guest = _Guest(sock, host, loop.time() + self.patience)
        self._pending[guest] = None
        self._from.setdefault(host, {})[guest] = None
        loop.add_reader(sock.fileno(), self._meet, guest)
        if self._sweep is None:
            self._sweep = loop.call_at(guest.until, self._close_silent)

    def _close_silent(self) -> None:
        """Close connections whose time is over before they said anything."""
        loop, self._sweep = asyncio.get_running_loop(), None
        for guest in [each for each in self._pending if each.task is None]:
            if guest.until > loop.time():  # many at once
                later = max(guest.until, loop.time() + _SWEEP)
                self._sweep = loop.call_at(later, self._close_silent)
                return
            self._let_go(guest)

    def _meet(self, guest: _Guest) -> None:
        """Begin to authenticate a connection that has sent something."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(guest.sock.fileno())
        guest.task = loop.create_task(self._let_in(guest))
        guest.task.add_done_callback(lambda _: self._forget(guest))

    async def _let_in(self, guest: _Guest) -> None:
        """Authenticate a connection; its time began when it connected."""
        sock, host = guest.sock, guest.host
        try:
            async with asyncio.timeout_at(guest.until):
                if self.context is not None:
                    await self._turn(host)
                    sock = await tls_handshake(sock, self.context, server=True)
                await self.enter(sock, host)
            self._members.setdefault(host, RateLimit(*_OF_A_MEMBER))
            if len(self._members) > _MEMBERS:
                del self._members[next(iter(self._members))]
        except TimeoutError:
            self.counts["let go"] += 1
            sock.close()
        except BaseException as error:  # whatever a caller sends ends this connection only
            sock.close()
            if isinstance(error, Exception):
                self.counts["without a listed certificate" if self.context else "turned away"] += 1

    async def _turn(self, host: str) -> None:
        """Wait until a handshake of this address may begin: strangers' addresses take turns."""
        limit = self._members.get(host)
        if limit is None or not limit.take(time.monotonic()):
            async with self._first_of[host], self._next:
                await asyncio.sleep(_PAUSE)

    def _let_go(self, guest: _Guest) -> None:
        self.counts["let go"] += 1
        self._dismiss(guest)

    def _dismiss(self, guest: _Guest) -> None:
        if guest.task is not None:
            guest.task.cancel()
        if guest.sock.fileno() >= 0:  # else it belongs to TLS, which closes it
            asyncio.get_running_loop().remove_reader(guest.sock.fileno())
            guest.sock.close()
        self._forget(guest)

    def _forget(self, guest: _Guest) -> None:
        self._pending.pop(guest, None)
        same = self._from.get(guest.host, {})
        same.pop(guest, None)
        if not same:
            self._from.pop(guest.host, None)
            self._first_of.pop(guest.host, None)


def _cannot(address: str, error: OSError) -> PeerError:
    if error.errno == errno.EADDRINUSE:
        return TryLater(
            f"Cannot listen at {address}: another process does; stop it, or agree on another port."
        )
    if error.errno == errno.EACCES:
        return PeerError(f"Cannot listen at {address}: this user may not; take a port above 1023.")
    return PeerError(
        f"Cannot listen at {address} ({error.strerror or error}); if others reach this machine by another "
        "address than its own, name its own with --listen, for instance 0.0.0.0:7000."
    )
