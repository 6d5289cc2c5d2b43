"""Files of earlier versions: an agreement that was signed stays signed, a statement stays readable."""

import json
import shutil
from pathlib import Path

import pytest

from sottovoce.errors import ConfigError
from sottovoce.peers.agreement import read_agreement
from sottovoce.peers.jobs import Job
from sottovoce.peers.statements import read_statement

STORED = Path(__file__).parent / "stored"


def test_an_agreement_signed_before_epochs_and_witnesses_keeps_its_name_and_signatures():
    agreement = read_agreement(STORED / "agreement-2.toml")
    agreement.require_signatures()
    said = json.loads((STORED / "statement-1.json").read_text())
    assert agreement.run.hex() == said["run"]
    assert (agreement.epoch, agreement.continues, agreement.witness) == (0, "", 32)
    assert Job(agreement).local(0).epsilon(1e-5) == pytest.approx(said["guarantee"]["epsilon"], rel=1e-9)


def test_a_statement_without_a_version_is_the_first():
    said = read_statement(STORED / "statement-1.json")
    assert said["version"] == 1
    assert said["epsilon_all_epochs"] == said["guarantee"]["epsilon"]
    assert (said["before"], said["compared"]) == ([], [])


def test_newer_versions_are_refused_in_a_sentence(tmp_path):
    said = {**json.loads((STORED / "statement-1.json").read_text()), "version": 3}
    (tmp_path / "statement.json").write_text(json.dumps(said))
    with pytest.raises(ConfigError, match="version 3, this program reads up to 2; upgrade"):
        read_statement(tmp_path / "statement.json")
    text = (STORED / "agreement-2.toml").read_text().replace("version = 2", "version = 3", 1)
    (tmp_path / "agreement.toml").write_text(text)
    with pytest.raises(ConfigError, match="it is of version 3, and this program reads version 2"):
        read_agreement(tmp_path / "agreement.toml")
    shutil.copy(STORED / "agreement-2.toml", tmp_path / "x.json")
    with pytest.raises(ConfigError, match="is not a statement"):
        read_statement(tmp_path / "x.json")
