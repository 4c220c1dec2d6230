"""Every error of the broker has words for every request, in both dialects."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from penstock import errors
from penstock.errors import PenstockError
from penstock.protocols.rustlog.codec import messages
from penstock.protocols.rustlog.codec.binary_client import decode_error
from penstock.protocols.rustlog.errors import encode_error, internal_error, refusal
from penstock.protocols.rustlog.wire import Code, Dialect

BODIES: list[messages.Body] = [
    messages.Fetch("t", 0, 0, 1, ""),
    messages.OffsetCommit("t", 0, "g", 1),
    messages.OffsetFetch("t", 0, "g"),
    messages.CreateTopic("t", 1),
    messages.ListTopics(),
    messages.DescribeTopic("t"),
    messages.DescribePartition("t", 0),
    messages.Metrics(),
    messages.Ping(),
]


def kinds(kind: type[PenstockError] = PenstockError) -> Iterator[type[PenstockError]]:
    for each in kind.__subclasses__():
        yield each
        yield from kinds(each)


def requests(dialect: Dialect) -> Iterator[messages.ProduceRun | messages.Call]:
    yield messages.ProduceRun(dialect, "t", 0, [b"x"], [1], 10)
    for body in BODIES:
        yield messages.Call(dialect, 1, body, 10)


def test_the_bodies_here_are_all_there_are() -> None:
    assert {type(body).__name__ for body in BODIES} | {"BadRequest"} == {
        kind.__name__ for kind in messages.Body.__args__
    }


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind is not errors.BatchFailed])
def test_an_error_is_told_in_both_dialects_whatever_was_asked(kind: type[PenstockError]) -> None:
    for request in requests(Dialect.BINARY):
        failure = decode_error(refusal(request, kind("the reason"))[4:])
        assert failure.code in set(Code)
        assert failure.message
    for request in requests(Dialect.JSON):
        assert list(json.loads(refusal(request, kind("the reason"))[4:])) == ["Error"]


def test_a_text_that_is_too_long_is_cut_between_characters() -> None:
    failure = decode_error(encode_error(Dialect.BINARY, 500, "ö" * 40_000)[4:])
    assert failure.message == "ö" * 32_767


def test_our_own_faults_do_not_say_what_they_are() -> None:
    assert decode_error(internal_error(Dialect.BINARY)[4:]).code == 500
    assert "the server's log has the details" in internal_error(Dialect.JSON).decode()
