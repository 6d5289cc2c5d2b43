"""Processes that share a machine keep to their share of it, in every pool."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sottovoce
from sottovoce.errors import InvalidInput, LostRank
from sottovoce.runners.launch import launch, parse_threads, thread_variables

POOLS = tuple(thread_variables(1))


def seen_in_a_process(code, **variables):
    """Run code that fills ``seen`` in a process of its own; no pool is limited but by ``variables``."""
    plain = {name: value for name, value in os.environ.items() if name not in POOLS}
    source = str(Path(sottovoce.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", f"import json, os\n{code}\nprint(json.dumps(seen))"],
        env={**plain, "PYTHONPATH": source, **variables}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_launched_ranks_limit_every_pool(tmp_path, monkeypatch):
    for name in POOLS:
        monkeypatch.delenv(name, raising=False)
    code = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1] + os.environ['RANK'], 'w'))"
    command = [sys.executable, "-c", code, str(tmp_path / "rank-")]

    def pools(**options):
        launch(command, ranks=2, **options)
        environments = [json.loads((tmp_path / f"rank-{rank}").read_text()) for rank in (0, 1)]
        assert [environments[0][name] for name in POOLS] == [environments[1][name] for name in POOLS]
        return [environments[0][name] for name in POOLS]

    assert pools(threads=3) == ["3"] * 4
    assert pools() == [str(max(1, os.cpu_count() // 2))] * 4
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert pools() == ["5"] * 4
    monkeypatch.setenv("NUMBA_NUM_THREADS", "2")  # what a person has set stays
    assert pools() == ["5", "5", "5", "2"]
    assert pools(threads=1) == ["1"] * 4


@pytest.mark.parametrize("before", ["", "import numba\n", "import numba\nnumba.set_num_threads(2)\n"])
def test_numba_is_limited_whether_it_is_loaded_or_not(before):
    code = (
        f"{before}from sottovoce.runners.launch import limit_threads\nlimit_threads(1)\n"
        "import numba\n@numba.njit\ndef one(): return 1\n"
        "seen = [numba.get_num_threads(), one()]"  # compiling must still work
    )
    allowed = {} if "set" not in before else {"NUMBA_NUM_THREADS": "2"}
    assert seen_in_a_process(code, **allowed) == [2 if allowed else 1, 1]


def test_loaded_blas_is_limited():
    code = (
        "import numpy as np\nfrom threadpoolctl import threadpool_info\n"
        "from sottovoce.runners.launch import limit_threads\nlimit_threads(1)\n"
        "seen = [pool['num_threads'] for pool in threadpool_info() if pool['user_api'] == 'blas']"
    )
    assert set(seen_in_a_process(code)) == {1}


WORKERS = """
import tempfile
from sottovoce.runners.sweep import Trial, sweep

def look(*, seed):
    import numba, numpy
    from threadpoolctl import threadpool_info
    blas = {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
    return [numba.get_num_threads(), *sorted(blas)]

seen = []
if __name__ == "__main__":
    records = sweep(look, [Trial("a"), Trial("b")], tempfile.mkdtemp(), jobs=2)
    seen = [record["value"] for record in records]
"""


def test_workers_keep_to_one_thread():
    assert seen_in_a_process(WORKERS) == [[1, 1], [1, 1]]


def test_number_of_threads():
    assert [parse_threads(word) for word in ("2", "4,1")] == [2, 4]
    assert {parse_threads(word) for word in ("0", "", None, "all")} == {None}
    with pytest.raises(InvalidInput, match="threads"):
        thread_variables(0)


def test_a_killed_rank_is_named():
    launch([sys.executable, "-c", "import os; assert os.environ['WORLD_SIZE'] == '2'"], ranks=2)
    with pytest.raises(LostRank, match=r"Rank 0 was killed \(SIGKILL\)"):
        launch([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], ranks=1)
