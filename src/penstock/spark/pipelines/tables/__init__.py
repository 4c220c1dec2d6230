"""Tables that take each batch once: Delta and Iceberg behind one interface.

table.py        the interface                     stores.py      where data files go: this machine or an object store
delta.py        Delta Lake                        data_files.py  Parquet files written by tasks or by the driver
iceberg.py      Iceberg                           statistics.py  minimum and maximum of each column of a file
merging.py      small Parquet files into large ones, for Iceberg
row_keys.py     rows by the values of their key
"""

from __future__ import annotations
