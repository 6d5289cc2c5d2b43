"""sv.fit: a model and data in, the fitted model and its privacy cost out."""

import copy
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from tests.estimators.cases import (
    BUDGET,
    GOOD,
    READING,
    Text,
    X,
    Y,
    circles,
    clinic,
    fit,
    fitted_circles,
    mlp,
    rng,
    sentences,
)
from torch import nn

import sottovoce as sv
from sottovoce.algorithms.gradient_plan import noise_multipliers
from sottovoce.errors import BudgetExceeded, InvalidInput, Refused, SottovoceError
from sottovoce.models.prepared import SIMULATED
from sottovoce.objectives.nets.objective import NetObjective


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
    right = (fitted.predict(X) == y).mean()
    assert right > 0.88  # 55 in 100 lie in the larger class; a straight line gets no further
    assert right == pytest.approx(fitted.metrics["accuracy"], abs=1e-6)
    scores = fitted.model(torch.as_tensor(X, dtype=torch.float32))
    loss = nn.functional.cross_entropy(scores, torch.as_tensor(y)).item()
    assert fitted.metrics["loss"] == pytest.approx(loss, abs=1e-5)
    assert fitted.history[-1]["loss"] < fitted.history[0]["loss"]
    assert 2.9 < fitted.privacy.epsilon(1e-5) <= 3.0
    assert fitted.privacy.curve == fitted.plan.privacy("network").curve
    assert SIMULATED in fitted.privacy.assumptions


def rare(n, seed):
    """Return features and labels of which one in ten is "yes"."""
    draws = np.random.default_rng(seed)
    inputs = draws.uniform(-1, 1, (n, 4))
    return inputs, np.where(inputs[:, 0] + inputs[:, 1] + 0.4 * draws.normal(size=n) > 0.98, "yes", "no")


WEIGHTS = [
    {"class_weight": "balanced", "class_shares": {"yes": 0.1, "no": 0.9}},
    {"class_weight": {"no": 5 / 9, "yes": 5.0}},
]


@pytest.mark.parametrize("model", ["logistic", "net", "softmax", "sgd"])
def test_class_weights_find_rare_classes_at_the_same_cost(model):
    (inputs, labels), new = rare(4000, 0), rare(2000, 1)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2 if model == "net" else 1))
    trained = {"net": net, "softmax": sv.objectives.Softmax(2)}.get(model, "logistic")
    steps = {"steps": 60, "learning_rate": 2.0} if model in ("net", "sgd") else {}

    def run(**weights):
        options = sv.TrainingOptions(classes=["no", "yes"], **steps, **weights)
        budget = sv.Budget(3.0, 1e-5)
        return sv.fit(trained, (inputs, labels), network="ring:4", budget=budget, training=options, rng=rng())

    plain, weighted, same = run(), *(run(**weights) for weights in WEIGHTS)
    assert np.array_equal(weighted.rows, same.rows)
    assert weighted.privacy.epsilon(1e-5) <= 3.0
    if model in ("net", "sgd"):  # the same clip, noise and cost: only the gradients differ
        assert weighted.plan.releases(0) == plain.plan.releases(0)
    sick = new[1] == "yes"
    assert (weighted.predict(new[0])[sick] == "yes").mean() > 0.7
    assert (weighted.predict(new[0])[sick] == "yes").mean() > (
        plain.predict(new[0])[sick] == "yes"
    ).mean() + 0.1
    assert (weighted.predict(new[0])[~sick] == "no").mean() > 0.8


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"class_weight": "balanced"}, "needs the public share of every class in class_shares"),
        ({"class_weight": "balanced", "class_shares": [0.5, 0.7]}, "must sum to 1, got 1.2"),
        ({"class_weight": {"no": 1.0}}, "must name the classes no, yes, got no"),
        ({"class_weight": [1.0, -1.0]}, "class_weight of yes must be"),
        ({"class_weight": [1.0] * 3}, "must be one number per class"),
        ({"class_weight": "even"}, "must be one number per class"),
        ({"class_weight": [1, 2], "class_shares": [0.5, 0.5]}, 'goes with class_weight="balanced"'),
    ],
)
def test_wrong_class_weights_are_a_sentence(weights, words):
    for model in ("logistic", nn.Linear(4, 2)):
        options = sv.TrainingOptions(classes=["no", "yes"], **weights)
        with pytest.raises(InvalidInput, match=words):
            sv.fit(model, rare(40, 0), network="ring:4", budget=sv.Budget(3.0, 1e-5), training=options)
    options, data = sv.TrainingOptions(class_weight=[1, 2]), (rare(40, 0)[0], np.zeros(40))
    with pytest.raises(InvalidInput, match="is for classes"):
        sv.fit("squared", data, network="ring:4", budget=sv.Budget(3.0, 1e-5), training=options)


def test_a_linear_model_needs_no_rate_and_takes_what_is_stated():
    X, y = circles(400)
    options = {"network": "ring:8", "rng": rng(), **BUDGET}
    plan = fit("logistic", (X, y), **options).plan
    assert (plan.name, plan.schedule(0).name, plan.optimizer.beta) == ("consensus-newton", "masked", 0.5)
    stated = {"steps": 12, "clip_norm": 0.4, "learning_rate": 0.7, "optimizer": "momentum", "batch_size": 20}
    plan = fit("logistic", (X, y), algorithm="consensus-newton", **stated, **options).plan
    assert (plan.steps, plan.clip_norm, plan.rate(0), plan.optimizer.beta) == (12, 0.4, 0.7, 0.9)
    assert plan.batch_size == 20
    assert fit("logistic", (X, y), learning_rate=0.5, **options).plan.name == "consensus-sgd"
    assert fit("logistic", (X, y), adjacency="user", **options).plan.name == "consensus-sgd"
    two = fit("logistic", (X, y), **{**options, "network": "path:2"}).plan
    assert two.schedule(0).name == "tree"


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
    assert fit("logistic", (X, y), adjacency="user", **options).privacy.adjacency == "user"


@pytest.mark.parametrize("algorithm", ["dp-dsgd", "dp-dsgt", "muffliato-sgd", "dp-sgd"])
def test_other_algorithms_by_name(algorithm):
    X, y = circles(200)
    graph = None if algorithm == "dp-sgd" else "ring:4"
    fitted = fit(mlp(), (X, y), network=graph, algorithm=algorithm, steps=3, rng=rng(), **BUDGET)
    assert fitted.plan.name == algorithm
    assert fitted.predict(X[:5]).shape == (5,)
    assert fitted.privacy.epsilon(1e-5) <= 3.0


def test_a_plan_of_the_caller():
    X, y = circles(80)

    def plan_for(objective, sizes):
        return sv.algorithms.DPDSGD(
            objective, sv.graphs.ring(4), steps=3, sizes=sizes, noise_multiplier=3.0, clip_norm=0.5
        )

    net, options = mlp(), {"network": "ring:4", "rng": rng()}
    assert fit(net, (X, y), plan=plan_for, **options).plan.clip_norm == 0.5
    with pytest.raises(BudgetExceeded):
        fit(net, (X, y), plan=plan_for, epsilon=0.01, delta=1e-5, **options)
    with pytest.raises(InvalidInput, match="The budget is for adjacency 'user', the plan has 'add-remove'"):
        fit(net, (X, y), plan=plan_for, epsilon=9.0, delta=1e-5, adjacency="user", **options)
    with pytest.raises(InvalidInput, match="a Plan for this objective"):
        fit(net, (X, y), plan=lambda _, sizes: plan_for(NetObjective(net), sizes), **options)


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
    assert first.metrics["accuracy"] == pytest.approx(right, abs=1e-6)


def test_an_interrupted_fit_goes_on_to_the_same_model(tmp_path):
    whole = fitted_circles(module=with_dropout(), steps=6)

    def stop(step, scores):
        if step == 4:
            raise KeyboardInterrupt

    options = {"module": with_dropout(), "steps": 6, "checkpoint": tmp_path / "kept", "evaluate_every": 1}
    with pytest.raises(KeyboardInterrupt):
        fitted_circles(**options, on_evaluation=stop)
    again = fitted_circles(**options)
    assert [entry["step"] for entry in again.history] == [5, 6]  # a step is saved before it is shown
    assert np.array_equal(again.rows, whole.rows)


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
    for frame in (pd.read_csv(new), pl.read_csv(new)):
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


def test_what_is_accepted_by_name_stands_in_the_statement(tmp_path):
    file = clinic(tmp_path / "clinic.csv", 90)
    change = {"bounds": None, "classes": None, "accept": ("standardize", "class names"), "steps": 2}
    fitted = fit(mlp(4), file, **{**READING, **change})
    statement = fitted.privacy.statement(1e-5)
    assert "accepted by name: the mean and deviation" in statement
    assert "accepted by name: the names of the classes" in statement
    again = sv.load_model(fitted.save(tmp_path / "saved"), module=mlp(4))
    assert "the mean and deviation" in again.privacy.statement(1e-5)
    assert np.array_equal(again.predict(file), fitted.predict(file))
    ages = np.array([float(line.split(",")[0]) for line in file.read_text().splitlines()[1:]])
    assert fitted.columns.scales["age"].center == pytest.approx(ages.mean())
    assert fitted.columns.scales["age"].width == pytest.approx(ages.std())
    bounded = fit(mlp(4), file, **{**READING, "steps": 2})
    assert "accepted" not in bounded.privacy.statement(1e-5)


def test_a_data_set_that_read_its_records_says_so(tmp_path):
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
    card = (scored.save(tmp_path / "model") / "README.md").read_text()
    assert "On private records that were held out, which no guarantee covers:" in card
    assert "On public records:" not in card


def test_observers_who_get_the_model_are_no_observers_of_rows_alone():
    """The mean of all rows holds the last releases of nodes that are too far from the observer."""
    options = {"algorithm": "dp-dsgd", "network": "path:6", "steps": 8, "rng": rng(), "delta": 1e-5}
    with pytest.raises(InvalidInput, match="a fit hands out the model of all nodes"):
        fit("logistic", circles(120), epsilon=2.0, observer=0, user=5, view="pairwise", **options)
    assert fit("logistic", circles(120), epsilon=2.0, **options).privacy.label == "ldp"
    once = {**options, "algorithm": "muffliato-sgd", "steps": 1, "rng": rng()}
    with pytest.raises(InvalidInput, match="a fit hands out the model of all nodes"):
        fit(
            "logistic",
            circles(120),
            epsilon=2.0,
            observer=0,
            user=1,
            view="pairwise",
            adjacency="user",
            **once,
        )


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


class NeedsTwo(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x, y):
        return self.layer(x + y)


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
        (nn.Linear(2, 2, device="meta"), (X, Y), {}, "parameter 'weight' has no numbers"),
        (nn.Flatten(), (X, Y), {}, "no trainable parameter"),
        (mlp().requires_grad_(False), (X, Y), {}, "no trainable parameter"),
        (mlp().half(), (X, Y), {}, "must be all float32 or all float64"),
        pytest.param(
            mlp(), (X, Y), {"device": "cuda"}, "device 'cuda' is not there for torch",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device"),
        ),
        (mlp(), (X, Y), {"device": "mps"}, "device 'mps' is not there for torch"),
        (mlp(), (X, Y), {"device": "gpu"}, "device 'gpu' is not there"),
        (mlp(), (X, Y), {"device": "meta"}, "device 'meta' is not there"),
        (nn.LazyLinear(2), (X, Y), {}, "has no shape yet"),
        (mlp(), (X, Y + 5), {}, "classes are 0 to 1"),
        (mlp(), (np.where(X > 0.9, np.nan, X), Y), {}, "of the inputs holds NaN or infinity"),
        ("logistic", (np.where(X > 0.9, np.inf, X), Y), {}, "of the inputs holds NaN or infinity"),
        ("squared", (X, np.where(Y > 0, np.nan, 1.0)), {}, "is missing or infinite"),
        ("logistic", (X[:, 0], Y), {}, r"takes features \(records, features\), got shape"),
        (mlp(), (X, Y), {"classes": ["a", "b", "c"]}, "network gives 2 scores"),
        (mlp(), (X, np.array(["a", "b"] * 20)), {"classes": ["a", "x"]}, "record 1 has label 'b'"),
        (mlp(), (X, np.array(["a", "b"] * 20)), {}, "labels are names"),
        (mlp(2, 1), (X, Y), {}, "say loss='binary_cross_entropy'"),
        (mlp(), (X, Y), {"network": None}, "fit needs network"),
        (mlp(), (X, Y), {"network": "ring:50"}, "40 records cannot give each of 50 users one"),
        (mlp(), (X, Y), {"group": [0, 1] * 20}, "the network has 4 nodes, but the records come from 2 sites"),
        (mlp(), (X, Y), {"delta": None}, "delta must be a number"),
        (mlp(), (X, Y), {"epsilon": None, "delta": None}, "got neither"),
        (mlp(), (X, Y), {"max_grad_norm": 1.0}, "max_grad_norm is called clip_norm here"),
        (mlp(), (X, Y), {"buget": 1.0}, "fit has no option 'buget' for consensus-sgd .*mean 'budget'"),
        (mlp(), (X, Y), {"learnig_rate": 1.0}, "did you mean 'learning_rate'"),
        (mlp(), (X, Y), {"loss": "hinge"}, "loss must be one of"),
        (mlp(), (X, Y), {"initial": "pretrained"}, "initial must be"),
        (mlp(), (X, Y), {"optimizer": "lbfgs"}, "optimizer must be"),
        (mlp(), (X, Y), {"epochs": 3}, "epochs goes with batch_size"),
        (mlp(), (X, Y), {"accept": ("everything",)}, "accept knows"),
        (mlp(), (X, Y), {"accept": ("held-out score",)}, "nothing of the kind is read"),
        (mlp(), (X, Y), {"algorithm": "averaging"}, "gradient methods"),
        (mlp(), (X, Y), {"plan": 3, "network": "ring:4"}, "plan"),
        (mlp(), "nowhere.csv", {"label": "y"}, "There is no file"),
        (mlp(), {"a": ["x"], "y": [0]}, {"label": "y", "bounds": "none"}, "list its values in categories"),
        (mlp(), {"a": [1.0], "y": [0]}, {"label": "y", "bounds": {"a": (3, 1)}}, "low < high"),
        (object(), (X, Y), {}, "module must be a torch module"),
        ("logit", (X, Y), {}, "a linear model is one of"),
        ("logistic", (X, Y + 3), {}, "not among the public classes 0, 1"),
        ("logistic", (X, Y), {"classes": [0]}, "two or more different names"),
        ("logistic", (X, Y), {"classes": "ab"}, "classes must be a list of names in their order, got 'ab'"),
        ("logistic", (X, Y), {"rng": 0}, "rng must be None for noise that protects, or a numpy Generator"),
        ("logistic", (X, Y), {"accept": "tuning"}, "accept must be a list of names"),
        ("logistic", (X, Y), {"epsilon": None, "delta": None, "budget": 3.0}, r"budget must be sv\.Budget"),
        ("logistic", (X, Y), {"group": np.where(X[:, 0] > 0, 1, np.nan)}, "has no site"),
        ("logistic", (X, Y), {"test": (X[:, :1], Y)}, "the test records have 1 features"),
        (mlp(), (X, Y), {"test": (X[:, :1], Y)}, r"cannot use an input of shape \(1, 1\)"),
        (mlp(), (X, Y), {"on_step": 3}, "on_step must be a function"),
        (mlp(), (X, Y), {"evaluate_every": 0}, "evaluate_every must be at least 1"),
        (mlp(), (X, Y), {"optimizer": {"nam": "adam"}}, "the optimizer option 'nam' is not known"),
        (mlp(), (X, Y), {"optimizer": torch.optim.SGD(mlp()[0].parameters(), lr=0.1)}, "all of them"),
        (mlp(), (X, Y), {"loss": lambda *each: None}, "one number per sample.*got NoneType"),
        (mlp(), (3, 4), {}, "records on the first axis, got int64 of shape"),
        (mlp(), (), {}, "data must be a table"),
        (mlp(), ([[1.0, 2.0], [3.0]], [0, 1]), {}, "the records of the inputs differ in length"),
        (mlp(), (X.astype(str), Y), {}, "must be arrays of real numbers"),
        (nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)), (X, Y), {}, "mixes the samples"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_one_sentence(module, data, change, words):
    with pytest.raises(SottovoceError, match=words) as caught:
        fit(module, data, **{**GOOD, **change})
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


THREADS = """
import random
import numpy as np, torch
torch.set_num_threads(1)
import sottovoce as sv
X = np.random.default_rng(0).uniform(-1, 1, (80, 2))
net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
data, budget = (X, (X[:, 0] > 0).astype(int)), sv.Budget(3.0, 1e-5)
states = lambda: (torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate())
before = states()
for algorithm, network in (("consensus-sgd", "ring:4"), ("dp-dsgt", "ring:4"), ("dp-sgd", None)):
    sv.fit(net, data, network=network, algorithm=algorithm, budget=budget, test=data,
           training=sv.TrainingOptions(steps=3, batch_size=5))
    assert torch.get_num_threads() == 1, algorithm
assert states() == before
print("as it was")
"""


def test_threads_and_random_states_stay_as_they_were():
    """In a process of its own, where compiled loops start their threads for the first time."""
    limits = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in limits}
    environment["NUMBA_NUM_THREADS"] = "2"
    run = subprocess.run(
        [sys.executable, "-c", THREADS], env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.stdout.strip() == "as it was", run.stderr


def test_a_hinge_separates_two_classes_and_knows_no_probabilities():
    X, y = rng().normal(size=(800, 2)), ["no", "yes"] * 400
    X[1::2] += 2.0
    settings = {"network": "ring:4", "rng": rng(), "classes": ["no", "yes"], **BUDGET}
    fitted = fit("hinge", (X, y), **settings)
    assert fitted.score((X, y)) > 0.95
    for ask in (fitted.predict_proba, lambda records: fitted.predict(records, threshold=0.2)):
        with pytest.raises(InvalidInput, match="a hinge loss gives no probabilities"):
            ask(X)
    with pytest.raises(InvalidInput, match="a hinge loss is for two classes, got 3"):
        fit("hinge", (X, y), **settings | {"classes": ["no", "yes", "perhaps"]})
