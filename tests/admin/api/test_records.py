"""Browsing and producing records over the API."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import fastavro
import pytest

from penstock.admin.api import browsing
from penstock.broker.access.checks import SYSTEM
from penstock.testing.clock import ManualClock
from penstock.workers import Worker
from tests.admin.api.asking import Asking, asking, on_loop

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": "string"}],
}
PROTOBUF = 'syntax = "proto3"; message Order { int64 id = 1; string who = 2; }'


@pytest.fixture(scope="module")
def numbers(ask: Asking) -> str:
    """A topic with 100 records in two partitions, number n in partition n % 2."""
    ask.ok("POST", "/topics", {"name": "numbers", "partitions": 2})
    for first in range(0, 100, 10):
        records = [{"value": f"n{number}", "partition": number % 2} for number in range(first, first + 10)]
        ask.ok("POST", "/topics/numbers/records", {"records": records})
    return "/topics/numbers/records"


def values(page: Any) -> list[str]:
    return [each["value"]["text"] for each in page["records"]]


def test_the_latest_records_of_all_partitions_come_first(ask: Asking, numbers: str) -> None:
    page = ask.ok("GET", f"{numbers}?limit=4")
    assert set(values(page)) <= {f"n{number}" for number in range(90, 100)}
    assert len(values(page)) == 4
    assert page["end"] is True
    assert page["next_positions"] == "0:50,1:50"


def test_pages_follow_one_another_until_the_end(ask: Asking, numbers: str) -> None:
    page = ask.ok("GET", f"{numbers}?at=earliest&limit=30")
    seen = values(page)
    for _ in range(10):
        if page["end"]:
            break
        page = ask.ok("GET", f"{numbers}?at=positions&positions={page['next_positions']}&limit=30")
        seen += values(page)
    assert sorted(seen, key=lambda text: int(text[1:])) == [f"n{number}" for number in range(100)]


def test_what_is_produced_after_a_page_is_in_the_next(ask: Asking) -> None:
    ask.ok("POST", "/topics", {"name": "tail"})
    page = ask.ok("GET", "/topics/tail/records")
    assert (page["records"], page["next_positions"]) == ([], "0:0")
    ask.ok("POST", "/topics/tail/records", {"records": [{"value": "new"}]})
    page = ask.ok("GET", f"/topics/tail/records?at=positions&positions={page['next_positions']}")
    assert values(page) == ["new"]


def test_a_page_begins_at_an_offset_or_a_time(ask: Asking, numbers: str) -> None:
    assert values(ask.ok("GET", f"{numbers}?at=offset&partition=1&offset=48")) == ["n97", "n99"]
    assert values(ask.ok("GET", f"{numbers}?at=offset&partition=1&offset=5000")) == []
    last = ask.ok("GET", f"{numbers}?limit=1")["records"][0]
    page = ask.ok("GET", f"{numbers}?at=time&time_ms={last['timestamp_ms']}&limit=100")
    assert page["records"]
    assert all(each["timestamp_ms"] >= last["timestamp_ms"] for each in page["records"])
    assert ask.ok("GET", f"{numbers}?at=time&time_ms={last['timestamp_ms'] + 1}")["records"] == []


def test_a_filter_looks_further_than_the_page_is_long(ask: Asking, numbers: str) -> None:
    page = ask.ok("GET", f"{numbers}?at=earliest&filter=n7&limit=50")
    assert sorted(values(page)) == sorted(["n7", *(f"n{number}" for number in range(70, 80))])
    assert (page["scanned"], page["end"]) == (100, True)
    assert sorted(values(ask.ok("GET", f"{numbers}?filter=%5En9.%24&limit=50"))) == [f"n{n}" for n in range(90, 100)]


@pytest.fixture(scope="module")
def sales(ask: Asking) -> str:
    """A topic whose records have keys, headers and JSON values."""
    ask.ok("POST", "/topics", {"name": "sales"})
    records = [
        {
            "key": f"customer-{number % 3}",
            "value": json.dumps({"sale": number, "customer": {"id": number % 3}, "items": [{"sku": f"s{number}"}]}),
            "headers": [{"name": "source", "value": "web" if number % 2 else "shop"}],
        }
        for number in range(12)
    ]
    ask.ok("POST", "/topics/sales/records", {"records": [*records, {"key": "gone"}, {"value": "no JSON"}]})
    return "/topics/sales/records"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("$header.source = web", [1, 3, 5, 7, 9, 11]),
        ("$.customer.id = 2", [2, 5, 8, 11]),
        ("$.sale > 9", [10, 11]),
        ("$.items[0].sku contains S1", [1, 10, 11]),
        ("$key = customer-1 and $header.source = shop and $.sale < 8", [4]),
        ("$.sale missing", [12, 13]),
        ("$value missing", [12]),
    ],
)
def test_conditions_find_records_by_path_key_and_header(ask: Asking, sales: str, text: str, found: list[int]) -> None:
    page = ask.ok("GET", f"{sales}?filter={quote(text)}&at=earliest")
    assert [each["offset"] for each in page["records"]] == found
    assert (page["scanned"], page["end"]) == (14, True)


def test_a_condition_that_cannot_be_read_is_refused_with_what_to_write(ask: Asking, sales: str) -> None:
    answer = ask("GET", f"{sales}?filter={quote('$.sale == 9')}")
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "no operator ==" in answer.json["detail"]
    assert "use =, !=, <," in answer.json["detail"]


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\x01b"])
def test_a_path_with_a_name_that_nothing_has_is_searched_for_as_text(ask: Asking, sales: str, name: str) -> None:
    assert ask.ok("GET", f"{sales}?filter={quote('$.' + name)}")["records"] == []


def test_a_filter_stops_at_its_bound_and_says_where(ask: Asking, numbers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "SCANNED_MAX", 2)
    monkeypatch.setattr(browsing, "READ_BYTES", 1)
    page = ask.ok("GET", f"{numbers}?at=earliest&filter=nothing")
    assert (page["records"], page["end"]) == ([], False)
    assert 0 < page["scanned"] < 100


def test_the_latest_records_are_the_latest_however_many_partitions_share_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(browsing, "SCANNED_MAX", 4)
    monkeypatch.setattr(browsing, "READ_BYTES", 1)
    with asking(ManualClock()) as ask:
        ask.ok("POST", "/topics", {"name": "many", "partitions": 4})
        for number in range(20):
            ask.ok("POST", "/topics/many/records", {"records": [{"value": f"n{number}", "partition": number % 4}]})
            ask.broker.clock.advance(0.001)
        page = ask.ok("GET", "/topics/many/records?limit=3")
    assert values(page) == ["n17", "n18", "n19"]
    assert page["end"] is True


def produce_expiring(ask: Asking, topic: str, count: int, *, kept: int) -> None:
    """Write records of which all but every `kept`-th one expire at once, as one block."""

    async def producing() -> None:
        placed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        ask.broker.server.broker.records.produce(
            SYSTEM,
            topic,
            0,
            [b"n%d" % number for number in range(count)],
            expiries=[0 if number % kept == 0 else 1 for number in range(count)],
            done=placed.set_result,
        )
        await placed

    on_loop(ask.broker, producing())


def test_no_record_is_left_out_between_those_that_have_expired(ask: Asking) -> None:
    ask.ok("POST", "/topics", {"name": "expiring"})
    for _ in range(2):
        produce_expiring(ask, "expiring", 100, kept=10)
    seen: list[int] = []
    positions = "0:0"
    for _ in range(100):
        page = ask.ok("GET", f"/topics/expiring/records?at=positions&positions={positions}&limit=4")
        seen += [each["offset"] for each in page["records"]]
        positions = page["next_positions"]
        if page["end"]:
            break
    assert seen == list(range(0, 200, 10))


def test_a_page_ends_within_its_bound_where_everything_has_expired(
    ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsing, "SCANNED_MAX", 20)
    ask.ok("POST", "/topics", {"name": "expired"})
    produce_expiring(ask, "expired", 100, kept=1000)
    page = ask.ok("GET", "/topics/expired/records?at=positions&positions=0:1&limit=10")
    assert (page["records"], page["scanned"], page["next_positions"]) == ([], 20, "0:21")


def test_a_page_of_many_partitions_is_bounded_in_bytes_as_a_whole(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "PAGE_BYTES_MAX", 1000)
    ask.ok("POST", "/topics", {"name": "wide", "partitions": 8})
    for partition in range(8):
        ask.ok("POST", "/topics/wide/records", {"records": [{"value": "x" * 400, "partition": partition}]})
    page = ask.ok("GET", "/topics/wide/records?at=earliest&limit=100")
    assert len(page["records"]) == 3
    seen = len(page["records"])
    for _ in range(8):
        if page["end"]:
            break
        page = ask.ok("GET", f"/topics/wide/records?at=positions&positions={page['next_positions']}&limit=100")
        assert len(page["records"]) <= 3
        seen += len(page["records"])
    assert seen == 8
    latest = ask.ok("GET", "/topics/wide/records?limit=100")
    assert [each["partition"] for each in latest["records"]] == [6, 7]
    assert latest["end"] is True


def test_a_slow_filter_stops_at_its_deadline_also_within_a_block(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "SCAN_S_MAX", 0.0)
    ask.ok("POST", "/topics", {"name": "slow", "partitions": 2})
    for partition in range(2):
        records = [{"value": f"n{number}", "partition": partition} for number in range(10)]
        ask.ok("POST", "/topics/slow/records", {"records": records})
    page = ask.ok("GET", "/topics/slow/records?at=earliest&filter=n")
    assert (page["scanned"], page["next_positions"], page["end"]) == (1, "0:1,1:0", False)


def test_waiting_for_a_thread_leaves_a_filter_all_of_its_time(
    ask: Asking, numbers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    run = Worker.run

    async def run_late(self: Worker, work: Any) -> Any:
        nonlocal now_s
        now_s += 2 * browsing.SCAN_S_MAX
        return await run(self, work)

    monkeypatch.setattr(browsing, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(Worker, "run", run_late)
    page = ask.ok("GET", f"{numbers}?at=earliest&partition=0&filter=nothing")
    assert (page["scanned"], page["next_positions"], page["end"]) == (50, "0:50", True)


def test_a_page_is_bounded_in_bytes(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "PAGE_BYTES_MAX", 250)
    ask.ok("POST", "/topics", {"name": "large"})
    ask.ok("POST", "/topics/large/records", {"records": [{"value": str(number) * 100} for number in range(5)]})
    page = ask.ok("GET", "/topics/large/records?at=earliest")
    assert [text[0] for text in values(page)] == ["0", "1"]
    assert page["next_positions"] == "0:2"
    assert [text[0] for text in values(ask.ok("GET", "/topics/large/records"))] == ["3", "4"]


@pytest.mark.parametrize(
    "query",
    [
        "at=offset&offset=1",
        "at=offset&partition=0",
        "at=time",
        "at=earliest&offset=1",
        "at=positions",
        "at=positions&positions=x",
        "at=positions&positions=0:1,0:2",
        "limit=501",
        "partition=-1",
        "filter=" + "x" * 2000,
    ],
)
def test_a_place_that_makes_no_sense_is_refused(ask: Asking, numbers: str, query: str) -> None:
    assert ask("GET", f"{numbers}?{query}").code == "invalid_request"


def test_partitions_that_are_not_there_are_not_found(ask: Asking, numbers: str) -> None:
    assert ask("GET", f"{numbers}?partition=2").code == "partition_not_found"
    assert ask("GET", f"{numbers}?at=positions&positions=7:0").code == "partition_not_found"


def test_a_record_keeps_its_key_headers_and_bytes(ask: Asking) -> None:
    ask.ok("POST", "/topics", {"name": "whole"})
    [place] = ask.ok(
        "POST",
        "/topics/whole/records",
        {
            "records": [
                {
                    "value_base64": base64.b64encode(b"\xff\x00").decode(),
                    "key": "k",
                    "headers": [{"name": "h", "value": "v"}, {"name": "none"}],
                }
            ]
        },
    )
    record = ask.ok("GET", f"/topics/whole/partitions/{place['partition']}/records/{place['offset']}")
    assert base64.b64decode(record["value"]["base64"]) == b"\xff\x00"
    assert record["key"]["text"] == "k"
    assert [(each["name"], each["value"] and each["value"]["text"]) for each in record["headers"]] == [
        ("h", "v"),
        ("none", None),
    ]
    assert ask("GET", "/topics/whole/partitions/0/records/1").code == "offset_out_of_range"
    assert ask("GET", "/topics/whole/partitions/0/records/-1").code == "invalid_request"


def test_cells_of_a_page_are_cut_and_one_record_is_whole(ask: Asking) -> None:
    ask.ok("POST", "/topics", {"name": "cut"})
    ask.ok("POST", "/topics/cut/records", {"records": [{"value": "ä" * 50}, {"value": None, "key": "gone"}]})
    first, tombstone = ask.ok("GET", "/topics/cut/records?cell_bytes=11")["records"]
    assert first["value"] == {"size": 100, "text": "ä" * 5, "base64": None, "truncated": True}
    assert tombstone["value"] is None
    assert ask.ok("GET", "/topics/cut/partitions/0/records/0")["value"]["text"] == "ä" * 50


@pytest.mark.parametrize(
    "record",
    [{"value": "x", "value_base64": "eA=="}, {"value_base64": "!"}, {"value": "x", "partition": 7}],
)
def test_a_record_that_cannot_be_written_is_refused(ask: Asking, numbers: str, record: dict[str, Any]) -> None:
    assert ask("POST", numbers, {"records": [record]}).status in (400, 404)


def test_records_are_written_together_or_not_at_all(ask: Asking) -> None:
    ask.ok("POST", "/schemas/strict", {"type": "json", "definition": '{"type": "object"}'})
    ask.ok("POST", "/topics", {"name": "strict", "schema": "strict"})
    assert ask("POST", "/topics/strict/records", {"records": [{"value": "{}"}, {"value": "1"}]}).status == 422
    assert ask.ok("GET", "/topics/strict/records")["records"] == []


def found_by(ask: Asking, topic: str, text: str) -> list[int]:
    page = ask.ok("GET", f"/topics/{topic}/records?at=earliest&limit=500&filter={quote(text)}")
    assert page["end"] is True
    return [each["offset"] for each in page["records"]]


def test_every_decoded_record_is_checked_however_large_they_are(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "DECODED_ROWS_PER_STEP", 4)
    monkeypatch.setattr(browsing, "DECODED_BYTES_PER_STEP", 20)
    monkeypatch.setattr(browsing, "SCAN_S_MAX", 30.0)
    ask.ok("POST", "/schemas/sized", {"type": "avro", "definition": json.dumps(AVRO)})
    ask.ok("POST", "/topics", {"name": "sized", "schema": "sized"})
    records = []
    for number in range(30):
        written = io.BytesIO()
        fastavro.schemaless_writer(written, AVRO, {"id": number % 10, "who": "x" * number})
        records.append({"value_base64": base64.b64encode(written.getvalue()).decode()})
    ask.ok("POST", "/topics/sized/records", {"records": records})
    assert found_by(ask, "sized", "$.id = 3") == [3, 13, 23]
    page = ask.ok("GET", "/topics/sized/records?at=earliest&limit=2&filter=" + quote("$.id = 3"))
    assert ([each["offset"] for each in page["records"]], page["end"]) == ([3, 13], False)
    page = ask.ok(
        "GET", f"/topics/sized/records?at=positions&positions={page['next_positions']}&filter={quote('$.id = 3')}"
    )
    assert ([each["offset"] for each in page["records"]], page["scanned"]) == ([23], 16)


def test_records_are_decoded_by_the_schema_of_their_topic(ask: Asking) -> None:
    ask.ok("POST", "/topics", {"name": "avro"})
    ask.ok("POST", "/topics/avro/records", {"records": [{"value": "from before the binding"}]})
    ask.ok("POST", "/schemas/avro", {"type": "avro", "definition": json.dumps(AVRO)})
    ask.ok("PUT", "/topics/avro/schema", {"schema": "avro"})
    written = io.BytesIO()
    fastavro.schemaless_writer(written, AVRO, {"id": 7, "who": "ann"})
    encoded = base64.b64encode(written.getvalue()).decode()
    ask.ok("POST", "/topics/avro/records", {"records": [{"value_base64": encoded}]})
    before, after = ask.ok("GET", "/topics/avro/records")["records"]
    assert before["decoded"] is None
    assert before["fault"]
    assert (after["decoded"], after["schema"], after["fault"]) == ({"id": 7, "who": "ann"}, "avro:1", None)
    assert found_by(ask, "avro", "$.id >= 7 and $.who contains ANN") == [1]
    assert found_by(ask, "avro", "$.id") == [1]
    assert found_by(ask, "avro", "$.id > 7") == []

    ask.ok("POST", "/schemas/proto", {"type": "protobuf", "definition": PROTOBUF})
    ask.ok("POST", "/topics", {"name": "proto", "schema": "proto"})
    ask.ok(
        "POST",
        "/topics/proto/records",
        {"records": [{"value_base64": base64.b64encode(b"\x08\x07\x12\x03ann").decode()}, {"key": "gone"}]},
    )
    message, tombstone = ask.ok("GET", "/topics/proto/records")["records"]
    assert message["decoded"] == {"id": "7", "who": "ann"}
    assert found_by(ask, "proto", "$.who = ann") == [0]
    assert found_by(ask, "proto", "$.who missing") == [1]
    assert tombstone["decoded"] is None
