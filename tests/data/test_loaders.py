"""Named data sets."""

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from sottovoce.data import by_column, load

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.fixture
def real_data(monkeypatch):
    folder = Path(os.environ.get("SOTTOVOCE_DATA") or SHARED)
    if not (folder / "electricity").is_dir():
        pytest.skip("no data folder; set SOTTOVOCE_DATA")
    monkeypatch.setenv("SOTTOVOCE_DATA", str(folder))


@pytest.mark.parametrize(
    ("name", "shape", "positive"),
    [
        ("electricity", (45312, 8), 19237),
        ("houses", (20640, 8), 8914),
        ("madelon", (2600, 500), 1300),
        ("dorothea", (800, 100_000), 78),
        ("heart_disease", (740, 10), None),
    ],
)
def test_named_sets_have_the_published_sizes(real_data, name, shape, positive):
    data = load(name)
    assert data.X.shape == shape
    assert set(np.unique(data.y)) == {-1.0, 1.0}
    if positive is not None:
        assert (data.y == 1).sum() == positive


def test_heart_disease_sites(real_data):
    parts = by_column(load("heart_disease").groups)
    assert sorted(map(len, parts)) == [46, 130, 261, 303]


def test_dorothea_stays_sparse(real_data):
    data = load("dorothea")
    assert sp.issparse(data.X)
    assert data.X.nnz == 727760
    assert sp.issparse(data.unit_rows().X)
