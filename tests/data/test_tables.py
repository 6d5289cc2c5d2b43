"""Tables: all problems in one message, dates, booleans, gaps, hashed names, columns and their facts."""

from datetime import date

import numpy as np
import pandas as pd
import polars as pl
import pytest

from sottovoce.data.column_facts import column_facts, draft_plan
from sottovoce.data.ingest import ingest
from sottovoce.data.tables import Columns, TableData
from sottovoce.errors import DataError, Refused

TABLE = {
    "pid": ["a1", "a2", "a3", "a4"],
    "age": ["30", "70", "", "50"],
    "town": ["Oslo", "Rome", "Oslo", "Bern"],
    "admitted": ["2024-01-01", "2024-12-31", "2024-07-01", "2024-03-01"],
    "smoker": ["True", "false", "true", "False"],
    "note": ["came in the evening with a cough"] * 4,
    "site": ["x", "y", "x", "y"],
    "ill": ["no", "yes", "no", "yes"],
}
FACTS = {
    "label": "ill", "group": "site", "drop": ["pid", "note"],
    "categories": {"town": ["Oslo", "Rome", "Bern"]},
    "bounds": {"age": (0, 100), "smoker": (0, 1), "admitted": ("2024-01-01", "2024-12-31")},
}  # fmt: skip


def read(**changes):
    return ingest(TableData(TABLE, **{**FACTS, "missing": "middle", **changes}))


def test_all_problems_are_one_message():
    with pytest.raises(Refused) as caught:
        ingest(
            TableData(TABLE, "ill", "site", bounds={"wage": (0, 1)}),
            label_problem=lambda labels: "no classes",
        )
    message = str(caught.value)
    assert message.startswith("the table has 8 problems: (1) the table has no column 'wage'")
    for words in ("'pid' holds words", "'town' holds words", "'admitted' holds", "'note' holds words",
                  "columns 'age', 'smoker' have no public bounds", "(7) no classes.",
                  "(8) there are empty entries in 'age'"):  # fmt: skip
        assert words in message
    for private in ("Oslo", "a1", "cough", "70"):
        assert private not in message


def test_dates_and_booleans_are_scaled_by_public_facts():
    records = read()
    first, last = records.inputs[0], records.inputs[1]
    names = records.columns.names
    assert names == ("age", "town=Oslo", "town=Rome", "town=Bern", "admitted", "smoker")
    assert (first[4], last[4]) == (-1.0, 1.0)
    assert (first[5], last[5]) == (1.0, -1.0)
    moments = {**TABLE, "admitted": np.array(TABLE["admitted"], "datetime64[ns]"),
               "smoker": np.array([True, False, True, False])}  # fmt: skip
    bounds = {name: pair for name, pair in FACTS["bounds"].items() if name != "smoker"}
    typed = ingest(TableData(moments, **{**FACTS, "bounds": bounds, "missing": "middle"}))
    assert np.array_equal(typed.inputs, records.inputs)
    with pytest.raises(DataError, match="'town' must hold dates such as"):
        read(categories=None, bounds={**FACTS["bounds"], "town": ("2024-01-01", "2024-12-31")})


def test_missing_entries():
    with pytest.raises(DataError, match="row 2 of column 'age' is missing"):
        read(missing="refuse")
    assert read().inputs[2, 0] == 0.0
    dropped = read(missing="drop")
    assert dropped.n == len(dropped.targets) == len(dropped.groups) == 3
    marked = read(missing="indicator")
    assert marked.columns.names[:2] == ("age", "age missing")
    assert marked.inputs[:, 1].tolist() == [0.0, 0.0, 1.0, 0.0]
    gap = {**TABLE, "town": ["Oslo", "", "Oslo", "Bern"], "age": ["1"] * 4}
    with pytest.raises(DataError, match="row 1 of column 'town' is missing"):
        ingest(TableData(gap, **FACTS))
    assert ingest(TableData(gap, **FACTS, missing="drop")).n == 3


def test_names_are_hashed_to_a_public_number_of_columns():
    records = read(categories={"town": 4})
    block = records.inputs[:, 1:5]
    assert records.columns.names[1:5] == ("town#0", "town#1", "town#2", "town#3")
    assert (block.sum(axis=1) == 1).all()
    assert np.array_equal(block[0], block[2])
    again = Columns.from_dict(records.columns.to_dict())
    assert np.array_equal(again(TABLE), records.inputs)
    with pytest.raises(Exception, match="hashed columns of 'town'"):
        read(categories={"town": 1})


TYPED = {
    "age": [30, 70, None, 50],
    "town": ["Oslo", "Rome", None, "Bern"],
    "admitted": [date(2024, 1, 1), None, date(2024, 7, 1), date(2024, 3, 1)],
    "smoker": [True, False, None, False],
    "insured": [True, False, True, True],
    "site": ["x", "y", "x", "y"],
    "ill": [False, True, False, True],
}


def nullable(time_zone=None):
    """Return the table in the nullable types of pandas."""
    frame = pd.DataFrame(TYPED).astype({"age": "Int64", "town": "category", "smoker": "boolean"})
    return frame.assign(admitted=pd.to_datetime(frame["admitted"]).dt.tz_localize(time_zone))


FRAMES = {
    "pandas": lambda: pd.DataFrame(TYPED),
    "pandas, nullable": nullable,
    "pandas, time zone": lambda: nullable("Europe/Zurich"),
    "pandas, arrow": lambda: nullable().convert_dtypes(dtype_backend="pyarrow"),
    "polars": lambda: pl.DataFrame(TYPED),
    "polars, typed": lambda: pl.DataFrame(TYPED).with_columns(
        pl.col("town").cast(pl.Categorical), pl.col("admitted").cast(pl.Datetime), pl.col("age").cast(pl.Int8)
    ),
    "arrow": lambda: pl.DataFrame(TYPED).to_arrow(),
}


@pytest.mark.parametrize("kind", [*FRAMES, "parquet"])
@pytest.mark.parametrize("missing", ["middle", "indicator", "drop"])
def test_frames_are_read_like_a_mapping_of_columns(kind, missing, tmp_path):
    """Dates, categories, nulls and booleans, in the types of each library; booleans need no bounds."""
    facts = {
        "label": "ill", "group": "site", "categories": {"town": ["Oslo", "Rome", "Bern"]}, "missing": missing,
        "bounds": {"age": (0, 100), "admitted": (date(2024, 1, 1), date(2024, 12, 31))},
    }  # fmt: skip
    if kind == "parquet":
        FRAMES["polars"]().write_parquet(tmp_path / "t.parquet")
    frame = tmp_path / "t.parquet" if kind == "parquet" else FRAMES[kind]()
    records, same = (ingest(TableData(source, **facts)) for source in (frame, TYPED))
    assert np.array_equal(records.inputs, same.inputs)
    assert records.columns == same.columns
    assert records.targets.tolist() == same.targets.tolist()
    assert records.groups.tolist() == same.groups.tolist()
    half = 365 / 2
    expected = {
        "middle": [-0.4, 1, 0, 0, -1, 1, 1],
        "indicator": [-0.4, 0, 1, 0, 0, -1, 0, 1, 0, 1, 0],
        "drop": [-0.4, 1, 0, 0, -1, 1, 1],
    }[missing]
    assert records.inputs[0].tolist() == expected
    if missing == "drop":
        assert records.inputs[1].tolist() == [0, 0, 0, 1, pytest.approx((60 - half) / half), -1, 1]
    with pytest.raises(DataError, match="empty entries in 'age', 'town', 'admitted', 'smoker'"):
        ingest(TableData(frame, **{**facts, "missing": "refuse", "drop": ["nothing"]}))


def test_drafted_facts_name_no_value_and_read_back(tmp_path):
    with pytest.raises(DataError, match="a header and no records"):
        column_facts({"age": np.array([])})
    facts = {c.name: c for c in column_facts({k: np.array(v) for k, v in TABLE.items()}, "ill", "site")}
    kinds = {name: column.kind for name, column in facts.items()}
    assert kinds == {
        "pid": "identifier", "age": "number", "town": "names", "admitted": "date", "smoker": "boolean",
        "note": "text", "site": "names", "ill": "names",
    }  # fmt: skip
    draft = draft_plan("t.csv", list(facts.values()))
    for private in ("Oslo", "a1", "cough", "70", "2024-12"):
        assert private not in draft
    lines = [",".join(TABLE), *(",".join(row) for row in zip(*TABLE.values(), strict=True))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    file = tmp_path / "t.toml"
    file.write_text(draft)
    with pytest.raises(Refused, match="'age' has no public bounds"):
        ingest(TableData.from_toml(file))
    filled = draft.replace("age = []", "age = [0, 100]").replace(
        "town = []", 'town = ["Oslo", "Rome", "Bern"]'
    )
    file.write_text(filled.replace("admitted = []", 'admitted = ["2024-01-01", "2024-12-31"]'))
    assert np.array_equal(ingest(TableData.from_toml(file)).inputs, read().inputs)
    file.write_text(draft + "\n[data.more]\n")
    with pytest.raises(DataError, match="more is not known to"):
        TableData.from_toml(file)
    file.write_text(draft.replace("bounds", "bouds"))
    with pytest.raises(DataError, match=r"bouds is not known to sv.fit \(did you mean 'bounds'\?\)"):
        TableData.from_toml(file)
