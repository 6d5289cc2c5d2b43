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
import inspect
import json
import os
import re
import shlex
import ssl
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from verification import store

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


def bugs(module: str, file: str, *rows: tuple[str, str, Callable[[Any], Any], str]) -> list[Bug]:
    """Return the bugs of one module that one test file must notice.

    A row is the name, the attribute, the replacement, and the words (``pytest -k``) that select tests.
    """
    target = "sottovoce." + module
    return [
        Bug(name, f"{target}:{attribute}", faulty, f"tests/{file} -k '{words}'" if words else f"tests/{file}")
        for name, attribute, faulty, words in rows
    ]


# ---- faulty objects, built from the right ones -----------------------------------------------------------


def instead(value: Any) -> Callable[[Any], Any]:
    """Replace an object by another."""
    return lambda right: value


def returns(value: Any) -> Callable[[Any], Any]:
    """Replace a function by one that ignores its arguments."""
    return lambda right: lambda *args, **options: value


def does_nothing(right: Any) -> Any:
    return lambda *args, **options: None


def always(value: Any) -> Callable[[Any], Any]:
    """Replace a property by one that has always the same value."""
    return lambda right: property(lambda self: value)


def with_arguments(change: Callable[..., tuple[Any, ...]]) -> Callable[[Any], Any]:
    """Call the right function with other arguments; ``change`` returns the positional ones."""
    return lambda right: lambda *args, **options: right(*change(*args), **options)


def with_options(**changed: Any) -> Callable[[Any], Any]:
    """Call the right function with other keyword arguments."""
    return lambda right: lambda *args, **options: right(*args, **{**options, **changed})


def with_result(change: Callable[..., Any]) -> Callable[[Any], Any]:
    """Change what the right function returns; ``change`` gets the result and the arguments."""
    return lambda right: lambda *args, **options: change(right(*args, **options), *args, **options)


def then_sets(**attributes: Any) -> Callable[[Any], Any]:
    """Call the right method, whatever it raises, then set attributes of its object."""

    def faulty(right: Any) -> Any:
        def call(self: Any, *args: Any, **options: Any) -> Any:
            try:
                return right(self, *args, **options)
            finally:
                vars(self).update(attributes)

        return call

    return faulty


def module_with(**names: Any) -> Callable[[Any], Any]:
    """Replace a module that another one has imported: some of its names are others."""
    return lambda right: SimpleNamespace(**{**vars(right), **names})


def edited(old: str, new: str) -> Callable[[Any], Any]:
    """Replace one expression inside a function, where nothing smaller can be replaced."""

    def faulty(right: Any) -> Any:
        function: Any = right.fget if isinstance(right, property) else getattr(right, "__func__", right)
        source = textwrap.dedent(inspect.getsource(function))
        source = source.replace("super()", f"super({function.__qualname__.split('.')[0]}, self)")
        if source.count(old) != 1:
            raise LookupError(f"{function.__qualname__} does not contain {old!r} once; adapt the bug.")
        names: dict[str, Any] = {}
        header = "from __future__ import annotations\n"
        exec(header + source.replace(old, new), function.__globals__, names)
        changed = names[function.__name__]
        return property(changed) if isinstance(right, property) else changed

    return faulty


def ignored(condition: str) -> Callable[[Any], Any]:
    """Make a condition inside a function always false."""
    return edited(f"if {condition}:", "if False:")


def option_changed(key: str, factor: float | None) -> Callable[[Any], Any]:
    """Change an agreed number on its way into the plan; None drops it."""

    def change(network: Any, algorithm: Any, *rest: Any) -> tuple[Any, ...]:
        changed = {} if factor is None else {key: algorithm[key] * factor}
        others = {name: value for name, value in algorithm.items() if name != key}
        return network, {**others, **changed}, *rest

    return with_arguments(change)


def uncommitted(right: Any) -> Any:
    """Write a row without waiting for the disk."""

    def commit(self: Any, entry: Any) -> None:
        (self.store.disk.write if hasattr(self.store, "disk") else self.store.commit)(entry)

    return commit


def unlocked(right: Any) -> Any:
    """Open a state folder without taking the lock."""
    return lambda *args: contextlib.nullcontext()


def encoded_again(out: Any, self: Any, *args: Any) -> Any:
    """Return what a peer sends with rows that were computed once more."""
    old = {frame: r for r, frame in self.outbox.items()}

    def again(frame: bytes) -> bytes:
        values = self.codec.values(self.codec.decode(frame)) + 1e-9
        return bytes(self.codec.row(values, sender=self.program.node, round=old[frame]))

    return [(to, again(frame) if frame in old else frame) for to, frame in out]


def without_second_rows(right: Any) -> Any:
    """Take no notice of a second row for the same round."""

    def row(self: Any, now: float, frame: Any) -> Any:
        key = (frame.round, frame.sender)
        return [] if key[0] in self.heard_of[key[1]].rows or key in self.inbox else right(self, now, frame)

    return row


def sent_at_once(right: Any) -> Any:
    """Send a row before anybody holds its head."""

    def row_sent(self: Any, now: float, rows: Any) -> Any:
        out = right(self, now, rows)
        withheld, self.withheld = self.withheld, []
        return withheld + out

    return row_sent


class Ascending:
    """A mechanism whose gradients have the opposite sign."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def __call__(self, *args: Any) -> Any:
        return -self._source(*args)

    def gradient_with_l2(self, *args: Any) -> Any:
        return -self._source.gradient_with_l2(*args)

    def rows(self, *args: Any) -> Any:
        return -self._source.rows(*args)


ascends = with_arguments(lambda self, source, start: (self, Ascending(source), start))


def half_the_noise(applies: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """Halve the noise of mechanisms of one kind; what is recorded stays."""

    def change(noisy: Any, self: Any, values: Any, *args: Any) -> Any:
        return (values + noisy) / 2 if applies(self) else noisy

    return with_result(change)


def records_first_stream_only(right: Any) -> Any:
    """Record one of several draws of a step."""

    def add_noise(self: Any, values: Any, places: Any, step: int, stream: int = 0) -> Any:
        before = None if self._recorded is None else list(self._recorded)
        noisy = right(self, values, places, step, stream)
        if stream:
            self._recorded = before
        return noisy

    return add_noise


def without_noise_multiplier(right: Any) -> Any:
    return property(lambda self: re.sub(rb'"noise_multiplier":[^,}]*', b"", right.fget(self)))


def hashed_without(*fields: str, **options: Any) -> Callable[[Any], Any]:
    """Replace the canonical text of an agreement by one that leaves out these fields only."""

    def canonical(self: Any) -> bytes:
        return json.dumps(
            self.model_dump(mode="json", exclude=set(fields), **options), sort_keys=True
        ).encode()

    return lambda right: property(canonical)


def accepts_control_characters(right: Any) -> Any:
    """Accept control characters in the lines that members read."""

    def refuse_if(problem: object, message: str) -> None:
        right(problem and "printable characters" not in message, message)

    return refuse_if


def tls(**attributes: Any) -> Callable[[Any], Any]:
    """Change the TLS context of a listening peer."""

    def change(context: Any, *args: Any) -> Any:
        if context.protocol == ssl.PROTOCOL_TLS_SERVER:
            for name, value in attributes.items():
                setattr(context, name, value)
        return context

    return with_result(change)


def always_added(row: Any, member: int, pads: Any) -> None:
    for _, pad in pads:
        row += pad


def mersenne_numbers(numbers: Any) -> Any:
    generator = np.random.RandomState(int(numbers[0]) % 2**32)
    return np.frombuffer(generator.bytes(numbers.nbytes), numbers.dtype)


BATCHES = "batches_are_drawn"
COST = "formula or one_thing or path"
HAND = "by_hand"
SAME = "equal_the_library"
SPREAD = "spread"
WORLDS = "copied or budget or missing or (worlds and fault_free and 0)"
KEYS = "set_back or inputs or labels or ratcheted"

# fmt: off
BUGS = [
    # ---- a row leaves only when its releases are durable ----------------------------------------------
    *bugs("_format", "test_format.py",
          ("printed bounds rounded to nearest", "ROUNDING",
           lambda right: dict.fromkeys(right, "ROUND_HALF_EVEN"), "safe_side")),
    *bugs("accounting.wording", "accounting/test_wording.py",
          ("what was accepted by name is forgotten in the verdict", "private",
           lambda right: lambda *numbers, accepted=(), **options: right(*numbers, **options), "not_private")),
    *bugs("accounting.budget", "accounting/test_budget.py",
          ("a delta above one over the number of records passes", "accepted_delta",
           instead(lambda *numbers: ()), "unless_accepted")),
    *bugs("peers.core", "verification/test_simulator.py",
        ("rows are sent before they are durable", "Core._commit", uncommitted, WORLDS),
        ("releases are not written with the row", "Core._commit",
         with_arguments(lambda self, entry: (self, entry._replace(releases=()))), WORLDS),
        ("rows are encoded again on every resend", "Core._position", with_result(encoded_again), WORLDS),
        ("rows are forgotten before they are used", "Core._forgettable",
         instead(lambda self: tuple(self.outbox)), WORLDS)),
    *bugs("accounting.release", "verification/test_simulator.py",
        ("the budget is not checked", "Spending.require", does_nothing, WORLDS)),
    *bugs("accounting.release", "peers/test_core.py",
        ("spending is forgotten", "Spending.add", does_nothing, "")),
    *bugs("peers.node_program", "verification/test_simulator.py",
        ("a restart begins the run again", "StepProgram.restore", does_nothing, WORLDS)),
    *bugs("peers.core", "peers/test_core.py",
        ("notes are forgotten in a restart", "Core._recall", does_nothing, ""),
        ("keys of past steps stay readable", "Core._publish", edited("step == self._durable_step", "True"),
         "finished_step"),
        ("notes wait for the next row", "Core.commit_notes", does_nothing, ""),
        ("incidents leave no trace", "Core.incident", does_nothing, ""),
        ("neighbors' memory of this peer is ignored", "Core._compare", returns(False), ""),
        ("a second payload is taken silently", "Core._row", without_second_rows, "second_payload"),
        ("neighbors are not asked after a start", "Core.__init__", then_sets(unanswered=set()), "contacts"),
        ("a row is used although its drop was proposed", "Core._missing",
         edited("(key not in self.inbox or key in self.proposed)", "key not in self.inbox"), "waits_for"),
        ("rounds far ahead are accepted", "Core._require_near", does_nothing, "window or far_ahead"),
        ("rows nobody expects are accepted", "Core._row",
         ignored("sender not in self.program.expects(r)"), "nobody_expects"),
        ("rows beyond clip and noise are accepted", "Core._row",
         edited("self.bound is not None and", "False and"), "beyond"),
        ("rows need no signature at all", "Core._require_evidence", does_nothing, "false_signature"),
        ("a series that breaks off needs no signature", "Core.verified", returns(True), "breaks_an_unsigned"),
        ("an earlier row continues a series", "Core._require_evidence",
         edited("frame.round > last and ", ""), "late_row_of_an_earlier"),
        ("a run ends on rows without a signature", "Core._require_all_verified",
         does_nothing, "does_not_end"),
        ("a failed peer continues", "Core._alive", does_nothing, "exception or rolled_back")),
    *bugs("peers.core", "peers/test_transport.py",
        ("the sender is what the frame says", "Core.receive",
         ignored("frame.sender != sender"),
         "not_the_frame")),
    # ---- heads of ledgers -----------------------------------------------------------------------------
    *bugs("peers.witnesses", "peers/test_core.py",
        ("a restart asks neighbors only", "Witnesses.__init__", then_sets(unanswered=set()), "own_head"),
        ("rows leave before their head is witnessed", "Witnesses.row_sent", sent_at_once, "hold_its_head"),
        ("a newer head of the own ledger is ignored", "Witnesses._require_contained",
         ignored("head.rows > count or self.core.store.row_hash(head.rows) != head.head"), "own_head"),
        ("signed heads are not limited by origin", "Witnesses._charge", does_nothing, "flood"),
        ("heads are passed on again and again", "Witnesses._news_for",
         edited("self._behind[s], set()", "self._behind[s], self._behind[s]"), "passed_on_once"),
        ("two ledgers of one member are taken silently", "Witnesses._is_set_back",
         returns(False), "two_heads"),
        ("models are not compared", "Witnesses._same_chain", does_nothing, "another_signed_model"),
        ("what two neighbors received is not compared", "Witnesses._same_rows",
         does_nothing, "other_rows")),
    *bugs("peers.sum_check", "peers/test_sum_check.py",
        ("poisoned sums do not stop a run", "SumCheck.stops", returns(False), "aligned"),
        ("jumps of a sum are not reported", "SumCheck.judge", returns(""), "jump")),
    # ---- frames ---------------------------------------------------------------------------------------
    *bugs("peers.wire_format", "peers/test_wire_format.py",
        ("signatures of frames are not checked", "OpenSigner.verify", returns(True), "malformed"),
        ("digests of frames are not compared", "frame_digest",
         instead(lambda raw: hashlib.sha256(raw[:-96]).digest()), "malformed"),
        ("rows with NaN and infinity are accepted", "math", module_with(isfinite=lambda value: True),
         "malformed"),
        ("the length is taken from the frame", "FrameCodec.decode",
         ignored("size != total or length != payload"), "malformed"),
        ("frames of another run are accepted", "FrameCodec.decode",
         ignored("session != self.session"), "malformed"),
        ("a signature is valid for any round", "FrameCodec._signed_content",
         with_arguments(lambda self, kind, sender, round, digest: (self, kind, sender, 0, digest)),
         "rows_read_back")),
    *bugs("peers.wire_format", "peers/test_core.py",
        ("an unfounded accusation ends a peer", "FrameCodec.signed_row", returns(True), "unfounded")),
    # ---- ledgers of runs ------------------------------------------------------------------------------
    *bugs("ledger.run_ledger", "ledger/test_run_ledger.py",
        ("an older ledger is accepted", "_contains", returns(True), "older_ledger"),
        ("a missing ledger is created again", "RunLedger._find_or_create",
         ignored("head.exists() and head.stat().st_size"), "in_use_missing"),
        ("two processes open one ledger", "exclusive", unlocked, "in_use or two_holders"),
        ("a ledger continues after a failed commit", "RunLedger.write", then_sets(_failed=False),
         "disk_that_fills or io_error"),
        ("a ledger is readable by others", "os",
         module_with(open=lambda path, flags, mode=0: os.open(path, flags, 0o644)), "owner_only"),
        ("others may write the state folder", "RunLedger.__init__",
         ignored("self.folder.stat().st_mode & 0o022"), "others_can_write"),
        ("a large file in use is overwritten", "RunLedger._take_place",
         edited("k not in needed and", ""), "large_rows or crash_in_a_commit"),
        ("a damaged large row is accepted", "_Content.read_files",
         edited("== hashlib.sha256(frame[:-TRAILER]).digest()", ""), "damaged_large"),
        ("the ledger of a run that goes on is compacted", "RunLedger.compact",
         ignored('saved.state is None or saved.at < self.about.get("rounds", math.inf)'), "not_finished"),
        ("compacting counts joint releases as one", "_merged",
         edited("and not release.joint", ""), "compacted"),
        ("a compacted ledger is opened by a peer", "RunLedger.__init__",
         ignored("content.compacted"), "compacted"),
        ("a ledger of another format is read", "_read",
         ignored('header.get("format") != _FORMAT'), "another_format")),
    *bugs("ledger.chain", "ledger/test_run_ledger.py",
        ("the chain is not checked", "read_lines", ignored("whole != line"), "changed_rows")),
    *bugs("ledger.state_key", "ledger/test_state_key.py",
        ("keys of past states stay on the disk", "StateKey.advance",
         edited("os.pwrite(self._file, key, 0)", "_KEY"), "newest_state"),
        ("a crash before the new key loses the run", "StateKey._decrypt",
         edited("(self._key, newer)", "(self._key,)"), "any_point"),
        ("the key of a state is replaced before the state is durable", "StateKey.encrypt",
         edited("nonce, advanced = ", "os.pwrite(self._file, _next(self._key), 0); "
                "os.fdatasync(self._file); nonce, advanced = "),
         "any_point")),
    *bugs("ledger.state_key", "peers/test_run_keys.py",
        ("the saved state is not encrypted", "StateKey.encrypt",
         with_result(lambda sealed, self, state: (state, sealed[1])), "killed_at_any_row")),
    *bugs("ledger.run_ledger", "peers/test_member_directory.py",
        ("a run folder may be set back", "RunLedger._open_head_file", does_nothing, "backup")),
    *bugs("peers.member_directory", "peers/test_membership_changes.py",
        ("keys of a closed run are left", "MemberDirectory._erase_keys_of_closed_runs", does_nothing,
         "goes_through_all_six")),
    *bugs("ledger.run_ledger", "peers/test_runtime.py",
        ("a stopped peer leaves its folder locked", "RunLedger.close", does_nothing, "stopped_peer")),
    # ---- the lifetime ledger --------------------------------------------------------------------------
    *bugs("ledger.balance", "ledger/test_lifetime.py",
        ("records are missing in the total at user level", "Charge.guarantee",
         edited("Curve.gaussian(math.inf) if revealing", "Curve.none() if revealing"),
         "every_adjacency or record_level"),
        ("a guarantee of another view is charged", "require_lifetime_guarantee", does_nothing, "whole_view")),
    *bugs("ledger.lifetime", "ledger/test_lifetime.py",
        ("the second copy of the lifetime ledger is not read", "LifetimeLedger._verified",
         edited("read_acts(self.copy).rows", "acts.rows"), "not several"),
        ("the second copy stays behind", "LifetimeLedger._verified",
         ignored("len(copied) < len(rows)"), "between_the_copies")),
    *bugs("ledger.balance", "ledger/test_lifetime.py",
        ("a known run begins again", "Acts.charge_run",
         edited("self.runs.get(new.run_id)", "None"), "known_run"),
        ("the lifetime budget is not checked", "require_lifetime_budget", does_nothing, "three_agreements")),
    *bugs("ledger.cost", "ledger/test_lifetime.py",
        ("a replacement costs as much as a removal", "_restated",
         instead(lambda release, adjacency: replace(release, adjacency=adjacency)), "every_adjacency")),
    *bugs("ledger.charge", "ledger/test_charge.py",
        ("the lifetime ledger stores the local cost alone", "lifetime_guarantees",
         with_arguments(lambda plan, views: (plan, ())), "their_own_view")),
    *bugs("ledger.lifetime", "peers/test_member_directory.py",
        ("started runs are not marked", "LifetimeLedger.start", does_nothing, "begun_run")),
    *bugs("ledger.balance", "peers/test_member_directory.py",
        ("other records pass", "Acts.charge_run", edited("new.records != begun.records", "False"),
         "other_records")),
    *bugs("peers.identity", "peers/test_member_directory.py",
        ("certificates are not compared with the pinned ones", "PinnedCertificates.require",
         edited("in (own, pinned)", "in (own, pinned) or pinned"), "not_pinned")),
    *bugs("ledger.charge", "ledger/test_charge.py",
        ("a checkpoint set back is free", "saved_step", returns(10**9), "set_back")),
    *bugs("ledger.lifetime", "ledger/test_charge.py",
        ("a resumed fit is charged again", "LifetimeLedger.charge", with_options(training=""), "goes_on")),
    *bugs("runners.run", "ledger/test_charge.py",
        ("a fit is not charged", "charge", returns(None), "before_its_noise")),
    *bugs("runners.run", "test_protective_noise.py",
        ("an average is not charged", "charge", returns(None), "each_way and average"),
        ("the algorithm's state is made before the charge", "PlanRun.begin",
         edited("self._rehearse_and_charge)",
                "lambda: (self._algorithm.init(), self._rehearse_and_charge()))"), "every_algorithm"),
        ("a failing evaluation costs the budget", "PlanRun._rehearse_and_charge",
         edited("self._evaluated(rows) if self.evaluating else {}", "{}"), "fails_without_noise")),
    *bugs("integrations.own_loop", "integrations/test_own_loop.py",
        ("a loop takes more steps than the budget is for", "_LoopState.require_steps", does_nothing,
         "does_not_have"),
        ("a loss that mixes records is accepted", "_LoopState.forget_backward", does_nothing,
         "another_loss")),
    *bugs("data.batch_loaders", "estimators/test_torch_inputs.py",
        ("a weighted sampler is accepted", "loader_batch_size",
         instead(lambda loader: loader.batch_size or 1), "cannot_be_accounted")),
    # ---- membership changes ---------------------------------------------------------------------------
    *bugs("ledger.balance", "peers/test_membership_changes.py",
        ("a change is charged to the first population", "Acts.begun", returns(None), "people"),
        ("a membership change takes other records", "Acts.charge_run",
         edited("new.records != begun.records", "False"), "people"),
        ("a run closed under a starting peer sends", "Acts.require_open",
         ignored('known.status == "closed"'), "still_runs")),
    *bugs("ledger.lifetime", "peers/test_membership_changes.py",
        ("the forecast of a change counts the whole previous run", "LifetimeLedger.forecast",
         with_options(closing=()), "forecast_before")),
    *bugs("peers.membership_changes", "peers/test_membership_changes.py",
        ("a membership change begun and given up costs nothing", "_VersionChain._siblings",
         does_nothing, "both_counted"),
        ("any model continues a run", "model_digest", returns("0" * 64), "goes_on_from"),
        ("a membership change forgets what was spent", "_VersionChain._by_its_ledger",
         edited("self.parts += earlier", "pass"), "all_six or later_version"),
        ("a lost ledger costs nothing", "_VersionChain._add_run",
         edited("tuple(agreed_run.plan.releases(node)) if left is None", "() if left is None"), "lost"),
        ("a lost ledger forgets the versions before its own", "_VersionChain._add_run",
         edited("return old.continues", "return ''"), "lost or begun"),
        ("the forecast of a change forgets the interrupted step", "_VersionChain._by_its_ledger",
         edited('tuple(stored["saved"].releases)', 'tuple(stored["saved"].releases)[:-1]'),
         "forecast_before"),
        ("the forecast of a change leaves the previous run out", "_VersionChain._add_run",
         edited("RunClosure(run_id, left,", "RunClosure(run_id, (),"), "forecast_before"),
        ("a run is counted while its peer is running", "at_rest", unlocked, "still_runs"),
        ("masked noise of fewer members is not raised", "_draft", edited("]) * more", "])"), "all_six"),
        ("a membership change beyond the budget is accepted", "EarlierVersions.require",
         does_nothing, "beyond")),
    *bugs("peers.agreed_run", "peers/test_membership_changes.py",
        ("an interrupted run costs less than what it released", "AgreedRun.cost_of_interrupted",
         with_arguments(lambda self, node, releases: (self, node, tuple(releases)[:-1])), "forecast_before")),
    *bugs("peers.runtime", "peers/test_membership_changes.py",
        ("without a member directory the previous run continues too", "give_up", does_nothing,
         "without_a_member_directory")),
    # ---- connections ----------------------------------------------------------------------------------
    *bugs("peers.transport", "peers/test_transport.py",
        ("control frames are not limited", "RateLimit.take", returns(True), "limited"),
        ("certificates do not expire during a run", "TlsTransport.expired", returns([]), "outlive"),
        ("revoked certificates are accepted", "TlsTransport.__init__", with_options(revoked=()), "strangers"),
        ("every member may connect", "TlsTransport.__init__",
         edited("for s in contacts if", "for s in range(1, len(self.members)) if"), "strangers"),
        ("peers with another agreement are accepted", "Hello.against", returns(""), "another_agreement"),
        ("only the driver notices an expired certificate", "TlsTransport._receive",
         ignored("self.expired(sender, self.node)"), "outlive"),
        ("a refused frame ends the connection", "TlsTransport._receive",
         edited("why, details = BAD_FRAME, str(error)", "connection.close()"), "after_a_refused"),
        ("a frame is lost with its connection", "TlsTransport._lost",
         edited("contact.queue.extendleft(reversed(connection.unsent))", "pass"), "partly_sent")),
    *bugs("peers.connection", "peers/test_transport.py",
        ("clients need no certificate", "_pinned", tls(verify_mode=ssl.CERT_NONE), "neighbor_gets"),
        ("TLS 1.2 is accepted", "_pinned",
         tls(minimum_version=ssl.TLSVersion.TLSv1_2), "strangers or insecure"),
        ("messages of any size are accepted", "Connection.__init__",
         with_options(largest=1 << 40), "oversized")),
    *bugs("peers.listener", "peers/test_listener.py",
        ("silent connections stay open", "Listener.__init__", then_sets(patience=1e6), "timeout"),
        ("one address takes all places", "Listener.__init__", then_sets(per_address=10**9), "per_address")),
    # ---- agreements -----------------------------------------------------------------------------------
    *bugs("peers.agreement", "peers/test_agreement.py",
        ("signatures of agreements are not verified", "verify", returns(True), "all_signed"),
        ("agreements without signatures are run", "Agreement.require_signatures",
         does_nothing, "missing_signature"),
        ("the noise is not part of the run's name", "Agreement.canonical",
         without_noise_multiplier, "the_name"),
        ("defaults are part of the run's name", "Agreement.canonical",
         hashed_without("signatures", "mask_keys"), "left_unsaid"),
        ("a title contains control characters", "_refuse_if", accepts_control_characters, "wrong_agreement"),
        ("files of another version are read", "check_version", does_nothing, "wrong_agreement")),
    *bugs("peers.agreed_run", "peers/test_agreement.py",
        ("a plan beyond the budget starts", "AgreedRun.spending",
         ignored("not epsilon <= agreed.epsilon"), "beyond_the_budget")),
    *bugs("peers.agreement", "peers/test_run_keys.py",
        ("mask keys are part of the run's name", "Agreement.canonical",
         hashed_without("signatures", exclude_unset=True), "keys_do_not")),
    *bugs("peers.agreement", "peers/test_equivalence.py",
        ("public randomness does not depend on the run", "Agreement.seed", always(0), SAME),
        ("the agreed noise is halved", "agreed_plan", option_changed("noise_multiplier", 0.5), SAME),
        ("the agreed clip norm is doubled", "agreed_plan", option_changed("clip_norm", 2.0), SAME),
        ("an option of the agreement is dropped", "agreed_plan",
         option_changed("learning_rate", None), SAME),
        ("the noise of an average is over the diameter", "agreed_plan",
         edited('* options["radius"]', '* options["radius"] / 2'), "one_thing")),
    *bugs("peers.identity", "peers/test_identity.py",
        ("a key that others can read is accepted", "stat", module_with(S_IMODE=lambda mode: 0o600), ""),
        ("a name in a certificate can be a path", "require_member_name", does_nothing, "another_file"),
        ("expired certificates are accepted", "check_certificate", ignored("not first <= now <= last"), "")),
    *bugs("peers.agreed_run", "peers/test_agreed_run.py",
        ("an exact cost although exchanges may be left out", "AgreedRun._exact", always(True), "left_out")),
    *bugs("integrations.flower", "integrations/test_flower.py",
        ("the server's seed decides a client's noise", "_simulated", returns(True), "starts_a_run")),
    # ---- keys of a run --------------------------------------------------------------------------------
    *bugs("peers.run_keys", "peers/test_run_keys.py",
        ("the run's key is not ratcheted", "RunKeys.turn_over", does_nothing, KEYS),
        ("the run's key is kept after the end", "RunKeys.erase", does_nothing, KEYS),
        ("noise does not depend on the inputs", "RunKeys.received", does_nothing, KEYS),
        ("noise is drawn again at a restart", "RunKeys.restore", does_nothing, KEYS),
        ("noise does not depend on the membership version", "RunKeys._derive",
         edited('"<QQ", self.membership_version,', '"<QQ", 0,'), KEYS)),
    *bugs("noise.samplers", "peers/test_run_keys.py",
        ("noise does not depend on the value", "KeyedNoise.key_of",
         with_arguments(lambda self, *label: (self, *label[:3], 0 * label[3], label[4])), KEYS)),
    *bugs("noise.grid", "peers/test_run_keys.py",
        ("masked noise does not come from the run's key", "KeyedNoise", instead(int), KEYS)),
    *bugs("mechanisms.gradient", "peers/test_run_keys.py",
        ("batches are drawn again at a restart", "GradientMechanism.set_batch_key",
         with_arguments(lambda self, key: (self, os.urandom(32))), "set_back or restart_draws")),
    # ---- masks ----------------------------------------------------------------------------------------
    *bugs("secure_sum.masks", "secure_sum/test_masks.py",
        ("masks do not cancel", "add_masks", instead(always_added), ""),
        ("the mask of every step has the pair's key", "step_key",
         instead(lambda key, label: bytes(key)), ""),
        ("a mask key has 32 bits", "step_key",
         with_result(lambda key, *args: key[:4] + bytes(28)), ""),
        ("one number masks all coordinates", "Keystream.take",
         with_result(lambda numbers, *args: 0 * numbers + numbers[:1]), ""),
        ("masks do not depend on the membership version", "mask_label",
         with_arguments(lambda run, version, step, chain: (run, 0, step, chain)), ""),
        ("masks do not depend on earlier sums", "mask_label",
         with_arguments(lambda run, version, step, chain: (run, version, step, run)), ""),
        ("pair keys stay the same", "PairMasks.ratchet",
         instead(lambda self: setattr(self, "step", self.step + 1)), ""),
        ("pair keys are kept after the run", "PairMasks.erase",
         instead(lambda self: setattr(self, "_erased", True)), "")),
    *bugs("secure_sum.masks", "secure_sum/test_masks.py",
        ("masks come from a generator of 32 bits", "Keystream.take",
         with_result(lambda numbers, *args: mersenne_numbers(numbers)), ""),
        ("masks have the signs of the other end", "add_masks",
         with_arguments(lambda row, node, pads: (row, -node, [(-other, pad) for other, pad in pads])), ""),
        ("masks do not depend on the step", "mask_label",
         with_arguments(lambda run, version, step, chain: (run, version, 0, chain)), ""),
        ("masks do not depend on the run", "mask_label",
         with_arguments(lambda run, version, step, chain: (bytes(32), version, step, chain)), ""),
        ("another row may be masked under a label", "PairMasks.hide",
         edited("if not same:", "if False:"), ""),
        ("keys of any length are taken", "sized", instead(lambda data, name: bytes(data)), "")),
    *bugs("secure_sum.keys", "secure_sum/test_keys.py tests/secure_sum/test_masks.py",
        ("pair keys do not depend on names and keys", "pair_key",
         edited('b"mask" + _text(low) + _text(high) + first + second', 'b"mask"'), ""),
        ("the chain runs over floats", "next_chain",
         with_arguments(lambda chain, step, total: (chain, step, np.rint(total).astype(np.int64))), "")),
    # ---- noise and sampling ---------------------------------------------------------------------------
    *bugs("noise.discrete", "noise/test_samplers.py tests/noise/test_discrete.py",
        ("noise from a fixed key", "os", module_with(urandom=bytes), ""),
        ("noise is one percent too small", "NARROW_WIDTH", instead(507), "")),
    *bugs("noise.samplers", "noise/test_samplers.py",
        ("half the noise", "STEPS_PER_STD", lambda right: 2 * right, ""),
        ("no slack for rounding", "ProtectiveNoise.slack", returns(0.0), ""),
        ("NaN passes through the noise", "_fits_the_grid", does_nothing, ""),
        ("values are not rounded to the grid", "np", module_with(rint=lambda values, out=None: values), "")),
    *bugs("peers.agreed_run", "peers/test_equivalence.py",
        ("batches from a known key", "os", module_with(urandom=bytes), BATCHES)),
    *bugs("data.poisson_sampling", "peers/test_equivalence.py",
        ("batches are drawn at twice the rate", "_threshold",
         with_arguments(lambda rate: (min(1.0, 2 * rate),)), BATCHES)),
    # ---- accounting and curves ------------------------------------------------------------------------
    *bugs("accounting.release", "accounting/test_release.py",
        ("several draws are charged as one", "count_by_kind",
         edited("1 if release.joint else release.draws", "1"), ""),
        ("releases under unlike adjacencies are added", "Spending.fits",
         edited("kind.adjacency != self.budget.adjacency", "False"), "")),
    *bugs("accounting.release", "peers/test_equivalence.py",
        ("a member's sensitivity is one clip norm", "MOVES", lambda right: {**right, "user": 1.0}, COST)),
    *bugs("algorithms.gradient_plan", "peers/test_equivalence.py",
        ("a plan lists one step", "GradientPlan.releases",
         with_result(lambda releases, *args: tuple(replace(each, steps=1) for each in releases)), COST)),
    *bugs("accounting.renyi", "accounting/test_guarantee.py",
        ("an undefined order gives epsilon 0", "_least",
         edited("math.inf if math.isnan(result) else result", "result"), "undefined")),
    *bugs("accounting.curve", "accounting/test_guarantee.py",
        ("an infinite order stays in the table", "Curve.from_rdp",
         edited("if a != math.inf]", "]"), "undefined")),
    # ---- mechanisms -----------------------------------------------------------------------------------
    *bugs("mechanisms.base", "peers/test_equivalence.py",
        ("draws are not compared with the plan", "ReleaseCheck.check", does_nothing, "not_planned"),
        ("one of several draws of a step is charged", "Mechanism.add_noise",
         records_first_stream_only, COST),
        ("half the noise at user level", "Mechanism.draw",
         half_the_noise(lambda mechanism: getattr(mechanism, "user_level", None) is True), SPREAD),
        ("half the noise at record level", "Mechanism.draw",
         half_the_noise(lambda mechanism: getattr(mechanism, "user_level", None) is False), SPREAD)),
    *bugs("mechanisms.gradient", "peers/test_equivalence.py",
        ("records are clipped at twice the clip norm", "inner_clip",
         with_arguments(lambda clip_norm, slack: (2 * clip_norm, slack)), HAND)),
    *bugs("mechanisms.value", "peers/test_equivalence.py",
        ("half the noise in an average", "ValueMechanism.noisy_rows",
         with_result(lambda noisy, self, step: (noisy + self.rows) / 2), SPREAD)),
    *bugs("mechanisms.value", "algorithms/test_averaging.py",
        ("an average does not pay for rounding", "ValueMechanism.__post_init__",
         edited("inner = ball - (self.random.noise.slack(self.rows.shape[1], std) if std else 0.0)",
         "inner = ball"),
         "slack_shrinks")),
    *bugs("mechanisms.random_walk", "mechanisms/test_random_walk.py",
        ("a slack above the clip norm is accepted", "inner_clip",
         instead(lambda clip_norm, slack: clip_norm - slack),
         "slack_above")),
    *bugs("mechanisms.coordinate", "mechanisms/test_coordinate.py",
        ("a zero draw leaves the grid", "CoordinateMechanism.descend",
         edited("(noise, self.noisy,", "(noise, bool(noise.any()),"), "zero_draw"),
        ("a coordinate does not pay for rounding", "CoordinateMechanism.__post_init__",
         with_result(lambda result, self: setattr(self, "_inner", 1.0)), "slack_lowers")),
    *bugs("mechanisms.noisy_max", "mechanisms/test_noisy_max.py",
        ("Laplace noise does not pay for its grid", "NoisyMaxMechanism.__post_init__",
         edited("1 - self.noise_ratio / LAPLACE_STEPS if self.random.protective else 1.0", "1.0"),
         "grid_lowers")),
    # ---- objectives -----------------------------------------------------------------------------------
    *bugs("objectives.glm", "objectives/test_glm.py",
        ("an entry stored twice is clipped twice", "_one_entry_each", instead(lambda X: X), "stored_twice")),
    *bugs("objectives.nets.layers", "objectives/nets/test_layers.py",
        ("a ghost norm is computed in float32", "_matrix_norms",
         edited("x.double(), g.double()", "x, g"), "cancels"),
        ("rounding of ghost norms is not counted", "_ghost",
         instead(lambda squared, *args: squared.clamp(min=0)),
         "cancels"),
        ("rounding of sums that cancel is not counted", "_enlarged",
         instead(lambda squared, *args: squared.clamp(min=0)), "never_below")),
    # ---- algorithms -----------------------------------------------------------------------------------
    *bugs("algorithms.consensus_sgd", "peers/test_equivalence.py",
        ("consensus SGD ascends", "ConsensusSGD.algorithm", ascends, HAND)),
    *bugs("algorithms.muffliato_sgd", "peers/test_equivalence.py",
        ("Muffliato ascends", "MuffliatoSGD.algorithm", ascends, HAND)),
    *bugs("algorithms.dp_dsgd", "peers/test_equivalence.py",
        ("DP-DSGD ascends", "DPDSGD.algorithm", ascends, HAND),
        ("DP-DSGD does not mix", "DPDSGD.algorithm",
         edited("rate, theta, received)", "rate, theta, theta)"), HAND)),
    *bugs("algorithms.dp_dsgt", "peers/test_equivalence.py",
        ("DP-DSGT does not track", "DPDSGT.algorithm",
         edited("y -= state.own.g", "y = g"), HAND),
        ("DP-DSGT computes a stored gradient again", "DPDSGT.algorithm",
         edited("y -= state.own.g", "y -= mechanism.gradient_with_l2(state.own.theta, k)"),
         HAND)),
    *bugs("algorithms.dp_dinno", "peers/test_equivalence.py",
        ("the dual variable of DP-DiNNO has the wrong sign", "DPDiNNO.algorithm",
         edited("own.y + rho", "own.y - rho"), HAND),
        ("the penalty of DP-DiNNO is halved", "DPDiNNO.algorithm", edited("+ 2 * rho", "+ rho"), HAND)),
    *bugs("algorithms.random_walk_sgd", "peers/test_equivalence.py",
        ("a random walk ascends", "RandomWalkSGD.algorithm", ascends, HAND)),
]
# fmt: on


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
        store(options.out, "planted-bugs", record)
    print(json.dumps(record))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
