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
from typing import NamedTuple

from sottovoce.errors import PeerError
from sottovoce.peers.agreement import Agreement
from sottovoce.peers.connection import ALONE, FULL, GREETING, MET, REPLACED, UNKNOWN, relay_token, tune
from sottovoce.peers.listener import Listener, raise_limit

_PIECE = 1 << 18
_PAIRS = 4096  # in all


def edge_tokens(agreement: Agreement) -> frozenset[bytes]:
    """Return the tokens that an agreement's members send: a relay with these serves nobody else."""
    pairs = ((int(u), int(v)) for u, v in agreement.network.edges)
    return frozenset(relay_token(agreement.session, u, v) for u, v in pairs)


class Caller(NamedTuple):
    """A connection that has sent its token, and where it came from."""

    sock: socket.socket
    host: str


class Relay:
    """A blind meeting place.

    Parameters
    ----------
    address : where it listens.
    tokens : the only ones that are served; None serves any two that send the same.
    patience : seconds a caller waits for its partner before it has to call again.
    idle : seconds without a byte after which a pair is closed; members who still need it call again.
    per_address : connections of one address that wait for a partner or have one, if any token is served.

    Guarantees
    ----------
    It holds no key and reads nothing but the greeting of 41 bytes; what it copies is TLS 1.3 between two
    members. Callers without a greeting are closed as at a peer's listener. A token has at most one pair: a
    new one closes the old. Pairs and waiting callers together take at most half of the descriptors; a caller
    that is refused is answered with the reason.
    """

    def __init__(
        self,
        address: str,
        *,
        tokens: Iterable[bytes] | None = None,
        patience: float = 50.0,
        idle: float = 900.0,
        per_address: int = 256,
    ) -> None:
        self.tokens = None if tokens is None else frozenset(tokens)
        self.patience, self.idle, self.per_address = patience, idle, per_address
        self.counts: Counter[str] = Counter()
        self.listener = Listener(address, self._enter)
        self._most = 0  # callers that wait or are joined
        self._from: Counter[str] = Counter()  # the same, by address
        self._waiting: dict[tuple[bytes, int], asyncio.Future[Caller | None]] = {}
        self._pairs: dict[bytes, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to listen."""
        descriptors = raise_limit()
        self._most = min(2 * _PAIRS, max(16, descriptors // 2 - 32))
        self.listener.most = min(self.listener.most, max(16, descriptors // 4))
        await self.listener.open()

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        self.listener.close()
        for task in self._tasks:
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
        same = self._from[host] if self.tokens is None else 0  # members of one agreement may share an address
        unknown = side > 1 or (self.tokens is not None and token not in self.tokens)
        if unknown or self._from.total() >= self._most or same >= self.per_address:
            await loop.sock_sendall(sock, UNKNOWN if unknown else FULL)
            raise PeerError("nobody's token" if unknown else "too many callers")
        tune(sock)
        caller = Caller(sock, host)
        self._from[host] += 1
        partner = self._waiting.pop((token, 1 - side), None)
        if partner is not None and not partner.done():
            partner.set_result(caller)
            return
        older = self._waiting.pop((token, side), None)
        if older is not None and not older.done():
            older.set_result(None)  # the same member called again: the first call is most likely dead
        met: asyncio.Future[Caller | None] = loop.create_future()
        self._waiting[token, side] = met  # now, before another caller has a turn
        task = loop.create_task(self._wait(caller, met, token, side))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait(
        self, caller: Caller, met: asyncio.Future[Caller | None], token: bytes, side: int
    ) -> None:
        """Wait for the partner, then copy both ways until one of the two has closed."""
        other, answer = None, ALONE
        with contextlib.suppress(OSError, asyncio.CancelledError, ExceptionGroup):
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.patience):
                        other, answer = await met, REPLACED
                if other is None:
                    await asyncio.get_running_loop().sock_sendall(caller.sock, answer)
                else:
                    await self._join(caller.sock, other.sock, token)
            finally:
                if self._waiting.get((token, side)) is met:
                    del self._waiting[token, side]
                self._leave(caller)
                if met.done() and not met.cancelled() and (partner := met.result()) is not None:
                    self._leave(partner)

    async def _join(self, one: socket.socket, two: socket.socket, token: bytes) -> None:
        """Copy both ways; both members have called anew, so an earlier pair of theirs is dead."""
        own = asyncio.current_task()
        assert own is not None
        if token in self._pairs:
            self._pairs[token].cancel()
        self._pairs[token] = own
        try:
            for end in (one, two):
                await asyncio.get_running_loop().sock_sendall(end, MET)
            self.counts["joined"] += 1
            async with asyncio.timeout(self.idle) as idle, asyncio.TaskGroup() as both:
                both.create_task(self._copy(one, two, idle))
                both.create_task(self._copy(two, one, idle))
        finally:
            if self._pairs.get(token) is own:
                del self._pairs[token]

    def _leave(self, caller: Caller) -> None:
        caller.sock.close()
        self._from[caller.host] -= 1
        if not self._from[caller.host]:
            del self._from[caller.host]

    def _passes(self, piece: memoryview) -> None:
        """Count what is copied; everything that this relay sees of it goes through here."""
        self.counts["bytes"] += len(piece)

    async def _copy(self, source: socket.socket, target: socket.socket, idle: asyncio.Timeout) -> None:
        """Copy one direction until its source has ended; every piece puts the end of the pair off."""
        loop = asyncio.get_running_loop()
        buffer = bytearray(_PIECE)
        while size := await loop.sock_recv_into(source, buffer):
            piece = memoryview(buffer)[:size]
            self._passes(piece)
            idle.reschedule(loop.time() + self.idle)
            await loop.sock_sendall(target, piece)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
