"""What a replay is called towards the sink, which does it once under that name; without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from penstock.errors import ConfigError, InvalidRequest
from penstock.spark.pipelines.files import LocalFiles
from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.replay import ReplayRequest, replay

REQUEST = ReplayRequest("orders-again", topic="orders")


class Crash(Exception):
    pass


def asked(directory: Path, *, crash: bool = False, request: ReplayRequest = REQUEST) -> Any:
    """Replay with a Spark that does nothing; the name that the sink is given."""
    pipeline = Pipeline.model_validate(
        {"name": "sales", "topics": ["orders"], "directory": str(directory), "bronze": {}}
    )
    spark = MagicMock()
    rows = spark.read.format().options().load().select()
    rows.columns = ["key", "value", "headers"]
    rows.persist.return_value.count.return_value = 3
    writing = rows.persist.return_value.write.format.return_value.options
    if crash:
        writing.return_value.mode.return_value.save.side_effect = Crash
        with pytest.raises(Crash):
            replay(spark, pipeline, LocalFiles(), {}, request)
    else:
        assert replay(spark, pipeline, LocalFiles(), {}, request) == 3
    return writing.call_args.kwargs["txnAppId"]


def test_a_replay_that_was_not_finished_continues_under_its_name_and_a_finished_one_is_refused(tmp_path: Path) -> None:
    first = asked(tmp_path, crash=True)
    assert asked(tmp_path) == first, "so the sink does it once"
    with pytest.raises(InvalidRequest, match="was done at"):
        asked(tmp_path)


def test_a_pipeline_that_begins_again_elsewhere_replays_again(tmp_path: Path) -> None:
    assert asked(tmp_path / "one") != asked(tmp_path / "two"), "else the sink would take it for done, and write nothing"


def test_an_id_of_any_letters_stays_in_its_directory(tmp_path: Path) -> None:
    asked(tmp_path / "tables", request=ReplayRequest("orders-again", topic="orders", id="../../out/of it"))
    assert [each.name for each in tmp_path.iterdir()] == ["tables"]
    notes = tmp_path / "tables" / "_replays"
    assert len(list(notes.glob("*.json"))) == len(list(notes.glob("begun/*"))) == 1


def test_an_id_that_is_too_long_for_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is too long to name a directory"):
        asked(tmp_path, request=ReplayRequest("orders-again", topic="orders", id="x" * 300))


def test_a_replay_whose_end_was_not_noted_is_asked_for_again_under_its_name(tmp_path: Path) -> None:
    first = asked(tmp_path)
    [note] = (tmp_path / "_replays").glob("*.json")
    note.unlink()
    assert asked(tmp_path) == first, "so the sink passes over it"
