"""The explorer without a browser: its numbers are the accountant's, its plan files price the same, its server
answers nobody else."""

import http.client
import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.peers.conftest import Consortium

import sottovoce as sv
from sottovoce._format import fixed
from sottovoce.accounting.gaussian import gaussian_epsilons
from sottovoce.errors import ConfigError, InvalidInput, Refused
from sottovoce.planfile.read import load_file
from sottovoce.privacy import gaussian_epsilon
from sottovoce.report.explorer.model import (
    ExplorerModel,
    ExplorerSettings,
    answered,
    offline,
    open_model,
    open_plan,
)
from sottovoce.report.explorer.page import ExplorerServer, live_page, offline_page

from .conftest import DELTA, TRAINING


@pytest.mark.parametrize("delta", [1e-5, 0.3, 1e-100])
def test_many_epsilons_are_each_epsilon(delta):
    mus = [0.0, 1e-9, 1e-4, 0.0014, 0.0015, 0.3, 1.0, 7.0, 800.0, 1e5, float("inf")]
    one_by_one = [gaussian_epsilon(mu, delta) for mu in mus]
    assert gaussian_epsilons(mus, delta) == pytest.approx(one_by_one, rel=1e-12, abs=0)
    with pytest.raises(InvalidInput, match="mu must be at least 0"):
        gaussian_epsilons([1.0, -1.0], delta)


def test_a_view_shows_the_accountants_numbers():
    network = sv.graphs.florentine()
    plan = sv.PrivateAveraging(sv.protocols.Gossip(network, 4), noise_std=1.5, radius=0.5)
    view = ExplorerModel(ExplorerSettings(graph="florentine", rounds=4, noise=3.0)).view([2, 7])
    shares = sv.privacy.exact_loss(network, rounds=4, observer=2, colluders=[7])
    formula = sv.privacy.published_loss(network, rounds=4)[:, [2, 7]].sum(axis=1)
    for u, row in enumerate(view["rows"]):
        if u in (2, 7):
            assert row["looks"]
            continue
        stated = plan.privacy("colluders", colluders=[2, 7], user=u)
        assert row["share"] == fixed(shares[u], "share")
        assert row["published"] == fixed(formula[u])
        assert row["epsilon"] == fixed(stated.epsilon(DELTA), "epsilon")
        assert row["published_epsilon"] == fixed(gaussian_epsilon(formula[u] ** 0.5 / 1.5, DELTA))
        assert row["determined"] == (shares[u] > 1 - 1e-8)
    others = [u for u in range(15) if u not in (2, 7)]
    lost = {u: plan.privacy("colluders", colluders=[2, 7], user=u).epsilon(DELTA) for u in others}
    assert lost[view["worst"]] == max(lost.values())
    assert sorted(lost.values())[6] == lost[view["typical"]]


def test_rounds_matrix_and_course_agree():
    model = ExplorerModel(ExplorerSettings(graph="ring:7", rounds=3))
    exact = sv.privacy.exact_loss(sv.graphs.ring(7), rounds=2)
    assert model.at(2).matrix()["shown"][1][4] == fixed(exact[1, 4], "share")
    course = model.course([4])
    at = course["rounds"].index(2)
    assert course["worst"][at] == pytest.approx(exact[:, 4].max(), abs=1e-5)
    assert course["mean"][at] == pytest.approx(exact[:, 4].sum() / 6, abs=1e-5)
    assert not ExplorerModel(ExplorerSettings(graph="ring:7", protocol="tree")).adjustable


def test_shares_know_the_noise_of_every_participant(tmp_path):
    text = 'version = 1\n[network]\ngraph = "path:6"\n[protocol]\nname = "tree"\n[average]\nradius = 0.5\n'
    text += 'noise_allocation = "optimal"\nadjacency = "user"\n[noise]\nnoise_multiplier = 2.0\n'
    (tmp_path / "plan.toml").write_text(text)
    opened = open_plan(tmp_path / "plan.toml")
    model = ExplorerModel(opened.setting, opened)
    pair, local = opened.plan.privacy("pairwise", observer=2, user=0), opened.plan.privacy("local", user=0)
    share = fixed((pair.mu / local.mu) ** 2, "share")
    assert model.view([2])["rows"][0]["share"] == model.matrix()["shown"][0][2] == share == "0.910"


SETTINGS = [
    {"graph": "grid:3:3", "rounds": 4, "noise": 3.5},
    {"graph": "hypercube:3", "protocol": "exchange"},
    {"graph": "karate", "protocol": "tree", "tree": "uniform", "seed": 5},
    {"graph": "ring:6", "protocol": "masked", "partners": 3, "tolerate": 2},
    {"graph": "ring:6", "protocol": "fresh-noise", "fresh": 0.3, "rounds": 3},
    {"graph": "path:4", "protocol": "randomized", "rounds": 12, "seed": 3},
    {"edges": [[0, 1], [1, 2], [0, 3]], "names": ["a", 'b"', "c\\", "ü"], "rounds": 2},
]


@pytest.mark.parametrize("chosen", SETTINGS, ids=lambda chosen: str(chosen.get("protocol", "gossip")))
def test_saved_plan_costs_the_same(chosen, tmp_path):
    model = ExplorerModel(ExplorerSettings.read(chosen))
    (tmp_path / "plan.toml").write_text(model.plan_text(), encoding="utf-8")
    again = open_plan(tmp_path / "plan.toml")
    for view in ("local", "network", "central"):
        assert again.plan.privacy(view).curve == model.plan.privacy(view).curve
    assert list(map(str, again.network.node_names or range(again.network.n))) == list(
        map(str, model.network.node_names or range(model.network.n))
    )
    assert again.plan.cost() == model.plan.cost()


def test_a_training_plan_is_opened_changed_and_saved(tmp_path):
    (tmp_path / "train.toml").write_text(TRAINING.replace("1e-5", "1e-6"))
    opened = open_plan(tmp_path / "train.toml")
    model = ExplorerModel(opened.setting, opened)
    assert model.plan is opened.plan
    row = model.view([0])["rows"][2]
    assert row["epsilon"] == fixed(
        opened.plan.privacy("pairwise", observer=0, user=2).epsilon(1e-6), "epsilon"
    )
    louder = ExplorerModel(ExplorerSettings.read(opened.setting.model_dump() | {"noise": 9.0}), opened)
    (tmp_path / "again.toml").write_text(louder.plan_text())
    again = open_plan(tmp_path / "again.toml").plan
    assert again.privacy("network").curve == louder.plan.privacy("network").curve
    assert again.noise_multiplier == 9.0
    assert not louder.scene()["can_draw"]


def test_an_agreement_is_opened(tmp_path):
    opened = open_plan(Consortium(tmp_path, n=2, graph="path:2").file)
    model = ExplorerModel(opened.setting, opened)
    assert model.names == ["m0", "m1"]
    assert model.scene()["title"] == opened.title != ""
    row = model.view([0])["rows"][1]
    assert row["epsilon"] == fixed(
        opened.plan.privacy("pairwise", observer=0, user=1).epsilon(opened.delta), "epsilon"
    )
    assert "names" in model.plan_text()


def test_offline_pages_hold_every_observer_round_and_pair():
    model = ExplorerModel(ExplorerSettings(graph="path:4", rounds=3))
    content = offline(model)
    rounds = model.most_rounds
    assert len(content["views"]) == rounds * (4 + 6)
    for t in (1, rounds):
        for who in ((0,), (1, 3)):
            view = content["views"][f"{t}|{','.join(map(str, who))}"]
            live = model.at(t).view(who)
            assert view["summary"] == live["summary"]
            for number, row in zip(view["rows"], live["rows"], strict=True):
                assert content["rows"][number] == {k: v for k, v in row.items() if k not in ("name", "looks")}
    page = offline_page(model)
    outside = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert "http" not in outside.replace('http-equiv="', "")
    assert "default-src 'none'" in page


def test_names_cannot_end_a_script():
    name = "</script><script>alert(1)</script><!--"
    page = live_page(ExplorerModel(ExplorerSettings(edges=[[0, 1]], names=[name, "b"], rounds=1)), "abc")
    assert "<script>alert" not in page
    assert page.count("</script>") == 3


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"graph": "file:/etc/passwd"}, "opens no files"),
        ({"graph": " FILE:/etc/passwd"}, "opens no files"),
        ({"graph": "ring:4", "noise": 0}, "noise: input should be greater than 0"),
        ({"graph": "ring:4", "evil": 1}, "evil"),
        ([], "a setting is an object"),
    ],
)
def test_settings_that_do_not_fit(values, sentence):
    with pytest.raises(ConfigError, match=sentence):
        ExplorerSettings.read(values)


def test_too_large_or_empty_views_are_refused():
    with pytest.raises(Refused, match="at most 600"):
        _ = ExplorerModel(ExplorerSettings(graph="ring:601")).network
    with pytest.raises(InvalidInput, match="nobody is left"):
        ExplorerModel(ExplorerSettings(graph="ring:4")).view([0, 1, 2, 3])
    with pytest.raises(InvalidInput, match="observers are node numbers"):
        answered(ExplorerModel(ExplorerSettings(graph="ring:4")), "view", {"observers": [True]})
    with pytest.raises(ConfigError, match="names"):
        _ = ExplorerModel(ExplorerSettings(graph="ring:4", names=["a"])).network


# ---- the server ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server():
    with ExplorerServer(ExplorerModel(ExplorerSettings(graph="ring:4"))) as started:
        yield started


def request(server, path="/", *, method="GET", body=None, host=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    sent["Host"] = host or f"127.0.0.1:{server.port}"
    connection.request(method, path, body=body, headers=sent)
    answer = connection.getresponse()
    raw = answer.read()
    connection.close()
    return answer, raw


def query(**more):
    return json.dumps({"setting": {"graph": "ring:4"}, **more})


def test_the_token_opens_the_page_and_nothing_else_does(server):
    good = f"/?token={server.token}"
    assert server.address == f"http://127.0.0.1:{server.port}{good}"
    answer, raw = request(server, good)
    assert answer.status == 200
    assert b"<title>" in raw
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe-eval" not in policy
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    for path in ("/", "/?token=", f"/?token={server.token[:-1]}", "/?token=x&token=" + server.token, "/x"):
        assert request(server, path)[0].status == 403, path
    assert request(server, f"/favicon.ico?token={server.token}")[0].status == 404


def test_another_host_or_origin_is_refused_even_with_the_token(server):
    good = f"/?token={server.token}"
    for host in ("evil.example", f"evil.example:{server.port}", f"127.0.0.1.evil.example:{server.port}"):
        assert request(server, good, host=host)[0].status == 403
    assert request(server, good, host=f"localhost:{server.port}")[0].status == 200
    there = {"method": "POST", "body": query(observers=[0]), "X_Sottovoce_Token": server.token}
    assert request(server, "/view", **there)[0].status == 200
    assert request(server, "/view", Origin=f"http://127.0.0.1:{server.port}", **there)[0].status == 200
    for origin in ("http://evil.example", "null", "https://127.0.0.1"):
        assert request(server, "/view", Origin=origin, **there)[0].status == 403
    assert request(server, "/view", method="POST", body=query(observers=[0]))[0].status == 403


def test_queries_are_answered_or_refused_with_a_sentence(server):
    there = {"method": "POST", "X_Sottovoce_Token": server.token}

    def answer(what, body):
        return json.loads(request(server, what, body=body, **there)[1])

    assert answer("/view", query(observers=[2]))["looking"] == "node 2"
    assert "refused" not in answer("/scene", query())
    assert "node numbers" in answer("/view", query(observers="all"))["refused"]
    assert "nothing called" in answer("/secrets", query(observers=[0]))["refused"]
    for body in ("{", "[]", '{"setting": 3}', "[" * 5000):
        assert "refused" in answer("/view", body)
    for length in ("1000001", "-1", "x"):  # refused before a byte of it is read
        assert request(server, "/view", body="x", Content_Length=length, **there)[0].status == 413


def test_two_pages_may_ask_at_once(server):
    there = {"method": "POST", "X_Sottovoce_Token": server.token}

    def look(v):
        return json.loads(request(server, "/view", body=query(observers=[v]), **there)[1])["observers"]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(look, range(4))) == [[0], [1], [2], [3]]


# ---- the command -----------------------------------------------------------------------------------


def test_the_command_writes_one_offline_file(call, refused, tmp_path):
    output = call("explore", "path:3", "--rounds", 2, "--out", "page.html", "--json").json
    assert output["nodes"] == 3
    assert output["bytes"] == (tmp_path / "page.html").stat().st_size
    assert "did you mean 'ring'?" in refused("explore", "rng:3")


def test_a_graph_in_a_file_is_opened_by_the_command_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edges.txt").write_text("0 1\n1 2\n2 0\n")
    model = open_model("file:edges.txt", rounds=2, noise=4.0)
    assert model.network.n == 3
    assert model.plan.noise_multiplier == 4.0
    (tmp_path / "plan.toml").write_text(model.plan_text())

    again = load_file("plan.toml").plan
    assert again.privacy("network").curve == model.plan.privacy("network").curve
