"""A program of a benchmark reads its job from standard input and prints its result."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import msgspec
import pytest

from bench.jobs import answer_job


class Doubling(msgspec.Struct):
    number: int


class Doubled(msgspec.Struct):
    by_number: dict[int, float]


def test_the_answer_is_what_the_job_gives(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b'{"number": 21}')))
    answer_job(Doubling, lambda job: Doubled({job.number: 2.0 * job.number}))
    assert msgspec.json.decode(capsys.readouterr().out, type=Doubled) == Doubled({21: 42.0})


def test_a_job_that_lacks_something_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"{}")))
    with pytest.raises(msgspec.ValidationError, match="missing required field `number`"):
        answer_job(Doubling, lambda job: job)
