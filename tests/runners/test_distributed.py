"""Ranks give the bytes of the stacked run; failures end everywhere, quickly, with one sentence."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sottovoce as sv

HERE = Path(__file__).parent

FAILURES = {  # scenario -> (ranks that end with an error, what the person reads)
    "more_ranks_than_agents_on4": (4, "4 ranks cannot share 3 agents; start at most 3 ranks."),
    "missing_data_on4": (4, "Rank 2 cannot begin: The shard of agent 6 is empty."),
    "other_graph_on2": (2, "The ranks disagree on the plan"),
    "other_checkpoint_on2": (2, "holds a checkpoint of another plan"),
    "beyond_the_lifetime_budget_on2": (2, "Rank 0 cannot begin: Spent so far 0, this adds"),
    "token_on2": (2, "random-walk-sgd passes one token"),
    "other_seed_on2": (2, "The ranks disagree on the plan"),
    "nan_on2": (2, "Rank 1 failed: The message of agent 9 holds NaN or infinity."),
    "failing_rank3_on4": (4, "Rank 3 failed: ZeroDivisionError: a mistake in step 2"),
    "failing_rank0_on4": (4, "a mistake in step 2"),
    "killed_rank2_on4": (3, "Rank 2 was lost: it closed its connection in step 2, round 0"),
    "killed_rank0_on2": (1, "Rank 0 was lost"),
    "frozen_rank1_on2": (1, "Rank 1 was lost: it did not answer within 2 s in step 2, round 0"),
    "a_file_for_a_folder_on2": (2, "is a file, a checkpoint is a folder; name another place."),
    "other_versions_on2": (2, "The ranks disagree on the packages: rank 0 has sottovoce"),
    "stale_folder_on2": (2, "The ranks disagree on the checkpoint: rank 0 has step 6, rank 1 has step 4"),
    "unshared_folder_on2": (2, "Rank 0 could not write the checkpoint: What rank 1 wrote is not in"),
    "full_disk_on2": (2, "Rank 1 could not write the checkpoint: [Errno 28] No space left on device"),
    "killed_writing_rank1_on2": (1, "Rank 1 was lost: it did not come within 3 s"),
    "killed_committing_rank0_on2": (1, "Rank 0 was lost"),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, worker_id):
    """Run every scenario once, in one process that forks the ranks; test workers share the result."""
    if worker_id == "master":
        return json.loads(run_scenarios())
    shared = tmp_path_factory.getbasetemp().parent / "cluster.json"
    with open(f"{shared}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shared.exists():
            shared.write_text(run_scenarios())
    return json.loads(shared.read_text())


def run_scenarios():
    source = str(Path(sv.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(HERE / "ranks.py"), str(HERE / "scenarios.py")],
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_ranks_give_the_bytes_of_the_stacked_run(outcomes):
    assert outcomes["averaging_on4"]["codes"] == [0] * 4, outcomes["averaging_on4"]["reports"]
    compared = outcomes["averaging_on4"]["reports"][0]["value"]
    assert len(compared) >= 30
    assert [what for what, equal in compared.items() if not equal] == []


def test_bytes_sent_are_the_rows_on_cut_edges(outcomes):
    for report in outcomes["traffic_on2"]["reports"]:
        assert report["value"]["actual"] == report["value"]["expected"] > 0


def test_one_process_and_ranks_go_on_from_each_other(outcomes):
    outcome = outcomes["one_process_ranks_and_back_on4"]
    assert outcome["codes"] == [0] * 4, outcome["reports"]
    steps = [[0, 1, 2], [3, 4], [5, 6, 7]]  # nothing finished is done again
    assert outcome["reports"][0]["value"] == {"equal": True, "steps": steps, "files": 1}


def test_plans_give_what_one_process_gives(outcomes):
    assert outcomes["plans_on2"]["codes"] == [0, 0], outcomes["plans_on2"]["reports"]
    compared = outcomes["plans_on2"]["reports"][0]["value"]
    assert {"muffliato-sgd", "dp-dsgd", "dp-dsgt", "dp-dinno", "consensus"} <= set(compared)
    for what, seen in compared.items():
        # a batched product of another number of networks may be summed in another order
        networks = what.startswith("dp-") or what == "consensus"
        assert seen["difference"] <= (1e-6 if networks else 0.0), what
        assert seen["bytes"] > 0


def test_protective_runs_are_charged_once(outcomes):
    assert outcomes["charged_on2"]["codes"] == [0, 0], outcomes["charged_on2"]["reports"]
    value = outcomes["charged_on2"]["reports"][0]["value"]
    assert value["same"]
    assert value["charges"] == 1
    assert value["total"] == pytest.approx(value["cost"], rel=1e-9)


def test_rank_0_evaluates_and_makes_the_result(outcomes):
    value = outcomes["evaluated_on2"]["reports"][0]["value"]
    assert value["steps"] == [2, 4] == [entry["step"] for entry in value["history"]]
    assert value["result"]["provenance"]["ranks"] == 2
    assert value["result"]["guarantees"][0]["label"] == "ldp"


@pytest.mark.parametrize("name", FAILURES)
def test_failures_end_everywhere_with_one_sentence(outcomes, name):
    ended, sentence = FAILURES[name]
    outcome = outcomes[name]
    assert sorted(outcome["codes"]).count(1) == ended, outcome
    assert outcome["seconds"] < 60  # no hang; the limit of ranks.py is 90
    reports = [report for report in outcome["reports"] if report is not None]
    assert sum(report["reports_errors"] for report in reports) == 1
    for report in reports:
        assert sentence in report["error"]
        if report["kind"] != "crash":
            assert "\n" not in report["error"]


def test_torchrun_restarts_a_killed_rank_from_the_checkpoint(tmp_path):
    source = str(Path(sv.__file__).parents[1])
    plain = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "--max-restarts", "1", "--monitor-interval", "0.1", str(HERE / "elastic.py"), str(tmp_path)],
        env={**plain, "PYTHONPATH": source, "GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"},
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads((tmp_path / "report.json").read_text())
    # steps 0 to 5 were kept, not done again; torchrun limits OpenMP only, the rank itself limits numba
    assert report == {"attempt": 1, "done": [6, 7, 8, 9], "numba": 1}
    sys.path.insert(0, str(HERE))
    try:
        from scenarios import generator, shards, training
    finally:
        sys.path.remove(str(HERE))
    wanted = training(10).run(shards(), generator()).outputs["rows"]
    assert (np.load(tmp_path / "rows.npy") == wanted).all()
