"""The key of the saved state: one on the disk, whatever stops between database and key file (I26)."""

import contextlib
import os
import shutil

import pytest
from verification.stolen_folder import saved_states

from sottovoce.errors import LedgerError
from sottovoce.ledger import state_key
from sottovoce.ledger.run_ledger import LEDGER, STATE_KEY, RunLedger, erase_state_key, read_ledger
from sottovoce.ledger.store import Entry

RUN = b"r" * 32


def opened(folder):
    return RunLedger(folder, session=RUN, node=0)


def entry(r):
    return Entry(r, (), b"", b"state %d" % r, ())


@pytest.fixture
def points(monkeypatch, tmp_path):
    """Copy the state folder before every write and every sync of the key file, as a kill leaves it."""
    copies = []

    def copying(true):
        def call(*arguments):
            copies.append(tmp_path / f"copy{len(copies)}")
            shutil.copytree(tmp_path / "s", copies[-1])
            return true(*arguments)

        return call

    for name in ("pwrite", "fdatasync"):
        monkeypatch.setattr(state_key.os, name, copying(getattr(os, name)))
    return copies


def test_a_crash_at_any_point_of_a_commit_continues_from_the_newest_row(points, tmp_path):
    ledger = opened(tmp_path / "s")
    for r in range(4):
        ledger.commit(entry(r))
    ledger.close()
    copies = list(points)
    assert len(copies) >= 4 * 2
    before_the_key = 0
    for copy in copies:
        with contextlib.closing(opened(copy)) as again:
            rows, state = again.newest()[0], again.load().state
            assert state == (b"state %d" % (rows - 1) if rows else None)
            assert len(readable(copy)) <= 1  # opening has advanced a key that lagged
            again.commit(entry(rows))
        before_the_key += rows > 0
        with contextlib.closing(opened(copy)) as again:
            assert again.load().state == b"state %d" % rows
    assert before_the_key >= 8


def readable(folder):
    return [each for each in saved_states(folder, RUN, 0) if each.plain is not None]


def test_only_the_newest_state_can_be_read(tmp_path):
    """The log still holds the earlier states, and the key in the file opens none of them."""
    ledger = opened(tmp_path / "s")
    for r in range(12):
        ledger.commit(entry(r))
        ledger.commit(Entry(r, (), b"", None, (), "a note"))
        shutil.copytree(tmp_path / "s", tmp_path / f"at{r}")
        states = saved_states(tmp_path / f"at{r}", RUN, 0)
        assert len(states) == r + 1
        assert [each.plain for each in states] == [None] * r + [b"state %d" % r]
    ledger.close()


def test_a_power_cut_may_leave_the_key_one_commit_behind_and_no_more(tmp_path):
    ledger, keys = opened(tmp_path / "s"), []
    for r in range(3):
        keys.append((tmp_path / "s" / STATE_KEY).read_bytes())
        ledger.commit(entry(r))
    ledger.close()
    (tmp_path / "s" / STATE_KEY).write_bytes(keys[2])
    opened(tmp_path / "s").close()
    assert (tmp_path / "s" / STATE_KEY).read_bytes() not in keys
    (tmp_path / "s" / STATE_KEY).write_bytes(keys[1])
    with pytest.raises(LedgerError, match="is not that of the saved state: one of the two is older"):
        opened(tmp_path / "s")


def test_an_older_database_beside_a_newer_key_is_refused(tmp_path):
    ledger = opened(tmp_path / "s")
    ledger.commit(entry(0))
    ledger.close()
    shutil.copytree(tmp_path / "s", tmp_path / "old")
    ledger = opened(tmp_path / "s")
    ledger.commit(entry(1))
    ledger.close()
    for name in (LEDGER, "head"):
        shutil.copy(tmp_path / "old" / name, tmp_path / "s" / name)
    with pytest.raises(LedgerError, match="one of the two is older or damaged; use the newest state folder"):
        opened(tmp_path / "s")


def test_a_commit_that_a_crash_broke_off_is_repeated_under_another_nonce(tmp_path):
    """The same key encrypts two states then, one of which never became durable."""
    encrypted = []
    for _ in range(2):
        with contextlib.closing(opened(tmp_path / "s")) as ledger:
            if not ledger.newest()[0]:
                ledger.commit(entry(0))
            encrypted.append(ledger._key.encrypt(b"state"))
    (first, key), (second, same_key) = encrypted
    assert key == same_key
    assert first[:12] != second[:12]
    assert first[12:] != second[12:]


def test_a_state_of_another_ledger_is_refused(tmp_path):
    key = state_key.StateKey(tmp_path / "key", None, b"one run")
    sealed, _ = key.encrypt(b"state")
    key.close()
    with pytest.raises(LedgerError, match="not that of the saved state"):
        state_key.StateKey(tmp_path / "key", sealed, b"another run")


def test_a_ledger_without_its_key_shows_what_was_released_and_does_not_continue(tmp_path):
    ledger = opened(tmp_path / "s")
    ledger.commit(entry(0))
    key = (tmp_path / "s" / STATE_KEY).read_bytes()
    ledger.close()
    erase_state_key(tmp_path / "s")
    erase_state_key(tmp_path / "s")  # nothing more to erase
    assert read_ledger(tmp_path / "s")["rows"] == 1
    with pytest.raises(LedgerError, match=r"state\.key, is missing; restore it, or continue the run with"):
        opened(tmp_path / "s")
    assert not any(key in file.read_bytes() for file in (tmp_path / "s").iterdir())
