"""Messages to systemd over the socket it names."""

import contextlib
import os
import socket
import threading
import time

import pytest

from sottovoce.peers.systemd import SystemdNotifier


class Manager:
    """The socket of a service manager, emptied by a thread: the queue of the system is short."""

    def __init__(self, address):
        self.address, self.messages = address, []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        while (message := self.socket.recv(100)) != b"end":
            self.messages.append(message.decode())

    def received(self):
        """Return all messages, and end."""
        self.socket.sendto(b"end", self.socket.getsockname())
        self.thread.join()
        self.socket.close()
        return self.messages


@pytest.fixture
def manager(tmp_path):
    return Manager(str(tmp_path / "notify"))


def test_a_peer_reports_start_life_and_end(manager, consortium, memory_links, monkeypatch):
    """Peers of one process share the socket: each reports once that it is ready, and resets the watchdog."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "1200000")
    consortium(n=2, graph="path:2", timing={"pace": 0.1}).run(transport=memory_links())
    messages = manager.received()
    assert messages[0] == "READY=1"
    assert messages.count("READY=1") == messages.count("STOPPING=1") == 2
    assert messages.count("WATCHDOG=1") >= 2


@pytest.mark.parametrize(
    ("process", "microseconds", "resets"),
    [(os.getpid(), "60000000", 1), (os.getpid() + 1, "60000000", 0), ("", "0x1", 0), ("", "", 0)],
    ids=["ours", "another process", "no number", "no watchdog"],
)
def test_the_watchdog_is_reset_four_times_in_its_interval(process, microseconds, resets, manager):
    environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": microseconds}
    notifier = SystemdNotifier({**environment, "WATCHDOG_PID": str(process)})
    for _ in range(5):
        notifier.alive()
    assert manager.received() == ["WATCHDOG=1"] * resets


def test_abstract_names_are_understood():
    manager = Manager("@sottovoce test notify")
    SystemdNotifier({"NOTIFY_SOCKET": manager.address}).ready()
    assert manager.received() == ["READY=1"]


def test_a_manager_that_is_gone_stops_nothing(tmp_path):
    SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()


@pytest.mark.parametrize("state", ["computing", "waiting", "outside"])
def test_a_long_step_resets_the_watchdog_only_while_it_computes(state, manager):
    """A step that waits for a lock or a disk hangs; so does a loop that computes something else."""
    environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "80000"}  # four times: every 20 ms
    notifier = SystemdNotifier(environment)
    notifier.ready()
    with notifier.step() if state != "outside" else contextlib.nullcontext():
        until = time.process_time() + 0.4
        if state == "waiting":
            time.sleep(0.4)
        while state != "waiting" and time.process_time() < until:
            sum(range(1000))
    notifier.stopping()
    messages = manager.received()
    assert (messages.count("WATCHDOG=1") > 0) == (state == "computing")
    assert messages[-1] == "STOPPING=1"
