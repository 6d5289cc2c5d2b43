"""What masks cost: against the step they belong to, against bare AES, and in rounds of real peers.

    python -m benchmarks.masks [line ...]

Lines: ``step``, masking one row of 38,424 parameters for nine partners beside the rest of a member's step:
the gradient of the network of Bayrooti et al. 2023 on a batch of 256, by hand or as any network's, with its
noise on the grid, and the whole step as its plan computes it (batch, gradient, noise, grid, update, chain);
``million``, a million parameters and 50 partners beside the same bytes of AES-256-CTR alone; ``peers``,
steps a second of four members who learn over a tree with masks and without. Ours and the rival take turns;
times are medians, of processor seconds where one thread computes (other work on the machine does not count),
of rounds by the clock for peers.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import free_ports, print_lines
from sottovoce.noise.grid import grid_noise, mask_grid
from sottovoce.secure_sum.masks import PairMasks, simulated_masks

CHAIN = bytes(32)


def medians(forms: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Run the forms in turn and return the median processor seconds of each."""
    times: dict[str, list[float]] = {name: [] for name in forms}
    for turn in range(repeats + 2):
        for name, form in forms.items():
            begin = time.process_time()
            form()
            if turn > 1:
                times[name].append(time.process_time() - begin)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def masks_of(partners: int, bits: int) -> PairMasks:
    """The masks of member 0 among ``partners`` others."""
    import sottovoce as sv

    members = sv.protocols.Masked(sv.graphs.complete(partners + 1), partners=partners, tolerate=1)
    return simulated_masks(members, seed=1, bits=bits)[0]


def step(dim: int = 38_424, partners: int = 9, batch_size: int = 256) -> dict[str, Any]:
    import torch

    from sottovoce.objectives.nets.objective import NetObjective
    from sottovoce.objectives.nets.zoo import bayrooti_mnist
    from sottovoce_papers.bayrooti2023.objective import BayrootiObjective

    torch.set_num_threads(1)
    objective, generic = BayrootiObjective(clip_norm=1.0), NetObjective(bayrooti_mnist(), clip_norm=1.0)
    theta = objective.random_init(np.random.default_rng(0), 1)
    x, y = torch.randn(1, batch_size, 1, 32, 32), torch.zeros(1, batch_size, dtype=torch.long)
    grid = mask_grid(
        bound=1.0, sensitivity=1.0 / batch_size, noise_std=[3.0 / batch_size] * 10, dim=dim, steps=2000
    )
    row, masks = np.zeros(dim, grid.dtype), masks_of(partners, grid.bits)
    seconds = medians(
        {
            "masks": lambda: masks.hide(row, 0, CHAIN),
            "whole_step": whole_step(objective, batch_size),
            "gradient": lambda: objective.clipped_sums(theta, x, y),
            "gradient_of_any_network": lambda: generic.clipped_sums(theta, x, y),
            "noise": lambda: grid_noise(dim, grid.widths[0]),
        },
        9,
    )
    return {
        **seconds,
        "ratio": seconds["masks"] / (seconds["gradient_of_any_network"] + seconds["noise"]),
        "ratio_to_the_whole_step": seconds["masks"] / seconds["whole_step"],
        "ratio_to_the_hand_written_gradient": seconds["masks"] / (seconds["gradient"] + seconds["noise"]),
        "target": "below 0.05",
        "rival": "gradient and noise of the same step, one thread",
    }


def whole_step(objective: Any, batch_size: int, records: int = 6000) -> Callable[[], object]:
    """One member's step without masks, with the hand-written gradient and protective noise."""
    import sottovoce as sv
    from sottovoce.data.agent_tensors import AgentData
    from sottovoce.noise.run_randomness import RunRandomness
    from sottovoce.secure_sum.keys import next_chain

    plan = sv.algorithms.ConsensusSGD(
        objective, "masked", network="ring:10", steps=2000, clip_norm=1.0, noise_multiplier=3.0,
        sizes=[records] * 10, batch_size=batch_size, learning_rate=0.5,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    x = rng.standard_normal((records, 1, 32, 32), dtype=np.float32)
    data = objective.prepared(AgentData(x, rng.integers(0, 10, records), [np.arange(records)]))
    source = plan.mechanism(data, [0], RunRandomness.from_rng(sv.privacy.ProtectiveNoise()))
    rule = plan.algorithm(source, objective.random_init(rng, 1))
    state, taken = rule.init(), iter(range(plan.steps))
    assert plan.grid is not None
    grid = plan.grid

    def one() -> None:
        nonlocal state
        k = next(taken)
        whole = grid.place(np.asarray(rule.message(state, k)[0], np.float64))
        next_chain(CHAIN, k, whole)
        state = rule.update(state, grid.mean(whole)[None], k)

    return one


def million(dim: int = 1_000_000, partners: int = 50) -> dict[str, Any]:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    row, masks = np.zeros(dim, np.int32), masks_of(partners, 32)
    zeros = bytes(4 * dim)

    def bare() -> None:
        for _ in range(partners):
            Cipher(algorithms.AES(bytes(32)), modes.CTR(bytes(16))).encryptor().update(zeros)

    seconds = medians({"masks": lambda: masks.hide(row, 0, CHAIN), "aes": bare}, 5)
    return {
        **seconds,
        "ratio": seconds["masks"] / seconds["aes"],
        "target": "masks below 0.2 s",
        "rival": "AES-256-CTR of the same bytes, cryptography",
    }


def peers(n: int = 4, dim: int = 10_000, steps: int = 60, turns: int = 3) -> dict[str, Any]:
    """Steps a second over the same tree, with masks and without, in turns."""
    rates: dict[str, list[float]] = {"masked": [], "tree": []}
    for _ in range(turns):
        for protocol in rates:
            rates[protocol].append(_rate(protocol, n, dim, steps))
    medians_by_name = {name: statistics.median(values) for name, values in rates.items()}
    pairs = [a / b for a, b in zip(rates["masked"], rates["tree"], strict=True)]
    return {
        **{f"{name}_steps_per_second": rate for name, rate in medians_by_name.items()},
        "ratio": statistics.median(pairs),
        "target": "at least 0.9",
        "rival": "the same tree without masks",
    }


def _rate(protocol: str, n: int, dim: int, steps: int) -> float:
    from sottovoce.peers.agreement import member_entry, sign_agreement, write_agreement
    from sottovoce.peers.identity import make_identity

    folder = Path(tempfile.mkdtemp())
    own = [make_identity(folder / f"m{i}", f"m{i}") for i in range(n)]
    draft = {
        "version": 1,
        "title": protocol,
        "graph": f"ring:{n}",
        "algorithm": {
            "name": "consensus-sgd",
            "protocol": protocol,
            "adjacency": "user",
            "clip_norm": 1.0,
            "steps": steps,
            "noise_multiplier": 40.0,
            "learning_rate": 0.1,
        },
        "model": {"kind": "logistic", "parameters": dim},
        "budget": {"epsilon": 50.0, "delta": 1e-5},
    }
    file = folder / "agreement.toml"
    entries = [member_entry(i.certificate, f"127.0.0.1:{p}") for i, p in zip(own, free_ports(n), strict=True)]
    write_agreement(file, draft, entries)
    for i, each in enumerate(own):
        sign_agreement(file, each, folder / f"m{i}")
    rng = np.random.default_rng(0)
    np.savez(folder / "data.npz", X=rng.standard_normal((8, dim)), y=np.arange(8) % 2)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "sottovoce.cli.main", "peer", "run", str(file), "--json", "--identity",
             str(folder / f"m{i}"), "--data", str(folder / "data.npz"), "--state", str(folder / f"s{i}")],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for i in range(n)
    ]  # fmt: skip
    seen: list[tuple[int, float]] = []
    assert processes[0].stdout is not None
    for line in processes[0].stdout:
        event = json.loads(line)
        if event["event"] == "round":
            seen.append((event["at"], time.perf_counter()))
    for process in processes:
        process.communicate(timeout=120)
    if any(process.returncode for process in processes):
        raise SystemExit(f"a member of the {protocol} run failed: {[p.returncode for p in processes]}")
    (first, begin), (last, end) = seen[len(seen) // 5], seen[-1]
    return (last - first) / (end - begin)


LINES = {"step": step, "million": million, "peers": peers}


if __name__ == "__main__":
    print_lines(LINES, sys.argv[1:])
