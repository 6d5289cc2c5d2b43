"""Tell systemd that a peer is ready, alive or stopping, over the socket it names (sd_notify)."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping

_SECONDS = 0.5  # to wait for room in the manager's queue


class SystemdNotifier:
    """Messages to the service manager that started this process; without one nothing is sent.

    A peer is alive while its loop turns. If that ends for longer than ``WatchdogSec``, systemd kills the
    process and starts it again, which loses nothing. What is sent depends on no record.

    Parameters
    ----------
    environment : has ``NOTIFY_SOCKET`` and, if a watchdog is set, ``WATCHDOG_USEC`` and ``WATCHDOG_PID``.

    Examples
    --------
    >>> SystemdNotifier({}).ready()
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # a name that begins with @ is in the abstract namespace
        self._address = "\0" + address[1:] if address.startswith("@") else address
        microseconds, process = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
        ours = process in ("", str(os.getpid()))
        self._interval = int(microseconds) / 4e6 if ours and microseconds.isdecimal() else None
        self._due = 0.0

    def ready(self) -> None:
        """Report that the start is complete."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Report that the process ends in order."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Reset the watchdog, at most four times in its interval."""
        now = time.monotonic()
        if self._interval is not None and now >= self._due:
            self._due = now + self._interval
            self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # a manager that is gone or busy is no reason to stop a run
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
        ):
            sock.settimeout(_SECONDS)
            sock.sendto(message.encode(), self._address)
