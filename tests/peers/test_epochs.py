"""Epochs: members leave, move, get new keys or lose their disk; the run goes on, and what it cost is true."""

import asyncio
import json
import math
import shutil

import numpy as np
import pytest

from sottovoce.cli.main import main
from sottovoce.errors import BudgetExceeded, ConfigError, IdentityError, PeerError
from sottovoce.peers.agreement import member_entry, read_agreement, sign_agreement, write_agreement
from sottovoce.peers.book import Lifetime
from sottovoce.peers.epochs import draft_epoch, model_digest
from sottovoce.peers.home import Home
from sottovoce.peers.identity import make_identity
from sottovoce.peers.jobs import Job
from sottovoce.peers.ledger import read_ledger
from sottovoce.peers.records import Records
from sottovoce.peers.runtime import Peer
from sottovoce.privacy import gaussian_epsilon

Z, STEPS, DELTA = 20.0, 12, 1e-5
LEARNING = {"name": "consensus-sgd", "adjacency": "user", "clip": 1.0, "noise_multiplier": Z, "steps": STEPS,
            "learning_rate": 0.1}  # fmt: skip


class Members:
    """Organisations with homes, an agreement that goes from epoch to epoch, and links in memory."""

    def __init__(self, folder, links, n=4, protocol="masked", epsilon=60.0):
        self.folder, self.links = folder, links
        self.names = [f"m{i}" for i in range(n)]
        limit = Lifetime(epsilon, DELTA, "user", "local")
        self.homes = {
            name: Home.create(
                folder / name, name, population="p", budgets=[limit], copy=folder / f"{name}-copy"
            )
            for name in self.names
        }
        self.keys = {name: home.identity for name, home in self.homes.items()}
        rng = np.random.default_rng(0)
        self.records = {
            name: Records(rng.standard_normal((6, 2)), rng.choice([-1.0, 1.0], 6)) for name in self.names
        }
        draft = {
            "version": 2, "title": "a test", "graph": f"complete:{n}",
            "algorithm": {**LEARNING, "protocol": protocol}, "model": {"kind": "logistic", "parameters": 2},
            "budget": {"epsilon": epsilon, "delta": DELTA}, "timing": {"ask_again": 0.2, "witness": 2},
        }  # fmt: skip
        self.file = folder / "agreement.toml"
        entries = [member_entry(self.keys[v].certificate, f"{v}.example:1") for v in self.names]
        write_agreement(self.file, draft, entries)
        self.pin()
        self.sign()
        self.previous = None

    def pin(self):
        for home in self.homes.values():
            for other in self.agreement.members:
                (self.folder / "pem").write_text(other.certificate)
                home.addresses.trust(self.folder / "pem", "read aloud", instead=True)

    def sign(self):
        for member in self.agreement.members:
            name = member.name
            sign_agreement(self.file, self.keys[name], secrets=self.homes[name].identity_folder)

    @property
    def agreement(self):
        return read_agreement(self.file)

    def state(self, name):
        return self.homes[name].folder / "runs" / self.agreement.run.hex()

    def run(self, stop_at=None):
        """Run all members; stop everybody once somebody has done ``stop_at`` rounds. Return what came."""
        links, peers = self.links(), []

        def log(event):
            if stop_at is not None and event["event"] == "round" and event["at"] >= stop_at:
                for peer in peers:
                    peer.stop()

        for member in self.agreement.members:
            name = member.name
            peers.append(
                Peer(self.agreement, self.keys[name], self.records[name], None, home=self.homes[name],
                     log=log, transport=links, previous=self.previous, start=self.file.with_suffix(".npz"))
            )  # fmt: skip

        async def together():
            return await asyncio.gather(*[peer.run() for peer in peers], return_exceptions=True)

        return asyncio.run(together())

    def next(self, drafter="m0", **changes):
        """Go to the next epoch: drafted by one, read and signed by all who remain."""
        old, self.previous = self.file, self.agreement
        self.file = self.folder / f"epoch{self.previous.epoch + 1}.toml"
        state = self.homes[drafter].folder / "runs" / self.previous.run.hex()
        draft_epoch(self.file, read_agreement(old), state, **changes)
        self.pin()
        self.sign()

    def local(self, name):
        [budget] = self.homes[name].book.summary()[0]["budgets"]
        return budget["spent"]

    def rows(self, name):
        """All releases that this home's ledgers list, over all epochs."""
        folders = (self.homes[name].folder / "runs").iterdir()
        return [release for folder in folders for release in read_ledger(folder)["saved"].releases]


@pytest.fixture
def members(tmp_path, memory_links):
    return lambda **options: Members(tmp_path, memory_links, **options)


def mu(releases):
    return math.sqrt(math.fsum(r.draws * (r.sensitivity / r.noise_std) ** 2 for r in releases))


@pytest.mark.parametrize("protocol", ["masked", "tree"])
def test_a_run_goes_through_all_six(protocol, members):
    """Leave, move, new key, lost disk, renewed certificate, upgrade: one model at the end, and true books."""
    group = members(n=5 if protocol == "masked" else 4, protocol=protocol)
    last = group.names[-1]
    ends = group.run(stop_at=8)
    assert all(isinstance(end, PeerError) for end in ends)
    spent = group.local("m0")

    group.next(without=[last])
    agreed = group.agreement
    assert [member.name for member in agreed.members] == group.names[:-1]
    assert agreed.continues == group.previous.run.hex()
    n, was = len(agreed.members), len(group.names)
    raised = math.sqrt((was - 1) / (n - 1)) if protocol == "masked" else 1.0
    assert agreed.algorithm.noise_multiplier == pytest.approx(Z * raised)
    assert all(isinstance(end, PeerError) for end in group.run(stop_at=4))
    # the broken step at its old price, its repeat at the new one
    for name in group.names[:-1]:
        assert group.homes[name].book.runs[agreed.continues].status == "closed"
    planned = list(Job(agreed).releases(0))
    closed = group.homes["m0"].book.runs[agreed.continues].releases
    assert group.local("m0") == pytest.approx(gaussian_epsilon(mu([*planned, *closed]), DELTA), rel=1e-6)
    old = read_ledger(group.homes["m0"].folder / "runs" / agreed.continues)["saved"]
    assert sum(r.draws for r in closed) == len(old.releases)
    assert spent == pytest.approx(gaussian_epsilon(2 / Z * math.sqrt(STEPS), DELTA), rel=1e-6)

    # moved, and a certificate renewed: another key
    group.keys["m1"] = make_identity(group.folder / "renewed" / "m1", "m1")
    shutil.copytree(group.folder / "renewed" / "m1", group.homes["m1"].identity_folder, dirs_exist_ok=True)
    group.next(moved={"m2": "elsewhere.example:2"}, certificates=[group.keys["m1"].certificate])
    assert group.agreement.members[2].address == "elsewhere.example:2"
    assert all(isinstance(end, PeerError) for end in group.run(stop_at=2))

    # m2 loses its disk: everything planned of that epoch is counted
    lost = group.agreement
    shutil.rmtree(group.state("m2"))
    group.next(moved={"m2": "new-disk.example:3"})
    ends = group.run()
    assert len({end.model.tobytes() for end in ends}) == 1
    assert all(end.statement["finished"] for end in ends)
    assert all(end.statement["compared"] for end in ends)
    by_name = {end.statement["member"]: end.statement for end in ends}
    assert by_name["m2"]["before"][-1]["ledger"].startswith("lost")
    assert by_name["m0"]["before"][-1]["ledger"] == "whole"
    assert len(by_name["m0"]["before"]) == 3

    for name in group.names[:-1]:
        left = mu(group.rows(name))
        if name == "m2":
            planned = mu(Job(lost).releases(2))
            assert group.local(name) == pytest.approx(
                gaussian_epsilon(math.hypot(left, planned), DELTA), rel=1e-6
            )
        else:
            assert group.local(name) == pytest.approx(gaussian_epsilon(left, DELTA), rel=1e-6)
    if protocol == "tree":  # what the statement adds up is what the ledgers list
        total = gaussian_epsilon(mu(group.rows("m0")), DELTA)
        assert by_name["m0"]["epsilon_all_epochs"] == pytest.approx(total, rel=1e-6)


def test_an_epoch_beyond_the_agreed_budget_is_refused(members):
    price = gaussian_epsilon(2 / Z * math.sqrt(STEPS), DELTA)
    group = members(n=3, protocol="tree", epsilon=price * 1.01)
    group.run(stop_at=STEPS)
    group.next(moved={"m2": "elsewhere.example:2"})
    with pytest.raises(BudgetExceeded, match="epochs before"):
        group.run()


def test_what_an_epoch_goes_on_from_is_signed(members, tmp_path):
    group = members(n=3, protocol="tree")
    group.run(stop_at=6)
    group.next(moved={"m2": "elsewhere.example:2"})
    model = np.load(group.file.with_suffix(".npz"))["parameters"]
    assert group.agreement.start == model_digest(model)
    np.savez(group.file.with_suffix(".npz"), parameters=model + 1.0)
    for name in group.names:
        np.savez(
            group.homes[name].folder / "runs" / group.previous.run.hex() / "model.npz", parameters=model + 1
        )
    with pytest.raises(ConfigError, match="is not here"):
        group.run()


def test_the_old_epoch_cannot_be_gone_on_with(members):
    group = members(n=3, protocol="tree")
    group.run(stop_at=6)
    first = group.file
    group.next(moved={"m2": "elsewhere.example:2"})
    group.run(stop_at=2)
    group.file, group.previous = first, None
    with pytest.raises(ConfigError, match="was closed"):
        group.run()


def test_a_new_key_must_be_pinned_and_everybody_signs(members):
    group = members(n=3, protocol="tree")
    group.run(stop_at=6)
    group.pin = lambda: None
    group.keys["m1"] = make_identity(group.folder / "renewed" / "m1", "m1")
    group.next(certificates=[group.keys["m1"].certificate])
    with pytest.raises(IdentityError, match="another certificate"):
        group.run()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "changes something"),
        ({"without": ["nobody"]}, "not a member"),
        ({"without": ["m0"]}, None),
    ],
)
def test_drafts(changes, words, members):
    group = members(n=3, protocol="tree")
    group.run(stop_at=6)
    if words is None:
        draft_epoch(group.folder / "x.toml", group.agreement, group.state("m1"), **changes)
        assert read_agreement(group.folder / "x.toml").graph == "edges:0-1"
        return
    with pytest.raises(ConfigError, match=words):
        draft_epoch(group.folder / "x.toml", group.agreement, group.state("m0"), **changes)


def test_a_statement_says_its_version(members):
    group = members(n=3, protocol="tree")
    group.run()
    said = json.loads((group.state("m0") / "statement.json").read_text())
    assert (said["version"], said["epoch"], said["before"]) == (2, 0, [])
    assert said["compared"] == ["m1", "m2"]


def test_the_command_shows_the_price_and_writes_what_is_signed(members, capsys):
    group = members(n=3, protocol="tree")
    group.run(stop_at=6)
    out = group.folder / "next.toml"
    with pytest.raises(SystemExit) as stopped:
        main(["peer", "epoch", str(group.file), "--home", str(group.homes["m0"].folder), "--moved",
              "m2=elsewhere.example:2", "-o", str(out), "--json"])  # fmt: skip
    assert not stopped.value.code
    said = json.loads(capsys.readouterr().out)
    assert said["run"] == read_agreement(out).run.hex()
    spent = mu(read_ledger(group.state("m0"))["saved"].releases)
    assert said["spent"] == pytest.approx(gaussian_epsilon(spent, DELTA), rel=1e-6)
    total = math.hypot(spent, 2 / Z * math.sqrt(said["steps"]))
    assert said["members"][0]["total"] == pytest.approx(gaussian_epsilon(total, DELTA), rel=1e-6)
    with pytest.raises(SystemExit) as stopped:
        main(["peer", "epoch", str(group.file), "--home", str(group.homes["m0"].folder), "--moved", "m2",
              "-o", str(out)])  # fmt: skip
    assert stopped.value.code == 1
