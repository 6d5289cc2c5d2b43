"""The built site: every internal link leads somewhere, nothing comes from outside, search knows every name.

`make docs` builds it and runs this; without a site the tests say so and are skipped.
"""

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

PLACE = os.environ.get("SOTTOVOCE_SITE")
pytestmark = pytest.mark.skipif(not PLACE, reason="make docs builds the site, and runs this on it")


class Page(HTMLParser):
    """The links, resources and anchors of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.resources, self.anchors = [], [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors |= {values[key] for key in ("id", "name") if values.get(key)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag in ("script", "img", "iframe", "source") and values.get("src"):
            self.resources.append(values["src"])
        if tag == "link" and "stylesheet" in values.get("rel", "") and values.get("href"):
            self.resources.append(values["href"])


@pytest.fixture(scope="module")
def pages():
    built = (path for path in sorted(Path(PLACE).rglob("*.html")) if "_static" not in path.parts)
    return {path: Page(path) for path in built}


def test_every_internal_link_leads_somewhere(pages):
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            if target.is_dir():
                target = target / "index.html"
            if not target.exists():
                broken.append(f"{path.name}: {link}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                broken.append(f"{path.name}: {link} (no such anchor)")
    assert len(pages) > 40
    assert not broken


def test_nothing_is_fetched_from_outside(pages):
    outside = [
        f"{path.name}: {source}"
        for path, page in pages.items()
        for source in page.resources
        if urlsplit(source).netloc or not (path.parent / unquote(urlsplit(source).path)).exists()
    ]
    assert not outside
    style = "".join(css.read_text(errors="ignore") for css in Path(PLACE).rglob("*.css"))
    assert not re.search(r"url\([\"\']?https?:|@import [\"\']https?:", style)


def test_the_search_finds_every_public_name(pages):
    import types

    import sottovoce

    text = (Path(PLACE) / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(re.fullmatch(r"Search\.setIndex\((.*)\)", text, re.S)[1])
    known = {entry[-1].rpartition(".")[2] for entries in index["objects"].values() for entry in entries}
    missing = []
    public = [getattr(sottovoce, name) for name in sottovoce.__all__]
    for module in [sottovoce, *(each for each in public if isinstance(each, types.ModuleType))]:
        for name in getattr(module, "__all__", ()):
            if not isinstance(getattr(module, name), types.ModuleType) and name not in known:
                missing.append(f"{module.__name__}.{name}")
    assert not missing


def test_every_page_is_built(pages):
    built = {path.relative_to(PLACE).as_posix() for path in pages}
    docs = Path(__file__).parents[1] / "docs"
    written = {
        path.relative_to(docs).with_suffix(".html").as_posix()
        for path in docs.rglob("*.md")
        if "_generated" not in path.parts and "results" not in path.relative_to(docs).parts[:-1]
    }
    assert written <= built
