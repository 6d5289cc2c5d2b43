"""Every command line in the documents is one that exists: command, options, number of words."""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    if "_generated" not in page.parts and page.name != "CHANGELOG.md"
]
LINE = re.compile(r"^(?: {4}|\$ | {4}\w+\$ |\w+\$ )?\$? ?(?:\w+\$ +)?sottovoce ([a-z].*)$", re.M)


def lines():
    """Yield (page, words) of every command in an indented block or a fence, continuation lines joined."""
    for page in PAGES:
        fenced, text = False, page.read_text().replace("\\\n", " ")
        for line in text.splitlines():
            fenced ^= line.lstrip().startswith("```")
            found = LINE.match(line)
            if not found or not (fenced or line.startswith("    ")):
                continue
            told = re.split(r" {3,}#?|\s#|\s\||\s&&", found[1])[0].rstrip(" &")
            yield page.name, told


FOUND = sorted(set(lines()))


def test_the_test_sees_commands():
    assert len(FOUND) > 40
    assert {"peers.md", "README.md", "own-csv.md", "reproduction.md"} <= {name for name, _ in FOUND}


@pytest.mark.parametrize(("page", "told"), FOUND, ids=[f"{page}: {told}"[:70] for page, told in FOUND])
def test_a_documented_command_exists(page, told):
    from typer.main import get_command

    from sottovoce.cli.main import COMMANDS, build

    words = shlex.split(told.replace("...", "x"))
    assert words[0] in COMMANDS, f"there is no command {words[0]!r}"
    command = get_command(build(words[0]))
    while hasattr(command, "commands"):
        assert words, f"{told!r} ends before its command"
        assert words[0] in command.commands, f"there is no command {words[0]!r} in {told!r}"
        command = command.commands[words.pop(0)]
    if command.context_settings.get("ignore_unknown_options"):  # what an experiment takes is its own
        return
    context = command.make_context(command.name, [], resilient_parsing=True)
    command.make_parser(context).parse_args(words)
