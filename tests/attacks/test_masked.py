"""Attacks and audits on masked sums: what a coalition computes, and that nobody gets above the claim."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.attacks import gossip_attack
from sottovoce.noise.grid import grid_noise
from sottovoce.privacy import ProtectiveNoise
from sottovoce.protocols import Masked


def said(protocol, who):
    attack = gossip_attack(protocol, who)
    return attack.nodes, {frozenset(c.nodes) for c in attack.combinations}


def test_a_coalition_computes_the_sum_of_the_others_and_nothing_else():
    masked = Masked(sv.graphs.grid(4, 4), tolerate=3)
    for who in ([0], [3, 5], [0, 3, 5]):
        assert said(masked, who) == ((), {frozenset(range(16)) - set(who)})
    # without masks the same messages tell four sums instead of one
    assert gossip_attack(masked.tree, [0, 3, 5]).rank == 4
    assert gossip_attack(masked, [0, 3, 5]).rank == 1


def test_account_and_attack_change_together_when_partners_fall_apart():
    """A ring of partners: two opposite members part it, and both the price and the attack show the halves."""
    masked = Masked(sv.graphs.complete(6), partners=sv.graphs.ring(6))
    assert said(masked, [0, 3]) == ((), {frozenset({1, 2}), frozenset({4, 5})})
    assert masked.view([0, 3]).leakage()[[1, 2, 4, 5]] == pytest.approx(1 / 2, abs=1e-12)
    # neighbors of 1 together: its row is theirs
    nodes, sums = said(masked, [0, 2])
    assert nodes == (1,)
    assert sums == {frozenset({3, 4, 5})}
    assert masked.view([0, 2]).leakage()[1] == pytest.approx(1.0, abs=1e-12)


def test_the_attack_gets_the_true_sums_out_of_a_run():
    masked = Masked(sv.graphs.path(5), partners=sv.graphs.ring(5), tolerate=1)
    rows = np.arange(10.0).reshape(5, 2)
    attack = gossip_attack(masked, [0, 2])
    seen = masked.observe(rows, [0, 2])
    assert attack.nodes == (1,)
    assert attack.values(seen)[1].round(9).tolist() == [2.0, 3.0]
    assert attack.combined(seen).round(9).tolist() == [(rows[3] + rows[4]).tolist()]


@pytest.mark.parametrize("colluders", [(), (4,), (1, 4, 7)])
def test_no_test_beats_the_claim_and_the_best_comes_close(colluders):
    """The likelihood-ratio test on the coalition's view, on the noise that members draw on the grid."""
    n, runs, tolerate = 10, 6000, max(len(colluders), 1)
    plan = sv.PrivateAveraging(f"masked:tolerate={tolerate}", noise_std=1.0, radius=0.5, network="ring:10")
    grid, masked = plan.grid, plan.schedule(0)
    claim = np.sqrt(1 / (n - len(colluders)))  # sensitivity 1, noise 1
    if colluders:
        assert plan.privacy("colluders", colluders=colluders, user=0).mu == pytest.approx(claim, rel=1e-10)
    (block,) = masked.blocks(colluders)
    draws = np.stack([grid_noise(runs, grid.widths[u]) for u in block]).sum(axis=0)
    inner = (0.5 - 0.5 * grid.step) / grid.step  # where the mechanism would have clipped it
    # the others' values are known to a strong adversary and taken off: the sum of the noises is left
    outcomes = {
        side: (side * round(inner) + part) for side, part in zip((-1, 1), np.split(draws, 2), strict=True)
    }
    # the draws are the system's own, new in every run: further out the rates of 3,000 runs say too little
    thresholds = np.quantile(draws, np.linspace(0.1, 0.9, 17))
    found = []
    for cut in thresholds:
        fpr, tpr = (outcomes[-1] > cut).mean(), (outcomes[1] > cut).mean()
        found.append(_normal(tpr) - _normal(fpr))
    error = 4 * 1.4 / np.sqrt(runs / 2)  # about four standard errors of the better of the tests
    assert max(found) < claim + 2 * error
    assert np.median(found) > 0.9 * claim - error


def _normal(share):
    from scipy.stats import norm

    return float(norm.ppf(np.clip(share, 1e-4, 1 - 1e-4)))


# ---- accuracy: the noise that a budget buys ------------------------------------------------------------

# the sd of the mean at epsilon 1, delta 1e-5, values in a unit interval
PRINTED = {
    (10, "local"): 1.180, (10, 1): 0.393, (10, 5): 0.528, (10, "central"): 0.373,
    (64, "local"): 0.466, (64, 1): 0.0588, (64, 32): 0.0824, (64, "central"): 0.0583,
    (1024, "local"): 0.1166, (1024, 1): 0.0036, (1024, "central"): 0.0036,
}  # fmt: skip


@pytest.mark.parametrize(("n", "against"), PRINTED)
def test_the_noise_in_the_mean_is_the_printed_one(n, against):
    tolerate = against if isinstance(against, int) else 1
    view = {"local": {"view": "local"}, "central": {"view": "central", "observer": 0}}.get(
        against, {"view": "colluders", "colluders": tolerate}
    )
    plan = sv.PrivateAveraging.for_budget(
        f"masked:tolerate={tolerate}", radius=0.5, network=f"ring:{n}", epsilon=1.0, delta=1e-5, **view
    )
    digits = {0.0036: 5e-5, 0.0052: 5e-5, 0.1166: 5e-5, 0.0588: 5e-5, 0.0583: 5e-5, 0.0824: 5e-5}
    wanted = PRINTED[n, against]
    assert plan.noise_std / np.sqrt(n) == pytest.approx(wanted, abs=digits.get(wanted, 5e-4))


def test_protective_rows_have_that_noise():
    plan = sv.PrivateAveraging.for_budget(
        "masked", radius=0.5, network="ring:10", epsilon=1.0, delta=1e-5, dim=4000
    )
    means = plan.run(np.zeros((10, 4000)), ProtectiveNoise()).outputs["rows"][0]
    assert np.std(means) == pytest.approx(0.393, rel=0.05)
    assert abs(np.mean(means)) < 4.5 * 0.393 / np.sqrt(4000)
