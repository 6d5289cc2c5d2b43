"""Five real processes over TLS go through six changes of their consortium and end with one model.

    python -m verification.membership_changes --out docs/results/verification.json

In order: all members stop and start again in the middle of the run; one leaves for good; one moves; one gets
a new key, whose certificate soon expires while another member is dead by a power cut; it is renewed; one
loses its disk. Each change but the first is a membership change, drafted by one member and signed by all who
remain, each with its own member directory and lifetime ledger. At the end all members must hold the same
model, and every lifetime ledger must show the composition of all releases that its run ledgers list (for the
lost disk, all planned releases). The forecast of `peer agree` must equal the lifetime ledger's total.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.errors import PeerError
from sottovoce.ledger.balance import LifetimeBudget
from sottovoce.ledger.run_ledger import read_ledger
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement import (
    Agreement,
    member_entry,
    read_agreement,
    sign_agreement,
    write_agreement,
)
from sottovoce.peers.identity import CERTIFICATE, KEY, make_identity
from sottovoce.peers.member_directory import MemberDirectory
from sottovoce.privacy import gaussian_epsilon
from verification import store

ROOT = Path(__file__).parents[1]
NAMES = [f"m{i}" for i in range(5)]
STEPS, NOISE, DELTA, EPSILON = 400, 90.0, 1e-5, 60.0


class Consortium:
    """Homes, the agreement of the present membership version, and the processes that run it."""

    def __init__(self, folder: Path, say: Any) -> None:
        self.folder, self.say = folder, say
        self.directories = {
            name: MemberDirectory.create(
                folder / name, name, population="patients", copy=folder / f"{name}-copy",
                budgets=[LifetimeBudget(EPSILON, DELTA, "user", view) for view in ("local", "network")],
            )
            for name in NAMES
        }  # fmt: skip
        rng = np.random.default_rng(0)
        for name in NAMES:
            np.savez(folder / f"{name}.npz", X=rng.standard_normal((20, 3)), y=rng.choice([-1.0, 1.0], 20))
        draft = {
            "version": 1,
            "title": "six changes",
            "graph": "complete:5",
            "algorithm": {
                "name": "consensus-sgd",
                "protocol": "masked",
                "adjacency": "user",
                "clip_norm": 1.0,
                "noise_multiplier": NOISE,
                "steps": STEPS,
                "learning_rate": 0.1,
            },
            "model": {"kind": "logistic", "parameters": 3},
            "budget": {"epsilon": EPSILON, "delta": DELTA},
            "timing": {"ask_again": 0.5, "give_up": 1800.0},
        }
        self.file, self.files = folder / "epoch0.toml", [folder / "epoch0.toml"]
        entries = [member_entry(self.directories[name].identity.certificate, address()) for name in NAMES]
        write_agreement(self.file, draft, entries)
        self.sign()
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.lost: list[tuple[str, Agreement, int]] = []  # (member, run, releases that really left)

    @property
    def agreement(self) -> Agreement:
        return read_agreement(self.file)

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.agreement.members]

    def state(self, name: str, agreement: Agreement | None = None) -> Path:
        return self.directories[name].folder / "runs" / (agreement or self.agreement).run_id.hex()

    def sign(self) -> None:
        pem = self.folder / "pem"
        for name in self.names:
            for other in self.agreement.members:
                if other.name == name:
                    continue
                pem.write_text(other.certificate)
                self.directories[name].pinned_certificates.trust(pem, "read aloud", instead=True)
        for name in self.names:
            where = self.directories[name].identity_folder
            sign_agreement(self.file, self.directories[name].identity, secrets=where)

    def command(self, *words: object, ok: bool = True) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "sottovoce.cli.main", "peer", *map(str, words)], text=True,
            capture_output=True, env=environment(),
        )  # fmt: skip
        if ok and done.returncode:
            raise SystemExit(f"peer {' '.join(map(str, words))}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self, *names: str) -> None:
        """Start the real command of some members; what they log goes to files."""
        before = [word for file in self.files[-2:-1] for word in ("--previous", file)]
        for name in names or self.names:
            words = ["run", self.file, "--directory", self.directories[name].folder, "--data",
                     self.folder / f"{name}.npz", "--json", "--log-level", "debug", *before]  # fmt: skip
            with self.log(name).open("a") as out:
                self.processes[name] = subprocess.Popen(
                    [sys.executable, "-m", "sottovoce.cli.main", "peer", *map(str, words)], stdout=out,
                    stderr=subprocess.STDOUT, env=environment(),
                )  # fmt: skip

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def reach(self, more: int) -> None:
        """Wait until the first member has gone so many rounds further in this membership version."""
        begin = self.round()
        self.until(lambda: self.round() >= begin + more, f"{more} rounds")

    def round(self) -> int:
        try:
            return int(read_ledger(self.state("m0"))["saved"].at)
        except PeerError:
            return 0

    def until(self, done: Any, what: str, seconds: float = 900.0) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                raise SystemExit(f"{what}: not within {seconds:g} s; logs in {self.folder}")
            time.sleep(0.1)

    def stop(self) -> dict[str, int]:
        """End everybody in order; return the exit codes."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> dict[str, int]:
        codes = {name: process.wait(timeout=900) for name, process in self.processes.items()}
        self.processes = {}
        return codes

    def next(self, what: str, *words: object) -> dict[str, Any]:
        """Draft the next membership version, have it forecast, signed and run; return what was forecast."""
        last, self.file = self.file, self.folder / f"version{len(self.files)}.toml"
        self.command(
            "membership", last, "--directory", self.directories["m0"].folder, "-o", self.file, *words
        )
        self.files.append(self.file)
        self.sign()
        output = self.command(
            "agree", self.file, "--directory", self.directories["m1"].folder, "--previous", last, "--json"
        )
        forecast = {row["view"]: row["total"] for row in json.loads(output)["lifetime"]}
        self.say(f"{what}: membership version {self.agreement.membership_version}, "
                 f"{len(self.names)} members, "
                 f"{self.agreement.plan.steps} steps left")  # fmt: skip
        return forecast

    def charged(self, name: str, view: str) -> float:
        [entry] = self.directories[name].lifetime_ledger.summary()
        return next(float(row["spent"]) for row in entry["budgets"] if row["view"] == view)

    def sent(self, name: str) -> list[Any]:
        """Every release that this member's ledgers list, over all membership versions."""
        runs = self.directories[name].folder / "runs"
        return [release for each in sorted(runs.iterdir()) for release in read_ledger(each)["saved"].releases]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def statement_of(group: Consortium, name: str) -> dict[str, Any]:
    statement: dict[str, Any] = json.loads((group.state(name) / "statement.json").read_text())
    return statement


def mu(releases: Any) -> float:
    return math.sqrt(math.fsum(r.draws * (r.sensitivity / r.noise_std) ** 2 for r in releases))


def live(group: Consortium, lifetime: float) -> dict[str, Any]:
    """Go through the six changes; return what was seen."""
    seen: dict[str, Any] = {}
    # restart: all stop in order, and the same run goes on
    group.start()
    group.reach(12)
    codes = group.stop()
    rounds_done = statement_of(group, "m4")["rounds"]
    group.say(f"stopped at round {group.round()}; all start again")
    group.start()
    group.reach(12)
    codes |= group.stop()
    went_on = statement_of(group, "m4")["rounds"]
    seen["restart"] = {
        "exit_codes": sorted(set(codes.values())), "rounds_before": rounds_done, "rounds_after": went_on,
    }  # fmt: skip
    forecasts = []

    def step(what: str, *words: object, end: Any = group.stop) -> dict[str, int]:
        forecast = group.next(what, *words)
        group.start()
        group.reach(10)
        codes = end()  # at once: a quick machine would go on to the last step
        charged = {view: group.charged("m1", view) for view in forecast}
        forecasts.append({"change": what, "forecast": forecast, "charged": charged})
        return codes

    def power_cut() -> dict[str, int]:
        group.processes["m2"].kill()
        for name in ("m0", "m1"):  # nobody stops these: the certificate's end does
            group.processes[name].wait(timeout=900)
        return group.stop()  # m3 is no neighbor of m1 and would wait for the others

    # leave
    run = group.agreement.run_id.hex()
    group.command(
        "budget", "--directory", group.directories["m4"].folder, "--close", run, "--why", "m4 leaves"
    )
    codes = step("m4 leaves", "--without", "m4")
    seen["leave"] = {"exit_codes": sorted(set(codes.values())),
                     "noise_multiplier": group.agreement.algorithm.noise_multiplier}  # fmt: skip
    # move
    codes = step("m2 moves", "--moved", f"m2={address()}")
    seen["move"] = {"exit_codes": sorted(set(codes.values()))}
    # new key, of a certificate that expires soon; meanwhile m2's machine loses power
    renewed, own = group.folder / "new-key", group.directories["m1"].identity_folder
    old_mark = group.directories["m1"].identity.fingerprint
    identity = make_identity(renewed, "m1", days=lifetime / 86_400, start=dt.datetime.now(dt.UTC))
    for file in (KEY, CERTIFICATE):
        shutil.copy(renewed / file, own / file)
    codes = step("m1 has a new key", "--certificate", own / CERTIFICATE, end=power_cut)
    seen["new key"] = {"another": identity.fingerprint != old_mark}
    stopped_by = [name for name in group.names if "expired during the run" in group.log(name).read_text()]
    seen["expired certificate"] = {"exit_codes": codes, "said_by": stopped_by}
    group.command("keygen", own, "--renew")
    step("m1's certificate is renewed", "--certificate", own / CERTIFICATE)
    # lost disk
    group.lost.append(("m2", group.agreement, len(read_ledger(group.state("m2"))["saved"].releases)))
    shutil.rmtree(group.state("m2"))
    codes = step("m2 has lost its disk", "--moved", f"m2={address()}", end=group.ended)
    seen["lost disk"] = {"exit_codes": sorted(set(codes.values())), "really_left": group.lost[0][2]}
    seen["forecasts"] = forecasts
    return seen


def judged(group: Consortium, seen: dict[str, Any]) -> dict[str, Any]:
    """Compare models, lifetime ledgers, run ledgers and statements at the end."""
    models = {(group.state(name) / "model.npz").read_bytes() for name in group.names}
    vectors = {np.load(group.state(name) / "model.npz")["parameters"].tobytes() for name in group.names}
    statements = {name: statement_of(group, name) for name in group.names}
    lifetimes = {}
    for name in NAMES:
        releases = group.sent(name)
        for who, run, _ in group.lost:
            if who == name:
                releases = [*releases, *AgreedRun(run).plan.releases(run.index(name))]
        true, charged = gaussian_epsilon(mu(releases), DELTA), group.charged(name, "local")
        lifetimes[name] = {"releases": sum(r.draws for r in releases), "composed": true, "charged": charged,
                       "agree": math.isclose(true, charged, rel_tol=1e-6)}  # fmt: skip
    exact = all(
        math.isclose(total, each["charged"][view], rel_tol=1e-9)
        for each in seen["forecasts"]
        for view, total in each["forecast"].items()
    )
    return {
        "one_model": len(vectors) == 1 and bool(models),
        "finished": all(each["finished"] for each in statements.values()),
        "compared_chains": all(len(each["compared"]) == len(group.names) - 1 for each in statements.values()),
        "epochs_in_statements": {name: len(each["before"]) for name, each in statements.items()},
        "incidents": sum(len(each["incidents"]) for each in statements.values()),
        "lifetime_ledgers": lifetimes,
        "ledgers_true": all(each["agree"] for each in lifetimes.values()),
        "forecasts_exact": exact,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--lifetime", type=float, default=180.0, help="seconds of the certificate that expires"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folders")
    arguments = parser.parse_args()
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {text}", file=sys.stderr, flush=True)

    folder = Path(tempfile.mkdtemp(prefix="sottovoce-changes-"))
    group = Consortium(folder, say)
    try:
        seen = live(group, arguments.lifetime)
        verdict = judged(group, seen)
    finally:
        for process in group.processes.values():
            if process.poll() is None:
                process.kill()
    record = {
        "command": f"python -m verification.membership_changes --lifetime {arguments.lifetime:g}",
        "members": 5, "processes": "one per member, TLS 1.3 on localhost", **verdict, "changes": seen,
        "seconds": round(time.monotonic() - began),
    }  # fmt: skip
    if not arguments.keep:
        shutil.rmtree(folder)
    if arguments.out is not None:
        store(arguments.out, "membership-changes", record)
    print(json.dumps(record))
    good = ("one_model", "finished", "compared_chains", "ledgers_true", "forecasts_exact")
    return 0 if all(record[name] for name in good) and not record["incidents"] else 1


if __name__ == "__main__":
    sys.exit(main())
