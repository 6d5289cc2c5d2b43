"""The lifetime ledger: what every run costs the same people together, refused when doubtful (I16)."""

import json
import math
import os
import threading
from dataclasses import replace

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.release import Release
from sottovoce.errors import BudgetExceeded, ConfigError, DataError, InvalidInput, LedgerError, NotAGuarantee
from sottovoce.ledger import lifetime as lifetime_module
from sottovoce.ledger.balance import Charge, LifetimeBudget, curve_of_charges
from sottovoce.ledger.chain import written
from sottovoce.ledger.lifetime import LifetimeLedger
from sottovoce.objectives import GLM
from sottovoce.privacy import Adversary, Curve, Guarantee, gaussian_epsilon, sampled_gaussian

DELTA = 1e-5
# the agreement of docs/peers.md: clip 1, noise 12 clips, 100 steps, one record more or less
HUNDRED = Release(0, 0, sensitivity=1.0, noise_std=12.0, adjacency="add-remove", steps=100)


def new_ledger(folder, *limits):
    lifetime = LifetimeLedger(
        folder / "lifetime.ledger", folder / "away" / "lifetime.ledger", folder / "lock"
    )
    lifetime.create("north")
    lifetime.open_population(
        "patients", limits or [LifetimeBudget(6.0, DELTA, "add-remove", "local")], "a vote"
    )
    return lifetime


def run(number, *releases, **more):
    return Charge("", f"run {number}", releases or (HUNDRED,), run_id=f"{number:064x}", records="r", **more)


# ---- totals --------------------------------------------------------------------------------------------


def test_three_agreements_on_the_same_people_cost_what_they_cost_together(tmp_path):
    """Each printed 3.549 of 5; together they cost 5.300 and 6.735, and beyond the lifetime budget is no."""
    lifetime = new_ledger(tmp_path)
    lifetime.charge_run(run(1))
    assert round(lifetime.summary()[0]["budgets"][0]["total"], 3) == 3.549
    (row,) = lifetime.forecast(run(2))
    assert [round(row[key], 3) for key in ("spent", "adds", "total")] == [3.549, 3.549, 5.3]
    lifetime.charge_run(run(2))
    with pytest.raises(BudgetExceeded, match=r"Spent so far 5\.3, this adds 3\.549, together 6\.735 of a li"):
        lifetime.charge_run(run(3))
    assert list(lifetime.runs) == [run(1).run_id, run(2).run_id]
    lifetime.set_budget(None, LifetimeBudget(7.0, DELTA, "add-remove", "local"), "second vote")
    lifetime.charge_run(run(3))
    assert round(lifetime.summary()[0]["budgets"][0]["total"], 3) == 6.735
    assert [row["why"] for row in lifetime.rows() if row["act"] == "budget"] == ["second vote"]


def test_a_known_run_is_charged_once_and_keeps_its_population_records_and_releases(tmp_path):
    lifetime = new_ledger(tmp_path)
    lifetime.charge_run(run(1, state="runs/1"))
    for _ in range(3):
        assert lifetime.charge_run(run(1, state="elsewhere")).state == "runs/1"
    assert len(lifetime.charges) == 1
    with pytest.raises(DataError, match="records differ"):
        lifetime.charge_run(replace(run(1), records="others"))
    with pytest.raises(ConfigError, match="other releases"):
        lifetime.charge_run(replace(run(1), releases=(replace(HUNDRED, noise_std=1.0),)))
    lifetime.open_population("staff", [LifetimeBudget(1.0, DELTA, "user")], "a vote")
    with pytest.raises(ConfigError, match="charged to the population patients"):
        lifetime.charge_run(replace(run(1), population="staff"))
    lifetime.close(run(1).run_id, None, "given up")
    with pytest.raises(ConfigError, match="closed"):
        lifetime.charge_run(run(1))


def test_populations_are_separate_and_named_by_an_act(tmp_path):
    lifetime = new_ledger(tmp_path)
    with pytest.raises(ConfigError, match="no population staff"):
        lifetime.charge("staff", [HUNDRED], "a mean")
    lifetime.open_population("staff", [LifetimeBudget(4.0, DELTA, "add-remove", "local")], "a vote")
    lifetime.charge("staff", [HUNDRED], "a mean")
    lifetime.charge(None, [HUNDRED], "a mean")
    assert [round(each["budgets"][0]["total"], 3) for each in lifetime.summary()] == [3.549, 3.549]
    with pytest.raises(ConfigError, match="open already"):
        lifetime.open_population("staff", [LifetimeBudget(40.0, DELTA, "user")], "again")


@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_every_adjacency_counts_every_release(rate):
    """Record level: twice as far for a replacement. User level covers records; records never cover users."""
    added = Release(0, 0, sensitivity=1.0, noise_std=4.0, adjacency="add-remove", steps=9, sample_rate=rate)
    replaced = replace(added, adjacency="replace-one", sensitivity=2.0)  # the same mechanism, other words
    whole = replace(added, adjacency="user", sensitivity=2.0, sample_rate=1.0)
    charges = [Charge("p", "a", (added,)), Charge("p", "b", (replaced,)), Charge("p", "c", (whole,))]

    def epsilon(charges, adjacency):
        return curve_of_charges(charges, adjacency).epsilon(DELTA)

    assert epsilon(charges[:1], "replace-one") == epsilon(charges[1:2], "replace-one")
    assert epsilon(charges[1:2], "add-remove") >= epsilon(charges[:1], "add-remove") * (1 - 1e-12)
    if rate == 1.0:
        assert epsilon(charges, "replace-one") == pytest.approx(
            gaussian_epsilon(math.sqrt(3 * 9) * 2 / 4, DELTA), rel=1e-9
        )
    else:
        twice = sampled_gaussian(rate, 4.0, 18).epsilon(DELTA)
        assert epsilon(charges[:2], "add-remove") == pytest.approx(twice, rel=1e-3)
    assert epsilon(charges[2:], "add-remove") == pytest.approx(gaussian_epsilon(3 / 2, DELTA), rel=1e-9)
    assert epsilon(charges[2:], "user") == epsilon(charges[2:], "replace-one")
    assert epsilon(charges, "user") == math.inf


def test_a_record_level_run_is_refused_under_a_user_level_budget(tmp_path):
    lifetime = new_ledger(tmp_path, LifetimeBudget(100.0, DELTA, "user"))
    with pytest.raises(BudgetExceeded, match="∞"):
        lifetime.charge_run(run(1))


def test_views_count_exact_costs_where_known_and_local_ones_elsewhere(tmp_path):
    def against(kind, mu, **who):
        return Guarantee(Adversary(kind, **who), "add-remove", "exact", Curve.gaussian(mu))

    member, pair = against("network", 0.1, user=0), against("colluders", 0.2, count=2, user=0)
    lifetime = new_ledger(
        tmp_path,
        LifetimeBudget(9.0, DELTA, "add-remove", "local"),
        LifetimeBudget(9.0, DELTA, "add-remove"),
        LifetimeBudget(9.0, DELTA, "add-remove", "colluders:2"),
        LifetimeBudget(30.0, DELTA, "add-remove", "colluders:3"),
        LifetimeBudget(30.0, DELTA, "replace-one"),
    )
    lifetime.charge_run(run(1, guarantees=(member, pair), node=0))
    lifetime.charge_run(run(2, guarantees=(pair,), node=0))
    lifetime.charge(None, [HUNDRED], "a training")
    local = 10 / 12
    wanted = {
        ("add-remove", "local"): math.hypot(local, local, local),
        ("add-remove", "network"): math.hypot(0.1, 0.2, local),
        ("add-remove", "colluders:2"): math.hypot(0.2, 0.2, local),
        ("add-remove", "colluders:3"): math.hypot(local, local, local),
        ("replace-one", "network"): 2 * math.hypot(local, local, local),
    }
    for row in lifetime.summary()[0]["budgets"]:
        mu = wanted[row["adjacency"], row["view"]]
        assert row["total"] == pytest.approx(gaussian_epsilon(mu, DELTA), rel=1e-9)


def test_only_valid_guarantees_against_a_whole_view_and_about_everybody_are_charged(tmp_path):
    """A guarantee of another view, about one user or against one observer: one sentence, nothing charged."""
    plan = sv.PrivateAveraging(sv.protocols.Masked(sv.graphs.complete(5)), noise_std=1.0, radius=0.5)
    network = plan.privacy("network")
    lifetime = new_ledger(tmp_path, LifetimeBudget(99.0, DELTA, "user"))
    before = lifetime.path.read_bytes()
    for guarantees, kind, words in (
        ([plan.privacy("central")], InvalidInput, "got one against central"),
        ([plan.privacy("network", observer=3)], InvalidInput, "got one against one named member"),
        ([plan.privacy("colluders", colluders=[1, 3])], InvalidInput, "got one against named colluders"),
        ([plan.privacy("pairwise", observer=1, user=2)], InvalidInput, "got one against one named member"),
        ([plan.privacy("network", user=2)], InvalidInput, "must be about everybody, got one about node 2"),
        ([replace(network, label="published")], NotAGuarantee, "got published for network"),
        ([network, network], InvalidInput, "got two for user, network"),
    ):
        with pytest.raises(kind, match=words) as caught:
            lifetime.charge(None, plan.releases(0), "a mean", guarantees)
        assert str(caught.value).count(".") == 1
        assert str(caught.value).endswith(".")
        assert lifetime.path.read_bytes() == before
    with pytest.raises(InvalidInput, match="must be about node 1, got one about everybody"):
        run(1, *plan.releases(1), guarantees=(network,), node=1)
    with pytest.raises(InvalidInput, match="releases of one adjacency"):
        lifetime.charge(None, [HUNDRED, *plan.releases(0)], "two kinds")
    for view in ("everyone", "central", "colluders:0"):
        with pytest.raises(InvalidInput, match=f"outsider, network or colluders:c, got '{view}'"):
            LifetimeBudget(1.0, DELTA, "user", view)
    assert lifetime.path.read_bytes() == before
    lifetime.charge(None, plan.releases(0), "a mean", [network])
    assert lifetime.summary()[0]["budgets"][0]["total"] == pytest.approx(network.epsilon(DELTA), rel=1e-12)


def test_sampled_users_and_sampled_records_add_up(tmp_path):
    """Their pairs of distributions are unlike; the sum is above both, and near basic composition."""
    records = Release(0, 0, 1.0, 2.0, adjacency="add-remove", sample_rate=0.1, steps=20)
    plan = sv.algorithms.FederatedADMM(
        GLM("squared", dim=2), users=5, steps=20, sample_rate=0.1, gamma=1.0, clip_norm=1.0, noise_std=8.0,
        secure_sum=True,
    )  # fmt: skip
    users = Charge("p", "federation", tuple(plan.releases(0)), (plan.privacy("local"),))
    both = [Charge("p", "records", (records,)), users]
    one, other = (curve_of_charges([each], "add-remove").epsilon(DELTA / 2) for each in both)
    total = curve_of_charges(both, "add-remove").epsilon(DELTA)
    assert max(one, other) < total < 1.2 * (one + other)


# ---- doubt ---------------------------------------------------------------------------------------------


def filled(folder):
    lifetime = new_ledger(folder)
    lifetime.charge_run(run(1))
    lifetime.start(run(1).run_id)
    return lifetime


@pytest.mark.parametrize("which", ["path", "copy"])
def test_a_changed_bit_or_a_cut_is_refused(tmp_path, which):
    lifetime = filled(tmp_path)
    file = getattr(lifetime, which)
    whole = file.read_bytes()
    rng = np.random.default_rng(5)
    damaged = [whole[:cut] for cut in {0, 1, *rng.integers(2, len(whole) - 1, 40).tolist(), len(whole) - 1}]
    for at in rng.integers(0, len(whole), 120).tolist():
        damaged.append(whole[:at] + bytes([whole[at] ^ 1 << int(rng.integers(8))]) + whole[at + 1 :])
    for content in damaged:
        file.write_bytes(content)
        with pytest.raises(LedgerError):
            lifetime.rows()
    lines = whole.splitlines(keepends=True)
    if which == "path":  # whole rows missing: the chain is right, the copy knows better
        file.write_bytes(b"".join(lines[:-1]))
        with pytest.raises(LedgerError, match="older than its copy"):
            lifetime.charge(None, [HUNDRED], "a mean")
    file.write_bytes(b"".join([*lines[:1], *lines[2:]]))
    with pytest.raises(LedgerError, match="does not fit the chain"):
        lifetime.rows()
    lifetime.restore("the disk was replaced")
    assert list(lifetime.runs) == [run(1).run_id]


def test_a_missing_or_forked_ledger_is_refused(tmp_path):
    lifetime = filled(tmp_path)
    for file in (lifetime.path, lifetime.copy):
        content = file.read_bytes()
        file.unlink()
        with pytest.raises(LedgerError, match="missing"):
            lifetime.rows()
        file.write_bytes(content)
    before = lifetime.copy.read_bytes()
    lifetime.charge(None, [replace(HUNDRED, steps=1)], "one way")
    one_way = lifetime.path.read_bytes()
    for file in (lifetime.path, lifetime.copy):
        file.write_bytes(before)
    lifetime.charge(None, [replace(HUNDRED, steps=1)], "another way")
    lifetime.path.write_bytes(one_way)
    for act in (lifetime.rows, lambda: lifetime.restore("which one?")):
        with pytest.raises(LedgerError, match="contradict each other"):
            act()


def test_a_ledger_restored_from_one_copy_says_so(tmp_path):
    lifetime = filled(tmp_path)
    lifetime.copy.unlink()
    assert lifetime.restore("the other disk died") == "ledger"
    assert "one copy alone" in lifetime.summary()[0]["remarks"][0]
    assert lifetime.copy.read_bytes() == lifetime.path.read_bytes()
    old = lifetime.path.read_bytes()
    lifetime.charge(None, [replace(HUNDRED, steps=1)], "a mean")
    lifetime.path.write_bytes(old)
    assert lifetime.restore("a backup came back") == "copy"
    assert len(lifetime.summary()[0]["remarks"]) == 1
    assert len(lifetime.charges) == 2


def test_a_full_disk_charges_nothing_that_is_sent(tmp_path, files_no_larger_than):
    lifetime = filled(tmp_path)
    with (
        files_no_larger_than(lifetime.path.stat().st_size + 10),
        pytest.raises(LedgerError, match="cannot be wr"),
    ):
        lifetime.charge_run(run(2))
    assert list(lifetime.runs) == [run(1).run_id]
    lifetime.charge_run(run(2))


def test_the_row_is_on_the_disk_in_both_copies_before_start_returns(tmp_path, monkeypatch):
    lifetime, order = filled(tmp_path), []
    real_fsync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("sync"), real_fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append(str(b)), real_replace(a, b)))
    lifetime.charge_run(run(2))
    assert order == ["sync", str(lifetime.path), "sync", "sync", str(lifetime.copy), "sync"]


def test_a_crash_between_the_copies_is_made_good_before_anything_else(tmp_path, monkeypatch):
    lifetime = filled(tmp_path)
    real = lifetime_module.atomic_write

    def only_the_ledger(path, *rest, **more):
        if path == lifetime.copy:
            raise KeyboardInterrupt
        return real(path, *rest, **more)

    monkeypatch.setattr(lifetime_module, "atomic_write", only_the_ledger)
    with pytest.raises(KeyboardInterrupt):
        lifetime.charge_run(run(2))
    monkeypatch.undo()
    assert lifetime.copy.read_bytes() != lifetime.path.read_bytes()
    assert list(lifetime.runs) == [run(1).run_id, run(2).run_id]
    assert lifetime.copy.read_bytes() == lifetime.path.read_bytes()


def test_several_writers_come_one_after_the_other(tmp_path):
    lifetime = new_ledger(tmp_path)
    small = replace(HUNDRED, steps=1)

    def some():
        for _ in range(5):
            LifetimeLedger(lifetime.path, lifetime.copy, tmp_path / "lock").charge(None, [small], "a mean")

    threads = [threading.Thread(target=some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lifetime.charges) == 20
    assert len(lifetime.rows()) == 22


def test_an_unknown_format_or_act_is_refused(tmp_path):
    lifetime = filled(tmp_path)
    rows = lifetime.rows()
    whole = lifetime.path.read_bytes()
    for changed, match in (
        ([{**rows[0], "format": 9}, *rows[1:]], "format 9"),
        ([*rows, {"act": "gift"}], "act 'gift'"),
    ):
        lifetime.path.write_bytes(written(json.dumps(row).encode() for row in changed))
        with pytest.raises(LedgerError, match=match):
            lifetime.rows()
        lifetime.path.write_bytes(whole)
