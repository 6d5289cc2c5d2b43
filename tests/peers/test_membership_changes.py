"""Members leave, move, get new keys or lose their disk; the run goes on, and what it cost is true."""

import asyncio
import math
import shutil

import numpy as np
import pytest
from tests.peers.conftest import Members, draft

from sottovoce.errors import BudgetExceeded, ConfigError, DataError, IdentityError, LedgerError, PeerError
from sottovoce.ledger.balance import LifetimeBudget
from sottovoce.ledger.run_ledger import STATE_KEY, read_ledger
from sottovoce.peers.agreement import read_agreement
from sottovoce.peers.identity import make_identity
from sottovoce.peers.member_data import Records
from sottovoce.peers.membership_changes import draft_membership_change, earlier_versions, model_digest
from sottovoce.privacy import gaussian_epsilon, gaussian_mu

Z, STEPS, DELTA = 20.0, 12, 1e-5
LEARNING = {"name": "consensus-sgd", "noise_multiplier": Z, "steps": STEPS, "learning_rate": 0.1}


class Versions(Members):
    """Members whose agreement goes from membership version to membership version."""

    def __init__(self, folder, connections, call, n=4, protocol="masked", epsilon=60.0, views=("local",)):
        rng, names = np.random.default_rng(0), [f"m{i}" for i in range(n)]
        super().__init__(
            folder,
            connections,
            names,
            [LifetimeBudget(epsilon, DELTA, "user", view) for view in views],
            lambda: Records(rng.standard_normal((6, 2)), rng.choice([-1.0, 1.0], 6)),
        )
        timing = {"ask_again": 0.2, "witness": 2}
        content = draft(f"complete:{n}", {**LEARNING, "protocol": protocol}, epsilon=epsilon, timing=timing)
        self.call, self.file = call, folder / "agreement.toml"
        self.write(self.file, content, [f"{name}.example:1" for name in names])
        self.previous, self.population = None, None

    @property
    def agreement(self):
        return read_agreement(self.file)

    def state(self, name, agreement=None):
        return super().state(name, agreement or self.agreement)

    def releases(self, name, agreement):
        return read_ledger(self.state(name, agreement))["saved"].releases

    def run(self, stop_at=None, options=None):
        """Run all members; stop everybody once somebody has done ``stop_at`` rounds. Return what came.

        ``options`` maps the name of a member to further options of its peer.
        """
        connections, peers = self.connections(), []

        def log(event):
            if stop_at is not None and event["event"] == "round" and event["at"] >= stop_at:
                for peer in peers:
                    peer.stop()

        for member in self.agreement.members:
            more = options(member.name) if options else {}
            population = self.population if member.name == "m0" else None
            peers.append(
                self.peer(member.name, log=log, transport=connections, population=population, **more)
            )

        async def together():
            return await asyncio.gather(*[peer.run() for peer in peers], return_exceptions=True)

        return asyncio.run(together())

    def peer(self, name, **options):
        """Start one member's peer, without running it."""
        own = {"previous": self.previous, "start": self.file.with_suffix(".npz")}
        return super().peer(name, self.agreement, **{"transport": self.connections(), **own, **options})

    def forecast(self, name, *previous):
        """What `peer agree` prints of the present membership version."""
        words = [word for file in previous for word in ("--previous", file)]
        folder = self.directories[name].folder
        return self.call("peer", "agree", self.file, "--directory", folder, *words, "--json").json

    def next(self, drafter="m0", **changes):
        """Go to the next membership version: drafted by one, read and signed by all who remain."""
        self.previous = self.agreement
        self.file = self.folder / f"version{self.previous.membership_version + 1}.toml"
        state = self.state(drafter, self.previous)
        draft_membership_change(self.file, self.previous, state, **changes)
        self.sign(self.file)

    def next_from(self, old, drafter="m0", membership_version=None, continues=None, **changes):
        """Draft a version of an earlier agreement; what it says of itself may be changed before signing."""
        self.file = self.folder / f"fork{len(list(self.folder.glob('fork*.toml')))}.toml"
        draft_membership_change(self.file, old, self.state(drafter, old), **changes)
        if continues is not None:
            text = self.file.read_text().replace(old.run_id.hex(), continues)
            self.file.write_text(
                text.replace("membership_version = 1", f"membership_version = {membership_version}")
            )
        self.sign(self.file)
        self.previous = old

    def local(self, name):
        [budget] = self.directories[name].lifetime_ledger.summary()[0]["budgets"]
        return budget["spent"]

    def rows(self, name):
        """All releases that this member directory's ledgers list, over all membership versions."""
        folders = (self.directories[name].folder / "runs").iterdir()
        return [release for folder in folders for release in read_ledger(folder)["saved"].releases]


@pytest.fixture
def members(tmp_path, memory_links, call):
    return lambda **options: Versions(tmp_path, memory_links, call, **options)


@pytest.fixture
def interrupted(members):
    """Three members whose run over a tree was stopped after six rounds."""
    group = members(n=3, protocol="tree")
    group.run(stop_at=6)
    return group


def cost(*lists):
    """What releases cost together, by hand."""
    squares = (r.draws * (r.sensitivity / r.noise_std) ** 2 for releases in lists for r in releases)
    return pytest.approx(gaussian_epsilon(math.sqrt(math.fsum(squares)), DELTA), rel=1e-9)


WHOLE = gaussian_epsilon(2 / Z * math.sqrt(STEPS), DELTA)  # a run of all steps, by the own noise


@pytest.mark.parametrize("protocol", ["masked", "tree"])
def test_a_run_goes_through_all_six(protocol, members):
    """Leave, move, new key, lost disk, renewed certificate, upgrade: one model, and true ledgers."""
    group = members(n=5 if protocol == "masked" else 4, protocol=protocol)
    last = group.names[-1]
    ends = group.run(stop_at=8)
    assert all(isinstance(end, PeerError) for end in ends)
    spent = group.local("m0")

    group.next(without=[last])
    agreed = group.agreement
    assert [member.name for member in agreed.members] == group.names[:-1]
    assert agreed.continues == group.previous.run_id.hex()
    n, was = len(agreed.members), len(group.names)
    raised = math.sqrt((was - 1) / (n - 1)) if protocol == "masked" else 1.0
    assert agreed.algorithm.noise_multiplier == pytest.approx(Z * raised)
    assert all(isinstance(end, PeerError) for end in group.run(stop_at=4))
    # the broken step at its old cost, its repeat at the new one
    for name in group.names[:-1]:
        assert group.directories[name].lifetime_ledger.runs[agreed.continues].status == "closed"
        assert not (group.state(name, group.previous) / STATE_KEY).exists()
        assert (group.state(name) / STATE_KEY).exists()
    planned = list(agreed.plan.releases(0))
    closed = group.directories["m0"].lifetime_ledger.runs[agreed.continues].releases
    assert group.local("m0") == cost(planned, closed)
    old = read_ledger(group.directories["m0"].folder / "runs" / agreed.continues)["saved"]
    assert sum(r.draws for r in closed) == len(old.releases)
    assert spent == pytest.approx(WHOLE, rel=1e-6)

    # moved, and a certificate renewed: another key
    group.keys["m1"] = make_identity(group.folder / "renewed" / "m1", "m1")
    shutil.copytree(
        group.folder / "renewed" / "m1", group.directories["m1"].identity_folder, dirs_exist_ok=True
    )
    group.next(moved={"m2": "elsewhere.example:2"}, certificates=[group.keys["m1"].certificate])
    assert group.agreement.members[2].address == "elsewhere.example:2"
    assert all(isinstance(end, PeerError) for end in group.run(stop_at=2))

    # m2 loses its disk: everything planned of that membership version is counted
    lost = group.agreement
    shutil.rmtree(group.state("m2"))
    group.next(moved={"m2": "new-disk.example:3"})
    ends = group.run()
    assert len({end.model.tobytes() for end in ends}) == 1
    assert all(end.statement["finished"] for end in ends)
    assert all(end.statement["compared"] for end in ends)
    by_name = {end.statement["member"]: end.statement for end in ends}
    assert (by_name["m0"]["version"], by_name["m0"]["membership_version"]) == (1, 3)
    assert by_name["m2"]["before"][-1]["ledger"].startswith("lost")
    assert by_name["m0"]["before"][-1]["ledger"] == "whole"
    assert [len(result["before"]) for result in by_name.values()] == [3] * len(by_name)

    for name in group.names[:-1]:
        planned = lost.plan.releases(2) if name == "m2" else ()
        assert group.local(name) == cost(group.rows(name), planned)
    if protocol == "tree":  # what the statement adds up is what the ledgers list
        assert by_name["m0"]["epsilon_all_versions"] == cost(group.rows("m0"))


def test_what_a_version_goes_on_from_is_signed(interrupted):
    group = interrupted
    group.next(moved={"m2": "elsewhere.example:2"})
    model = np.load(group.file.with_suffix(".npz"))["parameters"]
    assert group.agreement.start == model_digest(model)
    np.savez(group.file.with_suffix(".npz"), parameters=model + 1.0)
    for name in group.names:
        np.savez(group.state(name, group.previous) / "model.npz", parameters=model + 1)
    with pytest.raises(ConfigError, match="is not here"):
        group.run()


def test_the_old_version_cannot_be_gone_on_with(interrupted):
    group = interrupted
    first = group.file
    group.next(moved={"m2": "elsewhere.example:2"})
    group.run(stop_at=2)
    group.file, group.previous = first, None
    with pytest.raises(ConfigError, match="was closed"):
        group.run()


def test_a_new_key_must_be_pinned_and_everybody_signs(interrupted):
    group = interrupted
    group.pin = lambda agreement: None
    group.keys["m1"] = make_identity(group.folder / "renewed" / "m1", "m1")
    group.next(certificates=[group.keys["m1"].certificate])
    with pytest.raises(IdentityError, match="another certificate"):
        group.run()


def test_a_draft_changes_something_and_the_command_writes_what_is_signed(interrupted, call):
    group, out = interrupted, interrupted.folder / "next.toml"
    for changes, words in (({}, "changes something"), ({"without": ["nobody"]}, "not a member")):
        with pytest.raises(ConfigError, match=words):
            draft_membership_change(out, group.agreement, group.state("m1"), **changes)
    new = draft_membership_change(group.folder / "x.toml", group.agreement, group.state("m1"), without=["m0"])
    assert new.graph == "edges:0-1"
    command = ("peer", "membership", group.file, "--directory", group.directories["m0"].folder, "-o", out)
    answer = call(*command, "--moved", "m2=elsewhere.example:2", "--json")
    assert answer.code == 0
    assert answer.json["run_id"] == read_agreement(out).run_id.hex()
    assert call(*command, "--moved", "m2").code == 1


@pytest.mark.parametrize("protocol", ["masked", "tree"])
def test_what_is_forecast_before_signing_is_what_the_ledger_then_says(protocol, members):
    """Steps charged, the broken one too, and the rest at the new cost; not the whole old run."""
    group = members(n=4, protocol=protocol, views=("local", "network"))
    group.run(stop_at=9)
    whole = {row["view"]: row["total"] for row in group.forecast("m0")["lifetime"]}
    first = group.file
    group.next(without=["m3"])
    result = group.forecast("m0", first)
    releases = group.releases("m0", group.previous)
    assert 0 < len(releases) < STEPS
    planned = list(group.agreement.plan.releases(0))
    done = sum(release.draws for release in planned)
    assert len(releases) + done > STEPS  # the broken step is in both
    by_view = {row["view"]: row for row in result["lifetime"]}
    assert by_view["local"]["spent"] == cost(releases)
    assert by_view["local"]["total"] == cost(releases, planned)
    # against one member: each step that was made, whole, at the share a whole step shows
    share = (gaussian_mu(whole["network"], DELTA) / (2 / Z)) ** 2 / STEPS
    assert by_view["network"]["spent"] == pytest.approx(
        gaussian_epsilon(2 / Z * math.sqrt(share * len(releases)), DELTA), rel=1e-6
    )
    careless = {row["view"]: row["total"] for row in group.forecast("m0")["lifetime"]}
    assert any("counted in full" in remark for remark in group.forecast("m0")["remarks"])
    for view, row in by_view.items():
        assert row["spent"] < whole[view]
        assert row["total"] < careless[view]
    # who left may still collude with one who stays, about the steps before it left
    warned = [line for line in result["summary"]["assumptions"] if "over all membership versions" in line]
    assert len(warned) == (protocol == "masked")
    agreed = result["earlier"]
    assert agreed["total"] == pytest.approx(by_view["network" if protocol == "masked" else "local"]["total"])
    group.peer("m0").ledger.close()  # it starts: now the lifetime ledger says it
    [entry] = group.directories["m0"].lifetime_ledger.summary()
    for row in entry["budgets"]:
        assert row["spent"] == pytest.approx(by_view[row["view"]]["total"], rel=1e-12)


def test_a_run_that_still_runs_is_forecast_whole_and_cannot_be_continued_or_closed(interrupted):
    """Somebody starts the new version while the old peer is up: what that would still send is uncounted."""
    group = interrupted
    old, first = group.peer("m0"), group.file
    directory, run_id = group.directories["m0"], group.agreement.run_id.hex()
    group.next(moved={"m2": "elsewhere.example:2"})
    result = group.forecast("m0", first)
    assert result["lifetime"][0]["spent"] == pytest.approx(WHOLE)
    assert any("in use by another process" in remark for remark in result["remarks"])
    with pytest.raises(ConfigError, match="not at rest"):
        group.peer("m0")
    with pytest.raises(LedgerError, match="in use"):
        directory.close(run_id, "too early")
    assert directory.lifetime_ledger.runs[run_id].status == "started"
    old.ledger.close()
    # and one that was found just before it was closed does not get as far as sending
    group.peer("m0").ledger.close()
    with pytest.raises(ConfigError, match="was closed"):
        directory.lifetime_ledger.start(run_id)


def test_a_disk_lost_in_a_later_version_forgets_no_earlier_one(interrupted):
    group = interrupted
    first = group.agreement
    group.next(moved={"m2": "elsewhere.example:2"})
    group.run(stop_at=2)
    second = group.agreement
    shutil.rmtree(group.state("m2"))
    group.next(moved={"m2": "new-disk.example:3"})
    spent, planned = group.releases("m2", first), second.plan.releases(2)
    for previous in (second, [second, first]):
        peer = group.peer("m2", previous=previous)
        peer.ledger.close()
        assert [part["run_id"] for part in peer.before.parts] == [first.run_id.hex(), second.run_id.hex()]
        assert peer.before.spent(DELTA) == cost(spent, planned)
    # without a member directory nothing but the agreements can tell, so each of them is asked for
    with pytest.raises(ConfigError, match=f"{first.run_id.hex()[:16]}.*once for each membership version"):
        earlier_versions(second, group.agreement, "m2", member_directory=None)
    earlier = earlier_versions([first, second], group.agreement, "m2", member_directory=None)
    assert earlier.spent(DELTA) == cost(first.plan.releases(2), planned)


def test_a_version_that_was_signed_but_never_begun_hides_nothing(interrupted):
    group = interrupted
    first = group.agreement
    group.next(moved={"m2": "elsewhere.example:2"})
    middle = group.agreement
    changes = {"membership_version": 2, "continues": middle.run_id.hex()}
    group.next_from(first, moved={"m2": "further.example:2"}, **changes)
    with pytest.raises(ConfigError, match=first.run_id.hex()[:16]):
        earlier_versions(middle, group.agreement, "m0", member_directory=None)
    own = group.directories["m0"]
    earlier = earlier_versions([middle, first], group.agreement, "m0", member_directory=own)
    assert earlier.spent(DELTA) == cost(group.releases("m0", first))
    assert [closing.run_id for closing in earlier.closings] == [first.run_id.hex()]


def test_two_versions_of_one_run_are_both_counted(interrupted):
    """One was begun and given up for another that continues the same run: both have cost something."""
    group = interrupted
    first = group.agreement
    group.next(moved={"m2": "elsewhere.example:2"})
    given_up = group.agreement
    group.run(stop_at=2)
    group.next_from(first, moved={"m2": "further.example:2"})
    assert group.agreement.continues == first.run_id.hex() != given_up.run_id.hex()
    earlier = earlier_versions(first, group.agreement, "m0", member_directory=group.directories["m0"])
    assert earlier.spent(DELTA) == cost(group.releases("m0", first), given_up.plan.releases(0))


def test_a_version_stays_with_its_people_and_its_records(members):
    group = members(n=3, protocol="tree")
    directory = group.directories["m0"]
    directory.lifetime_ledger.open_population("staff", [LifetimeBudget(60.0, DELTA, "user", "local")], "vote")
    group.population = "staff"
    group.run(stop_at=6)
    assert directory.lifetime_ledger.runs[group.agreement.run_id.hex()].population == "staff"
    group.next(moved={"m2": "elsewhere.example:2"})
    with pytest.raises(ConfigError, match="stays with the population"):
        group.peer("m0", population="patients")
    others = group.records["m0"]._replace(X=group.records["m0"].X + 1)
    records, group.records["m0"] = group.records["m0"], others
    with pytest.raises(DataError, match="records differ"):
        group.peer("m0")
    before = directory.lifetime_ledger.runs[group.agreement.continues]
    assert before.status == "started"  # refused: nothing was closed
    group.records["m0"] = records
    group.peer("m0").ledger.close()  # no population named: not the first one, but the run's
    assert directory.lifetime_ledger.runs[group.agreement.run_id.hex()].population == "staff"


def test_a_version_beyond_the_agreed_budget_is_refused_and_leaves_the_old_run_as_it_was(members):
    group = members(n=3, protocol="tree", epsilon=WHOLE * 1.01)
    group.run(stop_at=6)
    first, file = group.agreement, group.file
    counts = {name: len(group.rows(name)) for name in group.names}
    furthest = max(counts, key=counts.get)  # a step ahead of the others, so its broken step counts twice
    group.next(drafter=min(counts, key=counts.get), moved={"m2": "elsewhere.example:2"})
    assert counts[furthest] + group.agreement.plan.steps > STEPS
    with pytest.raises(BudgetExceeded, match="membership versions before"):
        group.peer(furthest)
    assert group.directories[furthest].lifetime_ledger.runs[first.run_id.hex()].status == "started"
    group.file, group.previous = file, None
    group.peer(furthest).ledger.close()  # it can still go on


def test_without_a_member_directory_the_previous_run_is_named_and_ended(members, tmp_path):
    group = members(n=3, protocol="tree")
    places = {name: tmp_path / f"state-{name}" for name in group.names}

    def run(folders, stop_at, before=None):
        before = before or {}
        own = {name: {"state": folders[name], "previous_state": before.get(name)} for name in group.names}
        return group.run(stop_at, lambda name: {**own[name], "member_directory": None})

    run(places, 6)
    first = group.agreement
    file = group.folder / "next.toml"
    draft_membership_change(file, first, places["m0"], moved={"m2": "elsewhere.example:2"})
    old_file, group.file = group.file, file
    group.sign(group.file)
    after = {name: tmp_path / f"after-{name}" for name in group.names}
    with pytest.raises(ConfigError, match="nothing here says what it cost"):
        run(after, 2)
    group.previous = first
    ends = run(after, 99, places)
    assert all(end.statement["before"][0]["ledger"] == "whole" for end in ends)
    group.file, group.previous = old_file, None
    with pytest.raises(LedgerError, match=f"continues as {read_agreement(file).run_id.hex()[:16]}"):
        run(places, 99)
