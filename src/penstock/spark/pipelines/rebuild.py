"""Rebuild silver from bronze, while the pipeline runs: with another version of the schema, other rules, or because it was lost.

Bronze is decoded up to the batch N that silver is at, into files that no version of silver names. One commit then replaces every row, with
the number N, from the handle that N was read with. If the query has added batch N+1 meanwhile, the commit is refused: that batch is decoded
too, and the commit tried again. If the rebuild came first, the query's own commit is refused, and it adds N+1 to the new rows. Nothing
depends on the topic, which may have lost the records long ago. Readers see the old rows or the new ones.

Silver may lack batches that the query has finished: it did them while the file had no silver. Those are added after the replacement, each
commit with its number, as the query would have: a stream of the table passes over the replacement, and reads them as new rows. That takes
the files of bronze as it was then. If they were compacted and vacuumed since, the replacement has all batches, and streams cannot go on.

The work is done in chunks, and a note of each is kept next to the checkpoints, so a rebuild that was killed continues where it was; but not
once it has tried to commit, because files of chunks must not be committed twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import ConfigError, InvalidRequest
from penstock.spark.delta_source import FileTask, read_files
from penstock.spark.pipelines.decoding import RAW_COLUMNS, REASON, Plan
from penstock.spark.pipelines.files import Files, is_url
from penstock.spark.pipelines.lock import DirectoryLock
from penstock.spark.pipelines.model import Pipeline, Rules
from penstock.spark.pipelines.opening import open_table
from penstock.spark.pipelines.progress import Counts
from penstock.spark.pipelines.rebuild_hold import ask_to_wait, rebuild_directory
from penstock.spark.pipelines.schemas import finished_batch
from penstock.spark.pipelines.silver import latest_changes, silver_columns, sorted_records
from penstock.spark.pipelines.tables.data_files import DataFile
from penstock.spark.pipelines.tables.history import AddedFile, DataFiles, History, total_bytes
from penstock.spark.pipelines.tables.table import Table
from penstock.spark.pipelines.topic_stage import TOPICS
from penstock.spark.pipelines.views import mentions, view_names
from penstock.spark.schema import chosen_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

CHUNK_BYTES: Final = 256 << 20
"""Of bronze, that is decoded and noted at once."""
ATTEMPTS_MAX: Final = 20
RESUME_S_MAX: Final = 20 * 3600
"""Files that no commit names are deleted after 24 hours, so those of a chunk are used within this time."""

OnChunk = Callable[[int, int], None]
"""How many chunks are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    rows: int
    rejects: int
    dropped: int
    batch: int
    """The last in silver now; the query adds what comes after it."""
    chunks: int
    resumed: int
    """Chunks that an earlier attempt had done."""
    to_remove: tuple[str, ...] = ()
    """Tables and checkpoints of gold that has to begin anew: silver is another table, or got batches, but not as new rows."""


class Chunk(NamedTuple):
    """What became of some files of bronze."""

    at_s: float
    silver: list[DataFile]
    rejects: list[DataFile]
    rejected: int
    dropped: int
    tombstones: list[DataFile]
    """For a table with a key. They are in no table, and go with the next vacuum of the rejects."""


class Rebuild:
    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        files: Files,
        topic: str,
        plan: Plan | None,
        on_chunk: OnChunk = lambda done, chunks: None,
    ) -> None:
        """`plan` is the schema to decode by, None to pass records on undecoded."""
        self._spark = spark
        self._pipeline = pipeline
        self._files = files
        self._topic = topic
        self._plan = plan
        self._on_chunk = on_chunk
        self._rules = Rules() if pipeline.silver is None else pipeline.silver.rules(topic)
        self._notes = rebuild_directory(pipeline, topic)
        self._checkpoint = pipeline.checkpoint(TOPICS, topic)
        self._bronze, self._silver, self._rejects = (
            open_table(pipeline, kind, topic, spark) for kind in ("bronze", "silver", "rejects")
        )
        self._begun = f"{self._notes}/begun.json"
        """Says what the notes of chunks are good for; without it, nothing."""
        self._query = ""
        """The id of the query that the tables belong to."""
        self._resumed = 0
        self._least = 0
        """The batch that silver is brought forward to at once, if it is behind."""
        self._same_records = True
        """Whether silver has only been given records that it had."""
        self._finished: int | None = None
        """The last batch that the query has finished."""

    def __call__(self) -> Rebuilt:
        with ExitStack() as stack:
            if not is_url(self._pipeline.notes):
                advice = "let that rebuild finish, or end it; this one then goes on where it was"
                stack.enter_context(DirectoryLock(Path(self._notes), advice))
            query = self._query = query_of(self._files, self._pipeline, self._topic)
            # Read before silver is: a batch counts as finished when silver has it, so one that silver still lacks is missing.
            self._finished = finished_batch(self._files, self._checkpoint)
            batch, chunks, version = self._replace_silver(query)
            rejects_version = self._replace_rejects(query, batch, chunks, version)
            rejects, dropped = sum(chunk.rejected for chunk in chunks), sum(chunk.dropped for chunk in chunks)
            rows = sum(each.rows for each in self._committed)
            if self._finished is not None and self._finished > batch:
                added = self._add_missing(query, version, rejects_version, self._finished)
                batch, rows = self._finished, self._silver.row_count()
                rejects, dropped = rejects + added.rejects, dropped + added.dropped
            self._files.remove(self._notes)
        to_remove = () if self._same_records else self._gold_of_silver()
        return Rebuilt(rows, rejects, dropped, batch, len(chunks), self._resumed, to_remove)

    # -- silver -----------------------------------------------------------------------------------------------------------

    def _replace_silver(self, query: str) -> tuple[int, list[Chunk], int]:
        """Returns the batch, what was decoded, and the version of bronze that it was decoded from."""
        log = self._bronze.log
        version = self._base(query)
        chunks = self._decoded(log.files(version))
        for attempt in range(ATTEMPTS_MAX):
            handle = self._silver.handle()
            batch = self._batch_to_reach(handle, query)
            wanted = self._version_of_batch(query, batch)
            if wanted != version:
                chunks += self._decoded(added_files(log, version, wanted))
                version = wanted
                # What follows is quick; but a query of short batches is quicker.
                if attempt:
                    ask_to_wait(self._files, self._pipeline, self._topic)
                continue
            _check_age(chunks)
            self._committed = self._final_files(chunks)
            columns = self._silver.columns_of(self._spark.createDataFrame([], silver_columns(self._plan)))
            # Before the commit: whoever is killed after it must not leave notes of files that the table has.
            begun = self._files.read(self._begun)
            self._files.remove(self._begun)
            self._same_records = handle is not None and self._silver.batch_of(handle, query) == batch
            if self._silver.replace(handle, query, batch, self._committed, columns, same_records=self._same_records):
                return batch, chunks, version
            if begun is not None:
                self._files.write(self._begun, begun)
            ask_to_wait(self._files, self._pipeline, self._topic)
        raise ConfigError(
            f"table {self._silver.path} was changed in each of {ATTEMPTS_MAX} attempts to replace its rows: run this again, with the "
            "pipeline stopped if need be; what was decoded is kept"
        )

    def _batch_to_reach(self, handle: Any | None, query: str) -> int:
        """The batch that silver is at, or is brought forward to. One that does not exist is made of all that is finished; the rest is for
        the query to add."""
        bronze = self._bronze.last_batch(query)
        if bronze is None:
            raise ConfigError(
                f"table {self._bronze.path} does not belong to the checkpoint of the pipeline: put back what it was written with"
            )
        if handle is None:
            return max(self._least, bronze if self._finished is None else self._finished)
        silver = self._silver.batch_of(handle, query)
        if silver is None:
            raise ConfigError(
                f"table {self._silver.path} was not written by this pipeline, and is not replaced: remove it first"
            )
        return max(self._least, silver)

    def _version_of_batch(self, query: str, batch: int) -> int:
        """The version of bronze that has the batches up to this one."""
        try:
            return self._bronze.log.version_of_batch(query, batch)
        except ConfigError as error:
            raise ConfigError(
                f"the log of table {self._bronze.path} no longer says which rows came after batch {batch}, the last in table "
                f"{self._silver.path}: remove that table, and the tables and checkpoints of gold that reads it, and run this again"
            ) from error

    def _add_missing(self, query: str, version: int, rejects_version: int, finished: int) -> Counts:
        """Add the batches after those of a version of bronze that the query has finished without this table. Returns what is not in it.

        The rejects may be ahead of silver, at a version of their own. Batches are not added together across it: of such a group they
        would have some, and get all or none.
        """
        counts = Counts()
        until = self._version_of_batch(query, finished)
        cuts = pairwise(sorted({version, min(rejects_version, until), until}))
        for files, batch in chain.from_iterable(finished_files(self._bronze.log, query, *cut) for cut in cuts):
            for table in (self._silver, self._rejects):
                table.claim(query, batch, self._checkpoint, every_batch=False)
            rows = self._read_back(self._bronze, files, chosen_schema(RAW_COLUMNS))
            with sorted_records(rows, self._plan, self._rules) as records:
                if records.rejected is not None:
                    self._rejects.append(records.rejected, batch)
                if records.tombstones is None:
                    self._silver.append(records.fitting, batch)
                else:
                    changed = latest_changes(records.fitting, records.tombstones, self._rules.key)
                    self._silver.merge(changed.rows, changed.deleted, self._rules.key, batch)
                counts = Counts(counts.rejects + records.rejects, counts.dropped + records.dropped)
        return counts

    def _base(self, query: str) -> int:
        """The version of bronze to begin with: that of an earlier attempt, if its work can be used.

        Silver is brought forward to what can still be read, and no further: of a batch that the query is busy with, it would have the
        rows before the dead letters are sent, and then they never are.
        """
        found = self._files.read(self._begun)
        begun = {} if found is None else json.loads(found)
        identity = self._identity(query)
        batch = self._batch_to_reach(self._silver.handle(), query)
        for further in (self._finished, self._bronze.last_batch(query)):
            if further is not None and further > batch and not self._can_be_continued(query, batch):
                self._least = batch = further
        version = self._version_of_batch(query, batch)
        young = time.time() - begun.get("at_s", 0) < RESUME_S_MAX
        usable = young and begun["identity"] == identity and begun["version"] <= version
        if usable and self._has_files_since(begun["version"]):
            return int(begun["version"])
        self._files.remove(f"{self._notes}/chunks")
        self._files.write(self._begun, json.dumps({"identity": identity, "at_s": time.time(), "version": version}))
        return version

    def _can_be_continued(self, query: str, batch: int) -> bool:
        """Whether bronze still has what it was at a batch, and what came after it."""
        try:
            version = self._bronze.log.version_of_batch(query, batch)
        except ConfigError:
            return False
        return self._has_files_since(version)

    def _has_files_since(self, version: int) -> bool:
        """Whether bronze still has the files of a version and of the commits after it. Those it consists of now are not looked for."""
        log = self._bronze.log
        newest = log.version()
        assert newest is not None, "bronze is there, or there would be no rebuild"
        now = {file.path for file in log.files(newest)}
        try:
            since = [*log.files(version), *added_files(log, version, newest)]
        except ConfigError:
            return False  # its history no longer goes back so far
        return log.has_files(file for file in since if file.path not in now)

    def _gold_of_silver(self) -> tuple[str, ...]:
        """The tables and checkpoints of gold that has read silver."""
        pipeline = self._pipeline
        topics = list(dict.fromkeys([*pipeline.topics, self._topic]))
        found: list[str] = []
        for gold in pipeline.gold:
            read = [topic for topic, view in zip(topics, view_names(topics), strict=True) if mentions(gold.sql, view)]
            checkpoint = pipeline.checkpoint("gold", gold.name)
            if (
                self._topic in read
                and pipeline.gold_source(gold, read) == "silver"
                and self._files.names(f"{checkpoint}/offsets")
            ):
                found += [pipeline.table("gold", gold.name), checkpoint] if gold.table else [checkpoint]
        return tuple(found)

    def _identity(self, query: str) -> str:
        """What must be the same for an earlier attempt to be continued."""
        return _digest(repr((query, self._plan, self._rules.model_dump())))

    def _final_files(self, chunks: Sequence[Chunk]) -> list[DataFile]:
        files = [file for chunk in chunks for file in chunk.silver]
        if not self._rules.key or not files:
            return files
        # Each chunk has the last change of each key in it; now those of all of them together.
        changes = self._read_back(self._silver, files, silver_columns(self._plan))
        tombstones = [file for chunk in chunks for file in chunk.tombstones]
        deleted = self._read_back(self._rejects, tombstones, chosen_schema(RAW_COLUMNS))
        return self._silver.write_files(latest_changes(changes, deleted, self._rules.key).rows, self._query)

    # -- rejects ----------------------------------------------------------------------------------------------------------

    def _replace_rejects(self, query: str, batch: int, chunks: list[Chunk], version: int) -> int:
        """By the rejects of the same batches, and of more if the table has more: of a batch that the query is busy with they may be there
        before its rows are. Returns the version of bronze that they are of."""
        columns = self._rejects.columns_of(
            self._spark.createDataFrame([], chosen_schema(RAW_COLUMNS).add(REASON, "string"))
        )
        for _ in range(ATTEMPTS_MAX):
            handle = self._rejects.handle()
            done = None if handle is None else self._rejects.batch_of(handle, query)
            reached = max(batch, batch if done is None else done)
            wanted = self._bronze.log.version_of_batch(query, reached)
            if wanted != version:
                chunks = chunks + self._decoded(added_files(self._bronze.log, version, wanted))
                version = wanted
                continue
            files = [file for chunk in chunks for file in chunk.rejects]
            if handle is None and not files:
                return version
            if self._rejects.replace(handle, query, reached, files, columns, same_records=self._same_records):
                return version
        raise ConfigError(f"table {self._rejects.path} was changed in each of {ATTEMPTS_MAX} attempts: run this again")

    # -- chunks -----------------------------------------------------------------------------------------------------------

    def _decoded(self, files: Sequence[AddedFile]) -> list[Chunk]:
        groups = list(_groups(files))
        chunks: list[Chunk] = []
        for group in groups:
            chunks.append(self._chunk(group))
            self._on_chunk(len(chunks), len(groups))
        return chunks

    def _chunk(self, files: Sequence[AddedFile]) -> Chunk:
        note = f"{self._notes}/chunks/{_digest(repr([file.path for file in files]))}.json"
        found = self._files.read(note)
        if found is not None:
            self._resumed += 1
            return _chunk_of(json.loads(found))
        at_s = time.time()
        rows = self._read_back(self._bronze, files, chosen_schema(RAW_COLUMNS))
        with sorted_records(rows, self._plan, self._rules) as records:
            fitting, tombstones = records.fitting, []
            if records.tombstones is not None:
                fitting = latest_changes(fitting, records.tombstones, self._rules.key).rows
                tombstones = self._rejects.write_files(records.tombstones, self._query)
            chunk = Chunk(
                at_s,
                self._silver.write_files(fitting, self._query),
                [] if records.rejected is None else self._rejects.write_files(records.rejected, self._query),
                records.rejects,
                records.dropped,
                tombstones,
            )
        self._files.write(note, json.dumps(chunk))
        return chunk

    def _read_back(self, table: Table, files: Sequence[AddedFile | DataFile], columns: Any) -> DataFrame:
        """Files of a table, whether or not a version of it names them, read by tasks."""
        from pyspark.sql.pandas.types import to_arrow_schema

        data, schema = table.log.data, to_arrow_schema(columns, timezone="UTC")
        if not files:
            return self._spark.createDataFrame([], columns)

        def read(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                for path, values in zip(batch["path"].to_pylist(), batch["partition_values"].to_pylist(), strict=True):
                    yield from rows_of_file(data, AddedFile(path, 0, json.loads(values)), schema)

        named = [table.place(file) if isinstance(file, DataFile) else file for file in files]
        places = [(file.path, json.dumps(dict(file.partition_values))) for file in named]
        listed = self._spark.createDataFrame(places, "path string, partition_values string")
        return listed.repartition(len(places)).mapInArrow(read, columns)


def query_of(files: Files, pipeline: Pipeline, topic: str) -> str:
    """The id of the query that writes a topic's tables."""
    found = files.read(f"{pipeline.checkpoint(TOPICS, topic)}/metadata")
    if found is None:
        raise ConfigError(
            f"there is no checkpoint {pipeline.checkpoint(TOPICS, topic)}, so the tables of {topic} were not written by this pipeline: run "
            "it first"
        )
    return str(json.loads(found)["id"])


def check_rebuildable(pipeline: Pipeline, table: str) -> str:
    """Return the topic of a table that is named as in "silver/orders". Raises InvalidRequest or ConfigError if it cannot be remade."""
    stage, _, topic = table.partition("/")
    if stage != "silver" or not topic:
        raise InvalidRequest(
            f"{table} is not a table of silver, and only those are made from another: name one as in silver/orders"
        )
    if pipeline.silver is None or pipeline.bronze is None:
        raise ConfigError("a rebuild makes silver from bronze: the file must have both sections")
    bronze = open_table(pipeline, "bronze", topic)
    if not bronze.exists():
        raise ConfigError(f"there is no table {bronze.path} to make silver from: run the pipeline first")
    return topic


def rows_of_file(data: DataFiles, file: AddedFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """What a file of a table has. Raises ConfigError if it was there when the rebuild began, and is no more."""
    try:
        yield from read_files(data, FileTask((file,)), schema)
    except ConfigError:
        raise ConfigError(
            f"{file.path} of table {data.path} was vacuumed while the rebuild went on: run the rebuild again"
        ) from None


def added_files(log: History, after: int, until: int) -> list[AddedFile]:
    """Files with rows that came in after one version, up to another."""
    return [file for version in range(after + 1, until + 1) for file in log.commit(version).added]


def finished_files(log: History, query: str, after: int, until: int) -> Iterator[tuple[list[AddedFile], int]]:
    """The files of some batches of a query at a time, with the number of the last, from one version of a table up to another."""
    files: list[AddedFile] = []
    batch: int | None = None
    for version in range(after + 1, until + 1):
        commit = log.commit(version)
        if batch is not None and query in commit.batches and total_bytes(files) >= CHUNK_BYTES:
            yield files, batch
            files = []
        files += commit.added
        batch = commit.batches.get(query, batch)
    if batch is not None:
        yield files, batch


def _groups(files: Sequence[AddedFile]) -> Iterator[list[AddedFile]]:
    group: list[AddedFile] = []
    for file in files:
        if group and total_bytes(group) + file.size_bytes > CHUNK_BYTES:
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def _check_age(chunks: Sequence[Chunk]) -> None:
    if any(time.time() - chunk.at_s > RESUME_S_MAX for chunk in chunks):
        raise ConfigError(
            f"the rebuild took more than {RESUME_S_MAX // 3600} h, after which its first files may be vacuumed: give it more processors "
            "(--master), and run it again"
        )


def _chunk_of(noted: Sequence[Any]) -> Chunk:
    at_s, silver, rejects, rejected, dropped, tombstones = noted
    made = [[DataFile(*file) for file in files] for files in (silver, rejects, tombstones)]
    return Chunk(at_s, made[0], made[1], rejected, dropped, made[2])


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()
