"""A whole peer: over memory and sockets, at an agreed pace, when the world around it fails, as a process."""

import asyncio
import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from unittest.mock import Mock

import numpy as np
import pytest
from tests.peers.conftest import Consortium

from sottovoce.errors import (
    ConfigError,
    DataError,
    FrameError,
    IdentityError,
    LostPeer,
    PeerError,
    SottovoceError,
    TryLater,
)
from sottovoce.ledger.run_ledger import read_ledger
from sottovoce.noise.samplers import SimulatedNoise
from sottovoce.peers import runtime
from sottovoce.peers.core import Timing
from sottovoce.peers.status import read_proof, read_status
from sottovoce.peers.transport import BAD_FRAME
from sottovoce.peers.wire_format import ROW, FrameCodec, frame_digest

LEARNING = {"name": "consensus-sgd", "protocol": "tree", "steps": 5, "noise_multiplier": 40.0}
LONG = {**LEARNING, "steps": 16, "noise_multiplier": 80.0}


# ---- in one process, over memory --------------------------------------------------------------------------


def test_peers_learn_together_over_memory(consortium, memory_links):
    group = consortium(n=3, graph="path:3", algorithm=LEARNING)
    connections = memory_links()
    outcomes = group.run(transport=connections)
    assert len({outcome.model.tobytes() for outcome in outcomes}) == 1
    assert np.isfinite(outcomes[0].model).all()
    assert connections.refused == 0
    assert connections.open == {}  # every peer has left
    for i, outcome in enumerate(outcomes):
        assert outcome.statement["finished"]
        assert outcome.statement["guarantee"]["releases"] == 5 == read_status(group.state(i))["releases"]
        # what went over the links is what the ledger says was sent, and nothing else
        proof = read_proof(group.state(i))
        rows = {
            frame_digest(raw).hex()
            for s, _, raw in connections.carried
            if s == i and FrameCodec.kind_of(raw) == ROW
        }
        assert rows == set(proof["sent"].values())


def test_lost_frames_are_requested_again(consortium, memory_links):
    """One row in three is lost on its first way; the models are those of a run without loss all the same."""
    group = consortium(n=3, graph="path:3", algorithm=LEARNING)
    connections, lost = memory_links(), set()

    class Lossy:
        def __init__(self, *arguments, **options):
            self.connection = connections(*arguments, **options)

        def __getattr__(self, name):
            return getattr(self.connection, name)

        def send(self, to, *frames):
            for raw in frames:
                if FrameCodec.kind_of(raw) == ROW and raw[-32] % 3 == 0 and (to, raw) not in lost:
                    lost.add((to, raw))
                else:
                    self.connection.send(to, raw)

    timing = Timing(retry_start=0.01, retry_row=0.02, retry_longest=0.05)
    outcomes = group.run(transport=Lossy, timing=timing)
    assert len({outcome.model.tobytes() for outcome in outcomes}) == 1
    assert all(outcome.statement["guarantee"]["releases"] == 5 for outcome in outcomes)


# ---- at an agreed pace ------------------------------------------------------------------------------------


class Clock:
    """A clock that only computing and sleeping move; the wall clock is nobody's business."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


class Slow:
    """A core whose computation takes so many seconds of the clock."""

    failed, finished, durable_at, waiting_for, incidents = None, False, 0, (), []

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.took = clock, seconds, []

    def receive(self, now, sender, raw):
        self.took.append(self.clock.now)
        self.clock.now += self.seconds
        if raw == b"bad":
            raise FrameError("no frame")
        return [(sender, b"answer to " + raw)]

    def tick(self, now):
        return []


@pytest.fixture
def paced(consortium, monkeypatch):
    def make(seconds):
        group = consortium(n=2, graph="path:2", timing={"pace": 0.5})
        first, second = group.peers(log=lambda event: None)
        second.ledger.close()
        clock = Clock()

        async def wait(event, seconds):
            event.close()
            clock.now += seconds

        monkeypatch.setattr(runtime, "time", clock)
        monkeypatch.setattr(runtime, "asyncio", types.SimpleNamespace(wait_for=wait))
        first._spans_from, first._log_waiting = 0.0, lambda now: None

        def push(seconds):
            clock.now += seconds

        first.transport.push = push
        first.core = Slow(clock, seconds)
        sent = []
        first._send = lambda out: sent.extend((clock.now, raw) for _, raw in out)
        first._log_round = lambda: None
        return first, clock, sent

    return make


@pytest.mark.parametrize(
    ("seconds", "resumes", "missed"), [(0.001, 0.25, 0), (0.245, 0.25, 0), (0.3, 0.75, 1), (0.8, 1.25, 1)]
)
@pytest.mark.parametrize("came", [0.01, 0.49])
def test_a_paced_peer_is_deaf_until_its_answer_has_left(came, seconds, resumes, missed, paced):
    """A neighbor chooses when its frame comes, just before a span too; it sees the span, not the work.

    The transport gets the answer at once, and holds it.
    """
    peer, clock, sent = paced(seconds)
    clock.now = 1000.0 + came
    peer._deliver(1, b"one")
    assert sent == []
    assert peer.core.took == []  # not looked at before the span begins
    asyncio.run(peer._paced_turn(0.5))
    assert peer.core.took == [1000.5]
    assert [when for when, _ in sent] == [pytest.approx(1000.5 + seconds)]
    assert clock.now == pytest.approx(1000.5 + resumes + 0.5 / 8)
    assert peer.pace_missed == missed
    peer.ledger.close()


def test_a_peer_stopped_before_its_answer_leaves_waits_no_longer(paced):
    peer, clock, _ = paced(0.01)
    peer._deliver(1, b"one")
    peer.transport.push = lambda seconds: peer.request_stop()
    asyncio.run(peer._paced_turn(0.5))
    assert clock.now == pytest.approx(1000.51)
    peer.ledger.close()


@pytest.mark.parametrize(
    ("pace", "phase"), [(120.0, None), (24.0, 1.0)], ids=["anywhere", "before an answer"]
)
def test_sigterm_ends_a_paced_process_at_once(pace, phase, consortium):
    """In any part of a span of two minutes, and in the half of a short one in which its loop stands still."""
    group = consortium(n=2, graph="path:2", timing={"pace": pace})
    process = group.start(0)
    try:
        for line in process.stdout:
            if json.loads(line)["event"] == "listening":
                break
        if phase is not None:  # spans begin with the wall clock
            time.sleep((phase - time.time()) % pace)
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == 75
        assert time.monotonic() - begun < 8  # the answer would have left 11 seconds later, or 60
    finally:
        process.kill()
        process.communicate()


def test_a_span_takes_a_bounded_number_of_frames(paced):
    peer, _, sent = paced(0.0)
    peer._deliver(1, b"bad")
    peer._deliver(1, b"good")
    asyncio.run(peer._paced_turn(0.5))
    assert [raw for _, raw in sent] == [b"answer to good"]
    assert peer.transport.refusals["m1", BAD_FRAME] == 1
    for _ in range(runtime._FRAMES_PER_TURN):
        peer._deliver(1, b"more")
    with pytest.raises(FrameError, match="one span"):
        peer._deliver(1, b"more")
    peer.ledger.close()


def test_a_paced_run_gives_the_same_model(consortium, memory_links):
    algorithm = {**LEARNING, "steps": 3, "noise_multiplier": 60.0}
    models = []
    for timing in ({}, {"pace": 0.02}):
        group = consortium(n=2, graph="path:2", algorithm=algorithm, epsilon=200.0, timing=timing)
        noises = [SimulatedNoise(3) for _ in range(2)]
        outcomes = group.run(noises=noises, transport=memory_links())
        models.append([outcome.model for outcome in outcomes])
        for i in range(2):
            group.state(i).rename(group.folder / f"{'paced' if timing else 'free'}{i}")
    assert np.array_equal(models[0], models[1])


# ---- endings ----------------------------------------------------------------------------------------------


async def under_way(group):
    """Start all members and return when the middle one is a few rounds into the run."""
    peers = group.peers()
    tasks = [asyncio.create_task(peer.run()) for peer in peers]
    for _ in range(4000):
        await asyncio.sleep(0.005)
        if peers[1].core.durable_at > 6:
            return peers, tasks
    raise AssertionError("the run did not begin")


def test_a_full_disk_keeps_the_old_model_and_the_run_can_continue(
    consortium, files_no_larger_than, tmp_path, monkeypatch
):
    """ENOSPC in the last moment: the sentence, no half file, and the next start writes the model."""
    (tmp_path / "model").write_bytes(b"old")
    with files_no_larger_than(1_000), pytest.raises(DataError):
        runtime.atomic_write(tmp_path / "model", bytes(5_000), mode=0o600)
    assert (tmp_path / "model").read_bytes() == b"old"
    assert [file.name for file in tmp_path.glob("*model*")] == ["model"]

    def full(path, content, **options):
        raise DataError(f"{path} cannot be written: {os.strerror(errno.ENOSPC)}.")

    group = consortium(n=2, graph="path:2")
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "atomic_write", full)

        async def together():
            return await asyncio.gather(*[p.run() for p in group.peers()], return_exceptions=True)

        ends = asyncio.run(together())
    assert all(isinstance(end, ConfigError) and "Make room" in str(end) for end in ends), ends
    again = group.run()  # the folders are free, and nothing is drawn twice
    assert again[0].model.tobytes() == np.load(group.state(0) / "model.npz")["parameters"].tobytes()
    assert read_status(group.state(0))["releases"] == 1


def test_an_expired_certificate_ends_the_run_with_everything_recorded(consortium):
    """I4: no connection outlives its certificate; each side ends with a sentence, nothing is lost."""
    group = consortium(n=3, graph="path:3", algorithm=LONG, epsilon=200.0)

    async def scene():
        peers, tasks = await under_way(group)
        late = time.time() + 86_400 * 4000
        for peer in peers:
            peer.transport.clock = lambda: late
        taken = {peer.node: peer.core.digest() for peer in peers}
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        return peers, taken, ends

    peers, taken, ends = asyncio.run(scene())
    assert all(isinstance(end, IdentityError) and "expired during the run" in str(end) for end in ends), ends
    for peer in peers:
        assert peer.core.digest() == taken[peer.node]  # not one more frame was taken
        statement = json.loads((group.state(peer.node) / "statement.json").read_text())
        assert statement["guarantee"]["releases"] == read_status(group.state(peer.node))["releases"] > 0


def test_a_stopped_peer_writes_its_model_and_continues_later(consortium):
    group = consortium(n=3, graph="path:3", algorithm=LONG, epsilon=200.0)

    async def scene():
        peers, tasks = await under_way(group)
        peers[1].stop()
        with pytest.raises(PeerError, match="start the same command again to go on"):
            await tasks[1]
        statement = json.loads((group.state(1) / "statement.json").read_text())
        assert not statement["finished"]
        assert statement["guarantee"]["releases"] == read_status(group.state(1))["releases"] > 0
        again = runtime.Peer(
            runtime.PeerConfig(group.agreement, group.identities[1], group.records[1], group.state(1))
        )
        return await asyncio.gather(tasks[0], again.run(), tasks[2])

    outcomes = asyncio.run(scene())
    assert len({outcome.model.tobytes() for outcome in outcomes}) == 1


# ---- real processes ---------------------------------------------------------------------------------------


def finish(processes, seconds=300):
    deadline = time.monotonic() + seconds
    ends = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        ends.append((process.returncode, out, err))
    return ends


TRACED = """
import os
import sys
from types import SimpleNamespace
from sottovoce.ledger import run_ledger
if {forgetful}:
    run_ledger.os = SimpleNamespace(**{{**vars(os), "fdatasync": lambda file: None}})
from sottovoce.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("forgetful", [False, True], ids=["synced", "planted: no sync"])
def test_every_send_follows_its_sync(forgetful, consortium):
    """I1 by system calls: the first byte of every row leaves after the ledger was synced."""
    dim, rounds = 25_000, 5
    group = consortium(
        n=2, graph="path:2", algorithm={"protocol": f"gossip:{rounds}"}, dim=dim, timing={"ask_again": 300.0}
    )
    runner = group.folder / "traced.py"
    runner.write_text(TRACED.format(forgetful=forgetful))
    trace = group.folder / "trace"
    other = group.start(1)
    calls = "trace=fdatasync,fsync,sendmsg,sendto,write,writev"
    watched = group.start(0, out=subprocess.DEVNULL)
    watched.kill()
    watched.communicate()
    shutil.rmtree(group.state(0), ignore_errors=True)
    words = watched.args[watched.args.index("peer") :]
    traced = subprocess.Popen(
        ["strace", "-f", "-qq", "-y", "-e", calls, "-e", "signal=none", "-o", trace, sys.executable, runner,
         *words],
        env=group.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    ends = finish([traced, other])
    if "ptrace" in ends[0][2] or "Operation not permitted" in ends[0][2]:
        pytest.skip("this machine does not allow tracing")
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert order_holds(trace.read_text(), frame=8 * dim) is not forgetful


CALL = re.compile(r"^(\d+) +(?:<\.\.\. )?(\w+)(?:\((.*)| resumed>(.*))$")


def order_holds(trace, frame):
    """Return whether the first bytes of every row left after the commit of that row.

    A commit is a sync of the ledger, the first one also of the key of states, whose keys it replaces; it
    counts when it returns, a send when it begins. Only calls that move more than 10,000 bytes belong to rows;
    a row is over when a frame's worth of bytes has gone. A member that asks is sent a row once more, which is
    no new row.
    """
    begun, commits_before, gone = {}, [], frame
    commits, keys = -1, -1  # both files are synced once before the first row
    for line in trace.splitlines():
        match = CALL.match(line)
        if match is None:  # a signal, or the end of a process
            continue
        process, call, opened, resumed = match.groups()
        if opened is not None:
            begun[process] = (opened, min(commits, 0) if keys < 1 else commits)
        text, at_start = begun.get(process, ("", 0))
        if "unfinished" in line:
            continue
        result = re.search(r"= (-?\d+)[^=]*$", resumed or opened or "")
        moved = int(result.group(1)) if result else 0
        if call in ("fdatasync", "fsync") and moved == 0:
            keys += "state.key" in text
            commits += "run.ledger" in text
        elif moved > 10_000 and ("socket:" in text or "TCP" in text):
            if gone > 0.9 * frame:  # the last piece may be small
                commits_before.append(at_start)
                gone = 0
            gone += moved
    again = len(commits_before) - 5
    assert 0 <= again <= 2, f"{len(commits_before)} rows were seen in the trace"
    return all(before + again > row for row, before in enumerate(commits_before))


def test_killed_peers_continue_to_the_same_model(consortium):
    """P4 over real sockets: SIGKILL at random moments, start again, every member ends with the same bits."""
    group = consortium(n=3, graph="path:3", algorithm={**LONG, "steps": 60}, epsilon=200.0)
    rng = np.random.default_rng(5)
    running = [group.start(i) for i in range(3)]
    for _ in range(3):
        time.sleep(1.2 + float(rng.random()))
        victim = int(rng.integers(3))
        running[victim].send_signal(signal.SIGKILL)
        running[victim].communicate()
        running[victim] = group.start(victim)
    ends = finish(running)
    assert [code for code, _, _ in ends] == [0, 0, 0], ends
    models = [np.load(group.state(i) / "model.npz")["parameters"] for i in range(3)]
    assert models[0].tobytes() == models[1].tobytes() == models[2].tobytes()
    for i in range(3):
        statement = json.loads((group.state(i) / "statement.json").read_text())
        assert statement["finished"]
        assert statement["incidents"] == []
        assert statement["guarantee"]["releases"] >= 60


def test_events_and_files_do_not_depend_on_data(tmp_path_factory):
    """I12 on real processes: events, exit codes, files and their sizes do not depend on the records."""
    seen = []
    for seed, shift in ((0, 0.0), (1, 1e6)):
        group = Consortium(tmp_path_factory.mktemp("run"), n=3, graph="path:3", seed=seed)
        group.records = [r._replace(X=r.X + shift) for r in group.records]
        ends = finish([group.start(i) for i in range(3)])
        events = [[event for line in out.splitlines() if (event := masked(line))] for _, out, _ in ends]
        statement = [json.loads((group.state(i) / "statement.json").read_text()) for i in range(3)]
        for each in statement:
            each.pop("run_id")
        sizes = [(group.state(i) / "model.npz").stat().st_size for i in range(3)]
        seen.append(([code for code, _, _ in ends], events, statement, sizes, [err for _, _, err in ends]))
    assert seen[0] == seen[1]
    assert seen[0][0] == [0, 0, 0]


def masked(line):
    """Who is waited for, who called whom and when is timing, not data; the rest must be equal."""
    event = json.loads(line)
    if event["event"] in ("connected", "trouble", "lost"):
        return None
    for name in ("waiting", "run_id", "model", "statement", "saved_model", "time", "address"):
        event.pop(name, None)
    return event


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_signals_end_the_command(number, code, consortium):
    group = consortium(n=2, graph="path:2")
    waiting = group.start(0)
    assert json.loads(waiting.stdout.readline())["event"] == "listening"
    waiting.send_signal(signal.SIGHUP)  # a terminal that closes ends nothing
    time.sleep(0.3)
    assert waiting.poll() is None
    waiting.send_signal(number)
    out, err = waiting.communicate(timeout=60)
    assert (waiting.returncode, err) == (code, "")
    if number == signal.SIGTERM:
        assert "start the same command again" in json.loads(out.splitlines()[-1])["error"]
    assert read_ledger(group.state(0))["rows"] == 0


def test_a_lost_peer_ends_the_run_with_everything_recorded(consortium):
    """A neighbor that never comes back: one sentence, the spend on record, the last model kept."""
    algorithm = {"name": "consensus-sgd", "protocol": "tree", "steps": 400, "noise_multiplier": 120.0}
    group = consortium(n=3, graph="path:3", algorithm=algorithm, epsilon=500.0)
    timing = Timing(retry_row=0.1, retry_longest=0.2, give_up=60.0)

    async def scene():
        peers = group.peers(timing=timing)
        tasks = [asyncio.create_task(peer.run()) for peer in peers]
        for _ in range(8000):
            await asyncio.sleep(0.005)
            if peers[2].core.durable_at > 8:
                break
        for peer in peers:  # patient at the start, when everything is loaded; not any more
            peer.core.timing = timing._replace(give_up=1.5)
        tasks[2].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    ends = asyncio.run(scene())
    assert any(isinstance(end, LostPeer) for end in ends[:2]), ends
    assert all(isinstance(end, SottovoceError) for end in ends[:2]), ends
    status = read_status(group.state(1))
    statement = json.loads((group.state(1) / "statement.json").read_text())
    assert not status["finished"]
    assert not statement["finished"]
    assert status["releases"] == statement["guarantee"]["releases"] > 0
    assert np.load(group.state(1) / "model.npz")["parameters"].shape == (3,)


def test_an_unwritable_log_stops_a_run_that_goes_on_later(consortium):
    group = consortium(n=2, graph="path:2")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def play():
        peers = group.peers()
        for peer in peers:
            peer.config = dataclasses.replace(peer.config, log=Mock(side_effect=full))
        return await asyncio.gather(*[peer.run() for peer in peers], return_exceptions=True)

    for problem in asyncio.run(play()):
        assert isinstance(problem, TryLater)
        assert "The log cannot be written (No space left on device)" in str(problem)
    assert [outcome.rounds for outcome in group.run()] == [4, 4]


@pytest.mark.parametrize(("jump", "error"), [(0.0, IdentityError), (90 * 86400.0, TryLater)])
def test_a_clock_that_jumped_is_distinguished_from_an_expired_certificate(jump, error, consortium):
    first, second = consortium(n=2, graph="path:2").peers()
    first._clock_ahead -= jump
    problem = first._expired("m1")
    assert isinstance(problem, error)
    assert ("clock jumped (90 d 0 h ahead)" in str(problem)) == bool(jump)
    for peer in (first, second):
        peer.ledger.close()
