"""A member's side of a masked sum: from its noisy row to integers that tell nothing, and back to a mean.

The mask key is made when an agreement is signed, and signed with it. It waits in a file that only its owner
can read until the first row is durable; from then on the pair keys live in the ledger's state, one step
further with every row, and the file is overwritten and removed. At the end nothing is left of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce._io import atomic_write
from sottovoce.errors import ConfigError, DataError, LedgerError
from sottovoce.noise.grid import MaskGrid
from sottovoce.secure_sum.keys import MaskKey, next_chain
from sottovoce.secure_sum.masks import PairMasks


class MaskedRows:
    """One member's masked rows: the grid, its pair keys and the chain over the integer sums.

    Parameters
    ----------
    grid : the plan's grid.
    masks : the pair keys of the first step; None where a saved state will bring those of a later one.
    run : the run's hash, where the chain begins.

    Guarantees
    ----------
    One row per step is hidden; the step's keys are replaced before anybody can ask for its row, so that the
    state that is saved with a row cannot hide another under the same label.
    """

    def __init__(self, grid: MaskGrid, masks: PairMasks | None, run: bytes) -> None:
        if masks is not None and masks.bits != grid.bits:
            raise ConfigError(f"the masks have {masks.bits} bits, the grid {grid.bits}; make them equal.")
        self.grid, self.masks, self.chain = grid, masks, run

    def hide(self, row: np.ndarray, step: int) -> np.ndarray:
        """Return the masked integers of one noisy row; the keys are those of the next step afterwards."""
        if self.masks is None:
            raise ConfigError("the mask keys of this run are not here; sign the agreement again with them.")
        noise_amplification = self.masks.hide(self.grid.place(np.asarray(row, np.float64)), step, self.chain)
        self.masks.ratchet()
        return noise_amplification

    def mean(self, total: np.ndarray, step: int) -> np.ndarray:
        """Return the mean of all rows from their integer sum, and lengthen the chain by it."""
        mean = self.grid.mean(total)
        self.chain = next_chain(self.chain, step, total)
        return mean

    def erase(self) -> None:
        """Forget the keys."""
        if self.masks is not None:
            self.masks.erase()
        self.masks = None

    def to_dict(self) -> dict[str, Any]:
        """Return what the next step needs; it holds keys until they were erased."""
        masks = None if self.masks is None else self.masks.to_dict()
        return {"chain": self.chain.hex(), "masks": masks}

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Go on from what `to_dict` gave."""
        try:
            self.chain = bytes.fromhex(stored["chain"])
            self.masks = None if stored["masks"] is None else PairMasks.from_dict(stored["masks"])
        except (KeyError, TypeError, ValueError):
            raise LedgerError("The saved mask keys cannot be read; restore the state folder.") from None


# ---- the key between signing and the first row -----------------------------------------------------------


def mask_statement(run: bytes, membership_version: int, public: bytes) -> bytes:
    """Return what a member signs: this run, this membership version, this key."""
    return b"sottovoce mask key\n" + run + membership_version.to_bytes(8, "little") + public


def make_mask_key(folder: str | Path, run: bytes, membership_version: int) -> MaskKey:
    """Make a fresh key for one run and membership version, in a file for its owner only; an older one is
    replaced.
    """
    key = MaskKey.fresh()
    try:
        atomic_write(_file(folder, run, membership_version), key.to_bytes().hex() + "\n", mode=0o600)
    except DataError as error:
        raise ConfigError(f"The mask key cannot be kept, so nothing was signed: {error}") from None
    return key


def read_mask_key(folder: str | Path | None, run: bytes, membership_version: int) -> MaskKey | None:
    """Return the key that was made when this run was signed; None if it is not there."""
    if folder is None or not _file(folder, run, membership_version).exists():
        return None
    file = _file(folder, run, membership_version)
    if file.stat().st_mode & 0o077:
        raise ConfigError(f"The mask key {file} can be read by others; sign again, then run chmod 600 on it.")
    try:
        return MaskKey.from_bytes(bytes.fromhex(file.read_text().strip()))
    except (OSError, ValueError):
        raise ConfigError(f"The mask key {file} cannot be read; sign the agreement again.") from None


def erase_mask_key(folder: str | Path | None, run: bytes, membership_version: int) -> None:
    """Overwrite and remove the key's file: the pair keys are durable elsewhere, or nobody needs them."""
    if folder is None or not _file(folder, run, membership_version).exists():
        return
    file = _file(folder, run, membership_version)
    with open(file, "r+b") as held:
        held.write(bytes(file.stat().st_size))
        held.flush()
        os.fsync(held.fileno())
    file.unlink()


def _file(folder: str | Path, run: bytes, membership_version: int) -> Path:
    return Path(folder) / f"mask-{run.hex()[:32]}-{membership_version}.key"
