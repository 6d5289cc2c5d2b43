"""Records of users: tables, arrays and datasets."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from sottovoce.data import TableData
from sottovoce.data.ingest import ingest
from sottovoce.errors import DataError, InvalidInput, Refused

TABLE = {"age": [30, 70], "sex": ["f", "m"], "town": ["A", "B"], "ill": ["no", "yes"]}


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


BOUNDED = {"bounds": (0, 9)}
TWICE = pd.DataFrame([[1.0, 2.0, 0], [3.0, 4.0, 1]], columns=["x", "x", "y"])
EMPTY = {"x": ["1", "2"], "z": ["", ""], "y": ["0", "1"]}
ODD = [
    (TableData(TABLE), "label must name the column"),
    (TableData(TABLE, "sick"), "no column 'sick'"),
    (TableData((np.eye(2), [0, 1]), drop=["x0"]), "drop is for tables"),
    (TableData((np.eye(2), [0, 1]), group="town"), "names a column"),
    (TableData((np.eye(2), [0])), "one target per record"),
    (TableData(3), "data must be a table"),
    (TableData(TWICE, "y", **BOUNDED), "the table has two columns 'x'; rename one"),
    (TableData({0: [1.0], "0": [2.0], "y": [0]}, "y", **BOUNDED), "two columns '0'"),
    (TableData(EMPTY, "y", **BOUNDED, missing="drop"), "leaves no record: none has an entry in every column"),
    (TableData({"x;y": ["1;0"]}, "y"), "has no column 'y'; it has x;y; read it with sep="),
    (TableData({"x": [10**400], "y": [0]}, "y", **BOUNDED), "column 'x' holds words"),
    (TableData({"x": [1 + 2j], "y": [0]}, "y", **BOUNDED), "column 'x' holds complex numbers"),
    ((np.eye(2) * 1j, [0, 1]), "real numbers"),
    ((torch.eye(2).to_sparse(), [0, 1]), "are sparse; give them dense"),
]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"features": "age"}, "features must be a list of columns, got 'age'"),
        ({"drop": 3}, "drop must be a list of columns"),
        ({"categories": ["sex"]}, "categories must name columns with their values"),
    ],
)
def test_options_of_another_kind_are_refused(options, words):
    with pytest.raises(InvalidInput, match=re.escape(words)):
        TableData(TABLE, "ill", **options)


def test_columns_may_be_numbered_and_bounds_be_arrays():
    frame = pd.DataFrame([[1.0, 0], [3.0, 1]])
    records = ingest(TableData(frame, 1, bounds={0: np.array([0.0, 4.0])}))
    assert (records.inputs.tolist(), records.targets.tolist()) == ([[-0.5], [0.5]], [0, 1])


@pytest.mark.parametrize(("source", "words"), ODD)
def test_strange_records_are_refused_in_a_sentence(source, words):
    with pytest.raises(DataError, match=re.escape(words)):
        ingest(source)


@pytest.mark.parametrize("labels", [["0", "", "1"], [0.0, np.nan, 1.0], np.array([True, None, False])])
def test_a_missing_label_is_named_or_its_record_dropped(labels):
    table = TableData({"x": [1.0, 2.0, 3.0], "y": labels}, "y", bounds={"x": (0, 4)})
    assert table.label_problem(np.array(labels), False, ()) == (
        "row 1 of the label 'y' is missing; mend it, or set missing to \"drop\" to leave such records out"
    )
    dropping = replace(table, missing="drop")
    assert dropping.label_problem(np.array(labels), False, ()) is None
    records = ingest(dropping)
    assert records.inputs.tolist() == [[-0.5], [0.5]]
    assert ingest(table, columns=records.columns).n == 2  # of test records as well
