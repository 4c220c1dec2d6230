"""A home for Spark in which its Python modules are not in a zip.

Spark puts the zip with its Python modules at the head of the path of every Python process that it starts. Nothing in a zip is compiled, so
each process compiles what it imports, which is half of its start; a stream has several, and gives each ten seconds. Where Spark is a
package of the interpreter that those processes run, they find the same modules there, compiled, if the home has no zip.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

HOME: Final = "SPARK_HOME"
_LINKED: Final = ("bin", "conf", "data", "jars", "sbin")


def home_without_zip(environment: Mapping[str, str]) -> Path | None:
    """Return such a home for a virtual machine that is started now; None if its Python processes cannot do without the zip."""
    interpreters = {environment.get(name, sys.executable) for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
    installed = _package().parent == Path(sysconfig.get_path("purelib")) and (_package() / "jars").is_dir()
    suits = HOME not in environment and installed and interpreters == {sys.executable}
    return _home_of(os.getpid()) if suits else None


def link_home(home: Path) -> None:
    """Make a directory a home of Spark that has all of the installed one but its Python modules in a zip."""
    for name in _LINKED:
        if (_package() / name).exists():
            (home / name).symlink_to(_package() / name)


@cache
def _home_of(process_id: int) -> Path:
    """Make the home of this process. Its virtual machine loads classes from it as long as it runs, and they end together."""
    home = Path(tempfile.mkdtemp(prefix="penstock-spark-home-"))
    atexit.register(_remove, home, process_id)
    link_home(home)
    # systemd-tmpfiles removes what has not been used for days, except directories that are locked.
    fcntl.flock(os.open(home, os.O_RDONLY), fcntl.LOCK_SH)
    return home


def _remove(home: Path, process_id: int) -> None:
    if os.getpid() == process_id:  # and not a process forked from it
        shutil.rmtree(home, ignore_errors=True)


def _package() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])
