import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import sottovoce as sv
from sottovoce import report
from sottovoce.accounting.published.assessment import compare_with_published
from sottovoce.errors import DataError, InvalidInput
from sottovoce.report import elements, figures, result_files, sections
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
    found = compare_with_published(network, protocol, observer=1)
    plan = sv.PrivateAveraging(protocol, noise_std=1.0, radius=0.5)
    guarantees = [g.to_dict(delta=1e-5) for g in plan.guarantees()]
    return account_result(network, protocol, found | {"guarantees": guarantees})


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


def test_every_guarantee_is_told_with_all_it_needs(account):
    text = " ".join(Balanced(report.build([account])).text)
    wanted = ["anyone who sees every message", "the whole data set of one participant is replaced", "1e-05"]
    for word in [*wanted, "ldp", "exact", "observers are honest but curious", "Guarantee"]:
        assert word in text


def test_labels_that_are_no_guarantee_say_so(account):
    account["guarantees"][0]["label"] = "published"
    text = " ".join(Balanced(report.build([account])).text)
    assert "Not a guarantee" in text


def test_the_same_records_give_the_same_bytes(account):
    assert report.build([account]) == report.build([account])


def test_what_records_say_is_escaped(account):
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


def test_unknown_records_get_a_general_section():
    record = sv.Result(
        "something-new", config={"steps": 3}, metrics={"accuracy": 0.9, "rows": [1, 2]},
        history=[{"step": k, "loss": 1.0 / k} for k in range(1, 5)],
    ).to_dict()  # fmt: skip
    section = sections.section_of(record)
    assert [b.kind for b in section.blocks] == ["table", "figure", "table"]
    assert section.blocks[0].rows == (("accuracy", 0.9),)


def test_a_known_record_without_its_numbers_is_refused_with_a_sentence():
    with pytest.raises(DataError, match="lacks what its section shows"):
        sections.section_of(sv.Result("account").to_dict())


def test_no_records_no_page():
    with pytest.raises(InvalidInput):
        report.build([])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not JSON"),
        (b"[1]", "has no name"),
        (b'{"name": 3}', "has no name"),
        (b'{"name": "x", "metrics": []}', "'metrics'"),
        (b"\xff\xfe", "not text"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_files_that_are_no_records(tmp_path, content, said):
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(DataError, match=said):
        result_files.read_result(tmp_path / "r.json")


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match="There is no file"):
        result_files.read_result(tmp_path / "r.json")


def test_records_hold_no_nan(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        result_files.write_result(tmp_path / "r.json", {"name": "x", "metrics": {"a": float("nan")}})
    assert list(tmp_path.iterdir()) == []


def test_best_guess_is_the_bound_of_the_definition():
    for epsilon in (0.1, 1.0, 5.0):
        mu = sv.privacy.gaussian_mu(epsilon, 1e-5)
        from scipy.stats import norm

        attained = norm.cdf(mu / 2)  # the best test of a Gaussian pair, fair coin
        assert attained <= elements.best_guess(epsilon, 1e-5) <= 1


def test_graph_pictures_of_all_sizes():
    for network in (
        sv.graphs.hypercube(4),
        sv.graphs.ring(3),
        sv.graphs.regular(150, 4, np.random.default_rng(0)),
    ):
        picture = figures.graph_picture(network.edges.tolist(), [0.5] * network.n, observers=[0])
        assert picture.startswith("<svg")
        Balanced(picture)


def test_command_writes_a_page(tmp_path, account, capsys, monkeypatch):
    from sottovoce.cli.main import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.json").write_text(json.dumps(account))
    with pytest.raises(SystemExit) as stopped:
        main(["report", "a.json", "-o", "page.html", "--json"])
    assert not stopped.value.code
    assert json.loads(capsys.readouterr().out)["inputs"] == 1
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    with pytest.raises(SystemExit) as stopped:
        main(["report", "a.json", "missing.json", "-o", "other.html"])
    assert stopped.value.code == 1
    assert not (tmp_path / "other.html").exists()


def test_what_was_read_and_not_charged_is_not_shown_as_a_plain_guarantee():
    stated = sv.PrivateAveraging(sv.protocols.HypercubeExchange(4), noise_std=4.0, radius=1.0).privacy(
        "local"
    )
    stored = stated.to_dict(delta=1e-5)
    assert elements.guarantee_row(stored)["verdict"] == "Guarantee"
    row = elements.guarantee_row(stored | {"accepted": ["standardize"]})
    assert row["verdict"] == "Guarantee, except for what was accepted: standardize"
    record = {"name": "plan", "config": {}, "metrics": {"cost": {"messages": 1}}, "provenance": {}}
    page = report.build([record | {"guarantees": [stored | {"accepted": ["standardize"]}]}], "t", "l")
    assert 'class="yes"' not in page
