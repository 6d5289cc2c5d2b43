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
DOOR = "tests/peers/test_door.py"
AGREE = "tests/peers/test_agreement.py"
ENDINGS = "tests/peers/test_endings.py"
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
CLAIMS_PLANS = (
    "tests/algorithms/test_central.py tests/algorithms/test_decentralized.py tests/algorithms/test_fixed_point.py "
    "tests/algorithms/test_muffliato.py tests/algorithms/test_random_walk.py -k "
    "'zero_draw or pays_for or takes_its_place or across_ranks or every_view or paid_for or never_reached or slack_above'"
)
CLAIMS_PEERS = "tests/peers/test_agreement.py tests/peers/test_flower.py -k 'left_out or starts_a_run'"
PEERS, PRIVACY, TEXTS = "src/sottovoce/peers/", "src/sottovoce/privacy/", "src/sottovoce/algorithms/"

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
        "            if known is None:",
        "            if True:",
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
        "not contact.control.take(now)",
        "False",
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
        "            if not 0 < size <= self.largest:",
        "            if not 0 < size:",
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
