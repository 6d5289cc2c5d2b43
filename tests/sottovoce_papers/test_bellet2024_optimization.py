"""The quick forms of the convex experiments show what the papers claim, at equal budgets."""

import math


def test_budgets_are_spent_alike(quick):
    forms = quick("dpgcd-madelon")["metrics"]
    for numbers in forms.values():
        for method in ("dp-gcd", "dp-cd", "dp-sgd"):
            assert 0.98 <= numbers[method]["epsilon"] <= 1.0


def test_the_three_methods_get_the_same_mean_loss(quick):
    result = quick("muffliato-houses")
    steps, target = result["config"]["steps"], result["config"]["mean_mu"]
    for numbers in result["metrics"].values():
        for method in ("aggregator", "tree", "muffliato", "muffliato-1"):
            z, share = numbers[method]["noise_multiplier"], numbers[method]["mean_share_per_step"]
            assert math.isclose(steps * share * (2 / z) ** 2, target**2)


def test_no_claim_is_refuted_and_most_are_nearly_reached(quick):
    metrics = quick("convex-audits")["metrics"]
    assert not [name for name, row in metrics.items() if row["refuted"]]
    # less noise than claimed would show up as refuted, twice the noise as loose; the two left out are
    # statements that cover more (selections, sampling) than this attack uses
    loose = {name for name, row in metrics.items() if row["tightness"] < 0.4}
    assert loose <= {"dp-gcd", "dp-sgd, Poisson lots", "token-admm, local"}


def test_equation_six_understates_somebody(quick):
    metrics = quick("topologies")["metrics"]
    assert max(numbers["understated_pairs"] for numbers in metrics.values()) > 0.1
    assert all(0 <= h <= 1 + 1e-9 for numbers in metrics.values() for h in numbers["exact"])
