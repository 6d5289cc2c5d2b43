"""Keys of masks: RFC vectors, keys and names that must be refused, labels and the chain."""

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.errors import InvalidInput, Refused
from sottovoce.secure_sum.keys import MaskKey, mask_label, next_chain, pair_key, session_hash

RUN = hashlib.sha256(b"agreement").digest()


def test_x25519_meets_rfc_7748():
    """Section 6.1: Bob's key, Alice's public key, their secret."""
    bob = X25519PrivateKey.from_private_bytes(
        bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    )
    key = MaskKey(bob, protective=False)
    assert key.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    alice = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    secret = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert key.secret_with(alice).hex() == secret


@pytest.mark.parametrize("order", [0, 1, 2**255 - 19 - 1, 2**255 - 19, 2**255 - 18])
def test_keys_of_low_order_are_refused(order):
    low = order.to_bytes(32, "little")
    key = MaskKey.fresh()
    with pytest.raises(Refused, match="low order"):
        pair_key(key, "ward", "lab", low, bytes(32))


def test_names_cannot_be_cut_differently():
    key, other = MaskKey.simulated(1, 0), MaskKey.simulated(1, 1)
    cuts = [("ab", "c"), ("a", "bc"), ("abc", ""), ("c", "ab")]
    assert len({bytes(pair_key(key, *cut, other.public, bytes(32))) for cut in cuts}) == 4
    publics = {"ab": key.public, "c": other.public}
    assert session_hash(RUN, 0, publics) != session_hash(RUN, 0, {"a": key.public, "bc": other.public})


def test_chain_is_a_hash_of_integers():
    total = np.array([3, -4])
    expected = hashlib.sha256(RUN + (7).to_bytes(8, "little") + total.astype("<i8").tobytes()).digest()
    assert next_chain(RUN, 7, total) == expected
    assert len({mask_label(RUN, e, t, d) for e in (0, 1) for t in (0, 1) for d in (RUN, bytes(32))}) == 8


def test_a_key_is_stored_and_simulated_keys_follow_from_the_seed():
    key = MaskKey.fresh()
    assert len(key.public) == 32
    assert key.protective
    assert MaskKey.from_bytes(key.to_bytes()).public == key.public
    assert MaskKey.simulated(7, 0).public == MaskKey.simulated(7, 0).public != MaskKey.simulated(7, 1).public
    assert not MaskKey.simulated(7, 0).protective


def test_the_session_binds_run_version_and_keys():
    keys = {"north": MaskKey.simulated(1, 0).public, "south": MaskKey.simulated(1, 1).public}
    assert session_hash(RUN, 0, keys) != session_hash(RUN, 1, keys)
    assert session_hash(RUN, 0, keys) != session_hash(bytes(32), 0, keys)
    with pytest.raises(Refused, match="'north' and 'south' published the same key"):
        session_hash(RUN, 0, {"north": keys["north"], "south": keys["north"]})
    with pytest.raises(InvalidInput, match="'north' twice"):
        pair_key(MaskKey.simulated(1, 0), "north", "north", keys["south"], RUN)
