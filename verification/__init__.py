"""Long independent checks of the library; see README.md."""

import json
from pathlib import Path
from typing import Any


def store(path: Path, check: str, record: dict[str, Any]) -> None:
    """Write the record of a check into a JSON file of several checks; the others stay as they are."""
    from sottovoce._io import atomic_write  # here, because some checks choose what they import

    records = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    atomic_write(path, json.dumps(records | {check: record}, indent=1) + "\n")
