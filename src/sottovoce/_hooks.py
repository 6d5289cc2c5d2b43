"""Methods of lower packages that upper packages implement: notebook display, reports, ONNX files.

These are the only upward references in the package. They are resolved by name on first use.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HOOKS: dict[str, str] = {
    "Result.report": "sottovoce.report.notebook:report",
    "Fitted.to_onnx": "sottovoce.integrations.onnx_files:write_onnx",
    "NotebookDisplay.html": "sottovoce.report.notebook:html",
    "NotebookDisplay.plot": "sottovoce.report.notebook:plot",
}


def hook(name: str) -> Callable[..., Any]:
    """Return the function that implements the method ``name``."""
    module, _, function = _HOOKS[name].partition(":")
    implementation: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return implementation


class NotebookDisplay:
    """Mixin with `_repr_html_` and `plot`; rendering lives in `sottovoce.report`."""

    def _repr_html_(self) -> str:
        return str(hook("NotebookDisplay.html")(self))

    def plot(self, ax: Axes | None = None, **options: object) -> Axes:
        """Draw into matplotlib axes (new ones if ``ax`` is None) and return them.

        The options are those of `sottovoce.report.plot`.
        """
        axes: Axes = hook("NotebookDisplay.plot")(self, ax, **options)
        return axes
