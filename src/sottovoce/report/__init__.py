"""Reports from results: figures, tables of guarantees in plain words, one self-contained page.

To add a section for a result of your own, write a function from a result (a dict with name, config, metrics,
history, guarantees, provenance) to a `Section`, and return it from a function of the name that is an entry
point in the group ``sottovoce.report_sections``. Other results get a general one: settings, numbers, lists of
rows as tables, curves of their history, and guarantees.
"""

from __future__ import annotations

from sottovoce._lazy import lazy_names

_MODULES = {
    "page": ("build",),
    "notebook": ("html", "plot", "report"),
    "sections": ("SECTIONS", "Figure", "Section", "Table", "section_of"),
    "result_files": ("read_result", "write_result"),
}
_NAMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = list(_NAMES)
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
