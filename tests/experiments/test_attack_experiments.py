"""Quick forms of the attack experiments, and what the full ones must show."""

import json

import pytest

from sottovoce.experiments import find, registry
from sottovoce.report.sections import section_of

ATTACKS = [
    "attack-geometric", "attack-erdos-renyi", "attack-ego414", "attack-line-cifar10", "attack-line-mnist",
    "attack-florentine",
]  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_quick_forms_run_and_leave_a_record(name):
    if name == "attack-line-mnist":
        pytest.importorskip("torch")
    record = find(name).run(quick=True).record()
    assert json.loads(json.dumps(record))["name"] == name
    assert record["provenance"]["seconds"] >= 0
    assert_has_pictures(record)


def assert_has_pictures(record):
    figures = [block for block in section_of(json.loads(json.dumps(record))).blocks if block.kind == "figure"]
    assert figures
    assert all(figure.svg.startswith("<svg") and figure.caption for figure in figures)


def test_reconstruction_grows_with_rounds_and_attackers():
    counts = list(find("attack-geometric").run(quick=True).metrics["count"].values())
    assert counts == sorted(counts)
    shares = find("attack-erdos-renyi").run(quick=True).metrics["mean_share"]
    assert shares["1"] < shares["2"] < shares["3"]


def test_line_recovers_pictures_far_from_the_attacker_and_noise_hides_them():
    line = find("attack-line-cifar10")
    clear = line.run(quick=True).metrics
    assert clear["count"] == 9
    assert len([p for p in clear["psnr"][1:] if p is not None and p > 20]) >= 7
    noisy = line.run(quick=True, noise=1.0).metrics
    far = range(4, 10)
    assert all(noisy["psnr"][u] < clear["psnr"][u] - 5 for u in far)


def test_every_experiment_names_its_paper():
    assert set(ATTACKS) <= set(registry())
    assert all(e.title and e.paper for e in registry().values())


def test_no_membership_bound_exceeds_the_nominal_loss():
    pytest.importorskip("torch")
    record = find("audit-table5").run(quick=True).record()
    assert record["metrics"]["exceeds_claim"] == []
    assert {h["algorithm"] for h in record["history"]} == set(record["metrics"]["lower_bounds"])
    assert all(h["epsilon_lower"] <= h["epsilon_claimed"] <= 1.0 for h in record["history"])
    assert_has_pictures(record)
