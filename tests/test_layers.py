"""The layers of the package: a module imports only from layers below its own."""

import ast
from functools import cache
from pathlib import Path

import pytest

import sottovoce

ROOT = Path(sottovoce.__file__).parent
LAYERS = [
    {"errors", "_validate", "_io", "_format", "_hooks", "_lazy", "__init__"},
    {"graphs"},
    {"noise"},
    {"leakage"},
    {"protocols"},
    {"secure_sum"},
    {"accounting"},
    {"privacy"},
    {"ledger"},
    {"data"},
    {"objectives"},
    {"mechanisms"},
    {"runners"},
    {"algorithms"},
    {"attacks"},
    {"models"},
    {"planfile"},
    {"advice"},
    {"peers"},
    {"estimators", "sklearn"},
    {"integrations"},
    {"report"},
    {"demo"},
    {"cli"},
    {"templates"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def layer_of(dotted: str) -> str:
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            base = node.module
            names |= {f"{base}.{alias.name}" for alias in node.names} if base == "sottovoce" else {base}
    return {name for name in names if name.split(".")[0] == "sottovoce"}


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_downwards(path):
    relative = path.relative_to(ROOT)
    own = relative.parts[0].removesuffix(".py")
    upward = {name for name in imported(path) if LEVEL.get(layer_of(name), 0) > LEVEL[own]}
    assert not upward, f"{relative} imports from a higher layer: {sorted(upward)}"


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def modules() -> dict[str, Path]:
    """Every module by its dotted name; a package by that of its folder."""
    names = {}
    for path in ROOT.rglob("*.py"):
        parts = ("sottovoce", *path.relative_to(ROOT).with_suffix("").parts)
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def uses(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules that one imports, at its head or inside a function; for the type checker alone is none."""
    tree = parsed(path)
    typing = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    names = set()
    for node in ast.walk(tree):
        if node in typing:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports by dots"
            base = node.module or ""
            for alias in node.names:
                full = f"{base}.{alias.name}"
                names.add(full if full in known else base)
    return names & set(known) - {"sottovoce"}  # the root imports nothing before a name is used


def rings(graph: dict[str, set[str]]) -> list[list[str]]:
    """Modules that lead back to themselves, computed by taking away what leads nowhere."""
    left = {name: set(targets) for name, targets in graph.items()}
    while True:
        ends = {name for name, targets in left.items() if not targets & set(left)}
        if not ends:
            return [sorted(left)] if left else []
        left = {name: targets - ends for name, targets in left.items() if name not in ends}


def test_imports_have_no_cycles():
    """Lazy imports count: a ring that only a call closes still cannot be read from one end."""
    known = modules()
    assert rings({name: uses(path, known) for name, path in known.items()}) == []


def test_a_cycle_is_detected(tmp_path):
    head, inside = tmp_path / "a.py", tmp_path / "b.py"
    head.write_text("from sottovoce.b import x\n")
    inside.write_text("def f():\n    from sottovoce import a\n")
    known = {"sottovoce.a": head, "sottovoce.b": inside, "sottovoce": tmp_path / "c.py"}
    assert rings({name: uses(known[name], known) for name in ("sottovoce.a", "sottovoce.b")}) == [
        ["sottovoce.a", "sottovoce.b"]
    ]


def test_no_module_imports_its_own_package():
    """What a package hands out lazily lies in its modules: asking it from inside is a ring too."""
    known = modules()
    own = {
        name: package
        for name, path in known.items()
        for package in uses(path, known)
        if name.startswith(f"{package}.") and known[package].name == "__init__.py"
    }
    assert own == {}


def test_private_names_are_not_imported():
    """A helper that two modules use has a name of its own; modules of the package may begin with a line."""
    known, taken = modules(), []
    for name, path in known.items():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sottovoce"):
                taken += [
                    f"{name} takes {alias.name} from {node.module}"
                    for alias in node.names
                    if alias.name.startswith("_")
                    and not alias.name.startswith("__")
                    and f"{node.module}.{alias.name}" not in known
                ]
    assert taken == []


def test_the_library_does_not_import_the_papers():
    for path in ROOT.rglob("*.py"):
        assert "sottovoce_papers" not in path.read_text(), path


def test_every_module_has_a_layer():
    assert {p.name.removesuffix(".py") for p in ROOT.iterdir() if p.suffix == ".py" or p.is_dir()} - {
        "__pycache__", "py.typed"} <= set(LEVEL)  # fmt: skip
