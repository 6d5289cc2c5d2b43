"""What one node computes: an algorithm and its protocols, cut into numbered rounds.

`StepProgram` drives the same `Algorithm` that the stacked runner drives, for one node, over
``protocol.node_state(node)`` of every step. Rounds are counted through the whole run: step k begins at round
``starts[k]``. The mechanism that the algorithm was built with records every draw, so the run ledger
records what was drawn, not what was planned.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sottovoce import protocols
from sottovoce.accounting.release import Release
from sottovoce.errors import DataError, LedgerError, PeerError, TrainingDiverged
from sottovoce.mechanisms.base import Mechanism
from sottovoce.peers.run_keys import MaskedRows, RunKeys
from sottovoce.runners.base import Algorithm
from sottovoce.runners.state import pack, unpack

Round = tuple[tuple[int, ...], tuple[int, ...]]  # who is sent to, who is heard
_LENGTH = struct.Struct("<Q")
_RECENT = 1024  # rounds whose partners are remembered one by one


class StepProgram:
    """An `Algorithm` for one node, over the local side of one protocol per step.

    ``schedule`` returns the protocol of step k, equal at all members; if it is ``stationary``, always that of
    the first. ``mechanism`` is the recording one that the algorithm was built with; protocols that add fresh
    noise in a round draw it from the same source, and it carries no data and costs nothing. With ``keys``
    noise and batches are functions of a key of the run. ``extra_contacts`` are members this node connects to
    although the schedule may send them no row: the heads of ledgers must reach every member.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        schedule: Callable[[int], protocols.Protocol],
        steps: int,
        *,
        node: int,
        mechanism: Mechanism,
        masked: MaskedRows | None = None,
        keys: RunKeys | None = None,
        stationary: bool = False,
        extra_contacts: Sequence[int] = (),
    ) -> None:
        self.algorithm, self.schedule, self.steps, self.node = algorithm, schedule, steps, node
        self.mechanism, self.masked, self.keys = mechanism, masked, keys
        # who talks to whom is needed often, for past rounds too, and is read off the protocols once
        self._talks: list[list[Round]] = []
        last = None
        for protocol in map(schedule, range(min(steps, 1) if stationary else steps)):
            self._talks.append(self._talks[-1] if protocol is last else _talks(protocol, node))
            last = protocol
        self._recent: dict[int, Round] = {}
        lengths = [len(step) for step in self._talks]
        # where each step begins, and where the last ends; a range, so that ten million steps take no memory
        self.starts: Sequence[int] = [0, *itertools.accumulate(lengths)]
        if stationary and any(lengths):
            self.starts = range(0, (steps + 1) * lengths[0], lengths[0])
        self.rounds: int = self.starts[-1]
        self.window = 2 * max(lengths, default=1) + 1
        met = {s for step in self._talks for to, whence in step for s in (*to, *whence)}
        self.contacts = tuple(sorted(met | set(extra_contacts)))
        self.begun = False
        self._step = self._round = 0
        self._packed_step: bytes | None = None  # what all snapshots of the present step share
        self._state: Any = None
        self._local: protocols.NodeState | None = None
        # over exact consensus all members receive the same bytes, and their chains must be equal
        self._common = steps > 0 and schedule(0).reaches_consensus
        self._chain = bytes(32)

    def progress(self) -> tuple[int, bytes]:
        """Return the steps done and, where all members must agree, the chain over what they received."""
        return self._step, self._chain if self._common and self._step else bytes(32)

    @property
    def at(self) -> int:
        """The round of the run this node is in."""
        return self.starts[self._step] + self._round

    def begin(self) -> None:
        """Make the first row."""
        if self.keys is not None:
            self.mechanism.set_batch_key(self.keys.batches)
        self._state = self.algorithm.init()
        self.begun = True
        self._open()

    def sends(self, r: int) -> tuple[int, ...]:
        """Return who gets this node's row in round ``r``."""
        return self._talk(r)[0]

    def expects(self, r: int) -> tuple[int, ...]:
        """Return whose rows this node needs in round ``r``."""
        return self._talk(r)[1]

    def _talk(self, r: int) -> Round:
        if r not in self._recent:
            if len(self._recent) > _RECENT:
                self._recent.clear()
            k = bisect.bisect_right(self.starts, r) - 1
            self._recent[r] = self._talks[k % len(self._talks)][r - self.starts[k]]
        return self._recent[r]

    def message(self) -> np.ndarray:
        """Return the row of the present round."""
        assert self._local is not None
        return self._local.message(self._round)

    def receive(self, rows: Mapping[int, np.ndarray]) -> None:
        """Take the rows of the present round and go to the next."""
        assert self._local is not None
        noise = self.mechanism.random.noise if self.keys is None else self.keys.round_noise
        self._local.receive(self._round, rows, noise=noise, step=self._step)
        self._round += 1
        if self._round == self._local.rounds:
            self._close()
            self._open()

    def take_releases(self) -> tuple[Release, ...]:
        """Return what was drawn since the last call."""
        return self.mechanism.drain()

    def take_warnings(self) -> list[str]:
        """Return what was noticed about the sums since the last call."""
        if self.masked is None:
            return []
        warnings, self.masked.warnings = self.masked.warnings, []
        return warnings

    def result(self) -> np.ndarray:
        """Return the output row; before the end, that of the last finished step."""
        if not self.begun:
            raise PeerError("The run has not begun, so there is no model yet.")
        return np.asarray(self.algorithm.output(self._state))[0]

    def snapshot(self, row: np.ndarray | None = None) -> bytes:
        """Return everything needed to continue from here: keys of batches and masks too, until the last step.

        A ``row`` that is stored beside the snapshot, because it is sent, is left out.
        """
        stored = {} if self._local is None else _variables(self._local)
        aside = [name for name, value in stored.items() if value is row and row is not None]
        for name in aside:
            del stored[name]
        if self._packed_step is None:
            packed = pack((self._facts_of_step(), self._state))
            self._packed_step = _LENGTH.pack(len(packed)) + packed
        return self._packed_step + pack((self._round, " ".join(aside), stored))

    def _facts_of_step(self) -> str:
        """Return what every snapshot of this step holds: keys, chains and the number of the step."""
        batches = self.mechanism.random.batches if self._step < self.steps and self.keys is None else None
        return json.dumps(
            {
                "step": self._step,
                "batches": batches.hex() if isinstance(batches, bytes) else batches,
                "keys": None if self.keys is None else self.keys.to_dict(),
                "masked": None if self.masked is None else self.masked.to_dict(),
                "chain": self._chain.hex(),
            }
        )

    def restore(self, state: bytes, row: np.ndarray | None = None) -> None:
        """Continue from a snapshot, and the row that was stored beside it."""
        template = self.algorithm.init()
        try:
            end = _LENGTH.size + _LENGTH.unpack_from(state)[0]
            text, self._state = unpack(state[_LENGTH.size : end], ("", template))
            self._round, names, local = unpack(state[end:])
            rest, aside = json.loads(text), names.split()
        except (DataError, ValueError, TypeError, struct.error) as error:
            raise LedgerError(str(error)) from None
        if aside and row is None:
            raise LedgerError("The newest row is not beside the saved state; restore the state folder.")
        self._step, batches, self._packed_step = rest["step"], rest["batches"], None
        if batches is not None:
            # a repeated step must sample the same records: two batches under one label tell them apart
            self.mechanism.set_batch_key(bytes.fromhex(batches) if isinstance(batches, str) else batches)
        if self.keys is not None:
            self.keys.restore(rest["keys"])
        if self.masked is not None:
            self.masked.restore(rest["masked"])
        self._chain = bytes.fromhex(rest["chain"])
        self.begun = True
        if self._step < self.steps:
            self._local = self.schedule(self._step).node_state(self.node)
            vars(self._local).update({**local, **dict.fromkeys(aside, row)})

    def _open(self) -> None:
        """Begin the present step; steps without rounds (a single member) end at once."""
        self._packed_step = None
        while self._step < self.steps:
            protocol = self.schedule(self._step)
            row = np.asarray(self.algorithm.message(self._state, self._step))[0]
            if self.masked is not None:
                row = self.masked.hide(row, self._step)
            if self.keys is not None:
                self.keys.turn_over()
            self._local = protocol.node_state(self.node)
            self._local.start(row)
            if protocol.rounds:
                return
            self._close()
        self._local = None
        if self.masked is not None:
            self.masked.erase()
        if self.keys is not None:
            self.keys.erase()

    def _close(self) -> None:
        assert self._local is not None
        received = self._local.result()
        raw = np.ascontiguousarray(received).tobytes()
        self._chain = hashlib.sha256(self._chain + self._step.to_bytes(8, "little") + raw).digest()
        if self.keys is not None:
            self.keys.received(raw)
            self.mechanism.set_batch_key(self.keys.batches)  # they follow from what came before a step
        if self.masked is not None:
            received = self.masked.mean(received, self._step)
        self._state = self.algorithm.update(self._state, received[None], self._step)
        if not np.isfinite(np.asarray(self.algorithm.output(self._state))).all():
            raise TrainingDiverged(
                f"training diverged; lower the learning rate: after {self._step + 1:,} of {self.steps:,} "
                "steps the model is not finite. What was sent stays charged, nothing more is sent."
            )
        self._step, self._round = self._step + 1, 0


def _talks(protocol: protocols.Protocol, node: int) -> list[Round]:
    """Return (sends, expects) of every round of one step."""
    local = protocol.node_state(node)
    return [(local.sends(t), local.expects(t)) for t in range(protocol.rounds)]


def _variables(local: protocols.NodeState) -> dict[str, Any]:
    """Return the variables of a local state machine, without the protocol it belongs to."""
    return {
        name: value
        for name, value in vars(local).items()
        if isinstance(value, np.ndarray)
        or not (name in ("protocol", "node", "rounds") or isinstance(value, protocols.Protocol))
    }
