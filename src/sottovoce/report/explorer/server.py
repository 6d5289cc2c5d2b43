"""The explorer's server: this machine only, one token, JSON in and out; every number from the accountant.

Why it may be trusted on a machine with a browser: it listens on 127.0.0.1 and no other address; a request
without the token of this start gets 403, and so does one whose Host is not this address (a name that a page
elsewhere has pointed here) or whose Origin is another page; it reads no files and writes none.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sottovoce.errors import SottovoceError
from sottovoce.report.explorer.model import ExplorerModel, ExplorerSettings, answered
from sottovoce.report.explorer.page import live_page

_LARGEST = 1_000_000  # bytes of one query
_PATIENCE = 30.0  # seconds a connection may stay silent
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class ExplorerServer:
    """A page of one model on 127.0.0.1, until it is closed.

    Parameters
    ----------
    model : what the page shows first.
    port : 0 takes any free one.

    Guarantees
    ----------
    Nobody without the address that `address` returns gets anything but 403; nobody on another machine
    reaches it at all.
    """

    def __init__(self, model: ExplorerModel, port: int = 0) -> None:
        self.model = model
        self.token = secrets.token_urlsafe(32)
        self._computing = threading.Lock()  # one query at a time: two cores are soon busy
        self._cached_model = lru_cache(maxsize=32)(self._new_model)
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """The address to open, with the token in it."""
        return f"http://127.0.0.1:{self.port}/?token={self.token}"

    def __enter__(self) -> ExplorerServer:
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def serve(self) -> None:
        """Answer until somebody ends it, with Ctrl-C for example."""
        self._server.serve_forever()

    def close(self) -> None:
        """Stop answering and free the port."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._thread = None
        self._server.server_close()

    def answer(self, what: str, query: object) -> dict[str, Any]:
        """Return one answer; what does not fit is a sentence under ``refused``."""
        try:
            if not isinstance(query, dict):
                return {"refused": "A question is a JSON object."}
            setting = ExplorerSettings.read(query.get("setting"))
            with self._computing:
                model = self.model if setting == self.model.setting else self._cached_model(setting)
                return answered(model, what, query)
        except SottovoceError as problem:
            return {"refused": str(problem)}

    def _new_model(self, setting: ExplorerSettings) -> ExplorerModel:
        return ExplorerModel(setting, self.model.opened)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _PATIENCE
            server_version = "sottovoce"
            sys_version = ""

            def log_message(self, format: str, *args: object) -> None:
                """Stay silent: the address holds the token."""

            def do_GET(self) -> None:
                place = urlsplit(self.path)
                token = parse_qs(place.query).get("token", [""])[0]
                if not self._welcome(token):
                    return
                if place.path != "/":
                    self._send(404, "text/plain", "There is only one page here.")
                    return
                nonce = secrets.token_urlsafe(16)
                with outer._computing:
                    page = live_page(outer.model, nonce)
                policy = (
                    f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; "
                    "img-src data: blob:; font-src data:; connect-src 'self'; frame-ancestors 'none'; "
                    "base-uri 'none'; form-action 'none'"
                )
                self._send(200, "text/html", page, {"Content-Security-Policy": policy})

            def do_POST(self) -> None:
                if not self._welcome(self.headers.get("X-Sottovoce-Token", "")):
                    return
                length = self.headers.get("Content-Length", "")
                if not length.isdecimal() or int(length) > _LARGEST:
                    self._send(413, "application/json", json.dumps({"refused": "The question is too long."}))
                    return
                try:
                    query = json.loads(self.rfile.read(int(length)))
                except (ValueError, RecursionError):
                    query = None
                answer = outer.answer(urlsplit(self.path).path.strip("/"), query)
                self._send(200, "application/json", json.dumps(answer, allow_nan=False))

            def _welcome(self, token: str) -> bool:
                here = {f"127.0.0.1:{outer.port}", f"localhost:{outer.port}"}
                origin = self.headers.get("Origin")
                known = hmac.compare_digest(token.encode(), outer.token.encode())
                local = self.headers.get("Host") in here
                if known and local and (origin is None or origin.removeprefix("http://") in here):
                    return True
                self._send(403, "text/plain", "The address needs the token that was printed at the start.")
                return False

            def _send(self, code: int, kind: str, text: str, more: dict[str, str] | None = None) -> None:
                raw = text.encode()
                self.send_response(code)
                for name, value in {**HEADERS, **(more or {})}.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

        return Handler
