"""The documents say what the code does: their examples run, their tables are recomputed."""

import contextlib
import doctest
import io
import re
from pathlib import Path

import numpy as np
import pytest

import sottovoce as sv

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "CONTRIBUTING.md"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_the_documents_run(page):
    failed, _ = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert failed == 0


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "README.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.name
)
def test_links_between_documents_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


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
def test_the_commands_of_the_readme_work(line, monkeypatch, tmp_path, capsys):
    from sottovoce.cli.main import main

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(line.split())
    assert not stopped.value.code, capsys.readouterr().err
    assert capsys.readouterr().out


def test_the_table_of_the_protocols_page():
    network = sv.graphs.grid(4, 4)
    rounds = sv.protocols.rounds_for(network)
    lines = {
        "`Gossip`, `Chebyshev`": sv.protocols.Gossip(network, rounds),
        "`Refreshed`": sv.protocols.Refreshed(network, rounds, tau=0.25),
        "`Exchange`": sv.protocols.Exchange(16),
        "`Tree`": sv.protocols.Tree(network),
    }
    page = (ROOT / "docs" / "protocols.md").read_text()
    others = ~np.eye(16, dtype=bool)
    for name, protocol in lines.items():
        h = np.array([protocol.view(v).leakage() for v in range(16)])[others]
        row = re.search(rf"^\| {re.escape(name)}[^|]*\| ([\d.]+) \| ([\d.]+) \| (\d+) %", page, re.M)
        assert float(row[1]) == pytest.approx(protocol.messages / 16, abs=0.05)
        assert float(row[2]) == pytest.approx(h.mean(), abs=0.0051)
        assert float(row[3]) == pytest.approx(100 * (h > 1 - 1e-8).mean(), abs=0.51)
