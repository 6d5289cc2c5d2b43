"""What the ranks do in the tests of the cluster runner; see ranks.py."""

from __future__ import annotations

import contextlib
import os
import signal
from functools import partial

import numpy as np

import sottovoce as sv
from sottovoce.algorithms.averaging import averaging_algorithm
from sottovoce.errors import DataError, LostRank
from sottovoce.mechanisms.value import ValueMechanism
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import SimulatedNoise
from sottovoce.runners import Algorithm, run_stacked
from sottovoce.runners.distributed import Cluster, run_cluster
from sottovoce.runners.run import run_on_ranks

N = 11
NOISE = SimulatedNoise(3)


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
        # sums of more than 2^53 steps: added as floats they would lose their last digits
        "masked, fine": sv.protocols.Masked(net, tolerate=2, grid_spacing=2.0**-50),
        "neighbor-sum": sv.protocols.NeighborSum(net),
        "randomized": sv.protocols.Randomized(net, 25, rng),
        "dropout": sv.protocols.Dropout.random(net, 4, rng, node_rate=0.2, edge_rate=0.1),
        "fresh graphs": sv.protocols.fresh_erdos_renyi(N, 3, rng),
        "complete": sv.protocols.Gossip(sv.graphs.complete(N), 2),
        "none": sv.protocols.Gossip(net, 0),
    }


def values(dim=3, dtype=np.float64, n=N):
    return np.random.default_rng(7).normal(size=(n, dim)).astype(dtype)


def averager(agents, rows, noise=NOISE):
    return averaging_algorithm(
        ValueMechanism(
            rows=rows[agents], agents=agents, random=RunRandomness(noise, 0, 0), noise_std=1.0, radius=1.0
        )
    )


def compare(cluster, protocol, rows, *, owner=None, steps=1):
    """Return whether rank 0 holds the bytes of the stacked run."""
    hosted = run_cluster(cluster, lambda a: averager(a, rows), protocol, steps, noise=NOISE, owner=owner)
    got = cluster.gather(hosted)
    if cluster.rank:
        return None
    alone = averager(np.arange(len(rows)), rows)
    wanted = alone.output(run_stacked(alone, protocol, steps, noise=NOISE))
    return bool(got.dtype == wanted.dtype and (got == wanted).all())


def averaging_on2(cluster, folder):
    out = {}
    for dtype, dim in ((np.float64, 1), (np.float64, 3), (np.float32, 300)):
        for name, protocol in protocols().items():
            out[f"{name} {np.dtype(dtype)} {dim}"] = compare(cluster, protocol, values(dim, dtype))
    out["exchange"] = compare(cluster, sv.protocols.HypercubeExchange(8), values(n=8))
    out["several steps"] = compare(cluster, protocols()["gossip"], values(), steps=3)
    trees = [sv.protocols.Tree(uneven(), kind="uniform", rng=np.random.default_rng(k)) for k in range(3)]
    out["a tree per step"] = compare(cluster, lambda k: trees[k], values(), steps=3)
    return out


averaging_on4 = averaging_on2


def scattered_on4(cluster, folder):
    """Agents anywhere, one rank with most of them, one with nobody."""
    owner = np.array([3, 0, 0, 1, 0, 0, 3, 0, 0, 0, 1])
    return {name: compare(cluster, protocol, values(), owner=owner) for name, protocol in protocols().items()}


def traffic_on2(cluster, folder):
    """Bytes sent against a count of the cut made by hand, edge by edge."""
    protocol, rows = sv.protocols.Gossip(uneven(), 3), values(5, np.float32)
    run_cluster(cluster, lambda a: averager(a, rows), protocol, 1)
    owner = np.repeat([0, 1], [6, 5])
    pairs = {(u, owner[v]) for a, b in uneven().edges for u, v in ((a, b), (b, a)) if owner[u] != owner[v]}
    mine = [pair for pair in pairs if owner[pair[0]] == cluster.rank]
    return {"expected": 3 * len(mine) * 5 * 4, "got": cluster.traffic.bytes}


def remembering(agents, rows, die=None):
    """An algorithm with a nested state: rows per agent, a common counter, something empty."""

    def init():
        return {"x": rows[agents], "more": (np.zeros((len(agents), 2), np.float32), 0), "none": np.zeros(0)}

    def message(state, k):
        if die is not None:
            die(k)
        return NOISE.perturb(state["x"], agents=agents, step=k, std=0.1)

    def update(state, received, k):
        total, counter = state["more"]
        total = total + received[:, :2].astype(np.float32)
        return {"x": received, "more": (total, counter + 1), "none": state["none"]}

    return Algorithm(init, message, update, lambda s: np.hstack([s["x"], s["more"][0]]) + s["more"][1])


def continued(cluster, folder, *, first, second, steps=8):
    """Run to ``first``'s failure with a checkpoint every 3 steps, then go on with ``second`` cut."""
    protocol, rows = sv.protocols.Chebyshev(uneven(), 3), values()

    class Stop(Exception):
        pass

    def stop(k, hosted):
        if k == 7:
            raise Stop

    def go(cut, after):
        return run_cluster(
            cluster, lambda a: remembering(a, rows), protocol, steps, after_step=after,
            checkpoint=folder / "checkpoint", every=3, owner=cut, plan={"name": "test"},
        )  # fmt: skip

    with contextlib.suppress(Stop):
        go(first, stop)
    seen = []
    hosted = go(second, lambda k, hosted: seen.append(k))
    got = cluster.gather(hosted)
    if cluster.rank:
        return None
    wanted = remembering(np.arange(N), rows)
    wanted = wanted.output(run_stacked(wanted, protocol, steps))
    return {"equal": bool((got == wanted).all()), "steps done": seen,
            "files": len(list((folder / "checkpoint").glob("step-*")))}  # fmt: skip


resume_with_more_on4 = partial(continued, first=np.repeat([0, 1], [6, 5]), second=None)
resume_with_fewer_on4 = partial(continued, first=None, second=np.zeros(N, int))


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
        "muffliato": algorithms.MuffliatoSGD(objective, "chebyshev:3", steps=3, **common),
    }
    return {name: (plan, data) for name, plan in plans.items()}


def linear_plans():
    model = sv.objectives.GLM("logistic", l2=0.01)
    common = {"steps": 4, "learning_rate": 0.5, "clip_norm": 1.0, "noise_multiplier": 1.0}
    net, algorithms = uneven(), sv.algorithms
    user = {"adjacency": "user", **common}
    record = {"adjacency": "add-remove", "sample_rate": 0.5, "sizes": (7,) * N, **common}
    trees = [sv.protocols.Tree(net, kind="uniform", rng=np.random.default_rng(k)) for k in range(4)]
    heavy = algorithms.Optimizer("momentum", 0.5)
    plans = {
        "muffliato-sgd": algorithms.MuffliatoSGD(model, sv.protocols.Chebyshev(net, 3), **user),
        "muffliato-sgd record": algorithms.MuffliatoSGD(model, sv.protocols.Gossip(net, 1), **record),
        "consensus-sgd": algorithms.ConsensusSGD(model, trees, optimizer=heavy, **user),
        "consensus-sgd record": algorithms.ConsensusSGD(model, net, **record),
        "consensus-sgd masked": algorithms.ConsensusSGD(
            sv.objectives.GLM("logistic", l2=0.01, dim=shards().dim), "masked", network=net, **record
        ),
        "fresh-noise": algorithms.MuffliatoSGD(
            model, sv.protocols.FreshNoiseGossip(net, 3, fresh_noise_std=0.05), **user
        ),
    }
    return {name: (plan, shards()) for name, plan in plans.items()}


def averaging_plans():
    return {"averaging": (sv.PrivateAveraging(uneven(), noise_std=1.0, radius=0.5), values())}


def furthest(cluster, plans, owner=None):
    """Return, per plan, the largest relative difference between the ranks' rows and the stacked ones."""
    out = {}
    for name, (plan, data) in plans.items():
        result = run_on_ranks(cluster, plan, data, np.random.default_rng(5), owner=owner)
        if cluster.rank == 0:
            wanted = plan.run(data, np.random.default_rng(5)).outputs["rows"]
            got = result.outputs["rows"]
            assert got.dtype == wanted.dtype
            moved = 0.0 if (got == wanted).all() else np.abs(got - wanted).max() / np.abs(wanted).max()
            out[name] = {
                "difference": float(moved),
                "bytes": sum(t["bytes"] for t in result.provenance["traffic"]),
            }
    return out


def plans_on2(cluster, folder):
    return furthest(cluster, {**averaging_plans(), **linear_plans(), **network_plans()})


plans_on4 = plans_on2


def plans_scattered_on4(cluster, folder):
    """One rank with most of the agents, one with a single agent, one with nobody."""
    owner = np.array([3, 0, 0, 1, 0, 0, 3, 0, 0, 0, 3])
    return furthest(cluster, {**averaging_plans(), **network_plans()}, owner)


def protective_on2(cluster, folder):
    """Noise that nobody can repeat: all ranks still begin at the same point."""
    from sottovoce.noise.samplers import ProtectiveNoise

    plan, data = network_plans()["consensus"]
    result = run_on_ranks(cluster, plan, data, ProtectiveNoise())
    return result and {"same": bool((result.outputs["rows"] == result.outputs["rows"][0]).all())}


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
    """Both ranks draw protective noise, and the run is charged once, also when it goes on."""
    from sottovoce.noise.samplers import ProtectiveNoise

    ledger = member_directory(cluster, folder, 1e6)
    plan, data = averaging_plans()["averaging"]
    for _ in range(2):
        run_on_ranks(cluster, plan, data, ProtectiveNoise(), checkpoint=folder / "checkpoint")
    [budget] = ledger.summary()[0]["budgets"]
    return {"charges": len(ledger.charges), "total": budget["total"], "cost": plan.epsilon(1e-5, "local")}


def beyond_the_lifetime_budget_on2(cluster, folder):
    from sottovoce.noise.discrete import Bits
    from sottovoce.noise.samplers import ProtectiveNoise

    Bits.__init__ = None  # a draw would be another error
    member_directory(cluster, folder, 1e-6)
    run_on_ranks(cluster, *averaging_plans()["averaging"], ProtectiveNoise())


def evaluated_on2(cluster, folder):
    plan, data = network_plans()["dp-dsgd"]
    steps = []
    rng = np.random.default_rng(5)
    result = run_on_ranks(cluster, plan, data, rng, every=2, on_evaluation=lambda k, entry: steps.append(k))
    return result and {"history": result.history, "steps": steps, "result": result.to_dict()}


def plan_resumed_on2(cluster, folder):
    """Two steps of a plan on two ranks until a mistake, the rest on as many, against one process."""

    class Stop(Exception):
        pass

    plan, data = network_plans()["dp-dsgt"]
    begin, seen = plan.algorithm, []

    def mortal(source, start):
        algorithm = begin(source, start)

        def message(state, k):
            if k == 2:
                raise Stop
            return algorithm.message(state, k)

        return algorithm._replace(message=message)

    options = {"every": 1, "checkpoint": folder / "checkpoint"}
    object.__setattr__(plan, "algorithm", mortal)
    with contextlib.suppress(Stop, LostRank):
        run_on_ranks(cluster, plan, data, np.random.default_rng(5), **options)
    object.__delattr__(plan, "algorithm")
    result = run_on_ranks(
        cluster,
        plan,
        data,
        np.random.default_rng(5),
        on_evaluation=lambda k, entry: seen.append(k),
        **options,
    )
    if result is None:
        return None
    wanted = plan.run(data, np.random.default_rng(5)).outputs["rows"]
    moved = np.abs(result.outputs["rows"] - wanted).max() / np.abs(wanted).max()
    return {"difference": float(moved), "steps": seen}


# ---- what must fail ---------------------------------------------------------------------------------------


def more_ranks_than_agents_on4(cluster, folder):
    rows = values(n=3)
    run_cluster(cluster, lambda a: averager(a, rows), sv.protocols.Gossip(sv.graphs.path(3), 1), 1)


PLAN_FILE = """version = 1
[network]
graph = "ring:5"
[data]
name = "digits"
skew = 1.0
[model]
name = "mlp"
options = { inputs = 64, hidden = 4 }
[train]
algorithm = "METHOD"
adjacency = "add-remove"
clip_norm = 1.0
steps = 4
batch_size = 16
accounting = "rdp"
evaluate_every = 2
[noise]
noise_multiplier = 1.0
seed = 1
"""


def logged_steps(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(folder)).Reload()
    return [event.step for event in log.Scalars("epsilon")]


def plan_files_on2(cluster, folder):
    """`sottovoce train FILE.toml` of a network on ranks against the same file in one process."""
    import io
    import json

    from sottovoce.cli.train import train_on
    from sottovoce.planfile.training import load_training, run_training

    seen = {}
    for method in ("dp-dsgd", "dp-dsgt", "dp-dinno", "consensus-sgd", "muffliato-sgd"):
        file = folder / f"{method}-{cluster.rank}.toml"  # every rank reads a file of its own
        file.write_text(PLAN_FILE.replace("METHOD", method))
        with contextlib.redirect_stdout(io.StringIO()) as output:
            train_on(cluster, file, checkpoint=folder / method, logs=folder / f"{method}-logs", json=True)
        if cluster.rank:
            assert output.getvalue() == ""  # one rank speaks
            continue
        record = json.loads(output.getvalue())
        alone = run_training(load_training(file))
        rows = alone.outputs["rows"]
        parts = [np.load(part) for part in sorted((folder / method).glob("step-*.npz"))]
        stored = np.concatenate([part["leaf0"].reshape(len(part["agents"]), -1) for part in parts])
        seen[method] = {
            "difference": float(np.abs(stored[:, : rows.shape[1]] - rows).max()),
            "metrics": max(abs(record["metrics"][key] - value) for key, value in alone.metrics.items()),
            "history": [entry["step"] for entry in record["history"]],
            "alone": [entry["step"] for entry in alone.history],
            "logged": logged_steps(folder / f"{method}-logs"),
        }
    return seen


def missing_graph_file_on2(cluster, folder):
    path = folder / "edges.txt"
    if cluster.rank == 0:
        path.write_text("0 1\n1 2\n")
    cluster.meet()

    def build():
        return sv.graphs.parse(f"file:{path if cluster.rank == 0 else folder / 'nowhere.txt'}")

    cluster.agree("the graph", build)


def missing_data_on4(cluster, folder):
    def make(agents):
        if cluster.rank == 2:
            raise DataError("The shard of agent 6 is empty.")
        return averager(agents, values())

    run_cluster(cluster, make, protocols()["gossip"], 1)


def other_graph_on2(cluster, folder):
    net = uneven() if cluster.rank == 0 else sv.graphs.ring(N)
    run_cluster(cluster, lambda a: averager(a, values()), sv.protocols.Gossip(net, 2), 1)


def one_step(cluster, **options):
    run_cluster(cluster, lambda a: averager(a, values()), protocols()["gossip"], 1, **options)


def other_noise_on2(cluster, folder):
    one_step(cluster, noise=SimulatedNoise(cluster.rank))


def other_plan_on2(cluster, folder):
    one_step(cluster, plan={"clip_norm": 1.0 + cluster.rank})


def other_checkpoint_on2(cluster, folder):
    for clip_norm in (1.0, 2.0):
        one_step(cluster, checkpoint=folder / "checkpoint", every=1, plan={"clip_norm": clip_norm})


def kept_steps(cluster, folder, steps, **options):
    """Average with a checkpoint after every step; return the steps done."""
    done = []
    options = {"plan": {"clip_norm": 1.0}, "after_step": lambda k, hosted: done.append(k), **options}
    run_cluster(
        cluster, lambda a: remembering(a, values()), protocols()["gossip"], steps,
        checkpoint=folder / "checkpoint", every=1, **options,
    )  # fmt: skip
    return done


def one_process_ranks_and_back_on2(cluster, folder):
    """Three steps in one process, until a mistake on two ranks, to the end in one process again."""
    from sottovoce.runners.checkpoint import Checkpoint, identity_of

    protocol, plan, everybody = protocols()["chebyshev"], {"clip_norm": 1.0}, np.arange(len(values()))
    alone = remembering(everybody, values())
    checkpoint = Checkpoint(folder / "checkpoint", identity_of(plan, protocol, 9))
    if cluster.rank == 0:
        checkpoint.save(3, everybody, run_stacked(alone, protocol, 3), about={"seeds": [7]})
    cluster.meet()
    done = []

    def fail(k, hosted):
        done.append(k)
        if k == 5:
            raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        run_cluster(
            cluster, lambda a: remembering(a, values()), protocol, 9, plan=plan, after_step=fail,
            checkpoint=folder / "checkpoint", every=1,
        )  # fmt: skip
    files = len(list((folder / "checkpoint").glob("step-*")))
    cluster.meet()
    if cluster.rank:
        return None
    step, state, about = checkpoint.load(everybody, alone.init())
    got = run_stacked(alone, protocol, 9, state=state, first_step=step)
    checkpoint.save(9, everybody, got)
    wanted = run_stacked(remembering(everybody, values()), protocol, 9)
    return {
        "equal": bool((alone.output(got) == alone.output(wanted)).all()),
        "by ranks": done,
        "went on at": step,
        "files of ranks": files,
        "about": about,
        "files": len(list((folder / "checkpoint").glob("step-*"))),
    }


def held_folder_on2(cluster, folder):
    """Another run works in the folder: it would delete our files, and we its."""
    import fcntl

    (folder / "checkpoint").mkdir(exist_ok=True)
    with open(folder / "checkpoint" / ".lock", "a") as lock:
        if cluster.rank == 1:
            fcntl.flock(lock, fcntl.LOCK_EX)
        cluster.meet()
        kept_steps(cluster, folder, 2)


held_folder_on2.timeout = 4.0


def a_file_for_a_folder_on2(cluster, folder):
    (folder / "checkpoint").touch()
    kept_steps(cluster, folder, 2)


def other_versions_on2(cluster, folder):
    if cluster.rank == 1:
        np.__version__ = "1.0"
    kept_steps(cluster, folder, 2)


def stale_folder_on2(cluster, folder):
    """Rank 1 sees a folder of its own, where the checkpoint is older."""
    kept_steps(cluster, folder, 6, after_step=None, plan={"clip_norm": 1.0, "until": 6})
    if cluster.rank == 1:
        import json
        import shutil

        shutil.copytree(folder / "checkpoint", folder / "other" / "checkpoint")
        path = folder / "other" / "checkpoint" / "current.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "step": 4}))
    cluster.meet()
    where = folder if cluster.rank == 0 else folder / "other"
    kept_steps(cluster, where, 6, plan={"clip_norm": 1.0, "until": 6})


def unshared_folder_on2(cluster, folder):
    kept_steps(cluster, folder / str(cluster.rank), 2)


def full_disk_on2(cluster, folder):
    from sottovoce.runners.checkpoint import Checkpoint

    write = Checkpoint.write

    def full(self, step, agents, state, part):
        if step == 3 and part == 1:
            raise OSError(28, "No space left on device")
        return write(self, step, agents, state, part)

    Checkpoint.write = full
    kept_steps(cluster, folder, 5)


def killed_writing(cluster, folder, victim, when):
    """``victim`` dies in the checkpoint of step 3; what was there before stays whole."""
    from sottovoce.runners import checkpoint

    durably = checkpoint.atomic_write

    def mortal(path, write):
        if cluster.rank == victim and path.name.startswith(when):
            path.with_name(f".{path.name}.1").write_bytes(b"half of it")
            os.kill(os.getpid(), signal.SIGKILL)
        durably(path, write)

    def arm(k, hosted):
        checkpoint.atomic_write = mortal if k == 2 else durably

    try:
        kept_steps(cluster, folder, 6, after_step=arm)
    except LostRank:
        checkpoint.atomic_write = durably
        with Cluster.alone() as alone:
            assert kept_steps(alone, folder, 6) == [2, 3, 4, 5]
        assert {path.name[:5] for path in (folder / "checkpoint").iterdir()} == {"step-", "curre", ".lock"}
        raise


killed_writing_rank1_on2 = partial(killed_writing, victim=1, when="step-")
killed_writing_rank1_on2.timeout = 3.0
killed_committing_rank0_on2 = partial(killed_writing, victim=0, when="current")


def token_on2(cluster, folder):
    data = blobs()
    plan = sv.algorithms.RandomWalkSGD(
        small_net(), uneven(), steps=6, noise_multiplier=1.0, sizes=data.sizes, batch_size=10
    )
    run_on_ranks(cluster, plan, data, np.random.default_rng(0))


def alone_on2(cluster, folder):
    plan = sv.algorithms.DPGCD(
        sv.objectives.GLM("logistic"), records=9, steps=4, clip_norm=1.0, noise_ratio=20.0, smoothness=0.25
    )
    run_on_ranks(cluster, plan, (np.ones((9, 2)), np.ones(9)), np.random.default_rng(0))


def other_seed_on2(cluster, folder):
    plan, data = linear_plans()["muffliato-sgd"]
    run_on_ranks(cluster, plan, data, np.random.default_rng(cluster.rank))


def walk_on2(cluster, folder):
    walk = sv.protocols.Walk(uneven(), 4, np.random.default_rng(0))
    run_cluster(cluster, lambda a: averager(a, values()), walk, 1)


def nan_on2(cluster, folder):
    def make(agents):
        rows = values()
        rows[9] = np.nan
        return Algorithm(lambda: rows[agents], lambda s, k: s, lambda s, r, k: r, lambda s: s)

    run_cluster(cluster, make, protocols()["gossip"], 1)


def dying(cluster, folder, rank, how):
    def die(k):
        if k == 2 and cluster.rank == rank:
            how()

    run_cluster(cluster, lambda a: remembering(a, values(), die), protocols()["gossip"], 5)


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


def never_comes_on2(cluster, folder):
    if cluster.rank == 1:
        _stop()
    cluster.meet()


never_comes_on2.timeout = 2.0
