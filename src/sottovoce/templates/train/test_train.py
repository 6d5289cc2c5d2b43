"""The model is good, and its privacy cost is the one that was planned."""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def sottovoce(*words):
    done = subprocess.run([sys.executable, "-m", "sottovoce", *words, "--json"], cwd=HERE, capture_output=True)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    return json.loads(done.stdout)


def test_the_model_is_good_at_the_planned_cost():
    planned = sottovoce("plan", "plan.toml")
    assert planned["private"] is True
    assert planned["useful"] is not False  # of a network it is unknown before training
    trained = sottovoce("train", "plan.toml")
    assert trained["metrics"]["accuracy"] > 0.8  # without privacy: about 0.88
    assert all(one["epsilon"] <= 2.0 for one in trained["guarantees"] if one["against"] == "any one node")
