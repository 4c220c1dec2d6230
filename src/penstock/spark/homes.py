"""A home for Spark in which its Python modules are not in a zip.

Spark puts the zip with its Python modules at the head of the path of every Python process that it starts. Nothing in a zip is compiled, so
each process compiles what it imports, which is half of its start; a stream has several, and gives each ten seconds. Where Spark is a
package of the interpreter that those processes run, they find the same modules there, compiled, if the home has no zip.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

HOME: Final = "SPARK_HOME"
_LINKED: Final = ("bin", "conf", "data", "jars", "sbin")


@contextmanager
def without_zip(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Let a virtual machine that is started now have such a home, if its Python processes can do without the zip.

    The home goes with this process, as the virtual machine does.
    """
    if not _can_do_without(environment):
        yield
        return
    home = tempfile.mkdtemp(prefix="penstock-spark-home-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    link_home(Path(home))
    environment[HOME] = home
    try:
        yield
    finally:
        del environment[HOME]


def link_home(home: Path) -> None:
    """Make a directory a home of Spark that has all of the installed one but its Python modules in a zip."""
    for name in _LINKED:
        if (_package() / name).exists():
            (home / name).symlink_to(_package() / name)


def _can_do_without(environment: Mapping[str, str]) -> bool:
    interpreters = {environment.get(name, sys.executable) for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
    installed = _package().parent == Path(sysconfig.get_path("purelib")) and (_package() / "jars").is_dir()
    return HOME not in environment and installed and interpreters == {sys.executable}


def _package() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])
