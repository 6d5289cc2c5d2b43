"""The log of a running peer: one line per event with time and level; a counter of rounds on a terminal."""

from __future__ import annotations

import datetime as dt
import errno
import json as _json
import sys
import time
from collections.abc import Mapping
from typing import Any

from sottovoce.errors import (
    ConfigError,
    DataError,
    GraphError,
    IdentityError,
    MissingDependency,
    SottovoceError,
    TryLater,
)

LEVELS = ("debug", "info", "warning", "error")
_MAY_PASS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EPIPE)
_OFTEN = 30.0  # seconds after which a round is logged even if it is not a tenth of the run


def may_pass(error: BaseException | None) -> bool:
    """Whether the cause of an error is a full or failing disk, or another lack that can pass by itself."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _MAY_PASS:
            return True
        error = error.__cause__ or error.__context__
    return False


def exit_code(error: SottovoceError) -> int:
    """Return how a long-running command ends: 75 try again, 78 wrong configuration, 1 refused or failed."""
    if isinstance(error, TryLater) or may_pass(error):
        return 75
    wrong = (ConfigError, DataError, GraphError, IdentityError, MissingDependency)
    return 78 if isinstance(error, wrong) else 1


_SENTENCES = {
    "listening": ("info", "{member} {where}; run {run_id:.16}; neighbors: {neighbors}"),
    "known": ("info", "run {run_id:.16} continues in {state}"),
    "connected": ("info", "{member} is connected ({direction})"),
    "round": ("info", "round {at} of {of}, {releases} releases{waiting_for}"),
    "trouble": ("warning", "{member} {why}"),
    "lost": ("warning", "{member} {why}"),
    "refused": ("warning", "{messages} of {member} refused: {why}"),
    "clock": ("warning", "the clock of {member} is {apart}, by this machine's"),
    "waiting": ("warning", "no progress for {seconds} s; waiting for {members}"),
    "incident": ("warning", "incident: {what}"),
    "pace": (
        "warning",
        "the answer took {seconds} s, more than half of the agreed {pace:g} s: it is sent one interval "
        "later, and a neighbor can see that",
    ),
}


def sentence(event: Mapping[str, Any]) -> tuple[str, str]:
    """Return the level of an event and a sentence about it."""
    if event["event"] not in _SENTENCES:
        return "info", ", ".join(f"{key} {value}" for key, value in event.items())
    level, words = _SENTENCES[event["event"]]
    address, count, waiting = event.get("address"), event.get("count", 1), event.get("waiting")
    members = (f"{each['member']} ({each['why'] or 'no message yet'})" for each in event.get("for", ()))
    derived = {
        "where": f"listens at {address}" if address else "connects to the others",
        "neighbors": ", ".join(event.get("calls", ())),
        "direction": "outgoing" if event.get("called") else "incoming",
        "waiting_for": f", waiting for {', '.join(waiting)}" if waiting else "",
        "messages": "a message" if count == 1 else f"{count:,} messages",
        "members": " and ".join(members) or "nobody",
    }
    return level, words.format(**{**event, **derived})


class Log:
    """Writes the events of a peer: text to standard error, or one JSON object per line to standard output.

    Parameters
    ----------
    json : whether lines are JSON.
    level : the lowest level that is logged; ``debug`` logs every round.
    """

    def __init__(self, *, json: bool, level: str = "info") -> None:
        if level not in LEVELS:
            raise ConfigError(f"The level of the log is debug, info, warning or error, got {level!r}.")
        self.json, self.least = json, LEVELS.index(level)
        self._bar = not json and sys.stderr.isatty()
        self._tenth, self._at = -1, 0.0

    def __call__(self, event: dict[str, Any]) -> None:
        level, _ = _SENTENCES.get(event["event"], ("info", ""))
        if event["event"] == "round":
            if self._bar:
                sys.stderr.write(sentence(event)[1].ljust(78)[:78] + "\r")
                sys.stderr.flush()
                return
            level = "info" if self._due(event) else "debug"
        if LEVELS.index(level) < self.least:
            return
        now = dt.datetime.now(dt.UTC)
        if self.json:
            line = _json.dumps({"time": now.isoformat(timespec="milliseconds"), "level": level, **event})
            print(line, flush=True)
            return
        shown = "".join(c if c.isprintable() else "?" for c in sentence(event)[1])
        print(f"{now:%Y-%m-%dT%H:%M:%SZ} {level:7} {shown}", file=sys.stderr, flush=True)

    def _due(self, event: Mapping[str, Any]) -> bool:
        """Whether a round gets a line: at every tenth of the run, and after a long silence."""
        tenth = 10 * event["at"] // max(event["of"], 1)
        now = time.monotonic()
        if tenth == self._tenth and now - self._at < _OFTEN:
            return False
        self._tenth, self._at = tenth, now
        return True
