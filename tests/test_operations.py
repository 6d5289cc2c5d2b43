"""docs/operations.md: every command runs, or is parsed where it would wait for other machines."""

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tests.peers.conftest import Members, MemoryLinks, draft, unused_ports

from sottovoce._io import to_toml
from sottovoce.ledger.balance import LifetimeBudget
from sottovoce.peers.agreement import read_agreement
from sottovoce.peers.identity import make_identity
from sottovoce.peers.member_data import read_records

ROOT = Path(__file__).parents[1]
SECTIONS = (ROOT / "docs/operations.md").read_text().split("\n## ")[1:]
COMMAND = re.compile(r"^    (\w+)\$ (sottovoce .*)$", re.M)
# these wait for other machines; everything else on the pages is run
WAITING = ("peer run", "relay", "peer check")
# these continue a run of several steps, which the average of the trial is not; see
# tests/peers/test_membership_changes.py
CHANGES = ("peer membership", "peer agree next.toml")


@pytest.fixture
def finished(call, tmp_path, monkeypatch):
    """Fill the folder with what the pages assume: member directories, certificates, records, a signed
    agreement and its run, whose hash is returned.
    """
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("SOTTOVOCE_HOME", raising=False)
    Path("records.csv").write_text("a,b\n" + "\n".join(f"{k / 10},{-k / 10}" for k in range(9)))
    limit = LifetimeBudget(30.0, 1e-5, "add-remove", "local")
    members = Members(tmp_path, MemoryLinks(), ("north", "south"), [limit], lambda: None)
    content = draft("path:2", {"noise_multiplier": 4.0}, epsilon=5.0, data={"features": ["a", "b"]})
    agreement = members.write("agreement.toml", content, [f"127.0.0.1:{port}" for port in unused_ports(2)])
    members.records = dict.fromkeys(members.names, read_records("records.csv", agreement))
    members.run(agreement)
    Path("draft.toml").write_text(to_toml(content))
    Path("unsigned.toml").write_text(Path("agreement.toml").read_text().split("\n[signatures]")[0])
    shutil.copy("agreement.toml", "from-south.toml")
    run_id = agreement.run_id.hex()
    for name in members.names:
        shutil.copy(f"{name}/identity/certificate.pem", f"{name}.pem")
        Path(name).rename(f"{name}-home")
        Path(f"{name}.json").write_text(call("peer", "ledger", f"{name}-home/runs/{run_id}", "--json").out)
    shutil.copytree("north-home", "east-home")  # a third name on the pages
    make_identity("new", "south")
    shutil.copy("new/certificate.pem", "new-south.pem")
    return run_id


def parse(words):
    """Let the command line read the words, without doing anything."""
    from typer.main import get_command

    from sottovoce.cli.main import build

    context = get_command(build(words[0])).make_context("sottovoce", list(words), ignore_unknown_options=True)
    rest = [*context._protected_args, *context.args] if hasattr(context, "_protected_args") else context.args
    command = context.command
    while hasattr(command, "commands") and rest:
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, list(rest), parent=context)
        rest = [*getattr(context, "_protected_args", []), *context.args]
    return context


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.splitlines()[0])
def test_the_commands_of_a_section_run(section, finished, call):
    lines = COMMAND.findall(section)
    assert lines
    if section.startswith("Files"):
        shutil.copy("unsigned.toml", "agreement.toml")
    for who, line in lines:
        text = line.replace("HASH", finished).replace("FINGERPRINT", "0" * 64).partition(" > ")[0]
        words = shlex.split(text)[1:]
        if words[:2] == ["peer", "init"]:
            words[2] = "fresh-home"  # the one of the trial has signed already
        name = " ".join(words)
        directory = "north-home" if who == "relay" else f"{who}-home"
        if any(name.startswith(w) for w in (*WAITING, *CHANGES)):
            parse(words)
            continue
        needs = words[:2] in (["peer", "budget"], ["peer", "trust"], ["peer", "agree"], ["peer", "service"])
        needs |= "--verify" in words
        if needs and "--sign" not in words and "-m" not in words:
            words += ["--directory", directory]
        answer = call(*words)
        if "--close" in words:  # the run of the trial has ended; giving it up is refused, with a sentence
            assert answer.code in (0, 1), answer
            continue
        assert answer.code == 0, (line, answer)


def test_the_restore_drill(finished, call):
    """As the page says: the newest line is missed, and comes back from the second copy."""
    shutil.rmtree("north-home/runs")
    ledger = Path("north-home/lifetime.ledger")
    whole = ledger.read_text()
    ledger.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    refused = call("peer", "budget", "--directory", "north-home")
    assert refused.code == 1
    assert "comes from a backup; `peer budget --restore` takes the newer one" in refused.err
    words = ("peer", "budget", "--restore", "--why", "a drill", "--directory", "north-home")
    assert call(*words).code == 0
    assert ledger.read_text().startswith(whole)
    assert call("peer", "budget", "--directory", "north-home").code == 0


def test_the_image_builds_the_package_from_what_it_copies(tmp_path):
    """The steps of the Dockerfile up to `pip install`, in an empty folder and without a network."""
    docker = (ROOT / "examples" / "three-hospitals" / "Dockerfile").read_text()
    before, install = docker.split("RUN pip install", 1)
    for sources, target in re.findall(r"^COPY (.*) (\S+)$", before, re.M):
        for source in sources.split():
            place = tmp_path / "image" / target
            if (ROOT / source).is_dir():
                shutil.copytree(
                    ROOT / source, place, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__")
                )
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, place)
    assert "-c constraints.txt ." in install
    (tmp_path / "wheel").mkdir()
    build = f"from setuptools import build_meta; print(build_meta.build_wheel({str(tmp_path / 'wheel')!r}))"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [sys.executable, "-c", build]
    done = subprocess.run(words, cwd=tmp_path / "image", capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("METADATA"))
    tracked = {str(file.relative_to(ROOT / "src")) for file in (ROOT / "src").rglob("*.py")}
    assert tracked <= set(names)
    assert {"sottovoce/templates/consortium/draft.toml", "sottovoce/py.typed"} <= set(names)
    assert {"sottovoce/cli/templates/commands.toml", "sottovoce/report/templates/report.html"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "](docs/" not in metadata  # the readme has absolute links


def test_alert_rules_use_metrics_that_exist():
    yaml = pytest.importorskip("yaml")
    from sottovoce.peers.status import metrics

    neighbor = {"connected": True, "seconds_since_heard": 1.0, "frames": 3, "clock_ahead": 0.1}
    report = dict.fromkeys(
        ("round", "rounds", "seconds_since_round", "releases", "finished", "incidents", "pace_missed"), 0
    )
    refused = [{"from": "m1", "why": "a frame", "count": 2}]
    shown = metrics({**report, "neighbors": {"m1": neighbor}, "waiting": ["m1"], "refused": refused})
    names = set(re.findall(r"^(sottovoce_\w+)", shown, re.M))
    groups = yaml.safe_load((ROOT / "examples" / "prometheus" / "alerts.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    used = {name for rule in rules for name in re.findall(r"sottovoce_\w+", rule["expr"])}
    assert used <= names, used - names
    assert len(used) >= 6
    assert all(rule["labels"]["severity"] and rule["annotations"]["action"] for rule in rules)


def test_the_example_in_containers_as_far_as_it_goes_without_docker(call, tmp_path, monkeypatch):
    """The files parse, and what a container would run runs here."""
    yaml = pytest.importorskip("yaml")
    example = ROOT / "examples" / "three-hospitals"
    compose = yaml.safe_load((example / "compose.yaml").read_text())
    assert set(compose["services"]) == {"prepare", "north", "south", "east"}
    for service in compose["services"].values():
        assert (example / service["build"]["context"] / service["build"]["dockerfile"]).resolve().exists()
    assert compose["services"]["prepare"]["entrypoint"][1].endswith("example/prepare.py")
    # what `prepare` starts as processes runs here, with this machine's folders for the volumes
    monkeypatch.setattr(sys, "path", [str(example), *sys.path])
    prepare = importlib.import_module("prepare")
    del sys.modules["prepare"], sys.modules["run"]
    monkeypatch.setattr(prepare, "peer", lambda *words: call("peer", *words).out)
    places = {name: tmp_path / name for name in ("shared", "north", "south", "east")}
    folders = list(places.values())
    prepare.main(folders[0], folders[1:], os.geteuid())
    command = [str(word) for word in compose["services"]["north"]["command"]]
    there = [
        w.replace("/shared", str(places["shared"])).replace("/own", str(places["north"])) for w in command
    ]
    context = parse(there)
    assert Path(context.params["agreement"]).exists()
    assert Path(context.params["data"]).exists()
    assert (Path(context.params["identity"]) / "key.pem").exists()
    agreed = read_agreement(context.params["agreement"])
    agreed.require_signatures()
    assert [member.address for member in agreed.members] == ["north:7000", "south:7000", "east:7000"]
    prepare.main(folders[0], folders[1:], os.geteuid())  # restarting the stack makes no new identities
    assert read_agreement(context.params["agreement"]).run_id == agreed.run_id
    assert json.dumps(command).count("--health") == 1
    assert np.loadtxt(places["east"] / "records.csv", delimiter=",", skiprows=1).shape[1] == 32
