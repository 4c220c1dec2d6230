"""docs/reference/errors.md: every exception with its meaning, and what each protocol replies for it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import IntEnum

from penstock import errors
from penstock.docstrings import field_docs
from penstock.errors import BatchFailed, PenstockError
from penstock.protocols.blipmq.errors import code_of as blipmq_code
from penstock.protocols.blipmq.wire import NackCode
from penstock.protocols.felix.errors import code_of as felix_code
from penstock.protocols.flymq.errors import OPENINGS
from penstock.protocols.fujin import wire as fujin
from penstock.protocols.fujin.errors import error_of
from penstock.protocols.rustlog.wire import Code
from scripts.reference.markdown import DOCS, GENERATED, code, document, prose, table

PAGE = DOCS / "reference" / "errors.md"
INTRODUCTION = f"""\
# Error reference

{GENERATED}

Every error is a class of `penstock.errors` below `PenstockError`. `code` is stable and meant for
programs, `str(error)` says what is wrong and what to do, and `retriable` says whether the same request
can succeed later. [Errors and retries](../python.md#errors-and-retries) says which errors leave the
outcome of a write unknown.

## Exceptions

In parentheses: the base class, if it is not `PenstockError`.
"""
FLYMQ_AND_OTHERS = """\
## Wire codes

What a client of each protocol receives if the broker refuses a request with this error.

- **FlyMQ**: an ERROR frame whose text begins with these words.
- **BlipMQ**: a NACK frame with this code and the message.
- **Felix**: an error with the message and, for clients that read codes, this name, number and advice.
"""
RUSTLOG = """\
## RustLog error codes

The code of an ERROR in the binary dialect depends on the request. The JSON dialect has no codes; its
texts begin with `partition not found`, `offset out of range`, or with the message of the error.
"""
FUJIN = """\
## Fujin error texts

Replies carry a text and no code. These texts are fixed; any other text is the message of the error,
which clients raise as `ServerError`.
"""


def page() -> str:
    return document(
        INTRODUCTION,
        table(["exception", "code", "retriable", "meaning"], map(_row, every_error())),
        FLYMQ_AND_OTHERS,
        table(["exception", "FlyMQ", "BlipMQ", "Felix"], map(_wire_row, filter(OPENINGS.__contains__, every_error()))),
        "## BlipMQ NACK codes",
        _codes(NackCode),
        RUSTLOG,
        _codes(Code),
        FUJIN,
        table(
            ["text", "exception"],
            ((code(text), code(type(error_of(text)).__name__)) for text in fujin_texts()),
        ),
    )


def every_error(base: type[PenstockError] = PenstockError) -> Iterator[type[PenstockError]]:
    """Yield the base and all errors below it, in the order of their declaration."""
    yield base
    for kind in base.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield from every_error(kind)


def _row(kind: type[PenstockError]) -> tuple[str, ...]:
    meaning = prose(inspect.getdoc(kind) or "")
    base = kind.__mro__[1]
    name = code(kind.__name__)
    if base not in (PenstockError, Exception):
        name += f" ({code(base.__name__)})"
    return name, code(kind.code), "depends" if kind is BatchFailed else "yes" if kind.retriable else "", meaning


def _wire_row(kind: type[PenstockError]) -> tuple[str, ...]:
    error = kind("")
    felix = felix_code(error)
    return (
        code(kind.__name__),
        code(OPENINGS[kind].words),
        str(int(blipmq_code(error))),
        f"{code(felix.name)} ({felix.number}), {code(felix.retry)}",
    )


def _codes(codes: type[IntEnum]) -> str:
    docs = field_docs(codes)
    return table(["code", "meaning"], ((str(int(each)), docs[each.name]) for each in codes))


def fujin_texts() -> list[str]:
    return [value for name, value in vars(fujin).items() if name.isupper() and isinstance(value, str) and " " in value]
