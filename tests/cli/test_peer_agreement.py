"""`sottovoce peer keygen, agree, status, ledger`: JSON answers, and errors as one sentence."""

import functools
import json

import numpy as np
import pytest
from tests.peers.conftest import Consortium


@pytest.fixture
def consortium(tmp_path):
    return functools.partial(Consortium, tmp_path)


@pytest.fixture
def cli(call):
    def run(*words):
        answer = call("peer", *words, "--json")
        return answer.code, json.loads(answer.out.splitlines()[-1]) if words[0] == "run" else answer.json

    return run


def test_bad_input_on_the_command_line_is_a_sentence_and_a_code(cli, consortium, tmp_path):
    group = consortium()
    key = group.identity_folder(0)
    data = tmp_path / "mine.npz"
    np.savez(data, X=np.zeros((3, 3)))
    wrong = tmp_path / "wrong.npz"
    np.savez(wrong, X=np.zeros((3, 2)))
    state = tmp_path / "state"
    cases = {
        "no agreement": ("run", tmp_path / "none.toml", "--identity", key, "--data", data, "--state", state),
        "no key": ("run", group.file, "--identity", tmp_path / "no", "--data", data, "--state", state),
        "no data": ("run", group.file, "--identity", key, "--data", tmp_path / "no.npz", "--state", state),
        "wrong data": ("run", group.file, "--identity", key, "--data", wrong, "--state", state),
        "state is a file": ("run", group.file, "--identity", key, "--data", data, "--state", data),
        "no state": ("status", tmp_path / "nothing"),
        "no ledger": ("ledger", tmp_path / "nothing"),
        "no address": ("agree", group.file, "-m", "x.pem", "-o", tmp_path / "o.toml"),
    }
    for name, words in cases.items():
        code, answer = cli(*words)
        # a service manager must not start again what a wrong file has ended
        assert code == (78 if words[0] == "run" and name != "state is a file" else 1), name
        assert set(answer) == {"error"}, name
        assert answer["error"].endswith("."), name
    assert not state.exists()


def test_status_and_ledger_of_a_finished_run(cli, consortium):
    group = consortium()
    group.run()
    code, status = cli("status", group.state(0))
    assert code == 0
    assert status["finished"]
    assert not status["running"]
    assert status["round"] == status["rounds"] == 4
    assert status["heard"] == {"m1": 3, "m2": 3}
    assert 0 < status["epsilon_spent"] <= 60
    code, ledgers = cli("ledger", group.state(0))
    assert len(ledgers["releases"]) == 1
    _, other = cli("ledger", group.state(1))
    heard = {h["round"]: h["digest"] for h in other["heard"] if h["sender"] == 0}
    assert heard == {int(r): digest for r, digest in ledgers["sent"].items()}
    assert cli("compare", group.state(0), group.state(1)) == (0, {"ledgers": 2, "contradictions": []})
    code, answer = cli("compare", group.state(0), group.folder)
    assert code == 1
    assert "is not a state folder" in answer["error"]


def test_titles_with_brackets_are_shown_as_they_are(consortium, call):
    group = consortium(n=2, graph="path:2", title="[/red] half [bold]price")
    answer = call("peer", "agree", group.file)
    assert answer.code == 0
    assert "[/red] half [bold]price" in answer.out
