"""Contexts on disk: named addresses with what is needed to log in there, and which of them is in use.

They are one JSON file that only its owner can read (mode 0600, in a directory of mode 0700): it may hold passwords. It is replaced
as a whole, so a crash leaves the old or the new one, and changed under a lock, so that of two commands at once each sees what the
other did. A file that others can read is refused, as ssh refuses such keys.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError, EntryNotFound

FILE_NAME = "contexts.json"
FILE_BYTES_MAX = 1 << 20
NAME_CHARS_MAX = 64
OPTIONAL = ("admin", "password")


class Profile:
    """What a context stands for."""

    __slots__ = ("admin", "password", "server")

    def __init__(self, server: str, admin: str | None = None, password: str | None = None) -> None:
        self.server = server
        """An address without a password."""
        self.admin = admin
        self.password = password

    def shown(self) -> dict[str, object]:
        """What may be printed: whether there is a password, never which."""
        return {"server": self.server, "admin": self.admin, "password": "stored" if self.password else None}


class Profiles:
    """All contexts of one person, by name."""

    def __init__(self, contexts: dict[str, Profile], current: str | None) -> None:
        self.contexts = contexts
        self.current = current

    def find(self, name: str) -> Profile:
        """Raises EntryNotFound."""
        if name not in self.contexts:
            raise EntryNotFound(
                f"context not found: {name} (list them with: penstock context list; create it with: "
                f"penstock context create {name} --server URL)"
            )
        return self.contexts[name]


def path() -> Path:
    """Where they are kept: below XDG_CONFIG_HOME, or ~/.config."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return Path(base) / "penstock" / FILE_NAME if base else Path("~/.config").expanduser() / "penstock" / FILE_NAME


def load() -> Profiles:
    """Raises ConfigError if the file cannot be read, is none of ours, or others can read it."""
    file = path()
    try:
        with file.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            data = stream.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return Profiles({}, None)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}): correct its permissions, or remove it") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{file} may hold passwords and others can read it: run chmod 600 {file}")
    try:
        if len(data) > FILE_BYTES_MAX:
            raise ValueError(f"it is larger than {FILE_BYTES_MAX} bytes")
        return _decoded(json.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{file} is not a file of contexts ({error}): correct it, or remove it") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where text belongs: write it in quotes")
    return value


def _decoded(document: Any) -> Profiles:
    contexts = {
        str(name): Profile(_text(each["server"]), *(each.get(other) and _text(each[other]) for other in OPTIONAL))
        for name, each in document["contexts"].items()
    }
    current = document.get("current")
    return Profiles(contexts, current if current in contexts else None)


@contextmanager
def changing() -> Iterator[Profiles]:
    """The contexts, to be changed in the block and saved when it ends without an error. Ask nobody in it: other commands wait."""
    directory = path().parent
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        profiles = load()
        yield profiles
        _save(profiles)
    finally:
        os.close(descriptor)


def _save(profiles: Profiles) -> None:
    """Replace the file."""
    file = path()
    document = {
        "current": profiles.current,
        "contexts": {
            name: {"server": each.server, "admin": each.admin, "password": each.password}
            for name, each in sorted(profiles.contexts.items())
        },
    }
    descriptor, name = tempfile.mkstemp(prefix=f"{FILE_NAME}.", dir=file.parent)  # mode 0600
    fresh = Path(name)
    try:
        with os.fdopen(descriptor, "w") as stream:
            json.dump(document, stream, indent=2)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(file)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
