"""Defaults of sv.fit on tables: as good as without privacy, on few records and few sites."""

import numpy as np
import pytest
from verification.tables import BOUNDS, CATEGORIES, csv_figures, data_set_figures, patients, reading

import sottovoce as sv
from sottovoce.errors import Refused


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


def test_second_call_is_the_first_model(tmp_path):
    """The first refusal names every column that needs a fact."""
    file = patients(tmp_path / "patients.csv", n=400)
    options = {"network": "complete", "budget": sv.Budget(2.0, 1e-5), "rng": np.random.default_rng(0)}
    with pytest.raises(Refused) as refused:
        sv.fit("logistic", file, label="ill", group="site", **options)
    message = str(refused.value)
    assert all(f"'{name}'" in message for name in (*BOUNDS, *CATEGORIES, "stay"))
    assert "the labels are names" in message
    assert "there are empty entries in" in message
    training = sv.TrainingOptions(classes=["no", "yes"])
    assert sv.fit("logistic", reading(file, "ill"), training=training, **options).plan.n == 8
