"""`sottovoce relay`: connects members that accept no connections; it cannot read what it forwards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from sottovoce.cli.options import Json
from sottovoce.cli.peer_options import exit_codes


@exit_codes()
def relay(
    listen: Annotated[str, Option(help="HOST:PORT to listen at.")] = "0.0.0.0:443",
    only: Annotated[
        list[Path] | None,
        Option(help="Serve the members of this signed agreement and nobody else; may be repeated."),
    ] = None,
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
    from sottovoce.peers.agreement import check_address, read_agreement
    from sottovoce.peers.relay import Relay, edge_tokens

    check_address(listen, "The address in --listen")
    tokens: set[bytes] = set()
    for file in only or ():
        agreement = read_agreement(file)
        agreement.require_signatures(where=str(file))
        tokens |= edge_tokens(agreement)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    log = Log(json=json)

    async def serve() -> None:
        server = Relay(listen, tokens=tokens if only else None)
        await server.start()
        log({"event": "relay", "says": f"listens at {listen}", "port": server.listener.port})
        end = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, end.set)
        await end.wait()
        await server.stop()
        refused = {name.replace(" ", "_"): n for name, n in server.listener.counts.items()}
        log({"event": "relay", "says": "ended", **server.counts, **refused})

    asyncio.run(serve())
