"""The ledger on disk: durable, chained, and refusing whatever is doubtful (I1, I1b)."""

import contextlib
import fcntl
import hashlib
import itertools
import os
import shutil
import stat
import threading

import numpy as np
import pytest
from verification.simulator import SimulatedDisk, SimulatedStore

from sottovoce.accounting.release import Release, compose
from sottovoce.errors import ConfigError, LedgerError
from sottovoce.ledger.chain import written
from sottovoce.ledger.run_ledger import (
    HEAD_FILE,
    LEDGER,
    LOCK,
    STATE_KEY,
    RunLedger,
    compact_ledger,
    read_ledger,
    verify_ledger,
)
from sottovoce.ledger.store import Entry
from sottovoce.peers.wire_format import FrameCodec

RUN = b"r" * 32
WIRE = FrameCodec(RUN, 2, 50, 4, "float64")


def entry(r, forget=()):
    release = Release(sender=0, step=r, sensitivity=1.0, noise_std=2.0)
    frame, heard = WIRE.row(np.arange(4.0) + r, sender=0, round=r), hashlib.sha256(b"%d" % r).digest()
    return Entry(r, (release,), frame, f"state {r}".encode() * 20, ((r, 1, heard),), forget=forget)


def filled(folder, rows=6):
    ledger = RunLedger(folder, session=RUN, node=0)
    for r in range(rows):
        ledger.commit(entry(r, forget=(r - 3,) if r >= 3 else ()))
    return ledger


def opened(folder):
    return RunLedger(folder, session=RUN, node=0)


def frozen(folder, to):
    """Copy a ledger while its process still has it open: what a kill -9 leaves behind."""
    shutil.copytree(folder, to)
    return to


def contents(folder):
    with contextlib.closing(opened(folder)) as ledger:
        return ledger.load()


@pytest.mark.parametrize("kind", ["file", "simulated"])
def test_stores_agree(kind, tmp_path):
    """One contract for every store: what was committed is what is loaded."""
    disk = SimulatedDisk()

    @contextlib.contextmanager
    def store():
        if kind == "simulated":
            yield SimulatedStore(disk, lambda: 0)
            return
        with contextlib.closing(opened(tmp_path / "s")) as ledger:
            yield ledger

    with store() as first:
        assert first.load().state is None
        for r in range(5):
            first.commit(entry(r, forget=(r - 2,) if r >= 2 else ()))
    with store() as again:
        saved = again.load()
        assert (saved.at, saved.state) == (4, entry(4).state)
        assert sorted(saved.outbox) == [3, 4]
        assert sorted(saved.sent) == [0, 1, 2, 3, 4]
        assert saved.outbox[4] == entry(4).frame
        assert len(saved.heard) == 5
        assert [release.step for release in saved.releases] == [0, 1, 2, 3, 4]
        again.commit(Entry(4, (), b"", b"state", (), "drop 4 1"))
    with store() as last:
        assert last.load().notes == ["drop 4 1"]
        assert last.load().sent == saved.sent


def test_files_are_for_the_owner_only(tmp_path):
    ledger = filled(tmp_path / "s")
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700
    for file in (tmp_path / "s").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file.name
    ledger.close()


def test_a_ledger_in_use_missing_or_of_another_run_is_refused(tmp_path):
    ledger = filled(tmp_path / "s")
    with pytest.raises(LedgerError, match="in use"):
        opened(tmp_path / "s")
    ledger.close()
    with pytest.raises(LedgerError, match="another run"):
        RunLedger(tmp_path / "s", session=b"x" * 32, node=0)
    with pytest.raises(LedgerError, match="another run or member"):
        RunLedger(tmp_path / "s", session=RUN, node=1)
    (tmp_path / "s" / LEDGER).unlink()
    with pytest.raises(LedgerError, match="missing although"):
        opened(tmp_path / "s")


def test_an_older_ledger_beside_a_newer_anchor_is_refused(tmp_path):
    ledger = filled(tmp_path / "s", rows=3)
    frozen(tmp_path / "s", tmp_path / "old")
    for r in range(3, 6):
        ledger.commit(entry(r))
    ledger.close()
    shutil.copy(tmp_path / "s" / HEAD_FILE, tmp_path / "old" / HEAD_FILE)
    with pytest.raises(LedgerError, match="older"):
        opened(tmp_path / "old")


@pytest.mark.parametrize("file", [LEDGER, HEAD_FILE, STATE_KEY])
def test_bit_flips_and_truncation_never_lose_a_spend(file, tmp_path):
    """I1b: after any single flip or cut the ledger opens with all rows, or not at all."""
    source = tmp_path / "s"
    ledger = filled(source)
    frozen(source, tmp_path / "frozen")
    ledger.close()
    whole = (tmp_path / "frozen" / file).read_bytes()
    rng = np.random.default_rng(3)
    rows = len(whole.rstrip(b"\0"))  # zeros written ahead of the rows mean nothing
    damages = [("flip", int(at)) for at in rng.integers(0, rows, 60)]
    damages += [("cut", int(at)) for at in rng.integers(0, rows, 25)] + [("cut", 0)]
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


def test_an_io_error_stops_everything(tmp_path, monkeypatch):
    ledger = filled(tmp_path / "s", rows=2)

    def fail(*arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(LedgerError, match="Input/output"):
        ledger.commit(entry(2))
    with pytest.raises(LedgerError, match="failed; nothing more"):
        ledger.commit(entry(3))
    ledger.close()


def test_a_state_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "s").write_text("not a folder")
    with pytest.raises(LedgerError, match="cannot be used"):
        opened(tmp_path / "s")


def test_reading_does_not_disturb_a_running_peer(tmp_path):
    ledger = filled(tmp_path / "s", rows=3)
    assert read_ledger(tmp_path / "s")["rows"] == 3
    ledger.commit(entry(3))
    assert read_ledger(tmp_path / "s")["rows"] == 4
    ledger.close()
    with pytest.raises(LedgerError, match="not a state folder"):
        read_ledger(tmp_path)


def changed(lines, at, content):
    """Return the lines with another content in one of them, chained again from there on."""
    contents = [line[65:] for line in lines]
    contents[at] = content
    return written(contents).splitlines()


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [*lines[:2], *lines[3:]],
        lambda lines: lines[:-1],
        lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]],
        lambda lines: [*lines[:3], lines[3][:-9] + b"AAAAAAAA=", *lines[4:]],
        lambda lines: changed(lines, 2, lines[3][65:]),
        lambda lines: lines[1:],
        lambda lines: [],
    ],
)
@pytest.mark.parametrize("head", ["with", "without"])
def test_changed_rows_break_the_chain(change, head, tmp_path):
    """Without the head file and the key of the state only the chain itself is left to notice it."""
    ledger = filled(tmp_path / "s")
    ledger.close()
    file = tmp_path / "s" / LEDGER
    lines = file.read_bytes().splitlines()
    file.write_bytes(b"".join(line + b"\n" for line in change(lines)))
    if head == "without":
        (tmp_path / "s" / HEAD_FILE).unlink()
    with pytest.raises(LedgerError):
        opened(tmp_path / "s")


LARGE_ROWS = FrameCodec(RUN, 2, 50, 1_000, "float64")


def large_entry(r, forget=()):
    frame = LARGE_ROWS.row(np.full(1_000, r), sender=0, round=r)
    return entry(r, forget)._replace(frame=frame, state=b"large state %2d" % r * 1_000)


def test_large_rows_are_read_back_and_their_files_are_used_again(tmp_path):
    ledger = opened(tmp_path / "s")
    for r in range(9):
        ledger.commit(large_entry(r, forget=(r - 3,) if r >= 3 else ()))
        ledger.commit(Entry(r, (), b"", None, (), f"note {r}"))
    ledger.close()
    for _ in range(2):
        saved = contents(tmp_path / "s")
        assert saved.state == large_entry(8).state
        assert saved.outbox == {r: large_entry(r).frame for r in (6, 7, 8)}
    assert len(list((tmp_path / "s").glob("large-*"))) == 4  # three rows that may be requested, and the next
    assert (tmp_path / "s" / LEDGER).stat().st_size < 9 * 2 * 1_000


@pytest.mark.parametrize("damage", ["flip", "cut", "missing"])
def test_a_damaged_large_file_is_noticed_without_the_key(damage, tmp_path):
    """Every byte of the frame's end (digest, signature) and some others; of two files, both are needed."""
    ledger = opened(tmp_path / "s")
    ledger.commit(large_entry(0))
    ledger.commit(large_entry(1))
    ledger.close()
    (tmp_path / "s" / STATE_KEY).rename(tmp_path / "key")
    for file in (tmp_path / "s").glob("large-*"):
        whole, end = file.read_bytes(), len(large_entry(0).frame)
        needed = len(whole) if file.name == "large-1" else end  # the state of round 0 is not
        sweep = {*range(0, needed, 499), *range(end - 97, min(end + 2, needed)), needed - 1}
        for at in sweep if damage != "missing" else [0]:
            flipped = whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
            file.write_bytes(flipped if damage == "flip" else whole[:at])
            if damage == "missing":
                file.unlink()
            with pytest.raises(LedgerError):
                verify_ledger(tmp_path / "s")
        file.write_bytes(whole)
    assert verify_ledger(tmp_path / "s") == 2
    (tmp_path / "key").rename(tmp_path / "s" / STATE_KEY)
    assert contents(tmp_path / "s").outbox == {r: large_entry(r).frame for r in (0, 1)}


def test_a_crash_in_a_commit_keeps_the_row_before_it(tmp_path, monkeypatch):
    """Whatever stops before the row itself is durable: the large file is another than the one in use."""
    ledger = opened(tmp_path / "s")
    ledger.commit(large_entry(0))
    ledger.commit(large_entry(1, forget=(0,)))
    pending = ledger.prepare(large_entry(2, forget=(1,)))
    ledger._write_large(pending)
    with open(tmp_path / "s" / LEDGER, "ab") as file:
        file.write(pending.line[: len(pending.line) // 2])
    ledger.close()
    with contextlib.closing(opened(tmp_path / "s")) as again:
        assert again.load().state == large_entry(1).state
        assert again.load().outbox == {1: large_entry(1).frame}
        again.commit(large_entry(2, forget=(1,)))
    assert contents(tmp_path / "s").outbox == {2: large_entry(2).frame}


def test_a_disk_that_fills_at_any_byte_loses_no_spend(files_no_larger_than, tmp_path):
    """I1b: whatever byte of whatever file is the last that fits, what `commit` took is there afterwards."""
    failed = 0
    for n, size in enumerate(range(4_500, 16_000, 499)):
        ledger, taken = opened(tmp_path / f"s{n}"), 0
        with files_no_larger_than(size), contextlib.suppress(LedgerError):
            for r in range(12):
                ledger.commit(entry(r))
                taken += 1
        failed += taken < 12
        if taken < 12:
            with pytest.raises(LedgerError, match="failed; nothing more"):
                ledger.commit(entry(taken))
        ledger.close()
        saved = contents(tmp_path / f"s{n}")
        assert len(saved.releases) >= taken
        assert sorted(saved.sent)[:taken] == list(range(taken))
    assert failed > 10


@pytest.mark.parametrize("size", [0, 30, 100, 4_000])
def test_a_disk_that_is_full_when_the_folder_is_made_leaves_a_folder_that_works_later(
    size, files_no_larger_than, tmp_path
):
    with files_no_larger_than(size), pytest.raises(LedgerError, match="make room"):
        opened(tmp_path / "s")
    assert len(contents(tmp_path / "s").releases) == 0


def test_an_anchor_is_whole_from_the_beginning_and_may_lag_by_a_row(tmp_path):
    """A power cut may leave the anchor behind the ledger, never in pieces; behind is no reason to stop."""
    ledger = opened(tmp_path / "s")
    first = (tmp_path / "s" / HEAD_FILE).read_bytes()
    assert len(first) == 40
    for r in range(3):
        ledger.commit(entry(r))
    ledger.close()
    (tmp_path / "s" / HEAD_FILE).write_bytes(first)
    assert len(contents(tmp_path / "s").releases) == 3
    (tmp_path / "s" / HEAD_FILE).write_bytes(bytes(40))
    with pytest.raises(LedgerError, match="older than its head"):
        contents(tmp_path / "s")


def test_two_holders_of_one_folder_cannot_both_write(tmp_path):
    """Somebody removed the lock and started a second peer: the first row of the two wins, the other stops."""
    first = filled(tmp_path / "s", rows=2)
    (tmp_path / "s" / LOCK).unlink()
    second = opened(tmp_path / "s")
    second.commit(entry(2))
    with pytest.raises(LedgerError, match="nothing was sent"):
        first.commit(entry(2)._replace(state=b"another draw"))
    first.close()
    second.close()
    saved = contents(tmp_path / "s")
    assert len(saved.releases) == 3
    assert saved.state == entry(2).state


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_can_write_is_refused(mode, tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s").chmod(mode)
    with pytest.raises(LedgerError, match="chmod 700"):
        opened(tmp_path / "s")
    (tmp_path / "s").chmod(0o755)
    opened(tmp_path / "s").close()


def test_looking_at_a_folder_does_not_keep_a_peer_from_starting(tmp_path):
    filled(tmp_path / "s", rows=1).close()
    lock = os.open(tmp_path / "s" / LOCK, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)  # as `peer status` does, for a moment
    threading.Timer(0.06, os.close, [lock]).start()
    assert len(contents(tmp_path / "s").releases) == 1


def finished(folder, rows=4):
    """A ledger of ``rows`` large rows whose run is over, a second head file, and a joint release."""
    head = folder.with_name("second-head")
    ledger = RunLedger(folder, session=RUN, node=0, about={"rounds": rows - 1}, head_file=head)
    for r in range(rows):
        ledger.commit(large_entry(r)._replace(note=f"note {r}", heads=((1, b"head %d" % r),)))
    joint = Release(0, 0, sensitivity=2.0, noise_std=2.0, joint=True)
    ledger.commit(entry(rows - 1)._replace(releases=(joint, joint.at(1)), frame=b"", state=b"end"))
    ledger.close()
    return head


def test_a_compacted_ledger_keeps_what_totals_and_rollbacks_need(tmp_path):
    head = finished(tmp_path / "s")
    before, size = read_ledger(tmp_path / "s"), sum(f.stat().st_size for f in (tmp_path / "s").iterdir())
    compact_ledger(tmp_path / "s", head)
    after = read_ledger(tmp_path / "s", head_file=head)
    assert verify_ledger(tmp_path / "s", head) == before["rows"] == 5
    for name in ("session", "node", "about", "rows", "head"):
        assert after[name] == before[name]
    saved = after["saved"]
    assert (saved.notes, saved.heads) == (before["saved"].notes, before["saved"].heads)
    assert [(each.steps, each.draws) for each in saved.releases] == [(4, 4), (1, 1), (1, 1)]
    assert compose(saved.releases) == compose(before["saved"].releases)
    assert sum(f.stat().st_size for f in (tmp_path / "s").iterdir()) < size / 10
    with pytest.raises(LedgerError, match="was compacted; it sends nothing more"):
        RunLedger(tmp_path / "s", session=RUN, node=0, head_file=head)
    whole = (tmp_path / "s" / LEDGER).read_bytes()
    for at in range(0, len(whole), 7):  # one line: no flip and no cut leaves less than all of it
        for damaged in (
            whole[:at],
            whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :],
            whole + whole[: at + 1],
        ):
            (tmp_path / "s" / LEDGER).write_bytes(damaged)
            with pytest.raises(LedgerError):
                verify_ledger(tmp_path / "s", head)
    (tmp_path / "s" / LEDGER).write_bytes(whole)
    head.write_bytes(bytes(40))
    with pytest.raises(LedgerError, match="older than its head"):
        verify_ledger(tmp_path / "s", head)


def test_a_ledger_of_a_run_that_has_not_finished_is_not_compacted(tmp_path):
    filled(tmp_path / "s").close()  # nothing says how many rounds it has
    with contextlib.closing(RunLedger(tmp_path / "t", session=RUN, node=0, about={"rounds": 9})) as running:
        running.commit(entry(8))
        with pytest.raises(LedgerError, match="in use"):
            compact_ledger(tmp_path / "t")
    for folder in (tmp_path / "s", tmp_path / "t"):
        before = {file: file.read_bytes() for file in folder.iterdir()}
        with pytest.raises(ConfigError, match="has not finished"):
            compact_ledger(folder)
        assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_a_crash_at_any_write_leaves_a_ledger_that_can_be_compacted(tmp_path, monkeypatch):
    """At the n-th call that reaches the disk the process dies; n goes up until nothing is left to stop."""
    calls = ("open", "write", "pwrite", "fsync", "fdatasync", "replace", "ftruncate", "unlink")
    finished(tmp_path / "whole")
    wanted = read_ledger(tmp_path / "whole")
    for n in itertools.count(1):
        shutil.copytree(tmp_path / "whole", tmp_path / f"s{n}")
        left = itertools.count(n, -1)

        def stopping(real, left=left):
            def call(*arguments, **options):
                if next(left) == 1:
                    raise KeyboardInterrupt
                return real(*arguments, **options)

            return call

        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            for name in calls:
                patch.setattr(os, name, stopping(getattr(os, name)))
            compact_ledger(tmp_path / f"s{n}")
            break
        for _ in range(2):
            again = read_ledger(tmp_path / f"s{n}")
            assert verify_ledger(tmp_path / f"s{n}") == wanted["rows"]
            assert compose(again["saved"].releases) == compose(wanted["saved"].releases)
            compact_ledger(tmp_path / f"s{n}")
        names = {file.name for file in (tmp_path / f"s{n}").iterdir()}
        assert names == {LEDGER, HEAD_FILE, LOCK}
    assert n > 12


def test_a_ledger_of_another_format_is_refused_with_a_sentence(tmp_path):
    filled(tmp_path / "s").close()
    lines = (tmp_path / "s" / LEDGER).read_bytes().splitlines()
    lines = changed(lines, 0, lines[0][65:].replace(b'"format": 1', b'"format": 2'))
    (tmp_path / "s" / LEDGER).write_bytes(b"".join(line + b"\n" for line in lines))
    before = (tmp_path / "s" / LEDGER).read_bytes()
    for read in (opened, read_ledger):
        with pytest.raises(LedgerError, match=r"format '2'.*finish that run with the version that began it"):
            read(tmp_path / "s")
    assert (tmp_path / "s" / LEDGER).read_bytes() == before


def test_runs_of_releases_keep_every_field(tmp_path):
    """The stored form is the release itself: runs, rates, mechanism and all."""
    releases = (
        Release(
            0, 3, sensitivity=0.1, noise_std=0.7, adjacency="add-remove", sample_rate=0.25, steps=4, count=2
        ),
        Release(0, 9, sensitivity=0.0, noise_std=1.0),
        Release(0, 9, sensitivity=1.0, noise_std=2.0, mechanism="laplace"),
        Release(0, 0, sensitivity=2.0, noise_std=2.0, joint=True, user_rate=0.5),
    )
    ledger = opened(tmp_path / "s")
    ledger.commit(entry(0)._replace(releases=releases))
    ledger.close()
    assert tuple(contents(tmp_path / "s").releases) == releases
