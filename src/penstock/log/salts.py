"""Salts: what ties each block to its file, and how a reader of files finds them.

A topic has a random salt of 16 bytes in its metadata file. The salt of one segment file is derived from that, the partition and the
name of the file, so it is known as long as the metadata is, whatever happens to the file. Salts stay on the disk: they are in no message,
no log line and no metric, because a client that knew the salt of a file could write a record that looks like a block of it.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

import google_crc32c
import msgspec

FORMAT: Final = 2
"""The version of everything in a data directory: metadata, segments, journal, indexes (docs/format.md)."""
METADATA_FILE: Final = "topic.json"
METADATA_COPY: Final = "topic.json.copy"
_SALT_BYTES: Final = 16


class PartitionSalts(NamedTuple):
    """The salts of one partition's segment files."""

    topic_salt: bytes
    partition: int

    def of(self, stem: str) -> int:
        """Return the salt of the file with this name, given without its suffix."""
        digest = blake2b(b"%d/%s" % (self.partition, stem.encode()), key=self.topic_salt, digest_size=8).digest()
        return int.from_bytes(digest, "little")


def new_topic_salt() -> bytes:
    return secrets.token_bytes(_SALT_BYTES)


def encode_metadata(metadata: dict[str, Any]) -> bytes:
    """Encode a metadata file: the CRC-32C of the JSON text in hexadecimal, a line end, the text, a line end."""
    body = msgspec.json.format(msgspec.json.encode(metadata))
    return b"%08x\n%s\n" % (google_crc32c.value(body), body)


def decode_metadata(data: bytes) -> dict[str, Any]:
    """Decode a metadata file of any format; every format has a `version`. Raises ValueError if it is damaged."""
    checksum, _, body = data.rstrip(b"\n").partition(b"\n")
    if checksum != b"%08x" % google_crc32c.value(body):
        raise ValueError("the checksum does not match")
    return msgspec.json.decode(body, type=dict[str, Any])


def salt_beside(segment_path: Path) -> int:
    """Return the salt of a segment file, found through the metadata next to it. Raises OSError or ValueError if that cannot be read."""
    partition = segment_path.parent
    metadata = decode_metadata((partition.parent / METADATA_FILE).read_bytes())
    if metadata["version"] != FORMAT:
        raise ValueError(f"format {metadata['version']}")
    return PartitionSalts(bytes.fromhex(metadata["salt"]), int(partition.name)).of(segment_path.stem)
