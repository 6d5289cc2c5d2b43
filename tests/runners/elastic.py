"""A rank for torchrun: trains with a checkpoint; in the first attempt rank 1 kills itself in step 7."""

import json
import os
import signal
import sys
from pathlib import Path

import numba
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from scenarios import acting, train, training

from sottovoce.runners.distributed import Cluster

folder = Path(sys.argv[1])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def die(k):
    if k == 8 and attempt == 0 and cluster.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


with Cluster.join(timeout=60) as cluster:
    plan, steps = acting(training(10), die)
    result = train(cluster, folder, plan, every=3)
    if result is not None:
        np.save(folder / "rows.npy", result.outputs["rows"])
        report = {"attempt": attempt, "done": steps, "numba": numba.get_num_threads()}
        (folder / "report.json").write_text(json.dumps(report))
