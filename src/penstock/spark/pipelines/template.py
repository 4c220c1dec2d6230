"""The file that `penstock pipeline init` writes: one that runs as it is, with every setting that people change, and what it means."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.spark.pipelines.model import NAME_CHARS_MAX, Connection
from penstock.spark.pipelines.views import view_names

Columns = Mapping[str, str]
"""Arrow types by column, as `Decoder.schema` gives them."""

_NUMBERS: Final = ("int64", "double", "int32", "float")
_PER_MINUTE: Final = "_per_minute"
_WINDOW: Final = "window({time}, '1 minute')"
_PLAIN_NAME: Final = re.compile(r"(?!(?:true|false|null|not)$)[a-z_][a-z0-9_]*", re.ASCII | re.IGNORECASE)
"""What SQL takes without quotes, and for a name."""


def render(
    *,
    name: str,
    bootstrap: str,
    connection: Connection,
    topics: Sequence[str],
    directory: str,
    table_format: str,
    columns: Mapping[str, Columns | None],
) -> str:
    """`topics` are names and patterns; `columns` has those of each topic that has a schema, and None for each that has none."""
    return f"""\
# A pipeline from topics to tables. Run it with:  penstock pipeline run FILE
# Every setting is described in docs/pipelines.md.

{_settings(name, bootstrap, topics, directory, table_format)}
{_connection(connection)}
# Every record as it is: one table for each topic, in {directory}/bronze.
[bronze]

# Records decoded by the schema of their topic into typed columns, in {directory}/silver.
# Those that do not fit go to the topic's dead letters:  penstock dlq list TOPIC
[silver]
{_silver(columns)}\
# expect = {{ "amount >= 0" = "reject" }}   # what must be true of a row; else: drop | reject | fail
# key = ["id"]                            # a later record replaces the row, a tombstone deletes it
# partition_by = ["date"]                 # directories by column; "date" is made of the timestamp
# unmarked = "auto"                       # records that do not say their version: auto | reject | "orders:1" (it wrote them)

# Your SQL over windows of time, in {directory}/gold. Views are named like topics, "-" and "." becoming "_".
# A window is written when something later than its end and the watermark has been seen.
{_gold(list(columns), columns)}
# Where it runs: here, on all processors, unless a master is named.
[spark]
# master = "spark://host:7077"
# config = {{ "spark.driver.memory" = "2g" }}
"""


def _settings(name: str, bootstrap: str, topics: Sequence[str], directory: str, table_format: str) -> str:
    listed = ", ".join(map(_text, topics))
    lines = [
        (f"name = {_text(name)}", "under which it reports; see: penstock pipeline status"),
        (f"bootstrap = {_text(bootstrap)}", "the broker's FlyMQ listener"),
        (f"topics = [{listed}]", 'names, or patterns such as "orders-*"'),
        (f"directory = {_text(directory)}", "tables and checkpoints; relative to this file"),
        (f"format = {_text(table_format)}", "delta | iceberg"),
        ('starting = "earliest"', "earliest | latest: where a first run begins"),
        ('trigger_ms = "30s"', "how often a batch begins, without --once"),
    ]
    return _aligned(lines)


def _connection(connection: Connection) -> str:
    """The section, if there is something to say in it."""
    meanings = {
        "user": "the password comes from PENSTOCK_PASSWORD or a prompt",
        "ca": "the CA to trust",
        "cert": "the client certificate",
        "key": "its key",
    }
    lines = [
        (f"{name} = {_text(value)}", meaning)
        for name, meaning in meanings.items()
        if (value := getattr(connection, name)) is not None
    ]
    if connection.tls:
        lines.append(("tls = true", "the connection is encrypted"))
    return f"\n# Who asks, and how.\n[connection]\n{_aligned(lines)}\n" if lines else ""


def _aligned(lines: Sequence[tuple[str, str]]) -> str:
    width = min(max(len(setting) for setting, _ in lines), 40)
    return "\n".join(f"{setting:<{width}}  # {meaning}" for setting, meaning in lines)


def _silver(columns: Mapping[str, Columns | None]) -> str:
    missing = [topic for topic, known in columns.items() if known is None]
    if not missing:
        return '# schemas = { orders = "order:2" }   # where a schema has another name than its topic\n'
    return (
        f"# No schema was found for {', '.join(missing)}. Register one (penstock schema register {missing[0]} FILE),\n"
        f'# or name one here: schemas = {{ {_text(missing[0])} = "order:2" }}. Until then records are passed on undecoded.\n'
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
    window = _WINDOW.format(time=_identifier(moment))
    by = [_identifier(group)] if group else []
    picked = [f"{window}.start AS start", *by, "count(*) AS records"]
    if number is not None:
        picked.append(f"sum({_identifier(number)}) AS {_identifier(number)}")
    separator = ",\n         "
    # Into a file that its user reads and owns.
    return f'''[[gold]]
name = "{_gold_name(view)}"
sql = """
  SELECT {separator.join(picked)}
  FROM {_identifier(view)}
  GROUP BY {", ".join([window, *by])}
"""
event_time = {_text(moment)}
watermark_ms = "1m"
# topic = {_text(f"{topic}-per-minute")}     # write the results to a topic too
'''  # noqa: S608


def _gold_name(view: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", view).lstrip("._-") or "records"
    return plain[: NAME_CHARS_MAX - len(_PER_MINUTE)] + _PER_MINUTE


def _text(value: str) -> str:
    """As TOML has it, which for text is as JSON has it."""
    return json.dumps(value, ensure_ascii=False)


def _identifier(name: str) -> str:
    """As SQL has it, in a text of TOML. No name of a column has a backtick, nor has that of a view."""
    return name if _PLAIN_NAME.fullmatch(name) else f"`{_text(name)[1:-1]}`"
