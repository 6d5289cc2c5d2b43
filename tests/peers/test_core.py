"""The core, call by call: windows, expectations, resends, refusals."""

import hashlib
from unittest.mock import Mock

import numpy as np
import pytest
from verification.simulator import SimulatedDisk, SimulatedStore, descent, member_program

from sottovoce import graphs, protocols
from sottovoce.accounting.release import Spending
from sottovoce.errors import FrameError, LedgerError, LostPeer, PeerError
from sottovoce.noise.samplers import ProtectiveNoise
from sottovoce.peers.core import Core, Timing
from sottovoce.peers.wire_format import (
    DROP,
    HEAD,
    NEWS,
    NOTHING,
    POSITION,
    RECEIPTS,
    ROW,
    SUMMARY,
    UNSIGNED,
    FrameCodec,
    LedgerHead,
    OpenSigner,
    Position,
    Receipt,
    Receipts,
    frame_digest,
)

STAR = graphs.star(4)
GOSSIP = protocols.Gossip(STAR, 1)


class Scene:
    """The hub of a star, and hand-made frames of its leaves."""

    def __init__(self, protocol=GOSSIP, steps=30, node=0, disk=None, **timing):
        self.disk = disk if disk is not None else SimulatedDisk()
        self.codec = FrameCodec(b"w" * 32, 4, steps * protocol.rounds, 2, "float64")
        program = member_program(descent(protocol, steps, 2), node, np.ones((4, 2)), ProtectiveNoise())
        store, timing = SimulatedStore(self.disk, lambda: 0), Timing(give_up=50.0, **timing)
        self.core = Core(program, self.codec, store, Spending(), timing, fresh=lambda: b"n" * 32)

    def restarted(self):
        return Scene(disk=self.disk).core

    def hello(self):
        self.core.start(0.0)
        return [
            each for s in self.core.program.contacts for each in self.core.receive(0.0, s, self.position(s))
        ]

    def receive_rows(self, r, senders=(1, 2, 3), value=0.0):
        for s in senders:
            self.core.receive(0.0, s, self.row(s, r, value))

    def position(self, sender, at=0, highest=-1, digest=NOTHING, answer=False, signature=UNSIGNED):
        return self.codec.position(Position(at, highest, digest, signature, answer), sender=sender)

    def own_row(self, r, value=5.0):
        """Digest and signature of a row that this peer must have sent, from another copy of its folder."""
        frame = self.codec.decode(self.codec.row(np.full(2, value), sender=0, round=r))
        return frame.digest, frame.signature

    def row(self, sender, r, value=0.0):
        return self.codec.row(np.full(2, value), sender=sender, round=r)

    def news(self, *items, via):
        (raw,) = self.codec.news(items, sender=via)
        return raw

    def head(self, rows, head=b"h" * 32, *, sender, at=0, step=0, chain=NOTHING, sequence=1, nonce=b"m" * 32):
        return self.codec.head(LedgerHead(rows, sequence, nonce, at, step, head, chain), sender=sender)

    def receipts(self, sender, about, head=NOTHING, *, rows=0, lineage=NOTHING, sequence=1, newer=b""):
        each = [Receipt()] * 4
        each[about] = Receipt(head, rows, lineage)
        return self.codec.receipts(Receipts(0, sequence, b"m" * 32, tuple(each), newer), sender=sender)

    def own_head(self):
        """The head that this peer last signed."""
        return self.core.witnesses._map[HEAD, 0].raw


@pytest.fixture
def scene():
    """A peer whose neighbors have answered, so that its first row was sent."""
    scene = Scene()
    scene.sent = scene.hello()
    return scene


def kinds(out):
    return [FrameCodec.kind_of(raw) for _, raw in out]


def test_nothing_is_drawn_before_all_contacts_answer():
    scene = Scene()
    assert kinds(scene.core.start(0.0)) == [POSITION] * 3
    assert scene.core.receive(0.0, 1, scene.position(1)) == []
    assert scene.core.receive(0.0, 2, scene.position(2)) == []
    assert not scene.core.program.begun
    assert kinds(scene.core.receive(0.0, 3, scene.position(3))) == [ROW] * 3
    assert len(scene.disk.durable) == 1


def test_the_same_bytes_go_to_everybody_and_on_every_resend(scene):
    sent = {raw for _, raw in scene.sent}
    assert len(sent) == 1
    question = scene.position(1, answer=True)
    for second in range(1, 1001):
        again = scene.core.receive(float(second), 1, question)
        assert len(scene.core.receive(second + 0.5, 1, question)) == 1  # too soon for a row
        assert [raw for _, raw in again if FrameCodec.kind_of(raw) == ROW] == list(sent)
    assert len(scene.disk.durable) == 1
    assert sum(scene.core.spending.counts.values()) == 1


@pytest.mark.parametrize("r", [4, 29])
def test_rounds_outside_the_window_are_refused(r, scene):
    before = scene.core.digest()
    with pytest.raises(FrameError, match="too far ahead"):
        scene.core.receive(0.0, 1, scene.row(1, r))
    assert scene.core.digest() == before


def test_rows_that_nobody_expects_are_refused():
    tree = protocols.Tree(STAR, root=0)  # leaves send up in round 0 only
    scene = Scene(tree, steps=5)
    scene.hello()
    before = scene.core.digest()
    with pytest.raises(FrameError, match="sends nothing"):
        scene.core.receive(0.0, 1, scene.row(1, 1))
    assert scene.core.digest() == before
    leaf = Scene(tree, steps=5, node=1)
    leaf.hello()
    with pytest.raises(FrameError, match="not a neighbor"):
        leaf.core.receive(0.0, 2, leaf.row(2, 1))


def test_a_late_row_is_recognized_or_refused(scene):
    scene.receive_rows(0)
    assert scene.core.program.at == 1
    assert scene.core.receive(0.0, 1, scene.row(1, 0)) == []
    refusal = scene.core.receive(0.0, 1, scene.row(1, 0, value=9.0))
    assert kinds(refusal) == [POSITION]
    assert scene.core.incidents == ["second payload from member 1 for round 0"]


@pytest.mark.parametrize("seen", [0, 5])
def test_a_peer_that_was_rolled_back_stops(seen):
    scene = Scene()
    scene.core.start(0.0)
    digest, signature = scene.own_row(seen)
    claim = scene.position(1, highest=seen, digest=digest, signature=signature)
    with pytest.raises(LedgerError, match="copied or is an older one"):
        scene.core.receive(0.0, 1, claim)
    with pytest.raises(LedgerError):
        scene.core.tick(1.0)
    assert not scene.core.program.begun


def test_a_refusal_stops_the_copy_that_gets_it(scene):
    """What a neighbor answers to the second of two rows."""
    neighbor = Scene(node=2)
    neighbor.core.start(0.0)
    neighbor.core.receive(0.0, 0, neighbor.position(0))
    neighbor.core.receive(0.0, 0, neighbor.row(0, 0, value=5.0))
    ((_, refusal),) = neighbor.core.receive(0.0, 0, neighbor.row(0, 0, value=6.0))
    with pytest.raises(LedgerError):
        scene.core.receive(0.0, 2, refusal)


@pytest.mark.parametrize("kind", ["signed by nobody", "signed by the accuser", "of another round"])
def test_an_unfounded_accusation_is_noted_and_ends_no_run(kind, scene):
    """A false claim is recorded once on the disk, and the run goes on."""
    digest, signature = b"d" * 32, b"s" * 64
    if kind == "signed by the accuser":
        frame = scene.codec.decode(scene.codec.row(np.full(2, 5.0), sender=1, round=0))
        digest, signature = frame.digest, frame.signature
    elif kind == "of another round":
        digest, signature = scene.own_row(1)
    accusation = scene.position(1, highest=0, digest=digest, signature=signature, answer=True)
    for _ in range(3):
        assert scene.core.receive(0.0, 1, accusation) == []
    assert scene.core.incidents == ["unfounded claim of member 1 about round 0"]
    assert [entry.note for entry in scene.disk.durable[1:]] == scene.core.incidents  # on the disk, once
    scene.receive_rows(0)
    assert scene.core.program.at == 1
    assert scene.restarted().incidents == scene.core.incidents


def test_a_second_payload_leaves_a_proof_that_shows_no_row(scene):
    """The proof is on the disk at once, so a power cut before the next row does not lose it."""
    rows = [scene.row(1, 0, value=7.5), scene.row(1, 0, value=9.25)]
    for raw in rows:
        refusal = scene.core.receive(0.0, 1, raw)
    held, second = (scene.codec.decode(raw) for raw in rows)
    assert scene.core.proofs == [f"{scene.core.incidents[0]}: {held.proof.hex()}{second.proof.hex()}"]
    assert scene.restarted().proofs == scene.core.proofs
    (_, frame) = refusal[0]
    assert held.proof in frame
    for raw in rows:
        assert raw[104:120] not in frame  # the numbers themselves
    assert all(scene.codec.signed_row(1, 0, each.proof) for each in (held, second))


class Series:
    """Rows of a member, each with the digest of the row before, with right or false signatures."""

    def __init__(self, scene, sender=1):
        self.scene, self.sender, self.digest = scene, sender, NOTHING

    def next(self, r, *, signed=True, previous=None, value=0.0):
        previous = self.digest if previous is None else previous
        raw = self.scene.codec.row(np.full(2, value), sender=self.sender, round=r, previous=previous)
        self.digest = frame_digest(raw)
        return raw if signed else raw[:-64] + b"f" * 64


def series_of_all(scene, r, all_series, **row):
    """One round: the others sign, the first of them as ``row`` says."""
    for k, series in enumerate(all_series):
        scene.core.receive(0.0, series.sender, series.next(r, **(row if k == 0 else {})))


def test_a_false_signature_is_refused_at_the_first_row_and_where_a_series_breaks(scene):
    series = Series(scene)
    for previous in (NOTHING, b"x" * 32):
        with pytest.raises(FrameError, match="signature"):
            scene.core.receive(0.0, 1, series.next(0, signed=False, previous=previous))
    assert scene.core.inbox == {}


def test_one_signature_stands_for_a_series_and_a_false_one_is_refused_after_sixteen_rows():
    scene = Scene(steps=60)
    scene.hello()
    every = [Series(scene, s) for s in (1, 2, 3)]
    verified, verify = [], OpenSigner.verify
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpenSigner, "verify", lambda *row: verified.append(row) or verify(*row))
        for r in range(35):
            series_of_all(scene, r, every)
        assert len(verified) == 3 * 3  # the first row of each member, and every one after sixteen others
    for r in range(35, 35 + 16):
        series_of_all(scene, r, every, signed=False)
    before = scene.core.digest()
    for _ in range(2):
        with pytest.raises(FrameError, match="signature"):
            series_of_all(scene, 51, every, signed=False)
    assert scene.core.digest() == before
    assert scene.core.program.at == 51


def test_a_row_that_breaks_an_unsigned_series_is_refused(scene):
    """Its own signature is right, but nothing stands for the rows before."""
    every = [Series(scene, s) for s in (1, 2, 3)]
    series_of_all(scene, 0, every)
    series_of_all(scene, 1, every, signed=False)
    before = scene.core.digest()
    with pytest.raises(FrameError, match="last rows of member 1 are not signed"):
        series_of_all(scene, 2, every, previous=NOTHING)
    assert scene.core.digest() == before
    every[0].digest = scene.core.heard_of[1].newest[1][:32]
    series_of_all(scene, 2, every)  # continues the series; when it is verified, it stands for all
    assert scene.core.verified(1)


def test_a_late_row_of_an_earlier_round_does_not_continue_a_series(scene):
    series = Series(scene)
    scene.core.receive(0.0, 1, series.next(1))
    with pytest.raises(FrameError, match="signature"):
        scene.core.receive(0.0, 1, series.next(0, signed=False))
    scene.core.receive(0.0, 1, series.next(0))
    assert scene.core.heard_of[1].newest[0] == 1


def test_after_a_restart_the_next_row_is_verified(scene):
    every = [Series(scene, s) for s in (1, 2, 3)]
    for r in range(3):
        series_of_all(scene, r, every)
    again = scene.restarted()
    for s in (1, 2, 3):
        again.receive(0.0, s, scene.position(s))
    with pytest.raises(FrameError, match="signature"):
        again.receive(0.0, 1, every[0].next(3, signed=False))


def test_a_series_without_a_signature_gives_no_proof_and_no_receipt(scene):
    every = [Series(scene, s) for s in (1, 2, 3)]
    series_of_all(scene, 0, every)
    series_of_all(scene, 1, every, signed=False)
    scene.core.witnesses._sign_receipts()
    raw = scene.core.witnesses._map[RECEIPTS, 0].raw
    receipts = scene.codec.read_receipts(scene.codec.decode(raw)).receipts
    assert [each.rows for each in receipts] == [0, 0, 2, 2]
    scene.core.receive(0.0, 1, scene.row(1, 1, value=9.0))
    assert scene.core.incidents == ["second payload from member 1 for round 1"]
    assert scene.core.proofs == []


def test_a_run_does_not_end_on_rows_without_a_signature():
    scene = Scene(steps=4)
    scene.hello()
    every = [Series(scene, s) for s in (1, 2, 3)]
    for r in range(3):
        series_of_all(scene, r, every)
    with pytest.raises(PeerError, match="last rows of member 1 are not signed"):
        series_of_all(scene, 3, every, signed=False)
    assert not scene.core.finished
    assert scene.core.incidents == ["last rows of member 1 without its signature"]


def test_a_row_beyond_clip_and_noise_is_refused_with_a_proof(scene):
    scene.core.bound = 50.0
    bad = scene.row(1, 0, value=-50.1)
    for _ in range(2):
        with pytest.raises(FrameError, match="beyond what clip and noise allow"):
            scene.core.receive(0.0, 1, bad)
    assert scene.core.inbox == {}
    assert len(scene.core.incidents) == 1
    assert scene.codec.decode(bad).proof.hex() in scene.core.proofs[0]
    assert scene.restarted().proofs == scene.core.proofs
    scene.receive_rows(0, value=50.0)
    assert scene.core.program.at == 1


def test_rows_are_forgotten_when_all_have_used_them_and_the_spend_survives_a_restart(scene):
    for r in range(2):
        scene.receive_rows(r)
    assert sorted(scene.core.outbox) == [1, 2]
    assert sorted(scene.core.sent) == [0, 1, 2]
    spent, again = scene.core.spending.counts, scene.restarted()
    assert again.spending.counts == spent
    assert sum(spent.values()) == 3
    assert again.program.at == scene.core.program.at == 2


def test_keys_of_a_finished_step_are_given_up_with_the_first_row_of_the_next():
    """Rows within one step keep the key of the saved state; the first of a step replaces it."""
    scene, kept = Scene(protocols.Gossip(STAR, 3)), []
    commit = scene.core.store.commit
    scene.core.store.commit = lambda entry: (kept.append((entry.round, entry.same_keys)), commit(entry))
    scene.hello()
    for r in range(7):
        scene.receive_rows(r)
    assert kept == [(r, r % 3 != 0) for r in range(8)]


class TestDrop:
    """The rule `drop`: a question is durable before it is asked, and binds until it is answered."""

    def dropping(self):
        scene = Scene(drop_after=5.0)
        scene.hello()
        return scene

    def waiting(self):
        scene = self.dropping()
        scene.receive_rows(0, senders=(2, 3))
        out = scene.core.tick(6.0)
        assert kinds(out) == [POSITION, DROP]
        assert scene.disk.durable[-1].note == "ask 0 1"
        return scene

    def word(self, scene, *, ask, agreed, sender=1, r=0):
        return scene.codec.drop(r, sender=sender, ask=ask, agreed=agreed)

    def test_a_row_after_the_question_waits_for_the_answer(self):
        scene = self.waiting()
        assert scene.core.receive(6.0, 1, scene.row(1, 0)) == []
        assert scene.core.program.at == 0
        scene.core.receive(6.0, 1, self.word(scene, ask=False, agreed=False))
        assert scene.core.program.at == 1
        assert 0 in scene.core.heard_of[1].rows
        assert scene.core.dropped == set()

    def test_an_agreed_drop_is_final(self):
        scene = self.waiting()
        scene.core.receive(6.0, 1, self.word(scene, ask=False, agreed=True))
        assert scene.core.program.at == 1
        assert scene.core.dropped == {(0, 1)}
        assert scene.core.receive(6.0, 1, scene.row(1, 0)) == []
        assert 0 not in scene.core.heard_of[1].rows
        again = scene.restarted()
        assert again.dropped == {(0, 1)}
        assert again.proposed == set()

    def test_a_question_survives_a_restart(self):
        assert self.waiting().restarted().proposed == {(0, 1)}

    def test_a_used_row_cannot_be_dropped(self):
        scene = self.dropping()
        scene.receive_rows(0)
        out = scene.core.receive(0.0, 1, self.word(scene, ask=True, agreed=False))
        assert kinds(out) == [DROP, ROW]
        assert scene.codec.read_position(scene.codec.decode(out[0][1])).digest == NOTHING
        assert scene.core.dropped == set()

    def test_a_question_far_ahead_is_refused(self):
        scene = self.waiting()
        before, rows = scene.core.digest(), len(scene.disk.durable)
        with pytest.raises(FrameError, match="too far ahead"):
            scene.core.receive(6.0, 1, self.word(scene, ask=True, agreed=False, r=20))
        assert (scene.core.digest(), len(scene.disk.durable)) == (before, rows)

    def test_without_the_rule_the_question_is_refused(self, scene):
        with pytest.raises(FrameError, match="cannot be dropped"):
            scene.core.receive(0.0, 1, self.word(scene, ask=True, agreed=False))


def test_questions_slow_down_and_end():
    scene = Scene()
    scene.core.start(0.0)
    questions, now = [], 0.0
    with pytest.raises(LostPeer, match="did not come back"):  # noqa: PT012 - which tick raises is the question
        while now < 1000:
            now = max(now + 0.001, scene.core.next_tick)
            questions += scene.core.tick(now)
    assert 50 < now < 1000
    assert len(questions) < 120


def test_an_exception_in_the_program_stops_the_peer(scene):
    """A round that broke off half way is not built upon: nothing more is sent, whatever comes."""
    scene.core.program.receive = Mock(side_effect=ZeroDivisionError)
    scene.receive_rows(0, senders=(1, 2))
    for action in (
        lambda: scene.core.receive(0.0, 3, scene.row(3, 0)),
        lambda: scene.core.tick(1e6),
        lambda: scene.core.receive(1.0, 1, scene.position(1, answer=True)),
    ):
        with pytest.raises(PeerError, match="ZeroDivisionError"):
            action()


def test_a_row_leaves_when_all_members_hold_its_head():
    """With witness = 1: the head first, to everybody; the row only when all have said that they hold it."""
    scene = Scene(witness=1)
    core = scene.core
    out = scene.hello()
    assert kinds(core.start(0.0)) == [POSITION] * 3 + [SUMMARY] * 3 + [NEWS] * 3
    assert ROW not in kinds(out)
    assert not core.program.begun

    def answer(s, sequence):
        receipts = scene.receipts(s, 0, scene.own_head()[-96:-64], sequence=sequence)
        return kinds(core.receive(0.0, 1, scene.news(receipts, via=1)))

    for s in (1, 2):
        assert ROW not in answer(s, 1)
    before = scene.own_head()
    sent = answer(3, 1)  # all three have answered the start: the row is drawn, and its head is sent
    assert core.program.begun
    assert scene.own_head() != before
    assert NEWS in sent
    assert ROW not in sent
    assert ROW not in kinds(core.receive(5.0, 1, scene.position(1, answer=True)))
    for s in (1, 2):
        assert ROW not in answer(s, 2)
    assert answer(3, 2).count(ROW) == 3
    # a question that came while the row was withheld does not delay the answer to the next one
    assert ROW in kinds(core.receive(5.1, 1, scene.position(1, answer=True)))


@pytest.fixture
def witnessing():
    scene = Scene(witness=8)
    scene.hello()
    return scene


@pytest.mark.parametrize("way", ["alone", "inside receipts"])
def test_a_newer_own_head_stops_a_restart(way, witnessing):
    core = witnessing.core
    newer = witnessing.head(core.store.newest()[0] + 1, sender=0)
    item = newer if way == "alone" else witnessing.receipts(3, 0, newer=newer)
    with pytest.raises(LedgerError, match="signed by this peer"):
        core.receive(0.0, 1, witnessing.news(item, via=1))
    assert not core.program.begun


def test_an_older_head_after_a_start_is_answered_with_the_newer_one(witnessing):
    """The receipts carry it too: a contact that keeps it back must keep back the receipts."""
    core, newer = witnessing.core, witnessing.head(9, sender=3)
    core.receive(0.0, 1, witnessing.news(newer, via=1))
    core.tick(1.0)
    stale = witnessing.head(8, sender=3)  # of the same process: it only came late
    assert core.receive(2.0, 1, witnessing.news(stale, via=1)) == []
    older = witnessing.head(7, sender=3, nonce=b"k" * 32, sequence=99)
    out = core.receive(3.0, 2, witnessing.news(older, via=2))
    sent = {s: list(core.codec.parts(core.codec.decode(raw))) for s, raw in out}
    assert newer in sent[2]
    for parts in sent.values():
        receipts = next(each for each in parts if FrameCodec.kind_of(each) != HEAD)
        assert core.codec.read_receipts(core.codec.decode(receipts)).newer == newer


@pytest.mark.parametrize("sequence", [1, 2])
def test_two_heads_of_one_length_are_an_incident_with_both_signatures(sequence, witnessing):
    """Whichever of them counts as the newer one."""
    core = witnessing.core
    heads = [
        witnessing.head(9, head, sender=3, sequence=number, nonce=nonce)
        for head, number, nonce in ((b"a" * 32, sequence, b"m" * 32), (b"b" * 32, 3 - sequence, b"k" * 32))
    ]
    for raw in heads:
        core.receive(0.0, 1, witnessing.news(raw, via=1))
    assert core.incidents == ["two ledgers of member 3 with 9 rows"]
    assert all(core.codec.decode(raw).proof.hex() in core.proofs[0] for raw in heads)
    assert core.witnesses._map[HEAD, 3].raw == heads[sequence == 1]


def test_news_is_passed_on_once(witnessing):
    """Not to whom it came from, not when it comes again, and not what is older."""
    core, head = witnessing.core, witnessing.head(9, sender=3)
    sent = core.receive(1.0, 1, witnessing.news(head, via=1)) + core.tick(2.0)
    passed = [s for s, raw in sent if FrameCodec.kind_of(raw) == NEWS and head in raw]
    assert sorted(passed) == [2, 3]
    for now in range(3, 300):
        again = core.receive(float(now), 2, witnessing.news(head, witnessing.head(8, sender=3), via=2))
        assert again == []


def test_a_summary_brings_what_the_other_lacks(witnessing):
    core, head = witnessing.core, witnessing.head(9, sender=3)
    core.receive(1.0, 1, witnessing.news(head, via=1))
    core.tick(2.0)
    question = witnessing.codec.summary({}, sender=2, answer=True)
    out = core.receive(3.0, 2, question)
    assert kinds(out) == [SUMMARY, NEWS]
    assert head in out[1][1]
    held, _ = core.codec.read_summary(core.codec.decode(out[0][1]))
    answer = witnessing.codec.summary(held, sender=2, answer=False)
    assert core.receive(4.0, 2, answer) == []


def test_another_signed_model_stops_a_peer(witnessing):
    core = witnessing.core
    core.witnesses.step_done(1, b"a" * 32)
    same = witnessing.head(1, sender=3, at=1, step=1, chain=b"a" * 32)
    core.receive(0.0, 1, witnessing.news(same, via=1))
    other = witnessing.head(1, sender=3, at=1, step=1, chain=b"b" * 32, sequence=2)
    with pytest.raises(PeerError, match="another model after step 1"):
        core.receive(0.0, 1, witnessing.news(other, via=1))


def test_other_rows_at_another_neighbor_stop_a_peer(witnessing):
    core = witnessing.core
    core.heard_of[2].add(0, b"p" * 32)
    lineage = hashlib.sha256(b"p" * 32).digest()
    core.receive(0.0, 1, witnessing.news(witnessing.receipts(3, 2, rows=1, lineage=lineage), via=1))
    other = witnessing.receipts(3, 2, rows=1, lineage=b"q" * 32, sequence=2)
    with pytest.raises(PeerError, match="sent it other rows"):
        core.receive(0.0, 1, witnessing.news(other, via=1))


def test_history_is_bounded_and_positions_cost_the_same_after_many_rounds():
    """Old digests become one hash; what it says about all rows is what a list of all rows would say."""
    scene = Scene(steps=700)
    scene.hello()
    core, heard = scene.core, {}
    for r in range(600):
        scene.receive_rows(r)
        heard |= {r: proof[:32] for r, proof in core.heard_of[1].rows.items()}
        for s in (1, 2, 3):
            core.receive(0.0, s, scene.position(s, at=r + 1))
    assert core.program.at == 600
    for each in (core, Scene(steps=700, disk=scene.disk).core):
        assert len(each.sent) <= 260
        assert all(len(history.rows) <= 260 for history in each.heard_of.values())
        for at in (400, 599, 600):
            rows = hashlib.sha256(b"".join(heard[r] for r in range(at))).digest()
            assert each.heard_of[1].lineage(at) == rows
    # a neighbor that is far behind gets an answer, so that it learns of its own newer rows
    assert kinds(core.receive(1.0, 1, scene.position(1, at=3, answer=True)))[0] == POSITION
    assert core.incidents == []


def test_a_liar_adds_a_bounded_number_of_rows_to_the_ledger():
    scene = Scene(steps=200)
    scene.hello()
    before = len(scene.disk.durable)
    for r in range(1, 150):
        scene.core.receive(0.0, 1, scene.position(1, highest=r, digest=b"x" * 32))
    assert len(scene.disk.durable) - before == len(scene.core.incidents) == 16
    scene.core.receive(0.0, 2, scene.position(2, highest=1, digest=b"x" * 32))
    assert "unfounded claim of member 2 about round 1" in scene.core.incidents


@pytest.mark.parametrize("way", ["heads", "heads inside receipts", "nonces"])
def test_a_flood_of_signed_heads_is_refused_by_origin(way, witnessing):
    """Neither stored nor forwarded: the members behind this one never see it."""
    core, witnesses = witnessing.core, witnessing.core.witnesses
    before, passed, refused = len(witnessing.disk.durable), set(), 0
    for count in range(1, 1001):
        rows, nonce = (1, count.to_bytes(32, "big")) if way == "nonces" else (count, NOTHING)
        raw = head = witnessing.head(rows, sender=3, sequence=count, nonce=nonce)
        if way == "heads inside receipts":
            raw = witnessing.receipts(3, 3, newer=head, sequence=count)
        out = core.receive(count / 1000, 1, witnessing.news(raw, via=1))
        passed |= {part for _, raw in out for part in core.codec.parts(core.codec.decode(raw))}
        refused += len(witnesses.take_refused())
    assert refused > 900 or way == "heads inside receipts"
    assert sum(FrameCodec.kind_of(part) == HEAD for part in passed) <= 40
    assert len(witnessing.disk.durable) - before <= 40
    core.receive(1.0, 1, witnessing.news(witnessing.head(5, sender=2), via=1))  # others are not affected
    assert witnesses.heads[2].rows == 5
    core.receive(60.0, 1, witnessing.news(witnessing.head(2000, sender=3, sequence=2000), via=1))
    assert witnesses.heads[3].rows == 2000
