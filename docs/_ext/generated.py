"""What the build writes by itself into docs/_generated: the reference, and the gallery of stored records."""

from __future__ import annotations

import importlib
import inspect
import types
from pathlib import Path
from typing import Any

import result_tables  # beside this file

FOLDER = "_generated"
# the packages of the reference, in the order of the layers, and what each is about
PACKAGES = {
    "sottovoce": "The names one needs first",
    "sottovoce.graphs": "Who can talk to whom",
    "sottovoce.protocols": "How they average",
    "sottovoce.privacy": "Privacy guarantees",
    "sottovoce.data": "Records and who holds them",
    "sottovoce.objectives": "What is minimized",
    "sottovoce.runners": "How plans are executed",
    "sottovoce.algorithms": "Plans: one per published algorithm",
    "sottovoce.attacks": "What an observer computes, and audits",
    "sottovoce.advice": "Which plan to take",
    "sottovoce.peers": "One organization, one process",
    "sottovoce.report": "Pages and pictures",
    "sottovoce.sklearn": "Estimators for scikit-learn",
    "sottovoce.errors": "Everything that is raised on purpose",
}


def write(docs: Path) -> None:
    """Write all generated pages; unchanged ones keep their time, so that a second build is quick."""
    folder = docs / FOLDER
    _write(folder / "api" / "index.rst", _index())
    for package, pages in reference().items():
        _write(folder / "api" / f"{package}.rst", pages)
    gallery(docs / "results", folder / "gallery")
    for name, table in result_tables.tables().items():
        _write(folder / "tables" / f"{name}.txt", table)
    _write(folder / "more.txt", more(docs))


def more(docs: Path) -> str:
    """Return a list of the pages that no other list names, so that a new guide is found at once."""
    named = {line.strip() for line in (docs / "index.md").read_text(encoding="utf-8").splitlines()}
    found = (page.relative_to(docs) for page in docs.rglob("*.md"))
    kept = (page for page in found if not page.parts[0].startswith("_") and page.parts[0] != "results")
    # the first page of a folder comes before its others
    pages = sorted(
        (page.with_suffix("").as_posix() for page in kept),
        key=lambda name: name.removesuffix("index"),
    )
    left = [page for page in pages if page not in named and page != "index"]
    return "\n".join(["```{toctree}", ":hidden:", ":maxdepth: 1", "", *left, "```", ""]) if left else ""


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


# ---- reference -------------------------------------------------------------------------------------------


def public() -> dict[str, dict[str, Any]]:
    """Return package -> name -> object, for every public name that is no package itself."""
    found = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        names = {name: getattr(module, name) for name in module.__all__}
        found[package] = {k: v for k, v in names.items() if not isinstance(v, types.ModuleType)}
    return found


def reference() -> dict[str, str]:
    """Return the page of every package; an object that several offer is described at its home."""
    offered = public()
    homes: dict[int, str] = {}
    for package in [*list(PACKAGES)[1:], "sottovoce"]:  # what sottovoce itself offers lives below, mostly
        for name, thing in offered[package].items():
            if callable(thing):
                homes.setdefault(id(thing), f"{package}.{name}")
    return {package: _page(package, names, homes) for package, names in offered.items()}


def _page(package: str, names: dict[str, Any], homes: dict[int, str]) -> str:
    lines = [package, "=" * len(package), "", PACKAGES[package] + ".", ""]
    there = {name: homes.get(id(thing), f"{package}.{name}") for name, thing in names.items()}
    lines += [".. autosummary::", "   :nosignatures:", ""]
    lines += [f"   ~{there[name]}" for name in sorted(names, key=str.lower) if callable(names[name])]
    lines += [""]
    for name in sorted(names, key=str.lower):
        thing, home = names[name], there[name]
        if home != f"{package}.{name}":
            continue
        if inspect.isclass(thing):
            lines += [f".. autoclass:: {home}", "   :members:", "   :show-inheritance:", ""]
        elif callable(thing) and hasattr(thing, "__name__"):
            lines += [f".. autofunction:: {home}", ""]
        else:
            lines += [f".. autodata:: {home}", "   :no-value:", ""]
    return "\n".join(lines)


def _index() -> str:
    lines = [
        "Reference", "=========", "",
        "Every public name, from its docstring; the examples run in the tests. "
        "``import sottovoce as sv``, then ``sv.graphs.ring(8)``.", "",
        ".. toctree::", "   :maxdepth: 1", "",
    ]  # fmt: skip
    lines += [f"   {package} ({about.lower()}) <{package}>" for package, about in PACKAGES.items()]
    return "\n".join([*lines, ""])


def teach_numpydoc() -> None:
    """Let numpydoc know our section *Guarantees*; it stands before the notes and the examples."""
    from numpydoc.docscrape import NumpyDocString
    from numpydoc.docscrape_sphinx import SphinxDocString

    if "Guarantees" in NumpyDocString.sections:
        return
    NumpyDocString.sections["Guarantees"] = []
    plain = SphinxDocString._str_section

    def with_guarantees(self: Any, name: str) -> list[str]:
        before = plain(self, "Guarantees") if name == "Notes" else []
        return before + plain(self, name)

    SphinxDocString._str_section = with_guarantees


def without_substitutions(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Take bars in docstrings for absolute values, which they are; reStructuredText would look for a name."""
    example = False
    for k, line in enumerate(lines):
        example = bool(line.strip()) and (example or line.lstrip().startswith(">>>"))
        if not example and not line.lstrip().startswith("| "):
            parts = line.split("``")  # every second part is literal
            lines[k] = "``".join(
                part if odd % 2 else part.replace("|", r"\|") for odd, part in enumerate(parts)
            )


def skipped(app: Any, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what scikit-learn adds to every estimator."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def formula(translator: Any, node: Any) -> None:
    """Write a formula as it stands in the docstring."""
    from docutils import nodes

    tag = "p" if isinstance(node, nodes.math_block) else "span"
    text = translator.encode(node.astext())
    translator.body.append(f'<{tag} class="math"><code>{text}</code></{tag}>')
    raise nodes.SkipNode


# ---- gallery ---------------------------------------------------------------------------------------------


def gallery(results: Path, folder: Path) -> None:
    """Draw every stored record that has a figure, and write what the paper says and whether it held."""
    from sottovoce_papers.drawing import save
    from sottovoce_papers.paper_index import stored_results
    from sottovoce_papers.registry import find

    sections = []
    for name, result in sorted(stored_results(results).items()):
        experiment, picture = find(name), folder / f"{name}.svg"
        if experiment.plot is None:
            continue
        source = results / f"{'table1' if name == 'figure1' else name}.json"
        if not picture.exists() or picture.stat().st_mtime < source.stat().st_mtime:
            folder.mkdir(parents=True, exist_ok=True)
            save(experiment.plot(result), picture)
        sections.append(_told(name, experiment, result))
    _write(folder / "all.txt", "\n".join(sections))


def _told(name: str, found: Any, record: dict[str, Any]) -> str:
    verdict = f"It {found.verdict(record)} here.".replace(" not ", " **not** ")
    alt = found.title.replace("[", "(").replace("]", ")")
    speaker = "Our own claim" if found.own else "The source says"
    said = f"{speaker}: {found.claim} {verdict}" if found.claim else ""
    return (
        f"## {found.title}\n\n{found.paper}. {said}\n\n![{alt}](/{FOLDER}/gallery/{name}.svg)\n\n"
        f"    sottovoce reproduce {name}\n"
    )
