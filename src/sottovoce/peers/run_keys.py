"""The key of a run: noise, lots and hidden choices are functions of it, so a step done again is the same.

Thirty-two bytes of the operating system, made when a run begins and kept in the state that is committed with
every row. After each step's draws the key is replaced by its successor, from which it cannot be computed, and
at the end it is erased: a state folder that is stolen tells the noise of the steps to come, never of those
that were.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Mapping
from typing import Any

from sottovoce.errors import LedgerError, Refused
from sottovoce.noise.samplers import KeyedNoise


class RunKeys:
    """One member's secret randomness in one run.

    Parameters
    ----------
    run, membership version : what every label begins with.
    key : 32 secret bytes; made by the operating system if not given.

    Guarantees
    ----------
    What is drawn is a function of key, run, membership version, turn, chain (everything this member has
    received), agent, step, stream, scale and the clean integers; lots and hidden choices of the same without
    the value. `turn_over` replaces the key by HMAC(key, "next"); what is left for the rounds of the open step
    is another function of it. After `erase` nothing can be drawn.
    """

    def __init__(self, run: bytes, membership_version: int, key: bytes | None = None) -> None:
        self.run, self.membership_version = run, membership_version
        self._key: bytes | None = os.urandom(32) if key is None else key
        self._rounds: bytes | None = None
        self.turn, self.chain = 0, run
        self.noise = KeyedNoise(self._draw)
        self.round_noise = KeyedNoise(self._round_draw)

    @property
    def batches(self) -> bytes:
        """The key of this turn's lots and hidden choices."""
        return self._derive(self._key, b"lots")

    def received(self, row: bytes) -> None:
        """Lengthen the chain by what a step received."""
        self.chain = hashlib.sha256(self.chain + struct.pack("<Q", self.turn) + row).digest()

    def turn_over(self) -> None:
        """Go to the next key; of the old one only what the rounds of the open step need is left."""
        if self._key is None:
            raise self._erased()
        self._rounds = self._derive(self._key, b"rounds")
        self._key = hmac.digest(self._key, b"next", "sha256")
        self.turn += 1

    def erase(self) -> None:
        """Forget everything: the run is at its end."""
        self._key = self._rounds = None

    def to_dict(self) -> dict[str, Any]:
        """Return what the next step needs, for this member's own disk; it holds the key."""
        shown = {"key": self._key, "rounds": self._rounds, "chain": self.chain}
        return {"turn": self.turn, **{name: None if v is None else v.hex() for name, v in shown.items()}}

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Go on from what `to_dict` gave."""
        try:
            self.turn, self.chain = int(stored["turn"]), bytes.fromhex(stored["chain"])
            key, rounds = (
                None if stored[name] is None else bytes.fromhex(stored[name]) for name in ("key", "rounds")
            )
        except (KeyError, TypeError, ValueError):
            raise LedgerError(
                "The saved key of the run cannot be read; go on from the newest folder."
            ) from None
        self._key, self._rounds = key, rounds

    def _draw(self, label: bytes) -> bytes:
        return self._derive(self._key, label)

    def _round_draw(self, label: bytes) -> bytes:
        return self._derive(self._rounds, label)

    def _derive(self, key: bytes | None, label: bytes) -> bytes:
        if key is None:
            raise self._erased()
        context = (
            b"sottovoce run key\n"
            + self.run
            + struct.pack("<QQ", self.membership_version, self.turn)
            + self.chain
        )
        return hmac.digest(key, context + label, "sha256")

    @staticmethod
    def _erased() -> Refused:
        return Refused("the key of this run was erased at its end; nothing more can be drawn in it.")
