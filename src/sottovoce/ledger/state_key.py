"""The key of a run's saved state, in a file of its own that is overwritten in place.

The state of a peer holds the keys of its next noise and masks. The ledger keeps every row, so a state with
other keys than the one before is encrypted under another key. The file holds one key; after such a commit it
is overwritten with the next, ``HMAC(key, "next")``, from which it cannot be computed. Earlier states can then
no longer be read. States between two steps of a run hold the same keys, and share theirs.
"""

from __future__ import annotations

import errno
import hmac
import os
from pathlib import Path

from sottovoce._io import sync_folder
from sottovoce.errors import LedgerError

_KEY, _NONCE = 32, 12


class StateKey:
    """The key of the newest saved state.

    ``state`` is that state, encrypted; without one the file is made. ``context`` names the ledger; a state of
    another ledger is refused.

    Guarantees
    ----------
    A state with new keys is encrypted under the key after the newest, and `advance` replaces the key in the
    file once that state is durable. A crash before `advance` leaves the older key, from which the newer
    follows, so the newest state can be read after a crash at any point. When `advance` has returned, the key
    of every state with earlier keys is gone from the disk, as far as file system and disk overwrite in place.
    """

    def __init__(self, path: Path, state: bytes | None, context: bytes) -> None:
        self.state: bytes | None = None
        self._context = context
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if state is None else 0)
        try:
            self._file = os.open(path, flags, 0o600)
        except FileNotFoundError:
            raise LedgerError(
                f"The key of the saved state, {path}, is missing; restore it, or continue the run with "
                "`peer membership`, which needs no state."
            ) from None
        try:
            self._key = os.urandom(_KEY) if state is None else os.pread(self._file, _KEY, 0)
            if state is None:
                self.advance(self._key)
                sync_folder(path.parent)
            else:
                self._decrypt(path, state)
        except BaseException:
            os.close(self._file)
            raise

    def encrypt(self, state: bytes, *, same_keys: bool = False) -> tuple[bytes, bytes | None]:
        """Return the next state encrypted, and its key if `advance` must write it: the file has an older one.

        With ``same_keys`` the state is encrypted like the one before, whose keys it holds.
        """
        nonce, advanced = os.urandom(_NONCE), None  # several states may be encrypted under one key
        if not same_keys:
            advanced = _next(self._key)
            self._use(advanced)
        return nonce + self._cipher.encrypt(nonce, state, self._context), advanced

    def advance(self, key: bytes) -> None:
        """Overwrite the key in the file by a newer one, and return when that is on the disk."""
        # far less than a sector, which disks write whole or not at all, and always at the same place
        if os.pwrite(self._file, key, 0) != _KEY:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _use(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._key, self._cipher = key, AESGCM(key)

    def _decrypt(self, path: Path, state: bytes) -> None:
        from cryptography.exceptions import InvalidTag

        newer = _next(self._key)
        for key in (self._key, newer):
            try:
                self._use(key)
                self.state = self._cipher.decrypt(state[:_NONCE], state[_NONCE:], self._context)
            except (InvalidTag, ValueError):
                continue
            if key is newer:  # a crash came between commit and `advance`
                self.advance(newer)
            return
        raise LedgerError(
            f"The key in {path} is not that of the saved state: one of the two is older or damaged; use the "
            "newest state folder, or continue the run with `peer membership`, which needs no state."
        )


def _next(key: bytes) -> bytes:
    return hmac.digest(key, b"next", "sha256")
