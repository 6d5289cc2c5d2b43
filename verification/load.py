"""Modules of this checkout that no package holds: lists of cases in the tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import sottovoce

ROOT = Path(sottovoce.__file__).resolve().parents[2]  # the checkout whose library is recorded


def load(path: str) -> ModuleType:
    """Return the module in a file, named from the root of the checkout."""
    name = "recorded_" + path.removesuffix(".py").replace("/", "_")
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{ROOT / path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
