"""A home: runs begin once, go on in their own folder with their own records, and are charged for good."""

import asyncio
import hashlib
import json
import math
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sottovoce.errors import (
    BudgetExceeded,
    ConfigError,
    DataError,
    IdentityError,
    LedgerError,
    SottovoceError,
)
from sottovoce.peers import book as book_module
from sottovoce.peers import home as home_module
from sottovoce.peers import ledger as ledger_module
from sottovoce.peers import trainings as trainings_module
from sottovoce.peers.addresses import spoken
from sottovoce.peers.agreement import (
    member_entry,
    parse_agreement,
    read_agreement,
    sign_agreement,
    write_agreement,
)
from sottovoce.peers.book import Book, Charge, Lifetime
from sottovoce.peers.core import Entry
from sottovoce.peers.frames import Wire
from sottovoce.peers.home import Home, find_home
from sottovoce.peers.identity import CERTIFICATE, make_identity
from sottovoce.peers.ledger import ANCHOR, SqliteLedger
from sottovoce.peers.records import Records
from sottovoce.peers.runtime import Peer
from sottovoce.peers.status import read_status
from sottovoce.peers.trainings import MARK, _step, charge_training
from sottovoce.privacy import gaussian_epsilon, gaussian_mu
from sottovoce.privacy.releases import Release

DELTA = 1e-5
NAMES = ("north", "south")


class Members:
    """Organisations with homes, who trust each other and agree on one run after the other."""

    def __init__(self, folder, links, names=NAMES, view="local"):
        self.folder, self.links = folder, links
        limit = Lifetime(6.0, DELTA, "user", view)
        self.homes = [
            Home.create(
                folder / name, name, population="patients", budgets=[limit], copy=folder / f"c-{name}"
            )
            for name in names
        ]
        for home in self.homes:
            for other in self.homes:
                if other is not home:
                    home.addresses.trust(other.identity_folder / CERTIFICATE, "read aloud")
        rng = np.random.default_rng(1)
        self.records = [Records(rng.standard_normal((5, 2)), np.zeros(0)) for _ in names]

    def agree(self, title, noise=2.0, protocol="gossip:3", ports=(4400, 4401, 4402)):
        """Averaging of two numbers: one release with sensitivity 2 clips, so mu = 2 / noise."""
        algorithm = {"name": "averaging", "protocol": protocol, "adjacency": "user", "clip": 1.0}
        draft = {
            "version": 1,
            "title": title,
            "graph": f"path:{len(self.homes)}",
            "algorithm": {**algorithm, "noise_multiplier": noise},
            "model": {"kind": "mean", "parameters": 2},
            "budget": {"epsilon": 50.0, "delta": DELTA},
        }
        file = self.folder / f"{title}.toml"
        entries = [
            member_entry(home.identity.certificate, f"127.0.0.1:{ports[i]}")
            for i, home in enumerate(self.homes)
        ]
        write_agreement(file, draft, entries)
        for home in self.homes:
            sign_agreement(file, home.identity, secrets=home.identity_folder)
        return read_agreement(file)

    def peer(self, i, agreement, *, records=None, state=None, **options):
        home = Home(self.homes[i].folder)
        records = self.records[i] if records is None else records
        return Peer(agreement, home.identity, records, state, home=home, transport=self.links, **options)

    def run(self, agreement, **options):
        async def together():
            peers = [self.peer(i, agreement, **options) for i in range(len(self.homes))]
            return await asyncio.gather(*[peer.run() for peer in peers])

        return asyncio.run(together())

    def total(self, i=0):
        return self.homes[i].book.summary()[0]["budgets"][0]["total"]


@pytest.fixture
def members(tmp_path, memory_links):
    return Members(tmp_path, memory_links())


def test_runs_on_one_population_add_up_and_the_third_is_refused_before_anything_is_sent(members):
    """mu = 1 each: 4.377, then sqrt(2), and the files are re-ordered between the runs."""
    home = members.homes[0]
    home.book.set_budget(None, Lifetime(7.0, DELTA, "user", "local"), "a vote")
    members.homes[1].book.set_budget(None, Lifetime(9.0, DELTA, "user", "local"), "a vote")
    members.run(members.agree("first"))
    assert members.total() == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=1e-9)
    members.records = [Records(each.X[::-1].copy(), each.y) for each in members.records]
    members.run(members.agree("second"))
    assert members.total() == pytest.approx(gaussian_epsilon(math.sqrt(2), DELTA), rel=1e-9)
    third = members.agree("third")
    before = len(members.links.carried)
    with pytest.raises(BudgetExceeded, match=r"together 8\.385 of epsilon 7"):
        members.peer(0, third)
    assert len(members.links.carried) == before
    assert [each.status for each in home.book.charges] == ["ended", "ended"]
    assert not (home.folder / "runs" / third.run.hex()).exists()


def test_a_known_run_goes_on_in_its_own_folder_whatever_state_is_asked_for(members, tmp_path):
    agreement, events = members.agree("first"), []
    models = [outcome.model for outcome in members.run(agreement)]
    again = members.run(agreement, state=tmp_path / "elsewhere", log=events.append)
    assert [outcome.model.tolist() for outcome in again] == [model.tolist() for model in models]
    assert not (tmp_path / "elsewhere").exists()
    assert {event["state"] for event in events if event["event"] == "known"} == {
        str(home.folder / "runs" / agreement.run.hex()) for home in members.homes
    }
    assert len(members.homes[0].book.charges) == 1
    status = read_status(members.homes[0].folder / "runs" / agreement.run.hex())
    assert status["population"] == "patients"
    assert status["finished"]


def test_a_masked_run_is_charged_at_what_a_member_can_see(tmp_path, memory_links):
    """Three members, noise of 2 clips each: one sees a sum with the noise of two, mu = 1 / sqrt(2)."""
    members = Members(tmp_path, memory_links(), ("north", "south", "east"), view="network")
    home = members.homes[0]
    home.book.set_budget(None, Lifetime(9.0, DELTA, "user", "local"), "a vote")
    agreement = members.agree("masked", protocol="masked")
    assert agreement.session != agreement.run
    (key,) = set(home.identity_folder.iterdir()) - {
        home.identity_folder / n for n in ("key.pem", CERTIFICATE)
    }
    kept = key.read_bytes()
    key.unlink()
    with pytest.raises(ConfigError, match="mask key"):
        members.peer(0, agreement)
    assert home.book.charges == []  # it could not begin, so it costs nothing
    key.write_bytes(kept)
    key.chmod(0o600)
    members.run(agreement)
    totals = {row["view"]: row["total"] for row in home.book.summary()[0]["budgets"]}
    assert totals["network"] == pytest.approx(gaussian_epsilon(1 / math.sqrt(2), DELTA), rel=1e-6)
    assert totals["local"] == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=1e-9)
    members.run(agreement)
    assert len(home.book.charges) == 1


def test_a_run_whose_folder_was_deleted_is_never_repeated(members):
    agreement = members.agree("first")
    members.run(agreement)
    shutil.rmtree(members.homes[0].folder / "runs" / agreement.run.hex())
    with pytest.raises(LedgerError, match="never repeated"):
        members.peer(0, agreement)
    members.homes[0].close(agreement.run.hex(), "the disk died")
    assert members.total() == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=1e-9)
    with pytest.raises(ConfigError, match="closed"):
        members.peer(0, agreement)


def test_other_records_after_a_restart_are_noticed_and_open_no_new_budget(members):
    agreement = members.agree("first")
    members.peer(0, agreement).ledger.close()
    X = members.records[0].X
    for other in (X + 1e-12, X[::-1].copy(), X[:4], X.astype(np.float32)):
        with pytest.raises(DataError, match="records differ"):
            members.peer(0, agreement, records=Records(other, np.zeros(0)))
    members.peer(0, agreement, records=Records(X[:4], np.zeros(0)), new_records="one left").ledger.close()
    assert [row["why"] for row in members.homes[0].book.rows() if row["act"] == "records"] == ["one left"]
    assert len(members.homes[0].book.charges) == 1


def test_the_digest_of_records_is_keyed_by_the_home(members):
    one, two = (home.digest(members.records[0]) for home in members.homes)
    assert one != two
    key = members.homes[0].folder / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    key.chmod(0o644)
    with pytest.raises(IdentityError, match="only its owner"):
        members.homes[0].digest(members.records[0])
    key.unlink()
    with pytest.raises(IdentityError, match="cannot be read"):
        members.homes[0].digest(members.records[0])


def test_a_run_folder_from_a_backup_is_noticed_and_so_is_a_lost_witness(members, tmp_path):
    agreement = members.agree("first")
    home = members.homes[0]
    folder = home.folder / "runs" / agreement.run.hex()
    members.peer(0, agreement).ledger.close()
    shutil.copytree(folder, tmp_path / "backup")  # anchor included
    members.run(agreement)
    kept = tmp_path / "newest"
    shutil.move(folder, kept)
    shutil.copytree(tmp_path / "backup", folder)
    with pytest.raises(LedgerError, match="older than its anchor"):
        members.peer(0, agreement)
    home.close(agreement.run.hex(), "restored by mistake")  # then everything planned is charged
    assert members.total() == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=1e-9)
    other = members.homes[1]
    other.witness(agreement.run).unlink()
    with pytest.raises(LedgerError, match="is missing although the ledger was used"):
        members.peer(1, agreement)


def test_an_emptied_or_deleted_anchor_is_refused(members):
    agreement = members.agree("first")
    members.run(agreement)
    anchor = members.homes[0].folder / "runs" / agreement.run.hex() / ANCHOR
    for damage in (lambda: anchor.write_bytes(b""), anchor.unlink):
        damage()
        with pytest.raises(LedgerError, match="is missing although the ledger was used"):
            members.peer(0, agreement)


def test_a_book_older_than_its_runs_is_refused_and_restored_by_charging_for_them(members):
    home = members.homes[0]
    old = home.book.path.read_bytes()
    members.run(members.agree("first"))
    for file in (home.book.path, home.book.copy):  # both copies set back, the runs not
        file.write_bytes(old)
    with pytest.raises(LedgerError, match="older than its runs"):
        members.peer(0, members.agree("second"))
    home.restore("after the fire")
    assert members.total() == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=1e-9)


def test_what_the_printed_assumption_excludes(members, tmp_path):
    """A snapshot of the whole machine sets home and copy back together: this home alone cannot know it."""
    home = members.homes[0]
    for name in ("north", "c-north"):
        shutil.copytree(tmp_path / name, tmp_path / "snapshot" / name)
    members.run(members.agree("first"))
    for name in ("north", "c-north"):
        shutil.rmtree(tmp_path / name)
        shutil.copytree(tmp_path / "snapshot" / name, tmp_path / name)
    assert members.total() == 0.0
    assert any("set back together" in sentence for sentence in home_module.ASSUMPTIONS)
    assert home.book.charges == []


def test_a_certificate_that_is_not_pinned_is_refused(members, tmp_path):
    agreement = members.agree("first")
    stranger = make_identity(tmp_path / "stranger", "south")  # north drafts with a south of its own making
    north = members.homes[0]
    entries = [
        member_entry(north.identity.certificate, "127.0.0.1:4400"),
        member_entry(stranger.certificate, "127.0.0.1:4401"),
    ]
    draft = {key: value for key, value in _toml(members.folder / "first.toml").items()
             if key not in ("members", "signatures")}  # fmt: skip
    false = write_agreement(tmp_path / "false.toml", draft, entries)
    with pytest.raises(IdentityError, match="another certificate for south"):
        north.addresses.require(false, north.identity.fingerprint)
    sign_agreement(tmp_path / "false.toml", stranger)
    signed = sign_agreement(tmp_path / "false.toml", north.identity)
    with pytest.raises(IdentityError, match="another certificate for south"):
        members.peer(0, signed)
    assert north.book.charges == []
    with pytest.raises(IdentityError, match="pinned with another certificate"):
        north.addresses.trust(tmp_path / "stranger" / CERTIFICATE, "a mail came")
    north.addresses.trust(tmp_path / "stranger" / CERTIFICATE, "a new key, by telephone", instead=True)
    north.addresses.require(false, north.identity.fingerprint)
    (north.folder / "addresses" / "south.pem").write_bytes(members.homes[1].identity.certificate)
    with pytest.raises(IdentityError, match="not the one the book names"):
        north.addresses.require(agreement, north.identity.fingerprint)


def _toml(path):
    import tomllib

    assert parse_agreement(path.read_bytes(), str(path))
    return tomllib.loads(path.read_text())


def test_words_to_read_aloud_are_the_published_ones():
    """Table of the proquint paper: 63.84.220.193 and 63.118.7.35."""
    assert spoken("3f54dcc1" + "3f760723" + "00000000") == "gutih-tugad-gutuk-bisog-babab-babab"


def test_a_home_is_found_by_name_around_its_identity_by_variable_or_in_its_usual_place(
    members, tmp_path, monkeypatch
):
    north, south = members.homes
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("SOTTOVOCE_HOME", raising=False)
    assert find_home() is None
    assert find_home(identity=north.identity_folder).folder == north.folder
    with pytest.raises(ConfigError, match="belongs to the home"):
        find_home(south.folder, identity=north.identity_folder)
    monkeypatch.setenv("SOTTOVOCE_HOME", str(south.folder))
    assert find_home().folder == south.folder
    assert find_home(identity=north.identity_folder).folder == north.folder
    monkeypatch.delenv("SOTTOVOCE_HOME")
    shutil.copytree(north.folder, tmp_path / "user" / ".sottovoce")
    assert find_home().name == "north"


def test_a_home_open_to_others_or_with_its_copy_inside_is_refused(tmp_path):
    limit = [Lifetime(1.0, DELTA, "user")]
    with pytest.raises(ConfigError, match="outside the home"):
        Home.create(tmp_path / "h", "north", population="p", budgets=limit, copy=tmp_path / "h" / "copy")
    home = Home.create(tmp_path / "h", "north", population="p", budgets=limit, copy=tmp_path / "c")
    with pytest.raises(ConfigError, match="is a home already"):
        Home.create(tmp_path / "h", "north", population="p", budgets=limit, copy=tmp_path / "c")
    for path in home.folder.rglob("*"):
        if path.name != CERTIFICATE:
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    home.folder.chmod(0o755)
    with pytest.raises(LedgerError, match="open to others"):
        Home(home.folder)


def test_a_killed_process_goes_on_in_its_home_and_is_charged_once(tmp_path, free_ports):
    """Real processes: kill -9 in the middle, another --state afterwards, one charge, one model."""
    members = Members(tmp_path, None)
    agreement = members.agree("first", noise=6.0, protocol="gossip:300", ports=free_ports(2))

    def start(i, *more):
        np.savez(tmp_path / f"{i}.npz", X=members.records[i].X)
        words = [sys.executable, "-m", "sottovoce.cli.main", "peer", "run", tmp_path / "first.toml", "--data",
                 tmp_path / f"{i}.npz", "--home", members.homes[i].folder, "--json", *more]  # fmt: skip
        source = str(Path(home_module.__file__).parents[2])
        environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(list(map(str, words)), env=environment, stdout=subprocess.PIPE, text=True)

    folder = members.homes[0].folder / "runs" / agreement.run.hex()
    processes = [start(0), start(1)]
    try:
        for line in processes[0].stdout:
            if json.loads(line).get("at", 0) >= 20:
                break
        processes[0].kill()
        processes[0].communicate()
        assert not read_status(folder)["finished"]
        assert [each.status for each in members.homes[0].book.charges] == ["begun"]
        processes[0] = start(0, "--state", tmp_path / "elsewhere")
        ends = [json.loads(each.communicate(timeout=120)[0].splitlines()[-1]) for each in processes]
    finally:
        for each in processes:
            each.kill()
    assert [each["event"] for each in ends] == ["done", "done"]
    assert ends[0]["model"] == str(folder / "model.npz")
    assert not (tmp_path / "elsewhere").exists()
    for i in range(2):
        (known,) = members.homes[i].book.charges
        assert known.status == "ended"
        assert members.total(i) == pytest.approx(gaussian_epsilon(1 / 3, DELTA), rel=1e-9)


# ---- histories -----------------------------------------------------------------------------------------


class Crash(BaseException):
    """The power fails here."""


class History:
    """Runs, crashes at any write, restored backups, closed runs and trainings, in one home, by chance.

    What was really sent is kept by the test alone; what the book prints may never be below it.
    """

    STEPS = 4

    def __init__(self, seed, folder, monkeypatch):
        self.rng = np.random.default_rng(seed)
        self.crashes = seed % 2 == 0
        self.folder = folder
        self.epsilon = 12.0
        limit = Lifetime(self.epsilon, DELTA, "user", "local")
        self.home = Home.create(folder / "h", "north", population="p", budgets=[limit], copy=folder / "c")
        self.sent = []  # sensitivity over noise of everything that left, drawn afresh each time
        self.unfinished = set()  # trainings that are charged and have not handed over their result
        self.rows = Counter()  # how many of them by each run
        self.backups, self.violations, self.fuse = [], [], None
        self.loose = (
            False  # whether something was charged that may not have left: then only "not below" holds
        )
        for module, name in ((book_module, "write_whole"), (ledger_module, "_mark_anchor")):
            monkeypatch.setattr(module, name, self._fused(getattr(module, name)))
        real = SqliteLedger.commit
        monkeypatch.setattr(SqliteLedger, "commit", self._fused(real))

    def _fused(self, real):
        def call(*args, **options):
            self._burn()
            result = real(*args, **options)
            self._burn()
            return result

        return call

    def _burn(self):
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.fuse = None
                raise Crash

    def plan(self, number):
        release = Release(0, 0, sensitivity=1.0, noise_std=2.0 + number % 3, steps=self.STEPS)
        return Charge("", f"run {number}", (release,), run=hashlib.sha256(bytes([number])).hexdigest())

    def records(self):
        return Records(np.zeros((2, 1)), np.zeros(0))

    def go_on(self, number):
        """One life of a peer process: some rounds, perhaps to the end."""
        new = self.plan(number)
        state = [None, self.folder / f"elsewhere{number}"][int(self.rng.integers(2))]
        ledger = Home(self.home.folder).open_run(new, self.records(), node=0, state=state)
        try:
            wire = Wire(ledger.run, 2, self.STEPS, 1, "float64")
            saved = ledger.load()
            for _ in range(int(self.rng.integers(1, 4))):
                at = len(saved.sent) if saved.sent else 0
                if at >= self.STEPS:
                    self.home.book.end(new.run, draws=self.STEPS, head=ledger.head.hex())
                    return
                release = new.releases[0].at(at)
                frame = wire.row(self.rng.standard_normal(1), sender=0, round=at)
                ledger.commit(Entry(at, (release,), frame, b"state", ()))
                saved.sent[at] = frame
                self.sent.append(release.sensitivity / release.noise_std)
                self.rows[new.run] += 1
        finally:
            ledger.close()

    def train(self):
        noise = 3.0
        release = Release(0, 0, sensitivity=1.0, noise_std=noise)
        book_module.charge(Home(self.home.folder), None, [release], "a training")
        self.sent.append(1 / noise)

    def fit(self):
        """A training of four steps with a checkpoint after each; its result leaves when all are done."""
        folder = self.folder / f"elsewhere-fit{int(self.rng.integers(2))}"
        release = Release(0, 0, sensitivity=1.0, noise_std=6.0, steps=self.STEPS)
        plan = SimpleNamespace(n=1, releases=lambda agent: [release])
        home = Home(self.home.folder)
        marked, charges = (folder / MARK).exists(), len(home.book.charges)
        training = charge_training(plan, "a fit", checkpoint=folder, home=home)
        step = _step(folder)
        self.loose |= len(home.book.charges) > charges and marked  # begun again: its first half never leaves
        self.unfinished.add(folder.name)
        for _ in range(int(self.rng.integers(1, 6))):
            if step == self.STEPS:
                break
            step += 1
            training.saving(step)
            self._burn()
            (folder / "current.json").write_text(json.dumps({"step": step}))
            if step == self.STEPS:
                training.done(step)
                self.sent += [1 / 6.0] * self.STEPS
                self.unfinished.discard(folder.name)

    def back_up(self):
        place = self.folder / f"backup{len(self.backups)}"
        shutil.copytree(self.folder / "h", place / "h")
        for folder in self.folder.glob("elsewhere*"):
            shutil.copytree(folder, place / folder.name)
        self.backups.append(place)

    def set_back(self):
        """Somebody restores the home, its book or the folder of one run from a backup."""
        if not self.backups:
            return
        backup = self.backups[int(self.rng.integers(len(self.backups)))]
        folders = [*backup.glob("elsewhere*"), *backup.glob("h/runs/*")]
        what = int(self.rng.integers(4))
        if what == 0:
            self._put_back(backup, backup / "h")
        elif what == 1:
            shutil.copy(backup / "h" / "book.jsonl", self.home.folder / "book.jsonl")
        elif folders:
            self._put_back(backup, sorted(folders)[int(self.rng.integers(len(folders)))])

    def _put_back(self, backup, folder):
        place = self.folder / folder.relative_to(backup)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder, place)

    def give_up(self):
        runs = [run for run, known in self.home.book.runs.items() if known.status != "closed"]
        if runs:
            run = runs[int(self.rng.integers(len(runs)))]
            known = self.home.book.runs[run]
            self.loose |= self.home._left(known) is None
            self.home.close(run, "given up")

    def repair(self):
        self.home.restore("repaired")

    def step(self):
        go_on = [lambda: self.go_on(int(self.rng.integers(3)))] * 6
        acts = [
            *go_on,
            self.train,
            self.fit,
            self.fit,
            *[self.back_up] * 2,
            *[self.set_back] * 3,
            self.give_up,
            self.repair,
        ]
        self.fuse = int(self.rng.integers(12)) if self.crashes and self.rng.random() < 0.5 else None
        try:
            acts[int(self.rng.integers(len(acts)))]()
        except Crash:
            self.loose = True
        except SottovoceError:
            pass
        self.fuse = None
        self.check()

    def check(self):
        true = math.sqrt(math.fsum(each**2 for each in self.sent))
        if true > gaussian_mu(self.epsilon, DELTA) * (1 + 1e-9):
            self.violations.append(f"beyond the lifetime budget: mu {true}")
        try:
            (row,) = self.home.book.summary()[0]["budgets"]
            runs = self.home.book.runs
        except LedgerError:
            return  # refused, so nothing is printed and nothing can be sent
        for run, rows in self.rows.items():  # run by run too: what one has too much must not hide another
            charged = sum(release.draws for release in runs[run].releases) if run in runs else 0
            if charged < rows:
                self.violations.append(f"{rows} rows of {run[:8]} left, charged {charged}")
        if row["total"] < gaussian_epsilon(true, DELTA) * (1 - 1e-9):
            self.violations.append(f"printed {row['total']}, true mu {true}")

    def settle(self):
        """Bring every run to its end, and compare: what is printed is then what was sent."""
        self.fuse = None
        self.loose |= bool(self.unfinished)
        self.repair()
        for run, known in self.home.book.runs.items():
            if known.status not in ("ended", "closed"):
                self.loose |= self.home._left(known) is None
                self.home.close(run, "settled")
        self.check()
        (row,) = self.home.book.summary()[0]["budgets"]
        true = (
            gaussian_epsilon(math.sqrt(math.fsum(each**2 for each in self.sent)), DELTA) if self.sent else 0.0
        )
        if not self.loose and not math.isclose(row["total"], true, rel_tol=1e-9):
            self.violations.append(f"printed {row['total']}, sent {true}")


@pytest.fixture
def histories(monkeypatch):
    """Yield histories that have been lived; in memory, for the order of syncs has a test of its own."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

    def lived(count, steps=20):
        for seed in range(count):
            with monkeypatch.context() as patch, tempfile.TemporaryDirectory(dir=memory) as folder:
                history = History(seed, Path(folder), patch)
                for _ in range(steps):
                    history.step()
                history.settle()
                yield history

    return lived


def check_histories(lived, least):
    sent = exact = 0
    for history in lived:
        assert history.violations == []
        sent += len(history.sent)
        exact += not history.loose and len(history.sent) > 3
    assert sent > 10 * least
    assert exact >= least


def test_no_history_of_runs_crashes_and_backups_is_under_counted(histories):
    """The printed total is never below what was started, and equal to it where all is known."""
    check_histories(histories(16), least=1)


@pytest.mark.slow
def test_200_histories(histories):
    check_histories(histories(200), least=5)


def _without_witness(*args, **options):
    return SqliteLedger(*args, **{**options, "witness": None})


def _any_mark(folder, home):
    try:
        return json.loads((folder / MARK).read_text())["training"]
    except OSError:
        return os.urandom(8).hex()


PLANTED = {
    "run folders may be set back": (home_module, "SqliteLedger", _without_witness),
    "nobody notes that a ledger exists": (Book, "begun", lambda self, run: None),
    "an older book is taken": (Book, "_verified", lambda self: book_module._read(self.path)),
    "an older ledger closes a run": (
        home_module,
        "read_ledger",
        lambda folder, *, witness: ledger_module.read_ledger(folder),
    ),
    "a checkpoint set back is free": (trainings_module, "_named", _any_mark),
    "a known run is charged to nobody": (
        Book,
        "_charged",
        lambda self, rows, state, new, act: self._write(
            [*rows, book_module._row(rows, {**book_module.charge_act(new, act), "releases": []})]
        ),
    ),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_the_histories_catch_planted_bugs(bug, histories, monkeypatch):
    place, name, replacement = PLANTED[bug]
    monkeypatch.setattr(place, name, replacement)
    assert any(history.violations for history in histories(60))
