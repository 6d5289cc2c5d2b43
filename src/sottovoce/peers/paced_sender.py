"""The process that holds what a paced peer sends until the agreed moment.

How long a peer computed must not be visible in the moment at which its answer leaves. So a second process,
which never holds a record or a key, owns the lines to the neighbors: the peer gives it encrypted bytes when
they are ready, and it writes them in the middle of a span. The caches, memory and scheduling of the
computation belong to another process; before it writes, this one keeps the processor in use for some
milliseconds, so that it always begins in the same state. Both share a machine, so microseconds may remain: a
random delay of milliseconds, drawn for each answer, covers them. What comes in is passed on at once.

This file is run by its path and imports nothing of the package.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import time

_PIECE = 1 << 18
_IN, _OUT, _HUP = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP | select.EPOLLERR


def _delay(pace: float) -> float:
    """Return a random delay of an answer; its standard deviation is a sixth of the longest."""
    longest = min(0.012, pace / 16)
    return longest * sum(int.from_bytes(os.urandom(4)) for _ in range(3)) / (3 << 32)


def head_start(pace: float) -> float:
    """Return the seconds before the moment from which the processor is kept in use, and nothing is taken."""
    return min(0.004, pace / 8)


class PacedSender:
    """A peer's end of its sender.

    Spans take ``pace`` seconds; the first began at ``spans_from`` by the monotonic clock of this machine. At
    ``most`` so many bytes of one connection wait for the moment; the peer keeps what is beyond.

    Guarantees
    ----------
    The process is a new program, not a copy of this one: nothing that is in memory here is in memory there.
    If it ends, the connections break, nothing else is lost, and the next connection starts another.
    """

    def __init__(self, pace: float, spans_from: float, most: int) -> None:
        self._arguments = [repr(pace), repr(spans_from), str(most)]
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def carry(self, tls: ssl.SSLSocket) -> None:
        """Put the process between a connection and its socket: what is written from now on waits."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        own, theirs = socket.socketpair()
        with own, theirs:
            own.setblocking(False)
            assert self._control is not None
            socket.send_fds(self._control, [b"+"], [tls.fileno(), theirs.fileno()])
            os.dup2(own.fileno(), tls.fileno(), inheritable=False)  # TLS knows its socket by the number only

    def close(self) -> None:
        """End the process; what still waits for its moment is not sent."""
        if self._process is not None and self._control is not None:
            self._control.close()
            self._process.wait()
            self._process = self._control = None

    def _start(self) -> None:
        self.close()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-I", "-S", __file__, str(number), *self._arguments]
            self._process = subprocess.Popen(command, pass_fds=[number], stdin=subprocess.DEVNULL)


class _Line:
    """One connection: the peer's end and the neighbor's."""

    def __init__(self, outer: socket.socket, inner: socket.socket) -> None:
        self.outer, self.inner = outer, inner
        self.held = bytearray()  # waits for the moment
        self.leaving = memoryview(b"")  # its moment has come
        self.coming = memoryview(b"")  # for the peer
        self.ended = self.closed = self.deaf = self.gone = False


class _Sender:
    def __init__(self, control: socket.socket, pace: float, spans_from: float, most: int) -> None:
        self.control, self.pace, self.spans_from, self.most = control, pace, spans_from, most
        self.poll = select.epoll()
        self.poll.register(control.fileno(), _IN)
        self.lines: dict[int, _Line] = {}  # by the descriptors of both ends

    def forward(self) -> None:
        """Pass bytes on until the peer closes the control socket."""
        early = head_start(self.pace)
        while True:
            waiting = [line for line in self.lines.values() if line.held or (line.ended and not line.closed)]
            begin = time.monotonic() + early
            spans = int((begin - self.spans_from) / self.pace - 0.5) + 1
            moment = self.spans_from + (spans + 0.5) * self.pace
            events = self.poll.poll(moment - begin if waiting else -1.0)
            if waiting and time.monotonic() + early >= moment:
                self._release(waiting, moment)
            for descriptor, event in events:
                if descriptor == self.control.fileno():
                    if not self._add():
                        return
                elif descriptor in self.lines:
                    self._serve(self.lines[descriptor], descriptor, event)

    def _release(self, waiting: list[_Line], moment: float) -> None:
        """Write what waits, a little after the moment."""
        moment += _delay(self.pace)
        for line in waiting:
            if not line.leaving:
                line.leaving, line.held = memoryview(bytes(line.held)), bytearray()
        while time.monotonic() < moment:
            pass
        for line in waiting:
            self._write(line)

    def _add(self) -> bool:
        message, numbers, _, _ = socket.recv_fds(self.control, 1, 2)
        if not message:
            return False
        outer, inner = (socket.socket(fileno=number) for number in numbers)
        line = _Line(outer, inner)
        for end in (outer, inner):
            end.setblocking(False)
            self.lines[end.fileno()] = line
            self.poll.register(end.fileno(), _IN)
        return True

    def _serve(self, line: _Line, descriptor: int, event: int) -> None:
        try:
            if descriptor == line.inner.fileno():
                if event & _HUP:
                    self._end(line)  # the peer has closed it
                    return
                if event & _OUT:
                    self._pass_in(line)
                if event & _IN and not line.ended:
                    piece = line.inner.recv(_PIECE)
                    line.held += piece
                    line.ended = not piece
            else:
                if event & _OUT:
                    self._write(line)
                if event & (_IN | _HUP) and not line.deaf:
                    piece = line.outer.recv(_PIECE)
                    line.coming, line.deaf = memoryview(bytes(line.coming) + piece), not piece
                    self._pass_in(line)
                elif event & _HUP:  # it would be reported again and again
                    self.poll.unregister(descriptor)
                    line.gone = True
            self._watch(line)
        except BlockingIOError:
            pass
        except OSError:
            self._end(line)

    def _pass_in(self, line: _Line) -> None:
        with contextlib.suppress(BlockingIOError):
            while line.coming:
                line.coming = line.coming[line.inner.send(line.coming) :]
        if line.deaf and not line.coming:
            line.inner.shutdown(socket.SHUT_WR)

    def _write(self, line: _Line) -> None:
        try:
            with contextlib.suppress(BlockingIOError):
                while line.leaving:
                    line.leaving = line.leaving[line.outer.send(line.leaving) :]
            if line.ended and not line.closed and not line.leaving and not line.held:
                line.closed = True
                line.outer.shutdown(socket.SHUT_WR)
            self._watch(line)
        except OSError:
            self._end(line)

    def _watch(self, line: _Line) -> None:
        """Wait for what each end can do next."""
        read = not line.ended and len(line.held) < self.most
        self.poll.modify(line.inner.fileno(), (_IN if read else 0) | (_OUT if line.coming else 0))
        read = not line.deaf and not line.coming
        if not line.gone:
            self.poll.modify(line.outer.fileno(), (_IN if read else 0) | (_OUT if line.leaving else 0))

    def _end(self, line: _Line) -> None:
        for end in (line.outer, line.inner):
            self.lines.pop(end.fileno(), None)
            end.close()  # the poll forgets what is closed


def _main() -> None:
    # signals are for the peer, which closes the control socket when it ends
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    gc.disable()
    control, pace, spans_from, most = sys.argv[1:]
    _Sender(socket.socket(fileno=int(control)), float(pace), float(spans_from), int(most)).forward()


if __name__ == "__main__":
    _main()
