"""Tell systemd that a peer is ready, alive or stopping, over the socket it names (sd_notify)."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping

_SECONDS = 0.5  # to wait for room in the manager's queue
_WORKING = 0.02  # share of the time that a process which computes has a processor, on a busy machine too


class SystemdNotifier:
    """Messages to the service manager that started this process; without one nothing is sent.

    A peer is alive while its loop turns, and in a step, which may take longer than ``WatchdogSec``, while the
    process computes. If neither holds, systemd kills the process and starts it again, which loses nothing.
    What is sent depends on no record.
    ``environment`` has ``NOTIFY_SOCKET`` and, if a watchdog is set, ``WATCHDOG_USEC`` and ``WATCHDOG_PID``.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # a name that begins with @ is in the abstract namespace
        self._address = "\0" + address[1:] if address.startswith("@") else address
        microseconds, process = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
        ours = process in ("", str(os.getpid()))
        self._interval = int(microseconds) / 4e6 if ours and microseconds.isdecimal() else None
        self._due = 0.0
        self._in_step, self._over = False, threading.Event()

    def ready(self) -> None:
        """Report that the start is complete."""
        self._send("READY=1")
        if self._interval is not None:
            threading.Thread(target=self._watch, args=(self._interval,), daemon=True).start()

    def stopping(self) -> None:
        """Report that the process ends in order."""
        self._over.set()
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Reset the watchdog, at most four times in its interval."""
        now = time.monotonic()
        if self._interval is not None and now >= self._due:
            self._due = now + self._interval
            self._send("WATCHDOG=1")

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Reset the watchdog while the block computes, however long; not while it waits for something."""
        self._in_step = True
        try:
            yield
        finally:
            self._in_step = False

    def _watch(self, interval: float) -> None:
        worked = time.process_time()
        while not self._over.wait(interval):
            before, worked = worked, time.process_time()
            if self._in_step and worked - before > _WORKING * interval:
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
