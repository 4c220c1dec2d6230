"""The file that describes one pipeline: every setting, with its default, checked before anything starts.

A pipeline is the topics it reads and up to three kinds of stages over them. A section that is in the file is a stage that runs; one that
is not, does not. Relative paths are taken from the directory of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote, unquote

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from penstock.broker.schemas.reference import parse_named_version
from penstock.clients.arguments import check_topic
from penstock.config import messages, toml_file
from penstock.errors import ConfigError, InvalidRequest
from penstock.spark.connection import BOOTSTRAP, BOOTSTRAP_DEFAULT, ConnectionSettings, connection_settings
from penstock.spark.pipelines.files import is_url
from penstock.units import parse_duration_ms, parse_size

NAME_CHARS_MAX: Final = 100
PATH_NAME_CHARS_MAX: Final = 220
"""File systems take 255; files next to the directory are named after it."""
TOPICS_MAX: Final = 100
"""Named in the file, and read by a run: each is a query with a process of its own."""
GOLD_MAX: Final = 50
COLUMNS_MAX: Final = 16
"""Of a key, or of the partitioning of a table."""
EXPECTATIONS_MAX: Final = 100
PROPERTIES_MAX: Final = 1000
KEEP_MS_MIN: Final = 24 * 3600 * 1000
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WILDCARDS: Final = re.compile(r"[*?\[]")

STAGES: Final = ("bronze", "silver", "gold")
TABLE_KINDS: Final = (*STAGES, "rejects")
"""Directories of tables: those of the stages, and the records that silver could not take."""
Format = Literal["delta", "iceberg"]
Expectation = Literal["drop", "reject", "fail"]
Starting = Literal["earliest", "latest"]


def _with_unit(parse: Any) -> Any:
    def checked(value: object) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError("write a number, or a text with a unit")  # noqa: TRY004  what pydantic makes a message of
        return parse(value)

    return BeforeValidator(checked)


DurationMs = Annotated[int, _with_unit(parse_duration_ms)]
Size = Annotated[int, _with_unit(parse_size)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _name(text: str) -> str:
    if not _NAME.fullmatch(text) or len(text) > NAME_CHARS_MAX:
        raise ValueError(f"{text!r} is not a name: use letters, digits, '.', '_' and '-', at most {NAME_CHARS_MAX}")
    return text


def _topic(text: str) -> str:
    try:
        check_topic(text)
    except InvalidRequest as error:
        raise ValueError(str(error)) from None
    return text


class Connection(Section):
    """`[connection]`: who asks, and how. The password comes from PENSTOCK_PASSWORD and never stands in the file."""

    user: str | None = None
    tls: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None


Columns = Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=COLUMNS_MAX)]


class Bronze(Section):
    """`[bronze]`: every record as it is, one table a topic."""

    partition_by: Columns = Field(default_factory=list)
    """Columns whose values name directories, so that readers skip the others. "date" is made of the timestamp."""


def _unmarked(text: str) -> str:
    if text not in ("auto", "reject"):
        try:
            parse_named_version(text)
        except InvalidRequest as error:
            raise ValueError(f'{error}, or use "auto" or "reject"') from None
    return text


class Rules(Section):
    """What a table of silver is like: in `[silver]` that of every topic, in `[silver.topics.NAME]` that of one."""

    partition_by: Columns = Field(default_factory=list)
    key: Columns = Field(default_factory=list)
    """Columns that tell rows apart: a later record replaces the row of an earlier one, and a tombstone deletes it."""
    expect: Annotated[dict[str, Expectation], Field(max_length=EXPECTATIONS_MAX)] = Field(default_factory=dict)
    """What must be true of a row, as SQL, and what to do with one of which it is not."""
    unmarked: Annotated[str, AfterValidator(_unmarked)] = "auto"
    """What to do with records that do not say which version of the schema wrote them: "auto", "reject", or the version that wrote them."""


class Silver(Rules):
    """`[silver]`: records decoded by the schemas of their topics, one table a topic."""

    topics: Annotated[dict[str, Rules], Field(max_length=TOPICS_MAX)] = Field(default_factory=dict)
    """Rules for single topics, instead of those of the section."""
    schemas: dict[str, str] = Field(default_factory=dict)
    """The schema of a topic, where it is neither bound to it nor registered under its name."""
    without_schema: Literal["error", "pass"] = "error"
    """What to do with a topic that has none: do not start, or pass its records on undecoded."""
    rejects: Literal["dead_letters", "fail"] = "dead_letters"
    """What to do with records that do not fit: put them into the topic's dead letters, or stop."""

    def rules(self, topic: str) -> Rules:
        return self.topics.get(topic, self)


class Gold(Section):
    """`[[gold]]`: the result of a query over windows of event time, to a table, a topic, or both."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    name: Annotated[str, BeforeValidator(_name)]
    sql: Annotated[str, Field(min_length=1)]
    source: Annotated[Literal["silver", "topic"] | None, Field(alias="from")] = None
    """What the views are made of: tables of silver, or topics. Silver if there is one that can be read as a stream."""
    event_time: str = "timestamp"
    """The column that says when something happened."""
    watermark_ms: DurationMs = 600_000
    """How long records may come late: a window is done when something so much later has been seen."""
    future_ms: Annotated[DurationMs, Field(ge=0)] = 24 * 3600 * 1000
    """How far ahead of the clock a row's time may be. One further ahead would end every window before it, and is left out and counted."""
    partition_by: Columns = Field(default_factory=list)
    mode: Literal["append", "update"] = "append"
    table: bool = True
    topic: Annotated[str, BeforeValidator(_topic)] | None = None
    key: str | None = None
    """The column that becomes the key of records written to the topic."""

    @model_validator(mode="after")
    def _has_somewhere_to_go(self) -> Gold:
        if not self.table and self.topic is None:
            raise ValueError(f"gold {self.name} writes nowhere: give it a topic, or table = true")
        if self.key is not None and self.topic is None:
            raise ValueError(f"gold {self.name} has a key and no topic: add the topic, or remove the key")
        if self.mode == "update" and self.table:
            raise ValueError(
                f"gold {self.name} updates results that it gave before, and tables are only appended to: set table = false and give "
                'it a topic, or use mode = "append"'
            )
        return self


def _as_texts(values: object) -> object:
    if isinstance(values, dict):
        return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}
    return values


Texts = Annotated[dict[str, str], BeforeValidator(_as_texts), Field(max_length=PROPERTIES_MAX)]
"""Settings of a library or of Spark, under its own names."""


class Spark(Section):
    """`[spark]`: where it runs."""

    master: str | None = None
    config: Texts = Field(default_factory=dict)


class Pipeline(Section):
    """A whole file."""

    name: Annotated[str, BeforeValidator(_name)]
    bootstrap: str = BOOTSTRAP_DEFAULT
    connection: Connection = Connection()
    topics: Annotated[list[str], Field(min_length=1, max_length=TOPICS_MAX)]
    directory: Annotated[str, Field(min_length=1)]
    """Where tables are: a path, or the URL of an object store."""
    checkpoints: Annotated[str, Field(min_length=1)] | None = None
    """Where checkpoints are: a path, or a URL that Spark itself reaches. Beside the tables unless given."""
    format: Format = "delta"
    starting: Starting = "earliest"
    trigger_ms: Annotated[DurationMs, Field(ge=0)] = 30_000
    keep_ms: Annotated[DurationMs, Field(ge=KEEP_MS_MIN)] = KEEP_MS_MIN
    """How long files that compaction has replaced stay, for readers and time travel."""
    batch_records_max: Annotated[int, Field(ge=1)] = 1_000_000
    batch_bytes_max: Annotated[Size, Field(ge=1 << 10)] = 256 << 20
    bronze: Bronze | None = None
    silver: Silver | None = None
    gold: Annotated[list[Gold], Field(max_length=GOLD_MAX)] = Field(default_factory=list)
    storage: Texts = Field(default_factory=dict)
    """Options of the deltalake library for the object store."""
    catalog: Texts = Field(default_factory=dict)
    """Properties of the Iceberg catalog, as pyiceberg's `load_catalog` takes them."""
    spark: Spark = Spark()

    @field_validator("format", mode="before")
    @classmethod
    def _is_table_format(cls, value: object) -> object:
        if value == "parquet":
            raise ValueError(
                'plain Parquet is no table format: use "delta", and penstock pipeline export for copies in Parquet'
            )
        return value

    @field_validator("bootstrap")
    @classmethod
    def _is_no_secret(cls, bootstrap: str) -> str:
        if "@" in bootstrap or "?" in bootstrap:
            raise ValueError(
                "write host:port or flymqs://host:port, and under [connection] the user and the files of TLS; the password comes from "
                "PENSTOCK_PASSWORD"
            )
        return bootstrap

    @field_validator("topics")
    @classmethod
    def _are_topics(cls, topics: list[str]) -> list[str]:
        for topic in topics:
            if not is_pattern(topic):
                _topic(topic)
        if len(set(topics)) != len(topics):
            raise ValueError("a topic is named twice: name each once")
        return topics

    @model_validator(mode="after")
    def _makes_sense(self) -> Pipeline:
        if self.bronze is None and self.silver is None and not self.gold:
            raise ValueError("there is nothing to do: add a [bronze], [silver] or [[gold]] section")
        if "%" in self.directory:
            raise ValueError(
                f"directory {self.directory} has a %, which table libraries decode as in URLs: use another"
            )
        if self.format == "delta" and self.catalog:
            raise ValueError('[catalog] is for format = "iceberg": remove it, or set the format')
        if self.format == "iceberg" and self.storage:
            raise ValueError('[storage] is for format = "delta": give Iceberg its properties in [catalog]')
        if self.format == "iceberg" and is_url(self.directory) and not self.catalog:
            raise ValueError(
                f"Iceberg tables in {self.directory} need a catalog that is reached from anywhere: describe it in [catalog]"
            )
        self._check_tables()
        names = [gold.name for gold in self.gold]
        if len(set(names)) != len(names):
            raise ValueError("two [[gold]] sections have one name: give each its own")
        for gold in self.gold:
            if gold.topic in self.topics:
                raise ValueError(
                    f"gold {gold.name} would write to topic {gold.topic}, which the pipeline reads: choose another"
                )
        return self

    def _check_tables(self) -> None:
        silver = self.silver
        for gold in self.gold:
            if gold.source == "silver" and (silver is None or self.format != "delta"):
                raise ValueError(
                    f'gold {gold.name} reads silver, which needs a [silver] section and format = "delta": add them, or set from = "topic"'
                )

    def partition_by(self, stage: str, name: str) -> list[str]:
        """Return the columns that a table is partitioned by."""
        if stage == "bronze":
            return [] if self.bronze is None else self.bronze.partition_by
        if stage == "silver":
            return [] if self.silver is None else self.silver.rules(name).partition_by
        return next((gold.partition_by for gold in self.gold if stage == "gold" and gold.name == name), [])

    def gold_source(self, gold: Gold, topics: Iterable[str]) -> Literal["silver", "topic"]:
        """Return what views of these topics are made of. Raises ConfigError if that cannot be what the file says."""
        silver = self.silver
        keyed = [] if silver is None else [topic for topic in topics if silver.rules(topic).key]
        if gold.source == "silver" and keyed:
            raise ConfigError(
                f"gold {gold.name} reads silver/{keyed[0]}, whose rows change because it has a key, and a stream has no way to take a row "
                'back: set from = "topic"'
            )
        streams = silver is not None and self.format == "delta" and not keyed
        return gold.source or ("silver" if streams else "topic")

    # -- where things are -------------------------------------------------------------------------------------------------

    @property
    def notes(self) -> str:
        """Where everything is that is neither table nor checkpoint: the lock, replays, when tables were vacuumed."""
        return self.checkpoints or self.directory

    def table(self, stage: str, name: str) -> str:
        return f"{self.directory}/{stage}/{path_name(name)}"

    def checkpoint(self, stage: str, name: str) -> str:
        return f"{self.checkpoints or self.directory + '/_checkpoints'}/{stage}/{path_name(name)}"

    # -- the broker -------------------------------------------------------------------------------------------------------

    def broker_options(self, password: str | None) -> dict[str, str]:
        """What the source and the sink have to be told to reach the broker."""
        options = {BOOTSTRAP: self.bootstrap}
        given: Mapping[str, str | None] = {
            "penstock.user": self.connection.user,
            "penstock.password": password if self.connection.user is not None else None,
            "penstock.tls": "true" if self.connection.tls else None,
            "penstock.tls.ca": self.connection.ca,
            "penstock.tls.cert": self.connection.cert,
            "penstock.tls.key": self.connection.key,
        }
        return options | {name: value for name, value in given.items() if value is not None}

    def connection_settings(self, password: str | None) -> ConnectionSettings:
        if self.connection.user is not None and password is None:
            raise ConfigError(f"set PENSTOCK_PASSWORD to the password of {self.connection.user}")
        return connection_settings(self.broker_options(password))


def is_pattern(topic: str) -> bool:
    """Whether it stands for all topics that it fits."""
    return _WILDCARDS.search(topic) is not None


def path_name(name: str) -> str:
    """Return a topic's name as one level of a path. Raises ConfigError if it would be longer than file systems take.

    Special characters are escaped as in URLs, with "~" for "%": table libraries take paths for URLs and would decode them.
    """
    quoted = quote(name, safe="").replace("~", "%7E")
    if len(quoted) > PATH_NAME_CHARS_MAX:
        raise ConfigError(
            f"{name} is too long to name a directory: it takes {len(quoted)} characters there, of at most {PATH_NAME_CHARS_MAX}; "
            "use a shorter name, or one without special characters"
        )
    if quoted[0] in "._":  # Spark takes those for hidden
        quoted = f"%{ord(quoted[0]):02X}{quoted[1:]}"
    return quoted.replace("%", "~")


def name_of_path(path: str) -> str:
    """Return the name that `path_name` made a path of."""
    return unquote(path.replace("~", "%"))


def load_pipeline(file: Path) -> Pipeline:
    """Raises ConfigError with everything that is wrong with the file, a line each."""
    data = toml_file.read_bytes(file, if_absent=f"make one with penstock pipeline init {file}")
    return parse_pipeline(data, file)


def parse_pipeline(data: bytes, file: Path) -> Pipeline:
    """What a file of that name with these bytes says. Raises ConfigError."""
    values = toml_file.parse(data, file)
    try:
        pipeline = Pipeline.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(messages.describe(error, Pipeline, lambda path: str(file)))) from None
    found = {"directory": pipeline.directory, "checkpoints": pipeline.checkpoints}
    paths = {name: _absolute(value, file) for name, value in found.items() if value is not None and not is_url(value)}
    given = pipeline.connection
    tls_files = {name: getattr(given, name) for name in ("ca", "cert", "key")}
    tls_paths = {name: _tls_path(value, file) for name, value in tls_files.items() if value is not None}
    return pipeline.model_copy(update={**paths, "connection": given.model_copy(update=tls_paths)})


def _absolute(path: str, file: Path) -> str:
    """Return a path that Python reads as well as Spark."""
    return str((file.resolve().parent / _local(path)).resolve())


def _tls_path(path: str, file: Path) -> str:
    """Return an absolute path that keeps links: a mounted secret of Kubernetes is renewed by pointing its link at another directory."""
    return str(file.absolute().parent / _local(path))


def _local(path: str) -> Path:
    return Path(path.removeprefix("file://")).expanduser()
