"""Every error has a text, with the words by which clients tell errors apart."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import errors
from penstock.errors import BatchFailed, PenstockError
from penstock.protocols.felix.answers import error_of
from penstock.protocols.felix.codec import Frame, encode_frame, encode_message
from penstock.protocols.felix.messages import Message, Publish, Subscribe
from penstock.protocols.felix.refusals import TEXT_CHARS_MAX, refusal
from penstock.protocols.felix.scopes import Scope
from tests.protocols.felix.conversation import Talk

CLASSES = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, PenstockError)]
SCOPE = Scope("t", "n", "s")


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_has_a_text(kind: type[PenstockError]) -> None:
    error = kind("why", []) if kind is BatchFailed else kind("why")
    assert refusal(error, SCOPE)


@pytest.mark.parametrize(
    "error",
    [
        errors.TopicNotFound("topic not found: x"),
        errors.AccessDenied("unauthorized: no"),
        errors.AccessDenied("no"),
        errors.AuthenticationRequired("authentication required: log in"),
        errors.AuthenticationFailed("auth failed: no"),
    ],
)
def test_a_client_finds_the_class_again(error: PenstockError) -> None:
    assert type(error_of(refusal(error, SCOPE))) is type(error)


def test_words_of_other_brokers_are_known_too() -> None:
    assert isinstance(error_of("tenant mismatch"), errors.AccessDenied)
    assert isinstance(error_of("cursor 3 is too old"), errors.OffsetOutOfRange)
    assert isinstance(error_of("something else"), errors.ServerError)


LONG = "\x7f" * 100_000
"""Each of its characters takes several as it is quoted."""


@pytest.mark.parametrize("names", [{}, {"stream": LONG}, {"tenant_id": LONG}, {"namespace": "/" + LONG}])
@pytest.mark.parametrize("request_id", [None, "r", 7])
async def test_no_answer_is_long_because_the_request_was(talk: Talk, names: Any, request_id: Any) -> None:
    scope: Any = {"tenant_id": "default", "namespace": "default", "stream": "nope", **names}
    for request in (
        Publish(**scope, payload=b"", request_id=request_id),
        Subscribe(**scope, request_id=request_id),
        encode_message(Publish(**scope, payload=b"")).replace(b"publish", b"publisc", 1),
        encode_frame(0, b'{"type":"publish","ack":"' + LONG.encode() + b'"}'),
    ):
        frame = await frame_of(talk, request)
        assert len(frame.payload) < 6 * TEXT_CHARS_MAX


async def frame_of(talk: Talk, request: bytes | Message) -> Frame:
    talk.say(request)
    return await talk.frame()
