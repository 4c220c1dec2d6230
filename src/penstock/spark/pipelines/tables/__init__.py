"""Tables that take each batch once: Delta and Iceberg behind one interface.

table.py        the interface                     history.py     what it tells of each commit
delta.py        Delta Lake, with its log          iceberg.py     Iceberg, with its history of snapshots
stores.py       where data files go: this machine or an object store
data_files.py   Parquet files written by tasks or by the driver
statistics.py   minimum and maximum of each column of a file
row_keys.py     rows by the values of their key, for merges of both formats
merging.py      small Parquet files into large ones, for Iceberg
"""

from __future__ import annotations
