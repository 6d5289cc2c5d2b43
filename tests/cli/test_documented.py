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
            match = LINE.match(line)
            if not match or not (fenced or line.startswith("    ")):
                continue
            typed = re.split(r" {3,}#?|\s#|\s\||\s&&", match[1])[0].rstrip(" &")
            yield page.name, typed


def lines_of_help():
    """Yield (whose help, words) of every command that a command's own help shows."""
    from typer.main import get_command

    from sottovoce.cli.main import build, commands

    def each(command):
        yield command
        for one in getattr(command, "commands", {}).values():
            yield from each(one)

    for name in commands():
        for command in each(get_command(build(name))):
            for line in (command.help or "").splitlines():
                if match := re.match(r"\s*(?:\$ )?sottovoce ([a-z].*)$", line):
                    yield f"help of {command.name}", match[1].strip()


COMMANDS = sorted({*lines(), *lines_of_help()})


def test_commands_are_found_in_pages_and_help():
    assert len(COMMANDS) > 40
    pages = {"peers.md", "README.md", "own-csv.md", "reproduction.md", "help of advise", "help of agree"}
    assert pages <= {name for name, _ in COMMANDS}


@pytest.mark.parametrize(
    ("page", "typed"), COMMANDS, ids=[f"{page}: {typed}"[:70] for page, typed in COMMANDS]
)
def test_a_documented_command_exists(page, typed):
    from typer.main import get_command

    from sottovoce.cli.main import build, commands

    words = shlex.split(typed.replace("...", "x"))
    assert words[0] in commands(), f"there is no command {words[0]!r}"
    command = get_command(build(words[0]))
    while hasattr(command, "commands"):
        assert words, f"{typed!r} ends before its command"
        assert words[0] in command.commands, f"there is no command {words[0]!r} in {typed!r}"
        command = command.commands[words.pop(0)]
    if command.context_settings.get("ignore_unknown_options"):  # what an experiment takes is its own
        return
    context = command.make_context(command.name, [], resilient_parsing=True)
    command.make_parser(context).parse_args(words)


ADVICE_COMMANDS = sorted(
    {typed for _, typed in COMMANDS if typed.startswith("advise ") and "--sample" not in typed}
)


@pytest.mark.parametrize("typed", ADVICE_COMMANDS)
def test_documented_advice_is_private_and_useful(typed, call, tmp_path):
    """The advice lines of README, pages and help: something fits, and its plan file says the same."""
    words = shlex.split(typed)
    answer = call(*words, "--json") if "--out" in words else call(*words, "--out", "advice", "--json")
    assert answer.code == 0, answer
    best = answer.json["rows"][0]
    assert best["private"]
    assert best["useful"]
    epsilon = float(words[words.index("--epsilon") + 1])
    plan = call("plan", "advice/plan.toml", "--json")
    assert plan.code == 0, plan
    assert plan.json["private"]
    assert plan.json["useful"]
    assert plan.json["budget"]["epsilon"] == epsilon
    if best["error"] is not None:
        assert plan.json["error"] == pytest.approx(best["error"], rel=2e-3)


WITHOUT_FILES = sorted(
    {
        typed
        for page, typed in COMMANDS
        if page.startswith("help") and re.match(r"(account|attack|init) ", typed)
    }
    | {typed for page, typed in COMMANDS if page == "help of average" and re.match(r"average [\d.]", typed)}
)


@pytest.mark.parametrize("typed", WITHOUT_FILES)
def test_examples_of_help_run(typed, call):
    answer = call(*shlex.split(typed))
    assert answer.code == 0, answer
    assert answer.out
    assert "useful: no" not in answer.out
