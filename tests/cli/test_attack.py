"""`sottovoce attack` and `sottovoce audit` as a person calls them."""

import re

import pytest


def answer(call, *words):
    reply = call(*words, "--json")
    assert reply.code == 0, reply
    return reply.json


def test_attack_gossip_prints_the_determined_nodes(call):
    result = answer(call, "attack", "gossip", "--graph", "florentine", "--attackers", "0", "--rounds", "14")
    assert result["reconstructed"] == list(range(1, 15))
    assert result["count"] == 14
    few = answer(call, "attack", "gossip", "--graph", "florentine", "--attackers", "2", "--rounds", "3")
    assert few["count"] == 8
    assert few["combinations"]
    words = ("--graph", "hypercube:3", "--attackers", "0,3", "--protocol", "exchange")
    other = answer(call, "attack", "gossip", *words)
    assert other["protocol"] == "exchange"
    assert not set(other["reconstructed"]) & {0, 3}


def test_text_names_the_nodes(call):
    code, out, _ = call("attack", "gossip", "--graph", "star:5", "--attackers", "1", "--rounds", "3")
    assert code == 0
    assert "1 of 4 nodes" in out
    assert "x2 + x3 + x4" in out


def test_attack_dgd(call):
    result = answer(call, "attack", "dgd", "--graph", "path:6", "--attackers", "0")
    assert result["identifiable"] == [1, 2, 3, 4, 5]
    assert result["count"] >= 4
    code, out, _ = call("attack", "dgd", "--graph", "path:4", "--noise", "0.1")
    assert code == 0
    assert "PSNR" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("attack gossip --graph ring:4 --attackers 9", "attackers names node 9"),
        ("attack gossip --graph ring:4 --attackers 0,1,2,3", "nobody left"),
        ("attack gossip --graph ring:4 --attackers 0 --rounds 0", "at least 1"),
        ("attack gossip --graph ring:4 --attackers x", "node numbers such as 3,5"),
        (
            "attack gossip --graph ring:4 --attackers 0 --protocol mail",
            "--protocol: A protocol is one of gos",
        ),
        ("attack dgd --data letters", "pictures come from"),
        ("audit --graph ring:6 --user 6", "nodes are 0 to 5"),
        ("audit --graph ring:6 --noise-multiplier 0", "positive"),
        ("audit --graph ring:6 --claim guess", "one of exact, published"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_one(refused, words, sentence):
    assert sentence in refused(*words.split())


# ---- `sottovoce audit` as a person calls it ----------------------------------------------------------------


def test_audit_of_masks_looks_as_tapper_member_and_coalition(call):
    words = ("audit", "--graph", "ring:10", "--protocol", "masked:tolerate=3", "--noise-multiplier", "0.5")
    result = answer(call, *words, "--runs", "20000")
    assert result["refuted"] == []
    claimed = {name: audit["mu_claimed"] for name, audit in result["audits"].items()}
    for name, rest in (("tapper", 10), ("one member", 9), ("3 colluders", 7)):
        assert claimed[name] == pytest.approx(2 / 0.5 / rest**0.5)
        assert result["audits"][name]["tightness"] > 0.85
    assert result["audits"]["tapper"]["view"] == "a tapper of all links about node 0"


def test_audit_of_the_standard_views_holds(call):
    words = ("audit", "--graph", "ring:6", "--rounds", "4", "--runs", "4000")
    result = answer(call, *words)
    assert result["refuted"] == []
    assert set(result["audits"]) == {"neighbor", "distant node", "two colluders", "public"}


def test_audit_refutes_the_published_formula_on_a_path_of_three(call):
    path = ("audit", "--graph", "path:3", "--rounds", "2", "--user", "2", "--observers", "0")
    exact = answer(call, *path, "--noise-multiplier", "4")
    assert exact["refuted"] == []
    assert exact["audits"]["observers"]["mu_claimed"] == pytest.approx(0.5)  # 2 radii over 4: all is seen
    published = answer(call, *path, "--claim", "published", "--noise-multiplier", "4", "--runs", "60000")
    assert published["refuted"] == ["observers"]
    assert published["audits"]["observers"]["mu_claimed"] == pytest.approx(0.5 / 3**0.5)  # a third of it
    text = " ".join(call(*path, "--claim", "published").out.split())
    assert re.search(r"refuted: mu is at least [\d.]+ where 1.16 is claimed\.", text)
