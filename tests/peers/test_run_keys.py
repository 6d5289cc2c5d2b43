"""The secrets of a run: one key per run, one row per label, masks that cancel, nothing left on the disk.

Masked rows are computed once more from the private keys with nothing but hashes and AES, by the formulas.
"""

import hashlib
import hmac
import json
import os
import shutil
import signal
import struct
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from verification.simulator import Faults, World, masked_shapes
from verification.stolen_folder import contains, saved_states

from sottovoce import graphs
from sottovoce.errors import ConfigError, FrameError, IdentityError, LedgerError, Refused, SottovoceError
from sottovoce.ledger.run_ledger import RunLedger
from sottovoce.ledger.store import Entry
from sottovoce.noise.discrete import discrete_gaussian
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import KeyedNoise, ProtectiveNoise, RecordedNoise
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement import merge_signatures, parse_agreement, sign_agreement
from sottovoce.peers.identity import CertificateSigner
from sottovoce.peers.run_keys import RunKeys, read_mask_key
from sottovoce.peers.status import read_status
from sottovoce.peers.wire_format import ROW, FrameCodec
from sottovoce.report.inputs import read_input
from sottovoce.report.sections import section_of
from sottovoce.runners.state import unpack
from sottovoce.secure_sum import masks

SGD = {
    "name": "consensus-sgd",
    "adjacency": "add-remove",
    "clip_norm": 1.0,
    "noise_multiplier": 8.0,
    "steps": 3,
    "learning_rate": 0.5,
    "batch_size": 6.0,
    "sample_rate": 0.5,
}
ALGORITHMS = {
    "tree": {**SGD, "protocol": "tree"},
    "gossip": {**SGD, "name": "dp-dsgt", "protocol": "gossip:1"},
    "fresh-noise": {**SGD, "name": "muffliato-sgd", "protocol": "fresh-noise:2:fresh=0.5"},
    "masked": {**SGD, "protocol": "masked"},
}


def mask_key(group, i):
    """Read the key of member i, as it waits between signing and the first row."""
    agreement = group.agreement
    return read_mask_key(group.folder / f"secrets-m{i}", agreement.run_id, agreement.membership_version)


def programs(group, noises):
    """Return the program of every member."""
    agreed_run = AgreedRun(group.agreement)
    parts = zip(group.records, noises, strict=True)
    return [agreed_run.program(i, *part, mask_key(group, i)) for i, part in enumerate(parts)]


def keyed_programs(consortium, name):
    group = consortium(3, "path:3", ALGORITHMS[name], dim=2)
    return programs(group, [RunKeys(bytes(32), 0) for _ in range(3)])


def play(parts, rounds):
    """Run some rounds of all members in step; return what each sent, and the states before each round."""
    sent, states = [], []
    for part in parts:
        if not part.begun:
            part.begin()
    for _ in range(rounds):
        r = parts[0].at
        states.append([part.snapshot() for part in parts])
        rows = {part.node: part.message().copy() for part in parts if part.sends(r)}
        sent.append(rows)
        for part in parts:
            part.receive({s: rows[s] for s in part.expects(r)})
    return sent, states


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_member_set_back_sends_the_same_bytes(name, consortium):
    """Rolled back by one round or many, on the same inputs: every later row is the same to the last bit."""
    parts = keyed_programs(consortium, name)
    rounds = parts[0].rounds
    sent, states = play(parts, rounds)
    for back in range(1, rounds):
        for part, state in zip(parts, states[back], strict=True):
            part.restore(state)
        again, _ = play(parts, rounds - back)
        for first, second in zip(sent[back:], again, strict=True):
            assert {s: row.tobytes() for s, row in first.items()} == {
                s: row.tobytes() for s, row in second.items()
            }
    assert all(part.keys.to_dict()["key"] is part.keys.to_dict()["rounds"] is None for part in parts)


def test_other_inputs_give_independent_noise(consortium):
    parts = keyed_programs(consortium, "gossip")
    _, states = play(parts, 2)
    part = parts[0]
    rows = []
    for moved in (0.0, 1e-9):
        part.restore(states[1][0])
        r = part.at
        part.receive({s: np.full(len(part.message()), moved) for s in part.expects(r)})
        rows.append(part.message().copy())
    assert (abs(rows[0] - rows[1])[2:] > 1e-6).all()  # the tracker: what moved it is noise, not the input


def test_labels_tell_everything_apart():
    """The key path by a vector of its own: HMAC over run, membership version, turn, chain and the row's
    label.
    """
    key, run_id = bytes(range(32)), hashlib.sha256(b"run").digest()
    keys = RunKeys(run_id, 7, key)
    row = np.array([3.0, -0.0, 5.0])
    label = struct.pack("<3Qd", 1, 2, 4, 0.5) + hashlib.sha256(np.array([3.0, 0.0, 5.0]).tobytes()).digest()
    head = b"sottovoce run key\n" + run_id + struct.pack("<QQ", 7, 0) + run_id
    assert keys.noise.key_of(1, 2, 4, row, 0.5) == hmac.digest(key, head + b"noise" + label, "sha256")
    base = keys.noise.key_of(1, 2, 4, row, 0.5)
    others = [
        keys.noise.key_of(0, 2, 4, row, 0.5), keys.noise.key_of(1, 3, 4, row, 0.5),
        keys.noise.key_of(1, 2, 5, row, 0.5), keys.noise.key_of(1, 2, 4, row + 1, 0.5),
        keys.noise.key_of(1, 2, 4, row, 0.25), RunKeys(run_id, 8, key).noise.key_of(1, 2, 4, row, 0.5),
        RunKeys(bytes(32), 7, key).noise.key_of(1, 2, 4, row, 0.5), keys.batches,
    ]  # fmt: skip
    keys.received(b"a row")
    others.append(keys.noise.key_of(1, 2, 4, row, 0.5))
    keys.turn_over()
    others += [keys.noise.key_of(1, 2, 4, row, 0.5), keys.round_noise.key_of(1, 2, 4, row, 0.5)]
    assert len({base, *others}) == len(others) + 1


def test_the_key_is_ratcheted_and_erased():
    """What is kept after a turn is its successor; the key of a past step is nowhere in it."""
    keys = RunKeys(bytes(32), 0)
    first = keys.to_dict()["key"]
    keys.turn_over()
    assert keys.to_dict()["key"] == hmac.digest(bytes.fromhex(first), b"next", "sha256").hex()
    assert first not in str(keys.to_dict())
    keys.erase()
    assert (keys.to_dict()["key"], keys.to_dict()["rounds"]) == (None, None)
    with pytest.raises(Refused, match="erased"):
        keys.noise.perturb(np.zeros((1, 1)), agents=[0], step=0, std=1.0)


def test_keys_come_from_the_operating_system():
    """I13: two runs of one agreement share nothing, whatever anybody has seeded."""
    drawn = []
    for _ in range(2):
        np.random.seed(1)  # noqa: NPY002 - what a user may do
        keys = RunKeys(bytes(32), 0)
        drawn.append(keys.noise.perturb(np.zeros((1, 64)), agents=[0], step=0, std=1.0))
    assert not (drawn[0] == drawn[1]).any()


def test_keyed_noise_has_the_distribution_of_protective_noise():
    """I8 on the keyed path: 200,000 numbers over many labels; 2 % of the scale would be 13 deviations off."""
    keys = RunKeys(bytes(32), 0, bytes(32))
    noise = KeyedNoise(keys.noise.derive)
    rows = np.concatenate(
        [noise.perturb(np.zeros((1, 2000)), agents=[0], step=k, std=3.0)[0] for k in range(100)]
    )
    assert abs(rows.std() / 3.0 - 1) < 0.008
    assert abs(rows.mean()) < 4.5 * 3.0 / np.sqrt(len(rows))
    steps = rows.reshape(100, 2000)
    assert abs(np.corrcoef(steps[:-1].ravel(), steps[1:].ravel())[0, 1]) < 0.012


def test_a_key_gives_the_same_draws_in_every_process():
    """A vector: a change of the sampler would let a replay differ from what was sent before an upgrade."""
    draws = discrete_gaussian(70_000, bytes(range(32)))
    assert draws[:3].tolist() == [90295, 7161, 134028]
    assert hashlib.sha256(draws.tobytes()).hexdigest() == (
        "a21af0ffaf0738a7aec89f5f591854e1d83877c831bee334df4444d5c7c70800"
    )


# ---- masked rows ------------------------------------------------------------------------------------------

STEPS, CLIP = 3, 0.6
LEARNING = {
    "name": "consensus-sgd", "protocol": "masked", "adjacency": "user", "clip_norm": CLIP, "steps": STEPS,
    "noise_multiplier": 8.0, "learning_rate": 0.3,
}  # fmt: skip


@pytest.fixture
def group(consortium):
    def make(n=3, graph="path:3", algorithm=None, **more):
        return consortium(
            n=n, graph=graph, algorithm={**LEARNING, **(algorithm or {})}, epsilon=500.0, **more
        )

    return make


def private_keys(group):
    """Read everybody's private key, as it waits between signing and the first row."""
    keys = []
    for i in range(group.n):
        (file,) = (group.folder / f"secrets-m{i}").iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
        keys.append(bytes.fromhex(file.read_text()))
    return keys


# ---- the wire, by hand -----------------------------------------------------------------------------------


def hkdf(secret, salt, info):
    extracted = hmac.digest(salt, secret, "sha256")
    return hmac.digest(extracted, info + b"\1", "sha256")


def pads(group, privates, u, w, version, chains, count, bits):
    """Return the masks of one pair, step by step, from private keys: X25519, HKDF, HMAC and AES-256-CTR."""
    run_id = group.agreement.run_id
    keys = [X25519PrivateKey.from_private_bytes(raw) for raw in privates]
    publics = [key.public_key().public_bytes_raw() for key in keys]
    names = [f"m{i}" for i in range(group.n)]
    sized = [len(name).to_bytes(4, "little") + name.encode() for name in names]
    all_keys = b"".join(a + b for a, b in zip(sized, publics, strict=True))
    session = hashlib.sha256(b"session" + run_id + version.to_bytes(8, "little") + all_keys).digest()
    low, high = min(u, w), max(u, w)
    shared = keys[u].exchange(X25519PublicKey.from_public_bytes(publics[w]))
    key = hkdf(shared, session, b"mask" + sized[low] + sized[high] + publics[low] + publics[high])
    out = []
    for step, chain in enumerate(chains):
        label = run_id + version.to_bytes(8, "little") + step.to_bytes(8, "little") + chain
        stream = Cipher(algorithms.AES(hmac.digest(key, label, "sha256")), modes.CTR(bytes(16))).encryptor()
        out.append(np.frombuffer(stream.update(bytes(count * bits // 8)), f"<u{bits // 8}"))
        key = hmac.digest(key, b"next", "sha256")
    return out


def check_wire(group, links_of, membership_version=0):
    """Run the members, take their masks off by hand, and compare what is left with what they computed."""
    privates = private_keys(group)
    tapes = [RecordedNoise(ProtectiveNoise()) for _ in range(group.n)]
    connections = links_of()
    outcomes = group.run(noises=[RunRandomness(tape, 7, 0) for tape in tapes], transport=connections)
    agreed_run = AgreedRun(group.agreement)
    grid, tree = agreed_run.grid, agreed_run.plan.schedule(0)
    certificates = [member.certificate.encode() for member in group.agreement.members]
    codec = replace(agreed_run.codec, signer=CertificateSigner(group.identities[0], certificates))
    rows = {}
    for sender, _, raw in connections.carried:
        if FrameCodec.kind_of(raw) == ROW:
            rows[sender, codec.decode(raw).round] = codec.values(codec.decode(raw))
    leaves = [v for v in range(group.n) if v != tree.root and tree.node_state(v).sends(0)]
    sums = [rows[tree.root, k * tree.rounds + tree.tree.depth] for k in range(agreed_run.steps)]
    chains = [group.agreement.run_id]
    for step, total in enumerate(sums):
        chains.append(hashlib.sha256(chains[-1] + step.to_bytes(8, "little") + total.tobytes()).digest())
    theta = np.zeros(3)
    for step in range(agreed_run.steps):
        theta = theta - 0.3 * (sums[step][: grid.dim].astype(float) / group.n * grid.spacing)
    assert np.allclose(theta, outcomes[0].model, rtol=0, atol=1e-12)
    for u in leaves:
        for step in range(agreed_run.steps):
            clear = rows[u, step * tree.rounds].astype(f"u{grid.bits // 8}")
            for w in tree.partners(u):
                pad = pads(group, privates, u, w, membership_version, chains[:-1], len(clear), grid.bits)[
                    step
                ]
                clear = clear - pad if w > u else clear + pad
            whole = clear.astype(f"i{grid.bits // 8}")[: grid.dim].astype(np.int64)
            # what is left is the clipped clean row on the grid: noise and masks are gone
            clean = (whole - tapes[u].tape[u, step, 0]) * grid.spacing
            assert 0 < np.linalg.norm(clean) <= CLIP
    return len(leaves)


def test_the_wire_is_what_the_formulas_say(group, memory_links):
    assert check_wire(group(membership_version=5), memory_links, membership_version=5) == 2


def test_signs_turned_round_are_caught_though_the_sums_stay_right(group, memory_links, monkeypatch):
    members, true = group(membership_version=5), masks.add_masks

    def mirrored(row, member, pads_of_others):
        true(row, -member, ((-other, pad) for other, pad in pads_of_others))

    monkeypatch.setattr(masks, "add_masks", mirrored)
    with pytest.raises(AssertionError):
        check_wire(members, memory_links, membership_version=5)


def test_a_sign_error_of_one_member_spoils_the_sum_and_stops_the_run(group, memory_links, monkeypatch):
    members, true = group(), masks.add_masks

    def wrong(row, member, pads_of_others):
        true(row, member if member != 0 else 99, pads_of_others)

    monkeypatch.setattr(masks, "add_masks", wrong)
    with pytest.raises(Refused, match="not one of rows that belong together"):
        members.run(transport=memory_links())


def test_float_rows_do_not_reach_a_masked_wire(group):
    agreed_run = AgreedRun(group().agreement)
    with pytest.raises(FrameError, match="masked row is int"):
        agreed_run.codec.row(np.zeros(agreed_run.codec.dim), sender=0, round=0)


# ---- one row per label, keys on the disk ------------------------------------------------------------------


def protected_program(group):
    return programs(group, [ProtectiveNoise() for _ in range(group.n)])[0]


def test_a_saved_state_cannot_hide_a_second_row_of_its_step(group):
    members = group()
    first = protected_program(members)
    first.begin()
    sent, saved = first.message().copy(), first.snapshot()
    again = protected_program(members)
    again.restore(saved)
    assert (again.message() == sent).all()  # stored bytes, though noise was drawn afresh
    with pytest.raises(Refused, match="keys are those of step 1"):
        again.masked.masks.hide(sent, 0, members.agreement.run_id)


def test_a_restart_draws_the_same_batches(group):
    sampled = {"adjacency": "add-remove", "batch_size": 4.0, "sample_rate": 0.34}
    members = group(algorithm=sampled)
    first, other = protected_program(members), protected_program(members)
    first.begin()
    batches = [first.mechanism.batches.draw([0], k)[0].tolist() for k in range(20)]
    assert batches != [other.mechanism.batches.draw([0], k)[0].tolist() for k in range(20)]
    other.restore(first.snapshot())
    assert batches == [other.mechanism.batches.draw([0], k)[0].tolist() for k in range(20)]


def test_no_key_is_left_when_the_run_is_over(group, memory_links, monkeypatch):
    members, seen = group(), set()
    true = masks.step_key

    def listening(key, label):
        seen.add(bytes(key))
        return true(key, label)

    monkeypatch.setattr(masks, "step_key", listening)
    seen.update(private_keys(members))
    members.run(transport=memory_links())
    assert len(seen) == 3 + 3 * STEPS  # three private keys, and three pairs with a key per step
    files = [file for file in members.folder.rglob("*") if file.is_file()]
    assert any(file.name == "run.ledger" for file in files)
    assert not [file for file in files if file.name.startswith("mask-")]
    for file in files:
        content = file.read_bytes()
        assert not any(key in content or key.hex().encode() in content for key in seen), file


@pytest.mark.parametrize(("name", "steps"), [("gossip", 40), ("masked", 18)])
def test_a_folder_killed_at_any_row_holds_the_current_keys_only(name, steps, consortium, tmp_path):
    """I26: the log still holds past states, and neither it nor any other file tells a key of a past step."""
    members = consortium(3, "path:3", {**ALGORITHMS[name], "steps": steps}, dim=2)
    seeds = [hashlib.sha256(b"%d" % i).digest() for i in range(3)]

    def started():
        return programs(members, [RunKeys(bytes(32), 0, seed) for seed in seeds])

    _, states = play(started(), started()[0].rounds)
    own = [before[0] for before in states]
    keys = [key_set(state) for state in own]
    assert all(keys)
    past_states = 0
    for rows in range(1, len(own) + 1):
        folder = tmp_path / f"killed{rows}"
        child = os.fork()
        if child == 0:
            try:
                with_ledger(started(), folder, rows)
            finally:
                os._exit(3)  # only reached if something failed
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        current = keys[rows - 1]
        past = set().union(*keys[:rows]) - current
        assert not [key for key in past | current if contains(folder, key)]
        stolen = saved_states(folder, b"s" * 32, 0)
        assert [each.plain for each in stolen if each.plain is not None] == [own[rows - 1]]
        past_states = max(past_states, len(stolen) - 1)
        shutil.rmtree(folder)
    assert past_states > 30  # states of past steps are there, and closed


def key_set(state):
    """Return all keys of a snapshot: of noise, rounds, batches and pairs."""
    (size,) = struct.unpack_from("<Q", state)
    secrets = json.loads(unpack(state[8 : 8 + size])[0])
    pairs = (secrets["masked"] or {"masks": None})["masks"] or {"keys": {}}
    values = [secrets["keys"]["key"], secrets["keys"]["rounds"], *pairs["keys"].values()]
    return {bytes.fromhex(value) for value in values if value is not None}


def with_ledger(parts, folder, rows):
    """Commit every row of the first member, and end by SIGKILL when so many are durable."""
    ledger = RunLedger(folder, session=b"s" * 32, node=0)
    for part in parts:
        part.begin()
    for r in range(rows):
        ledger.commit(Entry(r, (), b"", parts[0].snapshot(), ()))
        if r == rows - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        play(parts, 1)


def test_a_member_without_its_key_does_not_begin(group):
    members = group()
    for file in (members.folder / "secrets-m1").iterdir():
        file.unlink()
    with pytest.raises(ConfigError, match="mask key that m1 signed for this run is not in"):
        members.peers()


def test_a_new_signature_does_not_go_on_from_an_old_state(group, memory_links):
    members = group()
    members.run(transport=memory_links())
    for each in members.identities:
        sign_agreement(members.file, each, secrets=members.folder / f"secrets-{each.name}")
    with pytest.raises(LedgerError, match="belongs to another run"):
        members.peers()


def test_kills_and_bad_networks_change_nothing_of_a_masked_run():
    """The final rows are the stacked runner's, one payload per round, everything charged before it leaves."""
    cuts = 0
    for seed in range(60):
        world = World(seed, Faults(power=0.15), shape=masked_shapes()[seed % 3])
        world.run()
        assert world.finished
        assert world.violations == [], f"world {seed}"
        cuts += world.counts["power"]
    assert cuts > 60


def test_rolled_back_members_send_no_second_row_that_was_not_noticed():
    copied = noticed = 0
    for seed in range(60):
        world = World(
            seed, Faults(rollback=0.6, clone=1.0, power=0.0, random_power=0), shape=masked_shapes()[seed % 3]
        )
        world.run()
        assert world.violations == [], f"world {seed}"
        assert world.noticed or not world.equivocated, f"world {seed}"
        copied += world._copied >= 0
        noticed += world.noticed
    assert copied > 10
    assert noticed > 5


# ---- what is signed ---------------------------------------------------------------------------------------


def test_every_signature_brings_a_key_that_it_covers(group):
    agreement = group().agreement
    agreement.require_signatures()
    assert sorted(agreement.mask_keys) == ["m0", "m1", "m2"]
    exchanged = {**agreement.mask_keys, "m1": agreement.mask_keys["m2"]}
    with pytest.raises(IdentityError, match="signature of m1 is not for this text"):
        agreement.model_copy(update={"mask_keys": exchanged}).require_signatures()
    missing = {name: key for name, key in agreement.mask_keys.items() if name != "m1"}
    with pytest.raises(ConfigError, match="no mask key of m1"):
        agreement.model_copy(update={"mask_keys": missing}).require_signatures()


def test_a_member_that_publishes_anothers_key_is_refused(group):
    members = group()
    agreement, thief = members.agreement, members.identities[1]
    for stolen in (agreement.mask_keys["m0"], _other_encoding(agreement.mask_keys["m0"])):
        keys = {**agreement.mask_keys, "m1": stolen}
        text = agreement.model_copy(update={"mask_keys": keys})
        signed = {**agreement.signatures, "m1": thief.sign(text.signed_content("m1")).hex()}
        with pytest.raises(Refused, match="'m0' and 'm1' published the same key"):
            agreement.model_copy(update={"mask_keys": keys, "signatures": signed}).require_signatures()


def _other_encoding(public):
    """The same point with the bit set that X25519 ignores."""
    raw = bytearray.fromhex(public)
    raw[31] |= 0x80
    return raw.hex()


def test_a_key_of_low_order_is_refused(group):
    members = group()
    keys = {**members.agreement.mask_keys, "m1": bytes(32).hex()}
    agreed_run = AgreedRun(members.agreement.model_copy(update={"mask_keys": keys}))
    with pytest.raises(Refused, match="low order"):
        agreed_run.program(0, members.records[0], ProtectiveNoise(), mask_key(members, 0))


def test_membership_versions_change_the_run_and_keys_do_not(group):
    members = group()
    before = members.agreement
    sign_agreement(members.file, members.identities[0], secrets=members.folder / "secrets-m0")
    assert members.agreement.run_id == before.run_id
    assert members.agreement.session != before.session
    later = members.file.read_text().replace('title = "a test"', 'title = "a test"\nmembership_version = 1')
    body = later.split("\n[signatures]")[0]
    assert parse_agreement(body.encode(), "later").run_id != before.run_id


def test_merging_takes_the_key_with_the_signature(group, tmp_path):
    members = group()
    theirs = tmp_path / "theirs.toml"
    theirs.write_text(members.file.read_text())
    sign_agreement(theirs, members.identities[2], secrets=members.folder / "secrets-m2")
    merged = merge_signatures(members.file, theirs)
    merged.require_signatures()
    assert merged.mask_keys["m2"] == parse_agreement(theirs.read_bytes(), "x").mask_keys["m2"]


BAD = {
    "two members": ({"n": 2, "graph": "path:2"}, "invite a third member"),
    "partners that collude": (
        {"n": 5, "graph": "ring:5", "algorithm": {"protocol": "masked:tolerate=3:partners=2"}}, "partners",
    ),
    "all others": ({"algorithm": {"protocol": "masked:tolerate=2"}}, "tolerate must be at most 1 of 3"),
    "not maskable": ({"algorithm": {"name": "dp-dsgt"}}, "not over masked"),
    "late rows": ({"timing": {"late": "drop"}}, "late = 'drop' needs plain gossip"),
    "range": ({"algorithm": {"noise_multiplier": 1e9}}, "take a larger"),
    "keys without masks": (
        {"algorithm": {"protocol": "tree"}, "mask_keys": {"m0": "00" * 32}}, "is not signed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_agreements_get_one_sentence(case, group):
    options, words = BAD[case]
    with pytest.raises(ConfigError, match=words) as caught:
        group(**options)
    assert str(caught.value).endswith(".")


def test_signing_needs_a_folder_for_the_key(group):
    members = group()
    with pytest.raises(ConfigError, match="say in which folder"):
        sign_agreement(members.file, members.identities[0])


# ---- what is charged --------------------------------------------------------------------------------------


def test_the_ledger_charges_the_view_that_is_promised(consortium, memory_links, call):
    """Own noise alone passes the budget twice over; against any two members the plan fits."""
    members = consortium(
        n=6, graph="ring:6", algorithm={**LEARNING, "protocol": "masked:tolerate=2"}, epsilon=1.2
    )
    agreed_run = AgreedRun(members.agreement)
    row = agreed_run.table()[3]
    assert row["tolerate"] == 2
    assert row["label_local"] == "ldp"
    assert row["label_colluders"] == "exact"
    assert row["epsilon_local"] > 1.2 > row["epsilon_colluders"] > row["epsilon_network"]
    mu = 2 / 8.0 * np.sqrt(STEPS / 4)  # four members stay hidden together
    assert np.isclose(agreed_run.charged_guarantee(3).mu, mu, rtol=1e-12)
    outcome = members.run(transport=memory_links())[3]
    guarantee, alone = outcome.statement["guarantee"], outcome.statement["ldp"]
    assert guarantee["label"] == "exact"
    assert "X25519, AES-256 and HMAC hold" in guarantee["assumptions"]
    assert np.isclose(guarantee["epsilon"], row["epsilon_colluders"])
    assert alone["label"] == "ldp"
    assert np.isclose(alone["epsilon"], row["epsilon_local"])
    assert json.loads((members.state(3) / "statement.json").read_text())["ldp"] == alone
    assert outcome.statement["noise"].startswith("protective: discrete Gaussian, of a key")
    status = read_status(members.state(3))
    assert (status["label"], status["tolerate"]) == ("exact", 2)
    assert np.isclose(status["epsilon_spent"], guarantee["epsilon"])
    assert (status["view"], status["adversary"]) == (guarantee["view"], guarantee["adversary"])
    assert status["adversary"].startswith("any 2 members together")
    shown = " ".join(call("peer", "status", members.state(3)).out.split())
    assert f"(against {status['adversary']}, label exact, adjacency user) in" in shown
    result = read_input(members.state(3))
    (line,) = [row for row in section_of(result).blocks[0].rows if row[0].startswith("epsilon by the ledger")]
    assert line[1].endswith(f"(against {status['adversary']}, label exact)")


def test_a_budget_below_the_promise_is_refused(consortium):
    members = consortium(n=6, graph="ring:6", algorithm={**LEARNING, "protocol": "masked"}, epsilon=0.3)
    with pytest.raises(SottovoceError, match="The plan costs m0 epsilon"):
        members.peers()


def test_unequal_noise_charges_the_quietest_others():
    """By the formula: the loudest two are missed, the rest stays around the member's row."""
    noise = (4.0, 9.0, 5.0, 7.0, 6.0)
    from sottovoce.algorithms import ConsensusSGD
    from sottovoce.objectives import GLM

    plan = ConsensusSGD(
        GLM(dim=2), "masked:tolerate=2", network=graphs.ring(5), clip_norm=1.0, adjacency="user",
        noise_multiplier=noise, steps=1,
    )  # fmt: skip
    agreed_run = AgreedRun.__new__(AgreedRun)
    agreed_run.plan, agreed_run.n, agreed_run.grid = plan, 5, plan.grid
    assert np.isclose(agreed_run.charged_guarantee(0).mu, 2 / np.sqrt(4**2 + 5**2 + 6**2))
    assert np.isclose(agreed_run.charged_guarantee(1).mu, 2 / np.sqrt(9**2 + 4**2 + 5**2))
