"""The Flower app in simulation, and on a SuperLink and two SuperNodes over TLS: run by `make flower`.

In simulation Ray starts the clients. Over TLS a SuperNode is killed in the middle and started again. Both
times the model is the one of the in-process algorithm, and no round was charged twice.
"""

import datetime
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.integrations.flower import plan_of
from sottovoce.ledger.run_ledger import read_ledger
from sottovoce.noise.samplers import SimulatedNoise

pytest.importorskip("flwr")
APP = Path(__file__).parents[2] / "examples" / "flower-admm"
BIN = Path(sys.executable).parent
SEED, ROUNDS = 11, 6


def certificates(folder):
    """Make a certificate authority and a certificate for the loopback address."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now, pem = datetime.datetime.now(datetime.UTC), serialization.Encoding.PEM

    def named(text):
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    def made(subject, key, issuer, signer, extension, critical):
        builder = x509.CertificateBuilder().subject_name(named(subject)).issuer_name(named(issuer))
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
        return builder.add_extension(extension, critical).sign(signer, hashes.SHA256())

    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    basic = x509.BasicConstraints(ca=True, path_length=None)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    (folder / "ca.pem").write_bytes(made("ca", authority, "ca", authority, basic, True).public_bytes(pem))
    (folder / "server.pem").write_bytes(made("link", server, "ca", authority, names, False).public_bytes(pem))
    none = serialization.NoEncryption()
    key = server.private_bytes(pem, serialization.PrivateFormat.PKCS8, none)
    (folder / "server.key").write_bytes(key)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Federation:
    """One SuperLink and its SuperNodes on this machine."""

    def __init__(self, folder):
        self.folder, self.link = folder, free_port()
        self.environment = {**os.environ, "FLWR_HOME": str(folder / "home"), "FLWR_TELEMETRY_ENABLED": "0",
                            "PATH": f"{BIN}:{os.environ['PATH']}"}  # fmt: skip
        certificates(folder)
        (folder / "home").mkdir()
        (folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "tls"\n[superlink.tls]\naddress = "127.0.0.1:{self.link}"\n'
            f'root-certificates = "{folder / "ca.pem"}"\n'
        )
        self.tls = [
            "--ssl-certfile",
            "server.pem",
            "--ssl-keyfile",
            "server.key",
            "--ssl-ca-certfile",
            "ca.pem",
        ]
        bare = ["--host", "127.0.0.1", "--port", str(self.link), "--disable-runtime-dependency-installation"]
        self.running = {"link": self.start("flower-superlink", *self.tls, *bare)}
        wait_for(self.listening, 120)

    def listening(self):
        return answers(self.link)

    def start(self, *words):
        with open(self.folder / f"{words[0]}-{time.monotonic_ns()}.log", "w") as log:
            return subprocess.Popen(words, cwd=self.folder, env=self.environment, stdout=log, stderr=log,
                                    start_new_session=True)  # fmt: skip

    def node(self, user):
        config = f"partition-id={user} simulate=true state='{self.folder / f'client-{user}'}'"
        self.running[f"node {user}"] = self.start(
            "flower-supernode", "--root-certificates", "ca.pem", "--superlink", f"127.0.0.1:{self.link}",
            *self.tls, "--port", str(free_port()), "--node-config", config,
        )  # fmt: skip

    def kill(self, name):
        """Kill a process and everything it has started."""
        process = self.running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def run(self):
        config = (f"simulation-seed={SEED} rounds={ROUNDS} patience=200.0 "
                  f"server-state='{self.folder / 'server'}' out='{self.folder / 'model.json'}'")  # fmt: skip
        words = ["flwr", "run", str(APP), "--run-config", config, "--stream"]
        return subprocess.Popen(words, cwd=self.folder, env=self.environment)

    def charged(self, user):
        folder = self.folder / f"client-{user}"
        return len(read_ledger(folder)["saved"].releases) if (folder / "run.ledger").exists() else 0


def model_of_one_process():
    data = sv.data.load("breast_cancer").unit_rows()
    parts = [np.arange(user, data.n, 2) for user in (0, 1)]
    config = {"users": 2, "rounds": ROUNDS, "gamma": 1.0, "clip_norm": 1.0, "noise-std": 8.0, "l2": 0.01}
    return plan_of(config).run(data.shards(parts), SimulatedNoise(SEED)).outputs["coef"].tolist()


def test_a_simulation_gives_the_model_of_one_process(tmp_path):
    """`flwr run .` as it comes: a local SuperLink in simulation mode, Ray underneath."""
    home, port = tmp_path / "home", free_port()
    home.mkdir()
    control = (
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    (home / "config.toml").write_text(control)
    environment = {**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0",
                   "PATH": f"{BIN}:{os.environ['PATH']}"}  # fmt: skip
    words = ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port),
             "--disable-runtime-dependency-installation"]  # fmt: skip
    with open(tmp_path / "link.log", "w") as log:
        link = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=log, stderr=log,
                                start_new_session=True)  # fmt: skip
    try:
        wait_for(lambda: answers(port), 120)
        config = (f"simulation-seed={SEED} rounds={ROUNDS} patience=200.0 state-dir='{tmp_path / 'ledgers'}' "
                  f"out='{tmp_path / 'model.json'}'")  # fmt: skip
        words = ["flwr", "run", str(APP), "--run-config", config, "--stream"]
        subprocess.run(words, cwd=tmp_path, env=environment, timeout=500, check=True)
        wait_for(lambda: (tmp_path / "model.json").exists(), 60)
    finally:
        os.killpg(link.pid, signal.SIGKILL)
        link.wait()
    assert json.loads((tmp_path / "model.json").read_text())["coef"] == model_of_one_process()
    for user in (0, 1):
        saved = read_ledger(tmp_path / "ledgers" / f"client-{user:05d}")["saved"]
        assert [release.step for release in saved.releases] == list(range(ROUNDS))


@pytest.fixture
def federation(tmp_path):
    made = Federation(tmp_path)
    yield made
    for name in list(made.running):
        made.kill(name)


def wait_for(condition, seconds=500):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.2)


def test_a_killed_client_keeps_its_ledger_and_the_model_is_the_same(federation):
    for user in (0, 1):
        federation.node(user)
    run = federation.run()
    wait_for(lambda: federation.charged(1) >= 2)
    federation.kill("node 1")
    before = federation.charged(1)
    assert 2 <= before < ROUNDS
    federation.node(1)
    wait_for(lambda: (federation.folder / "model.json").exists(), 600)
    run.wait(120)
    model = json.loads((federation.folder / "model.json").read_text())["coef"]
    assert model == model_of_one_process()
    for user in (0, 1):
        saved = read_ledger(federation.folder / f"client-{user}")["saved"]
        assert [release.step for release in saved.releases] == list(range(ROUNDS))
