"""`sottovoce peer init, trust, budget, agree, run`: one lifetime ledger, from the command line."""

import json
import re

import numpy as np
import pytest

from sottovoce.peers import runtime
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement import read_agreement
from sottovoce.peers.member_directory import MemberDirectory

DRAFT = """
version = 1
title = "{title}"
graph = "path:2"

[algorithm]
name = "consensus-sgd"
protocol = "tree"
adjacency = "add-remove"
clip_norm = 1.0
noise_multiplier = 12.0
steps = 100
learning_rate = 0.5
batch_size = 20.0
sample_rate = 1.0

[model]
kind = "logistic"
parameters = 2

[budget]
epsilon = 5.0
delta = 1e-5
"""


@pytest.fixture
def sottovoce(call, monkeypatch, tmp_path):
    """Run a command; return (exit code, what it printed)."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("SOTTOVOCE_HOME", raising=False)

    def run(*words):
        answer = call(*words)
        return answer.code, answer.out + answer.err

    return run


@pytest.fixture
def directories(sottovoce, tmp_path):
    for name in ("north", "south"):
        code, output = sottovoce(
            "peer", "init", tmp_path / name, "--name", name, "--epsilon", 6, "--adjacency", "add-remove",
            "--view", "local", "--copy", tmp_path / f"copy-{name}", "--json",
        )  # fmt: skip
        assert code == 0, output
        assert len(json.loads(output)["words"].split("-")) == 6
    north, south = (tmp_path / name for name in ("north", "south"))
    for own, other in ((north, south), (south, north)):
        certificate = other / "identity" / "certificate.pem"
        assert sottovoce("peer", "trust", certificate, "--why", "read aloud", "--directory", own)[0] == 0
    return north, south


@pytest.fixture
def drafted(sottovoce, directories, tmp_path):
    def draft(title, *identities, options=(), code=0):
        (tmp_path / "draft.toml").write_text(DRAFT.format(title=title))
        file, words = tmp_path / f"{title}.toml", []
        for i, folder in enumerate(identities or [own / "identity" for own in directories]):
            words += ["-m", f"{folder}/certificate.pem@127.0.0.1:{4400 + i}"]
        done = sottovoce("peer", "agree", tmp_path / "draft.toml", *words, "-o", file, *options)
        assert done[0] == code, done[1]
        return file if not code else done[1]

    return draft


@pytest.fixture
def signed(sottovoce):
    def sign(file, directory):
        name = read_agreement(file).run_id.hex()
        return sottovoce("peer", "agree", file, "--sign", directory / "identity", "--yes", name[:8])

    return sign


def test_the_summary_shows_what_is_signed_and_the_records_are_checked_before(sottovoce, drafted, tmp_path):
    file = drafted("first")
    np.savez(tmp_path / "wide.npz", X=np.ones((4, 3)), y=np.zeros(4))
    code, output = sottovoce("peer", "agree", file, "--data", tmp_path / "wide.npz")
    assert (code, "expected 2 features per record" in output) == (1, True)
    line = " ".join(sottovoce("peer", "agree", file)[1].split())
    for part in ("127.0.0.1:4401", "north - south", "clip_norm = 1.0", "batch_size = 20.0", "parameters = 2"):
        assert part in line
    page = json.loads(sottovoce("peer", "agree", file, "--json")[1])["summary"]
    assert page["connections"] == [["north", "south"]]
    for member in page["members"]:
        assert member["words"] in line


def test_the_third_agreement_on_the_same_people_is_not_signed(sottovoce, directories, drafted, signed):
    """3.549 of 5, three times, is 6.735 together; the member directory's lifetime budget is 6."""
    north = directories[0]
    for title, sentence in (
        ("first", "spent 0 + new 3.549 = total 3.549 of 6"),
        ("second", "spent 3.549 + new 3.549 = total 5.3 of 6"),
    ):
        file = drafted(title)
        code, output = sottovoce("peer", "agree", file, "--sign", north / "identity")
        assert (code, "Signing needs the hash of what was read" in output) == (1, True)
        code, output = signed(file, north)
        assert code == 0, output
        assert sentence in " ".join(output.split())
        assert read_agreement(file).signatures.keys() == {"north"}
        directory, agreed_run = MemberDirectory(north), AgreedRun(read_agreement(file))
        directory.lifetime_ledger.charge_run(directory.charge_of(agreed_run, 0))
    file = drafted("third")
    code, output = signed(file, north)
    assert code == 1
    assert "this adds 3.549, together 6.735 of a lifetime budget of epsilon 6" in output
    assert not read_agreement(file).signatures
    code, output = sottovoce("peer", "budget", "--directory", north, "--json")
    (entry,) = json.loads(output)["populations"]
    assert [each["what"] for each in entry["charges"]] == ["first", "second"]
    assert round(entry["budgets"][0]["total"], 3) == 5.3
    code, output = sottovoce(
        "peer", "budget", "--directory", north, "--raise", 7, "--adjacency", "add-remove", "--view", "local",
        "--why", "vote",
    )  # fmt: skip
    assert (code, "Spent epsilon 5.3 of 7" in output) == (0, True)
    assert signed(file, north)[0] == 0


def test_false_signatures_are_not_shown_as_signed_and_overwrite_nothing(
    sottovoce, directories, drafted, signed, tmp_path
):
    file = drafted("first")
    assert signed(file, directories[1])[0] == 0
    bad = tmp_path / "bad.toml"
    bad.write_text(re.sub(r'south = "\w+"', 'south = "deadbeef"', file.read_text()))
    assert json.loads(sottovoce("peer", "agree", bad, "--json")[1])["signed"] == []
    assert "Invalid signature: south" in sottovoce("peer", "agree", bad)[1]
    before = file.read_bytes()
    code, output = sottovoce("peer", "agree", file, "--merge", bad)
    assert (code, "signature of south" in output) == (1, True)
    assert file.read_bytes() == before


def test_an_unpinned_member_is_not_signed_with(sottovoce, directories, drafted, tmp_path):
    north, stranger = directories[0] / "identity", tmp_path / "stranger"
    sottovoce("peer", "keygen", stranger, "--name", "south")
    output = drafted("false", north, stranger, options=("--sign", north), code=1)
    assert "another certificate for south" in output
    assert not read_agreement(tmp_path / "false.toml").signatures


def test_budget_changes_need_reason_and_numbers(sottovoce, directories):
    north = directories[0]
    for words, sentence in (
        (("--raise", 7, "--adjacency", "user"), "the reason must be one line"),
        (("--raise", 7, "--why", "vote"), "--adjacency"),
        (("--close", "abc", "--why", "vote"), "0 runs"),
        (("--restore", "--open", "x", "--why", "vote"), "exclude each other"),
    ):
        code, output = sottovoce("peer", "budget", "--directory", north, *words)
        assert (code, sentence in output) == (1, True)
    code, output = sottovoce("peer", "budget")
    assert (code, "no member directory" in output) == (1, True)
    opened = ("--open", "staff", "--epsilon", 1, "--adjacency", "user", "--why", "vote")
    assert sottovoce("peer", "budget", "--directory", north, *opened)[0] == 0
    assert list(MemberDirectory(north).lifetime_ledger.populations) == ["patients", "staff"]


def test_run_needs_a_member_directory_or_folders(
    sottovoce, directories, drafted, signed, tmp_path, monkeypatch
):
    file, north = drafted("first"), directories[0]
    run = ("peer", "run", file, "--data", tmp_path / "mine.npz")
    np.savez(tmp_path / "mine.npz", X=np.ones((4, 2)), y=np.array([0.0, 1.0, 0.0, 1.0]))
    for directory in directories:
        assert signed(file, directory)[0] == 0
    code, output = sottovoce(*run)
    assert (code, "--identity and --state are needed" in output) == (78, True)

    async def stopped(self):
        self.ledger.close()
        raise runtime.PeerError("stopped by the test")

    monkeypatch.setattr(runtime.Peer, "run", stopped)
    elsewhere = ("--identity", north / "identity", "--state", tmp_path / "elsewhere")
    for more in ((), elsewhere):  # the member directory is found
        code, output = sottovoce(*run, "--directory", north, *more)
        assert "stopped by the test" in output
    assert "continues in" in output
    (charge,) = MemberDirectory(north).lifetime_ledger.charges
    assert (charge.what, charge.status) == ("first", "started")
    np.savez(tmp_path / "mine.npz", X=np.zeros((4, 2)), y=np.array([0.0, 1.0, 0.0, 1.0]))
    code, output = sottovoce(*run, "--directory", north)
    assert (code, "records differ" in output) == (78, True)


def test_ledgers_are_compared(sottovoce, tmp_path):
    for node, digest in ((0, "aa"), (2, "aa"), (3, "bb")):
        heard = [{"round": 0, "sender": 1, "digest": digest}]
        proof = {"session": "x", "node": node, "sent": {}, "heard": heard}
        (tmp_path / f"{node}.json").write_text(json.dumps(proof))
    (tmp_path / "no.json").write_text("no")
    lies = "member 1 sent different rows in round 0, by the ledgers of members 0, 3"
    for other, code, sentence in (("2", 0, "The ledgers agree"), ("3", 1, lies), ("no", 1, "is not JSON")):
        done = sottovoce("peer", "compare", tmp_path / "0.json", tmp_path / f"{other}.json")
        assert (done[0], sentence in " ".join(done[1].split())) == (code, True)


def test_a_pin_is_removed_by_name(sottovoce, directories):
    north, south = directories
    words = ("--why", "south has left", "--directory", north)
    assert sottovoce("peer", "trust", "--forget", "south", *words) == (0, "south is no longer pinned.\n")
    assert json.loads(sottovoce("peer", "init", north, "--json")[1])["trusted"] == {}
    own = south / "identity" / "certificate.pem"
    for wrong, sentence in (
        (("--forget", "south"), "No member 'south' is pinned"),
        ((), "one of the two"),
        ((own, "--forget", "south"), "one of the two"),
    ):
        code, output = sottovoce("peer", "trust", *wrong, *words)
        assert (code, sentence in output) == (1, True)


def test_certificates_that_cannot_be_pinned_leave_the_key_alone(sottovoce, directories, tmp_path):
    north = directories[0]
    key = (north / "identity" / "key.pem").read_bytes()
    own = north / "identity" / "certificate.pem"
    (tmp_path / "junk.pem").write_bytes(b"\xff" * 40)
    for file in (own, tmp_path / "junk.pem", tmp_path, tmp_path / "absent.pem"):
        code, output = sottovoce("peer", "trust", file, "--why", "x", "--replace", "--directory", north)
        assert (code, "Traceback" in output, "bug" in output) == (1, False, False)
    assert (north / "identity" / "key.pem").read_bytes() == key
