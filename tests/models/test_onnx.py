"""ONNX export: what another runtime computes from the file is what the model gives."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.errors import InvalidInput

pytest.importorskip("onnxscript")


@pytest.mark.slow
def test_an_exported_model_gives_the_same_scores_without_torch(tmp_path):
    import torch
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
        found = run.run(None, {"inputs": X[:7].astype(kind)})[0]
        np.testing.assert_allclose(found.squeeze(), fitted.scores(X[:7]), atol=1e-6)
