"""The short form of `make verify-advice`: the same judges on a few cases."""

import pytest

from verification import advice_check

SMALL = [seed for seed in range(60) if advice_check.consortium(seed)["n"] <= 14][:5]


@pytest.mark.parametrize("seed", SMALL)
def test_the_recommendation_meets_its_budget_and_nothing_in_a_grid_beats_it(seed):
    result = advice_check.judge_consortium(seed)
    assert result["meets"]
    assert result["candidates"] >= 200
    assert result["beaten_by"] == []
    assert result["program"] == pytest.approx(result["closed_form"], rel=1e-6)


def test_the_grid_would_beat_a_worse_recommendation(monkeypatch):
    """With everybody as loud as local privacy asks, the grid's trees and masked sums win."""
    seed = next(seed for seed in SMALL if advice_check.consortium(seed)["masks"])
    case = advice_check.consortium(seed)
    facts = {"records": case["sizes"], "hide": case["hide"], "colluders": case["c"]}
    advice = advice_check.sv.advise(
        case["graph"], epsilon=advice_check.EPSILON, delta=advice_check.DELTA, **facts
    )
    kinds = {(row.candidate.protocol, row.candidate.noise_allocation): row for row in reversed(advice.rows)}
    local = kinds["tree", "equal"]
    tried = advice_check.grid(case, seed, 20)
    assert any(one[1] < advice_check.BETTER * local.loss and one[2] <= local.seconds * 1.001 for one in tried)


@pytest.mark.parametrize("name", ["grid:4:4", "hypercube:4", "er:16:1.5:seed=1", "florentine"])
def test_few_leaves_are_within_one_of_the_best_known(name):
    result = advice_check.judge_leaves(name, patience=3)
    assert result["found"] <= result["best_known"] + 1


@pytest.mark.parametrize("seed", range(6))
def test_the_error_of_an_average_is_predicted_to_three_percent(seed):
    assert advice_check.judge_error(seed)["off"] <= 0.03


@pytest.mark.parametrize("seed", [0, 1])  # houses are not embedded
def test_the_interval_of_a_simulation_holds_a_real_run(seed):
    result = advice_check.judge_score(seed)
    assert result["narrow"]
    assert result["covered"]


def test_what_does_not_hold_is_not_said_to():
    lines = [advice_check.judge_error(0), advice_check.judge_leaves("grid:4:4", 1)]
    assert advice_check.holds(lines)["holds"]
    assert not advice_check.holds([lines[0] | {"off": 0.05}, lines[1]])["holds"]
    assert not advice_check.holds([lines[0], lines[1] | {"found": 9}])["holds"]
