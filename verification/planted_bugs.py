"""Plant known bugs, one at a time, and see whether the tests notice; the score is how many they catch.

    python -m verification.planted_bugs [--only WORD] [--list] [--resume] [--out RECORD.json]

Each bug replaces one function, property or module of the library by a faulty one, taken from failures seen in
real software or from a guarantee of the protocol. The tests named beside it must then fail, and must pass
without the bug. This module is also the pytest plugin that plants a bug in the process of the tests:

    SOTTOVOCE_PLANTED_BUG="no slack for rounding" python -m pytest -p verification.planted_bugs TESTS
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
VARIABLE = "SOTTOVOCE_PLANTED_BUG"
TIMEOUT = 900.0  # seconds of one test run


class Bug(NamedTuple):
    """A name, the object that is replaced (``module:attribute``), its replacement, and tests that must fail.

    ``faulty`` takes the right object and returns the wrong one.
    """

    name: str
    target: str
    faulty: Callable[[Any], Any]
    tests: str


def returns(value: Any) -> Callable[[Any], Any]:
    """Replace a function by one that ignores its arguments."""
    return lambda right: lambda *args, **options: value


def does_nothing(right: Any) -> Any:
    return lambda *args, **options: None


def with_arguments(change: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]) -> Callable[[Any], Any]:
    """Call the right function with other arguments."""

    def faulty(right: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            changed, more = change(*args, **options)
            return right(*changed, **more)

        return call

    return faulty


def module_with(**names: Any) -> Callable[[Any], Any]:
    """Replace a module that another one has imported: some of its names are others."""
    return lambda right: SimpleNamespace(**{**vars(right), **names})


def option_changed(key: str, factor: float) -> Callable[[Any], Any]:
    """Change an agreed number on its way into the plan."""

    def faulty(right: Any) -> Any:
        def call(network: Any, algorithm: Any, *args: Any, **options: Any) -> Any:
            return right(network, {**algorithm, key: algorithm[key] * factor}, *args, **options)

        return call

    return faulty


def uncommitted(right: Any) -> Any:
    """Write a row without waiting for the disk."""

    def commit(self: Any, entry: Any) -> None:
        (self.store.disk.write if hasattr(self.store, "disk") else self.store.commit)(entry)

    return commit


def unlocked(right: Any) -> Any:
    """Open a state folder without taking the lock."""
    return lambda path, patience: contextlib.nullcontext()


SIMULATOR = (
    "tests/verification/test_simulator.py -k 'copied or budget or missing or (worlds and fault_free and 0)'"
)
FRAMES = "tests/peers/test_wire_format.py -k 'not million and not fuzzed'"
LEDGER = "tests/ledger/test_run_ledger.py"
TRANSPORT = "tests/peers/test_transport.py"
AGREEMENT = "tests/peers/test_agreement.py"
CORE = "tests/peers/test_core.py"
KEYS = "tests/peers/test_run_keys.py -k 'set_back or inputs or labels or ratcheted'"
LIARS = "tests/verification/test_simulator.py -k 'remembers or rarer or middle'"
MEMBERSHIP = "tests/peers/test_membership_changes.py"
LIFETIME = "tests/ledger/test_lifetime.py"
DIRECTORY = "tests/peers/test_member_directory.py -k 'not killed'"
NOISE = "tests/noise/test_samplers.py tests/noise/test_discrete.py"
SAME = "tests/peers/test_equivalence.py -k 'equal_the_library'"
COST = "tests/peers/test_equivalence.py -k 'formula or one_thing or path'"
SAMPLING = "tests/peers/test_equivalence.py -k batches_are_drawn"
P, L, N = "sottovoce.peers.", "sottovoce.ledger.", "sottovoce.privacy."

BUGS = [
    # ---- a row leaves only when its releases are durable ----------------------------------------------
    Bug("rows are sent before they are durable", P + "core:Core._commit", uncommitted, SIMULATOR),
    Bug(
        "releases are not written with the row",
        P + "core:Core._commit",
        with_arguments(lambda self, entry: ((self, entry._replace(releases=())), {})),
        SIMULATOR,
    ),
    Bug(
        "the budget is not checked", "sottovoce.accounting.release:Spending.require", does_nothing, SIMULATOR
    ),
    Bug("spending is forgotten", "sottovoce.accounting.release:Spending.add", does_nothing, CORE),
    Bug("notes are forgotten in a restart", P + "core:Core._recall", does_nothing, CORE),
    Bug("notes wait for the next row", P + "core:Core.commit_notes", does_nothing, CORE),
    Bug("incidents leave no trace", P + "core:Core.incident", does_nothing, CORE),
    Bug("neighbors' memory of this peer is ignored", P + "core:Core._compare", returns(False), CORE),
    Bug("an unfounded accusation ends a peer", P + "wire_format:FrameCodec.signed_row", returns(True), CORE),
    # ---- frames -------------------------------------------------------------------------------------
    Bug("signatures of frames are not checked", P + "wire_format:OpenSigner.verify", returns(True), FRAMES),
    Bug(
        "digests of frames are not compared",
        P + "wire_format:frame_digest",
        lambda right: lambda raw: hashlib.sha256(raw[:-96]).digest(),
        FRAMES,
    ),
    Bug(
        "rows with NaN and infinity are accepted",
        P + "wire_format:np",
        lambda right: module_with(isfinite=lambda array: right.ones_like(array, dtype=bool))(right),
        FRAMES,
    ),
    # ---- ledgers ------------------------------------------------------------------------------------
    Bug("an older ledger is accepted", L + "run_ledger:_contains", returns(True), LEDGER),
    Bug("a missing ledger is created again", L + "run_ledger:RunLedger._check_run", does_nothing, LEDGER),
    Bug("two processes open one ledger", L + "run_ledger:locked", unlocked, LEDGER),
    Bug("a run folder may be set back", L + "run_ledger:RunLedger._open_head_file", does_nothing, DIRECTORY),
    Bug("begun runs are not marked", L + "lifetime:LifetimeLedger.begun", does_nothing, DIRECTORY),
    Bug(
        "the second copy of the lifetime ledger is not read",
        L + "lifetime:LifetimeLedger._verified",
        lambda right: lambda self: importlib.import_module("sottovoce.ledger.lifetime")._read(self.path),
        LIFETIME,
    ),
    Bug(
        "a membership change is charged to the first population",
        L + "lifetime:_State.parent",
        returns(None),
        MEMBERSHIP + " -k people",
    ),
    Bug(
        "a membership change begun and given up costs nothing",
        P + "membership_changes:_VersionChain._siblings",
        does_nothing,
        MEMBERSHIP + " -k both_counted",
    ),
    Bug(
        "without a member directory the previous run continues too",
        P + "runtime:give_up",
        does_nothing,
        MEMBERSHIP + " -k without_a_member_directory",
    ),
    Bug("any model continues a run", P + "membership_changes:model_digest", returns("0" * 64), MEMBERSHIP),
    # ---- connections, agreements ------------------------------------------------------------------------
    Bug("control frames are not limited", P + "transport:RateLimit.take", returns(True), TRANSPORT),
    Bug(
        "certificates do not expire during a run",
        P + "transport:TlsTransport.expired",
        returns([]),
        TRANSPORT,
    ),
    Bug(
        "revoked certificates are accepted",
        P + "transport:TlsTransport.__init__",
        with_arguments(lambda *args, **options: (args, {**options, "revoked": ()})),
        TRANSPORT,
    ),
    Bug("signatures of agreements are not verified", P + "agreement:verify", returns(True), AGREEMENT),
    Bug(
        "public randomness does not depend on the run",
        P + "agreement:Agreement.seed",
        lambda right: property(lambda self: 0),
        SAME,
    ),
    Bug(
        "the agreed noise is halved",
        P + "agreement:agreed_plan",
        option_changed("noise_multiplier", 0.5),
        SAME,
    ),
    Bug(
        "the agreed clip norm is doubled", P + "agreement:agreed_plan", option_changed("clip_norm", 2.0), SAME
    ),
    # ---- noise and sampling -------------------------------------------------------------------------
    Bug("noise from a fixed key", "sottovoce.noise.discrete:os", module_with(urandom=bytes), NOISE),
    Bug("half the noise", "sottovoce.noise.samplers:STEPS_PER_STD", lambda right: 2 * right, NOISE),
    Bug("no slack for rounding", "sottovoce.noise.samplers:ProtectiveNoise.slack", returns(0.0), NOISE),
    Bug("NaN passes through the noise", "sottovoce.noise.samplers:_fits_the_grid", does_nothing, NOISE),
    Bug("batches from a known key", P + "agreed_run:os", module_with(urandom=bytes), SAMPLING),
    Bug(
        "batches are drawn at twice the rate",
        "sottovoce.data.poisson_sampling:_threshold",
        with_arguments(lambda rate: ((min(1.0, 2 * rate),), {})),
        SAMPLING,
    ),
    Bug(
        "a member's sensitivity is one clip norm",
        "sottovoce.accounting.release:MOVES",
        lambda right: {**right, "user": 1.0},
        COST,
    ),
    # ---- keys of a run --------------------------------------------------------------------------------
    Bug("the run's key is not ratcheted", P + "run_keys:RunKeys.turn_over", does_nothing, KEYS),
    Bug("the run's key is kept after the end", P + "run_keys:RunKeys.erase", does_nothing, KEYS),
    Bug("noise does not depend on the inputs", P + "run_keys:RunKeys.received", does_nothing, KEYS),
    Bug("noise is drawn again at a restart", P + "run_keys:RunKeys.restore", does_nothing, KEYS),
]


def place(target: str) -> tuple[Any, str]:
    """Return the object that holds a target, and the attribute's name."""
    module, _, path = target.partition(":")
    *outer, name = path.split(".")
    holder: Any = importlib.import_module(module)
    for each in outer:
        holder = getattr(holder, each)
    if name not in vars(holder):
        raise AttributeError(f"{target} does not exist; adapt the bug that is planted there.")
    return holder, name


def plant(name: str) -> None:
    """Replace the target of a bug in this process."""
    (bug,) = (bug for bug in BUGS if bug.name == name)
    holder, attribute = place(bug.target)
    setattr(holder, attribute, bug.faulty(getattr(holder, attribute)))


def pytest_configure(config: Any) -> None:
    """Plant the bug that the environment names before any test is imported."""
    if os.environ.get(VARIABLE):
        plant(os.environ[VARIABLE])


def outcome(tests: str, bug: str = "") -> str:
    """Return how the named tests end with a bug, or without one: passed, failed or hung."""
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider",
             "-p", "verification.planted_bugs", *shlex.split(tests)]  # fmt: skip
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, VARIABLE: bug, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return "hung"
    return {0: "passed", 1: "failed"}.get(done.returncode, f"pytest ended with {done.returncode}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="only bugs whose name contains this")
    parser.add_argument("--list", action="store_true", help="print the bugs and stop")
    parser.add_argument(
        "--lines", type=Path, default=Path("build/planted-bugs.jsonl"), help="one line per bug"
    )
    parser.add_argument("--resume", action="store_true", help="keep the lines there are and continue")
    parser.add_argument("--out", type=Path, help="write the record here")
    options = parser.parse_args()
    bugs = [bug for bug in BUGS if options.only in bug.name]
    if options.list:
        print("\n".join(f"{bug.name}  ({bug.target})" for bug in bugs))
        return 0
    options.lines.parent.mkdir(parents=True, exist_ok=True)
    if not options.resume:
        options.lines.unlink(missing_ok=True)
    lines = options.lines.read_text().splitlines() if options.lines.exists() else []
    rows = {row["name"]: row for row in map(json.loads, lines)}
    unchanged: dict[str, str] = {}
    for bug in bugs:
        if bug.name in rows:
            continue
        begin = time.monotonic()
        if bug.tests not in unchanged:  # a test that fails without the bug catches nothing
            unchanged[bug.tests] = outcome(bug.tests)
        if unchanged[bug.tests] == "passed":
            result = outcome(bug.tests, bug.name)
            verdict = {"passed": "missed", "failed": "caught"}.get(result, result)
        else:
            verdict = f"its tests {unchanged[bug.tests]} without the bug"
        row = {"name": bug.name, "verdict": verdict, "seconds": round(time.monotonic() - begin, 1)}
        rows[bug.name] = row
        with options.lines.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{verdict:9} {bug.name}", file=sys.stderr, flush=True)
    results = [rows[bug.name] for bug in bugs]
    # a hanging test notices a bug too, but a busy machine can also make a test hang
    missed = {row["name"]: row["verdict"] for row in results if row["verdict"] not in ("caught", "hung")}
    record = {
        "command": "python -m verification.planted_bugs",
        "planted": len(bugs),
        "caught": sum(row["verdict"] == "caught" for row in results),
        "hung": [row["name"] for row in results if row["verdict"] == "hung"],
        "missed": missed,
        "seconds": round(sum(row["seconds"] for row in results), 1),
    }
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
