"""Peers against bare gRPC, bare fsync and numpy; JSON ratios with their targets.

    python -m benchmarks.peers [line ...]

Lines: ``noise``, protective noise for a million parameters against numpy's normal; ``roundtrip``, one row of
a megabyte to a peer and back (frames, checks, transport) against bare gRPC over mutual TLS; ``ring``, rounds
a second of eight peers on a ring with 10,000 parameters and the ledger synced, beside what fsync alone
allows. Ours and the rival take turns; times are medians.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.noise.samplers import ProtectiveNoise
from sottovoce.peers.agreement import Member, member_entry, sign_agreement, write_agreement
from sottovoce.peers.identity import Identity, host_name, make_identity
from sottovoce.peers.transport import TlsTransport
from sottovoce.peers.wire_format import FrameCodec

import grpc  # isort: skip - the rival


def medians(forms: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Time the forms in turn and return the median seconds of each."""
    times: dict[str, list[float]] = {name: [] for name in forms}
    for turn in range(repeats + 2):
        for name, form in forms.items():
            begin = time.perf_counter()
            form()
            if turn > 1:
                times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def noise() -> dict[str, Any]:
    values, rng, source = np.zeros((1, 1_000_000)), np.random.default_rng(0), ProtectiveNoise()
    seconds = medians(
        {
            "ours": lambda: source.perturb(values, agents=[0], step=0, std=1.0),
            "numpy": lambda: values + rng.normal(0.0, 1.0, values.shape),
        },
        15,
    )
    return {
        **seconds,
        "ratio": seconds["ours"] / seconds["numpy"],
        "target": "at most 4",
        "rival": "numpy normal",
    }


def roundtrip() -> dict[str, Any]:
    return asyncio.run(_roundtrip())


async def _roundtrip(repeats: int = 60) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp())
    own = [make_identity(folder / name, name) for name in ("left", "right")]
    ports = free_ports(2)
    members = [
        Member(**member_entry(i.certificate, f"127.0.0.1:{p}")) for i, p in zip(own, ports, strict=True)
    ]
    codec = FrameCodec(bytes(32), 2, 1_000_000, 131_072, "float64")  # a megabyte
    row = np.random.default_rng(0).standard_normal(codec.dim)
    arrived: asyncio.Queue[bytes] = asyncio.Queue()
    right: TlsTransport

    def echo(sender: int, raw: bytes) -> None:
        frame = codec.decode(raw)
        right.send(sender, codec.row(codec.values(frame), sender=1, round=frame.round))

    def back(sender: int, raw: bytes) -> None:
        codec.values(codec.decode(raw))
        arrived.put_nowait(raw)

    left = TlsTransport(members, 0, own[0], [1], back, largest=codec.largest)
    right = TlsTransport(members, 1, own[1], [0], echo, largest=codec.largest)
    await left.start()
    await right.start()
    bare, channel, server = await bare_grpc(own)
    content = codec.row(row, sender=0, round=0)
    ours, theirs = [], []
    for r in range(repeats + 5):
        begin = time.perf_counter()
        left.send(1, codec.row(row, sender=0, round=r))
        await asyncio.wait_for(arrived.get(), 10)
        ours.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        await bare(content, timeout=10)
        theirs.append(time.perf_counter() - begin)
    await asyncio.gather(left.stop(), right.stop(), channel.close(), server.stop(0))
    seconds = {"ours": statistics.median(ours[5:]), "bare": statistics.median(theirs[5:])}
    calm = statistics.quantiles(ours[5:], n=10)[0] / statistics.quantiles(theirs[5:], n=10)[0]
    return {
        **seconds,
        "ratio": seconds["ours"] / seconds["bare"],
        "ratio_of_best_deciles": calm,  # what the two take when nothing else disturbs them
        "target": "at most 2",
        "rival": "bare gRPC mutual TLS, the same bytes echoed in one call",
    }


async def bare_grpc(own: list[Identity]) -> tuple[Any, Any, Any]:
    """The rival: one unary call that returns the bytes it got, over the same certificates."""

    async def echo(raw: bytes, context: Any) -> bytes:
        return raw

    limits = [("grpc.max_receive_message_length", 1 << 24), ("grpc.max_send_message_length", 1 << 24)]
    server = grpc.aio.server(options=limits)
    handler = grpc.method_handlers_generic_handler(
        "bare", {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    )
    server.add_generic_rpc_handlers((handler,))
    credentials = grpc.ssl_server_credentials(
        [(own[1].key, own[1].certificate)], root_certificates=own[0].certificate, require_client_auth=True
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    trusted = grpc.ssl_channel_credentials(own[1].certificate, own[0].key, own[0].certificate)
    options = [("grpc.ssl_target_name_override", host_name("right")), *limits]
    channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", trusted, options=options)
    return channel.unary_unary("/bare/Echo"), channel, server


def ring(n: int = 8, dim: int = 10_000, rounds: int = 300) -> dict[str, Any]:
    """Eight real processes; the rate is taken from the ledgers' own growth between two looks."""
    folder = Path(tempfile.mkdtemp())
    own = [make_identity(folder / f"m{i}", f"m{i}") for i in range(n)]
    draft = {
        "version": 1,
        "title": "ring",
        "graph": f"ring:{n}",
        "algorithm": {
            "name": "averaging", "protocol": f"gossip:{rounds}", "adjacency": "user", "clip_norm": 1.0,
            "noise_multiplier": 2.0,
        },
        "model": {"kind": "mean", "parameters": dim},
        "budget": {"epsilon": 10.0, "delta": 1e-5},
    }  # fmt: skip
    file = folder / "agreement.toml"
    entries = [member_entry(i.certificate, f"127.0.0.1:{p}") for i, p in zip(own, free_ports(n), strict=True)]
    write_agreement(file, draft, entries)
    for each in own:
        sign_agreement(file, each)
    np.savez(folder / "data.npz", X=np.zeros((2, dim)))
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "sottovoce.cli.main", "peer", "run", str(file), "--json",
             "--log-level", "debug", "--identity",
             str(folder / f"m{i}"), "--data", str(folder / "data.npz"), "--state", str(folder / f"s{i}")],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for i in range(n)
    ]  # fmt: skip
    first = last = worked = 0.0
    assert processes[0].stdout is not None
    for line in processes[0].stdout:
        event = json.loads(line)
        if event["event"] == "round" and event["at"] == 20:
            first, worked = time.perf_counter(), -processor_seconds(processes)
        if event["event"] == "round" and event["at"] == rounds - 1:
            last = time.perf_counter()
            worked += processor_seconds(processes)
    for process in processes:
        process.communicate(timeout=120)
    rate = (rounds - 21) / (last - first)
    return {
        "rounds_per_second": rate,
        # of all peers together: on two cores that do nothing else, twice its inverse is the rate
        "processor_seconds_per_round": worked / (rounds - 21),
        "target": "at least 50, with signed rows and synced ledgers",
        "fsync_seconds": fsync_seconds(folder, 16 * dim),
        "syncs_per_second_needed": n * rate,
        "failed": sum(process.returncode != 0 for process in processes),
    }


def processor_seconds(processes: list[subprocess.Popen[str]]) -> float:
    """What the processes have computed so far, whatever else the machine does."""
    total = 0.0
    for process in processes:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def fsync_seconds(folder: Path, size: int) -> float:
    """What the disk alone takes for one round's bytes and their sync."""
    handle = os.open(folder / "probe", os.O_WRONLY | os.O_CREAT)
    seconds = []
    for _ in range(50):
        begin = time.perf_counter()
        os.write(handle, bytes(size))
        os.fdatasync(handle)
        seconds.append(time.perf_counter() - begin)
    os.close(handle)
    return statistics.median(seconds)


def free_ports(n: int) -> list[int]:
    sockets = [socket.socket() for _ in range(n)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


LINES = {"noise": noise, "roundtrip": roundtrip, "ring": ring}


def print_lines(lines: dict[str, Callable[[], Any]]) -> None:
    """Run the lines named on the command line, or all, and print what they found and where."""
    record: dict[str, Any] = {name: lines[name]() for name in sys.argv[1:] or lines}
    record["machine"] = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    print_lines(LINES)
