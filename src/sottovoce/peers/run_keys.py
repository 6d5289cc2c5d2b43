"""The secrets of one run: the key of a member's noise, its mask key and its pair keys.

The run key is 32 bytes of the operating system. Noise, batches and hidden choices are functions of it, so a
step that is repeated gives the same bytes. After each step's draws it is replaced by its successor, from
which it cannot be computed, and at the end it is erased.

The mask key is made and signed with the agreement. It is stored in a file of its owner until the first row is
durable. From then on the pair keys are part of the ledger's state, one step further with every row, and the
file is overwritten and removed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce._io import atomic_write, shred
from sottovoce.errors import ConfigError, DataError, LedgerError, Refused
from sottovoce.noise.grid import MaskGrid
from sottovoce.noise.samplers import KeyedNoise
from sottovoce.peers.sum_check import SumCheck
from sottovoce.secure_sum.keys import MaskKey, next_chain
from sottovoce.secure_sum.masks import PairMasks


class RunKeys:
    """One member's secret randomness in one run; without ``key`` the operating system makes one.

    Guarantees
    ----------
    What is drawn is a function of key, run, membership version, turn, chain (everything this member has
    received), agent, step, stream, scale and the clean integers; batches and hidden choices of the same
    without the value. `turn_over` replaces the key by HMAC(key, "next"); the rounds of the open step use
    another function of the old key. After `erase` nothing can be drawn.
    """

    def __init__(self, session: bytes, membership_version: int, key: bytes | None = None) -> None:
        self.session, self.membership_version = session, membership_version
        self._key: bytes | None = os.urandom(32) if key is None else key
        self._rounds: bytes | None = None
        self.turn, self.chain = 0, session
        self.noise = KeyedNoise(lambda label: self._derive(self._key, label))
        self.round_noise = KeyedNoise(lambda label: self._derive(self._rounds, label))

    @property
    def batches(self) -> bytes:
        """The key of this turn's batches and hidden choices."""
        # the labels of derived keys are part of the keys: renaming one would change batches and noise
        return self._derive(self._key, b"lots")

    def received(self, row: bytes) -> None:
        """Extend the chain by what a step received."""
        self.chain = hashlib.sha256(self.chain + struct.pack("<Q", self.turn) + row).digest()

    def turn_over(self) -> None:
        """Replace the key; of the old one only the part for the rounds of the open step is left."""
        self._rounds = self._derive(self._key, b"rounds")
        assert self._key is not None
        self._key = hmac.digest(self._key, b"next", "sha256")
        self.turn += 1

    def erase(self) -> None:
        """Erase the keys at the end of the run."""
        self._key = self._rounds = None

    def to_dict(self) -> dict[str, Any]:
        """Return what the next step needs, for this member's own disk; it holds the key."""
        values = {"key": self._key, "rounds": self._rounds, "chain": self.chain}
        return {"turn": self.turn, **{name: None if v is None else v.hex() for name, v in values.items()}}

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Continue from the result of `to_dict`."""
        try:
            self.turn, self.chain = int(stored["turn"]), bytes.fromhex(stored["chain"])
            hexes = (stored["key"], stored["rounds"])
            self._key, self._rounds = (None if text is None else bytes.fromhex(text) for text in hexes)
        except (KeyError, TypeError, ValueError):
            raise LedgerError("The saved run key cannot be read; go on from the newest folder.") from None

    def _derive(self, key: bytes | None, label: bytes) -> bytes:
        if key is None:
            raise Refused("the key of this run was erased at its end; nothing more can be drawn in it.")
        counters = struct.pack("<QQ", self.membership_version, self.turn)
        context = b"sottovoce run key\n" + self.session + counters + self.chain
        return hmac.digest(key, context + label, "sha256")


class MaskedRows:
    """One member's masked rows: the grid, its pair keys and the chain over the integer sums.

    ``masks`` are the pair keys of the first step, or None if `restore` brings those of a later one.

    Guarantees
    ----------
    One row per step is hidden; the step's keys are replaced before the row can be read, so that the state
    that is saved with a row cannot hide another under the same label.
    """

    def __init__(
        self, grid: MaskGrid, masks: PairMasks | None, run_id: bytes, check: SumCheck | None = None
    ) -> None:
        if masks is not None and masks.bits != grid.bits:
            raise ConfigError(f"the masks have {masks.bits} bits, the grid {grid.bits}; make them equal.")
        self.grid, self.masks, self.chain, self.check = grid, masks, run_id, check
        self.warnings: list[str] = []  # about sums, not taken yet

    def hide(self, row: np.ndarray, step: int) -> np.ndarray:
        """Return the masked integers of one noisy row; the keys are those of the next step afterwards."""
        if self.masks is None:
            raise ConfigError("the mask keys of this run are not here; sign the agreement again with them.")
        masked = self.masks.hide(self.grid.place(np.asarray(row, np.float64)), step, self.chain)
        self.masks.ratchet()
        return masked

    def mean(self, total: np.ndarray, step: int) -> np.ndarray:
        """Return the mean of all rows from their integer sum, and extend the chain by it.

        A sum that the check does not allow is refused; what is noticed is added to `warnings`.
        """
        try:
            mean = self.grid.mean(total)
        except Refused:
            self.warnings.append(f"the sum of step {step} is not one of rows that belong together")
            raise
        if self.check is not None:
            if warning := self.check.judge(mean, step):
                self.warnings.append(warning)
            if self.check.stops(mean):
                raise Refused(
                    f"{warning}: some member sent other numbers than agreed, and masked rows do not show "
                    "which. The run stops and everything spent is recorded; ask the members, then continue "
                    "without the one at fault by `peer membership`."
                )
        self.chain = next_chain(self.chain, step, total)
        return mean

    def erase(self) -> None:
        """Erase the keys."""
        if self.masks is not None:
            self.masks.erase()
        self.masks = None

    def to_dict(self) -> dict[str, Any]:
        """Return what the next step needs; it holds keys until they are erased."""
        masks = None if self.masks is None else self.masks.to_dict()
        largest = 0.0 if self.check is None else self.check.largest
        return {"chain": self.chain.hex(), "masks": masks, "largest": largest}

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Continue from the result of `to_dict`."""
        try:
            self.chain = bytes.fromhex(stored["chain"])
            self.masks = None if stored["masks"] is None else PairMasks.from_dict(stored["masks"])
            if self.check is not None:
                self.check.largest = float(stored["largest"])
        except (KeyError, TypeError, ValueError):
            raise LedgerError("The saved mask keys cannot be read; restore the state folder.") from None


# ---- the mask key between signing and the first row -------------------------------------------------------


def mask_statement(run_id: bytes, membership_version: int, public: bytes) -> bytes:
    """Return what a member signs: this run, this membership version, this key."""
    return b"sottovoce mask key\n" + run_id + membership_version.to_bytes(8, "little") + public


def make_mask_key(folder: str | Path, run_id: bytes, membership_version: int) -> MaskKey:
    """Make a fresh key for one run and membership version, in a file for its owner; replaces an older one."""
    key = MaskKey.fresh()
    try:
        atomic_write(_file(folder, run_id, membership_version), key.to_bytes().hex() + "\n", mode=0o600)
    except DataError as error:
        raise ConfigError(f"The mask key cannot be kept, so nothing was signed: {error}") from None
    return key


def read_mask_key(folder: str | Path | None, run_id: bytes, membership_version: int) -> MaskKey | None:
    """Return the key that was made when this run was signed; None if it is not there."""
    if folder is None or not (file := _file(folder, run_id, membership_version)).exists():
        return None
    if file.stat().st_mode & 0o077:
        raise ConfigError(f"The mask key {file} can be read by others; sign again, then run chmod 600 on it.")
    try:
        return MaskKey.from_bytes(bytes.fromhex(file.read_text().strip()))
    except (OSError, ValueError):
        raise ConfigError(f"The mask key {file} cannot be read; sign the agreement again.") from None


def erase_mask_key(folder: str | Path | None, run_id: bytes, membership_version: int) -> None:
    """Overwrite and remove the key's file: the pair keys are durable elsewhere, or nobody needs them."""
    if folder is not None:
        shred(_file(folder, run_id, membership_version))


def _file(folder: str | Path, run_id: bytes, membership_version: int) -> Path:
    return Path(folder) / f"mask-{run_id.hex()[:32]}-{membership_version}.key"
