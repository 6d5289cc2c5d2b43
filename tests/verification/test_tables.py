"""Defaults of sv.fit on tables: as good as without privacy, on few records and few sites."""

import numpy as np
import pytest
from verification.tables import csv_figures, data_set_figures


@pytest.mark.filterwarnings("ignore:delta")
def test_default_fits_of_a_table_are_near_those_without_privacy(tmp_path):
    """At 4,000 rows the noise weighs five times as much as at the 20,000 of the stored record."""
    runs = [csv_figures(tmp_path, n=4_000, seed=seed) for seed in range(3)]
    figures = {key: np.mean([run[key] for run in runs]) for key in runs[0]}
    assert figures["auc_scikit_learn"] > 0.75
    assert figures["auc_private"] > figures["auc_scikit_learn"] - 0.03
    assert figures["auc_unlimited"] == pytest.approx(figures["auc_scikit_learn"], abs=0.004)
    assert figures["rmse_private"] < 1.03 * figures["rmse_scikit_learn"]
    assert figures["rmse_unlimited"] == pytest.approx(figures["rmse_scikit_learn"], rel=0.005)


def test_default_fit_of_few_records_with_many_features():
    figures = data_set_figures("breast_cancer", seeds=3, search=False)
    assert figures["auc_defaults"] > 0.97
    assert figures["auc_unlimited"] > 0.985
