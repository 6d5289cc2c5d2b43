"""The same algorithms between machines of people who do not trust each other, over mutual TLS.

`home` an organisation's folder; `book` what was spent over all runs; `addresses` pinned certificates;
`agreement` what runs, signed by all; `identity` who is who; `frames` the bytes; `ledger` what was spent, on
disk; `core` one peer without IO; `plans`, `programs`, `jobs` the agreed plan, cut into rounds;
`transport` and `runtime` the real thing. Names are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

_NAMES = {
    "Agreement": "agreement",
    "Book": "book",
    "Core": "core",
    "Home": "home",
    "Identity": "identity",
    "Job": "jobs",
    "Lifetime": "book",
    "Peer": "runtime",
    "SqliteLedger": "ledger",
    "charge": "book",
    "charge_training": "trainings",
    "draft_epoch": "epochs",
    "find_home": "home",
    "make_identity": "identity",
    "read_agreement": "agreement",
    "read_identity": "identity",
    "read_statement": "statements",
    "read_status": "status",
    "sign_agreement": "agreement",
}

__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(f"sottovoce.peers.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'sottovoce.peers' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
