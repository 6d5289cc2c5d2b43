"""Public names of a package that are imported on first use, because numba, torch and scipy load slowly."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    module: str, names: Mapping[str, str], package: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a module from a table: name, and where it is defined.

    Places are relative to ``package``, by default the module itself; an empty one is a submodule.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        defining = importlib.import_module(f"{package or module}.{names[name] or name}")
        return getattr(defining, name) if names[name] else defining

    return get, lambda: sorted(names)
