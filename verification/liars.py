"""Rolled-back state folders with lying members: is a row ever sent twice while somebody honest remembers?

    python -m verification.liars --worlds 2000 --out docs/results/verification.json

In every world one member's folder is set back, together with k of the others, who know it and keep back or
hand on what honest members have signed, as it suits them. With `witness = 1` a row leaves only when all
members hold the head of the ledger that lists it: then no second version may leave while one is honest and
not set back. With larger values an honest member who got the first version must notice the second. Where all
others lie nothing can be known; that is counted too.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

from verification import store
from verification.simulator import Faults, World, masked_shapes, shapes

FAULTS = Faults(delay=0.1, drop=0.02, partitions=0, power=0.02, random_power=0, rollback=1.0)


def lived(seed: int, witness: int) -> tuple[World, bool]:
    """Return a world that has ended, and whether somebody honest was left beside the one set back."""
    every = shapes() + masked_shapes()
    shape = every[seed % len(every)]
    liars = (seed // len(every)) % shape.protocol.n
    world = World(seed, FAULTS, shape=shape, witness=witness, liars=liars)
    world.run(most_events=6000)
    return world, liars < shape.protocol.n - 1


def count(worlds: range, witness: int) -> dict[str, int]:
    """Return how many folders were set back, and what came of it."""
    counts: Counter[str] = Counter()
    for seed in worlds:
        world, honest = lived(seed, witness)
        counts["violations"] += len(world.violations)
        if world._copied < 0:
            continue
        who = "honest" if honest else "all_lie"
        counts[f"{who}_set_back"] += 1
        counts[f"{who}_noticed"] += world.noticed
        counts[f"{who}_sent_twice"] += world.twice > 0
        unnoticed = world.twice > 0 and not world.noticed
        counts[f"{who}_sent_twice_unnoticed"] += unnoticed
        counts[f"{who}_sent_twice_unnoticed_by_a_receiver"] += unnoticed and world.received_twice
    return dict(counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--worlds", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    started, half = time.time(), arguments.worlds // 2
    strict, usual = count(range(half), 1), count(range(half, arguments.worlds), 8)
    record = {
        "command": f"python -m verification.liars --worlds {arguments.worlds}",
        "worlds": arguments.worlds,
        "witness_1": strict,
        "witness_8": usual,
        "seconds": round(time.time() - started),
    }
    text = json.dumps(record, indent=1)
    if arguments.out is not None:
        store(arguments.out, "liars", record)
    print(text)
    failed = strict["honest_sent_twice"] + usual["honest_sent_twice_unnoticed_by_a_receiver"]
    sys.exit(bool(failed + strict["violations"] + usual["violations"]))


if __name__ == "__main__":
    main()
