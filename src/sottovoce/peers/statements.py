"""Statements of members: what was revealed, to whom, under which assumptions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sottovoce.errors import ConfigError

VERSION = 1


def read_statement(path: str | Path) -> dict[str, Any]:
    """Return a member's statement; a file of another version is refused.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "statement.json"
    >>> _ = file.write_text('{"version": 1, "run": "ab", "guarantee": {"epsilon": 1.5}}')
    >>> read_statement(file)["guarantee"]["epsilon"]
    1.5
    """
    path = Path(path)
    try:
        statement: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"The statement {path} cannot be read ({error.strerror}).") from None
    except ValueError:
        statement = None
    if not isinstance(statement, dict) or "guarantee" not in statement:
        raise ConfigError(f"{path} is not a statement; `sottovoce peer run` writes it as statement.json.")
    version = statement.get("version")
    if version != VERSION or isinstance(version, bool):
        raise ConfigError(
            f"The statement {path} has version {version!r}, this program reads version {VERSION}; upgrade it."
        )
    return statement
