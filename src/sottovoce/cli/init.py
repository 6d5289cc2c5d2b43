"""`sottovoce init KIND`: a small folder that runs at once, to begin from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli.output import Json, emit, safe
from sottovoce.errors import ConfigError, InvalidInput

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["init", "write_kit"]


def init(
    kind: Annotated[str, typer.Argument(help="average, train, net, consortium, protocol or algorithm.")],
    folder: Annotated[Path | None, typer.Argument(help="A new or empty folder; by default KIND.")] = None,
    json: Json = False,
) -> None:
    """Write a small commented folder that runs at once: plan, toy data, test, and a page about it.

    average: a private mean; train: a model over sites; net: a network over
    sites; consortium: three peers on this machine; protocol, algorithm: code of
    your own, priced, run and attacked by the rest.

    \b
    Examples:
      sottovoce init train
      sottovoce init consortium ours
    """
    from sottovoce.cli.kits import KITS

    target = folder if folder is not None else Path(kind)
    written = write_kit(kind, target)
    kit = KITS[kind]
    found = {"kind": kind, "folder": str(target), "written": written, "run": kit.command}

    def text(out: Console) -> None:
        out.print(safe(f"{kit.about} Written to {target}: {', '.join(written)}."))
        out.print(safe(f"Try it: cd {target}, then {kit.command}; python -m pytest checks the answer."))

    emit(found, json, text)


def write_kit(kind: str, folder: Path) -> list[str]:
    """Write the folder of a kind and return the names of its files.

    Examples
    --------
    >>> import tempfile
    >>> write_kit("average", Path(tempfile.mkdtemp()))
    ['README.md', 'plan.toml', 'test_average.py', 'values.csv']
    """
    from sottovoce.cli.kits import KITS
    from sottovoce.report.records import write_text

    if kind not in KITS:
        raise InvalidInput(f"init knows {', '.join(KITS)}, got {kind!r}.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already and not an empty folder; name another place.")
    files = {**KITS[kind].texts, **KITS[kind].tables()}
    for name, content in files.items():
        write_text(folder / name, content)
    return sorted(files)
