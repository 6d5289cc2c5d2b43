"""Peers against bare gRPC, bare fsync and numpy; JSON ratios with their targets.

    python -m benchmarks.peers [--against CHECKOUT] [line ...]

Lines: ``noise``, protective noise for a million parameters against numpy's normal; ``roundtrip``, one row of
a megabyte to a peer and back (frames, checks, transport) against bare gRPC over mutual TLS; ``ring`` and
``small``, rounds a second and memory of eight peers on a ring with 10,000 and with 10 parameters; ``masked``,
the same with sums over a tree, masked and not; ``large``, three peers with rows of 40 megabytes. Peers are
real processes with synced ledgers; another checkout of the program is measured beside this one. Ours and the
rival take turns; times are medians.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
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
        "target": "at most 1.8",
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


class Consortium:
    """Members with an agreement, data and addresses; `run` starts their real processes.

    ``checkout`` is the folder of the program that runs them.
    """

    def __init__(self, graph: str, n: int, dim: int, algorithm: dict[str, Any], checkout: Path) -> None:
        self.folder, self.n, self.checkout = Path(tempfile.mkdtemp()), n, checkout
        own = [make_identity(self.folder / f"m{i}", f"m{i}") for i in range(n)]
        mean = algorithm["name"] == "averaging"
        draft = {
            "version": 1,
            "title": "benchmark",
            "graph": graph,
            "algorithm": {"adjacency": "user", "clip_norm": 1.0, "noise_multiplier": 20.0, **algorithm},
            "model": {"kind": "mean" if mean else "squared", "parameters": dim},
            "budget": {"epsilon": 1e6, "delta": 1e-5},
        }
        self.file = self.folder / "agreement.toml"
        addresses = [f"127.0.0.1:{port}" for port in free_ports(n)]
        entries = [member_entry(i.certificate, at) for i, at in zip(own, addresses, strict=True)]
        write_agreement(self.file, draft, entries)
        for each in own:
            sign_agreement(self.file, each, secrets=self.folder / each.name)
        data = {"X": np.zeros((2, dim))} if mean else {"X": np.ones((2, dim)), "y": np.ones(2)}
        np.savez(self.folder / "data.npz", **data)

    def run(self) -> dict[str, float]:
        """Run to the end; count from a tenth of the rounds to nine, of which the log tells."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(self.checkout / "src")}
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "sottovoce.cli.main", "peer", "run", str(self.file), "--json",
                 "--identity", str(self.folder / f"m{i}"), "--data", str(self.folder / "data.npz"),
                 "--state", str(self.folder / f"s{i}")],
                # a pipe that nobody reads would fill up and stop its peer
                stdout=subprocess.PIPE if i == 0 else subprocess.DEVNULL, text=True, env=environment,
            )
            for i in range(self.n)
        ]  # fmt: skip
        start = begin = end = before = worked = 0.0
        at = last = 0
        resident = [0.0]
        assert processes[0].stdout is not None
        for line in processes[0].stdout:
            event = json.loads(line)
            if event["event"] == "listening":
                start = sum(map(processor_seconds_of, processes)) / self.n
            if event["event"] != "round":
                continue
            if not begin and event["at"] >= event["of"] // 10:
                at, begin, before = event["at"], time.perf_counter(), processor_seconds(processes)
            if not end and event["at"] >= 9 * event["of"] // 10:
                last, end, worked = event["at"], time.perf_counter(), processor_seconds(processes)
                resident = [memory(process) for process in processes]
        for process in processes:
            process.communicate(timeout=300)
        shutil.rmtree(self.folder)
        rounds = last - at
        return {
            "rounds_per_second": rounds / (end - begin),
            # of all peers together: on two cores that do nothing else, twice its inverse is the rate
            "processor_seconds_per_round": (worked - before) / rounds,
            "start_processor_seconds": start,
            "megabytes": max(resident),
            "failed": sum(process.returncode != 0 for process in processes),
        }


def averaging(rounds: int, protocol: str = "gossip") -> dict[str, Any]:
    return {"name": "averaging", "protocol": f"{protocol}:{rounds}"}


def learning(steps: int, protocol: str) -> dict[str, Any]:
    """An algorithm whose every step is one sum over a tree, masked or not."""
    return {"name": "consensus-sgd", "protocol": protocol, "steps": steps, "learning_rate": 0.1}


def in_turns(cases: dict[str, Callable[[], Consortium]], turns: int) -> dict[str, Any]:
    """Run the cases in turn; return the medians of each and, of the first, ratios to the second."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for _ in range(turns):
        for name, case in cases.items():
            runs[name].append(case().run())
    result: dict[str, Any] = {
        name: {key: statistics.median(each[key] for each in lives) for key in lives[0]}
        for name, lives in runs.items()
    }
    if len(cases) > 1:
        ours, other = (list(runs.values())[k] for k in (0, 1))
        for key in ("rounds_per_second", "processor_seconds_per_round", "megabytes"):
            pairs = [a[key] / b[key] for a, b in zip(ours, other, strict=True)]
            result[f"ratio_of_{key}"] = statistics.median(pairs)
    return result


def compared(n: int, graph: str, dim: int, algorithm: dict[str, Any], turns: int = 3) -> dict[str, Any]:
    """Run peers of this checkout, in turn with those of ``--against`` where it is given."""
    checkouts = {"ours": HERE} | ({} if AGAINST is None else {"against": AGAINST})
    cases = {
        name: partial(Consortium, graph, n, dim, algorithm, checkout) for name, checkout in checkouts.items()
    }
    return in_turns(cases, turns)


def ring() -> dict[str, Any]:
    result = compared(8, "ring:8", 10_000, averaging(300))
    with tempfile.TemporaryDirectory() as folder:
        result["fsync_seconds"] = fsync_seconds(Path(folder), 160_000)
    return {**result, "target": "at least 50 rounds a second, with signed rows and synced ledgers"}


def small() -> dict[str, Any]:
    return {
        **compared(8, "ring:8", 10, averaging(600)),
        "target": "1.6 times the rounds a second of the first form; at most 120 megabytes",
    }


def masked() -> dict[str, Any]:
    cases = {
        protocol: partial(Consortium, "ring:8", 8, 10, learning(60, protocol), HERE)
        for protocol in ("masked", "tree")
    }
    return {**in_turns(cases, 3), "target": "ratio of rounds a second at least 0.92"}


def large() -> dict[str, Any]:
    return {
        **compared(3, "path:3", 5_000_000, averaging(30), turns=1),
        "target": "at least 1 round a second with rows of 40 megabytes",
    }


def processor_seconds(processes: list[subprocess.Popen[str]]) -> float:
    """What the processes have computed so far, whatever else the machine does."""
    return sum(map(processor_seconds_of, processes))


def processor_seconds_of(process: subprocess.Popen[str]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: subprocess.Popen[str]) -> float:
    """The largest memory so far of a process, in megabytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    line = next((line for line in status.splitlines() if line.startswith("VmHWM")), "VmHWM: 0")
    return int(line.split()[1]) / 1024


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


HERE = Path(__file__).resolve().parents[1]
AGAINST: Path | None = None
LINES = {
    "noise": noise,
    "roundtrip": roundtrip,
    "ring": ring,
    "small": small,
    "masked": masked,
    "large": large,
}


def print_lines(lines: dict[str, Callable[[], Any]], names: list[str]) -> None:
    """Run the named lines, or all, and print their results and the machine."""
    record: dict[str, Any] = {name: lines[name]() for name in names or lines}
    record["machine"] = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    names = sys.argv[1:]
    if "--against" in names:
        place = names.index("--against")
        AGAINST = Path(names.pop(place + 1)).resolve()
        del names[place]
    print_lines(LINES, names)
