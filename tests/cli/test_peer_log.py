"""The log of a peer: sentences, levels and exit codes."""

import pytest

from sottovoce.cli.peer_log import Log, exit_code, sentence
from sottovoce.errors import ConfigError, SottovoceError, TryLater


@pytest.mark.parametrize(("error", "code"), [(ConfigError, 78), (TryLater, 75), (SottovoceError, 1)])
def test_exit_codes_for_a_service_manager(error, code):
    assert exit_code(error("no")) == code


def test_events_become_sentences_with_a_level():
    event = {"event": "trouble", "member": "south", "why": "cannot be reached: nobody listens there"}
    assert sentence(event) == ("warning", "south cannot be reached: nobody listens there")
    with pytest.raises(ConfigError, match="debug, info, warning or error, got 'loud'"):
        Log(json=False, level="loud")
