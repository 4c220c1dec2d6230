"""`penstock spark pack`: one archive with what executors need besides Python, Spark and pyarrow.

A zip of Python files cannot do it, because half of the libraries are compiled. The archive holds them as they are installed here, so it is
for executors with this version of Python on this kind of machine. Files are in order and without times: what was packed twice is the same.
"""

from __future__ import annotations

import gzip
import io
import sys
import tarfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from penstock.errors import ConfigError

MODULES: Final = (
    "penstock",
    "pyspark_penstock",
    "msgspec",
    "structlog",
    "google_crc32c",
    "zstandard",
    # For decode and encode.
    "fastavro",
    "jsonschema_rs",
    "google.protobuf",
    "google._upb",
)
NAME: Final = f"penstock-py{sys.version_info.major}{sys.version_info.minor}.tar.gz"
_SUFFIXES: Final = frozenset({".py", ".so", ".typed", ".json"})
_NOT_NEEDED: Final = ("zstandard/_cffi", "zstandard/backend_cffi", "fastavro/__main__", "google/protobuf/compiler")


_ELF64: Final = b"\x7fELF\x02\x01"
"""64 bits, little-endian."""
_ELF_BYTES: Final = 64
_SECTIONS_AT: Final = Struct("<Q")
_SECTION_COUNTS: Final = Struct("<HHH")
_SECTION: Final = Struct("<IIQQQQIIQQ")
_OFFSET: Final = 4
_LOADED: Final = 2


class Packed(NamedTuple):
    path: Path
    size_bytes: int
    files: int


def pack(path: Path) -> Packed:
    """Write the archive. Raises ConfigError if a library is not installed."""
    found = sorted(_files())
    with (
        path.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for name, source in found:
            entry = tarfile.TarInfo(name)
            content = source.read_bytes()
            if ".so" in source.suffixes:
                content = without_debug_sections(content)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return Packed(path, path.stat().st_size, len(found))


def without_debug_sections(data: bytes) -> bytes:
    """Return a library with zeros for what only a debugger reads, which is most of some: zeros take no room in an archive.

    Nothing moves, and nothing that is loaded is touched. What is not 64-bit ELF is returned as it is.
    """
    if len(data) < _ELF_BYTES or data[: len(_ELF64)] != _ELF64:
        return data
    at, (size, count, names) = _SECTIONS_AT.unpack_from(data, 40)[0], _SECTION_COUNTS.unpack_from(data, 58)
    if size != _SECTION.size or at + size * count > len(data) or names >= count:
        return data
    sections = [_SECTION.unpack_from(data, at + size * number) for number in range(count)]
    names_at = sections[names][_OFFSET]
    changed = bytearray(data)
    for section in sections:
        name_at, flags, offset, length = names_at + section[0], section[2], section[_OFFSET], section[5]
        if data.startswith(b".debug_", name_at) and not flags & _LOADED and offset + length <= len(data):
            changed[offset : offset + length] = bytes(length)
    return bytes(changed)


def _files() -> Iterator[tuple[str, Path]]:
    for module in MODULES:
        spec = find_spec(module)
        if spec is None or not spec.submodule_search_locations:
            raise ConfigError(f'{module} is not installed: run pip install "penstock[spark]"')
        folder = module.replace(".", "/")
        for location in spec.submodule_search_locations:
            root = Path(location)
            for source in root.rglob("*"):
                name = f"{folder}/{source.relative_to(root).as_posix()}"
                if source.suffix in _SUFFIXES and not name.startswith(_NOT_NEEDED):
                    yield name, source
            # Libraries that a wheel brings along for its own.
            for source in root.with_name(f"{root.name}.libs").glob("*"):
                yield f"{folder}.libs/{source.name}", source
