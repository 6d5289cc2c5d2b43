"""The HTML page: whole, self-contained, escaped, the same bytes every time; its elements and files."""

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

import sottovoce as sv
from sottovoce import report
from sottovoce.accounting.published.exact_comparison import compare_with_published
from sottovoce.errors import DataError, InvalidInput
from sottovoce.report import build, figures, result_files, sections
from sottovoce.report.inputs import account_result

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Balanced(HTMLParser):
    """Checks that tags are balanced and that ids are unique; collects what would be loaded."""

    def __init__(self, page):
        super().__init__()
        self.open, self.ids, self.loaded, self.text = [], [], [], []
        self.feed(page)
        assert self.open == []
        assert len(self.ids) == len(set(self.ids))

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)
        self._note(tag, dict(attributes))

    def handle_startendtag(self, tag, attributes):
        self._note(tag, dict(attributes))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def _note(self, tag, attributes):
        self.ids += [attributes["id"]] if "id" in attributes else []
        for name in ("src", "href", "xlink:href", "action"):
            if name in attributes and not attributes[name].startswith(("#", "data:")):
                self.loaded.append(attributes[name])


@pytest.fixture
def account():
    network = sv.graphs.florentine()
    protocol = sv.protocols.Gossip(network, 3)
    assessment = compare_with_published(network, protocol, observer=1)
    plan = sv.PrivateAveraging(protocol, noise_std=1.0, radius=0.5)
    guarantees = [g.to_dict(delta=1e-5) for g in plan.guarantees()]
    return account_result(network, protocol, assessment | {"guarantees": guarantees})


def averages():
    plan = sv.PrivateAveraging(sv.protocols.HypercubeExchange(4), noise_std=1.0, radius=0.5)
    return plan.run(np.zeros(4), np.random.default_rng(0)).to_dict()


def test_the_page_is_whole_and_loads_nothing(account):
    results = [account, averages(), account]
    page = report.build(results)
    parsed = Balanced(page)
    assert parsed.loaded == []
    assert "http" not in page
    assert "url(" not in re.sub(r"url\(#[^)]*\)", "", page)
    assert page.count("<svg") == 4
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    assert "Simulation." in page  # of the averages
    assert report.build(results) == page  # the same bytes
    with pytest.raises(InvalidInput):
        report.build([])


def test_guarantees_name_adversary_adjacency_and_label(account):
    text = " ".join(Balanced(report.build([account])).text)
    wanted = ["all others with their keys and noise", "the whole data set of one participant is replaced"]
    for word in [*wanted, "1e-05", "ldp", "exact", "observers are honest but curious", "Guarantee"]:
        assert word in text
    # ε and δ are explained rightly
    assert "at most the factor e ε , and beyond that by at most δ" in " ".join(text.split())
    assert "probability that the bound is exceeded" not in text


def test_text_of_results_is_escaped(account):
    account["config"]["labels"][2] = "<script>alert(1)</script>"
    account["config"]["graph"] = "<img src=x>"
    account["guarantees"][0]["assumptions"] = ["<b>bold</b>"]
    page = report.build([account], title="<i>title</i>")
    assert "<script" not in page
    assert "<img" not in page
    assert "<b>" not in page
    assert "<i>" not in page


def test_command_writes_a_page(call, refused, tmp_path, account):
    (tmp_path / "a.json").write_text(json.dumps(account))
    assert call("report", "a.json", "-o", "page.html", "--json").json["inputs"] == 1
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert "missing.json" in refused("report", "a.json", "missing.json", "-o", "other.html")


# ---- Elements of a page: guarantees as the page shows them -------------------------------------------------


def test_what_was_read_and_not_charged_is_not_shown_as_a_plain_guarantee():
    plan = sv.PrivateAveraging(sv.protocols.HypercubeExchange(4), noise_std=4.0, radius=1.0)
    stored = plan.privacy("local").to_dict(delta=1e-5)
    assert sections.guarantee_row(stored)["verdict"] == "Guarantee"
    row = sections.guarantee_row(stored | {"accepted": ["standardize"]})
    assert row["verdict"] == "Guarantee, except for what was accepted: standardize"
    result = {"name": "plan", "config": {}, "metrics": {"cost": {"messages": 1}}, "provenance": {}}
    page = build([result | {"guarantees": [stored | {"accepted": ["standardize"]}]}], "t", "l")
    assert 'class="yes"' not in page


# ---- Sections: the general one, and results that lack what their section shows -----------------------------


def test_unknown_results_get_a_general_section():
    result = sv.Result(
        "something-new", config={"steps": 3}, metrics={"accuracy": 0.9, "rows": [1, 2]},
        history=[{"step": k, "loss": 1.0 / k} for k in range(1, 5)],
    ).to_dict()  # fmt: skip
    section = sections.section_of(result)
    assert [b.kind for b in section.blocks] == ["table", "figure", "table"]
    assert section.blocks[0].rows == (("accuracy", "0.9"),)


def test_result_without_its_numbers_is_refused():
    with pytest.raises(DataError, match="lacks what its section shows"):
        sections.section_of(sv.Result("account").to_dict())


# ---- Results on disk: what is no result is refused with a sentence -----------------------------------------


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "not JSON"),
        (b"[1]", "has no name"),
        (b'{"name": 3}', "has no name"),
        (b'{"name": "x", "metrics": []}', "'metrics'"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_files_that_are_no_results(tmp_path, content, sentence):
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        result_files.read_result(tmp_path / "r.json")


def test_results_hold_no_nan(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        result_files.write_result(tmp_path / "r.json", {"name": "x", "metrics": {"a": float("nan")}})
    assert list(tmp_path.iterdir()) == []


# ---- Figures: contrast against the page, networks of all sizes ---------------------------------------------


def test_graph_pictures_of_all_sizes():
    for network in map(sv.graphs.parse, ("hypercube:4", "ring:3", "regular:150:4:seed=0")):
        picture = figures.graph_picture(
            network.edges.tolist(), network.n, values=[0.5] * network.n, observers=[0]
        )
        assert picture.startswith("<svg")
        ElementTree.fromstring(picture)
