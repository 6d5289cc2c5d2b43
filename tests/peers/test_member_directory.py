"""A member directory: runs begin once, go on with their own folder and records, and are charged for good."""

import math
import shutil
import stat
from functools import partial

import numpy as np
import pytest
from tests.peers.conftest import Members, draft

from sottovoce.errors import BudgetExceeded, ConfigError, DataError, IdentityError, LedgerError
from sottovoce.ledger.balance import LifetimeBudget
from sottovoce.peers.agreement import member_entry, sign_agreement, write_agreement
from sottovoce.peers.identity import CERTIFICATE, make_identity, proquint
from sottovoce.peers.member_data import Records
from sottovoce.peers.member_directory import MemberDirectory, find_member_directory
from sottovoce.peers.status import read_status
from sottovoce.privacy import gaussian_epsilon

DELTA = 1e-5
NAMES = ("north", "south")


class Runs(Members):
    """Members who agree on one run after the other."""

    def __init__(self, folder, connections, names=NAMES, view="local"):
        rng, limit = np.random.default_rng(1), LifetimeBudget(6.0, DELTA, "user", view)
        super().__init__(
            folder, connections, names, [limit], lambda: Records(rng.standard_normal((5, 2)), np.zeros(0))
        )

    def agree(self, title, noise=2.0, protocol="gossip:3"):
        """Averaging of two numbers: one release with sensitivity 2 clips, so mu = 2 / noise."""
        algorithm = {"protocol": protocol, "noise_multiplier": noise}
        content = draft(f"path:{len(self.names)}", algorithm, epsilon=50.0, title=title)
        addresses = [f"{name}.example:1" for name in self.names]
        return self.write(self.folder / f"{title}.toml", content, addresses)

    def total(self, name="north"):
        return self.directories[name].lifetime_ledger.summary()[0]["budgets"][0]["total"]


@pytest.fixture
def members(tmp_path, memory_links):
    return Runs(tmp_path, memory_links())


def test_runs_on_one_population_add_up_and_the_third_is_refused_before_anything_is_sent(members):
    """mu = 1 each: 4.377, then sqrt(2), and the files are re-ordered between the runs."""
    directory = members.directories["north"]
    for each, limit in zip(members.directories.values(), (7.0, 9.0), strict=True):
        each.lifetime_ledger.set_budget(None, LifetimeBudget(limit, DELTA, "user", "local"), "a vote")
    members.run(members.agree("first"))
    assert members.total() == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=1e-9)
    members.records = {name: Records(each.X[::-1].copy(), each.y) for name, each in members.records.items()}
    members.run(members.agree("second"))
    assert members.total() == pytest.approx(gaussian_epsilon(math.sqrt(2), DELTA), rel=1e-9)
    third = members.agree("third")
    before = len(members.connections.carried)
    with pytest.raises(BudgetExceeded, match=r"together 8\.386 of a lifetime budget of epsilon 7"):
        members.peer("north", third)
    assert len(members.connections.carried) == before
    assert [each.status for each in directory.lifetime_ledger.charges] == ["ended", "ended"]
    assert not (directory.folder / "runs" / third.run_id.hex()).exists()


def test_a_known_run_goes_on_in_its_own_folder_whatever_state_is_asked_for(members, tmp_path):
    agreement, events = members.agree("first"), []
    models = [outcome.model for outcome in members.run(agreement)]
    again = members.run(agreement, state=tmp_path / "elsewhere", log=events.append)
    assert [outcome.model.tolist() for outcome in again] == [model.tolist() for model in models]
    assert not (tmp_path / "elsewhere").exists()
    assert {event["state"] for event in events if event["event"] == "known"} == {
        str(members.state(name, agreement)) for name in NAMES
    }
    assert len(members.directories["north"].lifetime_ledger.charges) == 1
    status = read_status(members.state("north", agreement))
    assert status["population"] == "patients"
    assert status["finished"]


def test_a_masked_run_is_charged_at_what_a_member_can_see(tmp_path, memory_links):
    """Three members, noise of 2 clips each: one sees a sum with the noise of two, mu = 1 / sqrt(2)."""
    members = Runs(tmp_path, memory_links(), ("north", "south", "east"), view="network")
    directory = members.directories["north"]
    directory.lifetime_ledger.set_budget(None, LifetimeBudget(9.0, DELTA, "user", "local"), "a vote")
    agreement = members.agree("masked", protocol="masked")
    assert agreement.session != agreement.run_id
    names = ("key.pem", CERTIFICATE)
    (key,) = (file for file in directory.identity_folder.iterdir() if file.name not in names)
    content = key.read_bytes()
    key.unlink()
    with pytest.raises(ConfigError, match="mask key"):
        members.peer("north", agreement)
    assert directory.lifetime_ledger.charges == []  # it could not begin, so it costs nothing
    key.write_bytes(content)
    key.chmod(0o600)
    members.run(agreement)
    totals = {row["view"]: row["total"] for row in directory.lifetime_ledger.summary()[0]["budgets"]}
    assert totals["network"] == pytest.approx(gaussian_epsilon(1 / math.sqrt(2), DELTA), rel=1e-6)
    assert totals["local"] == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=1e-9)
    members.run(agreement)
    assert len(directory.lifetime_ledger.charges) == 1


@pytest.mark.parametrize("ended", [True, False])
def test_an_ended_or_begun_run_whose_folder_was_deleted_is_never_repeated(ended, members):
    """Of a run that has not ended, only the mark that its ledger existed tells that rows may have left."""
    agreement = members.agree("first")
    if ended:
        members.run(agreement)
    else:
        members.peer("north", agreement).ledger.close()
    shutil.rmtree(members.state("north", agreement))
    with pytest.raises(LedgerError, match="never repeated"):
        members.peer("north", agreement)
    members.directories["north"].close(agreement.run_id.hex(), "the disk died")
    assert members.total() == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=1e-9)
    with pytest.raises(ConfigError, match="closed"):
        members.peer("north", agreement)


def test_verifying_finds_a_damaged_old_or_missing_ledger(members, call):
    first, second = (members.agree(title, noise=8.0) for title in ("first", "second"))
    for agreement in (first, second):
        members.run(agreement)
    directory = members.directories["north"]

    def verify():
        return call("peer", "ledger", "--verify", "--directory", directory.folder)

    assert [each["problem"] for each in directory.verify()] == ["", "", ""]
    assert (verify().code, verify().out.strip()) == (0, "3 ledgers are whole.")
    assert call("peer", "ledger", members.state("north", first), "--verify").code == 0
    assert call("peer", "ledger").code == 78  # which one
    head = directory.head_file(first.run_id)
    whole = head.read_bytes()
    head.write_bytes(bytes(40))
    assert [bool(each["problem"]) for each in directory.verify()] == [False, True, False]
    answer = verify()
    assert answer.code == 1
    assert "1 of 3 ledgers are not whole" in answer.err + answer.out
    head.write_bytes(whole)
    shutil.rmtree(members.state("north", second))
    assert [bool(each["problem"]) for each in directory.verify()] == [False, False, True]
    directory.close(second.run_id.hex(), "its disk died")  # everything planned is charged: nothing is missing
    assert verify().code == 0
    directory.lifetime_ledger.path.write_bytes(b"")
    assert verify().code == 1


def test_only_ended_runs_are_compacted_and_everything_still_adds_up(members, call):
    first, second = (members.agree(title, noise=8.0) for title in ("first", "second"))
    members.run(first)
    members.peer("north", second).ledger.close()
    directory = members.directories["north"]
    done, begun = (members.state("north", agreement) for agreement in (first, second))
    command = ("peer", "ledger", "--compact", "--directory", directory.folder, "--json")
    before, status = directory.lifetime_ledger.summary(), read_status(done)
    refused = call(*command, begun)
    assert (refused.code, "is started in the lifetime ledger" in refused.json["error"]) == (78, True)
    assert call("peer", "ledger", done, "--compact").code == 78  # without the directory its head is not seen
    for _ in range(2):
        assert call(*command).json == {"compacted": [str(done)]}
        now = read_status(done)
        assert (now.pop("ledger_rows"), now["finished"]) == (status.get("ledger_rows"), True)
        for name in ("round", "releases", "epsilon_spent", "label", "ledger_head", "population"):
            assert now[name] == status[name]
    assert directory.lifetime_ledger.summary() == before
    assert [each["problem"] for each in directory.verify()] == ["", "", ""]
    with pytest.raises(LedgerError, match="was compacted"):
        members.peer("north", first)
    assert call("peer", "compare", done, members.state("south", first)).code == 1
    directory.restore("nothing is missing")
    assert members.total() == before[0]["budgets"][0]["total"]


def test_other_records_after_a_restart_are_refused(members):
    agreement = members.agree("first")
    members.peer("north", agreement).ledger.close()
    X = members.records["north"].X
    for other in (X + 1e-12, X[::-1].copy(), X[:4], X.astype(np.float32)):
        with pytest.raises(DataError, match="records differ"):
            members.peer("north", agreement, records=Records(other, np.zeros(0)))
    assert len(members.directories["north"].lifetime_ledger.charges) == 1


def test_the_digest_of_records_is_keyed_by_the_directory(members):
    one, two = (directory.digest(members.records["north"]) for directory in members.directories.values())
    assert one != two
    key = members.directories["north"].folder / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    key.chmod(0o644)
    with pytest.raises(IdentityError, match="only its owner"):
        members.directories["north"].digest(members.records["north"])
    key.unlink()
    with pytest.raises(IdentityError, match="cannot be read"):
        members.directories["north"].digest(members.records["north"])


def test_a_run_folder_from_a_backup_is_noticed_and_so_is_a_lost_witness(members, tmp_path):
    agreement = members.agree("first")
    directory = members.directories["north"]
    folder = directory.folder / "runs" / agreement.run_id.hex()
    members.peer("north", agreement).ledger.close()
    shutil.copytree(folder, tmp_path / "backup")  # anchor included
    members.run(agreement)
    newest = tmp_path / "newest"
    shutil.move(folder, newest)
    shutil.copytree(tmp_path / "backup", folder)
    with pytest.raises(LedgerError, match="older than its head"):
        members.peer("north", agreement)
    directory.close(agreement.run_id.hex(), "restored by mistake")  # then everything planned is charged
    assert members.total() == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=1e-9)
    other = members.directories["south"]
    other.head_file(agreement.run_id).unlink()
    with pytest.raises(LedgerError, match="is missing although the ledger was used"):
        members.peer("south", agreement)


def test_a_ledger_older_than_its_runs_is_refused_and_restored_by_charging_for_them(members):
    directory = members.directories["north"]
    ledger = directory.lifetime_ledger
    old = ledger.path.read_bytes()
    members.run(members.agree("first"))
    for file in (ledger.path, ledger.copy):  # both copies set back, the runs not
        file.write_bytes(old)
    with pytest.raises(LedgerError, match="older than its runs"):
        members.peer("north", members.agree("second"))
    directory.restore("after the fire")
    assert members.total() == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=1e-9)


def test_a_certificate_that_is_not_pinned_is_refused(members, tmp_path):
    agreement = members.agree("first")
    stranger = make_identity(tmp_path / "stranger", "south")  # north drafts with a south of its own making
    north = members.directories["north"]
    entries = [member_entry(each.certificate, f"{each.name}:1") for each in (north.identity, stranger)]
    false = write_agreement(tmp_path / "false.toml", draft("path:2", {}), entries)
    with pytest.raises(IdentityError, match="another certificate for south"):
        north.pinned_certificates.require(false, north.identity.fingerprint)
    sign_agreement(tmp_path / "false.toml", stranger)
    signed = sign_agreement(tmp_path / "false.toml", north.identity)
    with pytest.raises(IdentityError, match="another certificate for south"):
        members.peer("north", signed)
    assert north.lifetime_ledger.charges == []
    with pytest.raises(IdentityError, match="pinned with another certificate"):
        north.pinned_certificates.trust(tmp_path / "stranger" / CERTIFICATE, "a mail came")
    north.pinned_certificates.trust(
        tmp_path / "stranger" / CERTIFICATE, "a new key, by telephone", instead=True
    )
    north.pinned_certificates.require(false, north.identity.fingerprint)
    (north.folder / "addresses" / "south.pem").write_bytes(members.directories["south"].identity.certificate)
    with pytest.raises(IdentityError, match="not the one the lifetime ledger names"):
        north.pinned_certificates.require(agreement, north.identity.fingerprint)


def test_words_to_read_aloud_are_the_published_ones():
    """Table of the proquint paper: 63.84.220.193 and 63.118.7.35."""
    assert proquint("3f54dcc1" + "3f760723" + "00000000") == "gutih-tugad-gutuk-bisog-babab-babab"


def test_a_directory_is_found_by_name_identity_variable_or_usual_place(members, tmp_path, monkeypatch):
    north, south = members.directories.values()
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("SOTTOVOCE_HOME", raising=False)
    assert find_member_directory() is None
    assert find_member_directory(identity=north.identity_folder).folder == north.folder
    with pytest.raises(ConfigError, match="belongs to the member directory"):
        find_member_directory(south.folder, identity=north.identity_folder)
    monkeypatch.setenv("SOTTOVOCE_HOME", str(south.folder))
    assert find_member_directory().folder == south.folder
    assert find_member_directory(identity=north.identity_folder).folder == north.folder
    monkeypatch.delenv("SOTTOVOCE_HOME")
    shutil.copytree(north.folder, tmp_path / "user" / ".sottovoce")
    assert find_member_directory().name == "north"


def test_a_directory_open_to_others_or_with_its_copy_inside_is_refused(tmp_path):
    limit = [LifetimeBudget(1.0, DELTA, "user")]
    create = partial(MemberDirectory.create, tmp_path / "h", "north", population="p", budgets=limit)
    with pytest.raises(ConfigError, match="outside the member directory"):
        create(copy=tmp_path / "h" / "copy")
    directory = create(copy=tmp_path / "c")
    with pytest.raises(ConfigError, match="is a member directory already"):
        create(copy=tmp_path / "c")
    for path in directory.folder.rglob("*"):
        if path.name != CERTIFICATE:
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    directory.folder.chmod(0o755)
    with pytest.raises(LedgerError, match="open to others"):
        MemberDirectory(directory.folder)
