"""Runs over slow networks: is the number of frames per row bounded, however long a frame travels?

    python -m verification.slow_hops --worlds 2000 --out docs/results/verification.json

Every world draws a consortium, the time of a hop, of a step, a pace and the interval of signed heads; half of
the worlds also lose and duplicate messages and cut the power. For every row a member may send at most
`PER_ROW` frames to each neighbor, and as many for every head that must reach all (one of each member in an
interval); for every start, `PER_START`, and as many whenever the time of a hop doubles, which nobody knows
before the first rows.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sottovoce import graphs, protocols
from sottovoce.peers.core import Timing
from verification import store
from verification.simulator import Faults, Shape, World, masked_shapes, shapes

PER_ROW, PER_START = 6.0, 50.0


def share_of_bound(world: World) -> float:
    """Return the frames of a world as a share of what its rows and starts may take.

    Rows of 32 members with the default interval of heads take twice `PER_ROW` for each neighbor.

    Examples
    --------
    >>> world = World(1, Faults.none())
    >>> world.run()
    >>> share_of_bound(world) < 1
    True
    """
    degree = sum(len(core.program.contacts) for core in world.cores.values() if core is not None) / world.n
    per_row = PER_ROW * (1 + world.n / world.timing.witness)
    per_start = PER_START * (1 + math.log2(1 + world.faults.hop))
    return sum(world.frames.values()) / (degree * (per_row * len(world.on_wire) + per_start * world.starts))


class Draw(NamedTuple):
    """What one world is like."""

    shape: Shape
    faults: Faults
    witness: int
    step_seconds: float
    pace: float


def draw(seed: int) -> Draw:
    """Return the description of one world."""
    rng = np.random.default_rng((seed, 11))
    larger = (
        Shape(protocols.Gossip(graphs.complete(6), 1), 40, 2),
        Shape(protocols.Gossip(graphs.ring(10), 1), 40, 1),
    )
    every = shapes() + masked_shapes() + larger
    hop = float(rng.choice([0.0, 0.3, 1.0, 3.0, 20.0]))
    faulty = seed % 2 == 1
    faults = (
        Faults(drop=0.05, duplicate=0.05, delay=0.05, hop=hop) if faulty else Faults.none()._replace(hop=hop)
    )
    step_seconds, pace = ((0.0, 0.0), (1.5, 0.0), (0.0, 0.5), (0.0, 1.2))[rng.integers(4)]
    return Draw(every[seed // 2 % len(every)], faults, int(rng.choice([2, 8, 32])), step_seconds, pace)


def lived(seed: int) -> World:
    """Return a world that has ended."""
    shape, faults, witness, step_seconds, pace = draw(seed)
    world = World(
        seed, faults, shape=shape, timing=Timing(give_up=1e9, witness=witness), horizon=1e7,
        step_seconds=step_seconds, pace=pace,
    )  # fmt: skip
    world.run(most_events=200_000)
    return world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--worlds", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    started, counts, most = time.time(), Counter[str](), 0.0
    for seed in range(arguments.worlds):
        world = lived(seed)
        counts["violations"] += len(world.violations)
        counts["not_finished"] += not world.finished
        counts["rows"] += len(world.on_wire)
        counts["frames"] += sum(world.frames.values())
        most = max(most, share_of_bound(world))
        counts["beyond_the_bound"] += share_of_bound(world) > 1
    record = {
        "command": f"python -m verification.slow_hops --worlds {arguments.worlds}",
        "worlds": arguments.worlds,
        "bound": {"frames_per_row_and_neighbor": PER_ROW, "frames_per_start_and_neighbor": PER_START},
        **counts,
        "largest_share_of_the_bound": round(most, 3),
        "seconds": round(time.time() - started),
    }
    text = json.dumps(record, indent=1)
    if arguments.out is not None:
        store(arguments.out, "slow-hops", record)
    print(text)
    sys.exit(bool(counts["violations"] + counts["not_finished"] + counts["beyond_the_bound"]))


if __name__ == "__main__":
    main()
