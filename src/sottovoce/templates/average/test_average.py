"""The answer is where the plan said it would be."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def sottovoce(*words):
    done = subprocess.run([sys.executable, "-m", "sottovoce", *words, "--json"], cwd=HERE, capture_output=True)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    return json.loads(done.stdout)


def test_the_mean_is_where_the_plan_said():
    planned = sottovoce("plan", "plan.toml")
    assert planned["private"] is True
    assert planned["useful"] is True
    answer = np.ravel(sottovoce("average", "plan.toml")["rows"])
    truth = np.loadtxt(HERE / "values.csv").mean()
    assert np.ptp(answer) == 0  # everybody has the same
    assert abs(answer[0] - truth) < 5 * planned["error"]
