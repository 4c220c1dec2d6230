"""TOML files that people write: each error is one line that names its place."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

from penstock.errors import ConfigError

FILE_BYTES_MAX: Final = 1 << 20


def read_bytes(file: Path, *, if_absent: str) -> bytes:
    """Return the bytes of a file. `if_absent` is the advice if there is none. Raises ConfigError."""
    try:
        with file.open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ConfigError(f"{file} does not exist: {if_absent}") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}): name a readable file") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{file} is larger than {FILE_BYTES_MAX} bytes, which no such file is: name another one")
    return data


def parse(data: bytes, file: Path) -> dict[str, Any]:
    """Return what a file of that name with these bytes says. Raises ConfigError."""
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text (byte {error.start}): save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
