"""Connections between members: opened directly, through an HTTP proxy or at a relay; TLS 1.3; messages.

A message is its length (four bytes, little endian) and its content. The length is compared with the largest
message of the run before memory is allocated for the content, and a large message is read into its own
buffer. Every failure to connect is one sentence that says where to look.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import hashlib
import os
import re
import socket
import ssl
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar, cast
from urllib.parse import unquote, urlsplit

from sottovoce.errors import ConfigError, FrameError, PeerError
from sottovoce.peers.identity import Identity

HEAD = struct.Struct("<I")
GREETING = b"SVRELAY1"  # a relay reads it with a token of 32 bytes and the side, and answers one byte
MET, ALONE, UNKNOWN, FULL, REPLACED = (bytes([code]) for code in range(1, 6))
_RELAY_REASONS = {
    ALONE: "the other member has not come there yet",
    UNKNOWN: "it serves other agreements only; start it with --only and this one",
    FULL: "it has as many connections as it takes; try later, or start another relay",
    REPLACED: "a newer call of this member took the place of this one",
}
_SECONDS = 5.0  # to be called back
_RELAY_SECONDS = 60.0  # to wait for the other member at a relay
_RECORD = 1 << 14  # bytes that fit into one TLS record
_LARGE = 1 << 16  # bytes from which a message is not copied
_TURN = 64  # messages of one connection before the others have their turn
# A dead connection is probed after 20 s of silence and given up 15 s later.
_KEEPALIVE = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000))
_NO_WAY = "there is no way to {} from this machine: look at its network"
_REASONS = {
    errno.ECONNREFUSED: "nobody listens at {}: its peer is not running, or a firewall refuses",
    errno.EHOSTUNREACH: _NO_WAY,
    errno.ENETUNREACH: _NO_WAY,
    errno.ECONNRESET: "{} accepts and closes at once: its peer is stopping, or a firewall is in between",
}
T = TypeVar("T")


@contextlib.contextmanager
def closed_on_error(sock: socket.socket) -> Iterator[None]:
    """Close a socket if the block raises, also when it is canceled."""
    try:
        yield
    except BaseException:
        sock.close()
        raise


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def tune(sock: socket.socket) -> None:
    """Send small messages at once, and let the system notice a dead connection."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# ---- calling ----------------------------------------------------------------------------------------------


class Proxy(NamedTuple):
    """A company's HTTP proxy, asked to CONNECT."""

    address: str
    authorization: str = ""

    def __repr__(self) -> str:
        return f"Proxy({self.address!r})"  # no password in a log


def parse_proxy(text: str) -> Proxy:
    """Return the proxy that ``http://user:password@host:port`` or ``host:port`` names."""
    parts = urlsplit(text if "//" in text else f"http://{text}")
    user, _, place = parts.netloc.rpartition("@")
    try:
        complete = bool(parts.hostname and parts.port)
    except ValueError:
        complete = False
    if parts.scheme != "http" or not complete or parts.path not in ("", "/"):
        raise ConfigError("A proxy is http://host:port, with user:password@ before the host if it asks.")
    code = base64.b64encode(unquote(user if ":" in user else f"{user}:").encode()).decode()
    return Proxy(place, f"Basic {code}" if user else "")


async def call(address: str, *, proxy: Proxy | None = None) -> socket.socket:
    """Return a connected socket that does not block, or raise `PeerError` with the reason."""
    target = address if proxy is None else proxy.address
    try:
        async with asyncio.timeout(_SECONDS):
            sock = await _connect(target)
            if proxy is not None:
                with closed_on_error(sock):
                    await _through(sock, proxy, address)
    except TimeoutError:
        reason = f"no answer at {{}} within {_SECONDS:g} s: a firewall drops the call, or the machine is off"
    except socket.gaierror:
        reason = "the name in {} is not known: look at DNS, or at the address in the agreement"
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, f"{{}} cannot be called ({error.strerror or error})")
    else:
        tune(sock)
        return sock
    raise PeerError(reason.format(target))


def relay_token(session: bytes, u: int, v: int) -> bytes:
    """Return the token by which a relay joins two members; it reveals neither names nor the run."""
    edge = struct.pack("<II", *sorted((u, v)))
    return hashlib.sha256(b"sottovoce relay 1\n" + session + edge).digest()


async def meet_at_relay(relay: str, token: bytes, side: int, *, proxy: Proxy | None = None) -> socket.socket:
    """Return a connection to the member that comes to the relay with the same token and the other side."""
    try:
        sock = await call(relay, proxy=proxy)
    except PeerError as error:
        raise PeerError(f"the relay: {error}") from None
    with closed_on_error(sock):
        try:
            async with asyncio.timeout(_RELAY_SECONDS):
                await asyncio.get_running_loop().sock_sendall(sock, GREETING + token + bytes([side]))
                answer = await _receive(sock)
        except TimeoutError:
            answer = ALONE
        except OSError:
            raise PeerError(
                f"the relay {relay} closed the connection: it is stopping or overloaded"
            ) from None
        if answer in _RELAY_REASONS:
            raise PeerError(f"the relay {relay} answers: {_RELAY_REASONS[answer]}")
        if answer != MET:
            raise PeerError(f"what answers at {relay} is not a relay")
    return sock


async def _connect(address: str) -> socket.socket:
    loop = asyncio.get_running_loop()
    host, port = split_address(address)
    failure = OSError(errno.EADDRNOTAVAIL, "no address")
    for family, kind, number, _, place in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, number)
        sock.setblocking(False)
        try:
            with closed_on_error(sock):
                await loop.sock_connect(sock, place)
            return sock
        except OSError as error:
            failure = error
    raise failure


async def _through(sock: socket.socket, proxy: Proxy, address: str) -> None:
    """Ask an HTTP proxy for a connection to ``address``."""
    lines = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
    if proxy.authorization:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    await asyncio.get_running_loop().sock_sendall(sock, "\r\n".join([*lines, "", ""]).encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n") and len(answer) <= 8192:
        answer += await _receive(sock)  # byte by byte: what follows belongs to TLS
    status = re.match(r"HTTP/1\.[01] (\d{3})([ -~]{0,60})", answer.decode("latin-1"))
    if status is None or len(answer) > 8192:
        raise PeerError(f"the proxy {proxy.address} answers with something that is not HTTP")
    if status[1] != "200":
        hint = "; it asks for user:password@ in --proxy" if status[1] == "407" else ""
        words = f"refuses a line to {address}: {status[1]}{status[2]}{hint}"
        raise PeerError(f"the proxy {proxy.address} {words}")


async def _receive(sock: socket.socket) -> bytes:
    """Return the next byte."""
    if byte := await asyncio.get_running_loop().sock_recv(sock, 1):
        return byte
    raise ConnectionResetError(errno.ECONNRESET, "closed")


# ---- TLS --------------------------------------------------------------------------------------------------


def server_context(identity: Identity, roots: Iterable[str]) -> ssl.SSLContext:
    """Return the TLS 1.3 context of a listening peer, which accepts the certificates ``roots`` only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # no resumption: every connection shows its certificate
    return _pinned(context, identity, roots)


def client_context(identity: Identity, certificate: str) -> ssl.SSLContext:
    """Return the TLS 1.3 context of a calling peer, which accepts one certificate at the other end.

    No host name is sent in the clear: it is the certificate that is compared, byte for byte.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    return _pinned(context, identity, [certificate])


def _pinned(context: ssl.SSLContext, identity: Identity, roots: Iterable[str]) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata="".join(roots))
    with _in_memory(identity.certificate + identity.key) as path:
        context.load_cert_chain(path)
    return context


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Give bytes a path that only this process can open: OpenSSL reads keys from files only."""
    memory = hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")
    # a temporary file is for its owner only
    with os.fdopen(os.memfd_create("key"), "wb") if memory else tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}" if memory else file.name


async def tls_handshake(sock: socket.socket, context: ssl.SSLContext, *, server: bool) -> ssl.SSLSocket:
    """Return the connection once both ends have shown their certificates; the socket is closed on failure."""
    with closed_on_error(sock):
        tls = context.wrap_socket(sock, server_side=server, do_handshake_on_connect=False)
    with closed_on_error(tls):
        await _when_ready(tls, tls.do_handshake)
    tune(tls)
    return tls


async def read_message(tls: ssl.SSLSocket, largest: int) -> bytes:
    """Read one message before a `Connection` takes over; nothing beyond it is read."""
    (size,) = HEAD.unpack(await _read(tls, HEAD.size))
    if size > largest:
        raise FrameError(f"A message of {size} bytes came where at most {largest} are agreed.")
    return await _read(tls, size)


async def write_message(tls: ssl.SSLSocket, content: bytes) -> None:
    """Write one message before a `Connection` takes over."""
    rest = memoryview(HEAD.pack(len(content)) + content)
    while rest:
        rest = rest[await _when_ready(tls, partial(tls.send, rest)) :]


async def _read(tls: ssl.SSLSocket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        part = await _when_ready(tls, partial(tls.recv, size - len(content)))
        if not part:
            raise ConnectionResetError("the other end closed the connection")
        content += part
    return content


async def _when_ready(tls: ssl.SSLSocket, operation: Callable[[], T]) -> T:
    """Return the result of a TLS operation that may have to wait for the socket."""
    while True:
        try:
            return operation()
        except ssl.SSLWantReadError:
            await until_ready(tls)
        except ssl.SSLWantWriteError:
            await until_ready(tls, writing=True)


async def until_ready(sock: socket.socket, *, writing: bool = False) -> None:
    """Wait until something can be read from a socket, or written."""
    loop, ready, handle = asyncio.get_running_loop(), asyncio.Event(), sock.fileno()
    if handle < 0:
        raise ConnectionResetError("the connection was closed")
    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    add(handle, ready.set)
    try:
        await ready.wait()
    finally:
        if sock.fileno() == handle:  # else it was closed, and the number may be another socket's by now
            remove(handle)


# ---- messages ---------------------------------------------------------------------------------------------


class Connection:
    """Messages both ways over one TLS connection.

    ``next_message`` is called for the next message to send, or None, whenever those of the last TLS record
    have left whole; `write` begins. A message longer than ``largest`` ends the connection unread.
    ``on_message`` gets every message, ``on_close`` the error or None when the connection has ended.
    """

    def __init__(
        self,
        tls: ssl.SSLSocket,
        *,
        largest: int,
        next_message: Callable[[Connection], bytes | None],
        on_message: Callable[[Connection, bytes], None],
        on_close: Callable[[Connection, Exception | None], None],
    ) -> None:
        self.tls, self.largest = tls, largest
        self._next_message, self._on_message, self._on_close = next_message, on_message, on_close
        self.open = True
        self._loop, self._handle = asyncio.get_running_loop(), tls.fileno()
        self.unsent: list[bytes] = []  # the messages of a record that have not left whole
        self._parts: list[memoryview] = []  # what is left of it
        self._writing = self._paused = False
        # many small messages come in one read; a large one gets a buffer of its own
        self._chunk = memoryview(bytearray(1 << 14))
        self._begin = self._end = self._filled = 0
        self._large: memoryview | None = None
        self._loop.add_reader(self._handle, self._read)
        self._loop.call_soon(self._read)  # the selector does not know what TLS has read already

    def close(self, error: Exception | None = None) -> None:
        """End the connection now."""
        if self.open:
            self.open = False
            self._loop.remove_reader(self._handle)
            self._loop.remove_writer(self._handle)
            self.tls.close()
            self._on_close(self, error)

    # ---- sending ---------------------------------------------------------------------------------

    def write(self) -> None:
        """Write as much of what waits as the socket takes now; the loop continues when it takes more."""
        try:
            while self.open and (self._parts or self._take_next()):
                self._parts[0] = self._parts[0][self.tls.send(self._parts[0]) :]
                if not self._parts[0]:
                    del self._parts[0]
                    if not self._parts:
                        self.unsent.clear()
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._handle, self.write)
            return
        except (OSError, ValueError) as error:
            self.close(error)
        if self._writing and self.open:
            self._writing = False
            self._loop.remove_writer(self._handle)

    def _take_next(self) -> bool:
        """Take the messages of one TLS record; of a last one that is longer the rest is not copied."""
        pieces: list[bytes] = []
        room, rest = _RECORD, memoryview(b"")
        while room > HEAD.size and (message := self._next_message(self)) is not None:
            self.unsent.append(message)
            room -= HEAD.size
            pieces += HEAD.pack(len(message)), message[:room]
            rest = memoryview(message)[room:]
            room -= len(message)
        if pieces:
            self._parts = [memoryview(b"".join(pieces)), *([rest] if rest else [])]
        return bool(pieces)

    def leave(self) -> None:
        """Send nothing more; the other end reads everything and closes."""
        if self.open:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self.tls, socket.SHUT_WR)  # below TLS: what comes can still be read

    # ---- receiving -------------------------------------------------------------------------------

    def pause(self, seconds: float) -> None:
        """Read nothing for a while, so that a member that sends too much waits in its own queue."""
        if self.open and not self._paused:
            self._paused = True
            self._loop.remove_reader(self._handle)
            self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._paused = False
        if self.open:
            self._loop.add_reader(self._handle, self._read)
            self._read()

    def _read(self) -> None:
        empty = False
        try:
            for _ in range(_TURN):
                if not self.open or self._paused:
                    return
                while (content := self._next()) is None:
                    if empty:  # whatever else has come, the selector knows of
                        return
                    if not self._fill():
                        self.close()
                        return
                    empty = not self._large and not self.tls.pending()
                self._on_message(self, cast(bytes, content))  # a read-only view is used like bytes
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except Exception as error:  # whatever a message leads to ends this connection only
            self.close(error)
            return
        self._loop.call_soon(self._read)  # others first; TLS may hold more than the selector knows of

    def _fill(self) -> int:
        """Read more; return how many bytes came, 0 at the end."""
        if self._large is None:
            size = self.tls.recv_into(self._chunk[self._end :])
            self._end += size
        else:
            size = self.tls.recv_into(self._large[self._filled :])
            self._filled += size
        return size

    def _next(self) -> bytes | memoryview | None:
        """Return the next message of what was read, or None and room for more of it."""
        if self._large is not None:
            if self._filled < len(self._large):
                return None
            # a row of megabytes is handed on without a copy: nothing writes to this buffer any more
            whole, self._large = self._large.toreadonly(), None
            return whole if len(whole) >= _LARGE else bytes(whole)
        begin = self._begin + HEAD.size
        if begin <= self._end:
            (size,) = HEAD.unpack_from(self._chunk, self._begin)
            if not 0 < size <= self.largest:
                raise FrameError(f"A message of {size} bytes came where at most {self.largest} are agreed.")
            if begin + size <= self._end:
                self._begin = begin + size
                return bytes(self._chunk[begin : self._begin])
            if 2 * size > len(self._chunk):  # the rest of it is read into its own buffer
                self._large, self._filled = memoryview(bytearray(size)), self._end - begin
                self._large[: self._filled] = self._chunk[begin : self._end]
                self._begin = self._end = 0
                return None
        rest = bytes(self._chunk[self._begin : self._end])
        self._begin, self._end = 0, len(rest)
        self._chunk[: len(rest)] = rest
        return None
