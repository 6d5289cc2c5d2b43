"""The documents say what the code does: their examples run, their tables are recomputed."""

import contextlib
import doctest
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

import sottovoce as sv

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


def test_no_message_points_to_a_file_that_the_wheel_does_not_hold():
    import ast

    allowed = {"docs/results"}  # where `reproduce gallery` looks first, in a clone; elsewhere it says so
    pointing = []
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        if not re.search(r"docs/|constraints\.txt|CONTRIBUTING", text):
            continue
        tree = ast.parse(text)
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body
            and isinstance(node.body[0], ast.Expr)
        }  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                named = set(re.findall(r"docs/[\w./-]+|constraints\.txt|CONTRIBUTING\.md", node.value))
                pointing += [f"{path.name}: {name}" for name in named - allowed]
    assert not pointing


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
        "`Masked`": sv.protocols.Masked(network),
    }
    elsewhere = ("gossip, 8 rounds", "gossip with fresh noise", "exchange", "tree", "masked sum")
    others = ~np.eye(16, dtype=bool)
    for (name, protocol), short in zip(lines.items(), elsewhere, strict=True):
        h = np.array([protocol.view(v).leakage() for v in range(16)])[others]
        for file, called in (("docs/protocols.md", name), ("docs/results.md", short), ("README.md", short)):
            page = (ROOT / file).read_text()
            row = re.search(rf"^\| {re.escape(called)}[^|]*\| ([\d.]+) \| ([\d.]+) \| (\d+) %", page, re.M)
            assert row, f"{file} has no row {called}"
            assert float(row[1]) == pytest.approx(protocol.messages / 16, abs=0.05)
            assert float(row[2]) == pytest.approx(h.mean(), abs=0.0051)
            assert float(row[3]) == pytest.approx(100 * (h > 1 - 1e-8).mean(), abs=0.51)


def test_the_numbers_of_the_results_page_are_those_of_the_records():
    import statistics

    page = (ROOT / "docs" / "results.md").read_text()
    stored = ROOT / "docs" / "results"

    def row(name):
        return re.search(rf"^\| {re.escape(name)} \|(.*)\|$", page, re.M)[1].split("|")

    def numbers(cell):
        return [float(word) for word in re.findall(r"[\d.]+", cell)]

    for epsilon, cell in zip(
        ("0.5", "1", "10"), row("**exact consensus, linear on fixed features**"), strict=True
    ):
        trials = sorted(stored.glob(f"b23/consensus_eps{epsilon}_fiedler0.06_t1_trial*.json"))
        seen = [json.loads(path.read_text())["accuracy"] for path in trials]
        assert len(seen) == 5
        assert numbers(cell) == [round(statistics.mean(seen), 2), round(statistics.stdev(seen), 2)]
    cells = json.loads((stored / "table1.json").read_text())["history"]
    best = {}
    for name, method in (("DP-DSGT, network of B23 (ours)", "dsgt"), ("DP-DiNNO (ours)", "dinno"),
                         ("DP-DSGD (ours)", "dsgd")):  # fmt: skip
        for epsilon, cell in zip((0.5, 1.0, 10.0), row(name), strict=True):
            (one,) = [c for c in cells if (c["method"], c["epsilon"], c["fiedler"], c["settings"])
                      == (method, epsilon, 0.06, "tuned")]  # fmt: skip
            assert numbers(cell) == [round(one["accuracy"], 2), round(one["std"], 2)]
            best[epsilon] = max(best.get(epsilon, (0.0, 0.0)), (one["paper"], one["paper_std"]))
    assert [tuple(numbers(cell)) for cell in row("B23, best decentralized")] == [
        best[e] for e in (0.5, 1.0, 10.0)
    ]

    def record(name):
        return json.loads((stored / f"{name}.json").read_text())

    deep, convex = record("bench-deep"), record("bench-convex")
    shown = [
        deep["mnist_10x256"]["fast_over_opacus_hooks"], deep["mnist_10x256"]["fast_over_opacus_ghost"],
        deep["resnet9_batch50"]["over_opacus_hooks"], record("bench-foundation")["published"]["times_faster"],
        round(convex["random_walk"]["complete_against_numpy"], 1), record("bench-scale")["resnet"]["ratio"],
    ]  # fmt: skip
    assert [float(times) for times in re.findall(r"\| ([\d.]+) times faster", page)] == shown
    visit = record("first-contact")
    assert visit["failed"] == []
    names = {"make demo": "a clone, then `make demo`, installing included"}
    told = 0
    for step in visit["steps"]:
        called = names.get(step["step"], step["step"])
        if f"| {called} |" in page:
            assert [float(cell) for cell in row(called)] == [step["seconds"], step["cpu_seconds"]]
            told += 1
    assert told == 7
    assert [float(cell) for cell in row("from the wheel to the last page, all steps")] == [
        visit["seconds_from_the_wheel"], visit["cpu_seconds_from_the_wheel"]
    ]  # fmt: skip
    peers = record("peers")
    assert (peers["kills"]["kills"], peers["kills"]["undercounts"]) == (10_000, 0)
    assert (peers["worlds"]["worlds"], peers["worlds"]["violations"]) == (2000, 0)
    assert (peers["fuzz"]["frames"], peers["fuzz"]["state_changes"]) == (1_000_000, 0)


# ---- plan files ------------------------------------------------------------------------------------------

PLANS = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "plan-files.md").read_text(), re.S)


def run_command(*words):
    from sottovoce.cli.main import main

    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    return stopped.value.code or 0


@pytest.mark.parametrize("text", PLANS, ids=["average", "train", "network"])
def test_the_plan_files_of_the_page_run_and_are_of_use(text, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    Path("waiting.csv").write_text("\n".join(str(k / 63) for k in range(64)))
    text = text if "seed = 1" in text else text + "\n[noise]\nseed = 1\n"
    Path("plan.toml").write_text(text)
    assert run_command("plan", "plan.toml") == 0, capsys.readouterr().err
    assert "Private: yes; useful: " in (shown := capsys.readouterr().out)
    assert "useful: no" not in shown
    assert run_command("average" if "[average]" in text else "train", "plan.toml", "--json") == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    if "[average]" in text:
        assert metrics["mean_squared_error"] < 0.25**2
    else:
        assert metrics.get("test_accuracy", 0) > 0.85 or metrics.get("accuracy", 0) > 70


def test_the_price_shown_on_the_page_is_the_one_printed(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    Path("waiting.toml").write_text(PLANS[0])
    monkeypatch.setenv("COLUMNS", "100")
    assert run_command("plan", "waiting.toml") == 0
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    page = (ROOT / "docs" / "plan-files.md").read_text()
    shown = re.search(r"\$ sottovoce plan waiting.toml\n(.*?)```", page, re.S)[1]
    for line in (" ".join(line.split()) for line in shown.splitlines()):
        start = line.removesuffix("...").rstrip()
        assert any(one.startswith(start) for one in printed), line


@pytest.mark.parametrize("command", ["plan", "train"])
def test_the_example_in_a_commands_help_is_a_plan_that_works(command, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    assert run_command(command, "--help") == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    first = lines.index("version = 1")
    last = next(k for k in range(first, len(lines)) if not lines[k])
    Path("plan.toml").write_text("\n".join([*lines[first:last], "[noise]", "seed = 1"]))
    assert run_command(command, "plan.toml") == 0, capsys.readouterr().err


def test_what_may_be_accepted_is_on_the_page_of_plan_files():
    from sottovoce.privacy.words import UNCHARGED

    page = (ROOT / "docs" / "plan-files.md").read_text()
    for name in UNCHARGED:
        assert f"| `{name}` |" in page
