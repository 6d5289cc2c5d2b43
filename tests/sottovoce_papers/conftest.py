"""Quick forms of the experiments, run once however many tests look at them."""

import json
import os
from pathlib import Path

import pytest

from sottovoce_papers.registry import find

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
NEEDS = {
    "dpcd-curves": "electricity", "dpcd-electricity": "electricity", "dpgcd-madelon": "madelon",
    "dpgcd-dorothea": "dorothea", "muffliato-houses": "houses", "muffliato-iterations": "houses",
    "walk-vs-gossip": "houses", "walk-vs-local": "houses",
}  # fmt: skip
RECORDS = {}


@pytest.fixture
def quick(monkeypatch):
    """Return the record of an experiment's quick form, as it is stored."""
    folder = Path(os.environ.get("SOTTOVOCE_DATA") or SHARED)
    monkeypatch.setenv("SOTTOVOCE_DATA", str(folder))

    def run(name):
        if name in NEEDS and not (folder / NEEDS[name]).is_dir():
            pytest.skip(f"no data folder with {NEEDS[name]}; set SOTTOVOCE_DATA")
        if name not in RECORDS:
            RECORDS[name] = json.dumps(find(name).run(quick=True).to_dict())
        return json.loads(RECORDS[name])

    return run
