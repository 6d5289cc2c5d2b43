"""First outputs of every sampler, Poisson draw and mask for fixed keys."""

from __future__ import annotations

import hmac
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np

import sottovoce as sv
from sottovoce.data import partition
from sottovoce.data.poisson_sampling import PoissonSampler
from sottovoce.noise import discrete as noise_discrete
from sottovoce.noise import grid as noise_grid
from sottovoce.noise import samplers as noise_samplers
from sottovoce.noise.correlated import PairSharedNoise, TimeCorrelatedNoise, mafalda
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.peers.run_keys import RunKeys
from sottovoce.secure_sum import keys as keys_module
from sottovoce.secure_sum import masks

KEYS = (bytes(32), bytes(range(32)))


def keyed(key: bytes) -> noise_samplers.KeyedNoise:
    """Return protective noise that is a function of a known key."""
    return noise_samplers.KeyedNoise(lambda label: hmac.digest(key, label, "sha256"))


def samplers() -> Iterator[tuple[str, Any]]:
    """Yield the cases of this module."""
    for part in (_noise, _lots, _masks, _run_keys, _public_draws):
        for name, value in part():
            yield f"sampler/{name}", value


def _noise() -> Iterator[tuple[str, Any]]:
    rows = np.linspace(-1, 1, 3 * 8).reshape(3, 8)
    wide = np.linspace(-1, 1, 2 * 300).reshape(2, 300)
    where: dict[str, Any] = {"agents": [0, 5, 9], "step": 4, "std": np.array([0.5, 1.0, 2.0]), "stream": 1}
    pair = where | {"agents": [0, 5], "std": 1.5}
    for seed in (0, 7, 2**40 + 1):
        source = noise_samplers.SimulatedNoise(seed)
        yield f"simulated/seed{seed}/short", source.perturb(rows, **where)
        yield f"simulated/seed{seed}/long", source.perturb(wide, **pair)
        yield f"simulated/seed{seed}/float32", source.perturb(rows.astype(np.float32), **where)
        yield f"simulated/seed{seed}/long-float32", source.perturb(wide.astype(np.float32), **pair)
        steps = noise_samplers.perturb_steps(source, rows, agent=3, step=6, std=0.7, stream=2)
        yield f"simulated/seed{seed}/steps", steps
        network = sv.graphs.ring(10)
        yield f"pair-shared/seed{seed}", PairSharedNoise(source, network, 2.0).perturb(rows, **where)
        correlated = TimeCorrelatedNoise(source, mafalda(network, 6))
        yield f"time-correlated/seed{seed}", correlated.perturb(rows, **where)
        random = RunRandomness.from_rng(np.random.default_rng(seed))
        yield f"run/seed{seed}", [random.batches, random.start_seed]
        yield f"run/seed{seed}/noise", random.noise.perturb(rows, **where)
        yield f"run/seed{seed}/draws", random.draws(3, 1).integers(2**60, size=50)
    grid = noise_grid.mask_grid(bound=1.0, sensitivity=2.0, noise_std=[5.0, 7.0, 9.0], dim=8, steps=3)
    hosted = {0: (0, 1.0), 5: (1, 2.0), 9: (2, 1.0)}
    on_grid = where | {"std": np.array([5.0, 7.0, 9.0])}
    for k, key in enumerate(KEYS):
        yield f"discrete-gaussian/key{k}", noise_discrete.discrete_gaussian(70_000, key)
        yield f"grid/key{k}", noise_grid.grid_noise(5000, grid.widths[1], key)
        yield f"keyed/key{k}", keyed(key).perturb(rows, **where)
        yield f"keyed/key{k}/float32", keyed(key).perturb(rows.astype(np.float32), **where)
        steps = noise_samplers.perturb_steps(keyed(key), rows, agent=3, step=6, std=0.7, stream=2)
        yield f"keyed/key{k}/steps", steps
        yield f"common-grid/key{k}", noise_grid.GridNoise(keyed(key), grid, hosted).perturb(rows, **on_grid)
        random = RunRandomness(keyed(key), key, 0)
        yield f"run/key{k}/draws", random.draws(3, 1).integers(2**60, size=50)
        # these two take no key: the operating system's bytes are replaced by known ones
        with mock.patch("os.urandom", KnownBytes(key)):
            yield f"discrete-laplace/key{k}", noise_discrete.discrete_laplace(400)
        with mock.patch("os.urandom", KnownBytes(key)):
            yield f"protective/key{k}", noise_samplers.ProtectiveNoise().perturb(rows, **where)
        with mock.patch("os.urandom", KnownBytes(key)):
            source = noise_grid.GridNoise(noise_samplers.ProtectiveNoise(), grid, hosted)
            yield f"common-grid/system/key{k}", source.perturb(rows, **on_grid)
    yield "grid/widths", list(grid.widths)
    yield (
        "grid/facts",
        [
            grid.spacing,
            grid.bits,
            grid.bound,
            grid.checks,
            grid.range,
            grid.spacing * math.sqrt(grid.dim) / 2,
        ],
    )
    yield (
        "slack",
        [
            noise_samplers.ProtectiveNoise().slack(1000, 1.5),
            noise_grid.GridNoise(keyed(KEYS[0]), grid, hosted).slack(8),
        ],
    )


class KnownBytes:
    """Bytes in place of the operating system's: a function of a key and of how many were taken."""

    def __init__(self, key: bytes) -> None:
        self.key, self.count = key, 0

    def __call__(self, size: int) -> bytes:
        self.count += 1
        blocks = -(-size // 32)
        label = self.count.to_bytes(8, "little")
        return b"".join(
            hmac.digest(self.key, label + block.to_bytes(8, "little"), "sha256") for block in range(blocks)
        )[:size]


def _lots() -> Iterator[tuple[str, Any]]:
    sizes, rates = [40, 300, 20_000, 9000], [0.5, 0.05, 0.01, 1.0]
    for label, key in (("0", 0), ("11", 11), ("secret0", KEYS[0]), ("secret1", KEYS[1])):
        batches = PoissonSampler(sizes, rates, key, numbers=[3, 1, 4, 8])
        for step, stream in ((0, 0), (9, 0), (9, 2)):
            for place, rows in enumerate(batches.draw(range(4), step, stream)):
                yield f"poisson/key-{label}/step{step}/stream{stream}/agent{place}", rows


def _masks() -> Iterator[tuple[str, Any]]:
    run_id, chain = bytes(range(32)), bytes(reversed(range(32)))
    names = [f"m{v}" for v in range(4)]
    keys = [keys_module.MaskKey.simulated(5, v) for v in range(4)]
    publics = [key.public for key in keys]
    session = keys_module.session_hash(run_id, 2, dict(zip(names, publics, strict=True)))
    yield "mask/publics", b"".join(publics)
    yield "mask/session", session
    yield "mask/pair-key", keys_module.pair_key(keys[0], "m0", "m3", publics[3], session)
    yield "mask/label", keys_module.mask_label(run_id, 2, 7, chain)
    yield "mask/chain", keys_module.next_chain(chain, 7, np.arange(5))
    for bits, dtype in ((32, np.int32), (64, np.int64)):
        yield f"mask/keystream/{bits}", masks.Keystream(run_id, bits).take(100)
        members = [
            masks.PairMasks.agree(
                key,
                v,
                names,
                publics,
                [w for w in range(4) if w != v],
                run_id=run_id,
                membership_version=2,
                bits=bits,
            )
            for v, key in enumerate(keys)
        ]
        row = np.arange(-4, 4).astype(dtype)
        for turn in (0, 1):
            for v, member in enumerate(members):
                yield f"mask/row/{bits}/step{turn}/member{v}", member.hide(row, turn, chain)
                member.ratchet()
    protocol = sv.protocols.Masked(sv.graphs.ring(6), tolerate=2)
    for v, member in enumerate(masks.simulated_masks(protocol, 3, run_id=run_id)):
        yield f"mask/simulated/member{v}", member.hide(np.arange(6, dtype=np.int64), 0, chain)


def _run_keys() -> Iterator[tuple[str, Any]]:
    for k, key in enumerate(KEYS):
        keys = RunKeys(bytes(range(32)), 1, key)
        for turn in range(3):
            yield f"run-key/key{k}/turn{turn}/sampling", keys.batches
            row = keys.noise.perturb(np.linspace(0, 1, 6)[None], agents=[2], step=turn, std=1.0)
            yield f"run-key/key{k}/turn{turn}/noise", row
            keys.received(row.tobytes())
            keys.turn_over()
            row = keys.round_noise.perturb(np.linspace(0, 1, 6)[None], agents=[2], step=turn, std=1.0)
            yield f"run-key/key{k}/turn{turn}/rounds", row


def _public_draws() -> Iterator[tuple[str, Any]]:
    graphs = (
        "er:40:1.5:seed=3", "geometric:40:0.4:seed=3", "regular:40:4:seed=3",
        "ring:7", "hypercube:4", "florentine", "grid:4:5", "star:6", "path:6", "complete:5",
        "random:10:0.39:seed=1", "torus:3:4", "exponential:8", "karate",
    )  # fmt: skip
    for name in graphs:
        network = sv.graphs.parse(name)
        yield f"graph/{name}/edges", np.asarray(network.edges, np.int64)
        yield f"graph/{name}/weights", network.W.toarray()
    network = sv.graphs.parse("er:20:1.5:seed=3")
    yield "walk/path", np.asarray(sv.protocols.draw_path(network, 60, np.random.default_rng(4)), np.int64)
    labels = np.arange(200) % 5
    parts = {
        "equal": lambda rng: partition.equal(200, 7, rng),
        "by-size": lambda rng: partition.by_size([10, 90, 50], 200, rng),
        "by-label": lambda rng: partition.by_label(labels, 5, 0.4, rng),
        "dirichlet": lambda rng: partition.dirichlet(labels, 6, 0.3, rng),
    }
    for name, deal in parts.items():
        dealt = deal(np.random.default_rng(2))
        yield f"partition/{name}", [np.asarray(rows, np.int64) for rows in dealt]
    values = np.random.default_rng(0).normal(size=(16, 3))
    drawn = (
        "gossip:3", "chebyshev:3", "randomized:30", "accelerated-randomized:30", "dropout:5:nodes=0.2",
        "dropout:5:edges=0.3", "fresh-noise:3:fresh=0.2", "tree", "tree:kind=uniform", "tree:kind=few-leaves",
        "exchange", "masked",
    )  # fmt: skip
    for name in (*drawn, "time-varying:4:c=1.5"):
        network = sv.graphs.complete(16) if name.startswith("time-varying") else sv.graphs.hypercube(4)
        protocol = sv.protocols.parse(name).at(network, seed=6, step=2)
        yield (
            f"protocol/{name}",
            np.asarray(protocol.apply(values, noise=noise_samplers.SimulatedNoise(1), step=0)),
        )
