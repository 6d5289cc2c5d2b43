"""What a peer shows of itself: its state folder, the digests of its rows, ``/healthz`` and ``/metrics``.

A state folder is read without disturbing the peer that uses it. The HTTP server listens on the loopback
interface only, for a monitoring agent of the same machine; what it answers is public in the run or about the
network (rounds, releases, connections, refused frames) and never depends on records.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.errors import ConfigError, LedgerError, TryLater
from sottovoce.ledger.run_ledger import is_locked, read_ledger
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement import Agreement
from sottovoce.planfile.schema import check_section

LIVE = "live.json"  # the last report of a running peer
HOST = "127.0.0.1"
_SECONDS = 5.0


def read_status(folder: str | Path) -> dict[str, Any]:
    """Return rounds, neighbors, releases and the budget that is left; the whole chain is checked."""
    stored = read_ledger(folder)
    about, saved, node = stored["about"], stored["saved"], stored["node"]
    if "agreement" not in about:
        raise LedgerError(f"The ledger in {folder} holds no agreement; it was not made by `peer run`.")
    agreement = check_section(Agreement, about["agreement"], f"The agreement in {folder}")
    agreed_run, names, budget = AgreedRun(agreement), agreement.names, agreement.budget
    stated = agreed_run.stated(agreed_run.spent(node, saved.releases), node)  # as the statement has it
    newest: dict[int, int] = {}
    for r, sender in saved.heard:
        newest[sender] = max(newest.get(sender, -1), r)
    notes = [part for note in saved.notes for part in note.split("; ")]
    return {
        "session": stored["session"],
        "title": agreement.title,
        "member": names[node],
        "population": about.get("charge", {}).get("population"),
        "running": is_locked(folder),
        "finished": stored["compacted"] or (saved.state is not None and saved.at >= agreed_run.rounds),
        "round": saved.at,
        "rounds": agreed_run.rounds,
        "rows_sent": len(saved.sent),
        "heard": {names[s]: newest.get(s, -1) for s in about["contacts"]},
        "releases": sum(release.draws for release in saved.releases),
        **{key: stated[key] for key in ("view", "adversary", "adjacency", "label", "delta")},
        "tolerate": agreed_run.tolerate,
        "epsilon_spent": stated["epsilon"],
        "epsilon_left": max(0.0, budget.epsilon - stated["epsilon"]),
        "epsilon_budget": budget.epsilon,
        "incidents": [note for note in notes if not note.startswith("proof ")],
        "ledger_rows": stored["rows"],
        "ledger_head": stored["head"],
        "live": _live(Path(folder)),
    }


def _live(folder: Path) -> dict[str, Any] | None:
    """Return the peer's last report on its connections, with its age; None if it never ran here."""
    try:
        report = json.loads((folder / LIVE).read_text())
        age = time.time() - float(report["time"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    names = ("neighbors", "refused", "listener", "waiting", "pace_missed")
    return {"age": round(max(0.0, age), 1), **{name: report[name] for name in names if name in report}}


# ---- digests of rows, compared between members ------------------------------------------------------------


def read_proof(folder: str | Path) -> dict[str, Any]:
    """Return the releases and the digests of all rows sent: what an auditor compares with the neighbors'."""
    stored = read_ledger(folder)
    saved = stored["saved"]
    heard = [
        {"round": r, "sender": s, "digest": proof[:32].hex(), "signature": proof[32:].hex()}
        for (r, s), proof in sorted(saved.heard.items())
    ]
    return {
        **{name: stored[name] for name in ("session", "node", "rows", "head", "compacted")},
        "releases": [release.to_dict() for release in saved.releases],
        "sent": {str(r): digest.hex() for r, digest in sorted(saved.sent.items())},
        "heard": heard,
    }


def compare_proofs(proofs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return every contradiction between the rows that members sent and heard, from `peer ledger --json`.

    A peer sends one row per round, the same bytes to every neighbor. A member that sends two versions leaves
    no trace in any single ledger; two ledgers together show it, by digests alone. Each contradiction has
    ``round``, ``sender`` (a member's number), ``kind`` and ``members``, whose ledgers do not fit: ``"split"``
    where two heard different rows of one sender in one round, ``"sent"`` where a member heard another row
    than the sender's own ledger lists.

    Guarantees
    ----------
    Honest members whose ledgers are whole never contradict each other, whatever was lost, repeated or delayed
    between them. A contradiction shows that the sender lied to one of them or one of these files was changed;
    it does not show which.
    """
    heard: dict[tuple[int, int], dict[int, str]] = {}
    sent: dict[tuple[int, int], str] = {}
    try:
        runs, nodes = {str(proof["session"]) for proof in proofs}, {int(proof["node"]) for proof in proofs}
        for proof in proofs:
            node = int(proof["node"])
            sent.update({(int(r), node): str(digest) for r, digest in proof["sent"].items()})
            for row in proof["heard"]:
                heard.setdefault((int(row["round"]), int(row["sender"])), {})[node] = str(row["digest"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError("A file is not what `sottovoce peer ledger --json` prints; make it anew.") from None
    if any(proof.get("compacted") for proof in proofs):
        raise ConfigError("A ledger that was compacted has no digests of rows left to compare.")
    if len(runs) > 1 or len(nodes) < max(2, len(proofs)):
        raise ConfigError(
            "Comparing needs the ledgers of two members or more of one run, one of each member, got "
            f"{len(proofs)} of {len(nodes)} members and {len(runs)} runs."
        )
    conflicts = []
    for (r, sender), versions in sorted(heard.items()):
        own = sent.get((r, sender))
        others = sorted(node for node, digest in versions.items() if own not in (None, digest))
        for kind, members in (("split", sorted(versions)), ("sent", others)):
            if members and (kind == "sent" or len(set(versions.values())) > 1):
                conflicts.append({"round": r, "sender": sender, "kind": kind, "members": members})
    return conflicts


# ---- a running peer ---------------------------------------------------------------------------------------


class Health:
    """A small HTTP server on the loopback interface that answers with the report of one peer.

    Port 0 takes a free one, which `port` then holds.
    """

    def __init__(self, report: Callable[[], Mapping[str, Any]], port: int) -> None:
        if not 0 <= port < 65536:
            raise ConfigError(f"The port for health must lie between 0 and 65535, got {port}.")
        self.report, self.port = report, port
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        try:
            self._server = await asyncio.start_server(self._answer, HOST, self.port, limit=8192)
        except OSError as error:
            raise TryLater(
                f"Cannot listen at {HOST}:{self.port} for health ({error.strerror}); take another --health."
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
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
        report = self.report()
        if words[1] == "/metrics":
            return "200 OK", "text/plain; version=0.0.4", metrics(report).encode()
        if words[1] == "/healthz":
            away = [name for name, each in report.get("neighbors", {}).items() if not each["connected"]]
            well = not report["failed"]
            names = ("member", "round", "rounds", "finished", "waiting", "seconds_since_round")
            facts = {key: report[key] for key in names}
            body = json.dumps({"well": well, "away": away, **facts}) + "\n"
            return ("200 OK" if well else "503 Service Unavailable"), "application/json", body.encode()
        return "404 Not Found", "text/plain", b"GET /healthz or /metrics\n"


_OF_THE_PEER = (  # metric, type, help, key of the report
    ("round", "gauge", "Rounds that are durable.", "round"),
    ("rounds", "gauge", "Rounds of the whole run.", "rounds"),
    ("seconds_since_round", "gauge", "Since the last round became durable.", "seconds_since_round"),
    ("releases_total", "counter", "Noisy releases charged so far.", "releases"),
    ("finished", "gauge", "Whether the model is there.", "finished"),
    ("incidents_total", "counter", "Second payloads and other breaches noted.", "incidents"),
    ("pace_missed_total", "counter", "Answers that were not ready in the middle of a span.", "pace_missed"),
)
_OF_NEIGHBORS = (
    ("connected", "gauge", "Whether a neighbor is connected.", "connected"),
    ("seconds_since_heard", "gauge", "Since the last frame of a neighbor.", "seconds_since_heard"),
    ("frames_total", "counter", "Frames that came from a neighbor.", "frames"),
    ("clock_ahead_seconds", "gauge", "How far a neighbor's clock is ahead.", "clock_ahead"),
)


def metrics(report: Mapping[str, Any]) -> str:
    """Return a report in Prometheus' text format."""
    lines: list[str] = []

    def add(name: str, kind: str, about: str, values: Iterable[tuple[dict[str, str], float | None]]) -> None:
        present = [(labels, float(value)) for labels, value in values if value is not None]
        if present:
            lines.extend((f"# HELP sottovoce_{name} {about}", f"# TYPE sottovoce_{name} {kind}"))
        for labels, value in present:
            inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            lines.append(f"sottovoce_{name}{'{' + inner + '}' if inner else ''} {value:g}")

    for name, kind, about, key in _OF_THE_PEER:
        add(name, kind, about, [({}, report.get(key))])
    for name, kind, about, key in _OF_NEIGHBORS:
        neighbors = report.get("neighbors", {})
        add(name, kind, about, [({"member": member}, each[key]) for member, each in neighbors.items()])
    waiting_for = [({"member": name}, 1.0) for name in report.get("waiting", ())]
    add("waiting_for", "gauge", "Members whose message is missing for the next round.", waiting_for)
    refused = [
        ({"from": each["from"], "why": each["why"]}, each["count"]) for each in report.get("refused", ())
    ]
    add("refused_total", "counter", "Frames and callers that were refused.", refused)
    listener = dict(report.get("listener", {}))
    waiting = listener.pop("waiting", None)
    counts = [({"what": what}, count) for what, count in sorted(listener.items())]
    add("listener_total", "counter", "Connections at the listener.", counts)
    add("listener_waiting", "gauge", "Connections that have shown no certificate yet.", [({}, waiting)])
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
