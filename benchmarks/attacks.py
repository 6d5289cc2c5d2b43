"""Reconstruction against plain row reduction, and ten thousand audited models; JSON with the targets.

    python -m benchmarks.attacks [line ...] [--models N]

Lines: ``ego414``, what each of the 148 nodes of Facebook's ego graph 414 reconstructs from ten rounds of
gossip, against row reduction in Python floats as one writes it down; ``models``, the time to train 10,000
audit models of three agents for 100 steps (DP-DSGD, batches of 32), against running the same plan model after
model (a few of them, scaled up). Both sides run in the same process.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import sottovoce as sv
from sottovoce.protocols import Gossip


def plain_row_reduction(rows: list[list[float]], tolerance: float = 1e-9) -> set[int]:
    """The rival: reduced row echelon form in Python floats; the columns whose unit vector is a row."""
    rows = [list(row) for row in rows]
    width, lead = len(rows[0]), 0
    for column in range(width):
        if lead == len(rows):
            break
        pivot = max(range(lead, len(rows)), key=lambda r: abs(rows[r][column]))
        if abs(rows[pivot][column]) < tolerance:
            continue
        rows[lead], rows[pivot] = rows[pivot], rows[lead]
        scale = rows[lead][column]
        rows[lead] = [x / scale for x in rows[lead]]
        for r in range(len(rows)):
            if r != lead and rows[r][column] != 0.0:
                factor = rows[r][column]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[lead], strict=True)]
        lead += 1
    determined = set()
    for row in rows[:lead]:
        large = [c for c, x in enumerate(row) if abs(x) > 1e-6]
        if len(large) == 1:
            determined.add(large[0])
    return determined


def ego414() -> dict[str, object]:
    from sottovoce.attacks.gossip import reconstructed_by_each
    from sottovoce_papers.bellet2024_decentralized import ego_414

    network, rounds = ego_414(), 10
    protocol = Gossip(network, rounds)
    reconstructed_by_each(Gossip(sv.graphs.path(4), 2))  # compile
    ours = []
    for _ in range(3):
        begin = time.perf_counter()
        answer = reconstructed_by_each(protocol)
        ours.append(time.perf_counter() - begin)
    powers = [np.eye(network.n)]
    for _ in range(rounds - 1):
        powers.append(network.W @ powers[-1])
    begin = time.perf_counter()
    plain = []
    for v in range(network.n):
        rows = [np.eye(network.n)[v].tolist()]
        rows += [power[w].tolist() for power in powers for w in network.neighbors(v)]
        plain.append(plain_row_reduction(rows) - {v})
    theirs = time.perf_counter() - begin
    floating = reconstructed_by_each(protocol, exact=False)
    pairs = list(zip(answer, floating, strict=True))
    return {
        "attackers": network.n, "rounds": rounds, "seconds": round(sorted(ours)[1], 3),
        "rival": "row reduction in Python floats", "rival_seconds": round(theirs, 2),
        "ratio": round(theirs / sorted(ours)[1], 1), "target_ratio": 20,
        "all_determined_nodes_have_h_1": all(set(a) <= set(b) for a, b in pairs),
        "nodes_within_1e-8_told_apart_by_exact_arithmetic": sum(len(set(b) - set(a)) for a, b in pairs),
        "attackers_the_rival_gets_wrong": sum(set(a) != b for a, b in zip(answer, plain, strict=True)),
        "mean_reconstructed": round(float(np.mean([len(a) for a in answer])), 2),
    }  # fmt: skip


def models(count: int = 10_000) -> dict[str, object]:
    from sottovoce.attacks.membership import digits_problem, train_models
    from sottovoce.data.agent_tensors import AgentData
    from sottovoce.data.images import load_images
    from sottovoce_papers.bayrooti2023.audit import make_plan
    from sottovoce_papers.bayrooti2023.small_net import SmallNet

    mnist = load_images("mnist")
    problem = digits_problem(mnist.x[:5000, 0] / 255.0, mnist.y[:5000])
    net, rng = SmallNet(), np.random.default_rng(0)
    start = net.initial(rng)
    plan = make_plan(
        "dp-dsgd", net, start, problem.sizes, steps=100, batch_size=32, epsilon=1.0, delta=1e-2, clip_norm=1.0
    )
    train_models(plan, net, problem, member=True, models=4, start=start, rng=rng)  # compile
    begin, cpu = time.perf_counter(), time.process_time()
    trained = train_models(plan, net, problem, member=True, models=count, start=start, rng=rng)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    images = problem.images.reshape(-1, 1, 14, 14).astype(np.float32)
    whole = AgentData(images, problem.labels.ravel(), np.arange(300).reshape(3, 100))
    begin = time.perf_counter()
    for _ in range(3):
        plan.run(whole, rng, start=start)
    one = (time.perf_counter() - begin) / 3
    scale = 10_000 / count
    return {
        "models": count, "agents": 3, "steps": 100, "network": "SmallNet, 195 parameters", "batch_size": 32,
        "seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1),
        "seconds_for_10000": round(scale * seconds, 1), "target_seconds": 300,
        "rival": "the same plan, model after model (3 runs, scaled)", "rival_seconds": round(one * 10_000, 0),
        "ratio": round(one * 10_000 / (scale * seconds), 1),
        "mean_loss": round(float(trained.losses.mean()), 4),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lines", nargs="*", choices=["ego414", "models", []], default=[])
    parser.add_argument("--models", type=int, default=10_000)
    options = parser.parse_args()
    beside = Path(__file__).parents[2] / "shared" / "data"
    if "SOTTOVOCE_DATA" not in os.environ and beside.is_dir():
        os.environ["SOTTOVOCE_DATA"] = str(beside)
    chosen = options.lines or ["ego414", "models"]
    record: dict[str, object] = {"cores": os.cpu_count(), "load_average": os.getloadavg()[0]}
    for line in chosen:
        print(f"{line} ...", file=sys.stderr, flush=True)
        record[line] = ego414() if line == "ego414" else models(options.models)
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
