"""The manual's pages on RustLog: the program runs, the requests are requests."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

from penstock.testing import RunningBroker
from tests.protocols.rustlog.wire_client import WireClient

DOCS = Path(__file__).parents[3] / "docs"


def test_its_program_runs(broker: RunningBroker) -> None:
    found = re.search(r"<<'END'\n(.*?)\nEND\n", (DOCS / "rustlog.md").read_text(), re.DOTALL)
    assert found is not None
    program = found[1].replace("127.0.0.1:9292", broker.addresses["rustlog"])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program, {})
    assert printed.getvalue().splitlines() == ["0 0 b'one'", "1 0 b'two'", "1 1 b'three'"]
    (group,) = broker.connect().describe_group("billing")
    assert group.offsets == {0: 1, 1: 2}


def test_its_requests_are_requests(broker: RunningBroker, wire: WireClient) -> None:
    broker.connect().create_topic("t")
    page = (DOCS / "protocols" / "rustlog.md").read_text()
    requests = re.findall(r"^\| \w+ \| `(.*?)`(?: or `(.*?)`)? \|", page, re.MULTILINE)
    requests = [request for pair in requests for request in pair if request]
    assert len(requests) == 13
    replies = [json.loads(wire.ask_json(request)) for request in requests]
    assert [name for reply in replies for name in reply if name == "Error"] == ["Error"]  # the topic exists
    assert {name for reply in replies for name in reply} >= {"Produce", "Fetch", "OffsetFetch", "DescribeTopic", "Ping"}
