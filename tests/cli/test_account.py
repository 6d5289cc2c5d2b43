import re

import numpy as np
import pytest

import sottovoce as sv

KEYS = [
    "n", "edges", "spectral_gap", "protocol", "rounds", "observer", "rank", "exact", "published",
    "mean_exact", "max_exact", "mean_published", "understated_pairs",
]  # fmt: skip


def account(call, *arguments):
    answer = call("account", *arguments, "--json")
    assert answer.code == 0, answer
    return answer.json


def test_keys_are_the_documented_ones(call):
    result_keys = ["name", "config", "metrics", "history", "guarantees", "provenance"]
    assert list(account(call, "--graph", "path:3", "--rounds", 2, "--observer", 2)) == [*KEYS, *result_keys]
    assert list(account(call, "--graph", "path:3", "--rounds", 2)) == [*KEYS, *result_keys]


def test_exact_loss_exceeds_the_published_one_on_a_path(call):
    result = account(call, "--graph", "path:3", "--rounds", 2, "--observer", 2)
    np.testing.assert_allclose(result["exact"], [1, 1, 0], atol=1e-9)
    np.testing.assert_allclose(result["published"][0], 1 / 3)
    assert (result["n"], result["edges"], result["rank"], result["rounds"]) == (3, 2, 2, 2)
    assert result["understated_pairs"] == 0.5


def test_means_are_those_of_the_library(call):
    result = account(call, "--graph", "star:6", "--rounds", 3)
    h = sv.privacy.exact_loss(sv.graphs.star(6), rounds=3)
    f = sv.privacy.published_loss(sv.graphs.star(6), rounds=3)
    off = ~np.eye(6, dtype=bool)
    assert result["mean_exact"] == pytest.approx(sv.privacy.mean_loss(h).mean())
    assert result["mean_published"] == pytest.approx(sv.privacy.mean_loss(f).mean())
    assert result["understated_pairs"] == pytest.approx((h[off] > f[off] + 1e-9).mean())
    assert result["exact"] is None
    assert account(call, "--graph", "ring:8")["rounds"] == sv.protocols.rounds_for(sv.graphs.ring(8))


@pytest.mark.parametrize("protocol", ["tree", "exchange", "fresh-noise"])
def test_protocols_without_published_formula(call, protocol):
    result = account(call, "--graph", "hypercube:3", "--protocol", protocol, "--observer", 0)
    assert (result["protocol"], result["published"], result["understated_pairs"]) == (protocol, None, None)
    assert result["exact"][0] == 0


def test_colluders_learn_more(call):
    common = ("--graph", "ring:12", "--rounds", 3, "--observer", 0)
    alone, together = account(call, *common), account(call, *common, "--collude", "5,6")
    assert together["colluders"] == [5, 6]
    assert (np.array(together["exact"])[[1, 2, 3]] >= np.array(alone["exact"])[[1, 2, 3]] - 1e-12).all()
    np.testing.assert_allclose(together["exact"], sv.privacy.exact_loss(sv.graphs.ring(12), 3, 0, (5, 6)))


def test_every_epsilon_comes_with_adversary_adjacency_and_label(call):
    result = account(call, "--graph", "ring:8", "--observer", 0, "--noise", 2, "--delta", "1e-6")
    local, near = result["guarantees"]
    assert (local["label"], near["label"]) == ("ldp", "exact")
    for g in (local, near):
        assert g["adjacency"] == "user"
        assert g["delta"] == 1e-6
        assert g["against"]
    assert local["epsilon"] == pytest.approx(sv.privacy.gaussian_epsilon(1.0, 1e-6))  # a row moves by 2 radii


def test_a_budget_gives_the_least_noise(call):
    result = account(
        call, "--graph", "hypercube:3", "--protocol", "exchange", "--epsilon", 1, "--delta", "1e-5"
    )
    z = result["noise_for_budget"][0]["noise_multiplier"]
    assert sv.privacy.gaussian_epsilon(2 / z, 1e-5) == pytest.approx(1.0)


def test_exchange_over_links_that_are_not_there_is_noted(call):
    assert "not joined" in account(call, "--graph", "ring:8", "--protocol", "exchange")["notes"][0]
    assert "notes" not in account(call, "--graph", "hypercube:3", "--protocol", "exchange")


def test_matrix_from_a_file_and_one_node_alone(call, tmp_path):
    (tmp_path / "W.csv").write_text("0.5,0.5,0\n0.5,0,0.5\n0,0.5,0.5\n")
    result = account(call, "--matrix", "W.csv", "--rounds", 2, "--observer", 0)
    assert (result["n"], result["edges"]) == (3, 2)
    result = account(call, "--graph", "complete:1", "--rounds", 2)
    assert (result["understated_pairs"], result["max_exact"]) == (0, 0)


# ---- the papers' own formulas -------------------------------------------------------------------------


def test_published_adds_one_key_and_changes_no_other(call):
    common = ("--graph", "ring:12", "--rounds", 4, "--observer", 0, "--noise", 2)
    plain, more = account(call, *common), account(call, *common, "--published")
    bounds = more.pop("published_bounds")
    assert more["metrics"].pop("published_bounds") == bounds
    assert more == plain
    by_name = {row["function"]: row for row in bounds["losses"]}
    assert list(by_name) == ["published_loss", "published_mean_loss", "corollary_loss", "published_walk_loss"]
    assert by_name["published_loss"]["mean"] == pytest.approx(plain["mean_published"])
    assert bounds["errors"][0]["value"] == pytest.approx(3 * 2**2 / 12)
    for row in (*bounds["losses"], *bounds["errors"]):
        assert row["label"] == "published"


def test_published_formulas_do_not_change_the_noise_for_a_budget(call):
    """On a path the formulas are far below the truth for the far end; the noise must not know it."""
    common = ("--graph", "path:8", "--rounds", 10, "--observer", 7, "--epsilon", 1)
    plain, more = account(call, *common), account(call, *common, "--published", "--steps", 3)
    assert plain["noise_for_budget"] == more["noise_for_budget"]
    assert {row["label"] for row in more["noise_for_budget"]} == {"ldp", "exact"}
    assert more["guarantees"] == []
    assert more["published_bounds"]["steps"] == 3


def test_published_is_refused_without_a_formula(refused):
    assert "none for tree" in refused("account", "--graph", "ring:6", "--protocol", "tree", "--published")
    assert "one observer" in refused(
        "account", "--graph", "ring:6", "--observer", 0, "--collude", 3, "--published"
    )
    assert "add --published" in refused("account", "--graph", "ring:6", "--steps", 3)
    assert "steps" in refused("account", "--graph", "ring:6", "--steps", 0, "--published")


def test_a_report_shows_the_published_formulas_with_their_label(call, tmp_path):
    answer = call("account", "--graph", "ring:8", "--published", "--out", "a.json")
    assert answer.code == 0
    assert "No budget accepts these numbers." in " ".join(answer.out.split())
    assert call("report", "a.json", "-o", "a.html").code == 0
    page = re.sub(r"<[^>]+>", " ", (tmp_path / "a.html").read_text())
    assert re.search(r"Corollary 1\s.*?\spublished\s", page)
    assert re.search(r"Theorem 2: half the squared error\s+0\.375\s", page)


RING = ("--graph", "ring:5")
FILES = {
    "parts.txt": b"0 1\n2 3\n",
    "long.txt": b"# links\n0 1\n1 2 3 4\n",
    "binary.txt": b"\xff\xfe\x00\x01",
    "W.csv": b"0.5,0.5\n0.5,0.44\n",
}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--graph", "file:parts.txt"), "connected"),
        (("--graph", "file:long.txt"), "Line 3"),
        (("--graph", "file:binary.txt"), "is not text"),
        (("--graph", "hyperqube:4"), "did you mean 'hypercube'"),
        (("--graph", "er:20:1.5"), "needs a seed"),
        (("--graph", ""), "Unknown graph"),
        (("--matrix", "W.csv"), "Row 1 of the gossip matrix sums to 0.94, expected 1"),
        *(((*RING, "--noise", noise), "noise") for noise in ("-1", "0", "nan", "inf")),
        *(((*RING, "--noise", 1, "--delta", delta), "delta") for delta in ("0", "1", "-0.1", "nan")),
        ((*RING, "--delta", "0"), "delta"),
        (("--graph", "regular:5000:4:seed=1"), "--observer"),
        ((*RING, "--collude", "1"), "observer"),
        ((*RING, "--observer", 0, "--collude", "one"), "node numbers"),
        ((*RING, "--observer", 7), "0 to 4"),
        ((*RING, "--protocol", "tree", "--rounds", 3), "rounds"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(refused, tmp_path, words, sentence):
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    assert sentence in refused("account", *words, "--out", "a.json")


def test_the_printed_noise_keeps_the_budget(call):
    account = ("account", "--graph", "ring:8", "--rounds", 3, "--observer", 0)
    for epsilon in (0.3, 1.0, 2.0, 7.0):
        lines = call(*account, "--epsilon", epsilon).out.splitlines()
        (line,) = [line for line in lines if line.strip().startswith("node 0") and "exact" in line]
        noise = line.split()[2]
        rows = call(*account, "--noise", noise, "--json").json["guarantees"]
        assert all(row["epsilon"] <= epsilon for row in rows)


def test_nodes_may_be_named(call, refused):
    gossip = ("--graph", "florentine", "--rounds", 3)
    by_number = account(call, *gossip, "--observer", 1, "--collude", "0,4")
    names = sv.graphs.florentine().node_names
    by_name = account(call, *gossip, "--observer", "Medici", "--collude", f"{names[0]}, {names[4]}")
    assert by_name["exact"] == by_number["exact"]
    assert by_name["observer"] == 1
    assert "did you mean 'Medici'" in refused("account", *gossip, "--observer", "Medicis")
    assert "expects one node" in refused("account", *gossip, "--observer", "Medici,Pazzi")
    assert "got 'Medici'." in refused("account", "--graph", "ring:4", "--rounds", 3, "--observer", "Medici")
    attack = [call("attack", "gossip", *gossip, "--attackers", node, "--json").json for node in (1, "Medici")]
    assert attack[0]["metrics"] == attack[1]["metrics"]
