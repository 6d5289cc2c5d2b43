"""Models as ONNX files, for use without torch: prepared features in, scores out."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.data.tables import Columns
from sottovoce.errors import DataError, InvalidInput, MissingDependency
from sottovoce.models.fitted import Fitted
from sottovoce.models.linear_model import LinearModel

if TYPE_CHECKING:
    from torch import nn


def write_onnx(fitted: Fitted, path: Path, example: ArrayLike | None) -> Path:
    """Write a fitted linear model or network of one input; ``example`` is one record or several."""
    model, columns = fitted.model, fitted.columns
    if example is not None:
        records = np.asarray(example)
        records = records.astype(np.float64) if records.dtype.kind in "bf" else records
    elif isinstance(model, LinearModel):
        records = np.zeros((1, model.coef.shape[-1]))
    elif isinstance(columns, Columns):
        records = np.zeros((1, len(columns.names) + columns.ones))
    else:
        raise InvalidInput("the shape of a record is not known; give to_onnx(path, example=records).")
    if fitted.layout is not None:
        raise InvalidInput("ONNX export takes networks with one input; use fitted.model itself for several.")
    if records.dtype.kind not in "biuf":
        raise DataError("the example must be records as the model takes them, numbers.")
    if any(importlib.util.find_spec(name) is None for name in ("torch", "onnx", "onnxscript")):
        raise MissingDependency("ONNX files are written by torch and onnx; pip install 'sottovoce[onnx]'.")
    import torch

    network = _linear_network(model) if isinstance(model, LinearModel) else model
    tensor = torch.as_tensor(np.repeat(records[:1], 2, axis=0))  # one record would be taken for a constant
    if tensor.is_floating_point():
        tensor = tensor.to(next(network.parameters()).dtype)
    names: dict[str, Any] = {"input_names": ["inputs"], "output_names": ["scores"]}
    shapes = ({0: torch.export.Dim("records")},)
    options = {"dynamo": True, "verbose": False, "external_data": False, **names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network.eval(), (tensor,), str(path), dynamic_shapes=shapes, **options)
    return path


def _linear_network(model: LinearModel) -> nn.Module:
    import torch

    coef = torch.as_tensor(np.atleast_2d(model.coef))
    layer = torch.nn.Linear(coef.shape[1], coef.shape[0], dtype=coef.dtype)
    with torch.no_grad():
        layer.weight.copy_(coef)
        layer.bias.copy_(torch.as_tensor(np.atleast_1d(model.intercept)))
    return layer
