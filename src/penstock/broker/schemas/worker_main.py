"""The process that does for the broker what may take long or end badly: compiling definitions, comparing them, checking large records.

It reads one request after another from its standard input and answers each on its standard output, both as a length and MessagePack.
It may use so much memory, and so much processor time for a request, and no more. It ends when its input does, so it never outlives the
broker. What it is asked is in `worker`.
"""

from __future__ import annotations

import contextlib
import hashlib
import resource
import signal
import sys
import time
from collections import OrderedDict
from itertools import islice
from typing import BinaryIO, Final

import msgspec

from penstock.broker.schemas.definition import COST_UNBOUNDED, Checker, Fault, first_faults, shortened
from penstock.broker.schemas.kinds import KINDS, problems_between
from penstock.broker.schemas.worker import (
    FAULTS_MAX,
    HEAD,
    LENGTH,
    READY,
    CheckDefinition,
    CheckRecords,
    Parsed,
    Refused,
    Reply,
    Request,
    Stored,
    Verdict,
)
from penstock.errors import InvalidRequest, PenstockError

CHECKERS_MAX: Final = 64
REQUEST_S_MAX: Final = 60
"""The broker ends a worker much sooner; this is for one whose broker is gone, which would otherwise run forever."""
QUICK_S_MAX: Final = 0.02
"""In processor time. A definition that takes longer to load is not loaded on the event loop."""

_Checkers = OrderedDict[tuple[str, str], Checker]


def check_definition(request: CheckDefinition) -> Reply:
    definition = KINDS[request.kind].parse(request.text)
    fingerprint = hashlib.sha256(definition.identity).digest()
    started_s = time.process_time()
    loaded = KINDS[request.kind].load(request.text, definition.form, definition.cost)
    with contextlib.suppress(InvalidRequest):  # a Protobuf file without a message, which others import
        loaded.checker("")
    cost = definition.cost if time.process_time() - started_s <= QUICK_S_MAX else COST_UNBOUNDED
    problems: list[str] = []
    if fingerprint not in request.known:
        for stored in request.older:
            older = KINDS[request.kind].load(*_fields(stored))
            problems = problems_between(definition, older, request.compatibility)
            if problems:
                break
    return Parsed(definition.form, cost, fingerprint, definition.crc64, problems)


def check_records(request: CheckRecords, checkers: _Checkers) -> Reply:
    key = (request.id, request.message)
    checker = checkers.get(key)
    if checker is None:
        checker = KINDS[request.kind].load(*_fields(request.stored)).checker(request.message)
        checkers[key] = checker
        if len(checkers) > CHECKERS_MAX:
            checkers.popitem(last=False)
    if request.all_reasons:
        return Verdict([Fault(0, reason) for reason in checker.faults(request.values[0])])
    if checker.first_fault(request.values) is None:
        return Verdict([])
    faults = list(islice(first_faults(checker, request.values, request.units), FAULTS_MAX + 1))
    return Verdict(faults) if len(faults) <= FAULTS_MAX else Refused(f"more than {FAULTS_MAX} records are at fault")


def _fields(stored: Stored) -> tuple[str, bytes, int]:
    return stored.text, stored.form, stored.cost


def answer(request: Request, checkers: _Checkers) -> Reply:
    try:
        if isinstance(request, CheckDefinition):
            return check_definition(request)
        return check_records(request, checkers)
    except PenstockError as error:
        return Refused(error.message)
    except MemoryError:
        return Refused("more memory is needed than one check may take")
    except Exception as error:  # noqa: BLE001  whatever a library makes of what a client sent, the next request must find us here
        return Refused(shortened(f"{type(error).__name__}: {error}"))


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    decoder = msgspec.msgpack.Decoder(Request)
    encoder = msgspec.msgpack.Encoder()
    checkers: _Checkers = OrderedDict()
    replies.write(READY)
    replies.flush()
    while len(head := requests.read(HEAD.size)) == HEAD.size:
        length, cpu_s_max = HEAD.unpack(head)
        request = decoder.decode(requests.read(length))
        signal.alarm(REQUEST_S_MAX)
        # Nothing handles its signal, which ends the process: a library that holds the interpreter's lock would keep a handler waiting.
        signal.setitimer(signal.ITIMER_PROF, cpu_s_max)
        reply = encoder.encode(answer(request, checkers))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        replies.write(LENGTH.pack(len(reply)) + reply)
        replies.flush()


def main() -> None:
    memory_bytes_max = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes_max, memory_bytes_max))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The terminal's Ctrl-C is meant for the broker, which may still need us to stop cleanly.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
