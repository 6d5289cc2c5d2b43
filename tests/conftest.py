"""Settings for every test."""

import os

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, however busy the machine: a failure is a change of the code.
settings.register_profile(
    "steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


@pytest.fixture(autouse=True)
def the_terminal_stays_as_it_was():
    """Whoever tells the process how wide its terminal is takes it back: other tests read what is printed."""
    names = ("COLUMNS", "LINES", "TERM", "FORCE_COLOR", "NO_COLOR")
    before = {name: os.environ.get(name) for name in names}
    yield
    assert {name: os.environ.get(name) for name in names} == before
