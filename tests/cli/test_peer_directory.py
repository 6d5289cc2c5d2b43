"""`sottovoce peer init, trust, budget, agree, run`: one lifetime ledger, from the command line."""

import json
import re

import numpy as np
import pytest
from tests.peers.conftest import draft

from sottovoce._io import to_toml
from sottovoce.peers import runtime
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement import read_agreement
from sottovoce.peers.member_directory import MemberDirectory

LEARNING = {
    "name": "consensus-sgd", "protocol": "tree", "adjacency": "add-remove", "noise_multiplier": 12.0,
    "steps": 100, "learning_rate": 0.5, "batch_size": 20.0, "sample_rate": 1.0,
}  # fmt: skip


@pytest.fixture
def peer(call, monkeypatch, tmp_path):
    """Run a command; check its exit code and a part of what it prints, and return all of it."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("SOTTOVOCE_HOME", raising=False)

    def run(*words, code=0, prints=""):
        answer = call("peer", *words)
        output = answer.out + answer.err
        assert (answer.code, prints in " ".join(output.split())) == (code, True), output
        return output

    return run


@pytest.fixture
def directories(peer, tmp_path):
    north, south = (tmp_path / name for name in ("north", "south"))
    for own in (north, south):
        options = ("--adjacency", "add-remove", "--view", "local", "--copy", tmp_path / f"copy-{own.name}")
        output = peer("init", own, "--name", own.name, "--epsilon", 6, *options, "--json")
        assert len(json.loads(output)["words"].split("-")) == 6
    for own, other in ((north, south), (south, north)):
        certificate = other / "identity" / "certificate.pem"
        peer("trust", certificate, "--why", "read aloud", "--directory", own)
    return north, south


@pytest.fixture
def drafted(peer, directories, tmp_path):
    def write(title, *identities, options=(), **expected):
        (tmp_path / "draft.toml").write_text(to_toml(draft("path:2", LEARNING, epsilon=5.0, title=title)))
        file, words = tmp_path / f"{title}.toml", []
        for i, folder in enumerate(identities or [own / "identity" for own in directories]):
            words += ["-m", f"{folder}/certificate.pem@127.0.0.1:{4400 + i}"]
        peer("agree", tmp_path / "draft.toml", *words, "-o", file, *options, **expected)
        return file

    return write


@pytest.fixture
def sign(peer):
    def sign(file, directory, **expected):
        name = read_agreement(file).run_id.hex()
        return peer("agree", file, "--sign", directory / "identity", "--yes", name[:8], **expected)

    return sign


def test_the_summary_shows_what_is_signed_and_the_records_are_checked_before(peer, drafted, tmp_path):
    file = drafted("first")
    np.savez(tmp_path / "wide.npz", X=np.ones((4, 3)), y=np.zeros(4))
    peer("agree", file, "--data", tmp_path / "wide.npz", code=1, prints="expected 2 features per record")
    line = " ".join(peer("agree", file).split())
    for part in ("127.0.0.1:4401", "north - south", "clip_norm = 1.0", "batch_size = 20.0", "parameters = 2"):
        assert part in line
    page = json.loads(peer("agree", file, "--json"))["summary"]
    assert page["connections"] == [["north", "south"]]
    for member in page["members"]:
        assert member["words"] in line


def test_the_third_agreement_on_the_same_people_is_not_signed(peer, directories, drafted, sign):
    """3.549 of 5, three times, is 6.735 together; the member directory's lifetime budget is 6."""
    north = directories[0]
    for title, sentence in (
        ("first", "spent 0 + new 3.549 = total 3.549 of 6"),
        ("second", "spent 3.549 + new 3.549 = total 5.3 of 6"),
    ):
        file = drafted(title)
        unread = ("agree", file, "--sign", north / "identity")
        peer(*unread, code=1, prints="Signing needs the hash of what was read")
        sign(file, north, prints=sentence)
        assert read_agreement(file).signatures.keys() == {"north"}
        directory, agreed_run = MemberDirectory(north), AgreedRun(read_agreement(file))
        directory.lifetime_ledger.charge_run(directory.charge_of(agreed_run, 0))
    file = drafted("third")
    sign(file, north, code=1, prints="this adds 3.549, together 6.735 of a lifetime budget of epsilon 6")
    assert not read_agreement(file).signatures
    (entry,) = json.loads(peer("budget", "--directory", north, "--json"))["populations"]
    assert [each["what"] for each in entry["charges"]] == ["first", "second"]
    assert round(entry["budgets"][0]["total"], 3) == 5.3
    more = ("--raise", 7, "--adjacency", "add-remove", "--view", "local", "--why", "vote")
    peer("budget", "--directory", north, *more, prints="Spent epsilon 5.3 of 7")
    sign(file, north)


def test_false_signatures_are_not_shown_as_signed_and_overwrite_nothing(
    peer, directories, drafted, sign, tmp_path
):
    file = drafted("first")
    sign(file, directories[1])
    bad = tmp_path / "bad.toml"
    bad.write_text(re.sub(r'south = "\w+"', 'south = "deadbeef"', file.read_text()))
    assert json.loads(peer("agree", bad, "--json"))["signed"] == []
    peer("agree", bad, prints="Invalid signature: south")
    before = file.read_bytes()
    peer("agree", file, "--merge", bad, code=1, prints="signature of south")
    assert file.read_bytes() == before


def test_an_unpinned_member_is_not_signed_with(peer, directories, drafted, tmp_path):
    north, stranger = directories[0] / "identity", tmp_path / "stranger"
    peer("keygen", stranger, "--name", "south")
    expected = {"options": ("--sign", north), "code": 1, "prints": "another certificate for south"}
    assert not read_agreement(drafted("false", north, stranger, **expected)).signatures


def test_budget_changes_need_reason_and_numbers(peer, directories):
    north = directories[0]
    for words, sentence in (
        (("--raise", 7, "--adjacency", "user"), "the reason must be one line"),
        (("--raise", 7, "--why", "vote"), "--adjacency"),
        (("--close", "abc", "--why", "vote"), "0 runs"),
        (("--restore", "--open", "x", "--why", "vote"), "exclude each other"),
    ):
        peer("budget", "--directory", north, *words, code=1, prints=sentence)
    peer("budget", code=1, prints="no member directory")
    opened = ("--open", "staff", "--epsilon", 1, "--adjacency", "user", "--why", "vote")
    peer("budget", "--directory", north, *opened)
    assert list(MemberDirectory(north).lifetime_ledger.populations) == ["patients", "staff"]


def test_run_needs_a_member_directory_or_folders(peer, directories, drafted, sign, tmp_path, monkeypatch):
    file, north = drafted("first"), directories[0]
    run = ("run", file, "--data", tmp_path / "mine.npz")
    np.savez(tmp_path / "mine.npz", X=np.ones((4, 2)), y=np.array([0.0, 1.0, 0.0, 1.0]))
    for directory in directories:
        sign(file, directory)
    peer(*run, code=78, prints="--identity and --state are needed")

    async def stopped(self):
        self.ledger.close()
        raise runtime.PeerError("stopped by the test")

    monkeypatch.setattr(runtime.Peer, "run", stopped)
    peer(*run, "--directory", north, code=1, prints="stopped by the test")
    # the identity belongs to the member directory, where the run goes on
    elsewhere = ("--identity", north / "identity", "--state", tmp_path / "elsewhere")
    peer(*run, "--directory", north, *elsewhere, code=1, prints="continues in")
    (charge,) = MemberDirectory(north).lifetime_ledger.charges
    assert (charge.what, charge.status) == ("first", "started")
    np.savez(tmp_path / "mine.npz", X=np.zeros((4, 2)), y=np.array([0.0, 1.0, 0.0, 1.0]))
    peer(*run, "--directory", north, code=78, prints="records differ")


def test_ledgers_are_compared(peer, tmp_path):
    for node, digest in ((0, "aa"), (2, "aa"), (3, "bb")):
        heard = [{"round": 0, "sender": 1, "digest": digest}]
        proof = {"session": "x", "node": node, "sent": {}, "heard": heard}
        (tmp_path / f"{node}.json").write_text(json.dumps(proof))
    (tmp_path / "no.json").write_text("no")
    lies = "member 1 sent different rows in round 0, by the ledgers of members 0, 3"
    for other, code, sentence in (("2", 0, "The ledgers agree"), ("3", 1, lies), ("no", 1, "is not JSON")):
        peer("compare", tmp_path / "0.json", tmp_path / f"{other}.json", code=code, prints=sentence)


def test_a_pin_is_removed_by_name(peer, directories, tmp_path):
    north, south = directories
    words = ("--why", "south has left", "--directory", north)
    assert peer("trust", "--forget", "south", *words) == "south is no longer pinned.\n"
    assert json.loads(peer("init", north, "--json"))["trusted"] == {}
    for wrong, sentence in (
        (("--forget", "south"), "No member 'south' is pinned"),
        ((), "one of the two"),
        ((south / "identity" / "certificate.pem", "--forget", "south"), "one of the two"),
        ((north / "identity" / "certificate.pem",), "this member's own name"),
        ((tmp_path,), "cannot be read (Is a directory)"),
        ((tmp_path / "absent.pem",), "cannot be read (No such file"),
    ):
        peer("trust", *wrong, *words, code=1, prints=sentence)
