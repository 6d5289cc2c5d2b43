"""The HTML page: whole, self-contained, escaped, the same bytes every time."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import sottovoce as sv
from sottovoce import report
from sottovoce.accounting.published.exact_comparison import compare_with_published
from sottovoce.errors import InvalidInput
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
    page = report.build([account, averages(), account])
    parsed = Balanced(page)
    assert parsed.loaded == []
    assert "http" not in page
    assert "url(" not in re.sub(r"url\(#[^)]*\)", "", page)
    assert page.count("<svg") == 4
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_guarantees_name_adversary_adjacency_and_label(account):
    text = " ".join(Balanced(report.build([account])).text)
    wanted = ["anyone who sees every message", "the whole data set of one participant is replaced", "1e-05"]
    for word in [*wanted, "ldp", "exact", "observers are honest but curious", "Guarantee"]:
        assert word in text


def test_labels_that_are_no_guarantee_say_so(account):
    account["guarantees"][0]["label"] = "published"
    text = " ".join(Balanced(report.build([account])).text)
    assert "Not a guarantee" in text


def test_same_results_give_same_bytes(account):
    assert report.build([account]) == report.build([account])


def test_text_of_results_is_escaped(account):
    account["config"]["labels"][2] = "<script>alert(1)</script>"
    account["config"]["graph"] = "<img src=x>"
    account["guarantees"][0]["assumptions"] = ["<b>bold</b>"]
    page = report.build([account], title="<i>title</i>")
    assert "<script" not in page
    assert "<img" not in page
    assert "<b>" not in page
    assert "<i>" not in page


def test_a_simulation_is_announced():
    assert "Simulation." in report.build([averages()])


def test_page_needs_a_result():
    with pytest.raises(InvalidInput):
        report.build([])


def test_command_writes_a_page(call, refused, tmp_path, account):
    (tmp_path / "a.json").write_text(json.dumps(account))
    assert call("report", "a.json", "-o", "page.html", "--json").json["inputs"] == 1
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert "missing.json" in refused("report", "a.json", "missing.json", "-o", "other.html")
