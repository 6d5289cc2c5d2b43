"""The tutorials do what they show: every file, block and command runs in an empty folder, in order."""

import ast
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.peers.conftest import unused_ports

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^(`{3,})(\{code-block\} )?([\w-]*)\n(.*?)^\1$", re.M | re.S)

# what the answers of a page must be worth, read from what its blocks left behind
WORTH = {
    "own-csv": lambda left: left["fitted"].metrics["accuracy"] > 0.8,
    "own-net": lambda left: left["fitted"].metrics["accuracy"] > 0.8,
    "three-hospitals": lambda left: left["np"].mean(
        (left["inputs"] @ left["models"][0] > 0) == (left["y"] == 1)
    ) > 0.8,
    "add-an-algorithm": lambda left: left["accuracy"](left["DiffusionSGD"]) > 0.85,
    "add-a-protocol": lambda left: left["plan"].schedule(0).name == "matching",
    "add-an-observation-model": lambda left: left["plan"].privacy("network").label == "exact",
    "sign-an-agreement": lambda left: left["audit"].tightness > 0.8,
}  # fmt: skip


def blocks(text):
    """Yield (kind, name, content) of a page: files with a caption, python, console and the text after it."""
    for _, directive, kind, inside in FENCE.findall(text):
        caption = re.match(r":caption: (\S+)\n", inside)
        if directive and caption:
            yield "file", caption[1], inside[caption.end() :]
        elif not directive and kind == "toml" and inside.startswith("[project.entry-points"):
            yield "entry_point", "", inside
        elif not directive and kind in ("python", "console", "text"):
            yield kind, "", inside


def same(shown, printed):
    """Whether lines fit what a page shows: spaces count as one, ``...`` is anything, or any lines."""
    wanted = [" ".join(line.split()) for line in shown.splitlines() if line.strip()]
    lines = [" ".join(line.split()) for line in printed.splitlines() if line.strip()]
    skipping = False
    for line in wanted:
        if line == "...":
            skipping = True
            continue
        pattern = ".*".join(re.escape(part) for part in line.split("..."))
        while skipping and lines and not re.fullmatch(pattern, lines[0]):
            lines.pop(0)
        if not lines or not re.fullmatch(pattern, lines.pop(0)):
            return False
        skipping = False
    return skipping or not lines


def test_the_comparison_sees_differences():
    assert same("a  b\n...\nd", "a b\nc\nd\n")
    assert same("epsilon 0.9...", "epsilon 0.95")
    assert not same("a", "a\nb")
    assert not same("a\n...\nx", "a\nb\nc")
    assert not same("", "b")


class Folder:
    """An empty folder in which a page is followed, step by step."""

    def __init__(self, ports):
        self.left, self.printed, self.running, self.ports = {}, "", [], ports

    def follow(self, kind, name, content):
        for shown, free in self.ports.items():
            content = content.replace(f"127.0.0.1:{shown}", f"127.0.0.1:{free}")
        getattr(self, f"do_{kind}")(name, content)

    def do_file(self, name, content):
        Path(name).write_text(content)

    def do_entry_point(self, _, content):
        """Install the folder as a package that declares the entry points of a pyproject.toml."""
        groups = tomllib.loads(content)["project"]["entry-points"]
        lines = [
            "\n".join([f"[{group}]", *(f"{name} = {place}" for name, place in points.items())])
            for group, points in groups.items()
        ]
        package = Path("tutorial-0.1.dist-info")
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: tutorial\nVersion: 0.1\n")
        (package / "entry_points.txt").write_text("\n".join(lines))

    def do_python(self, _, content):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(content, "page", "exec"), self.left)
        self.printed = printed.getvalue()

    def do_text(self, _, content):
        assert same(content, self.printed), self.printed

    def do_console(self, _, content):
        for part in re.split(r"^\$ ", content, flags=re.M)[1:]:
            line, _, shown = part.partition("\n")
            if line == "wait":
                assert [process.wait(timeout=200) for process in self.running] == [0] * len(self.running)
            elif line.endswith("&"):
                words = [sys.executable, "-m", "sottovoce.cli.main", *shlex.split(line.rstrip("& "))[1:]]
                self.running.append(subprocess.Popen(words, stdout=subprocess.DEVNULL))
            else:
                self.command(shlex.split(line), shown)

    def command(self, words, shown):
        from sottovoce.cli.main import main

        assert words[0] == "sottovoce"
        expected = 1 if shown.rstrip().endswith("(exit code 1)") else 0
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            with pytest.raises(SystemExit) as stopped:
                main(words[1:])
        assert (stopped.value.code or 0) == expected, printed.getvalue()
        assert same(shown.replace("(exit code 1)", ""), printed.getvalue()), printed.getvalue()


PAGES = [
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    ROOT / "docs" / "published-formula.md",
    ROOT / "docs" / "architecture.md",
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_does_what_it_shows(page, tmp_path, monkeypatch):
    if page.stem == "own-net":
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    folder = Folder(dict(enumerate(unused_ports(3), 7001)))
    try:
        for block in blocks(page.read_text()):
            folder.follow(*block)
    finally:
        for process in folder.running:
            process.kill()
    assert WORTH.get(page.stem, bool)(folder.left)


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "notebooks").glob("*.md")), ids=lambda page: page.stem
)
def test_a_notebook_runs_and_shows_its_cells(page, tmp_path, monkeypatch):
    """The cells as plain Python; `make docs` runs them once more in a kernel, for the site."""
    import matplotlib.pyplot as plt

    if page.stem == "own-net":
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    left, shown = {}, 0
    cells = re.findall(r"^```\{code-cell\} ipython3\n(.*?)^```$", page.read_text(), re.M | re.S)
    for cell in cells:
        tree = ast.parse(cell)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, page.name, "exec"), left)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), page.name, "eval"), left)
            shown += bool(getattr(value, "_repr_html_", lambda: "")())
    plt.close("all")
    assert len(cells) >= 5
    assert shown >= 1
