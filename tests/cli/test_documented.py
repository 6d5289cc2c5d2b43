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


def taught():
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
                if found := re.match(r"\s*(?:\$ )?sottovoce ([a-z].*)$", line):
                    yield f"help of {command.name}", found[1].strip()


FOUND = sorted({*lines(), *taught()})


def test_the_test_sees_commands():
    assert len(FOUND) > 40
    pages = {"peers.md", "README.md", "own-csv.md", "reproduction.md", "help of advise", "help of agree"}
    assert pages <= {name for name, _ in FOUND}


@pytest.mark.parametrize(("page", "told"), FOUND, ids=[f"{page}: {told}"[:70] for page, told in FOUND])
def test_a_documented_command_exists(page, told):
    from typer.main import get_command

    from sottovoce.cli.main import build, commands

    words = shlex.split(told.replace("...", "x"))
    assert words[0] in commands(), f"there is no command {words[0]!r}"
    command = get_command(build(words[0]))
    while hasattr(command, "commands"):
        assert words, f"{told!r} ends before its command"
        assert words[0] in command.commands, f"there is no command {words[0]!r} in {told!r}"
        command = command.commands[words.pop(0)]
    if command.context_settings.get("ignore_unknown_options"):  # what an experiment takes is its own
        return
    context = command.make_context(command.name, [], resilient_parsing=True)
    command.make_parser(context).parse_args(words)


ADVISED = sorted({told for _, told in FOUND if told.startswith("advise ") and "--sample" not in told})


@pytest.mark.parametrize("told", ADVISED)
def test_every_shown_question_gets_an_answer_that_is_private_and_of_use(told, call, tmp_path):
    """The advice lines of README, pages and help: something fits, and its plan file says the same."""
    words = shlex.split(told)
    found = call(*words, "--json") if "--out" in words else call(*words, "--out", "advice", "--json")
    assert found.code == 0, found
    best = found.json["rows"][0]
    assert best["private"]
    assert best["useful"]
    asked = float(words[words.index("--epsilon") + 1])
    priced = call("plan", "advice/plan.toml", "--json")
    assert priced.code == 0, priced
    assert priced.json["private"]
    assert priced.json["useful"]
    assert priced.json["budget"]["epsilon"] == asked
    if best["error"] is not None:
        assert priced.json["error"] == pytest.approx(best["error"], rel=2e-3)


AT_ONCE = sorted(
    {told for page, told in FOUND if page.startswith("help") and re.match(r"(account|attack|init) ", told)}
    | {told for page, told in FOUND if page == "help of average" and re.match(r"average [\d.]", told)}
)


@pytest.mark.parametrize("told", AT_ONCE)
def test_what_help_shows_without_files_runs_as_it_stands(told, call):
    found = call(*shlex.split(told))
    assert found.code == 0, found
    assert found.out
    assert "useful: no" not in found.out


def test_the_average_that_help_shows_is_near(call):
    (told,) = (told for told in AT_ONCE if told.startswith("average "))
    found = call(*shlex.split(told), "--seed", 1, "--json").json
    values = [float(word) for word in told.split()[1].split(",")]
    rows = [float(row[0]) if isinstance(row, list) else float(row) for row in found["outputs"]["rows"]]
    assert all(abs(row - sum(values) / len(values)) < 0.25 for row in rows)
