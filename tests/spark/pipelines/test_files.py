"""Small files beside tables: on this machine, and through the file systems that Spark knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import ConfigError
from penstock.spark.pipelines import files as module
from penstock.spark.pipelines.files import Files, HadoopFiles, LocalFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_files(files: Files, directory: str, place: Path) -> None:
    path = f"{directory}/below/note.json"
    assert (files.read(path), files.names(f"{directory}/below")) == (None, [])
    for text in ("first", "sécond, longer", ""):
        files.write(path, text)
        assert (files.read(path), files.names(f"{directory}/below")) == (text, ["note.json"])
    assert [each.name for each in (place / "below").iterdir()] == ["note.json"], "nothing else is left lying about"


def test_files_of_this_machine_are_replaced_whole(tmp_path: Path) -> None:
    check_files(LocalFiles(), str(tmp_path), tmp_path)


def test_files_elsewhere_are_replaced_whole(spark: SparkSession, tmp_path: Path) -> None:
    check_files(HadoopFiles(spark), f"file://{tmp_path}", tmp_path)


def test_files_of_a_file_system_that_filecontext_does_not_know_are_replaced_too(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = HadoopFiles(spark)
    configuration = spark.sparkContext._jvm.org.apache.hadoop.conf.Configuration(files._configuration)  # type: ignore[union-attr]
    configuration.unset("fs.AbstractFileSystem.file.impl")
    monkeypatch.setattr(files, "_configuration", configuration)
    for text in ("first", "second"):
        files.write(f"file://{tmp_path}/below/note.json", text)
        assert files.read(f"file://{tmp_path}/below/note.json") == text
    assert files.names(f"file://{tmp_path}/below") == ["note.json"]


def test_a_file_that_appears_when_it_is_closed_is_put_in_its_place(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in S3, which tells it by a capability; here it is one that every local file system has."""
    monkeypatch.setattr(module, "_WHOLE_AT_CLOSE", "fs.capability.paths.permissions")

    def must_not(*given: object) -> None:
        raise AssertionError("a rename is a copy there")

    monkeypatch.setattr(HadoopFiles, "_replace", must_not)
    files = HadoopFiles(spark)
    for text in ("first", "second"):
        files.write(f"file://{tmp_path}/below/note.json", text)
        assert files.read(f"file://{tmp_path}/below/note.json") == text


def test_a_write_that_fails_leaves_what_was_there(spark: SparkSession, tmp_path: Path) -> None:
    files = HadoopFiles(spark)
    files.write(f"file://{tmp_path}/note.json", "first")
    unwritable: Any = 7
    with pytest.raises(AttributeError):
        files.write(f"file://{tmp_path}/note.json", unwritable)
    assert files.read(f"file://{tmp_path}/note.json") == "first"
    assert [each.name for each in tmp_path.iterdir()] == ["note.json"]


def test_a_file_system_that_does_not_replace_a_file_is_found_out(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = HadoopFiles(spark)
    monkeypatch.setattr(files, "read", lambda path: "first")
    with pytest.raises(ConfigError, match="was not replaced: its file system does not support atomic replacement"):
        files.write(f"file://{tmp_path}/note.json", "second")
