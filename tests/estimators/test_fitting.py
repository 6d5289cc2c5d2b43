"""sv.fit: a module and data of one's own in, the fitted model and its price out."""

import copy
import json
import os
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import nn

import sottovoce as sv
from sottovoce.algorithms.gradient_plan import noise_multipliers
from sottovoce.algorithms.optimizers import Optimizer, Rate
from sottovoce.data.agent_tensors import AgentData
from sottovoce.errors import BudgetExceeded, DataError, InvalidInput, Refused, SottovoceError
from sottovoce.models.adapters import SIMULATED
from sottovoce.objectives.nets.inputs import Layout, Unpacking
from sottovoce.objectives.nets.objective import NetObjective

BUDGET = {"epsilon": 3.0, "delta": 1e-5}


BUDGETED = {item.name for item in fields(sv.Budget)}
TRAINED = {item.name for item in fields(sv.TrainingOptions)}
TABLE_OPTIONS = ("features", "drop", "bounds", "categories", "missing")


def fit(model, data, **settings):
    """Call sv.fit with flat settings, each put where it belongs."""
    budget = {key: settings.pop(key) for key in list(settings) if key in BUDGETED}
    training = {key: settings.pop(key) for key in list(settings) if key in TRAINED}
    table = {key: settings.pop(key) for key in list(settings) if key in TABLE_OPTIONS}
    if table:
        data = sv.data.TableData(data, settings.pop("label", None), settings.pop("group", None), **table)
    if budget.get("epsilon") is not None:
        settings["budget"] = sv.Budget(**budget)
    return sv.fit(model, data, training=sv.TrainingOptions(**training), **settings)


def rng(seed=0):
    return np.random.default_rng(seed)


def mlp(inputs=2, outputs=2, seed=0, **options):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 12, **options), nn.Tanh(), nn.Linear(12, outputs, **options))


def circles(n=1200, seed=1):
    X = rng(seed).uniform(-1, 1, (n, 2))
    return X, (np.hypot(*X.T) > 0.75).astype(np.int64)


def fitted_circles(n=1200, module=None, **options):
    X, y = circles(n)
    module = mlp() if module is None else module
    settings = {"network": "complete:4", "steps": 60, "learning_rate": 2.0, "rng": rng(), **BUDGET}
    return fit(module, (X, y), test=circles(500, 2), **{**settings, **options})


# ---- the answer, and what it cost ----------------------------------------


def test_a_network_learns_within_its_budget_and_the_callers_stays_as_it_was():
    net = mlp()
    before = copy.deepcopy(net.state_dict())
    fitted = fitted_circles(4000, module=net, steps=120, learning_rate=4.0)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert net.training
    assert fitted.model is not net
    assert not fitted.model.training
    assert any(
        not torch.equal(a, b) for a, b in zip(net.parameters(), fitted.model.parameters(), strict=True)
    )
    X, y = circles(500, 2)
    right = 100 * (fitted.predict(X) == y).mean()
    assert right > 88  # 55 in 100 lie in the larger class; a straight line gets no further
    assert right == pytest.approx(fitted.metrics["accuracy"], abs=1e-4)
    scores = fitted.model(torch.as_tensor(X, dtype=torch.float32))
    loss = nn.functional.cross_entropy(scores, torch.as_tensor(y)).item()
    assert fitted.metrics["loss"] == pytest.approx(loss, abs=1e-5)
    assert fitted.history[-1]["loss"] < fitted.history[0]["loss"]
    assert 2.9 < fitted.privacy.epsilon(1e-5) <= 3.0
    assert fitted.privacy.curve == fitted.plan.privacy("network").curve
    assert SIMULATED in fitted.privacy.assumptions


def test_noise_protects_unless_a_generator_says_otherwise():
    X, y = circles(80)
    fitted = fit(mlp(), (X, y), network="path:2", steps=2, **BUDGET)
    assert fitted.result.provenance["noise"] == "protective"
    assert SIMULATED not in fitted.privacy.assumptions


def test_the_budget_names_its_view_and_what_is_hidden():
    X, y = circles(400)
    options = {"network": "ring:8", "steps": 5, "rng": rng(), **BUDGET}
    noise = {view: noise_multipliers(fit("logistic", (X, y), view=view, **options).plan)[0]
             for view in ("central", "network", "local")}  # fmt: skip
    assert noise["central"] < noise["network"] <= noise["local"]
    whole = fit("logistic", (X, y), adjacency="user", **options)
    assert whole.privacy.adjacency == "user"
    assert whole.privacy.epsilon(1e-5) <= 3.0


@pytest.mark.parametrize("algorithm", ["dp-dsgd", "dp-dsgt", "muffliato-sgd", "dp-sgd"])
def test_other_algorithms_by_name(algorithm):
    X, y = circles(200)
    graph = None if algorithm == "dp-sgd" else "ring:4"
    fitted = fit(mlp(), (X, y), network=graph, algorithm=algorithm, steps=3, rng=rng(), **BUDGET)
    assert fitted.plan.name == algorithm
    assert fitted.predict(X[:5]).shape == (5,)
    assert fitted.privacy.epsilon(1e-5) <= 3.0


def test_a_plan_of_ones_own_in_one_line():
    X, y = circles(80)

    def made(objective, sizes):
        return sv.algorithms.DPDSGD(
            objective, sv.graphs.ring(4), steps=3, sizes=sizes, noise_multiplier=3.0, clip_norm=0.5
        )

    net = mlp()
    by_function = fit(net, (X, y), network="ring:4", plan=made, rng=rng())
    assert by_function.plan.clip_norm == 0.5
    plan = made(NetObjective(net, clip_norm=1.0), (20,) * 4)
    by_plan = fit(net, (X, y), plan=plan, rng=rng())
    assert by_plan.plan is plan
    assert np.array_equal(by_plan.rows, by_function.rows)
    with pytest.raises(BudgetExceeded):
        fit(net, (X, y), plan=plan, rng=rng(), epsilon=0.01, delta=1e-5)
    with pytest.raises(InvalidInput, match="parameters"):
        fit(mlp(outputs=3), (X, y), plan=plan, rng=rng())


def _body_and_head(parameters):
    *body, weight, bias = parameters
    return [
        {"params": body, "lr": 0.01, "weight_decay": 0.0},
        {"params": [weight, bias], "weight_decay": 0.3},
    ]


# ---- against torch and scikit-learn, without noise ----------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.3),
        lambda p: torch.optim.SGD(p, lr=0.3, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.05),
        lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.95), weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.02, eps=1e-6, weight_decay=0.2),
        lambda p: torch.optim.AdamW(_body_and_head(p), lr=0.02, weight_decay=0.2),
        lambda p: torch.optim.SGD(_body_and_head(p), lr=0.2, momentum=0.5),
    ],
)
def test_without_noise_it_is_torchs_own_training(make):
    net = mlp().double()
    X, y = circles(60)
    fitted = fit(net, (X, y), network="ring:3", noise_multiplier=0.0, clip_norm=1e6, steps=7,
                    optimizer=make(net.parameters()), rng=rng())  # fmt: skip
    twin = copy.deepcopy(net)
    optimizer = make(twin.parameters())
    for _ in range(7):
        optimizer.zero_grad()
        nn.functional.cross_entropy(twin(torch.as_tensor(X)), torch.as_tensor(y)).backward()
        optimizer.step()
    for a, b in zip(fitted.model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)
    assert fitted.privacy.epsilon(1e-5) == np.inf


def test_warm_up_and_cosine_rates_are_those_of_torch():
    rate = Rate(0.5, 0.1, "cosine", warmup=0.25)
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    rising = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / 5, 1.0, total_iters=4)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 14, eta_min=0.1)
    both = torch.optim.lr_scheduler.SequentialLR(optimizer, [rising, falling], [5])
    expected = []
    for _ in range(20):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        both.step()
    assert np.allclose([rate(k, 20) for k in range(20)], expected, atol=1e-12)


def test_optimizers_by_torchs_names():
    assert Optimizer.from_value("Adam").kind == "adam"
    assert Optimizer.from_value({"name": "SGD", "momentum": 0.5}) == Optimizer("momentum", 0.5)
    with pytest.raises(InvalidInput, match="amsgrad"):
        Optimizer.from_value({"name": "adam", "amsgrad": True})


def test_scikit_learns_estimators_without_noise_are_scikit_learns():
    from sklearn.linear_model import LogisticRegression, Ridge

    X = rng().normal(size=(120, 3))
    y = (X @ [1.0, -2.0, 0.5] + rng(1).normal(size=120) > 0.2).astype(int)
    options = {"network": "ring:4", "noise_multiplier": 0.0, "clip_norm": 1e6, "rng": rng()}
    ours = fit(LogisticRegression(C=2.0, fit_intercept=False), (X, y), steps=3000, learning_rate=1.0,
                  **options)  # fmt: skip
    theirs = LogisticRegression(C=2.0, fit_intercept=False, tol=1e-10).fit(X, y)
    assert np.allclose(ours.model.coef, theirs.coef_[0], atol=1e-5)
    assert np.array_equal(ours.predict(X), theirs.predict(X))
    t = X @ [1.0, 2.0, 3.0] + 4.0
    ridge = fit(Ridge(alpha=3.0, fit_intercept=False), (X, t), steps=2000, learning_rate=0.3, **options)
    assert np.allclose(ridge.model.coef, Ridge(alpha=3.0, fit_intercept=False).fit(X, t).coef_, atol=1e-6)


# ---- weights given are weights kept ----------------------------------------


def test_pretrained_weights_are_kept_and_reset_says_otherwise():
    X, y = circles()
    net = mlp()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(torch.as_tensor(X).float()), torch.as_tensor(y)).backward()
        optimizer.step()
    options = {"module": net, "learning_rate": 1e-6, "steps": 3}
    assert fitted_circles(**options).metrics["accuracy"] > 95
    assert fitted_circles(**options, initial="reset").metrics["accuracy"] < 90
    plan = sv.algorithms.ConsensusSGD(
        NetObjective(net),
        sv.graphs.ring(4),
        steps=1,
        learning_rate=1e-9,
        noise_multiplier=1.0,
        sizes=(300,) * 4,
    )
    data = AgentData(X, y, np.split(np.arange(1200), 4), test=circles(500, 2))
    assert plan.run(data, rng()).metrics["accuracy"] > 95


class LoRA(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Linear(base.in_features, rank, bias=False)
        self.B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.B.weight)

    def forward(self, x):
        return self.base(x) + self.B(self.A(x))


def test_adapters_start_at_zero_and_only_they_move():
    torch.manual_seed(3)
    net = nn.Sequential(LoRA(nn.Linear(2, 6)), nn.Tanh(), nn.Linear(6, 2).requires_grad_(False))
    x = torch.randn(9, 2)
    still = fitted_circles(module=net, learning_rate=1e-12, steps=1).model
    assert torch.allclose(still(x), net(x), atol=1e-6)
    moved = fitted_circles(module=net, steps=2)
    assert torch.equal(moved.model[0].base.weight, net[0].base.weight)
    assert torch.equal(moved.model[2].weight, net[2].weight)
    assert moved.model[0].B.weight.abs().max() > 0
    assert moved.plan.objective.n_params == 2 * 2 + 2 * 6


# ---- dropout ----------------------------------------


def with_dropout():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 30), nn.Tanh(), nn.Dropout(0.5), nn.Linear(30, 2))


def test_dropout_follows_the_runs_seed_and_is_off_when_measured():
    one, same = with_dropout().train(), with_dropout().eval()
    torch.manual_seed(11)
    state = torch.get_rng_state()
    first = fitted_circles(module=one, steps=4)
    assert torch.equal(torch.get_rng_state(), state)  # nobody else's random numbers are used up
    torch.manual_seed(99)
    again = fitted_circles(module=same, steps=4)
    other = fitted_circles(module=with_dropout(), steps=4, rng=rng(5), noise_multiplier=0.0, epsilon=None)
    dry = nn.Sequential(*[m for m in with_dropout() if not isinstance(m, nn.Dropout)])
    without = fitted_circles(module=dry, steps=4, rng=rng(5), noise_multiplier=0.0, epsilon=None)
    assert np.array_equal(first.rows, again.rows)
    assert not np.array_equal(other.rows, without.rows)  # dropout is on while training
    X, y = circles(500, 2)
    with torch.no_grad():
        right = (first.model(torch.as_tensor(X).float()).argmax(1).numpy() == y).mean()
    assert first.metrics["accuracy"] == pytest.approx(100 * right, abs=1e-4)


def test_an_interrupted_fit_goes_on_to_the_same_model(tmp_path):
    whole = fitted_circles(module=with_dropout(), steps=6)

    class MatrixPartition(Exception):
        pass

    def cut(run):
        def stopped(plan, data, rng, **options):
            def on_step(step, found):
                if step == 4:
                    raise MatrixPartition

            return run(plan, data, rng, **options | {"on_step": on_step})

        return stopped

    options = {"module": with_dropout(), "steps": 6, "checkpoint": tmp_path / "kept", "evaluate_every": 1}
    plain = sv.algorithms.ConsensusSGD.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sv.algorithms.ConsensusSGD, "run", cut(plain))
        with pytest.raises(MatrixPartition):
            fitted_circles(**options)
    again = fitted_circles(**options)
    assert [found["step"] for found in again.history] == [4, 5, 6]  # the third step was the last one kept
    assert np.array_equal(again.rows, whole.rows)


# ---- tables ----------------------------------------

TABLE = "age,dose,sex,town,id,ill\n"
BOUNDS = {"age": (20, 80), "dose": (0, 10)}
READING = {
    "label": "ill", "group": "town", "drop": ["id"], "bounds": BOUNDS, "categories": {"sex": ["f", "m"]},
    "classes": ["no", "yes"], "network": "complete", "rng": rng(), "steps": 40, **BUDGET,
}  # fmt: skip


def clinic(path, n=900, seed=0):
    draw = rng(seed)
    age, dose = draw.uniform(20, 80, n), draw.uniform(0, 10, n)
    sex, town = draw.choice(["f", "m"], n), draw.choice(["Oslo", "Rome", "Bern"], n)
    ill = np.where(age / 60 + dose / 10 + 0.3 * (sex == "m") > 1.5, "yes", "no")
    rows = [f"{a:.2f},{d:.2f},{s},{t},p{i},{y}\n"
            for i, (a, d, s, t, y) in enumerate(zip(age, dose, sex, town, ill, strict=True))]  # fmt: skip
    path.write_text(TABLE + "".join(rows))
    return path


class Frame:
    """What of pandas' manner is asked for: columns by name."""

    def __init__(self, columns):
        self.columns = list(columns)
        self._columns = columns

    def __getitem__(self, name):
        return self._columns[name]


def test_a_csv_file_to_predictions_on_a_new_one(tmp_path):
    file, new = clinic(tmp_path / "clinic.csv"), clinic(tmp_path / "new.csv", 200, 7)
    fitted = fit(mlp(4), file, **{**READING, "test": new})
    assert fitted.plan.n == 3
    words = [line.split(",") for line in new.read_text().splitlines()[1:]]
    truth = np.array([row[5] for row in words])
    assert (fitted.predict(new) == truth).mean() > 0.85
    by_hand = torch.tensor(
        [[(float(r[0]) - 50) / 30, (float(r[1]) - 5) / 5, r[2] == "f", r[2] == "m"] for r in words]
    )
    with torch.no_grad():
        assert np.allclose(fitted.scores(new), fitted.model(by_hand).numpy(), atol=1e-5)
    frame = Frame({"sex": [r[2] for r in words], "dose": [float(r[1]) for r in words],
                   "age": [float(r[0]) for r in words]})  # fmt: skip
    assert np.array_equal(fitted.predict(frame), fitted.predict(new))
    # a value beyond the public bounds counts as the bound, a category that is not listed as none
    odd = fitted.scores({"age": [500.0, 80.0], "dose": [1.0, 1.0], "sex": ["x", "x"]})
    assert np.array_equal(odd[0], odd[1])


def test_nodes_with_names_hold_the_records_of_their_site():
    import networkx

    graph = networkx.path_graph(["Rome", "Bern", "Oslo"])
    sites = np.array(["Bern"] * 10 + ["Oslo"] * 20 + ["Rome"] * 30)
    X, y = circles(60)
    fitted = fit(mlp(), (X, y), network=graph, group=sites, steps=1, rng=rng(), **BUDGET)
    assert fitted.plan.sizes == (30, 10, 20)
    unnamed = fit(mlp(), (X, y), network="path:3", group=sites, steps=1, rng=rng(), **BUDGET)
    assert unnamed.plan.sizes == (10, 20, 30)


def test_frames_and_columns_are_tables_like_files(tmp_path):
    file = clinic(tmp_path / "clinic.csv", 60)
    words = [line.split(",") for line in file.read_text().splitlines()[1:]]
    columns = {name: [row[j] for row in words] for j, name in enumerate(TABLE.strip().split(","))}
    columns["age"] = np.array([float(v) for v in columns["age"]])
    rows = [fit(mlp(4), data, **{**READING, "steps": 2, "rng": rng()}).rows
            for data in (file, columns, Frame(columns))]  # fmt: skip
    assert np.array_equal(rows[0], rows[1])
    assert np.array_equal(rows[0], rows[2])


def test_a_linear_model_has_names(tmp_path):
    fitted = fit("logistic", clinic(tmp_path / "clinic.csv"), **{**READING, "learning_rate": 2.0})
    assert fitted.model.feature_names == ("age", "dose", "sex=f", "sex=m")
    assert fitted.model.coef[:2].min() > 0  # both make ill
    assert (fitted.predict(clinic(tmp_path / "new.csv", 200, 7)) == "yes").any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bounds": None}, "no public bounds"),
        ({"bounds": {"age": (20, 80)}}, "'dose' has no public bounds"),
        ({"classes": None}, "labels are names"),
    ],
)
def test_what_would_be_read_from_records_is_refused(tmp_path, change, words):
    with pytest.raises(Refused, match=words):
        fit(mlp(4), clinic(tmp_path / "clinic.csv", 60), **{**READING, **change})


def test_what_is_accepted_by_name_stands_in_the_statement(tmp_path):
    file = clinic(tmp_path / "clinic.csv", 90)
    change = {"bounds": None, "classes": None, "accept": ("standardize", "class names"), "steps": 2}
    fitted = fit(mlp(4), file, **{**READING, **change})
    statement = fitted.privacy.statement(1e-5)
    assert "accepted by name: the mean and deviation" in statement
    assert "accepted by name: the names of the classes" in statement
    again = sv.load_model(fitted.save(tmp_path / "study"), module=mlp(4))
    assert "the mean and deviation" in again.privacy.statement(1e-5)
    assert np.array_equal(again.predict(file), fitted.predict(file))
    ages = np.array([float(line.split(",")[0]) for line in file.read_text().splitlines()[1:]])
    assert fitted.columns.scales["age"].center == pytest.approx(ages.mean())
    assert fitted.columns.scales["age"].width == pytest.approx(ages.std())
    bounded = fit(mlp(4), file, **{**READING, "steps": 2})
    assert "accepted" not in bounded.privacy.statement(1e-5)


def test_a_data_set_that_read_its_records_says_so():
    X, y = circles(80)
    data = sv.data.Dataset("two", 3 * X, y).standardized().split(0.25, rng())
    options = {"network": "path:2", "steps": 2, "rng": rng(), **BUDGET}
    with pytest.raises(Refused, match="mean and deviation"):
        fit(mlp(), data, **options)
    quiet = fit(mlp(), data, accept=["standardize"], **options)
    assert "loss" not in quiet.metrics  # private records that were held out are not scored by themselves
    scored = fit(mlp(), data, accept=["standardize", "held-out score"], **options)
    assert "loss" in scored.metrics
    assert "held out" in scored.privacy.statement(1e-5)


def test_missing_entries_are_refused_or_the_middle():
    table = {"a": [1.0, None, 3.0, 4.0] * 5, "y": [0, 1, 0, 1] * 5}
    options = {"label": "y", "bounds": (0, 10), "network": "path:2", "steps": 1, "rng": rng(), **BUDGET}
    with pytest.raises(DataError, match="row 1 of column 'a'"):
        fit(mlp(1), table, **options)
    fitted = fit(mlp(1), table, missing="middle", **options)
    assert np.array_equal(fitted.scores({"a": [None]}), fitted.scores({"a": [5.0]}))


# ---- datasets and batches ----------------------------------------


class Lazily(torch.utils.data.Dataset):
    def __init__(self, X, y, transform=None, as_dict=False):
        self.X, self.y, self.transform, self.as_dict, self.read = X, y, transform, as_dict, []

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        self.read.append(i)
        x = torch.as_tensor(self.X[i], dtype=torch.float32)
        x = x if self.transform is None else self.transform(x)
        return {"image": x, "label": int(self.y[i])} if self.as_dict else (x, int(self.y[i]))


def test_a_dataset_is_read_when_a_lot_asks_and_gives_the_same_model():
    X, y = circles(120)
    X = X.astype(np.float32)
    options = {"network": "ring:3", "steps": 4, "batch_size": 5, **BUDGET}
    arrays = fit(mlp(), (X, y), rng=rng(), **options)
    data = Lazily(X, y)
    lazy = fit(mlp(), data, rng=rng(), **options)
    assert np.array_equal(lazy.rows, arrays.rows)
    assert 20 < len(data.read) < 110  # about 4 steps of 3 lots of 5, not 4 times 120
    by_name = fit(mlp(), Lazily(X, y, as_dict=True), label="label", rng=rng(), **options)
    assert np.array_equal(by_name.rows, arrays.rows)
    whole = torch.utils.data.TensorDataset(torch.as_tensor(X), torch.as_tensor(y))
    assert np.array_equal(fit(mlp(), whole, rng=rng(), **options).rows, arrays.rows)
    assert np.array_equal(lazy.predict(Lazily(X, y)), arrays.predict(X))
    assert any("made from one record" in said for said in lazy.privacy.assumptions)


def test_random_transforms_follow_the_runs_seed():
    X, y = circles(60)

    def shaken(x):
        return x + 0.1 * torch.randn(2)

    options = {"network": "ring:3", "steps": 3, "noise_multiplier": 0.0}
    torch.manual_seed(1)
    one = fit(mlp(), Lazily(X, y, shaken), rng=rng(4), **options)
    torch.manual_seed(2)
    two = fit(mlp(), Lazily(X, y, shaken), rng=rng(4), **options)
    three = fit(mlp(), Lazily(X, y, shaken), rng=rng(5), **options)
    assert np.array_equal(one.rows, two.rows)
    assert not np.array_equal(one.rows, three.rows)


class Text(nn.Module):
    """Mean of the embeddings that the mask shows, and a number beside them where one is given."""

    def __init__(self, beside=False):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Embedding(20, 6), nn.Linear(6 + beside, 2)

    def forward(self, tokens, mask, number=None):
        shown = mask.unsqueeze(-1).to(self.embed.weight.dtype)
        x = (self.embed(tokens) * shown).sum(1) / shown.sum(1).clamp(min=1)
        return self.out(x if number is None else torch.cat([x, number], 1))


def sentences(n=400, seed=0):
    draw = rng(seed)
    tokens, length = draw.integers(2, 20, (n, 5)), draw.integers(1, 6, n)
    mask = np.arange(5) < length[:, None]
    y = (np.where(mask, tokens < 11, False).sum(1) > length / 2).astype(np.int64)
    return {"tokens": tokens, "mask": mask}, y


def test_tokens_and_a_mask_by_name_or_by_place(tmp_path):
    inputs, y = sentences()
    options = {
        "network": "ring:4",
        "steps": 60,
        "learning_rate": 4.0,
        "rng": rng(),
        "epsilon": 8.0,
        "delta": 1e-5,
    }
    fitted = fit(Text(), (inputs, y), **options)
    new, truth = sentences(200, 9)
    assert (fitted.predict(new) == truth).mean() > 0.8
    batch = fit(Text(), {**inputs, "y": y}, label="y", **{**options, "rng": rng(), "steps": 2})
    pair = fit(Text(), (tuple(inputs.values()), y), **{**options, "rng": rng(), "steps": 2})
    assert np.array_equal(batch.rows, pair.rows)
    hidden = {**new, "tokens": np.where(new["mask"], new["tokens"], 3)}
    assert np.allclose(fitted.scores(hidden), fitted.scores(new), atol=1e-6)
    again = sv.load_model(fitted.save(tmp_path), module=Text())
    assert np.array_equal(again.scores(new), fitted.scores(new))
    assert isinstance(fitted.model, Text)


@pytest.mark.parametrize("beside", [False, True])
def test_gradients_of_several_inputs_are_those_of_single_records(beside):
    inputs, y = sentences(6)
    if beside:
        inputs["number"] = rng(3).normal(size=(6, 1))
    net = Text(beside).double()
    layout = Layout.of(inputs)
    objective = NetObjective(Unpacking(net, layout), clip_norm=0.05)
    x = layout.pack(inputs)
    found = objective.clipped_sums(objective.start(2), x.view(2, 3, -1), torch.as_tensor(y).view(2, 3))
    for agent in range(2):
        expected = torch.zeros(objective.n_params, dtype=torch.float64)
        for i in range(3 * agent, 3 * agent + 3):
            one = {k: torch.as_tensor(v[i : i + 1]) for k, v in inputs.items()}
            loss = nn.functional.cross_entropy(net(**one), torch.as_tensor(y[i : i + 1]))
            g = torch.cat([p.flatten() for p in torch.autograd.grad(loss, list(net.parameters()))])
            expected += g * min(1, 0.05 / g.norm())
        assert torch.allclose(found[agent], expected, rtol=0, atol=1e-12)


class Dictionary(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = mlp()

    def forward(self, x):
        return {"logits": self.inside(x), "hidden": x}


def test_a_network_that_returns_a_dict_with_logits():
    fitted = fitted_circles(module=Dictionary(), steps=3)
    plain = fitted_circles(module=mlp(), steps=3)
    assert np.allclose(fitted.rows, plain.rows, atol=1e-6)
    assert fitted.metrics["accuracy"] == plain.metrics["accuracy"]
    X, _ = circles(50, 3)
    assert np.array_equal(fitted.predict(X), plain.predict(X))


# ---- other tasks ----------------------------------------


def test_regression_in_the_units_of_the_label():
    X = rng().uniform(-1, 1, (1500, 1))
    price = 300 + 200 * X[:, 0]
    table = {"size": X[:, 0], "price": price}
    new = {"size": X[:300, 0], "price": price[:300]}
    options = {"label": "price", "bounds": {"size": (-1, 1), "price": (0, 600)}, "network": "complete:3",
               "steps": 80, "rng": rng(), **BUDGET}  # fmt: skip
    for model in (mlp(1, 1), "squared"):
        fitted = fit(model, table, test=new, **options)
        error = np.sqrt(np.mean((fitted.predict(new) - price[:300]) ** 2))
        assert error < 40  # the deviation of the prices is 115
        assert fitted.metrics["rmse"] == pytest.approx(error, rel=1e-4)
        assert fitted.history[-1]["rmse"] == pytest.approx(error, rel=1e-4)
        assert "accuracy" not in fitted.metrics


def test_several_labels_at_once():
    X, _ = circles()
    Y = (X > [0.0, 0.2]).astype(int)
    fitted = fit(mlp(), (X, Y), network="ring:3", test=(X[:300], Y[:300]), steps=60, learning_rate=3.0,
                    rng=rng(), **BUDGET)  # fmt: skip
    assert fitted.predict(X).shape == (1200, 2)
    right = 100 * (fitted.predict(X[:300]) == Y[:300]).mean()
    assert right > 90
    assert fitted.metrics["accuracy"] == pytest.approx(right, abs=1e-4)
    one = fit(mlp(2, 1), (X, Y[:, 0] > 0), network="ring:3", steps=40, learning_rate=3.0, rng=rng(), **BUDGET)
    assert (one.predict(X) == Y[:, 0]).mean() > 0.9


def test_losses_of_torch_and_of_ones_own_are_taken_record_by_record():
    X, y = circles(60)
    options = {"network": "ring:3", "noise_multiplier": 0.0, "clip_norm": 0.1, "steps": 3}

    def mine(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    rows = [fit(mlp(), (X, y), loss=loss, rng=rng(), **options).rows
            for loss in ("cross_entropy", nn.CrossEntropyLoss(), mine)]  # fmt: skip
    assert np.allclose(rows[0], rows[1], atol=1e-6)
    assert np.allclose(rows[0], rows[2], atol=1e-6)
    half = fit(mlp(2, 1), (X, X[:, 0]), loss=nn.MSELoss(), rng=rng(), **{**options, "clip_norm": 1e6})
    own = fit(mlp(2, 1), (X, X[:, 0]), loss="squared_error", learning_rate=1.0, rng=rng(),
                 **{**options, "clip_norm": 1e6})  # fmt: skip
    net = mlp().double()
    pair = fit(net, (X, X**2), loss=nn.MSELoss(), learning_rate=0.1, rng=rng(),
                  **{**options, "clip_norm": 1e6, "steps": 1})  # fmt: skip
    nn.MSELoss()(net(torch.as_tensor(X)), torch.as_tensor(X**2)).backward()
    assert torch.allclose(pair.model[2].bias, net[2].bias - 0.1 * net[2].bias.grad, atol=1e-7)
    assert np.allclose(half.rows, own.rows, atol=1e-6)  # squared_error is half of torch's, the rate twice


# ---- kept in a folder ----------------------------------------


def test_a_study_comes_back_in_another_process(tmp_path):
    fitted = fitted_circles(steps=5)
    place = fitted.save(tmp_path / "study")
    again = sv.load_model(place)
    X, _ = circles(50, 3)
    assert np.array_equal(again.scores(X), fitted.scores(X))
    assert again.privacy == fitted.privacy
    assert again.metrics == pytest.approx(dict(fitted.metrics))
    assert again.plan["steps"] == 5
    assert not again.model.training
    np.save(tmp_path / "x.npy", X)
    code = (
        "import numpy as np, sottovoce as sv; x = np.load('x.npy');"
        "np.save('p.npy', sv.load_model('study').scores(x))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env=os.environ)
    assert np.array_equal(np.load(tmp_path / "p.npy"), fitted.scores(X))
    assert "epsilon = " in (place / "statement.txt").read_text()
    assert 'sv.load_model(".")' in (place / "README.md").read_text()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.b = nn.Linear(2, 2)
        self.b.weight = self.a.weight
        self.register_buffer("shift", torch.ones(2))

    def forward(self, x):
        return self.b(torch.tanh(self.a(x))) + self.shift


def test_networks_with_code_of_their_own_are_given_again(tmp_path):
    fitted = fitted_circles(module=Tied(), steps=3)
    fitted.save(tmp_path)
    with pytest.raises(DataError, match=r"module=Tied\(\.\.\.\)"):
        sv.load_model(tmp_path)
    again = sv.load_model(tmp_path, module=Tied())
    X, _ = circles(50, 3)
    assert np.array_equal(again.scores(X), fitted.scores(X))
    assert again.model.b.weight is again.model.a.weight
    with pytest.raises(DataError, match="do not fit this Sequential"):
        sv.load_model(tmp_path, module=mlp())


def test_damaged_studies_are_refused_in_a_sentence(tmp_path):
    place = fitted_circles(steps=1).save(tmp_path)
    weights = place / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(DataError, match="SHA-256 differs"):
        sv.load_model(place)
    weights.write_bytes(b"not weights at all")
    study = json.loads((place / "saved_model.json").read_text())
    import hashlib

    study["model"]["sha256"] = hashlib.sha256(b"not weights at all").hexdigest()
    (place / "saved_model.json").write_text(json.dumps(study))
    with pytest.raises(DataError, match="not a safetensors file"):
        sv.load_model(place)
    study["model"]["file"] = "../elsewhere"
    (place / "saved_model.json").write_text(json.dumps(study))
    with pytest.raises(DataError, match="names the model"):
        sv.load_model(place)
    (place / "saved_model.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        sv.load_model(place)


def test_load_takes_results_and_report_writes_a_page(tmp_path):
    fitted = fitted_circles(steps=2)
    fitted.result.save(tmp_path / "result")
    assert sv.load_model(tmp_path / "result").metrics["loss"] == fitted.metrics["loss"]
    page = fitted.report(tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "accuracy" in page


# ---- what cannot be used ----------------------------------------


class NeedsTwo(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x, y):
        return self.layer(x + y)


X, Y = circles(40)
GOOD = {"network": "ring:4", "steps": 1, "rng": rng(), **BUDGET}


def poisoned():
    net = mlp()
    net[0].weight.data[0, 0] = float("nan")
    return net


@pytest.mark.parametrize(
    ("module", "data", "change", "words"),
    [
        (mlp(3), (X, Y), {}, r"layer '0' \(Linear\) cannot use an input of shape \(1, 2\)"),
        (NeedsTwo(), (X, Y), {}, "missing 1 required positional argument"),
        (poisoned(), (X, Y), {}, "parameter '0.weight' holds NaN"),
        (nn.LazyLinear(2), (X, Y), {}, "has no shape yet"),
        (mlp(), (X, Y + 5), {}, "classes are 0 to 1"),
        (mlp(), (X, Y[:-1]), {}, "one target per record"),
        (mlp(), (X, Y), {"classes": ["a", "b", "c"]}, "network gives 2 scores"),
        (mlp(), (X, np.array(["a", "b"] * 20)), {"classes": ["a", "x"]}, "record 1 has label 'b'"),
        (mlp(2, 1), (X, Y), {}, "say loss='binary_cross_entropy'"),
        (mlp(), (X, Y), {"network": None}, "fit needs network"),
        (mlp(), (X, Y), {"network": "ring:50"}, "40 records cannot give each of 50 nodes one"),
        (mlp(), (X, Y), {"group": [0, 1] * 20}, "the network has 4 nodes, but the records come from 2 sites"),
        (mlp(), (X, Y), {"delta": None}, "delta must be a number"),
        (mlp(), (X, Y), {"epsilon": None, "delta": None}, "give budget="),
        (mlp(), (X, Y), {"max_grad_norm": 1.0}, "max_grad_norm is called clip_norm here"),
        (mlp(), (X, Y), {"learnig_rate": 1.0}, "did you mean 'learning_rate'"),
        (mlp(), (X, Y), {"loss": "hinge"}, "loss must be one of"),
        (mlp(), (X, Y), {"initial": "pretrained"}, "initial must be"),
        (mlp(), (X, Y), {"optimizer": "lbfgs"}, "optimizer must be"),
        (mlp(), (X, Y), {"epochs": 3}, "epochs goes with batch_size"),
        (mlp(), (X, Y), {"accept": ("everything",)}, "accept knows"),
        (mlp(), (X, Y), {"accept": ("held-out score",)}, "nothing of the kind is read"),
        (mlp(), (X, Y), {"algorithm": "averaging"}, "gradient methods"),
        (mlp(), (X, Y), {"features": ["a"]}, "features is for tables"),
        (mlp(), (X, Y), {"plan": 3, "network": "ring:4"}, "plan"),
        (mlp(), 7, {}, "data must be a table"),
        (mlp(), "nowhere.csv", {"label": "y"}, "There is no file"),
        (mlp(), {"a": [1.0], "y": [0]}, {"label": "z"}, "no column 'z'"),
        (mlp(), {"a": ["x"], "y": [0]}, {"label": "y", "bounds": "none"}, "list its values in categories"),
        (mlp(), {"a": [1.0], "y": [0]}, {"label": "y", "bounds": {"a": (3, 1)}}, "low < high"),
        (object(), (X, Y), {}, "module must be a torch module"),
        ("logit", (X, Y), {}, "a linear model is one of"),
        ("logistic", (X, Y + 3), {}, "Labels must be 0/1"),
        ("logistic", (X, Y), {"classes": [0]}, "two or more different names"),
        (nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)), (X, Y), {}, "mixes the samples"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(module, data, change, words):
    with pytest.raises(SottovoceError, match=words) as caught:
        fit(module, data, **{**GOOD, **change})
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_new_records_of_another_shape_are_refused():
    fitted = fitted_circles(steps=1)
    with pytest.raises(SottovoceError, match=r"cannot use an input of shape \(1, 3\)"):
        fitted.predict(np.ones((4, 3)))
    linear = fit("logistic", (X, Y), **GOOD)
    with pytest.raises(DataError, match="takes 2 features"):
        linear.predict(np.ones((4, 3)))
