"""Every error has a text, with the words by which clients tell errors apart."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from penstock import errors
from penstock.errors import BatchFailed, PenstockError
from penstock.protocols.felix.client.answers import error_of
from penstock.protocols.felix.codec.frames import Frame, encode_frame, encode_message
from penstock.protocols.felix.codec.messages import Auth, Error, Message, Publish, PublishError, Subscribe
from penstock.protocols.felix.codec.scopes import Scope
from penstock.protocols.felix.errors import TEXT_CHARS_MAX, code_of, refusal
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


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.AuthenticationRequired("x"), ("unauthenticated", 1, "fatal")),
        (errors.AuthenticationFailed("x"), ("unauthenticated", 1, "fatal")),
        (errors.AccessDenied("x"), ("forbidden", 2, "fatal")),
        (errors.TopicNotFound("x"), ("not_found", 3, "fatal")),
        (errors.GroupNotFound("x"), ("not_found", 3, "fatal")),
        (errors.PartitionNotFound("x"), ("not_found", 3, "fatal")),
        (errors.InvalidRequest("x"), ("invalid_request", 4, "fatal")),
        (errors.RecordTooLarge("x"), ("invalid_request", 4, "fatal")),
        (errors.LimitExceeded("x"), ("limit_exceeded", 11, "fatal")),
        (errors.ShuttingDown("x"), ("draining", 12, "retry")),
        (errors.CorruptBlock("x"), ("storage", 14, "fatal")),
        (errors.NoSpace("x"), ("storage", 14, "retry_after")),
        (errors.NotWritten("x"), ("storage", 14, "retry_after")),
        (errors.OutcomeUnknown("x"), ("storage", 14, "outcome_unknown")),
        (errors.WriteFailed("x"), ("storage", 14, "outcome_unknown")),
        (errors.CorruptMetadata("x"), ("storage", 14, "fatal")),
        (errors.ServerError("x"), ("internal", 13, "outcome_unknown")),
        (errors.PenstockError("x"), ("internal", 13, "outcome_unknown")),
        (errors.NotSupported("x"), ("invalid_request", 4, "fatal")),
        (errors.TopicExists("x"), ("invalid_request", 4, "fatal")),
        (errors.EntryNotFound("x"), ("stale_claim", 15, "retry")),
    ],
)
def test_an_error_has_a_code_and_says_what_to_do(error: PenstockError, code: tuple[str, int, str]) -> None:
    assert code_of(error) == code


CODED = Auth(tenant_id="t1", token="x", client_flags=0, client_features=0x800)
UNCODED = Auth(tenant_id="t1", token="x", client_flags=0, client_features=0x7FFF_F7FF)
NOPE: Any = {"tenant_id": "t1", "namespace": "default", "stream": "nope"}


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Subscribe(**NOPE), "not_found"),
        (Publish(**NOPE, payload=b""), "not_found"),
        (Publish(**NOPE, payload=b"", request_id=1), "not_found"),
        (Publish(**{**NOPE, "tenant_id": "a/b"}, payload=b""), "invalid_request"),
        (encode_frame(0, b'{"type":"later"}'), "invalid_request"),
        (encode_frame(0, b"{"), "invalid_request"),
        (CODED, "invalid_request"),
    ],
)
@pytest.mark.parametrize("auth", [None, CODED, UNCODED])
async def test_codes_are_for_clients_that_read_them(talk: Talk, auth: Auth | None, request_: Any, code: str) -> None:
    if auth is not None:
        await talk.ask(auth)
    elif request_ is CODED:
        await talk.ask(UNCODED)
    answer = await talk.ask(request_)
    assert isinstance(answer, Error | PublishError)
    assert (answer.code, answer.retry) == ((code, "fatal") if auth is CODED else (UNSET, UNSET))


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
