"""Statements of members, of every version: what was revealed, to whom, under which assumptions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sottovoce.errors import ConfigError

__all__ = ["VERSION", "read_statement"]

VERSION = 2  # 1 had no version, no epochs, no proofs and no comparison of models


def read_statement(path: str | Path) -> dict[str, Any]:
    """Return a member's statement; what an older version did not say is filled in as unknown or nothing.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "statement.json"
    >>> _ = file.write_text('{"run": "ab", "guarantee": {"epsilon": 1.5}}')
    >>> said = read_statement(file)
    >>> said["version"], said["epoch"], said["epsilon_all_epochs"]
    (1, 0, 1.5)
    """
    path = Path(path)
    try:
        said = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"The statement {path} cannot be read ({error.strerror}).") from None
    except ValueError:
        said = None
    if not isinstance(said, dict) or "guarantee" not in said:
        raise ConfigError(f"{path} is not a statement; `sottovoce peer run` writes it as statement.json.")
    version = said.get("version", 1)
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise ConfigError(
            f"The statement {path} has version {version!r}, this program reads up to {VERSION}; upgrade it."
        )
    unsaid = {
        "epoch": 0, "before": [], "proofs": [], "compared": [], "checks": None, "steps": None,
        "epsilon_all_epochs": said["guarantee"]["epsilon"],
    }  # fmt: skip
    return {**unsaid, **said, "version": version}
