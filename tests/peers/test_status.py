"""Comparing ledgers: honest ones agree, two versions of a row are detected; health and metrics of a peer."""

import asyncio
import copy
import json

import pytest

from sottovoce.errors import ConfigError
from sottovoce.peers.status import Health, compare_proofs, metrics, read_proof


@pytest.fixture
def proofs(consortium, memory_links):
    group = consortium(4, graph="ring:4")
    group.run(transport=memory_links())
    return [read_proof(group.state(i)) for i in range(4)]


def test_honest_ledgers_do_not_contradict(proofs):
    assert sum(len(proof["heard"]) for proof in proofs) == 4 * 4 * 2  # rounds, members, neighbors
    assert compare_proofs(proofs) == []
    assert compare_proofs(proofs[:2]) == []


def test_two_versions_of_a_row_are_detected(proofs):
    changed = copy.deepcopy(proofs)
    row = next(row for row in changed[0]["heard"] if row["sender"] == 1 and row["round"] == 2)
    row["digest"] = "00" * 32  # what member 1 sent to member 0 alone
    split = {"round": 2, "sender": 1, "kind": "split", "members": [0, 2]}
    sent = {"round": 2, "sender": 1, "kind": "sent", "members": [0]}
    assert compare_proofs(changed) == [split, sent]
    assert compare_proofs([changed[0], changed[2]]) == [split]
    assert compare_proofs(changed[:2]) == [sent]
    assert compare_proofs(changed[1:]) == []


def test_proofs_that_cannot_be_compared_are_refused(proofs):
    for files, match in (
        (proofs[:1], "1 of 1 members"),
        ([proofs[0], {**proofs[1], "session": "00"}], "2 of 2 members and 2 runs"),
        ([proofs[0], proofs[0]], "2 of 1 members"),
        ([proofs[0], {"session": proofs[0]["session"]}], "is not what"),
        ([proofs[0], []], "is not what"),
    ):
        with pytest.raises(ConfigError, match=match):
            compare_proofs(files)


def test_health_is_on_localhost_and_counts(consortium):
    """/metrics in Prometheus' form, /healthz, nothing else; the port is not open on other addresses."""

    async def get(port, line):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(line + b"\r\nHost: x\r\n\r\n")
        answer = (await reader.read()).decode()
        writer.close()
        return answer

    async def scene():
        peers = consortium(n=3, graph="path:3").peers(health=0)
        tasks = [asyncio.create_task(peer.run()) for peer in peers[:2]]
        peers[2].ledger.close()
        await asyncio.sleep(0.4)
        peers[0].transport.deliver = peers[0]._deliver
        port = peers[0]._health.port
        assert peers[0]._health._server.sockets[0].getsockname()[0] == "127.0.0.1"
        pages = [await get(port, line) for line in (b"GET /metrics HTTP/1.1", b"GET /healthz HTTP/1.1",
                 b"GET /etc/passwd HTTP/1.1", b"POST /metrics HTTP/1.1", b"\xff\xfe")]  # fmt: skip
        for peer in peers[:2]:
            peer.stop()
        await asyncio.gather(*tasks, return_exceptions=True)
        return pages

    numbers, well, missing, post, rubbish = asyncio.run(scene())
    assert 'sottovoce_connected{member="m1"} 1' in numbers
    assert "sottovoce_rounds 4" in numbers
    health = json.loads(well.split("\r\n\r\n")[1])
    assert health["well"]
    assert "m2" in health["waiting"]
    assert 0 <= health["seconds_since_round"] < 60
    assert 'sottovoce_waiting_for{member="m2"} 1' in numbers
    assert "sottovoce_seconds_since_round " in numbers
    assert missing.startswith("HTTP/1.1 404")
    assert post.startswith("HTTP/1.1 405")
    assert rubbish == "" or rubbish.startswith("HTTP/1.1 405")


def test_metrics_hold_what_was_refused():
    report = {
        "round": 1,
        "refused": [{"from": 'a"b', "why": "too many\n", "count": 3}],
        "listener": {"waiting": 2},
    }
    page = metrics(report)
    assert 'sottovoce_refused_total{from="a\\"b",why="too many "} 3' in page
    assert "sottovoce_listener_waiting 2" in page
    with pytest.raises(ConfigError):
        Health(None, -1)
