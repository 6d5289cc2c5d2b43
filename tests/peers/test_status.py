"""Comparing ledgers: honest ones agree, a member that sends two versions of a row is detected."""

import copy

import pytest

from sottovoce.errors import ConfigError
from sottovoce.peers.status import compare_proofs, read_proof


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
        (proofs[:1], "two members"),
        ([proofs[0], {**proofs[1], "run": "00"}], "different runs"),
        ([proofs[0], proofs[0]], "of one member"),
        ([proofs[0], {"run": proofs[0]["run"]}], "is not what"),
        ([proofs[0], []], "is not what"),
    ):
        with pytest.raises(ConfigError, match=match):
            compare_proofs(files)
