"""One input of each kind for `sottovoce report`: plan, training, agreement, result, ..."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.cli.plans import BUDGETED_AVERAGE
from tests.peers.conftest import Members, unused_ports

import sottovoce as sv
from sottovoce.cli.main import main
from sottovoce.ledger.balance import LifetimeBudget
from sottovoce.peers.member_data import Records
from sottovoce.peers.member_directory import find_member_directory
from sottovoce.report.inputs import read_inputs
from sottovoce.report.result_files import write_result

DELTA = 1e-5
PLAN = BUDGETED_AVERAGE.format(graph="hypercube:3", protocol="exchange", epsilon=8.0).replace(
    'graph = "hypercube:3"',
    """graph = "hypercube:3"
names = ["Aachen", "Bonn", "Celle", "Düren", "Essen", "Fulda", "Gera", "Hagen"]""",
)
PLAN = PLAN.replace("version = 1", 'version = 1\ntitle = "Mean waiting time"')
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
    rng, limit = np.random.default_rng(1), LifetimeBudget(9.0, DELTA, "user", "local")
    records = lambda: Records(rng.standard_normal((5, 2)), np.zeros(0))  # noqa: E731
    members = Members(folder, None, ("north", "south"), [limit], records)
    file = folder / "agreement.toml"
    draft = {
        "version": 1, "title": "Waiting times, north and south", "graph": "path:2",
        "algorithm": {"name": "averaging", "protocol": "gossip:3", "adjacency": "user", "clip_norm": 1.0,
                      "noise_multiplier": 2.0},
        "model": {"kind": "mean", "parameters": 2}, "budget": {"epsilon": 6.0, "delta": DELTA},
    }  # fmt: skip
    agreement = members.write(file, draft, [f"127.0.0.1:{port}" for port in unused_ports(2)])

    async def together():
        return await asyncio.gather(*[members.peer(name, agreement).run() for name in members.names])

    with ThreadPoolExecutor(1) as pool:  # a browser's driver has a loop in this thread already
        pool.submit(asyncio.run, together()).result()
    return file, members.state("north", agreement), members.directories["north"].folder


def results_of(inputs):
    """Return the results that the page of some inputs shows."""
    words = [*map(str, inputs)]
    at = words.index("--directory") if "--directory" in words else len(words)
    directory = find_member_directory(words[at + 1]) if words[at:] else None
    return json.loads(json.dumps(read_inputs([Path(file) for file in words[:at]], directory)))


@pytest.fixture(scope="package")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("inputs"))
