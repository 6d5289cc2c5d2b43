"""A peer that is killed again and again never sends a row that its ledger does not hold."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def test_300_kills_leave_no_spend_unrecorded():
    """I1. `make verify-kills` does 10,000.

    The loop signals only children it has not reaped, in a session of its own: no signal of it, or to its
    group, can reach the process that runs the tests.
    """
    loop = subprocess.Popen(
        [sys.executable, "-m", "verification.kills", "--kills", "300"],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = loop.communicate(timeout=900)
    except subprocess.TimeoutExpired:
        os.killpg(loop.pid, signal.SIGKILL)  # the loop is not reaped yet, so the group is still its own
        out, err = loop.communicate()
    assert loop.returncode == 0, (loop.returncode, out, err)
    counts = json.loads(out)
    assert counts["kills"] == 300
    assert counts["undercounts"] == 0
    assert counts["rows"] > 30
