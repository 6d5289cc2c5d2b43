"""Peers: the runtime of one member, over mutual TLS.

`agreement` is what all members sign, `agreed_run` binds it to one member, `node_program` computes its rounds,
`core` is the state machine of a peer without IO, `runtime` and `transport` are the process and its sockets,
`member_directory` is an organization's folder. To follow one row from draw to confirmation, read "the path of
one row" in `runtime`. Ledgers are in `sottovoce.ledger`.
"""

from __future__ import annotations

from sottovoce._lazy import lazy_names

_NAMES = {
    "Agreement": "agreement",
    "AgreedRun": "agreed_run",
    "Core": "core",
    "Identity": "identity",
    "MemberDirectory": "member_directory",
    "Peer": "runtime",
    "PeerConfig": "runtime",
    "draft_membership_change": "membership_changes",
    "find_member_directory": "member_directory",
    "make_identity": "identity",
    "read_agreement": "agreement",
    "read_identity": "identity",
    "read_status": "status",
    "sign_agreement": "agreement",
}

__all__ = list(_NAMES)
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
