"""``/healthz`` and ``/metrics`` of a running peer, on the loopback interface only.

A monitoring agent of the same machine reads them; nobody else can connect. What they say is public in the
run or about the network: rounds, releases, connections, refused frames. Nothing of it depends on records.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any, Protocol

from sottovoce.errors import ConfigError, TryLater

HOST = "127.0.0.1"
_SECONDS = 5.0


class Reporting(Protocol):
    """Whoever can say how it is."""

    def report(self) -> dict[str, Any]:
        """Return plain values."""


class Health:
    """A small HTTP server for one peer.

    Parameters
    ----------
    peer : asked for its report at every request.
    port : of the loopback interface; 0 takes a free one.
    """

    def __init__(self, peer: Reporting, port: int) -> None:
        if not 0 <= port < 65536:
            raise ConfigError(f"The port for health must lie between 0 and 65535, got {port}.")
        self.peer, self.port = peer, port
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to listen."""
        try:
            self._server = await asyncio.start_server(self._answer, HOST, self.port, limit=8192)
        except OSError as error:
            raise TryLater(
                f"Cannot listen at {HOST}:{self.port} for health ({error.strerror}); take another --health."
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                words = (await reader.readuntil(b"\r\n")).decode("latin-1").split()
                while (await reader.readuntil(b"\r\n")).strip():
                    pass
            status, kind, body = self._page(words)
            head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
            await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _page(self, words: list[str]) -> tuple[str, str, bytes]:
        if len(words) != 3 or words[0] != "GET":
            return "405 Method Not Allowed", "text/plain", b"GET /healthz or /metrics\n"
        report = self.peer.report()
        if words[1] == "/metrics":
            return "200 OK", "text/plain; version=0.0.4", metrics(report).encode()
        if words[1] == "/healthz":
            away = [name for name, each in report.get("neighbors", {}).items() if not each["connected"]]
            well = not report["failed"]
            facts = {key: report[key] for key in ("member", "round", "rounds", "finished", "waiting")}
            body = json.dumps({"well": well, "away": away, **facts}) + "\n"
            return ("200 OK" if well else "503 Service Unavailable"), "application/json", body.encode()
        return "404 Not Found", "text/plain", b"GET /healthz or /metrics\n"


def metrics(report: Mapping[str, Any]) -> str:
    """Return a report in Prometheus' text format."""
    lines: list[str] = []

    def add(name: str, kind: str, about: str, values: list[tuple[dict[str, str], float]]) -> None:
        if not values:
            return
        lines.append(f"# HELP sottovoce_{name} {about}")
        lines.append(f"# TYPE sottovoce_{name} {kind}")
        for labels, value in values:
            inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            lines.append(f"sottovoce_{name}{'{' + inner + '}' if inner else ''} {value:g}")

    def single(name: str, kind: str, about: str, key: str) -> None:
        if key in report:
            add(name, kind, about, [({}, float(report[key]))])

    single("round", "gauge", "Rounds that are durable.", "round")
    single("rounds", "gauge", "Rounds of the whole run.", "rounds")
    single("releases_total", "counter", "Noisy releases charged so far.", "releases")
    single("finished", "gauge", "Whether the model is there.", "finished")
    single("incidents_total", "counter", "Second payloads and other breaches noted.", "incidents")
    single(
        "pace_missed_total", "counter", "Answers that were not ready in the middle of a span.", "pace_missed"
    )
    around = report.get("neighbors", {})
    add(
        "connected",
        "gauge",
        "Whether a neighbor is connected.",
        [({"member": name}, float(each["connected"])) for name, each in around.items()],
    )
    add(
        "seconds_since_heard",
        "gauge",
        "Since the last frame of a neighbor.",
        [
            ({"member": name}, each["seconds_since_heard"])
            for name, each in around.items()
            if each["seconds_since_heard"] is not None
        ],
    )
    add(
        "frames_total",
        "counter",
        "Frames that came from a neighbor.",
        [({"member": name}, float(each["frames"])) for name, each in around.items()],
    )
    add(
        "clock_ahead_seconds",
        "gauge",
        "How far a neighbor's clock is ahead.",
        [({"member": name}, each["clock_ahead"]) for name, each in around.items()],
    )
    add(
        "refused_total",
        "counter",
        "Frames and callers that were refused.",
        [
            ({"from": each["from"], "why": each["why"]}, float(each["count"]))
            for each in report.get("refused", ())
        ],
    )
    listener = report.get("listener", {})
    add(
        "listener_total",
        "counter",
        "Connections at the listener.",
        [({"what": what}, float(count)) for what, count in sorted(listener.items()) if what != "waiting"],
    )
    add(
        "listener_waiting",
        "gauge",
        "Connections that have shown no certificate yet.",
        [({}, float(listener["waiting"]))] if "waiting" in listener else [],
    )
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
