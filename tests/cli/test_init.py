"""`sottovoce init`: every folder runs at once, and its answer is good: its own tests say so, run here."""

import importlib.util
import inspect
import sys
from pathlib import Path

import pytest

import sottovoce
from sottovoce.cli.init import TEMPLATES, write_template
from sottovoce.cli.main import commands
from sottovoce.errors import ConfigError, InvalidInput


@pytest.mark.parametrize(
    "template",
    [
        "average", "train", "protocol", "algorithm",
        pytest.param("net", marks=pytest.mark.slow), pytest.param("consortium", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_folder_runs_at_once_and_answers_well(template, tmp_path, monkeypatch):
    folder = tmp_path / template
    written = write_template(template, folder)
    (test_file,) = (name for name in written if name.startswith("test_"))
    assert (folder / "README.md").read_text().startswith("# ")
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    spec = importlib.util.spec_from_file_location(f"template_{template}", folder / test_file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tests = [function for name, function in vars(module).items() if name.startswith("test_")]
    assert tests
    for function in tests:
        function(*[tmp_path for _ in inspect.signature(function).parameters])
    for name in {"my_protocol", "my_algorithm", "run"} & set(sys.modules) - before:
        del sys.modules[name]


def test_every_template_is_listed_and_every_command_named_in_a_page_exists(call):
    assert set(TEMPLATES) == {"average", "train", "net", "consortium", "protocol", "algorithm"}
    page = Path(sottovoce.__file__).parent / "templates" / "README.md"
    words = [line.split() for line in page.read_text().splitlines() if line.startswith("    sotto")]
    assert len(words) > 5
    assert all(line[1] in commands() for line in words)
    result = call("init", "average", "--json")
    assert result.code == 0, result
    assert result.json["run"] == "sottovoce average plan.toml"


def test_what_is_there_stays_and_unknown_templates_are_listed(refused, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    assert "not an empty folder" in refused("init", "average", "mine")
    assert "average, train, net, consortium, protocol, algorithm" in refused("init", "averge")
    with pytest.raises(InvalidInput):
        write_template("none", tmp_path / "x")
    with pytest.raises(ConfigError):
        write_template("average", tmp_path / "mine" / "notes.txt")
