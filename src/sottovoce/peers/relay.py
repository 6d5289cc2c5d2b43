"""A relay: two members who can both only call meet at it; it passes on bytes that it cannot read.

Each says a token (a hash of the run and the edge) and its side; two of one token and different sides are
joined, and from then on the relay copies bytes both ways. They are TLS between the two members, with
certificates at both ends that the relay has no key of; it learns who calls from where, when, and how much.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Coroutine, Iterable
from typing import Any

from sottovoce.errors import PeerError
from sottovoce.peers.agreement import Agreement
from sottovoce.peers.connection import ready, tune
from sottovoce.peers.connector import GREETING, MET, relay_token
from sottovoce.peers.listener import Listener

_PIECE = 1 << 18
_WAITING = 4096  # callers that wait for their partner, in all


def edge_tokens(agreement: Agreement) -> frozenset[bytes]:
    """Return the tokens that an agreement's members say: a relay given these serves nobody else."""
    pairs = ((int(u), int(v)) for u, v in agreement.network.edges)
    return frozenset(relay_token(agreement.session, u, v) for u, v in pairs)


class Relay:
    """A blind meeting place.

    Parameters
    ----------
    address : where it listens.
    tokens : the only ones that are served; None serves any two who say the same.
    patience : seconds a caller waits for its partner before it has to call again.

    Guarantees
    ----------
    It holds no key and reads nothing but the greeting of 41 bytes; what it copies is TLS 1.3 between two
    members. A caller holds a descriptor; callers without a greeting are let go as at a peer's listener.
    """

    def __init__(
        self, address: str, *, tokens: Iterable[bytes] | None = None, patience: float = 50.0, **limits: int
    ) -> None:
        self.tokens = None if tokens is None else frozenset(tokens)
        self.patience = patience
        self.counts: Counter[str] = Counter()
        self.listener = Listener(address, self._enter, **limits)  # type: ignore[arg-type]
        self._waiting: dict[tuple[bytes, int], tuple[socket.socket, asyncio.Future[socket.socket]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.listener.port

    async def start(self) -> None:
        """Begin to listen."""
        await self.listener.open()

    async def stop(self) -> None:
        """Stop listening and part everybody."""
        self.listener.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _enter(self, sock: socket.socket, host: str) -> None:
        """Read the greeting; then the caller is no stranger any more and waits on its own."""
        words = b""
        size = len(GREETING) + 33
        while len(words) < size:
            try:
                got = sock.recv(size - len(words))
            except BlockingIOError:
                await ready(sock, reading=True)
                continue
            if not got or not (words + got).startswith(GREETING[: len(words + got)]):
                raise PeerError("no greeting")
            words += got
        token, side = words[len(GREETING) : -1], words[-1]
        if side > 1 or (self.tokens is not None and token not in self.tokens):
            raise PeerError("nobody's token")
        if len(self._waiting) >= _WAITING:
            raise PeerError("too many wait")
        tune(sock)
        partner = self._waiting.pop((token, 1 - side), None)
        if partner is not None and not partner[1].done():
            partner[1].set_result(sock)
            return
        older = self._waiting.pop((token, side), None)
        if older is not None and not older[1].done():
            older[1].cancel()  # the same member called again: the first call is most likely dead
        met: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        self._waiting[token, side] = (sock, met)  # now, before anybody else has a turn
        self._keep(self._wait(sock, met, token, side))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait(
        self, sock: socket.socket, met: asyncio.Future[socket.socket], token: bytes, side: int
    ) -> None:
        """Wait for the partner, then copy both ways until one of the two has gone."""
        other: socket.socket | None = None
        try:
            async with asyncio.timeout(self.patience):
                other = await met
            loop = asyncio.get_running_loop()
            for each in (sock, other):
                await loop.sock_sendall(each, MET)
            self.counts["joined"] += 1
            async with asyncio.TaskGroup() as both:
                both.create_task(self._copy(sock, other))
                both.create_task(self._copy(other, sock))
        except (TimeoutError, OSError, asyncio.CancelledError, ExceptionGroup):
            pass
        finally:
            if self._waiting.get((token, side), (None, None))[1] is met:
                del self._waiting[token, side]
            if other is None and met.done() and not met.cancelled():
                other = met.result()
            sock.close()
            if other is not None:
                other.close()

    def _passes(self, piece: memoryview) -> None:
        """Count what is copied; all that this relay ever sees of it goes through here."""
        self.counts["bytes"] += len(piece)

    async def _copy(self, source: socket.socket, target: socket.socket) -> None:
        """Copy one direction; when its source has said its last, so has this end."""
        loop = asyncio.get_running_loop()
        piece = bytearray(_PIECE)
        while size := await loop.sock_recv_into(source, piece):
            self._passes(memoryview(piece)[:size])
            await loop.sock_sendall(target, memoryview(piece)[:size])
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
