"""What a torch user brings to sv.fit: loaders, Hugging Face modules, schedulers, callbacks, devices."""

import csv
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.estimators.cases import BUDGET, circles, fit, mlp, rng
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

import sottovoce as sv
from sottovoce.errors import DataError, InvalidInput, SottovoceError
from sottovoce.estimators.schedulers import scheduled_rates
from sottovoce.runners.stopping import EarlyStopping

X, Y = circles(120)
TENSORS = TensorDataset(torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(Y))
SETTINGS = {"network": "ring:4", "steps": 4, "learning_rate": 1.0, **BUDGET}


class Items(Dataset):
    """Records one by one, as mappings or pairs."""

    def __init__(self, named=False, label="labels"):
        self.named, self.label = named, label

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        x, y = torch.as_tensor(X[i], dtype=torch.float32), int(Y[i])
        return {"features": x, "scale": torch.ones(1), self.label: y} if self.named else (x, y)


class Broken(Items):
    def __getitem__(self, i):
        return ("word", 1) if self.named else [][i] if i else super().__getitem__(i)


class Endless(IterableDataset):
    def __iter__(self):
        yield from TENSORS


@dataclass
class Output:
    logits: torch.Tensor
    hidden: tuple = ()


class HuggingFace(nn.Module):
    """Tensors by name in, an object with attributes out."""

    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, features, scale, labels=None):
        return Output(self.net(features * scale))


# ---- loaders -------------------------------------------------------------------------------------------


def test_a_loaders_batch_size_is_the_expected_batch_over_all_nodes():
    loader = DataLoader(TENSORS, batch_size=24, shuffle=True, drop_last=True)
    by_loader = fit(mlp(), loader, rng=rng(), **SETTINGS)
    plain = fit(mlp(), TENSORS, batch_size=6.0, rng=rng(), **SETTINGS)
    assert by_loader.plan.batch_size == 6.0
    assert np.array_equal(by_loader.rows, plain.rows)
    assert by_loader.privacy.curve == plain.privacy.curve
    [note] = set(by_loader.privacy.assumptions) - set(plain.privacy.assumptions)
    assert "24 records expected, 6 at each node" in note
    epochs = fit(mlp(), loader, epochs=3, rng=rng(), **{**SETTINGS, "steps": None})
    assert epochs.plan.steps == 3 * len(DataLoader(TENSORS, batch_size=24))
    with pytest.raises(InvalidInput, match="batch_size 24 already"):
        fit(mlp(), loader, batch_size=5, rng=rng(), **SETTINGS)


def test_a_loaders_collation_is_applied_to_each_record_alone():
    sizes = []

    def collate(items):
        sizes.append(len(items))
        return torch.stack([2 * x for x, _ in items]), torch.tensor([y for _, y in items])

    def pairs(items):
        return torch.zeros(2 * len(items), 2), torch.zeros(2 * len(items))

    by_loader = fit(mlp(), DataLoader(Items(), 24, collate_fn=collate), rng=rng(), **SETTINGS)
    plain = fit(mlp(), (2 * X.astype(np.float32), Y), batch_size=6.0, rng=rng(), **SETTINGS)
    assert set(sizes) == {1}
    np.testing.assert_allclose(by_loader.rows, plain.rows, atol=1e-5)
    with pytest.raises(DataError, match="collate_fn must keep records apart"):
        fit(mlp(), DataLoader(Items(), 24, collate_fn=pairs), rng=rng(), **SETTINGS)


def test_a_loader_over_a_list_is_read_item_by_item():
    pair = [(torch.ones(2), "yes"), (torch.zeros(2), "no")]  # as long as a pair (inputs, targets)
    options = {**SETTINGS, "network": "path:2", "classes": ["no", "yes"]}
    fitted = fit(mlp(), DataLoader(pair, batch_size=1), rng=rng(), **options)
    assert fitted.plan.sizes == (1, 1)
    with pytest.raises(DataError, match="got no axis for one"):
        fit(mlp(), DataLoader(pair, 1, collate_fn=lambda items: (items[0][0][None], 7)), **options)


def test_a_loader_of_test_records_scores_and_predicts():
    loader = DataLoader(TENSORS, batch_size=24)
    for model in (mlp(), "logistic"):
        fitted = fit(model, TENSORS, test=loader, rng=rng(), **SETTINGS)
        arrays = fit(
            model, (TENSORS.tensors[0], Y * 1.0), test=(X.astype(np.float32), Y), rng=rng(), **SETTINGS
        )
        assert fitted.metrics == arrays.metrics
        assert (fitted.predict(loader) == fitted.predict(X)).all()
        assert fitted.score(Items(), "accuracy") == fitted.score(loader, "accuracy")


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (DataLoader(Endless(), batch_size=8), "has no length"),
        (DataLoader(TENSORS, 8, sampler=WeightedRandomSampler([1.0] * 120, 120)), "same chance"),
        (DataLoader(TENSORS, 8, sampler=list(range(60))), "same chance"),
        (DataLoader(TENSORS, batch_sampler=[[0, 1], [2, 3]]), "has no batch_size"),
        (DataLoader(TENSORS, batch_size=None), "has no batch_size"),
        (DataLoader(TENSORS, batch_size=200), "fewer than batch_size 50"),
        (Endless(), "a torch Dataset with a length"),
        (Broken(named=True), "items of the dataset must hold tensors or numbers"),
        (Broken(), r"record \d+ of the dataset cannot be read: IndexError"),
    ],
)
def test_loaders_that_cannot_be_accounted_are_refused(loader, words):
    with pytest.raises(SottovoceError, match=words) as caught:
        fit(mlp(), loader, rng=rng(), **SETTINGS)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


# ---- modules -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["labels", "label"])
def test_modules_that_take_a_dict_and_return_an_object(label):
    torch.manual_seed(0)
    net, data = HuggingFace(), Items(named=True, label=label)
    fitted = fit(net, DataLoader(data, 24), test=data, rng=rng(), **SETTINGS)
    plain = fit(net.net, TENSORS, test=TENSORS, batch_size=6.0, rng=rng(), **SETTINGS)
    np.testing.assert_allclose(fitted.rows, plain.rows, atol=1e-6)
    assert fitted.metrics["accuracy"] == plain.metrics["accuracy"]
    assert (fitted.predict(data) == plain.predict(X)).all()
    assert isinstance(fitted.model(torch.zeros(1, 2), torch.ones(1, 1)), Output)


def test_scores_of_an_object_are_those_of_all_records():
    """Outputs come in chunks of two thousand records; an object of the caller's cannot be joined."""
    many = circles(4500, 3)
    fitted = fit(HuggingFace(), Items(named=True), rng=rng(), **SETTINGS)
    inputs = {"features": many[0].astype(np.float32), "scale": np.ones((4500, 1), np.float32)}
    assert fitted.predict(inputs).shape == (4500,)


# ---- schedulers ----------------------------------------------------------------------------------------


def momentum(net, lr=0.4):
    return torch.optim.SGD(net.parameters(), lr=lr, momentum=0.5)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.3),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=6),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 1 / (k + 1)),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [torch.optim.lr_scheduler.LinearLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.5)],
            milestones=[3],
        ),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.5, total_steps=6, cycle_momentum=False),
    ],
)
def test_a_torch_scheduler_without_noise_is_torchs_own_training(schedule):
    net, twin = mlp().double(), mlp().double()
    optimizer = momentum(net)
    settings = {"network": "ring:3", "noise_multiplier": 0.0, "clip_norm": 1e6, "steps": 6, "rng": rng()}
    fitted = fit(net, (X, Y), learning_rate=schedule(optimizer), **settings)
    theirs = momentum(twin)
    scheduler = schedule(theirs)
    for _ in range(6):
        theirs.zero_grad()
        nn.functional.cross_entropy(twin(torch.as_tensor(X)), torch.as_tensor(Y)).backward()
        theirs.step()
        scheduler.step()
    for ours, their in zip(fitted.model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(ours, their, rtol=0, atol=1e-10)


def test_a_scheduler_may_be_stepped_once_per_pass_and_stays_as_it_was():
    net = mlp()
    optimizer = momentum(net)
    halving = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    rate = {"scheduler": halving, "interval": "epoch"}
    fitted = fit(net, DataLoader(TENSORS, 40), learning_rate=rate, epochs=2, network="ring:4", rng=rng(),
                 optimizer=optimizer, **BUDGET)  # fmt: skip
    assert fitted.plan.learning_rate.values == [0.4] * 3 + [0.2] * 3
    assert optimizer.param_groups[0]["lr"] == 0.4
    assert halving.last_epoch == 0
    assert fitted.result.to_dict()["config"]["learning_rate"] == {"values": [0.4] * 3 + [0.2] * 3}


def test_schedulers_that_a_plan_cannot_state_are_refused():
    net = mlp()
    optimizer = momentum(net)
    schedulers = torch.optim.lr_scheduler
    cycle = schedulers.OneCycleLR(momentum(net), 0.5, total_steps=6)
    with pytest.raises(InvalidInput, match="cycle_momentum=False"):
        scheduled_rates(cycle, 6)
    with pytest.raises(InvalidInput, match="no rate for step 8 of 9"):
        scheduled_rates(schedulers.OneCycleLR(optimizer, 0.5, total_steps=6, cycle_momentum=False), 9)
    with pytest.raises(InvalidInput, match="follows a score"):
        fit(net, (X, Y), **{**SETTINGS, "learning_rate": schedulers.ReduceLROnPlateau(optimizer)})
    options = {**SETTINGS, "learning_rate": schedulers.StepLR(optimizer, 1)}
    with pytest.raises(InvalidInput, match="another optimizer"):
        fit(net, (X, Y), optimizer=momentum(net), **options)
    rate = {"scheduler": schedulers.StepLR(optimizer, 1), "interval": "batch"}
    with pytest.raises(InvalidInput, match='"step" or "epoch"'):
        fit(net, (X, Y), **{**SETTINGS, "learning_rate": rate})


# ---- callbacks, logs, early stopping ----------------------------------------------------------------------


def test_callbacks_and_logs_see_steps_and_scores(tmp_path):
    steps, entries = [], []
    fitted = fit(
        mlp(), TENSORS, test=(X, Y), rng=rng(), evaluate_every=2, logs=tmp_path / "run.csv",
        on_step=lambda step, rows: steps.append((step, rows.shape)),
        on_evaluation=lambda step, scores: entries.append((step, scores["accuracy"])), **SETTINGS,
    )  # fmt: skip
    assert steps == [(k, fitted.rows.shape) for k in (1, 2, 3, 4)]
    assert entries == [(entry["step"], entry["accuracy"]) for entry in fitted.history]
    with open(tmp_path / "run.csv") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [2, 4]
    assert float(rows[-1]["epsilon"]) == fitted.privacy.epsilon(1e-5)
    assert float(rows[0]["epsilon"]) < float(rows[1]["epsilon"])
    plain = fit(mlp(), TENSORS, test=(X, Y), rng=rng(), evaluate_every=2, **SETTINGS)
    assert np.array_equal(plain.rows, fitted.rows)


def test_a_fit_stops_early_on_public_records_only():
    stopping = {"early_stopping": EarlyStopping("loss", patience=2, min_delta=10.0), "evaluate_every": 1}
    options = {**SETTINGS, "steps": 12}
    fitted = fit(mlp(), TENSORS, test=(X, Y), rng=rng(), **stopping, **options)
    assert fitted.result.provenance["stopped_at"] == len(fitted.history) == 3
    whole = fit(mlp(), TENSORS, test=(X, Y), rng=rng(), **options)
    assert fitted.privacy == whole.privacy  # nothing is given back
    with pytest.raises(InvalidInput, match="early stopping needs public records"):
        fit(mlp(), TENSORS, rng=rng(), **stopping, **options)
    with pytest.raises(InvalidInput, match="watches 'auc'"):
        fit(mlp(), TENSORS, test=(X, Y), rng=rng(), early_stopping=EarlyStopping("auc"), **options)
    held_out = sv.data.Dataset("two", 3 * X, Y).standardized().split(0.25, rng())
    with pytest.raises(InvalidInput, match="private ones would steer training"):
        fit(mlp(), held_out, accept=["standardize", "held-out score"], early_stopping=3, **options)


# ---- modules that cannot be used ------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_a_scripted_module_is_refused():
    with pytest.raises(InvalidInput, match="a scripted module cannot be read layer by layer"):
        fit(torch.jit.script(nn.Linear(2, 2)), TENSORS, **SETTINGS)
