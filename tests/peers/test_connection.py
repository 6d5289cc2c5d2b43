"""Messages over one connection: however TLS cuts them up, they come whole, in order, and none is lost."""

import asyncio
import random
import socket
import ssl

import pytest

from sottovoce.peers.connection import HEAD, Connection


class Records:
    """A connection that gives its bytes in stretches of any length, as records come."""

    def __init__(self, stream, rng):
        self.stream, self.rng, self.at = stream, rng, 0
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)

    def fileno(self):
        return self.near.fileno()

    def recv_into(self, room):
        if self.at == len(self.stream) or self.rng.random() < 0.1:
            raise ssl.SSLWantReadError
        most = self.rng.choice((1, 3, 5, 100, 4000, 16384))
        part = self.stream[self.at : self.at + min(most, len(room))]
        room[: len(part)] = part
        self.at += len(part)
        return len(part)

    def pending(self):
        return len(self.stream) - self.at

    def close(self):
        self.near.close()
        self.far.close()


def read(messages, seed, largest=1 << 18, pausing=False):
    """Return what a connection hands on, and the error it ended with."""
    stream = b"".join(HEAD.pack(len(each)) + each for each in messages)
    taken, ends = [], []

    async def play():
        tls = Records(stream, random.Random(seed))
        connection = Connection(
            tls,
            largest=largest,
            next_message=lambda connection: None,
            on_message=take,
            on_close=lambda connection, error: ends.append(error),
        )
        for _ in range(100_000):
            if not connection.open or (tls.at == len(stream) and len(taken) == len(messages)):
                break
            connection._read()
            await asyncio.sleep(0)
        connection.close()

    def take(connection, content):
        taken.append(bytes(content))
        if pausing and len(taken) % 7 == 0:
            connection.pause(0.0)

    asyncio.run(play())
    return taken, ends[0]


@pytest.mark.parametrize("seed", range(6))
def test_messages_come_whole_and_in_order(seed):
    rng = random.Random(seed)
    sizes = (1, 2, 4, 240, 8191, 8192, 8193, 16380, 16384, 70_000)
    messages = [rng.randbytes(rng.choice(sizes)) for _ in range(120)]
    taken, error = read(messages, seed, pausing=seed % 2 == 1)
    assert taken == messages
    assert error is None


def test_a_message_that_is_too_long_ends_the_connection():
    taken, error = read([b"a" * 5, b"b" * 100, b"c" * 101, b"d"], 0, largest=100)
    assert taken == [b"a" * 5, b"b" * 100]
    assert "101 bytes" in str(error)
