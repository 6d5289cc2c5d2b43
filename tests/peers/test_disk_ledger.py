"""The ledger on disk: durable, chained, and refusing whatever is doubtful (I1, I1b)."""

import hashlib
import os
import shutil
import stat

import numpy as np
import pytest

from sottovoce.errors import LedgerError
from sottovoce.peers.core import Entry
from sottovoce.peers.frames import Wire
from sottovoce.peers.ledger import ANCHOR, LEDGER, SqliteLedger, read_ledger
from sottovoce.peers.simulator import SimulatedDisk, SimulatedStore
from sottovoce.privacy.ledger import Release

RUN = b"r" * 32
WIRE = Wire(RUN, 2, 50, 4, "float64")


def entry(r, forget=()):
    release = Release(sender=0, step=r, sensitivity=1.0, noise_std=2.0)
    frame = WIRE.row(np.arange(4.0) + r, sender=0, round=r)
    return Entry(
        r,
        (release,),
        frame,
        f"state {r}".encode() * 20,
        ((r, 1, hashlib.sha256(b"%d" % r).digest()),),
        "",
        forget,
    )


def filled(folder, rows=6):
    ledger = SqliteLedger(folder, run=RUN, node=0)
    for r in range(rows):
        ledger.commit(entry(r, forget=(r - 3,) if r >= 3 else ()))
    return ledger


def frozen(folder, to):
    """Copy a ledger while its process still has it open: what a kill -9 leaves behind."""
    shutil.copytree(folder, to)
    return to


def contents(folder):
    ledger = SqliteLedger(folder, run=RUN, node=0)
    saved = ledger.load()
    ledger.close()
    return saved


@pytest.mark.parametrize("kind", ["sqlite", "simulated"])
def test_stores_agree(kind, tmp_path):
    """One contract for every store: what was committed is what is loaded."""
    disk = SimulatedDisk()

    def store():
        if kind == "sqlite":
            return SqliteLedger(tmp_path / "s", run=RUN, node=0)
        return SimulatedStore(disk, lambda: 0)

    first = store()
    assert first.load().state is None
    for r in range(5):
        first.commit(entry(r, forget=(r - 2,) if r >= 2 else ()))
    if kind == "sqlite":
        first.close()
    again = store()
    saved = again.load()
    assert saved.at == 4
    assert saved.state == entry(4).state
    assert sorted(saved.outbox) == [3, 4]
    assert sorted(saved.sent) == [0, 1, 2, 3, 4]
    assert saved.outbox[4] == entry(4).frame
    assert len(saved.heard) == 5
    assert [release.step for release in saved.releases] == [0, 1, 2, 3, 4]
    again.commit(Entry(4, (), b"", b"state", (), "drop 4 1"))
    if kind == "sqlite":
        again.close()
    last = store()
    assert last.load().notes == ["drop 4 1"]
    assert last.load().sent == saved.sent
    if kind == "sqlite":
        last.close()


def test_files_are_for_the_owner_only(tmp_path):
    ledger = filled(tmp_path / "s")
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700
    for file in (tmp_path / "s").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file.name
    ledger.close()


def test_a_ledger_in_use_missing_or_of_another_run_is_refused(tmp_path):
    ledger = filled(tmp_path / "s")
    with pytest.raises(LedgerError, match="in use"):
        SqliteLedger(tmp_path / "s", run=RUN, node=0)
    ledger.close()
    with pytest.raises(LedgerError, match="another run"):
        SqliteLedger(tmp_path / "s", run=b"x" * 32, node=0)
    with pytest.raises(LedgerError, match="another run or member"):
        SqliteLedger(tmp_path / "s", run=RUN, node=1)
    (tmp_path / "s" / LEDGER).unlink()
    with pytest.raises(LedgerError, match="missing although"):
        SqliteLedger(tmp_path / "s", run=RUN, node=0)


def test_an_older_ledger_beside_a_newer_anchor_is_refused(tmp_path):
    ledger = filled(tmp_path / "s", rows=3)
    frozen(tmp_path / "s", tmp_path / "old")
    for r in range(3, 6):
        ledger.commit(entry(r))
    ledger.close()
    shutil.copy(tmp_path / "s" / ANCHOR, tmp_path / "old" / ANCHOR)
    with pytest.raises(LedgerError, match="older"):
        SqliteLedger(tmp_path / "old", run=RUN, node=0)


@pytest.mark.parametrize("file", [LEDGER, LEDGER + "-wal", ANCHOR, "run"])
def test_bit_flips_and_truncation_never_lose_a_spend(file, tmp_path):
    """I1b: after any single flip or cut the ledger opens with all rows, or not at all."""
    source = tmp_path / "s"
    ledger = filled(source)
    if file == LEDGER:
        ledger.close()  # everything is in the main file
    frozen(source, tmp_path / "frozen")
    if file != LEDGER:
        ledger.close()
    whole = (tmp_path / "frozen" / file).read_bytes()
    rng = np.random.default_rng(3)
    damages = [("flip", int(at)) for at in rng.integers(0, len(whole), 60)]
    damages += [("cut", int(at)) for at in rng.integers(0, len(whole), 25)] + [("cut", 0)]
    refused = 0
    for n, (kind, at) in enumerate(damages):
        victim = tmp_path / f"v{n}"
        shutil.copytree(tmp_path / "frozen", victim)
        raw = bytearray(whole)
        if kind == "flip":
            raw[at] ^= 1 << int(rng.integers(8))
        else:
            del raw[at:]
        (victim / file).write_bytes(raw)
        try:
            saved = contents(victim)
        except LedgerError:
            refused += 1
        else:
            assert len(saved.releases) == 6, (kind, at)
            assert saved.state == entry(5).state
            assert saved.outbox[5] == entry(5).frame
        shutil.rmtree(victim)
    assert refused > len(damages) // 4


def test_a_full_disk_stops_everything(tmp_path):
    """ENOSPC in the middle of a commit: the commit raises, later ones too, and nothing is half there."""
    ledger = filled(tmp_path / "s", rows=2)
    pages = ledger._connection.execute("PRAGMA page_count").fetchone()[0]
    ledger._connection.execute(f"PRAGMA max_page_count = {pages}")
    big = entry(2)._replace(state=b"x" * 500_000)
    with pytest.raises(LedgerError, match="make room"):
        ledger.commit(big)
    with pytest.raises(LedgerError, match="failed before"):
        ledger.commit(entry(3))
    ledger.close()
    assert len(contents(tmp_path / "s").releases) == 2


def test_an_io_error_stops_everything(tmp_path, monkeypatch):
    ledger = filled(tmp_path / "s", rows=2)

    def fail(*arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(LedgerError, match="Input/output"):
        ledger.commit(entry(2))
    with pytest.raises(LedgerError, match="failed before"):
        ledger.commit(entry(3))
    ledger.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_refused(tmp_path):
    (tmp_path / "s").mkdir(mode=0o500)
    with pytest.raises(LedgerError, match="cannot be written"):
        SqliteLedger(tmp_path / "s", run=RUN, node=0)


def test_a_state_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "s").write_text("not a folder")
    with pytest.raises(LedgerError, match="cannot be written"):
        SqliteLedger(tmp_path / "s", run=RUN, node=0)


def test_reading_does_not_disturb_a_running_peer(tmp_path):
    ledger = filled(tmp_path / "s", rows=3)
    assert read_ledger(tmp_path / "s")["rows"] == 3
    ledger.commit(entry(3))
    assert read_ledger(tmp_path / "s")["rows"] == 4
    ledger.close()
    with pytest.raises(LedgerError, match="not a state folder"):
        read_ledger(tmp_path)


def test_changed_rows_break_the_chain(tmp_path):
    import sqlite3

    for change in (
        "UPDATE chain SET round = 9 WHERE seq = 1",
        "DELETE FROM chain WHERE seq = 1",
        "DELETE FROM chain WHERE seq = 5",
        "UPDATE chain SET releases = x'' WHERE seq = 2",
        "UPDATE outbox SET frame = zeroblob(200) WHERE round = 5",
        "UPDATE state SET value = x'00'",
        "DELETE FROM state",
    ):
        folder = tmp_path / hashlib.sha256(change.encode()).hexdigest()[:8]
        filled(folder).close()
        connection = sqlite3.connect(folder / LEDGER)
        connection.execute(change)
        connection.commit()
        connection.close()
        with pytest.raises(LedgerError):
            SqliteLedger(folder, run=RUN, node=0)
