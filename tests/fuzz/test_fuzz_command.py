"""What `make fuzz` does with an example that fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.fuzz.__main__ import EXAMPLE_CHARS_MAX, ROOT, Search, find_targets, keep_examples

SOURCE = '''"""A test file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def stage():
    return object()


@given(st.integers(0, 1 << 40), st.lists(st.binary(max_size=3)))
def test_small_or_short(stage, number, rows):
    assert number < 1000 or len(rows) < 2


@given(st.just(bytes(5000)))
def test_nothing_large(data):
    assert len(data) < 5000


@given(st.booleans())
def test_nothing(truth):
    pass
'''


def run(path: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        str(ROOT / "pyproject.toml"),
        str(path),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=path.parent, timeout=60)


def test_a_failing_example_is_written_above_its_test_and_runs_first_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "test_example.py"
    path.write_text(SOURCE)
    first = run(path)
    assert first.returncode == 1
    kept = keep_examples(SOURCE, first.stdout)
    assert kept.count("@example(") == 1, "the large one cannot be kept"
    assert "@example(number=1000, rows=[b'', b''])\ndef test_small_or_short(" in kept
    assert len(first.stdout) > EXAMPLE_CHARS_MAX
    path.write_text(kept)
    assert "Failing explicit example: test_small_or_short(" in run(path).stdout
    assert keep_examples(kept, first.stdout) == kept


def test_what_has_no_repr_is_not_kept() -> None:
    printed = "E       Failing test case: test_nothing(\nE           truth=Thing(<object at 0x7f>),\nE       )\n"
    assert keep_examples(SOURCE, printed) == SOURCE


def test_every_file_with_hypothesis_is_a_target_and_all_get_their_turn() -> None:
    targets = find_targets(ROOT / "tests")
    paths = {target.path for target in targets}
    assert {"tests/fuzz/test_flymq_codec_fuzz.py", "tests/log/embedded/test_engine_model.py"} <= paths
    assert Path(__file__).relative_to(ROOT).as_posix() not in paths
    search = Search(targets, seed=1, seconds=60)
    for expected in targets:
        chosen = search._next()
        assert chosen is expected
        chosen.running = False
        chosen.seconds += 10
    assert search._next() is targets[0]


def test_no_round_begins_when_the_time_is_over() -> None:
    assert Search(find_targets(ROOT / "tests"), seed=1, seconds=-1)._next() is None
