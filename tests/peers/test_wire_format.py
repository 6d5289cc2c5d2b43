"""Frames are read back exactly; anything else is refused and changes nothing (I5)."""

import ast
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verification.fuzzing import fuzz, sealed

import sottovoce.peers
from sottovoce.errors import FrameError
from sottovoce.peers.wire_format import (
    CONTROL,
    HEAD,
    HEADER,
    NOTHING,
    UNSIGNED,
    VERSION,
    FrameCodec,
    LedgerHead,
    OpenSigner,
    Position,
    Receipt,
    Receipts,
    Version,
    frame_digest,
)

ROOT = Path(__file__).parents[2]
WIRE = FrameCodec(session=bytes(range(32)), members=4, rounds=20, dim=3, dtype="float64")


def header(**fields):
    names = ("magic", "version", "kind", "dtype", "sender", "round", "rows", "dim", "length", "session")
    values = dict(zip(names, (b"SVOC", VERSION, 1, 1, 1, 4, 1, 3, 56, WIRE.session), strict=True))
    return HEADER.pack(*{**values, **fields}.values())


def control(at=1, digest=NOTHING, answer=0, **fields):
    """Return the header and content of a position frame."""
    shape = {"kind": 2, "dtype": 0, "rows": 0, "dim": 0, "round": 0, "length": CONTROL.size}
    return header(**shape, **fields) + CONTROL.pack(at, -1, digest, UNSIGNED, answer)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3), st.integers(0, 19))
@settings(max_examples=50, deadline=None)
def test_rows_read_back_bit_for_bit(values, r):
    raw = WIRE.row(np.array(values), sender=2, round=r, previous=b"p" * 32)
    frame = WIRE.decode(raw)
    assert (frame.sender, frame.round, frame.previous) == (2, r, b"p" * 32)
    assert WIRE.values(frame).tobytes() == np.array(values).tobytes()
    assert frame_digest(raw) == frame.digest
    WIRE.require_signature(frame)
    assert WIRE.signed_row(2, r, frame.proof)
    assert not WIRE.signed_row(1, r, frame.proof)
    assert not WIRE.signed_row(2, r + 1, frame.proof)
    assert not WIRE.signed_row(2, r, frame.proof[:-1] + bytes([frame.proof[-1] ^ 1]))


def test_positions_read_back():
    position = Position(7, 3, b"d" * 32, b"s" * 64, True)
    frame = WIRE.decode(WIRE.position(position, sender=1))
    assert WIRE.read_position(frame) == position


def receipts(newer=b"", rows=3, sender=3):
    each = (Receipt(b"d" * 32, rows, b"l" * 32), *[Receipt()] * 3)
    return WIRE.receipts(Receipts(5, 2, b"n" * 32, each, newer), sender=sender)


def test_heads_and_receipts_read_back():
    head = LedgerHead(5, 1, b"n" * 32, 3, 1, b"h" * 32, b"c" * 32)
    raw = WIRE.head(head, sender=1)
    assert WIRE.read_head(WIRE.decode(raw)) == head
    for newer in (raw, b""):
        frame = WIRE.decode(receipts(newer))
        content = WIRE.read_receipts(frame)
        assert (frame.sender, content.newer, content.receipts[0].rows) == (3, newer, 3)


def test_news_and_summaries_read_back():
    items = [receipts(sender=2), HEAD_FRAME, receipts()]
    (raw,) = WIRE.news(items, sender=0)
    parts = list(WIRE.parts(WIRE.decode(raw)))
    assert sorted(parts) == sorted(items)
    versions = dict(map(WIRE.peek_version, parts))
    assert versions[HEAD, 1] == Version(5, 1, b"n" * 8, HEAD_FRAME[-96:-88])
    held, answer = WIRE.read_summary(WIRE.decode(WIRE.summary(versions, sender=1, answer=True)))
    assert answer
    assert {key: version for key, version in held.items() if version != Version()} == versions


def test_news_of_many_members_is_cut_into_frames_of_bounded_size():
    codec = FrameCodec(WIRE.session, 200, 20, 3, "float64")
    each = Receipts(5, 2, b"n" * 32, (Receipt(),) * 200, b"")
    items = [codec.receipts(each, sender=v) for v in range(200)]
    frames = list(codec.news(items, sender=0))
    assert sum(map(len, frames)) < 1.01 * sum(map(len, items))
    assert max(map(len, frames)) <= codec.largest < 300_000
    assert sorted(part for raw in frames for part in codec.parts(codec.decode(raw))) == sorted(items)


HEAD_FRAME = WIRE.head(LedgerHead(5, 1, b"n" * 32, 3, 1, b"h" * 32, NOTHING), sender=1)
(NEWS_FRAME,) = WIRE.news([HEAD_FRAME], sender=1)
SUMMARY_FRAME = WIRE.summary({}, sender=1, answer=False)
GOOD = NOTHING + np.arange(3.0).tobytes()  # the digest of the row before, and the numbers
BAD = {
    "empty": b"",
    "short": b"SVOC",
    "magic": sealed(header(magic=b"PICK") + GOOD),
    "version": sealed(header(version=VERSION + 1) + GOOD),
    "kind": sealed(header(kind=9) + GOOD),
    "dtype": sealed(header(dtype=2) + GOOD),
    "sender": sealed(header(sender=4) + GOOD),
    "far sender": sealed(header(sender=2**32 - 1) + GOOD),
    "round": sealed(header(round=20) + GOOD),
    "a round a billion ahead": sealed(header(round=10**9) + GOOD),
    "rows": sealed(header(rows=2) + GOOD),
    "dim": sealed(header(dim=4) + GOOD),
    "four gibibytes": sealed(header(length=2**32) + GOOD),
    "length": sealed(header(length=16) + GOOD),
    "no digest of the row before": sealed(header(length=24) + GOOD[32:]),
    "session": sealed(header(session=bytes(32)) + GOOD),
    # a row of another run has the wrong signature, too; a position has none, so only the run's name tells
    "position of another run": sealed(control(session=bytes(32))),
    "truncated": sealed(header() + GOOD)[:-1],
    "oversized": sealed(header() + GOOD) + b"\0",
    "digest": header() + GOOD + bytes(96),
    "digest of a position": control() + bytes(96),
    "signature of a head": HEAD_FRAME[:-64] + bytes(64),
    "signed position": sealed(control())[:-64] + OpenSigner(1).sign(b"x"),
    "no head inside": receipts(b"x" * len(HEAD_FRAME)),
    "head inside with another signature": receipts(HEAD_FRAME[:-1] + b"x"),
    "receipt beyond the run": receipts(rows=21),
    "head beyond the run": WIRE.head(LedgerHead(5, 1, NOTHING, 21, 1, NOTHING, NOTHING), sender=1),
    "news of nothing": sealed(NEWS_FRAME[:20] + bytes(16) + NEWS_FRAME[36:72]),
    "news with too many parts": sealed(NEWS_FRAME[:20] + b"\xff" * 4 + NEWS_FRAME[24:-96]),
    "news cut short": sealed(NEWS_FRAME[:-97]),
    "summary flag": sealed(SUMMARY_FRAME[:72] + b"\2" + SUMMARY_FRAME[73:-96]),
    "summary of more members": sealed(SUMMARY_FRAME[:-96] + bytes(32)),
    "nan": sealed(header() + NOTHING + np.array([0.0, np.nan, 1.0]).tobytes()),
    "inf": sealed(header() + NOTHING + np.array([0.0, np.inf, 1.0]).tobytes()),
    "pad": sealed(header()[:-1] + b"x" + GOOD),
    "pickle": sealed(header() + b"cos\nsystem\n(S'true'\ntR."),
    "position outside": sealed(control(at=99)),
    "position flag": sealed(control(answer=7)),
    "position without highest": sealed(control(digest=b"x" * 32)),
}


def test_the_well_formed_frame_is_accepted():
    assert WIRE.values(WIRE.decode(sealed(header() + GOOD))).tobytes() == GOOD[32:]


@pytest.mark.parametrize("signature", [UNSIGNED, OpenSigner(2).sign(b"x")])
def test_a_row_with_a_false_signature_is_refused(signature):
    frame = WIRE.decode(sealed(header() + GOOD)[:-64] + signature)
    with pytest.raises(FrameError, match="not that of member 1"):
        WIRE.require_signature(frame)


@pytest.mark.parametrize("name", BAD)
def test_malformed_frames_are_refused(name):
    with pytest.raises(FrameError):
        WIRE.decode(BAD[name])


def test_a_row_that_is_not_finite_is_never_framed():
    with pytest.raises(FrameError):
        WIRE.row(np.array([0.0, np.nan, 0.0]), sender=0, round=0)


def test_fuzzed_frames_change_nothing_and_memory_is_bounded():
    """A million follow below; `make verify-fuzz` runs 100 million."""
    fuzz(2_000, seed=0)
    tracemalloc.start()
    refused, _ = fuzz(20_000, seed=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused > 19_500
    assert peak < 6_000_000


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 4))])
def test_a_million_fuzzed_frames(part):
    """Four parts of 250,000: one in every run, all with `make test-slow`."""
    refused, taken = fuzz(250_000, seed=100 + part)
    assert refused + taken == 250_000
    assert refused > 245_000


FORBIDDEN = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "torch", "numba", "yaml"}


def _for_annotations(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@pytest.mark.parametrize(
    "path", sorted(Path(sottovoce.peers.__file__).parent.glob("*.py")), ids=lambda p: p.name
)
def test_no_code_on_the_receive_path(path):
    """No pickle, no eval, no import by a name that could come from the wire (I5b)."""
    module = ast.parse(path.read_text())
    # imports for annotations alone are never executed
    module.body = [node for node in module.body if not _for_annotations(node)]
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            assert not FORBIDDEN & {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in FORBIDDEN
        elif isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            assert name not in {"eval", "exec", "__import__"}, f"{path.name}:{node.lineno}"
            if name == "import_module":
                assert path.name == "__init__.py"
            if name == "load" and isinstance(node.func, ast.Attribute):
                if getattr(node.func.value, "id", "") in ("np", "numpy"):
                    assert any(k.arg == "allow_pickle" and k.value.value is False for k in node.keywords)


def test_receiving_imports_and_opens_nothing(tmp_path):
    """An audit hook in a fresh process sees no import, no open, no exec while frames are received."""
    import subprocess
    import sys

    script = tmp_path / "receive.py"
    script.write_text(
        "import sys\n"
        "import verification.fuzzing as t\n"
        "t.fuzz(50, 1)\n"
        "core, contact, frames = t.running_core()\n"
        "seen = []\n"
        "watch = {'import', 'exec', 'compile', 'open', 'pickle.find_class', 'subprocess.Popen'}\n"
        "on = [False]\n"
        "sys.addaudithook(lambda e, a: seen.append(e) if on[0] and e in watch else None)\n"
        "import random\n"
        "rng = random.Random(5)\n"
        "on[0] = True\n"
        "for raw in [*frames, *[t.mutate(rng, f) for f in frames for _ in range(50)]]:\n"
        "    try: core.receive(1.0, contact, raw)\n"
        "    except t.PeerError: pass\n"
        "on[0] = False\n"
        "assert not seen, seen\n"
        "print('quiet')\n"
    )
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "quiet", done.stderr
