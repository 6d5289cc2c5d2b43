"""Pairwise masks: keys, one mask per partner and step, and the integer grid on which they cancel.

Member ``u`` sends, for its integer row :math:`X_u` of step ``t``,

.. math:: Y_u = X_u + \\sum_{w \\in H(u)} \\mathrm{sign}(w - u)\\, \\mathrm{PRG}_{uw}(\\text{label})
          \\bmod 2^b.

*Keys.* Every member makes an X25519 key for one run and epoch and signs it. With ``session`` the hash of run,
epoch and all those keys, a pair has ``k_0 = HKDF(DH, salt=session, info="mask" | lower name | higher name |
both public keys)``. Names and keys are in it because a member that publishes another's key as its own would
otherwise make two masks of a third equal, with opposite signs, and its row would leave in clear; equal keys
and an all-zero DH are refused besides. The mask of a step is AES-256-CTR from counter 0 under
``HMAC(k_t, label)``, with ``label = (run, epoch, t, d_{t-1})`` and ``d_t = H(d_{t-1} | t | S_t)`` a chain
over the *integer* sums: members who disagree about the past do not cancel, and tell nothing. After a step
``k_{t+1} = HMAC(k_t, "next")`` takes the place of ``k_t``.

*Grid.* Rows are multiples of a power of two, so small that rounding costs a thousandth of the sensitivity,
and noise is the discrete Gaussian of `sottovoce.noise.samplers`, widened: with draws :math:`K_i` of parameter
512, :math:`K_0 + aK_1 + bK_2 + cK_3` is one of parameter :math:`512\\sqrt{1 + a^2 + b^2 + c^2}`, up to a
relative error :math:`2 e^{-8\\pi^2}` per term as long as no factor exceeds half the width of those before.

References: the masks are those of Bonawitz et al., "Practical Secure Aggregation", CCS 2017, section 4.0.1,
without the server; sums of discrete Gaussians: Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian
Mechanism", ICML 2021, Theorem 1; RFC 7748 (X25519), RFC 5869 (HKDF), RFC 2104 (HMAC).
Departures: pair keys bind names, keys and session; a key per step; no recovery of members that leave.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sottovoce import _validate
from sottovoce.errors import InvalidInput, Refused
from sottovoce.noise import samplers as _noise
from sottovoce.protocols.masked import Masked, from_grid, to_grid

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

__all__ = [
    "GridNoise",
    "MaskGrid",
    "MaskKey",
    "PairMasks",
    "SummedNoise",
    "counted_variance",
    "grid_noise",
    "mask_grid",
    "mask_label",
    "next_chain",
    "pair_key",
    "session_hash",
    "simulated_masks",
    "sum_range",
]

_KEY = 32  # bytes of every key, hash and public key here
_BLOCK = 16  # bytes of a block of AES
_UNSIGNED: dict[int, Any] = {32: np.uint32, 64: np.uint64}
_SIGNED: dict[int, Any] = {32: np.int32, 64: np.int64}
_PRIME = 2**255 - 19
_CHUNK = 1 << 16  # numbers masked at a time: row, pad and zeros stay in the cache
_ZEROS = memoryview(bytes(8 * _CHUNK))  # what is encrypted to get a keystream

COUNTED_FROM = 8.0  # steps: noise narrower than this counts as none
DISCOUNT = 4.0  # steps^2 that a sum of discrete Gaussians lacks of a continuous one, for GDP and PLD curves
ROUNDING = 1e-3  # share of the sensitivity that rounding may take
_NARROWEST = 16384.0  # steps: from here on rounding a width up costs less than 1/500 of it
_WRAP_BITS, _GARBAGE_BITS = 40, 40


# ---- keys ----------------------------------------------------------------------------------------------


class MaskKey:
    """A member's X25519 key for one run and epoch: from the operating system, or from a seed to simulate.

    Examples
    --------
    >>> key = MaskKey.fresh()
    >>> len(key.public), key.protective, MaskKey.simulated(7, 0).protective
    (32, True, False)
    >>> key.public == MaskKey.fresh().public, MaskKey.simulated(7, 0).public == MaskKey.simulated(7, 0).public
    (False, True)
    """

    def __init__(self, private: X25519PrivateKey, *, protective: bool) -> None:
        self._private: X25519PrivateKey | None = private
        self.protective = protective
        self.public: bytes = private.public_key().public_bytes_raw()

    @classmethod
    def fresh(cls) -> MaskKey:
        """Return a new key that nobody can make again."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        return cls(X25519PrivateKey.generate(), protective=True)

    @classmethod
    def simulated(cls, seed: int, member: int) -> MaskKey:
        """Return the key of ``member`` in a simulation: whoever knows the seed has it."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        seed = _validate.count(seed, "the seed of simulated masks", minimum=0)
        text = f"sottovoce simulation, mask key: seed {seed}, member {member}"
        return cls(X25519PrivateKey.from_private_bytes(_hash(text.encode())), protective=False)

    @classmethod
    def from_bytes(cls, stored: bytes) -> MaskKey:
        """Return the key that `to_bytes` gave, as a member's own disk kept it from signing to the first row.

        Examples
        --------
        >>> key = MaskKey.fresh()
        >>> MaskKey.from_bytes(key.to_bytes()).public == key.public
        True
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        return cls(X25519PrivateKey.from_private_bytes(_sized(stored, "a private key")), protective=True)

    def to_bytes(self) -> bytes:
        """Return the private key, for a file that only its owner can read."""
        if self._private is None:
            raise Refused("this mask key was erased; make a new one for a new epoch.")
        return self._private.private_bytes_raw()

    def secret_with(self, other: bytes) -> bytes:
        """Return the Diffie-Hellman secret with another public key; an all-zero one is refused."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        if self._private is None:
            raise Refused("this mask key was erased; make a new one for a new epoch.")
        try:
            secret = self._private.exchange(X25519PublicKey.from_public_bytes(_sized(other, "a public key")))
        except ValueError:  # the library's own check
            secret = bytes(_KEY)
        if not any(secret):
            raise Refused(
                "a member published a key of low order, whose secrets anybody knows; ask it for another key."
            )
        return secret

    def erase(self) -> None:
        """Forget the private key."""
        self._private = None

    def __repr__(self) -> str:
        return f"MaskKey({self.public.hex()[:16]}..., {'protective' if self.protective else 'simulation'})"


def session_hash(run: bytes, epoch: int, publics: Mapping[str, bytes]) -> bytes:
    """Return the hash of run, epoch and all members' public keys; equal keys are refused.

    Examples
    --------
    >>> keys = {"north": MaskKey.simulated(1, 0).public, "south": MaskKey.simulated(1, 1).public}
    >>> session_hash(bytes(32), 0, keys) == session_hash(bytes(32), 1, keys)
    False
    >>> session_hash(bytes(32), 0, {"north": keys["north"], "south": keys["north"]})
    Traceback (most recent call last):
    ...
    sottovoce.errors.Refused: members 'north' and 'south' published the same key; each must make its own.
    """
    owners: dict[int, str] = {}
    parts = [b"session", _sized(run, "the run's hash"), _number(epoch, "epoch")]
    for name in sorted(publics):
        public = _sized(publics[name], f"the public key of {name!r}")
        # One point has several encodings: X25519 ignores the top bit and reduces modulo the prime.
        point = (int.from_bytes(public, "little") & (2**255 - 1)) % _PRIME
        if point in owners:
            raise Refused(
                f"members {owners[point]!r} and {name!r} published the same key; each must make its own."
            )
        owners[point] = name
        parts += [_text(name), public]
    return _hash(b"".join(parts))


def pair_key(key: MaskKey, name: str, other: str, other_public: bytes, session: bytes) -> bytearray:
    """Return ``k_0`` of the pair ``name``, ``other``: the same 32 bytes at both ends.

    Examples
    --------
    >>> a, b = MaskKey.fresh(), MaskKey.fresh()
    >>> session = session_hash(bytes(32), 0, {"a": a.public, "b": b.public})
    >>> pair_key(a, "a", "b", b.public, session) == pair_key(b, "b", "a", a.public, session)
    True
    """
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    if name == other:
        raise InvalidInput(f"a pair needs two members, got {name!r} twice.")
    (low, first), (high, second) = sorted([(name, key.public), (other, other_public)])
    info = b"mask" + _text(low) + _text(high) + first + second
    derive = HKDF(hashes.SHA256(), _KEY, salt=_sized(session, "the session's hash"), info=info)
    return bytearray(derive.derive(key.secret_with(other_public)))


def mask_label(run: bytes, epoch: int, step: int, chain: bytes) -> bytes:
    """Return the 80 bytes that name one row of a run: run, epoch, step and the chain before it.

    Examples
    --------
    >>> len(mask_label(bytes(32), 0, 3, bytes(32)))
    80
    """
    return (
        _sized(run, "the run's hash")
        + _number(epoch, "epoch")
        + _number(step, "step")
        + _sized(chain, "the chain's head")
    )


def next_chain(chain: bytes, step: int, total: np.ndarray) -> bytes:
    """Return ``d_t`` from ``d_{t-1}`` and the integer sum of step ``t``; ``d_0`` is the run's hash.

    Float models are refused: a last bit that differs between two machines would stop the masks from
    cancelling for good.

    Examples
    --------
    >>> import numpy as np
    >>> next_chain(bytes(32), 0, np.array([1, 2])) == next_chain(bytes(32), 0, np.array([1, 3]))
    False
    """
    whole = np.asarray(total)
    if whole.dtype not in (np.int64, np.int32):
        raise InvalidInput(
            f"the chain runs over integer sums (int64 or int32), got {whole.dtype}; chain the sum before "
            "it is divided."
        )
    little = np.ascontiguousarray(whole, whole.dtype.newbyteorder("<"))
    return _hash(_sized(chain, "the chain's head") + _number(step, "step") + little.tobytes())


# ---- masks ---------------------------------------------------------------------------------------------


class PairMasks:
    """One member's masks: hides one row per label, then moves its keys on and forgets the old ones.

    Parameters
    ----------
    member : this member's number.
    keys : ``k_t`` per partner (by number), 32 bytes each; they are copied.
    run : the run's hash; epoch : counted up whenever the members change.
    bits : 64 or 32, the width of rows and masks.
    step : the step ``t`` whose keys these are.
    protective : False marks keys that somebody can make again from a seed.

    Guarantees
    ----------
    Two members' masks of one label cancel bit for bit. Under one label at most one row is hidden: the same
    row again gives the same bytes, another one is refused. A step's masks cannot be made once `ratchet`
    has moved on, nor any after `erase`. Rows and masks are integers; floats are refused.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> masked = sv.protocols.Masked(sv.graphs.path(3))
    >>> rows, run = np.array([[5], [-7], [9]]), bytes(32)
    >>> hidden = np.array(
    ...     [m.hide(row, 0, run) for m, row in zip(sv.privacy.simulated_masks(masked, seed=1), rows)]
    ... )
    >>> bool((hidden == rows).any()), masked.apply(hidden)[0].tolist()
    (False, [7])
    """

    def __init__(
        self,
        member: int,
        keys: Mapping[int, bytes | bytearray],
        *,
        run: bytes,
        epoch: int = 0,
        bits: int = 64,
        step: int = 0,
        protective: bool = True,
    ) -> None:
        self.member = _validate.count(member, "member", minimum=0)
        if bits not in _UNSIGNED:
            raise InvalidInput(f"masked rows have 64 or 32 bits, got {bits!r}.")
        if self.member in keys:
            raise InvalidInput(f"member {self.member} cannot be its own partner.")
        self.run, self.epoch, self.bits = _sized(run, "the run's hash"), epoch, bits
        self.step = _validate.count(step, "step", minimum=0)
        self.protective = protective
        self._keys = {w: bytearray(_sized(keys[w], f"the pair key with member {w}")) for w in sorted(keys)}
        self._hidden: dict[bytes, np.ndarray] = {}  # label of this step -> what was sent under it
        self._digests: dict[bytes, bytes] = {}  # the same before a restart, by its digest
        self._erased = False

    @classmethod
    def agree(
        cls,
        key: MaskKey,
        member: int,
        names: Sequence[str],
        publics: Sequence[bytes | None],
        partners: Iterable[int],
        *,
        run: bytes,
        epoch: int = 0,
        bits: int = 64,
        step: int = 0,
    ) -> PairMasks:
        """Return the masks of ``member`` from its own key and everybody's public keys, in members' order.

        An epoch that goes on from a broken step begins at that ``step``, with keys of its own.

        Examples
        --------
        >>> keys = [MaskKey.fresh() for _ in range(3)]
        >>> publics = [key.public for key in keys]
        >>> PairMasks.agree(keys[1], 1, ["a", "b", "c"], publics, [0, 2], run=bytes(32)).partners
        (0, 2)
        """
        if len(set(names)) != len(names) or len(names) != len(publics):
            raise InvalidInput(f"every member needs a name of its own and a public key, got {list(names)}.")
        known: dict[str, bytes] = {}
        for name, public in zip(names, publics, strict=True):
            if public is None:
                raise Refused(f"member {name!r} gave no mask key; nothing is sent before all have.")
            known[name] = public
        own = names[_validate.node(member, len(names))]
        if known[own] != key.public:
            raise Refused(f"the key published for {own!r} is not its own; sign and publish it again.")
        session = session_hash(run, epoch, known)
        chosen = _validate.nodes(partners, len(names), "partners")
        keys = {w: pair_key(key, own, names[w], known[names[w]], session) for w in chosen if w != member}
        made = cls(member, keys, run=run, epoch=epoch, bits=bits, step=step, protective=key.protective)
        for copied in keys.values():
            copied[:] = bytes(_KEY)
        return made

    @property
    def partners(self) -> tuple[int, ...]:
        """The members with whom this one shares keys."""
        return tuple(self._keys)

    def hide(self, row: np.ndarray, step: int, chain: bytes) -> np.ndarray:
        """Return the masked row of ``step``, read-only, given the chain's head before it."""
        self._require(step)
        if row.dtype != _SIGNED[self.bits]:
            raise InvalidInput(
                f"rows to be masked are int{self.bits} on a grid, got {row.dtype}; masks never touch floats."
            )
        label = mask_label(self.run, self.epoch, step, chain)
        flat = np.array(row, order="C", copy=True).reshape(-1)
        scratch = bytearray(min(flat.size, _CHUNK) * self.bits // 8 + _BLOCK)  # one pad at a time
        streams = {w: Keystream(step_key(key, label), self.bits, scratch) for w, key in self._keys.items()}
        for start in range(0, flat.size, _CHUNK):
            part = flat[start : start + _CHUNK].view(_UNSIGNED[self.bits])
            add_masks(part, self.member, ((w, stream.take(part.size)) for w, stream in streams.items()))
        masked = flat.reshape(row.shape)
        masked.setflags(write=False)  # it is kept, so that a second one can be compared with it
        if label in self._digests:
            same = self._digests[label] == _hash(masked.tobytes())
        else:
            first = self._hidden.setdefault(label, masked)
            same = first is masked or np.array_equal(first, masked)
        if not same:
            raise Refused(
                f"another row of step {step} was masked under the same label; their difference would leave "
                "in clear. Send the stored bytes again, or agree on a new epoch."
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
            key[:] = bytes(_KEY)
        self._forget()
        self._erased = True

    def to_dict(self) -> dict[str, Any]:
        """Return all that the next step needs, for a member's own disk; it holds keys.

        Examples
        --------
        >>> masks = PairMasks(0, {1: bytes(range(32))}, run=bytes(32))
        >>> PairMasks.from_dict(masks.to_dict()).partners
        (1,)
        """
        self._require(self.step)
        sent = {label: _hash(row.tobytes()) for label, row in self._hidden.items()} | self._digests
        return {
            "member": self.member,
            "keys": {str(w): key.hex() for w, key in self._keys.items()},
            "run": self.run.hex(),
            "epoch": self.epoch,
            "bits": self.bits,
            "step": self.step,
            "protective": self.protective,
            "hidden": {label.hex(): digest.hex() for label, digest in sent.items()},
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> PairMasks:
        """Return the masks that `to_dict` described."""
        made = cls(
            stored["member"],
            {int(w): bytes.fromhex(key) for w, key in stored["keys"].items()},
            run=bytes.fromhex(stored["run"]),
            epoch=stored["epoch"],
            bits=stored["bits"],
            step=stored["step"],
            protective=stored["protective"],
        )
        made._digests = {bytes.fromhex(a): bytes.fromhex(b) for a, b in stored["hidden"].items()}
        return made

    def __repr__(self) -> str:
        kind = "protective" if self.protective else "simulation"
        return f"PairMasks(member={self.member}, partners={len(self._keys)}, step={self.step}, {kind})"

    def _forget(self) -> None:
        self._hidden.clear()
        self._digests.clear()

    def _require(self, step: int) -> None:
        if self._erased:
            raise Refused("these mask keys were erased at the end of their run; a new run makes new ones.")
        if step != self.step:
            raise Refused(f"the mask keys are those of step {self.step}, a row of step {step} was asked for.")


def simulated_masks(
    protocol: Masked, seed: int, *, run: bytes = bytes(_KEY), epoch: int = 0, bits: int = 64
) -> list[PairMasks]:
    """Return everybody's masks in a simulation, from the key path of real members and the keys of a seed.

    Examples
    --------
    >>> import sottovoce as sv
    >>> simulated_masks(sv.protocols.Masked(sv.graphs.ring(4)), seed=1)[2]
    PairMasks(member=2, partners=3, step=0, simulation)
    """
    keys = [MaskKey.simulated(seed, v) for v in range(protocol.n)]
    names = [f"member {v}" for v in range(protocol.n)]
    publics = [key.public for key in keys]
    return [
        PairMasks.agree(key, v, names, publics, protocol.partners(v), run=run, epoch=epoch, bits=bits)
        for v, key in enumerate(keys)
    ]


def add_masks(row: np.ndarray, member: int, pads: Iterable[tuple[int, np.ndarray]]) -> None:
    """Add to an unsigned row, in place, the pads shared with higher members, and take off the others.

    Unsigned arithmetic wraps at the row's width, which is the modulus.
    """
    for other, pad in pads:
        if other > member:
            row += pad
        else:
            row -= pad


def step_key(key: bytes | bytearray, label: bytes) -> bytes:
    """Return ``HMAC(k_t, label)``, the AES key of one row."""
    return hmac.digest(key, label, "sha256")


class Keystream:
    """AES-256-CTR from counter 0 as little-endian unsigned numbers; each is given once.

    With ``scratch``, room for the numbers asked for and one block more, they are written there and hold until
    the next are taken from any stream that shares it: nine partners' pads need one buffer, not nine.
    """

    def __init__(self, key: bytes, bits: int, scratch: bytearray | None = None) -> None:
        cipher, aes, counter = _aes_ctr()
        self._stream = cipher(aes(_sized(key, "an AES key")), counter).encryptor()
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


@functools.cache
def _aes_ctr() -> tuple[Any, Any, Any]:
    """Cipher, AES and counter mode from 0, imported once and not before they are needed."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher, algorithms.AES, modes.CTR(bytes(_BLOCK))


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _text(name: str) -> bytes:
    """A name with its length before it, so that no two lists of names give the same bytes."""
    data = name.encode()
    return len(data).to_bytes(4, "little") + data


def _number(value: int, name: str) -> bytes:
    return _validate.count(value, name, minimum=0).to_bytes(8, "little")


def _sized(data: bytes | bytearray, name: str) -> bytes:
    if not isinstance(data, (bytes, bytearray)) or len(data) != _KEY:
        size = f"{len(data)} bytes" if isinstance(data, (bytes, bytearray)) else type(data).__name__
        raise InvalidInput(f"{name} must be {_KEY} bytes, got {size}.")
    return bytes(data)


# ---- the grid ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaskGrid:
    """The public integers of a masked plan: step, width, bounds and everybody's noise on the grid.

    Made by `mask_grid`, which checks it. ``widths`` are the noises in steps, each rounded up to one that can
    be drawn; ``checks`` zeros are appended to every row so that a sum of rows that do not belong together
    is taken for a true one with probability at most 2^-40.

    Examples
    --------
    >>> import numpy as np
    >>> grid = mask_grid(bound=0.5, sensitivity=1.0, noise_std=[1.2] * 10, dim=1, steps=1)
    >>> grid.step, grid.bits, grid.checks
    (6.103515625e-05, 32, 1)
    >>> rows = grid.integers(np.array([[0.25]] * 10))
    >>> grid.mean(rows.sum(axis=0, dtype=rows.dtype)).tolist()
    [0.25]
    """

    step: float
    bits: int
    bound: int
    widths: tuple[float, ...]
    dim: int
    steps: int
    checks: int

    @property
    def dtype(self) -> Any:
        """The integer type of rows."""
        return _SIGNED[self.bits]

    @property
    def stds(self) -> np.ndarray:
        """The noise standard deviations as drawn, in the unit of the values."""
        return np.array(self.widths) * self.step

    @property
    def range(self) -> float:
        """The bound R on every coordinate of a true sum, in steps; it fails with probability 2^-40."""
        return sum_range(len(self.widths), self.bound, self.widths, self.dim, self.steps)

    @property
    def slack(self) -> float:
        """What must be taken off a clipping radius, so that rounding does not exceed the sensitivity."""
        return self.step * math.sqrt(self.dim) / 2

    def integers(self, rows: np.ndarray) -> np.ndarray:
        """Return clean rows (any number, dim) on the grid, clamped to the bound, with the zeros appended."""
        if rows.shape[-1] != self.dim:
            raise InvalidInput(f"rows must have {self.dim} numbers, got shape {rows.shape}.")
        whole = np.clip(to_grid(rows, self.step), -self.bound, self.bound).astype(self.dtype)
        return np.concatenate([whole, np.zeros((*whole.shape[:-1], self.checks), self.dtype)], axis=-1)

    def place(self, row: np.ndarray) -> np.ndarray:
        """Return a noisy row (dim,) as integers, with the zeros appended; nothing is clamped after noise.

        A number beyond the width of the integers wraps, which spoils the sum and nobody's privacy.
        """
        if row.shape != (self.dim,):
            raise InvalidInput(f"rows must have {self.dim} numbers, got shape {row.shape}.")
        whole = to_grid(row, self.step, len(self.widths)).astype(self.dtype)
        return np.concatenate([whole, np.zeros(self.checks, self.dtype)])

    def add_noise(self, rows: np.ndarray, members: Sequence[int]) -> np.ndarray:
        """Return integer rows of ``members`` with protective noise of their widths on all but the zeros."""
        out = rows.copy()
        for row, member in zip(out, members, strict=True):
            row[: self.dim] += grid_noise(self.dim, self.widths[member]).astype(self.dtype)
        return out

    def mean(self, total: np.ndarray) -> np.ndarray:
        """Return the mean (dim,) of all members from their integer sum, divided once; garbage is refused."""
        whole = np.asarray(total)
        values, zeros = whole[: self.dim], whole[self.dim :]
        if whole.dtype != self.dtype or whole.shape != (self.dim + self.checks,):
            raise InvalidInput(
                f"a sum on this grid is int{self.bits} ({self.dim + self.checks},), got {whole.dtype} "
                f"{whole.shape}."
            )
        # abs of the most negative integer is itself, so compare as floats
        if zeros.any() or (np.abs(values.astype(np.float64)) > self.range).any():
            raise Refused(
                "the sum is not one of rows that belong together: a member sent garbage, or the members "
                "do not agree on the steps before; compare chain heads."
            )
        return from_grid(values, self.step, len(self.widths))

    def hiding_std(self, protocol: Masked, coalition: int | Iterable[int] = ()) -> np.ndarray:
        """Return (n,) the std around each user's value that GDP and PLD curves may use, in values' units.

        Guarantees
        ----------
        A change of a clean row by at most ``d - 2 * slack`` in L2 norm costs the coalition's view at most
        ``d / hiding_std`` in GDP: noises of less than 8 steps count as none, and 4 steps^2 are taken off for
        the noise being discrete.

        Examples
        --------
        >>> import sottovoce as sv
        >>> masked = sv.protocols.Masked(sv.graphs.ring(10))
        >>> grid = mask_grid(bound=0.5, sensitivity=1.0, noise_std=[1.2] * 10, dim=1, steps=1)
        >>> grid.hiding_std(masked, 3).round(3).tolist()[:4]
        [3.601, 3.601, 3.601, 0.0]
        """
        if protocol.n != len(self.widths):
            raise InvalidInput(f"the grid is for {len(self.widths)} members, the protocol has {protocol.n}.")
        found = np.zeros(protocol.n)
        for block in protocol.blocks(coalition):
            variance = counted_variance([self.widths[u] for u in block])
            found[block] = math.sqrt(variance) * self.step
        return found


def mask_grid(
    *,
    bound: float,
    sensitivity: float,
    noise_std: Any,
    dim: int,
    steps: int,
    step: float | None = None,
    bits: int | None = None,
) -> MaskGrid:
    """Return the grid of a masked plan, checked: rounding, noise, range and plausibility.

    Parameters
    ----------
    bound : the largest absolute value of a clean coordinate (the clip norm will do).
    sensitivity : how far one change moves a member's row in L2 norm.
    noise_std : one standard deviation per member, absolute; 0 for a member without noise.
    dim, steps : numbers in a row, and rows of a run.
    step : the grid step, a power of two; by default the largest that meets the conditions.
    bits : 32 or 64; by default 32 where the sums fit.

    Examples
    --------
    >>> grid = mask_grid(bound=1.0, sensitivity=2.0, noise_std=[5.0] * 8, dim=1000, steps=100)
    >>> grid.bits, grid.range < 2**31, math.sqrt(1000) * grid.step <= 1e-3 * 2.0
    (32, True, True)
    """
    std = np.asarray(noise_std, float).ravel()
    if not len(std) or not (np.isfinite(std).all() and (std >= 0).all() and (std > 0).any()):
        raise InvalidInput(f"noise_std must be finite, at least 0 and not all 0, got {noise_std!r}.")
    size, count = _validate.count(dim, "dim"), _validate.count(steps, "steps")
    change, largest = _validate.positive(sensitivity, "sensitivity"), _validate.positive(bound, "bound")
    finest = ROUNDING * change / math.sqrt(size)
    if step is None:
        step = 2.0 ** math.floor(math.log2(min(finest, float(std[std > 0].min()) / _NARROWEST)))
    elif step > finest:
        raise InvalidInput(
            f"the grid step {step:g} rounds away more than a thousandth of the sensitivity; "
            f"{size} numbers of sensitivity {change:g} need at most {finest:g}."
        )
    if (std[std > 0] < COUNTED_FROM * step).any():
        raise InvalidInput(
            f"the least noise, {std[std > 0].min():g}, is below {COUNTED_FROM:g} grid steps of {step:g} and "
            "would count as none; take a finer grid."
        )
    widths = tuple(_width(float(s) / step) if s else 0.0 for s in std)
    clean = math.ceil(largest / step) + 1
    reach = sum_range(len(std), clean, widths, size, count)
    fitting = [
        b for b in ((32, 64) if bits is None else (bits,)) if b in _UNSIGNED and reach < 2.0 ** (b - 1)
    ]
    if not fitting:
        raise InvalidInput(
            f"sums reach {reach:.3g} grid steps, which do not fit {bits or 64} bits; take a larger step, "
            "a smaller clip or less noise."
        )
    # Every coordinate of garbage is uniform: it is plausible with probability 2R/M, a zero with 1/M.
    plausible = size * (math.log2(2 * reach) - fitting[0])
    checks = max(0, math.ceil((_GARBAGE_BITS + plausible) / fitting[0]))
    return MaskGrid(step, fitting[0], clean, widths, size, count, checks)


def sum_range(members: int, bound: float, widths: Iterable[float], dim: int, steps: int) -> float:
    """Return R: no coordinate of any sum of the run exceeds it, but with probability 2^-40.

    ``members * bound + sqrt(2 ln(2^41 dim steps)) * sqrt(sum of widths^2)``, all in grid steps.

    Examples
    --------
    >>> round(sum_range(10, 1000, [100.0] * 10, dim=1, steps=1), 1)
    12384.1
    """
    variance = math.fsum(float(s) ** 2 for s in widths)
    tail = math.sqrt(2 * ((_WRAP_BITS + 1) * math.log(2) + math.log(dim) + math.log(steps)))
    return members * float(bound) + tail * math.sqrt(variance)


def counted_variance(widths: Iterable[float]) -> float:
    """Return the variance, in grid steps squared, that GDP and PLD curves may count for a sum of noises.

    Noises below 8 steps count as none; 4 are taken off for the sum being discrete.

    Examples
    --------
    >>> counted_variance([100.0, 7.9, 0.0]), counted_variance([1.0, 2.0])
    (9996.0, 0.0)
    """
    return max(0.0, math.fsum(s * s for s in map(float, widths) if s >= COUNTED_FROM) - DISCOUNT)


def grid_noise(count: int, width: float, key: bytes | None = None) -> np.ndarray:
    """Return ``count`` protective discrete Gaussians (int64) of a width that `mask_grid` gave.

    With 32 secret bytes as ``key`` they are a function of it, else of a key made now and forgotten.

    Examples
    --------
    >>> draws = grid_noise(4000, 512 * math.sqrt(1 + 3**2))
    >>> draws.dtype, bool(1400 < draws.std() < 1850)
    (dtype('int64'), True)
    """
    size = _validate.count(count, "count", minimum=0)
    if width == 0:
        return np.zeros(size, np.int64)
    factors = _factors(width)
    if not math.isclose(_of_factors(factors), width, rel_tol=1e-12):
        raise InvalidInput(f"no noise of {width!r} grid steps can be drawn; mask_grid rounds widths up.")
    bits = _noise.Bits(key)
    draws = _noise._narrow_gaussian(bits.words(size), bits).astype(np.int64)
    for factor in factors:
        if factor:
            draws += factor * _noise._narrow_gaussian(bits.words(size), bits).astype(np.int64)
    return draws


class GridNoise:
    """A noise source whose protective draws lie on the common grid of a masked plan.

    Rows of different members add up to one discrete Gaussian only if all of them are rounded *before* the
    noise, and to the same grid. Simulated noise passes through: it is rounded with the rows.

    Parameters
    ----------
    source : where noise comes from; a recording keeps and plays back the grid's own integers.
    grid : the plan's grid.
    hosted : for each number that keys the noise, its member and the unit in which its gate adds noise: the
        public divisor that comes after the noise, 1 without one.

    Guarantees
    ----------
    What leaves is an integer of the grid times its step, whatever the value was, with a discrete Gaussian of
    at least the standard deviation asked for; less is refused. Values are clamped to the grid's bound before
    the noise, coordinate by coordinate, which moves no two of them further apart.

    Examples
    --------
    >>> import numpy as np
    >>> from sottovoce.privacy import ProtectiveNoise
    >>> grid = mask_grid(bound=1.0, sensitivity=2.0, noise_std=[5.0] * 3, dim=2, steps=1)
    >>> noise = GridNoise(ProtectiveNoise(), grid, {0: (0, 1.0)})
    >>> row = noise.perturb(np.zeros((1, 2)), agents=[0], step=0, std=5.0) / grid.step
    >>> bool((row == np.rint(row)).all())
    True
    """

    def __init__(
        self, source: _noise.NoiseSource, grid: MaskGrid, hosted: Mapping[int, tuple[int, float]]
    ) -> None:
        self.source, self.grid, self.hosted = source, grid, dict(hosted)
        self.protective = source.protective

    @property
    def common_grid(self) -> bool:
        """Whether rows leave as integers times the grid's step, which float32 would not hold."""
        return self._rounds

    @property
    def _rounds(self) -> bool:
        return _noise.grid_of(self.source, 1.0) > 0

    def perturb(self, values: np.ndarray, *, agents: Any, step: int, std: Any, stream: int = 0) -> np.ndarray:
        """Return the rows with noise; on the grid, and in float64, where the source protects."""
        if not self._rounds:
            return self.source.perturb(values, agents=agents, step=step, std=std, stream=stream)
        numbers = [int(number) for number in agents]
        scale = np.broadcast_to(np.asarray(std, np.float64), (len(numbers),))
        out = np.empty(np.shape(values), np.float64)  # single precision does not hold the integers
        for place, number in enumerate(numbers):
            member, unit = self.hosted[number]
            width = self.grid.widths[member]
            if not 0 < scale[place] <= width * self.grid.step * unit * (1 + 1e-9):
                raise Refused(
                    f"noise of {scale[place]:g} was asked for, member {member} draws "
                    f"{width * self.grid.step * unit:g} on the common grid; nothing was released."
                )
            scaled = np.divide(values[place], self.grid.step * unit, dtype=np.float64)
            if not np.isfinite(scaled).all():
                raise InvalidInput("Protective noise needs finite values; clip them first.")
            whole = np.rint(np.clip(scaled, -self.grid.bound, self.grid.bound)).astype(np.int64)
            whole += self._draw(number, whole, width, step, stream)
            out[place] = whole * (self.grid.step * unit)
        return out

    def slack(self, dim: int, std: float = 1.0) -> float:
        """Return what rounding takes of a clip, and half a step for the noise being discrete."""
        if not self._rounds:
            return self.source.slack(dim, std)
        widest = max(unit for _, unit in self.hosted.values())
        return self.grid.step * widest * (math.sqrt(dim) * (0.5 + 2.0**-10) + 0.5)

    def _draw(self, number: int, whole: np.ndarray, width: float, step: int, stream: int) -> np.ndarray:
        dim = whole.size
        if isinstance(self.source, _noise.KeyedNoise):
            scale = width * self.grid.step * self.hosted[number][1]
            return grid_noise(dim, width, self.source.key_of(number, step, stream, whole, scale))
        if not isinstance(self.source, _noise.RecordedNoise):
            return grid_noise(dim, width)
        key = (number, step, stream)
        if key not in self.source.tape:
            if self.source.source is None:
                raise InvalidInput(
                    f"The recording holds no noise of agent {number} at step {step}, stream {stream}; "
                    "replay the steps that were recorded."
                )
            self.source.tape[key] = grid_noise(dim, width)
        return self.source.tape[key]


class SummedNoise:
    """The law of the sum: what all rows of a step add up to has the right noise, a single row has not.

    Where thousands of members are simulated, drawing everybody's noise takes longer than everything else, and
    behind masks nobody sees more than the sum. The first row then carries the noise of all. A plan takes it
    only over masked sums, with all members in one process and one divisor for all.

    Parameters
    ----------
    seed : any whole number of at least 0; the same seed gives the same bytes.

    Guarantees
    ----------
    None to anybody: a simulation. The mean of the rows has the law it has with a draw for every member.

    Examples
    --------
    >>> noise = SummedNoise(7)
    >>> rows = noise.perturb(np.zeros((4, 50_000)), agents=range(4), step=0, std=1.0)
    >>> abs(float(rows.sum(axis=0).std()) - 2.0) < 0.05, bool(rows[1:].any())
    (True, False)
    """

    protective = False

    def __init__(self, seed: int) -> None:
        self._source = _noise.SimulatedNoise(seed)

    def __repr__(self) -> str:
        return repr(self._source).replace("SimulatedNoise", "SummedNoise")

    def perturb(self, values: np.ndarray, *, agents: Any, step: int, std: Any, stream: int = 0) -> np.ndarray:
        """Return the rows, the first with noise of the root of the sum of all variances."""
        numbers = [int(number) for number in agents]
        scale = np.broadcast_to(np.asarray(std, np.float64), (len(numbers),))
        out = np.array(values, copy=True)
        if numbers:
            total = math.sqrt(math.fsum(np.square(scale)))
            first = self._source.perturb(out[:1], agents=numbers[:1], step=step, std=total, stream=stream)
            out[:1] = first
        return out

    def slack(self, dim: int, std: float = 1.0) -> float:
        """Return 0: nothing is rounded."""
        return 0.0


def _width(wanted: float) -> float:
    """Return the least width of at least ``wanted`` steps that can be drawn."""
    return _of_factors(_factors(wanted))


def _of_factors(factors: tuple[int, int, int]) -> float:
    return _noise._WIDTH * math.sqrt(1 + sum(k * k for k in factors))


@functools.lru_cache(maxsize=1024)
def _factors(width: float) -> tuple[int, int, int]:
    """Return (a, b, c) with the least ``1 + a^2 + b^2 + c^2`` of at least ``(width / 512)^2``.

    Every factor is at most half the width before it, so that the terms blend into one discrete Gaussian: a
    at most 256, and beyond that b at most 65536.
    """
    most = _noise._WIDTH // 2
    # a relative 1e-13 below, so that a width made here is found again in spite of its rounded root
    rest = max(0, math.ceil((width / _noise._WIDTH) ** 2 * (1 - 1e-13)) - 1)
    if rest > most**2 * (1 + most**2):
        raise InvalidInput(f"noise of {width:.3g} grid steps is too wide to draw; take a larger grid step.")
    wide = rest > most**2
    firsts = np.array([most]) if wide else np.arange(most + 1)
    seconds = np.arange(1 + (most**2 if wide else most))
    a, b = np.meshgrid(firsts, seconds, indexing="ij")
    c = np.ceil(np.sqrt(np.maximum(rest - a * a - b * b, 0))).astype(np.int64)
    allowed = (c <= b) & (wide | (b <= a))
    total = np.where(allowed, a * a + b * b + c * c, np.iinfo(np.int64).max)
    best = np.unravel_index(np.argmin(total), total.shape)
    return int(a[best]), int(b[best]), int(c[best])
