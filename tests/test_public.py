"""What the package offers: every ``__all__`` is true, and every public name shows how it is used."""

import importlib
import inspect
import pkgutil

import pytest

import sottovoce

FOUND = (module.name for module in pkgutil.walk_packages(sottovoce.__path__, "sottovoce."))
MODULES = ["sottovoce", *sorted(name for name in FOUND if "__main__" not in name)]


def offered(module):
    """(name, object) of the classes and functions a module offers as its own."""
    for name in getattr(module, "__all__", ()):
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            if thing.__module__.startswith("sottovoce"):
                yield name, thing


@pytest.mark.parametrize("name", MODULES)
def test_all_is_true(name):
    module = importlib.import_module(name)
    listed = getattr(module, "__all__", [])
    assert len(set(listed)) == len(listed), f"{name}.__all__ lists a name twice"
    missing = [entry for entry in listed if not hasattr(module, entry)]
    assert not missing, f"{name}.__all__ promises {missing}"


@pytest.mark.parametrize("name", MODULES)
def test_modules_and_public_names_say_what_they_are(name):
    module = importlib.import_module(name)
    assert (module.__doc__ or "").strip() or not hasattr(module, "__all__"), f"{name} has no docstring"
    silent = [entry for entry, thing in offered(module) if not (thing.__doc__ or "").strip()]
    assert not silent, f"no docstring in {name}: {silent}"


@pytest.mark.parametrize("name", [name for name in MODULES if name.count(".") <= 1 and "cli" not in name])
def test_every_public_name_has_an_example(name):
    """What ``sv.NAME`` and ``sv.PACKAGE.NAME`` reach; helpers of single modules may do without."""
    bare = [
        entry
        for entry, thing in offered(importlib.import_module(name))
        if not (inspect.isclass(thing) and issubclass(thing, Exception))
        and ">>>" not in (thing.__doc__ or "")
    ]
    assert not bare, f"no >>> example in {name}: {bare}"


def test_the_test_sees_what_is_missing():
    module = inspect.getmodule(test_all_is_true)
    names = {entry for entry, _ in offered(importlib.import_module("sottovoce.graphs"))}
    assert {"Network", "ring", "parse"} <= names
    assert not list(offered(module))
