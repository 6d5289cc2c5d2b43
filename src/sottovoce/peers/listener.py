"""The listening socket of a peer or relay.

Unauthenticated connections hold one file descriptor and are closed after a timeout. A TLS client sends first,
so the kernel keeps silent connections for a while, and no TLS state exists before the first byte. The number
of unauthenticated connections is limited per address and in all; beyond the limit the oldest one is closed,
so that a member, who needs a few milliseconds, can always connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from sottovoce.errors import PeerError, TryLater
from sottovoce.peers.connection import tls_handshake

PATIENCE = 5.0  # seconds to show a certificate
PER_ADDRESS = 32  # connections of one address that have shown none yet
ALL = 2048  # of all addresses together
_AT_ONCE = 64  # accepted before those inside have their turn
_BACKLOG = 1024


def raise_limit(wanted: int = 65_536) -> int:
    """Raise the number of descriptors this process may hold, as far as the system lets it; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return most
        except (OSError, ValueError):
            return soft
    return soft if soft != resource.RLIM_INFINITY else most


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class PendingConnection:
    """A connection that has not shown a certificate yet."""

    __slots__ = ("host", "sock", "task", "timer")

    def __init__(self, sock: socket.socket, host: str) -> None:
        self.sock, self.host = sock, host
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None


class Listener:
    """A listening socket that lets in whoever shows a listed certificate in time.

    Parameters
    ----------
    address : ``host:port``; port 0 takes a free one, which `port` then tells.
    enter : called with a socket that has something to say and its host; ends when it is inside or gone.
        With a ``context`` it gets the TLS connection after the handshake.
    context : TLS for who enters; None for a relay, which never sees inside.
    patience, per_address, most : seconds, and numbers of connections, before one is let go.
    defer : whether those who say nothing wait in the kernel first, for about as many seconds, where it can.
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
        self.defer = defer
        self.address, self.enter, self.context = address, enter, context
        self.patience, self.per_address, self.most = patience, per_address, most
        self.counts: Counter[str] = Counter()
        self.port = 0
        self._sockets: list[socket.socket] = []
        self._guests: dict[PendingConnection, None] = {}  # in the order of coming
        self._from: dict[str, dict[PendingConnection, None]] = {}

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
                self._defer(sock)
                self._sockets.append(sock)
                self.port = sock.getsockname()[1]
                if not port:
                    break  # one free port
        except OSError as error:
            self.close()
            raise _cannot(self.address, error) from None
        for sock in self._sockets:
            loop.add_reader(sock.fileno(), self._accept, sock)

    def _defer(self, sock: socket.socket) -> None:
        """Leave those who say nothing to the kernel for a while: whoever speaks TLS speaks first."""
        if self.defer and hasattr(socket, "TCP_DEFER_ACCEPT"):
            with contextlib.suppress(OSError):
                # without cookies a kernel whose queue is full of silent ones would drop a member's call
                if int(Path("/proc/sys/net/ipv4/tcp_syncookies").read_text()):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, max(1, int(self.patience)))

    def close(self) -> None:
        """Stop listening and let go whoever waits."""
        for sock in self._sockets:
            if sock.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(sock.fileno())
                sock.close()
        self._sockets = []
        for guest in list(self._guests):
            self._dismiss(guest)

    @property
    def waiting(self) -> int:
        """How many have connected and not shown a certificate yet."""
        return len(self._guests)

    # ---- before the certificate ------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, place = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM) and self._guests:
                    self._let_go(next(iter(self._guests)))
                    continue
                loop = asyncio.get_running_loop()  # nothing to give up here: look again in a moment
                loop.remove_reader(listener.fileno())
                loop.call_later(0.1, self._listen_again, listener)
                return
            self._meet(sock, str(place[0]))

    def _listen_again(self, listener: socket.socket) -> None:
        if listener in self._sockets:
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)

    def _meet(self, sock: socket.socket, host: str) -> None:
        sock.setblocking(False)
        self.counts["accepted"] += 1
        same = self._from.setdefault(host, {})
        if len(same) >= self.per_address:
            self._let_go(next(iter(same)))
        elif len(self._guests) >= self.most:
            self._let_go(next(iter(self._guests)))
        guest = PendingConnection(sock, host)
        self._guests[guest] = None
        self._from.setdefault(host, {})[guest] = None
        loop = asyncio.get_running_loop()
        guest.timer = loop.call_later(self.patience, self._let_go, guest)
        loop.add_reader(sock.fileno(), self._speaks, guest)

    def _let_go(self, guest: PendingConnection) -> None:
        self.counts["let go"] += 1
        self._dismiss(guest)

    def _dismiss(self, guest: PendingConnection) -> None:
        if guest.task is not None:
            guest.task.cancel()
        if guest.sock.fileno() >= 0:  # else it belongs to TLS, which closes it
            asyncio.get_running_loop().remove_reader(guest.sock.fileno())
            guest.sock.close()
        self._forget(guest)

    def _forget(self, guest: PendingConnection) -> None:
        if guest.timer is not None:
            guest.timer.cancel()
        self._guests.pop(guest, None)
        same = self._from.get(guest.host, {})
        same.pop(guest, None)
        if not same:
            self._from.pop(guest.host, None)

    def _speaks(self, guest: PendingConnection) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(guest.sock.fileno())
        guest.task = loop.create_task(self._let_in(guest))

    async def _let_in(self, guest: PendingConnection) -> None:
        try:
            if self.context is None:
                await self.enter(guest.sock, guest.host)
            else:
                await self.enter(await tls_handshake(guest.sock, self.context, server=True), guest.host)
        except asyncio.CancelledError:
            guest.sock.close()
        except (OSError, PeerError):
            self.counts["without a listed certificate" if self.context else "turned away"] += 1
            guest.sock.close()
        finally:
            self._forget(guest)


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
