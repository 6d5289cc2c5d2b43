"""Twelve hospitals, epsilon 2: which plan, what will it be worth, and was it?

    python examples/twelve-hospitals/run.py [FOLDER]

Advice from public records, the agreement drafted from it, twelve peers on this machine with three commands
each (keygen, agree, run), and the accuracy of the model they end with beside the interval that was predicted.
The records are drawn here: who is helped by a treatment, given age, dose and pressure.
"""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

HOSPITALS = tuple(f"hospital-{k + 1}" for k in range(12))
EACH, PUBLIC, TEST, EPSILON = 100, 600, 3000, 2.0


def main(folder: Path) -> dict[str, float]:
    folder.mkdir(parents=True, exist_ok=True)
    X_test, y_test = prepare_data(folder)
    say("1. Which plan? Nothing private is read: the accuracy is simulated on public records.")
    print(sottovoce(
        "advise", 12, "--epsilon", EPSILON, "--records", EACH, "--compute", "logistic", "--features", 4,
        "--sample", folder / "public.csv", "--out", folder / "advice",
    ))  # fmt: skip
    advice = json.loads((folder / "advice" / "advice.json").read_text())
    taken = next(row for row in advice["rows"] if row["name"] == advice["recommended"])
    say("2. Every hospital makes an identity, reads the privacy cost and signs what advice has drafted.")
    for name in HOSPITALS:
        sottovoce("peer", "keygen", folder / name, "--name", name)
    members = [
        word
        for name, port in zip(HOSPITALS, free_ports(len(HOSPITALS)), strict=True)
        for word in ("--member", f"{folder / name / 'certificate.pem'}@127.0.0.1:{port}")
    ]
    agreement = folder / "agreement.toml"
    draft = folder / "advice" / "agreement-draft.toml"
    sottovoce("peer", "agree", draft, *members, "--out", agreement)
    for name in HOSPITALS:
        sottovoce("peer", "agree", agreement, "--sign", folder / name)
    say("3. Twelve peers run.")
    running = [
        subprocess.Popen(
            command(
                "peer", "run", agreement, "--identity", folder / name, "--data", folder / f"{name}.npz",
                "--state", folder / f"{name}-state",
            ),
            stdout=subprocess.DEVNULL,
        )
        for name in HOSPITALS
    ]  # fmt: skip
    codes = [process.wait(timeout=900) for process in running]
    if any(codes):
        raise SystemExit("A peer failed; its message is above.")
    models = [np.load(folder / f"{name}-state" / "model.npz")["parameters"] for name in HOSPITALS]
    guarantee = json.loads((folder / f"{HOSPITALS[0]}-state" / "statement.json").read_text())["guarantee"]
    accuracy = float(np.mean(np.where(X_test @ models[0] >= 0, 1.0, -1.0) == y_test))
    score = taken["score"]
    summary = {
        "accuracy": accuracy, "predicted": score["mean"], "half": score["half"],
        "epsilon": guarantee["epsilon"],
        "deviation": score["deviation"],
        "equal": float(all(np.array_equal(models[0], other) for other in models)),
    }  # fmt: skip
    epsilon = math.ceil(1000 * guarantee["epsilon"]) / 1000  # a bound is rounded up
    say(
        f"accuracy {accuracy:.3f}; predicted {score['mean']:.3f} ± {score['deviation']:.3f}; epsilon "
        f"{epsilon} at delta {guarantee['delta']:g}, {guarantee['label']}."
    )
    return summary


def draw(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Age, dose and pressure, scaled by public bounds to [-1, 1], a constant; rows of length one."""
    X = np.hstack([rng.uniform(-1, 1, size=(count, 3)), np.ones((count, 1))])
    odds = 1 / (1 + np.exp(-2.5 * (X @ [-2.0, 3.0, -1.0, 0.0])))
    y = np.where(rng.random(count) < odds, 1.0, -1.0)
    return X / np.linalg.norm(X, axis=1, keepdims=True), y


def prepare_data(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """One NPZ file per hospital, a public table for the advice, and public records for the score."""
    rng = np.random.default_rng(12)
    for name in HOSPITALS:
        X, y = draw(EACH, rng)
        np.savez(folder / f"{name}.npz", X=X, label=np.where(y > 0, "yes", "no"))
    X, y = draw(PUBLIC, rng)
    table = np.hstack([X, y[:, None]])
    np.savetxt(
        folder / "public.csv", table, delimiter=",", header="age,dose,pressure,constant,helped", comments=""
    )
    return draw(TEST, rng)


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "sottovoce", *map(str, words)]


def sottovoce(*words: object) -> str:
    done = subprocess.run(command(*words), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


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
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("twelve-hospitals"))
