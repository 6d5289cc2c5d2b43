"""Masks: the key path against hand-made primitives, and distributions over all keys.

Statistics of what leaves cannot see a short key, so the path from X25519 to the last mask is computed a
second time here from hashlib and single AES blocks.
"""

import hashlib
import itertools
from collections import Counter
from functools import partial

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

import sottovoce as sv
from sottovoce.errors import InvalidInput, Refused
from sottovoce.protocols import Masked
from sottovoce.secure_sum import masks
from sottovoce.secure_sum.keys import MaskKey, mask_label, next_chain, pair_key
from sottovoce.secure_sum.masks import PairMasks, simulated_masks

RUN = hashlib.sha256(b"agreement").digest()
NAMES = ["ward", "clinic", "lab"]

# ---- a second key path, from hashes and single AES blocks ------------------------------------------------


def hand_hmac(key, message):
    key = key.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(b ^ 0x36 for b in key) + message).digest()
    return hashlib.sha256(bytes(b ^ 0x5C for b in key) + inner).digest()


def hand_hkdf(secret, salt, info, length=32):
    extracted, out, block = hand_hmac(salt, secret), b"", b""
    while len(out) < length:
        block = hand_hmac(extracted, block + info + bytes([len(out) // 32 + 1]))
        out += block
    return out[:length]


def hand_keystream(key, size):
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    blocks = (block.update(k.to_bytes(16, "big")) for k in range(-(-size // 16)))
    return b"".join(blocks)[:size]


def prefixed(name):
    return len(name).to_bytes(4, "little") + name.encode()


def hand_session(run_id, version, publics):
    members = b"".join(prefixed(name) + publics[name] for name in sorted(publics))
    return hashlib.sha256(b"session" + run_id + version.to_bytes(8, "little") + members).digest()


def hand_row(member, row, privates, version, step, chain, bits=64):
    """The masked row of one member, from everybody's private key, in Python integers."""
    publics = [key.public_key().public_bytes_raw() for key in privates]
    session = hand_session(RUN, version, dict(zip(NAMES, publics, strict=True)))
    label = RUN + version.to_bytes(8, "little") + step.to_bytes(8, "little") + chain
    out = [int(x) for x in row]
    for other in range(len(privates)):
        if other == member:
            continue
        low, high = sorted([(NAMES[member], publics[member]), (NAMES[other], publics[other])])
        info = b"mask" + prefixed(low[0]) + prefixed(high[0]) + low[1] + high[1]
        secret = privates[other].exchange(X25519PublicKey.from_public_bytes(publics[member]))
        key = hand_hkdf(secret, session, info)
        for _ in range(step):
            key = hand_hmac(key, b"next")
        stream = hand_keystream(hand_hmac(key, label), len(row) * bits // 8)
        sign = 1 if other > member else -1
        for j in range(len(row)):
            out[j] += sign * int.from_bytes(stream[j * bits // 8 : (j + 1) * bits // 8], "little")
    half = 2 ** (bits - 1)
    return [(x + half) % (2 * half) - half for x in out]


# ---- masks of three members ------------------------------------------------------------------------------


def agreed(version=0, bits=64, run_id=RUN, privates=None):
    """Three members' masks, and their private keys."""
    privates = privates or [X25519PrivateKey.from_private_bytes(bytes([k] * 32)) for k in (1, 2, 3)]
    keys = [MaskKey(private, protective=False) for private in privates]
    publics = [key.public for key in keys]
    options = {"run_id": run_id, "membership_version": version, "bits": bits}
    members = [
        PairMasks.agree(key, v, NAMES, publics, {0, 1, 2} - {v}, **options) for v, key in enumerate(keys)
    ]
    return members, privates


def masks_of(member, count=16, step=0, chain=RUN):
    return member.hide(np.zeros(count, np.int64), step, chain)


def test_masked_rows_are_those_of_the_hand_made_key_path():
    for bits, dtype in ((64, np.int64), (32, np.int32)):
        members, privates = agreed(version=3, bits=bits)
        chain = RUN
        for step in range(3):
            rows = np.random.default_rng(step).integers(-99, 99, size=(3, 21), dtype=dtype)
            for v, member in enumerate(members):
                hidden = member.hide(rows[v], step, chain)
                assert hidden.dtype == dtype
                assert hidden.tolist() == hand_row(v, rows[v], privates, 3, step, chain, bits)
                member.ratchet()
            chain = next_chain(chain, step, rows.sum(axis=0, dtype=dtype))


def test_masks_cancel_in_the_sum():
    rows = np.random.default_rng(0).integers(-(2**62), 2**62, size=(3, 3 * 8192 + 5))
    members, _ = agreed()
    hidden = np.array([member.hide(row, 0, RUN) for member, row in zip(members, rows, strict=True)])
    exact = [(sum(int(x) for x in column) + 2**63) % 2**64 - 2**63 for column in rows[:, ::97].T]
    assert Masked(sv.graphs.path(3)).apply(hidden)[0, ::97].tolist() == exact
    assert (hidden != rows).mean() > 0.999


def test_every_coordinate_has_a_mask_of_its_own():
    for member in agreed()[0]:
        assert len(set(masks_of(member, 20_000).tolist())) == 20_000


def test_steps_chains_versions_runs_and_keys_have_their_own_masks():
    """Other step, chain, membership version, run, or members' keys: other masks, in every coordinate.

    The label separates what the ratchet and the session separate too: each of them must hold by itself.
    """
    fresh = [X25519PrivateKey.from_private_bytes(bytes([k] * 32)) for k in (1, 2, 9)]
    later = agreed()[0][0]
    later.ratchet()
    agreed_masks = [
        masks_of(agreed()[0][0]),
        masks_of(agreed()[0][0], chain=next_chain(RUN, 0, np.array([1]))),
        masks_of(later, step=1),
        masks_of(agreed(version=1)[0][0]),
        masks_of(agreed(run_id=bytes(32))[0][0]),
        masks_of(agreed(privates=fresh)[0][0]),
    ]
    labeled = partial(PairMasks, 0, {1: bytes(range(32))})
    by_label_alone = [
        masks_of(labeled(run_id=RUN)),
        masks_of(labeled(run_id=RUN, membership_version=1)),
        masks_of(labeled(run_id=RUN, step=1), step=1),
        masks_of(labeled(run_id=bytes(32))),
        masks_of(labeled(run_id=RUN), chain=bytes(32)),
    ]
    for several in (agreed_masks, by_label_alone):
        for one, two in itertools.combinations(several, 2):
            assert not (one == two).any()


def test_one_row_is_masked_under_a_label():
    member = agreed()[0][0]
    first = member.hide(np.arange(4), 0, RUN)
    assert (member.hide(np.arange(4), 0, RUN) == first).all()
    with pytest.raises(Refused, match="same label"):
        member.hide(np.arange(4) + 1, 0, RUN)
    restored = PairMasks.from_dict(member.to_dict())
    for _ in range(2):  # also where the other row comes first
        with pytest.raises(Refused, match="same label"):
            restored.hide(np.arange(4) + 1, 0, RUN)
        assert (restored.hide(np.arange(4), 0, RUN) == first).all()
    with pytest.raises(ValueError, match="read-only"):
        first += 1  # what later rows are compared with cannot be changed from outside


def test_keys_move_on_and_are_erased():
    member = agreed()[0][0]
    before = member.to_dict()["keys"]
    member.ratchet()
    after = member.to_dict()["keys"]
    for w in before:
        assert bytes.fromhex(after[w]) == hand_hmac(bytes.fromhex(before[w]), b"next")
    with pytest.raises(Refused, match="step 1"):
        member.hide(np.arange(4), 0, RUN)
    held = list(member._keys.values())
    member.erase()
    assert not any(any(key) for key in held)
    for call in (lambda: member.hide(np.arange(4), 1, RUN), member.ratchet, member.to_dict):
        with pytest.raises(Refused, match="erased"):
            call()


def test_floats_are_never_masked():
    member = agreed()[0][0]
    for dtype in (np.float64, np.float32, np.int32, np.uint64):
        with pytest.raises(InvalidInput, match="never touch floats"):
            member.hide(np.zeros(3, dtype), 0, RUN)
    for dtype in (np.float64, np.float32):
        with pytest.raises(InvalidInput, match="integer sums"):
            next_chain(RUN, 0, np.zeros(3, dtype))


def test_keys_have_32_bytes():
    for short in (b"", bytes(4), bytes(16), bytes(31), bytes(33)):
        with pytest.raises(InvalidInput, match="32 bytes"):
            PairMasks(0, {1: short}, run_id=RUN)
        with pytest.raises(InvalidInput, match="32 bytes"):
            masks.Keystream(short, 64)


def without_names(key, name, other, other_public, session):
    return bytearray(hand_hkdf(key.secret_with(other_public), session, b"mask"))


def always_added(row, member, pads):
    for _, pad in pads:
        row += pad


# ---- the member that copies a key ------------------------------------------------------------------------


@pytest.mark.parametrize(("derive", "clear"), [(without_names, True), (pair_key, False)])
def test_a_copied_key_brings_a_row_out_in_clear_only_without_names(derive, clear):
    """Member 2 publishes member 0's key, past the refusal: without names the masks of row 1 cancel."""
    own = [MaskKey.simulated(5, v) for v in (0, 1)]
    pairs = {w: derive(own[1], "clinic", NAMES[w], own[0].public, bytes(32)) for w in (0, 2)}
    row = np.arange(1, 9)
    shown = PairMasks(1, pairs, run_id=RUN).hide(row, 0, RUN) == row
    assert shown.all() if clear else not shown.any()


def test_copied_keys_are_refused_in_every_encoding():
    own = [MaskKey.simulated(5, v) for v in (0, 1)]
    flipped = own[0].public[:31] + bytes([own[0].public[31] ^ 0x80])
    assert own[1].secret_with(flipped) == own[1].secret_with(own[0].public)  # X25519 ignores the bit
    for copy in (own[0].public, flipped):
        with pytest.raises(Refused, match="'lab' and 'ward' published the same key"):
            PairMasks.agree(own[1], 1, NAMES, [own[0].public, own[1].public, copy], [0, 2], run_id=RUN)
    # and should the refusal be passed, the keys differ all the same
    session = bytes(32)
    one = pair_key(own[1], "clinic", "ward", own[0].public, session)
    two = pair_key(own[1], "clinic", "lab", flipped, session)
    assert one != two


def test_members_without_a_key_or_with_another_are_refused():
    keys = [MaskKey.fresh() for _ in range(3)]
    publics = [key.public for key in keys]
    with pytest.raises(Refused, match="'lab' gave no mask key"):
        PairMasks.agree(keys[0], 0, NAMES, [*publics[:2], None], [1, 2], run_id=RUN)
    with pytest.raises(Refused, match="not its own"):
        PairMasks.agree(keys[0], 0, NAMES, [publics[1], publics[0], publics[2]], [1, 2], run_id=RUN)
    with pytest.raises(InvalidInput, match="name of its own"):
        PairMasks.agree(keys[0], 0, ["a", "a", "b"], publics, [1, 2], run_id=RUN)


def test_peers_keys_come_from_the_operating_system_and_simulated_ones_say_so():
    protocol = Masked(sv.graphs.ring(4))
    first, again = simulated_masks(protocol, 7), simulated_masks(protocol, 7)
    assert not any(member.protective for member in first)
    assert "simulation" in repr(first[0])
    for one, two in zip(first, again, strict=True):
        assert (masks_of(one) == masks_of(two)).all()
    assert not (masks_of(simulated_masks(protocol, 8)[0]) == masks_of(first[0])).any()
    keys = [MaskKey.fresh() for _ in range(3)]
    publics = [key.public for key in keys]
    assert PairMasks.agree(keys[0], 0, NAMES, publics, [1, 2], run_id=RUN).protective


# ---- what is seen: all keys of small moduli ---------------------------------------------------------------


def distributions(n, edges, coalition, modulus, mask=masks.add_masks):
    """Distribution of what coalition and tapper see, per honest rows X: {X: Counter over all keys}."""
    known = [e for e in edges if set(e) & set(coalition)]
    unknown = [e for e in edges if not set(e) & set(coalition)]
    every = np.array(list(itertools.product(range(modulus), repeat=len(edges))), np.uint64)
    pads = {e: every[:, j] for j, e in enumerate([*known, *unknown])}
    honest = [u for u in range(n) if u not in coalition]
    seen_by_rows = {}
    for rows in itertools.product(range(modulus), repeat=len(honest)):
        seen = [pads[e] for e in known]
        for u, x in zip(honest, rows, strict=True):
            shared = [(sum(e) - u, pads[e]) for e in edges if u in e]
            # begin high enough that nothing falls below zero: 2^64 is no multiple of 3
            row = np.full(len(every), x + modulus * len(shared), np.uint64)
            mask(row, u, shared)
            seen.append(row % np.uint64(modulus))
        seen_by_rows[rows] = Counter(map(tuple, np.array(seen).T.tolist()))
    return honest, seen_by_rows


def sums(n, edges, coalition, honest, rows, modulus):
    """Sums over components by growing them edge by edge."""
    group = {u: {u} for u in honest}
    for u, w in edges:
        if u in group and w in group and group[u] is not group[w]:
            group[u] |= group[w]
            for v in group[w]:
                group[v] = group[u]
    value = dict(zip(honest, rows, strict=True))
    parts = {min(g): sum(value[u] for u in g) % modulus for g in group.values()}
    return tuple(sorted(parts.items()))


GRAPHS = [
    (3, [(0, 1), (0, 2), (1, 2)]),
    (3, [(0, 1), (1, 2)]),
    (4, [(0, 1), (1, 2), (2, 3), (0, 3)]),
    (4, [(0, 1), (2, 3)]),
    (4, [(0, 1), (0, 2), (0, 3), (1, 2)]),
]


def only_sums_matter(n, edges, coalition, modulus, mask=masks.add_masks):
    honest, seen_by_rows = distributions(n, edges, coalition, modulus, mask)
    by_sums = {}
    for rows, seen in seen_by_rows.items():
        assert len(set(seen.values())) == 1  # uniform on what can be seen
        by_sums.setdefault(sums(n, edges, coalition, honest, rows, modulus), []).append(seen)
    for same in by_sums.values():
        assert all(seen == same[0] for seen in same)
    supports = [set(same[0]) for same in by_sums.values()]
    assert sum(map(len, supports)) == len(set().union(*supports))  # other sums are told apart, always


@pytest.mark.parametrize("modulus", [2, 3, 4])
@pytest.mark.parametrize(("n", "edges"), GRAPHS)
def test_over_all_keys_the_view_is_a_function_of_component_sums(n, edges, modulus):
    for size in range(n):
        for coalition in itertools.combinations(range(n), size):
            only_sums_matter(n, edges, coalition, modulus)


def test_the_enumeration_sees_masks_that_do_not_cancel():
    with pytest.raises(AssertionError):
        only_sums_matter(3, GRAPHS[0][1], (), 3, always_added)


def test_the_enumeration_and_the_account_name_the_same_components():
    for n, edges in GRAPHS:
        protocol = Masked(sv.graphs.complete(n), partners=edges, tolerate=None)
        for size in range(n):
            for coalition in itertools.combinations(range(n), size):
                honest, seen_by_rows = distributions(n, edges, coalition, 2)
                distinct = len({frozenset(seen) for seen in seen_by_rows.values()})
                assert distinct == 2 ** len(protocol.blocks(coalition))
                assert len(seen_by_rows) == 2 ** len(honest)


# ---- what leaves ------------------------------------------------------------------------------------------


def wire(key_sets):
    """The bytes of one fixed row of member 1 under many key sets, four members."""
    protocol = Masked(sv.graphs.star(4))
    row = np.array([0, 1, -1, 2**40, 12345, 0, 0, -(2**62)])
    return np.array([simulated_masks(protocol, seed)[1].hide(row, 0, RUN) for seed in range(key_sets)])


def uniform_p(sent):
    data = sent.view(np.uint8).ravel()
    return stats.chisquare(np.bincount(data, minlength=256)).pvalue


def serial_p(sent):
    """Bits against the bits one key set later, and one number later."""
    bits = np.unpackbits(sent.view(np.uint8).reshape(len(sent), -1), axis=1)
    agree = [(bits[1:] == bits[:-1]), (bits[:, 64:] == bits[:, :-64])]
    return min(stats.binomtest(int(a.sum()), a.size).pvalue for a in agree)


def test_wire_bytes_of_a_fixed_row_over_a_thousand_key_sets():
    sent = wire(1000)
    assert uniform_p(sent) > 1e-4
    assert serial_p(sent) > 1e-4
    # the tests have power: small masks, and masks used again, are seen
    assert uniform_p(sent & np.int64(2**62 - 1)) < 1e-6
    again = sent.copy()
    again[1::2] = again[::2]
    assert serial_p(again) < 1e-6


@pytest.mark.parametrize("coalition", [(), (0,), (0, 3), (2, 4, 5)])
def test_a_coalition_with_its_keys_computes_what_the_protocol_says_it_observes(coalition):
    """From the wire: take off every mask whose key the coalition holds, add up the blocks."""
    rng = np.random.default_rng(4)
    protocol = Masked(sv.graphs.star(7), partners=sv.graphs.ring(7), tolerate=1)
    rows = rng.integers(-1000, 1000, size=(7, 30))
    members = simulated_masks(protocol, 9, run_id=RUN)
    tapped = np.array([m.hide(row, 0, RUN) for m, row in zip(members, rows, strict=True)]).view(np.uint64)
    label = mask_label(RUN, 0, 0, RUN)
    for a in coalition:
        for u, key in members[a]._keys.items():
            pad = masks.Keystream(masks.step_key(key, label), 64).take(30)
            tapped[u] += pad if u > a else -pad  # u subtracted it if a is lower
    left = tapped.view(np.int64)
    seen = protocol.observe(rows, coalition)
    for known, block in zip(seen[len(coalition) :], protocol.blocks(coalition), strict=True):
        assert (left[block].sum(axis=0) == known).all()
        assert (known == rows[block].sum(axis=0)).all()
        for u in block:
            assert (left[u] == rows[u]).all() == (len(block) == 1)


def test_members_who_disagree_about_the_past_do_not_cancel():
    members, _ = agreed()
    other = next_chain(RUN, 0, np.array([1]))
    hidden = np.array([m.hide(np.arange(50), 0, c) for m, c in zip(members, (RUN, RUN, other), strict=True)])
    total = Masked(sv.graphs.path(3)).apply(hidden)[0]
    assert not (total == 3 * np.arange(50)).any()
    assert np.abs(total).min() > 2**40
