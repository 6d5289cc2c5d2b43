"""Reports of every kind in a real browser: page one shows what is in the record, and nothing else."""

import re

import pytest

from sottovoce.report.rendering import value_text

from ..report.conftest import command, results_of, write_inputs
from .conftest import violations

pytestmark = pytest.mark.pages
KINDS = ("plan", "training", "agreement", "statement", "result", "attack", "audit")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, browser):
    return write_inputs(tmp_path_factory.mktemp("inputs"))


def shown(page, inputs, kind, tmp_path):
    target = tmp_path / f"{kind}.html"
    assert command("report", *inputs[kind], "-o", target) == 0
    page.goto(target.as_uri())
    return results_of(inputs[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_page_one_holds_the_record_and_nothing_else(page, inputs, kind, tmp_path):
    results = shown(page, inputs, kind, tmp_path)
    summaries = [result["summary_page"] for result in results if result.get("summary_page")]
    assert page.locator(".summary_page").count() == len(summaries) > 0
    for k, summary in enumerate(summaries):
        values = page.eval_on_selector_all(
            f"[data-page='{k}'] [data-from]", "all => all.map(e => [e.dataset.from, e.textContent])"
        )
        assert len(values) > 5
        for path, text in values:
            assert text == value_text(summary, path), path
        rest = page.eval_on_selector(
            f"[data-page='{k}']",
            "e => { const c = e.cloneNode(true); c.querySelectorAll('[data-from]').forEach(x => x.remove());"
            " return c.textContent; }",
        )
        assert not re.search(r"\d", rest), f"a number on page one that is not in the record: {rest}"
    assert page.complaints == []
    assert all(url.startswith("file:") for url in page.requested)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_readable_by_everybody_also_on_a_phone(page, inputs, kind, scheme, tmp_path):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 400, "height": 800})
    shown(page, inputs, kind, tmp_path)
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    for verdict in page.locator(".summary_page .verdict").all():  # the answer needs no scrolling sideways
        box = verdict.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 400
    assert page.locator(".summary_page .answer").first.bounding_box()["y"] < 400


def test_what_was_read_and_not_charged_is_red(page, inputs, tmp_path):
    shown(page, inputs, "training", tmp_path)
    assert page.locator(".summary_page .answer").first.get_attribute("class") == "answer bad"
    assert page.inner_text(".summary_page .verdict >> nth=0") == "only in part"
    red = "rgb(168, 31, 51)"
    lines = page.locator(".summary_page .uncovered li")
    assert "mean and deviation of every feature" in lines.first.inner_text()
    assert {line.evaluate("e => getComputedStyle(e).color") for line in lines.all()} == {red}
    assert page.locator(".yes").count() == 0  # no green guarantee in the annex either
    assert "<of four>" in page.inner_text(".summary_page .purpose")  # shown as text


def test_an_agreement_shows_who_signed_and_what_was_spent(page, inputs, tmp_path):
    (result,) = shown(page, inputs, "agreement", tmp_path)
    text = page.inner_text(".summary_page")
    for member in result["summary_page"]["members"]:
        assert member["fingerprint"] in text
        assert member["signed"] is True
    assert result["summary_page"]["marks"]["run"] in text
    widths = page.eval_on_selector_all(".bar span", "all => all.map(e => parseFloat(e.style.width))")
    row = result["summary_page"]["budgets"][0]
    wanted = [100 * row["spent"] / row["limit"], 100 * (row["total"] - row["spent"]) / row["limit"]]
    assert widths == pytest.approx(wanted, abs=0.01)


@pytest.mark.parametrize("kind", ["plan", "training", "agreement", "statement"])
def test_page_one_prints_on_one_sheet(page, inputs, kind, tmp_path):
    page.set_viewport_size({"width": 688, "height": 1017})  # A4 without its margins, at 96 dots per inch
    page.emulate_media(media="print")
    shown(page, inputs, kind, tmp_path)
    box = page.locator(".summary_page").first.bounding_box()
    assert box["y"] + box["height"] <= 1017
    assert page.evaluate("document.documentElement.scrollWidth") <= 688
    raw = page.pdf(prefer_css_page_size=True)
    assert raw.startswith(b"%PDF")
