"""Agreements: checked, named by their content, signed."""

import hashlib
import json
import re

import pytest

from sottovoce.algorithms.registry import ALGORITHMS
from sottovoce.errors import BudgetExceeded, ConfigError, IdentityError
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement import Member, merge_signatures, read_agreement, sign_agreement
from sottovoce.peers.identity import make_identity
from sottovoce.peers.runtime import Peer, PeerConfig
from sottovoce.peers.statements import signing_summary


def edited(group, old, new, count=1):
    text = group.file.read_text()
    assert old in text
    group.file.write_text(text.replace(old, new, count))


def start(group, i=0, **options):
    return Peer(PeerConfig(group.agreement, group.identities[i], group.records[i], group.state(i), **options))


def test_the_name_is_the_content_not_the_layout(consortium):
    group = consortium()
    before = group.agreement.run_id
    group.file.write_text("# a comment\n\n" + group.file.read_text().replace(" = ", "  =   "))
    assert group.agreement.run_id == before
    edited(group, "noise_multiplier  =   2.0", "noise_multiplier = 3.0")
    assert group.agreement.run_id != before


def test_a_large_delta_is_refused_unless_accepted_by_name(consortium):
    group = consortium()
    assert group.agreement.delta_warning is None
    (line,) = [line for line in group.file.read_text().splitlines() if line.startswith("delta = ")]
    edited(group, line, "delta = 0.1")
    assert "a tenth of one over the number of members (3)" in group.agreement.delta_warning
    assert group.agreement.delta_warning in signing_summary(AgreedRun(group.agreement))["assumptions"]
    edited(group, "delta = 0.1", "delta = 0.5")
    with pytest.raises(ConfigError, match=r"number of members \(3\).*accept = \[.large delta.\]"):
        read_agreement(group.file)
    edited(group, "version = 1", 'version = 1\naccept = ["large delta"]')
    assert group.agreement.accept == ("large delta",)


TITLE, PROTOCOL, GRAPH = 'title = "a test"', 'protocol = "gossip:4"', 'graph = "ring:3"'
CLIP, ADJACENCY, ADDRESS = "clip_norm = 1.0", 'adjacency = "user"', "127.0.0.1:"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("gossip:4", "gossip:four", None),
        ("gossip:4", "gossip:2.5", None),
        *[(CLIP, f"{CLIP}\n{line}", None) for line in ("surprise = 1", "steps = 2", "sizes = [3, 3, 3]")],
        ("noise_multiplier = 2.0", "noise_multiplier = 0.0", None),
        *[(ADJACENCY, f'adjacency = "{name}"', None) for name in ("add-remove", "record")],
        (f"{ADJACENCY}\n", "", None),
        ("version = 1\n", "", "has no version; write version = 1 at its top"),
        ("version = 1", "version = 2", "is of version 2; this sottovoce reads version 1"),
        ("version = 1", "version = 0", "is of version 0; this sottovoce reads version 1"),
        *[(CLIP, f"clip_norm = {value}", None) for value in ("-1.0", "nan")],
        *[
            (GRAPH, f'graph = "{text}"', None)
            for text in ("ring:5", "triangle-ish", "file:x.txt", "edges:0-1,x")
        ],
        *[
            (PROTOCOL, f'protocol = "{name}"', None)
            for name in ("exchange", "walk", "neighbor-sum", "tree:3")
        ],
        ('kind = "mean"', 'kind = "logistic"', None),
        ('name = "averaging"', 'name = "dp-dsgd"', None),
        ("epsilon = 60.0", "epsilon = 0.0", None),
        ("delta = 1e-05", "delta = 1.0", None),
        ('name = "m1"', 'name = "m0"', None),
        ("[budget]", "[budget", None),
        ("[budget]", "[budgets]", None),
        (GRAPH, f'"A[x" = 1\n{GRAPH}', None),
        ('fingerprint = "', 'fingerprint = "00', None),
        # words of others that could trick who reads them before signing
        (TITLE, 'title = "free\\u001b[2A\\u001b[2K"', "printable"),
        (TITLE, 'title = "a \\u202e test"', "printable"),
        (TITLE, 'title = "a\\ntest"', "printable"),
        (TITLE, f'title = "{"x" * 201}"', "at most 200"),
        (TITLE, 'title = ""', "printable"),
        (GRAPH, 'graph = "ring:3\\n"', "printable"),
        *[(ADDRESS, f"{text}:", "host:port") for text in ("unix:/run/x", "dns://evil/x", "127.0.0.1:x")],
        (ADDRESS, "127.0.0.1:\\u0663", "host:port"),
        ("graph = ", '"\\u001b[2J" = 1\ngraph = ', r"\?\[2J"),
    ],
)
def test_a_wrong_agreement_is_one_sentence_that_names_the_file(old, new, words, consortium):
    group = consortium()
    edited(group, old, new)
    with pytest.raises(ConfigError, match=words) as caught:
        read_agreement(group.file)
    assert str(group.file) in str(caught.value)
    assert str(caught.value).isprintable()


TOGETHER = (
    "averaging", "consensus-sgd", "consensus-fedavg", "muffliato-sgd", "dp-dsgd", "dp-dsgt", "dp-dinno",
    "random-walk-sgd",
)  # fmt: skip


@pytest.mark.parametrize("name", ["exact-consensus-sgd", "my-own", *sorted({*ALGORITHMS} - {*TOGETHER})])
def test_what_members_cannot_run_together_is_refused(name, consortium):
    if name in ALGORITHMS:
        pytest.importorskip(f"sottovoce.algorithms.{ALGORITHMS[name].partition(':')[0]}")
    with pytest.raises(ConfigError) as refused:
        consortium(n=4, graph="ring:4", algorithm={"name": name, "protocol": "gossip:1", "steps": 2}, dim=3)
    assert "\n" not in str(refused.value)


def test_what_is_left_unsaid_is_not_in_the_name(consortium):
    """A new option leaves the hash of an agreement that does not name it as it is."""
    group = consortium(algorithm={"name": "dp-dsgd", "protocol": "gossip:1", "steps": 2})
    content = json.loads(group.agreement.canonical)
    assert set(content) == {"version", "title", "graph", "algorithm", "model", "budget", "members"}
    assert set(content["algorithm"]) == {
        "name", "protocol", "adjacency", "clip_norm", "noise_multiplier", "steps",
    }  # fmt: skip
    assert set(content["model"]) == {"kind", "parameters"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    assert group.agreement.run_id == hashlib.sha256(b"sottovoce agreement 1\n" + text).digest()
    before = group.agreement.run_id
    edited(group, "steps = 2", "steps = 2\nlearning_rate = 0.1")
    assert group.agreement.run_id != before


def test_public_chance_is_the_run_s_name(consortium):
    group = consortium(algorithm={"name": "consensus-sgd", "protocol": "tree:kind=uniform", "steps": 9}, n=4)
    plan = group.agreement.plan
    assert plan.seed == int.from_bytes(group.agreement.run_id, "big")
    edited(group, 'title = "a test"', 'title = "another"')
    trees = [[plan.schedule(k).parents.tolist() for k in range(9)] for plan in (plan, group.agreement.plan)]
    assert trees[0] != trees[1]


def test_leaving_exchanges_out_is_for_plain_gossip(consortium):
    timing = {"late": "drop", "deadline": 30.0}
    assert consortium(timing=timing).agreement.timing.late == "drop"
    with pytest.raises(ConfigError, match="must wait"):
        consortium(algorithm={"protocol": "tree"}, timing=timing)


def test_only_what_all_signed_runs(consortium):
    group = consortium()
    edited(group, "noise_multiplier = 2.0", "noise_multiplier = 1.0")
    with pytest.raises(IdentityError, match="changed after signing"):
        start(group)
    assert not group.state(0).exists()
    sign_agreement(group.file, group.identities[0])
    with pytest.raises(IdentityError, match="m1"):
        start(group)


def test_a_missing_signature_names_the_member(consortium):
    group = consortium()
    group.file.write_text(re.sub("(?m)^m2 = .*$", "", group.file.read_text()))
    with pytest.raises(ConfigError, match="m2"):
        start(group)


def test_signatures_are_merged_from_other_copies(consortium, tmp_path):
    group = consortium()
    parts = [tmp_path / f"{name}.toml" for name in ("m0", "m1", "m2")]
    for part in parts:
        others = "|".join({"m0", "m1", "m2"} - {part.stem})
        part.write_text(re.sub(f"(?m)^({others}) = .*$", "", group.file.read_text()))
    merge_signatures(parts[0], parts[1])
    merge_signatures(parts[0], parts[2])
    read_agreement(parts[0]).require_signatures()
    parts[1].write_text(parts[1].read_text().replace("a test", "another"))
    with pytest.raises(ConfigError, match="another agreement"):
        merge_signatures(parts[0], parts[1])


def test_a_stranger_cannot_sign_or_run(consortium, tmp_path):
    group = consortium()
    stranger = make_identity(tmp_path / "x", "stranger")
    with pytest.raises(ConfigError, match="not a member"):
        sign_agreement(group.file, stranger)
    impostor = make_identity(tmp_path / "y", "m0")
    with pytest.raises(IdentityError, match="another certificate"):
        sign_agreement(group.file, impostor)
    with pytest.raises(IdentityError, match="another certificate"):
        Peer(PeerConfig(group.agreement, impostor, group.records[0], group.state(0)))
    assert not group.state(0).exists()


def test_a_plan_beyond_the_budget_is_refused_before_anything_is_written(consortium):
    group = consortium(epsilon=0.5)
    with pytest.raises(BudgetExceeded, match="more noise"):
        start(group)
    assert not group.state(0).exists()


def test_titles_in_any_script_are_kept_and_signed(consortium):
    group = consortium(n=2, graph="path:2", title='drei Häuser, 三 🏥 "quoted" [/red] \\n')
    text = group.file.read_bytes()
    agreed = read_agreement(group.file)
    assert agreed.title == 'drei Häuser, 三 🏥 "quoted" [/red] \\n'
    assert sign_agreement(group.file, group.identities[0]).run_id == agreed.run_id
    assert "🏥".encode() in text


@pytest.mark.parametrize("name", ["Évil", "a b", 'x" = "', "a\x1b[2J", "x" * 64])
def test_names_in_certificates_of_others_are_checked_too(name, consortium):
    """A certificate made with another tool may bear any name; an agreement takes only plain ones."""
    entry = consortium(n=2, graph="path:2").agreement.members[0].model_dump()
    with pytest.raises(IdentityError, match="lower-case letters"):
        Member(**{**entry, "name": name})
