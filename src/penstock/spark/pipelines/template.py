"""The file that `penstock pipeline init` writes: one that runs as it is, with every setting that people change, and what it means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.spark.pipelines.views import view_names

Columns = Mapping[str, str]
"""Arrow types by column, as `Decoder.schema` gives them."""

_NUMBERS: Final = ("int64", "double", "int32", "float")
_WINDOW: Final = "window({time}, '1 minute')"


def render(
    *,
    name: str,
    bootstrap: str,
    topics: Sequence[str],
    directory: str,
    table_format: str,
    columns: Mapping[str, Columns | None],
) -> str:
    """`columns` has those of each topic that has a schema, and None for each that has none."""
    return f"""\
# A pipeline from topics to tables. Run it with:  penstock pipeline run FILE
# Every setting is described in docs/pipelines.md.

{_settings(name, bootstrap, topics, directory, table_format)}

# Every record as it is: one table for each topic, in {directory}/bronze.
[bronze]

# Records decoded by the schema of their topic into typed columns, in {directory}/silver.
# Those that do not fit go to the topic's dead letters:  penstock dlq list TOPIC
[silver]
{_silver(columns)}
# Your SQL over windows of time, in {directory}/gold. Views are named like topics, "-" and "." becoming "_".
# A window is written when something later than its end and the watermark has been seen.
{_gold(topics, columns)}
# Where it runs: here, on all processors, unless a master is named.
[spark]
# master = "spark://host:7077"
# config = {{ "spark.driver.memory" = "2g" }}
"""


def _settings(name: str, bootstrap: str, topics: Sequence[str], directory: str, table_format: str) -> str:
    listed = ", ".join(f'"{topic}"' for topic in topics)
    lines = [
        (f'name = "{name}"', "under which it reports; see: penstock pipeline status"),
        (f'bootstrap = "{bootstrap}"', "the broker's FlyMQ listener"),
        (f"topics = [{listed}]", 'names, or patterns such as "orders-*"'),
        (f'directory = "{directory}"', "tables and checkpoints; relative to this file"),
        (f'format = "{table_format}"', "parquet | delta | iceberg"),
        ('starting = "earliest"', "earliest | latest: where a first run begins"),
        ('trigger_ms = "1s"', "how often a batch begins, where the pipeline runs on and on"),
    ]
    width = min(max(len(setting) for setting, _ in lines), 40)
    return "\n".join(f"{setting:<{width}}  # {meaning}" for setting, meaning in lines)


def _silver(columns: Mapping[str, Columns | None]) -> str:
    missing = [topic for topic, known in columns.items() if known is None]
    if not missing:
        return '# schemas = { orders = "order:2" }   # where a schema has another name than its topic\n'
    return (
        f"# No schema was found for {', '.join(missing)}. Register one (penstock schema register {missing[0]} FILE),\n"
        '# or name one here: schemas = { orders = "order:2" }. Until then records are passed on undecoded.\n'
        'without_schema = "pass"\n'
    )


def _gold(topics: Sequence[str], columns: Mapping[str, Columns | None]) -> str:
    topic = topics[0]
    view = view_names(topics)[0]
    known = columns.get(topic) or {}
    moment = next((name for name, kind in known.items() if kind.startswith("timestamp")), "timestamp")
    group = next((name for name, kind in known.items() if kind == "string"), None)
    numbers = [name for name, kind in known.items() if kind in _NUMBERS]
    number = next((name for name in numbers if not name.lower().endswith("id")), None)
    window = _WINDOW.format(time=moment)
    picked = [f"{window}.start AS start", *([group] if group else []), "count(*) AS records"]
    if number is not None:
        picked.append(f"sum({number}) AS {number}")
    grouped = ", ".join([window, *([group] if group else [])])
    separator = ",\n         "
    # Names that need no quotes, put into a file that its user reads and owns.
    return f'''[[gold]]
name = "{view}_per_minute"
sql = """
  SELECT {separator.join(picked)}
  FROM {view}
  GROUP BY {grouped}
"""
event_time = "{moment}"
watermark_ms = "1m"
# topic = "{topic}-per-minute"     # write the results to a topic too
'''  # noqa: S608
