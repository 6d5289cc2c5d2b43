# ruff: noqa: E501 - planted texts are quoted as they stand in the sources
"""Plant known bugs, one at a time, and see whether the tests notice: the score is how many they catch.

    python scripts/plant_bugs.py [--only WORD] [--list] [--lines verdicts.jsonl] [--out record.json]

Each bug is one replacement in a copy of the sources (the tree itself is not touched), taken from failures
seen in real software or from a promise of the protocol. The tests named beside it must then fail, and
they must pass on the unchanged copy. A bug whose text is no longer found counts as missed. With --lines a
run that was ended goes on where it was; a verdict is taken again when the bug, its file or its tests change.
"""

from __future__ import annotations

import argparse
import hashlib
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
PATIENCE = 900.0  # seconds of one test run


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
DOOR = "tests/peers/test_door.py"
AGREE = "tests/peers/test_agreement.py"
ENDINGS = "tests/peers/test_endings.py"
CORE = "tests/peers/test_core.py"
KEYS = "tests/peers/test_runkeys.py"
LIARS = "tests/peers/test_simulator.py -k 'remembers or rarer or middle'"
TRAININGS = "tests/peers/test_trainings.py"
EPOCHS = "tests/peers/test_epochs.py"
STORED = "tests/peers/test_stored.py"
BOOK = "tests/peers/test_book.py"
HOME = "tests/peers/test_home.py -k 'not histor and not killed'"
NOISE = "tests/privacy/test_noise.py"
SPEND = "tests/privacy/test_releases.py"
SAME = "tests/peers/test_equivalence.py -k 'equal_the_library'"
HAND = "tests/peers/test_equivalence.py -k by_hand"
PRICE = "tests/peers/test_equivalence.py -k 'formula or one_thing or path'"
SPREAD = "tests/peers/test_equivalence.py -k 'spread or planned or by_hand'"
LOTS = "tests/peers/test_equivalence.py -k lots"
CLAIMS_NETS = "tests/objectives/test_nets.py -k cancels"
CLAIMS_OBJECTIVES = "tests/objectives/test_glm.py -k stored_twice"
CLAIMS_CURVES = "tests/privacy/test_guarantees.py -k undefined"
CLAIMS_PEERS = "tests/peers/test_agreement.py tests/peers/test_flower.py -k 'left_out or starts_a_run'"
PEERS, PRIVACY, TEXTS = "src/sottovoce/peers/", "src/sottovoce/privacy/", "src/sottovoce/algorithms/"

BUGS = [
    Bug(
        "send before commit",
        PEERS + "core.py",
        "        self._commit(\n            Entry(\n                r,",
        "        (self.store.disk.write if hasattr(self.store, 'disk') else self._commit)(\n            Entry(\n                r,",
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
        "        self.spending.add(*self.releases)\n",
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
        "            if held[:DIGEST] == frame.digest:",
        "            if True:",
        CORE,
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
        "        if highest < 0 or self.sent.get(highest) == digest:",
        "        if True:",
        CORE,
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
        "        if digest != digest_of(raw):",
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
        "second copy not read",
        PEERS + "book.py",
        "        copied = _read(self.copy)\n",
        "        copied = rows\n",
        BOOK,
    ),
    Bug(
        "copy left behind",
        PEERS + "book.py",
        "        if len(copied) < len(rows):",
        "        if False:",
        BOOK,
    ),
    Bug(
        "a replacement priced as a removal",
        PEERS + "book.py",
        "sensitivity=2 * release.sensitivity",
        "sensitivity=release.sensitivity",
        BOOK,
    ),
    Bug(
        "records left out of the user total",
        PEERS + "book.py",
        "curves += [Curve.gaussian(math.inf)] * bool(records)",
        "pass",
        BOOK,
    ),
    Bug(
        "a known run begins again",
        PEERS + "book.py",
        "            known = state.runs.get(new.run)\n            if known is not None:",
        "            known = state.runs.get(new.run)\n            if False:",
        BOOK,
    ),
    Bug(
        "lifetime budget not asked",
        PEERS + "book.py",
        '            if not row["total"] <= row["epsilon"]:',
        "            if False:",
        BOOK,
    ),
    Bug(
        "other records pass",
        PEERS + "book.py",
        "        if new.records != known.records:",
        "        if False:",
        HOME,
    ),
    Bug(
        "a run folder may be set back",
        PEERS + "ledger.py",
        "                self._open_anchor(Path(witness), required=witnessed)",
        "                pass",
        HOME,
    ),
    Bug(
        "a certificate of the drafter's own making",
        PEERS + "addresses.py",
        "            if pinned != member.fingerprint:",
        "            if False:",
        HOME,
    ),
    Bug(
        "strangers keep their connections",
        PEERS + "door.py",
        "loop.call_later(self.patience, self._let_go, guest)",
        "loop.call_later(1e6, self._let_go, guest)",
        DOOR,
    ),
    Bug(
        "one address takes all places",
        PEERS + "door.py",
        "        if len(same) >= self.per_address:",
        "        if False:",
        DOOR,
    ),
    Bug(
        "control frames without end",
        PEERS + "transport.py",
        "            if kind != ROW and not allowed.take(now):",
        "            if False:",
        STRANGERS,
    ),
    Bug(
        "another agreement is talked to",
        PEERS + "transport.py",
        "        if self.run != own.run:",
        "        if False:",
        STRANGERS,
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
        PEERS + "links.py",
        "ssl.CERT_REQUIRED",
        "ssl.VerifyMode(int(context.protocol == ssl.PROTOCOL_TLS_CLIENT) * 2)",
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
        "        barred = set(revoked)",
        "        barred = set()",
        STRANGERS,
    ),
    Bug(
        "TLS 1.2 accepted",
        PEERS + "links.py",
        "ssl.TLSVersion.TLSv1_3",
        "ssl.TLSVersion(771)",
        STRANGERS,
    ),
    Bug(
        "messages of any size",
        PEERS + "links.py",
        '            if not 0 < size <= self.largest:\n                raise FrameError(f"A message of',
        '            if not 0 < size:\n                raise FrameError(f"A message of',
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
        "            if not verify(member.certificate.encode(), raw, self.signed_content(member.name)):",
        "            if False:",
        AGREE,
    ),
    Bug(
        "noise not part of the run's name",
        PEERS + "agreement.py",
        'exclude={"signatures", "mask_keys"}, exclude_unset',
        'exclude={"signatures": True, "mask_keys": True, "algorithm": {"noise_multiplier"}}, exclude_unset',
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
        "noise from a fixed key",
        PRIVACY + "noise.py",
        "algorithms.AES(os.urandom(32) if key is None else key)",
        "algorithms.AES(bytes(32) if key is None else key)",
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
        "        _fits_the_grid(values, scale)\n        return self._add(",
        "        return self._add(",
        NOISE,
    ),
    Bug(
        "count charged once",
        PRIVACY + "releases.py",
        "+= 1 if release.joint else release.draws",
        "+= 1",
        SPEND,
    ),
    Bug(
        "unlike adjacencies added",
        PRIVACY + "releases.py",
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
        "                self._refuse(sender, error)  # one bad frame",
        "                link.close()  # one bad frame",
        STRANGERS,
    ),
    Bug(
        "hostile: a frame is lost with its stream",
        PEERS + "transport.py",
        "                contact.queue.appendleft(raw)\n",
        "                pass\n",
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
        "                    self.ledger.tidy()\n                self.ledger.close()",
        "                    self.ledger.tidy()",
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
        "roundings * lengths.double().sum(1)).square()",
        "0 * lengths.double().sum(1)).square()",
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
        "plan beyond the budget starts",
        PEERS + "jobs.py",
        "        if not spending.fits(*self.releases(node)):",
        "        if False:",
        AGREE,
    ),
    Bug(
        "peer: consensus ascends",
        TEXTS + "consensus_sgd.py",
        "        moved = model.theta - step\n",
        "        moved = model.theta + step\n",
        HAND,
    ),
    Bug(
        "peer: Muffliato ascends",
        TEXTS + "muffliato_sgd.py",
        "= theta - theta.dtype.type(rate(k))",
        "= theta + theta.dtype.type(rate(k))",
        HAND,
    ),
    Bug(
        "peer: DP-DSGD ascends",
        TEXTS + "dp_dsgd.py",
        "Own(received - step, moments)",
        "Own(received + step, moments)",
        HAND,
    ),
    Bug(
        "peer: DP-DSGD steps from where it was, without mixing",
        TEXTS + "dp_dsgd.py",
        "Own(received - step, moments)",
        "Own(own.theta - step, moments)",
        HAND,
    ),
    Bug(
        "peer: no tracking",
        TEXTS + "dp_dsgt.py",
        "Own(moved, tracked + g - state.own.g, g)",
        "Own(moved, g, g)",
        HAND,
    ),
    Bug(
        "peer: tracked gradient recomputed, not stored",
        TEXTS + "dp_dsgt.py",
        "tracked + g - state.own.g, g)",
        "tracked + g - source.full(state.own.theta, k), g)",
        HAND,
    ),
    Bug(
        "peer: DiNNO's dual variable with the wrong sign",
        TEXTS + "dp_dinno.py",
        "        y = own.y + r *",
        "        y = own.y - r *",
        HAND,
    ),
    Bug(
        "peer: DiNNO's penalty halved",
        TEXTS + "dp_dinno.py",
        "+ y + 2 * r *",
        "+ y + r *",
        HAND,
    ),
    Bug(
        "peer: the walk ascends",
        TEXTS + "random_walk_sgd.py",
        "moved[[place]] -= theta.dtype",
        "moved[[place]] += theta.dtype",
        HAND,
    ),
    Bug(
        "peer: records clipped at 2C and charged at C",
        "src/sottovoce/objectives/gradients.py",
        "        self.inner_clip = self.clip - slack\n",
        "        self.inner_clip = 2 * self.clip - slack\n",
        HAND,
    ),
    Bug(
        "peer: half the noise at user level",
        "src/sottovoce/objectives/gradients.py",
        "        std = self.std[places]\n",
        "        std = self.std[places] / (2 if self.user_level else 1)\n",
        SPREAD,
    ),
    Bug(
        "peer: half the noise at record level",
        "src/sottovoce/objectives/gradients.py",
        "        std = self.std[places]\n",
        "        std = self.std[places] / (1 if self.user_level else 2)\n",
        SPREAD,
    ),
    Bug(
        "peer: half the noise in an average",
        "src/sottovoce/objectives/gradients.py",
        "self.rows - self.centre, agents=self.numbers, step=step, std=self.std",
        "self.rows - self.centre, agents=self.numbers, step=step, std=self.std / 2",
        SPREAD,
    ),
    Bug(
        "peer: only one of DiNNO's inner draws is charged",
        "src/sottovoce/objectives/gradients.py",
        "        if self._drawn is not None:\n            self._drawn += [self._release",
        "        if self._drawn is not None and stream == 0:\n            self._drawn += [self._release",
        PRICE,
    ),
    Bug(
        "peer: the signed price counts one step",
        PEERS + "jobs.py",
        "        planned: Sequence[Release] = self.plan.releases(node)\n",
        "        planned: Sequence[Release] = [r.at(r.step) for r in self.plan.releases(node)]\n",
        PRICE,
    ),
    Bug(
        "peer: the plan lists one step",
        TEXTS + "plan.py",
        "                steps=self.steps,\n                count=self.draws_per_step,",
        "                steps=1,\n                count=self.draws_per_step,",
        PRICE,
    ),
    Bug(
        "peer: a member's sensitivity is one clip",
        PRIVACY + "releases.py",
        '"user": 2.0}',
        '"user": 1.0}',
        PRICE,
    ),
    Bug(
        "peer: the agreed multiplier is halved",
        PEERS + "plans.py",
        "    given |= {key: _frozen(value) for key, value in options.items()}\n",
        "    given |= {key: _frozen(value) for key, value in options.items()}\n    given['noise_multiplier'] /= 2\n",
        SAME,
    ),
    Bug(
        "peer: the agreed clip is doubled",
        PEERS + "plans.py",
        "    given |= {key: _frozen(value) for key, value in options.items()}\n",
        "    given |= {key: _frozen(value) for key, value in options.items()}\n    given['clip'] *= 2\n",
        SAME,
    ),
    Bug(
        "peer: an average's noise is over the diameter",
        PEERS + "plans.py",
        'given.pop("noise_multiplier") * clip}',
        'given.pop("noise_multiplier") * clip / 2}',
        PRICE,
    ),
    Bug(
        "peer: an option of the agreement is dropped",
        PEERS + "plans.py",
        "for key, value in options.items()}\n",
        "for key, value in options.items() if key != 'learning_rate'}\n",
        SAME,
    ),
    Bug(
        "peer: trees and paths do not depend on the run",
        PEERS + "agreement.py",
        '        return int.from_bytes(self.run, "big")',
        "        return 0",
        SAME,
    ),
    Bug(
        "peer: lots drawn at twice the rate",
        "src/sottovoce/data/lots.py",
        "min(int(rate * 2**64), 2**64 - 1)",
        "min(int(2 * rate * 2**64), 2**64 - 1)",
        LOTS,
    ),
    Bug(
        "peer: lots from a known key",
        PEERS + "jobs.py",
        "Random(noise, os.urandom(32), 0)",
        "Random(noise, bytes(32), 0)",
        LOTS,
    ),
    Bug(
        "peer: draws are not compared with the plan",
        "src/sottovoce/objectives/gradients.py",
        "            if planned.sensitivity != found_s[row] or planned.noise_std != found_n[row]:",
        "            if False:",
        SPREAD,
    ),
    Bug(
        "peer: an old file is read in the new unit",
        PEERS + "agreement.py",
        '        if content.get("version") != 2:\n',
        '        content.setdefault("version", 2)\n        if content["version"] != 2:\n',
        AGREE,
    ),
    Bug(
        "peer: defaults are part of the run's name",
        PEERS + "agreement.py",
        'exclude={"signatures", "mask_keys"}, exclude_unset=True',
        'exclude={"signatures"}',
        AGREE,
    ),
    Bug(
        "peer: a ledger of another format is read",
        PEERS + "ledger.py",
        '    if meta.get("format") != str(_FORMAT):\n',
        "    if False:\n",
        LEDGER,
    ),
    Bug(
        "claim: an exact price although exchanges may be left out",
        PEERS + "jobs.py",
        'return self.agreement.timing.late == "wait" and ',
        "return ",
        "tests/peers/test_agreement.py -k left_out",
    ),
    Bug(
        "claim: the server's seed decides a client's noise",
        PEERS + "flower.py",
        'if seed is not None and not (_engine(context) or context.node_config.get("simulate") is True):',
        "if False:",
        CLAIMS_PEERS,
    ),
    # ---- claims about algorithms -------------------------------------------------------------------
    Bug(
        "claim: a zero draw leaves the grid",
        "src/sottovoce/objectives/kernels.py",
        "        if noisy:  #",
        "        if noise[k] != 0.0:  #",
        "tests/algorithms/test_central.py -k zero_draw",
    ),
    Bug(
        "claim: a walk's rounding is not paid for",
        "src/sottovoce/objectives/gradients.py",
        "            inner = radius - random.noise.slack(rows.shape[1], float(std))\n",
        "            inner = radius\n",
        "tests/algorithms/test_averaging.py -k paid_for",
    ),
    Bug(
        "claim: a slack above the clip turns it over",
        "src/sottovoce/objectives/gradients.py",
        "            if slack >= self.clip:\n",
        "            if False:\n",
        "tests/algorithms/test_random_walk.py -k slack_above",
    ),
    Bug(
        "claim: Laplace noise does not pay for its grid",
        "src/sottovoce/objectives/coordinates.py",
        "shrink = 1 - noise_ratio / LAPLACE_STEPS if random.protective else 1.0",
        "shrink = 1.0",
        "tests/algorithms/test_central.py -k pays_for",
    ),
    Bug(
        "claim: a coordinate does not pay for rounding",
        "src/sottovoce/objectives/coordinates.py",
        "            slack = 2 * random.noise.slack(1, self.std) / self.sensitivity\n",
        "            slack = 0.0\n",
        "tests/algorithms/test_central.py -k paid_for",
    ),
    # ---- signatures, witnesses, keys, epochs, the book of trainings ---------------------------------
    Bug(
        "signatures not checked",
        PEERS + "frames.py",
        "        elif not self._seal(sender).verify(",
        "        elif False and not self._seal(sender).verify(",
        FRAMES,
    ),
    Bug(
        "a signature is good for any round",
        PEERS + "frames.py",
        'struct.pack("<BIQ", kind, sender, round) + digest',
        'struct.pack("<BIQ", kind, sender, 0) + digest',
        FRAMES,
    ),
    Bug(
        "an unfounded accusation ends a peer",
        PEERS + "core.py",
        "        if self.wire.signed_row(self.program.node, highest, digest, signature):",
        "        if True:",
        CORE,
    ),
    Bug(
        "an unfounded accusation leaves no trace",
        PEERS + "core.py",
        '        self._incident(f"unfounded claim of member {sender} about round {highest}")\n',
        "",
        CORE,
    ),
    Bug(
        "an incident waits for the next row",
        PEERS + "core.py",
        '                self._notes.append(f"proof {self.proofs[-1]}")\n            self._commit_notes()\n',
        '                self._notes.append(f"proof {self.proofs[-1]}")\n',
        CORE,
    ),
    Bug(
        "rows beyond clip and noise are taken",
        PEERS + "core.py",
        "        if self.bound is not None and ",
        "        if False and ",
        CORE,
    ),
    Bug(
        "a restart asks neighbours only",
        PEERS + "core.py",
        "        self.unwitnessed = set(self.others)\n",
        "        self.unwitnessed = set()\n",
        CORE,
    ),
    Bug(
        "rows leave before their head is witnessed",
        PEERS + "core.py",
        "        if self.timing.witness == 1 and self.others:",
        "        if False:",
        CORE,
    ),
    Bug(
        "a newer head of one's own ledger is ignored",
        PEERS + "core.py",
        "            if head.rows > self.count or self.store.row_hash(head.rows) != head.head:",
        "            if False:",
        CORE,
    ),
    Bug(
        "models are not compared",
        PEERS + "core.py",
        "        if mine is not None and NOTHING not in (mine, head.chain) and mine != head.chain:",
        "        if False:",
        LIARS,
    ),
    Bug(
        "what two neighbours heard is not compared",
        PEERS + "core.py",
        "        if 0 < said.at == said.rows <= len(mine) and mine[said.at - 1] != said.lineage:",
        "        if False:",
        LIARS,
    ),
    Bug(
        "the run's key is not ratcheted",
        PEERS + "runkeys.py",
        '        self._key = hmac.digest(self._key, b"next", "sha256")\n',
        "",
        KEYS,
    ),
    Bug(
        "the run's key is kept after the end",
        PEERS + "runkeys.py",
        "        self._key = self._rounds = None\n",
        "        return\n",
        KEYS,
    ),
    Bug(
        "noise label without the epoch",
        PEERS + "runkeys.py",
        'struct.pack("<QQ", self.epoch, self.turn)',
        'struct.pack("<QQ", 0, self.turn)',
        KEYS,
    ),
    Bug(
        "noise label without the inputs",
        PEERS + "runkeys.py",
        " + self.chain\n        return hmac",
        "\n        return hmac",
        KEYS,
    ),
    Bug(
        "noise label without the value",
        PRIVACY + "noise.py",
        'self.derive(b"noise" + label + hashlib.sha256(content.tobytes()).digest())',
        'self.derive(b"noise" + label)',
        KEYS,
    ),
    Bug(
        "noise drawn anew at a restart",
        PEERS + "programs.py",
        '            self.keys.restore(kept["keys"])\n',
        "            pass\n",
        KEYS,
    ),
    Bug(
        "masked noise without the run's key",
        PRIVACY + "masks.py",
        "        if isinstance(self.source, _noise.KeyedNoise):",
        "        if False:",
        KEYS,
    ),
    Bug(
        "lots drawn anew at a restart",
        PEERS + "programs.py",
        "            self.source.keyed(self.keys.lots)\n",
        "            self.source.keyed(__import__('os').urandom(32))\n",
        KEYS,
    ),
    Bug(
        "a fit is charged after it ran",
        "src/sottovoce/fitting.py",
        "    if Random.of(random).protective:\n",
        "    if False:\n",
        TRAININGS,
    ),
    Bug(
        "a resumed fit is charged again",
        PEERS + "book.py",
        "if training and each.training == training), None)",
        "if False), None)",
        TRAININGS,
    ),
    Bug(
        "a checkpoint set back is free",
        PEERS + "trainings.py",
        "return name if _step(folder) >= seen else secrets.token_hex(16)",
        "return name",
        TRAININGS,
    ),
    Bug(
        "an epoch forgets what was spent",
        PEERS + "epochs.py",
        "            self.parts += reversed(earlier)\n",
        "",
        EPOCHS,
    ),
    Bug(
        "a lost ledger costs nothing",
        PEERS + "epochs.py",
        "        releases = tuple(job.releases(node)) if left is None else left\n",
        "        releases = () if left is None else left\n",
        EPOCHS,
    ),
    Bug(
        "a lost ledger forgets the epochs before its own",
        PEERS + "epochs.py",
        "        if old is not None:\n            return old.continues\n        assert charge",
        "        if old is not None:\n            return ''\n        assert charge",
        EPOCHS + " -k 'lost or begun'",
    ),
    Bug(
        "the forecast of an epoch forgets the broken step",
        PEERS + "epochs.py",
        'left, said = tuple(stored["saved"].releases), "whole"',
        'left, said = tuple(stored["saved"].releases)[:-1], "whole"',
        EPOCHS + " -k forecast",
    ),
    Bug(
        "the forecast of an epoch leaves the run before out",
        PEERS + "epochs.py",
        'Closing(run, left, f"continued',
        'Closing(run, (), f"continued',
        EPOCHS + " -k forecast",
    ),
    Bug(
        "the forecast of an epoch counts the whole run before",
        PEERS + "book.py",
        "        for each in closing:\n            rows = _closed(rows, each)\n        state = _state(rows)\n",
        "",
        EPOCHS + " -k forecast",
    ),
    Bug(
        "a broken run is cheaper against members than what it made",
        PEERS + "jobs.py",
        "account(_Charged(self.plan, made, node), user=node, **view) for view in asked",
        "account(_Charged(self.plan, made[:-1], node), user=node, **view) for view in asked",
        EPOCHS + " -k forecast",
    ),
    Bug(
        "a run is counted while its peer goes on",
        PEERS + "ledger.py",
        "    _take(lock, Path(folder))\n    try:",
        "    try:",
        EPOCHS + " -k still_runs",
    ),
    Bug(
        "a run closed under a starting peer sends",
        PEERS + "book.py",
        '            if status == "closed":',
        "            if False:",
        EPOCHS + " -k still_runs",
    ),
    Bug(
        "an epoch begun and given up costs nothing",
        PEERS + "epochs.py",
        "        self._siblings()\n",
        "",
        EPOCHS + " -k both_counted",
    ),
    Bug(
        "an epoch is charged to the first population",
        PEERS + "book.py",
        "        parent = self.parent(new)\n        if parent is None:",
        "        parent = None\n        if parent is None:",
        EPOCHS + " -k people",
    ),
    Bug(
        "an epoch takes other records",
        PEERS + "book.py",
        "            if parent is not None and new.records != parent.records:",
        "            if False:",
        EPOCHS + " -k people",
    ),
    Bug(
        "without a home the run before goes on too",
        PEERS + "runtime.py",
        "                give_up(settled.place, self.agreement.run.hex())\n",
        "                pass\n",
        EPOCHS + " -k without_a_home",
    ),
    Bug(
        "masked noise of fewer members is not raised",
        PEERS + "epochs.py",
        'part["noise_multiplier"] = float(part["noise_multiplier"]) * more',
        'part["noise_multiplier"] = float(part["noise_multiplier"])',
        EPOCHS,
    ),
    Bug(
        "an epoch goes on from any model",
        PEERS + "epochs.py",
        "        if not agreement.start or model_digest(found) == agreement.start:",
        "        if True:",
        EPOCHS,
    ),
    Bug(
        "an epoch beyond the budget",
        PEERS + "epochs.py",
        "        if self.parts and not total <= budget.epsilon:",
        "        if False:",
        EPOCHS,
    ),
    Bug(
        "a field of a later version changes the name of an agreement",
        PEERS + "agreement.py",
        'exclude={"signatures", "mask_keys"}, exclude_unset=True',
        'exclude={"signatures", "mask_keys"}',
        STORED,
    ),
]


def verdict(copy: Path, tests: str) -> str:
    """Return how the named tests end on a copy of the tree: passed, failed or hung."""
    import shlex

    words = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", *shlex.split(tests)]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(words, cwd=copy, env=environment, capture_output=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return "hung"
    return {0: "passed", 1: "failed"}.get(done.returncode, f"pytest ended with {done.returncode}")


def planted(copy: Path, bug: Bug) -> bool:
    """Write the bug into the copy; return whether its text was found once."""
    path = copy / bug.file
    text = path.read_text()
    if text.count(bug.old) != 1:
        return False
    path.write_text(text.replace(bug.old, bug.new))
    return True


def tried(copy: Path, bug: Bug) -> str:
    """Plant one bug, run its tests and take it out again; return what became of it."""
    whole = (copy / bug.file).read_text()
    if not planted(copy, bug):
        return "text not found"
    try:
        found = verdict(copy, bug.tests)
    finally:
        (copy / bug.file).write_text(whole)
    return {"passed": "missed", "failed": "caught"}.get(found, found)


def key(bug: Bug) -> str:
    """Return what a verdict is about: the bug, the file it is in and the tests that look."""
    total = hashlib.sha256(repr(tuple(bug)).encode())
    for name in (bug.file, *(word for word in bug.tests.split() if word.endswith(".py"))):
        total.update((ROOT / name).read_bytes())
    return total.hexdigest()[:16]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="only bugs whose name contains this")
    parser.add_argument("--list", action="store_true", help="print the bugs and stop")
    parser.add_argument("--lines", type=Path, help="append every verdict here, and go on from what is there")
    parser.add_argument("--out", type=Path, help="write the record here")
    given = parser.parse_args()
    chosen = [bug for bug in BUGS if given.only in bug.name]
    if given.list:
        print("\n".join(f"{bug.name}  ({bug.file})" for bug in chosen))
        return 0
    known = {}
    if given.lines is not None and given.lines.exists():
        known = {row["key"]: row for row in map(json.loads, given.lines.read_text().splitlines())}
    base = Path(tempfile.mkdtemp(prefix="sottovoce-bugs-"))
    started = time.monotonic()
    for name in ("src", "tests", "scripts", "pyproject.toml"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, base / name)
    unchanged: dict[str, str] = {}
    rows = []
    for bug in chosen:
        row = known.get(key(bug))
        if row is None:
            begin = time.monotonic()
            if bug.tests not in unchanged:  # a test that fails anyway catches nothing
                unchanged[bug.tests] = verdict(base, bug.tests)
                print(f"{unchanged[bug.tests]:9} unchanged: {bug.tests}", file=sys.stderr, flush=True)
            if unchanged[bug.tests] == "passed":
                found = tried(base, bug)
            else:
                found = f"its tests {unchanged[bug.tests]} on the unchanged tree"
            row = {"key": key(bug), "name": bug.name, "verdict": found,
                   "seconds": round(time.monotonic() - begin, 1)}  # fmt: skip
            if given.lines is not None:
                with given.lines.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        rows.append(row)
        print(f"{row['verdict']:9} {bug.name}", file=sys.stderr, flush=True)
    shutil.rmtree(base)
    # a test that hangs on a bug notices it as well, but on a busy machine time alone can do that: told apart
    counts = {what: [row["name"] for row in rows if row["verdict"] == what] for what in ("caught", "hung")}
    missed = {row["name"]: row["verdict"] for row in rows if row["verdict"] not in ("caught", "hung")}
    score = {
        "command": "python scripts/plant_bugs.py",
        "planted": len(chosen),
        "caught": len(counts["caught"]),
        "hung": counts["hung"],
        "missed": missed,
        "seconds": round(sum(row["seconds"] for row in rows), 1),
        "this_run_seconds": round(time.monotonic() - started, 1),
    }
    if given.out is not None:
        given.out.write_text(json.dumps(score, indent=1) + "\n")
    print(json.dumps(score))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
