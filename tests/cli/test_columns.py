"""sottovoce columns: facts that a table needs, without its values."""

import json

import pytest

from sottovoce.cli.main import main


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["columns", *map(str, arguments)])
    return stop.value.code, capsys.readouterr()


def test_columns_are_listed_and_drafted_without_values(tmp_path, capsys):
    file = tmp_path / "t.csv"
    file.write_text("age,town,ill\n37,Oslo,no\n72,Rome,yes\n72,Rome,yes\n")
    code, shown = run(capsys, file, "--label", "ill", "--json")
    assert code == 0
    answer = json.loads(shown.out)
    assert [column["kind"] for column in answer["columns"]] == ["number", "names", "names"]
    assert not any(value in shown.out for value in ("37", "72", "Oslo", "yes"))
    code, shown = run(capsys, file, "--label", "ill", "--out", tmp_path / "t.toml")
    assert code == 0
    assert "age" in shown.out
    assert 'label = "ill"' in (tmp_path / "t.toml").read_text()
    code, shown = run(capsys, file, "--out", tmp_path / "t.toml")
    assert (code, "is there already" in shown.err) == (1, True)
    code, shown = run(capsys, file, "--label", "sick")
    assert (code, "no column 'sick'" in shown.err) == (1, True)
