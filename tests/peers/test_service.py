"""The systemd unit of a peer."""

import shutil
import subprocess
from pathlib import Path

import pytest

from sottovoce.errors import ConfigError
from sottovoce.peers.service import systemd_unit


def test_a_unit_handles_each_exit_code(tmp_path):
    unit = systemd_unit(
        ["/usr/bin/sottovoce", "peer", "run", "/srv/100% mine.toml"], title="a % test", user="sottovoce",
        writable=["/srv/home", "/srv/copy"], low_port=True,
    )  # fmt: skip
    for line in ("RestartForceExitStatus=75", "SuccessExitStatus=75", "RestartPreventExitStatus=1 2 78",
                 "User=sottovoce", "AmbientCapabilities=CAP_NET_BIND_SERVICE",
                 'ReadWritePaths="/srv/home" "/srv/copy"'):  # fmt: skip
        assert line in unit.splitlines()
    assert '"/srv/100%% mine.toml"' in unit
    with pytest.raises(ConfigError, match="whole path"):
        systemd_unit(["sottovoce"], title="x", writable=[])
    with pytest.raises(ConfigError, match="printable"):
        systemd_unit(["/bin/true"], title="x\nExecStartPre=/bin/rm", writable=[])
    if shutil.which("systemd-analyze"):
        file = tmp_path / "peer.service"
        file.write_text(unit.replace("/usr/bin/sottovoce", "/bin/true").replace("User=sottovoce\n", ""))
        done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True)
        assert str(file.name) not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("place", "protected"),
    [
        ("/home/ann/x", True),
        (str(Path("/", "root", "x")), True),
        ("/run/user/7/x", True),
        ("/homes/x", False),
        ("/srv/home", False),
    ],
)
def test_home_folders_are_hidden_unless_the_peer_writes_there(place, protected):
    unit = systemd_unit(["/usr/bin/sottovoce", "peer", "run"], title="x", writable=[place])
    assert ("ProtectHome=yes" in unit.splitlines()) is not protected
