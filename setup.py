"""Everything is in pyproject.toml but this: the readme for package indexes, with absolute links.

An index shows the readme without the repository around it, so relative links lead to ``[project.urls]``.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent


def readme() -> str:
    """Return README.md with links that work anywhere: pages lead to the site, other files to the source."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]

    def absolute(found: re.Match[str]) -> str:
        path, anchor = found[1], found[2] or ""
        if path.startswith("docs/") and path.endswith(".md"):
            page = path.removeprefix("docs/").removesuffix(".md")
            return f"]({urls['Documentation']}{page}.html{anchor})"
        return f"]({urls['Source']}{path}{anchor})"

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)", absolute, text)


if __name__ == "__main__":
    setup(long_description=readme(), long_description_content_type="text/markdown")
