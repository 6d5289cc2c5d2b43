"""Models of users in the form plans take, and back."""

import numpy as np
import pytest
import torch
from tests.estimators.cases import BUDGET, READING, circles, clinic, fit, fitted_circles, mlp, rng
from torch import nn

import sottovoce as sv
from sottovoce.data.agent_tensors import AgentData
from sottovoce.objectives.nets.objective import NetObjective


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


def test_pretrained_weights_are_kept_and_reset_says_otherwise():
    X, y = circles()
    net = mlp()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(torch.as_tensor(X).float()), torch.as_tensor(y)).backward()
        optimizer.step()
    options = {"module": net, "learning_rate": 1e-6, "steps": 3}
    assert fitted_circles(**options).metrics["accuracy"] > 0.95
    assert fitted_circles(**options, initial="reset").metrics["accuracy"] < 0.9
    plan = sv.algorithms.ConsensusSGD(
        NetObjective(net),
        sv.graphs.ring(4),
        steps=1,
        learning_rate=1e-9,
        noise_multiplier=1.0,
        sizes=(300,) * 4,
    )
    data = AgentData(X, y, np.split(np.arange(1200), 4), test=circles(500, 2))
    assert plan.run(data, rng()).metrics["accuracy"] > 0.95


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


def test_a_linear_model_has_names(tmp_path):
    fitted = fit("logistic", clinic(tmp_path / "clinic.csv"), **{**READING, "learning_rate": 2.0})
    assert fitted.model.feature_names == ("age", "dose", "sex=f", "sex=m")
    assert fitted.model.coef[:2].min() > 0  # both make ill
    assert (fitted.predict(clinic(tmp_path / "new.csv", 200, 7)) == "yes").any()


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
    right = (fitted.predict(X[:300]) == Y[:300]).mean()
    assert right > 0.9
    assert fitted.metrics["accuracy"] == pytest.approx(right, abs=1e-6)
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
