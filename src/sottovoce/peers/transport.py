"""Frames over gRPC with mutual TLS 1.3: only neighbours can connect, and the certificate is the sender.

A server trusts exactly the certificates of its neighbours, a channel exactly the certificate of the one it
calls; a stranger fails in the handshake, before any application byte. The handler then compares the
certificate with the agreement once more and hands the frame on under that member's number, whatever the
frame says. There is no insecure mode to switch on.

To each neighbour leads one stream that stays open, so a row costs no call of its own; what a broken stream
may have lost is asked for again by the one who misses it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from sottovoce.errors import FrameError, IdentityError, PeerError
from sottovoce.peers.agreement import Member
from sottovoce.peers.frames import POSITION, Wire
from sottovoce.peers.identity import Identity, expiry, host_name

__all__ = ["TlsTransport", "Transport"]

METHOD = "/sottovoce.Peer/Deliver"
_QUEUE = 256
# TLS 1.2 needs a cipher that fits the certificate's key. All keys here are P-256, and the only TLS 1.2
# ciphers offered are for RSA keys, so only TLS 1.3, whose ciphers this list does not touch, can be agreed on.
_CIPHERS = ("GRPC_SSL_CIPHER_SUITES", "ECDHE-RSA-AES256-GCM-SHA384")
# A row travels in few large pieces: windows and frames of the default sizes stall on a megabyte.
_HANDSHAKE = 3000  # milliseconds for TLS to be agreed; a member needs a few round trips
_WHOLE_ROWS = (("grpc.http2.lookahead_bytes", 4 << 20), ("grpc.http2.max_frame_size", 4 << 20))
_PAUSE = 0.02  # seconds before a broken stream is opened again; longer if it breaks at once
_PROBE = 20_000  # milliseconds of silence before a stream's other end is asked whether it still lives


class Transport(Protocol):
    """What carries frames between a peer and its contacts; `Peer` knows nothing else of it.

    An implementation hands every frame that arrives to the ``deliver`` it was made with, under the number of
    the member that is proved to have sent it, and may lose frames: they are asked for again.
    """

    async def start(self, address: str | None = None) -> None:
        """Begin to listen, at ``address`` or at the agreed one, and to send."""

    def send(self, to: int, raw: bytes) -> None:
        """Queue bytes for a contact."""

    def expired(self, *members: int) -> list[int]:
        """Return which of ``members`` (by default all that matter here) may no longer be talked to."""

    async def flush(self, seconds: float) -> None:
        """Wait a little until what is queued has arrived; nothing is sent later."""

    async def stop(self) -> None:
        """End listening and sending."""


class TlsTransport:
    """One peer's server and its channels to its neighbours: gRPC over mutual TLS 1.3.

    Parameters
    ----------
    members, node : the agreement's members, and which of them this is.
    identity : this member's key and certificate.
    contacts : the members that may connect.
    deliver : called with (sender, bytes) for every frame; raises `FrameError` to refuse it.
    largest : length of the largest frame of the run; more is refused by the server unread.
    revoked : fingerprints that are no longer accepted.
    clock : seconds since 1970; a connection does not outlive the certificate that opened it.
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
    ) -> None:
        self.members, self.node, self.identity = list(members), node, identity
        refused = set(revoked)
        self.contacts = [s for s in contacts if self.members[s].fingerprint not in refused]
        self.deliver, self.largest = deliver, largest
        self.refused = 0
        self._pins = {bytes.fromhex(self.members[s].fingerprint): s for s in self.contacts}
        self.clock = clock
        self._until = {s: expiry(self.members[s].certificate.encode()) for s in (node, *self.contacts)}
        self._queues: dict[int, deque[bytes]] = {s: deque(maxlen=_QUEUE) for s in self.contacts}
        self._waiting = {s: asyncio.Event() for s in self.contacts}
        self._leaving = False
        self._tasks: list[asyncio.Task[None]] = []
        self._channels: list[Any] = []
        self._server: Any = None
        self.port = 0

    async def start(self, address: str | None = None) -> None:
        """Listen at the agreed address (or ``address``) and open a channel to every contact."""
        await self._listen(address or self.members[self.node].address)
        for s in self.contacts:
            self._tasks.append(asyncio.create_task(self._sender(s)))

    def send(self, to: int, raw: bytes) -> None:
        """Queue bytes for a contact; what does not fit or does not arrive is asked for again."""
        queue = self._queues.get(to)
        if queue is None:
            return
        if Wire.kind_of(raw) == POSITION:  # only the newest of each kind of position is worth sending
            answer = Wire.wants_answer(raw)
            positions = [q for q in queue if Wire.kind_of(q) == POSITION]
            for old in [q for q in positions if Wire.wants_answer(q) == answer]:
                queue.remove(old)
        queue.append(raw)
        self._waiting[to].set()

    def expired(self, *members: int) -> list[int]:
        """Return which of ``members`` (by default this one and all contacts) have an expired certificate."""
        now = self.clock()
        return [s for s in members or self._until if now > self._until[s]]

    async def flush(self, seconds: float) -> None:
        """Wait a little until all that is queued has been read at the other ends; nothing is sent later."""
        self._leaving = True
        for waiting in self._waiting.values():
            waiting.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def stop(self) -> None:
        """Close the server and the channels."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self._channels:
            await channel.close()
        if self._server is not None:
            await self._server.stop(0)
            await asyncio.sleep(0.01)  # the handlers of streams that were open learn of it and end

    # ---- receiving -------------------------------------------------------------------------------

    async def _listen(self, address: str) -> None:
        grpc = _only_tls_13()
        roots = b"".join(self.members[s].certificate.encode() for s in self.contacts)
        if not roots:
            raise IdentityError("No neighbour with a valid certificate is left; there is nobody to talk to.")
        credentials = grpc.ssl_server_credentials(
            [(self.identity.key, self.identity.certificate)],
            root_certificates=roots,
            require_client_auth=True,
        )
        options = [
            ("grpc.max_receive_message_length", self.largest),
            ("grpc.max_metadata_size", 4096),
            # strangers who connect and say nothing hold a descriptor each: they are let go, members get in
            ("grpc.server_handshake_timeout_ms", _HANDSHAKE),
            ("grpc.max_concurrent_streams", 8),  # one is used, others may be left of lost connections
            ("grpc.so_reuseport", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", _PROBE // 2),
            *_WHOLE_ROWS,
        ]
        server = grpc.aio.server(options=options)
        handler = grpc.stream_unary_rpc_method_handler(self._handle)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("sottovoce.Peer", {"Deliver": handler}),)
        )
        try:
            self.port = server.add_secure_port(address, credentials)
        except RuntimeError:
            self.port = 0
        if not self.port:
            raise PeerError(f"Cannot listen at {address}; free the address, or agree on another.")
        self._server = server
        await server.start()

    async def _handle(self, frames: Any, context: Any) -> bytes:
        import grpc.aio

        sender = self._sender_of(context)
        if sender is None:
            self.refused += 1
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not a neighbour in this run")
            raise AssertionError("abort raises")
        while (raw := await context.read()) is not grpc.aio.EOF:
            if self.expired(sender, self.node):
                self.refused += 1
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the certificate has expired")
            try:
                self.deliver(sender, raw)
            except FrameError:
                self.refused += 1  # one bad frame spoils nothing that follows
            except PeerError:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this peer has stopped")
        return b""

    def _sender_of(self, context: Any) -> int | None:
        """Return the member whose certificate made the connection, never what a field says."""
        facts = context.auth_context()
        certificates = facts.get("x509_pem_cert", [])
        if len(certificates) != 1 or facts.get("ssl_tls_version", [b"TLSv1.3"])[0] != b"TLSv1.3":
            return None
        try:
            der = ssl.PEM_cert_to_DER_cert(certificates[0].decode("ascii"))
        except ValueError:
            return None
        return self._pins.get(hashlib.sha256(der).digest())

    # ---- sending ---------------------------------------------------------------------------------

    async def _sender(self, to: int) -> None:
        grpc = _only_tls_13()
        member = self.members[to]
        credentials = grpc.ssl_channel_credentials(
            root_certificates=member.certificate.encode(),
            private_key=self.identity.key,
            certificate_chain=self.identity.certificate,
        )
        options = [
            ("grpc.ssl_target_name_override", host_name(member.name)),
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.max_send_message_length", self.largest),
            ("grpc.enable_http_proxy", 0),
            ("grpc.keepalive_time_ms", _PROBE),
            ("grpc.keepalive_timeout_ms", _PROBE // 2),
            ("grpc.http2.max_pings_without_data", 0),
            *_WHOLE_ROWS,
        ]
        channel = grpc.aio.secure_channel(member.address, credentials, options=options)
        self._channels.append(channel)
        begin = channel.stream_unary(METHOD)
        pause = _PAUSE
        while True:
            stream, since = begin(wait_for_ready=True), time.monotonic()
            try:
                await self._pour(stream, to)
                return
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                if self._leaving and not self._queues[to]:
                    return
                pause = min(2 * pause, 1.0) if time.monotonic() - since < 1.0 else _PAUSE
                await asyncio.sleep(pause)
            finally:
                stream.cancel()

    async def _pour(self, stream: Any, to: int) -> None:
        """Write what is queued as it comes; when leaving, return once the other end has read it all."""
        import grpc.aio

        queue, waiting = self._queues[to], self._waiting[to]
        while True:
            await waiting.wait()
            waiting.clear()
            while queue:
                if self.expired(to, self.node):
                    return
                raw = queue.popleft()
                try:
                    await stream.write(raw)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    queue.appendleft(raw)
                    waiting.set()
                    raise
            if self._leaving:
                waiting.set()
                await stream.done_writing()
                await stream
                return


def _only_tls_13() -> Any:
    """Return gRPC's module with the one list of ciphers that leaves no TLS but 1.3.

    gRPC knows no other way to say it than a variable of the process, which it reads when it first makes a
    server or a channel: it is set here, where one is made, and never changed under somebody who has set it.
    """
    name, ciphers = _CIPHERS
    if os.environ.setdefault(name, ciphers) != ciphers:
        raise PeerError(
            f"{name} is set to another list of ciphers, under which TLS below 1.3 could be agreed on; unset "
            "it for this process."
        )
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import grpc
    import grpc.aio

    return grpc
