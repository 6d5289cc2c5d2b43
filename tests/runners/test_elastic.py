"""torchrun's elastic mode: a killed rank, a restart by itself, the same result."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import sottovoce as sv
from sottovoce.runners import run_stacked

HERE = Path(__file__).parent


def test_a_killed_rank_restarts_from_the_checkpoint(tmp_path):
    source = str(Path(sv.__file__).parents[1])
    plain = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "--max-restarts", "1", "--monitor-interval", "0.1", str(HERE / "elastic.py"), str(tmp_path)],
        env={**plain, "PYTHONPATH": source, "GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"},
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads((tmp_path / "said.json").read_text())
    # steps 0 to 5 were kept, not done again; torchrun limits OpenMP only, the rank itself limits numba
    assert said == {"attempt": 1, "done": [6, 7, 8, 9], "numba": 1}
    sys.path.insert(0, str(HERE))
    try:
        from scenarios import N, remembering, uneven, values
    finally:
        sys.path.remove(str(HERE))
    text = remembering(np.arange(N), values())
    wanted = text.output(run_stacked(text, sv.protocols.Chebyshev(uneven(), 3), 10))
    assert (np.load(tmp_path / "rows.npy") == wanted).all()
