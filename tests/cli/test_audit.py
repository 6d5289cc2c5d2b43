"""`sottovoce audit` as a person calls it."""

import re

import pytest


def answer(call, *words):
    reply = call(*words, "--json")
    assert reply.code == 0, reply
    return reply.json


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


def test_a_refuted_claim_says_which_number_refutes_it(call):
    reply = call(
        "audit", "--graph", "path:3", "--rounds", 2, "--user", 2, "--observers", 0, "--claim", "published"
    )
    text = " ".join(reply.out.split())
    assert re.search(
        r"refuted: mu is at least [\d.]+ where 1.16 is claimed; epsilon .* would not show it\.", text
    )
