"""One connection between two members: TLS 1.3 over a socket that never blocks, messages of known length.

A message is its length (four bytes, little endian) and its content. The length is compared with the largest
message of the run before room is made for the content, and a large one is read straight into its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import cast

from sottovoce.errors import FrameError
from sottovoce.peers.identity import Identity

HEAD = struct.Struct("<I")
_STRETCH = (1 << 14) - HEAD.size  # what goes into one record of TLS beside the head
_LARGE = 1 << 16  # bytes from which a message is not copied
_TURN = 64  # messages of one connection before the others have their turn
# A line that is dead without a word: asked after 20 s of silence, given up 15 s later.
_KEEPALIVE = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000))


def server_context(identity: Identity, roots: Iterable[str]) -> ssl.SSLContext:
    """Return what a listening peer offers: TLS 1.3, its own certificate, and only these callers'."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # every connection shows its certificate; none is taken up again
    return _pinned(context, identity, roots)


def client_context(identity: Identity, certificate: str) -> ssl.SSLContext:
    """Return what a calling peer offers: TLS 1.3, its own certificate, and only this one at the other end.

    The name of the other end is not said in the clear, as a host name would be: it is the certificate that is
    compared, byte for byte.
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
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        handle = os.memfd_create("sottovoce")
        try:
            os.write(handle, content)
            yield f"/proc/self/fd/{handle}"
        finally:
            os.close(handle)
        return
    with tempfile.TemporaryDirectory() as folder:  # for the owner only
        path = os.path.join(folder, "key")
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        yield path


async def ready(sock: socket.socket, *, reading: bool) -> None:
    """Wait until a socket can be read or written."""
    loop, handle = asyncio.get_running_loop(), sock.fileno()
    if handle < 0:
        raise ConnectionResetError("the connection was closed")
    waiting: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiting.done():
            waiting.set_result(None)

    (loop.add_reader if reading else loop.add_writer)(handle, wake)
    try:
        await waiting
    finally:
        (loop.remove_reader if reading else loop.remove_writer)(handle)


async def tls_handshake(sock: socket.socket, context: ssl.SSLContext, *, server: bool) -> ssl.SSLSocket:
    """Return the connection once both ends have shown their certificates; the socket is closed on failure."""
    try:
        tls = context.wrap_socket(sock, server_side=server, do_handshake_on_connect=False)
    except BaseException:
        sock.close()
        raise
    try:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await ready(tls, reading=True)
            except ssl.SSLWantWriteError:
                await ready(tls, reading=False)
    except BaseException:
        tls.close()
        raise
    tune(tls)
    return tls


def tune(sock: socket.socket) -> None:
    """Let small messages go at once, and have the system notice a line that is dead without a word."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def read_message(tls: ssl.SSLSocket, largest: int) -> bytes:
    """Read one message before a `Connection` takes over; nothing beyond it is read."""
    (size,) = HEAD.unpack(await _read(tls, HEAD.size))
    if size > largest:
        raise FrameError(f"A message of {size} bytes came where at most {largest} are agreed.")
    return await _read(tls, size)


async def _read(tls: ssl.SSLSocket, size: int) -> bytes:
    content = bytearray(size)
    at = 0
    while at < size:
        try:
            got = tls.recv_into(memoryview(content)[at:])
        except ssl.SSLWantReadError:
            await ready(tls, reading=True)
            continue
        if not got:
            raise ConnectionResetError("the other end closed the connection")
        at += got
    return bytes(content)


async def write_message(tls: ssl.SSLSocket, content: bytes) -> None:
    """Write one message before a `Connection` takes over."""
    rest = memoryview(HEAD.pack(len(content)) + content)
    while rest:
        try:
            rest = rest[tls.send(rest) :]
        except ssl.SSLWantWriteError:
            await ready(tls, reading=False)


class Connection:
    """Messages both ways over one connection, as they come.

    Parameters
    ----------
    tls : after the handshake; not blocking.
    largest : length of the largest message; a longer one ends the connection unread.
    taken : called with (link, message) for every message.
    lost : called once with (link, error or None) when the connection has ended.
    drained : called when everything given to `send` has left after some of it had to wait.
    """

    def __init__(
        self,
        tls: ssl.SSLSocket,
        *,
        largest: int,
        taken: Callable[[Connection, bytes], None],
        lost: Callable[[Connection, Exception | None], None],
        drained: Callable[[], None] = lambda: None,
    ) -> None:
        self.tls, self.largest, self._taken, self._lost = tls, largest, taken, lost
        self._drained = drained
        self.open = True
        self._loop = asyncio.get_running_loop()
        self._handle = tls.fileno()
        self._out: deque[bytes] = deque()
        self._rest: memoryview | None = None
        self._more: memoryview | None = None
        self._writing = self._leaving = self._paused = False
        # many small messages come in one read; a large one gets a buffer of its own
        self._chunk = memoryview(bytearray(1 << 14))
        self._begin = self._end_at = self._filled = 0
        self._large: memoryview | None = None
        self._loop.add_reader(self._handle, self._read)
        self._loop.call_soon(self._read)  # what TLS has read already no selector will tell

    # ---- sending ---------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether everything given to `send` has left this process."""
        return not self._out

    def send(self, content: bytes) -> None:
        """Send one message after those before it."""
        if not self.open or self._leaving:
            return
        self._out.append(content)
        if not self._writing:
            self._write()

    def leave(self) -> None:
        """Send nothing more after what is queued; the other end reads it all and closes."""
        self._leaving = True
        if self.open and not self._out:
            self._shut()

    def take_back(self) -> list[bytes]:
        """Return the messages that did not leave whole."""
        left = list(self._out)
        self._out.clear()
        return left

    def _write(self) -> None:
        try:
            while self._out:
                if self._rest is None:  # the head goes with a first stretch; of the rest no copy is made
                    whole = memoryview(self._out[0])
                    self._rest = memoryview(HEAD.pack(len(whole)) + whole[:_STRETCH])
                    self._more = whole[_STRETCH:]
                self._rest = self._rest[self.tls.send(self._rest) :]
                if not self._rest:
                    self._rest, self._more = self._more, None
                if not self._rest:
                    self._rest = None
                    self._out.popleft()
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._handle, self._write)
            return
        except (OSError, ValueError) as error:
            self._end(error)
            return
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._handle)
            self._drained()
        if self._leaving and not self._out:
            self._shut()

    def _shut(self) -> None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.tls, socket.SHUT_WR)  # below TLS: what comes can still be read

    # ---- receiving -------------------------------------------------------------------------------

    def pause(self, seconds: float) -> None:
        """Read nothing for a while: who sends too much waits in its own queue."""
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
        try:
            for _ in range(_TURN):
                if not self.open or self._paused or not self._read_one():
                    return
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except (OSError, ValueError, FrameError) as error:
            self._end(error)
            return
        self._loop.call_soon(self._read)  # others first; TLS may hold more than the selector knows of

    def _read_one(self) -> bool:
        """Hand on the next message; return whether there may be another."""
        content = self._next()
        while content is None:
            room = self._chunk[self._end_at :] if self._large is None else self._large[self._filled :]
            got = self.tls.recv_into(room)
            if not got:
                self._end(None)
                return False
            if self._large is None:
                self._end_at += got
            else:
                self._filled += got
            content = self._next()
        self._taken(self, cast(bytes, content))  # a view that cannot be written reads like bytes
        return True

    def _next(self) -> bytes | memoryview | None:
        """Return the next message of what was read, or None and room for more of it."""
        if self._large is not None:
            if self._filled < len(self._large):
                return None
            # a row of megabytes is handed on as it was read: this buffer is written by nobody any more
            whole, self._large = self._large.toreadonly(), None
            return whole if len(whole) >= _LARGE else bytes(whole)
        begin = self._begin + HEAD.size
        if begin <= self._end_at:
            (size,) = HEAD.unpack_from(self._chunk, self._begin)
            if not 0 < size <= self.largest:
                raise FrameError(f"A message of {size} bytes came where at most {self.largest} are agreed.")
            if begin + size <= self._end_at:
                self._begin = begin + size
                return bytes(self._chunk[begin : self._begin])
            if 2 * size > len(self._chunk):  # the rest of it is read straight into its place
                self._large, self._filled = memoryview(bytearray(size)), self._end_at - begin
                self._large[: self._filled] = self._chunk[begin : self._end_at]
                self._begin = self._end_at = 0
                return None
        rest = bytes(self._chunk[self._begin : self._end_at])
        self._begin, self._end_at = 0, len(rest)
        self._chunk[: len(rest)] = rest
        return None

    # ---- ends ------------------------------------------------------------------------------------

    def close(self, error: Exception | None = None) -> None:
        """End the connection now."""
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if not self.open:
            return
        self.open = False
        self._loop.remove_reader(self._handle)
        self._loop.remove_writer(self._handle)
        self.tls.close()
        self._lost(self, error)
