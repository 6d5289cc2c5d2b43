"""Reports from results: figures, tables of guarantees in plain words, one self-contained page.

How to add a section for a result of your own
---------------------------------------------
Write a function from a result (a dict with name, config, metrics, history, guarantees, provenance) to a
`Section` in a module of this package, and add one line to `sottovoce.report.sections.SECTIONS`: the result's
name, and ``"module:function"``. Results without a section of their own get a general one: their settings,
numbers, curves of their history, and guarantees.
"""

from __future__ import annotations

from sottovoce._lazy import lazy_names

_NAMES = {
    "Figure": "elements", "Section": "elements", "Table": "elements",
    "build": "page", "html": "notebook", "plot": "notebook", "report": "notebook",
    "SECTIONS": "sections", "section_of": "sections",
    "read_result": "result_files", "write_result": "result_files",
}  # fmt: skip

__all__ = list(_NAMES)
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
