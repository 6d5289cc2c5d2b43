"""What the ranks do in the tests of the cluster runner; see ranks.py."""

from __future__ import annotations

import contextlib
import os
import signal
from functools import partial

import numpy as np

import sottovoce as sv
from sottovoce.errors import DataError, LostRank
from sottovoce.runners import checkpoint
from sottovoce.runners.distributed import Cluster
from sottovoce.runners.run import run_on_ranks

N = 11


def generator():
    return np.random.default_rng(5)


def uneven():
    """A graph whose cuts are uneven: a hub with leaves, a path hanging off it, one chord."""
    edges = [(0, 1), (0, 2), (0, 3), (0, 4), (0, 10), (4, 5), (5, 6), (6, 7), (7, 8), (8, 9), (2, 9)]
    return sv.graphs.from_edges(edges)


def protocols():
    net = uneven()
    rng = np.random.default_rng(2)
    return {
        "gossip": sv.protocols.Gossip(net, 3),
        "chebyshev": sv.protocols.Chebyshev(net, 5),
        "fresh-noise": sv.protocols.FreshNoiseGossip(net, 4, fresh_noise_std=0.1),
        "tree": sv.protocols.Tree(net, kind="uniform", rng=rng),
        "masked": sv.protocols.Masked(net),
        "randomized": sv.protocols.Randomized(net, 25, rng),
        "dropout": sv.protocols.Dropout.random(net, 4, rng, node_rate=0.2, edge_rate=0.1),
        "fresh graphs": sv.protocols.fresh_erdos_renyi(N, 3, rng),
        "complete": sv.protocols.Gossip(sv.graphs.complete(N), 2),
        "none": sv.protocols.Gossip(net, 0),
    }


def values(dim=3, dtype=np.float64, n=N):
    return np.random.default_rng(7).normal(size=(n, dim)).astype(dtype)


def average(protocol, dim=3):
    return sv.PrivateAveraging(protocol, noise_std=1.0, radius=1.0, dim=dim)


def averaging_on4(cluster, folder):
    """Whether rank 0 holds the bytes of one process."""
    out = {}
    for dtype, dim in ((np.float64, 1), (np.float64, 3), (np.float32, 300)):
        for name, protocol in {**protocols(), "exchange": sv.protocols.HypercubeExchange(8)}.items():
            plan, rows = average(protocol, dim), values(dim, dtype, protocol.n)
            result = run_on_ranks(cluster, plan, rows, generator())
            if result is not None:
                wanted, actual = plan.run(rows, generator()).outputs["rows"], result.outputs["rows"]
                same = actual.dtype == wanted.dtype and (actual == wanted).all()
                out[f"{name} {np.dtype(dtype)} {dim}"] = bool(same)
    return out


def traffic_on2(cluster, folder):
    """Bytes sent against a count of the cut made by hand, edge by edge."""
    run_on_ranks(cluster, average(sv.protocols.Gossip(uneven(), 3), 5), values(5, np.float32), generator())
    owner = np.repeat([0, 1], [6, 5])
    pairs = {(u, owner[v]) for a, b in uneven().edges for u, v in ((a, b), (b, a)) if owner[u] != owner[v]}
    mine = [pair for pair in pairs if owner[pair[0]] == cluster.rank]
    return {"expected": 3 * len(mine) * 5 * 4, "actual": cluster.traffic.bytes}


# ---- plans ------------------------------------------------------------------------------------------------


def small_net():
    import torch
    from torch import nn

    from sottovoce.objectives.nets.objective import NetObjective

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return NetObjective(nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)), clip_norm=1.0)


def blobs():
    from sottovoce.data.agent_tensors import AgentData

    rng = np.random.default_rng(0)
    sizes = 20 + 3 * np.arange(N)  # agents differ, so batches, rates and noise do
    y = rng.integers(0, 3, sizes.sum())
    x = (rng.normal(size=(len(y), 5)) + 2 * np.eye(3, 5)[y]).astype(np.float32)
    return AgentData(x, y, np.split(np.arange(len(y)), np.cumsum(sizes)[:-1]), test=(x, y), classes=3)


def shards(n=N):
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(7 * n, 4)), rng.choice([-1.0, 1.0], 7 * n)
    return sv.data.Shards(X, y, np.arange(0, 7 * n + 1, 7))


def network_plans():
    data, objective, algorithms = blobs(), small_net(), sv.algorithms
    common = {"batch_size": 10, "noise_multiplier": tuple(0.5 + 0.1 * np.arange(N)), "learning_rate": 0.3,
              "network": uneven(), "sizes": data.sizes}  # fmt: skip
    adam = algorithms.Optimizer("adam")
    plans = {
        "dp-dsgd": algorithms.DPDSGD(objective, steps=4, **common),
        "dp-dsgt": algorithms.DPDSGT(objective, steps=4, **common),
        "dp-dinno": algorithms.DPDiNNO(objective, steps=3, primal_steps=2, optimizer=adam, **common),
        "consensus": algorithms.ConsensusSGD(objective, steps=3, **common),
    }
    return {name: (plan, data) for name, plan in plans.items()}


def linear_plans():
    model, net, algorithms = sv.objectives.GLM("logistic", l2=0.01, dim=4), uneven(), sv.algorithms
    common = {"steps": 4, "learning_rate": 0.5, "clip_norm": 1.0, "noise_multiplier": 1.0}
    user = {"adjacency": "user", **common}
    record = {"adjacency": "add-remove", "sample_rate": 0.5, "sizes": (7,) * N, **common}
    trees = [sv.protocols.Tree(net, kind="uniform", rng=np.random.default_rng(k)) for k in range(4)]
    heavy, fresh = algorithms.Optimizer("momentum", 0.5), sv.protocols.FreshNoiseGossip(net, 3, 0.05)
    plans = {
        "muffliato-sgd": algorithms.MuffliatoSGD(model, sv.protocols.Chebyshev(net, 3), **user),
        "consensus-sgd": algorithms.ConsensusSGD(model, trees, optimizer=heavy, **user),
        "consensus-sgd masked": algorithms.ConsensusSGD(model, "masked", network=net, **record),
        "fresh-noise": algorithms.MuffliatoSGD(model, fresh, **user),
    }
    return {name: (plan, shards()) for name, plan in plans.items()}


def plans_on2(cluster, folder):
    """The largest relative difference, per plan, between the ranks' rows and those of one process."""
    out = {}
    for name, (plan, data) in {**linear_plans(), **network_plans()}.items():
        result = run_on_ranks(cluster, plan, data, generator())
        if result is not None:
            wanted, actual = plan.run(data, generator()).outputs["rows"], result.outputs["rows"]
            assert actual.dtype == wanted.dtype
            moved = np.abs(actual - wanted).max() / np.abs(wanted).max()
            sent = sum(traffic["bytes"] for traffic in result.provenance["traffic"])
            out[name] = {"difference": float(moved), "bytes": sent}
    return out


def member_directory(cluster, folder, epsilon):
    """Make this a machine with a member directory; every rank sees it."""
    from sottovoce.ledger.balance import LifetimeBudget
    from sottovoce.ledger.lifetime import VARIABLE
    from sottovoce.peers.member_directory import MemberDirectory

    os.environ[VARIABLE] = str(folder / "member")
    if cluster.rank == 0:
        limit = LifetimeBudget(epsilon, 1e-5, "user", "local")
        place = {"population": "p", "budgets": [limit], "copy": folder / "copy"}
        MemberDirectory.create(folder / "member", "north", **place)
    cluster.meet()
    return MemberDirectory(folder / "member").lifetime_ledger


def charged_on2(cluster, folder):
    """Both ranks draw protective noise from one start, and are charged once, also when they go on."""
    from sottovoce.noise.samplers import ProtectiveNoise

    ledger = member_directory(cluster, folder, 1e6)
    plan, data = linear_plans()["consensus-sgd"]
    for _ in range(2):
        result = run_on_ranks(cluster, plan, data, ProtectiveNoise(), checkpoint=folder / "checkpoint")
    [budget] = ledger.summary()[0]["budgets"]
    same = result is None or bool((result.outputs["rows"] == result.outputs["rows"][0]).all())
    cost = plan.epsilon(1e-5, "local")
    return {"charges": len(ledger.charges), "total": budget["total"], "cost": cost, "same": same}


def beyond_the_lifetime_budget_on2(cluster, folder):
    from sottovoce.noise.discrete import Bits
    from sottovoce.noise.samplers import ProtectiveNoise

    Bits.__init__ = None  # a draw would be another error
    member_directory(cluster, folder, 1e-6)
    run_on_ranks(cluster, average(protocols()["gossip"]), values(), ProtectiveNoise())


def evaluated_on2(cluster, folder):
    plan, data = network_plans()["dp-dsgd"]
    steps = []
    options = {"every": 2, "on_evaluation": lambda k, entry: steps.append(k)}
    result = run_on_ranks(cluster, plan, data, generator(), **options)
    return result and {"history": result.history, "steps": steps, "result": result.to_dict()}


# ---- runs that are interrupted --------------------------------------------------------------------------


class Stop(Exception):
    pass


def training(steps=8, **changes):
    """A plan whose state is nested, with a counter that all agents share."""
    options = {"network": uneven(), "steps": steps, "adjacency": "user", "clip_norm": 1.0, **changes}
    adam = sv.algorithms.Optimizer("adam")
    return sv.algorithms.DPDSGD(sv.objectives.GLM(dim=4), noise_multiplier=1.0, optimizer=adam, **options)


def acting(plan, act):
    """The plan, ``act(k)`` being called before the message of step k, and the list of steps done."""
    begin, steps = plan.algorithm, []

    def algorithm(mechanism, start):
        real = begin(mechanism, start)

        def message(state, k):
            act(k)
            steps.append(k)
            return real.message(state, k)

        return real._replace(message=message)

    object.__setattr__(plan, "algorithm", algorithm)
    return plan, steps


def stop_at(step):
    def act(k):
        if k == step:
            raise Stop

    return act


def train(cluster, folder, plan, **options):
    options = {"checkpoint": folder / "checkpoint", "every": 1, **options}
    return run_on_ranks(cluster, plan, shards(), generator(), **options)


def one_process_ranks_and_back_on4(cluster, folder):
    """Three steps in one process, two on four ranks, the rest in one process again."""
    done = []
    for step, alone in ((3, True), (5, False), (8, True)):
        plan, steps = acting(training(), stop_at(step))
        if alone and cluster.rank == 0:
            with contextlib.suppress(Stop), Cluster.alone() as single:
                result = train(single, folder, plan)
        if not alone:
            with contextlib.suppress(Stop):
                train(cluster, folder, plan)
        cluster.meet()
        done.append(steps)
    if cluster.rank:
        return None
    wanted = training().run(shards(), generator()).outputs["rows"]
    files = len(list((folder / "checkpoint").glob("step-*")))
    return {"equal": bool((result.outputs["rows"] == wanted).all()), "steps": done, "files": files}


# ---- what must fail ---------------------------------------------------------------------------------------


def more_ranks_than_agents_on4(cluster, folder):
    run_on_ranks(cluster, average(sv.protocols.Gossip(sv.graphs.path(3), 1)), values(n=3), generator())


def missing_data_on4(cluster, folder):
    plan = training()

    def mechanism(data, agents, random):
        if cluster.rank == 2:
            raise DataError("The shard of agent 6 is empty.")
        return type(plan).mechanism(plan, data, agents, random)

    object.__setattr__(plan, "mechanism", mechanism)
    train(cluster, folder, plan)


def other_graph_on2(cluster, folder):
    net = uneven() if cluster.rank == 0 else sv.graphs.ring(N)
    run_on_ranks(cluster, average(sv.protocols.Gossip(net, 2)), values(), generator())


def other_checkpoint_on2(cluster, folder):
    for clip_norm in (1.0, 2.0):
        train(cluster, folder, training(2, clip_norm=clip_norm))


def a_file_for_a_folder_on2(cluster, folder):
    (folder / "checkpoint").touch()
    train(cluster, folder, training(2))


def other_versions_on2(cluster, folder):
    if cluster.rank == 1:
        np.__version__ = "1.0"
    train(cluster, folder, training(2))


def stale_folder_on2(cluster, folder):
    """Rank 1 sees a folder of its own, where the checkpoint is older."""
    train(cluster, folder, training(6))
    if cluster.rank == 1:
        import json
        import shutil

        shutil.copytree(folder / "checkpoint", folder / "other" / "checkpoint")
        path = folder / "other" / "checkpoint" / "current.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "step": 4}))
    cluster.meet()
    train(cluster, folder if cluster.rank == 0 else folder / "other", training(6))


def unshared_folder_on2(cluster, folder):
    train(cluster, folder / str(cluster.rank), training(2))


def full_disk_on2(cluster, folder):
    write = checkpoint.Checkpoint.write

    def full(self, step, agents, state, part):
        if step == 3 and part == 1:
            raise OSError(28, "No space left on device")
        return write(self, step, agents, state, part)

    checkpoint.Checkpoint.write = full
    train(cluster, folder, training(5))


def killed_writing(cluster, folder, victim, when):
    """``victim`` dies in the checkpoint of step 3; what was there before stays whole."""
    durably = checkpoint.atomic_write

    def mortal(path, write):
        if cluster.rank == victim and path.name.startswith(when):
            path.with_name(f".{path.name}.1").write_bytes(b"half of it")
            _kill()
        durably(path, write)

    def arm(k):
        checkpoint.atomic_write = mortal if k == 2 else durably

    try:
        train(cluster, folder, acting(training(6), arm)[0])
    except LostRank:
        checkpoint.atomic_write = durably
        plan, steps = acting(training(6), lambda k: None)
        with Cluster.alone() as alone:
            train(alone, folder, plan)
        assert steps == [2, 3, 4, 5]
        assert {path.name[:5] for path in (folder / "checkpoint").iterdir()} == {"step-", "curre"}
        raise


killed_writing_rank1_on2 = partial(killed_writing, victim=1, when="step-")
killed_writing_rank1_on2.timeout = 3.0
killed_committing_rank0_on2 = partial(killed_writing, victim=0, when="current")


def token_on2(cluster, folder):
    data = blobs()
    plan = sv.algorithms.RandomWalkSGD(
        small_net(), uneven(), steps=6, noise_multiplier=1.0, sizes=data.sizes, batch_size=10
    )
    run_on_ranks(cluster, plan, data, generator())


def other_seed_on2(cluster, folder):
    run_on_ranks(cluster, training(), shards(), np.random.default_rng(cluster.rank))


def nan_on2(cluster, folder):
    plan = training()
    begin = plan.algorithm

    def algorithm(mechanism, start):
        broken = start.copy()
        if 9 in mechanism.agents:
            broken[list(mechanism.agents).index(9)] = np.nan
        return begin(mechanism, broken)

    object.__setattr__(plan, "algorithm", algorithm)
    train(cluster, folder, plan)


def dying(cluster, folder, rank, how):
    def die(k):
        if k == 2 and cluster.rank == rank:
            how()

    train(cluster, folder, acting(training(5), die)[0], checkpoint=None)


def _signal(number):
    os.kill(os.getpid(), number)


def _fail():
    raise ZeroDivisionError("a mistake in step 2")


_kill, _stop = (partial(_signal, number) for number in (signal.SIGKILL, signal.SIGSTOP))
killed_rank2_on4 = partial(dying, rank=2, how=_kill)
killed_rank0_on2 = partial(dying, rank=0, how=_kill)
frozen_rank1_on2 = partial(dying, rank=1, how=_stop)
frozen_rank1_on2.timeout = 2.0
failing_rank3_on4 = partial(dying, rank=3, how=_fail)
failing_rank0_on4 = partial(dying, rank=0, how=_fail)
