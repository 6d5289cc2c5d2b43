"""Calling another member: directly, through a company's HTTP proxy, or at a relay where it calls, too.

Every reason why nobody answers is one sentence that says where to look.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import hashlib
import re
import socket
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from sottovoce.errors import ConfigError, PeerError
from sottovoce.peers.connection import ready, tune
from sottovoce.peers.listener import split_address

GREETING = b"SVRELAY1"  # what a relay reads, with a token of 32 bytes and the side; then it answers MET
MET = b"\x01"
_SECONDS = 5.0


class Proxy(NamedTuple):
    """A company's HTTP proxy, asked to CONNECT."""

    address: str
    authorization: str = ""

    def __repr__(self) -> str:
        return f"Proxy({self.address!r})"  # no password in a log


def parse_proxy(text: str) -> Proxy:
    """Return the proxy that ``http://user:password@host:port`` or ``host:port`` names.

    Examples
    --------
    >>> parse_proxy("http://proxy.example:8080")
    Proxy('proxy.example:8080')
    >>> parse_proxy("https://proxy.example")
    Traceback (most recent call last):
    sottovoce.errors.ConfigError: A proxy is http://host:port, with user:password@ before the host if it asks.
    """
    parts = urlsplit(text if "//" in text else f"http://{text}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme != "http" or not host or not port or parts.path not in ("", "/"):
        raise ConfigError("A proxy is http://host:port, with user:password@ before the host if it asks.")
    word = ""
    if parts.username is not None:
        both = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        word = "Basic " + base64.b64encode(both.encode()).decode()
    return Proxy(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", word)


def relay_token(session: bytes, u: int, v: int) -> bytes:
    """Return the token by which a relay joins two members; it reveals neither names nor the run."""
    low, high = sorted((u, v))
    edge = low.to_bytes(4, "little") + high.to_bytes(4, "little")
    return hashlib.sha256(b"sottovoce relay 1\n" + session + edge).digest()


async def call(address: str, *, proxy: Proxy | None = None, seconds: float = _SECONDS) -> socket.socket:
    """Return a connected socket that does not block, or raise `PeerError` with the reason."""
    target = proxy.address if proxy is not None else address
    sock: socket.socket | None = None
    try:
        async with asyncio.timeout(seconds):
            sock = await _connect(target)
            if proxy is not None:
                await _through(sock, proxy, address)
    except TimeoutError:
        _close(sock)
        raise PeerError(
            f"no answer at {target} within {seconds:g} s: a firewall drops the call, or the machine is off"
        ) from None
    except OSError as error:
        _close(sock)
        raise PeerError(_reason(target, error)) from None
    except BaseException:
        _close(sock)
        raise
    tune(sock)
    return sock


async def meet_at_relay(
    relay: str, token: bytes, side: int, *, proxy: Proxy | None = None, seconds: float = 60.0
) -> socket.socket:
    """Return a connection to the member that comes to the relay with the same token and the other side."""
    try:
        sock = await call(relay, proxy=proxy)
    except PeerError as error:
        raise PeerError(f"the relay: {error}") from None
    try:
        async with asyncio.timeout(seconds):
            await _write(sock, GREETING + token + bytes([side]))
            if await _read(sock, 1) != MET:
                raise PeerError(f"what answers at {relay} is not a relay")
    except TimeoutError:
        sock.close()
        raise PeerError(f"the relay {relay} answers, the other member has not come there yet") from None
    except OSError:
        sock.close()
        raise PeerError(f"the relay {relay} closed the connection: the other member has not come") from None
    except BaseException:
        sock.close()
        raise
    return sock


async def _connect(address: str) -> socket.socket:
    loop = asyncio.get_running_loop()
    host, port = split_address(address)
    places = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failed: OSError | None = None
    for family, kind, number, _, place in places:
        sock = socket.socket(family, kind, number)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, place)
            return sock
        except OSError as error:
            sock.close()
            failed = error
        except BaseException:
            sock.close()
            raise
    raise failed or OSError(errno.EADDRNOTAVAIL, "no address")


async def _through(sock: socket.socket, proxy: Proxy, address: str) -> None:
    """Ask an HTTP proxy for a line to ``address``."""
    lines = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
    if proxy.authorization:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    await _write(sock, "\r\n".join([*lines, "", ""]).encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        if len(answer) > 8192:
            raise PeerError(f"the proxy {proxy.address} answers with something that is not HTTP")
        answer += await _read(sock, 1)  # not one byte too many: the next belongs to TLS
    status_line = re.match(rb"HTTP/1\.[01] (\d{3})([^\r\n]*)", answer)
    if status_line is None:
        raise PeerError(f"the proxy {proxy.address} answers with something that is not HTTP")
    if status_line[1] != b"200":
        word = "".join(c if c.isprintable() else "?" for c in status_line[2].decode("latin-1").strip())[:60]
        hint = "; it asks for user:password@ in --proxy" if status_line[1] == b"407" else ""
        raise PeerError(
            f"the proxy {proxy.address} refuses a line to {address}: {status_line[1].decode()} {word}{hint}"
        )


async def _read(sock: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        try:
            got = sock.recv(size - len(content))
        except BlockingIOError:
            await ready(sock, reading=True)
            continue
        if not got:
            raise ConnectionResetError(errno.ECONNRESET, "closed")
        content += got
    return content


async def _write(sock: socket.socket, content: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, content)


def _close(sock: socket.socket | None) -> None:
    if sock is not None:
        sock.close()


def _reason(target: str, error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name in {target} is not known: look at DNS, or at the address in the agreement"
    if error.errno == errno.ECONNREFUSED:
        return f"nobody listens at {target}: its peer is not running, or a firewall refuses"
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return f"there is no way to {target} from this machine: look at its network"
    if error.errno == errno.ECONNRESET:
        return f"{target} accepts and closes at once: its peer is stopping, or a firewall is in between"
    return f"{target} cannot be called ({error.strerror or error})"
