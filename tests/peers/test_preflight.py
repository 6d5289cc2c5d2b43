"""`peer check`: what an operator sees before a run; nothing is sent by it."""

import asyncio
import datetime as dt
import time

import numpy as np
import pytest

from sottovoce.errors import LostPeer
from sottovoce.peers.core import Timing
from sottovoce.peers.identity import make_identity
from sottovoce.peers.preflight import check_files, check_neighbors
from sottovoce.peers.transport import apart_in_words


@pytest.fixture
def group(consortium):
    group = consortium(n=3, graph="path:3")
    for i in range(3):
        np.savez(group.folder / f"data{i}.npz", X=group.records[i].X)
    return group


def files(group, i=0, **changes):
    options = {
        "identity": group.identity_folder(i),
        "data": group.folder / f"data{i}.npz",
        "state": group.state(i),
    }
    file = changes.pop("agreement", group.file)
    findings = check_files(file, **{**options, **changes})
    return findings, {each.what: each for each in findings.findings}


def test_all_is_well_and_nothing_was_made(group):
    group.identity_folder(0)
    before = sorted(group.folder.rglob("*"))
    findings, by = files(group)
    assert all(each.passed for each in findings.findings)
    assert list(by) == ["agreement", "signatures", "identity", "data", "privacy cost", "ledger"]
    assert sorted(group.folder.rglob("*")) == before  # not even the state folder


def write(group, name, content):
    (group.folder / name).write_bytes(content)
    return group.folder / name


def foreign(group):
    make_identity(group.folder / "foreign", "m0")
    return {"identity": group.folder / "foreign"}


WRONG = {
    "a certificate for an agreement": (
        lambda g: {"agreement": g.identity_folder(0) / "certificate.pem"}, "agreement", "is not valid TOML"
    ),
    "a draft": (
        lambda g: {"agreement": write(g, "draft.toml", g.file.read_bytes().split(b"[[members]]")[0])},
        "agreement", "no [[members]]",
    ),
    "an unsigned change": (
        lambda g: {"agreement": write(g, "changed.toml", g.file.read_bytes().replace(b"a test", b"a trap"))},
        "signatures", "was changed after signing",
    ),
    "a PDF for records": (
        lambda g: {"data": write(g, "records.csv", b"%PDF-1.7\n\xe2\xe3\xcf\xd3")}, "data",
        "is not text; export the table as CSV",
    ),
    "a foreign identity": (foreign, "identity", "another certificate for m0"),
    "no identity": (lambda g: {"identity": g.folder}, "identity", "peer keygen"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_one_sentence(case, group):
    change, what, words = WRONG[case]
    finding = files(group, **change(group))[1][what]
    assert not finding.passed
    assert finding.fatal
    assert words in finding.says
    assert finding.says.count(". ") == 0


async def around(group, *nodes, clock=time.time):
    """Return the findings of members while m1 runs and m2 does not, and how many frames m1 took from m0."""
    peer = group.peers()[1]
    peer.transport.clock = clock
    running = asyncio.create_task(peer.run())
    await asyncio.sleep(0.2)
    findings = [await check_neighbors(group.agreement, group.identities[i]) for i in nodes]
    heard = peer.transport.report()["neighbors"]["m0"]["frames"]
    peer.stop()
    await asyncio.gather(running, return_exceptions=True)
    return [{each.what: each for each in some} for some in findings], heard


def test_each_neighbor_is_asked_and_nothing_is_sent(group):
    """m0 and m2 see the greeting of m1, which takes no frame from it."""
    (findings, lone), heard = asyncio.run(around(group, 0, 2))
    assert findings["m1"].passed
    assert "the same run" in findings["m1"].says
    assert findings["clock"].passed
    assert lone["m1"].passed
    assert heard == 0


def test_a_wrong_clock_is_named_with_its_hours(group):
    [findings], _ = asyncio.run(around(group, 0, clock=lambda: time.time() - 25 * 3600 - 5))
    assert not findings["clock"].passed
    assert "m1's is 1 d 1 h behind" in findings["clock"].says
    assert apart_in_words(3605) == "1 h 0 min ahead"
    assert f"{dt.datetime.now(dt.UTC):%Y-%m-%d}" in findings["clock"].says


def test_another_agreement_is_named_by_both_hashes_while_the_run_waits(group, consortium, tmp_path):
    """The reason is logged when it occurs, by name, at both ends, and it is in the last sentence."""
    events = []

    async def scene():
        peers = group.peers(timing=Timing(give_up=1.0), log=events.append)
        other = peers[1].transport.config
        peers[1].transport.config = other._replace(run_id=b"\xb7\xe8" * 16)
        tasks = [asyncio.create_task(peers[i].run()) for i in (0, 1)]
        peers[2].ledger.close()
        return await asyncio.gather(*tasks, return_exceptions=True)

    ends = asyncio.run(scene())
    troubles = [e for e in events if e["event"] == "trouble" and e["member"] == "m1"]
    assert "answers, but with another agreement: b7e8b7e8b7e8b7e8" in troubles[0]["why"]
    assert group.agreement.run_id.hex()[:16] in troubles[0]["why"]
    assert isinstance(ends[0], LostPeer)
    assert "m1 did not come back" in str(ends[0])
    assert "with another agreement: b7e8" in str(ends[0])
