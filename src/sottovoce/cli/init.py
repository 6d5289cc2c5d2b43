"""`sottovoce init TEMPLATE`: write a small folder that runs at once."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated

from typer import Argument

from sottovoce._io import atomic_write
from sottovoce._validate import did_you_mean
from sottovoce.cli.options import Json
from sottovoce.cli.output import emit
from sottovoce.errors import ConfigError, InvalidInput

_FOLDER = resources.files("sottovoce") / "templates"
# template: what it is about, the command to type in its folder, and the entry point where it is a package
TEMPLATES = tomllib.loads((_FOLDER / "templates.toml").read_text(encoding="utf-8"))


def init(
    template: Annotated[str, Argument(help="average, train, net, consortium, protocol or algorithm.")],
    folder: Annotated[
        Path | None, Argument(help="A new or empty folder; by default named like the template.")
    ] = None,
    json: Json = False,
) -> None:
    """Write a small commented folder that runs at once: plan, toy data, test, and a page about it.

    average: a private mean; train: a model of several sites' records; net: a
    neural network of several sites' records; consortium: three peers on this
    machine; protocol, algorithm: for programmers, a method of your own, whose
    privacy cost is then computed, and which can be run and attacked.

    \b
    Examples:
      sottovoce init train
      sottovoce init consortium ours
    """
    target = folder if folder is not None else Path(template)
    written = write_template(template, target)
    about, command = TEMPLATES[template]["about"], TEMPLATES[template]["command"]
    result = {"template": template, "folder": str(target), "written": written, "run": command}

    lines = [
        f"{about} Written to {target}: {', '.join(written)}.",
        f"Try it: cd {target}, then {command}; python -m pytest checks the answer.",
    ]
    emit(result, json, lines)


def write_template(template: str, folder: Path) -> list[str]:
    """Write the files of a template into a new or empty folder and return their names."""
    if template not in TEMPLATES:
        near = did_you_mean(template, TEMPLATES)
        raise InvalidInput(f"the template must be one of {', '.join(TEMPLATES)}, got {template!r}{near}.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already and not an empty folder; name another place.")
    files = [file for file in (_FOLDER / template).iterdir() if file.is_file()]
    if template == "net":  # learns from the records of the template "train"
        files += [_FOLDER / "train" / name for name in ("records.csv", "public.csv", "test_train.py")]
    pages = (_FOLDER / "README.md").read_text(encoding="utf-8").split("\n---\n")
    (page,) = (page for page in pages if page.startswith(f"{template}\n"))
    texts = {file.name: file.read_text(encoding="utf-8") for file in files}
    texts["README.md"] = page.partition("\n\n")[2]
    if "entry" in TEMPLATES[template]:
        package = (_FOLDER / "pyproject.toml").read_text(encoding="utf-8").replace("KIND", template)
        texts["pyproject.toml"] = package.replace("ENTRY", TEMPLATES[template]["entry"])
    for name, text in texts.items():
        atomic_write(folder / name, text)
    return sorted(texts)
