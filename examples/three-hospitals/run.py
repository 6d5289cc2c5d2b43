"""Three hospitals train one model together: three identities, one agreement, three processes, one crash.

    python examples/three-hospitals/run.py [FOLDER]

Everything runs on this machine, over mutual TLS on the loopback interface, with the commands that three
real machines would use (docs/peers.md has the same steps for them). The data are scikit-learn's embedded
breast-cancer records, cut in three. What a hospital sends is masked: nobody sees more than the sum of three
noisy gradients, so less noise buys the same promise. One hospital is killed in the middle and started again;
at the end the three models are equal to the last bit, and each hospital holds a statement of what it has
revealed to either of the others, and beside it of what its own noise alone would promise.
"""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

HOSPITALS = ("north", "south", "east")
STEPS = 100
DRAFT = """version = 1
title = "three hospitals"
graph = "path:3"

[algorithm]
name = "consensus-sgd"
protocol = "masked"
steps = {steps}
learning_rate = 2.0
clip_norm = 0.5
noise_multiplier = 8.5
adjacency = "add-remove"
batch_size = 120.0
sample_rate = 1.0

[model]
kind = "logistic"
parameters = 31

[data]
features = [{features}]
target = "benign"

[budget]
epsilon = 5.0
delta = 1e-5
"""


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names, test = prepare_data(folder)
    say("1. Each hospital makes an identity; the private key never leaves it.")
    for name in HOSPITALS:
        peer("keygen", folder / name / "identity", "--name", name)
    say("2. One writes the agreement, all read its privacy cost and sign it.")
    draft = DRAFT.format(steps=STEPS, features=", ".join(f'"{n}"' for n in names))
    (folder / "draft.toml").write_text(draft)
    agreement = folder / "agreement.toml"
    members = []
    for name, port in zip(HOSPITALS, free_ports(len(HOSPITALS)), strict=True):
        members += ["--member", f"{folder / name / 'identity' / 'certificate.pem'}@127.0.0.1:{port}"]
    print(peer("agree", folder / "draft.toml", *members, "--out", agreement))
    for name in HOSPITALS:
        peer("agree", agreement, "--sign", folder / name / "identity")
    say("3. Each starts its peer. They find each other and train.")
    running = {name: start(folder, agreement, name) for name in HOSPITALS}
    say("4. South is killed in the middle (SIGKILL), and started again.")
    wait_for_round(folder / "south" / "state", 20)
    running["south"].kill()
    running["south"].wait()
    running["south"] = start(folder, agreement, "south")
    for name, process in running.items():
        if process.wait(timeout=300):
            raise SystemExit(f"{name} failed; its messages are above.")
    say("5. Three models and three statements.")
    models = {}
    for name in HOSPITALS:
        state = folder / name / "state"
        models[name] = np.load(state / "model.npz")["parameters"]
        guarantee = json.loads((state / "statement.json").read_text())["guarantee"]
        print(
            f"   {name:6} accuracy {accuracy(models[name], *test):.3f}   "
            f"epsilon {math.ceil(1000 * guarantee['epsilon']) / 1000} at delta {guarantee['delta']:g} "
            f"({guarantee['adjacency']}, {guarantee['label']}, {guarantee['releases']} releases)"
        )
    equal = len({model.tobytes() for model in models.values()}) == 1
    print(f"   the three models are {'equal to the last bit' if equal else 'DIFFERENT'}")
    print(peer("status", folder / "south" / "state"))
    if not equal:
        raise SystemExit(1)


def prepare_data(folder: Path) -> tuple[list[str], tuple[np.ndarray, np.ndarray]]:
    """Scale with public bounds, add a constant, write one CSV per hospital; a fifth is kept for testing."""
    table = load_breast_cancer()
    bounds = np.array([40.0, 40.0, 200.0, 2600.0] + [1.0] * 6 + [3.0, 5.0, 22.0, 550.0] + [0.4] * 6
                      + [40.0, 50.0, 260.0, 4300.0] + [1.3] * 6)  # fmt: skip
    X = np.hstack([2 * np.clip(table.data / bounds, 0, 1) - 0.5, np.ones((len(table.data), 1))])
    names = [name.replace(" ", "_") for name in table.feature_names] + ["constant"]
    order = np.random.default_rng(0).permutation(len(X))
    test, rest = order[: len(X) // 5], order[len(X) // 5 :]
    for name, part in zip(HOSPITALS, np.array_split(rest, len(HOSPITALS)), strict=True):
        (folder / name).mkdir(parents=True, exist_ok=True)
        rows = [",".join([*names, "benign"])]
        rows += [",".join(map(repr, [*map(float, X[i]), int(table.target[i])])) for i in part]
        (folder / name / "records.csv").write_text("\n".join(rows) + "\n")
    return names, (X[test], table.target[test])


def peer(*words: object) -> str:
    """Call `sottovoce peer ...` and return what it prints."""
    done = subprocess.run(command(*words), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "sottovoce.cli.main", "peer", *map(str, words)]


def start(folder: Path, agreement: Path, name: str) -> subprocess.Popen[bytes]:
    own = folder / name
    words = ("--identity", own / "identity", "--data", own / "records.csv", "--state", own / "state")
    return subprocess.Popen(command("run", agreement, *words), stdout=subprocess.DEVNULL)


def wait_for_round(state: Path, r: int) -> None:
    for _ in range(600):
        time.sleep(0.05)
        done = subprocess.run(command("status", state, "--json"), capture_output=True, text=True)
        if done.returncode == 0 and json.loads(done.stdout)["round"] >= r:
            return
    raise SystemExit("The peers did not get going.")


def accuracy(theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean((X @ theta > 0) == (y == 1)))


def free_ports(n: int) -> list[int]:
    sockets = [socket.socket() for _ in range(n)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def say(text: str) -> None:
    print(f"\n{text}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("three-hospitals"))
