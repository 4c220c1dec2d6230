"""The path of a request through the broker stays as short as it is: calls on the event loop have a ceiling for each kind of request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.calls import ROUNDS_MAX, Counts, Recorder, Requests, counts_of, requests

CEILINGS = {
    "FlyMQ PRODUCE": (81, 89, 0),
    "FlyMQ PRODUCE_ONCE": (133, 125, 0),
    "FlyMQ FETCH of 1": (66, 74, 0),
    "FlyMQ FETCH of 1,000": (71, 80, 0),
    "BlipMQ PUBLISH": (106, 105, 0),
    "BlipMQ POLL and ACK": (203, 227, 0),
    "RustLog PRODUCE": (88, 103, 0),
    "Fujin WRITE": (135, 156, 3),
    "Felix publish": (151, 178, 3),
    "Felix cache get": (78, 103, 2),
}
"""Calls of Python functions, calls in C, and passes through QUIC. Raise one only for something that is worth it on every request.
Over QUIC there is room for one timer that is due."""
SHARE_MIN = 0.75
"""Of a ceiling: a path that needs less gets a lower one."""


@pytest.fixture(scope="module")
def recorded() -> Iterator[tuple[Recorder, Requests]]:
    with requests() as (recorder, by_name):
        yield recorder, by_name


def test_each_kind_of_request_has_a_ceiling(recorded: tuple[Recorder, Requests]) -> None:
    assert set(recorded[1]) == set(CEILINGS)


@pytest.mark.parametrize("name", CEILINGS)
def test_no_path_grows_unnoticed(recorded: tuple[Recorder, Requests], name: str) -> None:
    recorder, by_name = recorded
    python_max, c_max, passes_max = CEILINGS[name]

    def fits(counts: Counts) -> bool:
        return counts.python <= python_max and counts.c <= c_max and counts.passes <= passes_max

    by_name[name]()
    found: list[Counts] = []
    while not (found and fits(found[-1])):  # a timer that fires meanwhile adds to a round
        assert len(found) < ROUNDS_MAX, f"more than {CEILINGS[name]} calls: {min(found)}"
        found.append(counts_of(recorder.record(by_name[name])))
    assert found[-1].python >= SHARE_MIN * python_max
    assert found[-1].c >= SHARE_MIN * c_max
