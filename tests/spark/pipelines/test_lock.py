"""One run at a time in one directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.spark.pipelines.lock import DirectoryLock


def test_a_second_run_is_told_who_has_the_directory(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path / "tables"):
        with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"), DirectoryLock(tmp_path / "tables"):
            pass
    with DirectoryLock(tmp_path / "tables"):
        pass
