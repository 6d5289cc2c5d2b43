"""`sottovoce train FILE.toml --ranks N`: the bytes of one process, and one sentence when it cannot be."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import sottovoce
from sottovoce.cli.train import read_training, run_training

PLAN = """version = 1
[data]
name = "breast_cancer"
unit_rows = true
[network]
graph = "ring:5"
[protocol]
name = "gossip"
rounds = 2
[train]
algorithm = "muffliato-sgd"
adjacency = "user"
clip_norm = 1.0
steps = 4
learning_rate = 0.5
[noise]
noise_multiplier = 2.0
seed = 3
"""


NETWORK = """version = 1
[network]
graph = "ring:5"
[data]
name = "digits"
[model]
name = "mlp"
options = { inputs = 64, hidden = 4 }
[train]
algorithm = "dp-dsgt"
adjacency = "add-remove"
clip_norm = 1.0
steps = 40
batch_size = 16
accounting = "rdp"
evaluate_every = 1
[noise]
noise_multiplier = 1.0
seed = 1
"""


def started(folder, *words, plan=PLAN):
    (folder / "plan.toml").write_text(plan)
    source = str(Path(sottovoce.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-m", "sottovoce.cli.main", "train", "plan.toml", "--json", *words],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "SOTTOVOCE_TIMEOUT": "100"},
    )  # fmt: skip


def sottovoce_train(folder, *words, plan=PLAN):
    running = started(folder, *words, plan=plan)
    out, err = running.communicate(timeout=300)
    return subprocess.CompletedProcess(words, running.returncode, out, err)


def test_ranks_give_the_model_of_one_process(tmp_path):
    alone = sottovoce_train(tmp_path)
    split = sottovoce_train(tmp_path, "--ranks", "2", "--checkpoint", "checkpoint")
    assert split.returncode == 0, split.stderr
    one, two = json.loads(alone.stdout), json.loads(split.stdout)
    assert one["outputs"] == two["outputs"]
    assert one["metrics"] == two["metrics"]
    assert two["provenance"]["ranks"] == 2
    assert json.loads((tmp_path / "checkpoint" / "current.json").read_text())["step"] == 4


def test_too_many_ranks_is_one_sentence_and_exit_1(tmp_path):
    done = sottovoce_train(tmp_path, "--ranks", "3", plan=PLAN.replace("ring:5", "path:2"))
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"error": "3 ranks cannot share 2 agents; start at most 2 ranks."}
    assert done.stderr == ""


def test_an_interrupted_network_goes_on_with_other_ranks(tmp_path):
    current = tmp_path / "checkpoint" / "current.json"
    running = started(tmp_path, "--ranks", "2", "--checkpoint", "checkpoint", plan=NETWORK)
    deadline = time.monotonic() + 200
    while not current.exists() and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGTERM)  # all at once, as a scheduler does
    assert running.communicate(timeout=60)[0] == ""
    assert running.returncode == -signal.SIGTERM
    before = json.loads(current.read_text())["step"]
    assert 0 < before < 40
    done = sottovoce_train(tmp_path, "--ranks", "1", "--checkpoint", "checkpoint", plan=NETWORK)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["history"][0]["step"] == before + 1  # nothing was done twice
    file = tmp_path / "plan.toml"
    rows = run_training(read_training(file)).outputs["rows"]
    parts = [np.load(part) for part in sorted((tmp_path / "checkpoint").glob("step-*.npz"))]
    assert len(parts) == 1
    np.testing.assert_allclose(parts[0]["leaf0"], rows, atol=1e-6)
