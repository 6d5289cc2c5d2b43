"""Pairwise masks: one per partner and step, derived from pair keys, which cancel in the sum.

Member ``u`` sends, for its integer row :math:`X_u` of step ``t``,

.. math:: Y_u = X_u + \\sum_{w \\in H(u)} \\mathrm{sign}(w - u)\\, \\mathrm{PRG}_{uw}(\\text{label})
          \\bmod 2^b.

The mask of a step is AES-256-CTR from counter 0 under ``HMAC(k_t, label)``. After a step
``k_{t+1} = HMAC(k_t, "next")`` replaces ``k_t``.

References: the masks are those of Bonawitz et al., "Practical Secure Aggregation", CCS 2017, section 4.0.1,
without the server. Departures: pair keys bind names, keys and session; a key per step; no recovery of members
that leave.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from sottovoce import _validate
from sottovoce.errors import InvalidInput, Refused
from sottovoce.secure_sum.keys import KEY_BYTES, MaskKey, mask_label, pair_key, session_hash, sha256, sized

if TYPE_CHECKING:
    from sottovoce.protocols.masked import Masked

_BLOCK = 16  # bytes of a block of AES
_UNSIGNED: dict[int, type[np.unsignedinteger]] = {32: np.uint32, 64: np.uint64}
_CHUNK = 1 << 16  # numbers masked at a time: row, pad and zeros stay in the cache
_ZEROS = memoryview(bytes(8 * _CHUNK))  # encrypted to get a keystream


class PairMasks:
    """One member's masks: hides one row per label, then moves its keys on and forgets the old ones.

    ``keys`` are the ``k_t`` of step ``t`` per partner (by number), 32 bytes each; they are copied. Rows and
    masks have so many ``bits``, 64 or 32. ``membership_version`` is counted up whenever the members change;
    ``protective`` is False for keys that follow from a seed.

    Guarantees
    ----------
    Two members' masks of one label cancel bit for bit. Under one label at most one row is hidden: the same
    row again gives the same bytes, another one is refused. A step's masks cannot be made once `ratchet`
    has moved on, nor any after `erase`. Rows and masks are integers; floats are refused.
    """

    def __init__(
        self,
        node: int,
        keys: Mapping[int, bytes | bytearray],
        *,
        run_id: bytes,
        membership_version: int = 0,
        bits: int = 64,
        step: int = 0,
        protective: bool = True,
    ) -> None:
        self.node = _validate.count(node, "node", minimum=0)
        if bits not in _UNSIGNED:
            raise InvalidInput(f"masked rows have 64 or 32 bits, got {bits!r}.")
        if self.node in keys:
            raise InvalidInput(f"member {self.node} cannot be its own partner.")
        self.run_id, self.membership_version = sized(run_id, "the run's hash"), membership_version
        self.bits, self.step = bits, _validate.count(step, "step", minimum=0)
        self.protective = protective
        self._keys = {w: bytearray(sized(keys[w], f"the pair key with member {w}")) for w in sorted(keys)}
        self._hidden: dict[bytes, np.ndarray] = {}  # label of this step -> what was sent under it
        self._digests: dict[bytes, bytes] = {}  # the same before a restart, by its digest
        self._erased = False

    @classmethod
    def agree(
        cls,
        key: MaskKey,
        node: int,
        names: Sequence[str],
        publics: Sequence[bytes | None],
        partners: Iterable[int],
        *,
        run_id: bytes,
        membership_version: int = 0,
        bits: int = 64,
        step: int = 0,
    ) -> PairMasks:
        """Return the masks of ``node`` from its own key and everybody's public keys, in members' order.

        A membership version that continues a broken step begins at that ``step``, with its own keys.
        """
        if len(set(names)) != len(names) or len(names) != len(publics):
            raise InvalidInput(f"every member needs a name of its own and a public key, got {list(names)}.")
        known = {name: public for name, public in zip(names, publics, strict=True) if public is not None}
        for name in set(names) - set(known):
            raise Refused(f"member {name!r} gave no mask key; nothing is sent before all have.")
        own = names[_validate.node(node, len(names))]
        if known[own] != key.public:
            raise Refused(f"the key published for {own!r} is not its own; sign and publish it again.")
        session = session_hash(run_id, membership_version, known)
        chosen = _validate.nodes(partners, len(names), "partners")
        keys = {w: pair_key(key, own, names[w], known[names[w]], session) for w in chosen if w != node}
        options = {"membership_version": membership_version, "bits": bits, "step": step}
        masks = cls(node, keys, run_id=run_id, protective=key.protective, **options)
        for copied in keys.values():
            copied[:] = bytes(KEY_BYTES)
        return masks

    @property
    def partners(self) -> tuple[int, ...]:
        """The members with whom this one shares keys."""
        return tuple(self._keys)

    def hide(self, row: np.ndarray, step: int, chain: bytes) -> np.ndarray:
        """Return the masked row of ``step``, read-only, given the chain's head before it."""
        self._require(step)
        if row.dtype != f"int{self.bits}":
            raise InvalidInput(
                f"rows to be masked are int{self.bits} on a grid, got {row.dtype}; masks never touch floats."
            )
        label = mask_label(self.run_id, self.membership_version, step, chain)
        flat = np.array(row, order="C", copy=True).reshape(-1)
        scratch = bytearray(min(flat.size, _CHUNK) * self.bits // 8 + _BLOCK)  # one pad at a time
        streams = {w: Keystream(step_key(key, label), self.bits, scratch) for w, key in self._keys.items()}
        for start in range(0, flat.size, _CHUNK):
            part = flat[start : start + _CHUNK].view(_UNSIGNED[self.bits])
            add_masks(part, self.node, ((w, stream.take(part.size)) for w, stream in streams.items()))
        masked = flat.reshape(row.shape)
        masked.setflags(write=False)  # it is kept, so that a second one can be compared with it
        if label in self._digests:
            same = self._digests[label] == sha256(masked.tobytes())
        else:
            first = self._hidden.setdefault(label, masked)
            same = first is masked or np.array_equal(first, masked)
        if not same:
            raise Refused(
                f"another row of step {step} was masked under the same label; their difference would leave "
                "in clear. Send the stored bytes again, or agree on a new membership version."
            )
        return masked

    def ratchet(self) -> None:
        """Move every key on by one step and forget the old one; call it once the row sent is durable."""
        self._require(self.step)
        for key in self._keys.values():
            key[:] = hmac.digest(key, b"next", "sha256")
        self._forget()
        self.step += 1

    def erase(self) -> None:
        """Overwrite all keys; nothing can be masked afterwards."""
        for key in self._keys.values():
            key[:] = bytes(KEY_BYTES)
        self._forget()
        self._erased = True

    def to_dict(self) -> dict[str, Any]:
        """Return all that the next step needs, for a member's own disk; it holds keys."""
        self._require(self.step)
        sent = {label: sha256(row.tobytes()) for label, row in self._hidden.items()} | self._digests
        return {
            "node": self.node,
            "keys": {str(w): key.hex() for w, key in self._keys.items()},
            "run_id": self.run_id.hex(),
            "membership_version": self.membership_version,
            "bits": self.bits,
            "step": self.step,
            "protective": self.protective,
            "hidden": {label.hex(): digest.hex() for label, digest in sent.items()},
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> PairMasks:
        """Return the masks that `to_dict` described."""
        keys = {int(w): bytes.fromhex(key) for w, key in stored["keys"].items()}
        options = {name: stored[name] for name in ("membership_version", "bits", "step", "protective")}
        masks = cls(stored["node"], keys, run_id=bytes.fromhex(stored["run_id"]), **options)
        masks._digests = {bytes.fromhex(a): bytes.fromhex(b) for a, b in stored["hidden"].items()}
        return masks

    def __repr__(self) -> str:
        kind = "protective" if self.protective else "simulation"
        return f"PairMasks(node={self.node}, partners={len(self._keys)}, step={self.step}, {kind})"

    def _forget(self) -> None:
        self._hidden.clear()
        self._digests.clear()

    def _require(self, step: int) -> None:
        if self._erased:
            raise Refused("these mask keys were erased at the end of their run; a new run makes new ones.")
        if step != self.step:
            raise Refused(f"the mask keys are those of step {self.step}, a row of step {step} was requested.")


def simulated_masks(
    protocol: Masked, seed: int, *, run_id: bytes = bytes(KEY_BYTES), bits: int = 64
) -> list[PairMasks]:
    """Return everybody's masks in a simulation, from the key path of real members and the keys of a seed."""
    keys = [MaskKey.simulated(seed, v) for v in range(protocol.n)]
    names = [f"member {v}" for v in range(protocol.n)]
    publics = [key.public for key in keys]
    return [
        PairMasks.agree(key, v, names, publics, protocol.partners(v), run_id=run_id, bits=bits)
        for v, key in enumerate(keys)
    ]


def add_masks(row: np.ndarray, node: int, pads: Iterable[tuple[int, np.ndarray]]) -> None:
    """Add to an unsigned row, in place, the pads shared with higher members, and take off the others.

    Unsigned arithmetic wraps at the row's width, which is the modulus.
    """
    for other, pad in pads:
        if other > node:
            row += pad
        else:
            row -= pad


def step_key(key: bytes | bytearray, label: bytes) -> bytes:
    """Return ``HMAC(k_t, label)``, the AES key of one row."""
    return hmac.digest(key, label, "sha256")


class Keystream:
    """AES-256-CTR from counter 0 as little-endian unsigned numbers; each is given once.

    With ``scratch``, room for the numbers and one block more, they are written there and hold until
    the next are taken from any stream that shares it: nine partners' pads need one buffer, not nine.
    """

    def __init__(self, key: bytes, bits: int, scratch: bytearray | None = None) -> None:
        self._stream = Cipher(algorithms.AES(sized(key, "an AES key")), modes.CTR(bytes(_BLOCK))).encryptor()
        self._dtype = np.dtype(_UNSIGNED[bits]).newbyteorder("<")
        self._scratch = scratch

    def take(self, count: int) -> np.ndarray:
        """Return the next ``count`` numbers."""
        size = count * self._dtype.itemsize
        zeros = _ZEROS[:size] if size <= len(_ZEROS) else bytes(size)
        if self._scratch is None or len(self._scratch) < size + _BLOCK:
            return np.frombuffer(self._stream.update(zeros), self._dtype)
        self._stream.update_into(zeros, self._scratch)
        return np.frombuffer(self._scratch, self._dtype, count)
