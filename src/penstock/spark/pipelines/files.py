"""Small files next to checkpoints: on this machine through Python, anywhere else through the file systems that Spark knows.

A file is replaced whole or not at all; what is written is on disk when the call returns. Elsewhere that holds as far as Hadoop's file
systems allow: a store whose files appear when they are closed (S3) is given the file as it is, any other a file of another name, which then
replaces the first. HDFS does so in one step; between the two contents of a file, others may for a moment have none. So what must not be
missed (which replay was begun) is written once and never replaced.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_REMOTE: Final = re.compile(r"[a-z][a-z0-9+.-]+://")
_WHOLE_AT_CLOSE: Final = "fs.capability.outputstream.abortable"
"""Hadoop's name for stores in which a file appears when it is closed, with all that is in it, unless its stream is aborted."""


class Files(Protocol):
    def names(self, directory: str) -> list[str]:
        """What is in a directory; nothing if there is none."""

    def read(self, path: str) -> str | None:
        """A file's text; None if there is none."""

    def write(self, path: str, text: str) -> None: ...

    def remove(self, path: str) -> None:
        """Remove a file or a directory and all that is in it, if it is there."""


class LocalFiles:
    def names(self, directory: str) -> list[str]:
        path = Path(directory)
        return sorted(each.name for each in path.iterdir()) if path.is_dir() else []

    def read(self, path: str) -> str | None:
        try:
            return Path(path).read_text()
        except FileNotFoundError:
            return None

    def write(self, path: str, text: str) -> None:
        target = Path(path)
        make_directory(target.parent)
        # A name that Spark, which lists these directories too, takes for hidden.
        temporary = target.with_name(f"_{target.name}.tmp")
        with temporary.open("w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
        sync_directory(target.parent)

    def remove(self, path: str) -> None:
        target = Path(path)
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directories(directories: Iterable[Path], top: Path) -> None:
    """Make the names in directories durable, and in those above them up to `top`: somebody else may just have made them."""
    above: dict[Path, None] = {}
    for directory in directories:
        for each in (directory, *directory.parents):
            above[each] = None
            if each == top:
                break
    for each in above:
        sync_directory(each)


def make_directory(path: Path) -> None:
    """Make a directory that is still there after a power cut, with those above it."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_directory(each.parent)


def is_url(path: str) -> bool:
    """Return whether a path is that of an object store or another file system, not of this machine."""
    return bool(_REMOTE.match(path)) and not path.startswith("file:")


def files_at(directory: str, spark: SparkSession) -> Files:
    return HadoopFiles(spark) if is_url(directory) else LocalFiles()


class HadoopFiles:
    """Whatever Spark's configuration reaches: hdfs://, s3a://, ..."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  the only way to Hadoop's file systems from Python
        self._gateway: Any = spark.sparkContext._gateway  # noqa: SLF001
        self._configuration: Any = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001

    def names(self, directory: str) -> list[str]:
        path, system = self._at(directory)
        if not system.exists(path):
            return []
        return sorted(status.getPath().getName() for status in system.listStatus(path))

    def read(self, path: str) -> str | None:
        at, system = self._at(path)
        if not system.exists(at):
            return None
        stream = system.open(at)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        content = text.encode()
        at, system = self._at(path)
        if system.hasPathCapability(at, _WHOLE_AT_CLOSE):
            _fill(system.create(at, True), content)
        else:
            self._replace(at, system, content)
        # A rename that did not happen is no error to every file system.
        if self.read(path) != text:
            raise ConfigError(
                f"{path} was not replaced: its file system does not support atomic replacement; use another"
            )

    def _replace(self, at: Any, system: Any, content: bytes) -> None:
        hadoop = self._jvm.org.apache.hadoop.fs
        # A name that Spark, which lists these directories too, takes for hidden.
        temporary = hadoop.Path(at.getParent(), f"_{at.getName()}.{uuid.uuid4().hex}.tmp")
        try:
            if self._configuration.get(f"fs.AbstractFileSystem.{system.getUri().getScheme()}.impl") is None:
                # Only FileContext renames with overwrite, and it has no implementation for this scheme (gs:// has none by default).
                _fill(system.create(temporary), content)
                system.delete(at, False)
                system.rename(temporary, at)
            else:
                files = hadoop.FileContext.getFileContext(at.toUri(), self._configuration)
                _fill(files.create(temporary).create().recursive().build(), content)
                rename = getattr(hadoop, "Options$Rename")
                options = self._gateway.new_array(rename, 1)
                options[0] = rename.OVERWRITE
                files.rename(temporary, at, options)
        except BaseException:
            system.delete(temporary, False)
            raise

    def remove(self, path: str) -> None:
        at, system = self._at(path)
        system.delete(at, True)

    def _at(self, path: str) -> tuple[Any, Any]:
        at = self._jvm.org.apache.hadoop.fs.Path(path)
        return at, at.getFileSystem(self._configuration)


def _fill(stream: Any, content: bytes) -> None:
    """Write a new file and close it. Where files appear when they are closed, one that fails does not."""
    try:
        stream.write(bytearray(content))
        if stream.hasCapability("hsync"):
            stream.hsync()
    except BaseException:
        if stream.hasCapability(_WHOLE_AT_CLOSE):
            stream.abort()
        raise
    finally:
        stream.close()
