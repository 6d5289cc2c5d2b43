"""Inputs that several tests of reports share."""

import pytest

from .example_inputs import write_inputs


@pytest.fixture(scope="package")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("inputs"))
