"""Random histories of one member directory: runs, trainings, kills at any write, backups; is the lifetime
ledger ever too low?

    python -m verification.histories --histories 200 --out docs/results/verification.json

Every history is lived in a member directory of its own. What really left is kept beside it; after every act
the printed total must be at least its composition and within the lifetime budget, and at the end equal to it
wherever nothing was charged that may not have left.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from sottovoce.accounting.release import Release
from sottovoce.errors import LedgerError, SottovoceError
from sottovoce.ledger import lifetime as lifetime_module
from sottovoce.ledger import run_ledger as ledger_module
from sottovoce.ledger.balance import Charge, LifetimeBudget
from sottovoce.ledger.charge import CHARGE_FILE, charge, saved_step
from sottovoce.ledger.cost import OwnReleases
from sottovoce.ledger.run_ledger import RunLedger, read_ledger
from sottovoce.ledger.store import Entry
from sottovoce.peers.member_data import Records
from sottovoce.peers.member_directory import MemberDirectory
from sottovoce.peers.wire_format import FrameCodec
from sottovoce.privacy import gaussian_epsilon, gaussian_mu
from verification import store

DELTA = 1e-5


class TrainingReleases(OwnReleases):
    """A training of which only the releases matter."""

    name: ClassVar[str] = "steps"


class Crash(BaseException):
    """The power fails here."""


class History:
    """Runs, crashes at any write, restored backups, closed runs and trainings, in one member directory, by
    chance.

    What was really sent is kept by the test alone; what the lifetime ledger prints may never be below it.
    """

    STEPS = 4

    def __init__(self, seed, folder, monkeypatch):
        self.rng = np.random.default_rng(seed)
        self.crashes = seed % 2 == 0
        self.folder = folder
        self.epsilon = 12.0
        limit = LifetimeBudget(self.epsilon, DELTA, "user", "local")
        self.member_directory = MemberDirectory.create(
            folder / "h", "north", population="p", budgets=[limit], copy=folder / "c"
        )
        self.sent = []  # sensitivity over noise of everything that left, drawn afresh each time
        self.unfinished = set()  # trainings that are charged and have not handed over their result
        self.rows = Counter()  # how many of them by each run
        self.backups, self.violations, self.fuse = [], [], None
        self.loose = (
            False  # whether something was charged that may not have left: then only "not below" holds
        )
        for module, name in ((lifetime_module, "atomic_write"), (ledger_module, "_write_head")):
            monkeypatch.setattr(module, name, self._fused(getattr(module, name)))
        real = RunLedger.commit
        monkeypatch.setattr(RunLedger, "commit", self._fused(real))

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
        return Charge("", f"run {number}", (release,), run_id=hashlib.sha256(bytes([number])).hexdigest())

    def records(self):
        return Records(np.zeros((2, 1)), np.zeros(0))

    def go_on(self, number):
        """One life of a peer process: some rounds, perhaps to the end."""
        new = self.plan(number)
        state = [None, self.folder / f"elsewhere{number}"][int(self.rng.integers(2))]
        ledger = MemberDirectory(self.member_directory.folder).open_run(
            new, self.records(), node=0, state=state
        )
        try:
            codec = FrameCodec(ledger.session, 2, self.STEPS, 1, "float64")
            saved = ledger.load()
            for _ in range(int(self.rng.integers(1, 4))):
                at = len(saved.sent) if saved.sent else 0
                if at >= self.STEPS:
                    self.member_directory.lifetime_ledger.end(
                        new.run_id, draws=self.STEPS, head=ledger.head.hex()
                    )
                    return
                release = new.releases[0].at(at)
                frame = codec.row(self.rng.standard_normal(1), sender=0, round=at)
                ledger.commit(Entry(at, (release,), frame, b"state", ()))
                saved.sent[at] = frame
                self.sent.append(release.sensitivity / release.noise_std)
                self.rows[new.run_id] += 1
        finally:
            ledger.close()

    def train(self):
        noise = 3.0
        release = Release(0, 0, sensitivity=1.0, noise_std=noise)
        MemberDirectory(self.member_directory.folder).lifetime_ledger.charge(None, [release], "a training")
        self.sent.append(1 / noise)

    def fit(self):
        """A training of four steps with a checkpoint after each; a step is shown when it is recorded."""
        folder = self.folder / f"elsewhere-fit{int(self.rng.integers(2))}"
        release = Release(0, 0, sensitivity=1.0, noise_std=6.0, steps=self.STEPS)
        plan = TrainingReleases(1, "user", lambda agent: [release])
        directory = MemberDirectory(self.member_directory.folder)
        marked, charges = (folder / CHARGE_FILE).exists(), len(directory.lifetime_ledger.charges)
        training = charge(directory.lifetime_ledger, plan, "fit", checkpoint=folder)
        step = saved_step(folder)
        self.loose |= (
            len(directory.lifetime_ledger.charges) > charges and marked
        )  # begun again: its first half never leaves
        self.unfinished.add(folder.name)
        for _ in range(int(self.rng.integers(1, 6))):
            if step == self.STEPS:
                break
            step += 1
            (folder / "current.json").write_text(json.dumps({"step": step}))
            self._burn()
            training.reached(step)
            self.sent.append(1 / 6.0)
            if step == self.STEPS:
                self.unfinished.discard(folder.name)

    def back_up(self):
        place = self.folder / f"backup{len(self.backups)}"
        shutil.copytree(self.folder / "h", place / "h")
        for folder in self.folder.glob("elsewhere*"):
            shutil.copytree(folder, place / folder.name)
        self.backups.append(place)

    def set_back(self):
        """Somebody restores the member directory, its lifetime ledger or the folder of one run from a
        backup.
        """
        if not self.backups:
            return
        backup = self.backups[int(self.rng.integers(len(self.backups)))]
        folders = [*backup.glob("elsewhere*"), *backup.glob("h/runs/*")]
        what = int(self.rng.integers(4))
        if what == 0:
            self._put_back(backup, backup / "h")
        elif what == 1:
            shutil.copy(backup / "h" / "lifetime.ledger", self.member_directory.folder / "lifetime.ledger")
        elif folders:
            self._put_back(backup, sorted(folders)[int(self.rng.integers(len(folders)))])

    def _put_back(self, backup, folder):
        place = self.folder / folder.relative_to(backup)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder, place)

    def _unreadable(self, known):
        """Whether closing the run costs everything planned, because its ledger cannot be read."""
        if known.status == "charged":
            return False
        head_file = self.member_directory.head_file(bytes.fromhex(known.run_id))
        try:
            read_ledger(self.member_directory.folder / known.state, head_file=head_file)
        except LedgerError:
            return True
        return False

    def give_up(self):
        runs = [
            run_id
            for run_id, known in self.member_directory.lifetime_ledger.runs.items()
            if known.status != "closed"
        ]
        if runs:
            run_id = runs[int(self.rng.integers(len(runs)))]
            known = self.member_directory.lifetime_ledger.runs[run_id]
            self.loose |= self._unreadable(known)
            self.member_directory.close(run_id, "given up")

    def repair(self):
        self.member_directory.restore("repaired")

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
            (row,) = self.member_directory.lifetime_ledger.summary()[0]["budgets"]
            runs = self.member_directory.lifetime_ledger.runs
        except LedgerError:
            return  # refused, so nothing is printed and nothing can be sent
        for run_id, rows in self.rows.items():  # run by run too: what one has too much must not hide another
            charged = sum(release.draws for release in runs[run_id].releases) if run_id in runs else 0
            if charged < rows:
                self.violations.append(f"{rows} rows of {run_id[:8]} left, charged {charged}")
        if row["total"] < gaussian_epsilon(true, DELTA) * (1 - 1e-9):
            self.violations.append(f"printed {row['total']}, true mu {true}")

    def settle(self):
        """Bring every run to its end, and compare: what is printed is then what was sent."""
        self.fuse = None
        self.loose |= bool(self.unfinished)
        self.repair()
        for run_id, known in self.member_directory.lifetime_ledger.runs.items():
            if known.status not in ("ended", "closed"):
                self.loose |= self._unreadable(known)
                self.member_directory.close(run_id, "settled")
        self.check()
        (row,) = self.member_directory.lifetime_ledger.summary()[0]["budgets"]
        true = (
            gaussian_epsilon(math.sqrt(math.fsum(each**2 for each in self.sent)), DELTA) if self.sent else 0.0
        )
        if not self.loose and not math.isclose(row["total"], true, rel_tol=1e-9):
            self.violations.append(f"printed {row['total']}, sent {true}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    started = time.time()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    sent = exact = 0
    violations: list[str] = []
    for seed in range(arguments.histories):
        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir=memory) as folder:
            patch.setattr(os, "fsync", lambda handle: None)  # the order of syncs has a test of its own
            history = History(seed, Path(folder), patch)
            for _ in range(arguments.steps):
                history.step()
            history.settle()
        sent += len(history.sent)
        exact += not history.loose and len(history.sent) > 3
        violations += [f"history {seed}: {each}" for each in history.violations]
    record = {
        "command": "python -m verification.histories "
        f"--histories {arguments.histories} --steps {arguments.steps}",
        "histories": arguments.histories,
        "acts": arguments.histories * (arguments.steps + 1),
        "releases_sent": sent,
        "compared_exactly": exact,
        "under_counts": len(violations),
        "violations": violations[:20],
        "seconds": round(time.time() - started),
    }
    text = json.dumps(record, indent=1)
    if arguments.out is not None:
        store(arguments.out, "histories", record)
    print(text)
    sys.exit(bool(violations))


if __name__ == "__main__":
    main()
