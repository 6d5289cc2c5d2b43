"""Registry entries and NIST answers hold the numbers of the summary page."""

import json

import pytest

import sottovoce as sv
from sottovoce._format import fixed
from sottovoce.errors import DataError
from sottovoce.report.inputs import read_input
from sottovoce.report.standards import MEMBERS, nist, registry
from sottovoce.report.summary_page import of_plan, of_result

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


def filled_by(plan, **options):
    return {"name": "plan", "config": dict(plan.describe()), "summary_page": of_plan(plan, **options)}


CURATOR = sv.algorithms.DPGCD(
    sv.objectives.GLM("logistic", dim=3), records=500, steps=5, clip_norm=1.0, noise_ratio=40.0
)
FEDERATION = sv.algorithms.FederatedADMM(
    sv.objectives.GLM("squared"), users=9, steps=3, sample_rate=0.5, gamma=1.0, clip_norm=1.0, noise_std=4.0
)
TOKEN = sv.PrivateAveraging("walk:12", network="ring:5", noise_std=1.0, radius=0.5)
MASKED = sv.PrivateAveraging("masked", network="complete:5", noise_std=1.0, radius=0.5)
PLAIN = sv.PrivateAveraging("gossip", network="ring:5", noise_std=0.0, radius=0.5)


@pytest.mark.parametrize(
    ("plan", "mechanism", "model", "trusted"),
    [
        (
            CURATOR,
            "Laplace noise drawn by the curator",
            "Central: a trusted curator",
            "The curator, with all",
        ),
        (FEDERATION, "Gaussian noise at every client", "Federated: clients add", "The members: that they do"),
        (TOKEN, "Gaussian noise at every member that holds the token", "Decentralized: a token", "The mem"),
        (MASKED, "Gaussian noise at every member, ", "Decentralized: members add", "The members: that they"),
        (PLAIN, "No noise is added", "Decentralized: members add", "The members"),
    ],
    ids=lambda plan: getattr(plan, "name", None),
)
def test_mechanism_model_and_trust_are_those_of_the_plan(plan, mechanism, model, trusted):
    result = filled_by(plan)
    entry, answers = registry(result)["deployment"], {row["topic"]: row["answer"] for row in nist(result)}
    assert answers["Mechanisms"].startswith(mechanism)
    assert entry["implementation"]["mechanisms"] == answers["Mechanisms"]
    assert entry["model"]["model_type_description"].startswith(model)
    assert answers["Trust model"].startswith(trusted)
    assert ("Records stay" in answers["Data security"]) == (not plan.central)


def test_a_stored_result_knows_its_noise_and_its_curator():
    rows = [guarantee.to_dict(DELTA) for guarantee in CURATOR.guarantees()]
    result = sv.Result("dp-gcd", dict(CURATOR.describe()), guarantees=rows).to_dict()
    result["summary_page"] = of_result(result)
    entry = registry(result)["deployment"]
    assert entry["implementation"]["mechanisms"].startswith("Laplace noise drawn by the curator")
    assert entry["model"]["model_type"] == "Central"


def test_local_guarantees_trust_nobody_and_others_the_members():
    def trusted(**view):
        return nist(filled_by(MASKED, adversary=view))[3]["answer"]

    assert trusted(view="local").startswith("Nobody.")
    assert trusted(view="colluders", colluders=2).startswith(
        "The members: that no larger group of them pools"
    )
    assert trusted(view="central").startswith("The members, with what they see of each other.")
