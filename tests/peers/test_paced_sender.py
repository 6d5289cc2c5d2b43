"""The process that holds what a paced peer sends until the agreed moment."""

import asyncio
import contextlib
import socket
import time
from collections import deque

import numpy as np
import pytest
from tests.peers.conftest import identity

from sottovoce.peers.connection import Connection, client_context, server_context, tls_handshake
from sottovoce.peers.paced_sender import PacedSender

HOUR = 3600.0


class Pair:
    """Two ends of one TLS connection, the first behind a sender."""

    def __init__(self, sender):
        self.sender, self.came, self.closed = sender, {0: [], 1: []}, set()

    async def open(self):
        one, two = (identity(f"m{i}") for i in range(2))
        contexts = (
            server_context(one, [two.certificate.decode()]),
            client_context(two, one.certificate.decode()),
        )
        ends = socket.socketpair()
        for end in ends:
            end.setblocking(False)
        tls = await asyncio.gather(
            *(tls_handshake(e, c, server=c is contexts[0]) for e, c in zip(ends, contexts, strict=True))
        )
        self.sender.carry(tls[0])
        self.queues = deque(), deque()
        self.first, self.second = (
            Connection(
                each,
                largest=1 << 24,
                next_message=lambda _, queue=self.queues[i]: queue.popleft() if queue else None,
                on_message=lambda _, raw, i=i: self.came[i].append(bytes(raw)),
                on_close=lambda *_, i=i: self.closed.add(i),
            )
            for i, each in enumerate(tls)
        )
        return self

    def send(self, i, *messages):
        self.queues[i].extend(messages)
        (self.first, self.second)[i].write()

    async def until(self, condition, seconds=20.0):
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.005)


def scene(action, pace, spans_from=0.0, most=1 << 25):
    async def play():
        with contextlib.closing(PacedSender(pace, spans_from, most)) as sender:
            pair = await Pair(sender).open()
            await action(pair)
            for each in (pair.first, pair.second):
                each.close()

    asyncio.run(play())


def test_nothing_leaves_before_the_moment_and_what_comes_is_passed_on_at_once():
    """The middle of the span is half an hour away."""

    async def action(pair):
        pair.send(0, b"answer")
        pair.send(1, *(b"question %d" % number for number in range(20)))
        await pair.until(lambda: len(pair.came[0]) == 20)
        assert pair.came[1] == []
        assert not pair.first.unsent  # this process has handed it over

    scene(action, HOUR, time.monotonic())


@pytest.mark.parametrize("most", [1 << 25, 1000], ids=["whole", "in pieces"])
def test_what_was_held_leaves_whole_in_the_middle_of_a_span(most):
    """Rows of megabytes and small ones, in order; with little room in the sender the rest waits here."""
    size = 5_000_000 if most > 1000 else 2_000_000
    row = np.random.default_rng(0).bytes(size)

    async def action(pair):
        pair.send(0, b"a", row, b"b")
        pair.send(1, row)
        await pair.until(lambda: len(pair.came[1]) == 3 and len(pair.came[0]) == 1)
        assert pair.came == {0: [row], 1: [b"a", row, b"b"]}

    scene(action, 0.02, 0.0, most)


def test_an_end_that_leaves_is_read_to_its_last_byte():
    async def action(pair):
        pair.send(0, b"last")
        pair.first.leave()
        await pair.until(lambda: pair.closed == {0, 1})
        assert pair.came[1] == [b"last"]

    scene(action, 0.02)


@pytest.mark.parametrize("side", [0, 1])
def test_a_closed_end_closes_the_other(side):
    async def action(pair):
        (pair.first, pair.second)[side].close()
        await pair.until(lambda: pair.closed == {0, 1})

    scene(action, HOUR, time.monotonic())


def test_a_sender_that_dies_breaks_the_connections_and_the_next_one_starts_another():
    async def action(pair):
        process = pair.sender._process
        process.kill()
        await pair.until(lambda: pair.closed == {0, 1})
        assert pair.came[1] == []
        other = await Pair(pair.sender).open()
        other.send(0, b"again")
        await other.until(lambda: other.came[1] == [b"again"])
        assert pair.sender._process.pid != process.pid

    scene(action, 0.02)
