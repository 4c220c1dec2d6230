"""`penstock spark pack` makes an archive that a bare Python reads and decodes topics with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from penstock.spark.packing import without_debug_sections
from tests.cli.conftest import Run

BYTES_MAX: Final = 10_000_000
# As an executor has it: pyarrow and pyspark from its own Python, everything else from the archive.
PROGRAM: Final = """
import sys
from importlib.machinery import PathFinder
from pathlib import Path

OWN = {"pyarrow", "numpy", "pyspark", "py4j", "pandas", "dateutil", "pytz", "six"}
archive, packages = sys.argv[1:]

class Executor(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        top = name.partition(".")[0]
        return super().find_spec(name, path if path is not None else [packages] if top in OWN else [archive], target)

sys.path[:] = [each for each in sys.path if "site-packages" not in each and "/src" not in each]
sys.meta_path.append(Executor)
import penstock.protocols.flymq.sync
import penstock.spark.reading
import penstock.spark.sink_blocks
from penstock.clients.loop_thread import LoopThread
from penstock.spark.pipelines.decoding import Decoder, Plan, version

assert Path(penstock.__file__).is_relative_to(archive), penstock.__file__
assert "uvloop" not in sys.modules
LoopThread("test").close()
avro = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'
for kind, text, value in (
    ("json", '{"type": "object", "properties": {"id": {"type": "integer"}}}', b'{"id": 1}'),
    ("avro", avro, b"\\x02"),
):
    decoded = Decoder(Plan("o", kind, "", version(kind, 1, text))).decode([value])
    assert (decoded.columns[0].to_pylist(), decoded.reasons) == ([1], [None]), decoded
import google.protobuf.json_format
print("read")
"""


def test_an_executor_needs_nothing_but_the_archive(run: Run, tmp_path: Path) -> None:
    archive = tmp_path / "penstock.tar.gz"
    said = json.loads(run("spark", "pack", "-o", str(archive), "--json").text)
    assert said["path"] == str(archive)
    assert said["bytes"] == archive.stat().st_size < BYTES_MAX
    unpacked = tmp_path / "unpacked"
    with tarfile.open(archive) as packed:
        packed.extractall(unpacked, filter="data")
    packages = str(Path(pa.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", PROGRAM, str(unpacked), packages],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.stdout, done.stderr) == ("read\n", "")


def test_what_cannot_be_written_says_why(run: Run, tmp_path: Path) -> None:
    failed = run("spark", "pack", "-o", str(tmp_path / "nowhere" / "file"))
    assert failed.code == 1
    assert "cannot be written: No such file or directory" in failed.err


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(100), b"#!" + bytes(100)])
def test_what_is_no_library_is_packed_as_it_is(data: bytes) -> None:
    assert without_debug_sections(data) == data
