# ruff: noqa: E501 - planted texts are quoted as they stand in the sources
"""Plant known bugs, one at a time, and see whether the tests notice: the score is how many they catch.

    python scripts/plant_bugs.py [--only WORD] [--list]

Each bug is one replacement in a copy of the sources (the tree itself is not touched), taken from failures
seen in real software or from a promise of the protocol. The tests named beside it must then fail, and
they must pass on the unchanged copy. A bug whose text is no longer found counts as missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Bug(NamedTuple):
    """What is wrong, where, the text before and after, and the tests that must notice."""

    name: str
    file: str
    old: str
    new: str
    tests: str


SIM = "tests/peers/test_simulator.py -k 'copied or budget or missing or (worlds and fault_free and 0)'"
FRAMES = "tests/peers/test_frames.py -k 'not million and not fuzzed'"
LEDGER = "tests/peers/test_disk_ledger.py"
STRANGERS = "tests/peers/test_transport.py"
AGREE = "tests/peers/test_agreement.py"
ENDINGS = "tests/peers/test_endings.py"
NOISE = "tests/privacy/test_noise.py"
SPEND = "tests/privacy/test_ledger.py"
SAME = "tests/peers/test_equivalence.py -k 'muffliato or lots or dsgt or dinno or protective'"
CLAIMS_NETS = "tests/objectives/test_nets.py -k cancels"
CLAIMS_OBJECTIVES = "tests/objectives/test_glm.py -k stored_twice"
CLAIMS_CURVES = "tests/privacy/test_guarantees.py -k undefined"
CLAIMS_PLANS = (
    "tests/algorithms/test_central.py tests/algorithms/test_decentralized.py tests/algorithms/test_fixed_point.py "
    "tests/algorithms/test_muffliato.py tests/algorithms/test_random_walk.py -k "
    "'zero_draw or pays_for or takes_its_place or across_ranks or every_view or paid_for or never_reached or slack_above'"
)
CLAIMS_PEERS = "tests/peers/test_agreement.py tests/peers/test_flower.py -k 'left_out or starts_a_run'"
PEERS, PRIVACY = "src/sottovoce/peers/", "src/sottovoce/privacy/"

BUGS = [
    Bug(
        "send before commit",
        PEERS + "core.py",
        "        self.store.commit(\n            Entry(",
        "        (self.store.disk.write if hasattr(self.store, 'disk') else self.store.commit)(\n            Entry(",
        SIM,
    ),
    Bug(
        "spend not written with the row",
        PEERS + "core.py",
        "                r,\n                releases,\n",
        "                r,\n                (),\n",
        SIM,
    ),
    Bug("budget never asked", PEERS + "core.py", "        self.spending.require(*releases)\n", "", SIM),
    Bug(
        "spend forgotten after a restart",
        PEERS + "core.py",
        "        for release in saved.releases:\n            self.spending.add(release)\n",
        "",
        "tests/peers/test_core.py",
    ),
    Bug(
        "fresh noise for a resend",
        PEERS + "core.py",
        "        if saved.state is not None:\n            program.restore(saved.state)\n",
        "        if saved.state is not None and saved.at > 0:\n            program.restore(saved.state)\n",
        SIM,
    ),
    Bug(
        "rows encoded anew on every resend",
        PEERS + "core.py",
        "            (sender, frame)\n            for r, frame",
        "            (sender, self.wire.row(self.wire.values(self.wire.decode(frame)) + 1e-9, sender=self.program.node, round=r))\n            for r, frame",
        SIM,
    ),
    Bug(
        "a second payload is taken silently",
        PEERS + "core.py",
        "            if held == frame.digest:",
        "            if True:",
        SIM,
    ),
    Bug(
        "no questions to the neighbours after a start",
        PEERS + "core.py",
        "self.unanswered: set[int] = set(program.contacts)",
        "self.unanswered: set[int] = set()",
        "tests/peers/test_core.py",
    ),
    Bug(
        "neighbours' memory of this peer ignored",
        PEERS + "core.py",
        "        if highest >= 0 and self.sent.get(highest) != digest:",
        "        if False:",
        SIM,
    ),
    Bug(
        "rows thrown away before they are used",
        PEERS + "core.py",
        "all(self.passed[s] > r for s in self.program.sends(r))",
        "True",
        SIM,
    ),
    Bug(
        "a row is used although leaving it out was asked for",
        PEERS + "core.py",
        "(key not in self.inbox or key in self.proposed)",
        "(key not in self.inbox)",
        "tests/peers/test_core.py",
    ),
    Bug(
        "leaving out is forgotten in a restart",
        PEERS + "core.py",
        "        for note in saved.notes:\n            self._recall(note)\n",
        "",
        "tests/peers/test_core.py",
    ),
    Bug(
        "the sender is what the frame says",
        PEERS + "core.py",
        "        if frame.sender != sender:",
        "        if False:",
        STRANGERS,
    ),
    Bug(
        "rounds far ahead are kept",
        PEERS + "core.py",
        "        if r > self.program.at + self.program.window:\n            raise",
        "        if False:\n            raise",
        "tests/peers/test_core.py",
    ),
    Bug(
        "exchanges far ahead are left out",
        PEERS + "core.py",
        "                if r > self.program.at + self.program.window:\n                    raise",
        "                if False:\n                    raise",
        "tests/peers/test_core.py",
    ),
    Bug(
        "rows nobody expects are kept",
        PEERS + "core.py",
        "        if sender not in self.program.expects(r):",
        "        if False:",
        "tests/peers/test_core.py",
    ),
    Bug(
        "digest not compared",
        PEERS + "frames.py",
        "        if digest != raw[-DIGEST:]:",
        "        if False:",
        FRAMES,
    ),
    Bug(
        "NaN and infinity accepted",
        PEERS + "frames.py",
        "            if not np.isfinite(self.values(frame)).all():",
        "            if False:",
        FRAMES,
    ),
    Bug(
        "length taken from the frame",
        PEERS + "frames.py",
        "        if size != total or length != expected:",
        "        if False:",
        FRAMES,
    ),
    Bug(
        "another run's frames accepted",
        PEERS + "frames.py",
        "        if run != self.run:",
        "        if False:",
        FRAMES,
    ),
    Bug(
        "disk not synced",
        PEERS + "ledger.py",
        "PRAGMA synchronous=FULL",
        "PRAGMA synchronous=OFF",
        "tests/peers/test_real_processes.py -k sync",
    ),
    Bug("chain not checked", PEERS + "ledger.py", "row[-1] != _row_hash(head, row[:-1])", "False", LEDGER),
    Bug(
        "older ledger accepted",
        PEERS + "ledger.py",
        "            if known and not self._anchored(known):",
        "            if False:",
        LEDGER,
    ),
    Bug(
        "missing ledger made anew",
        PEERS + "ledger.py",
        "        if mark.exists():\n            self._belongs(path, mark)",
        "        if mark.exists() and path.exists():\n            self._belongs(path, mark)",
        LEDGER,
    ),
    Bug(
        "going on after a failed commit",
        PEERS + "ledger.py",
        "        self._broken = True  # until all of it has gone well",
        "        pass",
        LEDGER,
    ),
    Bug(
        "two processes on one folder",
        PEERS + "ledger.py",
        "            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "            pass",
        LEDGER,
    ),
    Bug(
        "ledger readable by others",
        PEERS + "ledger.py",
        "os.O_CREAT | os.O_EXCL, 0o600",
        "os.O_CREAT | os.O_EXCL, 0o644",
        LEDGER,
    ),
    Bug(
        "clients need no certificate",
        PEERS + "transport.py",
        "require_client_auth=True",
        "require_client_auth=bool(0)",
        STRANGERS,
    ),
    Bug(
        "every member may connect",
        PEERS + "transport.py",
        "        self.contacts = [s for s in contacts if",
        "        self.contacts = [s for s in range(1, len(self.members)) if",
        STRANGERS,
    ),
    Bug(
        "revoked certificates accepted",
        PEERS + "transport.py",
        "        refused = set(revoked)",
        "        refused = set()",
        STRANGERS,
    ),
    Bug(
        "TLS 1.2 accepted",
        PEERS + "transport.py",
        '"ECDHE-RSA-AES256-GCM-SHA384"',
        '"ECDHE-ECDSA-AES256-GCM-SHA384"',
        STRANGERS,
    ),
    Bug(
        "messages of any size",
        PEERS + "transport.py",
        '("grpc.max_receive_message_length", self.largest)',
        '("grpc.max_receive_message_length", -1)',
        STRANGERS,
    ),
    Bug(
        "unsigned agreements run",
        PEERS + "agreement.py",
        "            if signature is None:\n",
        "            if signature is None:\n                continue\n            if signature is None:\n",
        AGREE,
    ),
    Bug(
        "signatures not verified",
        PEERS + "agreement.py",
        "            if not verify(member.certificate.encode(), raw, self.run):",
        "            if False:",
        AGREE,
    ),
    Bug(
        "noise not part of the run's name",
        PEERS + "agreement.py",
        'exclude={"signatures"}',
        'exclude={"signatures": True, "algorithm": {"noise_multiplier"}}',
        AGREE,
    ),
    Bug(
        "key readable by others accepted",
        PEERS + "identity.py",
        "    if mode & 0o077:",
        "    if False:",
        AGREE,
    ),
    Bug(
        "expired certificates accepted",
        PEERS + "identity.py",
        "    if not parsed.not_valid_before_utc <= now",
        "    if False and not parsed.not_valid_before_utc <= now",
        AGREE,
    ),
    Bug(
        "plan beyond the budget starts",
        PEERS + "jobs.py",
        "        if not spending.fits(*planned):",
        "        if False:",
        AGREE,
    ),
    Bug(
        "only one of DiNNO's inner draws is charged",
        PEERS + "programs.py",
        "        self._drawn.append(",
        "        if stream == 0:\n          self._drawn.append(",
        SAME,
    ),
    Bug(
        "lots drawn at twice the rate",
        PEERS + "jobs.py",
        "int(rate * 2**32)",
        "int(min(2 * rate, 0.999) * 2**32)",
        SAME,
    ),
    Bug(
        "tracked gradient recomputed, not stored",
        PEERS + "learning.py",
        "y + fresh - state.stored",
        "y + fresh - noisy(state.theta, k)",
        SAME,
    ),
    Bug(
        "noise from a fixed key",
        PRIVACY + "noise.py",
        "algorithms.AES(os.urandom(32))",
        "algorithms.AES(bytes(32))",
        NOISE,
    ),
    Bug(
        "half the noise",
        PRIVACY + "noise.py",
        "        step = std / STEPS_PER_STD\n",
        "        step = std / STEPS_PER_STD / 2\n",
        NOISE,
    ),
    Bug(
        "noise one per cent too small",
        PRIVACY + "noise.py",
        "Decimal(-1) / (2 * _WIDTH**2)",
        "Decimal(-1) / (2 * 507**2)",
        NOISE,
    ),
    Bug(
        "values not rounded to the grid", PRIVACY + "noise.py", "        np.rint(grid, out=grid)\n", "", NOISE
    ),
    Bug(
        "no slack for rounding",
        PRIVACY + "noise.py",
        "return step * (math.sqrt(dim) * (0.5 + 2.0**-10) + 0.5)",
        "return 0.0",
        NOISE,
    ),
    Bug(
        "a NaN passes through the noise",
        PRIVACY + "noise.py",
        "        _fits_the_grid(values, scale)\n",
        "",
        NOISE,
    ),
    Bug(
        "count charged once",
        PRIVACY + "ledger.py",
        "release.sample_rate)] += release.count",
        "release.sample_rate)] += 1",
        SPEND,
    ),
    Bug(
        "unlike adjacencies added",
        PRIVACY + "ledger.py",
        "        if any(kind.adjacency != self.budget.adjacency for kind in total):",
        "        if False:",
        SPEND,
    ),
    Bug(
        "hostile: a connection outlives its certificate",
        PEERS + "transport.py",
        "        return [s for s in members or self._until if now > self._until[s]]",
        "        return []",
        ENDINGS,
    ),
    Bug(
        "hostile: an expired certificate is seen by the driver only",
        PEERS + "transport.py",
        "            if self.expired(sender, self.node):\n",
        "            if False:\n",
        STRANGERS,
    ),
    Bug(
        "hostile: a refused frame ends the stream",
        PEERS + "transport.py",
        "                self.refused += 1  # one bad frame",
        "                raise  # one bad frame",
        STRANGERS,
    ),
    Bug(
        "hostile: a frame is lost with its stream",
        PEERS + "transport.py",
        "                    queue.appendleft(raw)\n",
        "",
        STRANGERS,
    ),
    Bug(
        "hostile: a broken computation goes on",
        PEERS + "core.py",
        "        except Exception as error:  # the program",
        "        except StopAsyncIteration as error:  # the program",
        "tests/peers/test_core.py",
    ),
    Bug(
        "hostile: others may write the state folder",
        PEERS + "ledger.py",
        "st_mode & 0o022",
        "st_mode & 0o000",
        LEDGER,
    ),
    Bug(
        "hostile: a title repaints the price",
        PEERS + "agreement.py",
        " or not text.isprintable()",
        "",
        AGREE,
    ),
    Bug(
        "hostile: a stopped peer leaves its folder locked",
        PEERS + "runtime.py",
        "            finally:\n                self.ledger.close()",
        "            finally:\n                pass",
        ENDINGS,
    ),
    Bug(
        "claim: a ghost norm in float32",
        "src/sottovoce/objectives/nets_layers.py",
        "xs, gs = x.double(), g.double()",
        "xs, gs = x, g",
        CLAIMS_NETS,
    ),
    Bug(
        "claim: rounding of sums that cancel is not counted",
        "src/sottovoce/objectives/nets_layers.py",
        "ROUNDING * reach).square()",
        "0 * reach).square()",
        CLAIMS_NETS,
    ),
    Bug(
        "claim: an entry stored twice is clipped twice",
        "src/sottovoce/objectives/glm.py",
        "        rows.sum_duplicates()\n",
        "",
        CLAIMS_OBJECTIVES,
    ),
    Bug(
        "claim: an undefined order gives epsilon 0",
        PRIVACY + "renyi.py",
        "return math.inf if math.isnan(value) else value",
        "return value",
        CLAIMS_CURVES,
    ),
    Bug(
        "claim: an infinite order stays in the table",
        PRIVACY + "curves.py",
        "if a != math.inf]",
        "]",
        CLAIMS_CURVES,
    ),
    Bug(
        "claim: a removed record takes its place with it",
        "src/sottovoce/algorithms/decentralized.py",
        'return () if self.level == "user" else (EMPTY_PLACE,)',
        "return ()",
        CLAIMS_PLANS,
    ),
    Bug(
        "claim: sizes are compared within a rank only",
        "src/sottovoce/algorithms/ranks.py",
        "    plan.check_sizes(shards, range(plan.n))  # a rank sees its own agents only\n",
        "",
        CLAIMS_PLANS,
    ),
    Bug(
        "claim: a zero draw leaves the grid",
        "src/sottovoce/algorithms/dp_cd.py",
        "        if noisy:  #",
        "        if noise[k] != 0.0:  #",
        CLAIMS_PLANS,
    ),
    Bug(
        "claim: a row no token reached reveals nothing",
        "src/sottovoce/algorithms/muffliato.py",
        "            share = math.inf  # the token",
        "            share = 0.0  # the token",
        CLAIMS_PLANS,
    ),
    Bug(
        "claim: a walk's rounding is not paid for",
        "src/sottovoce/algorithms/muffliato.py",
        "        inner = radius - noise.slack(rows.shape[1], noise_std)\n",
        "        inner = radius - (0.0 if noise_later else noise.slack(rows.shape[1], noise_std))\n",
        CLAIMS_PLANS,
    ),
    Bug(
        "claim: a slack above the clip turns it over",
        "src/sottovoce/algorithms/random_walk.py",
        "        if clip <= 0:\n",
        "        if False:\n",
        CLAIMS_PLANS,
    ),
    Bug(
        "claim: Laplace noise does not pay for its grid",
        "src/sottovoce/algorithms/dp_gcd.py",
        "clips = C * max(1 - self.noise_ratio / GRID, 0.0) if random.noise.protective else C",
        "clips = C",
        CLAIMS_PLANS,
    ),
    Bug(
        "claim: a fixed point does not pay for rounding",
        "src/sottovoce/algorithms/fixed_point.py",
        "        left = mu - 2 * random.slack(dim, 1.0)  #",
        "        left = mu  #",
        CLAIMS_PLANS,
    ),
    Bug(
        "claim: DECOR forgets colluders who see everything",
        "src/sottovoce/algorithms/decor.py",
        'if view in ("local", "central") and not listed:\n            adversary =',
        'if view in ("local", "central"):\n            listed, adversary = [],',
        CLAIMS_PLANS,
    ),
    Bug(
        "claim: an exact price although exchanges may be left out",
        PEERS + "jobs.py",
        'if self.agreement.timing.late == "drop":  #',
        "if False:  #",
        CLAIMS_PEERS,
    ),
    Bug(
        "claim: the server's seed decides a client's noise",
        PEERS + "flower.py",
        'if seed is not None and not (_engine(context) or context.node_config.get("simulate") is True):',
        "if False:",
        CLAIMS_PEERS,
    ),
]


def passes(copy: Path, tests: str) -> bool:
    """Return whether the named tests pass on a copy of the tree."""
    import shlex

    words = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", *shlex.split(tests)]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(words, cwd=copy, env=environment, capture_output=True, timeout=240)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def planted(copy: Path, bug: Bug) -> bool:
    """Write the bug into the copy; return whether its text was found once."""
    path = copy / bug.file
    text = path.read_text()
    if text.count(bug.old) != 1:
        return False
    path.write_text(text.replace(bug.old, bug.new))
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="only bugs whose name contains this")
    parser.add_argument("--list", action="store_true", help="print the bugs and stop")
    given = parser.parse_args()
    chosen = [bug for bug in BUGS if given.only in bug.name]
    if given.list:
        print("\n".join(f"{bug.name}  ({bug.file})" for bug in chosen))
        return 0
    base = Path(tempfile.mkdtemp(prefix="sottovoce-bugs-"))
    started, caught, missed = time.monotonic(), [], []
    for name in ("src", "tests", "scripts", "pyproject.toml"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, base / name)
    for tests in sorted({bug.tests for bug in chosen}):
        if not passes(base, tests):
            print(f"the unchanged tree fails {tests}; mend that first", file=sys.stderr)
            return 2
    for bug in chosen:
        whole = (base / bug.file).read_text()
        found = planted(base, bug)
        noticed = found and not passes(base, bug.tests)
        (base / bug.file).write_text(whole)
        (caught if noticed else missed).append(bug.name)
        note = "caught" if noticed else "MISSED" if found else "NOT FOUND"
        print(f"{note:9} {bug.name}", file=sys.stderr, flush=True)
    shutil.rmtree(base)
    score = {
        "planted": len(chosen),
        "caught": len(caught),
        "missed": missed,
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(score))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
