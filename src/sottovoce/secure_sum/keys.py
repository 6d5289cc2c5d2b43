"""Keys of masks: one X25519 key per member and run, one key per pair, and the label of each row.

Every member makes an X25519 key for one run and membership version and signs it. With ``session`` the hash of
run, version and all those keys, a pair has ``k_0 = HKDF(DH, salt=session, info="mask" | lower name | higher
name | both public keys)``. The info holds names and keys, because a member that publishes another's key as
its own would otherwise make two masks of a third equal, with opposite signs, and that row would leave in
clear. Equal keys and an all-zero DH are refused as well.

The label of a row is ``(run, version, t, d_{t-1})`` with ``d_t = H(d_{t-1} | t | S_t)``, a chain over the
*integer* sums: the masks of members who disagree about the past do not cancel, and their sums tell nothing.

References: RFC 7748 (X25519), RFC 5869 (HKDF), RFC 2104 (HMAC).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sottovoce import _validate
from sottovoce.errors import InvalidInput, Refused

KEY_BYTES = 32  # bytes of every key, hash and public key
_PRIME = 2**255 - 19


class MaskKey:
    """A member's X25519 key for one run and membership version, random or from a seed to simulate."""

    def __init__(self, private: X25519PrivateKey, *, protective: bool) -> None:
        self._private, self.protective = private, protective
        self.public: bytes = private.public_key().public_bytes_raw()

    @classmethod
    def fresh(cls) -> MaskKey:
        """Return a new random key."""
        return cls(X25519PrivateKey.generate(), protective=True)

    @classmethod
    def simulated(cls, seed: int, node: int) -> MaskKey:
        """Return the key of ``node`` in a simulation; it follows from the seed."""
        seed = _validate.count(seed, "the seed of simulated masks", minimum=0)
        text = f"sottovoce simulation, mask key: seed {seed}, member {node}"
        return cls(X25519PrivateKey.from_private_bytes(sha256(text.encode())), protective=False)

    @classmethod
    def from_bytes(cls, stored: bytes) -> MaskKey:
        """Return the key that `to_bytes` returned, read from the member's own disk."""
        return cls(X25519PrivateKey.from_private_bytes(sized(stored, "a private key")), protective=True)

    def to_bytes(self) -> bytes:
        """Return the private key, for a file that only its owner can read."""
        return self._private.private_bytes_raw()

    def secret_with(self, other: bytes) -> bytes:
        """Return the Diffie-Hellman secret with another public key; an all-zero one is refused."""
        try:
            secret = self._private.exchange(X25519PublicKey.from_public_bytes(sized(other, "a public key")))
        except ValueError:  # the library's own check
            secret = bytes(KEY_BYTES)
        if not any(secret):
            raise Refused(
                "a member published a key of low order, whose secrets anybody knows; ask it for another key."
            )
        return secret

    def __repr__(self) -> str:
        return f"MaskKey({self.public.hex()[:16]}..., {'protective' if self.protective else 'simulation'})"


def session_hash(run_id: bytes, membership_version: int, publics: Mapping[str, bytes]) -> bytes:
    """Return the hash of run, membership version and all members' public keys; equal keys are refused."""
    owners: dict[int, str] = {}
    parts = [b"session", sized(run_id, "the run's hash"), _number(membership_version, "membership_version")]
    for name in sorted(publics):
        public = sized(publics[name], f"the public key of {name!r}")
        # One point has several encodings: X25519 ignores the top bit and reduces modulo the prime.
        point = (int.from_bytes(public, "little") & (2**255 - 1)) % _PRIME
        if point in owners:
            raise Refused(
                f"members {owners[point]!r} and {name!r} published the same key; each must make its own."
            )
        owners[point] = name
        parts += [_text(name), public]
    return sha256(b"".join(parts))


def pair_key(key: MaskKey, name: str, other: str, other_public: bytes, session: bytes) -> bytearray:
    """Return ``k_0`` of the pair ``name``, ``other``: the same 32 bytes at both ends."""
    if name == other:
        raise InvalidInput(f"a pair needs two members, got {name!r} twice.")
    (low, first), (high, second) = sorted([(name, key.public), (other, other_public)])
    info = b"mask" + _text(low) + _text(high) + first + second
    derive = HKDF(hashes.SHA256(), KEY_BYTES, salt=sized(session, "the session's hash"), info=info)
    return bytearray(derive.derive(key.secret_with(other_public)))


def mask_label(run_id: bytes, membership_version: int, step: int, chain: bytes) -> bytes:
    """Return the 80 bytes that label one row: run, membership version, step and the chain before it."""
    return (
        sized(run_id, "the run's hash")
        + _number(membership_version, "membership_version")
        + _number(step, "step")
        + sized(chain, "the chain's head")
    )


def next_chain(chain: bytes, step: int, total: np.ndarray) -> bytes:
    """Return ``d_t`` from ``d_{t-1}`` and the integer sum of step ``t``; ``d_0`` is the run's hash.

    Float models are refused: a last bit that differs between two machines would stop the masks from
    cancelling for good.
    """
    whole = np.asarray(total)
    if whole.dtype not in (np.int64, np.int32):
        raise InvalidInput(
            f"the chain runs over integer sums (int64 or int32), got {whole.dtype}; chain the sum before "
            "it is divided."
        )
    little = np.ascontiguousarray(whole, whole.dtype.newbyteorder("<"))
    return sha256(sized(chain, "the chain's head") + _number(step, "step") + little.tobytes())


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _text(name: str) -> bytes:
    """A name with its length before it, so that no two lists of names give the same bytes."""
    data = name.encode()
    return len(data).to_bytes(4, "little") + data


def _number(value: int, name: str) -> bytes:
    return _validate.count(value, name, minimum=0).to_bytes(8, "little")


def sized(data: bytes | bytearray, name: str) -> bytes:
    if not isinstance(data, (bytes, bytearray)) or len(data) != KEY_BYTES:
        size = f"{len(data)} bytes" if isinstance(data, (bytes, bytearray)) else type(data).__name__
        raise InvalidInput(f"{name} must be {KEY_BYTES} bytes, got {size}.")
    return bytes(data)
