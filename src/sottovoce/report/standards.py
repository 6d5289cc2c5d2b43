"""Entries of the DP Deployments Registry and answers to the topics of NIST SP 800-226.

Both are filled from a result with a summary page, by ``templates/standards.json``; facts that a plan cannot
know are left to its members.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sottovoce.errors import DataError
from sottovoce.report.rendering import environment

MEMBERS = "To be filled in by the members."


def registry(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result as an entry of the Differential Privacy Deployments Registry (registry.opendp.org)."""
    entry: dict[str, Any] = _filled(result)["registry"]
    return entry


def nist(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the topics that NIST SP 800-226 asks an evaluation to cover, answered from a result."""
    answers: list[dict[str, str]] = _filled(result)["nist"]
    return answers


def _filled(result: Mapping[str, Any]) -> dict[str, Any]:
    if not (result.get("summary_page") or {}).get("stated"):
        raise DataError(
            f"The result {result.get('name')!r} states no guarantee, so no registry could list it; give a "
            "plan, an agreement or a statement."
        )
    text = environment().get_template("standards.json").render(result=result, members=MEMBERS)
    filled: dict[str, Any] = json.loads(text)
    return filled
