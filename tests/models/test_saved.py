"""Fitted models: predictions, saving and loading."""

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from tests.estimators.cases import GOOD, X, Y, circles, fit, fitted_circles, mlp
from torch import nn

import sottovoce as sv
from sottovoce.errors import DataError, InvalidInput, Refused, SottovoceError
from sottovoce.models.architecture import described_module, rebuilt_module


def test_a_saved_model_comes_back_in_another_process(tmp_path):
    fitted = fitted_circles(steps=5)
    place = fitted.save(tmp_path / "saved")
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
        "np.save('p.npy', sv.load_model('saved').scores(x))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env=os.environ)
    assert np.array_equal(np.load(tmp_path / "p.npy"), fitted.scores(X))
    assert "epsilon = " in (statement := (place / "guarantee.txt").read_text())
    assert statement.strip() in (place / "README.md").read_text()
    assert 'sv.load_model(".")' in (place / "README.md").read_text()


def test_a_fitted_model_is_shown_in_notebooks_and_overwrites_no_file(tmp_path):
    fitted = fitted_circles(2000, steps=5)
    page = fitted._repr_html_()
    assert "epsilon 2.99" in page or "epsilon 3" in page
    assert "<svg" in page
    assert "<script" not in page
    for name in ("README.md", "record.json", "guarantee.txt"):
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        (folder / name).write_text("mine")
        with pytest.raises(DataError, match=f"holds {name} already"):
            fitted.save(folder)
        assert [path.name for path in folder.iterdir()] == [name]
    assert (fitted.save(tmp_path / "model") / "README.md").exists()
    with pytest.raises(DataError, match="holds a saved model"):
        fitted.save(tmp_path / "model")
    fitted.save(tmp_path / "model", replace=True)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.b = nn.Linear(2, 2)
        self.b.weight = self.a.weight
        self.register_buffer("shift", torch.ones(2))

    def forward(self, x):
        return self.b(torch.tanh(self.a(x))) + self.shift


@pytest.mark.filterwarnings("ignore::sottovoce.objectives.nets.slow_path.SlowPath")
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


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 3, (3, 5), padding="same", padding_mode="reflect", bias=False),
        nn.AvgPool2d(3, ceil_mode=True, count_include_pad=False),  # repr shows neither
        nn.Sequential(nn.Upsample(scale_factor=1.5, mode="bilinear", align_corners=True), nn.GELU("tanh")),
        nn.Sequential(
            nn.Conv2d(2, 4, 1), nn.GroupNorm(2, 4), nn.Hardtanh(max_val=float("inf")), nn.Flatten()
        ),
    ],
)
def test_stock_layers_are_rebuilt_from_plain_values(layer):
    again = rebuilt_module(json.loads(json.dumps(described_module(layer))))
    again.load_state_dict(layer.state_dict())
    x = torch.randn(3, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again(x), layer(x))


def test_damaged_models_are_refused_in_a_sentence(tmp_path):
    place = fitted_circles(steps=1).save(tmp_path)
    weights = place / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(DataError, match="SHA-256 differs"):
        sv.load_model(place)
    weights.write_bytes(b"not weights at all")
    stored = json.loads((place / "saved_model.json").read_text())
    stored["model"]["sha256"] = hashlib.sha256(b"not weights at all").hexdigest()
    (place / "saved_model.json").write_text(json.dumps(stored))
    with pytest.raises(DataError, match="not a safetensors file"):
        sv.load_model(place)
    stored["model"]["file"] = "../elsewhere"
    (place / "saved_model.json").write_text(json.dumps(stored))
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


def test_new_records_of_another_shape_are_refused():
    fitted = fitted_circles(steps=1)
    with pytest.raises(SottovoceError, match=r"cannot use an input of shape \(1, 3\)"):
        fitted.predict(np.ones((4, 3)))
    linear = fit("logistic", (X, Y), **GOOD)
    for new in (np.ones((4, 3)), [[1.0], [1.0, 2.0]], (X, Y), {"x": 1.0}):
        with pytest.raises(DataError, match=r"takes 2 features|one length|records on the first axis"):
            linear.predict(new)
    for model in (fitted, linear):
        with pytest.raises(DataError, match="record 0 of the inputs holds NaN"):
            model.predict(X * np.nan)
        with pytest.raises(DataError, match=r"class labels must be|not among the public classes"):
            model.score((X, Y + 7))
    with pytest.raises(DataError, match="targets must be numbers"):
        fitted.score((X, ["a"] * len(X)))


@pytest.mark.slow
def test_an_exported_model_gives_the_same_scores_without_torch(tmp_path):
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (60, 3)), rng.integers(0, 2, 60)
    options = {"network": "complete:3", "budget": sv.Budget(5.0, 1e-5), "rng": rng}
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    for module, example in (("logistic", None), (net, X)):
        fitted = sv.fit(module, (X, y), training=sv.TrainingOptions(steps=2), **options)
        if example is not None:
            with pytest.raises(InvalidInput, match="example=records"):
                fitted.to_onnx(tmp_path / "no.onnx")
        file = fitted.to_onnx(tmp_path / "model.onnx", example)
        run = ReferenceEvaluator(str(file))
        kind = np.float64 if module == "logistic" else np.float32
        scores = run.run(None, {"inputs": X[:7].astype(kind)})[0]
        np.testing.assert_allclose(scores.squeeze(), fitted.scores(X[:7]), atol=1e-6)


def test_scores_probabilities_and_sites():
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 80, 800)
    ill = np.where(age + rng.normal(0, 8, 800) > 60, "yes", "no")
    table = {"age": age, "site": rng.choice(["a", "b", "c"], 800), "ill": ill}
    facts = {"bounds": {"age": (0, 100)}, "classes": ["no", "yes"]}
    fitted = sv.fit(
        "logistic", sv.data.TableData(table, "ill", "site", **facts), network="complete",
        budget=sv.Budget(3.0, 1e-5), rng=rng,
    )  # fmt: skip
    shares = fitted.predict_proba(table)
    assert np.allclose(shares.sum(axis=1), 1)
    assert np.array_equal(fitted.decision_function(table) > 0, shares[:, 1] > 0.5)
    assert fitted.score(table) == pytest.approx(roc_auc_score(ill == "yes", shares[:, 1]))
    assert fitted.score(table, "accuracy") == pytest.approx((fitted.predict(table) == ill).mean())
    by_site = fitted.score(table, by="site")
    assert sorted(by_site) == ["a", "b", "c"]
    here = table["site"] == "a"
    assert by_site["a"] == pytest.approx(roc_auc_score(ill[here] == "yes", shares[here, 1]))
    assert (fitted.predict(table, threshold=0.2) == "yes").sum() > (fitted.predict(table) == "yes").sum()
    assert np.array_equal(fitted.predict(table, threshold=0.2) == "yes", shares[:, 1] > 0.2)
    assert fitted.predict({"age": 79.0, "site": "a"}).tolist() == ["yes"]
    with pytest.raises(InvalidInput, match="metric of labels must be one of auc, accuracy, got 'rmse'"):
        fitted.score(table, "rmse")


def test_amounts_are_scored_in_their_unit_and_need_bounds():
    rng = np.random.default_rng(0)
    table = {"age": rng.uniform(20, 80, 900)}
    table["stay"] = 2 + table["age"] / 10 + rng.normal(0, 0.5, 900)
    options = {"network": "ring:3", "budget": sv.Budget(3.0, 1e-5), "rng": rng}
    with pytest.raises(Refused, match=r"2 problems.*'age' has no public bounds.*label 'stay' has no public"):
        sv.fit("squared", sv.data.TableData(table, "stay"), **options)
    fitted = sv.fit(
        "squared", sv.data.TableData(table, "stay", bounds={"age": (0, 100), "stay": (0, 20)}), **options
    )
    error = np.sqrt(np.mean((fitted.predict(table) - table["stay"]) ** 2))
    assert fitted.score(table) == pytest.approx(error)
    assert error < 0.6
    with pytest.raises(InvalidInput, match="probabilities are of classes"):
        fitted.predict_proba(table)
