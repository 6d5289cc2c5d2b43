"""Plan files whose sums are masked: what `sottovoce plan` says of them."""

import json

import numpy as np
import pytest

from sottovoce.cli.main import main
from sottovoce.privacy import gaussian_epsilon

ADMM = """version = 1
[network]
graph = "ring:5"
[data]
name = "breast_cancer"
users = 5
[train]
algorithm = "federated-admm"
steps = 5
sample_rate = 1.0
gamma = 1.0
clip_norm = 1.0
adjacency = "user"
[noise]
noise_std = 6.0
"""
SITES = """version = 1
[network]
graph = "ring:3"
[protocol]
name = "masked"
[data]
file = "records.csv"
label = "y"
group = "site"
partition = "column"
[train]
algorithm = "consensus-sgd"
weighting = "{weighting}"
steps = 3
learning_rate = 1.0
clip_norm = 1.0
adjacency = "add-remove"
[noise]
noise_multiplier = 4.0
"""


def price(capsys, path):
    with pytest.raises(SystemExit) as stop:
        main(("plan", str(path), "--json"))
    out, err = capsys.readouterr()
    assert stop.value.code == 0, (out, err)
    return json.loads(out)


def test_federated_admm_on_a_network_is_masked(capsys, tmp_path):
    (tmp_path / "plan.toml").write_text(ADMM)
    said = {g["adversary"]["kind"]: g for g in price(capsys, tmp_path / "plan.toml")["guarantees"]}
    mu = 4.0 * np.sqrt(5 / 4) / 6.0  # five rounds, four others
    assert said["network"]["epsilon"] == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-6)
    assert "X25519, AES-256 and HMAC hold" in said["network"]["assumptions"]


@pytest.mark.parametrize(
    ("weighting", "words"),
    [("records", "the mean over all records"), ("sites", "the mean of the sites' means")],
)
def test_a_plan_of_unequal_sites_says_which_mean_it_computes(capsys, tmp_path, weighting, words):
    rows = [f"{k % 7},{k % 2},{site}" for site, size in (("a", 4), ("b", 9), ("c", 7)) for k in range(size)]
    (tmp_path / "records.csv").write_text("\n".join(["x,y,site", *rows]) + "\n")
    (tmp_path / "plan.toml").write_text(SITES.format(weighting=weighting))
    (note,) = price(capsys, tmp_path / "plan.toml")["notes"]
    assert words in note
