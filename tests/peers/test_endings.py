"""Whole consortia in one process, when the world around them fails: full disks, clocks, orders to stop."""

import asyncio
import errno
import json
import os
import shutil
import time

import numpy as np
import pytest

from sottovoce.errors import ConfigError, DataError, IdentityError, PeerError
from sottovoce.peers import runtime
from sottovoce.peers.status import read_status

LONG = {"name": "consensus-sgd", "protocol": "tree", "steps": 16, "noise_multiplier": 80.0}


async def under_way(group):
    """Start all members and return when the middle one is a few rounds into the run."""
    peers = group.peers()
    tasks = [asyncio.create_task(peer.run()) for peer in peers]
    for _ in range(4000):
        await asyncio.sleep(0.005)
        if peers[1].core.durable_at > 6:
            return peers, tasks
    raise AssertionError("the run did not begin")


def test_a_model_that_does_not_fit_leaves_the_old_one_and_an_open_road(
    consortium, files_no_larger_than, tmp_path, monkeypatch
):
    """ENOSPC in the last moment: the sentence, no half file, and the next start writes the model."""
    (tmp_path / "model").write_bytes(b"old")
    with files_no_larger_than(1_000), pytest.raises(DataError):
        runtime.atomic_write(tmp_path / "model", bytes(5_000), mode=0o600)
    assert (tmp_path / "model").read_bytes() == b"old"
    assert [file.name for file in tmp_path.glob("*model*")] == ["model"]

    def full(path, content, **options):
        raise DataError(f"{path} cannot be written: {os.strerror(errno.ENOSPC)}.")

    group = consortium(n=2, graph="path:2")
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "atomic_write", full)

        async def together():
            return await asyncio.gather(*[p.run() for p in group.peers()], return_exceptions=True)

        ends = asyncio.run(together())
    assert all(isinstance(end, ConfigError) and "Make room" in str(end) for end in ends), ends
    again = group.run()  # the folders are free, and nothing is drawn twice
    assert again[0].model.tobytes() == np.load(group.state(0) / "model.npz")["parameters"].tobytes()
    assert read_status(group.state(0))["releases"] == 1


def test_a_certificate_that_expires_in_the_run_ends_it_with_everything_recorded(consortium):
    """I4: no connection outlives its certificate; each side ends with a sentence, nothing is lost."""
    group = consortium(n=3, graph="path:3", algorithm=LONG, epsilon=200.0)

    async def scene():
        peers, tasks = await under_way(group)
        late = time.time() + 86_400 * 4000
        for peer in peers:
            peer.transport.clock = lambda: late
        taken = {peer.node: peer.core.digest() for peer in peers}
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        return peers, taken, ends

    peers, taken, ends = asyncio.run(scene())
    assert all(isinstance(end, IdentityError) and "expired during the run" in str(end) for end in ends), ends
    for peer in peers:
        assert peer.core.digest() == taken[peer.node]  # not one more frame was taken
        said = json.loads((group.state(peer.node) / "statement.json").read_text())
        assert said["guarantee"]["releases"] == read_status(group.state(peer.node))["releases"] > 0


def test_a_peer_told_to_stop_writes_what_it_has_and_goes_on_later(consortium):
    group = consortium(n=3, graph="path:3", algorithm=LONG, epsilon=200.0)

    async def scene():
        peers, tasks = await under_way(group)
        peers[1].stop()
        with pytest.raises(PeerError, match="start the same command again to go on"):
            await tasks[1]
        said = json.loads((group.state(1) / "statement.json").read_text())
        assert not said["finished"]
        assert said["guarantee"]["releases"] == read_status(group.state(1))["releases"] > 0
        again = runtime.Peer(
            runtime.PeerConfig(group.agreement, group.identities[1], group.records[1], group.state(1))
        )
        return await asyncio.gather(tasks[0], again.run(), tasks[2])

    outcomes = asyncio.run(scene())
    assert len({outcome.model.tobytes() for outcome in outcomes}) == 1


def test_the_folder_of_a_stopped_peer_can_be_moved(consortium, tmp_path):
    """A state folder knows its run, not its place: moved to another disk it goes on."""
    group = consortium(n=2, graph="path:2")
    group.run()
    shutil.move(group.state(0), tmp_path / "moved")
    assert read_status(tmp_path / "moved")["finished"]
