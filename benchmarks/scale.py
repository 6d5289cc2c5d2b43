"""Scale-out: ranks against one process, workers against one worker, what starting costs; prints JSON.

    python -m benchmarks.scale [resnet|traffic|audits|start ...]

The rival of every figure is the same work on one rank or one worker of one thread, in the same run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from sottovoce.runners.launch import limit_threads, thread_variables

ONE = {**os.environ, **thread_variables(1), "TORCH_CPP_LOG_LEVEL": "ERROR"}
RANK = """
import json, sys, time
import numpy as np, torch
import sottovoce as sv
from sottovoce.data.agent_tensors import AgentData
from sottovoce.objectives.nets.zoo import resnet9
from sottovoce.objectives.nets import NetObjective
from sottovoce.runners.distributed import Cluster
from sottovoce.runners.run import run_on_ranks
torch.set_num_threads(1)
agents, batch_size, steps = 10, int(sys.argv[2]), int(sys.argv[3])
rng = np.random.default_rng(0)
x = rng.normal(size=(agents * 4 * batch_size, 3, 32, 32)).astype(np.float32)
y = rng.integers(0, 10, len(x))
data = AgentData(x, y, np.split(np.arange(len(x)), agents), classes=10)
torch.manual_seed(0)
plan = sv.algorithms.DPDSGD(NetObjective(resnet9(classes=10), clip_norm=1.0), sv.graphs.ring(agents),
                            steps=steps,
                            sizes=data.sizes, batch_size=batch_size, noise_multiplier=1.0)
times = []
with Cluster.join(timeout=300) as cluster:
    result = run_on_ranks(cluster, plan, data, np.random.default_rng(1),
                          progress=lambda k: times.append(time.perf_counter()))
    traffic = cluster.meet(vars(cluster.traffic))
    row = plan.width * 4
if cluster.rank == 0:
    json.dump({"seconds_per_step": float(np.median(np.diff(times))), "traffic": traffic, "row_bytes": row},
              open(sys.argv[1], "w"))
"""
AVERAGE = """
import json, sys, time
import numpy as np
import sottovoce as sv
from sottovoce.runners.distributed import Cluster
from sottovoce.runners.matrix_partition import slices
from sottovoce.runners.run import run_on_ranks
n, rounds = int(sys.argv[2]), 10
with Cluster.join(timeout=300) as cluster:
    network = sv.graphs.regular(n, 8, np.random.default_rng(0))
    values = np.random.default_rng(1).uniform(-0.5, 0.5, size=(n, 1))
    plan = sv.PrivateAveraging(sv.protocols.Gossip(network, rounds), noise_std=1.0, radius=0.5)
    owner = slices(n, cluster.size)
    begin = time.perf_counter()
    result = run_on_ranks(cluster, plan, values, np.random.default_rng(2))
    seconds = time.perf_counter() - begin
    traffic = cluster.meet(vars(cluster.traffic))
if cluster.rank == 0:
    u, v = network.edges.T
    cut = owner[u] != owner[v]
    pairs = np.concatenate([u[cut] * cluster.size + owner[v[cut]], v[cut] * cluster.size + owner[u[cut]]])
    json.dump({"n": n, "rounds": rounds, "seconds": seconds, "cut_edges": int(cut.sum()),
               "bytes_sent_per_round": sum(t["bytes"] for t in traffic) // rounds,
               "bytes_of_rows_on_cut_edges": int(len(np.unique(pairs)) * 8),
               "error": float(abs(result.outputs["rows"].mean() - values.mean()))}, open(sys.argv[1], "w"))
"""


def on_ranks(script: str, ranks: int, *arguments: object) -> dict:
    from sottovoce.runners.launch import launch

    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "rank.py", Path(folder) / "out.json"
        path.write_text(script)
        launch([sys.executable, str(path), str(out), *map(str, arguments)], ranks, threads=1, grace=60)
        return json.loads(out.read_text())


def resnet(batch_size: int = 16, steps: int = 5) -> dict:
    """ResNet-9, ten agents on a ring: two ranks of one thread against one rank of one thread."""
    one, two = on_ranks(RANK, 1, batch_size, steps), on_ranks(RANK, 2, batch_size, steps)
    sent = sum(t["bytes"] for t in two["traffic"]) / steps
    return {
        "seconds_per_step_1_rank": one["seconds_per_step"],
        "seconds_per_step_2_ranks": two["seconds_per_step"],
        "ratio": one["seconds_per_step"] / two["seconds_per_step"],
        "bytes_sent_per_round": sent,
        "bytes_of_rows_on_cut_edges": 4 * two["row_bytes"],  # a ring cut in two: two edges, a row each way
    }


def traffic(n: int = 1_000_000) -> dict:
    """One million nodes, 8-regular, ten rounds of averaging on two ranks: bytes against the cut."""
    return on_ranks(AVERAGE, 2, n)


def warm(*, seed: int, folder: str, workers: int, repeat: int) -> int:
    """A trial that ends when every worker has run a small audit, so that all of them are ready."""
    from sottovoce_papers.sweep import audit_trial

    audit_trial(seed=seed, graph="florentine", runs=500)
    (Path(folder) / str(os.getpid())).touch()
    while len(list(Path(folder).iterdir())) < workers:
        time.sleep(0.01)
    return repeat


def audits(trials: int = 64, runs: int = 400_000, rounds: int = 2) -> dict:
    """Audit jobs on two workers against one worker: the workers already running, and start-up included.

    A machine's speed drifts by a tenth within minutes, so the two take turns: a share of the trials each.
    A worker has one thread.
    """
    from sottovoce.runners.sweep import grid, sweep
    from sottovoce_papers.sweep import audit_trial

    def seconds(function, points, folder: str, jobs: int) -> float:
        begin = time.perf_counter()
        sweep(function, points, folder, jobs=jobs)
        return time.perf_counter() - begin

    limit_threads(1)  # here too, or BLAS gives the one worker both cores
    spent, begun = {1: 0.0, 2: 0.0}, {}
    with tempfile.TemporaryDirectory() as folder:
        for jobs in (1, 2):  # one worker is this process: it has no start-up but its imports
            with tempfile.TemporaryDirectory() as ready:
                points = grid(folder=[ready], workers=[jobs], repeat=range(jobs))
                begun[jobs] = seconds(warm, points, folder, jobs)
        for turn in range(rounds):
            share = range(turn * trials // rounds, (turn + 1) * trials // rounds)
            points = grid(graph=["florentine"], runs=[runs], rounds=[6], repeat=share)
            for jobs in (1, 2):
                spent[jobs] += seconds(audit_trial, points, f"{folder}/{jobs}", jobs)
    return {
        "trials": trials, "runs_per_trial": runs, "seconds_1_worker": spent[1], "seconds_2_workers": spent[2],
        "start_1_worker": begun[1], "start_2_workers": begun[2],
        "ratio": spent[1] / spent[2],
        "ratio_with_start": (spent[1] + begun[1]) / (spent[2] + begun[2]),
    }  # fmt: skip


def start() -> dict:
    """Seconds from nothing to the first result of each engine that is installed."""
    nothing = (
        "from sottovoce.runners.distributed import Cluster\nimport json, sys\n"
        "with Cluster.join() as c: c.meet()\nif c.rank == 0: json.dump({}, open(sys.argv[1], 'w'))"
    )
    seconds_by_backend = {}
    if find_spec("torch") is None:
        seconds_by_backend["cluster, 2 ranks"] = "not installed"
    else:
        begin = time.perf_counter()
        on_ranks(nothing, 2)
        seconds_by_backend["cluster, 2 ranks"] = time.perf_counter() - begin
    for backend, module in (("loky", "joblib"), ("dask", "distributed"), ("ray", "ray")):
        code = (
            "import tempfile\nfrom sottovoce_papers.sweep import *\n"
            "from sottovoce.runners.sweep import *\nif __name__ == '__main__':\n"
            "    sweep(audit_trial, grid(graph=['path:3'], runs=[200], repeat=range(2)), tempfile.mkdtemp(), "
            f"jobs=2, backend={backend!r})"
        )
        if find_spec(module) is None:
            seconds_by_backend[f"{backend}, 2 workers"] = "not installed"
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "start.py"
            path.write_text(f"import {module}\n{code}")
            begin = time.perf_counter()
            subprocess.run([sys.executable, str(path)], env=ONE, capture_output=True, check=True)
            seconds_by_backend[f"{backend}, 2 workers"] = time.perf_counter() - begin
    return seconds_by_backend


PARTS = {"resnet": resnet, "traffic": traffic, "audits": audits, "start": start}


def main() -> None:
    chosen = sys.argv[1:] or list(PARTS)
    print(json.dumps({name: PARTS[name]() for name in chosen}, indent=1))


if __name__ == "__main__":
    main()
