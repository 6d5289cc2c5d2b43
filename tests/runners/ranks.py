"""Run scenarios on forked ranks, in a process of its own: ``ranks.py FILE NAME...`` prints one JSON line.

torch is imported once and the ranks are forked from here, which makes many small scenarios affordable. A
scenario is a function ``scenario(cluster, folder) -> value`` of the file; its name ends in the number of
ranks, ``_on2``. The report of a rank holds the value of rank 0, the error, the exit code, and who
would have printed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # before torch is loaded

import numpy  # noqa: F401
import torch.distributed  # noqa: F401

from sottovoce._io import to_jsonable
from sottovoce.errors import SottovoceError
from sottovoce.runners.distributed import Cluster
from sottovoce.runners.launch import _free_port, _loopback

TIMEOUT = float(os.environ.get("RANKS_TIMEOUT", "20"))


def one_rank(scenario, rank, size, port, folder):
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME=_loopback(), OMP_NUM_THREADS="1",
    )  # fmt: skip
    report = {"rank": rank}
    code = 0
    cluster = None
    try:
        with Cluster.join(timeout=getattr(scenario, "timeout", TIMEOUT)) as cluster:
            report["value"] = to_jsonable(scenario(cluster, folder))
            report["traffic"] = vars(cluster.traffic)
    except SottovoceError as error:
        report["error"], report["kind"], code = str(error), type(error).__name__, 1
    except BaseException:
        report["error"], report["kind"], code = traceback.format_exc(), "crash", 1
    report["reports_errors"] = cluster.reports_errors if cluster is not None else rank == 0
    (folder / f"rank-{rank}.json").write_text(json.dumps(report))
    os._exit(code)


def run(name, scenario, limit=90.0):
    size = int(name.rpartition("_on")[2])
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        port = _free_port()
        children = {}
        for rank in range(size):
            child = os.fork()
            if child == 0:
                one_rank(scenario, rank, size, port, folder)
            children[child] = rank
        codes = [None] * size
        begun = time.monotonic()
        while children:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child:
                codes[children.pop(child)] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() - begun > limit or _only_frozen(children):  # as a launcher would
                for left in children:
                    os.kill(left, 9)
            else:
                time.sleep(0.01)
        reports = [_read(folder / f"rank-{rank}.json") for rank in range(size)]
        return {"codes": codes, "reports": reports, "seconds": time.monotonic() - begun}


def _only_frozen(children):
    """Return whether every child left is stopped (state T)."""
    states = [Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] for child in children]
    return all(state == "T" for state in states)


def _read(path):
    return json.loads(path.read_text()) if path.exists() else None


def main():
    path, *names = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("scenarios", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    chosen = names or [name for name in vars(module) if name.rpartition("_on")[2].isdigit()]
    print(json.dumps({name: run(name, getattr(module, name)) for name in chosen}))


if __name__ == "__main__":
    main()
