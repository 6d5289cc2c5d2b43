"""Records of users: tables, arrays and datasets."""

import numpy as np
import pytest

from sottovoce.data import TableData
from sottovoce.data.ingest import ingest
from sottovoce.errors import DataError, Refused

TABLE = {"age": [30, 70], "sex": ["f", "m"], "town": ["A", "B"], "ill": ["no", "yes"]}


def test_a_table_is_read_by_its_options():
    records = ingest(
        TableData(TABLE, "ill", "town", bounds={"age": (0, 100)}, categories={"sex": ["f", "m"]})
    )
    assert records.inputs.tolist() == [[-0.4, 1.0, 0.0], [0.4, 0.0, 1.0]]
    assert records.targets.tolist() == ["no", "yes"]
    assert records.groups.tolist() == ["A", "B"]
    assert records.columns.names == ("age", "sex=f", "sex=m")


def test_the_bounds_of_the_label_are_not_those_of_a_feature():
    table = TableData({"x": [1.0], "y": [5.0]}, "y", bounds={"x": (0, 2), "y": (0, 10)})
    assert (table.feature_bounds, table.label_bounds) == ({"x": (0, 2)}, (0, 10))
    assert ingest(table).inputs.tolist() == [[0.0]]


def test_a_column_without_bounds_is_refused_unless_standardizing_is_accepted():
    table = TableData({"x": [1.0, 3.0], "y": [0, 1]}, "y")
    with pytest.raises(Refused, match="has no public bounds"):
        ingest(table)
    records = ingest(table, accept=("standardize",))
    assert records.inputs.tolist() == [[-1.0], [1.0]]
    assert records.columns.uncharged == ("standardize",)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (TableData(TABLE), "label must name the column"),
        (TableData(TABLE, "sick"), "no column 'sick'"),
        (TableData((np.eye(2), [0, 1]), drop=["x0"]), "drop is for tables"),
        (TableData((np.eye(2), [0, 1]), group="town"), "names a column"),
        (TableData((np.eye(2), [0])), "one target per record"),
        (TableData(3), "data must be a table"),
    ],
)
def test_options_that_do_not_fit_are_refused(table, message):
    with pytest.raises(DataError, match=message):
        ingest(table)
