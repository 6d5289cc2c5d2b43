"""Small networks and data for sv.fit."""

from dataclasses import fields

import numpy as np
import torch
from torch import nn

import sottovoce as sv

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


X, Y = circles(40)

GOOD = {"network": "ring:4", "steps": 1, "rng": rng(), **BUDGET}
