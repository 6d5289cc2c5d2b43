"""Long independent checks of the library; see README.md."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sottovoce.peers.identity import Identity


def store(path: Path, check: str, record: dict[str, Any]) -> None:
    """Write the record of a check into a JSON file of several checks; the others stay as they are."""
    from sottovoce._io import atomic_write  # here, because some checks choose what they import

    records = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    atomic_write(path, json.dumps(records | {check: record}, indent=1) + "\n")


def signed_agreement(folder: Path, draft: dict[str, Any], members: list[Identity]) -> Path:
    """Write an agreement of members at free ports of the loopback interface, signed by all."""
    from sottovoce.peers.agreement import member_entry, sign_agreement, write_agreement

    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in members]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    file = folder / "agreement.toml"
    entries = [member_entry(i.certificate, at) for i, at in zip(members, addresses, strict=True)]
    write_agreement(file, {"version": 1, "budget": {"epsilon": 10.0, "delta": 1e-5}, **draft}, entries)
    for each in members:
        sign_agreement(file, each)
    return file
