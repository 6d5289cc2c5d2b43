"""The log of a peer: sentences, levels and exit codes."""

import errno
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sottovoce.cli.peer_log import Log, exit_code, sentence
from sottovoce.errors import ConfigError, LedgerError, SottovoceError, TryLater


@pytest.mark.parametrize(("error", "code"), [(ConfigError, 78), (TryLater, 75), (SottovoceError, 1)])
def test_exit_codes_for_a_service_manager(error, code):
    assert exit_code(error("no")) == code


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 75),
        (OSError(errno.EIO, "Input/output error"), 75),
        (OSError(errno.EACCES, "Permission denied"), 1),
        (ValueError("row 3 does not fit the chain"), 1),
    ],
)
def test_a_full_disk_is_a_reason_to_try_again(cause, code):
    """The ledger turns each into a sentence; what was behind it decides whether a restart can help."""
    with pytest.raises(LedgerError) as failure:
        raise_from(cause)
    assert exit_code(failure.value) == code


def raise_from(cause):
    try:
        raise cause
    except (OSError, ValueError):
        raise LedgerError("The ledger failed, nothing was sent.") from None


def test_a_long_running_command_writes_for_its_owner_and_leaves_no_core(tmp_path):
    program = (
        "import os, resource\n"
        "from sottovoce.cli.peer_options import private_process\n"
        "os.umask(0)\n"
        "with private_process():\n"
        "    open('file', 'w').close()\n"
        "print(resource.getrlimit(resource.RLIMIT_CORE), oct(os.umask(0)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "(0, 0) 0o0\n"
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs a shell")
@pytest.mark.parametrize(("code", "left"), [(0, 0), (75, 75), (1, 0), (2, 0), (78, 0)])
def test_containers_restart_after_the_same_exit_codes_as_the_unit(code, left, tmp_path):
    file = Path(__file__).parents[2] / "examples" / "three-hospitals" / "compose.yaml"
    script = re.search(r"- -c\n    - \|\n((?:      .*\n)+)", file.read_text())[1].replace("$$", "$")
    program = tmp_path / "sottovoce"
    program.write_text(f"#!/bin/sh\nexit {code}\n")
    program.chmod(0o700)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", script, "sottovoce", "peer", "run"], env=environment)
    assert done.returncode == left
    # a container that is stopped hands the signal on and waits for the peer
    program.write_text("#!/bin/sh\ntrap 'exit 75' TERM\necho ready\nwhile :; do sleep 0.05; done\n")
    with subprocess.Popen(["sh", "-c", script, "x"], env=environment, stdout=subprocess.PIPE) as running:
        running.stdout.readline()
        running.terminate()
        assert running.wait(10) == 75


def test_events_become_sentences_with_a_level():
    event = {"event": "trouble", "member": "south", "why": "cannot be reached: nobody listens there"}
    assert sentence(event) == ("warning", "south cannot be reached: nobody listens there")
    with pytest.raises(ConfigError, match="debug, info, warning or error, got 'loud'"):
        Log(json=False, level="loud")
