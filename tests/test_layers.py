"""The layers of the package: a module imports only from layers below its own."""

import ast
from pathlib import Path

import pytest

import sottovoce

ROOT = Path(sottovoce.__file__).parent
LAYERS = [
    {"errors", "_validate", "_files", "_shown", "__init__"},
    {"graphs"},
    {"protocols"},
    {"privacy"},
    {"data"},
    {"objectives"},
    {"runners"},
    {"algorithms"},
    {"attacks"},
    {"advice"},
    {"peers"},
    {"experiments"},
    {"report"},
    {"sklearn", "studies", "own_models", "fitting"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def layer_of(dotted: str) -> str:
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            base = node.module
            found |= {f"{base}.{alias.name}" for alias in node.names} if base == "sottovoce" else {base}
    return {name for name in found if name.split(".")[0] == "sottovoce"}


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_downwards(path):
    relative = path.relative_to(ROOT)
    own = relative.parts[0].removesuffix(".py")
    upward = {name for name in imported(path) if LEVEL.get(layer_of(name), 0) > LEVEL[own]}
    assert not upward, f"{relative} imports from a higher layer: {sorted(upward)}"


def test_every_module_has_a_layer():
    assert {p.name.removesuffix(".py") for p in ROOT.iterdir() if p.suffix == ".py" or p.is_dir()} - {
        "__pycache__", "py.typed"} <= set(LEVEL)  # fmt: skip
