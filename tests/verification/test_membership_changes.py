"""Five real processes through six changes of membership."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_five_real_processes_go_through_six_changes(tmp_path):
    """Restart, leave, move, new key, expired certificate, lost disk: one model, true lifetime ledgers."""
    done = subprocess.run(
        [sys.executable, "-m", "verification.membership_changes", "--out", tmp_path / "record.json"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["one_model"]
    assert all(each["agree"] for each in record["lifetime_ledgers"].values())
    assert record["epochs_in_statements"] == dict.fromkeys(["m0", "m1", "m2", "m3"], 5)
    changes = record["changes"]
    assert changes["restart"]["rounds_after"] > changes["restart"]["rounds_before"] > 0
    assert changes["expired certificate"]["said_by"] == ["m0", "m1"]
    assert all(each["forecast"] == pytest.approx(each["charged"]) for each in changes["forecasts"])
