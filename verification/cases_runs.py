"""Results of runs: experiments, deep methods, contract cases, peers in memory; and names of benchmarks."""

from __future__ import annotations

import ast
import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from sottovoce.errors import DataError, MissingDependency, SottovoceError
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import SimulatedNoise
from verification.cases_noise import KEYS, KnownBytes, keyed
from verification.cases_privacy import ROOT, load

IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # ledgers wait for the disk
ABSENT = "not recorded"  # where data or an extra are absent; such a case is not compared


def experiments() -> Iterator[tuple[str, Any]]:
    """Yield the quick form of every experiment, without provenance and times."""
    from sottovoce_papers.registry import registry

    for name, experiment in registry().items():
        try:
            with mock.patch("os.urandom", KnownBytes(KEYS[1])):  # some draw protective noise
                result = experiment.run(quick=True).to_dict()
        except (DataError, MissingDependency):
            result = ABSENT
        yield f"experiment/{name}/quick", result


def deep_methods() -> Iterator[tuple[str, Any]]:
    """Yield the results of twelve steps of every deep method on MNIST, with noise and without."""
    from sottovoce_papers.bayrooti2023.cells import METHODS, Cell, run_cell
    from sottovoce_papers.bayrooti2023.settings import settings_of

    for method in METHODS:
        for epsilon in (1.0, float("inf")):
            name = f"deep/{method}/epsilon{epsilon:g}"
            settings = replace(settings_of(method, epsilon, 0.39), steps=12)
            try:
                yield name, run_cell(Cell(method, epsilon, 0.39), 0, settings=settings)
            except (DataError, MissingDependency):
                yield name, ABSENT


# ---- contract cases -----------------------------------------------------------------------------------

RANDOMNESS = {
    "simulated": lambda: RunRandomness(SimulatedNoise(5), 11, 3),
    "keyed": lambda: RunRandomness(keyed(KEYS[1]), KEYS[0], 3),
}
VIEWS: dict[str, dict[str, Any]] = {
    "local": {},
    "outsider": {},
    "network": {},
    "pairwise": {"observer": 1, "user": 0},
    "colluders": {"colluders": (1, 2)},
    "any-two": {"colluders": 2},
    "central": {},
}


def contract() -> Iterator[tuple[str, Any]]:
    """Yield outputs and privacy costs of every contract case."""
    cases_module = load("tests/algorithms/cases.py")
    for case in cases_module.PLAIN:
        for adjacency in case.make.adjacencies:
            options = {"adjacency": adjacency}
            plan = case.plan(0.7, **options)
            yield from _outputs(f"{case}/{adjacency}", plan, cases_module.shards())
            yield from _costs(f"{case}/{adjacency}", plan)
            if adjacency != "user":
                sampled = case.plan(0.7, **options, batch_size=5)
                yield from _outputs(f"{case}/{adjacency}/sampled", sampled, cases_module.shards())
                yield from _costs(f"{case}/{adjacency}/sampled", sampled)
            try:
                objective, data = _net(cases_module)
            except ImportError:
                yield f"contract/{case}/{adjacency}/net", ABSENT
                continue
            network = case.plan(0.7, objective=objective, clip_norm=None, **options)
            yield from _outputs(f"{case}/{adjacency}/net", network, data)
    masked = next(case for case in cases_module.PLAIN if case.name == "consensus-sgd")
    plan = masked.plan(8.0, protocol="masked", adjacency="user")
    yield from _outputs("consensus-sgd/masked", plan, cases_module.shards())
    yield from _costs("consensus-sgd/masked", plan)
    for case in cases_module.OTHERS:
        plan = case.plan(case.noise)
        yield from _outputs(case.name.replace(" ", "-"), plan, case.data())
        yield from _costs(case.name.replace(" ", "-"), plan)


def _net(cases_module: Any) -> tuple[Any, Any]:
    import torch

    from sottovoce.data.agent_tensors import AgentData
    from sottovoce.objectives.nets.objective import NetObjective

    data = cases_module.shards()
    parts = [np.arange(data.offsets[v], data.offsets[v + 1]) for v in range(data.n)]
    agents = AgentData(data.X.astype(np.float32), (data.y > 0).astype(int), parts, classes=2)
    torch.manual_seed(0)
    return NetObjective(torch.nn.Linear(cases_module.P, 2), clip_norm=1.0), agents


def _outputs(name: str, plan: Any, data: Any) -> Iterator[tuple[str, Any]]:
    for kind, random in RANDOMNESS.items():
        try:
            with mock.patch("os.urandom", KnownBytes(KEYS[1])):  # noisy maximum: Laplace noise takes no key
                outputs = plan.run(data, random()).outputs
        except SottovoceError:
            yield f"contract/{name}/{kind}", "refused"
            continue
        for key, value in outputs.items():
            if isinstance(value, (np.ndarray, int, float)):
                yield f"contract/{name}/{kind}/{key}", value


def _costs(name: str, plan: Any) -> Iterator[tuple[str, Any]]:
    for view, about in VIEWS.items():
        word = "colluders" if view == "any-two" else view
        try:
            guarantee = plan.privacy(word, **about)
            cost: Any = float(guarantee.epsilon(1e-5))
        except SottovoceError:
            yield f"privacy/contract/{name}/{view}", "refused"
            continue
        yield f"privacy/contract/{name}/{view}", cost
        yield f"privacy/contract/{name}/{view}/label", guarantee.label


# ---- peers ----------------------------------------------------------------------------------------------


def peers() -> Iterator[tuple[str, Any]]:
    """Yield the final rows of peers in memory, with known run, run keys and mask keys."""
    from sottovoce.peers.agreement import Agreement
    from sottovoce.peers.run_keys import RunKeys
    from sottovoce.secure_sum.keys import MaskKey

    links, equivalence = load("tests/peers/conftest.py"), load("tests/peers/test_equivalence.py")
    for name, case in equivalence.CASES.items():
        # the words that seed a recorded run stay when a case is renamed
        words = name.replace("masked, batches", "masked, lots")
        run_id = hashlib.sha256(f"recorded run of {words}".encode()).digest()
        mask_keys = [MaskKey.from_bytes(hashlib.sha256(b"%d" % v).digest()) for v in range(case[0])]
        with (
            tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder,
            mock.patch.object(Agreement, "run_id", property(lambda self, run_id=run_id: run_id)),
            mock.patch.object(MaskKey, "fresh", side_effect=mask_keys),
        ):
            group = equivalence.agreed(name, lambda **options: links.Consortium(folder, **options))
            keys = [RunKeys(run_id, 0, hashlib.sha256(b"member %d" % v).digest()) for v in range(case[0])]
            outcomes = group.run(noises=keys, transport=links.MemoryLinks())
            label = name.replace(", ", "/").replace(" ", "-")
            yield f"peers/{label}", np.array([outcome.model for outcome in outcomes])
            for view in ("local", "network"):
                try:
                    cost = float(group.agreement.plan.privacy(view).epsilon(1e-5))
                except SottovoceError:
                    yield f"privacy/peers/{label}/{view}", "refused"
                    continue
                yield f"privacy/peers/{label}/{view}", cost
    yield from _simulated_peers()


def _simulated_peers() -> Iterator[tuple[str, Any]]:
    from verification.simulator import Faults, World, masked_shapes

    for seed in range(28):
        for kind, faults in (("calm", Faults.none()), ("faults", Faults(power=0.3, random_power=1))):
            world = World(seed, faults)
            world.run()
            yield f"peers/simulator/{kind}/seed{seed}", world.expected()
            counts = [world.counts[key] for key in ("rows", "bytes", "power", "events")]
            yield f"peers/simulator/{kind}/seed{seed}/counts", [*counts, len(world.violations)]
    for k, shape in enumerate(masked_shapes()):
        world = World(40 + k, Faults.none(), shape=shape)
        world.run()
        yield f"peers/simulator/masked{k}", world.expected()


# ---- benchmarks -----------------------------------------------------------------------------------------


def benchmark_figures() -> Iterator[tuple[str, Any]]:
    """Yield the names under which each benchmark reports figures: the keys of its dictionaries."""
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        if path.stem.startswith("_"):
            continue
        names = set()
        for node in ast.walk(ast.parse(path.read_text())):
            keys: list[ast.expr | None] = []
            if isinstance(node, ast.Dict):
                keys = node.keys
            elif isinstance(node, ast.Assign):
                keys = [target.slice for target in node.targets if isinstance(target, ast.Subscript)]
            names |= {
                key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
            }
        yield f"benchmark/{path.stem}", sorted(names)
