"""Does the time of an answer tell how many records a member has? A curious neighbor's test.

    python -m verification.timing --rounds 200 --out docs/results/verification.json

Three peers on a path, the two outer ones real processes: one has 100 records, the other 200,000. The one in
the middle answers at once, whatever was agreed, and takes the time from its own row to theirs; with a pace
from the agreed moment to their rows, which is known better. After half of the rounds the outer two change
places, so that what else distinguishes them cancels. Without a pace the tests must tell the two apart; with
the agreed pace the same tests on as many answers must not, at p = .01 and in nine of ten runs. On a busy
machine `chrt -r 5` lets the peers run as on a quiet one; spans that were missed are not hidden.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from sottovoce.peers.agreement import read_agreement
from sottovoce.peers.identity import make_identity
from sottovoce.peers.member_data import Records
from sottovoce.peers.runtime import Peer, PeerConfig
from sottovoce.peers.transport import TlsTransport, TransportConfig
from sottovoce.peers.wire_format import ROW, FrameCodec
from verification import signed_agreement, store

FEW, MANY, DIM = 100, 200_000, 10
WARM = 8  # first rounds: connections are made, caches filled


def at_once(*arguments: Any, config: TransportConfig, **options: Any) -> TlsTransport:
    """A transport without a pace."""
    return TlsTransport(*arguments, config=config._replace(pace=None), **options)


class Curious(Peer):
    """A member that answers at once and looks at the clock."""

    def __init__(self, config: PeerConfig, rounds: int) -> None:
        super().__init__(replace(config, transport=at_once))
        self.sent_at = 0.0
        self.wanted = rounds
        self.times: dict[int, list[float]] = {v: [] for v in (0, 2)}
        self.waiting: set[int] = set()
        # what is agreed binds honest members; whoever wants to know does not wait
        self.pace = self.agreement.timing.pace
        timing = self.agreement.timing.model_copy(update={"pace": None})
        self.agreement = self.agreement.model_copy(update={"timing": timing})

    def _send(self, out: list[tuple[int, bytes]]) -> None:
        super()._send(out)
        if any(FrameCodec.kind_of(raw) == ROW for _, raw in out):
            self.sent_at, self.waiting = time.monotonic(), {0, 2}

    def _deliver(self, sender: int, raw: bytes) -> None:
        if FrameCodec.kind_of(raw) == ROW and sender in self.waiting:
            self.waiting.discard(sender)
            now = time.monotonic()
            if self.pace is not None:
                self.sent_at = now - (now - self._spans_from - self.pace / 2) % self.pace
            self.times[sender].append(now - self.sent_at)
        super()._deliver(sender, raw)
        if min(map(len, self.times.values())) >= self.wanted:
            self.stop()


def answers(sizes: tuple[int, int], pace: float | None, rounds: int) -> tuple[list[float], list[float], int]:
    """Return the answer times of the two outer members, and how often one missed its span."""
    folder = Path(tempfile.mkdtemp(prefix="sottovoce-pace-"))
    own = [make_identity(folder / f"m{i}", f"m{i}") for i in range(3)]
    draft = {
        "title": "answer times", "graph": "path:3",
        "algorithm": {"name": "dp-dsgd", "protocol": "gossip:1", "steps": 100_000, "learning_rate": 0.1,
                      "adjacency": "user", "clip_norm": 1.0, "noise_multiplier": 3000.0},
        "model": {"kind": "logistic", "parameters": DIM},
        "timing": {"witness": 100_000, **({} if pace is None else {"pace": pace})},
    }  # fmt: skip
    file = signed_agreement(folder, draft, own)
    rng = np.random.default_rng(0)
    processes = []
    for node, size in zip((0, 2), sizes, strict=True):
        data = folder / f"data{node}.npz"
        np.savez(data, X=rng.standard_normal((size, DIM)), y=rng.choice([-1.0, 1.0], size))
        words = ["run", file, "--identity", folder / f"m{node}", "--data", data, "--state",
                 folder / f"s{node}", "--json", "--log-level", "debug"]  # fmt: skip
        with (folder / f"log{node}").open("w") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "sottovoce.cli.main", "peer", *map(str, words)], stdout=log,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
            )  # fmt: skip
    records = Records(rng.standard_normal((FEW, DIM)), rng.choice([-1.0, 1.0], FEW))

    async def look() -> Curious:
        peer = Curious(PeerConfig(read_agreement(file), own[1], records, folder / "s1"), rounds + WARM)
        await asyncio.gather(peer.run(), return_exceptions=True)
        return peer

    try:
        peer = asyncio.run(look())
    finally:
        for process in processes:
            process.terminate()
            process.wait(timeout=120)
    late = sum((folder / f"log{node}").read_text().count('"event": "pace"') for node in (0, 2))
    first, last = (peer.times[node][WARM : WARM + rounds] for node in (0, 2))
    return first, last, late


def compared(pace: float | None, rounds: int) -> dict[str, Any]:
    """Return whether the answer times of few and of many records come from one distribution."""
    few, many, late = [], [], 0
    for turn in range(2):
        sizes = (FEW, MANY) if turn == 0 else (MANY, FEW)
        first, last, missed = answers(sizes, pace, rounds // 2)
        few += first if turn == 0 else last
        many += last if turn == 0 else first
        late += missed
    return {
        "pace": pace,
        "answers": [len(few), len(many)],
        "median_seconds": {str(FEW): statistics.median(few), str(MANY): statistics.median(many)},
        "kolmogorov_smirnov_p": float(stats.ks_2samp(few, many).pvalue),
        "mann_whitney_p": float(stats.mannwhitneyu(few, many).pvalue),
        "area_under_curve": float(stats.mannwhitneyu(many, few).statistic) / (len(few) * len(many)),
        "spans_missed": late,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--pace", type=float, default=0.5)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    tests = ("kolmogorov_smirnov_p", "mann_whitney_p")
    words = f"--rounds {arguments.rounds} --pace {arguments.pace:g} --runs {arguments.runs}"
    record: dict[str, Any] = {
        "command": f"python -m verification.timing {words}",
        "without": compared(None, arguments.rounds),
        "with": [],
    }
    for _ in range(arguments.runs):
        record["with"].append(compared(arguments.pace, arguments.rounds))
        record["load"] = os.getloadavg()[0]
        record["alike"] = sum(min(run[test] for test in tests) > 0.01 for run in record["with"])
        if arguments.out is not None:
            store(arguments.out, "timing", record)
        print(json.dumps(record["with"][-1]), file=sys.stderr, flush=True)
    print(json.dumps(record, indent=1))
    apart = max(record["without"][test] for test in tests) < 1e-6
    return 0 if apart and record["alike"] >= 0.9 * arguments.runs else 1


if __name__ == "__main__":
    sys.exit(main())
