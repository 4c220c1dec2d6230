"""A filter selects the same records wherever it is given: Python, FETCH, the admin API, and replays of dead letters over both."""

from __future__ import annotations

from urllib.parse import quote

from tests.admin.api.asking import asking

RECORDS: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]] = [
    (b"k1", b'{"a": 1, "t": ["red"]}', (("h", b"true"), ("h", b"\xff"))),
    (None, b'{"a": "1"}', ()),
    (b"k2", None, (("n", None),)),
    (b"\xff", b"\xff\xfe", ()),
    (b"$.a = 1", b"$.a = 1", ()),
    (b"k3", b'{"a": {"b": [{"c": 2.5}]}}', (("h", b"7"),)),
    (b"", b"", ()),
    (b"K4", "É".encode(), ()),
    (b"5", b"9007199254740993", ()),
    (b"k", b'{"a": 1e400}', ()),
]
SELECTED = {
    "$.a = 1": [0],
    "$.a != 1": [1, 5, 9],
    "$.a missing": [2, 3, 4, 6, 7, 8],
    "$.a": [0, 1, 4, 5, 9],
    "$.a.b[0].c >= 2.5": [5],
    "$.t contains RED": [0],
    "$key missing": [1],
    "$key = 5": [8],
    "$value missing": [2],
    '$value = ""': [6],
    "$value = 9007199254740993": [8],
    '$value contains "$.a = 1"': [4],
    "$header.h = true": [0],
    "$header.h > 6": [5],
    "$header.n = null": [2],
    "é": [7],
    "^k[0-9]$": [0, 2, 5],
    "\ufffd": [3],
}


def test_a_filter_selects_the_same_records_everywhere() -> None:
    with asking() as ask:
        client = ask.broker.connect()
        for topic in ("orders", "orders.dlq"):
            client.create_topic(topic)
            for key, value, headers in RECORDS:
                client.send(topic, value, key=key, headers=headers)
        for text, offsets in SELECTED.items():
            page = ask.ok("GET", f"/topics/orders/records?at=earliest&limit=100&filter={quote(text)}")
            replay = ask.ok("POST", "/topics/orders/dead-letters/replay", {"filter": text, "dry_run": True})
            selected = {
                "Python": [record.offset for record in client.records("orders", filter=text)],
                "FETCH": [record.offset for record in client.fetch("orders", 0, 0, 100, text).records],
                "admin API": [record["offset"] for record in page["records"]],
            }
            assert selected == dict.fromkeys(selected, offsets), text
            assert client.dead_letters.replay_all("orders", text, dry_run=True) == replay["count"] == len(offsets), text
