"""sv.make_private: a torch loop of one's own takes the steps of a plan, and nothing else."""

import difflib
import inspect

import numpy as np
import pytest
import torch
from tests.estimators.cases import circles, fit, mlp, rng
from tests.estimators.opacus_loops import (
    blobs,
    texts,
    texts_with_opacus,
    texts_with_sottovoce,
    with_opacus,
    with_sottovoce,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sottovoce as sv
from sottovoce.errors import BudgetExceeded, InvalidInput, SottovoceError
from sottovoce.models.prepared import SIMULATED

X, Y = circles(240)
DATA = TensorDataset(torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(Y))
BUDGET = sv.Budget(3.0, 1e-5)


def private_objects(net=None, *, lr=0.5, epochs=2, make=torch.optim.SGD, **options):
    net = mlp() if net is None else net
    optimizer = make(net.parameters(), lr=lr)
    settings = {"network": "ring:4", "budget": BUDGET, "rng": rng(), **options}
    return sv.make_private(net, optimizer, DataLoader(DATA, 60), epochs=epochs, **settings)


def train(private, epochs=2, after_epoch=lambda: None):
    for _ in range(epochs):
        for inputs, targets in private.data_loader:
            private.optimizer.zero_grad()
            private.criterion(private.model(inputs), targets).backward()
            private.optimizer.step()
        after_epoch()


# ---- the loop is a fit -----------------------------------------------------------------------------------


@pytest.mark.parametrize("network", ["ring:4", None])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_a_loop_gives_the_weights_and_the_guarantee_of_fit(network, make):
    net = mlp()
    private = private_objects(net, network=network, make=make)
    train(private)
    twin = mlp()
    algorithm = "dp-sgd" if network is None else "consensus-sgd"
    fitted = fit(twin, DataLoader(DATA, 60), network=network, algorithm=algorithm, epochs=2, rng=rng(),
                 optimizer=make(twin.parameters(), lr=0.5), epsilon=3.0, delta=1e-5)  # fmt: skip
    for ours, theirs in zip(net.parameters(), fitted.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert private.privacy.curve == fitted.privacy.curve
    assert private.get_epsilon(1e-5) == fitted.privacy.epsilon(1e-5) <= 3.0
    assert SIMULATED in private.privacy.assumptions
    assert any("lets them steer training" in line for line in private.privacy.assumptions)
    assert (private.fitted().predict(X) == fitted.predict(X)).all()


def test_sites_that_differ_are_shown_by_their_mean():
    private = private_objects(algorithm="dp-dsgd")
    train(private)
    rows = private.fitted().rows
    assert not np.array_equal(rows[0], rows[1])
    weights = torch.cat([p.detach().flatten() for p in private.model.module.parameters()]).numpy()
    np.testing.assert_allclose(weights, rows.mean(axis=0), rtol=1e-6)


def test_a_batch_is_the_one_that_the_next_step_uses():
    private = private_objects(mlp().double(), network=None)
    state, seen = private._state, []
    query = state.mechanism.query
    real = query.sums
    query.sums = lambda theta, batches, *rest: seen.append(batches) or real(theta, batches, *rest)
    records = state.running.data
    for inputs, targets in private.data_loader:
        private.optimizer.zero_grad()
        private.criterion(private.model(inputs), targets).backward()
        private.optimizer.step()
        [used] = seen.pop()
        assert torch.equal(inputs, records.inputs[used].double())
        assert torch.equal(targets, records.targets[used])
    assert seen == []


class Counting(nn.Module):
    """A layer that notes the sum of what it has seen, as running statistics do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x):
        if self.training:
            self.seen += x.detach().sum(0)
        return self.layer(x)


@pytest.mark.filterwarnings("ignore::sottovoce.objectives.nets.slow_path.SlowPath")
def test_what_a_layer_notes_of_private_batches_stays_out_of_the_model():
    net = Counting()
    train(private_objects(net, network=None))
    assert net.seen.tolist() == [0.0, 0.0]


def test_schedulers_made_before_or_after_set_the_rate():
    for late in (False, True):
        net = mlp()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.8)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        private = sv.make_private(net, optimizer, DataLoader(DATA, 120), epochs=2, budget=BUDGET, rng=rng())
        if late:
            scheduler = torch.optim.lr_scheduler.StepLR(private.optimizer, 1, gamma=0.5)
        train(private, after_epoch=scheduler.step)
        assert private.plan.learning_rate.values == [0.8, 0.8, 0.4, 0.4]


# ---- what a loop may not do --------------------------------------------------------------------------------


def first_batch(private):
    inputs, targets = next(iter(private.data_loader))
    return private.model(inputs), targets


def test_another_loss_is_refused():
    private = private_objects()
    output, targets = first_batch(private)
    with pytest.raises(InvalidInput, match=r"call backward on private\.criterion"):
        nn.functional.cross_entropy(output, targets).backward()
    with pytest.raises(InvalidInput, match="unchanged"):
        (private.criterion(output, targets) + output.square().sum()).backward()
    with pytest.raises(InvalidInput, match="unchanged"):
        (2 * private.criterion(output, targets)).backward()
    with pytest.raises(InvalidInput, match="before optimizer"):
        private.optimizer.step()
    assert private._state.running.done == 0
    assert private.get_epsilon(1e-5) == 0.0


def test_steps_that_the_plan_does_not_have_are_refused():
    private = private_objects(epochs=1)
    train(private, epochs=1)
    with pytest.raises(BudgetExceeded, match="4 steps, and all of them are done"):
        train(private, epochs=1)
    with pytest.raises(BudgetExceeded, match="all of them are done"):
        private.optimizer.step()


def penalty(private):
    sum(p.square().sum() for p in private.model.parameters()).backward()


def changed_weights(private):
    with torch.no_grad():
        next(private.model.parameters()).zero_()


def changed_momentum(private):
    private.optimizer.param_groups[0]["momentum"] = 0.9


@pytest.mark.parametrize(
    ("act", "words"),
    [(penalty, "weight_decay"), (changed_weights, "changed beside"), (changed_momentum, "nothing else")],
)
def test_changes_beside_the_plan_are_refused(act, words):
    private = private_objects()
    output, targets = first_batch(private)
    private.criterion(output, targets).backward()
    act(private)
    with pytest.raises(InvalidInput, match=words):
        private.optimizer.step()
    assert private._state.running.done == 0


def test_one_backward_allows_one_step():
    private = private_objects()
    output, targets = first_batch(private)
    private.criterion(output, targets).backward()
    private.optimizer.step()
    with pytest.raises(InvalidInput, match="before optimizer"):
        private.optimizer.step()
    with pytest.raises(InvalidInput, match="closure"):
        private.optimizer.step(lambda: 0.0)


NET = mlp()
SGD = torch.optim.SGD(NET.parameters(), lr=0.5)
LOADER = DataLoader(DATA, 60)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((NET, SGD, DATA), {}, "takes a torch DataLoader, got TensorDataset"),
        ((mlp(), SGD, LOADER), {}, "parameters of this model"),
        ((None, SGD, LOADER), {}, "takes a torch module and an optimizer of it, got NoneType and SGD"),
        ((NET, SGD, LOADER), {"budget": 3.0}, r"budget must be sv\.Budget"),
        ((NET, SGD, LOADER), {"rng": 0}, "rng must be None for noise that protects"),
        ((NET, SGD, LOADER), {"epochs": 0}, "epochs must be"),
        ((NET, SGD, LOADER), {"network": "ring:4", "algorithm": "dp-dinno"}, "one per site and step"),
        ((NET, SGD, LOADER), {"max_grad_norm": 1.0}, "max_grad_norm is called clip_norm"),
        ((NET, SGD, LOADER), {"aceppt": ()}, "make_private has no option 'aceppt' .*mean 'accept'"),
        ((NET, SGD, DataLoader(DATA, 60, sampler=list(range(5)))), {}, "same chance"),
        ((nn.Flatten(), SGD, LOADER), {}, "parameters of this model"),
        ((mlp(3), None, LOADER), {}, "cannot use an input of shape"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(arguments, options, words):
    net, optimizer, loader = arguments
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5) if optimizer is None else optimizer
    with pytest.raises(SottovoceError, match=words) as caught:
        sv.make_private(net, optimizer, loader, **{"epochs": 1, "budget": BUDGET, "rng": rng(), **options})
    assert "\n" not in str(caught.value)


# ---- a loop written for Opacus ---------------------------------------------------------------------------


def changed_lines(old, new):
    lines = (inspect.getsource(loop).splitlines() for loop in (old, new))
    return sum(line.startswith("+ ") for line in difflib.unified_diff(*lines, n=0))


def test_a_loop_for_opacus_moves_over_with_few_changed_lines():
    assert 0 < changed_lines(with_opacus, with_sottovoce) <= 20
    right, epsilon = with_sottovoce(blobs(2000, 0), blobs(1000, 1), epochs=3, rng=rng())
    assert right > 0.85
    assert 2.9 < epsilon <= 3.0


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_accuracy_and_epsilon_are_those_of_opacus():
    """All is seeded; from seed to seed accuracy deviates by 0.0006. More noise hardly moves it."""
    pytest.importorskip("opacus")
    data = (blobs(3000, 0), blobs(4000, 1))
    theirs, their_epsilon = with_opacus(*data, 3)
    ours, our_epsilon = np.mean([with_sottovoce(*data, 3, rng=rng(seed)) for seed in range(3)], axis=0)
    assert abs(ours - theirs) <= 0.005
    assert our_epsilon <= 3.0
    assert their_epsilon <= 3.1


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_text_classifier_for_opacus_moves_over():
    """Dicts in, an object with attributes out; few lines change, accuracy and epsilon are those of Opacus."""
    pytest.importorskip("opacus")
    loops = (texts_with_opacus, texts_with_sottovoce)
    assert 0 < changed_lines(*loops) <= 20
    data = (texts(1500, 0), texts(1500, 1), 3)
    theirs, their_epsilon = np.mean([texts_with_opacus(*data, seed) for seed in range(2)], axis=0)
    ours, our_epsilon = np.mean([texts_with_sottovoce(*data, seed, rng(seed)) for seed in range(2)], axis=0)
    assert theirs > 0.75  # three classes
    assert abs(ours - theirs) <= 0.05  # four deviations of such a mean; all is seeded
    assert our_epsilon <= 8.0
    assert their_epsilon <= 8.1


def test_a_step_uses_the_records_that_the_loop_has_read():
    reads = []

    class Records(torch.utils.data.Dataset):
        def __len__(self):
            return len(DATA)

        def __getitem__(self, i):
            reads.append(i)
            return DATA[i]

    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    private = sv.make_private(net, optimizer, DataLoader(Records(), 60), epochs=2, network="ring:4",
                              budget=BUDGET, rng=rng())  # fmt: skip
    reads.clear()
    train(private, epochs=1)
    before, taken = len(reads), [len(i) for i in private._state.mechanism.batches.draw(range(4), 4, 0)]
    for inputs, _ in private.data_loader:
        assert len(inputs) == sum(taken)
        break
    assert len(reads) == before + sum(taken)
