"""The layers of the package: a module imports only from layers below its own."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
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


def uses(path: Path, known: dict[str, Path], *, types: bool = False) -> set[str]:
    """The modules that one imports, at its head or inside a function; ``types``: for the type checker too."""
    tree = parsed(path)
    typing = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    names = set()
    for node in ast.walk(tree):
        if node in typing and not types:
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


def test_imports_go_downwards():
    known, upward = modules(), []
    for path in ROOT.rglob("*.py"):
        own = LEVEL[path.relative_to(ROOT).parts[0].removesuffix(".py")]
        others = uses(path, known, types=True)
        upward += [f"{path.name} imports {name}" for name in others if LEVEL[name.split(".")[1]] > own]
    assert upward == []


def test_imports_have_no_cycles():
    """Lazy imports count: a ring that only a call closes still cannot be read from one end."""
    known = modules()
    TopologicalSorter({name: uses(path, known) for name, path in known.items()}).prepare()


def test_a_cycle_is_detected(tmp_path):
    head, inside = tmp_path / "a.py", tmp_path / "b.py"
    head.write_text("from sottovoce.b import x\n")
    inside.write_text("def f():\n    from sottovoce import a\n")
    known = {"sottovoce.a": head, "sottovoce.b": inside, "sottovoce": tmp_path / "c.py"}
    with pytest.raises(CycleError):
        TopologicalSorter(
            {name: uses(known[name], known) for name in ("sottovoce.a", "sottovoce.b")}
        ).prepare()


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
