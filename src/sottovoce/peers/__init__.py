"""Peers: the runtime of one member, over mutual TLS.

`member_directory` is an organization's folder, `lifetime_ledger` everything released about a population,
`pinned_certificates` certificates of other members, `agreement` what all members sign, `identity` keys
and certificates, `wire_format` the bytes, `run_ledger` the durable record of one run, `core` the state
machine of a peer without IO, `agreement_plan`, `node_program` and `agreed_run` the agreed plan in rounds,
`transport` and `runtime` the process. Names are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

_NAMES = {
    "Agreement": "agreement",
    "LifetimeLedger": "lifetime_ledger",
    "Core": "core",
    "MemberDirectory": "member_directory",
    "Identity": "identity",
    "AgreedRun": "agreed_run",
    "LifetimeBudget": "lifetime_ledger",
    "Peer": "runtime",
    "SqliteLedger": "run_ledger",
    "charge": "lifetime_ledger",
    "charge_training": "training_charges",
    "draft_membership_change": "membership_changes",
    "find_member_directory": "member_directory",
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
