"""One input of each kind for `sottovoce report`: plan, training, agreement, result, ..."""

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.cli.main import main
from sottovoce.ledger.balance import LifetimeBudget
from sottovoce.peers.agreement import member_entry, read_agreement, sign_agreement, write_agreement
from sottovoce.peers.identity import CERTIFICATE
from sottovoce.peers.member_data import Records
from sottovoce.peers.member_directory import MemberDirectory
from sottovoce.peers.runtime import Peer, PeerConfig
from sottovoce.report.result_files import write_result

DELTA = 1e-5
PLAN = """version = 1
title = "Mean waiting time"
[network]
graph = "hypercube:3"
names = ["Aachen", "Bonn", "Celle", "Düren", "Essen", "Fulda", "Gera", "Hagen"]
[protocol]
name = "exchange"
[average]
radius = 0.5
adjacency = "user"
[budget]
epsilon = 8.0
delta = 1e-5
"""
TRAINING = """version = 1
title = "Tumours <of four> hospitals"
accept = ["standardize", "held-out score"]
[network]
graph = "ring:4"
[protocol]
name = "tree"
[data]
name = "breast_cancer"
standardize = true
unit_rows = true
intercept = true
test_share = 0.2
[objective]
loss = "logistic"
[train]
algorithm = "consensus-sgd"
adjacency = "user"
steps = 4
learning_rate = 0.5
clip_norm = 1.0
[budget]
epsilon = 3.0
delta = 1e-5
"""


def command(*words):
    """Run the command line; return its exit code."""
    try:
        main([str(word) for word in words])
    except SystemExit as stopped:
        return stopped.code or 0
    raise AssertionError("a command ends with its exit code")


def write_inputs(folder):
    """Write the inputs into a folder; return the arguments of `sottovoce report` by the name of the input."""
    inputs = {"plan": [folder / "plan.toml"], "training": [folder / "training.toml"]}
    (folder / "plan.toml").write_text(PLAN, encoding="utf-8")
    (folder / "training.toml").write_text(TRAINING, encoding="utf-8")
    agreement, state, directory = consortium(folder)
    inputs["agreement"] = [agreement, "--directory", directory]
    inputs["statement"] = [state, "--directory", directory]
    inputs["together"] = [agreement, state]
    plan = sv.PrivateAveraging(sv.protocols.HypercubeExchange(4), noise_std=4.0, radius=1.0)
    write_result(folder / "result.json", plan.run(np.zeros(4), np.random.default_rng(0)).to_dict())
    inputs["result"] = [folder / "result.json"]
    attack = ("attack", "gossip", "--graph", "florentine", "--attackers", "0", "--rounds", "7")
    assert command(*attack, "--out", folder / "attack.json") == 0
    inputs["attack"] = [folder / "attack.json"]
    audit = ("audit", "--graph", "path:3", "--rounds", "2", "--user", "2", "--observers", "0")
    assert command(*audit, "--claim", "published", "--runs", "3000", "--out", folder / "audit.json") == 0
    inputs["audit"] = [folder / "audit.json"]
    return inputs


def consortium(folder):
    """Two members agree, sign and run over TLS; return agreement, state folder and directory of one."""
    names = ("north", "south")
    limit = LifetimeBudget(9.0, DELTA, "user", "local")
    directories = [
        MemberDirectory.create(
            folder / name, name, population="patients", budgets=[limit], copy=folder / f"c-{name}"
        )
        for name in names
    ]
    for directory in directories:
        for other in directories:
            if other is not directory:
                directory.pinned_certificates.trust(other.identity_folder / CERTIFICATE, "read aloud")
    file = folder / "agreement.toml"
    draft = {
        "version": 1, "title": "Waiting times, north and south", "graph": "path:2",
        "algorithm": {"name": "averaging", "protocol": "gossip:3", "adjacency": "user", "clip_norm": 1.0,
                      "noise_multiplier": 2.0},
        "model": {"kind": "mean", "parameters": 2}, "budget": {"epsilon": 6.0, "delta": DELTA},
    }  # fmt: skip
    sockets = [socket.socket() for _ in names]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    places = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    entries = [member_entry(h.identity.certificate, at) for h, at in zip(directories, places, strict=True)]
    write_agreement(file, draft, entries)
    for directory in directories:
        sign_agreement(file, directory.identity, secrets=directory.identity_folder)
    agreement = read_agreement(file)
    rng = np.random.default_rng(1)

    async def together():
        peers = [
            Peer(
                PeerConfig(
                    agreement,
                    directory.identity,
                    Records(rng.standard_normal((5, 2)), np.zeros(0)),
                    None,
                    member_directory=directory,
                )
            )
            for directory in directories
        ]
        return await asyncio.gather(*[peer.run() for peer in peers])

    with ThreadPoolExecutor(1) as pool:  # a browser's driver has a loop in this thread already
        pool.submit(asyncio.run, together()).result()
    return file, directories[0].folder / "runs" / agreement.run_id.hex(), directories[0].folder


def results_of(inputs, folder):
    """Return the results that the page of some inputs shows."""
    from pathlib import Path

    from sottovoce.peers.member_directory import find_member_directory
    from sottovoce.report.inputs import read_inputs

    words = [str(word) for word in inputs]
    directory = (
        find_member_directory(words[words.index("--directory") + 1]) if "--directory" in words else None
    )
    files = words[: words.index("--directory")] if "--directory" in words else words
    return json.loads(json.dumps(read_inputs([Path(file) for file in files], directory)))


@pytest.fixture(scope="package")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("inputs"))
