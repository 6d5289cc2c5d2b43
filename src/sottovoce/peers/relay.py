"""A relay: two members who can both only call meet at it; it passes on bytes that it cannot read.

Each sends a token (a hash of the run and the edge) and its side. Two connections with one token and different
sides are joined, and from then on the relay copies bytes both ways. They are TLS between the two members, and
the relay has no key of either; it learns who calls from where, when, and how much.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Iterable

from sottovoce.errors import PeerError
from sottovoce.peers.agreement import Agreement
from sottovoce.peers.connection import GREETING, MET, relay_token, tune
from sottovoce.peers.listener import Listener

_PIECE = 1 << 18
_WAITING = 4096  # callers that wait for their partner, in all


def edge_tokens(agreement: Agreement) -> frozenset[bytes]:
    """Return the tokens that an agreement's members send: a relay with these serves nobody else."""
    pairs = ((int(u), int(v)) for u, v in agreement.network.edges)
    return frozenset(relay_token(agreement.session, u, v) for u, v in pairs)


class Relay:
    """A blind meeting place.

    Parameters
    ----------
    address : where it listens.
    tokens : the only ones that are served; None serves any two that send the same.
    patience : seconds a caller waits for its partner before it has to call again.
    limits : numbers of pending connections, as for `Listener`.

    Guarantees
    ----------
    It holds no key and reads nothing but the greeting of 41 bytes; what it copies is TLS 1.3 between two
    members. A caller holds a descriptor; callers without a greeting are closed as at a peer's listener.
    """

    def __init__(
        self, address: str, *, tokens: Iterable[bytes] | None = None, patience: float = 50.0, **limits: int
    ) -> None:
        self.tokens = None if tokens is None else frozenset(tokens)
        self.patience = patience
        self.counts: Counter[str] = Counter()
        self.listener = Listener(address, self._enter, **limits)  # type: ignore[arg-type]
        self._waiting: dict[tuple[bytes, int], asyncio.Future[socket.socket]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.listener.port

    async def start(self) -> None:
        """Begin to listen."""
        await self.listener.open()

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        self.listener.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _enter(self, sock: socket.socket, host: str) -> None:
        """Read the greeting; then join the caller with its partner, or let it wait."""
        loop, words, size = asyncio.get_running_loop(), b"", len(GREETING) + 33
        while len(words) < size:
            part = await loop.sock_recv(sock, size - len(words))
            words += part
            if not part or not words.startswith(GREETING[: len(words)]):
                raise PeerError("no greeting")
        token, side = words[len(GREETING) : -1], words[-1]
        if side > 1 or (self.tokens is not None and token not in self.tokens):
            raise PeerError("nobody's token")
        if len(self._waiting) >= _WAITING:
            raise PeerError("too many wait")
        tune(sock)
        partner = self._waiting.pop((token, 1 - side), None)
        if partner is not None and not partner.done():
            partner.set_result(sock)
            return
        older = self._waiting.pop((token, side), None)
        if older is not None:
            older.cancel()  # the same member called again: the first call is most likely dead
        met: asyncio.Future[socket.socket] = loop.create_future()
        self._waiting[token, side] = met  # now, before another caller has a turn
        task = loop.create_task(self._wait(sock, met, (token, side)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait(
        self, sock: socket.socket, met: asyncio.Future[socket.socket], key: tuple[bytes, int]
    ) -> None:
        """Wait for the partner, then copy both ways until one of the two has closed."""
        try:
            async with asyncio.timeout(self.patience):
                other = await met
            for end in (sock, other):
                await asyncio.get_running_loop().sock_sendall(end, MET)
            self.counts["joined"] += 1
            async with asyncio.TaskGroup() as both:
                both.create_task(self._copy(sock, other))
                both.create_task(self._copy(other, sock))
        except (TimeoutError, OSError, asyncio.CancelledError, ExceptionGroup):
            pass
        finally:
            if self._waiting.get(key) is met:
                del self._waiting[key]
            sock.close()
            if met.done() and not met.cancelled():
                met.result().close()

    def _passes(self, piece: memoryview) -> None:
        """Count what is copied; everything that this relay sees of it goes through here."""
        self.counts["bytes"] += len(piece)

    async def _copy(self, source: socket.socket, target: socket.socket) -> None:
        """Copy one direction until its source has ended."""
        loop = asyncio.get_running_loop()
        buffer = bytearray(_PIECE)
        while size := await loop.sock_recv_into(source, buffer):
            piece = memoryview(buffer)[:size]
            self._passes(piece)
            await loop.sock_sendall(target, piece)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
