"""The systemd unit of a peer."""

import shutil
import subprocess
from pathlib import Path

import pytest

from sottovoce.errors import ConfigError
from sottovoce.peers.service import peer_unit


@pytest.fixture
def unit(consortium):
    agreement = consortium(n=2, graph="path:2", title="a % test").agreement

    def build(program="/usr/bin/sottovoce", file="/srv/100% mine.toml", state="/srv/state", **options):
        files = {"data": Path("/srv/mine.csv"), "state": Path(state)}
        return peer_unit([program], agreement, Path(file), "m0", **files, **options)[1]

    return build


def test_a_unit_handles_each_exit_code(unit, tmp_path):
    text = unit(user="sottovoce", identity=Path("/srv/key"), options={"--listen": "0.0.0.0:443"})
    for line in ("Type=notify", "WatchdogSec=600",
                 "RestartForceExitStatus=75", "SuccessExitStatus=75", "LimitCORE=0",
                 "RestartPreventExitStatus=1 2 78",
                 "User=sottovoce", "AmbientCapabilities=CAP_NET_BIND_SERVICE", "ProtectHome=yes",
                 'ReadWritePaths="/srv" "/srv/key"', "Description=Sottovoce peer: a %% test"):  # fmt: skip
        assert line in text.splitlines()
    assert '"/srv/100%% mine.toml"' in text
    for wrong, words in (
        ({"program": "sottovoce"}, "whole path"),
        ({"file": "/srv/x\nExecStartPre=/bin/rm"}, "printable"),
        ({"user": "root; rm"}, "not the name of an account"),
    ):
        with pytest.raises(ConfigError, match=words):
            unit(**wrong)
    if shutil.which("systemd-analyze"):
        file = tmp_path / "peer.service"
        file.write_text(text.replace("/usr/bin/sottovoce", "/bin/true").replace("User=sottovoce\n", ""))
        done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True)
        assert str(file.name) not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("place", "protect"),
    [
        ("/home/ann/x", "no"),
        (str(Path("/", "root", "x", "y")), "no"),
        ("/run/user/7/x", "no"),
        ("/homes/x", "yes"),
        ("/srv/home", "yes"),
    ],
)
def test_home_folders_are_hidden_unless_the_peer_writes_there(place, protect, unit):
    assert f"ProtectHome={protect}" in unit(state=place).splitlines()
    assert "ProtectHome=read-only" in unit(file="/home/ann/agreement.toml").splitlines()
