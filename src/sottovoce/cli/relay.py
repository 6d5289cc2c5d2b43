"""`sottovoce relay`: a meeting place for members whom nobody can call; it cannot read what it passes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.output import Json
from sottovoce.cli.peer_options import checked_relay, exit_codes


@exit_codes()
def relay(
    listen: Annotated[str, typer.Option(help="HOST:PORT to listen at.")] = "0.0.0.0:443",
    only: Annotated[
        list[Path] | None,
        typer.Option(help="Serve the members of this signed agreement and nobody else; may be repeated."),
    ] = None,
    per_address: Annotated[
        int, typer.Option(help="Callers of one address that have not said a token yet.", min=1)
    ] = 32,
    json: Json = False,
) -> None:
    """Connect members that can only open outgoing connections; the relay cannot read their TLS traffic.

    It holds no key and needs no agreement. Anybody who reaches it can use it unless --only names
    the agreements it is for. SIGTERM and Ctrl-C end it.

    \b
    Examples:
        sottovoce relay --listen 0.0.0.0:443
        sottovoce relay --listen 0.0.0.0:443 --only agreement.toml
    """
    import asyncio
    import signal

    from sottovoce.cli.peer_log import Log
    from sottovoce.peers.agreement import read_agreement
    from sottovoce.peers.relay import Relay, edge_tokens

    checked_relay(listen)
    tokens: set[bytes] = set()
    for file in only or ():
        agreed = read_agreement(file)
        agreed.require_signatures(where=str(file))
        tokens |= edge_tokens(agreed)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    log = Log(json=json)

    async def live() -> None:
        served = Relay(listen, tokens=tokens if only else None, per_address=per_address)
        await served.start()
        log({"event": "relay", "says": f"listens at {listen}", "port": served.port})
        end = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, end.set)
        await end.wait()
        await served.stop()
        counts = dict(served.counts) | {
            name.replace(" ", "_"): n for name, n in served.listener.counts.items()
        }
        log({"event": "relay", "says": "ended", **counts})

    asyncio.run(live())
