"""Sequential algorithms in blocks of steps: randomness by block number, checkpoints between blocks.

A block's draws depend on the seed and the block's number only, never on what was drawn before. A run
that was interrupted and goes on from a checkpoint therefore ends in the same bytes as one that was not.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from sottovoce.errors import ConfigError, DataError
from sottovoce.privacy.noise import NoiseSource, as_noise

__all__ = ["Randomness", "fingerprint", "load_checkpoint", "randomness", "run_blocks", "save_checkpoint"]

_SAMPLING = 0x5A  # the noise stream that serves sampling in simulations; releases use 0 and 1


class Randomness(NamedTuple):
    """A noise source for what is released, and generators for what is sampled.

    ``draws(*key)`` gives the generator of one block: in simulations a function of the key, with
    protective noise fresh from the operating system.
    """

    noise: NoiseSource
    draws: Callable[..., np.random.Generator]

    def gaussian(self, rows: int, dim: int, *, block: int, std: float, stream: int = 0) -> np.ndarray:
        """Return (rows, dim) Gaussian numbers of one block; zeros when ``std`` is 0."""
        if std == 0:
            return np.zeros((rows, dim))
        return self.noise.perturb(
            np.zeros((rows, dim)), agents=np.arange(rows), step=block, std=std, stream=stream
        )

    @property
    def said(self) -> str:
        """What a record says about this noise."""
        return "protective" if self.noise.protective else "simulation: reproducible, not protective"

    def grid(self, std: float) -> float:
        """Return the grid on which values meet this noise (see `on_grid`); 0 for simulated noise."""
        if not self.noise.protective or std == 0:
            return 0.0
        from sottovoce.privacy.noise import grid_step

        return float(grid_step(std))

    def slack(self, dim: int, std: float) -> float:
        """Return the length to take off a clip bound to pay for rounding to the grid."""
        return self.noise.slack(dim, std) if std > 0 else 0.0


@njit(cache=True)
def on_grid(value, noise, grid):
    """Return value + noise; on a grid, the sum of two whole numbers of grid steps, so no low bits leak."""
    if grid == 0.0:
        return value + noise
    return (np.rint(value / grid) + np.rint(noise / grid)) * grid


def randomness(rng: Any) -> Randomness:
    """Return the randomness of a run from a numpy Generator (a simulation) or a noise source.

    Examples
    --------
    >>> a = randomness(np.random.default_rng(1)).draws(0, 5).random()
    >>> a == randomness(np.random.default_rng(1)).draws(0, 5).random()
    True
    """
    noise = as_noise(rng)
    if noise.protective:
        return Randomness(noise, lambda *key: np.random.Generator(np.random.Philox()))
    seen = noise.perturb(np.zeros((1, 4)), agents=[0], step=0, std=1.0, stream=_SAMPLING)
    entropy = [int(word) for word in seen.view(np.uint64).ravel()]
    return Randomness(noise, lambda *key: np.random.default_rng([*entropy, *key]))


def run_blocks(
    state: dict[str, np.ndarray],
    steps: int,
    block: int,
    advance: Callable[[dict[str, np.ndarray], int, int], dict[str, np.ndarray]],
    *,
    checkpoint: str | Path | None = None,
    identity: str = "",
    every: int = 1,
    after_block: Callable[[int, dict[str, np.ndarray]], None] | None = None,
) -> dict[str, np.ndarray]:
    """Advance ``state`` block by block: ``state = advance(state, number, steps in this block)``.

    A checkpoint is written after every ``every`` blocks and taken up when it exists.

    Examples
    --------
    >>> run_blocks({"x": np.zeros(1)}, 5, 2, lambda s, b, m: {"x": s["x"] + m})["x"].tolist()
    [5.0]
    """
    done = 0
    found = None if checkpoint is None else load_checkpoint(checkpoint, identity)
    if found is not None:
        done, state = found
    while done < steps:
        number, size = done // block, min(block, steps - done)
        state = advance(state, number, size)
        done += size
        if checkpoint is not None and (number % every == every - 1 or done == steps):
            save_checkpoint(checkpoint, identity, done, state)
        if after_block is not None:
            after_block(done, state)
    return state


def block_size(steps: int, minimum: int = 1) -> int:
    """Return how many steps make a block: about fifty blocks a run."""
    return max(minimum, -(-steps // 50))


def fingerprint(config: Mapping[str, Any], *arrays: Any) -> str:
    """Return a short digest of plan and data, so that a checkpoint of another run is not taken up.

    Examples
    --------
    >>> fingerprint({"steps": 1}) == fingerprint({"steps": 2})
    False
    """
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:32]


def save_checkpoint(path: str | Path, identity: str, step: int, state: Mapping[str, np.ndarray]) -> None:
    """Write a checkpoint so that a crash leaves the old one or the new one, never half of one."""
    path = Path(path)
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        arrays: dict[str, Any] = dict(state)
        np.savez(file, _identity=np.array(identity), _step=np.array(step), **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def load_checkpoint(path: str | Path, identity: str) -> tuple[int, dict[str, np.ndarray]] | None:
    """Return (step, state) of a checkpoint, or None when there is none; refuse one of another run.

    Examples
    --------
    >>> load_checkpoint("no-such-file.npz", "x") is None
    True
    """
    path = Path(path)
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            held = {key: arrays[key] for key in arrays.files}
        found, step = str(held.pop("_identity")), int(held.pop("_step"))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        raise DataError(f"{path.name} is not a checkpoint; remove it to start afresh.") from None
    if found != identity:
        raise ConfigError(
            f"{path.name} belongs to another plan, data set or seed; remove it or name another checkpoint."
        )
    return step, held
