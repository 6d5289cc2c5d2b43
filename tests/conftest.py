"""Settings for every test."""

import contextlib
import json
import os
import resource
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, however busy the machine: a failure is a change of the code.
settings.register_profile(
    "steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")

# scripts that ranks run are started by tests, not collected
collect_ignore = ["runners/elastic.py", "runners/ranks.py"]


@pytest.fixture(autouse=True)
def the_terminal_stays_as_it_was():
    """Whoever tells the process how wide its terminal is takes it back: other tests read what is printed."""
    names = ("COLUMNS", "LINES", "TERM", "FORCE_COLOR", "NO_COLOR")
    before = {name: os.environ.get(name) for name in names}
    yield
    assert {name: os.environ.get(name) for name in names} == before


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    """Run the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    from sottovoce.cli.main import main

    def run(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return Answer(stopped.value.code or 0, out, err)

    return run


@pytest.fixture
def refused(call, tmp_path):
    """Run it, and check that it is refused as promised: one sentence, exit code 1, nothing written."""

    def run(*arguments):
        before = sorted(tmp_path.rglob("*"))
        answer = call(*arguments)
        assert answer.code == 1, answer
        assert answer.out == ""
        assert "Traceback" not in answer.err
        assert answer.err.startswith("sottovoce: ")
        assert answer.err.endswith(".\n")
        assert answer.err.count("\n") == 1, answer.err
        assert sorted(tmp_path.rglob("*")) == before
        as_json = call(*arguments, "--json")
        assert as_json.code == 1
        assert as_json.err == ""
        assert as_json.json == {"error": answer.err.removeprefix("sottovoce: ").rstrip("\n")}
        assert sorted(tmp_path.rglob("*")) == before
        return as_json.json["error"]

    return run


@pytest.fixture
def files_no_larger_than():
    """A disk that is full from a certain byte on: within the block, writing further than that fails."""

    @contextlib.contextmanager
    def limited(size):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited
