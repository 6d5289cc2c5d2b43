"""Three members on this machine: three identities, one agreement, three peers, one model.

    python run.py

On three machines the same three commands are typed at each member: `peer keygen`, `peer agree`, `peer run`.
"""

import json
import math
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
MEMBERS = ("north", "south", "east")


def peer(*words):
    return [sys.executable, "-m", "sottovoce", "peer", *map(str, words)]


def main(folder=HERE / "run"):
    folder.mkdir(exist_ok=True)
    with_ports = []
    sockets = [socket.socket() for _ in MEMBERS]
    for name, each in zip(MEMBERS, sockets):
        each.bind(("127.0.0.1", 0))
        # 1. An identity each: the key stays, the certificate is given to the others.
        subprocess.run(peer("keygen", folder / name, "--name", name), check=True, stdout=subprocess.DEVNULL)
        with_ports += ["--member", f"{folder / name / 'certificate.pem'}@127.0.0.1:{each.getsockname()[1]}"]
    for each in sockets:
        each.close()
    # 2. One agreement: its privacy cost is shown, and every member signs it.
    agreement = folder / "agreement.toml"
    subprocess.run(peer("agree", HERE / "draft.toml", *with_ports, "--out", agreement), check=True)
    for name in MEMBERS:
        subprocess.run(
            peer("agree", agreement, "--sign", folder / name), check=True, stdout=subprocess.DEVNULL
        )
    # 3. Every member starts its peer on its own records.
    running = [
        subprocess.Popen(
            peer("run", agreement, "--identity", folder / name, "--data", HERE / f"{name}.csv",
                 "--state", folder / f"{name}-state"),
            stdout=subprocess.DEVNULL,
        )
        for name in MEMBERS
    ]
    codes = [process.wait(timeout=300) for process in running]
    if any(codes):
        raise SystemExit("A peer failed; its message is above.")
    return report(folder)


def report(folder):
    models = [np.load(folder / f"{name}-state" / "model.npz")["parameters"] for name in MEMBERS]
    guarantee = json.loads((folder / "north-state" / "statement.json").read_text())["guarantee"]
    public = np.loadtxt(HERE / "public.csv", delimiter=",", skiprows=1)
    accuracy = float(np.mean((public[:, :-1] @ models[0] > 0) == (public[:, -1] == 1)))
    equal = all(np.array_equal(models[0], other) for other in models)
    epsilon, delta = guarantee["epsilon"], guarantee["delta"]
    print(f"accuracy {accuracy:.3f} on public records; epsilon {math.ceil(1000 * epsilon) / 1000} at delta {delta:g}")
    print(f"the three models are {'equal to the last bit' if equal else 'DIFFERENT'}")
    return accuracy, equal, epsilon


if __name__ == "__main__":
    main()
