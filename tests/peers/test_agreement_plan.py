"""The plan of an agreement: only algorithms and protocols of the library."""

import pytest

import sottovoce as sv
from sottovoce.errors import ConfigError
from sottovoce.peers.agreement_plan import agreed_plan

PART = {
    "name": "muffliato-sgd",
    "protocol": "matching:3",
    "adjacency": "user",
    "clip_norm": 1.0,
    "noise_multiplier": 8.0,
    "steps": 3,
}


def test_an_installed_protocol_serves_plans_and_no_agreement(tmp_path, monkeypatch):
    package = tmp_path / "matching-0.1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: matching\nVersion: 0.1\n")
    (package / "entry_points.txt").write_text("[sottovoce.protocols]\nmatching = matching_gossip:build\n")
    (tmp_path / "matching_gossip.py").write_text(
        "from sottovoce.protocols import Gossip\n"
        "def build(network, rounds, options, rng):\n"
        "    return Gossip(network, rounds)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plan = sv.PrivateAveraging("matching:3", network="ring:4", noise_std=2.0, radius=0.5)
    assert plan.schedule(0).rounds == 3
    with pytest.raises(ConfigError, match=r"protocol must be one of .*got 'matching'"):
        agreed_plan(sv.graphs.ring(4), PART, {"kind": "logistic", "parameters": 5}, seed=1)
