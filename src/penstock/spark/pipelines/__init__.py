"""Ready-made pipelines from topics to tables, described by one TOML file each.

model.py       the file                           template.py    what `penstock pipeline init` writes
running.py     one run, from start to stop        topics.py      which topics it reads
identity.py    which pipeline a run belongs to
assembly.py    its stages, and those of topics that appear later
stages.py      what queries have in common        topic_stage.py the query that writes bronze and silver
gold.py        the queries of gold                silver.py      which records become rows of silver
rebuild.py     silver made again from bronze       rebuild_hold.py  how it gets its turn
schemas.py     which schema a topic follows       decoding.py    records to typed columns, on executors
decoded_rows.py  decoding as seen by Spark        encoding.py    typed columns to records
avro_reading.py  Avro records of one version read as another
shapes.py, json_shapes.py, avro_shapes.py, protobuf_shapes.py    what becomes of each type of each kind of schema
tables/        Delta, Iceberg                     dead_letters.py  what did not fit
replay.py      a table or a time range back into topics
upkeep.py      compaction and vacuum during a run  compact.py    the same on demand
export.py      copies of tables in plain Parquet
reporting.py   how a run is doing, for people, programs and the broker
failures.py    what Spark throws, in one line
"""
