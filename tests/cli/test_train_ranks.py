"""`sottovoce train FILE.toml --ranks N`: the bytes of one process, and one sentence when it cannot be."""

import json
import os
import subprocess
import sys
from pathlib import Path

import sottovoce

PLAN = """
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
steps = 4
step_size = 0.5
[noise]
multiplier = 2.0
seed = 3
"""


def sottovoce_train(folder, *words, graph="ring:5"):
    (folder / "plan.toml").write_text(PLAN.replace("ring:5", graph))
    source = str(Path(sottovoce.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-m", "sottovoce.cli.main", "train", "plan.toml", "--json", *words],
        cwd=folder, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "SOTTOVOCE_TIMEOUT": "100"},
    )  # fmt: skip


def test_ranks_give_the_model_of_one_process(tmp_path):
    alone = sottovoce_train(tmp_path)
    split = sottovoce_train(tmp_path, "--ranks", "2", "--checkpoint", "kept")
    assert split.returncode == 0, split.stderr
    one, two = json.loads(alone.stdout), json.loads(split.stdout)
    assert one["outputs"] == two["outputs"]
    assert one["metrics"] == two["metrics"]
    assert two["provenance"]["ranks"] == 2
    assert json.loads((tmp_path / "kept" / "current.json").read_text())["step"] == 4


def test_too_many_ranks_is_one_sentence_and_exit_1(tmp_path):
    done = sottovoce_train(tmp_path, "--ranks", "3", graph="path:2")
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"error": "3 ranks cannot share 2 agents; start at most 2 ranks."}
    assert done.stderr == ""
