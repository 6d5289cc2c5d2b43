"""Unauthenticated connections: closed after a timeout, limited per address and in all; members get in."""

import asyncio
import resource
import socket
import ssl

import pytest

from sottovoce.errors import PeerError
from sottovoce.peers import listener as listener_module
from sottovoce.peers.listener import Listener, raise_limit


class Guests:
    """A listener whose guests are inside when they say "member"."""

    def __init__(self, **limits):
        self.inside = []
        self.listener = Listener("127.0.0.1:0", self.enter, **{"defer": False, **limits})

    async def enter(self, sock, host):
        content = await asyncio.get_running_loop().sock_recv(sock, 100)
        if content != b"member":
            raise PeerError("a stranger")
        self.inside.append(host)
        sock.close()

    async def knock(self, count=1, host="127.0.0.1"):
        return [
            await asyncio.open_connection("127.0.0.1", self.listener.port, local_addr=(host, 0))
            for _ in range(count)
        ]

    async def member(self, host="127.0.0.1"):
        ((reader, writer),) = await self.knock(host=host)
        writer.write(b"member")
        await reader.read()
        writer.close()


def scene(action, **limits):
    async def play():
        guests = Guests(**limits)
        await guests.listener.open()
        try:
            return await action(guests), guests
        finally:
            guests.listener.close()

    return asyncio.run(play())


async def closed(connections, seconds=30):
    """Wait until the other end has closed all of them."""
    await asyncio.wait_for(asyncio.gather(*[reader.read() for reader, _ in connections]), seconds)
    for _, writer in connections:
        writer.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_DEFER_ACCEPT"), reason="this system hands over who says nothing")
def test_silent_connections_wait_in_the_kernel():
    """Two hundred silent ones cost this process nothing; who speaks is met at once."""

    async def action(guests):
        idle = await guests.knock(200)
        await guests.member()
        await guests.member("127.0.0.9")
        met = guests.listener.counts["accepted"]
        for _, writer in idle:
            writer.close()
        return met

    met, guests = scene(action, defer=True)
    assert guests.inside == ["127.0.0.1", "127.0.0.9"]
    assert met < 100  # few, if the machine is so busy that seconds have passed; 202 without


def test_silent_connections_are_closed_after_a_timeout():
    async def action(guests):
        idle = await guests.knock(40)
        await guests.member()
        await closed(idle)
        return guests.listener.waiting

    left, guests = scene(action, patience=0.3)
    assert left == 0
    assert guests.inside == ["127.0.0.1"]
    assert guests.listener.counts["let go"] >= 40


def test_pending_connections_are_limited_per_address():
    async def action(guests):
        others = await guests.knock(3, host="127.0.0.2")
        idle = await guests.knock(20)
        await closed(idle[:12])  # 20 came, 8 may wait
        assert guests.listener.waiting == 8 + 3
        await guests.member()  # from the address that is full: still let in
        await guests.member(host="127.0.0.3")
        for _, writer in (*idle, *others):
            writer.close()

    guests = scene(action, patience=60.0, per_address=8)[1]
    assert guests.inside == ["127.0.0.1", "127.0.0.3"]
    assert guests.listener.counts["let go"] == 12 + 1


def test_pending_connections_are_limited_in_all():
    async def action(guests):
        idle = [pair for i in range(30) for pair in await guests.knock(1, host=f"127.0.1.{i + 1}")]
        await closed(idle[:14])
        assert guests.listener.waiting == 16
        await guests.member(host="127.0.2.1")
        for _, writer in idle:
            writer.close()

    assert scene(action, patience=60.0, most=16)[1].inside == ["127.0.2.1"]


def test_without_descriptors_the_oldest_pending_connection_is_closed():
    """EMFILE at the listener: whoever has waited longest goes, and nobody spins."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def action(guests):
        idle = await guests.knock(30)
        await asyncio.sleep(0.05)
        own = [writer.get_extra_info("socket").dup() for _, writer in idle[:1]]
        resource.setrlimit(resource.RLIMIT_NOFILE, (own[0].fileno() + 2, hard))
        try:
            late = await guests.knock()  # takes the last one; the listener has none for its own end
            await asyncio.wait_for(idle[0][0].read(), 10)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in own:
            each.close()
        for _, writer in (*idle, *late):
            writer.close()
        await guests.member()

    guests = scene(action, patience=60.0, per_address=100)[1]
    assert guests.inside == ["127.0.0.1"]


def test_the_limit_of_descriptors_is_raised():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert raise_limit() == min(hard, 65_536) == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_address_in_use_is_an_error():
    async def action(guests):
        with pytest.raises(PeerError, match="another process does"):
            await Listener(f"127.0.0.1:{guests.listener.port}", guests.enter).open()
        with pytest.raises(PeerError, match="--listen"):
            await Listener("192.0.2.1:7000", guests.enter).open()

    scene(action)


def test_strangers_take_turns_for_handshakes_and_members_do_not_wait(monkeypatch):
    """Beyond the burst the addresses take turns; an address that a member came from is not in the queue."""

    begun = []

    async def handshake(sock, context, server):
        begun.append(sock.getpeername()[0])
        raise ssl.SSLError

    monkeypatch.setattr(listener_module, "tls_handshake", handshake)
    monkeypatch.setattr(listener_module, "_PAUSE", 0.05)

    async def action(guests):
        listener = guests.listener
        listener.context = object()
        listener._members["127.0.0.9"] = listener_module.RateLimit(1.0, 2.0)
        flood = [await guests.knock(host="127.0.0.2") for _ in range(20)]
        later = [
            await guests.knock(host=host) for host in ("127.0.0.3", "127.0.0.9", "127.0.0.9", "127.0.0.9")
        ]
        for ((_, writer),) in flood + later:
            writer.write(b"hello")
        async with asyncio.timeout(20):
            while len(begun) < 24:
                await asyncio.sleep(0.01)
        for ((_, writer),) in flood + later:
            writer.close()

    scene(action, per_address=100)
    assert begun[:2] == ["127.0.0.9"] * 2
    assert begun.index("127.0.0.3") <= 5  # a turn after the flooding address
    assert sorted(begun) == ["127.0.0.2"] * 20 + ["127.0.0.3"] + ["127.0.0.9"] * 3
