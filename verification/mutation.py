"""Mutation testing of mechanisms, accounting, algorithms and peers: does a test notice each change?

    python -m verification.mutation [--file gradient.py] [--sample 40 --seed 1] [--resume] [--out FILE]

A mutant is one edit of one expression: a sign, an operator, a comparison or its boundary, a constant or an
index, a condition, a removed call. Words are left alone: docstrings, messages of errors, annotations,
`__all__`, how things print.

First every test file runs once, unchanged, and each test is noted with the time it took and the lines of our
sources it went through (kept in build/mutation/ until a source or the test file changes). A mutant then meets
the tests that pass through its lines, the quick ones first, until one fails. One process imports the heavy
libraries once and is forked for every run; the copy drops the mutated module and all that import it, and
imports them again from the changed text. The sources on disk are never touched.

Results are appended line by line to build/mutation.jsonl; --resume skips what is there. The score
is the share of mutants that a test notices; some survivors change nothing that can be observed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import select
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from verification import store

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"

MECHANISMS = [
    "mechanisms/base.py",
    "mechanisms/gradient.py",
    "objectives/clipping.py",
    "data/poisson_sampling.py",
]
ACCOUNTING = [
    f"accounting/{name}.py"
    for name in (
        "release",
        "accountant",
        "question",
        "calibration",
        "observation/averaging",
        "observation/consensus",
        "observation/coalitions",
    )
]
PEERS = [f"peers/{name}.py" for name in ("agreement_plan", "agreed_run", "node_program")]
NOT_ALGORITHMS = {"__init__.py", "registry.py"}

# Which tests may meet which part; within them the lines decide.
TESTS = {
    "objectives": ["tests/algorithms", "tests/objectives", "tests/data", "tests/peers/test_equivalence.py"],
    "data": ["tests/algorithms", "tests/objectives", "tests/data", "tests/peers/test_equivalence.py"],
    "mechanisms": ["tests/mechanisms", "tests/algorithms", "tests/peers/test_equivalence.py"],
    "accounting": ["tests/accounting", "tests/mechanisms", "tests/algorithms"],
    "algorithms": [
        "tests/algorithms",
        "tests/verification/test_recomputation.py",
        "tests/peers/test_equivalence.py",
    ],
    "peers": [
        "tests/peers/test_agreed_run.py",
        "tests/peers/test_equivalence.py",
        "tests/peers/test_agreement.py",
        "tests/peers/test_agreement_plan.py",
        "tests/ledger/test_charge.py",
        "tests/peers/test_run_keys.py",
        "tests/peers/test_runtime.py",
        "tests/verification/test_simulator.py",
        "tests/peers/test_core.py",
        "tests/peers/test_node_program.py",
    ],
}
SETTINGS = [
    "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--no-summary", "-o",
    "addopts=--strict-markers --import-mode=importlib", "-m", "not slow and not paper",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
]  # fmt: skip
# meet mutants inside compiled functions, interpreted
COMPILED = ("tests/mechanisms/test_gradient.py", "tests/objectives/test_clipping.py")
QUICK = 30.0  # seconds of tests, measured unchanged, that one mutant meets at most
LONG = 90.0  # seconds after which a whole test file is given up while lines are noted


# ---- mutants ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """One edit: bytes [start, end) of a file replaced; lines (first, last) tell which tests meet it."""

    file: str
    where: str
    first: int
    last: int
    column: int
    start: int
    end: int
    what: str
    before: str
    after: str
    at_import: bool
    compiled: bool = False

    def applied(self, source: bytes) -> bytes:
        """Return the source with the edit."""
        return source[: self.start] + self.after.encode() + source[self.end :]


SWAPS: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Div,), ast.Mod: (ast.Mult,), ast.Pow: (ast.Mult,), ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,), ast.BitXor: (ast.BitOr,), ast.LShift: (ast.RShift,), ast.RShift: (ast.LShift,),
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.And: (ast.Or,), ast.Or: (ast.And,),
}  # fmt: skip
TWINS = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor",
         "minimum": "maximum", "maximum": "minimum", "cumsum": "cumprod"}  # fmt: skip
# calls with one argument that only change the type, so that leaving them out is no change worth a test
CASTS = {"int", "float", "bool", "tuple", "list", "set", "str", "sorted", "dict", "len", "range", "frozenset",
         "array", "asarray", "ascontiguousarray", "super", "type", "getattr", "repr", "iter", "enumerate",
         "cast", "TypeVar", "field", "id", "vars", "fields", "reversed", "replace", "next", "tolist", "items",
         "values", "keys", "append", "add", "hex", "encode", "decode", "join", "isoformat"}  # fmt: skip
LIBRARIES = {"np", "math", "torch", "itertools", "_validate", "sparse", "json", "hashlib", "mpmath", "graphs"}
SPOKEN = {"__repr__", "__str__", "describe", "_described", "_cost", "cost", "adversary_words"}


class _Finder:
    """Walk over the expressions of a module that say something about numbers."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source = file, source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.mutants: list[Mutant] = []
        self.where: list[str] = []
        self.inside = 0
        self.compiled = False

    def all(self) -> list[Mutant]:
        self.body(ast.parse(self.source).body)
        return self.mutants

    def add(self, node: Any, what: str, after: str, statement: bool = False) -> None:
        start = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[node.end_lineno - 1] + node.end_col_offset
        before = self.source[start:end].decode()
        after = after if statement else f"({after})"
        self.mutants.append(
            Mutant(self.file, ".".join(self.where), node.lineno, node.end_lineno, node.col_offset, start, end,
                   what, before, after, not self.inside, self.compiled)
        )  # fmt: skip

    def body(self, statements: Iterable[Any]) -> None:
        for statement in statements:
            self.statement(statement)

    def statement(self, node: Any) -> None:
        if isinstance(node, (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.Global, ast.Pass)):
            return
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name in SPOKEN:
                return
            for default in [*node.args.defaults, *node.args.kw_defaults]:
                self.expression(default)
            outer, self.compiled = (
                self.compiled,
                self.compiled or any("njit" in ast.unparse(d) for d in node.decorator_list),
            )
            self.where.append(node.name)
            self.inside += 1
            self.body(node.body)
            self.inside -= 1
            self.where.pop()
            self.compiled = outer
        elif isinstance(node, ast.ClassDef):
            if any(isinstance(b, ast.Name) and b.id == "Protocol" for b in node.bases):
                return  # a structural type
            self.where.append(node.name)
            self.body(node.body)
            self.where.pop()
        elif isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Constant):
                return
            if isinstance(node.value, ast.Call):
                self.add(node, "call removed", "pass", statement=True)
            self.expression(node.value)
        elif isinstance(node, ast.AnnAssign):
            self.expression(node.value)
        elif isinstance(node, ast.Assign):
            if not any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
                self.expression(node.value)
                for target in node.targets:
                    self.expression(target)
        elif isinstance(node, ast.AugAssign):
            for other in SWAPS.get(type(node.op), ()):
                changed = copy.copy(node)
                changed.op = other()
                self.add(node, "operator", ast.unparse(changed), statement=True)
            self.expression(node.value)
            self.expression(node.target)
        elif isinstance(node, ast.If):
            if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                return
            self.condition(node.test)
            self.body(node.body)
            self.body(node.orelse)
        elif isinstance(node, ast.While):
            self.expression(node.test)
            self.body(node.body)
        else:  # for, with, return, try and the rest: their expressions, then their bodies
            for name, value in ast.iter_fields(node):
                if name in ("body", "orelse", "finalbody"):
                    self.body(value)
                elif name == "handlers":
                    for handler in value:
                        self.body(handler.body)
                elif name == "items":
                    for item in value:
                        self.expression(item.context_expr)
                elif isinstance(value, ast.expr):
                    self.expression(value)

    def condition(self, test: Any) -> None:
        if not isinstance(test, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
            self.add(test, "condition", f"not ({ast.unparse(test)})")
        self.expression(test)

    def expression(self, node: Any) -> None:
        if node is None or isinstance(node, ast.JoinedStr):
            return  # words
        if isinstance(node, (ast.BinOp, ast.BoolOp)):
            text_join = isinstance(node, ast.BinOp) and any(
                isinstance(side, ast.JoinedStr)
                or (isinstance(side, ast.Constant) and isinstance(side.value, str))
                for side in (node.left, node.right)
            )
            for other in () if text_join else SWAPS.get(type(node.op), ()):
                changed = copy.copy(node)
                changed.op = other()
                self.add(node, "operator", ast.unparse(changed))
        elif isinstance(node, ast.UnaryOp):
            if isinstance(node.op, (ast.USub, ast.Not, ast.Invert)):
                self.add(
                    node, "sign" if isinstance(node.op, ast.USub) else "condition", ast.unparse(node.operand)
                )
        elif isinstance(node, ast.Compare):
            for place, op in enumerate(node.ops):
                for other in SWAPS.get(type(op), ()):
                    changed = copy.copy(node)
                    changed.ops = [*node.ops[:place], other(), *node.ops[place + 1 :]]
                    self.add(node, "comparison", ast.unparse(changed))
        elif isinstance(node, ast.Constant):
            self.constant(node)
        elif isinstance(node, ast.IfExp):
            self.condition(node.test)
            self.expression(node.body)
            self.expression(node.orelse)
            return
        elif isinstance(node, ast.Call):
            self.call(node)
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.comprehension):
                self.expression(child.iter)
                for test in child.ifs:
                    self.condition(test)
            elif isinstance(child, ast.expr):
                self.expression(child)
            elif isinstance(child, ast.arguments):
                for default in [*child.defaults, *child.kw_defaults]:
                    self.expression(default)

    def constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.add(node, "constant", repr(not value))
        elif isinstance(value, int):
            self.add(node, "constant", repr(value + 1))
        elif isinstance(value, float):
            self.add(node, "constant", repr(2 * value if value else 1.0))

    def removed(self, node: ast.Call) -> None:
        """Leave out a call that has one thing to give back instead: its argument, or what it is called on."""
        on = node.func.value if isinstance(node.func, ast.Attribute) else None
        library = isinstance(on, ast.Name) and on.id in LIBRARIES
        if on is not None and not library and len(node.args) <= 1 and not _is_self(on):
            self.add(node, "call removed", ast.unparse(on))
        elif len(node.args) == 1 and not isinstance(node.args[0], ast.Starred):
            self.add(node, "call removed", ast.unparse(node.args[0]))

    def call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in ("InvalidInput", "TypeVar", "NewType"):
            return
        if name in TWINS:
            changed = copy.deepcopy(node)
            if isinstance(changed.func, ast.Name):
                changed.func.id = TWINS[name]
            else:
                changed.func.attr = TWINS[name]  # type: ignore[attr-defined]
            self.add(node, "twin", ast.unparse(changed))
        elif not node.keywords and name not in CASTS and not name[:1].isupper():
            self.removed(node)
        if isinstance(node.func, ast.Attribute):
            self.expression(node.func.value)
        for child in node.args:
            self.expression(child.value if isinstance(child, ast.Starred) else child)
        for keyword in node.keywords:
            self.expression(keyword.value)


def _is_self(node: Any) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def mutants_of(file: str) -> list[Mutant]:
    """Return every mutant of one source, named from the package's folder."""
    return _Finder(file, (SRC / "sottovoce" / file).read_bytes()).all()


def targets() -> list[str]:
    """Return the sources that are mutated."""
    algorithms = sorted(
        f"algorithms/{p.name}"
        for p in (SRC / "sottovoce" / "algorithms").glob("*.py")
        if p.name not in NOT_ALGORITHMS
    )
    return [*MECHANISMS, *ACCOUNTING, *algorithms, *PEERS]


# ---- forks ------------------------------------------------------------------------------------------------


def forked(work: Callable[[], Any], timeout: float) -> Any:
    """Run ``work`` in a copy of this process; return its answer, or None if it died or took too long."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(reading)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        code = 1
        try:
            data = json.dumps(work()).encode()
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(data)
            code = 0
        except BaseException:
            code = 1
        finally:
            os._exit(code)
    os.close(writing)
    received, limit = bytearray(), time.monotonic() + timeout
    try:
        while True:
            left = limit - time.monotonic()
            if left <= 0 or not select.select([reading], [], [], left)[0]:
                return None
            chunk = os.read(reading, 1 << 16)
            if not chunk:
                break
            received += chunk
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return json.loads(received) if received else None


def preload() -> None:
    """Import what is heavy and does not change."""
    directory = os.path.join(tempfile.gettempdir(), "sottovoce-mutants")
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", directory)
    sys.path.insert(0, str(SRC))
    for name in ("numpy", "scipy.sparse.csgraph", "scipy.stats", "scipy.optimize", "scipy.special", "numba",
                 "pytest", "_pytest.assertion", "hypothesis", "mpmath", "networkx", "dp_accounting",
                 "dp_accounting.pld.privacy_loss_distribution", "sklearn.base", "torch", "pydantic",
                 "cryptography.hazmat.primitives.asymmetric.x25519", "cryptography.x509",
                 "grpc"):  # fmt: skip
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    importlib.import_module("sottovoce")
    for name in sorted(importers()):
        if name.split(".")[1:2] in (
            ["algorithms"],
            ["objectives"],
            ["privacy"],
            ["peers"],
            ["data"],
            ["runners"],
        ):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


@lru_cache(maxsize=1)
def importers() -> dict[str, set[str]]:
    """Return, per module of ours, the modules of ours that it imports, at the top or inside functions.

    Packages hand out names on first use, so a name taken from a package counts as the modules that define it.
    """
    trees, packages = {}, set()
    for path in (SRC / "sottovoce").rglob("*.py"):
        parts = path.relative_to(SRC).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = ast.parse(path.read_bytes())
        if parts[-1] == "__init__":
            packages.add(name)
    defined: dict[str, set[str]] = {}
    for name, tree in trees.items():
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                defined.setdefault(node.name, set()).add(name)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                marks = node.targets if isinstance(node, ast.Assign) else [node.target]
                for mark in marks:
                    if isinstance(mark, ast.Name):
                        defined.setdefault(mark.id, set()).add(name)
    imported: dict[str, set[str]] = {}
    for name, tree in trees.items():
        used: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                used |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
                if node.module in packages:
                    used |= {module for alias in node.names for module in defined.get(alias.name, ())}
        imported[name] = used & set(trees) - {name}
    return imported


def affected(module: str) -> set[str]:
    """Return the module and all that import it, directly or not."""
    reached, graph = {module}, importers()
    while True:
        more = {name for name, used in graph.items() if used & reached} - reached
        if not more:
            return reached
        reached |= more


class _Changed(importlib.machinery.SourceFileLoader):
    """Load one module from a changed text, and leave no bytecode behind."""

    def __init__(self, name: str, path: str, text: bytes) -> None:
        super().__init__(name, path)
        self.text = text

    def get_code(self, fullname: str) -> Any:
        return compile(self.text, self.path, "exec", dont_inherit=True)


class _Finding(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, path: str, text: bytes) -> None:
        self.name, self.path, self.text = name, path, text

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self.name:
            return None
        loader = _Changed(fullname, self.path, self.text)
        return importlib.util.spec_from_file_location(fullname, self.path, loader=loader)


def install(file: str, text: bytes) -> None:
    """Replace one module of ours, and forget all that were made with the old one."""
    module = "sottovoce." + file.removesuffix(".py").replace("/", ".")
    for name in affected(module):
        sys.modules.pop(name, None)
        above, _, last = name.rpartition(".")
        if above in sys.modules:  # a package that stays must not hand out the old one
            vars(sys.modules[above]).pop(last, None)
    sys.meta_path.insert(0, _Finding(module, str(SRC / "sottovoce" / file), text))
    importlib.import_module("sottovoce")
    for name in [n for n in sys.modules if n.startswith("sottovoce.")]:  # kept ones belong to new packages
        above, _, last = name.rpartition(".")
        if above in sys.modules and not hasattr(sys.modules[above], last):
            setattr(sys.modules[above], last, sys.modules[name])


# ---- which tests go through which lines -------------------------------------------------------------------


class _Notes:
    """A plugin: per test its outcome, the time it took, and the lines of the targets it went through."""

    def __init__(self, files: Sequence[str]) -> None:
        self.paths = {str(SRC / "sottovoce" / file): file for file in files}
        self.tests: dict[str, dict[str, Any]] = {}
        self.lines: set[tuple[str, int]] = set()

    def _local(self, frame: Any, event: str, arg: Any) -> Any:
        if event == "line":
            self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._local

    def _global(self, frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename not in self.paths:
            return None
        self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._local

    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> Any:
        from _pytest.runner import runtestprotocol

        self.lines = set()
        begin = time.perf_counter()
        threading.settrace(self._global)
        sys.settrace(self._global)
        try:
            reports = runtestprotocol(item, nextitem=nextitem, log=True)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
        passed = all(r.passed for r in reports)
        lines: dict[str, list[int]] = {}
        for path, line in self.lines:
            lines.setdefault(self.paths[path], []).append(line)
        self.tests[item.nodeid] = {
            "seconds": time.perf_counter() - begin, "passed": passed,
            "skipped": any(r.skipped for r in reports),
            "lines": {file: sorted(numbers) for file, numbers in lines.items()},
        }  # fmt: skip
        return True


class _Chosen:
    """A plugin: only the chosen tests, in their order; the first failure is remembered."""

    def __init__(self, chosen: Sequence[str]) -> None:
        self.order = {name: place for place, name in enumerate(chosen)}
        self.failed: str | None = None

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.order), key=lambda i: self.order[i.nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid


def test_files(names: Iterable[str]) -> list[str]:
    """Return the test files of files and folders."""
    paths: list[str] = []
    for name in names:
        path = ROOT / name
        files = sorted(path.glob("test_*.py")) if path.is_dir() else [path]
        paths += [str(f.relative_to(ROOT)) for f in files if f.exists()]
    return list(dict.fromkeys(paths))


@lru_cache(maxsize=1)
def _sources_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted((SRC / "sottovoce").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def survey(files: Sequence[str], cache: Path, refresh: bool) -> dict[str, dict[str, Any]]:
    """Return the notes about every test of some test files, from the cache where nothing changed."""
    cache.mkdir(parents=True, exist_ok=True)
    notes: dict[str, dict[str, Any]] = {}
    for place, file in enumerate(files, 1):
        stamp = hashlib.sha256((ROOT / file).read_bytes() + _sources_digest().encode()).hexdigest()
        stored = cache / (file.replace("/", "-") + ".json")
        if stored.exists() and not refresh:
            known = json.loads(stored.read_text())
            if known["stamp"] == stamp:
                notes |= known["tests"]
                continue
        print(f"\rnoting lines: {place} of {len(files)}, {file:50}", end="", file=sys.stderr, flush=True)

        def work(file: str = file) -> Any:
            import pytest

            plugin = _Notes(targets())
            settings = [s for s in SETTINGS if s != "-x"]
            pytest.main([*settings, str(ROOT / file), f"--rootdir={ROOT}"], plugins=[plugin])
            return plugin.tests

        tests = forked(work, 4 * LONG)
        if not tests:
            print(f"\n{file} gave no answer; its tests are left out.", file=sys.stderr)
            continue
        stored.write_text(json.dumps({"stamp": stamp, "tests": tests}))
        notes |= tests
    return notes


def chosen_tests(mutant: Mutant, notes: dict[str, dict[str, Any]], most: float) -> tuple[list[str], float]:
    """Return the passing tests that go through a mutant's lines, quick ones first, and their time in all."""
    span = range(mutant.first, mutant.last + 1)
    touching = {name.split("::")[0] for name, note in notes.items() if mutant.file in note["lines"]}
    meeting = []
    for name, note in notes.items():
        lines = note["lines"].get(mutant.file, ())
        if mutant.compiled:  # no tracer sees compiled lines
            meets = name.startswith(COMPILED)
        else:
            meets = any(n in span for n in lines)
            if mutant.at_import:  # a constant is read without going through a line of its module
                meets = name.split("::")[0] in touching
        if note["passed"] and meets:
            meeting.append((note["seconds"], name))
    picked, total = [], 0.0
    for seconds, name in sorted(meeting):
        if picked and total + seconds > most:
            break
        picked.append(name)
        total += seconds
    return picked, total


# ---- one mutant -------------------------------------------------------------------------------------------


def judge(mutant: Mutant, notes: dict[str, dict[str, Any]], most: float) -> dict[str, Any]:
    """Return what became of one mutant: killed, by which test, or survived."""
    begin = time.perf_counter()
    source = (SRC / "sottovoce" / mutant.file).read_bytes()
    result = {
        "file": mutant.file, "line": mutant.first, "column": mutant.column, "where": mutant.where,
        "what": mutant.what,
        "before": mutant.before, "after": mutant.after,
        "text": source.decode().splitlines()[mutant.first - 1].strip(),
    }  # fmt: skip
    text = mutant.applied(source)
    try:
        compile(text, mutant.file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return result | {"verdict": "killed", "by": "syntax", "tests": 0, "seconds": 0.0}
    tests, total = chosen_tests(mutant, notes, most)
    if not tests:
        return result | {"verdict": "untested", "by": None, "tests": 0, "seconds": 0.0}

    by_file: dict[str, list[str]] = {}
    for name in tests:
        by_file.setdefault(name.split("::")[0], []).append(name)
    each = {file: sum(notes[n]["seconds"] for n in some) / len(some) for file, some in by_file.items()}
    by_file = {file: by_file[file] for file in sorted(by_file, key=lambda file: each[file])}

    def work() -> Any:
        try:
            if mutant.compiled:  # else the compiler's cache on disk would answer for the unchanged text
                import numba

                numba.config.DISABLE_JIT = True
            install(mutant.file, text)
        except Exception as error:
            return ["killed", f"import: {type(error).__name__}"]
        import pytest

        for file, some in by_file.items():  # one by one: most mutants are noticed before the second is read
            plugin = _Chosen(some)
            code = pytest.main([*SETTINGS, str(ROOT / file), f"--rootdir={ROOT}"], plugins=[plugin])
            if code != 0:
                return ["killed", plugin.failed or f"pytest ended with {int(code)} in {file}"]
        return ["survived", None]

    answer = forked(work, 15 + 5 * total)
    verdict, by = answer or ("killed", "no answer in time")
    seconds = round(time.perf_counter() - begin, 2)
    return result | {"verdict": verdict, "by": by, "tests": len(tests), "seconds": seconds}


def tells(file: str, test: str, seconds: float, compiled: bool) -> bool:
    """Whether a test passes when a source is put in again unchanged; one that fails tells nothing."""

    def work() -> Any:
        if compiled:
            import numba

            numba.config.DISABLE_JIT = True
        install(file, (SRC / "sottovoce" / file).read_bytes())
        import pytest

        settings = [*SETTINGS, str(ROOT / test.split("::")[0]), f"--rootdir={ROOT}"]
        return int(pytest.main(settings, plugins=[_Chosen([test])]))

    return bool(forked(work, 60 + 5 * seconds) == 0)


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the share of killed mutants, in all and by file, and the survivors."""
    survivors = [r for r in results if r["verdict"] != "killed"]
    killed = len(results) - len(survivors)
    files: dict[str, Counter[str]] = {}
    for r in results:
        files.setdefault(r["file"], Counter())[r["verdict"]] += 1
    keys = ("file", "line", "where", "text", "what", "before", "after", "verdict")
    return {
        "mutants": len(results),
        "killed": killed,
        "score": round(killed / max(len(results), 1), 4),
        "by_file": {name: dict(count) for name, count in sorted(files.items())},
        "survivors": [{key: r[key] for key in keys} for r in survivors],
    }


def spread(mutants: list[Mutant], size: int, seed: int) -> list[Mutant]:
    """Return a sample, as many of every file as its share says and at least one."""
    rng = random.Random(seed)
    by_file: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        by_file.setdefault(mutant.file, []).append(mutant)
    picked = []
    for of_file in by_file.values():
        share = max(1, round(size * len(of_file) / len(mutants)))
        picked += rng.sample(of_file, min(share, len(of_file)))
    return sorted(picked, key=lambda m: (m.file, m.start))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--file", action="append", help="only sources whose name ends so; may be repeated")
    parser.add_argument("--sample", type=int, help="only so many mutants, spread over the files")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--line", type=int, help="only mutants of this line")
    parser.add_argument("--list", action="store_true", help="print the mutants and end")
    parser.add_argument(
        "--again", action="store_true", help="only what survived before, anew (with --resume)"
    )
    parser.add_argument(
        "--lines", type=Path, default=Path("build/mutation.jsonl"), help="results, one line each"
    )
    parser.add_argument("--resume", action="store_true", help="keep the lines there are and go on")
    parser.add_argument("--limit", type=int, help="end after so many mutants of this call")
    parser.add_argument("--seconds", type=float, help="end after so many seconds")
    parser.add_argument("--most", type=float, default=QUICK, help="seconds of tests one mutant meets at most")
    parser.add_argument("--tests", action="append", help="test files or folders in place of the usual ones")
    parser.add_argument("--part", default="0/1", help="i/k: only every k-th mutant, from the i-th on")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "mutation")
    parser.add_argument("--refresh", action="store_true", help="note the lines of all tests anew")
    parser.add_argument("--out", type=Path, help="where the record goes when all mutants are done")
    return parser


def identity(result: dict[str, Any]) -> tuple[Any, ...]:
    """What a result is about, as far as the source has not changed."""
    return tuple(result[key] for key in ("file", "line", "column", "what", "before", "after"))


def main() -> int:
    options = _parser().parse_args()
    files = [f for f in targets() if not options.file or any(f.endswith(name) for name in options.file)]
    mutants = [m for file in files for m in mutants_of(file)]
    if options.line:
        mutants = [m for m in mutants if m.first <= options.line <= m.last]
    if options.sample:
        mutants = spread(mutants, options.sample, options.seed)
    if options.list:
        for m in mutants:
            print(f"{m.file}:{m.first} {m.where}: {m.what}: {m.before!r} -> {m.after!r}")
        print(len(mutants))
        return 0
    options.lines.parent.mkdir(parents=True, exist_ok=True)
    if not options.resume:
        options.lines.unlink(missing_ok=True)
    known = (
        [json.loads(line) for line in options.lines.read_text().splitlines()]
        if options.lines.exists()
        else []
    )
    latest = {identity(r): r for r in known}  # a later line about the same mutant counts
    wanted = {(m.file, m.first, m.column, m.what, m.before, m.after): m for m in mutants}
    results = {key: latest[key] for key in wanted if key in latest}
    if options.again:
        results = {k: r for k, r in results.items() if r["verdict"] == "killed"}
    part, parts = (int(x) for x in options.part.split("/"))
    waiting = [(k, m) for i, (k, m) in enumerate(wanted.items()) if i % parts == part and k not in results]
    stop: list[int] = []
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, lambda number, frame: stop.append(number))
    preload()
    areas = dict.fromkeys(m.file.split("/")[0] for _, m in waiting)
    names = options.tests or [name for area in areas for name in TESTS[area]]
    notes = survey(test_files(names), options.cache, options.refresh)
    broken = [name for name, note in notes.items() if not note["passed"] and not note["skipped"]]
    if broken:
        print(
            f"\n{len(broken)} tests fail unchanged and are left out: {', '.join(broken[:5])}", file=sys.stderr
        )
    begin = time.perf_counter()
    sound: dict[tuple[str, str, bool], bool] = {}  # whether a test that killed a mutant passes unchanged
    with options.lines.open("a") as lines:
        for count, (key, mutant) in enumerate(waiting[: options.limit], 1):
            if stop or (options.seconds and time.perf_counter() - begin > options.seconds):
                break
            met = {n: note for n, note in notes.items() if sound.get((mutant.file, n, mutant.compiled), True)}
            result = judge(mutant, met, options.most)
            while result["verdict"] == "killed" and result["by"] in met:
                test = (mutant.file, result["by"], mutant.compiled)
                if test not in sound:
                    sound[test] = tells(*test[:2], met[test[1]]["seconds"], mutant.compiled)
                if sound[test]:
                    break
                print(f"\n{test[1]} fails with {mutant.file} put in again unchanged", file=sys.stderr)
                del met[test[1]]
                result = judge(mutant, met, options.most)
            results[key] = result
            lines.write(json.dumps(result) + "\n")
            lines.flush()
            if result["verdict"] != "killed":
                print(
                    f"\r{result['verdict']}: {mutant.file}:{mutant.first} {mutant.where}: "
                    f"{mutant.before!r} -> {mutant.after!r}"
                )
            each = (time.perf_counter() - begin) / count
            print(
                f"\r{len(results)} of {len(wanted)}, {each:.1f} s each ", end="", file=sys.stderr, flush=True
            )
    print(file=sys.stderr)
    score = summary(list(results.values()))
    record = {
        "what": "small changes of mechanisms, accounting, algorithms and peers, and whether a test notices",
        "command": " ".join(["python -m verification.mutation", *_selection(options)]),
        "complete": len(results) == len(wanted),
        **score,
    }
    print(json.dumps(record, indent=2))
    if options.out and record["complete"]:
        store(options.out, "mutation", record)
    return 0


def _selection(options: argparse.Namespace) -> Iterator[str]:
    for name in options.file or ():
        yield f"--file {name}"
    if options.sample:
        yield f"--sample {options.sample} --seed {options.seed}"


if __name__ == "__main__":
    raise SystemExit(main())
