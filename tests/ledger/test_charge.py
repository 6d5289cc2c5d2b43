"""Fits and trainings on a machine with a member directory: one lifetime ledger for them and for runs
between peers.
"""

import shutil
from dataclasses import replace

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.gaussian import gaussian_epsilon
from sottovoce.errors import BudgetExceeded, ConfigError
from sottovoce.ledger.balance import Charge, LifetimeBudget, curve_of_charges
from sottovoce.ledger.charge import charge
from sottovoce.ledger.lifetime import VARIABLE
from sottovoce.noise.samplers import ProtectiveNoise
from sottovoce.objectives import GLM
from sottovoce.peers.member_directory import MemberDirectory

DELTA = 1e-5


@pytest.fixture
def directory(tmp_path, monkeypatch):
    limit = LifetimeBudget(9.0, DELTA, "user", "local")
    directory = MemberDirectory.create(
        tmp_path / "directory", "north", population="p", budgets=[limit], copy=tmp_path / "copy"
    )
    monkeypatch.setenv(VARIABLE, str(directory.folder))
    return directory


def records(n=40, dim=2):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n, dim))
    return X, np.where(X[:, 0] > 0, 1.0, 0.0)


def fit(steps=5, z=8.0, **options):
    training = sv.TrainingOptions(steps=steps, noise_multiplier=z, evaluate_every=options.pop("every", None))
    return sv.fit("logistic", records(), network="ring:4", training=training, adjacency="user", **options)


def cost(steps, z=8.0):
    """By hand: user-level Gaussian releases of sensitivity 2 C and noise z C."""
    return gaussian_epsilon(2 / z * np.sqrt(steps), DELTA)


def total(directory):
    [budget] = directory.lifetime_ledger.summary()[0]["budgets"]
    return budget["spent"]


def test_a_fit_is_charged_before_its_noise_is_drawn(directory, monkeypatch):
    fitted = fit()
    assert total(directory) == pytest.approx(cost(5), rel=1e-6)
    assert fitted.result.provenance["lifetime_budget"]["population"] == "p"
    fit()
    assert total(directory) == pytest.approx(cost(10), rel=1e-6)
    monkeypatch.setattr(ProtectiveNoise, "perturb", lambda *args, **options: pytest.fail("it drew noise"))
    with pytest.raises(BudgetExceeded, match="nothing was charged"):
        fit(steps=400)
    assert total(directory) == pytest.approx(cost(10), rel=1e-6)


def test_machines_without_a_member_directory_charge_nobody(directory, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.delenv(VARIABLE)
    assert "lifetime_budget" not in fit().result.provenance
    with pytest.raises(ConfigError, match="no member directory on this machine"):
        fit(population="p")


class Interrupted(Exception):
    pass


def interrupted(folder, at):
    """A fit that dies after the checkpoint of step ``at``."""
    real = sv.runners.checkpoint.Checkpoint.commit

    def commit(self, step, *args):
        real(self, step, *args)
        if step == at:
            raise Interrupted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sv.runners.checkpoint.Checkpoint, "commit", commit)
        with pytest.raises(Interrupted):
            fit(steps=10, every=2, checkpoint=folder)


def test_a_fit_that_goes_on_is_not_charged_twice_and_one_set_back_is(directory, tmp_path):
    folder = tmp_path / "checkpoint"
    interrupted(folder, at=4)
    once = cost(10)
    assert total(directory) == pytest.approx(once, rel=1e-6)
    shutil.copytree(folder, tmp_path / "backup")
    interrupted(folder, at=8)
    fit(steps=10, every=2, checkpoint=folder)
    assert total(directory) == pytest.approx(once, rel=1e-6)
    fit(steps=10, every=2, checkpoint=folder)  # finished: nothing more is drawn
    assert total(directory) == pytest.approx(once, rel=1e-6)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)  # these steps are drawn a second time
    fit(steps=10, every=2, checkpoint=folder)
    assert total(directory) == pytest.approx(cost(20), rel=1e-6)


def test_a_fit_set_back_by_one_checkpoint_is_charged_again(directory, tmp_path):
    """Step 6 was shown, so drawing it anew from the checkpoint of step 4 is a second release."""
    folder = tmp_path / "checkpoint"
    interrupted(folder, at=4)
    shutil.copytree(folder, tmp_path / "backup")

    def stop(step, scores):
        if step == 6:
            raise Interrupted

    with pytest.raises(Interrupted):
        fit(steps=10, every=2, checkpoint=folder, on_evaluation=stop)
    assert total(directory) == pytest.approx(cost(10), rel=1e-6)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    fit(steps=10, every=2, checkpoint=folder)
    assert total(directory) == pytest.approx(cost(20), rel=1e-6)


def test_a_checkpoint_pays_for_its_own_plan_only(directory, tmp_path):
    folder = tmp_path / "checkpoint"
    interrupted(folder, at=2)
    with pytest.raises(ConfigError, match="another plan"):
        fit(steps=20, every=2, checkpoint=folder)
    (folder / "current.json").unlink()  # charged, and killed before its first checkpoint
    with pytest.raises(ConfigError, match="other releases"):
        fit(steps=20, every=2, checkpoint=folder)
    plan = sv.PrivateAveraging(sv.protocols.Masked(sv.graphs.complete(5)), noise_std=4.0, radius=1.0)
    ledger = directory.lifetime_ledger
    ledger.set_budget(None, LifetimeBudget(9.0, DELTA, "user", "network"), "one member")
    charge(ledger, plan, "mean", checkpoint=tmp_path / "mean")
    charge(ledger, plan, "mean", checkpoint=tmp_path / "mean")
    assert len(ledger.charges) == 2
    shown = replace(plan, protocol=sv.protocols.Tree(sv.graphs.complete(5)))  # the same noise, seen by others
    with pytest.raises(ConfigError, match="other releases"):
        charge(ledger, shown, "mean", checkpoint=tmp_path / "mean")


PLAN = """
version = 1
[network]
graph = "ring:4"
[protocol]
name = "exchange"
[data]
file = "records.csv"
label = "y"
bounds = { a = [-1.0, 1.0], b = [-1.0, 1.0] }
[train]
algorithm = "consensus-sgd"
adjacency = "user"
steps = 5
clip_norm = 1.0
[noise]
noise_multiplier = 8.0
"""


def test_train_charges_the_same_ledger(directory, call, tmp_path):
    X, y = records()
    rows = [f"{a},{b},{int(c)}" for (a, b), c in zip(X, y, strict=True)]
    (tmp_path / "records.csv").write_text("\n".join(["a,b,y", *rows, ""]))
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "simulated.toml").write_text(PLAN + "seed = 1\n")
    fit()
    provenance = call("train", "plan.toml", "--json").json["provenance"]
    assert total(directory) == pytest.approx(cost(10), rel=1e-6)
    assert provenance["lifetime_budget"]["budgets"][0]["total"] == pytest.approx(total(directory))
    assert call("train", "simulated.toml").code == 0
    assert call("train", "plan.toml", "--population", "staff").code == 1
    assert total(directory) == pytest.approx(cost(10), rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_charged_for_many_agents_covers_each_of_them(seed, directory):
    """Unequal sites: the charge is `account`'s local number, the worst of all of them."""
    rng = np.random.default_rng(seed)
    sizes = tuple(int(size) for size in rng.integers(20, 200, 4))
    plan = sv.algorithms.ConsensusSGD(
        GLM("logistic", dim=2), network="ring:4", sizes=sizes, steps=4, clip_norm=1.0, batch_size=5.0,
        noise_multiplier=tuple(rng.uniform(2, 6, 4).tolist()), learning_rate=0.1,
    )  # fmt: skip
    directory.lifetime_ledger.set_budget(None, LifetimeBudget(99.0, DELTA, "add-remove", "local"), "records")
    directory.lifetime_ledger.set_budget(None, LifetimeBudget(99.0, DELTA, "replace-one", "local"), "records")
    with pytest.raises(BudgetExceeded, match="∞"):  # it says nothing about whole users
        charge(directory.lifetime_ledger, plan, "training")
    directory.lifetime_ledger.open_population("q", [LifetimeBudget(99.0, DELTA, "add-remove")], "records")
    directory.lifetime_ledger.set_budget("q", LifetimeBudget(99.0, DELTA, "replace-one"), "records")
    rows = charge(directory.lifetime_ledger, plan, "training", population="q").summary["budgets"]
    assert rows[0]["total"] == pytest.approx(plan.privacy("network").epsilon(DELTA), rel=1e-9)
    assert rows[1]["total"] > rows[0]["total"]
    [each] = directory.lifetime_ledger.charges
    local = each.guarantee("add-remove", "local")
    assert local == plan.privacy("local")
    for agent in range(4):
        assert local.epsilon(DELTA) >= plan.privacy("local", user=agent).epsilon(DELTA) * (1 - 1e-12)


def test_exact_costs_count_against_their_own_view(directory):
    """Each budget's view has the number of `account`; a view that is added later counts as local."""
    plan = sv.PrivateAveraging(sv.protocols.Masked(sv.graphs.complete(5)), noise_std=4.0, radius=1.0)
    directory.lifetime_ledger.set_budget(None, LifetimeBudget(9.0, DELTA, "user", "network"), "one member")
    charge(directory.lifetime_ledger, plan, "mean of averaging")
    [each] = directory.lifetime_ledger.charges
    assert each.what == "mean of averaging"
    assert curve_of_charges([each], "user", "network").mu == pytest.approx(plan.privacy("network").mu)
    assert curve_of_charges([each], "user", "local").mu == pytest.approx(2 / 4)
    assert plan.privacy("outsider").mu < 2 / 4
    assert curve_of_charges([each], "user", "outsider").mu == pytest.approx(2 / 4)


@pytest.mark.parametrize(("secure_sum", "epsilon"), [(False, 3.002), (True, 0.4076)])
def test_sampling_of_users_amplifies_only_where_participation_is_hidden(secure_sum, epsilon, directory):
    plan = sv.algorithms.FederatedADMM(
        GLM("squared", dim=3), users=20, steps=50, sample_rate=0.05, gamma=1.0, clip_norm=1.0, noise_std=12.0,
        secure_sum=secure_sum,
    )  # fmt: skip
    [row] = charge(directory.lifetime_ledger, plan, "admm").summary["budgets"]
    assert row["total"] == pytest.approx(epsilon, abs=5e-4)
    assert row["total"] == plan.privacy("local").epsilon(DELTA)
    directory.lifetime_ledger.set_budget(None, LifetimeBudget(1.0, DELTA, "user", "local"), "less")
    if not secure_sum:
        with pytest.raises(BudgetExceeded):
            charge(directory.lifetime_ledger, plan, "admm")


def test_a_closed_run_costs_what_left_although_clients_are_sampled(directory):
    """What was released was released: neither a rate of participation nor hidden coins make it cheaper."""
    plan = sv.algorithms.FederatedADMM(
        GLM("squared", dim=3), users=20, steps=50, sample_rate=0.05, gamma=1.0, clip_norm=1.0, noise_std=12.0,
        secure_sum=True,
    )  # fmt: skip
    guarantee = plan.privacy("local", user=3)
    new = Charge("", "a federation", tuple(plan.releases(3)), (guarantee,), node=3, run_id="1" * 64)
    ledger = directory.lifetime_ledger
    ledger.charge_run(new)
    assert total(directory) == pytest.approx(guarantee.epsilon(DELTA), rel=1e-12)
    [release] = plan.releases(3)
    ledger.close(new.run_id, [release.at(k) for k in range(7)], "given up")
    mu = np.sqrt(7) * release.sensitivity / release.noise_std
    assert total(directory) == pytest.approx(gaussian_epsilon(mu, DELTA), rel=1e-9)
