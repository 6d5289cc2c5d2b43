"""Data sets, users' tables, and how records are dealt out to users.

To follow how a table is read, begin with `tables`.
"""

from sottovoce.data.base import Dataset, Shards, signed_labels
from sottovoce.data.files import read_columns, read_libsvm, read_npz, read_table
from sottovoce.data.loaders import data_folder, load, names
from sottovoce.data.partition import by_column, by_label, by_size, dirichlet, equal, skew_matrix
from sottovoce.data.tables import TableData

__all__ = [
    "Dataset",
    "Shards",
    "TableData",
    "by_column",
    "by_label",
    "by_size",
    "data_folder",
    "dirichlet",
    "equal",
    "load",
    "names",
    "read_columns",
    "read_libsvm",
    "read_npz",
    "read_table",
    "signed_labels",
    "skew_matrix",
]
