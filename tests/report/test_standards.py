"""Registry entries and NIST answers hold the numbers of the summary page."""

import json

import pytest

import sottovoce as sv
from sottovoce._format import fixed
from sottovoce.errors import DataError
from sottovoce.report.inputs import read_input
from sottovoce.report.standards import MEMBERS, nist, registry
from sottovoce.report.summary_page import of_plan

from .conftest import DELTA, command, results_of


def test_the_registry_entry_has_the_registrys_fields_and_our_numbers(inputs, tmp_path):
    target, answers = tmp_path / "entry.json", tmp_path / "nist.json"
    words = ("-o", tmp_path / "page.html", "--registry", target, "--nist", answers)
    assert command("report", *inputs["training"], *words) == 0
    entry = json.loads(target.read_text())["deployment"]
    assert set(entry) == {
        *("name", "data_curator", "intended_use", "data_product_type", "data_product_region"),
        *("data_product_description", "publication_date", "additional_information_urls", "dp_flavor"),
        *("privacy_loss", "model", "additional_dp_information", "implementation"),
    }
    (result,) = results_of(inputs["training"])
    loss = result["summary_page"]["losses"][0]
    assert entry["privacy_loss"]["privacy_parameters"]["epsilon"] == loss["epsilon"] <= 3.0
    assert "mean and deviation" in entry["implementation"]["pre_processing_eda_hyperparameter_tuning"]
    assert entry["intended_use"] == MEMBERS
    by_topic = {row["topic"]: row["answer"] for row in json.loads(answers.read_text())}
    assert fixed(loss["epsilon"], "epsilon") in by_topic["Privacy parameters"]
    assert "mean and deviation" in by_topic["Data collection"]
    assert by_topic["Unit of privacy"] == "The whole data set of one member is replaced."
    with pytest.raises(DataError, match="states no guarantee"):
        registry(read_input(inputs["attack"][0]))
    assert len(nist(result)) == 12


def test_mu_of_the_registry_is_that_of_the_charged_adversary():
    plan = sv.PrivateAveraging("tree", network="star:5", noise_std=2.0, radius=0.5)
    result = {"name": "plan", "config": dict(plan.describe()), "summary_page": of_plan(plan)}
    parameters = registry(result)["deployment"]["privacy_loss"]["privacy_parameters"]
    assert parameters["mu"] == plan.privacy("network").mu
    assert sv.privacy.gaussian_epsilon(parameters["mu"], DELTA) == pytest.approx(parameters["epsilon"])
