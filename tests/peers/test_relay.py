"""Outbound members, HTTP proxies and a relay give the same bytes as direct connections."""

import asyncio
import contextlib
import itertools

import numpy as np
import pytest

from sottovoce.errors import ConfigError, PeerError
from sottovoce.noise.samplers import SimulatedNoise
from sottovoce.peers import connection
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement import OUTBOUND, member_entry, read_agreement, sign_agreement, write_agreement
from sottovoce.peers.relay import Relay, edge_tokens
from sottovoce.peers.statements import connections
from sottovoce.peers.wire_format import MAGIC


@contextlib.asynccontextmanager
async def serving(**options):
    """A relay, and where it listens."""
    relay = Relay("127.0.0.1:0", **options)
    await relay.start()
    yield relay, f"127.0.0.1:{relay.listener.port}"
    await relay.stop()


async def pair(place, token):
    return await asyncio.gather(*[connection.meet_at_relay(place, token, side) for side in (0, 1)])


async def passes(one, two):
    """Whether a relay hands on what is sent to it; both ends are closed."""
    one.sendall(b"through")
    await asyncio.sleep(0.05)
    received = two.recv(100)
    close(one, two)
    return received == b"through"


def close(*ends):
    for end in ends:
        end.close()


LEARNING = {"name": "consensus-sgd", "protocol": "tree", "steps": 4, "noise_multiplier": 60.0}


def rewritten(group, ports, *, relay=""):
    """Sign the group's agreement again with these ports; None makes a member outbound."""
    content = group.agreement.model_dump(exclude_unset=True, exclude={"members", "signatures", "mask_keys"})
    if relay:
        content["relay"] = relay
    entries = [
        member_entry(own.certificate, OUTBOUND if port is None else f"127.0.0.1:{port}")
        for own, port in zip(group.identities, ports, strict=True)
    ]
    write_agreement(group.file, content, entries)
    for own in group.identities:
        sign_agreement(group.file, own, secrets=group.folder / f"secrets-{own.name}")
    return group


@pytest.fixture
def group(consortium):
    return consortium(n=3, graph="path:3", algorithm=LEARNING, epsilon=200.0)


@pytest.fixture
def direct(group):
    """The models of a run in which everybody listens; its state folders are moved away."""
    outcomes = group.run(noises=[SimulatedNoise(7) for _ in range(3)])
    for i in range(3):
        group.state(i).rename(group.folder / f"first{i}")
    return [outcome.model.tobytes() for outcome in outcomes]


def test_a_relay_sees_no_plaintext(group, direct, monkeypatch):
    """The same bytes as directly; on the relay's sockets no frame, no name, no run, no certificate."""
    seen, copied = bytearray(), Relay._passes
    monkeypatch.setattr(Relay, "_passes", lambda self, piece: (seen.extend(piece), copied(self, piece)))
    sent = []

    async def scene():
        async with serving() as (relay, place):
            rewritten(group, [None, None, None], relay=place)
            peers = group.peers(noises=[SimulatedNoise(7) for _ in range(3)])
            for peer in peers:
                assert not peer.transport.members[peer.node].reachable
                out, send = peer.transport, peer.transport.send
                tapped = lambda to, *raws, send=send: (sent.extend(raws), send(to, *raws))  # noqa: E731
                monkeypatch.setattr(out, "send", tapped)
            outcomes = await asyncio.gather(*[peer.run() for peer in peers])
            assert all(peer.transport.listener is None for peer in peers)  # nobody listened
        return outcomes, relay.counts

    outcomes, counts = asyncio.run(scene())
    assert [outcome.model.tobytes() for outcome in outcomes] == direct
    assert counts["joined"] >= 2  # one per edge, and again where an end called twice
    assert counts["bytes"] == len(seen) > sum(map(len, {bytes(raw) for raw in sent}))
    agreement = group.agreement
    secret = [MAGIC, b"SVOH", agreement.run_id, agreement.session, b"sottovoce", *edge_tokens(agreement)]
    secret += [member.name.encode() + b".peer" for member in agreement.members]
    secret += [bytes.fromhex(member.fingerprint) for member in agreement.members]
    for raw in sent:  # every stretch of every frame, header, numbers and digest
        secret += [bytes(raw[at : at + 12]) for at in range(0, len(raw) - 12, 12) if any(raw[at : at + 12])]
    tapped = bytes(seen)
    assert not [word for word in secret if word in tapped]


def test_two_outbound_neighbors_need_a_relay(consortium):
    group = consortium(n=3, graph="path:3")
    with pytest.raises(ConfigError, match="m0 and m1 are neighbors and both outbound"):
        rewritten(group, [None, None, 7001])
    assert read_agreement(group.file).members[0].reachable  # nothing was written


def test_a_relay_serves_its_tokens_only(consortium):
    group = consortium(n=2, graph="path:2")

    async def scene():
        async with serving(tokens=edge_tokens(group.agreement)) as (_, place):
            words = "answers: it serves other agreements only; start it with --only"
            with pytest.raises(PeerError, match=words):
                await connection.meet_at_relay(place, bytes(32), 0)
            token = connection.relay_token(group.agreement.session, 0, 1)
            assert await passes(*await pair(place, token))

    asyncio.run(scene())


def test_a_relay_does_not_join_one_side_with_itself():
    async def scene():
        async with serving(patience=0.3) as (relay, place):
            calls = [connection.meet_at_relay(place, bytes(32), 0) for _ in range(2)]
            ends = await asyncio.gather(*calls, return_exceptions=True)
        return " ".join(map(str, ends)), relay.counts["joined"]

    words, joined = asyncio.run(scene())
    assert joined == 0
    assert "a newer call of this member took the place" in words
    assert "the other member has not come there yet" in words


def test_a_token_has_one_pair_and_a_new_one_replaces_it():
    """Both members have called again, so their earlier connection is dead; nobody can collect pairs."""

    async def scene():
        async with serving() as (relay, place):
            ends = []
            for _ in range(20):
                ends += await pair(place, bytes(32))
                await asyncio.sleep(0.01)
            assert len(relay._pairs) == 1
            assert relay._from == {"127.0.0.1": 2}
            assert all([await asyncio.get_running_loop().sock_recv(end, 1) == b"" for end in ends[:-2]])
            assert await passes(*ends[-2:])
            close(*ends)
        assert not relay._from
        assert not relay._pairs

    asyncio.run(scene())


def test_one_address_cannot_fill_a_relay():
    async def scene():
        async with serving(per_address=6) as (_, place):
            ends = [end for n in range(3) for end in await pair(place, bytes([n]) * 32)]
            with pytest.raises(PeerError, match="answers: it has as many connections as it takes"):
                await connection.meet_at_relay(place, b"x" * 32, 0)
            close(*ends)
            await asyncio.sleep(0.1)
            close(*await pair(place, b"x" * 32))  # there is room again

    asyncio.run(scene())


def test_a_pair_without_traffic_is_closed():
    async def scene():
        loop = asyncio.get_running_loop()
        async with serving(idle=0.4) as (_, place):
            one, two = await pair(place, bytes(32))
            for _ in range(8):  # twice the timeout, never silent for so long
                one.sendall(b"x")
                assert await loop.sock_recv(two, 1) == b"x"
                await asyncio.sleep(0.1)
            for end in (two, one):
                assert await asyncio.wait_for(loop.sock_recv(end, 1), 10) == b""
            close(one, two)

    asyncio.run(scene())


class HttpProxy:
    """A company's proxy: CONNECT for who knows the password, 407 for others; counts its lines."""

    def __init__(self, word=""):
        self.word, self.lines, self.ends, self.serving = word, [], [], set()

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]

    async def stop(self):
        """End every connection and see it ended: one left open is told of in some later test."""
        self.server.close()
        for end in self.ends:
            end.transport.abort()
        await asyncio.gather(*self.serving, return_exceptions=True)

    async def serve(self, reader, writer):
        self.serving.add(asyncio.current_task())
        self.ends.append(writer)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        target = head.split()[1]
        if self.word and f"Basic {self.word}" not in head:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            writer.close()
            return
        self.lines.append(target)
        host, port = target.split(":")
        there, out = await asyncio.open_connection(host, int(port))
        self.ends.append(out)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def copy(source, sink):
            while piece := await source.read(65536):
                sink.write(piece)
            sink.close()

        await asyncio.gather(copy(reader, out), copy(there, writer), return_exceptions=True)


def test_outbound_members_call_through_a_company_proxy(group, direct, free_ports):
    """One member is reachable, the others leave their networks by an HTTP proxy with a password."""
    (port,) = free_ports(1)
    rewritten(group, [None, port, None])

    async def scene():
        proxy = HttpProxy("dTpwOnc=")
        await proxy.start()
        way = connection.parse_proxy(f"http://u:p%3Aw@127.0.0.1:{proxy.port}")
        peers = group.peers(noises=[SimulatedNoise(7) for _ in range(3)], proxy=way)
        outcomes = await asyncio.gather(*[peer.run() for peer in peers])
        with pytest.raises(PeerError, match="407 Proxy Authentication Required; it asks for user:password"):
            await connection.call("127.0.0.1:1", proxy=connection.parse_proxy(f"127.0.0.1:{proxy.port}"))
        await proxy.stop()
        return outcomes, proxy.lines

    outcomes, lines = asyncio.run(scene())
    assert [outcome.model.tobytes() for outcome in outcomes] == direct
    assert set(lines) == {f"127.0.0.1:{port}"}


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1:1", "nobody listens at 127.0.0.1:1"),
        ("no-such-name.invalid:7000", "is not known: look at DNS"),
    ],
)
def test_a_failed_call_states_the_reason(address, why):
    with pytest.raises(PeerError, match=why):
        asyncio.run(connection.call(address))


def test_the_graph_binds_exchanges_and_walks(consortium):
    """F12: no protocol may connect members who are no neighbors in the agreed graph."""
    with pytest.raises(ConfigError, match="exchange connects m0 with m2, who are no neighbors in path:4"):
        consortium(n=4, graph="path:4", algorithm={"protocol": "exchange"})
    walk = {"name": "random-walk-sgd", "protocol": "walk", "steps": 9, "noise_multiplier": 90.0}
    group = consortium(n=4, graph="path:4", algorithm=walk, epsilon=300.0)
    assert set(connections(AgreedRun(group.agreement))) <= {(0, 1), (1, 2), (2, 3)}
    outcomes = group.run()
    assert len({outcome.model.tobytes() for outcome in outcomes}) == 1
    assert np.isfinite(outcomes[0].model).all()
    for u, v in itertools.combinations(range(4), 2):
        assert (v in group.agreement.neighbors(u)) == (v - u == 1)
