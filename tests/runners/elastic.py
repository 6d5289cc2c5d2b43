"""A rank for torchrun: averages with a checkpoint; in the first attempt rank 1 kills itself in step 7."""

import json
import os
import signal
import sys
from pathlib import Path

import numba
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from scenarios import N, remembering, uneven, values

import sottovoce as sv
from sottovoce.runners.distributed import Cluster, run_cluster

folder = Path(sys.argv[1])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
done = []


def after(k, hosted):
    done.append(k)
    if k == 7 and attempt == 0 and cluster.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


with Cluster.join(timeout=60) as cluster:
    hosted = run_cluster(
        cluster, lambda a: remembering(a, values()), sv.protocols.Chebyshev(uneven(), 3), 10,
        checkpoint=folder / "checkpoint", every=3, after_step=after, plan={"name": "elastic"},
    )  # fmt: skip
    rows = cluster.gather(hosted)
    if cluster.rank == 0:
        assert len(rows) == N
        np.save(folder / "rows.npy", rows)
        (folder / "report.json").write_text(
            json.dumps({"attempt": attempt, "done": done, "numba": numba.get_num_threads()})
        )
