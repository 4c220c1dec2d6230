from __future__ import annotations

from pathlib import Path

import pytest

from penstock.log.salts import PartitionSalts, decode_metadata, encode_metadata, new_topic_salt, salt_beside

SALT = bytes(range(16))


def test_the_salt_of_a_file_is_pinned() -> None:
    """The format is frozen: files that were written once must be found to be sealed right forever."""
    assert PartitionSalts(SALT, 0).of("00000000000000000000") == 0xCD80AE444984ED16
    assert PartitionSalts(SALT, 12).of("00000000000000000007-00000000000000000009") == 0x6C8D8E46F4F4D763


def test_it_depends_on_the_topic_the_partition_and_the_name() -> None:
    stems = ["00000000000000000000", "00000000000000000001", "00000000000000000000-00000000000000000001"]
    salts = {PartitionSalts(topic, index).of(stem) for topic in (SALT, bytes(16)) for index in (0, 1) for stem in stems}
    assert len(salts) == 12
    assert new_topic_salt() != new_topic_salt()
    assert len(new_topic_salt()) == 16


def test_a_reader_of_files_finds_it_in_the_metadata_beside_them(tmp_path: Path) -> None:
    path = tmp_path / "orders.1" / "3" / "00000000000000000000.log"
    path.parent.mkdir(parents=True)
    metadata = tmp_path / "orders.1" / "topic.json"
    with pytest.raises(OSError, match=r"topic\.json"):
        salt_beside(path)
    metadata.write_bytes(encode_metadata({"version": 2, "salt": SALT.hex()}))
    assert salt_beside(path) == PartitionSalts(SALT, 3).of(path.stem)
    for damaged in (b"", b"garbage", metadata.read_bytes()[:-3], encode_metadata({"version": 3, "salt": SALT.hex()})):
        metadata.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"checksum|format 3"):
            salt_beside(path)


def test_metadata_survives_being_stored() -> None:
    metadata = {"version": 2, "name": "größe", "config": {"partitions": 1}}
    encoded = encode_metadata(metadata)
    assert decode_metadata(encoded) == metadata
    for bit in range(8 * len(encoded.rstrip())):
        flipped = bytearray(encoded)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="checksum"):
            decode_metadata(bytes(flipped))
