"""I3, I13: one key per run, one row per label; what is done again is the same or independent of it."""

import hashlib
import hmac
import struct

import numpy as np
import pytest

from sottovoce.errors import Refused
from sottovoce.noise.discrete import discrete_gaussian
from sottovoce.noise.samplers import KeyedNoise
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.run_keys import RunKeys

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
TEXTS = {
    "tree": {**SGD, "protocol": "tree"},
    "gossip": {**SGD, "name": "dp-dsgt", "protocol": "gossip:1"},
    "refreshed": {**SGD, "name": "muffliato-sgd", "protocol": "refreshed:2:fresh=0.5"},
    "masked": {**SGD, "protocol": "masked"},
}


def programs(consortium, text, keys):
    made = consortium(3, "path:3", TEXTS[text], dim=2)
    agreed_run = AgreedRun(made.agreement)
    from sottovoce.peers.run_keys import read_mask_key

    agreed = made.agreement
    return [
        agreed_run.program(
            v,
            made.records[v],
            keys[v],
            read_mask_key(made.folder / f"secrets-m{v}", agreed.run, agreed.membership_version),
        )
        for v in range(3)
    ]


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


@pytest.mark.parametrize("text", TEXTS)
def test_a_member_set_back_sends_the_same_bytes(text, consortium):
    """Rolled back by one round or many, on the same inputs: every later row is the same to the last bit."""
    keys = [RunKeys(bytes(32), 0) for _ in range(3)]
    parts = programs(consortium, text, keys)
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
    keys = [RunKeys(bytes(32), 0) for _ in range(3)]
    parts = programs(consortium, "gossip", keys)
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
    key, run = bytes(range(32)), hashlib.sha256(b"run").digest()
    keys = RunKeys(run, 7, key)
    row = np.array([3.0, -0.0, 5.0])
    label = struct.pack("<3Qd", 1, 2, 4, 0.5) + hashlib.sha256(np.array([3.0, 0.0, 5.0]).tobytes()).digest()
    head = b"sottovoce run key\n" + run + struct.pack("<QQ", 7, 0) + run
    assert keys.noise.key_of(1, 2, 4, row, 0.5) == hmac.digest(key, head + b"noise" + label, "sha256")
    base = keys.noise.key_of(1, 2, 4, row, 0.5)
    others = [
        keys.noise.key_of(0, 2, 4, row, 0.5), keys.noise.key_of(1, 3, 4, row, 0.5),
        keys.noise.key_of(1, 2, 5, row, 0.5), keys.noise.key_of(1, 2, 4, row + 1, 0.5),
        keys.noise.key_of(1, 2, 4, row, 0.25), RunKeys(run, 8, key).noise.key_of(1, 2, 4, row, 0.5),
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


def test_keyed_noise_has_the_law_of_protective_noise():
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
