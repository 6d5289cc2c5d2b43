"""Twelve hospitals end to end: advice, draft, twelve peers, accuracy inside the predicted interval."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "twelve-hospitals" / "run.py"


@pytest.mark.slow
def test_twelve_hospitals_end_where_the_advice_said(tmp_path):
    spec = importlib.util.spec_from_file_location("twelve_hospitals", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.main(tmp_path / "twelve")
    assert found["equal"]
    assert found["epsilon"] <= 2.0
    assert abs(found["accuracy"] - found["predicted"]) <= found["half"]
    assert found["half"] <= max(0.03, 2 * found["deviation"]) + 1e-12
    assert found["accuracy"] > 0.85
