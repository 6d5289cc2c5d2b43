"""Masked sums over two membership versions: what a coalition learns against what is charged.

A member leaves in the middle of a step, which is repeated without it under new keys. The loss of every honest
member is computed from the bytes that were sent and from the keys of the coalition, and must be what the rule
"every attempt of a step is charged in full" charges. `tests/verification/test_charges.py` runs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import sottovoce as sv
from sottovoce.noise.grid import sum_of_rows
from sottovoce.protocols import Masked
from sottovoce.secure_sum.keys import MaskKey, mask_label, next_chain
from sottovoce.secure_sum.masks import Keystream, PairMasks, step_key

DELTA, CURATOR = 1.0, 3.0  # how far one member's row may move, and the curator's noise


class World:
    """A run of masked sums that breaks once, because a member leaves; ``bug`` breaks one of the rules.

    The coalition has every byte that was sent and the keys of its members, also the leaver's where it hands
    them over. Every attempt of a step is charged in full, with the noise of its own members.
    """

    def __init__(self, seed: int, bug: str | None = None) -> None:
        self.rng = np.random.default_rng([41, seed])
        self.bug, self.run_id = bug, self.rng.bytes(32)
        n = int(self.rng.integers(5, 8))
        self.c = int(self.rng.integers(1, 3))
        self.names = [f"m{v}" for v in range(n)]
        self.clean = self.rng.integers(-50, 50, (3, n, 2))  # by step
        self.steps = int(self.rng.integers(1, 4))
        self.broken = int(self.rng.integers(self.steps))
        self.leaver = int(self.rng.integers(n))
        hands_over = bool(self.rng.integers(2))
        others = [v for v in range(n) if v != self.leaver]
        many = self.c - hands_over if bug != "the leaver is not counted" else self.c
        self.coalition = set(self.rng.choice(others, many, replace=False).tolist())
        self.coalition |= {self.leaver} if hands_over else set()
        self.wire: list[Any] = []  # (version, step, members, masks, chain before, rows as sent)
        self.noise: dict[tuple[int, ...], Any] = {}
        self.pads: dict[tuple[int, int, int, int], np.ndarray] = {}
        self.charged = np.zeros(n)

    def play(self) -> World:
        everybody = list(range(len(self.names)))
        chain = self.sum_rows(0, everybody, range(self.broken + 1), self.run_id)
        stayed = [v for v in everybody if v != self.leaver]
        self.sum_rows(1, stayed, range(self.broken, self.steps), chain)
        return self

    def sum_rows(self, version: int, members: list[int], steps: range, chain: bytes) -> bytes:
        """Sum over the members' own keys; return the chain before the last of ``steps``, which may break."""
        protocol = Masked(sv.graphs.complete(len(members)), partners=self.c + 1, tolerate=self.c)
        keys = [MaskKey.simulated(int(self.rng.integers(2**40)), v) for v in members]
        publics, names = [key.public for key in keys], [self.names[v] for v in members]
        masks = [
            PairMasks.agree(
                key,
                i,
                names,
                publics,
                protocol.partners(i),
                run_id=self.run_id,
                membership_version=version,
                step=steps[0],
            )
            for i, key in enumerate(keys)
        ]
        share = CURATOR / np.sqrt(len(members) - self.c)
        for step in steps:
            rows = [
                masks[i].hide(self.row(version, step, v, share), step, chain) for i, v in enumerate(members)
            ]
            before = chain
            self.wire.append((version, step, members, protocol, masks, chain, np.array(rows)))
            self.pads_of(masks, version, step, chain)
            total = sum_of_rows(np.array(rows))
            expected = sum(self.row(version, step, v, share) for v in members)
            assert (total == expected).all(), "masks of one version cancel"
            chain = next_chain(chain, step, total)
            breaks = version == 0 and step == self.broken
            for v in members:
                if not (breaks and self.bug == "a broken step is not charged"):
                    self.charged[v] += DELTA**2 / CURATOR**2
            for each in masks:
                each.ratchet()
        return before if version == 0 else chain

    def row(self, version: int, step: int, v: int, share: float) -> np.ndarray:
        """The integer row of one attempt; its noise is a function of member and label."""
        label = (v, step) if self.bug == "noise without the version" else (v, version, step)
        if label not in self.noise:
            whole = np.rint(1000 * share * self.rng.standard_normal(2)).astype(np.int64)
            self.noise[label] = (len(self.noise), whole, share)
        return 1000 * self.clean[step, v] + self.noise[label][1]

    def pads_of(self, masks: list[PairMasks], version: int, step: int, chain: bytes) -> None:
        """Keep the pads that members of the coalition can make, before keys move on."""
        label = mask_label(self.run_id, version, step, chain)
        members = self.wire[-1][2]
        for i, v in enumerate(members):
            for j in masks[i].partners if v in self.coalition else ():
                pad = Keystream(step_key(masks[i]._keys[j], label), 64).take(2)
                self.pads[version, step, members[j], v] = pad if j < i else -pad  # as the partner added it

    def seen(self) -> list[tuple[int, int, list[int], np.ndarray]]:
        """Return, per attempt and honest component, its members and the sum that the bytes give away."""
        sums_seen = []
        for version, step, members, protocol, _, _, rows in self.wire:
            inside = [i for i, v in enumerate(members) if v in self.coalition]
            for block in protocol.blocks(inside):
                total = np.zeros(2, np.uint64)
                for i in block:
                    total += rows[i].view(np.uint64)
                    for w in self.coalition:
                        total -= self.pads.get((version, step, members[i], w), np.uint64(0))
                sums_seen.append((version, step, [members[i] for i in block], total.view(np.int64)))
        return sums_seen

    def losses(self) -> dict[int, float]:
        """Return mu^2 about every honest member from what was seen, exactly: gaps against covariances."""
        seen = self.seen()
        loads = np.zeros((len(seen), len(self.noise)))
        gaps = np.zeros((len(self.names), len(seen)))
        for k, (version, step, block, total) in enumerate(seen):
            true = sum(self.row(version, step, v, 0.0) for v in block)
            assert (total == true).all(), "the coalition is left with the sum of a component"
            for v in block:
                label = (v, step) if self.bug == "noise without the version" else (v, version, step)
                place, _, share = self.noise[label]
                loads[k, place], gaps[v, k] = share, DELTA
        covariance = loads @ loads.T
        inverse = np.linalg.pinv(covariance, rcond=1e-10)
        losses = {}
        for v in sorted(set(range(len(self.names))) - self.coalition):
            rest = gaps[v] - covariance @ (inverse @ gaps[v])
            losses[v] = np.inf if np.abs(rest).max() > 1e-6 else float(gaps[v] @ inverse @ gaps[v])
        return losses


def excess(worlds: Iterable[int], bug: str | None = None) -> tuple[float, float]:
    """Return by how much the worst loss of the worlds exceeds its charge, and how tight the charge is."""
    worst, tightest = -np.inf, 0.0
    for seed in worlds:
        world = World(seed, bug).play()
        for v, loss in world.losses().items():
            worst = max(worst, loss - world.charged[v])
            tightest = max(tightest, loss / max(world.charged[v], 1e-9))
    return worst, tightest
