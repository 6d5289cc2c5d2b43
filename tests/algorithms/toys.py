"""Small data, networks and plans that several test files share."""

import numpy as np
import pytest
import torch
from torch import nn

import sottovoce as sv
from sottovoce.algorithms import DPCD, DPGCD, DPSGD
from sottovoce.data import Shards
from sottovoce.data.agent_tensors import AgentData
from sottovoce.objectives import GLM
from sottovoce.objectives.nets.objective import NetObjective

DELTA = 1e-5
N, P = 8, 3
RING = sv.graphs.ring(N)
FOUR = sv.graphs.ring(4)
COMMON = {"steps": 6, "learning_rate": 0.4, "clip_norm": 0.7, "noise_multiplier": 2.0, "adjacency": "user"}


def shards(seed=0, n=N, records=4):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n * records, P))
    y = np.sign(X @ np.array([1.0, -2.0, 0.5]) + 0.3 * rng.normal(size=n * records))
    return Shards(X, y, np.arange(n + 1) * records)


def blobs(agents=4, each=40, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, agents * each)
    x = (rng.normal(size=(len(y), 5)) + 2 * np.eye(3, 5)[y]).astype(np.float32)
    return AgentData(x, y, np.split(np.arange(len(y)), agents), test=(x, y), classes=3)


def net(clip_norm=1.0):
    torch.manual_seed(0)
    return NetObjective(nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)), clip_norm=clip_norm)


SCHEDULES = {
    "gossip": lambda: sv.protocols.Gossip(RING, 3),
    "chebyshev": lambda: sv.protocols.Chebyshev(RING, 4),
    "fresh": lambda: (
        lambda k: sv.protocols.Gossip(sv.graphs.erdos_renyi(N, 2.0, np.random.default_rng([9, k])), 2)
    ),
    "varying": lambda: sv.protocols.TimeVarying([RING, sv.graphs.complete(N)]),
    "dropout": lambda: sv.protocols.Dropout(RING, 3, nodes={1: [2]}),
    "fresh-noise": lambda: sv.protocols.FreshNoiseGossip(RING, 3, fresh_noise_std=0.1),
}
MODELS = [
    GLM("logistic", l2=0.01),
    GLM("squared", l1=0.05),
    GLM("huber", l1=0.01, l2=0.1, box=0.3, width=0.5),
    GLM("hinge", l2=0.05, width=0.5),
    GLM("squared", ball=0.2),
]


def named(model):
    return model.loss + ("-ball" if model.ball else "")


def problem(seed=0, n=60, p=4):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, p)), np.sign(rng.normal(size=n))


def sgd(model=None, **changes):
    options = {
        "records": 60,
        "steps": 7,
        "batch_size": 12,
        "learning_rate": 0.3,
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
    }
    return DPSGD(model or GLM(), **{**options, **changes})


def cd(model=None, **changes):
    options = {
        "records": 60,
        "steps": 23,
        "clip_norm": 1.0,
        "noise_multiplier": 2.0,
        "smoothness": (0.25,) * 4,
    }
    options = {**options, **changes}
    if "bounds" in changes:
        del options["smoothness"]
    return DPCD(model or GLM(), **options)


def gcd(model=None, **changes):
    options = {"records": 60, "steps": 6, "clip_norm": 1.0, "noise_ratio": 2.0}
    return DPGCD(model or GLM(), **{**options, **changes})


def hosted(plan, data, random):
    """The plan's algorithm and mechanism on some data, as a runner makes them."""
    ready = plan.prepared(data)
    mechanism = plan.mechanism(ready, [0], random)
    return plan.algorithm(mechanism, plan.starting(ready, random, [0])), mechanism


class Stop(Exception):
    """Interrupts a run."""


def check_resumed(plan, data, folder, seed=5, after=3):
    """Stop a run at an evaluation; the same call must then end in the bits of an uninterrupted run."""
    whole, evaluations = plan.run(data, np.random.default_rng(seed)).outputs, []

    def stop(rows):
        evaluations.append(rows)
        if len(evaluations) == after:
            raise Stop
        return {}

    with pytest.raises(Stop):
        plan.run(data, np.random.default_rng(seed), checkpoint=folder, evaluate=stop)
    assert folder.exists()
    resumed = plan.run(data, np.random.default_rng(seed), checkpoint=folder).outputs
    for name, values in whole.items():
        np.testing.assert_array_equal(resumed[name], values)


SIZES = [4, 9, 5, 12, 10]


def unequal_shards(sizes=SIZES, dim=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((sum(sizes), dim))
    y = (X @ np.arange(1.0, dim + 1) + rng.standard_normal(sum(sizes)) > 0).astype(float)
    return Shards(X, y, np.concatenate([[0], np.cumsum(sizes)]))


def admm_problem(seed=0, n=40, p=4):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    return X, np.sign(X @ rng.normal(size=p) + 0.3 * rng.normal(size=n))


SECRET = {"adjacency": "user", "path": "secret"}


def walk_shards(n=6, records=1, seed=0, p=3):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(n * records, p)), np.sign(rng.normal(size=n * records))
    return Shards.from_parts(X, y, np.arange(n * records).reshape(n, records))
