"""The documents say what the code does: their examples and commands run."""

import contextlib
import doctest
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = [page for page in ROOT.glob("docs/**/*.md") if "_generated" not in page.parts]
PAGES = sorted([*DOCS, ROOT / "CONTRIBUTING.md"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_the_documents_run(page):
    failed, _ = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert failed == 0


@pytest.mark.parametrize(
    "page",
    [*PAGES, *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "SECURITY"))],
    ids=lambda p: p.name,
)
def test_links_between_documents_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_of_a_package_index_has_no_relative_links():
    import importlib.util

    spec = importlib.util.spec_from_file_location("setup_script", ROOT / "setup.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    links = re.findall(r"\]\(([^)]+)\)", script.readme())
    assert len(links) > 10
    assert all(link.startswith("https://") for link in links)
    pages = [link for link in links if link.split("#")[0].endswith(".html")]
    assert pages
    for link in pages:
        name = link.split("/docs/")[1].split("#")[0].removesuffix(".html")
        assert (ROOT / "docs" / f"{name}.md").exists(), link


def test_the_first_example_of_the_readme_prints_what_it_shows():
    code, shown = re.search(
        r"```python\n(.*?)```\s*```(?:text|console)?\n(.*?)```", (ROOT / "README.md").read_text(), re.S
    ).groups()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert printed.getvalue() == shown


@pytest.mark.parametrize(
    "line", re.findall(r"^    sottovoce ([^#\n]*)", (ROOT / "README.md").read_text(), re.M)
)
def test_the_commands_of_the_readme_work(line, call):
    answer = call(*line.split())
    assert answer.code == 0, answer.err
    assert answer.out


# ---- plan files ------------------------------------------------------------------------------------------

PLANS = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "plan-files.md").read_text(), re.S)


@pytest.mark.parametrize("text", PLANS, ids=["average", "train", "network"])
def test_the_plan_files_of_the_page_run_and_are_useful(text, call):
    Path("waiting.csv").write_text("\n".join(str(k / 63) for k in range(64)))
    Path("plan.toml").write_text(text)
    answer = call("plan", "plan.toml")
    assert answer.code == 0, answer.err
    private = "no" if "seed = 1" in text else "only in part" if "accept =" in text else "yes"
    assert f"Private: {private}; useful: " in answer.out
    assert "useful: no." not in answer.out
    Path("plan.toml").write_text(text if "seed = 1" in text else text + "\n[noise]\nseed = 1\n")
    metrics = call("average" if "[average]" in text else "train", "plan.toml", "--json").json["metrics"]
    if "[average]" in text:
        assert metrics["mean_squared_error"] < 0.25**2
    else:
        assert metrics["accuracy"] > 0.7
        assert metrics["better_than_trivial"]


def test_the_output_shown_on_the_page_is_the_one_printed(call, monkeypatch):
    Path("waiting.toml").write_text(PLANS[0])
    monkeypatch.setenv("COLUMNS", "100")
    printed = [" ".join(line.split()) for line in call("plan", "waiting.toml").out.splitlines()]
    page = (ROOT / "docs" / "plan-files.md").read_text()
    shown = re.search(r"\$ sottovoce plan waiting.toml\n(.*?)```", page, re.S)[1]
    for line in (" ".join(line.split()) for line in shown.splitlines()):
        start = line.removesuffix("...").rstrip()
        assert any(one.startswith(start) for one in printed), line


@pytest.mark.parametrize("command", ["plan", "train"])
def test_the_example_in_a_commands_help_is_a_plan_that_works(command, call):
    lines = [line.strip() for line in call(command, "--help").out.splitlines()]
    first = lines.index("version = 1")
    last = next(k for k in range(first, len(lines)) if not lines[k])
    Path("plan.toml").write_text("\n".join([*lines[first:last], "[noise]", "seed = 1"]))
    answer = call(command, "plan.toml")
    assert answer.code == 0, answer.err


def test_pages_include_tables_that_exist(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    import result_tables

    included = {
        name for page in DOCS for name in re.findall(r"_generated/tables/([\w-]+)\.txt", page.read_text())
    }
    assert included <= set(result_tables.tables())
