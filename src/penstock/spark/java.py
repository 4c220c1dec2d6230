"""Finds the Java that Spark runs on, or says which package to install.

The order is that of Spark's own launcher, and then some: `JAVA_HOME`, the `java` on the PATH, then where Debian keeps them. A
`JAVA_HOME` that does not fit is an error and not passed over: who set it meant it. Versions are read from the `release` file that
every Java has at its root, because starting a virtual machine to ask takes longer than all the rest of this module.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from penstock.errors import JavaMissing

JAVA_VERSION_MIN = 17
JAVA_PACKAGE = "openjdk-17-jre-headless"
USUAL_DIRECTORIES = (Path("/usr/lib/jvm"), Path("/opt/java"))
ASKING_S_MAX = 20.0
_INSTALL = f"install one (apt-get install {JAVA_PACKAGE} on Debian 12, default-jre-headless on later ones) or set JAVA_HOME to one"
_RELEASE_LINE = re.compile(r'^JAVA_VERSION="([^"]*)"', re.MULTILINE)
_VERSION_OUTPUT = re.compile(r'version "([^"]*)"')


def find_java(environment: Mapping[str, str], directories: Iterable[Path] = USUAL_DIRECTORIES) -> Path:
    """The home directory of a Java that is new enough. Raises JavaMissing."""
    named = environment.get("JAVA_HOME")
    if named:
        version = java_version(Path(named))
        if version is None:
            raise JavaMissing(
                f"JAVA_HOME is {named}, which holds no Java (there is no bin/java in it): correct it or unset it"
            )
        if version < JAVA_VERSION_MIN:
            raise JavaMissing(
                f"JAVA_HOME is {named}, which is Java {version}, and Spark needs Java {JAVA_VERSION_MIN} or newer: {_INSTALL}"
            )
        return Path(named)
    too_old: list[str] = []
    for home in _candidates(environment, directories):
        version = java_version(home)
        if version is None:
            continue
        if version >= JAVA_VERSION_MIN:
            return home
        too_old.append(f"Java {version} in {home}")
    if too_old:
        raise JavaMissing(f"Spark needs Java {JAVA_VERSION_MIN} or newer, and there is only {too_old[0]}: {_INSTALL}")
    raise JavaMissing(f"Spark needs Java {JAVA_VERSION_MIN} or newer, and there is none: {_INSTALL}")


def java_version(home: Path) -> int | None:
    """The major version (17, 21; 8 for what calls itself 1.8) of the Java at `home`; None if there is none."""
    program = home / "bin" / "java"
    if not program.is_file():
        return None
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        text = ""
    found = _RELEASE_LINE.search(text) or _VERSION_OUTPUT.search(_ask(program))
    return None if found is None else _major(found[1])


def _candidates(environment: Mapping[str, str], directories: Iterable[Path]) -> Iterable[Path]:
    for named in environment.get("PATH", "").split(":"):
        program = Path(named) / "java"
        if named and program.is_file():
            yield program.resolve().parent.parent
    for directory in directories:
        if directory.is_dir():
            homes = [home for home in directory.iterdir() if (home / "bin" / "java").is_file()]
            # The oldest that will do comes first: it is the one Spark has been run on the longest.
            yield from sorted(homes, key=lambda home: (java_version(home) or 0, home.name))


def _ask(program: Path) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the program is a Java that this user has installed
            [program, "-version"], capture_output=True, text=True, timeout=ASKING_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout


def _major(version: str) -> int | None:
    found = re.match(r"(?:1\.)?(\d+)", version)
    return int(found[1]) if found else None
