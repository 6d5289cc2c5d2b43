"""A delta that is large for the number of those it protects is told of, and refused above one over it."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.budget import accepted_delta, delta_warning
from sottovoce.accounting.wording import LARGE_DELTA
from sottovoce.algorithms.plan import public_units
from sottovoce.errors import ConfigError, InvalidInput, Refused

PLAN = """version = 1
{accept}
[network]
graph = "complete:12"
[protocol]
name = "masked"
[average]
radius = 0.5
adjacency = "user"
[budget]
epsilon = 4.0
delta = {delta}
"""


@pytest.mark.parametrize(
    ("delta", "words"),
    [(0.1 / 300, None), (0.11 / 300, "above a tenth of one over"), (1.1 / 300, "above one over")],
)
def test_warning_starts_at_a_tenth_of_one_over_the_number(delta, words):
    sentence = delta_warning(delta, 300, "add-remove")
    assert (sentence is None) if words is None else words in sentence
    assert delta_warning(delta, None, "add-remove") is None


def test_a_large_delta_is_refused_unless_accepted_by_name():
    assert accepted_delta(1 / 300, 300, "add-remove", ()) == ()
    with pytest.raises(Refused, match=r"number of records \(300\).*accept = \[\"large delta\"\]"):
        accepted_delta(0.1, 300, "add-remove", ())
    assert accepted_delta(0.1, 300, "add-remove", [LARGE_DELTA]) == (LARGE_DELTA,)
    with pytest.raises(InvalidInput, match="leave it out"):
        accepted_delta(1e-5, 300, "add-remove", [LARGE_DELTA])
    with pytest.raises(ConfigError, match=r"a\.toml, accept names"):
        accepted_delta(1e-5, 300, "add-remove", [LARGE_DELTA], "a.toml")


def test_units_are_public_numbers():
    glm, ring = sv.objectives.GLM(dim=2), sv.graphs.ring(4)
    common = {"steps": 2, "clip_norm": 1.0, "noise_multiplier": 1.0, "learning_rate": 0.1}

    def units(**options):
        return public_units(sv.algorithms.ConsensusSGD(glm, "tree", network=ring, **options, **common))

    assert units(sizes=[10, 20, 30, 40], adjacency="add-remove") == 100
    assert units(batch_size=5.0, sample_rate=0.1, adjacency="add-remove") == 200
    assert units(adjacency="user") == 4
    assert public_units(sv.PrivateAveraging("tree", network=ring, noise_std=1.0, radius=1.0)) == 4
    assert public_units(sv.algorithms.DPSGD(glm, records=70, batch_size=10, **common)) == 70


def test_fit_refuses_or_warns_before_anything_runs():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (300, 2))
    data = X, X @ [1.0, -1.0]

    def fit(delta, **options):
        options |= {"budget": sv.Budget(2.0, delta), "training": sv.TrainingOptions(steps=2), "rng": rng}
        return sv.fit("squared", data, network="ring:3", **options)

    with pytest.raises(Refused, match=r"delta 0\.1 is above one over the number of records \(300\)"):
        fit(0.1)
    with pytest.warns(UserWarning, match="above a tenth of one over"):
        fit(1e-3)
    with pytest.warns(UserWarning, match="may be exposed"):
        fitted = fit(0.1, accept=["large delta"])
    assert "accepted by name: delta is above one over" in fitted.privacy.statement(0.1)
    assert fitted.result.guarantees[0]["accepted"] == ["large delta"]
    assert "accepted" not in fit(1e-5).privacy.statement(1e-5)


def test_plan_files_and_account_refuse_or_tell(call, refused, tmp_path):
    def write(delta, accept=""):
        (tmp_path / "plan.toml").write_text(PLAN.format(accept=accept, delta=delta))

    write(0.1)
    assert 'accept = ["large delta"] at the top of the file' in refused("plan", "plan.toml")
    write(0.1, 'accept = ["large delta"]')
    answer = call("plan", "plan.toml", "--json").json
    assert answer["private_in_words"] == "only in part"
    assert "one over the number of members (12)" in answer["notes"][0]
    text = " ".join(call("plan", "plan.toml").out.split())
    assert "Private: only in part" in text
    assert "Accepted: delta is above one over" in text
    write(0.01)
    (note,) = call("plan", "plan.toml", "--json").json["notes"]
    assert "a tenth of one over the number of members (12)" in note
    write(1e-5)
    assert "notes" not in call("plan", "plan.toml", "--json").json
    account = ("account", "--graph", "ring:8", "--noise", 2)
    assert "number of members (8)" in refused(*account, "--delta", 0.5)
    assert "a tenth of one over" in call(*account, "--delta", 0.1, "--json").json["notes"][-1]
