"""Statements of members are read back; files of another version are refused."""

import json

import pytest

from sottovoce.errors import ConfigError
from sottovoce.peers.statements import read_statement

STATEMENT = {"version": 1, "run": "ab", "guarantee": {"epsilon": 1.5}}


def test_a_statement_is_read_as_it_was_written(tmp_path):
    (tmp_path / "statement.json").write_text(json.dumps(STATEMENT))
    assert read_statement(tmp_path / "statement.json") == STATEMENT


@pytest.mark.parametrize("version", [None, 0, 2, "1", True])
def test_unknown_versions_are_refused(tmp_path, version):
    (tmp_path / "statement.json").write_text(json.dumps(STATEMENT | {"version": version}))
    with pytest.raises(ConfigError, match="this program reads version 1; upgrade"):
        read_statement(tmp_path / "statement.json")


@pytest.mark.parametrize("text", ["version = 1", "[]", '{"run": "ab"}'])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "statement.json").write_text(text)
    with pytest.raises(ConfigError, match="is not a statement"):
        read_statement(tmp_path / "statement.json")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_statement(tmp_path / "statement.json")
