"""Real processes: kill -9, the order of system calls, equal logs for other data, and the example."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sottovoce.errors import PeerError
from sottovoce.ledger.run_ledger import read_ledger

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def command(*words):
    return [sys.executable, "-m", "sottovoce.cli.main", "peer", *map(str, words)]


def start(group, i, *, prefix=(), extra=(), out=subprocess.PIPE):
    """Start the real command for member i."""
    data = group.folder / f"data{i}.npz"
    if not data.exists():
        np.savez(data, X=group.records[i].X, y=group.records[i].y)
    key = group.folder / f"identity{i}"
    if not key.exists():
        key.mkdir(mode=0o700)
        for name, content in (
            ("key.pem", group.identities[i].key),
            ("certificate.pem", group.identities[i].certificate),
        ):
            (key / name).touch(mode=0o600)
            (key / name).write_bytes(content)
    words = (
        "run",
        group.file,
        "--identity",
        key,
        "--data",
        data,
        "--state",
        group.state(i),
        "--json",
        *extra,
    )
    return subprocess.Popen(
        [*prefix, *command(*words)], env=ENVIRONMENT, stdout=out, stderr=subprocess.PIPE, text=True
    )


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
import sys, sqlite3
from sottovoce.ledger import run_ledger as ledger
if {forgetful}:
    opened = ledger.RunLedger._open
    def forget(self, about):
        opened(self, about)
        self._connection.execute("PRAGMA synchronous=OFF")
    ledger.RunLedger._open = forget
from sottovoce.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("forgetful", [False, True], ids=["synced", "planted: no sync"])
def test_every_send_follows_its_sync(forgetful, consortium):
    """I1 by system calls: the first byte of every row leaves after the ledger's log was synced."""
    dim, rounds = 25_000, 5
    group = consortium(
        n=2, graph="path:2", algorithm={"protocol": f"gossip:{rounds}"}, dim=dim, timing={"ask_again": 300.0}
    )
    runner = group.folder / "traced.py"
    runner.write_text(TRACED.format(forgetful=forgetful))
    trace = group.folder / "trace"
    other = start(group, 1)
    calls = "trace=fdatasync,fsync,sendmsg,sendto,write,writev"
    watched = start(group, 0, out=subprocess.DEVNULL)
    watched.kill()
    watched.communicate()
    shutil.rmtree(group.state(0), ignore_errors=True)
    words = watched.args[watched.args.index("peer") :]
    traced = subprocess.Popen(
        ["strace", "-f", "-qq", "-y", "-e", calls, "-o", trace, sys.executable, runner, *words],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    ends = finish([traced, other])
    if "ptrace" in ends[0][2] or "Operation not permitted" in ends[0][2]:
        pytest.skip("this machine does not allow tracing")
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert order_holds(trace.read_text(), frame=8 * dim) is not forgetful


CALL = re.compile(r"^(\d+) +(?:<\.\.\. )?(\w+)(?:\((.*)| resumed>(.*))$")


def order_holds(trace, frame):
    """Return whether the first bytes of every row left after a sync that followed the row before.

    A sync counts when it returns, a send when it begins. Only calls that move more than 10,000 bytes belong
    to rows; a row is over when a frame's worth of bytes has gone.
    """
    begun, rows, gone, synced = {}, 0, frame, False
    for line in trace.splitlines():
        process, call, opened, resumed = CALL.match(line).groups()
        if opened is not None:
            begun[process] = (opened, synced)
        text, at_start = begun.get(process, ("", False))
        if "unfinished" in line:
            continue
        result = re.search(r"= (-?\d+)[^=]*$", resumed or opened or "")
        moved = int(result.group(1)) if result else 0
        if call in ("fdatasync", "fsync"):
            synced |= "ledger.sqlite-wal" in text and moved == 0
        elif moved > 10_000 and ("socket:" in text or "TCP" in text):
            if gone >= frame:
                if not at_start:
                    return False
                rows, gone, synced = rows + 1, 0, False
            gone += moved
    assert rows == 5, f"{rows} rows were seen in the trace"
    return True


def test_a_killed_peer_goes_on_and_all_end_with_the_same_model(consortium):
    """P4 over real gRPC: SIGKILL at random moments, start again, every member ends with the same bits."""
    algorithm = {"name": "consensus-sgd", "protocol": "tree", "steps": 60, "noise_multiplier": 80.0}
    group = consortium(n=3, graph="path:3", algorithm=algorithm, epsilon=200.0)
    rng = np.random.default_rng(5)
    running = [start(group, i) for i in range(3)]
    for _ in range(3):
        time.sleep(1.2 + float(rng.random()))
        victim = int(rng.integers(3))
        running[victim].send_signal(signal.SIGKILL)
        running[victim].communicate()
        running[victim] = start(group, victim)
    ends = finish(running)
    assert [code for code, _, _ in ends] == [0, 0, 0], ends
    models = [np.load(group.state(i) / "model.npz")["parameters"] for i in range(3)]
    assert models[0].tobytes() == models[1].tobytes() == models[2].tobytes()
    for i in range(3):
        said = json.loads((group.state(i) / "statement.json").read_text())
        assert said["finished"]
        assert said["incidents"] == []
        assert said["guarantee"]["releases"] >= 60


def test_two_runs_on_other_data_look_alike(tmp_path_factory):
    """I12 on real processes: events, exit codes, files and their sizes do not depend on the records."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("peer_consortium", Path(__file__).with_name("conftest.py"))
    helper = module_from_spec(spec)
    spec.loader.exec_module(helper)
    seen = []
    for seed, shift in ((0, 0.0), (1, 1e6)):
        group = helper.Consortium(tmp_path_factory.mktemp("run"), n=3, graph="path:3", seed=seed)
        group.records = [r._replace(X=r.X + shift) for r in group.records]
        ends = finish([start(group, i) for i in range(3)])
        events = [[told for line in out.splitlines() if (told := masked(line))] for _, out, _ in ends]
        said = [json.loads((group.state(i) / "statement.json").read_text()) for i in range(3)]
        for each in said:
            each.pop("run")
        sizes = [(group.state(i) / "model.npz").stat().st_size for i in range(3)]
        seen.append(([code for code, _, _ in ends], events, said, sizes, [err for _, _, err in ends]))
    assert seen[0] == seen[1]
    assert seen[0][0] == [0, 0, 0]


def masked(line):
    """Who is waited for, who called whom and when is timing, not data; the rest must be equal."""
    event = json.loads(line)
    if event["event"] in ("connected", "trouble", "lost"):
        return None
    for name in ("waiting", "run", "model", "statement", "saved_model", "time", "address"):
        event.pop(name, None)
    return event


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_signals_end_the_command_in_order(number, code, consortium):
    group = consortium(n=2, graph="path:2")
    waiting = start(group, 0)
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


def test_a_restored_backup_is_noticed_although_the_neighbor_was_restored_too(consortium):
    """I17: m0 and its only neighbor are set back together; m2, at the far end, remembers: nothing leaves."""
    learning = {"name": "dp-dsgd", "protocol": "gossip:1", "steps": 4000, "learning_rate": 0.1,
                "noise_multiplier": 50.0}  # fmt: skip
    group = consortium(3, "path:3", learning, timing={"witness": 1, "ask_again": 0.2, "give_up": 600.0})
    running = {i: start(group, i, out=subprocess.DEVNULL) for i in range(3)}

    def reach(rows):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                if len(read_ledger(group.state(0))["saved"].sent) >= rows:
                    return
            except PeerError:
                pass
            time.sleep(0.2)
        raise AssertionError(f"{rows} rows were not reached")

    def stop():
        for i in (0, 1):
            running[i].send_signal(signal.SIGTERM)
        finish([running[0], running[1]], 60)

    try:
        reach(3)
        stop()
        for i in (0, 1):
            shutil.copytree(group.state(i), group.folder / f"backup{i}")
        running |= {i: start(group, i, out=subprocess.DEVNULL) for i in (0, 1)}
        kept = len(read_ledger(group.folder / "backup0")["saved"].sent)
        reach(kept + 3)
        stop()
        for i in (0, 1):
            shutil.rmtree(group.state(i))
            shutil.copytree(group.folder / f"backup{i}", group.state(i))
        running |= {i: start(group, i) for i in (0, 1)}
        ends = {}
        deadline = time.monotonic() + 60
        while not ends and time.monotonic() < deadline:
            ends = {i: running[i].poll() for i in (0, 1) if running[i].poll() is not None}
            time.sleep(0.2)
        assert ends, "nobody noticed"
        assert all("copied or is an older one" in "".join(running[i].communicate()) for i in ends)
        time.sleep(1.0)
        assert len(read_ledger(group.state(0))["saved"].sent) == kept
    finally:
        for process in running.values():
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
