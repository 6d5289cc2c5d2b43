"""The short form of `make advice`: the same judges on a few cases, and the record of the long one."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("advice_proof", ROOT / "scripts" / "advice_proof.py")
proof = importlib.util.module_from_spec(spec)
sys.modules["advice_proof"] = proof
spec.loader.exec_module(proof)


SMALL = [seed for seed in range(60) if proof.consortium(seed)["n"] <= 14][:5]


@pytest.mark.parametrize("seed", SMALL)
def test_the_recommendation_meets_its_budget_and_nothing_in_a_grid_beats_it(seed):
    found = proof.judge_consortium(seed)
    assert found["meets"]
    assert found["candidates"] >= 200
    assert found["beaten_by"] == []
    assert found["program"] == pytest.approx(found["closed_form"], rel=1e-6)


def test_the_grid_would_beat_a_worse_recommendation(monkeypatch):
    """With everybody as loud as local privacy asks, the grid's trees and masked sums win."""
    seed = next(seed for seed in SMALL if proof.consortium(seed)["masks"])
    case = proof.consortium(seed)
    advice = proof.sv.advise(
        case["graph"],
        epsilon=proof.EPSILON,
        delta=proof.DELTA,
        records=case["sizes"],
        hide=case["hide"],
        against=case["c"],
    )
    local = next(row for row in advice.rows if row.scheme.protocol == "tree" and row.scheme.noise == "equal")
    tried = proof.grid(case, seed, 20)
    assert any(one[1] < proof.BETTER * local.loss and one[2] <= local.seconds * 1.001 for one in tried)


@pytest.mark.parametrize("name", ["grid:4:4", "hypercube:4", "er:16:1.5:seed=1", "florentine"])
def test_few_leaves_are_within_one_of_the_best_known(name):
    found = proof.judge_leaves(name, patience=3)
    assert found["found"] <= found["best_known"] + 1


@pytest.mark.parametrize("seed", range(6))
def test_the_error_of_an_average_is_predicted_to_three_percent(seed):
    assert proof.judge_error(seed)["off"] <= 0.03


@pytest.mark.parametrize("seed", [0, 1])  # houses are not embedded
def test_the_interval_of_a_simulation_holds_a_real_run(seed):
    found = proof.judge_score(seed)
    assert found["narrow"]
    assert found["covered"]


def test_what_does_not_hold_is_not_said_to():
    lines = [proof.judge_error(0), proof.judge_leaves("grid:4:4", 1)]
    assert proof.holds(lines)["holds"]
    assert not proof.holds([lines[0] | {"off": 0.05}, lines[1]])["holds"]
    assert not proof.holds([lines[0], lines[1] | {"found": 9}])["holds"]
