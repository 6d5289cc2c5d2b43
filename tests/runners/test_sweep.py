"""Sweeps: every trial once, whatever is interrupted; seeds that depend on the trial alone."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sottovoce
from sottovoce.errors import ClusterError, ConfigError, InvalidInput
from sottovoce.runners import Result
from sottovoce.runners.sweep import Trial, grid, read_trial, seed_of, sweep, write_trial
from sottovoce_papers.sweep import audit_trial


def counting(folder):
    """A trial that leaves a line wherever it runs (nested, so that workers get it by value)."""

    def trial(*, seed, n, repeat=0):
        with open(folder / "ran.txt", "a") as file:
            file.write(f"n={n} repeat={repeat}\n")
        return Result("trial", config={"n": n}, metrics={"drawn": seed % 1000})

    return trial


def lines(folder):
    return sorted((folder / "ran.txt").read_text().splitlines())


def test_a_second_run_repeats_nothing(tmp_path):
    function, trials = counting(tmp_path), grid(n=[1, 2], repeat=range(2))
    seen = []
    first = sweep(function, trials, tmp_path / "out", progress=seen.append)
    again = sweep(function, trials, tmp_path / "out")
    assert first == again
    assert lines(tmp_path) == sorted(trial.name for trial in trials)
    assert seen == [0, 1, 2, 3, 4]
    assert [record["value"]["config"]["n"] for record in first] == [1, 1, 2, 2]
    more = sweep(function, grid(n=[1, 2, 3], repeat=range(2)), tmp_path / "out")
    assert len(lines(tmp_path)) == 6
    assert more[:4] == first  # what was there keeps its seed and its record


def test_other_options_or_another_seed_are_other_trials(tmp_path):
    function = counting(tmp_path)
    a = sweep(function, [Trial("same", {"n": 1})], tmp_path / "out")
    b = sweep(function, [Trial("same", {"n": 2})], tmp_path / "out")
    c = sweep(function, [Trial("same", {"n": 1})], tmp_path / "out", seed=1)
    assert len(lines(tmp_path)) == 3
    assert a[0]["seed"] == b[0]["seed"] == seed_of(0, "same") != c[0]["seed"]


def test_workers_give_the_records_of_one_process(tmp_path):
    trials = grid(graph=["path:3", "ring:5"], runs=[400], repeat=range(2))
    alone = sweep(audit_trial, trials, tmp_path / "alone")
    spread = sweep(audit_trial, trials, tmp_path / "spread", jobs=2)
    assert [r["value"] for r in alone] == [r["value"] for r in spread]
    assert len({r["seed"] for r in alone}) == 4


def test_a_failing_trial_does_not_stop_the_others(tmp_path):
    def fragile(*, seed, n):
        if n == 1 and not (tmp_path / "mended").exists():
            raise InvalidInput("n must not be 1.")
        with open(tmp_path / "ran.txt", "a") as file:
            file.write(f"{n}\n")
        return n

    with pytest.raises(ClusterError, match="1 of 3 trials failed, first n=1: n must not be 1"):
        sweep(fragile, grid(n=[0, 1, 2]), tmp_path / "out")
    (tmp_path / "mended").touch()
    assert [r["value"] for r in sweep(fragile, grid(n=[0, 1, 2]), tmp_path / "out")] == [0, 1, 2]
    assert lines(tmp_path) == ["0", "1", "2"]


def test_a_killed_worker_is_named_and_the_same_call_goes_on(tmp_path):
    def mortal(*, seed, n):
        if n == 3 and not (tmp_path / "mended").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        with open(tmp_path / "ran.txt", "a") as file:
            file.write(f"{n}\n")
        return n

    trials = grid(n=range(6))
    with pytest.raises(ClusterError, match=r"loky worker died, or .*start the same command again"):
        sweep(mortal, trials, tmp_path / "out", jobs=2)
    finished = {json.loads(path.read_text())["value"] for path in (tmp_path / "out").glob("*.json")}
    assert len(finished & {0, 1, 2}) >= 2  # of two workers one takes 3 after two others have ended
    assert 3 not in finished
    (tmp_path / "mended").touch()
    assert [r["value"] for r in sweep(mortal, trials, tmp_path / "out", jobs=2)] == list(range(6))
    # a trial that was cut off when its pool fell may run again; one that ended never does
    ran = lines(tmp_path)
    assert all(ran.count(str(n)) == 1 for n in finished)


@pytest.mark.parametrize(
    ("words", "trials", "options"),
    [
        ("Two trials are called 'a'", [Trial("a"), Trial("a")], {}),
        ("seeds are derived", grid(seed=[1]), {}),
        ("backend must be", [], {"backend": "slurm"}),
        ("jobs", [], {"jobs": 0}),
    ],
)
def test_invalid_sweeps_are_refused(words, trials, options, tmp_path):
    with pytest.raises(InvalidInput, match=words):
        sweep(audit_trial, trials, tmp_path, **options)


PLAN = """
version = 1
[network]
graph = "ring:8"
[data]
name = "breast_cancer"
bounds = "none"
unit_rows = true
test_share = 0.25
[train]
algorithm = "consensus-sgd"
adjacency = "add-remove"
steps = 5
clip_norm = 1.0
learning_rate = 1.0
[budget]
epsilon = 1.0
delta = 1e-4
"""


@pytest.mark.parametrize("backend", ["ray", "dask"])
def test_engines_sweep_a_plan_file_as_one_process_does(tmp_path, backend):
    pytest.importorskip("ray" if backend == "ray" else "distributed")
    (tmp_path / "plan.toml").write_text('accept = ["held-out score"]\n' + PLAN)
    (tmp_path / "elsewhere").mkdir()  # workers must not need to stand beside the plan
    env = {**os.environ, "PYTHONPATH": str(Path(sottovoce.__file__).parents[1])}
    command = [sys.executable, "-m", "sottovoce", "sweep", "../plan.toml", "--epsilon", "0.5,1"]
    tables = []
    for engine in ("loky", backend):
        options = ["--network", "ring:8,complete:8", "--backend", engine, "--out", f"{engine}.csv"]
        done = subprocess.run(
            [*command, *options], env=env, cwd=tmp_path / "elsewhere", capture_output=True, timeout=500
        )
        assert (done.returncode, done.stderr) == (0, b"")
        tables.append((tmp_path / "elsewhere" / f"{engine}.csv").read_text())
    assert tables[0] == tables[1]
    assert tables[0].count("\n") == 5


def test_one_store_of_records(tmp_path):
    path = tmp_path / "new" / "trial.json"
    result = {"cell": {"epsilon": 10, "sizes": (1, 2)}, "accuracy": 90.5}
    write_trial(path, result)
    assert read_trial(path, cell=result["cell"]) == {
        "cell": {"epsilon": 10, "sizes": [1, 2]},
        "accuracy": 90.5,
    }
    with pytest.raises(ConfigError, match=r"trial\.json was made with a different value of cell"):
        read_trial(path, cell={**result["cell"], "epsilon": 5})
    with pytest.raises(ConfigError, match="value of settings"):  # it knows none
        read_trial(path, settings={})
    write_trial(None, result)
    assert read_trial(None) is None
    assert read_trial(tmp_path) is None


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe", b""])
def test_a_damaged_record_is_named_not_run_over(tmp_path, content):
    function, out = counting(tmp_path), tmp_path / "out"
    sweep(function, [Trial("a", {"n": 1})], out)
    (path,) = out.glob("*.json")
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"\.json is not a result; remove it to run the trial again"):
        sweep(function, [Trial("a", {"n": 1})], out)
    path.unlink()
    sweep(function, [Trial("a", {"n": 1})], out)
    assert len(lines(tmp_path)) == 2


def test_workers_that_stand_elsewhere_write_where_they_were_told(tmp_path, monkeypatch):
    function = counting(tmp_path)
    for name in ("one", "two"):  # the second time the workers of the first are used again
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        sweep(function, grid(n=[1, 2]), "out", jobs=2)
    assert len(list(tmp_path.glob("one/out/*.json"))) == len(list(tmp_path.glob("two/out/*.json"))) == 2
    assert len(lines(tmp_path)) == 4
    sweep(function, grid(n=[1, 2, 3]), "third", jobs=2)
    assert not (tmp_path / "one" / "third").exists()
